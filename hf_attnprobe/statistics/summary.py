"""Summarises rows: means with intervals, over all texts, by predicted class and by bin.

Pure: a data frame in, statistics and plain words out.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hf_attnprobe.core.readings import Readings, is_declared_share, sentence_of
from hf_attnprobe.statistics.estimates import (
    Estimate,
    Key,
    means,
)
from hf_attnprobe.statistics.rows import (
    COLUMNS,
    PREDICTION,
    Column,
    Rows,
    Texts,
)
from hf_attnprobe.statistics.wording import CLASSES, Words


ALL_TEXTS = "all"  # the group of all, beside those of predicted classes
RANKINGS = (
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
"""Rankings as keys of ``statistic@key``, in table order; others follow by name."""


@dataclass(frozen=True, kw_only=True)
class Statistic(Estimate, Key):
    """One number of an audit, over the texts of one group: the mean and how texts differ.

    Attributes:
        test, statistic, layer, head, group: see :class:`~hf_attnprobe.statistics.estimates.Key`.
        mean: over the texts that have a value; NaN where none has.
        median: likewise.
        std: likewise, with ddof 0.
        ci95: 95% interval of the mean, exact for a share of texts.
        n: texts that have a value.
        undefined: texts that have none; they count in nothing.
    """

    value: float = field(metadata={"written_as": "mean"})
    ci95: tuple[float, float] = field()
    n: int = field()
    median: float
    std: float
    undefined: int

    @property
    def mean(self) -> float:
        """The value, beside median and standard deviation."""
        return self.value

    def row(self) -> dict[str, Any]:
        """Returns a row of a table, with the ends of the interval apart."""
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
        return dict(zip(COLUMNS, self.column, strict=True)) | numbers


def summarize(
    rows: Rows | pd.DataFrame, label_names: Sequence[str], readings: Readings
) -> tuple[Statistic, ...]:
    """All statistics of a run, for all texts and for the texts of each predicted class.

    A statistic whose reading says that it is a share, and whose values are all 0 or 1,
    is a share of texts and has an exact interval; others have those of ``estimates.py``.

    Args:
        rows: of an audit, or their long form.
        label_names: names of the model's classes.
        readings: of the tests; their order is that of the result.
    """
    every = Rows.of(rows)
    tested = every.of_tests()
    groups = groups_of_texts(every, tested.index, label_names)
    statistics: list[Statistic] = []
    for columns, values in tested.in_parts(in_order(tested.columns, readings)):
        by_group = [
            _describe(
                values if name == ALL_TEXTS else values[members],
                columns,
                name,
                readings,
            )
            for name, members in groups.items()
        ]
        for of_column in zip(*by_group, strict=True):
            statistics += of_column
    return tuple(statistics)


def in_order(columns: Iterable[Column], readings: Readings) -> list[Column]:
    """Columns by the order of the readings, then by site, then by key."""
    families = [(test, name) for test in readings for name in readings[test]]
    order = {family: k for k, family in enumerate(families)}

    def place(column: Column) -> tuple:
        test, statistic, *site = column
        family = test, statistic.split("@")[0]
        return order.get(family, len(order)), tuple(site), position(statistic)

    return sorted(columns, key=place)


def groups_of_texts(
    rows: Rows, texts: pd.Index, label_names: Sequence[str]
) -> dict[str, np.ndarray]:
    """All texts, and those of each class that is predicted, by name: bool [texts]."""
    everyone = {ALL_TEXTS: np.ones(len(texts), dtype=bool)} if len(texts) else {}
    return everyone | groups_by_class(predictions_of(rows).of(texts), label_names)


def groups_by_class(predictions: Texts, label_names: Sequence[str]) -> dict[str, np.ndarray]:
    """The texts of each class that is predicted, by its name: bool [texts]."""
    predicted = predictions.values("predicted_class")
    groups = {name: predicted == k for k, name in enumerate(group_names(label_names))}
    return {name: members for name, members in groups.items() if members.any()}


def group_names(label_names: Sequence[str]) -> list[str]:
    """Unique names of the groups of texts by predicted class; none is "all".

    >>> group_names(["all", "no", "no"])
    ['all (class 0)', 'no', 'no (class 2)']
    """
    names = [ALL_TEXTS]
    for k, name in enumerate(map(str, label_names)):
        names.append(f"{name} (class {k})" if name in names else name)
    return names[1:]


def _describe(
    values: np.ndarray,
    columns: Sequence[Column],
    group: str,
    readings: Readings,
) -> list[Statistic]:
    """One statistic per column of values [texts, columns]."""
    declared = [is_declared_share(test, name, readings) for test, name, *_ in columns]
    of, ends = means(values, np.array(declared))
    described = []
    for k, (column, n) in enumerate(zip(columns, of.n.tolist(), strict=True)):
        described.append(
            Statistic(
                *column,
                group,
                value=float(of.mean[k]) if n else float("nan"),
                ci95=(float(ends[0, k]), float(ends[1, k])),
                n=n,
                median=quantiles(values[:, k], [0.5])[0],
                std=float(np.sqrt(of.m2[k] / n)) if n else float("nan"),
                undefined=len(values) - n,
            )
        )
    return described


def key_of(statistic: str) -> float | str | None:
    """The key of ``name@key``: a number, a ranking, or None without a key."""
    _, at, key = statistic.partition("@")
    if not at:
        return None
    try:
        return float(key)
    except ValueError:
        return key


def position(statistic: str) -> tuple[int, float, str]:
    """A sort key among keys of one name: numbers by value, then rankings in order."""
    key = key_of(statistic)
    if not isinstance(key, str):
        return 0, key or 0.0, ""
    place = RANKINGS.index(key) if key in RANKINGS else len(RANKINGS)
    return 1, place, key


def sentence(statistic: Statistic, readings: Readings, words: Words = CLASSES) -> str:
    """The statistic as one sentence in plain words, those of the kind of prediction."""
    key = statistic.statistic.partition("@")[2]
    said = sentence_of(statistic.test, statistic.statistic, readings)
    return words.fill(said, mean=statistic.mean, median=statistic.median, key=key)


def find_statistic(
    statistics: Iterable[Statistic],
    name: str,
    *,
    group: str = ALL_TEXTS,
    layer: int = 0,
    head: int = 0,
) -> Statistic | None:
    """The number of a statistic that has a value.

    Returns:
        None where the audit has none: the test was not run, or the class was never
        predicted.
    """
    for found in statistics:
        is_here = found.place == (layer, head) and found.group == group
        if found.n and found.statistic == name and is_here:
            return found
    return None


# --- rows of one site -------------------------------------------------------------------------


def site_of_model(rows: Rows | pd.DataFrame) -> tuple[int, int] | None:
    """Returns the layer and head that represent the model's attention.

    All heads at once where they were tested so, else the only head; None where several
    heads were tested one by one.
    """
    sites = Rows.of(rows).sites
    if (-1, -1) in sites:
        return -1, -1
    heads = [site for site in sites if min(site) >= 0]
    if len(heads) != 1:
        return None
    return heads[0]


def predictions_of(rows: Rows | pd.DataFrame) -> Texts:
    """What is said of the texts' predictions."""
    return Texts.among(Rows.of(rows).select(lambda test, *_: test == PREDICTION))


