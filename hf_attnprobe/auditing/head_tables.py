"""A model with many heads as layer × head tables, and what they say.

Pure: statistics and rows in, lines out. Whoever reads a table looks for its largest
number, so every interval here holds for all heads at once; see
:mod:`hf_attnprobe.statistics.simultaneous`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.auditing.verdict import zero_ablation_only
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.statistics.shares import share_interval
from hf_attnprobe.statistics.simultaneous import ONE_COLUMN, simultaneous_interval
from hf_attnprobe.statistics.stopped import (
    Bounds,
    Stopping,
    difference,
    stopping_of,
    widened,
)
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import MIN_TEXTS, RULES
from hf_attnprobe.statistics.wording import CLASSES, Words


MATTERS = RULES["head_effect"].yes
AGREES = RULES["head_importance"].yes
ELSEWHERE = RULES["head_uniqueness"].yes
ON_THE_WAY = RULES["head_erasure"].yes
N_LISTED = 8  # heads named in a sentence
MIN_HEADS = 10  # heads from which on a correlation over heads is read
MARKED = {
    "median_tvd": MATTERS,
    "uniform_tvd": MATTERS,
    "zero_tvd": MATTERS,
    "mean_tvd": MATTERS,
    "resample_tvd": MATTERS,
    "share_of_largest@0.01": ELSEWHERE,
    "way_to_best_tried@attention": 0.0,
    "attention_leave_one_out_tau": 0.0,
    "attention_gradient_tau": 0.0,
    "attention_times_gradient_tau": 0.0,
    "effective_attention_tau": 0.0,
    "norm_based_tau": 0.0,
}
"""By statistic, from where on a head is marked in its table."""

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
        if s.statistic == name and s.group == "all" and s.n and _is_head(s)
    }


def has_heads(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has more than one head."""
    return len({(s.layer, s.head) for s in statistics if _is_head(s)}) > 1


