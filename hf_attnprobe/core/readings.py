"""Descriptions of statistics for reports.

A :class:`Reading` contains the sentence that a report prints for a statistic. It also records whether
the values are shares, because the mean of shares gets another confidence interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """Description of a statistic.

    Attributes:
        sentence: Template of the sentence in reports, with the placeholders ``{mean}``, ``{median}``
            and ``{key}``.
        is_share: Whether the values are shares between 0 and 1. If every text has the value 0 or 1,
            the mean is a proportion, and its confidence interval is an exact binomial interval.
    """

    sentence: str
    is_share: bool = False


TestReadings = Mapping[str, Reading | str]
"""Type for the descriptions of one test's statistics, by statistic name.

A string is short for a `Reading` with this sentence.
"""
Readings = Mapping[str, TestReadings]
"""Type for the descriptions of all statistics: a mapping from test name to statistic name to reading."""


def make_share_reading(sentence: str) -> Reading:
    """Create the description (reading) of a statistic whose values are between 0 and 1.

    Args:
        sentence: Template of the sentence that reports print for the statistic.

    Returns:
        A description with ``is_share=True``.
    """
    return Reading(sentence, is_share=True)


def get_sentence(test: str, statistic: str, readings: Readings) -> str:
    """Return the sentence template that reports use for a statistic.

    Args:
        test: Test name.
        statistic: Statistic name, ``name`` or ``name@key``, such as ``jsd@0.05``.
        readings: Descriptions of the statistics of all tests, by test and statistic.

    Raises:
        KeyError: The statistic has no description.
    """
    # All keys of a statistic share one description, so the part after "@" is removed.
    reading = readings[test][statistic.partition("@")[0]]
    return reading if isinstance(reading, str) else reading.sentence


def is_declared_share(test: str, statistic: str, readings: Readings) -> bool:
    """Check whether a statistic is described as a share, that is, a value between 0 and 1.

    Args:
        test: Test name.
        statistic: Statistic name, ``name`` or ``name@key``, such as ``jsd@0.05``.
        readings: Descriptions of the statistics of all tests, by test and statistic.

    Returns:
        True for a share; False for other statistics and those without a description.
    """
    # All keys of a statistic share one description, so the part after "@" is removed.
    reading = readings.get(test, {}).get(statistic.partition("@")[0])
    return isinstance(reading, Reading) and reading.is_share
