"""Checks that find mathematically impossible values in the stored rows of an audit.

If they find any, there is a bug or a damaged file. The checks only read rows and return sentences.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from hf_attnprobe.core.readings import Readings, is_declared_share
from hf_attnprobe.statistics.rows import Rows, Texts


TOLERANCE = 1e-5
"""Largest violation of a rule that is attributed to rounding.

It is sufficient for values of about 1 that a model computes in float32.
"""


class OrderRule(NamedTuple):
    """Rule that one statistic never exceeds another one for the same text.

    If both statistics have keys (``name@key``), only equal keys are compared.

    Attributes:
        test: name of the faithfulness test that measures both statistics.
        smaller_statistic: name of the statistic that is never larger.
        larger_statistic: name of the other statistic.
        reason: clause that explains the rule.
    """

    test: str
    smaller_statistic: str
    larger_statistic: str
    reason: str


class RangeRule(NamedTuple):
    """Rule that a statistic is always within a range.

    Attributes:
        test: name of the faithfulness test that measures the statistic.
        statistic: statistic name.
        low: smallest possible value.
        high: largest possible value.
        reason: clause that explains the rule.
    """

    test: str
    statistic: str
    low: float
    high: float
    reason: str


ORDER_RULES = (
    OrderRule(
        "erasure",
        "minimal_fraction",
        "fraction_to_flip",
        "no ranking needs fewer tokens than the smallest set",
    ),
    OrderRule(
        "permutation",
        "median_tvd",
        "max_tvd",
        "no shuffle changes the output more than the worst shuffle",
    ),
    OrderRule(
        "adversarial",
        "epsilon_max_jsd",
        "epsilon_max_jsd_upper",
        "no attention is farther than the upper bound",
    ),
    OrderRule(
        "adversarial",
        "epsilon_max_jsd",
        "largest_jsd",
        "no attention is farther than the farthest attention of all",
    ),
    OrderRule(
        "adversarial",
        "epsilon_max_jsd_upper",
        "largest_jsd",
        "no attention is farther than the farthest attention of all",
    ),
)
"""Rules that one statistic of a text never exceeds another statistic of the same text.

For example, the first rule states that ``minimal_fraction`` (the size of the smallest set of weights that
flips the decision) is at most ``fraction_to_flip@attention`` (the weights erased in the order of attention).
"""
SHARE_REASON = "it is a share"
"""Reason why a statistic must be in [0, 1], as printed in "max_tvd is 1.2, but it is a share"."""
UNDECLARED_SHARES = {
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
"""Statistics that are shares (between 0 and 1) but are not declared as shares, keyed by test."""
OUTPUT_CHANGES = ("median_tvd", "max_tvd", "standard_tvd", "largest_standard_tvd")
"""Statistics of the test "permutation" that measure how much shuffling changes the output.

They are total variation distances between 0 and 1, except for models that predict a number. A change
of a predicted number has no upper limit.
"""
INFINITY = float("inf")
"""Limit for statistics without a smallest or without a largest possible value."""
RANGE_RULES = (
    *(
        RangeRule(test, name, 0.0, 1.0, SHARE_REASON)
        for test, names in UNDECLARED_SHARES.items()
        for name in names
    ),
    RangeRule(
        "erasure",
        "way_to_best",
        -INFINITY,
        1.0,
        "no ranking is better than the smallest set",
    ),
    RangeRule(
        "erasure",
        "way_to_best_tried",
        -INFINITY,
        1.0,
        "no ranking is better than the best ranking that was tried",
    ),
    RangeRule(
        "erasure",
        "regret",
        0.0,
        INFINITY,
        "no ranking needs fewer tokens than the smallest set",
    ),
)
"""Rules that a statistic is always between two numbers.

Rules for statistics that are declared as shares are added in :func:`find_contradictions`.
"""
SHARED_TEXT_STATISTICS = (
    "fraction_to_flip",
    "never_flips",
    "probability_mass_removed",
    "regret",
)
"""Erasure statistics that are measured once for each ranking, such as ``regret@attention``.

