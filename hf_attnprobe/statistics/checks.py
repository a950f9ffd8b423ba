"""Can these rows be true? What the mathematics forbids is found, text by text.

Pure: rows in, sentences out. An audit without a mistake gives none.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd


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
SHARES = {
    "erasure": (
        "fraction_to_flip",
        "never_flips",
        "probability_mass_removed",
        "minimal_fraction",
        "no_set_flips",
        "no_order_flips",
    ),
    "permutation": ("max_attention", "median_tvd", "max_tvd", "flip_possible"),
}
INFINITY = float("inf")
RANGES = (
    *(
        Range(test, name, 0.0, 1.0, SHARE)
        for test, names in SHARES.items()
        for name in names
    ),
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


def contradictions(rows: pd.DataFrame) -> list[str]:
    """What cannot be true in the rows of an audit, a sentence each; none is right.

    Args:
        rows: test, statistic, example_id, layer, head, value, as
            :func:`hf_attnprobe.read_rows` gives them.
    """
    found: list[str] = []
    for (test, layer, head), at_site in rows.groupby(["test", "layer", "head"]):
        at_site = at_site.drop_duplicates(["example_id", "statistic"])
        wide = at_site.pivot(index="example_id", columns="statistic", values="value")
        where = f"{test}, layer {layer}, head {head}"
        broken = (*_orders(test, wide), *_ranges(test, wide), *_texts(test, wide))
        found += [f"{where}, {sentence}" for sentence in broken]
    return found


def _orders(test: str, wide: pd.DataFrame) -> Iterator[str]:
    for rule in ORDERS:
        if rule.test != test:
            continue
        for smaller, larger in _pairs(rule, list(wide)):
            too_large = wide[wide[smaller] > wide[larger] + TOLERANCE]
            for text, values in too_large.iterrows():
                yield (
                    f"text {text}: {smaller} is {values[smaller]:.6g} and {larger} "
                    f"{values[larger]:.6g}, but {rule.why}"
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


def _ranges(test: str, wide: pd.DataFrame) -> Iterator[str]:
    for rule in RANGES:
        for name in wide:
            if rule.test != test or str(name).partition("@")[0] != rule.statistic:
                continue
            values = wide[name]
            outside = (values < rule.low - TOLERANCE) | (values > rule.high + TOLERANCE)
            for text, value in values[outside].items():
                yield f"text {text}: {name} is {value:.6g}, but {rule.why}"


def _texts(test: str, wide: pd.DataFrame) -> Iterator[str]:
    """Texts on which one ranking has a value and another has none."""
    for family in SAME_TEXTS if test == "erasure" else ():
        names = [name for name in wide if str(name).partition("@")[0] == family]
        has = wide[names].notna()
        for text, row in has[has.any(axis=1) & ~has.all(axis=1)].iterrows():
            lacking = ", ".join(name for name in names if not row[name])
            yield (
                f"text {text}: {lacking} has no value and others have, but all "
                "rankings are compared on the same texts"
            )
