"""Faithfulness of a ranking: its position on a scale from a random order, 0, to the best order, 1.

A ranking orders the tokens of a text by importance. Its faithfulness is the mean of several parts, which
are measured with the same model and on the same texts. A negative value means that the ranking is worse
than random. The parts for classifiers are:

importance  Mean Gini correlation between the ranking and the output changes when single words are
            exchanged for words of texts with another prediction (test ``exchange``).
erasure     (random − ranking) / (random − best). The three numbers are the mean shares of attention
            weights that are erased until the decision has lost nine tenths of its margin. The result
            is multiplied by the share of texts in which any order achieves this.
removal     (ranking − random) / (best − random). The three numbers are the mean output changes when
            the first words of each order are exchanged together.
mass        (overlap − chance) / (1 − chance). The overlap compares the attention weights with the
            output change when each word is exchanged.

If no word can be exchanged, for example because the model predicts the same class for all texts, then
words are deleted instead for importance, removal and mass (test ``scale``).

The parts for language models that answer from a passage are measured in nats. Here the units of the
passage, such as its sentences, are ranked instead of tokens:

order       Mean Gini correlation between the ranking and the loss when each unit is deleted.
drop        (ranking − random) / (best − random). The three numbers are the answer's mean losses
            without the first units of each order.
source      How often the first unit is the source of the answer: 1 means always, and 0 means as often
            as the best baseline. The baselines are a random unit, the longest, the first and the last
            unit, and the unit at the most common position.

A part counts if it was measured for at least ten texts. At least two parts are needed. If a time limit
ended a test before it ran on the texts that an answer requires, the parts of this test do not count either,
so that a few texts do not make the interval of many texts wider. All parts are functions of means over
texts, so a jackknife gives the confidence interval for faithfulness (Miller 1974).
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


MIN_FAITHFULNESS_PARTS = 2
"""Smallest number of faithfulness parts, such as importance and erasure, for a faithfulness score."""
NO_ESTIMATE = Estimate(float("nan"), None, 0)
"""Placeholder for the estimate of a number that was not measured."""
MIN_SCALE_LENGTH = 1e-9
"""Smallest length of a scale, that is, the smallest difference between its ends.

Positions on a shorter scale are NaN, because they would mainly consist of rounding errors.
"""

MeanFunction = Callable[[np.ndarray], np.ndarray]
"""Function that computes one number, [...], from the means of several statistics, [..., statistics]."""


@dataclass(frozen=True)
class Part:
    """Definition of one faithfulness part, such as erasure.

    Attributes:
        key: name of the part.
        columns: names of the required statistics, with the placeholder ``{}`` for the ranking.
        combine: function that maps the means of these statistics, [..., columns], to positions
            on the scale, [...]. The means only include texts with all statistics.
        reach_statistic: statistic that is 1 for a text in which any order has an effect, and 0
            otherwise. The position is multiplied by its mean. Empty if there is none.
        is_share: whether the first statistic is 0 or 1 for each text. The part's confidence
            interval is then at least as wide as the exact interval for this share.
        fallback: part that replaces this one if no word was exchanged. None if this part does not
            need exchanged words.
        test: name of the faithfulness test that measures the required statistics.
    """

    key: str
    columns: Sequence[str]
    combine: MeanFunction
    reach_statistic: str = ""
    is_share: bool = False
    fallback: "Part | None" = None
    test: str = ""

    def resolve(self, texts: Texts) -> "Part":
        """Return the part that the texts allow: this one, or its fallback.

        Args:
            texts: statistics at one site.
        """
        if self.fallback is None or has_exchanges(texts):
            return self
        return self.fallback

    def format_statistic_names(self, ranking: str) -> list[str]:
        """Insert a ranking into the statistic names, as in "removal@attention".

        Args:
            ranking: ranking name.

        Returns:
            The required statistic names.
        """
        return [column.format(ranking) for column in self.columns]


def compute_scale_position(start: np.ndarray, value: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Rescale a number linearly, such that ``start`` becomes 0 and ``end`` becomes 1.

    Args:
        start: number that is mapped to 0.
        value: number to rescale.
        end: number that is mapped to 1.

    Returns:
        (value − start) / (end − start); NaN if start and end are equal up to rounding.
    """
    length = np.abs(end - start)
    return (value - start) / np.where(length > MIN_SCALE_LENGTH, end - start, np.nan)


