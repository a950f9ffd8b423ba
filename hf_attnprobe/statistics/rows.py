"""Rows: the values that an audit measured for every text, statistic and site.

A site is a layer and a head. :class:`Texts` contains the statistics at a single site.

The values of :class:`Rows` can be in memory, in one output folder, or in the folders of several machines.
Each column is loaded when it is needed and is not kept. Even a report about a million texts therefore
needs little memory.

A data set can contain the same text several times. The copies of a text are not independent, so all
estimates, intervals and answers are computed from the different texts (:meth:`Rows.merge_duplicates`).
"""

import functools
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.sampling import draw_random_order


PREDICTION_TEST = "prediction"
"""Test name of the rows that contain the model's predictions and the labels.

All other rows contain the results of a faithfulness test, such as "erasure".
"""
IDENTITY_STATISTIC = "identity"
"""Prediction statistic with a hash of everything that the model reads in a text.

Texts with the same hash are copies of each other.
"""
CLASS_STATISTICS = ("predicted_class", "label")
"""Prediction statistics whose values are class numbers, which cannot be averaged.

The statistics ``label@NAME`` of models with several labels belong to them too. A negative number means
that there is no class.
"""
UNIT_STATISTICS = ("unit_loss", "unit_attention", "unit_knockout", "unit_matters", "unit_map")
"""Statistics of a single unit of a passage, such as a sentence.

The key after "@" is the number of the unit: ``unit_loss@0`` belongs to the first unit. Reports do not
average these statistics over texts.
"""
POSITION_STATISTICS = ("attended_position", "decisive_position", "exchange_decisive_position")
"""Statistics about the positions of the most attended and the most important unit in a text.

The key after "@" is a position, such as "last". The statistic is 1 if the unit at this position comes
first in the ranking. A report turns these statistics into one sentence, and does not list their means.
"""
COLUMN_FIELDS = ["test", "statistic", "layer", "head"]
"""Names of the four elements of a :data:`Column`, in their order."""
COLUMN_FIELD_DTYPES = {"test": "str", "statistic": "str", "layer": "int32", "head": "int32"}
"""Maps each name in :data:`COLUMN_FIELDS` to its data type in a data frame."""
ROW_KEY = ("test", "statistic", "layer", "head", "example_id")
"""Columns that together identify a row in a data frame with one value per row.

The rows are sorted by these columns, starting with the first one.
"""
VALUES_PER_CHUNK = 2**20
"""Approximate number of values per chunk. Many columns are read in chunks, to limit the memory."""

Column = tuple[str, str, int, int]
"""Type of a column's key, which consists of test, statistic, layer and head.

For example, ("permutation", "median_tvd", 0, 3) is the column with the results of the test
"permutation" for the statistic "median_tvd" at head 3 in layer 0.
"""


