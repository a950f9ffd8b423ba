"""The plan of a study: steps with their arguments, and tables of their results.

A study is a function of :class:`Steps`. A step is a verb with arguments, named like the flags of
the command line. The result of an earlier step can be an argument of a later one. All options of a
step are checked when it is added, before any step runs. For example::

    def study(steps: Steps) -> None:
        \"\"\"How does the encoder affect attention?\"\"\"
        for cell in steps.grid(dataset=["sst"], encoder=["mlp", "bilstm"]):
            base = steps.add("train", "base", cell, **cell, epochs=2 if steps.quick else 8)
            steps.add("audit", "audit", cell, model=base, tests=["erasure"])
        steps.add_table("Erasure", audit={"never flips": "never_flips@attention"})
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
from hf_attnprobe.audits.options import AuditOptions, load_test_options
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import (
    MAX_SEED,
    Options,
    SavedModel,
    check_known_names,
    check_name,
    check_path,
    collect_fields,
    option,
    resolve_tests,
    select_options,
)
from hf_attnprobe.core.serialization import format_short
from hf_attnprobe.data.recipes import RECIPES
from hf_attnprobe.data.sources import find_recipe
from hf_attnprobe.data.specs import Data
from hf_attnprobe.retraining.options import (
    RetrainOptions,
    TransferOptions,
)
from hf_attnprobe.training.options import Architecture, TrainingOptions


Scalar = str | int | float | bool
"""A value in a grid cell."""
STATE_FILE = "study.json"
"""File with the finished steps; it marks the folder of a study."""


@dataclass(frozen=True)
class StudyOptions(Options):
    """Options of :func:`hf_attnprobe.study`, apart from the study itself."""

    dataset: str | Sequence[str] | None = option(
        None,
        "data sets that replace the study's: names, Hub ids, folders, or name=folder for a folder "
        "that is split like the named data set",
    )
    dataset_config: str | None = option(
        None, "configuration of the data sets, if they have several"
    )
    text_column: str | Sequence[str] | None = option(
        None,
        "column with the texts, or several columns that are joined with a space",
        metavar="COLUMN",
    )
    text_pair_column: str | None = option(None, "column with the second texts of text pairs")
    label_column: str | Sequence[str] | None = option(
        None,
        "column with the labels, or one column of 0 and 1 per label",
        metavar="COLUMN",
    )
    train_limit: int | None = option(
        None,
        "number of texts to train on, spread evenly over the classes (default: all)",
        at_least=1,
    )
    test_limit: int | None = option(
        None,
        "number of texts to test on, always the same ones (default: the study's number, or all)",
        at_least=1,
    )
    epochs: int | None = option(
        None,
        "maximum number of epochs of all trainings except adversaries "
        "(default: the study's, or the procedure's)",
        at_least=1,
        at_most=100_000,
    )
    quick: bool = option(False, "run the short version that the study defines")
    seed: int = option(
        0,
        "random seed of all steps that do not set one",
        at_least=0,
        at_most=MAX_SEED,
    )
    word_vectors: str | Path | None = option(
        None, "pretrained word vectors for all trainings that do not set any"
    )

    @property
    def datasets(self) -> list[str]:
        """Data sets that replace the study's; an empty list keeps the study's own."""
        if self.dataset is None:
            return []
        return [self.dataset] if isinstance(self.dataset, str) else list(self.dataset)

    @property
    def replacements(self) -> dict[str, Any]:
        """Arguments that replace those of every step that accepts them."""
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
class StudyColumn:
    """A column of a table, with a value for each grid cell.

    Attributes:
        name: Head of the column.
        step: Step whose results are displayed.
        statistic: Statistic name, whose mean over the texts is displayed. Alternatively:
        score: Name of a score of all texts, as test/model/metric.
        difference: Whether to display the loss of the score against its reference instead of the
            score.
        threshold: Value from which ``means`` is true.
        means: Statement about cells whose value reaches the threshold.
    """

    name: str
    step: str
    statistic: str | None = None
    score: str | None = None
    difference: bool = False
    threshold: float | None = None
    means: str | None = None


@dataclass(frozen=True)
class StudyTable:
    """A table with a row for each grid cell.

    Attributes:
        title: Question that the table answers.
        columns: Columns of the table.
        lengths: Numbers of tokens at which the texts are divided. Each range has a row.
    """

    title: str
    columns: tuple[StudyColumn, ...]
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class DatasetSizes:
    """A data set used for training, with the number of texts of each split."""

    name: str
    sizes: dict[str, int]


@dataclass(frozen=True)
class Job:
    """A step at one grid cell.

    Attributes:
        step: Step name.
        verb: Key of :data:`VERBS`.
        cell: The grid cell.
        arguments: Arguments of the verb, by name.
        folder: Folder of its results, below the study folder.
        depends_on: Folders of earlier steps whose results it uses.
    """

    step: str
    verb: str
    cell: Mapping[str, Scalar]
    arguments: dict[str, Any]
    folder: str
    depends_on: tuple[str, ...] = ()

    def is_in_cell(self, cell: Mapping[str, Scalar]) -> bool:
        """Return whether this job belongs to a grid cell.

        Args:
            cell: A cell, which may have more lists than this job.
        """
        return all(cell[name] == value for name, value in self.cell.items())


@dataclass
class StudyState:
    """Content of ``study.json``.

    Attributes:
        study: Study name.
        quick: Whether it is the quick version.
        steps: Arguments, fingerprints of the texts, and seconds of every finished step, by folder.
    """

    study: str
    quick: bool
    steps: dict[str, dict[str, Any]]

    @property
    def kind(self) -> str:
        """Description of the study for error messages."""
        return f"{'quick' if self.quick else 'full'} study {self.study}"


def find_row_jobs(table: StudyTable, jobs: Mapping[str, Sequence[Job]]) -> Sequence[Job]:
    """Return the jobs of the step that uses the most grid lists, one per row of the table.

    Args:
        table: A table whose columns refer to existing steps.
        jobs: The jobs of each step.

    Raises:
        AttnProbeError: If another step of the table uses a list that this step does not use.
    """
    rows = max(
        (jobs[column.step] for column in table.columns),
        key=lambda step_jobs: len(step_jobs[0].cell),
    )
    for column in table.columns:
        if not jobs[column.step][0].cell.keys() <= rows[0].cell.keys():
            raise AttnProbeError(
                f"the steps of a table must vary over the same lists, but {column.step} uses a list "
                f"that {rows[0].step} does not; split the table"
            )
    return rows


def name_dataset(dataset: str) -> str:
    """Return the name of a data set in a study.

    >>> name_dataset("sst"), name_dataset("sst=folder"), name_dataset("/data/SST")
    ('sst', 'sst', 'sst')

    Args:
        dataset: A name, a Hub id, a folder, or ``name=folder``.
    """
    name, equals, _ = dataset.partition("=")
    return name if equals or dataset in RECIPES else Path(dataset).name.lower()


def resolve_dataset(dataset: str) -> Any:
    """Return the data set to load; a folder in ``name=folder`` is split like the named data set.

    >>> resolve_dataset("sst"), resolve_dataset("mine=folder"), resolve_dataset("sst=folder").hub_id
    ('sst', 'folder', 'folder')

    Args:
        dataset: A name, a Hub id, a folder, or ``name=folder``.
    """
    if "=" not in dataset:
        return dataset
    recipe = find_recipe(dataset)
    return recipe if recipe.name else recipe.hub_id


# --- Verbs and steps -----------------------------------------------------------------------------

MODEL_ARGUMENTS = ("model", "guide", "uniform")
"""Arguments that name models: results of earlier steps, folders or Hub ids."""
VERBS_WITH_STATISTICS = ("audit", "retrain", "transfer")
"""Verbs whose results contain statistics, with one value per text."""
VERBS_WITH_SCORES = ("retrain", "transfer")
"""Verbs whose results contain scores of all texts together, such as F1."""
VERBS_WITH_LENGTHS = ("audit", "retrain")
"""Verbs whose texts can be divided by their number of tokens."""


@dataclass(frozen=True)
class Verb:
    """The arguments that a step accepts.

    Attributes:
        options: Class of the options, whose fields are arguments.
        further_option_classes: Classes whose fields are arguments too.
        required_arguments: Arguments that must be passed, in addition to the data set.
        optional_arguments: Other arguments that are not options.
        excluded: Fields of the option classes that the verb does not accept.
        is_training: Whether the step trains on the training split of the data set.
        check_tests: Function that raises ``AttnProbeError`` for tests that do not exist.
    """

    options: type[Options]
    further_option_classes: tuple[type[Options], ...] = ()
    required_arguments: tuple[str, ...] = ("model",)
    optional_arguments: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ("split", "test_limit")
    is_training: bool = True
    check_tests: Callable[[Any], object] = lambda tests: None

    @property
    def option_classes(self) -> list[type[Options]]:
        """Classes whose fields are arguments."""
        return [Data, self.options, *self.further_option_classes]

    @property
    def argument_names(self) -> list[str]:
        """Names of all arguments that a step may have."""
        fields = [n for n in collect_fields(self.option_classes) if n not in self.excluded]
        return [*fields, *self.required_arguments, *self.optional_arguments]


def _check_audit_tests(tests: Any) -> None:
    """Raise AttnProbeError if a test of an audit does not exist."""
    resolve_tests(tests, load_test_options(), ())


FIELDS_NOT_FOR_TRAINING = ("split", "test_limit", "task", "gguf_file", "token")
"""Fields that a training does not accept.

