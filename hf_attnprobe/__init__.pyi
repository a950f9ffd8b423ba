"""Public names and the modules that define them, for type checkers and for ``__init__.py``."""

from hf_attnprobe.adapters import register_adapter as register_adapter
from hf_attnprobe.adapters import wrap as wrap
from hf_attnprobe.adapters.pooling import PoolingAdapter as PoolingAdapter
from hf_attnprobe.attention_map import AttentionMap as AttentionMap
from hf_attnprobe.attention_map import MapCertificate as MapCertificate
from hf_attnprobe.audits.api import audit as audit
from hf_attnprobe.audits.api import evaluate_scores as evaluate_scores
from hf_attnprobe.audits.compare import compare as compare
from hf_attnprobe.audits.options import AuditOptions as AuditOptions
from hf_attnprobe.citations.api import cite as cite
from hf_attnprobe.citations.options import CiteOptions as CiteOptions
from hf_attnprobe.citations.report import CitationReport as CitationReport
from hf_attnprobe.core.errors import AttnProbeError as AttnProbeError
from hf_attnprobe.core.options import Options as Options
from hf_attnprobe.core.options import SavedModel as SavedModel
from hf_attnprobe.core.options import option as option
from hf_attnprobe.core.readings import Reading as Reading
from hf_attnprobe.data.catalog import KnownDataset as KnownDataset
from hf_attnprobe.data.catalog import list_datasets as list_datasets
from hf_attnprobe.data.examples import load_examples as load_examples
from hf_attnprobe.data.examples import load_splits as load_splits
from hf_attnprobe.data.specs import Answers as Answers
from hf_attnprobe.data.specs import Data as Data
from hf_attnprobe.data.synthetic import make_rationale_dataset as make_rationale_dataset
from hf_attnprobe.data.tokenizer import build_tokenizer as build_tokenizer
from hf_attnprobe.demonstration import DemoOptions as DemoOptions
from hf_attnprobe.demonstration import demo as demo
from hf_attnprobe.faithfulness.options import Adversarial as Adversarial
from hf_attnprobe.faithfulness.options import Correlation as Correlation
from hf_attnprobe.faithfulness.options import Erasure as Erasure
from hf_attnprobe.faithfulness.options import Explanations as Explanations
from hf_attnprobe.faithfulness.options import InputErasure as InputErasure
from hf_attnprobe.faithfulness.options import Permutation as Permutation
from hf_attnprobe.faithfulness.options import Plausibility as Plausibility
from hf_attnprobe.faithfulness.options import Screen as Screen
from hf_attnprobe.faithfulness.options import SingleToken as SingleToken
from hf_attnprobe.faithfulness.registry import (
    FaithfulnessTest as FaithfulnessTest,
)
from hf_attnprobe.faithfulness.registry import register_test as register_test
from hf_attnprobe.integrations.card_options import CardOptions as CardOptions
from hf_attnprobe.integrations.evaluate_metric import get_metric_path as get_metric_path
from hf_attnprobe.integrations.evaluate_metric import install_metric as install_metric
from hf_attnprobe.integrations.pipeline import TextExplainer as TextExplainer
from hf_attnprobe.integrations.pipeline import explain as explain
from hf_attnprobe.integrations.pipeline import explain_html as explain_html
from hf_attnprobe.integrations.pipeline import explain_text as explain_text
from hf_attnprobe.integrations.publishing import WrittenCard as WrittenCard
from hf_attnprobe.integrations.publishing import write_card as write_card
from hf_attnprobe.integrations.trainer_callback import (
    AttentionFaithfulnessCallback as AttentionFaithfulnessCallback,
)
from hf_attnprobe.maps.fitting import FittedMap as FittedMap
from hf_attnprobe.maps.fitting import fit_map as fit_map
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig as AttentionClassifierConfig,
)
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierForSequenceClassification as AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierModel as AttentionClassifierModel,
)
from hf_attnprobe.planted_effects.detection_limit import (
    find_detection_limit as find_detection_limit,
)
from hf_attnprobe.planted_effects.options import DetectionLimitOptions as DetectionLimitOptions
from hf_attnprobe.plots.highlighted_text import HighlightedText as HighlightedText
from hf_attnprobe.protocol import AttentionModel as AttentionModel
from hf_attnprobe.protocol import (
    AttentionModelBase as AttentionModelBase,
)
from hf_attnprobe.protocol import Batch as Batch
from hf_attnprobe.protocol import BlockOutputs as BlockOutputs
from hf_attnprobe.protocol import Differentiable as Differentiable
from hf_attnprobe.protocol import EditableInputs as EditableInputs
from hf_attnprobe.protocol import HeadOutputs as HeadOutputs
from hf_attnprobe.protocol import HeadValues as HeadValues
from hf_attnprobe.protocol import (
    IntegratedGradients as IntegratedGradients,
)
from hf_attnprobe.protocol import LinearReadout as LinearReadout
from hf_attnprobe.protocol import MaskedReplay as MaskedReplay
from hf_attnprobe.protocol import Observation as Observation
from hf_attnprobe.protocol import OutputProjections as OutputProjections
from hf_attnprobe.protocol import Site as Site
from hf_attnprobe.protocol import Stack as Stack
from hf_attnprobe.render import render_report as render_report
from hf_attnprobe.reports.comparison import (
    AuditComparison as AuditComparison,
)
from hf_attnprobe.reports.comparison import (
    compare_audits as compare_audits,
)
from hf_attnprobe.reports.comparison import (
    list_changed_answers as list_changed_answers,
)
from hf_attnprobe.reports.report import Report as Report
from hf_attnprobe.reports.report import join_shares as join_shares
from hf_attnprobe.reports.report import read_audit as read_audit
from hf_attnprobe.retraining.options import RetrainOptions as RetrainOptions
from hf_attnprobe.retraining.options import TransferOptions as TransferOptions
from hf_attnprobe.retraining.report import RetrainingReport as RetrainingReport
from hf_attnprobe.retraining.report import read_retraining as read_retraining
from hf_attnprobe.retraining.run import retrain as retrain
from hf_attnprobe.retraining.run import transfer as transfer
from hf_attnprobe.statistics.differences import Comparison as Comparison
from hf_attnprobe.statistics.differences import (
    compare_rankings as compare_rankings,
)
from hf_attnprobe.statistics.scores import Score as Score
from hf_attnprobe.statistics.summary import Statistic as Statistic
from hf_attnprobe.storage.rows import read_rows as read_rows
from hf_attnprobe.studies.report import StudyReport as StudyReport
from hf_attnprobe.studies.run import study as study
from hf_attnprobe.studies.steps import StudyOptions as StudyOptions
from hf_attnprobe.testing import check_adapter as check_adapter
from hf_attnprobe.training.classifier import (
    train_classifier as train_classifier,
)
from hf_attnprobe.training.options import TrainingOptions as TrainingOptions
from hf_attnprobe.training.run import fine_tune as fine_tune
from hf_attnprobe.training.run import train as train
from hf_attnprobe.training.trainer import TrainedClassifier as TrainedClassifier

__version__: str
__all__: list[str]
