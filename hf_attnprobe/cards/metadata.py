"""Model card content, names that are safe to publish, and the YAML front matter."""

import html
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import (
    EvalResult,
    EvalResultEntry,
    ModelCardData,
    constants,
    eval_result_entries_to_yaml,
)

from hf_attnprobe.core.options import HUB_ID_PATTERN
from hf_attnprobe.core.serialization import convert_to_plain
from hf_attnprobe.data.recipes import RECIPES
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.verdicts import RULES, Finding
from hf_attnprobe.statistics.wording import rename_audited_units


IN_MEMORY_NAME = "data given in memory"
"""Name for a data set that the user passed as a Python object instead of a path."""
MAX_VALUE_LENGTH = 200
"""Maximum length, in characters, of a name or a value in a model card."""
MAX_YAML_VALUE_LENGTH = 5000
"""Maximum length, in characters, of a value in the YAML front matter of a model card."""


@dataclass(frozen=True)
class DatasetReference:
    """A data set's name and Hub id in a card.

    Attributes:
        name: a registered name, a Hub id, or the last component of a path.
        hub_id: id on the Hub; None if it is unknown.
    """

    name: str
    hub_id: str | None = None

    @classmethod
    def from_name(cls, recorded_name: str) -> "DatasetReference":
        """Create a reference to a data set from its name in a training or audit record.

        A path is shortened to its last component. A local folder gets no Hub id, even if a data set
        on the Hub has the same name.

        Args:
            recorded_name: a registered name, ``name=folder``, a Hub id or a path.

        Returns:
            The reference.

        >>> DatasetReference.from_name("sst")
        DatasetReference(name='sst', hub_id='SetFit/sst2')
        >>> DatasetReference.from_name("data/babi1/")
        DatasetReference(name='babi1', hub_id=None)
        """
        name, equals, _ = recorded_name.partition("=")
        has_folder = equals != ""
        if name in RECIPES and (has_folder or not Path(name).exists()):
            # The record contains the name of a registered data set.
            hub_id = RECIPES[name].hub_id
            return cls(name, hub_id if HUB_ID_PATTERN.fullmatch(hub_id) else None)
        for registered_name, recipe in RECIPES.items():
            # The record contains the Hub id of a registered data set.
            if recorded_name == recipe.hub_id and HUB_ID_PATTERN.fullmatch(recorded_name):
                return cls(registered_name, recorded_name)
        if is_hub_id(recorded_name):
            return cls(recorded_name, recorded_name)
        return cls(clean_text(strip_local_folders(recorded_name)) or "data without a name")


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form ``org/name`` and is not a local folder."""
    return bool(HUB_ID_PATTERN.fullmatch(name)) and not Path(name).exists()


def strip_local_folders(name: str) -> str:
    """Return the last component of a path, or a Hub id unchanged.

    >>> strip_local_folders("org/name"), strip_local_folders("/home/somebody/models/bilstm/")
    ('org/name', 'bilstm')
    """
    if is_hub_id(name) or not ("/" in name or "\\" in name):
        return name
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


def strip_record_folders(record: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten all paths in a training or audit record to their last component.

    Published records should not reveal names of local folders.

    >>> strip_record_folders({"start": "/home/somebody/base", "seed": 1})
    {'start': 'base', 'seed': 1}
    """
    return {
        name: strip_local_folders(value) if isinstance(value, str) else value
        for name, value in record.items()
    }


def replace_local_paths(text: str, names: Mapping[str, str]) -> str:
    """Replace local paths in a text with public names.

    Args:
        text: the text, in plain text, HTML or JSON.
        names: public names by path; keys without a slash are ignored.

    Returns:
        The text with public names.
    """
    paths = [path for path in names if "/" in path]
    # A long path may start with a shorter one, so long paths are replaced first.
    for path in sorted(paths, key=len, reverse=True):
        # The slice removes the quotation marks that JSON adds around a string.
        escaped_for_json = json.dumps(path)[1:-1]
        for written_path in (path, html.escape(path), escaped_for_json):
            text = text.replace(written_path, names[path])
    return text


def clean_text(value: object, *, max_length: int = MAX_VALUE_LENGTH) -> str:
    r"""Convert a value to one line of printable characters.

    A text with more than ``max_length`` characters is shortened.

    >>> clean_text("a\n b\x00")
    'a b'
    """
    # Encoding and decoding replaces invalid characters, such as half of a surrogate pair.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    printable_text = "".join(c if c.isprintable() else " " for c in text)
    text = " ".join(printable_text.split())
    return text if len(text) <= max_length else text[:max_length] + "…"


