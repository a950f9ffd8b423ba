"""The checkpoint code: attention classifiers of the papers as ordinary Transformers models.

The files are copied next to the weights by ``save_pretrained``, so they import nothing from the rest of the package.
"""

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