@dataclass(frozen=True, eq=False)
class Rows:
    """Table with the values of an audit: one row per text, and one column per statistic and site.

    Attributes:
        ids: text ids, int64 [texts], ascending.
        columns: keys of the columns (test, statistic, layer, head), sorted.
        read_column: function that loads the values of a column, [texts]; NaN for values that are
            undefined or were not measured.
        read_mask: function that loads which texts were measured in a column, bool [texts]. A
            measured value can still be undefined.
        attrs: metadata, for example whether the audit ended early.
    """

    ids: np.ndarray
    columns: tuple[Column, ...]
    read_column: Callable[[Column], np.ndarray]
    read_mask: Callable[[Column], np.ndarray]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def coerce(cls, rows: "Rows | pd.DataFrame") -> "Rows":
        """Convert a data frame in long form to rows; return rows unchanged.

        Args:
            rows: rows, or a data frame with the columns test, statistic, example_id, layer, head
                and value, in any order. If the same key occurs twice, for example because two
                runs wrote into one folder, the first value is used.

        Returns:
            The rows.
        """
        return rows if isinstance(rows, Rows) else _load_frame(rows)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def index(self) -> pd.Index:
        """Text ids as a pandas index."""
        return pd.Index(self.ids, name="example_id")

    @property
    def sites(self) -> set[tuple[int, int]]:
        """All tested sites, each as a pair of layer and head."""
        return {(layer, head) for test, _, layer, head in self.columns if test != PREDICTION_TEST}

    def select(self, condition: Callable[[str, str, int, int], bool]) -> "Rows":
        """Select the columns for which a function returns True.

        Args:
            condition: function that receives test, statistic, layer and head, and returns whether
                to keep the column.

        Returns:
            Rows with the selected columns and all texts.
        """
        columns = tuple(column for column in self.columns if condition(*column))
        return replace(self, columns=columns)

    def select_test_columns(self) -> "Rows":
        """Select the columns that reports average over texts.

        These are all columns except for predictions and for single units of a passage.

        Returns:
            Rows with these columns and with the texts that at least one test measured.
        """

        def is_test_column(test: str, statistic: str, *site: int) -> bool:
            name, _, _ = statistic.partition("@")
            return test != PREDICTION_TEST and name not in (*UNIT_STATISTICS, *POSITION_STATISTICS)

        return self.select(is_test_column).drop_unmeasured_texts()

    def select_statistics(self, names: Collection[str]) -> "Rows":
        """Select the columns with given statistics.

        Args:
            names: statistic names.

        Returns:
            Rows with these columns and all texts.
        """
        return self.select(lambda test, statistic, layer, head: statistic in names)

    def drop_unmeasured_texts(self) -> "Rows":
        """Drop texts that have no measured value in any column.

        Returns:
            Rows with all columns and the remaining texts.
        """
        is_measured = np.zeros(len(self), dtype=bool)
        for column in self.columns:
            is_measured |= self.read_mask(column)
            if is_measured.all():
                return self
        return self.take_texts(np.flatnonzero(is_measured))

    def take_texts(self, indices: np.ndarray) -> "Rows":
        """Take the texts with the given indices.

        Args:
            indices: ascending indices into ``ids``.

        Returns:
            Rows with all columns and these texts.
        """
        return replace(
            self,
            ids=self.ids[indices],
            read_column=lambda column: self.read_column(column)[indices],
            read_mask=lambda column: self.read_mask(column)[indices],
        )

    def select_ids(self, ids: Collection[int] | np.ndarray) -> "Rows":
        """Select texts by their ids.

        Args:
            ids: text ids; ids that do not occur are ignored.

        Returns:
            Rows with all columns and these texts.
        """
        is_selected = np.isin(self.ids, np.asarray([*ids], dtype=np.int64))
        return self.take_texts(np.flatnonzero(is_selected))

    def merge_duplicates(self) -> "Rows":
        """Merge all copies of a text, so that every different text counts once.

        Two texts are copies if the model reads the same input, that is, if they have the same value of
        the statistic :data:`IDENTITY_STATISTIC`. A merged text has the smallest id of its copies. Its
        values are the means over the copies with a defined value. The class numbers in
        :data:`CLASS_STATISTICS` are not averaged: the most frequent class counts, and a text has no
        class if two classes are equally frequent.

        Columns are merged when they are read. Rows without copies, and rows that were stored without
        the statistic, are returned unchanged.

        Returns:
            Rows with all columns and one text for all its copies.

        Example:
            distinct_rows = rows.merge_duplicates()
            n_copies = len(rows) - len(distinct_rows)
        """
        identity_columns = [
            column for column in self.columns if column[:2] == (PREDICTION_TEST, IDENTITY_STATISTIC)
        ]
        if not identity_columns:
            return self
        identities = self.read_column(identity_columns[0])
        if not _has_copies(identities):
            return self
        first_copies, text_numbers = _number_distinct_texts(identities)
        n_distinct = len(first_copies)

        def read_merged_column(column: Column) -> np.ndarray:
            values = self.read_column(column)
            test, statistic, *_ = column
            name, _, _ = statistic.partition("@")
            if test == PREDICTION_TEST and name in CLASS_STATISTICS:
                return _find_commonest_classes(values, text_numbers, n_distinct)
            return _average_copies(values, text_numbers, n_distinct)

        def read_merged_mask(column: Column) -> np.ndarray:
            is_measured = np.zeros(n_distinct, dtype=bool)
            is_measured[text_numbers[self.read_mask(column)]] = True
            return is_measured

        return replace(
            self,
            ids=self.ids[first_copies],
            read_column=read_merged_column,
            read_mask=read_merged_mask,
        )

    def read_matrix(self, columns: Sequence[Column]) -> np.ndarray:
        """Read several columns into a matrix.

        Args:
            columns: column keys.

        Returns:
            float64 [texts, columns]. Each column is contiguous in memory, because columns are
            read and summed one by one.
        """
        values = np.empty((len(columns), len(self)))
        for index, column in enumerate(columns):
            values[index] = self.read_column(column)
        return values.T

    def iterate_matrices(
        self, columns: Sequence[Column]
    ) -> Iterator[tuple[Sequence[Column], np.ndarray]]:
        """Read columns in chunks with about :data:`VALUES_PER_CHUNK` values each.

        Args:
            columns: column keys.

        Yields:
            The column keys in the chunk and their values, [texts, columns].
        """
        chunk_size = max(1, VALUES_PER_CHUNK // max(1, len(self)))
        for start in range(0, len(columns), chunk_size):
            chunk = columns[start : start + chunk_size]
            yield chunk, self.read_matrix(chunk)

    def build_wide_frame(self) -> pd.DataFrame:
        """Convert to a data frame with one row per text and one column per statistic and site.

        Returns:
            One row per text, and one column for each test, statistic, layer and head.
        """
        names = None
        if self.columns:
            names = pd.MultiIndex.from_tuples(self.columns, names=COLUMN_FIELDS)
        return pd.DataFrame(self.read_matrix(self.columns), index=self.index, columns=names)

    def build_head_frame(self, statistic: str) -> pd.DataFrame:
        """Convert one statistic to a data frame with one row per text and one column per head.

        Args:
            statistic: statistic name. If two tests measured it, the first one is used.

        Returns:
            Data frame with the columns (layer, head), without empty rows and columns.
        """

        def is_head_column(test: str, name: str, layer: int, head: int) -> bool:
            return name == statistic and layer >= 0 and head >= 0

        rows = self.select(is_head_column)
        if not rows.columns:
            return pd.DataFrame()
        wide = rows.build_wide_frame().droplevel(["test", "statistic"], axis=1)
        is_duplicate = wide.columns.duplicated()
        wide = wide.loc[:, ~is_duplicate]
        wide = wide.dropna(how="all")
        return wide.dropna(how="all", axis=1)

    def build_long_frame(self) -> pd.DataFrame:
        """Convert to a long data frame with one value per row, sorted by :data:`ROW_KEY`.

        Returns:
            The columns test, statistic, layer, head, example_id and value.
        """
        masks = [self.read_mask(column) for column in self.columns]
        is_measured = np.array(masks, dtype=bool).reshape(len(self.columns), len(self))
        # Each measured value becomes one row.
        column_indices, text_indices = is_measured.nonzero()
        rows = pd.DataFrame(self.columns, columns=COLUMN_FIELDS)
        rows = rows.iloc[column_indices].reset_index(drop=True)
        rows["example_id"] = self.ids[text_indices]
        rows["value"] = self.read_matrix(self.columns).T[is_measured]
        rows.attrs = dict(self.attrs)
        return rows.astype(COLUMN_FIELD_DTYPES)


def _has_copies(identities: np.ndarray) -> bool:
    """Check whether any hash occurs twice; NaN means that the hash of a text is unknown."""
    known_identities = identities[~np.isnan(identities)]
    return len(np.unique(known_identities)) < len(known_identities)


def _number_distinct_texts(identities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the different texts in the order of their first copies.

    Args:
        identities: hashes of the texts, [texts]. A text without a hash (NaN) is no copy of another.

    Returns:
        The index of the first copy for each different text, [different texts], and the number of the
        different text for each text, [texts].
    """
    # Hashes are not negative, so negative numbers identify the texts without a hash.
    own_numbers = -1.0 - np.arange(len(identities))
    keys = np.where(np.isnan(identities), own_numbers, identities)
    _, first_copies, key_numbers = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first_copies)
    numbers_by_key = np.empty(len(order), dtype=np.int64)
    numbers_by_key[order] = np.arange(len(order))
    return first_copies[order], numbers_by_key[key_numbers]


def _average_copies(values: np.ndarray, text_numbers: np.ndarray, n_distinct: int) -> np.ndarray:
    """Average the values over the copies of each different text.

    Args:
        values: values, [texts]; NaN values do not count.
        text_numbers: number of the different text, [texts].
        n_distinct: number of different texts.

    Returns:
        Means, [different texts]; NaN if no copy has a value.
    """
    is_defined = ~np.isnan(values)
    values, text_numbers = values[is_defined], text_numbers[is_defined]
    n_defined = np.bincount(text_numbers, minlength=n_distinct)
    # Distances from the first copy are averaged, so that the mean of equal values has no rounding
    # error. In reverse order, the first copy is written last.
    first_values = np.zeros(n_distinct)
    first_values[text_numbers[::-1]] = values[::-1]
    origins = np.where(np.isfinite(first_values), first_values, 0.0)
    distances = values - origins[text_numbers]
    distance_sums = np.bincount(text_numbers, weights=distances, minlength=n_distinct)
    means = origins + distance_sums / np.maximum(n_defined, 1)
    return np.where(n_defined > 0, means, np.nan)


def _find_commonest_classes(
    classes: np.ndarray, text_numbers: np.ndarray, n_distinct: int
) -> np.ndarray:
    """Find the most frequent class among the copies of each different text.

    Args:
        classes: class numbers, [texts]. Negative numbers and NaN mean that there is no class.
        text_numbers: number of the different text, [texts].
        n_distinct: number of different texts.

    Returns:
        Class numbers, [different texts]: −1 if two classes are equally frequent or no copy has a class,
        and NaN if no copy has a value.
    """
    commonest_classes = np.full(n_distinct, np.nan)
    commonest_classes[text_numbers[~np.isnan(classes)]] = -1
    has_class = classes >= 0
    # A pair of a text and a class is encoded as one number, because single numbers are sorted faster.
    distinct_classes, class_codes = np.unique(classes[has_class], return_inverse=True)
    n_classes = max(len(distinct_classes), 1)
    pair_codes = text_numbers[has_class] * n_classes + class_codes
    distinct_pairs, n_copies = np.unique(pair_codes, return_counts=True)
    pair_texts, pair_classes = np.divmod(distinct_pairs, n_classes)
    max_copies = np.zeros(n_distinct, dtype=np.int64)
    np.maximum.at(max_copies, pair_texts, n_copies)
    is_commonest = n_copies == max_copies[pair_texts]
    n_commonest = np.bincount(pair_texts[is_commonest], minlength=n_distinct)
    commonest_classes[pair_texts[is_commonest]] = distinct_classes[pair_classes[is_commonest]]
    commonest_classes[n_commonest > 1] = -1
    return commonest_classes


def make_empty_rows() -> Rows:
    """Create rows without any text or column, for an audit that has not measured anything.

    Returns:
        Empty rows.
    """
    return Rows(
        ids=np.empty(0, np.int64),
        columns=(),
        read_column=lambda _: np.empty(0),
        read_mask=lambda _: np.empty(0, dtype=bool),
    )


def _load_frame(rows: pd.DataFrame) -> Rows:
    """Convert a data frame with one value per row to :class:`Rows`, with one array per column."""
    if rows.empty:
        return make_empty_rows()
    distinct_rows = rows.drop_duplicates([*ROW_KEY])
    # The first table contains the values. The second one marks the stored values, because a stored
    # value can be NaN.
    axes = {"index": "example_id", "columns": COLUMN_FIELDS, "values": "value"}
    values = distinct_rows.pivot(**axes)
    is_measured = distinct_rows.assign(value=True).pivot(**axes).notna()
    column_numbers = {column: number for number, column in enumerate(values.columns.tolist())}
    value_columns = values.to_numpy(dtype=np.float64).T.copy()
    mask_columns = is_measured.to_numpy().T
    return Rows(
        ids=values.index.to_numpy(dtype=np.int64),
        columns=tuple(column_numbers),
        read_column=lambda column: value_columns[column_numbers[column]],
        read_mask=lambda column: mask_columns[column_numbers[column]],
        attrs=dict(rows.attrs),
    )


@dataclass(frozen=True, eq=False)
class Texts:
    """Statistics at one site for all texts. Values are loaded when they are needed.

    Attributes:
        n: number of texts.
        ids: function that loads the text ids, int64 [texts], ascending.
        statistic_names: names of all statistics.
        read_statistic: function that loads the values of a statistic, [texts].
    """

    n: int
    ids: Callable[[], np.ndarray]
    statistic_names: tuple[str, ...]
    read_statistic: Callable[[str], np.ndarray]

    @classmethod
    def from_site(cls, rows: Rows, site: tuple[int, int]) -> "Texts":
        """Select the statistics at one site from audit rows.

        Args:
            rows: audit rows.
            site: layer and head.

        Returns:
            Statistics for the texts that were measured at this site.
        """
        site_rows = rows.select(lambda test, statistic, layer, head: (layer, head) == site)
        return cls.from_rows(site_rows)

    @classmethod
    def from_rows(cls, rows: Rows) -> "Texts":
        """Take all statistics from rows, regardless of the site.

        Args:
            rows: audit rows, usually for a single site. If two columns have the same statistic
                name, the first one is used.

        Returns:
            Statistics for the texts that were measured.
        """
        measured_rows = rows.drop_unmeasured_texts()
        columns_by_statistic: dict[str, Column] = {}
        for column in measured_rows.columns:
            _, statistic, *_ = column
            columns_by_statistic.setdefault(statistic, column)
        return cls(
            n=len(measured_rows),
            ids=lambda: measured_rows.ids,
            statistic_names=tuple(columns_by_statistic),
            read_statistic=lambda name: measured_rows.read_column(columns_by_statistic[name]),
        )

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> "Texts":
        """Take the statistics from a data frame.

        Args:
            frame: one row per text, indexed by text id, and one column per statistic.

        Returns:
            Statistics with the names of the columns.
        """

        def read_statistic(name: str) -> np.ndarray:
            return frame[name].to_numpy(np.float64)

        return cls(
            n=len(frame),
            ids=frame.index.to_numpy,
            statistic_names=tuple(frame),
            read_statistic=read_statistic,
        )

    def __len__(self) -> int:
        return self.n

    @property
    def index(self) -> pd.Index:
        """Text ids as a pandas index."""
        return pd.Index(self.ids(), name="example_id")

    def __contains__(self, name: str) -> bool:
        return name in self.statistic_names

    def __iter__(self) -> Iterator[str]:
        return iter(self.statistic_names)

    def __getitem__(self, name: str) -> pd.Series:
        return pd.Series(self.get_values(name), index=self.index, name=name)

    def get_values(self, name: str) -> np.ndarray:
        """Get the values of a statistic.

        Args:
            name: statistic name.

        Returns:
            float64 [texts]; NaN for undefined values, or if there is no such statistic.
        """
        if name in self.statistic_names:
            return self.read_statistic(name)
        return np.full(len(self), np.nan)

    def get_defined_values(self, name: str) -> np.ndarray:
        """Get the values of a statistic, without undefined values.

        Args:
            name: statistic name.

        Returns:
            float64 array with one entry for each text that has a value.
        """
        values = self.get_values(name)
        return values[~np.isnan(values)]

    def to_frame(self) -> pd.DataFrame:
        """Convert to a data frame with one row per text and one column per statistic.

        Returns:
            The data frame, indexed by the text ids.
        """
        columns = {name: self.get_values(name) for name in self.statistic_names}
        return pd.DataFrame(columns, index=self.index)

    def select_covered_statistics(self, min_texts: int = 1) -> "Texts":
        """Select the statistics that are defined for enough texts.

        Args:
            min_texts: smallest number of texts with a value.

        Returns:
            The same texts with fewer statistics.
        """
        covered_names = []
        for name in self.statistic_names:
            has_value = ~np.isnan(self.read_statistic(name))
            if has_value.sum() >= min_texts:
                covered_names.append(name)
        return replace(self, statistic_names=tuple(covered_names))

    def select(self, is_selected: np.ndarray) -> "Texts":
        """Select texts with a boolean mask.

        Args:
            is_selected: bool [texts].

        Returns:
            The selected texts with all statistics.
        """
        return replace(
            self,
            n=int(is_selected.sum()),
            ids=lambda: self.ids()[is_selected],
            read_statistic=lambda name: self.read_statistic(name)[is_selected],
        )

    def align_to(self, texts: pd.Index) -> "Texts":
        """Select and reorder texts, so that the statistics belong to a given list of text ids.

        Args:
            texts: text ids in the new order. For ids that do not occur here, all statistics are
                NaN.

        Returns:
            All statistics for exactly these texts.
        """
        ids = self.ids()
        target_ids = texts.to_numpy()
        if np.array_equal(ids, target_ids):
            return self
        indices = np.searchsorted(ids, target_ids)
        # A missing text gets the index −1, which refers to the NaN that is appended to the values.
        is_missing = np.append(ids, -1)[indices] != target_ids
        indices[is_missing] = -1

        def read_statistic(name: str) -> np.ndarray:
            values = np.append(self.read_statistic(name), np.nan)
            return values[indices]

        return replace(
            self, n=len(target_ids), ids=lambda: target_ids, read_statistic=read_statistic
        )


# --- Audits that ended before all texts were measured -------------------------------------
# An audit processes the texts in a fixed random order. For each site, a report uses the texts in this
# order until the first text that was not measured. At any moment, these texts are a random sample of
# all texts, regardless of batches, interruptions, and the number of machines.


STOPPING_KEY = "stopping"
"""Key of the provenance entry that records how and when an audit stopped early."""


def select_gapless_rows(rows: Rows, order: Sequence[int]) -> Rows:
    """Drop all texts that come after the first unmeasured text in the audit's random order.

    The remaining texts are a random sample of all texts, regardless of which batches were finished
    when the audit stopped. The first unmeasured text is determined for each test and site.

    Args:
        rows: audit rows.
        order: all text ids in random order, from
            :func:`~hf_attnprobe.statistics.sampling.draw_random_order`.

    Returns:
        Rows that only contain values from before the first gap.
    """
    rows = rows.select_ids(order)
    ranks = pd.Series(range(len(order)), index=order).reindex(rows.index).to_numpy()

    @functools.cache
    def find_counted_texts(test: str, layer: int, head: int) -> np.ndarray:
        """Find the texts that come before the first text that a test did not measure at a site.

        Returns:
            bool [texts].
        """
        is_measured = np.zeros(len(rows), dtype=bool)
        for column in rows.columns:
            column_test, _, *column_site = column
            is_counted_column = column_test == test and column_site == [layer, head]
            if is_counted_column and not is_measured.all():
                is_measured |= rows.read_mask(column)
        # If the measured texts have the ranks 0, 1, 2, 4 and 5, the first three texts count.
        sorted_ranks = np.sort(ranks[is_measured])
        is_before_gap = sorted_ranks == np.arange(len(sorted_ranks))
        n_counted = is_before_gap.sum()
        return is_measured & (ranks < n_counted)

    def read_counted_mask(column: Column) -> np.ndarray:
        test, _, layer, head = column
        return rows.read_mask(column) & find_counted_texts(test, layer, head)

    counted_rows = replace(
        rows,
        read_column=lambda column: np.where(
            read_counted_mask(column), rows.read_column(column), np.nan
        ),
        read_mask=read_counted_mask,
    )
    return counted_rows.select(
        lambda test, _, layer, head: bool(find_counted_texts(test, layer, head).any())
    ).drop_unmeasured_texts()


def select_counted_rows(
    rows: Rows, stopping_record: Mapping[str, Any] | None, ids: Iterable[int]
) -> Rows:
    """Select the rows that a report uses: all rows, unless the audit ended early.

    Args:
        rows: audit rows.
        stopping_record: provenance entry :data:`STOPPING_KEY`; None if there is no such entry.
        ids: all text ids in the audit.

    Returns:
        The selected rows; see :func:`select_gapless_rows`.
    """
    if stopping_record is None or not len(rows):
        return rows
    return select_gapless_rows(rows, draw_random_order(ids, stopping_record["seed"]))
