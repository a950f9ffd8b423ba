"""Differences between audits: settings, answers, and every statistic, paired by text.

All audits are compared with the first one. Texts are paired if both audits used the same data and
text id; for language models, prompt, units and answer must also be equal. Copies of a text count once,
in each audit and in each difference. Tests are compared only if their options are equal.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.statistics.differences import Difference, ModelPair, compare_model_pairs
from hf_attnprobe.statistics.estimates import (
    MIN_DISPLAYED_TEXTS,
    Estimate,
    StatisticKey,
    estimate_mean,
)
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.grades import Answer, Measure
from hf_attnprobe.statistics.questions import ALL_QUESTIONS, Question
from hf_attnprobe.statistics.rows import IDENTITY_STATISTIC, PREDICTION_TEST, Rows, Texts
from hf_attnprobe.statistics.scale import has_exchanges
from hf_attnprobe.statistics.summary import (
    ALL_TEXTS_GROUP,
    compute_accuracy,
    find_model_site,
    select_predictions,
)
from hf_attnprobe.statistics.verdicts import (
    RULES,
    Finding,
    choose_question_set,
    index_by_rule,
)
from hf_attnprobe.statistics.wording import format_distinct_count
from hf_attnprobe.storage.provenance import (
    DISTINCT_TEXTS_KEY,
    EARLIER_RUNS_KEY,
    flatten_settings,
    format_settings,
)


SiteKey = tuple[str, str, int, int]
"""Key of a statistic at one site: test, statistic, layer and head."""

SKIPPED_STATISTICS = r"_p_value|@random_\d|^unit_"
"""Pattern for statistics that a comparison skips.

They are p-values, and values for single random orders and single units.
"""

UNCLEAR_DIFFERENCE_TEXT = "cannot be told apart"
"""Text for a difference between two audits if its confidence interval contains 0."""


@dataclass(frozen=True)
class ComparedQuestion:
    """One question with every audit's answer.

    Attributes:
        rule: the question's key.
        findings: each audit's finding; None if it did not ask the question.
        measure: description of the compared number; empty if there is none.
        means: each audit's graded number; None if it has none.
        differences: difference from the first audit, for each audit after it; None if either number
            is missing.
    """

    rule: str
    findings: tuple[Finding | None, ...]
    measure: str
    means: tuple[Estimate | None, ...]
    differences: tuple[Difference | None, ...]

    @property
    def question(self) -> str:
        """The question in words."""
        return RULES[self.rule].question

    def answer(self, audit_index: int) -> str:
        """Return an audit's answer to this question, such as "partly".

        Args:
            audit_index: index of the audit; 0 is the first audit.

        Returns:
            The answer; empty if the audit did not examine this question.
        """
        finding = self.findings[audit_index]
        return "" if finding is None else str(finding.answer)

    def has_changed_answer(self, audit_index: int) -> bool:
        """Check whether an audit's answer certainly differs from the first audit's answer.

        Both audits must have an answer other than "cannot say", and the interval for the difference
        between their numbers must exclude 0.

        Args:
            audit_index: index of the audit, from 1; the first audit has index 0.
        """
        # The differences start with the second audit, which has index 1.
        difference = self.differences[audit_index - 1]
        if difference is None or not difference.has_clear_sign:
            return False
        answers = self.answer(0), self.answer(audit_index)
        if any(not answer or Answer.CANNOT_SAY in answer for answer in answers):
            return False
        return answers[0] != answers[1]


@dataclass(frozen=True)
class ComparedStatistic(StatisticKey):
    """One statistic at one site, over all texts.

    Attributes:
        test, statistic, layer, head, group: see
            :class:`~hf_attnprobe.statistics.estimates.StatisticKey`.
        means: each audit's mean over its own texts.
        differences: difference from the first audit, for each audit after it; None if the statistic
            cannot be compared.
    """

    means: tuple[Estimate | None, ...]
    differences: tuple[Difference | None, ...]


@dataclass(frozen=True)
class Setting:
    """A setting that differs between audits.

    Attributes:
        name: the setting's name, in words.
        values: the setting's value in each audit, in words.
    """

    name: str
    values: tuple[str, ...]


# --- names and settings --------------------------------------------------------------


OPTION_PREFIX = "options: "
"""Prefix of the names of settings that are options of a test."""

MEANING_SETTINGS = {
    "level": "level",
    "segment": "segment",
    "units": "units",
    "attended": "attended",
    "query": "sites: query",
    "prediction": "prediction: kind",
    "scale": "prediction: scale",
    "unit of number": "unit of number",
    "rows": "answers: rows",
}
"""Maps the words for a setting in a report to the name of the setting.

