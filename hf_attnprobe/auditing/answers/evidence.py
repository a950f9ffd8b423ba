"""The numbers that the answers stand on, of a model and its control. Pure."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.bootstrap import Estimate, mean_estimate
from hf_attnprobe.statistics.stopped import Bounds, Stopping, difference, widened
from hf_attnprobe.statistics.wording import CLASSES, Words


@dataclass(frozen=True)
class Evidence:
    """Numbers of one site, a text per row and a statistic per column.

    Attributes:
        texts: of the model.
        control: of its control, the same texts; None where there is none.
        seed: of the intervals.
        words: of the kind of prediction.
        stopping: where the audit may have stopped before all texts were done.
    """

    texts: pd.DataFrame
    control: pd.DataFrame | None
    seed: int
    words: Words = CLASSES
    stopping: Stopping | None = None

    def mean(self, name: str) -> Estimate:
        """A statistic of the model; n is 0 where there is none."""
        return self._estimate(_column(self.texts, name), self._bounds(name))

    def control_mean(self, name: str) -> Estimate | None:
        """The control's, on the texts where both have a value; None without one."""
        if self.control is None or name not in self.control:
            return None
        both = _column(self.texts, name) * 0 + _column(self.control, name)
        return self._estimate(both, self._bounds(name))

    def beyond_control(self, name: str) -> Estimate | None:
        """Model − control, paired by text; None without a control."""
        if self.control is None or name not in self.control:
            return None
        values = _column(self.texts, name) - _column(self.control, name)
        bounds = self._bounds(name)
        return self._estimate(values, difference(bounds, bounds))

    def beyond(self, name: str, other: str) -> Estimate:
        """One statistic of the model − another one, paired by text."""
        values = _column(self.texts, name) - _column(self.texts, other)
        bounds = difference(self._bounds(name), self._bounds(other))
        return self._estimate(values, bounds)

    def less_control(self, name: str, other: str) -> Estimate | None:
        """How far :meth:`beyond` is beyond the control's; None without a control."""
        if self.control is None or not {name, other} <= set(self.control):
            return None
        own = _column(self.texts, name) - _column(self.texts, other)
        theirs = _column(self.control, name) - _column(self.control, other)
        bounds = difference(self._bounds(name), self._bounds(other))
        return self._estimate(own - theirs, difference(bounds, bounds))

    def _bounds(self, name: str) -> Bounds | None:
        return None if self.stopping is None else self.stopping.bounds(name)

    def _estimate(self, values: np.ndarray, bounds: Bounds | None) -> Estimate:
        """The mean, with an interval that allows for stopping where there are bounds."""
        estimate = mean_estimate(values, seed=self.seed)
        if estimate.ci95 is None or bounds is None:
            return estimate
        frame = pd.DataFrame({0: values}, index=self.texts.index)
        ordinary = np.array(estimate.ci95)[:, None]
        low, high = widened(ordinary, frame, [bounds], self.stopping)[:, 0].tolist()
        return replace(estimate, ci95=(low, high))

    def of(self, texts: pd.Index) -> "Evidence":
        """The evidence of some of the texts."""
        control = None if self.control is None else self.control.reindex(texts)
        return replace(self, texts=self.texts.loc[texts], control=control)


def _column(frame: pd.DataFrame, name: str) -> np.ndarray:
    if name not in frame:
        return np.full(len(frame), np.nan)
    return frame[name].to_numpy(dtype=np.float64)
