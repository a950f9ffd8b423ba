"""Adapters, which read and edit attention in any model architecture through one protocol.

`wrap` creates the adapter for a loaded model, and `register_adapter` adds support for further
models. Start reading with `wrap` in this file and with the interface in `hf_attnprobe.protocol`.

- `transformer`: Transformers with a classification head, and other task heads.
- `language_model`: decoders that answer from a passage.
- `classifier`: attention classifiers that are included in hf_attnprobe.
- `pooling`: base class for modules that pool a bag of instances by attention.
- `mil_models`: such modules of other packages, which are recognised by the names of their classes.
- `deletion`: erasing tokens from texts and running the model again.
- `pretrained`: properties that all Transformers models have, such as labels and length limits.
- `wrappers`: the model inside `DataParallel`, `torch.compile`, a `Trainer` and similar objects.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from hf_attnprobe.adapters.classifier.adapter import (
    ClassifierAdapter,
    SingleHeadAdapter,
)
from hf_attnprobe.adapters.classifier.features import FeatureClassifierAdapter
from hf_attnprobe.adapters.classifier.hierarchical import HierarchicalAdapter
from hf_attnprobe.adapters.classifier.pair import PairAdapter
from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.adapters.mil_models import MIL_ADAPTERS, UNSUPPORTED_MODELS
from hf_attnprobe.adapters.pretrained import (
    PretrainedModelInfo,
    is_hierarchical,
    reads_features,
    reads_pairs,
    unwrap_peft,
)
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.adapters.transformer.custom_model import CustomModel, adapt_module
from hf_attnprobe.adapters.wrappers import unwrap_module
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.models.attention_classifier.modeling_attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.protocol import AttentionModelBase


AdapterFactory = Callable[..., AttentionModelBase]
"""Type of a function that receives a model and the options of `wrap`, and returns an adapter."""

LANGUAGE_MODEL_SUFFIXES = (
    "ForCausalLM",
    "LMHeadModel",
    "ModelWithLMHead",
    "GenerationDecoder",
)
"""Suffixes of the class names of causal language models in Transformers.

For example, the class name `LlamaForCausalLM` ends with the first suffix.
"""

_factories: dict[str | type, AdapterFactory] = {}
"""Registered functions that create adapters, by `config.model_type` or by model class."""


def register_adapter(model_type: str | type, factory: AdapterFactory) -> None:
    """Register a function that creates adapters for one type of models.

    `wrap` then uses this function. A later registration for the same type replaces an earlier one.

    Args:
        model_type: `config.model_type` of a Transformers model, or a model class.
        factory: Function, or adapter class, that is called with the model and with all keyword
            arguments of `wrap` that are not None.

    Raises:
        AttnProbeError: If `model_type` is neither a string nor a class.

    Example:
        register_adapter("my_model_type", MyAdapter)
        adapter = wrap(model)
    """
    if not isinstance(model_type, str | type):
        raise AttnProbeError(
            "expected a model class or a model type, such as 'bert', as model_type, got "
            f"{model_type!r}"
        )
    _factories[model_type] = factory


def wrap(
    model: nn.Module | AttentionModelBase,
    *,
    dtype: torch.dtype | None = None,
    mask_id: int | None = None,
    **options: Any,
) -> AttentionModelBase:
    """Create the adapter for a loaded model, without changing the model.

    Factories registered for the model's class take precedence over factories registered for its
    `config.model_type`. Built-in attention classifiers are recognized by their `model_type` only,
    because a model loaded with `trust_remote_code` does not have the installed class.

    Args:
        model: A Transformers model with a classification head or a language-modelling head, a
            model with a registered adapter, or an adapter, which is returned unchanged. It may
            also be a module of a user's own class that contains one Transformers model and returns
            logits. `DataParallel`, compiled models and peft models are unwrapped.
        dtype: Data type for all computations. None means float64 for attention classifiers, and
            the loaded weights' type for other models.
        mask_id: Id of the token that replaces erased tokens.
        **options: Further arguments for the adapter, see `TransformerAdapter`. Attention
            classifiers ignore them.

    Returns:
        The model's adapter.

    Raises:
        AttnProbeError: If the model has no supported head, or cannot be audited.

    Example:
        model = AutoModelForSequenceClassification.from_pretrained(name)
        adapter = wrap(model)
        observation = adapter.observe(adapter.prepare(inputs, example_ids=(0, 1)))
    """
    if isinstance(model, AttentionModelBase):
        return model
    model = adapt_model(model)
    inner_model = unwrap_peft(model)
    if inner_model is not model:
        inner_model = adapt_model(inner_model)
    all_options = {"dtype": dtype, "mask_id": mask_id, **options}
    arguments = {name: value for name, value in all_options.items() if value is not None}
    adapter = _find_factory(inner_model)(inner_model, **arguments)
    is_custom = isinstance(inner_model, CustomModel)
    if inner_model is not model and isinstance(adapter, PretrainedModelInfo) and not is_custom:
        # The adapter's results are compared with the peft wrapper, because users call the wrapper.
        adapter.user_model = model
    return adapter


def adapt_model(model: nn.Module) -> nn.Module:
    """Remove wrappers from a model, and give a user's own class the interface of Transformers.

    A model with a registered adapter and a peft model are only unwrapped.

    Args:
        model: A model, which may be wrapped for several devices or compiled.

    Returns:
        The model to audit. The result does not change if it is adapted again.

    Raises:
        AttnProbeError: If the class contains several Transformers models, or does not accept token
            ids, or returns no logits.
    """
    model = unwrap_module(model)
    is_module = isinstance(model, nn.Module)
    if not is_module or _find_registered_factory(model) or unwrap_peft(model) is not model:
        return model
    return adapt_module(model)


class InstanceInputs(NamedTuple):
    """Bags that a model reads.

    Attributes:
        column: "features" or "items".
        feature_size: Size of the vectors; None for any size.
        n_items: Number of different integers that the model embeds; None if it is unknown.
    """

    column: str
    feature_size: int | None = None
    n_items: int | None = None


def describe_instances(model: Any) -> InstanceInputs | None:
    """Describe the bags that a model reads, without creating an adapter.

    Args:
        model: A loaded model or an adapter.

    Returns:
        The description; None if the model reads texts or images.
    """
    if isinstance(model, nn.Module):
        config = getattr(unwrap_peft(model), "config", None)
        if reads_features(config):
            return InstanceInputs("features", getattr(config, "feature_size", None))
        adapter = _find_registered_factory(model)
    else:
        adapter = model
    column = getattr(adapter, "instance_column", None)
    if column is None:
        return None
    n_items = getattr(adapter, "n_embeddings", None) if column == "items" else None
    return InstanceInputs(column, getattr(adapter, "feature_size", None), n_items)


def _find_registered_factory(model: nn.Module) -> AdapterFactory | None:
    """Find the registered factory for a model's class or for its model type, or return None."""
    for model_class in type(model).__mro__:
        if model_class in _factories:
            return _factories[model_class]
        package = model_class.__module__.partition(".")[0]
        name = f"{package}.{model_class.__name__}"
        if name in UNSUPPORTED_MODELS:
            raise AttnProbeError(UNSUPPORTED_MODELS[name])
        adapter_class = MIL_ADAPTERS.get(name)
        if adapter_class is not None:
            return adapter_class
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    return _factories.get(model_type) if model_type is not None else None


