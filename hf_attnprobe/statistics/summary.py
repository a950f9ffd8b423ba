"""Summaries of audit rows: means over all texts, over each predicted class, and over bins.

The entry point is :func:`summarize`, which computes all means with their confidence intervals.
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
"""Name of the group that contains all texts.

Reports list means over this group, and over one group of texts for each predicted class.
"""
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
"""Rankings in the order in which the tables of a report list them.

Other rankings follow in alphabetical order.
"""


@dataclass(frozen=True, kw_only=True)
class Statistic(Estimate, StatisticKey):
    """Mean of a statistic over a group of texts, with its spread and confidence interval.

    Attributes:
        test, statistic, layer, head, group: see
            :class:`~hf_attnprobe.statistics.estimates.StatisticKey`.
        mean: mean over the texts with a value; NaN if there are none.
        median: median over these texts.
        std: standard deviation over these texts (``ddof=0``).
        ci95: 95% confidence interval for the mean; exact if the mean is a share.
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
        """Mean over the texts with a value; an alias for ``value``."""
        return self.value

    def build_table_row(self) -> dict[str, Any]:
        """Convert to a table row. The interval ends become the columns ci_low and ci_high.

        Returns:
            Values keyed by column name.
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
    """Average every statistic over all texts and over each predicted class.

    Copies of a text count once (:meth:`~hf_attnprobe.statistics.rows.Rows.merge_duplicates`).

    If a statistic is declared a share and its values are all 0 or 1, its confidence interval is
    exact. See :mod:`~hf_attnprobe.statistics.estimates` for the intervals of other means.

    Args:
        rows: audit rows, or a data frame in long form.
        label_names: class names.
        readings: descriptions of the statistics. They also determine the order of the result.

    Returns:
        One entry for each statistic, site and group of texts.
    """
    all_rows = Rows.coerce(rows).merge_duplicates()
    test_rows = all_rows.select_test_columns()
    groups = group_texts(all_rows, test_rows.index, label_names)
    statistics: list[Statistic] = []
    sorted_columns = sort_columns(test_rows.columns, readings)
    for columns, values in test_rows.iterate_matrices(sorted_columns):
        group_statistics = []
        for group, members in groups.items():
            group_values = values if group == ALL_TEXTS_GROUP else values[members]
            group_statistics.append(_summarize_columns(group_values, columns, group, readings))
        # All groups of one statistic follow each other.
        for column_statistics in zip(*group_statistics, strict=True):
            statistics += column_statistics
    return tuple(statistics)


def sort_columns(columns: Iterable[Column], readings: Readings) -> list[Column]:
    """Sort columns in the order in which reports list them.

    They are sorted by the order of their descriptions in ``readings``, then by site, then by key.

    Args:
        columns: column keys (test, statistic, layer, head).
        readings: descriptions of the statistics.

    Returns:
        The sorted columns. Columns without a description come last.
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
    """Group texts by predicted class, and add a group with all texts.

    Args:
        rows: audit rows with the predictions.
        texts: text ids.
        label_names: class names.

    Returns:
        Masks of the group members, bool [texts], keyed by group name.
    """
    groups: dict[str, np.ndarray] = {}
    if len(texts):
        groups[ALL_TEXTS_GROUP] = np.ones(len(texts), dtype=bool)
    predictions = select_predictions(rows).align_to(texts)
    return groups | group_by_class(predictions, label_names)


def group_by_class(predictions: Texts, label_names: Sequence[str]) -> dict[str, np.ndarray]:
    """Group texts by predicted class.

    Args:
        predictions: statistics that include ``predicted_class``.
        label_names: class names.

    Returns:
        Masks of the texts in each class, bool [texts], keyed by class name. Classes that are
        never predicted are left out.
    """
    predicted_classes = predictions.get_values("predicted_class")
    groups = {}
    for class_index, name in enumerate(make_group_names(label_names)):
        is_member = predicted_classes == class_index
        if is_member.any():
            groups[name] = is_member
    return groups


def make_group_names(label_names: Sequence[str]) -> list[str]:
    """Make a unique group name for each class.

    Args:
        label_names: class names, which need not be unique.

    Returns:
        Unique names, which also differ from :data:`ALL_TEXTS_GROUP`.

    >>> make_group_names(["all", "no", "no"])
    ['all (class 0)', 'no', 'no (class 2)']
    """
    group_names: list[str] = []
    for class_index, label_name in enumerate(label_names):
        name = str(label_name)
        if name in (ALL_TEXTS_GROUP, *group_names):
            name = f"{name} (class {class_index})"
        group_names.append(name)
    return group_names


