"""The checkpoint code: attention classifiers as ordinary Transformers models.

``save_pretrained`` copies the files next to the weights, so they import nothing from
the rest of the package.
"""

# First and whole: once it is imported our classes are registered, for which both files are needed.
import transformers  # noqa: F401

from .configuration_attention_classifier import AttentionClassifierConfig
from .modeling_attention_classifier import (
    AttentionClassifierForSequenceClassification,
    AttentionClassifierModel,
)


__all__ = [
    "AttentionClassifierConfig",
    "AttentionClassifierForSequenceClassification",
    "AttentionClassifierModel",
]
