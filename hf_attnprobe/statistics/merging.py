"""Summaries of parts of the texts that merge into the summary of all of them.

Of every column (test, statistic, site) and every predicted class: how many texts have a
value, mean and sums of squares and cubes about it (Chan, Golub & LeVeque 1983; Pébay
2008), smallest and largest, and counts in fixed bins. Texts of all classes together are
the classes merged. Merging is commutative to the last bit and associative to rounding, so
whoever merges in the order of the parts gets the same bits.

What is paired by text (a mean difference; how many texts of each label are right) has an
interval that those of the means do not give. Such columns are derived while the texts are
at hand, and merge as any other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from hf_attnprobe.readings import Readings, is_declared_share
from hf_attnprobe.statistics.estimates import (
    Estimate,
    interval_of,
    interval_of_pairs,
    moments,
    share_interval,
)
from hf_attnprobe.statistics.scores import PROBABILITY_BINS, Quality
from hf_attnprobe.statistics.summary import ALL_TEXTS, PREDICTION, Statistic, group_names, in_order


# --- values of a part -------------------------------------------------------------------------


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


# --- what is paired by text -------------------------------------------------------------------


LESS = " − "
PAIRS = {
    "input_erasure": (
        ("comprehensiveness@attention", "comprehensiveness@random"),
        ("comprehensiveness@mean_attention", "comprehensiveness@random"),
    )
}
"""Differences that answers grade, by test."""
RIGHT, GAP = "right − label ", "right − probability "


def is_derived(statistic: str) -> bool:
    """Whether a column was computed from others and not by a test."""
    return LESS in statistic


def difference_of(statistic: str, other: str) -> str:
    """The name of a paired difference."""
    return f"{statistic}{LESS}{other}"


def with_derived(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks with their derived columns."""
    for block in blocks:
        of_labels = _of_labels(block) if block.test == PREDICTION else {}
        columns = {**block.columns, **_differences(block), **of_labels}
        yield replace(block, columns=columns)


def _differences(block: Block) -> dict[str, Column]:
    columns = {}
    for one, other in PAIRS.get(block.test, ()):
        if one in block.columns and other in block.columns:
            first, second = block.columns[one], block.columns[other]
            columns[difference_of(one, other)] = Column(
                first.values - second.values, first.is_missing | second.is_missing
            )
    return columns


def _of_labels(block: Block) -> dict[str, Column]:
    """Columns for accuracy and calibration, computed from labels and probabilities."""
    label, predicted = block.at("label"), block.at("predicted_class")
    labelled = label >= 0
    is_right = (label == predicted).astype(np.float64)
    columns = {
        f"{RIGHT}{int(k)}": _where(labelled & (label == k), is_right)
        for k in np.unique(label[labelled])
    }
    probability = block.at("probability")
    known = labelled & ~np.isnan(probability)
    place = np.where(known, probability, 0) * PROBABILITY_BINS
    bins = np.minimum(place.astype(int), PROBABILITY_BINS - 1)
    for k in np.unique(bins[known]):
        columns[f"{GAP}{k}"] = _where(known & (bins == k), is_right - probability)
    return columns


def _where(wanted: np.ndarray, values: np.ndarray) -> Column:
    column = np.where(wanted, values, np.nan)[:, None]
    return Column(column, np.isnan(column))


# --- bins -------------------------------------------------------------------------------------


PER_UNIT = 1024
COARSE = 16  # fine bins in a coarse one
MOST_EXPONENT = 1024  # of a float64, as frexp counts
_LAST = PER_UNIT * 1026  # of infinity
_OFFSET = 2 * PER_UNIT * PER_UNIT  # so that no column is negative
N_BINS = 2 * _OFFSET


def bin_of(values: np.ndarray) -> np.ndarray:
    """The number of each value's bin, int64; negative for values below 0.

    >>> bin_of(np.array([0.0, 0.0009, 0.5, 1.0, 3.0, -0.0009])).tolist()
    [0, 0, 512, 1024, 2560, -1]
    """
    size = np.abs(values)
    mantissa, exponent = np.frexp(np.where(np.isfinite(size), size, 0.0))
    beyond = PER_UNIT * exponent + np.floor((2 * mantissa - 1) * PER_UNIT)
    number = np.where(size < 1, np.floor(np.minimum(size, 1) * PER_UNIT), beyond)
    number = np.where(np.isinf(size), _LAST, number).astype(np.int64)
    return np.where(values < 0, -1 - number, number)


