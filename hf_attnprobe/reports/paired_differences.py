"""Differences between audits: their settings, their answers, and every statistic, text by text.

All audits are compared with the first one. Texts with the same id from the same data are pairs; for
language models, prompt, units and answer must also be equal. Only tests with the same options are
compared.
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
from hf_attnprobe.statistics.estimates import Estimate, StatisticKey, estimate_mean
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.grades import Answer, Measure
from hf_attnprobe.statistics.questions import ALL_QUESTIONS
from hf_attnprobe.statistics.rows import PREDICTION_TEST, Rows, Texts
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
from hf_attnprobe.storage.provenance import flatten_settings, format_settings


SiteKey = tuple[str, str, int, int]
"""Test, statistic, layer and head."""

SKIPPED_STATISTICS = r"_p_value|@random_\d|^unit_"
"""Pattern of statistics whose differences mean nothing: p-values, single random orders, units."""

UNDECIDED = "cannot be told apart"
"""Text printed instead of a difference that may be 0."""


@dataclass(frozen=True)
class ComparedQuestion:
    """One question with the answer of every audit.

    Attributes:
        rule: key of the rule.
        findings: finding of each audit; None if it did not ask the question.
        measure: description of the number whose differences are taken; empty if there is none.
        means: graded number of each audit; None if it has none.
        differences: difference of each audit after the first from the first; None if one of them
            has no number.
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

    def answer(self, number: int) -> str:
        """Return the answer of an audit; empty if there is none.

        Args:
            number: index of the audit.
        """
        finding = self.findings[number]
        return "" if finding is None else str(finding.answer)

    def has_changed_answer(self, number: int) -> bool:
        """Check whether an audit's answer certainly differs from that of the first audit.

        This requires that both audits can answer the question and that their difference is certain.

        Args:
            number: index of the audit, at least 1.
        """
        difference = self.differences[number - 1]
        if difference is None or not difference.has_clear_sign:
            return False
        answers = self.answer(0), self.answer(number)
        if any(not answer or Answer.CANNOT_SAY in answer for answer in answers):
            return False
        return answers[0] != answers[1]


@dataclass(frozen=True)
class ComparedStatistic(StatisticKey):
    """One statistic at one site, over all texts.

    Attributes:
        test, statistic, layer, head, group: see
            :class:`~hf_attnprobe.statistics.estimates.StatisticKey`.
        means: mean of each audit over its own texts.
        differences: difference of each audit after the first from the first; None if the statistic
            cannot be compared.
    """

    means: tuple[Estimate | None, ...]
    differences: tuple[Difference | None, ...]


@dataclass(frozen=True)
class Setting:
    """A setting that is not equal in all audits.

    Attributes:
        name: name of the setting, in words.
        values: value in each audit, in words.
    """

    name: str
    values: tuple[str, ...]


# --- names and settings --------------------------------------------------------------


OPTION_PREFIX = "options: "
"""Name prefix of settings that are test options."""

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
"""Settings that define what is explained. If they differ, only accuracy is compared."""

UNSET_VALUES = (None, "", "none", "default")
"""Values that mean that a setting was not specified."""


def choose_short_names(reports: Sequence[AuditResult]) -> tuple[str, ...]:
    """Return a short, unique name for each audit, built from what distinguishes the audits.

    The name is the end of the model's path. If this is not unique, the data set, precision,
    weights, seed or fingerprint is added, and finally a number.

    Args:
        reports: the audits.
    """
    name_parts = [
        _shorten_paths([report.model for report in reports]),
        _shorten_paths([str(report.dataset) for report in reports]),
        [format_settings(report.provenance.get("dtype")) for report in reports],
        [
            str((report.provenance.get("origin") or {}).get("weights", "as saved"))
            for report in reports
        ],
        [f"seed {report.seed}" for report in reports],
        [str(report.provenance.get("model_fingerprint", ""))[:6] for report in reports],
    ]
    names = name_parts[0]
    for suffixes in name_parts[1:]:
        if len(set(names)) == len(names):
            break
        if len(set(zip(names, suffixes, strict=True))) > len(set(names)):
            names = [f"{name}, {suffix}" for name, suffix in zip(names, suffixes, strict=True)]
    return tuple(
        f"{name} ({number})" if names.count(name) > 1 else name
        for number, name in enumerate(names, 1)
    )


