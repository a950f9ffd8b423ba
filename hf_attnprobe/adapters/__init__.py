"""Adapters: one protocol for all kinds of model, and a registry for more."""

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
"""(model, dtype=…, mask_id=…, and what else :func:`wrap` is given) -> its adapter."""

LANGUAGE_MODEL_SUFFIXES = (
    "ForCausalLM",
    "LMHeadModel",
    "ModelWithLMHead",
    "GenerationDecoder",
)
"""How the names of their classes end."""

_factories: dict[str | type, AdapterFactory] = {}


def register_adapter(kind: str | type, factory: AdapterFactory) -> None:
    """Registers the function by which :func:`wrap` adapts models of one kind.

    Args:
        kind: ``config.model_type`` of a Transformers model, or a class of models. What is
            registered later replaces what was registered before.
        factory: called with the model and the keyword arguments of :func:`wrap` that are
            not None; an adapter class, for one.

    Raises:
        AttnProbeError: neither a name nor a class.
    """
    if not isinstance(kind, str | type):
        raise AttnProbeError(
            f"expected a model type or a class of models, got {kind!r}; "
            "name what config.model_type says"
        )
    _factories[kind] = factory


def wrap(
    model: nn.Module | AttentionModelBase,
    *,
    dtype: torch.dtype | None = None,
    mask_id: int | None = None,
    **options: Any,
) -> AttentionModelBase:
    """Adapts a loaded model; the model itself is not changed.

    A registered class of the model counts first, then ``config.model_type``. The model
    types that are known without registration go by name only: a model loaded through
    ``trust_remote_code`` is of another class than the installed one.

    Args:
        model: a Transformers model with a classification head, also in peft's wrapper, a
            model of a kind that is registered with :func:`register_adapter`, or an
            adapter, which is returned.
        dtype: what to compute in; ``None`` is float64 for attention classifiers and as
            loaded for other models.
        mask_id: the token that stands in for an erased one.
        options: further arguments of the adapter, see :class:`TransformerAdapter`;
            attention classifiers ignore them.

    Raises:
        AttnProbeError: no classification head, or a kind that cannot be audited.
    """
    if isinstance(model, AttentionModelBase):
        return model
    inner = unwrap_peft(model)
    given = {"dtype": dtype, "mask_id": mask_id, **options}
    arguments = {name: value for name, value in given.items() if value is not None}
    adapter = _factory_of(inner)(inner, **arguments)
    if inner is not model and isinstance(adapter, PretrainedModelInfo):
        adapter.user_model = model  # the wrapper has the last word, see `native_output`
    return adapter


def _factory_of(model: nn.Module) -> AdapterFactory:
    for kind in type(model).__mro__:
        if kind in _factories:
            return _factories[kind]
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if model_type in _factories:
        return _factories[model_type]
    if model_type is None:
        raise AttnProbeError(
            f"expected a Transformers model or one with an adapter, got "
            f"{type(model).__name__}; register one with register_adapter (docs/extending.md says how)"
        )
    name = type(model).__name__
    if name.endswith(LANGUAGE_MODEL_SUFFIXES):
        return LanguageModelAdapter
    if name.endswith("ForConditionalGeneration") and hasattr(model.config, "vision_config"):
        raise AttnProbeError(
            f"expected a language model of texts alone, {name} reads images too and cannot be "
            "audited"
        )
    return TransformerAdapter


def _wrap_attention_classifier(
    model: AttentionClassifierForSequenceClassification,
    *,
    dtype: torch.dtype = torch.float64,
    mask_id: int | None = None,
    **ignored: Any,
) -> SingleHeadAdapter:
    if not hasattr(model, "classifier"):
        raise AttnProbeError(
            "expected a model with a classification head, got "
            f"{type(model).__name__}; load it with AutoModelForSequenceClassification"
        )
    if model.config.attention == "guided":
        raise AttnProbeError(
            "expected a model with attention of its own, this one was trained with "
            "guided attention; read the model that guided it"
        )
    kind: type[SingleHeadAdapter] = ClassifierAdapter
    if is_hierarchical(model.config):
        kind = HierarchicalAdapter
    elif reads_pairs(model.config):
        kind = PairAdapter
    return kind(model, dtype=dtype, mask_id=mask_id)


register_adapter("attention_classifier", _wrap_attention_classifier)
