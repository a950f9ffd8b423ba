"""The two kinds of model behind one protocol."""

import torch

from hf_attnprobe.adapters.classifier.adapter import ClassifierAdapter
from hf_attnprobe.adapters.classifier.hierarchical import HierarchicalAdapter
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.attention_model import AttentionModel
from hf_attnprobe.errors import AttnProbeError


def wrap(model, *, dtype: torch.dtype | None = None, **options) -> AttentionModel:
    """The adapter for a loaded model, chosen by ``config.model_type``; the model itself is left as it is.

    Never by class: one loaded through ``trust_remote_code`` is a different object from the installed one.

    Args:
        model: a Transformers model with a classification head.
        dtype: what to compute in; ``None`` is float64 for attention classifiers (see :class:`ClassifierAdapter`), and
            as loaded for other models.
        options: of :class:`TransformerAdapter`, for other models than attention classifiers.

    Raises:
        AttnProbeError: for a model without a classification head, or of a kind that cannot be audited.
    """
    if model.config.model_type != "attention_classifier":
        return TransformerAdapter(model, dtype=dtype, **options)
    if not hasattr(model, "classifier"):
        raise AttnProbeError(
            f"expected a model with a classification head, got {type(model).__name__}; "
            "load it with AutoModelForSequenceClassification"
        )
    if model.config.attention == "guided":
        raise AttnProbeError(
            "expected a model with attention of its own, this one was trained with guided attention; read the model that "
            "guided it"
        )
    adapter = (
        HierarchicalAdapter
        if getattr(model.config, "hierarchical", False)
        else ClassifierAdapter
    )
    return adapter(model, dtype=dtype or torch.float64)