def _shorten_paths(paths: Sequence[str]) -> list[str]:
    """Return the ends of paths, just long enough to distinguish different paths."""
    n_different = len(set(paths))
    max_length = max(len(PurePath(path).parts) for path in paths)
    for length in range(1, max_length + 1):
        ends = ["/".join(PurePath(path).parts[-length:]) for path in paths]
        if len(set(ends)) == n_different:
            return ends
    return list(paths)


def list_differing_settings(reports: Sequence[AuditResult]) -> tuple[Setting, ...]:
    """Return data, settings and versions that are not equal in all audits.

    Options of tests that some audit did not run are omitted.

    Args:
        reports: the audits.
    """
    all_settings = [dict(flatten_settings(_collect_settings(report))) for report in reports]
    names = dict.fromkeys(name for settings in all_settings for name in settings)
    differing_settings = []
    for name in names:
        values = tuple(settings.get(name, markdown.MISSING) for settings in all_settings)
        is_unknown_option = name.startswith(OPTION_PREFIX) and markdown.MISSING in values
        if len(set(values)) > 1 and not is_unknown_option:
            differing_settings.append(Setting(name, values))
    return tuple(differing_settings)


def _collect_settings(report: AuditResult) -> dict:
    """Return everything that may differ between audits; only the name of the prediction."""
    prediction = report.provenance.get("prediction")
    settings = {key: value for key, value in report.provenance.items() if key != "prediction"}
    if isinstance(prediction, Mapping):
        settings["predicts"] = prediction.get("name")
    return {
        "model": report.model,
        "dataset": str(report.dataset),
        "texts": report.n,
        "seed": report.seed,
        **settings,
    }


def list_incompatible_settings(first: AuditResult, other: AuditResult) -> list[str]:
    """Return the settings because of which two audits explain different quantities.

    Args:
        first: an audit.
        other: another audit.
    """
    first_settings, other_settings = (
        {
            name: value
            for name, value in flatten_settings(report.provenance)
            if value not in UNSET_VALUES
        }
        for report in (first, other)
    )
    return [
        name
        for name, setting in MEANING_SETTINGS.items()
        if first_settings.get(setting) != other_settings.get(setting)
    ]


def split_tests_by_options(
    first: AuditResult, other: AuditResult
) -> tuple[list[str], list[str], list[str]]:
    """Divide the tests of two audits by whether they can be compared.

    Args:
        first: an audit.
        other: another audit.

    Returns:
        comparable: tests of both audits with the same options.
        incomparable: tests of both audits with different options.
        unshared: tests of only one audit.
    """
    first_tests, other_tests = first.provenance["tests"], other.provenance["tests"]
    first_options, other_options = first.provenance["options"], other.provenance["options"]
    shared = [test for test in first_tests if test in other_tests]
    comparable = [test for test in shared if first_options.get(test) == other_options.get(test)]
    incomparable = [test for test in shared if test not in comparable]
    all_tests = dict.fromkeys([*first_tests, *other_tests])
    unshared = [test for test in all_tests if test not in shared]
    return comparable, incomparable, unshared


def iterate_cautions(
    reports: Sequence[AuditResult],
    names: Sequence[str],
    n_shared: Sequence[int],
) -> Iterator[str]:
    """Yield sentences on what the differences cannot show and on what was not compared.

    Args:
        reports: the audits.
        names: their short names.
        n_shared: for each audit after the first, the number of texts shared with the first.
    """
    first = reports[0]
    fingerprints = {report.provenance.get("model_fingerprint", report.model) for report in reports}
    if len(fingerprints) > 1:
        yield (
            "Each name refers to one trained model. A difference holds for these models, not for "
            "their architectures: another seed of the training may change a number by more, and "
            "intervals over texts do not show this."
        )
    for name, report, n_texts in zip(names[1:], reports[1:], n_shared, strict=True):
        both_names = f"{name} and {names[0]}"
        max_texts = max(report.n, first.n)
        if not n_texts:
            yield (
                f"{both_names} were tested on different texts, or explain different answers, so there "
                "are no pairs of texts. The intervals are those of two independent samples, and a "
                "difference may come from the texts instead of the models."
            )
        elif n_texts < max_texts:
            yield (
                f"{both_names} share {n_texts} of {max_texts} texts. Differences are computed from "
                "these texts only, means from all texts of each audit."
            )
        incompatible_settings = list_incompatible_settings(first, report)
        if incompatible_settings:
            yield (
                f"{both_names} do not explain the same quantity (different "
                f"{', '.join(incompatible_settings)}), so only accuracy is compared."
            )
            continue
        _, incomparable, unshared = split_tests_by_options(first, report)
        if incomparable:
            yield (
                f"Not compared between {both_names} because the options differ: "
                f"{', '.join(incomparable)}."
            )
        if unshared:
            yield f"Not compared because only one of {both_names} ran it: {', '.join(unshared)}."
    has_several_heads = any(head > 0 for report in reports for _, head in report.rows.sites)
    if len(fingerprints) > 1 and has_several_heads:
        yield (
            "Heads are compared by their numbers. Head 3 of one model corresponds to head 3 of "
            "another model only if one was trained from the other."
        )
    if len({report.seed for report in reports}) > 1:
        yield "The audits used different seeds for their shuffles, which adds noise."


