"""Rows: the values that an audit measured, for every text, statistic and site.

A :class:`Rows` object looks the same for every audit, whether its values are in memory, in one
output folder, or in the folders of several shares. It loads a column of values when the column is
needed and does not keep it, so a report on a million texts only needs the memory of a few columns.
:class:`Texts` has the statistics of a single site.
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
"""Name of the test whose rows describe the predictions. Every audit stores them."""
UNIT_STATISTICS = ("unit_loss", "unit_attention", "unit_knockout", "unit_matters")
"""Statistics of the single units of a passage, with the number of the unit as the key.

Reports do not average them over texts.
"""
COLUMN_FIELDS = ["test", "statistic", "layer", "head"]
"""Names of the fields that identify a column of values."""
FIELD_DTYPES = {"test": "str", "statistic": "str", "layer": "int32", "head": "int32"}
"""Data types of the fields that identify a column, in a data frame."""
ROW_KEY = ("test", "statistic", "layer", "head", "example_id")
"""Fields that identify a row of the long form. The long form is sorted by them."""
VALUES_PER_CHUNK = 2**20
"""Number of values that are in memory together when columns are read one after the other."""

Column = tuple[str, str, int, int]
"""Test, statistic, layer and head."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The values of an audit by text and column.

    Attributes:
        ids: text ids, int64 [texts], ascending.
        columns: test, statistic, layer and head of every column, sorted.
        read_column: reads the values of a column, [texts]; NaN for values that are undefined or
            were not measured.
        read_mask: reads which texts were measured in a column, bool [texts]. A measured value
            can still be undefined.
        attrs: facts about all rows, such as that the audit may have ended early.
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
                and value, in any order. If a key occurs twice, as when two runs wrote into one
                folder, its first value counts.

        Returns:
            The rows.
        """
        return rows if isinstance(rows, Rows) else _load_frame(rows)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def index(self) -> pd.Index:
        """Ids of the texts as the index of a data frame."""
        return pd.Index(self.ids, name="example_id")

    @property
    def sites(self) -> set[tuple[int, int]]:
        """Layer and head of every site that some test measured."""
        return {(layer, head) for test, _, layer, head in self.columns if test != PREDICTION_TEST}

    def select(self, condition: Callable[[str, str, int, int], bool]) -> "Rows":
        """Select columns by a condition.

        Args:
            condition: function of test, statistic, layer and head.

        Returns:
            Rows with the selected columns and all texts.
        """
        columns = tuple(column for column in self.columns if condition(*column))
        return replace(self, columns=columns)

    def select_test_columns(self) -> "Rows":
        """Select the columns of the tests, without predictions and single units.

        Returns:
            Rows with these columns and the texts that some test measured.
        """

        def is_test_column(test: str, statistic: str, *_: int) -> bool:
            return test != PREDICTION_TEST and statistic.partition("@")[0] not in UNIT_STATISTICS

        return self.select(is_test_column).drop_unmeasured_texts()

    def select_statistics(self, names: Collection[str]) -> "Rows":
        """Select the columns of some statistics.

        Args:
            names: names of the statistics.

        Returns:
            Rows with these columns and all texts.
        """
        return self.select(lambda _, statistic, *__: statistic in names)

    def drop_unmeasured_texts(self) -> "Rows":
        """Drop the texts that were not measured in any column.

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
        """Select the texts with the given ids.

        Args:
            ids: text ids; ids without rows are ignored.

        Returns:
            Rows with all columns and these texts.
        """
        is_selected = np.isin(self.ids, np.asarray([*ids], dtype=np.int64))
        return self.take_texts(np.flatnonzero(is_selected))

    def read_matrix(self, columns: Sequence[Column]) -> np.ndarray:
        """Read the values of several columns.

        Args:
            columns: the columns.

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
        """Iterate over columns in chunks of about :data:`VALUES_PER_CHUNK` values.

        Args:
            columns: the columns.

        Yields:
            Some columns and their values, [texts, columns].
        """
        chunk_size = max(1, VALUES_PER_CHUNK // max(1, len(self)))
        for start in range(0, len(columns), chunk_size):
            chunk = columns[start : start + chunk_size]
            yield chunk, self.read_matrix(chunk)

    def to_wide_frame(self) -> pd.DataFrame:
        """Convert to a data frame with one row per text.

        Returns:
            A column for each test, statistic, layer and head.
        """
        names = None
        if self.columns:
            names = pd.MultiIndex.from_tuples(self.columns, names=COLUMN_FIELDS)
        return pd.DataFrame(self.read_matrix(self.columns), index=self.index, columns=names)

    def to_head_frame(self, statistic: str) -> pd.DataFrame:
        """Convert one statistic of single heads to a data frame.

        Args:
            statistic: statistic name.

        Returns:
            One row per text and one column per (layer, head), without empty rows and columns.
        """
        rows = self.select(lambda _, name, layer, head: name == statistic and min(layer, head) >= 0)
        if not rows.columns:
            return pd.DataFrame()
        wide = rows.to_wide_frame().droplevel(["test", "statistic"], axis=1)
        is_duplicate = wide.columns.duplicated()
        wide = wide.loc[:, ~is_duplicate]
        wide = wide.dropna(how="all")
        return wide.dropna(how="all", axis=1)

    def to_long_frame(self) -> pd.DataFrame:
        """Convert to a tidy data frame with one value per row, sorted by :data:`ROW_KEY`.

        Returns:
            The columns test, statistic, layer, head, example_id and value.
        """
        masks = [self.read_mask(column) for column in self.columns]
        is_measured = np.array(masks, dtype=bool).reshape(len(self.columns), len(self))
        column, text = is_measured.nonzero()
        rows = pd.DataFrame(self.columns, columns=COLUMN_FIELDS)
        rows = rows.iloc[column].reset_index(drop=True)
        rows["example_id"] = self.ids[text]
        rows["value"] = self.read_matrix(self.columns).T[is_measured]
        rows.attrs = dict(self.attrs)
        return rows.astype(FIELD_DTYPES)


def make_empty_rows() -> Rows:
    """Create rows without any text.

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
    """Load a data frame in long form into memory, one array per column."""
    if rows.empty:
        return make_empty_rows()
    distinct_rows = rows.drop_duplicates([*ROW_KEY])
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
    """The statistics of texts at one site, each read when it is needed.

    Attributes:
        n: number of texts.
        ids: returns the text ids, int64 [texts], ascending.
        statistic_names: names of the statistics.
        read_statistic: reads the values of a statistic, [texts].
    """

    n: int
    ids: Callable[[], np.ndarray]
    statistic_names: tuple[str, ...]
    read_statistic: Callable[[str], np.ndarray]

    @classmethod
    def from_site(cls, rows: Rows, site: tuple[int, int]) -> "Texts":
        """Select the statistics of one site.

        Args:
            rows: audit rows.
            site: layer and head.

        Returns:
            Statistics of the texts that were measured at this site.
        """
        return cls.from_rows(rows.select(lambda *column: column[2:] == site))

    @classmethod
    def from_rows(cls, rows: Rows) -> "Texts":
        """Take all statistics from rows; if two columns have the same name, the first counts.

        Args:
            rows: rows, usually those of a single site.

        Returns:
            Statistics of the texts that were measured.
        """
        measured_rows = rows.drop_unmeasured_texts()
        # In reversed order, the first of two equal names overwrites the other one.
        columns = {column[1]: column for column in reversed(measured_rows.columns)}
        names = tuple(reversed(columns))
        return cls(
            len(measured_rows),
            lambda: measured_rows.ids,
            names,
            lambda name: measured_rows.read_column(columns[name]),
        )

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> "Texts":
        """Take the statistics from a data frame.

        Args:
            frame: one row per text, indexed by id, and one column per statistic.

        Returns:
            All statistics of the frame.
        """

        def read_statistic(name: str) -> np.ndarray:
            return frame[name].to_numpy(np.float64)

        return cls(len(frame), frame.index.to_numpy, tuple(frame), read_statistic)

    def __len__(self) -> int:
        return self.n

    @property
    def index(self) -> pd.Index:
        """Ids of the texts as the index of a data frame."""
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
        """Get the values of a statistic without NaN.

        Args:
            name: statistic name.

        Returns:
            float64, with one entry for each text that has a value.
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
        """Select the statistics that have a value for enough texts.

        Args:
            min_texts: smallest number of texts with a value.

        Returns:
            The same texts with fewer statistics.
        """
        names = tuple(
            name
            for name in self.statistic_names
            if (~np.isnan(self.read_statistic(name))).sum() >= min_texts
        )
        return replace(self, statistic_names=names)

    def select(self, is_selected: np.ndarray) -> "Texts":
        """Select texts by a mask.

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
        """Align to the given texts, in their order.

        Args:
            texts: text ids; statistics of ids that are missing here are NaN.

        Returns:
            These texts with all statistics.
        """
        ids, target_ids = self.ids(), texts.to_numpy()
        if np.array_equal(ids, target_ids):
            return self
        indices = np.searchsorted(ids, target_ids)
        # Index −1 of a missing text refers to the NaN that is appended to the values.
        indices[np.append(ids, -1)[indices] != target_ids] = -1

        def read_statistic(name: str) -> np.ndarray:
            values = np.append(self.read_statistic(name), np.nan)
            return values[indices]

        return replace(
            self, n=len(target_ids), ids=lambda: target_ids, read_statistic=read_statistic
        )


