"""What single heads do: their numbers with intervals that hold for all at once, and sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.statistics.estimates import ONE_COLUMN, simultaneous_interval
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.stopping import Bounds, Stopping, difference, stopping_of, widened
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.statistics.wording import CLASSES, Words


MATTERS = RULES["head_effect"].yes
AGREES = RULES["head_importance"].yes
ELSEWHERE = RULES["head_uniqueness"].yes
ON_THE_WAY = RULES["head_erasure"].yes

HeadKey = tuple[int, int]
ByHead = Mapping[HeadKey, float]


@dataclass(frozen=True)
class Heads:
    """One number of every head.

    Attributes:
        means: over the texts, by (layer, head).
        intervals: of the means; 95%, simultaneous over all heads that have one.
    """

    means: ByHead
    intervals: Mapping[HeadKey, tuple[float, float]] = field(default_factory=dict)

    def surely(self, threshold: float) -> set[HeadKey]:
        """Heads whose interval lies at the threshold or above; above it, if it is 0."""
        return {
            site
            for site, (low, _) in self.intervals.items()
            if (low > 0 if threshold == 0 else low >= threshold)
        }


def by_head(statistics: Sequence[Statistic], name: str) -> dict[HeadKey, float]:
    """The mean of a statistic over all texts, by (layer, head); no groups of heads."""
    return {
        (s.layer, s.head): s.mean
        for s in statistics
        if s.statistic == name and s.group == "all" and s.n and is_head(s)
    }


def has_heads(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has more than one head."""
    return len({(s.layer, s.head) for s in statistics if is_head(s)}) > 1


