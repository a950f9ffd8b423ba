"""Differences between audits: settings, answers, and every number, text by text.

The first audit is what the others are compared with. Texts with the same id of the same data
are pairs, of language models where prompt, units and answer are the same too; only tests with
the same options are compared. Pure.
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
from hf_attnprobe.statistics.differences import Difference, Sides, changes
from hf_attnprobe.statistics.estimates import Estimate, Key, mean_estimate
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.grades import Answer, Measure
from hf_attnprobe.statistics.questions import EVERY_QUESTION
from hf_attnprobe.statistics.rows import PREDICTION, Rows, Texts
from hf_attnprobe.statistics.summary import (
    ALL_TEXTS,
    is_right,
    predictions_of,
    site_of_model,
)
from hf_attnprobe.statistics.verdicts import (
    RULES,
    Finding,
    asked_by,
    by_rule,
)
from hf_attnprobe.storage.provenance import flat, in_words


Place = tuple[str, str, int, int]
"""Test, statistic, layer and head."""
NOT_COMPARED = r"_p_value|@random_\d|^unit_"
"""Statistics whose differences say nothing: p-values, single random orders."""
CANNOT_BE_TOLD = "cannot be told apart"


@dataclass(frozen=True)
class ComparedQuestion:
    """One question and every audit's answer.

    Attributes:
        rule: key of the rule.
        findings: of every audit; None where it was not asked.
        measure: the number whose differences are taken, in words; empty without any.
        means: each audit's own number, as it was graded; None without one.
        differences: of every audit behind the first to the first; None without both.
    """

    rule: str
    findings: tuple[Finding | None, ...]
    measure: str
    means: tuple[Estimate | None, ...]
    differences: tuple[Difference | None, ...]

    @property
    def question(self) -> str:
        """What is asked."""
        return RULES[self.rule].question

    def answer(self, number: int) -> str:
        """An audit's answer; empty if there is none."""
        found = self.findings[number]
        return "" if found is None else str(found.answer)

    def changed(self, number: int) -> bool:
        """Whether an audit's answer differs from the first's, and the difference is told from
        0.

        Not where one of both cannot say.
        """
        difference = self.differences[number - 1]
        if difference is None or not difference.can_be_told:
            return False
        first, other = self.answer(0), self.answer(number)
        is_open = any(not a or Answer.CANNOT_SAY in a for a in (first, other))
        return not is_open and first != other


@dataclass(frozen=True)
class ComparedStatistic(Key):
    """One statistic at one place, over all texts.

    Attributes:
        test, statistic, layer, head, group: see :class:`~hf_attnprobe.statistics.estimates.Key`.
        means: of every audit over its own texts.
        differences: of every audit behind the first to the first; None where that has
            no such statistic that may be compared.
    """

    means: tuple[Estimate | None, ...]
    differences: tuple[Difference | None, ...]


@dataclass(frozen=True)
class Setting:
    """A setting that is not equal in all audits.

    Attributes:
        name: of the setting, in words.
        values: of every audit, in words.
    """

    name: str
    values: tuple[str, ...]


# --- names and settings --------------------------------------------------------------


