"""Adapters, which present models of any architecture through one protocol.

`wrap` creates the adapter of a loaded model, and `register_adapter` adds a factory for further
models. Start reading with `wrap` in this file and with the contract in `hf_attnprobe.protocol`.

- `transformer`: Transformers with a classification head, and other task heads.
- `language_model`: decoders that answer from a passage.
- `classifier`: the attention classifiers of this package.
- `deletion`: forward passes on texts without some of their tokens.
- `pretrained`: facts that all Transformers models have, such as labels and length limits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hf_attnprobe.adapters.classifier.adapter import (
    ClassifierAdapter,
    SingleHeadAdapter,
)
from hf_attnprobe.adapters.classifier.hierarchical import HierarchicalAdapter
from hf_attnprobe.adapters.classifier.pair import PairAdapter
from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.adapters.pretrained import (
    PretrainedModelInfo,
    is_hierarchical,
    reads_pairs,
    unwrap_peft,
)
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.models.attention_classifier.modeling_attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.protocol import AttentionModelBase


AdapterFactory = Callable[..., AttentionModelBase]
"""Function from a model and the keyword arguments of `wrap` to the model's adapter."""

LANGUAGE_MODEL_SUFFIXES = (
    "ForCausalLM",
    "LMHeadModel",
    "ModelWithLMHead",
    "GenerationDecoder",
)
"""Endings of the class names of causal language models in Transformers."""

_factories: dict[str | type, AdapterFactory] = {}


def register_adapter(model_type: str | type, factory: AdapterFactory) -> None:
    """Register the function that `wrap` uses to adapt models of one type.

    A later registration replaces an earlier one of the same type.

    Args:
        model_type: `config.model_type` of a Transformers model, or a model class.
        factory: Function, or adapter class, that is called with the model and with those keyword
            arguments of `wrap` that are not None.

    Raises:
        AttnProbeError: If `model_type` is neither a string nor a class.

    Example:
        register_adapter("my_model_type", MyAdapter)
        adapter = wrap(model)
    """
    if not isinstance(model_type, str | type):
        raise AttnProbeError(
            f"expected a model type or a model class, got {model_type!r}; "
            "pass the value of config.model_type"
        )
    _factories[model_type] = factory


def wrap(
    model: nn.Module | AttentionModelBase,
    *,
    dtype: torch.dtype | None = None,
    mask_id: int | None = None,
    **options: Any,
) -> AttentionModelBase:
    """Create the adapter of a loaded model, without changing the model.

    Factories registered for the model's class take precedence over factories registered for its
    `config.model_type`. Built-in model types are recognized by name only, because a model loaded
    with `trust_remote_code` has another class than the installed one.

    Args:
        model: A Transformers model with a classification head or a language-modelling head, a
            model with a registered adapter, or an adapter, which is returned unchanged. A peft
            model is unwrapped.
        dtype: Data type for all computations. None means float64 for attention classifiers, and
            the type of the loaded weights for other models.
        mask_id: Id of the token that replaces erased tokens.
        **options: Further arguments of the adapter, see `TransformerAdapter`. Attention
            classifiers ignore them.

    Returns:
        The adapter of the model.

    Raises:
        AttnProbeError: If the model has no supported head, or cannot be audited.

    Example:
        model = AutoModelForSequenceClassification.from_pretrained(name)
        adapter = wrap(model)
        observation = adapter.observe(adapter.prepare(inputs, example_ids=(0, 1)))
    """
    if isinstance(model, AttentionModelBase):
        return model
    inner_model = unwrap_peft(model)
    all_options = {"dtype": dtype, "mask_id": mask_id, **options}
    arguments = {name: value for name, value in all_options.items() if value is not None}
    adapter = _find_factory(inner_model)(inner_model, **arguments)
    if inner_model is not model and isinstance(adapter, PretrainedModelInfo):
        # Native outputs are computed by the peft wrapper, because users call the wrapper.
        adapter.user_model = model
    return adapter


def _find_factory(model: nn.Module) -> AdapterFactory:
    """Find the adapter factory for a model by its class and its model type."""
    for model_class in type(model).__mro__:
        if model_class in _factories:
            return _factories[model_class]
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if model_type in _factories:
        return _factories[model_type]
    name = type(model).__name__
    if model_type is None:
        raise AttnProbeError(
            f"expected a Transformers model or a model with an adapter, got {name}; "
            "register an adapter with register_adapter, see docs/extending.md"
        )
    if name.endswith(LANGUAGE_MODEL_SUFFIXES):
        return LanguageModelAdapter
    if name.endswith("ForConditionalGeneration") and hasattr(model.config, "vision_config"):
        raise AttnProbeError(
            f"expected a language model that reads only text, but {name} also reads images; "
            "it cannot be audited"
        )
    return TransformerAdapter


def _wrap_attention_classifier(
    model: AttentionClassifierForSequenceClassification,
    *,
    dtype: torch.dtype = torch.float64,
    mask_id: int | None = None,
    **ignored_options: Any,
) -> SingleHeadAdapter:
    """Create the adapter of an attention classifier, according to its configuration."""
    if not hasattr(model, "classifier"):
        raise AttnProbeError(
            f"expected a model with a classification head, got {type(model).__name__}; "
            "load it with AutoModelForSequenceClassification"
        )
    if model.config.attention == "guided":
        raise AttnProbeError(
            "expected a model that computes its own attention, but this one was trained with "
            "guided attention; audit the model that provided the attention weights"
        )
    adapter_class: type[SingleHeadAdapter] = ClassifierAdapter
    if is_hierarchical(model.config):
        adapter_class = HierarchicalAdapter
    elif reads_pairs(model.config):
        adapter_class = PairAdapter
    return adapter_class(model, dtype=dtype, mask_id=mask_id)


register_adapter("attention_classifier", _wrap_attention_classifier)
