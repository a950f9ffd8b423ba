"""Faithfulness on one scale: 0 is a random order of the tokens, 1 is the best order.

Faithfulness is the mean of several parts. Each part is measured within the same model and on the
same texts, and is a function of means over texts. For classifiers:

importance  mean Gini correlation of the ranking with leave-one-out;
erasure     (random − ranking) / (random − best), from the mean shares of the weights that are erased
            until nine tenths of the decision's margin are lost, times the share of texts in which any
            order achieves this. A text in which no order does counts as 0;
removal     (ranking − random) / (best − random), from the mean losses without the first tokens of a
            ranking;
mass        (overlap − chance) / (1 − chance), from the mean overlaps of the weights with the
            importances of the tokens.

For language models that answer from a passage, in nats and over the units of the passage:

order       mean Gini correlation of the ranking with the loss when each unit is deleted;
drop        (ranking − random) / (best − random), from the mean losses of the answer without the first
            units of a ranking;
source      how often the first unit is the one on which the answer is based. 0 is the largest share
            that a baseline without attention reaches (chance, the longest, the first or the last
            unit, or the most common position), and 1 means always.

Only parts that were measured for at least ten texts count, and at least two parts are needed. All parts
are smooth functions of means, so a single jackknife over texts gives the interval of the mean (Miller
1974). Negative values are worse than random.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hf_attnprobe.statistics.estimates import (
    MIN_DISPLAYED_TEXTS,
    Estimate,
    compute_pseudo_values,
    compute_share_interval,
    estimate_function_of_means,
    estimate_mean,
)
from hf_attnprobe.statistics.rows import Texts


MIN_PARTS = 2
"""Smallest number of measured parts from which faithfulness is computed."""
NO_ESTIMATE = Estimate(float("nan"), None, 0)
"""Estimate of a number that was not measured."""
MIN_SCALE_LENGTH = 1e-9
"""Smallest difference between a random order and the best order; with less there is no scale."""

MeanFunction = Callable[[np.ndarray], np.ndarray]
"""Function from means over texts, [..., columns], to a number, [...]."""


@dataclass(frozen=True)
class Part:
    """A part of faithfulness.

    Attributes:
        key: name of the part.
        columns: names of the statistics of the part, with a placeholder for the ranking.
        combine: function from the means of these statistics over the texts that have all of
            them, [..., columns], to the position on the scale, [...].
        reach_statistic: statistic that is 1 for a text in which any order has an effect, and
            otherwise 0. Its mean multiplies the position. Empty if there is none.
        is_share: whether the first column is a share of texts. The interval of the part is then
            at least as wide as the exact interval of this share.
    """

    key: str
    columns: Sequence[str]
    combine: MeanFunction
    reach_statistic: str = ""
    is_share: bool = False

    def format_statistic_names(self, ranking: str) -> list[str]:
        """Format the names of the statistics for a ranking.

        Args:
            ranking: ranking name.

        Returns:
            One name per column.
        """
        return [column.format(ranking) for column in self.columns]


def compute_scale_position(start: np.ndarray, value: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Compute the position of a number on the scale from a start, 0, to an end, 1.

    Args:
        start: number at position 0.
        value: the number.
        end: number at position 1.

    Returns:
        (value − start) / (end − start); NaN if start and end are equal up to rounding.
    """
    length = np.abs(end - start)
    return (value - start) / np.where(length > MIN_SCALE_LENGTH, end - start, np.nan)


def _take_first_mean(means: np.ndarray) -> np.ndarray:
    """Return the first mean, which is a position on the scale already."""
    return means[..., 0]


def _compute_position_to_best(means: np.ndarray) -> np.ndarray:
    """Compute the position of a ranking, given the means of a random, this and the best order."""
    random, ranking, best = np.moveaxis(means, -1, 0)
    return compute_scale_position(random, ranking, best)


def _compute_position_above_baselines(means: np.ndarray) -> np.ndarray:
    """Compute the position of the first mean from the largest of the other means, 0, to 1."""
    value, best_baseline = means[..., 0], means[..., 1:].max(-1)
    return compute_scale_position(best_baseline, value, np.ones_like(value))