def find_shared_texts(first: AuditResult, other: AuditResult) -> np.ndarray:
    """Return the ids of the texts that are equal in both audits; none if the data differ.

    Args:
        first: an audit.
        other: another audit.

    Returns:
        The ids, int64 [texts].
    """
    first_data, other_data = (
        report.provenance.get("data_fingerprint") for report in (first, other)
    )
    if first_data is None or first_data != other_data:
        return np.empty(0, np.int64)
    shared_ids = first.rows.index.intersection(other.rows.index)
    first_identity, other_identity = (
        select_predictions(report.rows).align_to(shared_ids).get_values("identity")
        for report in (first, other)
    )
    is_equal = first_identity == other_identity
    is_unknown = np.isnan(first_identity) & np.isnan(other_identity)
    return shared_ids[is_equal | is_unknown].to_numpy()


def _build_pair(first: pd.DataFrame, other: pd.DataFrame, shared_ids: np.ndarray) -> ModelPair:
    """Return the values of two audits, restricted to the shared texts if there are any."""
    if len(shared_ids):
        first, other = (frame[frame.index.isin(shared_ids)] for frame in (first, other))
    return ModelPair(first, other, len(shared_ids) > 0)


# --- the number of each question ------------------------------------------------------


def collect_evidence(report: AuditResult) -> Evidence:
    """Return an audit's statistics of predictions and of its attention as a whole, by text.

    Args:
        report: the audit.
    """
    correctness = _compute_correctness(select_predictions(report.rows).to_frame())
    evidence = report.evidence
    if evidence is None:
        return Evidence(Texts.from_frame(correctness))
    statistics = evidence.texts.to_frame()
    joined = correctness.reindex(statistics.index).join(statistics)
    return replace(evidence, texts=Texts.from_frame(joined))