def _find_factory(model: nn.Module) -> AdapterFactory:
    """Find the function or class that creates the adapter for a model.

    Registered model classes come first, then registered model types, and then the general adapters
    for language models and other Transformers.
    """
    if isinstance(model, CustomModel):
        return TransformerAdapter
    registered_factory = _find_registered_factory(model)
    if registered_factory is not None:
        return registered_factory
    name = type(model).__name__
    if getattr(getattr(model, "config", None), "model_type", None) is None:
        raise AttnProbeError(
            f"expected a Transformers model, or a module that contains one, got {name}. Write an "
            "adapter for this model, and register it with register_adapter (see "
            "docs/extending.md)."
        )
    if name.endswith(LANGUAGE_MODEL_SUFFIXES):
        return LanguageModelAdapter
    if name.endswith("ForConditionalGeneration") and hasattr(model.config, "vision_config"):
        raise AttnProbeError(
            f"{name} cannot be audited, because it also reads images; choose a language model that "
            "reads only text"
        )
    return TransformerAdapter


def _wrap_attention_classifier(
    model: AttentionClassifierForSequenceClassification,
    *,
    dtype: torch.dtype = torch.float64,
    mask_id: int | None = None,
    **ignored_options: Any,
) -> SingleHeadAdapter | FeatureClassifierAdapter:
    """Create the adapter for an attention classifier of this package.

    There are separate adapters for hierarchical models and for models that read text pairs.
    """
    if not hasattr(model, "classifier"):
        raise AttnProbeError(
            f"expected a model with a classification head, got {type(model).__name__}; "
            "load it with AutoModelForSequenceClassification"
        )
    if model.config.attention == "guided":
        raise AttnProbeError(
            "this model cannot be audited, because it uses another model's attention "
            "(attention='guided'); audit the other model"
        )
    if reads_features(model.config):
        return FeatureClassifierAdapter(model, dtype=dtype)
    adapter_class: type[SingleHeadAdapter] = ClassifierAdapter
    if is_hierarchical(model.config):
        adapter_class = HierarchicalAdapter
    elif reads_pairs(model.config):
        adapter_class = PairAdapter
    return adapter_class(model, dtype=dtype, mask_id=mask_id)


register_adapter("attention_classifier", _wrap_attention_classifier)
