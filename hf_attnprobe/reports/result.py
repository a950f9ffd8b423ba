"""The results of an audit as data, and their conversion to JSON and back.

All functions that describe an audit take an :class:`AuditResult`. The subclass
:class:`hf_attnprobe.reports.report.Report` adds the output formats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import convert_to_plain, parse_fields, parse_plain
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.plots.highlighted_text import HighlightedText
from hf_attnprobe.reports.score_verdict import (
    SCORES_QUESTION,
    choose_score_question_set,
    compute_score_findings,
    format_scores_conclusion,
)
from hf_attnprobe.reports.verdict import (
    MAIN_QUESTION,
    compute_answer,
    format_conclusion,
)
from hf_attnprobe.statistics.differences import Comparison
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS, Estimate
from hf_attnprobe.statistics.evidence import Evidence, build_evidence
from hf_attnprobe.statistics.grades import Answer, Rule
from hf_attnprobe.statistics.head_pairs import HeadPairs
from hf_attnprobe.statistics.heads import HeadEvaluation, evaluate_heads
from hf_attnprobe.statistics.position_bias import PositionBias, find_position_bias
from hf_attnprobe.statistics.questions import COMPARED_RANKINGS
from hf_attnprobe.statistics.rows import Rows, make_empty_rows
from hf_attnprobe.statistics.scale import CLASSIFIER_PARTS, NO_ESTIMATE, compute_faithfulness
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import (
    Conclusion,
    Finding,
    apply_thresholds,
    conclude,
    index_by_rule,
)
from hf_attnprobe.statistics.wording import Wording, build_wording, rename_audited_units
from hf_attnprobe.storage.provenance import (
    DISTINCT_TEXTS_KEY,
    SCORES_FINGERPRINT_KEY,
    UNSUPPORTED_TESTS_KEY,
    Provenance,
)


SCHEMA_VERSION = "3"
"""Version of the JSON format of reports. It changes if a key is removed or gets a new meaning."""


@dataclass(frozen=True)
class AuditResult:
    """An audit's results, independent of output formats.

    Attributes:
        model: folder, Hub id, or class of the model.
        dataset: data set and split.
        n: number of texts, including copies of the same text.
        seed: the audit's seed.
        statistics: statistics over all texts and by predicted class.
        provenance: settings, versions and fingerprints.
        examples: example texts with token scores, stored in ``texts.json``.
        head_pairs: heads that only work together or replace each other; None if not measured.
        comparisons: paired tests that compare rankings.
        findings: the answer to every question.
        contradictions: mathematically impossible values in the rows, which show a bug in this
            package; normally empty.
        notes: sentences to be printed with the findings.
        example_ids: ids of all texts.
        rows: one value per test, statistic, text, layer and head, including copies of the same text;
            read from disk on first use.
    """

    model: str
    dataset: DatasetName
    n: int
    seed: int
    statistics: tuple[Statistic, ...]
    provenance: dict
    examples: tuple[HighlightedText, ...] = ()
    head_pairs: HeadPairs | None = None
    comparisons: tuple[Comparison, ...] = ()
    findings: tuple[Finding, ...] = ()
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    example_ids: tuple[int, ...] = field(default=(), repr=False)
    rows: Rows = field(default_factory=make_empty_rows, repr=False, compare=False)

    @property
    def words(self) -> Wording:
        """Wording for this type of prediction."""
        unit = self.provenance.get("unit_of_number", "")
        words = build_wording(self.provenance.get("prediction"), unit=unit)
        # The first word names the units; a description may follow it.
        units = self.provenance.get("units", words.units)
        return replace(words, units=units.partition(" ")[0])

    @property
    def instance(self) -> str | None:
        """Name of one instance, such as "patch", if the inputs are bags or images, else None."""
        return self.provenance.get("instance")

    @property
    def input_name(self) -> str:
        """Name of one input that has instances: "bag" or "image"."""
        return self.provenance.get("input", "bag")

    def rename_units(self, sentences: str) -> str:
        """Replace words and texts in sentences by the names of this audit's units and inputs.

        Sentences about words are not changed.

        Args:
            sentences: prose of the report.
        """
        return rename_audited_units(sentences, self.provenance)

    def rename_units_in_findings(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return findings whose sentences contain the names of this audit's units and inputs.

        Args:
            findings: findings about this audit.
        """
        return tuple(
            replace(finding, sentence=self.rename_units(finding.sentence)) for finding in findings
        )

    @property
    def predicts(self) -> str:
        """Description of the predictions."""
        return self.words.predicts

    @property
    def evaluates_scores(self) -> bool:
        """Whether the audit evaluates user-provided scores, so that its answer is about them."""
        return SCORES_FINGERPRINT_KEY in self.provenance

    @property
    def question(self) -> str:
        """Main question of the audit, which :attr:`answer` answers."""
        return SCORES_QUESTION if self.evaluates_scores else MAIN_QUESTION

    @cached_property
    def answer_findings(self) -> tuple[Finding, ...]:
        """Findings from which the answer follows.

        They are about attention or, if the audit evaluates user-provided scores, about the scores.
        """
        if not self.evaluates_scores:
            return self.findings
        score_findings = compute_score_findings(
            self.findings,
            self.evidence,
            self.words,
            rules=self.rules,
            unsupported_tests=self.provenance.get(UNSUPPORTED_TESTS_KEY, ()),
        )
        return self.rename_units_in_findings(score_findings)

    @cached_property
    def conclusion(self) -> Conclusion:
        """Verdict of the audit: the answer to its main question, with the reasons."""
        question_set = choose_score_question_set(self.words) if self.evaluates_scores else None
        return conclude(self.answer_findings, question_set)

    @property
    def answer(self) -> Answer:
        """Answer to the main question: whether attention explains the predictions.

        If the audit evaluates user-provided scores, the answer states whether these scores explain the
        predictions.
        """
        return self.conclusion.answer

    @property
    def score(self) -> Estimate:
        """Faithfulness, from 0 (random order of the tokens) to 1 (best order).

        If the audit evaluates user-provided scores, this is the faithfulness of the scores, otherwise
        the faithfulness of attention. Its ``n`` is 0 if faithfulness was not measured.
        """
        score = self.conclusion.score
        return NO_ESTIMATE if score is None else score.estimate

    @cached_property
    def attention_conclusion(self) -> Conclusion:
        """Verdict about attention, even if the audit evaluates user-provided scores."""
        return conclude(self.findings)

    @property
    def attention_answer(self) -> Answer:
        """Answer to the question whether attention explains the predictions.

        Unlike :attr:`answer`, it is about attention even if the audit evaluates user-provided scores.
        """
        return compute_answer(self.findings)

    @property
    def attention_score(self) -> Estimate:
        """Faithfulness of attention.

        Unlike :attr:`score`, it is about attention even if the audit evaluates user-provided scores.
        """
        score = self.attention_conclusion.score
        return NO_ESTIMATE if score is None else score.estimate

    @property
    def accuracy(self) -> dict | None:
        """The model's accuracy on the texts, as in the JSON output.

        It is None if the texts have no labels.
        """
        finding = index_by_rule(self.findings).get("accuracy")
        if finding is None or not finding.n:
            return None
        graded_number = "r_squared" if self.words.is_number else "beyond_majority"
        return {
            "answer": str(finding.answer),
            **convert_to_plain(finding.yardsticks),
            graded_number: convert_to_plain(finding.value),
            f"{graded_number}_ci95": convert_to_plain(finding.ci95),
            "n": finding.n,
        }

    @property
    def n_distinct(self) -> int:
        """Number of different texts, which is smaller than ``n`` if a text occurs several times."""
        return self.provenance.get(DISTINCT_TEXTS_KEY, self.n)

    @property
    def n_answered(self) -> int:
        """Number of different texts on which the answer is based.

        It is smaller than the number of audited texts if a time limit ended the audit, or if some texts
        have no value. It is 0 if no question was answered.
        """
        return self.conclusion.n

    @cached_property
    def distinct_rows(self) -> Rows:
        """Rows in which all copies of a text are merged; all results are computed from them."""
        return self.rows.merge_duplicates()

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """Rule that grades each question, with user-defined thresholds if there are any."""
        return apply_thresholds(self.provenance.get("asked_for", {}).get("thresholds", ()))

    @cached_property
    def evidence(self) -> Evidence | None:
        """Statistics about the attention that the answers concern; None if there are none."""
        classes = self.provenance.get("classes", ())
        return build_evidence(self.distinct_rows, classes, words=self.words)

    @cached_property
    def ranking_faithfulness(self) -> dict[str, Estimate]:
        """Faithfulness of attention and of all rankings that were compared with it, by name.

        A ranking is left out if fewer than two parts of its faithfulness were measured.
        """
        if self.evidence is None:
            return {}
        explained = self.evidence.explained_evidence
        names = ("attention", *COMPARED_RANKINGS, "given_moved")
        scores = {
            name: compute_faithfulness(explained.texts, name, explained.parts).score
            for name in names
        }
        return {name: score for name, score in scores.items() if score.n}

    @cached_property
    def position_bias(self) -> PositionBias | None:
        """Position or length that attention prefers although it does not explain the predictions."""
        return None if self.evidence is None else find_position_bias(self.evidence)

    @cached_property
    def head_evaluations(self) -> list[HeadEvaluation]:
        """Path share, effect and faithfulness of single heads and groups of heads.

        The list is empty if the report has no rows.

        Heads of language models have effects only, because their other questions concern all heads
        together.
        """
        explained_ids = None
        if self.evidence is not None and self.evidence.default_classes:
            explained_ids = self.evidence.explained_evidence.texts.ids()
        if self.words.kind == "answer":
            return evaluate_heads(self.distinct_rows, self.rules, parts=(), gate="effect")
        return evaluate_heads(
            self.distinct_rows,
            self.rules,
            parts=CLASSIFIER_PARTS,
            explained_ids=explained_ids,
        )


