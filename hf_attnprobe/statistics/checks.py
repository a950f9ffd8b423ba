"""Checks that find mathematically impossible values in the stored rows of an audit.

For example, a share cannot be larger than 1. An impossible value means that there is a bug or a damaged
file. The checks only read the rows and return sentences.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from hf_attnprobe.core.readings import Readings, is_declared_share
from hf_attnprobe.statistics.rows import Rows, Texts


MAX_ROUNDING_ERROR = 1e-5
"""Largest rounding error of a stored value, such as a probability of 1.000002.

A value above its limit is reported as an error only if the difference is larger than this.
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
"""Rules that one statistic of a text is never larger than another statistic of the same text.

For example, ``median_tvd`` (the output change by the median shuffle) is never larger than ``max_tvd``
(the output change by the worst shuffle).
"""
SHARE_REASON = "it is a share"
"""Reason for the rule that a share is between 0 and 1, as in "max_tvd is 1.2, but it is a share"."""
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
"""Maps each test to statistics that are shares but are not declared as shares.

A share is always between 0 and 1.
"""
SHUFFLE_EFFECT_STATISTICS = ("median_tvd", "max_tvd", "standard_tvd", "largest_standard_tvd")
"""Statistics that measure the effect of shuffled attention weights on the output.

For most models, they are distances between 0 and 1. For models that predict a number, they have no upper
limit.
"""
RANGE_RULES = (
    *(
        RangeRule(test, name, 0.0, 1.0, SHARE_REASON)
        for test, names in UNDECLARED_SHARES.items()
        for name in names
    ),
    RangeRule(
        "erasure",
        "way_to_best",
        -math.inf,
        1.0,
        "no ranking is better than the smallest set",
    ),
    RangeRule(
        "erasure",
        "way_to_best_tried",
        -math.inf,
        1.0,
        "no ranking is better than the best ranking that was tried",
    ),
    RangeRule(
        "erasure",
        "regret",
        0.0,
        math.inf,
        "no ranking needs fewer tokens than the smallest set",
    ),
)
"""Smallest and largest possible values of statistics.

:func:`find_contradictions` adds a range from 0 to 1 for each statistic that is declared a share.
"""
SHARED_TEXT_STATISTICS = (
    "fraction_to_flip",
    "never_flips",
    "probability_mass_removed",
    "regret",
)
"""Erasure statistics that must be measured on the same texts for all rankings.

For example, a text with a value for ``regret@attention`` must also have one for ``regret@gradient``.
Otherwise, the two rankings could not be compared.
"""


def find_contradictions(
    rows: Rows | pd.DataFrame, readings: Readings, *, is_number: bool = False
) -> list[str]:
    """Find impossible values in the rows of an audit.

    Every stored value is checked, including those of copies of a text.

    Args:
        rows: audit rows, or a data frame in long form.
        readings: descriptions of the statistics. If a statistic is declared a share, its values
            must be between 0 and 1.
        is_number: whether the model predicts a number. Changes then have no upper limit.

    Returns:
        One sentence for each impossible value; empty if there is none.
    """
    ranges = list(RANGE_RULES)
    if is_number:
        ranges = [rule for rule in ranges if rule.statistic not in SHUFFLE_EFFECT_STATISTICS]
    for test in readings:
        for statistic in readings[test]:
            if is_declared_share(test, statistic, readings):
                ranges.append(RangeRule(test, statistic, 0.0, 1.0, SHARE_REASON))

    sentences: list[str] = []
    rows = Rows.coerce(rows)
    tested_sites = {(test, layer, head) for test, _, layer, head in rows.columns}
    for test, layer, head in sorted(tested_sites):
        test_rows = rows.select(lambda column_test, *_, test=test: column_test == test)
        texts = Texts.from_site(test_rows, (layer, head))
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
    """Find texts in which a statistic is larger than another one, although this is impossible.

    The rules in :data:`ORDER_RULES` name the two statistics. For example, the median effect of a
    shuffle can never be larger than the maximum.

    Args:
        test: name of the faithfulness test whose rules are checked.
        texts: statistics of the test at one site.

    Yields:
        Text id, and a sentence that describes the impossible value.
    """
    for rule in ORDER_RULES:
        if rule.test != test:
            continue
        for smaller_name, larger_name in _pair_statistics(rule, texts):
            smaller_values = texts.get_values(smaller_name)
            larger_values = texts.get_values(larger_name)
            is_violated = smaller_values > larger_values + MAX_ROUNDING_ERROR
            for index in np.flatnonzero(is_violated):
                sentence = (
                    f"{smaller_name} is {smaller_values[index]:.6g} and {larger_name} is "
                    f"{larger_values[index]:.6g}, but {rule.reason}"
                )
                yield texts.index[index], sentence


def _pair_statistics(rule: OrderRule, texts: Texts) -> Iterator[tuple[str, str]]:
    """Find all pairs of measured statistics that a rule compares.

    In a name such as "regret@attention", the part after "@" is the key. If both names have a key,
    the keys must be equal.

    Yields:
        Name of the statistic that must be smaller, and name of the other statistic.
    """
    for smaller in _list_statistics(rule.smaller_statistic, texts):
        _, _, smaller_key = smaller.partition("@")
        for larger in _list_statistics(rule.larger_statistic, texts):
            _, _, larger_key = larger.partition("@")
            have_keys = bool(smaller_key and larger_key)
            if not have_keys or smaller_key == larger_key:
                yield smaller, larger


def _check_ranges(test: str, texts: Texts, ranges: Iterable[RangeRule]) -> Violations:
    """Find texts in which a statistic is outside of its possible range.

    Args:
        test: name of the faithfulness test whose statistics are checked.
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
            is_below = values < rule.low - MAX_ROUNDING_ERROR
            is_above = values > rule.high + MAX_ROUNDING_ERROR
            for index in np.flatnonzero(is_below | is_above):
                yield texts.index[index], f"{name} is {values[index]:.6g}, but {rule.reason}"


def _check_shared_texts(test: str, texts: Texts) -> Violations:
    """Find texts in which a statistic has a value for some rankings but not for all.

    The test "erasure" compares rankings on the same texts, so this should never happen.

    Args:
        test: name of the faithfulness test. Nothing is checked for tests other than "erasure".
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
        is_incomplete = (n_defined > 0) & (n_defined < len(names))
        for index in np.flatnonzero(is_incomplete):
            undefined_names = [name for name in names if np.isnan(texts.get_values(name)[index])]
            sentence = (
                f"{', '.join(undefined_names)} has no value while other rankings have one, but "
                "all rankings are compared on the same texts"
            )
            yield texts.index[index], sentence


def _list_statistics(family: str, texts: Texts) -> list[str]:
    """List the measured statistics whose name without the part after "@" is ``family``.

    For the family "regret", these are names such as "regret@attention" and "regret@gradient".
    """
    names = []
    for name in texts.statistic_names:
        name_without_key, _, _ = name.partition("@")
        if name_without_key == family:
            names.append(name)
    return names
