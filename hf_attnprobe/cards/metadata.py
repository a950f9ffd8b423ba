"""What a card is made from, under names that can be shown to anybody, and its YAML."""

import html
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from hf_attnprobe.core.options import HUB_ID
from hf_attnprobe.core.serialization import plain
from hf_attnprobe.data.recipes import RECIPES
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.verdicts import RULES, Finding


IN_MEMORY = "data given in memory"
CUT = 200  # characters of a name or value that are shown
LONGEST = 5000  # of a sentence in YAML


@dataclass(frozen=True)
class DataName:
    """What a card calls a data set.

    Attributes:
        name: a word, or a Hub id.
        hub_id: its id on the Hub; None where that is not known.
    """

    name: str
    hub_id: str | None = None

    @classmethod
    def of(cls, recorded: str) -> "DataName":
        """From the name that a training or an audit recorded.

        A folder is known by its last part only, and is not taken for the Hub's data set.

        >>> DataName.of("sst"), DataName.of("data/babi1/")
        (DataName(name='sst', hub_id='SetFit/sst2'), DataName(name='babi1', hub_id=None))
        """
        name, equals, _ = recorded.partition("=")
        if name in RECIPES and (equals or not Path(name).exists()):
            hub_id = RECIPES[name].hub_id
            return cls(name, hub_id if HUB_ID.fullmatch(hub_id) else None)
        for known, recipe in RECIPES.items():
            if recorded == recipe.hub_id and HUB_ID.fullmatch(recorded):
                return cls(known, recorded)
        if is_hub_id(recorded):
            return cls(recorded, recorded)
        return cls(shown(public(recorded)) or "data without a name")


def is_hub_id(name: str) -> bool:
    """Whether a name is ``org/name`` and no folder here."""
    return bool(HUB_ID.fullmatch(name)) and not Path(name).exists()


def public(name: str) -> str:
    """A Hub id as it is; of a path the last part.

    >>> public("org/name"), public("/home/somebody/models/bilstm/"), public("sst")
    ('org/name', 'bilstm', 'sst')
    """
    if is_hub_id(name) or not ("/" in name or "\\" in name):
        return name
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