def _take_first_mean(means: np.ndarray) -> np.ndarray:
    """Return the first of several means, for parts whose first statistic is a score from 0 to 1."""
    return means[..., 0]


def _compute_position_to_best(means: np.ndarray) -> np.ndarray:
    """Compute (ranking − random) / (best − random) from three means.

    Args:
        means: means for a random order, for the ranking and for the best order, [..., 3].

    Returns:
        Positions, [...]: 0 if the ranking is as good as a random order, 1 if it is the best order.
    """
    random, ranking, best = np.moveaxis(means, -1, 0)
    return compute_scale_position(random, ranking, best)


def _compute_position_above_baselines(means: np.ndarray) -> np.ndarray:
    """Compute (value − best baseline) / (1 − best baseline).

    Args:
        means: mean to rescale, followed by the means of all baselines, [..., 1 + baselines].

    Returns:
        Positions, [...]: 0 if the value equals the largest baseline, 1 if the value is 1.
    """
    value = means[..., 0]
    best_baseline = means[..., 1:].max(-1)
    return compute_scale_position(best_baseline, value, np.ones_like(value))


EXCHANGE_STATISTIC = "exchange_importance@attention"
"""Name of a statistic that is only defined in texts whose words could be exchanged."""


def has_exchanges(texts: Texts) -> bool:
    """Check whether words were exchanged in any text, so that faithfulness is measured by exchange.

    Args:
        texts: statistics at one site.
    """
    return not np.isnan(texts.get_values(EXCHANGE_STATISTIC)).all()


DELETION_IMPORTANCE = Part("importance", ("importance@{}",), _take_first_mean, test="scale")
DELETION_REMOVAL = Part(
    "removal",
    ("removal@random", "removal@{}", "removal@best"),
    _compute_position_to_best,
    test="scale",
)
DELETION_MASS = Part(
    "mass", ("mass@{}", "mass_by_chance@{}"), _compute_position_above_baselines, test="scale"
)
IMPORTANCE = Part(
    "importance",
    ("exchange_importance@{}",),
    _take_first_mean,
    fallback=DELETION_IMPORTANCE,
    test="exchange",
)
ERASURE = Part(
    key="erasure",
    columns=(
        "fraction_to_lose_lead@random",
        "fraction_to_lose_lead@{}",
        "fraction_to_lose_lead@best",
    ),
    combine=_compute_position_to_best,
    reach_statistic="lead_is_lost",
    test="erasure",
)
REMOVAL = Part(
    "removal",
    ("exchange_removal@random", "exchange_removal@{}", "exchange_removal@best"),
    _compute_position_to_best,
    fallback=DELETION_REMOVAL,
    test="exchange",
)
MASS = Part(
    "mass",
    ("exchange_mass@{}", "exchange_mass_by_chance@{}"),
    _compute_position_above_baselines,
    fallback=DELETION_MASS,
    test="exchange",
)
DELETION_PARTS = (DELETION_IMPORTANCE, ERASURE, DELETION_REMOVAL, DELETION_MASS)
"""Parts of a classifier's faithfulness if words are deleted instead of exchanged."""
CLASSIFIER_PARTS = (IMPORTANCE, ERASURE, REMOVAL, MASS)
"""Parts of a classifier's faithfulness, in the order in which reports list them.

Faithfulness is the mean of its parts.
"""


