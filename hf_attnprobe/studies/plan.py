"""Options of a study, its steps, and the tables of their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_attnprobe.data.recipes import RECIPES
from hf_attnprobe.data.sources import named
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import LARGEST_SEED, Options, option


Scalar = str | int | float | bool
STATE = "study.json"
"""Which steps are done; it marks the folder of a study."""


@dataclass(frozen=True)
class StudyOptions(Options):
    """Options of :func:`hf_attnprobe.study` beyond the study itself."""

    dataset: str | Sequence[str] | None = option(
        None,
        "data sets in place of the study's: names, Hub ids, folders, or name=folder: "
        "a folder that stands for a named data set and is cut as that one is",
    )
    dataset_config: str | None = option(
        None, "configuration of the data sets, where they have several"
    )
    text_column: str | Sequence[str] | None = option(
        None,
        "column of the texts, or several to be joined by a space into one text",
        metavar="COLUMN",
    )
    text_pair_column: str | None = option(
        None, "column of the second texts, where texts come in pairs"
    )
    label_column: str | Sequence[str] | None = option(
        None,
        "column of the labels, or one of 0 and 1 per label",
        metavar="COLUMN",
    )
    train_limit: int | None = option(
        None,
        "number of texts to train on, spread evenly over the classes (default: all)",
        at_least=1,
    )
    test_limit: int | None = option(
        None,
        "number of texts to test on, always the same ones (default: the study's, or all)",
        at_least=1,
    )
    epochs: int | None = option(
        None,
        "largest number of epochs of every training but adversaries "
        "(default: the study's, or the procedure's)",
        at_least=1,
        at_most=100_000,
    )
    quick: bool = option(
        False, "a short run, with the study's own shorter settings"
    )
    seed: int = option(
        0,
        "random seed of the steps that set none",
        at_least=0,
        at_most=LARGEST_SEED,
    )
    word_vectors: str | Path | None = option(
        None, "pretrained word vectors for the trainings that name none"
    )

    @property
    def datasets(self) -> list[str]:
        """The data sets that replace the study's; none where its own are used."""
        if self.dataset is None:
            return []
        return (
            [self.dataset]
            if isinstance(self.dataset, str)
            else list(self.dataset)
        )

    @property
    def replaced(self) -> dict[str, Any]:
        """Arguments that replace those of every step that has them."""
        names = (
            "dataset_config",
            "text_column",
            "text_pair_column",
            "label_column",
            "train_limit",
            "test_limit",
            "epochs",
        )
        return {
            k: getattr(self, k) for k in names if getattr(self, k) is not None
        }

    @property
    def defaults(self) -> dict[str, Any]:
        """Arguments for the steps that do not set them."""
        if self.word_vectors is None:
            return {"seed": self.seed}
        return {"seed": self.seed, "word_vectors": str(self.word_vectors)}


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
    """A data set used for training, with the number of texts of each split."""

    name: str
    sizes: dict[str, int]


@dataclass(frozen=True)
class Job:
    """A step at one cell of a grid; its folder, and those it is made of, are below the study's."""

    step: str
    verb: str
    cell: Mapping[str, Scalar]
    arguments: dict[str, Any]
    folder: str
    made_of: tuple[str, ...] = ()

    def is_at(self, cell: Mapping[str, Scalar]) -> bool:
        """Whether this is its step's job for a cell of the grid."""
        return all(cell[name] == value for name, value in self.cell.items())


@dataclass
class StudyState:
    """What ``study.json`` holds: of every step that is done its arguments, texts and seconds."""

    study: str
    quick: bool
    steps: dict[str, dict[str, Any]]

    @property
    def kind(self) -> str:
        """Which study it is, in words."""
        return f"{'quick' if self.quick else 'full'} study {self.study}"


def jobs_of_rows(
    table: Table, jobs: Mapping[str, Sequence[Job]]
) -> Sequence[Job]:
    """Jobs of the step that uses most lists of the grid; each gives a row of the table.

    Args:
        table: its columns are of steps that there are.
        jobs: of each step.

    Raises:
        AttnProbeError: another step of the table uses a list that this one does not.
    """
    rows = max(
        (jobs[column.step] for column in table.columns),
        key=lambda of: len(of[0].cell),
    )
    for column in table.columns:
        if not jobs[column.step][0].cell.keys() <= rows[0].cell.keys():
            raise AttnProbeError(
                f"no step is done for every cell that {column.step} and the others are; "
                "split the table"
            )
    return rows


def name_of(dataset: str) -> str:
    """The name of a data set in a study.

    >>> name_of("sst"), name_of("sst=folder"), name_of("/data/SST")
    ('sst', 'sst', 'sst')
    """
    name, equals, _ = dataset.partition("=")
    return name if equals or dataset in RECIPES else Path(dataset).name.lower()


def load_as(dataset: str) -> Any:
    """The data set to load: ``name=folder`` for a folder split as the data set ``name``.

    >>> load_as("sst"), load_as("mine=folder"), load_as("sst=folder").hub_id
    ('sst', 'folder', 'folder')
    """
    if "=" not in dataset:
        return dataset
    recipe = named(dataset)
    return recipe if recipe.name else recipe.hub_id