def public_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of a training or an audit, without folders of this machine.

    >>> public_record({"start": "/home/somebody/base", "seed": 1})
    {'start': 'base', 'seed': 1}
    """
    return {
        name: public(value) if isinstance(value, str) else value for name, value in record.items()
    }


def anonymous(text: str, names: Mapping[str, str]) -> str:
    """A text with public names where it names folders of this machine.

    Args:
        names: the public name by what stands in the text; only paths are replaced.
    """
    paths = sorted((name for name in names if "/" in name), key=len, reverse=True)
    for path in paths:
        for form in (path, html.escape(path), json.dumps(path)[1:-1]):
            text = text.replace(form, names[path])
    return text


def shown(value: object, *, most: int = CUT) -> str:
    """A value on one line, without control characters, cut where it is long.

    >>> shown("a\\n b\\x00")
    'a b'
    """
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= most else text[:most] + "…"


def versions(recorded: Mapping[str, Any]) -> str:
    """Versions of packages in words.

    >>> versions({"torch": "2.13", "numpy": "2.4"})
    'torch 2.13, numpy 2.4'
    """
    return ", ".join(f"{shown(name)} {shown(v)}" for name, v in recorded.items())


def code(value: object) -> str:
    """A value as inline code of Markdown.

    >>> print(code("a`b"))
    `a'b`
    """
    text = shown(value).replace("`", "'").replace("|", "¦")
    return f"`{text}`" if text else "(empty)"


def prose(sentence: str) -> str:
    """A sentence of ours, which may quote names, with nothing that Markdown or HTML read.

    >>> prose("p < .05 | [a](b)")
    'p &lt; .05 \\\\| [a](b)'
    """
    text = " ".join(sentence.encode("utf-8", "replace").decode("utf-8").split())
    for mark, harmless in {
        "&": "&amp;",
        "<": "&lt;",
        "|": "\\|",
        "`": "'",
    }.items():
        text = text.replace(mark, harmless)
    return text


def native(value: Any) -> Any:
    """What YAML keeps as it is of plain data: no control character, nothing infinite.

    A number that is not finite is None, and so is a list with one, such as an interval,
    since readers drop None from lists; None is left out of mappings.

    >>> native({"n": 3, "ci95": [0.1, float("inf")], "no": None})
    {'n': 3}
    """
    if isinstance(value, Mapping):
        kept = {shown(key): native(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner is not None}
    if isinstance(value, list):
        inside = [native(inner) for inner in value]
        return None if None in inside else inside
    if hasattr(value, "item"):  # a number of NumPy
        return native(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return shown(value, most=LONGEST)
    return value


# --- What a card is made from -------------------------------------------------------------------

TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "ForImageClassification": "image-classification",
}
SCORES = {"accuracy": "accuracy", "f1": "F1", "roc_auc": "ROC-AUC"}


@dataclass(frozen=True)
class Checkpoint:
    """A model in words and numbers.

    Attributes:
        name: folder's name, or Hub id.
        config: its configuration as plain data.
        record: what its training left behind, ``training.json``; empty where it left
            nothing.
        n_parameters: in all.
    """

    name: str
    config: Mapping[str, Any]
    record: Mapping[str, Any] = field(default_factory=dict)
    n_parameters: int | None = None

    @property
    def head(self) -> str:
        """The class that the checkpoint was saved as, such as BertForSequenceClassification."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    @property
    def ending(self) -> str:
        """What that class is called behind its kind, of :data:`TASKS`; "" for another one."""
        known = [name for name in TASKS if self.head.endswith(name)]
        return "".join(known[:1])

    @property
    def in_quotes(self) -> str:
        """Its name, as it can stand between quotes in a command."""
        return shown(self.name).replace('"', "'").replace("\\", "/")

    @property
    def is_attention_classifier(self) -> bool:
        """Whether it is one of this package's classifiers."""
        return self.config.get("model_type") == "attention_classifier"

    @property
    def has_own_code(self) -> bool:
        """Whether its code is beside its weights, to be allowed when it is loaded."""
        return bool(self.config.get("auto_map"))

    @property
    def classes(self) -> list[str]:
        """Names of the classes in the order of their numbers."""
        names = self.config.get("id2label") or {}
        return [str(names[key]) for key in sorted(names, key=int)]


def task_of(checkpoint: Checkpoint) -> str | None:
    """The Hub's name of the task; None where the head is none it knows."""
    return TASKS.get(checkpoint.ending)


@dataclass(frozen=True)
class AuditedOn:
    """What an audit found, as a card tells it.

    Attributes:
        data: the texts' data set.
        split: of the data set.
        n: texts.
        seed: of the audit.
        conclusion: the question with its graded answer, one sentence; None without
            evidence.
        findings: every question with its answer.
        notes: sentences that belong beside them.
        contradictions: what the mathematics forbids and the rows say.
        provenance: settings and versions.
        rows_url: where the rows are published; None where they are not.
        answer: the graded answer.
        command: the line that repeats it; empty where the data have no name to give.
        has_pairs: whether its texts are pairs.
    """

    data: DataName
    split: str
    n: int
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


@dataclass(frozen=True)
class Card:
    """Everything a README says of a checkpoint.

    Attributes:
        checkpoint: the model.
        audits: of it; none where it was not audited.
        data_id: Hub id of the data it was trained and tested on, where their name does not
            tell; it holds for data that are not known by an id of their own.
        license: of the model; None leaves it open.
    """

    checkpoint: Checkpoint
    audits: tuple[AuditedOn, ...] = ()
    data_id: str | None = None
    license: str | None = None

    @property
    def trained_on(self) -> DataName | None:
        """The data it was trained on; None where that is not known."""
        recorded = self.checkpoint.record.get("dataset")
        if recorded is not None:
            return self.known(DataName.of(str(recorded)))
        return None if self.data_id is None else DataName(self.data_id, self.data_id)

    @property
    def reads_pairs(self) -> bool:
        """Whether the model is known to read pairs of texts."""
        of_model = bool(self.checkpoint.config.get("query_encoder"))
        return of_model or any(audit.has_pairs for audit in self.audits)

    def known(self, data: DataName) -> DataName:
        """Data with the Hub id that was given, where they have none themselves."""
        return DataName(data.name, data.hub_id or self.data_id)


