"""Statistics of single heads, with intervals that hold for all at once, and sentences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.statistics.estimates import ONE_COLUMN, simultaneous_interval
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import ALL_TEXTS, BY_ROUNDING, Statistic
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.statistics.wording import CLASSES, Words


if TYPE_CHECKING:
    from hf_attnprobe.auditing.result import AuditResult

MATTERS = RULES["effect"].yes
AGREES = RULES["faithfulness"].partly
ELSEWHERE = 1 - RULES["uniqueness"].partly
ON_THE_WAY = RULES["faithfulness"].partly

Place = tuple[int, int]
"""Layer and head, see :class:`~hf_attnprobe.attention_model.Site`."""
ALL = -1  # as a head: all of its layer; as a layer: all of them
EVERYWHERE: Place = (ALL, ALL)
Intervals = Mapping[Place, tuple[float, float]]


def head_name(place: Place) -> str:
    """A head's name in reports: layer and head, both from 0.

    >>> head_name((5, 3))
    '5.3'
    """
    return f"{place[0]}.{place[1]}"


@dataclass(frozen=True)
class Heads:
    """One statistic of every head.

    Attributes:
        means: over the texts, by (layer, head).
        n: texts of each.
        intervals: of the means; 95%, simultaneous over all heads that have one. Heads with
            fewer than ``MIN_TEXTS`` texts have none.
    """

    means: Mapping[Place, float]
    n: Mapping[Place, int] = field(default_factory=dict)
    intervals: Intervals = field(default_factory=dict)

    @cached_property
    def ranked(self) -> list[Place]:
        """The heads with an interval, or all where none has one, the largest mean first."""
        return sorted(self.intervals or self.means, key=self.means.__getitem__, reverse=True)

    def surely(self, threshold: float) -> list[Place]:
        """Heads whose interval lies at the threshold or above."""
        return [p for p in self.ranked if p in self.intervals and self.intervals[p][0] >= threshold]

    def said(self, place: Place) -> str:
        """A head's mean with its interval, where it has one."""
        return markdown.interval(self.means[place], self.intervals.get(place), digits=2)

    @property
    def n_texts(self) -> str:
        fewest, most = min(self.n.values()), max(self.n.values())
        return f"{most} texts" if fewest == most else f"{fewest} to {most} texts a head"


@dataclass(frozen=True)
class Measure:
    """A statistic of heads that has a map.

    Attributes:
        title: of the map.
        most: what the foremost ``{head}`` does, with its ``{value}``.
        source: paper and section.
        threshold: from where on a head counts, in ``RULES``.
        label: what the number is.
        done: what is done with a head, where it changes the output.
        less: a statistic that is taken off, text by text.
        centre: where a number has two sides, the middle.
    """

    title: str
    most: str
    source: str
    threshold: float
    label: str
    done: str = ""
    less: str = ""
    centre: float | None = None


def _effect(title: str, done: str, source: str) -> Measure:
    """A change of the output when a head is edited."""
    most = f"each {done} alone, head {{head}} moves the output most: {{value}} ({{distance}})"
    return Measure(f"Output change when one head{title}", most, source, MATTERS, "{measured}", done)


def _agreement(other: str, compared: str) -> Measure:
    """A rank correlation of a head's attention."""
    return Measure(
        f"Rank correlation of one head's attention with {other}",
        f"each compared with {compared}, head {{head}} agrees most: mean τ {{value}}, where 0 is "
        "chance and 1 the same order",
        "Jain & Wallace 2019, Section 4.1, for each head",
        AGREES,
        "mean Kendall τ",
        centre=0.0,
    )


MEASURES = {
    "median_tvd": _effect(
        "'s attention is shuffled", "shuffled", "Jain & Wallace 2019, Section 4.2.1, for each head"
    ),
    "uniform_tvd": _effect(
        " attends evenly",
        "set to even attention",
        "Wiegreffe & Pinter 2019, Section 3.2, for each head, without training",
    ),
    "mean_tvd": _effect(
        "'s output is replaced by its mean",
        "replaced by its mean",
        "mean ablation, for each head",
    ),
    "resample_tvd": _effect(
        "'s output is taken from another text",
        "replaced by that of another text",
        "resample ablation, for each head",
    ),
    "zero_tvd": _effect(" is zero-ablated", "zero-ablated", "Michel et al. 2019, for each head"),
    "attention_leave_one_out_tau": _agreement("leaving tokens out", "leave-one-out"),
    "attention_gradient_tau": _agreement("gradients", "gradients"),
    "share_of_largest@0.01": Measure(
        "How far one head's attention can be moved with nearly the same output",
        "the attention of head {head} can be moved farthest: at least {value} of the largest "
        "distance there is, with the output within {within}",
        "Jain & Wallace 2019, Section 4.2.2, for each head",
        ELSEWHERE,
        "share of the largest distance",
    ),
    "way_to_best_tried@attention": Measure(
        "Erasing one head's weights, the largest first",
        "where some order of erasing its weights flips {decision}, attention's order scores highest "
        "at head {head}: {value} of what the best order tried saves against a random one",
        "Serrano & Smith 2019, Section 5, for each head",
        ON_THE_WAY,
        "score between a random order (0) and the best one tried (1)",
        centre=0.0,
    ),
    "comprehensiveness@attention": Measure(
        "What is lost without the tokens that one head attends to most",
        "without the tokens that it attends to most, head {head} costs {said} most beyond what "
        "random tokens cost: {value} {amount}{aside}",
        "DeYoung et al. 2020, comprehensiveness, for each head",
        MATTERS,
        "{lost}, beyond random tokens",
        less="comprehensiveness@random",
        centre=0.0,
    ),
}
"""By statistic, in the order of the maps."""