def format_versions(versions: Mapping[str, Any]) -> str:
    """Format package versions as one line.

    >>> format_versions({"torch": "2.13", "numpy": "2.4"})
    'torch 2.13, numpy 2.4'
    """
    return ", ".join(f"{clean_text(name)} {clean_text(v)}" for name, v in versions.items())


def format_code(value: object) -> str:
    """Format a value as inline code in Markdown.

    Backticks and vertical bars would end the code or a table cell, so they are replaced.

    >>> print(format_code("a`b"))
    `a'b`
    """
    text = clean_text(value).replace("`", "'").replace("|", "¦")
    return f"`{text}`" if text else "(empty)"


def escape_prose(sentence: str) -> str:
    r"""Escape characters that Markdown would interpret, such as "<" and "|", in a sentence.

    >>> escape_prose("p < .05 | [a](b)")
    'p &lt; .05 \\| [a](b)'
    """
    # Encoding and decoding replaces invalid characters, and the split removes line breaks.
    text = " ".join(sentence.encode("utf-8", "replace").decode("utf-8").split())
    escapes = {
        "&": "&amp;",
        "<": "&lt;",
        "|": "\\|",
        "`": "'",
    }
    for character, escaped_character in escapes.items():
        text = text.replace(character, escaped_character)
    return text


def convert_for_yaml(value: Any) -> Any:
    """Convert results to values that the YAML front matter of a model card can store.

    - Texts lose control characters, and very long texts are shortened.
    - A number that is not finite becomes None.
    - A list with such a number, for example a confidence interval, becomes None as a whole.
    - Entries of mappings that are None are left out.

    >>> convert_for_yaml({"n": 3, "ci95": [0.1, float("inf")], "no": None})
    {'n': 3}
    """
    if isinstance(value, Mapping):
        converted = {clean_text(key): convert_for_yaml(item) for key, item in value.items()}
        return {key: item for key, item in converted.items() if item is not None}
    if isinstance(value, list):
        items = [convert_for_yaml(item) for item in value]
        return None if None in items else items
    is_numpy_scalar = hasattr(value, "item")
    if is_numpy_scalar:
        return convert_for_yaml(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return clean_text(value, max_length=MAX_YAML_VALUE_LENGTH)
    return value


# --- The content of a card -----------------------------------------------------------------------

TASK_BY_CLASS_SUFFIX = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "ForImageClassification": "image-classification",
}
"""Maps the suffix of a model class name to the name of its task on the Hugging Face Hub."""
SCORE_NAMES = {"accuracy": "accuracy", "f1": "F1", "roc_auc": "ROC-AUC"}
"""Maps the key of a score in a training record to the printed name of the score."""


@dataclass(frozen=True)
class Checkpoint:
    """Facts about a model that its card states.

    Attributes:
        name: folder name or Hub id.
        config: configuration as plain data.
        record: training record (``training.json``); empty if there is none.
        n_parameters: number of parameters; None if it is unknown.
    """

    name: str
    config: Mapping[str, Any]
    record: Mapping[str, Any] = field(default_factory=dict)
    n_parameters: int | None = None

    @property
    def class_name(self) -> str:
        """Name of the model class, such as BertForSequenceClassification.

        The name is empty if it is unknown.
        """
        architectures = self.config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            return ""
        return str(architectures[0])

    @property
    def reads_bags(self) -> bool:
        """Whether the model reads bags of instances instead of texts."""
        return self.config.get("inputs") == "features"

    @property
    def class_suffix(self) -> str:
        """Suffix of the class name, such as ForSequenceClassification.

        The suffix is empty for an unsupported class.
        """
        suffixes = (suffix for suffix in TASK_BY_CLASS_SUFFIX if self.class_name.endswith(suffix))
        return next(suffixes, "")

    @property
    def quotable_name(self) -> str:
        """The name without characters that would end a quotation in a command."""
        return clean_text(self.name).replace('"', "'").replace("\\", "/")

    @property
    def is_attention_classifier(self) -> bool:
        """Whether the model is an attention classifier from this package."""
        return self.config.get("model_type") == "attention_classifier"

    @property
    def has_own_code(self) -> bool:
        """Whether loading the model requires ``trust_remote_code``."""
        return bool(self.config.get("auto_map"))

    @property
    def classes(self) -> list[str]:
        """Class names, in numerical order."""
        names = self.config.get("id2label") or {}
        return [str(names[key]) for key in sorted(names, key=int)]