Access tokens are excluded because the arguments of a study are written to files.
"""
VERBS = {
    "train": Verb(
        TrainingOptions,
        (Architecture, SavedModel),
        required_arguments=(),
        excluded=FIELDS_NOT_FOR_TRAINING,
    ),
    "audit": Verb(
        AuditOptions,
        (SavedModel,),
        optional_arguments=("tests",),
        excluded=("train_limit", "token"),
        is_training=False,
        check_tests=_check_audit_tests,
    ),
    "retrain": Verb(
        RetrainOptions,
        (SavedModel,),
        optional_arguments=("tests",),
        excluded=FIELDS_NOT_FOR_TRAINING,
        check_tests=retraining.select_retraining_tests,
    ),
    "transfer": Verb(TransferOptions, required_arguments=("model", "guide")),
}
"""Arguments of a step, by its verb."""


@dataclass
class Steps:
    """The steps of a study in the order in which they run, and its tables.

    Attributes:
        name: Study name.
        options: Options that replace arguments of the study.
        title: The study's question.
        paper: Key of the paper whose tables are added, with the published numbers; None adds none.
        jobs: All planned steps.
        tables: All planned tables.
        sources: The data set to load, by its name in the study.
    """

    name: str
    options: StudyOptions = StudyOptions()
    title: str = ""
    paper: str | None = None
    jobs: list[Job] = field(default_factory=list)
    tables: list[StudyTable] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def quick(self) -> bool:
        """Whether the quick version of the study is planned."""
        return self.options.quick

    @property
    def jobs_by_step(self) -> dict[str, list[Job]]:
        """Jobs of each step, by the name of the step."""
        jobs: dict[str, list[Job]] = {}
        for job in self.jobs:
            jobs.setdefault(job.step, []).append(job)
        return jobs

    def grid(self, **lists: Sequence[Scalar]) -> Iterator[dict[str, Any]]:
        """Yield every cell of a grid, that is, every combination of the values in the lists.

        If the options contain data sets, they replace the list ``dataset``. A cell contains the
        name of a data set, for example ``imdb`` for ``imdb=folder``.

        Args:
            **lists: Lists of values by name.
        """
        if "dataset" in lists:
            datasets = self.options.datasets or lists["dataset"]
            lists["dataset"] = [self._register_dataset(dataset) for dataset in datasets]
        for values in itertools.product(*lists.values()):
            yield dict(zip(lists, values, strict=True))

    def _register_dataset(self, dataset: Any) -> str:
        """Store the data set to load under its name in the study, and return that name."""
        name = name_dataset(dataset)
        if self.sources.setdefault(name, dataset) != dataset:
            raise AttnProbeError(
                f"data sets must have different names, but {self.sources[name]} and {dataset} have "
                "the same; rename one of them with name=folder"
            )
        return name

    def has_pairs(self, dataset: str) -> bool:
        """Return whether the texts of a data set come in pairs.

        Args:
            dataset: Data set name.
        """
        if self.options.text_pair_column is not None:
            return True
        return find_recipe(self.sources.get(dataset, dataset)).has_pairs

    def add(
        self,
        verb: str,
        step: str,
        cell: Mapping[str, Scalar],
        /,
        **arguments: Any,
    ) -> str:
        """Add a step at a grid cell. A step that was already added is not added again.

        Args:
            verb: Key of :data:`VERBS`.
            step: Step name, which is used in tables and folders.
            cell: Part of a grid cell that identifies this run of the step.
            **arguments: Arguments of the verb, named like its flags. The default data set is that
                of the cell.

        Returns:
            The folder of its results below the study folder, as an argument of later steps.

        Raises:
            AttnProbeError: If the verb does not accept an argument or its value.
        """
        with prefix_errors(f"step {step}: "):
            check_known_names("verb", [verb], VERBS)
            if _make_slug(step) != step:
                raise AttnProbeError(
                    "the name of a step may only contain letters, digits, _ . and +, got "
                    f"{format_short(step)}"
                )
            cell_arguments = {k: cell[k] for k in cell if k == "dataset"}
            job = self._make_job(verb, step, dict(cell), cell_arguments | arguments)
        if job not in self.jobs:
            self.jobs.append(job)
        return job.folder

    def _make_job(self, verb: str, step: str, cell: dict[str, Scalar], arguments: dict) -> Job:
        """Check the arguments of a step and build its job."""
        verb_record = VERBS[verb]
        check_known_names("option", arguments, verb_record.argument_names)
        for name in ("dataset", *verb_record.required_arguments):
            if name not in arguments:
                raise AttnProbeError(f"the argument {name} is required; pass it to steps.add")
        if not isinstance(arguments["dataset"], str):
            got = format_short(arguments["dataset"])
            raise AttnProbeError(f"dataset must be the name of a data set, got {got}")
        step_arguments = self.options.defaults | arguments | self.options.replacements
        step_arguments = {
            name: value
            for name, value in step_arguments.items()
            if name in verb_record.argument_names
        }
        step_arguments["dataset"] = self.sources.get(arguments["dataset"], arguments["dataset"])
        for option_class in verb_record.option_classes:
            if option_class is not SavedModel or "model" in step_arguments:
                select_options(step_arguments, option_class)
        verb_record.check_tests(step_arguments.get("tests"))
        depends_on = self._find_earlier_steps(step_arguments)
        folder = self._choose_folder(step, cell, step_arguments)
        return Job(step, verb, cell, step_arguments, folder, depends_on)

    def _find_earlier_steps(self, step_arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the folders of earlier steps whose models are used; check that other models exist."""
        earlier_folders = [job.folder for job in self.jobs]
        used_folders = []
        for name in MODEL_ARGUMENTS:
            if step_arguments.get(name) is None:
                continue
            model = str(step_arguments[name])
            owning_folders = [
                folder for folder in earlier_folders if f"{model}/".startswith(f"{folder}/")
            ]
            if not owning_folders:
                check_path("model", model)
            used_folders += owning_folders
        return tuple(dict.fromkeys(used_folders))

    def _choose_folder(
        self, step: str, cell: Mapping[str, Scalar], step_arguments: Mapping[str, Any]
    ) -> str:
        """Return the folder of a step at a cell, which no other job uses.

        Raises:
            AttnProbeError: If the step was already added at this cell with other arguments.
        """
        for job in self.jobs_by_step.get(step, []):
            if job.cell == cell:
                if job.arguments != step_arguments:
                    position = f"cell {format_short(cell)}" if cell else "the empty cell"
                    raise AttnProbeError(
                        f"the step was already added at {position} with other arguments; add the "
                        "arguments that differ to the cell"
                    )
                return job.folder
        folder = name_cell_folder(step, cell, {job.folder.casefold() for job in self.jobs})
        check_name("a step", folder)
        return folder

    def add_table(
        self,
        title: str,
        lengths: Sequence[int] = (),
        /,
        **columns: Mapping[str, Any],
    ) -> None:
        """Add a table with a row for each cell of its steps.

        Args:
            title: Question that the table answers.
            lengths: Numbers of tokens at which the texts are divided. Each range has a row.
            **columns: For each step, its columns by name. A column is the name of a statistic, or
                the fields of a :class:`~hf_attnprobe.studies.steps.StudyColumn`.

        Raises:
            AttnProbeError: If a step or a statistic does not exist, or if the verb of the step does
                not compute it.
        """
        table_columns = []
        for step, step_columns in columns.items():
            for name, column_fields in step_columns.items():
                fields = column_fields
                if isinstance(column_fields, str):
                    fields = {"statistic": column_fields}
                with prefix_errors(f"table {title!r}, column {name!r}: "):
                    check_known_names("field", fields, [*StudyColumn.__dataclass_fields__])
                    table_columns.append(StudyColumn(name, step, **fields))
                    self._check_column(table_columns[-1], by_length=bool(lengths))
        with prefix_errors(f"table {title!r}: "):
            if not table_columns:
                raise AttnProbeError("the table has no columns; add at least one")
            table = StudyTable(title, tuple(table_columns), tuple(lengths))
            find_row_jobs(table, self.jobs_by_step)
        self.tables.append(table)

    def _check_column(self, column: StudyColumn, by_length: bool) -> None:
        """Check that the step of a column exists and computes its statistic or score."""
        check_known_names("step", [column.step], self.jobs_by_step)
        (verb, *_) = {job.verb for job in self.jobs_by_step[column.step]}
        if (column.statistic is None) == (column.score is None):
            raise AttnProbeError("a column needs either a statistic or a score; set one of the two")
        result_name = "statistics"
        verbs = VERBS_WITH_LENGTHS if by_length else VERBS_WITH_STATISTICS
        if column.score is not None:
            result_name, verbs = "scores", VERBS_WITH_SCORES
            if by_length:
                raise AttnProbeError(
                    f"a table with lengths can only contain statistics, got the score {column.score}"
                )
            if column.score.count("/") != 2:
                raise AttnProbeError(
                    f"a score must be written as test/model/metric, got {column.score!r}"
                )
        if verb not in verbs:
            raise AttnProbeError(
                f"only steps of {' or '.join(verbs)} have {result_name} here, but {column.step} is "
                f"a step of {verb}"
            )
        if (column.threshold is None) != (column.means is None):
            raise AttnProbeError(
                "a column needs both threshold and means, or neither of the two; set both or neither"
            )
        if column.statistic is not None:
            check_statistic(column.statistic)