COMMONEST_POSITION_STATISTIC = "source_found@place"
"""Name of the statistic that measures how often a position baseline finds the source of an answer.

The baseline guesses that the source is the unit at the most common position, such as the first sentence.
"""
SOURCE_BASELINES = {
    "chance": "source_found@chance",
    "longest": "source_found@length",
    "first": "source_found@first",
    "last": "source_found@last",
    "commonest place": COMMONEST_POSITION_STATISTIC,
}
"""Maps each baseline to the statistic that measures how often it finds the source of an answer.

The baselines are simple guesses without attention. For example, "first" always guesses the first unit of
the passage.
"""
ORDER = Part("order", ("source_agreement@{}",), _take_first_mean, test="sources")
DROP = Part(
    "drop", ("drop@random", "drop@{}", "drop@best"), _compute_position_to_best, test="sources"
)
SOURCE_STATISTICS = ("source_found@{}", *SOURCE_BASELINES.values())
"""Names of the statistics that show how often the source of an answer is found.

The source is the unit of the passage on which the answer depends most. In the first name, ``{}`` is
replaced by the name of a ranking, such as ``source_found@attention``. The other names belong to
guesses without attention, such as ``source_found@first`` for the first unit.
"""
SOURCE = Part(
    "source",
    SOURCE_STATISTICS,
    _compute_position_above_baselines,
    is_share=True,
    test="sources",
)
ANSWER_PARTS = (ORDER, DROP, SOURCE)
"""Parts of a language model's faithfulness, in the order in which reports list them.

Faithfulness is the mean of its parts.
"""


def add_commonest_position(texts: Texts) -> Texts:
    """Add a baseline that guesses that the source is at the most common position.

    For each text, the most common position is determined from all other texts. Otherwise the
    baseline would often be right by chance if there are few texts. If k positions are equally
    common and one of them is right, the value is 1/k, as for a random choice among them.

    Args:
        texts: statistics at one site, including ``source_place``, the position of the source.

    Returns:
        The texts with an additional statistic; unchanged without ``source_place``.
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
    """Faithfulness of a ranking, on the scale from a random order, 0, to the best order, 1.

    Attributes:
        score: mean over the parts; its n is 0 if fewer than two parts were measured.
        parts: the measured parts by key.
    """

    score: Estimate
    parts: dict[str, Estimate]


@dataclass(frozen=True)
class _PartData:
    """Statistics that a faithfulness part requires, for each text.

    Attributes:
        part: the faithfulness part.
        values: required statistics, [texts, columns]; 0 for texts that lack a statistic.
        has_values: whether a text has all required statistics, bool [texts].
        is_reached: the part's reach statistic (see :class:`Part`), [texts]. If the part has none,
            it is 1 for texts with all required statistics.
        counts_for_reach: whether a text has a value in ``is_reached``, bool [texts].
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
        """Matrix whose column means are the input of :meth:`compute_position`."""
        flags = np.stack([self.has_values, self.is_reached, self.counts_for_reach], axis=1)
        return np.concatenate([flags, self.values], axis=1)

    def compute_position(self, means: np.ndarray) -> np.ndarray:
        """Compute the position on the scale from the column means of :attr:`stacked`.

        Args:
            means: column means, [..., 3 + columns].

        Returns:
            Positions, [...].
        """
        # The first three columns are has_values, is_reached and counts_for_reach.
        value_share, reached_share, counted_share = np.moveaxis(means[..., :3], -1, 0)
        value_divisor = np.where(value_share > 0, value_share, np.nan)
        counted_divisor = np.where(counted_share > 0, counted_share, np.nan)
        # Dividing by the share of texts with values gives the means over these texts.
        statistic_means = means[..., 3:] / value_divisor[..., None]
        reach = reached_share / counted_divisor
        position = self.part.combine(statistic_means) * reach
        # If no text is reached, the position is 0. If there is no text, the position is NaN.
        return np.where(reached_share > 0, position, reach)

    @property
    def exact_margins(self) -> np.ndarray:
        """Smallest allowed distances from the position to the ends of its confidence interval, [2].

        If the part is a share, they are computed from the exact interval for this share. Otherwise
        they are 0.
        """
        if not self.part.is_share:
            return np.zeros(2)
        n = self.has_values.sum()
        hits = self.values[self.has_values, 0].sum()
        share_ends = compute_share_interval(hits, n)
        # The position is computed for the measured share and for both ends of its interval. The
        # mean of the share over all texts is column 3.
        means = self.stacked.mean(0)
        means_at_ends = np.stack([means, means, means])
        means_at_ends[1:, 3] = share_ends * n / len(self.values)
        position, low, high = self.compute_position(means_at_ends)
        return np.array([position - low, high - position])