def _summarize_columns(
    values: np.ndarray,
    columns: Sequence[Column],
    group: str,
    readings: Readings,
) -> list[Statistic]:
    """Average each column over the texts in a group.

    Args:
        values: values for the texts in the group, [texts, columns].
        columns: column keys (test, statistic, layer, head).
        group: group name.
        readings: descriptions of the statistics.

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
    """Parse the key of a statistic name, which is the part after "@".

    Args:
        statistic: statistic name, such as "regret@attention" or "share_of_largest@0.01".

    Returns:
        A number if the key is a number, otherwise the key itself. None if there is no key.
    """
    _, separator, key = statistic.partition("@")
    if not separator:
        return None
    try:
        return float(key)
    except ValueError:
        return key


def get_sort_key(statistic: str) -> tuple[int, float, str]:
    """Get a tuple that sorts statistic names by the part after "@", which is a number or a ranking.

    Numbers come first, in ascending order. Rankings follow in :data:`RANKING_ORDER`.

    Args:
        statistic: statistic name, with or without a key.

    Returns:
        A tuple for the argument ``key`` of :func:`sorted`.
    """
    key = parse_key(statistic)
    if key is None:
        return 0, 0.0, ""
    if isinstance(key, float):
        return 0, key, ""
    if key in RANKING_ORDER:
        return 1, RANKING_ORDER.index(key), key
    return 1, len(RANKING_ORDER), key


def describe_statistic(
    statistic: Statistic, readings: Readings, words: Wording = CLASS_WORDING
) -> str:
    """Describe a statistic in one sentence.

    Args:
        statistic: statistic to describe.
        readings: descriptions of the statistics, with their sentence templates.
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
    """Find a statistic by name, group and site.

    Args:
        statistics: statistics to search.
        name: statistic name, including its key if it has one.
        group: text group, such as a predicted class.
        layer: layer index.
        head: head index.

    Returns:
        The statistic. None if it has no value, because the test was not run or the class was
        never predicted.
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


# --- Rows for one site ------------------------------------------------------------------------


def find_model_site(rows: Rows | pd.DataFrame) -> tuple[int, int] | None:
    """Find the site that represents the model's whole attention.

    Args:
        rows: audit rows, or a data frame in long form.

    Returns:
        Layer and head: all heads together if they were tested, otherwise the only tested head.
        None if several heads were tested one by one.
    """
    sites = Rows.coerce(rows).sites
    # Layer −1 with head −1 means all attention.
    if (-1, -1) in sites:
        return -1, -1
    heads = [site for site in sites if min(site) >= 0]
    if len(heads) != 1:
        return None
    return heads[0]


def select_predictions(rows: Rows | pd.DataFrame) -> Texts:
    """Select the statistics about predictions and labels from audit rows.

    Args:
        rows: audit rows, or a data frame in long form.

    Returns:
        Statistics such as ``predicted_class``, ``probability`` and ``label``.
    """
    prediction_rows = Rows.coerce(rows).select(lambda test, *_: test == PREDICTION_TEST)
    return Texts.from_rows(prediction_rows)


def compute_accuracy(predictions: pd.DataFrame) -> pd.Series:
    """Compute each text's accuracy: the share of its labels that are predicted correctly.

    Args:
        predictions: one row per text, with the statistics from :func:`select_predictions`.

    Returns:
        Accuracies in [0, 1], indexed by text id; NaN for a text without labels.
    """
    if "correct" in predictions:
        return predictions.correct
    is_correct = (predictions.predicted_class == predictions.label).astype(float)
    return is_correct.where(predictions.label >= 0)


def select_site_texts(rows: Rows | pd.DataFrame, site: tuple[int, int]) -> Texts:
    """Select all test statistics at one site.

    Args:
        rows: audit rows, or a data frame in long form.
        site: layer and head.

    Returns:
        Statistics for the texts that were measured at this site.
    """
    test_rows = Rows.coerce(rows).select(lambda test, *_: test != PREDICTION_TEST)
    return Texts.from_site(test_rows, site)


# --- Attention weight bins --------------------------------------------------------------------


ATTENTION_BIN_EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Edges of the bins by which reports group texts according to their largest attention weight.

The bins are those of Figure 6 in Jain & Wallace 2019.
"""
N_ATTENTION_GAP_BINS = 10
"""Number of bins for the gap (difference) between two attention weights. Each bin is 0.1 wide."""
ROUNDING_TOLERANCE = 1e-9
"""Tolerance for rounding errors. Numbers that differ by less than this count as equal."""