LEAD_LOSS_PREFIX = "fraction_to_lose_lead@"
"""Name, without ranking, of the share of weights erased until the margin is lost."""
IMPORTANCE = Part("importance", ("importance@{}",), _take_first_mean)
ERASURE = Part(
    "erasure",
    (f"{LEAD_LOSS_PREFIX}random", f"{LEAD_LOSS_PREFIX}{{}}", f"{LEAD_LOSS_PREFIX}best"),
    _compute_position_to_best,
    reach_statistic="lead_is_lost",
)
REMOVAL = Part(
    "removal", ("removal@random", "removal@{}", "removal@best"), _compute_position_to_best
)
MASS = Part("mass", ("mass@{}", "mass_by_chance@{}"), _compute_position_above_baselines)
CLASSIFIER_PARTS = (IMPORTANCE, ERASURE, REMOVAL, MASS)
"""Parts of faithfulness for classifiers, in the order of reports."""


COMMONEST_POSITION_STATISTIC = "source_found@place"
"""Statistic of the baseline that always selects the most common position of a source."""
SOURCE_BASELINES = {
    "chance": "source_found@chance",
    "longest": "source_found@length",
    "first": "source_found@first",
    "last": "source_found@last",
    "commonest place": COMMONEST_POSITION_STATISTIC,
}
"""Baselines that select a unit without attention, with the statistic of how often it is right."""
ORDER = Part("order", ("source_agreement@{}",), _take_first_mean)
DROP = Part("drop", ("drop@random", "drop@{}", "drop@best"), _compute_position_to_best)
SOURCE_STATISTICS = ("source_found@{}", *SOURCE_BASELINES.values())
"""Statistics of the part "source"."""
SOURCE = Part("source", SOURCE_STATISTICS, _compute_position_above_baselines, is_share=True)
ANSWER_PARTS = (ORDER, DROP, SOURCE)
"""Parts of faithfulness for language models that answer from a passage."""


def add_commonest_position(texts: Texts) -> Texts:
    """Add the statistic of the baseline that selects the most common position of a source.

    The most common position is determined without the text itself, so that with few texts the
    baseline is not right by chance. If several positions are equally common, one of them is drawn
    at random: the value is 1 divided by their number if one of them is right.

    Args:
        texts: statistics at one site.

    Returns:
        The texts with the additional statistic; unchanged without ``source_place``.
    """
    if "source_place" not in texts:
        return texts
    position = texts.get_values("source_place")
    values = np.full(len(position), np.nan)
    is_defined = ~np.isnan(position)
    _, position_index, counts = np.unique(
        position[is_defined], return_inverse=True, return_counts=True
    )
    is_text_position = position_index[:, None] == np.arange(len(counts))
    counts_without_text = counts - is_text_position
    max_count = counts_without_text.max(1, initial=0, keepdims=True)
    is_commonest = counts_without_text == max_count
    n_right = (is_commonest & is_text_position).sum(1)
    values[is_defined] = n_right / is_commonest.sum(1)

    def read_statistic(name: str) -> np.ndarray:
        return values if name == COMMONEST_POSITION_STATISTIC else texts.read_statistic(name)

    names = (*texts.statistic_names, COMMONEST_POSITION_STATISTIC)
    return replace(texts, statistic_names=names, read_statistic=read_statistic)


@dataclass(frozen=True)
class Faithfulness:
    """Position of a ranking on the scale from a random order, 0, to the best order, 1.

    Attributes:
        score: mean of the parts; its n is 0 if fewer than two parts were measured.
        parts: the measured parts by key.
    """

    score: Estimate
    parts: dict[str, Estimate]


