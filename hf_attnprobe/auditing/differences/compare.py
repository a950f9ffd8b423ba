"""The function ``differences``: several audits in, what differs between them out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from hf_attnprobe.auditing.differences.numbers import (
    LESS_CONTROL,
    numbers_of,
    texts_of,
)
from hf_attnprobe.auditing.differences.report import (
    AuditComparison,
    ComparedQuestion,
    ComparedStatistic,
    difference_sentence,
)
from hf_attnprobe.auditing.differences.settings import (
    cautions,
    comparable_tests,
    differing_settings,
    other_meaning,
    short_names,
)
from hf_attnprobe.auditing.report import Report, read_audit
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.differences import Difference, Sides, changes
from hf_attnprobe.statistics.estimates import Estimate, mean_estimate
from hf_attnprobe.statistics.questions import QUESTIONS
from hf_attnprobe.statistics.summary import (
    PREDICTION,
    mean_of_draws,
    one_row_per_text,
    site_of_model,
)
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.rows import read_draws


Place = tuple[str, str, int, int]
"""Test, statistic, layer and head."""
NOT_COMPARED = r"_p_value|@random_\d"
"""Statistics whose differences say nothing: p-values, single random orders."""


def compare_audits(folders: Sequence[str | Path], *, seed: int = 0) -> AuditComparison:
    """Audits' folders side by side, and their differences to the first, with controls.

    Raises:
        AttnProbeError: a folder without an audit, and what :func:`differences` raises.
    """
    reports = [read_audit(folder) for folder in folders]
    controls = [mean_of_draws(read_draws(Path(folder))) for folder in folders]
    return differences(reports, controls=controls, seed=seed)


def differences(
    reports: Sequence[Report],
    *,
    controls: Sequence[pd.DataFrame | None] | None = None,
    seed: int = 0,
) -> AuditComparison:
    """Several audits side by side, and the differences of all to the first.

    Texts with the same id of the same data are pairs. Only tests with the same options
    are compared.

    Args:
        reports: at least two, with their rows.
        controls: rows of each audit's control. With all of them removal is compared
            beyond the controls, as it is graded.
        seed: of the resamples.

    Raises:
        AttnProbeError: fewer than two reports, or reports without rows.
    """
    _check(reports)
    if controls is None:
        controls = [None] * len(reports)
    n_shared = tuple(_n_shared(reports[0], report) for report in reports[1:])
    names = short_names(reports)
    questions = _questions(reports, controls, n_shared, names, seed)
    said = [*cautions(reports, names, n_shared)]
    said += _own_numbers(questions)
    return AuditComparison(
        names=names,
        models=tuple(r.model for r in reports),
        datasets=tuple(str(r.dataset) for r in reports),
        n=tuple(r.n for r in reports),
        n_shared=n_shared,
        answers=tuple(r.answer for r in reports),
        questions=questions,
        statistics=_statistics(reports, n_shared, seed),
        settings=differing_settings(reports),
        cautions=tuple(said),
        seed=seed,
        reports=tuple(reports),
    )


def _check(reports: Sequence[Report]) -> None:
    if len(reports) < 2:
        raise AttnProbeError(
            f"expected two audits or more to compare, got {len(reports)}; give another folder"
        )
    for report in reports:
        if not len(report.rows):
            raise AttnProbeError(
                f"expected audits with their rows, that of {report.model} has none; read "
                "it from its folder with read_audit"
            )


def _own_numbers(questions: Sequence[ComparedQuestion]) -> list[str]:
    """Where what is compared is not what is graded."""
    compared = {q.rule: q.measure for q in questions if any(q.differences)}
    said = []
    ratios = " and ".join(RULES[r].name.lower() for r in compared if RULES[r].is_ratio)
    if ratios:
        said.append(
            f"Of {ratios} the paired difference of the models' own numbers is given. "
            "What is graded is their share of the way from the control to the best, a "
            "ratio of means over texts that no single text has."
        )
    for rule in compared:
        beyond_control = any(measure.beyond_control for measure in RULES[rule].compared)
        if beyond_control and not compared[rule].endswith(LESS_CONTROL):
            said.append(
                f"{RULES[rule].name} is graded beyond a control. Here the models' own numbers "
                "are compared, as not every audit came with its control's rows."
            )
    return said


def _n_shared(first: Report, other: Report) -> int:
    """The texts of both; 0 where the data are others."""
    ours, theirs = (r.provenance.get("data_fingerprint") for r in (first, other))
    if ours is None or ours != theirs:
        return 0
    return len({*first.rows.example_id} & {*other.rows.example_id})


# --- the questions ------------------------------------------------------------------


def _questions(
    reports: Sequence[Report],
    controls: Sequence[pd.DataFrame | None],
    n_shared: Sequence[int],
    names: Sequence[str],
    seed: int,
) -> tuple[ComparedQuestion, ...]:
    """Side by side, with simultaneous intervals over all questions of all audits."""
    audits = [texts_of(r.rows, c) for r, c in zip(reports, controls, strict=True)]
    chosen: dict[str, tuple[str, list[pd.Series | None]]] = {}
    for rule, record in RULES.items():
        for measure in record.compared:
            words, found = numbers_of(measure, audits)
            compared = _kept(rule, found, reports)
            known = _n_known(compared)
            if known > max(1, _n_known(chosen.get(rule, ("", []))[1])):
                chosen[rule] = words, compared
    sides = []
    for number, n in enumerate(n_shared, 1):
        both = [
            rule
            for rule, (_, found) in chosen.items()
            if found[0] is not None and found[number] is not None
        ]
        first, other = (
            pd.DataFrame({rule: chosen[rule][1][k] for rule in both}) for k in (0, number)
        )
        sides.append(Sides(first, other, n > 0))
    found_changes = _by_column(sides, seed)
    asked = {f.rule for report in reports for f in report.findings}
    questions = []
    for rule in (rule for rule in RULES if rule in asked | set(chosen)):
        words, numbers = chosen.get(rule, ("", [None] * len(reports)))
        question = ComparedQuestion(
            rule=rule,
            findings=tuple(tuple(f for f in r.findings if f.rule == rule) for r in reports),
            measure=words,
            means=tuple(None if v is None else mean_estimate(v.to_numpy()) for v in numbers),
            differences=tuple(changed.get(rule) for changed in found_changes),
            sentences=(),
        )
        questions.append(_in_words(question, names))
    return tuple(questions)


def _kept(
    rule: str, found: Sequence[pd.Series | None], reports: Sequence[Report]
) -> list[pd.Series | None]:
    """Without the numbers that mean another thing than the first audit's."""
    kept = list(found)
    for number, report in enumerate(reports[1:], 1):
        asked = QUESTIONS.get(rule)  # accuracy needs no test
        if asked is not None and asked.test not in _comparable(reports[0], report):
            kept[number] = None
    return kept


