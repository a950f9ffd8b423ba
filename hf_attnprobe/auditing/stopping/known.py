"""What a running audit knows already: its rows on disk, read as they come."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pandas as pd
from accelerate.utils import broadcast_object_list

from hf_attnprobe.attention_model import Site
from hf_attnprobe.inference.batching import Where
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.statistics.stopping import Stopping, watched, without_gaps
from hf_attnprobe.storage.rows import Done, Place, ids_by_place, read_part


T = TypeVar("T")
ESTIMATES = ("first_order_uniform", "first_order_zero")
"""Of the screen, which say where to look first."""


Run = Callable[[Sequence[Text], Where, Done], None]
"""Runs tests at sites on texts, but for what is done."""


@dataclass
class Known:
    """The rows of an audit that decisions are made on, and what is done.

    Attributes:
        folder: of the rows.
        texts: in the random order.
        stopping: how many texts there are, and the seed of their order.
        run_missing: does the work.
        done: ids of texts with rows, by test, layer and head.
    """

    folder: Path
    texts: Sequence[Text]
    stopping: Stopping
    run_missing: Run
    done: dict[Place, set[int]] = field(default_factory=dict, init=False)
    _ids: set[int] = field(init=False)
    _seen: set[str] = field(default_factory=set, init=False)
    _rows: list[pd.DataFrame] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._ids = {text.example_id for text in self.texts}

    def run(self, texts: Sequence[Text], where: Where) -> None:
        """Runs what is missing of some tests on some texts, and looks."""
        self.run_missing(texts, where, self.done)
        self.look()

    def agreed(self, decision: T) -> T:
        """The main process's decision, for all; clocks differ between processes."""
        decisions = [decision]
        broadcast_object_list(decisions)
        return decisions[0]

    def look(self) -> None:
        """Reads the parts that were added since the last look."""
        for part in sorted(self.folder.glob("part-*.parquet")):
            if part.name in self._seen:
                continue
            self._seen.add(part.name)
            rows = read_part(part)
            for place, ids in ids_by_place(rows).items():
                self.done.setdefault(place, set()).update(ids)
            self._rows.append(rows[rows.statistic.isin(self._kept(rows))])

    def _kept(self, rows: pd.DataFrame) -> list[str]:
        names = rows[["test", "statistic"]].drop_duplicates()
        by_test = names.groupby("test").statistic
        found = [watched(of_test, self.stopping) for _, of_test in by_test]
        return [*ESTIMATES, *(name for of_test in found for name in of_test)]

    def rows(self, test: str) -> pd.DataFrame:
        """Of a test the rows that decisions are made on, without gaps in the order."""
        parts = [rows[rows.test == test] for rows in self._rows]
        parts = [rows for rows in parts if len(rows)]
        if not parts:
            return pd.DataFrame()
        found = pd.concat(parts, ignore_index=True)
        return without_gaps(found, [text.example_id for text in self.texts])

    def lacks(self, test: str, site: Site, text: Text) -> bool:
        """Whether a test has not been run on a text at a site."""
        held = self.done.get((test, site.layer, site.head), ())
        return text.example_id not in held

    def is_done(self, test: str, site: Site) -> bool:
        """Whether a test has been run on all texts at a site."""
        return self._ids <= self.done.get((test, site.layer, site.head), set())

    def lacking(self, test: str, sites: Sequence[Site]) -> list[Text]:
        """The texts, in their order, that a test has not been run on at some site."""
        held = [self.done.get((test, site.layer, site.head), set()) for site in sites]
        everywhere = set.intersection(*held) if held else set()
        return [text for text in self.texts if text.example_id not in everywhere]

    def n_done(self, where: Mapping[str, Sequence[Site]]) -> int:
        """Runs that are done: one test at one site on one text is a run."""
        return sum(
            len(self.done.get((test, site.layer, site.head), set()) & self._ids)
            for test, sites in where.items()
            for site in sites
        )
