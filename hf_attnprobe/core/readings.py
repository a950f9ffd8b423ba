"""Descriptions of statistics for reports.

A reading contains the sentence that a report prints for a statistic. It also says whether the values
are shares, which decides how the confidence interval of their mean is computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """Description of a statistic.

    Attributes:
        sentence: Template of the sentence in reports, with the placeholders ``{mean}``, ``{median}``
            and ``{key}``.
        is_share: Whether the values are shares between 0 and 1. If the value of every text is 0 or 1,
            the mean is a proportion of the texts, and it gets an exact binomial interval.
    """

    sentence: str
    is_share: bool = False


TestReadings = Mapping[str, Reading | str]
"""Readings of one test by statistic; a plain sentence stands for a reading that is not a share."""
Readings = Mapping[str, TestReadings]
"""Readings by test and statistic."""


def make_share_reading(sentence: str) -> Reading:
    """Return the reading of a statistic whose values are shares.

    Args:
        sentence: Template of the sentence in reports.
    """
    return Reading(sentence, is_share=True)


def get_sentence(test: str, statistic: str, readings: Readings) -> str:
    """Return the sentence template of a statistic.

    Args:
        test: Test name.
        statistic: Statistic name, ``name`` or ``name@key``; the key does not matter.
        readings: Readings of all tests.

    Raises:
        KeyError: The statistic has no reading.
    """
    reading = readings[test][statistic.partition("@")[0]]
    return reading if isinstance(reading, str) else reading.sentence


def is_declared_share(test: str, statistic: str, readings: Readings) -> bool:
    """Return whether a statistic is declared to be a share; False if it has no reading.

    Args:
        test: Test name.
        statistic: Statistic name, ``name`` or ``name@key``; the key does not matter.
        readings: Readings of all tests.
    """
    reading = readings.get(test, {}).get(statistic.partition("@")[0])
    return isinstance(reading, Reading) and reading.is_share
