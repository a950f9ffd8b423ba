"""hf_attnprobe: does this model's attention explain its predictions?

Importing the package registers its models with the Auto classes of Transformers, and its
metric in evaluate's cache of modules. Everything else is imported when it is first used, so
that the core does without ``datasets`` and ``evaluate``.
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
from hf_attnprobe.evaluate_module import install_metric, metric_path
from hf_attnprobe.integrations import register_pipeline


if TYPE_CHECKING:
    from hf_attnprobe.adapters import register_adapter, wrap
    from hf_attnprobe.attention_model import (
        AttentionModel,
        AttentionModelBase,
        Batch,
        BlockOutputs,
        Differentiable,
        EditableInputs,
        HeadOutputs,
        HeadValues,
        IntegratedGradients,
        LinearReadout,
        MaskedReplay,
        Observation,
        OutputProjections,
        Site,
        Stack,
    )
    from hf_attnprobe.auditing.differences.compare import compare_audits
    from hf_attnprobe.auditing.differences.report import AuditComparison
    from hf_attnprobe.auditing.options import AuditOptions
    from hf_attnprobe.auditing.report import Report, read_audit
    from hf_attnprobe.auditing.run import audit
    from hf_attnprobe.calibration.options import CalibrationOptions
    from hf_attnprobe.calibration.report import Calibration
    from hf_attnprobe.calibration.run import calibrate
    from hf_attnprobe.charts.shown_text import ShownText
    from hf_attnprobe.checkpoint_comparison.options import ComparisonOptions
    from hf_attnprobe.checkpoint_comparison.report import CheckpointComparison
    from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints
    from hf_attnprobe.data.arguments import Data
    from hf_attnprobe.data.catalogue import KnownDataset, known_datasets
    from hf_attnprobe.data.examples import load_examples
    from hf_attnprobe.data.generated.pairs import evidence_pair_dataset
    from hf_attnprobe.data.generated.reviews import rationale_dataset
    from hf_attnprobe.data.splits import load_splits
    from hf_attnprobe.data.tokenizer import build_tokenizer
    from hf_attnprobe.deception.options import DeceptionOptions
    from hf_attnprobe.deception.report import Deception
    from hf_attnprobe.deception.run import deceive
    from hf_attnprobe.demonstration import DemoOptions, demo
    from hf_attnprobe.faithfulness.adversarial import Adversarial
    from hf_attnprobe.faithfulness.correlation import Correlation
    from hf_attnprobe.faithfulness.erasure import Erasure
    from hf_attnprobe.faithfulness.explanations import Explanations
    from hf_attnprobe.faithfulness.input_erasure import InputErasure
    from hf_attnprobe.faithfulness.permutation import Permutation
    from hf_attnprobe.faithfulness.plausibility import Plausibility
    from hf_attnprobe.faithfulness.registry import FaithfulnessTest, register_test
    from hf_attnprobe.faithfulness.screen import Screen
    from hf_attnprobe.faithfulness.single_token import SingleToken
    from hf_attnprobe.integrations.text_explainer import (
        TextExplainer,
        explain_html,
        explain_text,
    )
    from hf_attnprobe.integrations.trainer_callback import AttentionFaithfulnessCallback
    from hf_attnprobe.options import Options, option
    from hf_attnprobe.partitions.options import WorkOptions
    from hf_attnprobe.partitions.plan import Plan
    from hf_attnprobe.partitions.planning import plan_audit
    from hf_attnprobe.partitions.report import job_report, rows_of_job
    from hf_attnprobe.partitions.run import run_partition
    from hf_attnprobe.partitions.workers import WorkDone, work
    from hf_attnprobe.publishing.options import CardOptions
    from hf_attnprobe.publishing.report import WrittenCard
    from hf_attnprobe.publishing.run import write_card
    from hf_attnprobe.readings import Reading
    from hf_attnprobe.retraining.options import RetrainOptions, TransferOptions
    from hf_attnprobe.retraining.report import RetrainingReport
    from hf_attnprobe.retraining.run import retrain
    from hf_attnprobe.retraining.stored import read_retraining
    from hf_attnprobe.retraining.transfer import transfer
    from hf_attnprobe.statistics.differences import Comparison, compare_rankings
    from hf_attnprobe.statistics.scores import Score
    from hf_attnprobe.statistics.summary import Statistic
    from hf_attnprobe.studies.options import StudyOptions
    from hf_attnprobe.studies.rendering import render_report
    from hf_attnprobe.studies.report import StudyReport
    from hf_attnprobe.studies.run import study
    from hf_attnprobe.testing import check_adapter
    from hf_attnprobe.training.classifier import train_classifier
    from hf_attnprobe.training.fine_tuning import fine_tune
    from hf_attnprobe.training.options import TrainingOptions
    from hf_attnprobe.training.resuming import TrainedClassifier
    from hf_attnprobe.training.run import train


__version__ = "0.1.0"

AutoConfig.register(AttentionClassifierConfig.model_type, AttentionClassifierConfig, exist_ok=True)
AutoModel.register(AttentionClassifierConfig, AttentionClassifierModel, exist_ok=True)
AutoModelForSequenceClassification.register(
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
    exist_ok=True,
)

_LATER = {
    "Adversarial": "faithfulness.adversarial",
    "AttentionFaithfulnessCallback": "integrations.trainer_callback",
    "TextExplainer": "integrations.text_explainer",
    "explain_html": "integrations.text_explainer",
    "explain_text": "integrations.text_explainer",
    "AttentionModel": "attention_model",
    "AttentionModelBase": "attention_model",
    "AuditOptions": "auditing.options",
    "Batch": "attention_model",
    "BlockOutputs": "attention_model",
    "Calibration": "calibration.report",
    "CalibrationOptions": "calibration.options",
    "CardOptions": "publishing.options",
    "CheckpointComparison": "checkpoint_comparison.report",
    "Comparison": "statistics.differences",
    "ComparisonOptions": "checkpoint_comparison.options",
    "Correlation": "faithfulness.correlation",
    "Data": "data.arguments",
    "Deception": "deception.report",
    "DeceptionOptions": "deception.options",
    "DemoOptions": "demonstration",
    "Differentiable": "attention_model",
    "EditableInputs": "attention_model",
    "Erasure": "faithfulness.erasure",
    "Explanations": "faithfulness.explanations",
    "FaithfulnessTest": "faithfulness.registry",
    "HeadOutputs": "attention_model",
    "HeadValues": "attention_model",
    "InputErasure": "faithfulness.input_erasure",
    "IntegratedGradients": "attention_model",
    "KnownDataset": "data.catalogue",
    "LinearReadout": "attention_model",
    "MaskedReplay": "attention_model",
    "Observation": "attention_model",
    "Options": "options",
    "OutputProjections": "attention_model",
    "Permutation": "faithfulness.permutation",
    "Plan": "partitions.plan",
    "WorkDone": "partitions.workers",
    "WorkOptions": "partitions.options",
    "job_report": "partitions.report",
    "plan_audit": "partitions.planning",
    "rows_of_job": "partitions.report",
    "run_partition": "partitions.run",
    "work": "partitions.workers",
    "Plausibility": "faithfulness.plausibility",
    "Reading": "readings",
    "Report": "auditing.report",
    "RetrainOptions": "retraining.options",
    "RetrainingReport": "retraining.report",
    "Score": "statistics.scores",
    "Screen": "faithfulness.screen",
    "ShownText": "charts.shown_text",
    "SingleToken": "faithfulness.single_token",
    "Site": "attention_model",
    "Stack": "attention_model",
    "Statistic": "statistics.summary",
    "StudyOptions": "studies.options",
    "StudyReport": "studies.report",
    "TrainedClassifier": "training.resuming",
    "TrainingOptions": "training.options",
    "TransferOptions": "retraining.options",
    "WrittenCard": "publishing.report",
    "audit": "auditing.run",
    "build_tokenizer": "data.tokenizer",
    "calibrate": "calibration.run",
    "check_adapter": "testing",
    "AuditComparison": "auditing.differences.report",
    "compare_audits": "auditing.differences.compare",
    "compare_checkpoints": "checkpoint_comparison.run",
    "compare_rankings": "statistics.differences",
    "deceive": "deception.run",
    "demo": "demonstration",
    "evidence_pair_dataset": "data.generated.pairs",
    "fine_tune": "training.fine_tuning",
    "known_datasets": "data.catalogue",
    "load_examples": "data.examples",
    "load_splits": "data.splits",
    "option": "options",
    "rationale_dataset": "data.generated.reviews",
    "read_audit": "auditing.report",
    "read_retraining": "retraining.stored",
    "register_adapter": "adapters",
    "register_test": "faithfulness.registry",
    "render_report": "studies.rendering",
    "retrain": "retraining.run",
    "study": "studies.run",
    "train": "training.run",
    "train_classifier": "training.classifier",
    "transfer": "retraining.transfer",
    "wrap": "adapters",
    "write_card": "publishing.run",
}
"""Where the public names are defined that are imported when they are first used."""

__all__ = [
    "Adversarial",
    "AttentionClassifierConfig",
    "AttentionClassifierForSequenceClassification",
    "AttentionClassifierModel",
    "AttentionFaithfulnessCallback",
    "AttentionModel",
    "AttentionModelBase",
    "AttnProbeError",
    "AuditComparison",
    "AuditOptions",
    "Batch",
    "BlockOutputs",
    "Calibration",
    "CalibrationOptions",
    "CardOptions",
    "CheckpointComparison",
    "Comparison",
    "ComparisonOptions",
    "Correlation",
    "Data",
    "Deception",
    "DeceptionOptions",
    "DemoOptions",
    "Differentiable",
    "EditableInputs",
    "Erasure",
    "Explanations",
    "FaithfulnessTest",
    "HeadOutputs",
    "HeadValues",
    "InputErasure",
    "IntegratedGradients",
    "KnownDataset",
    "LinearReadout",
    "MaskedReplay",
    "Observation",
    "Options",
    "OutputProjections",
    "Permutation",
    "Plan",
    "Plausibility",
    "Reading",
    "Report",
    "RetrainOptions",
    "RetrainingReport",
    "Score",
    "Screen",
    "ShownText",
    "SingleToken",
    "Site",
    "Stack",
    "Statistic",
    "StudyOptions",
    "StudyReport",
    "TextExplainer",
    "TrainedClassifier",
    "TrainingOptions",
    "TransferOptions",
    "WorkDone",
    "WorkOptions",
    "WrittenCard",
    "audit",
    "build_tokenizer",
    "calibrate",
    "check_adapter",
    "compare_audits",
    "compare_checkpoints",
    "compare_rankings",
    "deceive",
    "demo",
    "evidence_pair_dataset",
    "explain_html",
    "explain_text",
    "fine_tune",
    "install_metric",
    "job_report",
    "known_datasets",
    "load_examples",
    "load_splits",
    "metric_path",
    "option",
    "plan_audit",
    "rationale_dataset",
    "read_audit",
    "read_retraining",
    "register_adapter",
    "register_test",
    "render_report",
    "retrain",
    "rows_of_job",
    "run_partition",
    "study",
    "train",
    "train_classifier",
    "transfer",
    "work",
    "wrap",
    "write_card",
]


register_pipeline()
install_metric()


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
