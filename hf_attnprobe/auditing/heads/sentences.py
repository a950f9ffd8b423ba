"""What the numbers of many heads say, in plain words. Pure."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.auditing.heads.values import (
    AGREES,
    ELSEWHERE,
    MATTERS,
    ON_THE_WAY,
    ByHead,
    HeadKey,
    Heads,
    by_head,
    heads_of,
    intervals_of_means,
    is_head,
    values_by_head,
)
from hf_attnprobe.auditing.verdict import zero_ablation_only
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.statistics.estimates import ONE_COLUMN
from hf_attnprobe.statistics.stopping import difference, stopping_of
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.wording import CLASSES, Words


N_LISTED = 8  # heads named in a sentence
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
    if not sites:
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
