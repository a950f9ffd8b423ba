"""Which heads count, in sentences, and what else is said of many heads. Pure: rows in."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.statistics.estimates import ONE_COLUMN, Estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS, Rule
from hf_attnprobe.statistics.heads import Judged, Place, simultaneous
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import ALL_TEXTS, BY_ROUNDING, Statistic


if TYPE_CHECKING:
    from hf_attnprobe.audit_reports.result import AuditResult

EDITS = {
    "median_tvd": "shuffled",
    "uniform_tvd": "made even",
    "zero_tvd": "zeroed",
    "mean_tvd": "averaged",
    "resample_tvd": "taken from another text",
}
"""What is done to a head, by the statistic that says how far it moves the output as it is."""


def head_name(place: Place) -> str:
    """Returns a head's name in reports: layer and head, both from 0.

    >>> head_name((5, 3))
    '5.3'
    """
    return f"{place[0]}.{place[1]}"


def at_places(
    statistics: Sequence[Statistic], name: str
) -> dict[Place, Statistic]:
    """A statistic over all texts by (layer, head), including groups of heads."""
    return {
        (s.layer, s.head): s
        for s in statistics
        if s.statistic == name and s.group == ALL_TEXTS and s.n
    }


def by_head(statistics: Sequence[Statistic], name: str) -> dict[Place, float]:
    """Mean of a statistic over all texts by (layer, head), without groups."""
    return {
        p: s.mean for p, s in at_places(statistics, name).items() if min(p) >= 0
    }


def has_heads(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has more than one head."""
    return (
        len(
            {(s.layer, s.head) for s in statistics if min(s.layer, s.head) >= 0}
        )
        > 1
    )


