"""The numbers of a model and its control at one site, from which answers are computed.

Pure: rows in, estimates out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import Estimate, function_estimate, mean_estimate, student_t
from hf_attnprobe.statistics.rows import Rows, Texts, mean_of
from hf_attnprobe.statistics.summary import Control, at_site, draws_of, site_of_model
from hf_attnprobe.statistics.wording import CLASSES, Words


@dataclass(frozen=True)
class Evidence:
    """The numbers of one site, read a statistic at a time.

    Attributes:
        texts: of the model.
        control: the means over the draws of its control, of the same texts; None without one.
        draws: each of these draws.
        words: of the kind of prediction.
        shares_draws: whether a draw is one for all texts (a model with other weights),
            so that another draw may differ by more than the texts show. Reassigned
            attention is drawn for each text, and its spread is that of the texts.
    """

    texts: Texts
    control: Texts | None = None
    draws: tuple[Texts, ...] = ()
    words: Words = CLASSES
    shares_draws: bool = False

    def column(self, name: str) -> np.ndarray:
        """A statistic of the model by text; NaN where there is none."""
        return self.texts.values(name)

    def control_column(self, name: str) -> np.ndarray:
        """The mean over the control's draws by text; NaN where there is none."""
        if self.control is None:
            return np.full(len(self.texts), np.nan)
        return self.control.values(name)

    def mean(self, name: str) -> Estimate:
        """A statistic of the model; n is 0 where there is none."""
        return mean_estimate(self.column(name))

    def control_mean(self, name: str) -> Estimate:
        """The control's, on the texts where both have a value; n is 0 without one."""
        both = self.column(name) * 0 + self.control_column(name)
        return mean_estimate(both)

    def beyond(self, name: str, other: str) -> Estimate:
        """Paired difference of two losses of the model, paired by text."""
        values = self.column(name) - self.column(other)
        return mean_estimate(values)

    def control_beyond(self, name: str, other: str) -> Estimate:
        """:meth:`beyond` of the control, on the texts where the model has both too."""
        own = (self.column(name) - self.column(other)) * 0
        theirs = self.control_column(name) - self.control_column(other)
        return mean_estimate(own + theirs)

    def less_control(self, name: str, other: str) -> Estimate:
        """The model's :meth:`beyond` minus the control's, paired by text.

        Of a probability the interval is cut at −1 and 1, where that of :meth:`beyond`
        ends. The difference itself could be ±2, with a control that loses less than
        random tokens do; every threshold lies far within, so no answer depends on it.
        """
        own = self.column(name) - self.column(other)
        theirs = self.control_column(name) - self.control_column(other)
        found = mean_estimate(own - theirs)
        found = self._over_draws(found, lambda e: e.less_control(name, other).value)
        if found.ci95 is None or self.words.is_number:
            return found
        low, high = found.ci95
        return replace(found, ci95=(max(low, -1.0), min(high, 1.0)))

    def of_means(self, names: Sequence[str], function: Callable[..., np.ndarray]) -> Estimate:
        """A function of the means of some statistics, of the texts that have all of them."""
        columns = [*map(self.column, names)]
        return function_estimate(columns, lambda means: function(*means.T))

    def share_beyond_control(
        self,
        names: Sequence[str],
        share: Callable[..., np.ndarray],
        *,
        at_least: float = -np.inf,
    ) -> Estimate:
        """The way from the control's agreement to 1: (own − control) / (1 − control).

        Cohen's κ with the control as chance. Of the means over the texts that have all
        of the statistics, the control's too.

        Args:
            names: of the statistics.
            share: their means, each [...], to the agreement [...]; 1 is the best.
            at_least: what the control's agreement counts as where it is less.
        """
        n = len(names)

        def of_means(means: np.ndarray) -> np.ndarray:
            own, control = share(*means[..., :n].T), share(*means[..., n:].T)
            control = np.maximum(control, at_least)
            room = np.where(control < 1, 1 - control, np.nan)
            return (own - control) / room

        columns = [*map(self.column, names), *map(self.control_column, names)]
        found = function_estimate(columns, of_means)
        found = self._over_draws(
            found, lambda e: e.share_beyond_control(names, share, at_least=at_least).value
        )
        if found.ci95 is None:
            return found
        return replace(found, ci95=(found.ci95[0], min(found.ci95[1], 1.0)))

    def share_of_means(
        self, names: Sequence[str], share: Callable[..., np.ndarray], *, control: bool
    ) -> Estimate:
        """The agreement itself, of the model or its control, on the texts of both.

        n is 0 of a control that there is not.
        """
        if control and self.control is None:
            return Estimate(float("nan"), None, 0)
        theirs = () if self.control is None else map(self.control.values, names)
        columns = [*map(self.column, names), *theirs]
        side = slice(len(names), None) if control else slice(len(names))
        return function_estimate(columns, lambda means: share(*means[..., side].T))

    def of_draw(self, draw: Texts) -> "Evidence":
        """This evidence with a single draw of the control."""
        return replace(self, control=draw, draws=(draw,))

    def where(self, wanted: np.ndarray) -> "Evidence":
        """This evidence on the texts that are wanted, bool [texts]."""
        control = None if self.control is None else self.control.where(wanted)
        draws = tuple(draw.where(wanted) for draw in self.draws)
        return replace(self, texts=self.texts.where(wanted), control=control, draws=draws)

    def _over_draws(self, found: Estimate, of_draw: Callable[["Evidence"], float]) -> Estimate:
        """The interval widened by the spread of draws that all texts share.

        √(texts² + draws²) on either side, the mean's over draws by Student's t; no
        interval where there is one such draw, since its spread is not known.
        """
        if not self.shares_draws or found.ci95 is None:
            return found
        if len(self.draws) < 2:
            return replace(found, ci95=None) if self.draws else found
        values = np.array([of_draw(self.of_draw(draw)) for draw in self.draws])
        values = values[~np.isnan(values)]  # a draw may not have got to these texts
        if len(values) < 2:
            return replace(found, ci95=None)
        half = student_t(len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
        low, high = found.ci95
        below = np.hypot(found.value - low, half)
        above = np.hypot(high - found.value, half)
        return replace(found, ci95=(float(found.value - below), float(found.value + above)))


def evidence_of(
    rows: Rows | pd.DataFrame,
    control: Control,
    *,
    words: Words = CLASSES,
    shares_draws: bool = False,
) -> Evidence | None:
    """The evidence in rows about the model's attention; None where no site stands for it.

    Args:
        rows: of an audit.
        control: rows of every draw of its control; of their long form a column ``draw``
            numbers them.
        words, shares_draws: see :class:`Evidence`.
    """
    rows = Rows.of(rows)
    site = site_of_model(rows)
    if site is None:
        return None
    texts = at_site(rows, site)
    held = draws_of(control)

    def beside(draw: Rows) -> Texts:
        return at_site(draw, site).of(texts.index)

    mean, draws = beside(mean_of(held)) if held else None, tuple(map(beside, held))
    return Evidence(texts, mean, draws, words, shares_draws)
