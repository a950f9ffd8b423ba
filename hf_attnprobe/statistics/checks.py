"""Checks rows for values that the mathematics forbids, text by text.

Pure: rows in, sentences out. An audit without a mistake gives none.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from hf_attnprobe.readings import Readings, is_declared_share


Place = tuple[int, int, int]
"""Layer, head, and the id of a text."""
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
        "median_share_of_log_odds",
        "max_tvd",
    ),
}
"""From 0 to 1 too, besides what its reading declares a share."""
CHANGES = ("median_tvd", "max_tvd")
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
SAME_TEXTS = ("fraction_to_flip", "never_flips", "probability_mass_removed", "regret")
"""Statistics of erasure that all rankings have on the same texts."""


class _Table(NamedTuple):
    """The rows of one test, side by side.

    ``values`` has a row per (layer, head, example_id) and a column per statistic;
    ``is_measured`` says whether the site has the statistic at all, for any text.
    """

    values: pd.DataFrame
    is_measured: pd.DataFrame


def contradictions(rows: pd.DataFrame, readings: Readings, *, of_number: bool = False) -> list[str]:
    """One sentence for each impossible value in the rows of an audit; empty if all is well.

    Args:
        rows: test, statistic, example_id, layer, head, value, as
            :func:`~hf_attnprobe.storage.rows.read_rows` gives them.
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
    for test, of_test in rows.groupby("test", observed=True):
        table = _table(of_test)
        broken = (
            *_orders(test, table),
            *_ranges(test, table, ranges),
            *_texts(test, table),
        )
        found += [
            f"{test}, layer {layer}, head {head}, text {text}: {sentence}"
            for (layer, head, text), sentence in broken
        ]
    return found


def _table(rows: pd.DataFrame) -> _Table:
    """Of equal rows the first counts, as when two runs have met in one folder."""
    # Not by `pivot`: an audit of all heads has millions of rows.
    statistic, names = pd.factorize(rows.statistic, sort=True)
    text, texts = pd.factorize(rows.example_id, sort=True)
    layer, layers = pd.factorize(rows.layer, sort=True)
    head, heads = pd.factorize(rows["head"], sort=True)
    site, sites = pd.factorize(layer * len(heads) + head, sort=True)
    values = np.full((len(sites) * len(texts), len(names)), np.nan)
    place = site * len(texts) + text
    is_first = ~pd.Series(place * len(names) + statistic).duplicated().to_numpy()
    values[place[is_first], statistic[is_first]] = rows.value[is_first]
    is_measured = np.zeros((len(sites), len(names)), dtype=bool)
    is_measured[site, statistic] = True
    index = pd.MultiIndex.from_arrays(
        [
            layers[sites // len(heads)].repeat(len(texts)),
            heads[sites % len(heads)].repeat(len(texts)),
            np.tile(texts, len(sites)),
        ]
    )
    return _Table(
        pd.DataFrame(values, index=index, columns=names),
        pd.DataFrame(is_measured.repeat(len(texts), axis=0), index=index, columns=names),
    )


def _orders(test: str, table: _Table) -> Iterator[tuple[Place, str]]:
    values = table.values
    for rule in ORDERS:
        if rule.test != test:
            continue
        for smaller, larger in _pairs(rule, list(values)):
            low, high = values[smaller], values[larger]
            is_broken = low > high + TOLERANCE
            broken = zip(low[is_broken].items(), high[is_broken], strict=True)
            for (place, value), limit in broken:
                yield (
                    place,
                    f"{smaller} is {value:.6g} and {larger} {limit:.6g}, but {rule.why}",
                )


def _pairs(rule: Order, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The names of both sides, with all keys that belong together."""
    for smaller in names:
        family, _, key = smaller.partition("@")
        if family != rule.smaller:
            continue
        for larger in names:
            other, _, other_key = larger.partition("@")
            if other == rule.larger and (not key or not other_key or key == other_key):
                yield smaller, larger


def _ranges(test: str, table: _Table, ranges: Iterable[Range]) -> Iterator[tuple[Place, str]]:
    for rule in ranges:
        for name in _of_family(rule.statistic, table) if rule.test == test else ():
            values = table.values[name]
            outside = (values < rule.low - TOLERANCE) | (values > rule.high + TOLERANCE)
            for place, value in values[outside].items():
                yield place, f"{name} is {value:.6g}, but {rule.why}"


def _texts(test: str, table: _Table) -> Iterator[tuple[Place, str]]:
    """Texts on which one ranking has a value and another of the site has none."""
    for family in SAME_TEXTS if test == "erasure" else ():
        names = _of_family(family, table)
        has = table.values[names].notna()
        lacks = table.is_measured[names] & ~has
        for place, row in lacks[has.any(axis=1) & lacks.any(axis=1)].iterrows():
            lacking = ", ".join(name for name in names if row[name])
            yield (
                place,
                f"{lacking} has no value and others have, but all rankings are compared "
                "on the same texts",
            )


def _of_family(family: str, table: _Table) -> list[str]:
    """The statistics of one name, with all their keys."""
    return [name for name in table.values if name.partition("@")[0] == family]
