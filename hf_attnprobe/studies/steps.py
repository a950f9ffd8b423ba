"""A study as it is planned: steps with their arguments, and tables of what they will show.

A study is a function of :class:`Steps`. A step is a verb with arguments by their flat names; what
an earlier step leaves behind is the argument of a later one. Every option is checked when its step
is added, so before anything runs::

    def study(s: Steps) -> None:
        \"\"\"What does the encoder do to attention?\"\"\"
        for cell in s.grid(dataset=["sst"], encoder=["mlp", "bilstm"]):
            base = s.add("train", "base", cell, **cell, epochs=2 if s.quick else 8)
            s.add("audit", "audit", cell, model=base, tests=["erasure"])
        s.table("Erasure", audit={"never flips": "never_flips@attention"})
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_attnprobe import retraining
from hf_attnprobe.audits.options import AuditOptions, options_of_tests
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import (
    LARGEST_SEED,
    Options,
    SavedModel,
    check_known,
    check_name,
    check_path,
    from_flat,
    names_of,
    option,
    options_with_default,
)
from hf_attnprobe.core.serialization import in_short
from hf_attnprobe.data.recipes import RECIPES
from hf_attnprobe.data.sources import named
from hf_attnprobe.data.specs import Data
from hf_attnprobe.retraining.options import (
    DeceptionOptions,
    RetrainOptions,
    TransferOptions,
)
from hf_attnprobe.training.options import Architecture, TrainingOptions


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
    quick: bool = option(False, "a short run, with the study's own shorter settings")
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
        return [self.dataset] if isinstance(self.dataset, str) else list(self.dataset)

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
        return {k: getattr(self, k) for k in names if getattr(self, k) is not None}

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


def jobs_of_rows(table: Table, jobs: Mapping[str, Sequence[Job]]) -> Sequence[Job]:
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


# --- a study as it is planned --------------------------------------------------------------

MODELS = ("model", "guide", "uniform")
"""Arguments that name models: what an earlier step left, a folder or a Hub id."""
WITH_STATISTICS = ("audit", "retrain", "transfer")
WITH_SCORES = ("retrain", "transfer", "deceive")
"""Verbs whose results have numbers per text, and scores of all texts."""
WITH_LENGTHS = ("audit", "retrain")
"""Verbs whose texts can be divided by their numbers of tokens."""


@dataclass(frozen=True)
class Verb:
    """Which arguments a step takes.

    Attributes:
        options: the class of its options, whose fields are arguments.
        others: classes whose fields are arguments too.
        needed: arguments that must be given, besides the data set.
        further: other arguments that are no options.
        unused: fields that mean nothing here.
        trains: whether the step trains on the data set's training split.
        check_tests: raises AttnProbeError for tests that there are not.
    """

    options: type[Options]
    others: tuple[type[Options], ...] = ()
    needed: tuple[str, ...] = ("model",)
    further: tuple[str, ...] = ()
    unused: tuple[str, ...] = ("split", "test_limit")
    trains: bool = True
    check_tests: Callable[[Any], object] = lambda tests: None

    @property
    def kinds(self) -> list[type[Options]]:
        """The classes whose fields are arguments."""
        return [Data, self.options, *self.others]

    @property
    def names(self) -> list[str]:
        """The arguments that a step may have."""
        fields = [n for n in names_of(self.kinds) if n not in self.unused]
        return [*fields, *self.needed, *self.further]


def _check_audited(tests: Any) -> None:
    options_with_default(tests, options_of_tests(), ())


UNUSED = ("split", "test_limit", "task", "gguf_file", "token")
"""Fields that mean nothing to a training; a study is written down, a token is not."""
VERBS = {
    "train": Verb(TrainingOptions, (Architecture, SavedModel), needed=(), unused=UNUSED),
    "audit": Verb(
        AuditOptions,
        (SavedModel,),
        further=("tests",),
        unused=(
            "train_limit",
            "token",
        ),  # a study is written down, a token is not
        trains=False,
        check_tests=_check_audited,
    ),
    "retrain": Verb(
        RetrainOptions,
        further=("tests",),
        check_tests=retraining.asked_retrainings,
    ),
    "transfer": Verb(TransferOptions, needed=("model", "guide")),
    "deceive": Verb(
        DeceptionOptions,
        (SavedModel,),
        needed=("model", "tokens"),
        unused=UNUSED,
    ),
}


@dataclass
class Steps:
    """The steps of a study in their order, and its tables.

    Attributes:
        name: of the study.
        title: its question.
        paper: whose tables are added with the published numbers; None adds none.
        options: what replaces the study's own arguments.
    """

    name: str
    options: StudyOptions = StudyOptions()
    title: str = ""
    paper: str | None = None
    jobs: list[Job] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    """What is loaded for the name of a data set."""

    @property
    def quick(self) -> bool:
        """Whether a short run is asked for."""
        return self.options.quick

    @property
    def by_step(self) -> dict[str, list[Job]]:
        """The jobs of each step."""
        jobs: dict[str, list[Job]] = {}
        for job in self.jobs:
            jobs.setdefault(job.step, []).append(job)
        return jobs

    def grid(self, **lists: Sequence[Scalar]) -> Iterator[dict[str, Any]]:
        """Yields every cell of a grid of lists.

        Data sets of the options replace those of the list ``dataset``. A data set goes by its
        name: ``imdb`` for ``imdb=folder``.
        """
        if "dataset" in lists:
            asked = self.options.datasets or lists["dataset"]
            lists["dataset"] = [self._name(dataset) for dataset in asked]
        for values in itertools.product(*lists.values()):
            yield dict(zip(lists, values, strict=True))

    def _name(self, dataset: Any) -> str:
        name = name_of(dataset)
        if self.sources.setdefault(name, dataset) != dataset:
            raise AttnProbeError(
                f"expected data sets of different names, got {self.sources[name]} and {dataset}"
            )
        return name

    def is_pairs(self, dataset: str) -> bool:
        """Returns whether the texts of a data set come in pairs, by its name or the options."""
        if self.options.text_pair_column is not None:
            return True
        return named(self.sources.get(dataset, dataset)).is_pairs

    def add(
        self,
        verb: str,
        step: str,
        cell: Mapping[str, Scalar],
        /,
        **arguments: Any,
    ) -> str:
        """Adds a step at a cell of a grid; one that is there already is not added again.

        Args:
            verb: what the step does, of :data:`VERBS`.
            step: its name, which tables and folders take.
            cell: the part of a grid's cell that tells this run of the step from others.
            arguments: of the verb, by their flat names; without a data set that of the cell.

        Returns:
            The folder of its results below the study's, as an argument of later steps.

        Raises:
            AttnProbeError: an argument that the verb does not have, or a value out of its range.
        """
        with said_of(f"step {step}: "):
            check_known("verb", [verb], VERBS)
            if _slug(step) != step:
                raise AttnProbeError(
                    f"expected a name of letters, digits, _ . and +, got {in_short(step)}"
                )
            of_cell = {k: cell[k] for k in cell if k == "dataset"}
            job = self._job(verb, step, dict(cell), of_cell | arguments)
        if job not in self.jobs:
            self.jobs.append(job)
        return job.folder

    def _job(self, verb: str, step: str, cell: dict[str, Scalar], arguments: dict) -> Job:
        kind = VERBS[verb]
        check_known("option", arguments, kind.names)
        for name in ("dataset", *kind.needed):
            if name not in arguments:
                raise AttnProbeError(f"expected {name} to be given")
        if not isinstance(arguments["dataset"], str):
            got = in_short(arguments["dataset"])
            raise AttnProbeError(f"expected the name of a data set, got {got}")
        given = self.options.defaults | arguments | self.options.replaced
        given = {name: value for name, value in given.items() if name in kind.names}
        given["dataset"] = self.sources.get(arguments["dataset"], arguments["dataset"])
        for one in kind.kinds:
            if one is not SavedModel or "model" in given:
                from_flat(given, one)
        kind.check_tests(given.get("tests"))
        made_of = self._made_of(given)
        return Job(step, verb, cell, given, self._folder(step, cell, given), made_of)

    def _made_of(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Folders of the earlier steps that arguments name; checks that the others exist."""
        earlier = [job.folder for job in self.jobs]
        found = []
        for model in [str(given[name]) for name in MODELS if given.get(name) is not None]:
            owner = [folder for folder in earlier if f"{model}/".startswith(f"{folder}/")]
            if not owner:
                check_path("model", model)
            found += owner
        return tuple(dict.fromkeys(found))

    def _folder(self, step: str, cell: Mapping[str, Scalar], given: Mapping[str, Any]) -> str:
        """The folder of a step at a cell, which no other job has.

        Raises:
            AttnProbeError: the step is there at this cell with other arguments.
        """
        for job in self.by_step.get(step, []):
            if job.cell == cell:
                if job.arguments != given:
                    raise AttnProbeError(
                        f"expected the same arguments at {in_short(cell) if cell else 'no cell'} as before; "
                        "name in the cell what differs"
                    )
                return job.folder
        folder = folder_of_cell(step, cell, {job.folder.casefold() for job in self.jobs})
        check_name("a step", folder)
        return folder

    def table(
        self,
        title: str,
        lengths: Sequence[int] = (),
        /,
        **columns: Mapping[str, Any],
    ) -> None:
        """Adds a table with a row for each cell of the steps that it shows.

        Args:
            title: the question that it answers.
            lengths: numbers of tokens at which the texts are divided; each range has a row.
            columns: by step the statistic, or the fields of a
                :class:`~hf_attnprobe.studies.steps.Column`, by the name of the column.

        Raises:
            AttnProbeError: no such step or statistic, or what the step's verb does not have.
        """
        made = []
        for step, of_step in columns.items():
            for name, shown in of_step.items():
                given = {"statistic": shown} if isinstance(shown, str) else shown
                with said_of(f"table {title!r}, column {name!r}: "):
                    check_known("field", given, [*Column.__dataclass_fields__])
                    made.append(Column(name, step, **given))
                    self._check_column(made[-1], by_length=bool(lengths))
        with said_of(f"table {title!r}: "):
            if not made:
                raise AttnProbeError("expected at least one column, got none")
            table = Table(title, tuple(made), tuple(lengths))
            jobs_of_rows(table, self.by_step)
        self.tables.append(table)

    def _check_column(self, column: Column, by_length: bool) -> None:
        check_known("step", [column.step], self.by_step)
        (verb, *_) = {job.verb for job in self.by_step[column.step]}
        if (column.statistic is None) == (column.score is None):
            raise AttnProbeError("expected either a statistic or a score")
        what, verbs = (
            "statistics",
            WITH_LENGTHS if by_length else WITH_STATISTICS,
        )
        if column.score is not None:
            what, verbs = "scores", WITH_SCORES
            if by_length:
                raise AttnProbeError(
                    f"expected statistics where lengths divide the texts, got {column.score}"
                )
            if column.score.count("/") != 2:
                raise AttnProbeError(f"expected a score as test/model/metric, got {column.score!r}")
        if verb not in verbs:
            raise AttnProbeError(
                f"expected a step with {what} ({', '.join(verbs)}), {column.step} is {verb}"
            )
        if (column.threshold is None) != (column.means is None):
            raise AttnProbeError("expected threshold and means together")
        if column.statistic is not None:
            check_statistic(column.statistic)