def get_hub_task(checkpoint: Checkpoint) -> str | None:
    """Return the Hub's name for a model's task; None if the Hub has no name for it.

    The Hub has no task for models that classify bags of instances.
    """
    if checkpoint.reads_bags:
        return None
    return TASK_BY_CLASS_SUFFIX.get(checkpoint.class_suffix)


@dataclass(frozen=True)
class AuditSummary:
    """An audit's results, as a card states them.

    Attributes:
        data: the audited data set.
        split: the audited split.
        n_texts: number of audited texts, including copies of the same text.
        n_distinct: number of different texts; None if it is unknown.
        n_answered: number of different texts on which the answer is based; None if it is unknown.
        seed: the audit's random seed.
        conclusion: the main question with its answer as one sentence; None without evidence.
        findings: every question with its answer.
        notes: sentences that qualify the findings.
        contradictions: results that are mathematically impossible, which indicates a bug.
        provenance: the audit's settings and package versions.
        rows_url: web address of the published rows; None if they are not published.
        answer: the answer to the main question.
        command: command that repeats the audit; "" if the model or the data set was an object in
            Python.
        has_pairs: whether the texts are pairs.
    """

    data: DatasetReference
    split: str
    n_texts: int
    seed: int
    conclusion: str | None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    rows_url: str | None = None
    answer: Answer = Answer.CANNOT_SAY
    command: str = ""
    has_pairs: bool = False
    n_distinct: int | None = None
    n_answered: int | None = None


@dataclass(frozen=True)
class CardContent:
    """A model card's content.

    Attributes:
        checkpoint: the model.
        audits: the model's audits; empty if it was not audited.
        data_id: Hub id for data sets whose names do not reveal it.
        license: the model's license; None to state no license.
        map_description: description of the fitted attention map next to the model; empty without a
            map.
        map_certificate: the certificate of this map as a sentence without a full stop.
    """

    checkpoint: Checkpoint
    audits: tuple[AuditSummary, ...] = ()
    data_id: str | None = None
    license: str | None = None
    map_description: str = ""
    map_certificate: str = ""

    @property
    def trained_on(self) -> DatasetReference | None:
        """The training data set; None if it is unknown."""
        recorded_name = self.checkpoint.record.get("dataset")
        if recorded_name is not None:
            return self.add_hub_id(DatasetReference.from_name(str(recorded_name)))
        if self.data_id is not None:
            return DatasetReference(self.data_id, self.data_id)
        return None

    @property
    def reads_pairs(self) -> bool:
        """Whether the model is known to read pairs of texts."""
        has_query_encoder = bool(self.checkpoint.config.get("query_encoder"))
        return has_query_encoder or any(audit.has_pairs for audit in self.audits)

    def add_hub_id(self, data: DatasetReference) -> DatasetReference:
        """Return a data set, with ``data_id`` as Hub id if it has none."""
        return DatasetReference(data.name, data.hub_id or self.data_id)


# --- The front matter, in the format of huggingface_hub ------------------------------------------

FAITHFULNESS_METRIC = "attention_faithfulness"
"""Metric type of audit results in the YAML front matter of a model card."""
RESULT_AUTHOR = "attnprobe card"
"""Author of the results that this package writes into a model card.

Each result stores it as the metric argument ``by``.
"""
LOCAL_DATASET = "local"
"""Type of a data set that is not on the Hub, in the YAML front matter of a model card."""
CARD_TAGS = ("attention", "interpretability", "hf_attnprobe")
"""Tags in the YAML front matter of every model card."""