These settings define which quantity an audit explains. If one of them differs between two audits,
only their accuracy is compared.
"""

OMITTED_SETTINGS = ("prediction", DISTINCT_TEXTS_KEY, EARLIER_RUNS_KEY)
"""Provenance keys that a comparison of settings describes in other words."""

UNSET_VALUES = (None, "", "none", "default")
"""Values of a setting that count as "not specified" when two audits are compared."""


def choose_short_names(reports: Sequence[AuditResult]) -> tuple[str, ...]:
    """Return a short, unique name for each audit.

    The name is the end of the model's path, such as "bert-base". If several audits have the same
    name, the data set, precision, weights, seed or fingerprint is added, and finally a number.

    Args:
        reports: the audits.
    """
    name_parts = [
        _shorten_paths([report.model for report in reports]),
        _shorten_paths([str(report.dataset) for report in reports]),
        [format_settings(report.provenance.get("dtype")) for report in reports],
        [_get_weights_name(report) for report in reports],
        [f"seed {report.seed}" for report in reports],
        [str(report.provenance.get("model_fingerprint", ""))[:6] for report in reports],
    ]
    names = name_parts[0]
    # Add a suffix only if it distinguishes audits that still have the same name.
    for suffixes in name_parts[1:]:
        n_different = len(set(names))
        if n_different == len(names):
            break
        names_with_suffix = list(zip(names, suffixes, strict=True))
        if len(set(names_with_suffix)) > n_different:
            names = [f"{name}, {suffix}" for name, suffix in names_with_suffix]
    return tuple(
        f"{name} ({number})" if names.count(name) > 1 else name
        for number, name in enumerate(names, 1)
    )


def _get_weights_name(report: AuditResult) -> str:
    """Return which weights of the model were audited, such as "as saved"."""
    origin = report.provenance.get("origin") or {}
    return str(origin.get("weights", "as saved"))


def _shorten_paths(paths: Sequence[str]) -> list[str]:
    """Shorten paths to as few of their last parts as needed to distinguish them.

    For example, "runs/a/model" and "runs/b/model" become "a/model" and "b/model".
    """
    n_different = len(set(paths))
    max_length = max(len(PurePath(path).parts) for path in paths)
    for length in range(1, max_length + 1):
        ends = ["/".join(PurePath(path).parts[-length:]) for path in paths]
        if len(set(ends)) == n_different:
            return ends
    return list(paths)


def list_differing_settings(reports: Sequence[AuditResult]) -> tuple[Setting, ...]:
    """List the settings that differ between audits, such as the model, the data or a version.

    If an audit did not run a test, the options of this test are omitted.

    Args:
        reports: the audits.
    """
    all_settings = [dict(flatten_settings(_collect_settings(report))) for report in reports]
    names = dict.fromkeys(name for settings in all_settings for name in settings)
    differing_settings = []
    for name in names:
        values = tuple(settings.get(name, markdown.MISSING_NUMBER) for settings in all_settings)
        is_unknown_option = name.startswith(OPTION_PREFIX) and markdown.MISSING_NUMBER in values
        if len(set(values)) > 1 and not is_unknown_option:
            differing_settings.append(Setting(name, values))
    return tuple(differing_settings)


def _collect_settings(report: AuditResult) -> dict:
    """Collect the settings of an audit in one dictionary.

    The prediction type is stored with many details, but only its name is included.
    """
    prediction = report.provenance.get("prediction")
    n_texts: int | str = report.n
    if report.n_distinct < report.n:
        n_texts = format_distinct_count(report.n, report.n_distinct)
    settings = {
        key: value for key, value in report.provenance.items() if key not in OMITTED_SETTINGS
    }
    if isinstance(prediction, Mapping):
        settings["predicts"] = prediction.get("name")
    return {
        "model": report.model,
        "dataset": str(report.dataset),
        "texts": n_texts,
        "seed": report.seed,
        **settings,
    }


def list_incompatible_settings(first: AuditResult, other: AuditResult) -> list[str]:
    """List the differing settings because of which two audits cannot be compared.

    For example, one audit explains words and the other one sentences.

    Args:
        first: an audit.
        other: another audit.

    Returns:
        Names of the settings; empty if the audits can be compared.
    """
    first_settings = _collect_specified_settings(first)
    other_settings = _collect_specified_settings(other)
    return [
        name
        for name, setting in MEANING_SETTINGS.items()
        if first_settings.get(setting) != other_settings.get(setting)
    ]


def _collect_specified_settings(report: AuditResult) -> dict[str, Any]:
    """Collect the settings of an audit that have a value other than a default such as "none"."""
    settings = flatten_settings(report.provenance)
    return {name: value for name, value in settings if value not in UNSET_VALUES}


def split_tests_by_options(
    first: AuditResult, other: AuditResult
) -> tuple[list[str], list[str], list[str]]:
    """List which tests of two audits can be compared, and which cannot.

    Args:
        first: an audit.
        other: another audit.

    Returns:
        comparable_tests: tests that both audits ran with the same options.
        incomparable_tests: tests that both audits ran with different options.
        unshared_tests: tests that only one audit ran.
    """
    first_tests, other_tests = first.provenance["tests"], other.provenance["tests"]
    first_options, other_options = first.provenance["options"], other.provenance["options"]
    shared_tests = [test for test in first_tests if test in other_tests]
    comparable_tests = [
        test for test in shared_tests if first_options.get(test) == other_options.get(test)
    ]
    incomparable_tests = [test for test in shared_tests if test not in comparable_tests]
    all_tests = dict.fromkeys([*first_tests, *other_tests])
    unshared_tests = [test for test in all_tests if test not in shared_tests]
    return comparable_tests, incomparable_tests, unshared_tests


def iterate_cautions(
    reports: Sequence[AuditResult],
    names: Sequence[str],
    n_shared: Sequence[int],
) -> Iterator[str]:
    """Yield sentences about the comparison's limits and about numbers that were not compared.

    Args:
        reports: the audits.
        names: short names for the audits.
        n_shared: number of texts shared with the first audit, for each audit after it.
    """
    first = reports[0]
    fingerprints = {report.provenance.get("model_fingerprint", report.model) for report in reports}
    if len(fingerprints) > 1:
        yield (
            "Each name refers to one trained model. A difference holds for these models, not for "
            "their architectures: another training seed may change a number by more, and intervals "
            "over texts do not show this."
        )
    for name, report, n_texts in zip(names[1:], reports[1:], n_shared, strict=True):
        both_names = f"{name} and {names[0]}"
        max_texts = max(report.n_distinct, first.n_distinct)
        if not n_texts:
            yield (
                f"{both_names} were tested on different texts, or explain different answers, so texts "
                "cannot be paired. The intervals treat the audits as independent samples, and a "
                "difference may come from the texts instead of the models."
            )
        elif n_texts < max_texts:
            yield (
                f"{both_names} share {n_texts} of {max_texts} texts. Differences are computed from "
                "these texts only; means are computed from all texts."
            )
        incompatible_settings = list_incompatible_settings(first, report)
        if incompatible_settings:
            yield (
                f"{both_names} do not explain the same quantity (different "
                f"{', '.join(incompatible_settings)}), so only accuracy is compared."
            )
            continue
        _, incomparable_tests, unshared_tests = split_tests_by_options(first, report)
        if incomparable_tests:
            yield (
                f"Not compared between {both_names} because the options differ: "
                f"{', '.join(incomparable_tests)}."
            )
        exchange_flags = [
            has_exchanges(audit.evidence.explained_evidence.texts)
            for audit in (first, report)
            if audit.evidence is not None and audit.attention_score.n
        ]
        if len(set(exchange_flags)) > 1:
            yield (
                f"Faithfulness is not compared between {both_names}, because words were exchanged "
                "in only one of the audits and deleted in the other one."
            )
        if unshared_tests:
            yield (
                f"Tests that only one of {both_names} ran are not compared: "
                f"{', '.join(unshared_tests)}."
            )
    has_several_heads = any(head > 0 for report in reports for _, head in report.rows.sites)
    if len(fingerprints) > 1 and has_several_heads:
        yield (
            "Heads with the same number are compared. However, head 3 in one model corresponds to "
            "head 3 in another model only if one was trained from the other."
        )
    if len({report.seed for report in reports}) > 1:
        yield "The audits used different seeds for their shuffles, which adds noise."


def find_shared_texts(first: AuditResult, other: AuditResult) -> np.ndarray:
    """Find the different texts that two audits have in common.

    If a text has several copies, each audit has merged them into the text with the smallest id.

    Args:
        first: an audit.
        other: another audit.

    Returns:
        Text ids, int64 [texts]; empty if the audits used different data.
    """
    first_data = first.provenance.get("data_fingerprint")
    other_data = other.provenance.get("data_fingerprint")
    if first_data is None or first_data != other_data:
        return np.empty(0, np.int64)
    first_rows, other_rows = first.distinct_rows, other.distinct_rows
    shared_ids = first_rows.index.intersection(other_rows.index)
    if first.words.kind != "answer":
        # Models with different tokenizers have different hashes for the same text.
        return shared_ids.to_numpy()
    first_predictions = select_predictions(first_rows).align_to(shared_ids)
    other_predictions = select_predictions(other_rows).align_to(shared_ids)
    # The identity is a hash of prompt, units and answer.
    first_identity = first_predictions.get_values(IDENTITY_STATISTIC)
    other_identity = other_predictions.get_values(IDENTITY_STATISTIC)
    is_equal = first_identity == other_identity
    is_unknown = np.isnan(first_identity) & np.isnan(other_identity)
    return shared_ids[is_equal | is_unknown].to_numpy()


def _build_pair(first: pd.DataFrame, other: pd.DataFrame, shared_ids: np.ndarray) -> ModelPair:
    """Pair the values of two audits, restricted to their shared texts if there are any."""
    if len(shared_ids):
        first, other = (frame[frame.index.isin(shared_ids)] for frame in (first, other))
    return ModelPair(first, other, len(shared_ids) > 0)


# --- the number of each question ------------------------------------------------------


def collect_evidence(report: AuditResult) -> Evidence:
    """Collect all statistics of each text, and add whether the prediction is right.

    Statistics of single heads are not included.

    Args:
        report: the audit's result.
    """
    correctness = _compute_correctness(select_predictions(report.distinct_rows).to_frame())
    evidence = report.evidence
    if evidence is None:
        return Evidence(Texts.from_frame(correctness))
    statistics = evidence.texts.to_frame()
    joined = correctness.reindex(statistics.index).join(statistics)
    return replace(evidence, texts=Texts.from_frame(joined))


def _compute_correctness(predictions: pd.DataFrame) -> pd.DataFrame:
    """Compute whether each prediction is right, or the absolute error of each predicted number.

    Returns:
        Data frame with the column "right" (0 or 1) or "error"; NaN for texts without a label.
    """
    if "labelled_value" in predictions:
        error = (predictions.value - predictions.labelled_value).abs()
        return pd.DataFrame({"error": error})
    return pd.DataFrame({"right": compute_accuracy(predictions)})


@dataclass(frozen=True, eq=False)
class MeasuredValues:
    """Values of one measure in every audit.

    Attributes:
        description: description of the measure in words.
        values_by_audit: each audit's values by text; None if the audit lacks the measure.
    """

    description: str
    values_by_audit: list[pd.Series | None]

    @property
    def n_known(self) -> int:
        """Number of audits that have the measure."""
        return sum(values is not None for values in self.values_by_audit)


# --- the questions ------------------------------------------------------------------


def compare_questions(
    reports: Sequence[AuditResult],
    shared_ids: Sequence[np.ndarray],
    seed: int,
) -> tuple[ComparedQuestion, ...]:
    """Compare all questions with those of the first audit.

    The confidence intervals hold simultaneously for all questions and audits.

    Args:
        reports: the audits, with their rows.
        shared_ids: ids of texts shared with the first audit, for each audit after it.
        seed: bootstrap seed.
    """
    measures = _choose_measures(reports)
    frames = []
    for k in range(len(reports)):
        columns = {rule: measure.values_by_audit[k] for rule, measure in measures.items()}
        known_columns = {rule: values for rule, values in columns.items() if values is not None}
        frames.append(pd.DataFrame(known_columns))
    pairs = []
    for frame, ids in zip(frames[1:], shared_ids, strict=True):
        rules = [rule for rule in frames[0] if rule in frame]
        pairs.append(_build_pair(frames[0][rules], frame[rules], ids))
    differences_by_audit = _compute_differences(pairs, seed)
    findings_by_audit = [index_by_rule(report.findings) for report in reports]
    answered_rules = {rule for findings in findings_by_audit for rule in findings}
    question_set = choose_question_set(answered_rules)
    measured_rules = measures.keys() & {question_set.gate, *question_set.questions}
    no_measure = MeasuredValues("", [None] * len(reports))
    questions = []
    for rule in RULES:
        if rule not in answered_rules | measured_rules:
            continue
        measure = measures.get(rule, no_measure)
        findings = tuple(audit_findings.get(rule) for audit_findings in findings_by_audit)
        question = ComparedQuestion(
            rule=rule,
            findings=findings,
            measure=measure.description,
            means=tuple(map(_get_graded_number, findings, measure.values_by_audit)),
            differences=tuple(
                _hide_unreliable_difference(differences.get(rule))
                for differences in differences_by_audit
            ),
        )
        questions.append(question)
    return tuple(questions)


def _get_graded_number(finding: Finding | None, values: pd.Series | None) -> Estimate | None:
    """Return the number that answers a question in an audit, with its confidence interval.

    For faithfulness and its parts, this is the number in the report. For all other questions, it is
    the mean over the texts. For fewer than ten texts, it is NaN.

    Args:
        finding: the audit's answer to the question; None if there is none.
        values: the question's number for each text; None if it was not measured.

    Returns:
        The number; None if it was not measured.
    """
    if values is None:
        return None
    if finding is not None and finding.role in ("score", "part"):
        return finding.estimate
    mean = estimate_mean(values.to_numpy())
    if (mean.n or 0) < MIN_DISPLAYED_TEXTS:
        return Estimate(float("nan"), None, mean.n)
    return mean


def _hide_unreliable_difference(difference: Difference | None) -> Difference | None:
    """Return a difference, or None if it was computed from fewer than ten texts."""
    if difference is None or (difference.n or 0) < MIN_DISPLAYED_TEXTS:
        return None
    return difference


def _choose_measures(reports: Sequence[AuditResult]) -> dict[str, MeasuredValues]:
    """Choose the number by which audits are compared, for each question.

    If a question has several measures, the measure that most audits have is chosen. If several measures
    are equally frequent, the first one is chosen. Audits that cannot be compared with the first audit do
    not count. A question is omitted if fewer than two audits have any of its measures.

    Args:
        reports: the audits.

    Returns:
        The chosen measure with its values, by question.
    """
    audits = [collect_evidence(report) for report in reports]
    comparable_tests = [_list_comparable_tests(reports[0], report) for report in reports[1:]]
    chosen_measures: dict[str, MeasuredValues] = {}
    for key, rule in RULES.items():
        question = ALL_QUESTIONS.get(key)
        is_comparable = [True]
        for audit, tests in zip(audits[1:], comparable_tests, strict=True):
            # Accuracy needs no test of attention, so all audits can be compared by it.
            is_comparable.append(
                question is None or _is_comparable(question, audits[0], audit, tests)
            )
        for measure in rule.compared_measures:
            candidate = _measure_audits(measure, audits, is_comparable)
            # A later measure is only chosen if more audits have it.
            n_required = chosen_measures[key].n_known if key in chosen_measures else 1
            if candidate.n_known > n_required:
                chosen_measures[key] = candidate
    return chosen_measures


EXCHANGE_TESTS = ("scale", "exchange")
"""Tests that measure faithfulness and its parts by deleting or by exchanging words."""


def _is_comparable(
    question: Question, first: Evidence, other: Evidence, tests: Sequence[str]
) -> bool:
    """Check whether two audits can be compared by the number that answers a question.

    Numbers from exchanged words cannot be compared with numbers from deleted words.

    Args:
        question: the question.
        first: evidence of the first audit.
        other: evidence of another audit.
        tests: tests that both audits ran with the same options.
    """
    if question.test not in EXCHANGE_TESTS:
        return question.test in tests
    is_exchanged = has_exchanges(first.explained_evidence.texts)
    if is_exchanged != has_exchanges(other.explained_evidence.texts):
        return False
    return ("exchange" if is_exchanged else "scale") in tests


def _measure_audits(
    measure: Measure, audits: Sequence[Evidence], is_comparable: Sequence[bool]
) -> MeasuredValues:
    """Compute the number by which audits are compared, for each text of each audit.

    Args:
        measure: function that computes the number from the statistics of a text.
        audits: statistics of the audits.
        is_comparable: whether each audit can be compared with the first audit; if not, it gets None
            instead of numbers.
    """
    values_by_audit: list[pd.Series | None] = []
    for audit, can_be_compared in zip(audits, is_comparable, strict=True):
        evidence = audit.explained_evidence if measure.excludes_default_classes else audit
        values_by_audit.append(measure.compute(evidence.texts) if can_be_compared else None)
    return MeasuredValues(measure.description, values_by_audit)


def _list_comparable_tests(first: AuditResult, other: AuditResult) -> list[str]:
    """List the tests whose results can be compared between two audits.

    The list is empty if the audits explain different units, such as words and sentences, or differ in
    another setting of ``MEANING_SETTINGS``.
    """
    if list_incompatible_settings(first, other):
        return []
    comparable_tests, _, _ = split_tests_by_options(first, other)
    return comparable_tests


def _compute_differences(pairs: Sequence[ModelPair], seed: int) -> list[dict[Any, Difference]]:
    """Compute the differences between the statistics of two audits, for each pair of audits.

    The confidence intervals hold simultaneously for all differences.

    Returns:
        For each pair, a dictionary that maps each statistic to the difference.
    """
    differences_by_pair = compare_model_pairs(pairs, seed=seed)
    return [
        # The columns of the data frame `pair.first` are the statistics.
        dict(zip(pair.first, differences, strict=True))
        for pair, differences in zip(pairs, differences_by_pair, strict=True)
    ]


# --- all statistics -----------------------------------------------------------------


def compare_statistics(
    reports: Sequence[AuditResult], shared_ids: Sequence[np.ndarray], seed: int
) -> tuple[ComparedStatistic, ...]:
    """Compare all statistics of several audits with those of the first audit.

    The confidence intervals hold simultaneously for all statistics.

    Args:
        reports: the audits, with their rows.
        shared_ids: ids of texts shared with the first audit, for each audit after it.
        seed: bootstrap seed.
    """
    first = reports[0]
    pairs = []
    for report, ids in zip(reports[1:], shared_ids, strict=True):
        tests = _list_comparable_tests(first, report)
        first_frame = _select_columns(first.distinct_rows, tests, first=first)
        other_frame = _select_columns(report.distinct_rows, tests, first=first)
        columns = first_frame.columns.intersection(other_frame.columns).sort_values()
        pairs.append(_build_pair(first_frame[columns], other_frame[columns], ids))
    differences_by_audit = _compute_differences(pairs, seed)
    means_by_audit = [_collect_means(report, first=first) for report in reports]
    # A key consists of the test, the statistic, the layer and the head.
    statistics = []
    for key in means_by_audit[0]:
        differences = tuple(by_key.get(key) for by_key in differences_by_audit)
        if any(differences):
            means = tuple(by_key.get(key) for by_key in means_by_audit)
            statistics.append(ComparedStatistic(*key, ALL_TEXTS_GROUP, means, differences))
    return tuple(statistics)


def _select_columns(rows: Rows, tests: Sequence[str], *, first: AuditResult) -> pd.DataFrame:
    """Select the values of an audit that can be compared with the first audit.

    A model with one head and a model with many heads are compared by the attention of all heads
    together. In this case, only these values are returned, and their layer and head are replaced by
    those of the first audit.

    Args:
        rows: values of the audit.
        tests: tests that can be compared.
        first: the first audit.

    Returns:
        One row per text, and one column per test, statistic, layer and head.
    """
    first_site, site = find_model_site(first.rows), find_model_site(rows)
    has_other_site = first_site is not None and site is not None and first_site != site

    def is_compared(test: str, statistic: str, layer: int, head: int) -> bool:
        """Check whether a column of the rows is compared."""
        if test not in tests or test == PREDICTION_TEST:
            return False
        if re.search(SKIPPED_STATISTICS, statistic):
            return False
        return not has_other_site or (layer, head) == site

    frame = rows.select(is_compared).drop_unmeasured_texts().build_wide_frame()
    columns = list(frame.columns)
    if has_other_site and first_site:
        columns = [(test, statistic, *first_site) for test, statistic, _, _ in columns]
    return frame.set_axis(pd.Index(columns, tupleize_cols=False), axis=1)


def _collect_means(report: AuditResult, *, first: AuditResult) -> dict[SiteKey, Estimate]:
    """Collect the mean of each statistic over all texts of an audit.

    A model with one head and a model with many heads are compared by the attention of all heads
    together. In this case, only these means are returned, and their layer and head are replaced by
    those of the first audit.

    Args:
        report: the audit's result.
        first: the first audit.

    Returns:
        Means by test, statistic, layer and head.
    """
    first_site, model_site = find_model_site(first.rows), find_model_site(report.rows)
    has_other_site = first_site is not None and model_site is not None and first_site != model_site
    means = {}
    for s in report.statistics:
        site = s.site
        if has_other_site and first_site is not None:
            if site != model_site:
                continue
            site = first_site
        if s.group == ALL_TEXTS_GROUP:
            means[s.test, s.statistic, *site] = Estimate(s.mean, s.ci95, s.n)
    return means
