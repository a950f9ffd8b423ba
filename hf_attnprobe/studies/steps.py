"""The plan of a study: steps with their arguments, and tables of their results.

A study is a function that takes :class:`Steps`. A step is a verb with arguments, which are named
like the flags of the command line. The result of an earlier step can be an argument of a later
step. All options are checked when a step is added, before any step runs. For example::

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
"""Value of a grid variable, such as the encoder "bilstm"."""
STATE_FILE = "study.json"
"""Name of the file that lists the finished steps of a study."""


@dataclass(frozen=True)
class StudyOptions(Options):
    """Options for :func:`hf_attnprobe.study`, apart from the study itself."""

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
        """Data sets that the user chose, or an empty list if the study's data sets are used."""
        if self.dataset is None:
            return []
        return [self.dataset] if isinstance(self.dataset, str) else list(self.dataset)

    @property
    def replacements(self) -> dict[str, Any]:
        """Arguments that were set on the command line.

        They replace the study's arguments in every step.
        """
        names = (
            "dataset_config",
            "text_column",
            "text_pair_column",
            "label_column",
            "train_limit",
            "test_limit",
            "epochs",
        )
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def defaults(self) -> dict[str, Any]:
        """Default arguments of a step, which the study may override."""
        if self.word_vectors is None:
            return {"seed": self.seed}
        return {"seed": self.seed, "word_vectors": str(self.word_vectors)}


@dataclass(frozen=True)
class StudyColumn:
    """A column of a table, with a value for each grid cell.

    A column has either a statistic or a score.

    Attributes:
        name: Column head.
        step: Step whose results are displayed.
        statistic: Name of a statistic, whose mean over the texts is displayed.
        score: Name of a score for all texts together, as test/model/metric, such as
            ``uniform/base/f1``.
        difference: Whether to display the score's loss against its reference instead of the score.
        threshold: Smallest value for which the statement ``means`` is true.
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
        lengths: Token counts that separate short from long texts. Each range has a row.
    """

    title: str
    columns: tuple[StudyColumn, ...]
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class DatasetSizes:
    """A data set used for training, with its number of texts by split."""

    name: str
    sizes: dict[str, int]


@dataclass(frozen=True)
class Job:
    """A single run of a step, for one grid cell.

    Attributes:
        step: Step name.
        verb: Key in :data:`VERBS`, such as ``"train"``.
        cell: The grid cell: one value per grid list, by name.
        arguments: Arguments for the verb, by name.
        folder: Output folder, below the study folder.
        depends_on: Output folders of earlier jobs whose results this job uses.
    """

    step: str
    verb: str
    cell: Mapping[str, Scalar]
    arguments: dict[str, Any]
    folder: str
    depends_on: tuple[str, ...] = ()

    def is_in_cell(self, cell: Mapping[str, Scalar]) -> bool:
        """Return whether this job belongs to a combination of grid values.

        Args:
            cell: The combination, such as {"dataset": "sst", "encoder": "cnn"}. It may contain
                values that this job does not depend on.
        """
        return all(cell[name] == value for name, value in self.cell.items())


@dataclass
class StudyState:
    """Content of ``study.json``.

    Attributes:
        study: Study name.
        quick: Whether it is the quick version.
        steps: Finished steps by folder, each with arguments, text fingerprints and seconds.
    """

    study: str
    quick: bool
    steps: dict[str, dict[str, Any]]

    @property
    def kind(self) -> str:
        """Description for error messages, such as "quick study encoders"."""
        return f"{'quick' if self.quick else 'full'} study {self.study}"


def find_row_jobs(table: StudyTable, jobs: Mapping[str, Sequence[Job]]) -> Sequence[Job]:
    """Choose the step with one job for each row of a table, and return these jobs.

    The table may have columns from several steps. For example, if one step runs for every data set,
    and another step for every data set and encoder, the table has a row for every data set and
    encoder.

    Args:
        table: A table whose columns refer to existing steps.
        jobs: Jobs by step name.

    Raises:
        AttnProbeError: If another step runs for values, such as seeds, that this step does not have.
    """
    jobs_by_column = [jobs[column.step] for column in table.columns]
    # All jobs of a step depend on the same lists, so that the first job is enough.
    row_jobs = max(jobs_by_column, key=lambda step_jobs: len(step_jobs[0].cell))
    for step_jobs in jobs_by_column:
        missing_lists = [name for name in step_jobs[0].cell if name not in row_jobs[0].cell]
        if missing_lists:
            raise AttnProbeError(
                f"step {step_jobs[0].step} runs for several values of {', '.join(missing_lists)}, but "
                f"step {row_jobs[0].step} does not. Put these two steps into different tables."
            )
    return row_jobs