def build_metadata(card: CardContent) -> ModelCardData:
    """Build the front matter of a model card, such as its tags, data sets and results.

    Args:
        card: the card's content.

    Returns:
        The front matter, with results in the Hub's ``model-index`` format.
    """
    results = build_eval_results(card)
    scores = [result.metric_type for result in results if result.metric_type in SCORE_NAMES]
    tags = list(CARD_TAGS)
    if card.audits:
        tags.append("faithfulness")
    base_model = str(card.checkpoint.record.get("start") or "")
    datasets = [card.trained_on, *(card.add_hub_id(audit.data) for audit in card.audits)]
    hub_ids = [dataset.hub_id for dataset in datasets if dataset is not None and dataset.hub_id]
    # The keys of a dictionary are unique and keep their order. Empty fields must be None.
    return ModelCardData(
        license=card.license,
        library_name="transformers",
        pipeline_tag=get_hub_task(card.checkpoint),
        tags=tags,
        base_model=base_model if is_hub_id(base_model) else None,
        datasets=list(dict.fromkeys(hub_ids)) or None,
        metrics=list(dict.fromkeys(scores)) or None,
        eval_results=results or None,
        model_name=clean_text(card.checkpoint.name) if results else None,
    )


def build_eval_results(card: CardContent) -> list[EvalResult]:
    """Build the evaluation results of a model card: scores from the training, and audit results.

    Results for the same data set and split are adjacent. Values that are not finite are omitted.

    Args:
        card: the card's content.

    Returns:
        The results.
    """
    results = list(_iterate_score_results(card))
    for audit in card.audits:
        results += _iterate_audit_results(card, audit)
    # Results for the same data set and split have the same identifier.
    order = list(dict.fromkeys(result.unique_identifier for result in results))
    return sorted(results, key=lambda result: order.index(result.unique_identifier))


def _iterate_score_results(card: CardContent) -> Iterator[EvalResult]:
    """Yield the scores for test and validation texts that were measured after training."""
    record = card.checkpoint.record
    data = card.trained_on or card.add_hub_id(DatasetReference("training data"))
    metrics = record.get("metrics") or {}
    n_texts = record.get("n_texts") or {}
    for split in ("test", "validation"):
        for metric, name in SCORE_NAMES.items():
            value = metrics.get(f"{split}_{metric}")
            arguments = {"n": n_texts.get(split)}
            if isinstance(value, int | float) and math.isfinite(value):
                yield _build_result(card, data, split, metric, name, value, arguments)


def _iterate_audit_results(card: CardContent, audit: AuditSummary) -> Iterator[EvalResult]:
    """Yield the results of an audit, one for each question that it answered.

    The accuracy is left out if the training record already contains it. Numbers of fewer than ten
    different texts are left out too.
    """
    data = card.add_hub_id(audit.data)
    recorded_metrics = card.checkpoint.record.get("metrics") or {}
    for finding in audit.findings:
        if finding.n < MIN_DISPLAYED_TEXTS:
            continue
        if finding.rule == "accuracy":
            # The value of this finding is a difference: the accuracy of the model minus the
            # accuracy of a model that always predicts the most frequent class.
            majority_accuracy = finding.yardsticks.get("majority")
            is_recorded = f"{audit.split}_accuracy" in recorded_metrics
            if majority_accuracy is not None and not is_recorded:
                accuracy = finding.value + majority_accuracy
                size = {"n": finding.n, "seed": audit.seed}
                yield _build_result(card, data, audit.split, "accuracy", "accuracy", accuracy, size)
        elif math.isfinite(finding.value):
            arguments = {
                "measure": rename_audited_units(RULES[finding.rule].measure, audit.provenance),
                "answer": finding.answer,
                "ci95": finding.ci95,
                "n": finding.n,
                "averaged_parts": list(finding.averaged_parts) or None,
                "yardsticks": finding.yardsticks,
                "seed": audit.seed,
            }
            name = f"Attention: {finding.name.lower()}"
            yield _build_result(
                card, data, audit.split, FAITHFULNESS_METRIC, name, finding.value, arguments
            )


def _build_result(
    card: CardContent,
    data: DatasetReference,
    split: str,
    metric: str,
    name: str,
    value: float,
    arguments: Mapping[str, Any],
) -> EvalResult:
    """Build one evaluation result for the front matter of a model card.

    Args:
        card: the card's content.
        data: data set on which the model was evaluated.
        split: data split, such as "test".
        metric: identifier of the metric.
        name: name of the metric for readers.
        value: value of the metric.
        arguments: further data that are stored with the result, such as the number of texts.
    """
    dataset_name = clean_text(data.hub_id or data.name)
    # All local data sets have the same type, so without a configuration they would be merged.
    dataset_config = None if data.hub_id else dataset_name
    return EvalResult(
        task_type=get_hub_task(card.checkpoint) or "other",
        dataset_type=data.hub_id or LOCAL_DATASET,
        dataset_name=dataset_name,
        dataset_config=dataset_config,
        dataset_split=clean_text(split) or None,
        metric_type=metric,
        metric_name=clean_text(name),
        metric_value=float(value),
        metric_args=convert_for_yaml(convert_to_plain({"by": RESULT_AUTHOR, **arguments})),
    )