def check_statistic(statistic: str) -> None:
    """Raises AttnProbeError for a statistic, or a ratio of two as ``a/b``, that no test has."""
    from hf_attnprobe.faithfulness import registry

    known = {"accuracy", "probability"}  # of the predictions
    known = known.union(*registry.readings().values(), *retraining.readings().values())
    check_known(
        "statistic",
        [name.split("@")[0] for name in statistic.split("/")],
        sorted(known),
    )


@contextmanager
def said_of(where: str) -> Iterator[None]:
    """Prefixes errors with the part of the study that they are about."""
    try:
        yield
    except AttnProbeError as error:
        raise AttnProbeError(f"{where}{error}") from error


def _slug(value: Scalar) -> str:
    """A value as part of a folder's name.

    Never one that means another folder, as two dots do.

    >>> _slug("a/b-c"), _slug(0.5), _slug(""), _slug("..")
    ('a_b_c', '0.5', '_', '__')
    """
    name = re.sub(r"[^\w.+]", "_", str(value)) or "_"
    return name if name.strip(".") else "_" * len(name)


def folder_of_cell(step: str, cell: Mapping[str, Scalar], taken: set[str]) -> str:
    """The folder of a cell; with a digest if another cell has the same name.

    >>> folder_of_cell("base", {"size": "x_y"}, set())
    'base/x_y'
    >>> folder_of_cell("base", {"size": "x-y"}, {"base/x_y"})
    'base/x_y-07f132'

    Args:
        step: its name.
        cell: of the grid.
        taken: the folders of the cells before, in small letters, since some disks do not
            tell them from capital ones.
    """
    if not cell:
        return step
    folder = f"{step}/{'-'.join(_slug(value) for value in cell.values())}"
    if folder.casefold() not in taken:
        return folder
    digest = hashlib.sha256(repr(tuple(cell.values())).encode()).hexdigest()
    return f"{folder}-{digest[:6]}"