@dataclass(frozen=True)
class _PartColumns:
    """Values of a part by text, prepared for means over all texts.

    Attributes:
        part: the part.
        values: statistics of the part, [texts, columns]; 0 for texts that do not count.
        has_values: whether a text counts because it has all statistics, bool [texts].
        is_reached: reach statistic, [texts]; 1 for counting texts if the part has no such
            statistic.
        counts_for_reach: whether a text has a reach statistic, bool [texts].
    """

    part: Part
    values: np.ndarray
    has_values: np.ndarray
    is_reached: np.ndarray
    counts_for_reach: np.ndarray

    @property
    def n(self) -> int:
        """Number of texts for which the part was measured."""
        return int(self.counts_for_reach.sum())

    @property
    def stacked(self) -> np.ndarray:
        """Columns whose means :meth:`compute_position` takes, [texts, 3 + columns]."""
        flags = np.stack([self.has_values, self.is_reached, self.counts_for_reach], axis=1)
        return np.concatenate([flags, self.values], axis=1)

    def compute_position(self, means: np.ndarray) -> np.ndarray:
        """Compute the position on the scale from the means of :attr:`stacked`.

        Args:
            means: [..., 3 + columns].

        Returns:
            [...].
        """
        value_share, reached_share, counted_share = np.moveaxis(means[..., :3], -1, 0)
        value_divisor = np.where(value_share > 0, value_share, np.nan)
        counted_divisor = np.where(counted_share > 0, counted_share, np.nan)
        # Dividing by the share of the texts with values gives the means over these texts.
        statistic_means = means[..., 3:] / value_divisor[..., None]
        reach = reached_share / counted_divisor
        position = self.part.combine(statistic_means) * reach
        # If no text is reached, the position is 0; without any text it is NaN.
        return np.where(reached_share > 0, position, reach)

    @property
    def exact_margins(self) -> np.ndarray:
        """Distances from the position to the ends of the exact interval of its share, [2].

        Both are 0 if the part is not a share.
        """
        if not self.part.is_share:
            return np.zeros(2)
        means = self.stacked.mean(0)
        n = self.has_values.sum()
        hits = self.values[self.has_values, 0].sum()
        ends = np.stack([means, means, means])
        share_ends = compute_share_interval(hits, n)
        ends[1:, 3] = share_ends * n / len(self.values)
        value, low, high = self.compute_position(ends)
        return np.array([value - low, high - value])


def _collect_columns(part: Part, texts: Texts, ranking: str) -> _PartColumns | None:
    """Collect the columns of a part; None if no text has them."""
    names = part.format_statistic_names(ranking)
    values = np.stack([texts.get_values(name) for name in names], axis=1)
    has_values = ~np.isnan(values).any(1)
    is_reached, counts_for_reach = has_values.astype(float), has_values
    if part.reach_statistic:
        is_reached = texts.get_values(part.reach_statistic)
        counts_for_reach = ~np.isnan(is_reached)

    is_measured = has_values.any() or counts_for_reach.any()
    if not is_measured or not set(names) <= set(texts.statistic_names):
        return None
    counted_values = np.where(has_values[:, None], values, 0.0)
    counted_reach = np.where(counts_for_reach, is_reached, 0.0)
    return _PartColumns(part, counted_values, has_values, counted_reach, counts_for_reach)


def compute_faithfulness(
    texts: Texts, ranking: str = "attention", parts: Sequence[Part] = CLASSIFIER_PARTS
) -> Faithfulness:
    """Compute the faithfulness of a ranking with its parts.

    Args:
        texts: statistics at one site.
        ranking: ranking name, such as "attention" or "input_gradient".
        parts: parts for this type of model.

    Returns:
        Faithfulness and its parts.
    """
    columns = _list_counted_parts(texts, ranking, parts)
    part_estimates = {c.part.key: _estimate_parts([c]) for c in columns}
    score = _estimate_parts(columns) if len(columns) >= MIN_PARTS else NO_ESTIMATE
    return Faithfulness(score, part_estimates)


def estimate_part(texts: Texts, part: Part, ranking: str = "attention") -> Estimate:
    """Estimate the position of a ranking by a single part.

    Args:
        texts: statistics at one site.
        part: the part.
        ranking: ranking name.

    Returns:
        The estimate; its n is 0 if the part was not measured or has no scale.
    """
    columns = _list_measured_parts(texts, ranking, [part])
    return _estimate_parts(columns) if columns else NO_ESTIMATE


def compute_contributions(
    texts: Texts,
    ranking: str = "attention",
    parts: Sequence[Part] = CLASSIFIER_PARTS,
    *,
    min_parts: int = MIN_PARTS,
) -> np.ndarray | None:
    """Compute the contribution of each text to faithfulness, for paired differences.

    Args:
        texts: statistics at one site.
        ranking: ranking name.
        parts: parts for this type of model.
        min_parts: smallest number of measured parts.

    Returns:
        Jackknife pseudo-values, [texts]; None if too few parts were measured.
    """
    columns = _list_counted_parts(texts, ranking, parts)
    if len(columns) < min_parts:
        return None
    return compute_pseudo_values(*_build_mean_position(columns))[1]


