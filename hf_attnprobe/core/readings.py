"""What reports say of a statistic, and what kind of number its mean is.

The sentence is for readers alone; what is computed follows from the kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """The record of a statistic.

    Attributes:
        sentence: with places for ``{mean}``, ``{median}`` and ``{key}``.
        is_share: whether its values are shares. Where every text has 0 or 1 the mean is
            a share of texts, and its interval the exact one.
    """

    sentence: str
    is_share: bool = False


TestReadings = Mapping[str, Reading | str]
"""By statistic; a sentence alone is the reading of what is no share."""
Readings = Mapping[str, TestReadings]
"""By test and statistic."""


def share(sentence: str) -> Reading:
    """The reading of a statistic whose values are shares."""
    return Reading(sentence, is_share=True)


def sentence_of(test: str, statistic: str, readings: Readings) -> str:
    """What is said of a statistic ``name`` or ``name@key``."""
    found = readings[test][statistic.partition("@")[0]]
    return found if isinstance(found, str) else found.sentence


def is_declared_share(test: str, statistic: str, readings: Readings) -> bool:
    """Whether the values of ``name`` or ``name@key`` are shares; False if unknown."""
    found = readings.get(test, {}).get(statistic.partition("@")[0])
    return isinstance(found, Reading) and found.is_share
