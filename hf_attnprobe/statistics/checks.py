"""Checks rows for values that the mathematics forbids, text by text.

Pure: rows in, sentences out. An audit without a mistake gives none.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from hf_attnprobe.core.readings import Readings, is_declared_share
from hf_attnprobe.statistics.rows import Rows, Texts


TOLERANCE = 1e-5
"""What rounding may do to numbers of the size of 1; models may run in float32."""


class Order(NamedTuple):
    """One statistic of a test is never larger than another of the same text.

    Where both have keys, only equal ones belong together.
    """

    test: str
    smaller: str
    larger: str
    why: str


class Range(NamedTuple):
    """The values that a statistic of a test can have."""

    test: str
    statistic: str
    low: float
    high: float
    why: str


ORDERS = (
    Order(
        "erasure",
        "minimal_fraction",
        "fraction_to_flip",
        "no ranking needs fewer tokens than the smallest set",
    ),
    Order(
        "permutation",
        "median_tvd",
        "max_tvd",
        "no shuffle moves the output farther than the worst of all",
    ),
    Order(
        "adversarial",
        "epsilon_max_jsd",
        "epsilon_max_jsd_upper",
        "what was found is no farther than its upper bound",
    ),
    Order(
        "adversarial",
        "epsilon_max_jsd",
        "largest_jsd",
        "no attention is farther than the farthest of all",
    ),
    Order(
        "adversarial",
        "epsilon_max_jsd_upper",
        "largest_jsd",
        "no attention is farther than the farthest of all",
    ),
)
SHARE = "it is a share"
WITHIN_ONE = {
    "erasure": ("fraction_to_lose_lead", "probability_mass_removed"),
    "permutation": (
        "max_attention",
        "special_attention",
        "median_tvd",
        "standard_tvd",
        "largest_standard_tvd",
        "max_tvd",
    ),
}
"""From 0 to 1 too, besides what its reading declares a share."""
CHANGES = ("median_tvd", "max_tvd", "standard_tvd", "largest_standard_tvd")
INFINITY = float("inf")
RANGES = (
    *(Range(test, name, 0.0, 1.0, SHARE) for test, names in WITHIN_ONE.items() for name in names),
    Range(
        "erasure",
        "way_to_best",
        -INFINITY,
        1.0,
        "no ranking gets farther than to the smallest set",
    ),
    Range(
        "erasure",
        "way_to_best_tried",
        -INFINITY,
        1.0,
        "no ranking gets farther than to the best of those tried",
    ),
    Range(
        "erasure",
        "regret",
        0.0,
        INFINITY,
        "no ranking needs fewer tokens than the smallest set",
    ),
)
SAME_TEXTS = (
    "fraction_to_flip",
    "never_flips",
    "probability_mass_removed",
    "regret",
)
"""Statistics of erasure that all rankings have on the same texts."""


def contradictions(
    rows: Rows | pd.DataFrame, readings: Readings, *, of_number: bool = False
) -> list[str]:
    """One sentence for each impossible value in the rows of an audit; empty if all is well.

    Args:
        rows: of an audit, or their long form.
        readings: of the tests; what one declares a share is checked to be one, since the
            kind of its interval follows from it.
        of_number: whether the model predicts a number, whose changes have no limit.
    """
    ranges = [rule for rule in RANGES if not (of_number and rule.statistic in CHANGES)]
    declared = [(test, name) for test in readings for name in readings[test]]
    ranges += [
        Range(*family, 0.0, 1.0, SHARE)
        for family in declared
        if is_declared_share(*family, readings)
    ]
    found: list[str] = []
    rows = Rows.of(rows)
    for test, layer, head in sorted({(c[0], *c[2:]) for c in rows.columns}):
        own = rows.select(lambda *c, at=(test, layer, head): (c[0], *c[2:]) == at)
        texts = Texts.at(own, (layer, head))
        broken = (
            *_orders(test, texts),
            *_ranges(test, texts, ranges),
            *_lacking(test, texts),
        )
        found += [
            f"{test}, layer {layer}, head {head}, text {text}: {sentence}"
            for text, sentence in broken
        ]
    return found


Broken = Iterator[tuple[int, str]]
"""Ids of texts, and what is wrong with each."""


def _orders(test: str, texts: Texts) -> Broken:
    for rule in ORDERS:
        if rule.test != test:
            continue
        for smaller, larger in _pairs(rule, texts):
            low, high = texts.values(smaller), texts.values(larger)
            for k in np.flatnonzero(low > high + TOLERANCE):
                said = f"{smaller} is {low[k]:.6g} and {larger} {high[k]:.6g}, but {rule.why}"
                yield texts.index[k], said


def _pairs(rule: Order, texts: Texts) -> Iterator[tuple[str, str]]:
    """The names of both sides, with all keys that belong together."""
    for smaller in _of_family(rule.smaller, texts):
        key = smaller.partition("@")[2]
        for larger in _of_family(rule.larger, texts):
            other_key = larger.partition("@")[2]
            if not key or not other_key or key == other_key:
                yield smaller, larger


def _ranges(test: str, texts: Texts, ranges: Iterable[Range]) -> Broken:
    for rule in ranges:
        if rule.test != test:
            continue
        for name in _of_family(rule.statistic, texts):
            values = texts.values(name)
            is_below = values < rule.low - TOLERANCE
            is_above = values > rule.high + TOLERANCE
            for k in np.flatnonzero(is_below | is_above):
                yield (
                    texts.index[k],
                    f"{name} is {values[k]:.6g}, but {rule.why}",
                )


def _lacking(test: str, texts: Texts) -> Broken:
    """Texts on which one ranking has a value and another of the site has none."""
    for family in SAME_TEXTS if test == "erasure" else ():
        names = _of_family(family, texts)
        n_known = np.zeros(len(texts), dtype=int)
        for name in names:
            n_known += ~np.isnan(texts.values(name))
        for k in np.flatnonzero((n_known > 0) & (n_known < len(names))):
            lacking = ", ".join(name for name in names if np.isnan(texts.values(name)[k]))
            yield (
                texts.index[k],
                f"{lacking} has no value and others have, but all rankings are compared "
                "on the same texts",
            )


def _of_family(family: str, texts: Texts) -> list[str]:
    """The statistics of one name, with all their keys."""
    return [name for name in texts.names if name.partition("@")[0] == family]