def _list_measured_parts(texts: Texts, ranking: str, parts: Sequence[Part]) -> list[_PartColumns]:
    """List the parts that were measured and have a scale."""
    measured_parts = []
    for part in parts:
        columns = _collect_columns(part, texts, ranking)
        if columns is not None and np.isfinite(_estimate_parts([columns]).value):
            measured_parts.append(columns)
    return measured_parts


def _list_counted_parts(texts: Texts, ranking: str, parts: Sequence[Part]) -> list[_PartColumns]:
    """List the parts whose mean is taken.

    Parts with few texts are left out if enough parts with many texts remain.
    """
    measured_parts = _list_measured_parts(texts, ranking, parts)
    large_parts = [columns for columns in measured_parts if columns.n >= MIN_DISPLAYED_TEXTS]
    return large_parts if len(large_parts) >= MIN_PARTS else measured_parts


def _estimate_parts(columns: Sequence[_PartColumns]) -> Estimate:
    """Estimate the mean position of several parts, with an interval that ends at 1 at most.

    The interval is at least as wide as the exact intervals of those parts that are shares require.
    """
    stacked_columns, compute_mean_position = _build_mean_position(columns)
    is_counted = np.any([c.counts_for_reach for c in columns], axis=0)
    n = int(is_counted.sum())
    estimate = replace(estimate_function_of_means(stacked_columns, compute_mean_position), n=n)
    if estimate.ci95 is None:
        return estimate
    low, high = estimate.ci95
    exact_margins = np.mean([c.exact_margins for c in columns], axis=0)
    below, above = exact_margins.tolist()
    low = min(low, estimate.value - below)
    high = max(high, estimate.value + above)
    return replace(estimate, ci95=(low, min(high, 1.0)))


def _build_mean_position(
    columns: Sequence[_PartColumns],
) -> tuple[list[np.ndarray], MeanFunction]:
    """Build the mean position of several parts as a function of means over texts.

    Returns:
        Columns of all parts, each [texts], and the function of their means.
    """
    part_columns = [c.stacked for c in columns]
    widths = [stacked.shape[1] for stacked in part_columns]
    boundaries = np.cumsum(widths)[:-1]

    def compute_mean_position(means: np.ndarray) -> np.ndarray:
        part_means = np.split(means, boundaries, axis=-1)
        positions = [
            c.compute_position(means_of_part)
            for c, means_of_part in zip(columns, part_means, strict=True)
        ]
        return np.mean(positions, axis=0)

    all_columns = np.concatenate(part_columns, axis=1)
    return list(all_columns.T), compute_mean_position


# --- Default classes ----------------------------------------------------------------------------

MAX_DEFAULT_LOSS = 0.1
"""Loss of probability below which even the most important token of a text does not matter.

It is measured at the standard temperature. If the mean over the texts of a class is certainly lower,
these texts have nothing to highlight.
"""
LARGEST_LOSS_STATISTIC = "largest_loss"
"""Statistic with the loss of probability without the most important token of a text."""


def find_default_classes(
    texts: Texts,
    classes: Mapping[str, np.ndarray],
    parts: Sequence[Part] = CLASSIFIER_PARTS,
) -> list[str]:
    """Find the classes that are predicted unless something in a text points to another class.

    In the default-class texts no token is important, and faithfulness is certainly below that
    of the other texts (or undefined, because nothing is important).

    Args:
        texts: statistics at one site.
        classes: texts of each predicted class, bool [texts], by class name.
        parts: faithfulness parts for this type of model.

    Returns:
        Names of the default classes; empty if all classes would be.
    """
    default_classes = []
    for name, members in classes.items():
        if members.sum() < MIN_CLASS_TEXTS or members.all():
            continue
        class_texts = texts.select(members)
        largest_loss = estimate_mean(class_texts.get_values(LARGEST_LOSS_STATISTIC))
        if largest_loss.ci95 is None or largest_loss.ci95[1] >= MAX_DEFAULT_LOSS:
            continue
        class_interval = compute_faithfulness(class_texts, parts=parts).score.ci95
        other_texts = texts.select(~members)
        other_interval = compute_faithfulness(other_texts, parts=parts).score.ci95
        if other_interval is None:
            continue
        if class_interval is None or class_interval[1] < other_interval[0]:
            default_classes.append(name)
    return default_classes if len(default_classes) < len(classes) else []


MIN_CLASS_TEXTS = 10
"""Smallest number of texts of a class that can be recognised as a default class."""