def has_several(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has several heads, tested one by one or as groups."""
    groups = any(s.head < 0 and s.n for s in statistics)
    return groups or has_heads(statistics)


def is_head(s: Statistic) -> bool:
    """Whether this is of a single head."""
    return s.layer >= 0 and s.head >= 0


def values_by_head(rows: pd.DataFrame, statistic: str) -> pd.DataFrame:
    """The values of a statistic [texts × heads]; NaN where a text has none.

    Args:
        rows: of an audit; may be empty.

    Returns:
        The index has example ids, the columns (layer, head) without groups of heads.
    """
    if not len(rows):
        return pd.DataFrame()
    wanted = (rows.statistic == statistic) & (rows.layer >= 0) & (rows["head"] >= 0)
    return rows[wanted].pivot_table(index="example_id", columns=["layer", "head"], values="value")


def head_intervals(rows: pd.DataFrame, statistic: str) -> dict[HeadKey, tuple[float, float]]:
    """95% intervals of a statistic's means that hold for all heads at once.

    Heads with a value for fewer than ``MIN_TEXTS`` texts have none.
    """
    stopping = stopping_of(rows)
    bounds = None if stopping is None else stopping.bounds(statistic)
    return intervals_of_means(values_by_head(rows, statistic), bounds, stopping)


def intervals_of_means(
    values: pd.DataFrame, bounds: Bounds | None, stopping: Stopping | None
) -> dict[HeadKey, tuple[float, float]]:
    """As :func:`head_intervals`, of values [texts × heads].

    Args:
        values: as of :func:`values_by_head`.
        bounds: of a value, where it has some.
        stopping: of an audit that stopped early.
    """
    if values.empty:
        return {}
    values = values.loc[:, values.notna().sum() >= MIN_TEXTS]
    n_heads = values.shape[1]
    low, high = widened(
        simultaneous_interval(values.to_numpy(dtype=np.float64)),
        values,
        [bounds] * n_heads,
        stopping,
        together=n_heads if stopping is None else max(n_heads, stopping.n_heads),
    )
    return {
        (int(layer), int(head)): (float(low[k]), float(high[k]))
        for k, (layer, head) in enumerate(values.columns)
    }


def heads_of(statistics: Sequence[Statistic], rows: pd.DataFrame, name: str) -> Heads:
    """The means of a statistic with their intervals, by head."""
    return Heads(by_head(statistics, name), head_intervals(rows, name))


# --- What the numbers of many heads say, in plain words. Pure ------------------------------------

N_LISTED = 8  # heads named in a sentence
MIN_COUNTED = 2  # heads: "1 of 1" counts nothing
MIN_HEADS = 10  # heads from which on a correlation over heads is read


def head_sentences(
    statistics: Sequence[Statistic], rows: pd.DataFrame, words: Words = CLASSES
) -> list[str]:
    """What the tables say, in plain words.

    Args:
        statistics: of an audit; a sentence whose statistic is missing is left out.
        rows: of the same audit; without them no number has an interval.
        words: of the kind of prediction.
    """
    replaced = "their pattern is replaced by uniform attention"
    sentences = (
        _assignment(heads_of(statistics, rows, "uniform_tvd"), replaced, words),
        _assignment(heads_of(statistics, rows, "median_tvd"), "shuffled", words),
        _importance(
            heads_of(statistics, rows, "attention_leave_one_out_tau"),
            by_head(statistics, "gradient_leave_one_out_tau"),
        ),
        _uniqueness(heads_of(statistics, rows, "share_of_largest@0.01"), words),
        _erasure(heads_of(statistics, rows, "way_to_best_tried@attention"), words),
        _failures(statistics, words),
        _removal(statistics, rows, words),
        *screen_sentences(statistics, rows),
    )
    return [sentence for sentence in sentences if sentence]


def _counted(heads: Heads, threshold: float) -> str:
    """How many heads are at a threshold: by their means, and surely.

    "3 of 72 heads (2 surely: simultaneous 95% intervals)"
    """
    n_above = sum(mean >= threshold for mean in heads.means.values())
    sure = "by their means; no intervals"
    if heads.intervals:
        sure = f"{len(heads.surely(threshold))} surely: simultaneous 95% intervals"
        without = len(heads.means) - len(heads.intervals)
        if without:
            sure += f", for which {without} have too few texts"
    return f"{n_above} of {len(heads.means)} heads ({sure})"


def _largest(heads: Heads, digits: str = ".2f") -> tuple[HeadKey, str]:
    """The head with the largest mean, in words with what is known of it.

    "5.9 with 0.25 [0.18, 0.32], interval simultaneous over 72 heads". Heads with too
    few texts for an interval are passed over where others have one.
    """
    known = heads.intervals or heads.means
    site = max(known, key=heads.means.__getitem__)
    named = f"head {site[0]}.{site[1]} with {heads.means[site]:{digits}}"
    if not heads.intervals:
        return site, f"{named}, by its mean alone"
    low, high = heads.intervals[site]
    return site, (
        f"{named} [{low:{digits}}, {high:{digits}}], interval simultaneous over "
        f"{len(heads.intervals)} heads"
    )


def _assignment(heads: Heads, change: str, words: Words) -> str | None:
    """Heads whose pattern matters, the most important first."""
    if len(heads.means) < MIN_COUNTED:
        return None
    ranked = sorted(((v, site) for site, v in heads.means.items()), reverse=True)
    above = [(v, site) for v, site in ranked if v >= MATTERS]
    names = [f"{layer}.{head} ({v:.2f})" for v, (layer, head) in above[:N_LISTED]]
    listed = f": {', '.join(names)}" if names else ""
    if len(above) > N_LISTED:
        listed += " and others"
    return (
        f"Assignment: {_counted(heads, MATTERS)} move the output by {MATTERS} "
        f"{words.unit} or more on average when {change}{listed}; the most is {_largest(heads)[1]}."
    )


def _importance(heads: Heads, baseline: ByHead) -> str | None:
    """Attention against leave-one-out; gradients are the yardstick of all heads."""
    if len(heads.means) < MIN_COUNTED:
        return None
    site, best = _largest(heads)
    reached = baseline.get(site)
    gradients = "" if reached is None else f"gradients reach {reached:.2f}, "
    return (
        f"Importance: {_counted(heads, AGREES)} rank the tokens as leaving them out "
        f"does at τ {AGREES:.2f} or better; the best is {best}; {gradients}an unrelated "
        "ranking 0."
    )


def _uniqueness(heads: Heads, words: Words) -> str | None:
    """How far attention can be moved; of what was found, so at least so far."""
    if len(heads.means) < MIN_COUNTED:
        return None
    return (
        f"Uniqueness: the attention of at least {_counted(heads, ELSEWHERE)} can be "
        f"moved by at least {ELSEWHERE:.0%} of the way to the farthest possible with "
        f"the output within {words.within} (mean over texts; other attention may be farther still)."
    )


def _erasure(heads: Heads, words: Words) -> str | None:
    if len(heads.means) < MIN_COUNTED:
        return None
    return (
        f"Erasure: where some order of erasing a head's weights flips {words.decision}, "
        f"attention's order goes {ON_THE_WAY:.0%} or more of the way from a random "
        f"order to the best one tried in {_counted(heads, ON_THE_WAY)}; the most is "
        f"{_largest(heads, '.0%')[1]}."
    )


def _failures(statistics: Sequence[Statistic], words: Words) -> str | None:
    """How often erasing by attention fails where another order flips the decision."""
    failed = [
        s
        for s in statistics
        if s.statistic == "never_flips@attention" and s.group == "all" and is_head(s)
    ]
    flipping = [s for s in failed if s.n]
    if not flipping:
        return None
    n_pairs = sum(s.n for s in flipping)
    share = sum(s.mean * s.n for s in flipping) / n_pairs
    return (
        f"Erasure: in {len(flipping)} of {len(failed)} heads some order of erasing "
        f"weights flips {words.decision} of some text; of these pairs of text and head "
        f"({n_pairs}) attention's order, the largest weight first, never flips "
        f"{share:.0%}."
    )


def _removal(statistics: Sequence[Statistic], rows: pd.DataFrame, words: Words) -> str | None:
    """Without a head's tokens, beyond what random tokens cost; paired by text."""
    attention, random = (f"comprehensiveness@{by}" for by in ("attention", "random"))
    first, second = by_head(statistics, attention), by_head(statistics, random)
    sites = sorted(first.keys() & second.keys())
    if len(sites) < MIN_COUNTED:
        return None
    means = {site: first[site] - second[site] for site in sites}
    values = values_by_head(rows, attention), values_by_head(rows, random)
    stopping = stopping_of(rows)
    of_one = None if stopping is None else stopping.bounds(attention)
    bounds = difference(of_one, of_one)
    beyond = Heads(means, intervals_of_means(values[0] - values[1], bounds, stopping))
    return (
        f"Removal: without the tokens they attend to most, {_counted(beyond, MATTERS)} "
        f"cost {words.said} {MATTERS} {words.amount} or more beyond what "
        f"random tokens cost{words.aside}; the most is {_largest(beyond, '+.2f')[1]}."
    )


def screen_sentences(statistics: Sequence[Statistic], rows: pd.DataFrame) -> list[str]:
    """How well the first-order screen ranked the heads that were then tested.

    By Spearman's ρ over heads. Both means of a head are over the texts on which it was
    tested, which are not those that chose it. There must be three heads to mention it,
    and ``MIN_HEADS`` to say something.

    Args:
        statistics: used where there are no rows.
        rows: of the audit.
    """
    pairs: dict[str, str] = {}
    for test in tests().values():
        pairs.update(test.estimates)
    lines = []
    for estimate, exact in pairs.items():
        estimated, measured = _means_on_same_texts(statistics, rows, estimate, exact)
        both = sorted(estimated.keys() & measured.keys())
        if len(both) < 3:
            continue
        values = np.array([(estimated[site], measured[site]) for site in both])
        lines.append(f"Screen: {_rank_agreement(values, estimate, exact)}.")
    return lines


def _rank_agreement(values: np.ndarray, estimate: str, exact: str) -> str:
    """Spearman's ρ of two columns, with its interval over rows; or why it has none."""
    question = f"whether {estimate} ranks heads as {exact} does cannot be said"
    n_heads = len(values)
    if n_heads < MIN_HEADS:
        return f"{question} from {n_heads} tested heads (from {MIN_HEADS} on)"
    if (np.ptp(values, axis=0) == 0).any():
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
    statistics: Sequence[Statistic], rows: pd.DataFrame, one: str, other: str
) -> tuple[ByHead, ByHead]:
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
    "uniform_tvd": (
        "its attention is made even",
        "even attention in all heads at once",
    ),
    "zero_tvd": ("its output is zeroed", "zeroing all heads at once"),
}
"""How heads are edited; the first that an audit has is the one that is told."""