def edges(number: int, width: int = 1) -> tuple[float, float]:
    """Lower and upper edge of ``width`` bins from ``number`` on.

    >>> edges(512), edges(-1)
    ((0.5, 0.5009765625), (-0.0009765625, 0.0))
    """
    if number < 0:
        return -_edge(-number), -_edge(-number - width) + 0.0
    return _edge(number), _edge(number + width)


def _edge(number: int) -> float:
    exponent, step = divmod(number, PER_UNIT)
    if exponent == 0:
        return step / PER_UNIT
    if exponent > MOST_EXPONENT:
        return float("inf")
    return float(np.ldexp(1 + step / PER_UNIT, exponent - 1))


def histogram(values: np.ndarray, *, coarse: bool = False) -> csr_array:
    """Counts [columns, bins], of the values that are there.

    Args:
        values: [texts, columns]; NaN where a text has none.
        coarse: whether 16 bins share a count.
    """
    text, column = np.nonzero(~np.isnan(values))
    numbers = bin_of(values[text, column])
    if coarse:
        numbers = numbers // COARSE * COARSE
    places = (column, numbers + _OFFSET)
    ones = np.ones(len(text), dtype=np.int64)
    return csr_array((ones, places), shape=(values.shape[1], N_BINS))


def coarsened(counts: csr_array, rows: np.ndarray) -> csr_array:
    """The histogram with coarse bins in the given rows [rows]."""
    if not rows.any():
        return counts
    entries = counts.tocoo()
    row, column = entries.coords
    rough = (column - _OFFSET) // COARSE * COARSE + _OFFSET
    column = np.where(rows[row], rough, column)
    return csr_array((entries.data, (row, column)), shape=counts.shape)