def has_several(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has several heads, tested one by one or as groups."""
    groups = any(s.head < 0 and s.n for s in statistics)
    return groups or has_heads(statistics)


def _is_head(s: Statistic) -> bool:
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
    return rows[wanted].pivot_table(
        index="example_id", columns=["layer", "head"], values="value"
    )


def head_intervals(
    rows: pd.DataFrame, statistic: str
) -> dict[HeadKey, tuple[float, float]]:
    """95% intervals of a statistic's means that hold for all heads at once.

    Heads with a value for fewer than ``MIN_TEXTS`` texts have none.
    """
    stopping = stopping_of(rows)
    bounds = None if stopping is None else stopping.bounds(statistic)
    return _intervals(values_by_head(rows, statistic), bounds, stopping)


def _intervals(
    values: pd.DataFrame, bounds: Bounds | None, stopping: Stopping | None
) -> dict[HeadKey, tuple[float, float]]:
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


def _heads(statistics: Sequence[Statistic], rows: pd.DataFrame, name: str) -> Heads:
    return Heads(by_head(statistics, name), head_intervals(rows, name))


# --- tables -------------------------------------------------------------------------


def head_tables(
    statistics: Sequence[Statistic], rows: pd.DataFrame, words: Words = CLASSES
) -> list[str]:
    """Markdown tables, layers down and heads across; a dash where a head was not tested.

    There is one for each statistic that its test has a title for. A test without titles
    has one for each of its statistics.

    Args:
        statistics: of an audit.
        rows: of the same audit; without them no head is marked.
        words: of the kind of prediction.
    """
    lines = []
    marked = rows[rows.statistic.isin(list(MARKED))] if len(rows) else rows
    for name, title in _titles(statistics).items():
        values = by_head(statistics, name)
        if values:
            heads = Heads(values)
            if name in MARKED:
                heads = Heads(values, head_intervals(marked, name))
            sure = heads.surely(MARKED.get(name, 0.0))
            caption = f"{_texts(statistics, name)}{_mark(name, heads)}."
            table = [caption, "", *_head_table(values, sure)]
            lines += markdown.section(f"{name}: {words.fill(title)}", table, level=3)
    return lines + layer_table(statistics)


def _titles(statistics: Sequence[Statistic]) -> dict[str, str]:
    """The statistics to print, with their titles, in the order of the tests."""
    known = tests()
    unknown = {s.test for s in statistics} - known.keys()  # no longer installed
    titles: dict[str, str] = {}
    for test in (*known, *sorted(unknown)):
        of_heads = known[test].head_titles if test in known else {}
        of_layers = known[test].layer_titles if test in known else {}
        names = {s.statistic: None for s in statistics if s.test == test}
        titled = {name: title for name, title in of_heads.items() if name in names}
        titles |= titled
        for name in names:
            if not titled and name not in of_layers:
                titles[name] = name.replace("_", " ")
    return titles


def _texts(statistics: Sequence[Statistic], name: str) -> str:
    """How many texts the means of the heads are over."""
    sizes = {
        s.n
        for s in statistics
        if s.statistic == name and s.group == "all" and s.n and _is_head(s)
    }
    if len(sizes) == 1:
        return f"{sizes.pop()} texts"
    return f"{min(sizes)} to {max(sizes)} texts a head"


def _mark(name: str, heads: Heads) -> str:
    """What the ``*`` in a table means; nothing where no head could have one."""
    if not heads.intervals:
        return ""
    threshold = MARKED[name]
    above = f"{threshold:.2f} or more" if threshold else "above 0"
    return (
        f"; * = surely {above}: the 95% interval, simultaneous over "
        f"{len(heads.intervals)} heads, lies there"
    )


def _head_table(values: ByHead, sure: set[HeadKey]) -> list[str]:
    layers, heads = zip(*values, strict=True)
    numbers = range(max(heads) + 1)
    rows = []
    for layer in sorted(set(layers)):
        cells = [
            markdown.number(values.get((layer, h)), digits=2)
            + ("*" if (layer, h) in sure else "")
            for h in numbers
        ]
        rows.append([layer, *cells])
    return markdown.table(["layer", *(f"head {h}" for h in numbers)], rows)


def layer_table(statistics: Sequence[Statistic]) -> list[str]:
    """A Markdown table of explanations of whole layers, layers down."""
    columns = {}
    layers: set[int] = set()
    for test in tests().values():
        for name, title in test.layer_titles.items():
            values = _by_layer(statistics, name)
            if values:
                columns[title] = values
                layers.update(values)
    rows = []
    for layer in sorted(layers):
        cells = [markdown.number(v.get(layer), digits=2) for v in columns.values()]
        rows.append([layer, *cells])
    title = "rank correlation of a layer's explanations with leave-one-out"
    table = markdown.table(["layer", *columns], rows) if rows else []
    return markdown.section(title, table, level=3)


def _by_layer(statistics: Sequence[Statistic], name: str) -> dict[int, float]:
    """The mean of a statistic of whole layers over all texts."""
    return {
        s.layer: s.mean
        for s in statistics
        if s.statistic == name
        and s.group == "all"
        and s.n
        and s.layer >= 0
        and s.head < 0
    }


def prune_table(curve: PruneCurve, words: Words = CLASSES) -> list[str]:
    """A Markdown table of accuracy by the number of heads removed.

    Where a text has several labels, accuracy is a mean of shares and has no interval of
    a share of texts.
    """
    agreement = [_share(share, curve.n_texts) for share in curve.agreement]
    accuracy = [_share(share, curve.n_labelled) for share in curve.accuracy]
    share = "accuracy"
    if words.has_parts:
        share += words.aside
        accuracy = [markdown.number(mean) for mean in curve.accuracy]
    rows = zip(curve.n_removed, agreement, accuracy, strict=True)
    titles = ["heads removed", "predictions kept", share]
    return markdown.table(titles, rows)


def prune_title(curve: PruneCurve) -> str:
    """What the table of the prune curve is of."""
    title = "heads zero-ablated together, the least important (zero_tvd) first"
    if curve.crossed:
        title += (
            f"; {curve.n_texts} texts, crossed: each half's order comes from the other "
            "half"
        )
    return title


def _share(share: float, n_texts: int) -> str:
    """A share of texts with its interval; without, if no text counts."""
    if not n_texts:
        return markdown.number(share)
    hits = np.array(round(share * n_texts))
    low, high = share_interval(hits, np.array(n_texts)).tolist()
    return markdown.interval(share, (low, high))


# --- sentences ----------------------------------------------------------------------


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
        _assignment(_heads(statistics, rows, "uniform_tvd"), replaced, words),
        _assignment(_heads(statistics, rows, "median_tvd"), "shuffled", words),
        _importance(
            _heads(statistics, rows, "attention_leave_one_out_tau"),
            by_head(statistics, "gradient_leave_one_out_tau"),
        ),
        _uniqueness(_heads(statistics, rows, "share_of_largest@0.01"), words),
        _erasure(_heads(statistics, rows, "way_to_best_tried@attention"), words),
        _failures(statistics, words),
        _removal(statistics, rows, words),
        zero_ablation_only(statistics),
        *screen_sentences(statistics, rows),
    )
    return [sentence for sentence in sentences if sentence]


def _counted(heads: Heads, threshold: float) -> str:
    """How many heads are at a threshold: by their means, and surely.

    "3 of 72 heads (2 surely: simultaneous 95% intervals)"
    """
    n_above = sum(mean >= threshold for mean in heads.means.values())
    sure = "by their means alone"
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
    if not heads.means:
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
    if not heads.means:
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
    if not heads.means:
        return None
    return (
        f"Uniqueness: the attention of at least {_counted(heads, ELSEWHERE)} can be "
        f"moved by at least {ELSEWHERE:.0%} of the way to the farthest possible with "
        f"the output within {words.within} (mean over texts; other attention may be farther still)."
    )


def _erasure(heads: Heads, words: Words) -> str | None:
    if not heads.means:
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
        if s.statistic == "never_flips@attention" and s.group == "all" and _is_head(s)
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


def _removal(
    statistics: Sequence[Statistic], rows: pd.DataFrame, words: Words
) -> str | None:
    """Without a head's tokens, beyond what random tokens cost; paired by text."""
    attention, random = (f"comprehensiveness@{by}" for by in ("attention", "random"))
    first, second = by_head(statistics, attention), by_head(statistics, random)
    sites = sorted(first.keys() & second.keys())
    if not sites:
        return None
    means = {site: first[site] - second[site] for site in sites}
    values = values_by_head(rows, attention), values_by_head(rows, random)
    stopping = stopping_of(rows)
    of_one = None if stopping is None else stopping.bounds(attention)
    bounds = difference(of_one, of_one)
    beyond = Heads(means, _intervals(values[0] - values[1], bounds, stopping))
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