def _compute_correctness(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return 1 for right predictions, or the error of predicted numbers; NaN without a label."""
    if "labelled_value" in predictions:
        error = (predictions.value - predictions.labelled_value).abs()
        return pd.DataFrame({"error": error})
    return pd.DataFrame({"right": compute_accuracy(predictions)})


@dataclass(frozen=True, eq=False)
class MeasuredValues:
    """The values of one measure in every audit.

    Attributes:
        description: description of the measure.
        values_by_audit: value of each text for each audit; None if the audit lacks the measure.
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
    """Compare all questions, with intervals that are simultaneous over questions and audits.

    Args:
        reports: the audits, with their rows.
        shared_ids: for each audit after the first, the ids of the texts shared with the first.
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
            differences=tuple(differences.get(rule) for differences in differences_by_audit),
        )
        questions.append(question)
    return tuple(questions)


def _get_graded_number(finding: Finding | None, values: pd.Series | None) -> Estimate | None:
    """Return an audit's number: the graded one for faithfulness and its parts, else the mean."""
    if values is None:
        return None
    if finding is not None and finding.role in ("score", "part"):
        return finding.estimate
    return estimate_mean(values.to_numpy())


def _choose_measures(reports: Sequence[AuditResult]) -> dict[str, MeasuredValues]:
    """Return, for each rule, the measure that most audits have, and at least two of them.

    Among equally frequent measures, the first is chosen. Values are excluded if their meaning
    differs from that in the first audit.
    """
    audits = [collect_evidence(report) for report in reports]
    comparable_tests = [_list_comparable_tests(reports[0], report) for report in reports[1:]]
    chosen_measures: dict[str, MeasuredValues] = {}
    for key, rule in RULES.items():
        question = ALL_QUESTIONS.get(key)
        # Accuracy is no question about attention and can be compared without any test.
        is_comparable = [
            True,
            *(question is None or question.test in tests for tests in comparable_tests),
        ]
        for measure in rule.compared_measures:
            candidate = _measure_audits(measure, audits, is_comparable)
            n_required = chosen_measures[key].n_known if key in chosen_measures else 1
            if candidate.n_known > n_required:
                chosen_measures[key] = candidate
    return chosen_measures


def _measure_audits(
    measure: Measure, audits: Sequence[Evidence], is_comparable: Sequence[bool]
) -> MeasuredValues:
    """Compute a measure for all comparable audits."""
    values_by_audit: list[pd.Series | None] = []
    for audit, include in zip(audits, is_comparable, strict=True):
        evidence = audit.explained_evidence if measure.excludes_default_classes else audit
        values_by_audit.append(measure.compute(evidence.texts) if include else None)
    return MeasuredValues(measure.description, values_by_audit)


def _list_comparable_tests(first: AuditResult, other: AuditResult) -> list[str]:
    """Return the tests of both audits with the same options, if they explain the same quantity."""
    if list_incompatible_settings(first, other):
        return []
    comparable, _, _ = split_tests_by_options(first, other)
    return comparable


def _compute_differences(pairs: Sequence[ModelPair], seed: int) -> list[dict[Any, Difference]]:
    """Return the differences of each pair by column, with simultaneous intervals."""
    return [
        dict(zip(pair.first, differences, strict=True))
        for pair, differences in zip(pairs, compare_model_pairs(pairs, seed=seed), strict=True)
    ]


# --- all statistics -----------------------------------------------------------------


def compare_statistics(
    reports: Sequence[AuditResult], shared_ids: Sequence[np.ndarray], seed: int
) -> tuple[ComparedStatistic, ...]:
    """Compare every statistic of the first audit, with intervals simultaneous over all of them.

    Args:
        reports: the audits, with their rows.
        shared_ids: for each audit after the first, the ids of the texts shared with the first.
        seed: bootstrap seed.
    """
    first = reports[0]
    pairs = []
    for report, ids in zip(reports[1:], shared_ids, strict=True):
        tests = _list_comparable_tests(first, report)
        first_frame = _select_columns(first.rows, tests, first=first)
        other_frame = _select_columns(report.rows, tests, first=first)
        columns = first_frame.columns.intersection(other_frame.columns).sort_values()
        pairs.append(_build_pair(first_frame[columns], other_frame[columns], ids))
    differences_by_audit = _compute_differences(pairs, seed)
    means_by_audit = [_collect_means(report, first=first) for report in reports]
    statistics = []
    for key in means_by_audit[0]:
        differences = tuple(by_key.get(key) for by_key in differences_by_audit)
        if any(differences):
            means = tuple(by_key.get(key) for by_key in means_by_audit)
            statistics.append(ComparedStatistic(*key, ALL_TEXTS_GROUP, means, differences))
    return tuple(statistics)


def _select_columns(rows: Rows, tests: Sequence[str], *, first: AuditResult) -> pd.DataFrame:
    """Return values by text and by test, statistic, layer and head, with the first audit's sites.

    If attention as a whole is a single head in one model and a group of heads in the other, only
    these two sites are compared, under the name of the first one.
    """
    first_site, site = find_model_site(first.rows), find_model_site(rows)
    has_other_site = first_site is not None and site is not None and first_site != site

    def is_compared(test: str, statistic: str, layer: int, head: int) -> bool:
        """Check whether a column is compared."""
        if test not in tests or test == PREDICTION_TEST or re.search(SKIPPED_STATISTICS, statistic):
            return False
        return not has_other_site or (layer, head) == site

    frame = rows.select(is_compared).drop_unmeasured_texts().build_wide_frame()
    columns = [
        (*column[:2], *first_site) if has_other_site and first_site else column
        for column in frame.columns
    ]
    return frame.set_axis(pd.Index(columns, tupleize_cols=False), axis=1)


def _collect_means(report: AuditResult, *, first: AuditResult) -> dict[SiteKey, Estimate]:
    """Return the means over all texts, with the first audit's sites as in `_select_columns`."""
    first_site, model_site = find_model_site(first.rows), find_model_site(report.rows)
    means = {}
    for s in report.statistics:
        site = s.site
        if first_site is not None and model_site is not None and first_site != model_site:
            if site != model_site:
                continue
            site = first_site
        if s.group == ALL_TEXTS_GROUP:
            means[s.test, s.statistic, *site] = Estimate(s.mean, s.ci95, s.n)
    return means