def list_bin_names() -> list[str]:
    """List the names of the attention weight bins.

    Returns:
        Intervals such as "[0.00, 0.25)". The last bin includes its upper edge, 1.
    """
    edge_pairs = itertools.pairwise(ATTENTION_BIN_EDGES)
    names = [f"[{low:.2f}, {high:.2f})" for low, high in edge_pairs]
    names[-1] = names[-1].replace(")", "]")
    return names


def assign_attention_bins(max_attention: np.ndarray | pd.Series) -> pd.Categorical:
    """Assign each text to a bin by its largest attention weight.

    Args:
        max_attention: largest attention weights, [texts]; NaN for a text without a weight.

    Returns:
        Bin names, [texts]; missing for texts without a weight.
    """
    weights = np.asarray(max_attention, dtype=np.float64)
    bin_indices = np.digitize(weights, ATTENTION_BIN_EDGES[1:-1]).astype(np.int8)
    bin_indices[np.isnan(weights)] = -1
    return pd.Categorical.from_codes(bin_indices, list_bin_names())


QUARTILES = (0.25, 0.5, 0.75)
"""Quantile levels of the lower quartile, the median and the upper quartile."""


def compute_quantiles(
    values: np.ndarray | pd.Series, levels: Sequence[float] = QUARTILES
) -> list[float]:
    """Compute quantiles, ignoring NaN.

    Args:
        values: values, any of which may be NaN.
        levels: quantile levels in [0, 1].

    Returns:
        One quantile per level; NaN if all values are NaN.
    """
    defined_values = np.asarray(values, dtype=np.float64)
    defined_values = defined_values[~np.isnan(defined_values)]
    if not len(defined_values):
        return [float("nan")] * len(levels)
    return np.quantile(defined_values, levels, overwrite_input=True).tolist()


@dataclass(frozen=True)
class GapBin:
    """Group of texts with a similar difference Δα between two erased attention weights.

    ΔJS is the difference between the output changes that the two erasures cause.

    Attributes:
        name: interval for Δα, such as "[0.1, 0.2)".
        center: center of this interval.
        n: number of texts.
        median: median of ΔJS, in nats.
        quartiles: lower and upper quartile of ΔJS, in nats.
        negative_share: share of texts in which erasing the smaller weight changes the output
            more than erasing the larger one.
    """

    name: str
    center: float
    n: int
    median: float
    quartiles: tuple[float, float]
    negative_share: float


def bin_js_by_gap(delta_attention: np.ndarray, delta_js: np.ndarray) -> Iterator[GapBin]:
    """Group texts by the gap between two attention weights (Serrano & Smith 2019, Section 4.2).

    The two weights are the largest weight of the text and another weight. Each of them is erased, and
    the resulting output changes are compared in bins of width 0.1.

    Args:
        delta_attention: gap Δα, the largest weight minus the other weight, [texts].
        delta_js: ΔJS, the output change (JSD) without the largest weight minus the output change
            without the other weight, [texts]. Texts without these values are ignored.

    Yields:
        The bins that contain texts.
    """
    bin_indices = np.floor(np.asarray(delta_attention) * N_ATTENTION_GAP_BINS + ROUNDING_TOLERANCE)
    bin_indices = bin_indices.clip(0, N_ATTENTION_GAP_BINS - 1)
    delta_js = np.asarray(delta_js)
    for index in range(N_ATTENTION_GAP_BINS):
        is_in_bin = (bin_indices == index) & ~np.isnan(delta_js)
        bin_values = delta_js[is_in_bin]
        if not len(bin_values):
            continue
        low, high = index / N_ATTENTION_GAP_BINS, (index + 1) / N_ATTENTION_GAP_BINS
        bracket = "]" if index == N_ATTENTION_GAP_BINS - 1 else ")"
        first_quartile, median, third_quartile = compute_quantiles(bin_values)
        is_negative = bin_values < -ROUNDING_TOLERANCE
        yield GapBin(
            name=f"[{low:.1f}, {high:.1f}{bracket}",
            center=(index + 0.5) / N_ATTENTION_GAP_BINS,
            n=len(bin_values),
            median=median,
            quartiles=(first_quartile, third_quartile),
            negative_share=float(is_negative.mean()),
        )
