"""What a card is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_attnprobe.cards.names import DataName
from hf_attnprobe.statistics.verdicts import Answer, Finding


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
        return str((self.config.get("architectures") or [""])[0])

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
    for ending, task in TASKS.items():
        if checkpoint.head.endswith(ending):
            return task
    return None


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
        command: the line that repeats it; empty where that is not known.
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
        """The data it was trained on; None where that is not known.

        Where no name was recorded, an audit on a split of the same fingerprint tells it.
        """
        record = self.checkpoint.record
        if record.get("dataset") is not None:
            return self.known(DataName.of(str(record["dataset"])))
        held = record.get("data")
        marks = set(held.values()) if isinstance(held, Mapping) else set()
        for audit in self.audits:
            if audit.provenance.get("data_fingerprint") in marks:
                return self.known(audit.data)
        return None if self.data_id is None else DataName(self.data_id, self.data_id)

    def known(self, data: DataName) -> DataName:
        """Data with the Hub id that was given, where they have none themselves."""
        return DataName(data.name, data.hub_id or self.data_id)