# --- The files in .eval_results, which the Hub shows on the page of a model ----------------------

EVAL_RESULTS_FOLDER = constants.EVAL_RESULTS_FOLDER
"""Folder in a model repository from which the Hub reads evaluation results: ".eval_results"."""
EVAL_RESULTS_PREFIX = "attnprobe-"
"""Prefix of the files in ``EVAL_RESULTS_FOLDER`` that this package writes, replaces and deletes."""
EVAL_TASK_TEMPLATE = "attention_{rule}"
"""Template for the task id of a result, such as "attention_faithfulness".

The Hub lists a result in the leaderboard of a data set if the file ``eval.yaml`` of the data set
names this task.
"""


def name_audits(data_names_and_splits: Sequence[tuple[str, str]]) -> list[str]:
    """Name each audit after its data set and split, such as "imdb-test".

    If several audits have the same name, later ones get a number.

    Args:
        data_names_and_splits: data set name and split of each audit.

    Returns:
        One name per audit, which is also a valid file name.

    >>> name_audits([("org/imdb", "test"), ("org/imdb", "test")])
    ['org-imdb-test', 'org-imdb-test-2']
    """
    names: list[str] = []
    for data_name, split in data_names_and_splits:
        label = f"{strip_local_folders(data_name).replace('/', '-')}-{split}"
        base_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", label).strip("-.") or "audit"
        name = base_name
        number = 2
        while name in names:
            name = f"{base_name}-{number}"
            number += 1
        names.append(name)
    return names


def build_eval_result_files(card: CardContent) -> dict[str, str]:
    """Build the files with evaluation results that the Hub shows on the page of a model.

    The Hub asks for one file per evaluation, in the folder ``.eval_results`` of the model, with the
    id of a data set on the Hub in each result. An audit of local data therefore has no file.

    Args:
        card: the card's content.

    Returns:
        YAML texts by path in the model repository.
    """
    files = {}
    names = name_audits([(audit.data.name, audit.split) for audit in card.audits])
    for name, audit in zip(names, card.audits, strict=True):
        entries = eval_result_entries_to_yaml(list(_iterate_eval_entries(card, audit)))
        if entries:
            path = f"{EVAL_RESULTS_FOLDER}/{EVAL_RESULTS_PREFIX}{name}.yaml"
            # Long notes stay on one line.
            files[path] = yaml.safe_dump(
                entries, sort_keys=False, allow_unicode=True, width=math.inf
            )
    return files


def _iterate_eval_entries(card: CardContent, audit: AuditSummary) -> Iterator[EvalResultEntry]:
    """Yield the attention results of an audit in the format of ``.eval_results``.

    Nothing is yielded for data without a Hub id. Numbers of fewer than ten different texts are left
    out.
    """
    dataset_id = card.add_hub_id(audit.data).hub_id
    if dataset_id is None:
        return
    for finding in audit.findings:
        has_number = finding.n >= MIN_DISPLAYED_TEXTS and math.isfinite(finding.value)
        if not finding.is_about_attention or not has_number:
            continue
        yield EvalResultEntry(
            dataset_id=dataset_id,
            task_id=EVAL_TASK_TEMPLATE.format(rule=finding.rule),
            value=float(finding.value),
            source_url=audit.rows_url,
            source_name=None if audit.rows_url is None else "Values of all texts, and reports",
            notes=_describe_eval_setup(audit, finding),
        )


def _describe_eval_setup(audit: AuditSummary, finding: Finding) -> str:
    """Describe the answer, the interval, the texts and the seed of a result in one line."""
    parts = [f"answer: {finding.answer}"]
    if finding.ci95 is not None and all(map(math.isfinite, finding.ci95)):
        low, high = finding.ci95
        parts.append(f"95% interval {low:z.3f} to {high:z.3f}")
    parts.append(
        f"{finding.n} texts of split {audit.split}" if audit.split else f"{finding.n} texts"
    )
    parts.append(f"seed {audit.seed}")
    return clean_text(", ".join(parts), max_length=MAX_YAML_VALUE_LENGTH)