def is_right(predictions: pd.DataFrame) -> pd.Series:
    """Share of a text's labels predicted right, in [0, 1]; NaN without labels.

    Args:
        predictions: statistics by text, of :func:`predictions_of`.
    """
    if "correct" in predictions:
        return predictions.correct
    right = (predictions.predicted_class == predictions.label).astype(float)
    return right.where(predictions.label >= 0)


def at_site(rows: Rows | pd.DataFrame, site: tuple[int, int]) -> Texts:
    """What tests measured of the texts at one site."""
    rows = Rows.of(rows)
    return Texts.at(rows.select(lambda test, *_: test != PREDICTION), site)


# --- bins of attention weights ----------------------------------------------------------------


ATTENTION_BINS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the largest weight, as Jain & Wallace 2019, Figure 6."""
N_GAP_BINS = 10
BY_ROUNDING = 1e-9
"""Differences of outputs up to this one may come from rounding."""


def bin_names() -> list[str]:
    """Names of the bins as intervals; the last one includes a weight of exactly 1."""
    pairs = itertools.pairwise(ATTENTION_BINS)
    names = [f"[{low:.2f}, {high:.2f})" for low, high in pairs]
    names[-1] = f"{names[-1][:-1]}]"
    return names


def attention_bin(max_attention: np.ndarray | pd.Series) -> pd.Categorical:
    """The name of the bin of every text's largest weight; none without a weight."""
    weights = np.asarray(max_attention, dtype=np.float64)
    number = np.digitize(weights, ATTENTION_BINS[1:-1]).astype(np.int8)
    number[np.isnan(weights)] = -1
    return pd.Categorical.from_codes(number, bin_names())


QUARTERS = (0.25, 0.5, 0.75)


def quantiles(values: np.ndarray | pd.Series, shares: Sequence[float] = QUARTERS) -> list[float]:
    """Quantiles of the values that there are; NaN without any."""
    own = np.asarray(values, dtype=np.float64)
    own = own[~np.isnan(own)]
    if not len(own):
        return [float("nan")] * len(shares)
    return np.quantile(own, shares, overwrite_input=True).tolist()


@dataclass(frozen=True)
class GapBin:
    """Texts whose largest weight exceeds the other erased one by about as much.

    Attributes:
        name: the interval of Δα.
        middle: of it.
        n: texts.
        median, quartiles: of ΔJS, in nats.
        negative: the share of texts in which the smaller weight moved the output more.
    """

    name: str
    middle: float
    n: int
    median: float
    quartiles: tuple[float, float]
    negative: float


def js_by_gap(delta_attention: np.ndarray, delta_js: np.ndarray) -> Iterator[GapBin]:
    """ΔJS in tenths of Δα that some text is in (Serrano & Smith 2019, Section 4.2).

    Args:
        delta_attention: how much larger the largest weight is than the other one, [texts].
        delta_js: how much farther the output moves without it. Texts without a value of
            either are left out.
    """
    number = np.floor(np.asarray(delta_attention) * N_GAP_BINS + BY_ROUNDING)
    number = number.clip(0, N_GAP_BINS - 1)
    delta_js = np.asarray(delta_js)
    for k in range(N_GAP_BINS):
        texts = delta_js[(number == k) & ~np.isnan(delta_js)]
        if not len(texts):
            continue
        low, high = k / N_GAP_BINS, (k + 1) / N_GAP_BINS
        end = "]" if k == N_GAP_BINS - 1 else ")"
        first, median, third = quantiles(texts)
        yield GapBin(
            f"[{low:.1f}, {high:.1f}{end}",
            (k + 0.5) / N_GAP_BINS,
            len(texts),
            median,
            (first, third),
            float((texts < -BY_ROUNDING).mean()),
        )