def name_dataset(dataset: str) -> str:
    """Return the short name by which a study refers to a data set.

    >>> name_dataset("sst"), name_dataset("sst=folder"), name_dataset("/data/SST")
    ('sst', 'sst', 'sst')

    Args:
        dataset: A name, a Hub id, a folder, or ``name=folder``.
    """
    # `equals` is an empty string if there is no "=".
    name, equals, _ = dataset.partition("=")
    if equals or dataset in RECIPES:
        return name
    return Path(dataset).name.lower()


def resolve_dataset(dataset: str) -> Any:
    """Return the data set to load for an argument such as ``sst`` or ``sst=folder``.

    With ``name=folder``, the folder is split like the named data set.

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
"""Arguments of a step whose value is a model: an earlier step, a folder or a Hub id."""
VERBS_WITH_STATISTICS = ("audit", "retrain", "transfer")
"""Verbs of the steps that compute statistics, which have one value per text."""
VERBS_WITH_SCORES = ("retrain", "transfer")
"""Verbs of the steps that compute scores, such as F1, which have one value for all texts."""
VERBS_WITH_LENGTHS = ("audit", "retrain")
"""Verbs of the steps whose results can be displayed separately for short and long texts."""


@dataclass(frozen=True)
class Verb:
    """The arguments that steps with the same verb accept.

    Attributes:
        options: Options class, whose fields are arguments.
        further_option_classes: Further options classes whose fields are arguments.
        required_arguments: Arguments that must be passed, in addition to the data set.
        optional_arguments: Other arguments that are not options.
        excluded_fields: Fields of the option classes that the verb does not accept.
        is_training: Whether the step trains on the data set's training split.
        check_tests: Function that raises ``AttnProbeError`` for tests that do not exist.
    """

    options: type[Options]
    further_option_classes: tuple[type[Options], ...] = ()
    required_arguments: tuple[str, ...] = ("model",)
    optional_arguments: tuple[str, ...] = ()
    excluded_fields: tuple[str, ...] = ("split", "test_limit")
    is_training: bool = True
    check_tests: Callable[[Any], object] = lambda tests: None

    @property
    def option_classes(self) -> list[type[Options]]:
        """All options classes whose fields are arguments."""
        return [Data, self.options, *self.further_option_classes]

    @property
    def argument_names(self) -> list[str]:
        """Names of all arguments that a step may have."""
        fields = [n for n in collect_fields(self.option_classes) if n not in self.excluded_fields]
        return [*fields, *self.required_arguments, *self.optional_arguments]


def _check_audit_tests(tests: Any) -> None:
    """Check that all tests of an audit exist."""
    resolve_tests(tests, load_test_options(), ())


FIELDS_NOT_FOR_TRAINING = ("split", "test_limit", "task", "gguf_file", "token")
"""Fields of the option classes that training steps do not accept.

