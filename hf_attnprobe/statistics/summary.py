"""Summaries of rows: means with intervals over all texts, by predicted class and by bin.

The entry point is :func:`summarize`, which computes all statistics of an audit.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hf_attnprobe.core.readings import Readings, get_sentence, is_declared_share
from hf_attnprobe.statistics.estimates import (
    Estimate,
    StatisticKey,
    compute_means_and_intervals,
)
from hf_attnprobe.statistics.rows import (
    COLUMN_FIELDS,
    PREDICTION_TEST,
    Column,
    Rows,
    Texts,
)
from hf_attnprobe.statistics.wording import CLASS_WORDING, Wording


ALL_TEXTS_GROUP = "all"
"""Name of the group of all texts. The other groups are the predicted classes."""
RANKING_ORDER = (
    "random",
    "attention",
    "gradient",
    "product",
    "leave_one_out",
    "input_gradient",
    "margin",
    "effective_attention",
    "norm_based",
)
"""Rankings, which are keys of ``statistic@key``, in the order of tables.

All other rankings follow in alphabetical order.
"""


@dataclass(frozen=True, kw_only=True)
class Statistic(Estimate, StatisticKey):
    """One number of an audit: the mean over the texts of a group, and how much texts differ.

    Attributes:
        test, statistic, layer, head, group: see
            :class:`~hf_attnprobe.statistics.estimates.StatisticKey`.
        mean: mean over the texts with a value; NaN if there are none.
        median: median over these texts.
        std: standard deviation over these texts, with ddof 0.
        ci95: 95% interval of the mean; exact for a share of texts.
        n: number of texts with a value.
        undefined: number of texts without a value.
    """

    value: float = field(metadata={"plain_name": "mean"})
    ci95: tuple[float, float] = field()
    n: int = field()
    median: float
    std: float
    undefined: int

    @property
    def mean(self) -> float:
        """Mean over the texts with a value, another name of ``value``."""
        return self.value

    def to_table_row(self) -> dict[str, Any]:
        """Convert to a row of a table, with the ends of the interval in two columns.

        Returns:
            Values by column name.
        """
        low, high = self.ci95
        numbers = {
            "group": self.group,
            "mean": self.mean,
            "median": self.median,
            "std": self.std,
            "n": self.n,
            "undefined": self.undefined,
            "ci_low": low,
            "ci_high": high,
        }
        return dict(zip(COLUMN_FIELDS, self.column, strict=True)) | numbers


def summarize(
    rows: Rows | pd.DataFrame, label_names: Sequence[str], readings: Readings
) -> tuple[Statistic, ...]:
    """Summarize all statistics of an audit over all texts and over each predicted class.

    A statistic is a share of texts if its reading declares a share and all of its values are 0
    or 1. Its interval is then exact. The intervals of other means are explained in
    :mod:`~hf_attnprobe.statistics.estimates`.

    Args:
        rows: audit rows, or a data frame in long form.
        label_names: class names.
        readings: test readings, which determine the order of the result.

    Returns:
        The statistics.
    """
    all_rows = Rows.coerce(rows)
    test_rows = all_rows.select_test_columns()
    groups = group_texts(all_rows, test_rows.index, label_names)
    statistics: list[Statistic] = []
    sorted_columns = sort_columns(test_rows.columns, readings)
    for columns, values in test_rows.iterate_matrices(sorted_columns):
        group_statistics = []
        for group, members in groups.items():
            group_values = values if group == ALL_TEXTS_GROUP else values[members]
            group_statistics.append(_summarize_columns(group_values, columns, group, readings))
        for column_statistics in zip(*group_statistics, strict=True):
            statistics += column_statistics
    return tuple(statistics)


def sort_columns(columns: Iterable[Column], readings: Readings) -> list[Column]:
    """Sort columns by the order of the readings, then by site, then by key.

    Args:
        columns: the columns.
        readings: test readings.

    Returns:
        The sorted columns; those without a reading come last.
    """
    families = [(test, name) for test in readings for name in readings[test]]
    family_ranks = {family: rank for rank, family in enumerate(families)}

    def get_column_sort_key(column: Column) -> tuple:
        test, statistic, *site = column
        family = test, statistic.split("@")[0]
        family_rank = family_ranks.get(family, len(family_ranks))
        return family_rank, tuple(site), get_sort_key(statistic)

    return sorted(columns, key=get_column_sort_key)


def group_texts(rows: Rows, texts: pd.Index, label_names: Sequence[str]) -> dict[str, np.ndarray]:
    """Group texts by predicted class, next to the group of all texts.

    Args:
        rows: audit rows with the predictions.
        texts: text ids.
        label_names: class names.

    Returns:
        Members of each group, bool [texts], by group name.
    """
    all_texts = {ALL_TEXTS_GROUP: np.ones(len(texts), dtype=bool)} if len(texts) else {}
    return all_texts | group_by_class(select_predictions(rows).align_to(texts), label_names)


def group_by_class(predictions: Texts, label_names: Sequence[str]) -> dict[str, np.ndarray]:
    """Group texts by predicted class.

    Args:
        predictions: statistics with ``predicted_class``.
        label_names: class names.

    Returns:
        Members of each class that is predicted at least once, bool [texts], by class name.
    """
    predicted = predictions.get_values("predicted_class")
    groups = {name: predicted == k for k, name in enumerate(make_group_names(label_names))}
    return {name: members for name, members in groups.items() if members.any()}


def make_group_names(label_names: Sequence[str]) -> list[str]:
    """Make unique names for the groups of texts by predicted class.

    Args:
        label_names: class names, which need not be unique.

    Returns:
        Unique names that differ from the name of the group of all texts.

    >>> make_group_names(["all", "no", "no"])
    ['all (class 0)', 'no', 'no (class 2)']
    """
    names = [ALL_TEXTS_GROUP]
    for k, name in enumerate(map(str, label_names)):
        names.append(f"{name} (class {k})" if name in names else name)
    return names[1:]


def _summarize_columns(
    values: np.ndarray,
    columns: Sequence[Column],
    group: str,
    readings: Readings,
) -> list[Statistic]:
    """Summarize the values of each column over the texts of a group.

    Args:
        values: [texts, columns].
        columns: the columns.
        group: group name.
        readings: test readings.

    Returns:
        One statistic per column.
    """
    is_share = [is_declared_share(test, name, readings) for test, name, *_ in columns]
    moments, ends = compute_means_and_intervals(values, np.array(is_share))
    statistics = []
    for index, (column, n) in enumerate(zip(columns, moments.n.tolist(), strict=True)):
        statistics.append(
            Statistic(
                *column,
                group,
                value=float(moments.mean[index]) if n else float("nan"),
                ci95=(float(ends[0, index]), float(ends[1, index])),
                n=n,
                median=compute_quantiles(values[:, index], [0.5])[0],
                std=float(np.sqrt(moments.m2[index] / n)) if n else float("nan"),
                undefined=len(values) - n,
            )
        )
    return statistics


def parse_key(statistic: str) -> float | str | None:
    """Parse the key of ``name@key``.

    Args:
        statistic: name of a statistic, with or without a key.

    Returns:
        A number, the ranking name, or None without a key.
    """
    _, separator, key = statistic.partition("@")
    if not separator:
        return None
    try:
        return float(key)
    except ValueError:
        return key


def get_sort_key(statistic: str) -> tuple[int, float, str]:
    """Get a key to sort statistics with the same name: numbers by value, then rankings.

    Args:
        statistic: name of a statistic, with or without a key.

    Returns:
        A tuple for sorting; rankings follow :data:`RANKING_ORDER`.
    """
    key = parse_key(statistic)
    if not isinstance(key, str):
        return 0, key or 0.0, ""
    rank = RANKING_ORDER.index(key) if key in RANKING_ORDER else len(RANKING_ORDER)
    return 1, rank, key


def describe_statistic(
    statistic: Statistic, readings: Readings, words: Wording = CLASS_WORDING
) -> str:
    """Describe a statistic in one sentence.

    Args:
        statistic: the statistic.
        readings: test readings, which contain the sentence templates.
        words: wording for the type of prediction.

    Returns:
        The sentence.
    """
    key = statistic.statistic.partition("@")[2]
    template = get_sentence(statistic.test, statistic.statistic, readings)
    return words.fill(template, mean=statistic.mean, median=statistic.median, key=key)


def find_statistic(
    statistics: Iterable[Statistic],
    name: str,
    *,
    group: str = ALL_TEXTS_GROUP,
    layer: int = 0,
    head: int = 0,
) -> Statistic | None:
    """Find a statistic that has a value.

    Args:
        statistics: the statistics to search.
        name: statistic name, with its key if it has one.
        group: group name of texts.
        layer: layer of the site.
        head: head of the site.

    Returns:
        The statistic; None if the audit does not have it, because the test was not run or the
        class was never predicted.
    """
    for statistic in statistics:
        is_match = (
            statistic.statistic == name
            and statistic.site == (layer, head)
            and statistic.group == group
        )
        if is_match and statistic.n:
            return statistic
    return None


# --- Rows of one site -------------------------------------------------------------------------


def find_model_site(rows: Rows | pd.DataFrame) -> tuple[int, int] | None:
    """Find the site that represents the attention of the whole model.

    Args:
        rows: audit rows, or a data frame in long form.

    Returns:
        Layer and head: all heads together if they were tested, otherwise the only tested head.
        None if several heads were tested one by one.
    """
    sites = Rows.coerce(rows).sites
    if (-1, -1) in sites:
        return -1, -1
    heads = [site for site in sites if min(site) >= 0]
    if len(heads) != 1:
        return None
    return heads[0]


def select_predictions(rows: Rows | pd.DataFrame) -> Texts:
    """Select the statistics that describe the predictions.

    Args:
        rows: audit rows, or a data frame in long form.

    Returns:
        Statistics such as ``predicted_class``, ``probability`` and ``label``.
    """
    return Texts.from_rows(Rows.coerce(rows).select(lambda test, *_: test == PREDICTION_TEST))


def compute_accuracy(predictions: pd.DataFrame) -> pd.Series:
    """Compute the share of each text's labels that are predicted correctly.

    Args:
        predictions: statistics by text, from :func:`select_predictions`.

    Returns:
        Shares in [0, 1] by id; NaN for a text without labels.
    """
    if "correct" in predictions:
        return predictions.correct
    is_correct = (predictions.predicted_class == predictions.label).astype(float)
    return is_correct.where(predictions.label >= 0)


def select_site_texts(rows: Rows | pd.DataFrame, site: tuple[int, int]) -> Texts:
    """Select the statistics that tests measured at one site.

    Args:
        rows: audit rows, or a data frame in long form.
        site: layer and head.

    Returns:
        The statistics at this site.
    """
    rows = Rows.coerce(rows)
    return Texts.from_site(rows.select(lambda test, *_: test != PREDICTION_TEST), site)


# --- Bins of attention weights ----------------------------------------------------------------


ATTENTION_BINS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Edges of the bins of the largest weight of a text, as in Jain & Wallace 2019, Figure 6."""
N_GAP_BINS = 10
"""Number of equally wide bins for the difference between two attention weights."""
ROUNDING_TOLERANCE = 1e-9
"""Largest difference of two outputs that can be caused by rounding."""


