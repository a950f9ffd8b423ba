"""The numbers that the answers stand on, of a model and its control. Pure."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.bootstrap import Estimate, mean_estimate
from hf_attnprobe.statistics.wording import CLASSES, Words


@dataclass(frozen=True)
class Evidence:
    """Numbers of one site, a text per row and a statistic per column.

    Attributes:
        texts: of the model.
        control: of its control, the same texts; None where there is none.
        seed: of the intervals.
        words: of the kind of prediction.
    """

    texts: pd.DataFrame
    control: pd.DataFrame | None
    seed: int
    words: Words = CLASSES

    def mean(self, name: str) -> Estimate:
        """A statistic of the model; n is 0 where there is none."""
        return mean_estimate(_column(self.texts, name), seed=self.seed)

    def control_mean(self, name: str) -> Estimate | None:
        """The control's, on the texts where both have a value; None without one."""
        if self.control is None or name not in self.control:
            return None
        both = _column(self.texts, name) * 0 + _column(self.control, name)
        return mean_estimate(both, seed=self.seed)

    def beyond_control(self, name: str) -> Estimate | None:
        """Model − control, paired by text; None without a control."""
        if self.control is None or name not in self.control:
            return None
        difference = _column(self.texts, name) - _column(self.control, name)
        return mean_estimate(difference, seed=self.seed)

    def beyond(self, name: str, other: str) -> Estimate:
        """One statistic of the model − another one, paired by text."""
        difference = _column(self.texts, name) - _column(self.texts, other)
        return mean_estimate(difference, seed=self.seed)

    def less_control(self, name: str, other: str) -> Estimate | None:
        """How far :meth:`beyond` is beyond the control's; None without a control."""
        if self.control is None or not {name, other} <= set(self.control):
            return None
        own = _column(self.texts, name) - _column(self.texts, other)
        theirs = _column(self.control, name) - _column(self.control, other)
        return mean_estimate(own - theirs, seed=self.seed)

    def of(self, texts: pd.Index) -> "Evidence":
        """The evidence of some of the texts."""
        control = None if self.control is None else self.control.reindex(texts)
        return Evidence(self.texts.loc[texts], control, self.seed, self.words)


def _column(frame: pd.DataFrame, name: str) -> np.ndarray:
    if name not in frame:
        return np.full(len(frame), np.nan)
    return frame[name].to_numpy(dtype=np.float64)