def check_statistic(statistic: str) -> None:
    """Check that a statistic exists, or both statistics of a ratio ``a/b``.

    Args:
        statistic: Statistic name, or of two.

    Raises:
        AttnProbeError: If no test computes it.
    """
    from hf_attnprobe.faithfulness import registry

    # The predictions of a model have statistics of their own.
    statistic_names = {"accuracy", "probability"}
    statistic_names = statistic_names.union(
        *registry.load_readings().values(), *retraining.get_retraining_readings().values()
    )
    check_known_names(
        "statistic",
        [name.split("@")[0] for name in statistic.split("/")],
        sorted(statistic_names),
    )


@contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Prefix the messages of errors with the part of the study in which they occur.

    Args:
        prefix: Prefix, such as ``step base: ``.
    """
    try:
        yield
    except AttnProbeError as error:
        raise AttnProbeError(f"{prefix}{error}") from error


def _make_slug(value: Scalar) -> str:
    """Return a value as part of a folder name that never refers to another folder.

    >>> _make_slug("a/b-c"), _make_slug(0.5), _make_slug(""), _make_slug("..")
    ('a_b_c', '0.5', '_', '__')
    """
    name = re.sub(r"[^\w.+]", "_", str(value)) or "_"
    return name if name.strip(".") else "_" * len(name)


def name_cell_folder(step: str, cell: Mapping[str, Scalar], used_folders: set[str]) -> str:
    """Return the folder of a cell, with a digest if another cell has the same name.

    >>> name_cell_folder("base", {"size": "x_y"}, set())
    'base/x_y'
    >>> name_cell_folder("base", {"size": "x-y"}, {"base/x_y"})
    'base/x_y-07f132'

    Args:
        step: Step name.
        cell: A grid cell.
        used_folders: Folders of earlier cells in lower case, since some file systems ignore the
            case.
    """
    if not cell:
        return step
    folder = f"{step}/{'-'.join(_make_slug(value) for value in cell.values())}"
    if folder.casefold() not in used_folders:
        return folder
    digest = hashlib.sha256(repr(tuple(cell.values())).encode()).hexdigest()
    return f"{folder}-{digest[:6]}"