One of them is ``token``, because access tokens must not be written to the study's files.
"""
VERBS = {
    "train": Verb(
        TrainingOptions,
        (Architecture, SavedModel),
        required_arguments=(),
        excluded_fields=FIELDS_NOT_FOR_TRAINING,
    ),
    "audit": Verb(
        AuditOptions,
        (SavedModel,),
        optional_arguments=("tests",),
        excluded_fields=("train_limit", "token"),
        is_training=False,
        check_tests=_check_audit_tests,
    ),
    "retrain": Verb(
        RetrainOptions,
        (SavedModel,),
        optional_arguments=("tests",),
        excluded_fields=FIELDS_NOT_FOR_TRAINING,
        check_tests=retraining.select_retraining_tests,
    ),
    "transfer": Verb(TransferOptions, required_arguments=("model", "guide")),
}
"""Maps each verb of a step, such as "train", to the arguments that the step accepts."""


@dataclass
class Steps:
    """The plan of a study: its steps, in running order, and its tables.

    Attributes:
        name: Study name.
        options: Options that override the study's arguments.
        title: The study's question.
        paper: Key of a paper whose tables are added, with the published numbers; None adds none.
        jobs: All planned jobs.
        tables: All planned tables.
        sources: Data sets to load, by their short name in the study.
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
        """Jobs by step name."""
        jobs: dict[str, list[Job]] = {}
        for job in self.jobs:
            jobs.setdefault(job.step, []).append(job)
        return jobs

    def grid(self, **lists: Sequence[Scalar]) -> Iterator[dict[str, Any]]:
        """Yield all combinations of the listed values, which are called the cells of a grid.

        If the options contain data sets, they replace the list ``dataset``. A cell contains the
        short name of a data set, for example ``imdb`` for ``imdb=folder``.

        Args:
            **lists: Lists of values by name.

        Yields:
            Dicts with one value per list. For example, ``grid(dataset=["sst"], seed=[0, 1])`` yields
            ``{"dataset": "sst", "seed": 0}`` and ``{"dataset": "sst", "seed": 1}``.
        """
        if "dataset" in lists:
            datasets = self.options.datasets or lists["dataset"]
            lists["dataset"] = [self._register_dataset(dataset) for dataset in datasets]
        for values in itertools.product(*lists.values()):
            yield dict(zip(lists, values, strict=True))

    def _register_dataset(self, dataset: Any) -> str:
        """Store a data set under its short name, and return that name."""
        name = name_dataset(dataset)
        if self.sources.setdefault(name, dataset) != dataset:
            raise AttnProbeError(
                f"data sets must have different names, but {self.sources[name]} and {dataset} are "
                f"both called {name}. Rename one of them with name=folder."
            )
        return name

    def has_pairs(self, dataset: str) -> bool:
        """Return whether a data set consists of text pairs.

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
        """Add a step for a grid cell, unless the same step was already added.

        Args:
            verb: Key in :data:`VERBS`, such as ``"train"``.
            step: Step name for tables and folders.
            cell: The grid cell. It may leave out lists that do not matter for this step.
            **arguments: Arguments for the verb, named like its flags. By default, the data set is
                the cell's.

        Returns:
            The output folder below the study folder. Later steps accept it as a model.

        Raises:
            AttnProbeError: If the verb does not accept an argument or its value.
        """
        with prefix_errors(f"step {step}: "):
            check_known_names("verb", [verb], VERBS)
            if _make_slug(step) != step:
                raise AttnProbeError(
                    "a step name may only contain letters, digits, '_', '.' and '+', got "
                    f"{format_short(step)}"
                )
            cell_arguments = {k: cell[k] for k in cell if k == "dataset"}
            job = self._make_job(verb, step, dict(cell), cell_arguments | arguments)
        if job not in self.jobs:
            self.jobs.append(job)
        return job.folder

    def _make_job(self, verb: str, step: str, cell: dict[str, Scalar], arguments: dict) -> Job:
        """Check a step's arguments and build its job."""
        verb_record = VERBS[verb]
        check_known_names("option", arguments, verb_record.argument_names)
        for name in ("dataset", *verb_record.required_arguments):
            if name not in arguments:
                raise AttnProbeError(f"the argument {name} is missing. Pass it to steps.add.")
        if not isinstance(arguments["dataset"], str):
            value = format_short(arguments["dataset"])
            raise AttnProbeError(f"dataset must be the name of a data set, got {value}")
        # The user's options replace the study's arguments, which replace the defaults.
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
        """Find the earlier steps whose models a step uses, and return their output folders.

        Args:
            step_arguments: The step's arguments. Some of them name a model.

        Raises:
            AttnProbeError: If a model is neither the result of an earlier step nor an existing
                model.
        """
        earlier_folders = [job.folder for job in self.jobs]
        used_folders = []
        for name in MODEL_ARGUMENTS:
            if step_arguments.get(name) is None:
                continue
            model = str(step_arguments[name])
            # The model may be the result of an earlier step, or a folder below this result. With the
            # final slash, "base/x" belongs to the step "base", but "base2" does not.
            matching_folders = [
                folder for folder in earlier_folders if f"{model}/".startswith(f"{folder}/")
            ]
            if not matching_folders:
                check_path("model", model)
            used_folders += matching_folders
        # Remove repetitions, but keep the order.
        return tuple(dict.fromkeys(used_folders))

    def _choose_folder(
        self, step: str, cell: Mapping[str, Scalar], step_arguments: Mapping[str, Any]
    ) -> str:
        """Choose an unused output folder for a step and one combination of grid values.

        If the same step was already added for this combination, its folder is returned.

        Raises:
            AttnProbeError: If the step was already added for this cell with other arguments.
        """
        for job in self.jobs_by_step.get(step, []):
            if job.cell == cell:
                if job.arguments != step_arguments:
                    cell_name = f"cell {format_short(cell)}" if cell else "the empty cell"
                    raise AttnProbeError(
                        f"the step was already added for {cell_name} with other arguments. Add the "
                        "arguments that differ to the cell."
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
            lengths: Token counts that separate short from long texts. Each range has a row.
            **columns: Columns by step name, then by column head. A column is a statistic name, or
                fields for a :class:`~hf_attnprobe.studies.steps.StudyColumn`.

        Raises:
            AttnProbeError: If a step or a statistic does not exist, or if steps with this verb have
                no such results.
        """
        table_columns = []
        for step, step_columns in columns.items():
            for name, column_fields in step_columns.items():
                fields = column_fields
                if isinstance(column_fields, str):
                    fields = {"statistic": column_fields}
                with prefix_errors(f"table {title!r}, column {name!r}: "):
                    check_known_names("field", fields, list(StudyColumn.__dataclass_fields__))
                    table_columns.append(StudyColumn(name, step, **fields))
                    self._check_column(table_columns[-1], by_length=bool(lengths))
        with prefix_errors(f"table {title!r}: "):
            if not table_columns:
                raise AttnProbeError("the table has no columns. Add at least one.")
            table = StudyTable(title, tuple(table_columns), tuple(lengths))
            find_row_jobs(table, self.jobs_by_step)
        self.tables.append(table)

    def _check_column(self, column: StudyColumn, by_length: bool) -> None:
        """Check that a column's step exists and computes the column's statistic or score."""
        check_known_names("step", [column.step], self.jobs_by_step)
        (verb, *_) = {job.verb for job in self.jobs_by_step[column.step]}
        if (column.statistic is None) == (column.score is None):
            raise AttnProbeError(
                "a column must have either a statistic or a score, not both or neither"
            )
        result_name = "statistics"
        verbs = VERBS_WITH_LENGTHS if by_length else VERBS_WITH_STATISTICS
        if column.score is not None:
            result_name, verbs = "scores", VERBS_WITH_SCORES
            if by_length:
                raise AttnProbeError(
                    "a table by text length can only contain statistics, got the score "
                    f"{column.score}. Move it to another table."
                )
            if column.score.count("/") != 2:
                raise AttnProbeError(
                    "expected a score as test/model/metric, such as 'uniform/base/f1', got "
                    f"{column.score!r}"
                )
        if verb not in verbs:
            raise AttnProbeError(
                f"step {column.step} has no {result_name} for this table, because its verb is "
                f"{verb}. Choose a step with the verb {' or '.join(verbs)}."
            )
        if (column.threshold is None) != (column.means is None):
            set_field = "means" if column.threshold is None else "threshold"
            raise AttnProbeError(
                "a column needs both threshold and means (a statement that is true above the "
                f"threshold), got only {set_field}"
            )
        if column.statistic is not None:
            check_statistic(column.statistic)


def check_statistic(statistic: str) -> None:
    """Check that a statistic exists, or both statistics in a ratio such as ``a/b``.

    Args:
        statistic: One statistic name, or two with a slash between them.

    Raises:
        AttnProbeError: If no test computes a statistic with this name.
    """
    from hf_attnprobe.faithfulness import registry

    # These two statistics describe predictions, so they belong to no test.
    prediction_statistics = {"accuracy", "probability"}
    statistic_names = prediction_statistics.union(
        *registry.load_readings().values(), *retraining.get_retraining_readings().values()
    )
    check_known_names(
        "statistic",
        [name.split("@")[0] for name in statistic.split("/")],
        sorted(statistic_names),
    )


@contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Add a prefix to the message of any AttnProbeError that is raised in the context.

    Args:
        prefix: The part of the study that is being processed, such as ``step base: ``.
    """
    try:
        yield
    except AttnProbeError as error:
        raise AttnProbeError(f"{prefix}{error}") from error


def _make_slug(value: Scalar) -> str:
    """Convert a value to text for a folder name, by replacing unsafe characters with "_".

    >>> _make_slug("a/b-c"), _make_slug(0.5), _make_slug(""), _make_slug("..")
    ('a_b_c', '0.5', '_', '__')
    """
    name = re.sub(r"[^\w.+]", "_", str(value)) or "_"
    consists_of_dots = not name.strip(".")
    return "_" * len(name) if consists_of_dots else name


def name_cell_folder(step: str, cell: Mapping[str, Scalar], used_folders: set[str]) -> str:
    """Return the folder name for a step and one combination of grid values.

    If another combination already uses the name, six digits of a hash are appended.

    >>> name_cell_folder("base", {"size": "x_y"}, set())
    'base/x_y'
    >>> name_cell_folder("base", {"size": "x-y"}, {"base/x_y"})
    'base/x_y-07f132'

    Args:
        step: Step name.
        cell: The combination of grid values; the result is the step name if it is empty.
        used_folders: Folder names that are in use, in lower case, since some file systems ignore
            the case.
    """
    if not cell:
        return step
    folder = f"{step}/{'-'.join(_make_slug(value) for value in cell.values())}"
    if folder.casefold() not in used_folders:
        return folder
    digest = hashlib.sha256(repr(tuple(cell.values())).encode()).hexdigest()
    return f"{folder}-{digest[:6]}"