def _collect_part_data(part: Part, texts: Texts, ranking: str) -> _PartData | None:
    """Collect the statistics that a faithfulness part requires.

    Args:
        part: faithfulness part.
        texts: statistics at one site.
        ranking: ranking name.

    Returns:
        The statistics for all texts. None if a statistic is missing, or if no text has a value.
    """
    part = part.resolve(texts)
    names = part.format_statistic_names(ranking)
    values = np.stack([texts.get_values(name) for name in names], axis=1)
    has_values = ~np.isnan(values).any(1)
    # The reach statistic is 1 for texts in which any order of the weights has an effect.
    if part.reach_statistic:
        is_reached = texts.get_values(part.reach_statistic)
        counts_for_reach = ~np.isnan(is_reached)
    else:
        is_reached = has_values.astype(float)
        counts_for_reach = has_values

    has_all_statistics = set(names) <= set(texts.statistic_names)
    is_measured = has_values.any() or counts_for_reach.any()
    if not has_all_statistics or not is_measured:
        return None
    counted_values = np.where(has_values[:, None], values, 0.0)
    counted_reach = np.where(counts_for_reach, is_reached, 0.0)
    return _PartData(part, counted_values, has_values, counted_reach, counts_for_reach)


def compute_faithfulness(
    texts: Texts, ranking: str = "attention", parts: Sequence[Part] = CLASSIFIER_PARTS
) -> Faithfulness:
    """Compute the faithfulness of a ranking, the mean of its parts.

    A random order has faithfulness 0, and the best order has faithfulness 1.

    Args:
        texts: statistics at one site.
        ranking: ranking name, such as "attention" or "input_gradient".
        parts: faithfulness parts for this type of model.

    Returns:
        Faithfulness and its parts, with 95% confidence intervals.
    """
    counted_parts = _list_counted_parts(texts, ranking, parts)
    part_estimates = {}
    for part_data in counted_parts:
        part_estimates[part_data.part.key] = _estimate_parts([part_data])
    score = NO_ESTIMATE
    if len(counted_parts) >= MIN_FAITHFULNESS_PARTS:
        score = _estimate_parts(counted_parts)
    return Faithfulness(score, part_estimates)


def estimate_part(texts: Texts, part: Part, ranking: str = "attention") -> Estimate:
    """Estimate a single faithfulness part for a ranking.

    Args:
        texts: statistics at one site.
        part: the part to estimate.
        ranking: ranking name.

    Returns:
        The estimate. Its n is 0 if the part was not measured, or if a random order is as good as
        the best order.
    """
    measured_parts = _list_measured_parts(texts, ranking, [part])
    return _estimate_parts(measured_parts) if measured_parts else NO_ESTIMATE


def compute_contributions(
    texts: Texts,
    ranking: str = "attention",
    parts: Sequence[Part] = CLASSIFIER_PARTS,
    *,
    min_parts: int = MIN_FAITHFULNESS_PARTS,
) -> np.ndarray | None:
    """Compute how much each text contributes to faithfulness, to compare models text by text.

    The mean of the contributions is the faithfulness, with a correction for bias.

    Args:
        texts: statistics at one site.
        ranking: ranking name.
        parts: faithfulness parts for this type of model.
        min_parts: smallest number of measured parts.

    Returns:
        Jackknife pseudo-values, [texts]; None if too few parts were measured.
    """
    measured_parts = _list_counted_parts(texts, ranking, parts)
    if len(measured_parts) < min_parts:
        return None
    stacked_columns, compute_mean_position = _build_mean_position(measured_parts)
    _, pseudo_values = compute_pseudo_values(stacked_columns, compute_mean_position)
    return pseudo_values


def _list_measured_parts(texts: Texts, ranking: str, parts: Sequence[Part]) -> list[_PartData]:
    """Collect the statistics of all parts that were measured and whose score is defined.

    A score is undefined if a random order is as good as the best order.
    """
    measured_parts = []
    for part in parts:
        part_data = _collect_part_data(part, texts, ranking)
        if part_data is not None and np.isfinite(_estimate_parts([part_data]).value):
            measured_parts.append(part_data)
    return measured_parts