def convert_report_to_json(report: AuditResult) -> dict:
    """Convert the results to plain data, as printed by ``audit --json``.

    NaN becomes None.

    Args:
        report: the audit's result.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "model": report.model,
        "dataset": str(report.dataset),
        "n": report.n_answered,
        "n_texts": report.n,
        "n_different_texts": report.n_distinct,
        "seed": report.seed,
        "predicts": report.predicts,
        "answer": str(report.answer),
        "score": _convert_score(report),
        "verdict": _convert_verdict(report),
        "accuracy": report.accuracy,
        "rankings": {
            name: convert_to_plain(score.plain_estimate)
            for name, score in report.ranking_faithfulness.items()
            if (score.n or 0) >= MIN_DISPLAYED_TEXTS
        },
        "position_bias": convert_to_plain(report.position_bias),
        "findings": convert_to_plain(report.findings),
        "statistics": convert_to_plain(report.statistics),
        "contradictions": list(report.contradictions),
        "notes": list(report.notes),
        "comparisons": convert_to_plain(report.comparisons),
        "provenance": report.provenance,
    }


def _convert_score(report: AuditResult) -> dict | None:
    """Convert faithfulness, its interval and its parts to plain data.

    The result is None if faithfulness was not measured. For fewer than ten texts, its value is None.
    """
    score = report.conclusion.score
    if score is None:
        return None
    parts = {
        f.rule: convert_to_plain(f.estimate) for f in report.answer_findings if f.role == "part"
    }
    return {
        **convert_to_plain(score.estimate),
        "parts": parts,
        "averaged_parts": list(score.averaged_parts),
    }


def _convert_verdict(report: AuditResult) -> dict:
    """Convert the verdict to plain data: question, answer, reason, and every finding's answer."""
    findings = [
        {"rule": finding.rule, "answer": finding.answer, "sentence": finding.sentence}
        for finding in report.answer_findings
    ]
    conclusion = report.conclusion
    sentence = format_conclusion(report.findings, report.words)
    if report.evaluates_scores:
        sentence = format_scores_conclusion(conclusion, report.words)
    return {
        "question": report.question,
        "answer": str(conclusion.answer),
        "sentence": None if sentence is None else report.rename_units(sentence),
        "why": report.rename_units(report.words.fill(conclusion.why)),
        "findings": convert_to_plain(findings),
    }


