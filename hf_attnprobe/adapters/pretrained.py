"""Facts about a Transformers model beside its attention: labels, ids, lengths."""

import contextlib
import inspect
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_attnprobe.adapters.transformer.attention_hooks import VARIABLE_LENGTH_KERNELS
from hf_attnprobe.adapters.transformer.layout import get_embeddings_module
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.functional.explanations import gauss_legendre
from hf_attnprobe.functional.fingerprint import compute_fingerprint
from hf_attnprobe.functional.predictions import (
    Prediction,
    make_class_prediction,
    list_label_names,
)
from hf_attnprobe.models.attention_classifier.configuration_attention_classifier import (
    AttentionClassifierConfig,
)
from hf_attnprobe.protocol import UNLIMITED_LENGTH, Observation


POSITIONS_FROM_PADDING = {
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}
"""Model types that number positions from the padding token's id on.

They lose two positions.
"""


class PretrainedModelInfo:
    """The facts of a ``PreTrainedModel``, from its configuration; no copy is made.

    Adapters derive from it: their facts are those of the model that they were given.

    Attributes:
        given: the model, as it was given; peft's wrapper too.
        label_names: the names of the classes, in the order of the probabilities.
        n_embeddings: how many token ids the model embeds; None for images.
        separator_ids: the token between sentences of a hierarchical model, no content.
        segment: "text" for a model with a query encoder, which attends to it alone.
        answers: of a model whose labels must occur in the text, the token of each.
    """

    def __init__(self, model: PreTrainedModel):
        if not hasattr(model, "get_input_embeddings"):
            raise AttnProbeError(
                f"expected a Transformers model or one with an adapter, got "
                f"{type(model).__name__}; register one with register_adapter (docs/extending.md says how)"
            )
        config, embeddings = model.config, get_embeddings_module(model)
        if not config.return_dict:
            raise AttnProbeError(
                "expected a model that returns its output by names, got one with "
                "return_dict=False; set model.config.return_dict = True"
            )
        self.user_model: Any = model
        self.label_names = get_class_names(config)
        self.n_embeddings: int | None = None
        if isinstance(embeddings, nn.Embedding):
            self.n_embeddings = embeddings.num_embeddings
        self.separator_ids: frozenset[int] = frozenset()
        if is_hierarchical(config):
            self.separator_ids = frozenset([config.sep_token_id])
        self.answers = tuple(getattr(config, "answer_token_ids", None) or ())
        self.segment: str | None = "text" if reads_pairs(config) else None

    @property
    def prediction(self) -> Prediction:
        """What the model predicts: one of its classes."""
        return make_class_prediction(self.label_names)

    def get_max_length(self, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """The most tokens that a text may have, special ones included; None: any number."""
        config = self.user_model.config
        bounds = []
        has_positions = getattr(config, "max_position_embeddings", None) is not None
        if has_positions and not _is_ours(config):  # ours read any number of tokens
            lost = 2 if config.model_type in POSITIONS_FROM_PADDING else 0
            bounds.append(config.max_position_embeddings - lost)
        bounds.append(tokenizer.model_max_length)
        return min(
            [int(bound) for bound in bounds if 0 < bound < UNLIMITED_LENGTH],
            default=None,
        )

    def compute_fingerprint(self) -> str:
        """16 hexadecimal digits of the given weights' content, before any change of dtype."""
        return compute_fingerprint(self.user_model)

    @torch.no_grad()
    def compute_native_output(self, inputs: Mapping[str, Any]) -> Any:
        """The given model's own output, in eval mode; its mode is restored.

        No adapter has a part in it, so its numbers can be compared with this.

        Args:
            inputs: those that its forward does not take are left out.
        """
        reset_dynamic_positions(self.user_model)
        with use_eval_mode(self.user_model):
            return self.user_model(**select_forward_inputs(self.user_model, inputs))


class ScaledGradients:
    """Gradient × input and its integral, from gradients at scaled embeddings."""

    @abstractmethod
    def compute_scaled_gradient(
        self, observation: Observation, target: Tensor, scale: float, hold: bool
    ) -> Tensor:
        """Gradient × input [batch, keys] where the embeddings are scaled.

        Args:
            target: int [batch].
            hold: lets no gradient flow through the attention.
        """

    def compute_gradient_times_input(self, observation: Observation, target: Tensor) -> Tensor:
        return self.compute_scaled_gradient(observation, target, 1.0, hold=True)

    def integrated_gradient(
        self,
        observation: Observation,
        target: Tensor,
        n_steps: int,
        *,
        through_attention: bool = True,
    ) -> Tensor:
        hold = not through_attention
        total: Tensor | float = 0.0
        for place, weight in gauss_legendre(n_steps):
            part = self.compute_scaled_gradient(observation, target, place, hold)
            total = total + weight * part
        return torch.as_tensor(total)


LENGTH_DEPENDENT_ROPE_TYPES = ("dynamic", "longrope")
"""Kinds of rotary positions that are others in longer texts."""


def has_length_dependent_positions(config: PreTrainedConfig) -> bool:
    """Whether a token's position is turned into another number where the text goes on."""
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    by_layer = [one for one in rope.values() if isinstance(one, Mapping)]
    return any(one.get("rope_type") in LENGTH_DEPENDENT_ROPE_TYPES for one in [rope, *by_layer])


def reset_dynamic_positions(model: nn.Module) -> None:
    """Makes dynamic positions those of a new model, which has read no longer text."""
    for module in model.modules():
        # a module that is asked for what it lacks looks for it in three places
        if vars(module).get("rope_type") == "dynamic":
            module.max_seq_len_cached = 0  # type: ignore[assignment]


@contextlib.contextmanager
def use_eval_mode(model: nn.Module) -> Iterator[None]:
    """A model in eval mode, in kernels for any length; what it was is restored."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with sdpa_kernel(VARIABLE_LENGTH_KERNELS):
            yield
    finally:
        for module in training:
            module.training = True


def select_forward_inputs(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that a model's forward takes: by their names, or all by ``**kwargs``."""
    known = inspect.signature(model.forward).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return dict(inputs)
    return {name: value for name, value in inputs.items() if name in known}


def unwrap_peft(model: nn.Module) -> nn.Module:
    """The model inside of peft's wrapper, with what was added to it; others as they are.

    Raises:
        AttnProbeError: what was added is a prompt, which only the wrapper knows of.
    """
    wrapper = getattr(sys.modules.get("peft"), "PeftModel", ())  # peft loads slowly
    if not isinstance(model, wrapper):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise AttnProbeError(
            "expected an adapter whose weights are added to the model's, as LoRA's, got "
            f"{model.active_peft_config.peft_type.value}; it cannot be audited"
        )
    return model.get_base_model()


def get_class_names(config: PreTrainedConfig) -> list[str]:
    """Names of a model's classes or labels, in the order of their numbers.

    Raises:
        AttnProbeError: a key of ``id2label`` that is no number.
    """
    try:
        return list_label_names(config.id2label)
    except ValueError as reason:
        raise AttnProbeError(
            "expected numbers as keys of id2label in the model's configuration, got "
            f"{', '.join(map(repr, config.id2label or ()))!s:.80}; number the names from 0"
        ) from reason


def is_hierarchical(config: PreTrainedConfig) -> bool:
    """Whether a configuration is of a classifier with sentences above its words."""
    return _is_ours(config) and bool(getattr(config, "hierarchical", False))


def reads_pairs(config: PreTrainedConfig) -> bool:
    """Whether a configuration is of a classifier that reads two texts, one as its query."""
    return _is_ours(config) and bool(getattr(config, "query_encoder", False))


def _is_ours(config: PreTrainedConfig) -> bool:
    return config.model_type == AttentionClassifierConfig.model_type