MOST_NAMED = 5
Place = tuple[int, int]


def which_heads(report: AuditResult) -> str | None:
    """The answer for one edit; None where no single heads were edited."""
    for name, (edited, all_edited) in EDITED.items():
        means = by_head(report.statistics, name)
        if len(means) > 1:
            single = _single(report, name, means, edited)
            beside = _beside(report, name, all_edited)
            return f"{single}{beside}{_chosen(report, len(means))}"
    return None


def _chosen(report: AuditResult, n_tested: int) -> str:
    """Says that only some heads had this edit, and how they were chosen."""
    n = len(heads_of_model(report))
    if n <= n_tested:
        return ""
    sites = report.provenance.get("sites", {})
    how = ", chosen by a quick estimate of their effect" if sites.get("screen") else ""
    return f" Only {n_tested} of {n} heads were edited in this way{how}."


def heads_of_model(report: AuditResult) -> set[Place]:
    """All heads with any number, those among them that were only screened."""
    return {(s.layer, s.head) for s in report.statistics if min(s.layer, s.head) >= 0}


def tested_heads(report: AuditResult) -> set[Place]:
    """The heads that were tested one by one, and not only screened."""
    tested = {(s.layer, s.head) for s in report.statistics if s.test != "screen"}
    return tested & heads_of_model(report)