# --- Audit rows that ended before all texts were measured ---------------------------------
# An audit takes the texts in a fixed random order. At each site, the rows of the first texts of this
# order count, up to the first gap. So the texts that count are a random sample of all texts at any
# moment, regardless of batches, interruptions and shares.


STOPPING_KEY = "stopping"
"""Key of the provenance with the facts about an audit that ended early."""


def select_gapless_rows(rows: Rows, order: Sequence[int]) -> Rows:
    """Select for every test and site the rows of the first texts of an order, up to a gap.

    Args:
        rows: audit rows.
        order: all text ids, from
            :func:`~hf_attnprobe.statistics.sampling.draw_random_order`.

    Returns:
        The rows that count.
    """
    rows = rows.select_ids(order)
    ranks = pd.Series(range(len(order)), index=order).reindex(rows.index).to_numpy()

    @functools.cache
    def find_counted_texts(test: str, layer: int, head: int) -> np.ndarray:
        """Find the texts that count for a test at a site, bool [texts]."""
        is_measured = np.zeros(len(rows), dtype=bool)
        for column in rows.columns:
            is_same_site = (column[0], *column[2:]) == (test, layer, head)
            if is_same_site and not is_measured.all():
                is_measured |= rows.read_mask(column)
        has_no_gap = np.sort(ranks[is_measured]) == np.arange(is_measured.sum())
        n_counted = has_no_gap.sum()
        return is_measured & (ranks < n_counted)

    def read_counted_mask(column: Column) -> np.ndarray:
        return rows.read_mask(column) & find_counted_texts(column[0], *column[2:])

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


def select_counted_rows(rows: Rows, facts: Mapping[str, Any] | None, ids: Iterable[int]) -> Rows:
    """Select the rows that count in a report; all rows unless the audit ended early.

    Args:
        rows: audit rows.
        facts: entry :data:`STOPPING_KEY` of the provenance; None for an audit without it.
        ids: all text ids of the audit.

    Returns:
        The rows that count.
    """
    if facts is None or not len(rows):
        return rows
    return select_gapless_rows(rows, draw_random_order(ids, facts["seed"]))