def _list_counted_parts(texts: Texts, ranking: str, parts: Sequence[Part]) -> list[_PartData]:
    """Collect the statistics of all parts that count for faithfulness.

    Parts with fewer than :data:`MIN_DISPLAYED_TEXTS` texts do not count, unless too few parts would
    remain for a faithfulness score.
    """
    measured_parts = _list_measured_parts(texts, ranking, parts)
    large_parts = [part_data for part_data in measured_parts if part_data.n >= MIN_DISPLAYED_TEXTS]
    return large_parts if len(large_parts) >= MIN_FAITHFULNESS_PARTS else measured_parts


def _estimate_parts(measured_parts: Sequence[_PartData]) -> Estimate:
    """Estimate faithfulness: the mean position of several parts on the scale from 0 to 1.

    The confidence interval is at least as wide as :attr:`_PartData.exact_margins` require, and it
    never exceeds 1.
    """
    stacked_columns, compute_mean_position = _build_mean_position(measured_parts)
    is_counted = np.any([part_data.counts_for_reach for part_data in measured_parts], axis=0)
    n = int(is_counted.sum())
    estimate = replace(estimate_function_of_means(stacked_columns, compute_mean_position), n=n)
    if estimate.ci95 is None:
        return estimate
    low, high = estimate.ci95
    exact_margins = np.mean([part_data.exact_margins for part_data in measured_parts], axis=0)
    margin_below, margin_above = exact_margins.tolist()
    low = min(low, estimate.value - margin_below)
    high = max(high, estimate.value + margin_above)
    return replace(estimate, ci95=(low, min(high, 1.0)))


def _build_mean_position(
    measured_parts: Sequence[_PartData],
) -> tuple[list[np.ndarray], MeanFunction]:
    """Build a function that computes faithfulness from the means of statistics over texts.

    With such a function, a jackknife can compute the confidence interval for faithfulness.

    Args:
        measured_parts: statistics of each part.

    Returns:
        The columns of all parts, each [texts], and the function. It computes the mean position of
        the parts from the means of these columns.
    """
    matrices = [part_data.stacked for part_data in measured_parts]
    widths = [matrix.shape[1] for matrix in matrices]
    boundaries = np.cumsum(widths)[:-1]

    def compute_mean_position(means: np.ndarray) -> np.ndarray:
        means_by_part = np.split(means, boundaries, axis=-1)
        positions = [
            part_data.compute_position(part_means)
            for part_data, part_means in zip(measured_parts, means_by_part, strict=True)
        ]
        return np.mean(positions, axis=0)

    all_columns = np.concatenate(matrices, axis=1)
    return list(all_columns.T), compute_mean_position


# --- Default classes ----------------------------------------------------------------------------

MAX_DEFAULT_CLASS_LOSS = 0.1
"""Limit for the loss of probability when the most important token is left out of a text.

The mean loss in the texts of a default class is certainly smaller, because such a class is predicted
unless the text points to another class.
"""
LARGEST_LOSS_STATISTIC = "largest_loss"
"""Name of the statistic that measures the largest loss of probability when one token is left out."""


def find_default_classes(
    texts: Texts,
    classes: Mapping[str, np.ndarray],
    parts: Sequence[Part] = CLASSIFIER_PARTS,
) -> list[str]:
    """Find classes that the model predicts if nothing in a text points to another class.

    A class is a default class if no token is important in its texts, and if their faithfulness
    is certainly lower than in other texts (or undefined, because nothing is important).

    Args:
        texts: statistics at one site.
        classes: masks of the texts in each predicted class, bool [texts], keyed by class name.
        parts: faithfulness parts for this type of model.

    Returns:
        Names of the default classes; empty if the rule would select all classes.
    """
    default_classes = []
    for name, members in classes.items():
        if members.sum() < MIN_CLASS_TEXTS or members.all():
            continue
        class_texts = texts.select(members)
        largest_loss = estimate_mean(class_texts.get_values(LARGEST_LOSS_STATISTIC))
        if largest_loss.ci95 is None or largest_loss.ci95[1] >= MAX_DEFAULT_CLASS_LOSS:
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
"""Smallest number of texts for a separate evaluation of a predicted class."""
