"""The values of one test as matrices: what a summary of a part is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


Site = tuple[int, int]


@dataclass(frozen=True)
class Column:
    """One statistic of a block.

    Attributes:
        values: [texts, sites]; NaN where undefined, or not there.
        is_missing: where there is no value at all, not even NaN, [texts, sites].
    """

    values: np.ndarray
    is_missing: np.ndarray


@dataclass(frozen=True)
class Block:
    """The values of one test for some texts.

    Attributes:
        test: its name.
        example_ids: int64 [texts].
        sites: layer and head of each place.
        columns: by statistic.
    """

    test: str
    example_ids: np.ndarray
    sites: Sequence[Site]
    columns: Mapping[str, Column]

    def at(self, statistic: str, place: int = 0) -> np.ndarray:
        """Values [texts] at one place; NaN everywhere without such a statistic."""
        if statistic not in self.columns:
            return np.full(len(self.example_ids), np.nan)
        return self.columns[statistic].values[:, place]