Rankings are compared on the same texts. If a text has a value for one ranking, it must therefore have a
value for every ranking.
"""


def find_contradictions(
    rows: Rows | pd.DataFrame, readings: Readings, *, is_number: bool = False
) -> list[str]:
    """Find impossible values in the rows of an audit.

    Args:
        rows: audit rows, or a data frame in long form.
        readings: descriptions of the statistics. If a statistic is declared a share, its values
            must be between 0 and 1.
        is_number: whether the model predicts a number. Changes then have no upper limit.

    Returns:
        One sentence for each impossible value; empty if there is none.
    """
    ranges = [rule for rule in RANGE_RULES if not (is_number and rule.statistic in OUTPUT_CHANGES)]
    for test in readings:
        for statistic in readings[test]:
            if is_declared_share(test, statistic, readings):
                ranges.append(RangeRule(test, statistic, 0.0, 1.0, SHARE_REASON))

    sentences: list[str] = []
    rows = Rows.coerce(rows)
    tested_sites = {(test, layer, head) for test, _, layer, head in rows.columns}
    for test, layer, head in sorted(tested_sites):
        site_rows = rows.select(
            lambda name, _, *site, key=(test, layer, head): (name, *site) == key
        )
        texts = Texts.from_site(site_rows, (layer, head))
        violations = (
            *_check_orders(test, texts),
            *_check_ranges(test, texts, ranges),
            *_check_shared_texts(test, texts),
        )
        for example_id, sentence in violations:
            sentences.append(f"{test}, layer {layer}, head {head}, text {example_id}: {sentence}")
    return sentences


Violations = Iterator[tuple[int, str]]
"""Iterator over impossible values: the text id, and a sentence that describes the value."""


def _check_orders(test: str, texts: Texts) -> Violations:
    """Find texts in which a statistic exceeds another one that must be at least as large.

    Args:
        test: faithfulness test. Only the rules about its statistics are checked.
        texts: statistics of the test at one site.

    Yields:
        Text id, and a sentence that describes the impossible value.
    """
    for rule in ORDER_RULES:
        if rule.test != test:
            continue
        for smaller, larger in _pair_statistics(rule, texts):
            low, high = texts.get_values(smaller), texts.get_values(larger)
            for index in np.flatnonzero(low > high + TOLERANCE):
                sentence = (
                    f"{smaller} is {low[index]:.6g} and {larger} is {high[index]:.6g}, but "
                    f"{rule.reason}"
                )
                yield texts.index[index], sentence


def _pair_statistics(rule: OrderRule, texts: Texts) -> Iterator[tuple[str, str]]:
    """List the pairs of statistic names that a rule compares.

    Both names must have the same key after "@". A name without a key is paired with all keys.
    """
    for smaller in _list_statistics(rule.smaller_statistic, texts):
        smaller_key = smaller.partition("@")[2]
        for larger in _list_statistics(rule.larger_statistic, texts):
            larger_key = larger.partition("@")[2]
            if not smaller_key or not larger_key or smaller_key == larger_key:
                yield smaller, larger


def _check_ranges(test: str, texts: Texts, ranges: Iterable[RangeRule]) -> Violations:
    """Find texts in which a statistic is outside of its possible range.

    Args:
        test: faithfulness test. Only the rules about its statistics are checked.
        texts: statistics of the test at one site.
        ranges: possible ranges of statistics.

    Yields:
        Text id, and a sentence that describes the impossible value.
    """
    for rule in ranges:
        if rule.test != test:
            continue
        for name in _list_statistics(rule.statistic, texts):
            values = texts.get_values(name)
            is_below = values < rule.low - TOLERANCE
            is_above = values > rule.high + TOLERANCE
            for index in np.flatnonzero(is_below | is_above):
                yield texts.index[index], f"{name} is {values[index]:.6g}, but {rule.reason}"


def _check_shared_texts(test: str, texts: Texts) -> Violations:
    """Find texts in which an erasure statistic is defined for some rankings but not for all.

    Args:
        test: faithfulness test; other tests than "erasure" are not checked.
        texts: statistics of the test at one site.

    Yields:
        Text id, and a sentence that names the undefined statistics.
    """
    if test != "erasure":
        return
    for family in SHARED_TEXT_STATISTICS:
        names = _list_statistics(family, texts)
        n_defined = np.zeros(len(texts), dtype=int)
        for name in names:
            n_defined += ~np.isnan(texts.get_values(name))
        for index in np.flatnonzero((n_defined > 0) & (n_defined < len(names))):
            undefined_names = [name for name in names if np.isnan(texts.get_values(name)[index])]
            sentence = (
                f"{', '.join(undefined_names)} has no value while other rankings have one, but "
                "all rankings are compared on the same texts"
            )
            yield texts.index[index], sentence


def _list_statistics(family: str, texts: Texts) -> list[str]:
    """List the names that equal ``family``, or that consist of ``family``, "@" and a key."""
    return [name for name in texts.statistic_names if name.partition("@")[0] == family]