def check_schema(data: Mapping, path: str) -> None:
    """Raise an error if this version of the package cannot read a summary.

    Args:
        data: parsed JSON from ``summary.json``.
        path: path of the file, for the error message.

    Raises:
        AttnProbeError: If another version of the package wrote it.
    """
    if "study" in data:
        raise AttnProbeError(
            f"{path} contains a study, expected an audit. Read it with StudyReport.load, or read one of "
            "the audits in its folder audit."
        )
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise AttnProbeError(
            f"{path} has schema version {version}, but this version of hf_attnprobe can only read "
            f"version {SCHEMA_VERSION}. Run the audit again, or read it with the version that wrote it."
        )


def convert_extras_to_json(report: AuditResult) -> dict:
    """Return the entries that only the file ``summary.json`` contains, not ``audit --json``.

    Args:
        report: the audit's result.
    """
    return {
        "head_pairs": convert_to_plain(report.head_pairs),
        "example_ids": list(report.example_ids),
    }


def parse_report_fields(data: Mapping) -> dict[str, Any]:
    """Parse the fields of :class:`AuditResult` from a summary, except rows and example texts.

    Args:
        data: parsed JSON from ``summary.json``, the union of :func:`convert_report_to_json` and
            :func:`convert_extras_to_json`.

    Returns:
        Keyword arguments for :class:`AuditResult`.

    Raises:
        KeyError: If an entry is missing.
        AttnProbeError: If an entry has a wrong type.
    """
    parse_plain(Provenance, data["provenance"], "provenance")
    # In the summary, "n" is the number of texts on which the answer is based.
    return parse_fields(AuditResult, {**data, "n": data["n_texts"]}, "examples", "rows")
