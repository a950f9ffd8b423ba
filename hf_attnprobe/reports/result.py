"""Results of an audit as data; to JSON and back.

Whatever shows an audit (terminal, Markdown, page) takes an :class:`AuditResult`;
:class:`hf_attnprobe.reports.report.Report` is one that knows how it is shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import from_plain, plain, stored_fields
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.faithfulness.head_ablation import PruneCurve
from hf_attnprobe.plots.shown_text import ShownText
from hf_attnprobe.reports.verdict import (
    QUESTION,
    conclusion,
    conclusion_sentence,
)
from hf_attnprobe.statistics.differences import Comparison
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.evidence import Evidence, evidence_of
from hf_attnprobe.statistics.grades import Answer, Rule
from hf_attnprobe.statistics.heads import Judged, judged
from hf_attnprobe.statistics.rows import Rows, nothing
from hf_attnprobe.statistics.scale import NOTHING, PARTS
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import (
    Finding,
    by_rule,
    conclude,
    with_thresholds,
)
from hf_attnprobe.statistics.wording import Words, words_of
from hf_attnprobe.storage.provenance import Provenance


SCHEMA_VERSION = "2"
"""Of what :func:`to_json` gives: a key that goes or means another thing makes a new one."""


@dataclass(frozen=True)
class AuditResult:
    """What an audit found, without a word on how it is shown.

    Attributes:
        model: folder, Hub id, or class of the model.
        dataset: the texts' data set and split.
        n: texts.
        seed: of the audit.
        statistics: over all texts and by predicted class.
        provenance: settings, versions and fingerprints.
        examples: a few texts with scores of their tokens; in ``texts.json``.
        prune: accuracy by the number of heads zero-ablated together.
        comparisons: paired tests of rankings.
        findings: every question with its answer.
        contradictions: what the mathematics forbids and the rows say; none without a
            mistake in the program.
        notes: sentences that belong beside the findings.
        example_ids: of the texts.
        rows: one value per test, statistic, text, layer and head; read when asked for.
    """

    model: str
    dataset: DatasetName
    n: int
    seed: int
    statistics: tuple[Statistic, ...]
    provenance: dict
    examples: tuple[ShownText, ...] = ()
    prune: PruneCurve | None = None
    comparisons: tuple[Comparison, ...] = ()
    findings: tuple[Finding, ...] = ()
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    example_ids: tuple[int, ...] = field(default=(), repr=False)
    rows: Rows = field(default_factory=nothing, repr=False, compare=False)

    @property
    def words(self) -> Words:
        """How sentences speak of what the model predicts."""
        unit = self.provenance.get("unit_of_number", "")
        words = words_of(self.provenance.get("prediction"), unit=unit)
        units = self.provenance.get("units", words.units)
        return replace(words, units=units.partition(" ")[0])

    @property
    def predicts(self) -> str:
        """What the model predicts, in words."""
        return self.words.predicts

    @property
    def answer(self) -> Answer:
        """Whether attention explains the predictions."""
        return conclusion(self.findings)

    @property
    def score(self) -> Estimate:
        """Faithfulness: 0 a random order of the tokens, 1 the best; n is 0 where not asked."""
        score = conclude(self.findings).score
        return NOTHING if score is None else score.estimate

    @property
    def accuracy(self) -> dict | None:
        """How good the model is on the texts, as JSON has it; None where they have no labels."""
        found = by_rule(self.findings).get("accuracy")
        if found is None or not found.n:
            return None
        graded = "r_squared" if self.words.is_number else "beyond_majority"
        return {
            "answer": str(found.answer),
            **plain(found.yardsticks),
            graded: plain(found.value),
            f"{graded}_ci95": plain(found.ci95),
            "n": found.n,
        }

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """The rules, with the thresholds that the audit was asked for."""
        return with_thresholds(self.provenance.get("asked_for", {}).get("thresholds", ()))

    @cached_property
    def evidence(self) -> Evidence | None:
        """What the rows say of the attention that the answers are about; None without any."""
        classes = self.provenance.get("classes", ())
        return evidence_of(self.rows, classes, words=self.words)

    @cached_property
    def judged(self) -> list[Judged]:
        """Single heads and groups of heads by effect and faithfulness; none without rows.

        Of language models by effect alone: what they answer is asked of all attention.
        """
        explained = None
        if self.evidence is not None and self.evidence.by_default:
            explained = self.evidence.explained.texts.ids()
        parts = () if self.words.kind == "answer" else PARTS
        return judged(self.rows, self.rules, parts=parts, explained=explained)


def to_json(report: AuditResult) -> dict:
    """Plain data, as ``audit --json`` prints it; NaN becomes None."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": report.model,
        "dataset": str(report.dataset),
        "n": report.n,
        "seed": report.seed,
        "predicts": report.predicts,
        "answer": str(report.answer),
        "score": _score_to_json(report),
        "verdict": _verdict_to_json(report),
        "accuracy": report.accuracy,
        "findings": plain(report.findings),
        "statistics": plain(report.statistics),
        "contradictions": list(report.contradictions),
        "notes": list(report.notes),
        "comparisons": plain(report.comparisons),
        "provenance": report.provenance,
    }


def _score_to_json(report: AuditResult) -> dict | None:
    """Faithfulness with its interval and its parts; None where it was not asked."""
    score = conclude(report.findings).score
    if score is None:
        return None
    parts = {f.rule: plain(f.estimate) for f in report.findings if f.role == "part"}
    return {**plain(score.estimate), "parts": parts}


def _verdict_to_json(report: AuditResult) -> dict:
    """The answer, its reason, and the answer and sentence of every finding."""
    keys = ("rule", "answer", "sentence")
    found = [{key: getattr(f, key) for key in keys} for f in report.findings]
    concluded = conclude(report.findings)
    return {
        "question": QUESTION,
        "answer": str(concluded.answer),
        "sentence": conclusion_sentence(report.findings, report.words),
        "why": concluded.why,
        "findings": plain(found),
    }


def check_schema(data: Mapping, where: str) -> None:
    """Checks that this version can read what an audit wrote.

    Raises:
        AttnProbeError: another version wrote it.
    """
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise AttnProbeError(
            f"expected a summary of schema version {SCHEMA_VERSION}, {where} is of version "
            f"{version}; read it with the hf_attnprobe that wrote it, or run the audit again"
        )


def extras_to_json(report: AuditResult) -> dict:
    """What the summary has beside :func:`to_json`: prune curve, ids."""
    return {
        "prune": plain(report.prune),
        "example_ids": list(report.example_ids),
    }


def fields_from_json(data: Mapping) -> dict[str, Any]:
    """The fields of a result, from :func:`to_json` and :func:`extras_to_json`.

    All but the rows and the shown texts.

    Raises:
        KeyError, AttnProbeError: it is not what those wrote.
    """
    from_plain(Provenance, data["provenance"], "provenance")
    return stored_fields(AuditResult, data, "examples", "rows")