OPTIONS = "options: "
"""Begins the name of an option of a test."""
MEANING = {
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
"""Settings that say what is explained, by what they are: of others only accuracy is compared."""
UNSAID = (None, "", "none", "default")


def short_names(reports: Sequence[AuditResult]) -> tuple[str, ...]:
    """A short name for each, all different, of what tells them apart.

    The end of the model's path; where models do not differ the data set, the precision,
    the weights, the seed or what else does; a number besides where nothing does.
    """
    parts = [
        _tails([r.model for r in reports]),
        _tails([str(r.dataset) for r in reports]),
        [in_words(r.provenance.get("dtype")) for r in reports],
        [str((r.provenance.get("origin") or {}).get("weights", "as saved")) for r in reports],
        [f"seed {r.seed}" for r in reports],
        [str(r.provenance.get("model_fingerprint", ""))[:6] for r in reports],
    ]
    names = parts[0]
    for part in parts[1:]:
        if len(set(names)) == len(names):
            break
        if len(set(zip(names, part, strict=True))) > len(set(names)):
            names = [f"{name}, {said}" for name, said in zip(names, part, strict=True)]
    return tuple(
        f"{name} ({number})" if names.count(name) > 1 else name
        for number, name in enumerate(names, 1)
    )


def _tails(paths: Sequence[str]) -> list[str]:
    """The ends of paths, as long as it takes to tell different ones apart."""
    wanted = len(set(paths))
    longest = max(len(PurePath(path).parts) for path in paths)
    for length in range(1, longest + 1):
        ends = ["/".join(PurePath(path).parts[-length:]) for path in paths]
        if len(set(ends)) == wanted:
            return ends
    return list(paths)


def differing_settings(reports: Sequence[AuditResult]) -> tuple[Setting, ...]:
    """Data, settings and versions that are not equal in all audits.

    Options of tests that an audit did not run, or does not know, are left out.
    """
    every = [dict(flat(_all_of(report))) for report in reports]
    names = dict.fromkeys(name for settings in every for name in settings)
    found = []
    for name in names:
        values = tuple(settings.get(name, markdown.MISSING) for settings in every)
        if len(set(values)) > 1 and not (name.startswith(OPTIONS) and markdown.MISSING in values):
            found.append(Setting(name, values))
    return tuple(found)


def _all_of(report: AuditResult) -> dict:
    """What may differ; of the prediction what it is, not its parts one by one."""
    prediction = report.provenance.get("prediction")
    kept = {k: v for k, v in report.provenance.items() if k != "prediction"}
    if isinstance(prediction, Mapping):
        kept["predicts"] = prediction.get("name")
    return {
        "model": report.model,
        "dataset": str(report.dataset),
        "texts": report.n,
        "seed": report.seed,
        **kept,
    }


def other_meaning(first: AuditResult, other: AuditResult) -> list[str]:
    """Settings that make two audits explain different things; none if they do not."""
    ours, theirs = (
        {name: value for name, value in flat(report.provenance) if value not in UNSAID}
        for report in (first, other)
    )
    return [name for name, setting in MEANING.items() if ours.get(setting) != theirs.get(setting)]


def comparable_tests(
    first: AuditResult, other: AuditResult
) -> tuple[list[str], list[str], list[str]]:
    """Tests of both with the same options; those with others; those of one audit only."""
    ours, theirs = first.provenance["tests"], other.provenance["tests"]
    own, others = first.provenance["options"], other.provenance["options"]
    both = [test for test in ours if test in theirs]
    same = [test for test in both if own.get(test) == others.get(test)]
    otherwise = [test for test in both if test not in same]
    every = dict.fromkeys([*ours, *theirs])
    alone = [test for test in every if test not in both]
    return same, otherwise, alone


def cautions(
    reports: Sequence[AuditResult],
    names: Sequence[str],
    n_shared: Sequence[int],
) -> Iterator[str]:
    """What the differences cannot show, and what was not compared."""
    first = reports[0]
    prints = {r.provenance.get("model_fingerprint", r.model) for r in reports}
    if len(prints) > 1:
        yield (
            "Each name stands for one trained model. A difference is of these models "
            "and not of their kinds: another seed of the training may move a number by "
            "more, and no interval over texts shows that."
        )
    for name, report, n in zip(names[1:], reports[1:], n_shared, strict=True):
        between = f"{name} and {names[0]}"
        if not n:
            yield (
                f"{between} were tested on other texts, or explain other answers, so no text is "
                "a pair: the intervals are of two independent samples, and what differs may be "
                "the texts and not the models."
            )
        elif n < max(report.n, first.n):
            yield (
                f"{between} share {n} of {max(report.n, first.n)} texts; differences are "
                "over those alone, means over all of each."
            )
        wrong = other_meaning(first, report)
        if wrong:
            yield (
                f"{between} do not explain the same thing (other {', '.join(wrong)}), so "
                "nothing but accuracy is compared."
            )
            continue
        _, others, alone = comparable_tests(first, report)
        if others:
            yield f"Not compared of {between}, for other options: {', '.join(others)}."
        if alone:
            yield f"In only one of {between}, so not compared: {', '.join(alone)}."
    if len(prints) > 1 and any(head > 0 for r in reports for _, head in r.rows.sites):
        yield (
            "Heads are compared by their numbers. Head 3 of one model is head 3 of "
            "another only where one was trained from the other."
        )
    if len({r.seed for r in reports}) > 1:
        yield "The audits drew their shuffles with other seeds, which adds noise."


def shared_texts(first: AuditResult, other: AuditResult) -> np.ndarray:
    """Ids of the texts that are the same in both; none if the data differ."""
    ours, theirs = (r.provenance.get("data_fingerprint") for r in (first, other))
    if ours is None or ours != theirs:
        return np.empty(0, np.int64)
    both = first.rows.index.intersection(other.rows.index)
    own, others = (predictions_of(r.rows).of(both).values("identity") for r in (first, other))
    is_same = (own == others) | (np.isnan(own) & np.isnan(others))
    return both[is_same].to_numpy()


def _sides(first: pd.DataFrame, other: pd.DataFrame, shared: np.ndarray) -> Sides:
    """Numbers of two audits; those of the shared texts alone, where there are any."""
    if len(shared):
        first, other = (side[side.index.isin(shared)] for side in (first, other))
    return Sides(first, other, len(shared) > 0)


# --- the number behind each question --------------------------------------------------


def evidence_in(report: AuditResult) -> Evidence:
    """What an audit says of its predictions and of its attention as a whole, text by text."""
    right = _right(predictions_of(report.rows).frame())
    found = report.evidence
    if found is None:
        return Evidence(Texts.of_frame(right))
    measured = found.texts.frame()
    beside = right.reindex(measured.index)
    return replace(found, texts=Texts.of_frame(beside.join(measured)))


def _right(predictions: pd.DataFrame) -> pd.DataFrame:
    """1 for every right prediction, of numbers the error; NaN without a label."""
    if "labelled_value" in predictions:
        error = (predictions.value - predictions.labelled_value).abs()
        return pd.DataFrame({"error": error})
    return pd.DataFrame({"right": is_right(predictions)})


@dataclass(frozen=True, eq=False)
class Numbers:
    """One measure of every audit.

    Attributes:
        words: what it is.
        by_text: of every audit; None of one without it.
    """

    words: str
    by_text: list[pd.Series | None]

    @property
    def n_known(self) -> int:
        """Number of audits that have it."""
        return sum(number is not None for number in self.by_text)


# --- the questions ------------------------------------------------------------------


def questions_of(
    reports: Sequence[AuditResult],
    shared: Sequence[np.ndarray],
    seed: int,
) -> tuple[ComparedQuestion, ...]:
    """All questions, with intervals simultaneous over questions and audits.

    Args:
        reports: with their rows.
        shared: ids of the texts that each audit behind the first shares with it.
        seed: of the resamples.
    """
    chosen = _chosen(reports)
    measured = [
        pd.DataFrame(
            {
                rule: numbers.by_text[k]
                for rule, numbers in chosen.items()
                if numbers.by_text[k] is not None
            }
        )
        for k in range(len(reports))
    ]
    sides = []
    for other, ids in zip(measured[1:], shared, strict=True):
        both = [rule for rule in measured[0] if rule in other]
        sides.append(_sides(measured[0][both], other[both], ids))
    found_changes = _by_column(sides, seed)
    found = [by_rule(report.findings) for report in reports]
    asked = {rule for of_audit in found for rule in of_audit}
    of_kind = asked_by(asked)
    compared = asked | (chosen.keys() & {of_kind.gate, *of_kind.questions})
    nothing = Numbers("", [None] * len(reports))
    questions = []
    for rule in (rule for rule in RULES if rule in compared):
        numbers = chosen.get(rule, nothing)
        findings = tuple(of_audit.get(rule) for of_audit in found)
        question = ComparedQuestion(
            rule=rule,
            findings=findings,
            measure=numbers.words,
            means=tuple(map(_own_number, findings, numbers.by_text)),
            differences=tuple(changed.get(rule) for changed in found_changes),
        )
        questions.append(question)
    return tuple(questions)


def _own_number(found: Finding | None, by_text: pd.Series | None) -> Estimate | None:
    """An audit's number: of a place on the scale the graded one, else the mean over texts."""
    if by_text is None:
        return None
    if found is not None and found.role in ("score", "part"):
        return found.estimate
    return mean_estimate(by_text.to_numpy())


def _chosen(reports: Sequence[AuditResult]) -> dict[str, Numbers]:
    """For each rule, the measure that most audits have (at least two); ties go to the first.

    Without the numbers that mean another thing than the first audit's.
    """
    audits = [evidence_in(report) for report in reports]
    same = [_comparable(reports[0], report) for report in reports[1:]]
    chosen: dict[str, Numbers] = {}
    for rule, record in RULES.items():
        asked = EVERY_QUESTION.get(rule)  # accuracy needs no test
        kept = [True, *(asked is None or asked.test in tests for tests in same)]
        for measure in record.compared:
            numbers = _measured(measure, audits, kept)
            best = chosen[rule].n_known if rule in chosen else 1
            if numbers.n_known > best:
                chosen[rule] = numbers
    return chosen


def _measured(measure: Measure, audits: Sequence[Evidence], kept: Sequence[bool]) -> Numbers:
    """A measure of every audit of which it is kept."""
    by_text: list[pd.Series | None] = []
    for each, is_kept in zip(audits, kept, strict=True):
        told = each.explained if measure.is_of_explained else each
        by_text.append(measure.of(told.texts) if is_kept else None)
    return Numbers(measure.words, by_text)


def _comparable(first: AuditResult, other: AuditResult) -> list[str]:
    """Tests of both with the same options; none where they explain different things."""
    return [] if other_meaning(first, other) else comparable_tests(first, other)[0]


def _by_column(sides: Sequence[Sides], seed: int) -> list[dict[Any, Difference]]:
    """Differences of each pair by column, with simultaneous intervals."""
    return [
        dict(zip(both.first, changed, strict=True))
        for both, changed in zip(sides, changes(sides, seed=seed), strict=True)
    ]


# --- all statistics -----------------------------------------------------------------


def statistics_of(
    reports: Sequence[AuditResult], shared: Sequence[np.ndarray], seed: int
) -> tuple[ComparedStatistic, ...]:
    """Every statistic of the first, with intervals simultaneous over all of them."""
    first = reports[0]
    sides = []
    for report, ids in zip(reports[1:], shared, strict=True):
        same = _comparable(first, report)
        ours, theirs = (_columns(r.rows, same, to=first) for r in (first, report))
        columns = ours.columns.intersection(theirs.columns).sort_values()
        sides.append(_sides(ours[columns], theirs[columns], ids))
    by_place = _by_column(sides, seed)
    means = [_means(report, to=first) for report in reports]
    found = []
    for place in means[0]:
        changed = tuple(of_audit.get(place) for of_audit in by_place)
        if any(changed):
            mean = tuple(of_audit.get(place) for of_audit in means)
            found.append(ComparedStatistic(*place, ALL_TEXTS, mean, changed))
    return tuple(found)


def _columns(rows: Rows, tests: Sequence[str], *, to: AuditResult) -> pd.DataFrame:
    """Texts by test, statistic, layer and head, at the first audit's place.

    Where the attention as a whole is a head of one model and a group of heads of the
    other, only that is compared.
    """
    ours, theirs = site_of_model(to.rows), site_of_model(rows)
    elsewhere = ours is not None and theirs is not None and ours != theirs

    def is_compared(test: str, statistic: str, layer: int, head: int) -> bool:
        if test not in tests or test == PREDICTION or re.search(NOT_COMPARED, statistic):
            return False
        return not elsewhere or (layer, head) == theirs

    wide = rows.select(is_compared).measured().wide()
    columns = [(*c[:2], *ours) if elsewhere and ours else c for c in wide.columns]
    return wide.set_axis(pd.Index(columns, tupleize_cols=False), axis=1)


def _means(report: AuditResult, *, to: AuditResult) -> dict[Place, Estimate]:
    """Of all texts, by the first audit's places."""
    ours, theirs = site_of_model(to.rows), site_of_model(report.rows)
    means = {}
    for s in report.statistics:
        site = s.place
        if ours is not None and theirs is not None and ours != theirs:
            if site != theirs:
                continue
            site = ours
        if s.group == "all":
            means[s.test, s.statistic, *site] = Estimate(s.mean, s.ci95, s.n)
    return means
