"""Audits of one model, and of no other, as its card tells them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_attnprobe.auditing.report import Report, read_audit
from hf_attnprobe.auditing.verdict import conclusion_sentence
from hf_attnprobe.cards.metadata import AuditedOn
from hf_attnprobe.cards.names import DataName, public_record
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.storage.asked import repeating


@dataclass(frozen=True)
class ReadAudit:
    """An audit's folder and the report in it."""

    folder: Path
    report: Report

    @property
    def data(self) -> DataName:
        """The data it was on."""
        return DataName.of(self.report.dataset.name)

    def public_names(self, model: str) -> dict[str, str]:
        """What stands for the names of model and data in what is published.

        Args:
            model: its public name.
        """
        report = self.report
        asked = report.provenance.get("asked_for") or {}
        origin = report.provenance.get("origin") or {}
        of_model = (report.model, asked.get("model"), origin.get("checkpoint"))
        of_data = (report.dataset.name, asked.get("dataset"))
        names = dict.fromkeys(map(str, of_model), model)
        return names | dict.fromkeys(map(str, of_data), self.data.name)


def read_audits(folders: Sequence[str | Path], model: Path, fingerprint: str) -> list[ReadAudit]:
    """The audits in these folders.

    Args:
        model: the checkpoint's folder, for the error.
        fingerprint: of its weights.

    Raises:
        AttnProbeError: a folder without an audit, or with one of other weights, or one
            folder given twice.
    """
    read = [ReadAudit(Path(folder), read_audit(folder)) for folder in folders]
    seen: set[Path] = set()
    for audit in read:
        found = audit.report.provenance.get("model_fingerprint")
        if found != fingerprint:
            raise AttnProbeError(
                f"expected audits of {model} (fingerprint {fingerprint}), {audit.folder} "
                f"is of another model ({found}); audit this one with attnprobe audit"
            )
        if audit.folder.resolve() in seen:
            raise AttnProbeError(
                f"expected every audit once, got {audit.folder} twice; leave one out"
            )
        seen.add(audit.folder.resolve())
    return read


def as_told(audit: ReadAudit, model: str) -> AuditedOn:
    """An audit as a card tells it.

    Args:
        model: its public name.
    """
    report = audit.report
    return AuditedOn(
        data=audit.data,
        split=report.dataset.split,
        n=report.n,
        seed=report.seed,
        conclusion=conclusion_sentence(report.findings),
        answer=report.answer,
        command=_command(audit, model),
        findings=report.findings,
        notes=report.notes,
        contradictions=report.contradictions,
        provenance=report.provenance,
    )


def _command(audit: ReadAudit, model: str) -> str:
    """The line that repeats an audit, with public names."""
    asked = public_record(audit.report.provenance["asked_for"])
    return repeating("audit", {"asked_for": {**asked, "model": model, "dataset": audit.data.name}})
