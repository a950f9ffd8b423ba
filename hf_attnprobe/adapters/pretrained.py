"""Properties of a Transformers model other than its attention: labels, token ids, length limits."""

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
    list_label_names,
    make_class_prediction,
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
"""Model types that number positions from the padding token's id plus 1, and not from 0.

The first two position embeddings are therefore never used, and a text can have at most
`max_position_embeddings` - 2 tokens.
"""


class PretrainedModelInfo:
    """Properties of a `PreTrainedModel` that are read from its configuration.

    Adapters derive from this class.

    Attributes:
        user_model: The model as the user passed it, which may be a peft wrapper.
        label_names: Class names, in the same order as the probabilities.
        n_embeddings: Number of rows in the token embedding table, or None for image models.
        separator_ids: Ids of tokens that separate sentences in a hierarchical classifier; such
            tokens are not explained. Empty for other models.
        segment: "text" for a classifier with a query encoder, whose attention covers only the first
            text; otherwise None.
    """

    def __init__(self, model: PreTrainedModel):
        if not hasattr(model, "get_input_embeddings"):
            raise AttnProbeError(
                f"expected a Transformers model, got {type(model).__name__}. Write an adapter for "
                "this model, and register it with register_adapter (see docs/extending.md)."
            )
        config = model.config
        embeddings = get_embeddings_module(model)
        if not config.return_dict:
            raise AttnProbeError(
                "expected return_dict=True in the model's configuration, got return_dict=False; set "
                "model.config.return_dict = True"
            )
        self.user_model: Any = model
        self.label_names = get_class_names(config)
        self.n_embeddings: int | None = None
        if isinstance(embeddings, nn.Embedding):
            self.n_embeddings = embeddings.num_embeddings
        self.separator_ids: frozenset[int] = frozenset()
        if is_hierarchical(config):
            self.separator_ids = frozenset([config.sep_token_id])
        self.segment: str | None = "text" if reads_pairs(config) else None

    @property
    def prediction(self) -> Prediction:
        """Description of the prediction, which is one of the model's classes."""
        return make_class_prediction(self.label_names)

    def get_max_length(self, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """Return the largest token count that a text may have, including special tokens.

        Args:
            tokenizer: The model's tokenizer.

        Returns:
            The smaller of the model's and the tokenizer's limit, or None if there is no limit.
        """
        config = self.user_model.config
        limits = []
        has_positions = getattr(config, "max_position_embeddings", None) is not None
        # Attention classifiers read texts of any length.
        if has_positions and not _is_attention_classifier(config):
            n_positions = config.max_position_embeddings
            if config.model_type in POSITIONS_FROM_PADDING:
                # In these models, the first token has position 2, so positions 0 and 1 are unused.
                n_positions -= 2
            limits.append(n_positions)
        limits.append(tokenizer.model_max_length)
        return min(
            [int(limit) for limit in limits if 0 < limit < UNLIMITED_LENGTH],
            default=None,
        )

    def compute_fingerprint(self) -> str:
        """Compute a hash of the original model's weights, 16 hexadecimal digits.

        The hash does not depend on the data type in which the adapter runs the model.
        """
        return compute_fingerprint(self.user_model)

    @torch.no_grad()
    def compute_native_output(self, inputs: Mapping[str, Any]) -> Any:
        """Run the original model (without hooks) in eval mode.

        The output is used to check the adapter's probabilities. The mode of the model is restored
        afterwards.

        Args:
            inputs: Keyword arguments. Arguments that the model's `forward` method does not accept
                are dropped.

        Returns:
            The model's output object.
        """
        reset_dynamic_positions(self.user_model)
        with use_eval_mode(self.user_model):
            return self.user_model(**select_forward_inputs(self.user_model, inputs))


class ScaledGradients:
    """Mixin that computes gradient × input and integrated gradients from scaled embeddings.

    Subclasses implement `compute_scaled_gradient`.
    """

    @abstractmethod
    def compute_scaled_gradient(
        self, observation: Observation, target: Tensor, scale: float, hold_attention: bool
    ) -> Tensor:
        """Compute gradient × input with the embeddings multiplied by a scale.

        Args:
            observation: The observed batch.
            target: Class whose probability is differentiated, for each text, int `[batch]`.
            scale: Factor on the embeddings at which the gradient is evaluated, from 0 to 1.
            hold_attention: Whether attention weights are treated as constants.

        Returns:
            Signed values `[batch, keys]`.
        """

    def compute_gradient_times_input(self, observation: Observation, target: Tensor) -> Tensor:
        """Compute gradient × input with constant attention; see `Differentiable`."""
        return self.compute_scaled_gradient(observation, target, 1.0, hold_attention=True)

    def compute_integrated_gradients(
        self,
        observation: Observation,
        target: Tensor,
        n_steps: int,
        *,
        through_attention: bool = True,
    ) -> Tensor:
        """Compute the integrated gradients of each token; see `IntegratedGradients`.

        Gradients are computed with the embeddings multiplied by several scales between 0 and 1.
        The integral over the scale is a weighted sum of these gradients.
        """
        hold_attention = not through_attention
        total: Tensor | float = 0.0
        for scale, weight in gauss_legendre(n_steps):
            gradient = self.compute_scaled_gradient(observation, target, scale, hold_attention)
            total = total + weight * gradient
        return torch.as_tensor(total)


LENGTH_DEPENDENT_ROPE_TYPES = ("dynamic", "longrope")
"""Types of rotary position embeddings (RoPE) that depend on the length of the text."""


def has_length_dependent_positions(config: PreTrainedConfig) -> bool:
    """Check whether a model encodes the position of a token differently in longer texts.

    This is the case for some types of rotary position embeddings (RoPE), such as "dynamic".

    Args:
        config: Model configuration.
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    layer_ropes = [value for value in rope.values() if isinstance(value, Mapping)]
    return any(
        parameters.get("rope_type") in LENGTH_DEPENDENT_ROPE_TYPES
        for parameters in [rope, *layer_ropes]
    )


def reset_dynamic_positions(model: nn.Module) -> None:
    """Reset rotary position embeddings of the type "dynamic" in a model.

    Such embeddings depend on the longest text that the model has read. After a reset, the model
    gives the same results as if it had not read any text.

    Args:
        model: The model.
    """
    for module in model.modules():
        # `vars` is faster than `getattr`, which also searches parameters, buffers and submodules.
        if vars(module).get("rope_type") == "dynamic":
            module.max_seq_len_cached = 0  # type: ignore[assignment]


@contextlib.contextmanager
def use_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode inside a ``with`` block, and restore its mode afterwards.

    Only attention kernels that need no preparation for new text lengths are used.

    Args:
        model: The model.
    """
    training_modules = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with sdpa_kernel(VARIABLE_LENGTH_KERNELS):
            yield
    finally:
        for module in training_modules:
            module.training = True


def select_forward_inputs(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Select the inputs that a model's `forward` method accepts.

    Args:
        model: The model.
        inputs: Keyword arguments.

    Returns:
        All inputs if the method has `**kwargs`, and otherwise the inputs that are named parameters.
    """
    parameters = inspect.signature(model.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(inputs)
    return {name: value for name, value in inputs.items() if name in parameters}


def describe_undefined_logits(dtype: torch.dtype) -> str:
    """Describe logits that are NaN or infinite, with a remedy, for an error message.

    Args:
        dtype: Data type of the model.
    """
    remedy = "Check the model's weights, or leave the text out."
    if dtype == torch.float16:
        remedy = "Load the model in float32 or bfloat16."
    return f"expected finite logits, got NaN or infinity in {dtype}. {remedy}"


def unwrap_peft(model: nn.Module) -> nn.Module:
    """Return the model inside a peft wrapper, including the weights that peft has added.

    Args:
        model: Any model.

    Returns:
        The inner model, or `model` itself if it is not wrapped.

    Raises:
        AttnProbeError: If peft has added a prompt, which the inner model does not contain.
    """
    # Importing peft takes long. If the user has not imported it, the model cannot be a peft model.
    peft_class = getattr(sys.modules.get("peft"), "PeftModel", ())
    if not isinstance(model, peft_class):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise AttnProbeError(
            f"a peft adapter of type {model.active_peft_config.peft_type.value} cannot be audited, "
            "because it adds a prompt. Use an adapter that changes the weights, such as LoRA."
        )
    return model.get_base_model()


def get_class_names(config: PreTrainedConfig) -> list[str]:
    """Return the names of a model's classes or labels, in the order of their indices.

    Args:
        config: Model configuration.

    Raises:
        AttnProbeError: If a key of `id2label` is not a number.
    """
    try:
        return list_label_names(config.id2label)
    except ValueError as error:
        keys = ", ".join(map(repr, config.id2label or ()))
        raise AttnProbeError(
            "expected whole numbers as keys of id2label in the model's configuration, got "
            f"{keys[:80]}; use the keys 0, 1, 2 and so on"
        ) from error


def is_hierarchical(config: PreTrainedConfig) -> bool:
    """Check whether a model is a hierarchical attention classifier, with attention over sentences.

    Args:
        config: Model configuration.
    """
    return _is_attention_classifier(config) and bool(getattr(config, "hierarchical", False))


def reads_pairs(config: PreTrainedConfig) -> bool:
    """Check whether a model is an attention classifier that reads text pairs.

    In such a model, the attention to the first text depends on the second text.

    Args:
        config: Model configuration.
    """
    return _is_attention_classifier(config) and bool(getattr(config, "query_encoder", False))


def reads_features(config: Any) -> bool:
    """Check whether a model is an attention classifier that reads bags of features.

    Args:
        config: Model configuration; None if the model has none.
    """
    model_type = getattr(config, "model_type", None)
    is_classifier = model_type == AttentionClassifierConfig.model_type
    return is_classifier and getattr(config, "inputs", "tokens") == "features"


def _is_attention_classifier(config: PreTrainedConfig) -> bool:
    """Check whether a configuration belongs to a built-in attention classifier."""
    return config.model_type == AttentionClassifierConfig.model_type