def _single(report: AuditResult, name: str, means: Mapping[Place, float], edited: str) -> str:
    rows = report.rows
    intervals = {}
    if len(rows):
        own = rows[(rows.statistic == name) & (rows["head"] >= 0) & (rows.layer >= 0)]
        intervals = head_intervals(own, name)
    if not intervals:
        place = max(means, key=means.__getitem__)
        return (
            f"Which heads matter is not known: no head has the {MIN_TEXTS} texts that an "
            f"interval needs. Head {_head_name(place)} has the largest mean: the output moves by "
            f"{means[place]:.2f} when {edited}."
        )
    sure = sorted(
        (p for p, (low, _) in intervals.items() if low >= MATTERS),
        key=lambda p: -means[p],
    )
    may = sum(high >= MATTERS for _, high in intervals.values()) - len(sure)
    largest = max(intervals, key=means.__getitem__)
    number = markdown.interval(means[largest], intervals[largest], digits=2)
    if sure:
        named = ", ".join(_head_name(p) for p in sure[:MOST_NAMED])
        more = f" and {len(sure) - MOST_NAMED} more" if len(sure) > MOST_NAMED else ""
        which = f"Head {named} matters by itself"
        if len(sure) > 1:
            which = f"Heads {named}{more} matter one by one"
        said = (
            f"{which}: when {edited}, the output surely moves by {MATTERS:.2f} or more; "
            f"head {_head_name(largest)} moves it most, by {number}"
        )
    else:
        said = (
            f"No single head is shown to matter by itself: when {edited}, head "
            f"{_head_name(largest)} moves the output most among heads with an interval, by "
            f"{number}; a head matters from {MATTERS:.2f} on"
        )
    open_ones = f"; {may} {'more ' if sure else ''}may matter" if may else ""
    unknown = len(means) - len(intervals)
    few = f"; {unknown} heads have too few texts for an interval" if unknown else ""
    top = max(means, key=means.__getitem__)
    if top not in intervals:
        few = (
            f"; {_head_name(top)} has a larger mean ({means[top]:.2f}) but too few texts for "
            f"an interval{f', as {unknown - 1} others' if unknown > 1 else ''}"
        )
    return (
        f"{said}{open_ones}{few}. The intervals hold for all {len(intervals)} compared heads at "
        "once (95%)."
    )


def _beside(report: AuditResult, name: str, all_edited: str) -> str:
    """The largest layer, and the model's attention as a whole."""
    found = {
        (s.layer, s.head): s
        for s in report.statistics
        if s.statistic == name and s.group == "all" and s.n
    }
    layers = {p: s for p, s in found.items() if p[0] >= 0 and p[1] == -1}
    said = []
    if layers:
        place = max(layers, key=lambda p: layers[p].mean)
        said.append(
            f"among whole layers, layer {place[0]} moves it most, by {_shown(layers[place])}"
        )
    if (-1, -1) in found:
        said.append(f"{all_edited} moves it by {_shown(found[-1, -1])}")
    if not said:
        return ""
    text = "; ".join(said)
    return f" For comparison: {text}."


def _shown(s: Statistic) -> str:
    return markdown.interval(s.mean, s.ci95, digits=2)


def _head_name(place: Place) -> str:
    return f"{place[0]}.{place[1]}"
