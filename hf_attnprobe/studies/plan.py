"""What a study file says once it has been read: jobs and tables.

A study is data: a step is a verb with options, so a file is checked by making the options before
anything runs. What is done is known by its arguments and by what it was made of; other arguments
are refused, not silently redone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_attnprobe.data.recipes import RECIPES
from hf_attnprobe.data.sources import named


Scalar = str | int | float | bool
STATE = "study.json"
"""Which steps are done; it marks the folder of a study."""


@dataclass(frozen=True)
class Column:
    """A column of a table: a value for each cell of the grid.

    Args:
        name: head of the column.
        step: the step whose results are shown.
        statistic: the mean of this statistic over the texts, or
        score: a score of all texts, named test/model/metric.
        difference: how far the score is below the reference, in place of the score.
        threshold: the value from which on ``means`` is true.
        means: a statement.
    """

    name: str
    step: str
    statistic: str | None = None
    score: str | None = None
    difference: bool = False
    threshold: float | None = None
    means: str | None = None


@dataclass(frozen=True)
class Table:
    """A table with a row for each cell of the grid.

    Args:
        title: the question that the table answers.
        columns: its columns.
        lengths: numbers of tokens at which the texts are divided; each range has a row.
    """

    title: str
    columns: tuple[Column, ...]
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class DataUsed:
    """A data set that models were trained on: texts and fingerprint of each split."""

    name: str
    sizes: dict[str, int]
    fingerprints: dict[str, str]


@dataclass(frozen=True)
class FolderOf:
    """A reference to what an earlier job left behind: its folder, or ``rest`` in it."""

    job: str
    rest: str = ""

    def below(self, study: Path) -> str:
        """The path, in the folder of the study."""
        return str(study / self.job / self.rest)


@dataclass(frozen=True)
class Job:
    """A step at one cell of the grid, done in ``folder`` below the study's folder.

    ``arguments`` hold a :class:`FolderOf` where the file names an earlier step.
    """

    step: str
    verb: str
    cell: Mapping[str, Scalar]
    arguments: dict[str, Any]
    folder: str
    after: tuple[str, ...] = ()

    def is_at(self, cell: Mapping[str, Scalar]) -> bool:
        """Whether this is the job of its step for a cell of the grid."""
        return all(cell[name] == value for name, value in self.cell.items())


@dataclass(frozen=True)
class Study:
    """A study file that has been checked.

    Args:
        shortened: what ``quick`` replaced.
        settings: what the file has for some data sets only.
        epochs: of every training, where the options give a number.
    """

    name: str
    title: str
    paper: str | None
    jobs: tuple[Job, ...]
    tables: tuple[Table, ...]
    shortened: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    epochs: int | None = None


def each(value: Any, function: Callable[[Any], Any]) -> Any:
    """A function of an argument, or of each of its values where it has several."""
    if isinstance(value, dict):
        return {name: each(item, function) for name, item in value.items()}
    if isinstance(value, list):
        return [function(item) for item in value]
    return function(value)


def name_of(dataset: str) -> str:
    """The name by which a data set is known in a study.

    >>> name_of("sst"), name_of("sst=folder"), name_of("/data/SST")
    ('sst', 'sst', 'sst')
    """
    name, equals, _ = dataset.partition("=")
    return name if equals or dataset in RECIPES else Path(dataset).name.lower()


def load_as(dataset: str) -> Any:
    """What to load: ``name=folder`` is a folder that is cut as the data set of that name.

    >>> load_as("sst"), load_as("mine=folder"), load_as("sst=folder").hub_id
    ('sst', 'folder', 'folder')
    """
    if "=" not in dataset:
        return dataset
    recipe = named(dataset)
    return recipe if recipe.name else recipe.hub_id
