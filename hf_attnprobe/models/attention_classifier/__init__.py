"""Attention classifiers (Jain & Wallace 2019 and related papers) as Transformers models.

The main classes are :class:`AttentionClassifierForSequenceClassification` in
``modeling_attention_classifier.py`` and :class:`AttentionClassifierConfig` in
``configuration_attention_classifier.py``. ``save_pretrained`` copies all files in this package next
to the weights, so they import nothing else from hf_attnprobe.
"""

# Importing Transformers registers the classes below, which needs both of their modules.
# Transformers is therefore imported completely before them.
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
