"""Rows: the values of texts, one column per test, statistic and site, read when asked for.

One kind for every audit, whether its values are in memory, in the folder of an audit or in
the shares of an audit: whoever needs a column reads it, and drops it again. So a report of
a million texts needs the memory of a few columns.
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


PREDICTION = "prediction"  # the rows every audit writes besides its tests
OF_UNITS = ("unit_loss", "unit_attention", "unit_knockout", "unit_matters")
"""Statistics of single units of a passage, by their numbers: no mean over texts is one of them."""
COLUMNS = ["test", "statistic", "layer", "head"]
KINDS = {"test": "str", "statistic": "str", "layer": "int32", "head": "int32"}
KEY = ("test", "statistic", "layer", "head", "example_id")
"""Columns that identify a row of the long form, in which it is sorted."""
AT_ONCE = 2**20
"""Values that are in memory together where columns are read one after the other."""

Column = tuple[str, str, int, int]
"""Test, statistic, layer and head."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The values of texts.

    Attributes:
        ids: of the texts, int64 [texts], ascending.
        columns: test, statistic, layer and head of every column, sorted.
        read: the values of a column [texts]; NaN where they are undefined, or not there.
        is_there: which texts were measured in a column, whether the value is defined or
            not, bool [texts].
        attrs: what holds for all, such as that the audit may have stopped early.
    """

    ids: np.ndarray
    columns: tuple[Column, ...]
    read: Callable[[Column], np.ndarray]
    is_there: Callable[[Column], np.ndarray]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: "Rows | pd.DataFrame") -> "Rows":
        """Rows of their long form, a value per row; rows as they are.

        Args:
            rows: with the columns test, statistic, example_id, layer, head and value, in
                any order; of equal keys the first counts, as when two runs met in a folder.
        """
        return rows if isinstance(rows, Rows) else _in_memory(rows)

    def __len__(self) -> int:
        """The number of texts."""
        return len(self.ids)

    @property
    def index(self) -> pd.Index:
        """The ids as they label frames."""
        return pd.Index(self.ids, name="example_id")

    @property
    def sites(self) -> set[tuple[int, int]]:
        """Layer and head wherever a test looked."""
        return {(layer, head) for test, _, layer, head in self.columns if test != PREDICTION}

    def select(self, wanted: Callable[[str, str, int, int], bool]) -> "Rows":
        """Some of the columns, of all texts; ``wanted`` takes test, statistic, layer and head."""
        return replace(self, columns=tuple(c for c in self.columns if wanted(*c)))

    def of_tests(self) -> "Rows":
        """What tests measured, of the texts that they measured; of single units nothing."""
        return self.select(
            lambda test, name, *_: test != PREDICTION and name.partition("@")[0] not in OF_UNITS
        ).measured()

    def named(self, statistics: Collection[str]) -> "Rows":
        """The columns of some statistics."""
        return self.select(lambda _, name, *__: name in statistics)

    def measured(self) -> "Rows":
        """The texts that were measured in any column."""
        found = np.zeros(len(self), dtype=bool)
        for column in self.columns:
            found |= self.is_there(column)
            if found.all():
                return self
        return self.take(np.flatnonzero(found))

    def take(self, places: np.ndarray) -> "Rows":
        """Some of the texts, by their places in ``ids``, in ascending order."""

        return replace(
            self,
            ids=self.ids[places],
            read=lambda column: self.read(column)[places],
            is_there=lambda column: self.is_there(column)[places],
        )

    def of_texts(self, ids: Collection[int] | np.ndarray) -> "Rows":
        """The texts with these ids."""
        return self.take(np.flatnonzero(np.isin(self.ids, np.asarray([*ids], dtype=np.int64))))

    def matrix(self, columns: Sequence[Column]) -> np.ndarray:
        """Values [texts, columns]; a column lies in one piece, as it is read and summed."""
        values = np.empty((len(columns), len(self)))
        for k, column in enumerate(columns):
            values[k] = self.read(column)
        return values.T

    def in_parts(self, columns: Sequence[Column]) -> Iterator[tuple[Sequence[Column], np.ndarray]]:
        """All columns with their values [texts, columns], as many at once as memory allows."""
        n_at_once = max(1, AT_ONCE // max(1, len(self)))
        for start in range(0, len(columns), n_at_once):
            some = columns[start : start + n_at_once]
            yield some, self.matrix(some)

    def wide(self) -> pd.DataFrame:
        """A text per row, and a column per test, statistic, layer and head."""
        names = pd.MultiIndex.from_tuples(self.columns, names=COLUMNS) if self.columns else None
        return pd.DataFrame(self.matrix(self.columns), index=self.index, columns=names)

    def of_heads(self, statistic: str) -> pd.DataFrame:
        """Returns a statistic of single heads, texts by (layer, head); without empty ones."""
        own = self.select(lambda _, name, layer, head: name == statistic and min(layer, head) >= 0)
        if not own.columns:
            return pd.DataFrame()
        wide = own.wide().droplevel(["test", "statistic"], axis=1)
        is_again = wide.columns.duplicated()
        wide = wide.loc[:, ~is_again]
        wide = wide.dropna(how="all")
        return wide.dropna(how="all", axis=1)

    def long(self) -> pd.DataFrame:
        """Return a tidy table with one value per row, sorted by the columns of ``KEY``.

        Returns:
            The columns test, statistic, layer, head, example_id and value.
        """
        masks = [self.is_there(column) for column in self.columns]
        is_measured = np.array(masks, dtype=bool).reshape(len(self.columns), len(self))
        column, text = is_measured.nonzero()
        rows = pd.DataFrame(self.columns, columns=COLUMNS).iloc[column].reset_index(drop=True)
        rows["example_id"] = self.ids[text]
        rows["value"] = self.matrix(self.columns).T[is_measured]
        rows.attrs = dict(self.attrs)
        return rows.astype(KINDS)


def nothing() -> Rows:
    """Rows of no text."""
    return Rows(
        ids=np.empty(0, np.int64),
        columns=(),
        read=lambda _: np.empty(0),
        is_there=lambda _: np.empty(0, dtype=bool),
    )


def _in_memory(rows: pd.DataFrame) -> Rows:
    if rows.empty:
        return nothing()
    first = rows.drop_duplicates([*KEY])
    of_texts = {"index": "example_id", "columns": COLUMNS, "values": "value"}
    values = first.pivot(**of_texts)
    there = first.assign(value=True).pivot(**of_texts).notna()
    number = {column: k for k, column in enumerate(values.columns.tolist())}
    columns = values.to_numpy(dtype=np.float64).T.copy()
    is_there = there.to_numpy().T
    return Rows(
        ids=values.index.to_numpy(dtype=np.int64),
        columns=tuple(number),
        read=lambda c: columns[number[c]],
        is_there=lambda c: is_there[number[c]],
        attrs=dict(rows.attrs),
    )


@dataclass(frozen=True, eq=False)
class Texts:
    """The values of texts at one site, a statistic read when it is asked for.

    Attributes:
        n: texts.
        ids: of them, ascending, [texts].
        names: of the statistics.
        read: the values of one of them, [texts].
    """

    n: int
    ids: Callable[[], np.ndarray]
    names: tuple[str, ...]
    read: Callable[[str], np.ndarray]

    @classmethod
    def at(cls, rows: Rows, site: tuple[int, int]) -> "Texts":
        """What was measured at a site."""
        return cls.among(rows.select(lambda *column: column[2:] == site))

    @classmethod
    def among(cls, rows: Rows) -> "Texts":
        """What was measured at all; of columns of one name the first."""
        own = rows.measured()
        columns = {c[1]: c for c in reversed(own.columns)}
        names = tuple(reversed(columns))
        return cls(
            len(own),
            lambda: own.ids,
            names,
            lambda name: own.read(columns[name]),
        )

    @classmethod
    def of_frame(cls, frame: pd.DataFrame) -> "Texts":
        """Those of a frame with a text per row and a statistic per column."""

        def read(name: str) -> np.ndarray:
            return frame[name].to_numpy(np.float64)

        return cls(len(frame), frame.index.to_numpy, tuple(frame), read)

    def __len__(self) -> int:
        return self.n

    @property
    def index(self) -> pd.Index:
        """The ids as they label frames."""
        return pd.Index(self.ids(), name="example_id")

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> pd.Series:
        """A statistic by id."""
        return pd.Series(self.values(name), index=self.index, name=name)

    def values(self, name: str) -> np.ndarray:
        """A statistic by text; NaN where there is none."""
        return self.read(name) if name in self.names else np.full(len(self), np.nan)

    def known_values(self, name: str) -> np.ndarray:
        """A statistic of the texts that have it."""
        values = self.values(name)
        return values[~np.isnan(values)]

    def frame(self) -> pd.DataFrame:
        """All statistics, a text per row."""
        columns = {name: self.values(name) for name in self.names}
        return pd.DataFrame(columns, index=self.index)

    def known(self, least: int = 1) -> "Texts":
        """Returns the statistics that at least so many texts have a value of."""
        names = tuple(n for n in self.names if (~np.isnan(self.read(n))).sum() >= least)
        return replace(self, names=names)

    def where(self, wanted: np.ndarray) -> "Texts":
        """The texts that are wanted, bool [texts]."""
        return replace(
            self,
            n=int(wanted.sum()),
            ids=lambda: self.ids()[wanted],
            read=lambda name: self.read(name)[wanted],
        )

    def of(self, texts: pd.Index) -> "Texts":
        """Other texts in the order given; those that are not here have no values."""
        ids, wanted = self.ids(), texts.to_numpy()
        if np.array_equal(ids, wanted):
            return self
        places = np.searchsorted(ids, wanted)
        places[np.append(ids, -1)[places] != wanted] = -1

        def read(name: str) -> np.ndarray:
            values = np.append(self.read(name), np.nan)  # of the place −1
            return values[places]

        return replace(self, n=len(wanted), ids=lambda: wanted, read=read)


# --- Rows of an audit that ended before all texts were done ------------------
# Texts are taken in a fixed random order. At every head the rows count that are the first of that
# order without a gap, however the work was batched, killed or shared out: a random sample of the
# texts at whatever moment one looks.


STOPPING = "stopping"


def without_gaps(rows: Rows, order: Sequence[int]) -> Rows:
    """For every test and head, keeps the rows of the order's first texts, up to a gap.

    Args:
        rows: of an audit.
        order: all ids, as :func:`draw_random_order` gives them.
    """
    rows = rows.of_texts(order)
    ranks = pd.Series(range(len(order)), index=order).reindex(rows.index).to_numpy()

    @functools.cache
    def counts(test: str, layer: int, head: int) -> np.ndarray:
        """Returns which texts count at a place, bool [texts]."""
        measured = np.zeros(len(rows), dtype=bool)
        for column in rows.columns:
            is_here = (column[0], *column[2:]) == (test, layer, head)
            if is_here and not measured.all():
                measured |= rows.is_there(column)
        is_in_turn = np.sort(ranks[measured]) == np.arange(measured.sum())
        n_first = is_in_turn.sum()
        return measured & (ranks < n_first)

    def known(column: Column) -> np.ndarray:
        return rows.is_there(column) & counts(column[0], *column[2:])

    found = replace(
        rows,
        read=lambda column: np.where(known(column), rows.read(column), np.nan),
        is_there=known,
    )
    return found.select(
        lambda test, _, layer, head: bool(counts(test, layer, head).any())
    ).measured()


def rows_that_count(rows: Rows, facts: Mapping[str, Any] | None, ids: Iterable[int]) -> Rows:
    """Of an audit that ended early the rows without gaps.

    Args:
        facts: "stopping" of a report's provenance; None of an ordinary audit.
        ids: of all its texts.
    """
    if facts is None or not len(rows):
        return rows
    return without_gaps(rows, draw_random_order(ids, facts["seed"]))