def to_lists(counts: csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets of the rows, and numbers and counts of their bins, in order."""
    counts = counts.copy()
    counts.sum_duplicates()
    return counts.indptr, counts.indices - _OFFSET, counts.data


def from_lists(offsets: np.ndarray, numbers: np.ndarray, counts: np.ndarray) -> csr_array:
    """The inverse of :func:`to_lists`."""
    data = counts.astype(np.int64), numbers.astype(np.int64) + _OFFSET, offsets
    return csr_array(data, shape=(len(offsets) - 1, N_BINS))


def quantile(
    numbers: np.ndarray,
    counts: np.ndarray,
    share: float,
    *,
    width: int = 1,
    n_zero: int = 0,
    n_one: int = 0,
) -> float:
    """A quantile as ``numpy.quantile`` gives it, to within its bin.

    Args:
        numbers, counts: of the bins of one column, [bins], in rising order.
        share: from 0 to 1.
        width: 1, or 16 for coarse bins.
        n_zero, n_one: how many values are exactly 0 and 1; these are met exactly.
    """
    ends = np.cumsum(counts)
    place = share * (ends[-1] - 1)
    below, above = int(np.floor(place)), int(np.ceil(place))
    exact = {0: n_zero, PER_UNIT: n_one}
    low, high = (_value_at(rank, numbers, ends, width, exact) for rank in (below, above))
    return low + (place - below) * (high - low)


def _value_at(
    rank: int, numbers: np.ndarray, ends: np.ndarray, width: int, exact: dict[int, int]
) -> float:
    """The value at a rank (from 0), spread evenly over its bin."""
    k = int(np.searchsorted(ends, rank, side="right"))
    first = int(ends[k - 1]) if k else 0
    low, high = edges(int(numbers[k]), width)
    at_edge = exact.get(int(numbers[k]), 0)
    if rank - first < at_edge:
        return low
    between = (rank - first - at_edge + 0.5) / (int(ends[k]) - first - at_edge)
    return low + between * (high - low)


# --- summaries --------------------------------------------------------------------------------


KEYS = ("cell", "test", "statistic", "layer", "head")
NO_CLASS = -1  # the cell of texts without one predicted class
EVERY = -2  # the cell of all texts, of what is pooled
MOST_CLASSES = 16  # that are kept apart
MOST_SITES = 64  # of a test whose single heads are kept in full


@dataclass(frozen=True)
class Partial:
    """A summary of some texts; rows are columns of values within a cell.

    Attributes:
        keys: cell (number of the predicted class, −1 without), test, statistic, layer
            and head of each row, sorted.
        n: texts that have a value, int64 [rows]; n_zero, n_one: of these exactly so.
        mean: of these, [rows]; 0 where there are none. m2, m3: Σ (value − mean)²,
            and cubed.
        low, high: smallest and largest value, [rows].
        is_brief: bool [rows]: one of so many heads that its bins are coarse.
        bins: counts [rows, bins].
        texts: the number of tested texts by cell.
    """

    keys: pd.MultiIndex
    n: np.ndarray
    n_zero: np.ndarray
    n_one: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    m3: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_brief: np.ndarray
    bins: csr_array
    texts: dict[int, int]

    def rows(self, wanted: np.ndarray) -> "Partial":
        """Some of the rows: bool or int [rows]."""
        return replace(
            self,
            keys=self.keys[wanted],
            bins=self.bins[wanted],
            **{name: getattr(self, name)[wanted] for name in ARRAYS},
        )


ARRAYS = (
    "n",
    "n_zero",
    "n_one",
    "mean",
    "m2",
    "m3",
    "low",
    "high",
    "is_brief",
)
"""Fields of :class:`Partial` with a row each."""
NEUTRAL = {"low": np.inf, "high": -np.inf}  # others are 0


def summary_of_part(blocks: Sequence[Block], n_classes: int) -> Partial:
    """The summary of the texts of a part.

    Args:
        blocks: the tests' values, and those of the prediction.
        n_classes: of the model; of more than 16 the texts are not kept apart by class.
    """
    cells = _cells(blocks, n_classes)
    pieces = []
    for block in blocks:
        own = cells.reindex(block.example_ids).fillna(NO_CLASS).to_numpy(dtype=int)
        for cell in np.unique(own):
            inside = own == cell
            for names in _at_once(block):
                pieces.append(_piece(block, names, cell, inside))
    tested = [b.example_ids for b in blocks if b.test != PREDICTION]
    ids = np.unique(np.concatenate(tested)) if tested else np.empty(0, dtype=int)
    counted = cells.reindex(ids).fillna(NO_CLASS).astype(int).value_counts()
    texts = {int(cell): int(n) for cell, n in sorted(counted.items())}
    return _sorted(replace(_joined([nothing(), *pieces]), texts=texts))


def nothing() -> Partial:
    """The empty summary: the neutral element of merging."""
    whole, real = np.empty(0, dtype=np.int64), np.empty(0)
    return Partial(
        keys=pd.MultiIndex.from_arrays([[]] * len(KEYS), names=KEYS),
        n=whole,
        n_zero=whole,
        n_one=whole,
        mean=real,
        m2=real,
        m3=real,
        low=real,
        high=real,
        is_brief=np.empty(0, dtype=bool),
        bins=histogram(np.empty((0, 0))),
        texts={},
    )


def _cells(blocks: Iterable[Block], n_classes: int) -> pd.Series:
    """The number of the predicted class by text."""
    for block in blocks:
        if block.test == PREDICTION and n_classes <= MOST_CLASSES:
            predicted = np.nan_to_num(block.at("predicted_class"), nan=NO_CLASS)
            return pd.Series(predicted.astype(int), index=block.example_ids)
    return pd.Series(dtype=int)


def _at_once(block: Block) -> list[list[str]]:
    """Statistics that are summarised together: of many heads only one, for memory."""
    if len(block.sites) > MOST_SITES:
        return [[name] for name in block.columns]
    return [list(block.columns)] if block.columns else []


def _piece(
    block: Block,
    names: Sequence[str],
    cell: int,
    inside: np.ndarray,
) -> Partial:
    """Some statistics of the texts of one cell, at the sites that have them."""
    columns = [block.columns[name] for name in names]
    there = ~np.concatenate([c.is_missing.all(0) for c in columns])
    values = np.concatenate([c.values[inside] for c in columns], axis=1)[:, there]
    places = [(name, layer, head) for name in names for layer, head in block.sites]
    places = [place for place, is_there in zip(places, there, strict=True) if is_there]
    many = len(block.sites) > MOST_SITES
    single = np.array([layer >= 0 and head >= 0 for _, layer, head in places])
    is_brief = single.astype(bool) & many
    keys = [(int(cell), block.test, *place) for place in places]
    of = moments(values)
    return Partial(
        keys=pd.MultiIndex.from_tuples(keys, names=KEYS),
        n=of.n.astype(np.int64),
        n_zero=(values == 0).sum(0),
        n_one=(values == 1).sum(0),
        mean=of.mean,
        m2=of.m2,
        m3=of.m3,
        low=of.low,
        high=of.high,
        is_brief=is_brief,
        bins=coarsened(histogram(values), is_brief),
        texts={},
    )


def _joined(pieces: Sequence[Partial]) -> Partial:
    """Rows of several summaries one below the other."""
    keys = [key for piece in pieces for key in piece.keys]
    stacked = _stacked([piece.bins for piece in pieces])
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(p, name) for p in pieces]) for name in ARRAYS
    }
    index = pd.MultiIndex.from_tuples(keys, names=KEYS) if keys else pieces[0].keys
    return replace(pieces[0], keys=index, bins=stacked, **arrays)


def _stacked(counts: Sequence[csr_array]) -> csr_array:
    """Rows of sparse counts one below the other."""
    sizes = np.concatenate([np.diff(block.indptr) for block in counts])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    data = np.concatenate([block.data for block in counts])
    columns = np.concatenate([block.indices for block in counts])
    shape = len(sizes), counts[0].shape[1]
    return csr_array((data, columns, offsets), shape=shape)


def _sorted(partial: Partial) -> Partial:
    order = partial.keys.argsort() if len(partial.keys) else np.empty(0, dtype=int)
    return partial.rows(order)


def merge(first: Partial, second: Partial) -> Partial:
    """Merges two summaries of disjoint sets of texts."""
    if not first.keys.equals(second.keys):
        keys = first.keys.union(second.keys) if len(first.keys) else second.keys
        first, second = _with_rows(first, keys), _with_rows(second, keys)
    n = first.n + second.n
    size = np.maximum(n, 1)
    # Of a side without values the mean is 0: it must not draw the other's.
    is_alone = (first.n == 0) | (second.n == 0)
    apart = np.where(is_alone, 0.0, second.mean - first.mean)
    of_first, of_second = first.n / size, second.n / size
    squares = apart**2 * size * of_first * of_second
    cubes = apart * squares * (of_first - of_second) + 3 * apart * (
        of_first * second.m2 - of_second * first.m2
    )
    is_brief = first.is_brief | second.is_brief
    cells = sorted({*first.texts, *second.texts})
    sums = ("n_zero", "n_one")
    return Partial(
        keys=first.keys,
        n=n,
        mean=(first.n * first.mean + second.n * second.mean) / size,
        m2=first.m2 + second.m2 + squares,
        m3=first.m3 + second.m3 + cubes,
        low=np.minimum(first.low, second.low),
        high=np.maximum(first.high, second.high),
        is_brief=is_brief,
        bins=coarsened(first.bins + second.bins, first.is_brief ^ second.is_brief),
        texts={c: first.texts.get(c, 0) + second.texts.get(c, 0) for c in cells},
        **{name: getattr(first, name) + getattr(second, name) for name in sums},
    )


def _with_rows(partial: Partial, keys: pd.MultiIndex) -> Partial:
    """The summary with a row for every key; new rows have no texts."""
    place = keys.get_indexer(partial.keys)
    arrays: dict[str, Any] = {}
    for name in ARRAYS:
        own = getattr(partial, name)
        empty = NEUTRAL.get(name, 0)
        arrays[name] = np.full((len(keys), *own.shape[1:]), empty, dtype=own.dtype)
        arrays[name][place] = own
    entries = partial.bins.tocoo()
    row, column = entries.coords
    shape = len(keys), partial.bins.shape[1]
    bins = csr_array((entries.data, (place[row], column)), shape=shape)
    return replace(partial, keys=keys, bins=bins, **arrays)


def merged(partials: Iterable[Partial]) -> Partial:
    """Merges summaries in the order given."""
    return reduce(merge, partials, nothing())


def of_cell(partial: Partial, cell: int) -> Partial:
    """The rows of one predicted class, or of all texts with :data:`EVERY`.

    The cell of what is returned is :data:`EVERY`: its keys are those of other classes.
    """
    if cell == EVERY:
        return merged(of_cell(partial, own) for own in cells_of(partial))
    own = partial.rows(partial.keys.get_level_values("cell") == cell)
    columns = [own.keys.get_level_values(name) for name in KEYS[1:]]
    everywhere = np.full(len(own.keys), EVERY)
    keys = pd.MultiIndex.from_arrays([everywhere, *columns], names=KEYS)
    return replace(own, keys=keys, texts={EVERY: partial.texts.get(cell, 0)})


def cells_of(partial: Partial) -> list[int]:
    """The cells that have rows."""
    return sorted(set(partial.keys.get_level_values("cell")))


# --- statistics -------------------------------------------------------------------------------


def merged_statistics(
    partial: Partial, label_names: Sequence[str], readings: Readings
) -> tuple[Statistic, ...]:
    """The statistics that ``summarize`` gives of the rows, from their merged summary.

    Means, deviations, counts and intervals are the same to rounding. Medians are within
    their bin of 1/1024 (1/64 of single heads where a test has more than 64 sites).

    Args:
        partial: of all texts.
        label_names: names of the model's classes.
        readings: of the tests; their order is that of the result.
    """
    named = dict(enumerate(group_names(label_names)))
    cells = {ALL_TEXTS: EVERY} | {name: k for k, name in named.items()}
    groups = {name: of_cell(partial, cell) for name, cell in cells.items()}
    groups = {name: group for name, group in groups.items() if n_texts(group)}
    if not groups:
        return ()
    wanted = in_order(columns_of(groups[ALL_TEXTS]), readings)
    described = [_described(group, name, wanted, readings) for name, group in groups.items()]
    return tuple(s for of_column in zip(*described, strict=True) for s in of_column)


def n_texts(partial: Partial) -> int:
    """The number of tested texts."""
    return sum(partial.texts.values())


def columns_of(partial: Partial, *, derived: bool = False) -> list[tuple]:
    """Test, statistic, layer and head of what tests measured.

    Args:
        derived: with what is derived from it.
    """
    columns = partial.keys.droplevel("cell").unique()
    own = [c for c in columns if c[0] != PREDICTION]
    return own if derived else [c for c in own if not is_derived(c[1])]


def _described(
    group: Partial, name: str, columns: Sequence[tuple], readings: Readings
) -> list[Statistic]:
    """A statistic for each column, also for those that no text of the group has."""
    place = group.keys.get_indexer(
        pd.MultiIndex.from_tuples([(EVERY, *c) for c in columns], names=group.keys.names)
    )
    total = n_texts(group)
    declared = np.zeros(len(group.keys), dtype=bool)
    for k, (test, statistic, *_) in zip(place, columns, strict=True):
        declared[k] |= k >= 0 and is_declared_share(test, statistic, readings)
    ends = intervals(group, declared)
    medians = medians_of(group)
    found = []
    for k, (test, statistic, layer, head) in zip(place, columns, strict=True):
        n = int(group.n[k]) if k >= 0 else 0
        numbers = [group.mean[k], medians[k], np.sqrt(group.m2[k] / n)] if n else []
        mean, median, std = map(float, numbers or [np.nan] * 3)
        low, high = map(float, ends[:, k]) if n else (np.nan, np.nan)
        found.append(
            Statistic(
                *(test, statistic, int(layer), int(head), name),
                value=mean,
                ci95=(low, high),
                n=n,
                median=median,
                std=std,
                undefined=total - n,
            )
        )
    return found


def medians_of(partial: Partial) -> np.ndarray:
    """The median of each row, to within its bin; NaN without values."""
    offsets, numbers, counts = to_lists(partial.bins)
    medians = np.full(len(partial.n), np.nan)
    for k in np.flatnonzero(partial.n):
        own = slice(offsets[k], offsets[k + 1])
        found = quantile(
            numbers[own],
            counts[own],
            0.5,
            width=COARSE if partial.is_brief[k] else 1,
            n_zero=int(partial.n_zero[k]),
            n_one=int(partial.n_one[k]),
        )
        medians[k] = np.clip(found, partial.low[k], partial.high[k])
    return medians


def intervals(partial: Partial, is_declared_share: np.ndarray) -> np.ndarray:
    """95% intervals of the means, low and high [2, rows]; NaN without values.

    Args:
        is_declared_share: of rows whose values, where all are 0 or 1, are a share of
            texts, bool [rows].
    """
    found = interval_of(partial)
    shares = is_declared_share & is_share_of_texts(partial)
    found[:, shares] = share_interval(partial.n_one[shares], partial.n[shares])
    return found


def is_share_of_texts(partial: Partial) -> np.ndarray:
    """Rows whose values are all 0 or 1, bool [rows]."""
    return (partial.n > 0) & (partial.n_zero + partial.n_one == partial.n)


def estimate_of(partial: Partial, key: tuple, *, share: bool = False) -> Estimate:
    """One row as an estimate; without a value where no text has one.

    Args:
        key: test, statistic, layer and head.
        share: whether the mean is a share of texts where all values are 0 or 1.
    """
    places = partial.keys.get_indexer([(EVERY, *key)])
    if places[0] < 0 or not partial.n[places[0]]:
        return Estimate(float("nan"), None, 0)
    row = partial.rows(places)
    low, high = intervals(row, np.array([share]))[:, 0].tolist()
    return Estimate(float(row.mean[0]), (low, high), int(row.n[0]))


# --- how good a model is ----------------------------------------------------------------------


def merged_quality(partial: Partial) -> Quality:
    """As :func:`quality`, from a merged summary; for models that predict one class per text.

    Args:
        partial: of all texts, with derived columns.
    """
    every = of_cell(partial, EVERY)
    at = {key[2]: k for k, key in enumerate(every.keys) if key[1] == PREDICTION}
    sure = estimate_of(every, (PREDICTION, "probability", -1, -1))
    n = int(every.n[at["predicted_class"]]) if "predicted_class" in at else 0
    labels = [k for name, k in at.items() if name.startswith(RIGHT)]
    if not labels:
        return Quality(None, None, None, sure, None, n, 0)
    sizes, hits = every.n[labels], every.n_one[labels]
    n_labelled, n_right = int(sizes.sum()), int(hits.sum())
    first = min(labels, key=lambda k: (-every.n[k], _label(every.keys[k])))
    n_usual = int(every.n[first])
    low, high = share_interval(np.array(n_right), np.array(n_labelled)).tolist()
    gained, lost = n_right - int(every.n_one[first]), n_usual - int(every.n_one[first])
    ends = interval_of_pairs(*map(np.array, (gained, lost, n_labelled)))
    lowest, highest = ends.tolist()
    return Quality(
        accuracy=Estimate(n_right / n_labelled, (low, high), n_labelled),
        majority=n_usual / n_labelled,
        beyond_majority=Estimate((gained - lost) / n_labelled, (lowest, highest), n_labelled),
        top_probability=sure,
        calibration_error=_calibration_error(every, n_labelled),
        n=n,
        n_labelled=n_labelled,
    )


def _label(key: tuple) -> int:
    """The label that a column is of; of equally many the smallest is the majority."""
    return int(str(key[2]).removeprefix(RIGHT))


def _calibration_error(every: Partial, n_labelled: int) -> float | None:
    """Σ over bins of share of texts × |accuracy − mean probability|."""
    own = [k for k, key in enumerate(every.keys) if str(key[2]).startswith(GAP)]
    if every.n[own].sum() < n_labelled:  # some have no probability
        return None
    return float(np.abs(every.n[own] * every.mean[own]).sum() / n_labelled)