def list_bin_names() -> list[str]:
    """List the names of the bins of attention weights, which are intervals.

    Returns:
        Names such as "[0.00, 0.25)". The last bin includes a weight of exactly 1.
    """
    pairs = itertools.pairwise(ATTENTION_BINS)
    names = [f"[{low:.2f}, {high:.2f})" for low, high in pairs]
    names[-1] = f"{names[-1][:-1]}]"
    return names


def assign_attention_bins(max_attention: np.ndarray | pd.Series) -> pd.Categorical:
    """Assign each text to a bin by its largest attention weight.

    Args:
        max_attention: largest weight of each text, [texts]; NaN for a text without a weight.

    Returns:
        Names of the bins, [texts]; missing for texts without a weight.
    """
    weights = np.asarray(max_attention, dtype=np.float64)
    bin_indices = np.digitize(weights, ATTENTION_BINS[1:-1]).astype(np.int8)
    bin_indices[np.isnan(weights)] = -1
    return pd.Categorical.from_codes(bin_indices, list_bin_names())


QUARTILES = (0.25, 0.5, 0.75)
"""Levels of the quartiles."""


def compute_quantiles(
    values: np.ndarray | pd.Series, levels: Sequence[float] = QUARTILES
) -> list[float]:
    """Compute quantiles of the defined values.

    Args:
        values: the values; NaN is ignored.
        levels: levels of the quantiles, in [0, 1].

    Returns:
        One quantile per level; NaN if no value is defined.
    """
    defined_values = np.asarray(values, dtype=np.float64)
    defined_values = defined_values[~np.isnan(defined_values)]
    if not len(defined_values):
        return [float("nan")] * len(levels)
    return np.quantile(defined_values, levels, overwrite_input=True).tolist()