# --- The YAML of a card: scores and findings as the README's ``model-index`` ---------------------
# Made by, and read back with, huggingface_hub.

METRIC = "attention_faithfulness"
BY = "attnprobe card"
"""Marks our results among a user's: the value of ``by`` in a metric's arguments."""
LOCAL = "local"
"""The type of data that are not on the Hub."""
TAGS = ("attention", "interpretability", "hf_attnprobe")


def metadata(card: Card) -> ModelCardData:
    """The README's front matter."""
    results = eval_results(card)
    scores = [r.metric_type for r in results if r.metric_type in SCORES]
    start = str(card.checkpoint.record.get("start") or "")
    data = [card.trained_on, *(card.known(audit.data) for audit in card.audits)]
    hub_ids = [name.hub_id for name in data if name is not None and name.hub_id]
    return ModelCardData(
        license=card.license,
        library_name="transformers",
        pipeline_tag=task_of(card.checkpoint),
        tags=[*TAGS, *(["faithfulness"] if card.audits else [])],
        base_model=start if is_hub_id(start) else None,
        datasets=list(dict.fromkeys(hub_ids)) or None,
        metrics=list(dict.fromkeys(scores)) or None,
        eval_results=results or None,
        model_name=shown(card.checkpoint.name) if results else None,
    )


# --- model-index --------------------------------------------------------------------


def eval_results(card: Card) -> list[EvalResult]:
    """Task scores and findings; those of one split of data stand together.

    A number that is not finite is left out.
    """
    results = [*_scores(card)]
    for audit in card.audits:
        results += _of_audit(card, audit)
    order = list(dict.fromkeys(r.unique_identifier for r in results))
    return sorted(results, key=lambda r: order.index(r.unique_identifier))


def _scores(card: Card) -> Iterator[EvalResult]:
    """The scores that the training recorded, on test and validation texts."""
    record = card.checkpoint.record
    data = card.trained_on or card.known(DataName("training data"))
    for split in ("test", "validation"):
        for name, said in SCORES.items():
            value = (record.get("metrics") or {}).get(f"{split}_{name}")
            more = {"n": (record.get("n_texts") or {}).get(split)}
            if isinstance(value, int | float) and math.isfinite(value):
                yield _result(card, data, split, name, said, value, more)


def _of_audit(card: Card, audit: AuditedOn) -> Iterator[EvalResult]:
    data = card.known(audit.data)
    recorded = (card.checkpoint.record.get("metrics") or {}).keys()
    for f in audit.findings:
        if f.rule == "accuracy":
            majority = f.yardsticks.get("majority")
            if majority is not None and f"{audit.split}_accuracy" not in recorded:
                value, more = f.value + majority, {"n": f.n, "seed": audit.seed}
                yield _result(card, data, audit.split, "accuracy", "accuracy", value, more)
        elif math.isfinite(f.value):
            told = {
                "measure": RULES[f.rule].measure,
                "answer": f.answer,
                "ci95": f.ci95,
                "n": f.n,
                "yardsticks": f.yardsticks,
                "seed": audit.seed,
            }
            title = f"Attention: {f.name.lower()}"
            yield _result(card, data, audit.split, METRIC, title, f.value, told)


def _result(
    card: Card,
    data: DataName,
    split: str,
    metric: str,
    name: str,
    value: float,
    more: Mapping[str, Any],
) -> EvalResult:
    name_of_data = shown(data.hub_id or data.name)
    return EvalResult(
        task_type=task_of(card.checkpoint) or "other",
        dataset_type=data.hub_id or LOCAL,
        dataset_name=name_of_data,
        dataset_config=None if data.hub_id else name_of_data,  # else all of them were one
        dataset_split=shown(split) or None,
        metric_type=metric,
        metric_name=shown(name),
        metric_value=float(value),
        metric_args=native(plain({"by": BY, **more})),
    )