def at_places(statistics: Sequence[Statistic], name: str) -> dict[Place, Statistic]:
    """A statistic over all texts by (layer, head), including groups of heads."""
    return {
        (s.layer, s.head): s
        for s in statistics
        if s.statistic == name and s.group == ALL_TEXTS and s.n
    }


def by_head(statistics: Sequence[Statistic], name: str) -> dict[Place, float]:
    """Mean of a statistic over all texts by (layer, head), without groups."""
    return {p: s.mean for p, s in at_places(statistics, name).items() if min(p) >= 0}


def has_heads(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has more than one head."""
    return len({(s.layer, s.head) for s in statistics if min(s.layer, s.head) >= 0}) > 1


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


def head_intervals(rows: Rows | pd.DataFrame, statistic: str, less: str = "") -> Intervals:
    """95% intervals of a statistic's means that hold for all heads at once.

    Heads with a value for fewer than ``MIN_TEXTS`` texts have none.

    Args:
        rows: of an audit; may be empty.
        statistic: its name.
        less: another one, which is taken off text by text.
    """
    values = values_by_head(rows, statistic)
    if less:
        values = values - values_by_head(rows, less)
    if values.empty:
        return {}
    values = values.loc[:, values.notna().sum() >= MIN_TEXTS]
    ends = simultaneous_interval(values.to_numpy(dtype=np.float64))
    return {
        (int(layer), int(head)): (low, high)
        for (layer, head), (low, high) in zip(values.columns, ends.T.tolist(), strict=True)
    }


def heads_of(
    statistics: Sequence[Statistic], rows: Rows | pd.DataFrame, name: str, less: str = ""
) -> Heads:
    """The means of a statistic with their intervals, by head; of a difference with ``less``."""
    own = {p: s for p, s in at_places(statistics, name).items() if min(p) >= 0}
    means = {p: s.mean for p, s in own.items()}
    if less:
        other = by_head(statistics, less)
        means = {p: mean - other[p] for p, mean in means.items() if p in other}
    intervals = head_intervals(rows, name, less) if has_several(statistics) else {}
    return Heads(means, {p: own[p].n for p in means}, intervals)


# --- What the numbers of many heads say, in plain words. Pure ------------------------------------

MIN_HEADS = 10  # heads from which on a correlation over heads is read


def head_sentences(
    statistics: Sequence[Statistic], rows: Rows | pd.DataFrame, words: Words = CLASSES
) -> list[str]:
    """Sentences beside the maps: where erasing by attention fails, and how good the screen was.

    Args:
        statistics: of an audit.
        rows: of the same audit; may be empty.
        words: of the kind of prediction.
    """
    failed = [
        s
        for s in statistics
        if s.statistic == "never_flips@attention"
        and s.group == ALL_TEXTS
        and min(s.layer, s.head) >= 0
    ]
    screened = list(screen_sentences(statistics, rows))
    n_pairs = sum(s.n for s in failed)
    if not n_pairs:
        return screened
    share = sum(s.mean * s.n for s in failed if s.n) / n_pairs
    said = (
        f"Erasure: in {sum(s.n > 0 for s in failed)} of {len(failed)} heads some order of erasing "
        f"weights flips {words.decision} of some text; of these pairs of text and head "
        f"({n_pairs}) attention's order, the largest weight first, never flips {share:.0%}."
    )
    return [said, *screened]


def screen_sentences(statistics: Sequence[Statistic], rows: Rows | pd.DataFrame) -> Iterator[str]:
    """How well the first-order screen ranked the heads that were then tested.

    By Spearman's ρ over heads. Both means of a head are over the texts on which it was
    tested, which are not those that chose it. There must be three heads to mention it,
    and ``MIN_HEADS`` to say something.

    Args:
        statistics: used where there are no rows.
        rows: of the audit.
    """
    from hf_attnprobe.faithfulness.registry import tests  # figures are drawn without torch

    pairs = {k: v for test in tests().values() for k, v in test.estimates.items()}
    for estimate, exact in pairs.items():
        estimated, measured = _means_on_same_texts(statistics, rows, estimate, exact)
        both = sorted(estimated.keys() & measured.keys())
        if len(both) >= 3:
            values = np.array([(estimated[site], measured[site]) for site in both])
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
    statistics: Sequence[Statistic], rows: Rows | pd.DataFrame, one: str, other: str
) -> tuple[Mapping[Place, float], Mapping[Place, float]]:
    """Two statistics by head, both over the texts that have both."""
    first, second = values_by_head(rows, one), values_by_head(rows, other)
    if first.empty or second.empty:
        return by_head(statistics, one), by_head(statistics, other)
    first, second = first.align(second, join="inner")
    have_both = first.notna() & second.notna()
    means = [values.where(have_both).mean().dropna() for values in (first, second)]
    return means[0].to_dict(), means[1].to_dict()


# --- Which heads matter, in one or two sentences with number and interval ------------------------

EDITED = {
    "median_tvd": ("its attention is shuffled", "shuffling all heads at once"),
    "uniform_tvd": ("its attention is made even", "even attention in all heads at once"),
    "zero_tvd": ("its output is zeroed", "zeroing all heads at once"),
}
"""How heads are edited; the first that an audit has is the one that is told."""

MOST_NAMED = 5


def which_heads(report: "AuditResult") -> str | None:
    """Which heads matter by one edit; None if no single heads were edited."""
    for name, (edited, all_edited) in EDITED.items():
        found = heads_of(report.statistics, report.rows, name)
        if len(found.means) > 1:
            asides = [_beside(report, name, all_edited), _untested(report, len(found.means))]
            return " ".join(filter(None, [_answer(found, edited), *asides]))
    return None


def heads_of_model(report: "AuditResult") -> set[Place]:
    """All heads with any statistic, including those only screened."""
    return {(s.layer, s.head) for s in report.statistics if min(s.layer, s.head) >= 0}


def tested_heads(report: "AuditResult") -> set[Place]:
    """Heads tested one by one, not only screened."""
    tested = {(s.layer, s.head) for s in report.statistics if s.test != "screen"}
    return tested & heads_of_model(report)


def _untested(report: "AuditResult", n_tested: int) -> str:
    """States that only some heads had this edit, and how they were chosen."""
    n = len(heads_of_model(report))
    if n <= n_tested:
        return ""
    is_screened = report.provenance.get("sites", {}).get("screen")
    how = ", chosen by a quick estimate of their effect" if is_screened else ""
    return f"Only {n_tested} of {n} heads were edited in this way{how}."


def _answer(heads: Heads, edited: str) -> str:
    """States which heads surely matter, how many may, and which moves the output most."""
    means, largest = heads.means, heads.ranked[0]
    if not heads.intervals:
        return (
            f"Which heads matter is not known: no head has the {MIN_TEXTS} texts that an "
            f"interval needs. Head {head_name(largest)} has the largest mean: the output moves by "
            f"{means[largest]:.2f} when {edited}."
        )
    sure = heads.surely(MATTERS)
    if sure:
        named = ", ".join(map(head_name, sure[:MOST_NAMED]))
        more = f" and {len(sure) - MOST_NAMED} more" if len(sure) > MOST_NAMED else ""
        one_by_one = f"Heads {named}{more} matter one by one"
        said = (
            f"{one_by_one if len(sure) > 1 else f'Head {named} matters by itself'}: when {edited}, "
            f"the output surely moves by {MATTERS:.2f} or more; head {head_name(largest)} moves "
            f"it most, by {heads.said(largest)}"
        )
    else:
        said = (
            f"No single head is shown to matter by itself: when {edited}, head "
            f"{head_name(largest)} moves the output most among heads with an interval, by "
            f"{heads.said(largest)}; a head matters from {MATTERS:.2f} on"
        )
    may = sum(high >= MATTERS for _, high in heads.intervals.values()) - len(sure)
    if may:
        said += f"; {may} {'more ' if sure else ''}may matter"
    unknown = sorted(means.keys() - heads.intervals.keys(), key=means.__getitem__)
    if unknown:
        n, top = len(unknown), unknown[-1]
        said += f"; {n} {'heads have' if n > 1 else 'head has'} too few texts for an interval"
        if means[top] > means[largest]:
            said += f", {head_name(top)} among them with a larger mean ({means[top]:.2f})"
    return (
        f"{said}. The intervals hold for all {len(heads.intervals)} compared heads at once (95%)."
    )


def _beside(report: "AuditResult", name: str, all_edited: str) -> str:
    """States the effect of the strongest layer and of all attention."""
    found = at_places(report.statistics, name)
    layers = {p: s for p, s in found.items() if p[0] >= 0 and p[1] == ALL}
    said = []
    if layers:
        (layer, _), s = max(layers.items(), key=lambda item: item[1].mean)
        most = markdown.interval(s.mean, s.ci95, digits=2)
        said.append(f"among whole layers, layer {layer} moves it most, by {most}")
    if EVERYWHERE in found:
        whole = found[EVERYWHERE]
        said.append(
            f"{all_edited} moves it by {markdown.interval(whole.mean, whole.ci95, digits=2)}"
        )
    return f"For comparison: {'; '.join(said)}." if said else ""