@dataclass(frozen=True)
class GapBin:
    """Texts with a similar gap Δα between the two erased weights.

    Attributes:
        name: interval of Δα.
        center: center of this interval.
        n: number of texts.
        median: median of ΔJS, in nats.
        quartiles: lower and upper quartile of ΔJS, in nats.
        negative_share: share of the texts in which erasing the smaller weight changes the output
            more than erasing the larger one.
    """

    name: str
    center: float
    n: int
    median: float
    quartiles: tuple[float, float]
    negative_share: float


def bin_js_by_gap(delta_attention: np.ndarray, delta_js: np.ndarray) -> Iterator[GapBin]:
    """Group ΔJS by Δα in bins of width 0.1 (Serrano & Smith 2019, Section 4.2).

    Args:
        delta_attention: Δα, the largest weight minus the other erased weight, [texts].
        delta_js: ΔJS, the output change without the largest weight minus the output change
            without the other one, [texts]. Texts without either value are ignored.

    Yields:
        The bins that contain texts.
    """
    bin_indices = np.floor(np.asarray(delta_attention) * N_GAP_BINS + ROUNDING_TOLERANCE)
    bin_indices = bin_indices.clip(0, N_GAP_BINS - 1)
    delta_js = np.asarray(delta_js)
    for index in range(N_GAP_BINS):
        bin_values = delta_js[(bin_indices == index) & ~np.isnan(delta_js)]
        if not len(bin_values):
            continue
        low, high = index / N_GAP_BINS, (index + 1) / N_GAP_BINS
        bracket = "]" if index == N_GAP_BINS - 1 else ")"
        first_quartile, median, third_quartile = compute_quantiles(bin_values)
        yield GapBin(
            f"[{low:.1f}, {high:.1f}{bracket}",
            (index + 0.5) / N_GAP_BINS,
            len(bin_values),
            median,
            (first_quartile, third_quartile),
            float((bin_values < -ROUNDING_TOLERANCE).mean()),
        )