def _n_known(numbers: Sequence[pd.Series | None]) -> int:
    return sum(number is not None for number in numbers)


def _comparable(first: Report, other: Report) -> list[str]:
    """Tests of both with the same options; none where they explain different things."""
    return [] if other_meaning(first, other) else comparable_tests(first, other)[0]


def _by_column(sides: Sequence[Sides], seed: int) -> list[dict[Any, Difference]]:
    """Of every pair the differences by column, with intervals that hold for all at once."""
    return [
        dict(zip(both.first, changed, strict=True))
        for both, changed in zip(sides, changes(sides, seed=seed), strict=True)
    ]


def _in_words(question: ComparedQuestion, names: Sequence[str]) -> ComparedQuestion:
    said = [difference_sentence(question, k, names) for k in range(1, len(names))]
    return replace(question, sentences=tuple(said))


# --- all statistics -----------------------------------------------------------------


def _statistics(
    reports: Sequence[Report], n_shared: Sequence[int], seed: int
) -> tuple[ComparedStatistic, ...]:
    """Every statistic of the first, with intervals simultaneous over all of them."""
    first = reports[0]
    sides = []
    for report, n in zip(reports[1:], n_shared, strict=True):
        same = _comparable(first, report)
        ours, theirs = (_columns(r.rows, same, to=first) for r in (first, report))
        columns = ours.columns.intersection(theirs.columns).sort_values()
        sides.append(Sides(ours[columns], theirs[columns], n > 0))
    by_place = _by_column(sides, seed)
    means = [_means(report, to=first) for report in reports]
    found = []
    for place in means[0]:
        changed = tuple(of_audit.get(place) for of_audit in by_place)
        if any(changed):
            mean = tuple(of_audit.get(place) for of_audit in means)
            found.append(ComparedStatistic(*place, mean, changed))
    return tuple(found)


def _columns(rows: pd.DataFrame, tests: Sequence[str], *, to: Report) -> pd.DataFrame:
    """Texts by test, statistic, layer and head, at the first audit's place.

    Where the attention as a whole is a head of one model and a group of heads of the
    other, only that is compared.
    """
    compared = rows[rows.test.isin(tests) & (rows.test != PREDICTION)]
    compared = compared[~compared.statistic.str.contains(NOT_COMPARED)]
    ours, theirs = site_of_model(to.rows), site_of_model(rows)
    if ours is not None and theirs is not None and ours != theirs:
        at_place = (compared.layer == theirs[0]) & (compared["head"] == theirs[1])
        compared = compared[at_place].assign(layer=ours[0], head=ours[1])
    wide = one_row_per_text(compared)
    return wide.set_axis(wide.columns.to_flat_index(), axis=1)


def _means(report: Report, *, to: Report) -> dict[Place, Estimate]:
    """Of all texts, by the first audit's places."""
    ours, theirs = site_of_model(to.rows), site_of_model(report.rows)
    means = {}
    for s in report.statistics:
        site = s.layer, s.head
        if ours is not None and theirs is not None and ours != theirs:
            if site != theirs:
                continue
            site = ours
        if s.group == "all":
            means[s.test, s.statistic, *site] = Estimate(s.mean, s.ci95, s.n)
    return means
