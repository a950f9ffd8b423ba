"""hf_attnprobe: does this model's attention explain its predictions?

Importing the package registers its models with the Auto classes of Transformers. What needs ``datasets`` or
``evaluate`` is imported when it is first used.
"""

import importlib
import os

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
    AttentionClassifierModel,
)
from hf_attnprobe.attention_model import Site
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.evaluate_module import install_metric, metric_path


__version__ = "0.1.0"

AutoConfig.register(
    AttentionClassifierConfig.model_type, AttentionClassifierConfig, exist_ok=True
)
AutoModel.register(AttentionClassifierConfig, AttentionClassifierModel, exist_ok=True)
AutoModelForSequenceClassification.register(
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
    exist_ok=True,
)

_LATER = {
    "audit": "hf_attnprobe.auditing.run",
    "Report": "hf_attnprobe.auditing.report",
    "build_tokenizer": "hf_attnprobe.data.tokenizer",
    "evidence_dataset": "hf_attnprobe.data.synthetic",
    "load_examples": "hf_attnprobe.data.examples",
    "study": "hf_attnprobe.studies.run",
    "StudyOptions": "hf_attnprobe.studies.options",
    "StudyReport": "hf_attnprobe.studies.report",
    "train_classifier": "hf_attnprobe.training.classifier",
}

__all__ = [
    "AttentionClassifierConfig",
    "AttentionClassifierForSequenceClassification",
    "AttentionClassifierModel",
    "AttnProbeError",
    "Report",
    "Site",
    "StudyOptions",
    "StudyReport",
    "audit",
    "build_tokenizer",
    "evidence_dataset",
    "load_examples",
    "metric_path",
    "study",
    "train_classifier",
    "wrap",
]


def __getattr__(name: str):
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "HF_ATTNPROBE_NO_METRIC_CACHE" not in os.environ:
    install_metric()