def has_several(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has several heads, tested one by one or as groups."""
    return any(s.head < 0 and s.n for s in statistics) or has_heads(statistics)


def values_by_head(rows: Rows | pd.DataFrame, statistic: str) -> pd.DataFrame:
    """The values of a statistic [texts × heads]; NaN where a text has none.

    Args:
        rows: of an audit; may be empty.

    Returns:
        The index has example ids, the columns (layer, head) without groups of heads.
    """
    return Rows.of(rows).of_heads(statistic)


# --- how good the screen was -----------------------------------------------------------------------

MIN_HEADS = 10  # heads from which on a correlation over heads is read


def screen_sentences(
    statistics: Sequence[Statistic], rows: Rows | pd.DataFrame
) -> Iterator[str]:
    """How well the first-order screen ranked the heads that were then tested.

    By Spearman's ρ over heads. Both means of a head are over the texts on which it was
    tested, which are not those that chose it. There must be three heads to mention it,
    and ``MIN_HEADS`` to say something.

    Args:
        statistics: used where there are no rows.
        rows: of the audit.
    """
    from hf_attnprobe.faithfulness.registry import (
        tests,
    )  # figures are drawn without torch

    pairs = {
        k: v for test in tests().values() for k, v in test.estimates.items()
    }
    for estimate, exact in pairs.items():
        estimated, measured = _means_on_same_texts(
            statistics, rows, estimate, exact
        )
        both = sorted(estimated.keys() & measured.keys())
        if len(both) >= 3:
            values = np.array(
                [(estimated[site], measured[site]) for site in both]
            )
            yield f"Screen: {_rank_agreement(values, estimate, exact)}."


def _rank_agreement(values: np.ndarray, estimate: str, exact: str) -> str:
    """Spearman's ρ of two columns, with its interval over rows or the reason for its absence."""
    question = f"whether {estimate} ranks heads as {exact} does cannot be said"
    n_heads = len(values)
    if n_heads < MIN_HEADS:
        return f"{question} from {n_heads} tested heads (from {MIN_HEADS} on)"
    if (np.ptp(values, axis=0) <= BY_ROUNDING).any():
        return f"{question}: they do not differ over the {n_heads} tested heads"
    rho = float(pd.DataFrame(values).corr(method="spearman").iloc[0, 1])
    # Fisher's z of a rank correlation (Bonett & Wright 2000).
    half = ONE_COLUMN * np.sqrt((1 + rho**2 / 2) / (n_heads - 3))
    z = np.arctanh(np.clip(rho, -1 + 1e-9, 1 - 1e-9))
    low, high = float(np.tanh(z - half)), float(np.tanh(z + half))
    found = markdown.interval(rho, (low, high), digits=2)
    if low <= 0 <= high:
        return f"{question} from {n_heads} tested heads: Spearman ρ {found}"
    return (
        f"{estimate} ranked {n_heads} tested heads as {exact} did, on the same texts, "
        f"with Spearman ρ {found}"
    )


def _means_on_same_texts(
    statistics: Sequence[Statistic],
    rows: Rows | pd.DataFrame,
    one: str,
    other: str,
) -> tuple[Mapping[Place, float], Mapping[Place, float]]:
    """Two statistics by head, both over the texts that have both."""
    first, second = values_by_head(rows, one), values_by_head(rows, other)
    if first.empty or second.empty:
        return by_head(statistics, one), by_head(statistics, other)
    first, second = first.align(second, join="inner")
    have_both = first.notna() & second.notna()
    means = [
        values.where(have_both).mean().dropna() for values in (first, second)
    ]
    return means[0].to_dict(), means[1].to_dict()


def heads_of_model(report: "AuditResult") -> set[Place]:
    """All heads with any statistic, including those only screened."""
    return {
        (s.layer, s.head)
        for s in report.statistics
        if min(s.layer, s.head) >= 0
    }


def tested_heads(report: "AuditResult") -> set[Place]:
    """Heads tested one by one, not only screened."""
    tested = {
        (s.layer, s.head) for s in report.statistics if s.test != "screen"
    }
    return tested & heads_of_model(report)


# --- which heads count ------------------------------------------------------------------------------

MOST_NAMED = 5


def which_heads(report: "AuditResult") -> str:
    """Returns which heads move the output, and which of these are faithful; "" without heads."""
    heads = [each for each in report.judged if each.is_head]
    if len(heads) < 2:
        return _foremost_edit(report)
    effect, faithfulness = report.rules["effect"], report.rules["faithfulness"]
    moving = [each for each in heads if is_surely(each.effect, effect)]
    said = _moving(heads, len(moving), effect)
    if moving:
        said += f"; {_faithful(heads, faithfulness)}"
    return f"{said}.{_untested(report, len(heads))}"


def _moving(heads: Sequence[Judged], n_sure: int, rule: Rule) -> str:
    """Returns how many heads surely move the output, and which moves it most where none does."""
    measured = [each for each in heads if each.effect.n]
    if not measured:
        return "how far single heads move the output was not measured (test permutation)"
    moves = f"the output surely by {rule.yes:.2f} or more when shuffled alone"
    if n_sure:
        verb = "moves" if n_sure == 1 else "move"
        return f"{n_sure} of {len(measured)} heads {verb} {moves}"
    most = max(measured, key=lambda each: each.effect.value)
    number = markdown.interval(most.effect.value, most.effect.ci95, digits=2)
    foremost = f"head {head_name(most.place)} moves it most, by {number}"
    if most.effect.ci95 is None:
        return f"with fewer than {MIN_TEXTS} texts no head surely moves the output; {foremost}"
    return f"none of {len(measured)} heads moves {moves}; {foremost}"


def _faithful(heads: Sequence[Judged], rule: Rule) -> str:
    """Returns how many of the heads that move the output are surely faithful, and which."""
    if not any(each.faithfulness.n for each in heads):
        return "their faithfulness was not measured (test scale)"
    named = sorted(
        (h for h in heads if h.is_named), key=lambda h: -h.faithfulness.value
    )
    if not named:
        return f"none of these is surely faithful (F {rule.partly:.2f} or more)"
    told = [
        f"{head_name(h.place)} (F {h.faithfulness.value:.2f})"
        for h in named[:MOST_NAMED]
    ]
    more = (
        f" and {len(named) - MOST_NAMED} more"
        if len(named) > MOST_NAMED
        else ""
    )
    verb = "is" if len(named) == 1 else "are"
    count = f"{len(named)} of these {verb} surely faithful (F {rule.partly:.2f} or more)"
    return f"{count}: {', '.join(told)}{more}"


def _foremost_edit(report: "AuditResult") -> str:
    """Returns which head moves the output most by another edit, where none was shuffled."""
    for name, done in EDITS.items():
        means = by_head(report.statistics, name)
        if len(means) > 1:
            most = max(means, key=means.__getitem__)
            ends = simultaneous(values_by_head(report.rows, name)).get(most)
            number = markdown.interval(means[most], ends, digits=2)
            said = f"of {len(means)} heads {done} one by one, {head_name(most)} moves the output most"
            return f"{said}, by {number}.{_untested(report, len(means))}"
    return ""


def is_surely(estimate: Estimate, rule: Rule) -> bool:
    """Returns whether the whole interval reaches the lowest threshold."""
    return estimate.ci95 is not None and estimate.ci95[0] >= rule.partly


def _untested(report: "AuditResult", n_tested: int) -> str:
    """Returns that only some heads were tested, and how they were chosen."""
    n = len(heads_of_model(report))
    if n <= n_tested:
        return ""
    is_screened = report.provenance.get("sites", {}).get("screen")
    how = ", chosen by a quick estimate of their effect" if is_screened else ""
    return f" Only {n_tested} of {n} heads were tested one by one{how}."
