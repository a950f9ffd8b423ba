"""hf_attnprobe: does this model's attention explain its predictions?

Importing the package registers its models with the Auto classes of Transformers. Everything
else is imported when it is first used, so that the core does without ``datasets`` and
``evaluate``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from hf_attnprobe.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
    AttentionClassifierModel,
)
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    from hf_attnprobe.adapters import register_adapter, wrap
    from hf_attnprobe.attention_model import (
        AttentionModel,
        AttentionModelBase,
        Batch,
        Observation,
        Site,
    )
    from hf_attnprobe.auditing.options import AuditOptions
    from hf_attnprobe.auditing.report import Report
    from hf_attnprobe.auditing.run import audit, read_audit
    from hf_attnprobe.checkpoint_comparison.report import CheckpointComparison
    from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints
    from hf_attnprobe.data.arguments import Data
    from hf_attnprobe.data.examples import load_examples
    from hf_attnprobe.data.splits import load_splits
    from hf_attnprobe.data.synthetic import evidence_dataset
    from hf_attnprobe.data.tokenizer import build_tokenizer
    from hf_attnprobe.deception.run import deceive
    from hf_attnprobe.demonstration import demo
    from hf_attnprobe.evaluate_module import install_metric, metric_path
    from hf_attnprobe.faithfulness.registry import FaithfulnessTest, register_test
    from hf_attnprobe.options import Options, option
    from hf_attnprobe.retraining.run import retrain
    from hf_attnprobe.retraining.transfer import transfer
    from hf_attnprobe.statistics.summary import Statistic
    from hf_attnprobe.studies.run import study
    from hf_attnprobe.training.classifier import train_classifier
    from hf_attnprobe.training.fine_tuning import fine_tune


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
    "AttentionModel": "attention_model",
    "AttentionModelBase": "attention_model",
    "AuditOptions": "auditing.options",
    "Batch": "attention_model",
    "CheckpointComparison": "checkpoint_comparison.report",
    "Data": "data.arguments",
    "FaithfulnessTest": "faithfulness.registry",
    "Observation": "attention_model",
    "Options": "options",
    "Report": "auditing.report",
    "Site": "attention_model",
    "Statistic": "statistics.summary",
    "audit": "auditing.run",
    "build_tokenizer": "data.tokenizer",
    "compare_checkpoints": "checkpoint_comparison.run",
    "deceive": "deception.run",
    "demo": "demonstration",
    "evidence_dataset": "data.synthetic",
    "fine_tune": "training.fine_tuning",
    "install_metric": "evaluate_module",
    "load_examples": "data.examples",
    "load_splits": "data.splits",
    "metric_path": "evaluate_module",
    "option": "options",
    "read_audit": "auditing.run",
    "register_adapter": "adapters",
    "register_test": "faithfulness.registry",
    "retrain": "retraining.run",
    "study": "studies.run",
    "train_classifier": "training.classifier",
    "transfer": "retraining.transfer",
    "wrap": "adapters",
}
"""Where the public names are defined that are imported when they are first used."""

__all__ = [
    "AttentionClassifierConfig",
    "AttentionClassifierForSequenceClassification",
    "AttentionClassifierModel",
    "AttentionModel",
    "AttentionModelBase",
    "AttnProbeError",
    "AuditOptions",
    "Batch",
    "CheckpointComparison",
    "Data",
    "FaithfulnessTest",
    "Observation",
    "Options",
    "Report",
    "Site",
    "Statistic",
    "audit",
    "build_tokenizer",
    "compare_checkpoints",
    "deceive",
    "demo",
    "evidence_dataset",
    "fine_tune",
    "install_metric",
    "load_examples",
    "load_splits",
    "metric_path",
    "option",
    "read_audit",
    "register_adapter",
    "register_test",
    "retrain",
    "study",
    "train_classifier",
    "transfer",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
