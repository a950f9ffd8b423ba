"""The format of study files, and the reader that checks them; nothing is run here.

A study file is YAML:

    title: What the encoder does to attention
    grid:
      dataset: [sst]
      encoder: [mlp, bilstm]
    steps:
      - name: base
        verb: train
        with: {dataset: $dataset, encoder: $encoder}
        quick: {epochs: 2}
      - name: audit
        verb: audit
        with: {model: base, dataset: $dataset, tests: [permutation, adversarial]}
    tables:
      - title: Does it matter which token gets which weight?
        columns:
          - name: Δŷ
            step: audit
            statistic: median_tvd
            threshold: 0.1
            means: the assignment of weights matters

Steps
    ``verb`` is ``train``, ``audit``, ``retrain``, ``transfer``, ``compare`` or
    ``deceive``; ``train`` with a ``model`` fine-tunes that one. ``with`` holds the verb's
    arguments by their flat names: those of the data (``dataset_config``,
    ``train_limit``, …), of the verb, and for ``train`` of the architecture. ``tests`` is a
    list of names, or has the options of each: ``tests: {permutation: {n_permutations: 50}}``.
    ``pairs`` replaces some of them for data sets whose texts come in pairs, by the data
    set's name or because a ``text_pair_column`` is given; ``datasets`` for data sets by
    name; and ``quick`` in a quick study, the last of them first. Of tests they replace the
    options that they name.

Grid
    ``$encoder`` is a value of the grid's list ``encoder``. A step is done once for each
    value of the lists that it uses, itself or through the steps it refers to. ``quick``
    at the top of the file replaces lists of the grid.

References
    Where a verb takes a model, the name of an earlier step means the folder of that step,
    and ``step/folder`` a folder inside it. A folder or Hub id elsewhere must contain a /.

Data sets
    ``dataset`` is a name, a Hub id or a folder. ``name=folder`` is a folder that is cut as
    the data set of that name, and stands for it in tables. The file can say what a name
    means: ``datasets: {imdb: {dataset: imdb=my-folder, train_limit: 4000}}``.

Tables
    A column shows the mean of a ``statistic`` of an audit's texts (``a/b`` is the ratio of
    two), or a ``score``, written test/model/metric; ``difference: true`` shows how far
    that score is below the reference. From ``threshold`` on, what the column ``means`` is
    true. ``lengths`` of a table are numbers of tokens, at which its texts are divided.

Papers
    ``paper`` adds the tables of a paper, with its published numbers.
"""

import hashlib
import itertools
import math
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import yaml

from hf_attnprobe import retraining
from hf_attnprobe.auditing.options import AuditOptions, options_of_tests
from hf_attnprobe.checkpoint_comparison import ComparisonOptions, asked_comparison
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.data.sources import named
from hf_attnprobe.deception import DeceptionOptions
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import (
    LARGEST,
    Options,
    check_known,
    from_flat,
    from_names,
    names_of,
    option,
    options_with_default,
)
from hf_attnprobe.plain_data import from_plain, in_short
from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.retraining.options import RetrainOptions, TransferOptions
from hf_attnprobe.studies.plan import (
    Column,
    FolderOf,
    Job,
    Scalar,
    Step,
    Study,
    StudyFile,
    StudyOptions,
    Table,
    each,
    jobs_of_rows,
    name_of,
)
from hf_attnprobe.training.options import ONLY_CLASSIFIER, Architecture, TrainingOptions


# --- The verbs: which arguments a step may have --------------------------------------------------
# A verb reads the arguments with option classes, each of which takes the fields that it has. So
# a step is checked by making these options, long before what runs it is imported.

TESTING = ("split", "test_limit")  # data arguments of verbs that test one split
Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class AnyStep(Options):
    """Fields of every step."""

    dataset: str = option(help="name, Hub id, folder, or name=folder")


@dataclass(frozen=True)
class ModelStep(AnyStep):
    """A step about one model."""

    model: str = option(help="an earlier step, a folder or a Hub id")


@dataclass(frozen=True)
class TestStep(ModelStep):
    """A step that runs tests on one model."""

    tests: Any = option(None, "names of tests, or options by name of the test")


@dataclass(frozen=True)
class TransferStep(ModelStep):
    """A step that trains one model with the attention of another."""

    guide: str = option(help="the model whose attention is imposed")


@dataclass(frozen=True)
class CompareStep(AnyStep):
    """A step that compares several models."""

    models: Sequence[str] = option(help="earlier steps, folders or Hub ids")
    tests: Any = option(None, "names of tests, or options by name of the test")


@dataclass(frozen=True)
class DeceiveStep(ModelStep):
    """A step that trains a model to hide attention."""

    tokens: Sequence[str] = option(help="impermissible tokens")


@dataclass(frozen=True)
class Verb:
    """One kind of step.

    Args:
        step: what the step has besides options.
        options: the classes whose fields are the other arguments; what does the step takes
            the first one as ``options``.
        unused: fields of these classes that mean nothing here.
        references: arguments that name models: an earlier step, a folder or a Hub id.
        trains: whether the step trains on the data set's training split.
        prepare: keyword arguments that are not simply fields of the step.
        check_tests: raises AttnProbeError for tests that there are not.
    """

    step: type[AnyStep]
    options: tuple[type[Options], ...]
    unused: tuple[str, ...] = TESTING
    references: tuple[str, ...] = ("model",)
    trains: bool = True
    prepare: Callable[[Arguments], dict[str, Any]] = lambda arguments: {}
    check_tests: Callable[[Any], object] = lambda tests: None

    @property
    def names(self) -> set[str]:
        """The arguments that a step may have."""
        fields = names_of([self.step, Data, *self.options])
        return fields.keys() - set(self.unused)

    def check_names(self, arguments: Arguments) -> None:
        """Raises AttnProbeError for an argument too many or too few."""
        check_known("option", arguments, sorted(self.names))
        for name, field in names_of([self.step]).items():
            if field.default is MISSING and name not in arguments:
                raise AttnProbeError(f"expected {name} to be given")

    def check_values(self, arguments: Arguments) -> None:
        """Raises AttnProbeError for a value of a wrong type or out of its range."""
        for kind in (self.step, *self.options):
            from_flat(arguments, kind)
        from_flat(arguments, Data)
        self.check_tests(arguments.get("tests"))

    def keywords(self, arguments: Arguments) -> dict[str, Any]:
        """The keyword arguments of what does the step."""
        keywords = {name: arguments.get(name) for name in names_of([self.step])}
        keywords["dataset"] = from_flat(arguments, Data)
        keywords["options"] = from_flat(arguments, self.options[0])
        return keywords | self.prepare(arguments)


def _named(arguments: Arguments, kinds: Sequence[type[Options]]) -> dict[str, Any]:
    """Arguments that are fields of the option classes."""
    names = names_of(kinds)
    return {name: value for name, value in arguments.items() if name in names}


def _prepare_train(arguments: Arguments) -> dict[str, Any]:
    return {"architecture": _named(arguments, [Architecture])}


def _check_audited(tests: Any) -> None:
    options_with_default(tests, options_of_tests(), ())


VERBS: dict[str, Verb] = {
    "train": Verb(
        AnyStep,
        (TrainingOptions, Architecture),
        references=(),
        prepare=_prepare_train,
    ),
    "audit": Verb(
        TestStep,
        (AuditOptions,),
        unused=("train_limit", "token"),  # a study is written down, a token is not
        trains=False,
        check_tests=_check_audited,
    ),
    "retrain": Verb(TestStep, (RetrainOptions,), check_tests=retraining.asked_retrainings),
    "transfer": Verb(
        TransferStep,
        (TransferOptions,),
        references=("model", "guide", "uniform"),
    ),
    "compare": Verb(
        CompareStep,
        (ComparisonOptions,),
        unused=(),
        references=("models",),
        trains=False,
        check_tests=asked_comparison,
    ),
    "deceive": Verb(DeceiveStep, (DeceptionOptions,)),
}
FINE_TUNING = Verb(
    ModelStep,
    (TrainingOptions,),
    unused=(*TESTING, *ONLY_CLASSIFIER),
    prepare=_prepare_train,
)


def verb_of(name: str, arguments: Mapping[str, Any]) -> Verb:
    """The verb of a step; ``train`` with a model is fine-tuning.

    Raises:
        AttnProbeError: no verb of that name.
    """
    if name not in VERBS:
        raise AttnProbeError(f"expected a verb of {', '.join(VERBS)}, got {name!r}")
    return FINE_TUNING if name == "train" and "model" in arguments else VERBS[name]


# --- The file, read and checked; nothing is run here ----------------------------------------------

READY = Path(__file__).parent / "ready"
WITH_STATISTICS = ("audit", "retrain", "transfer")
WITH_SCORES = ("retrain", "transfer", "deceive")
"""Verbs whose results have numbers per text, and scores of all texts."""
WITH_LENGTHS = ("audit", "retrain")
"""Verbs whose texts can be divided by their numbers of tokens."""


def ready_studies() -> dict[str, Path]:
    """Study files shipped with the package, by name."""
    return {file.stem: file for file in sorted(READY.glob("*.yaml"))}


def read_study(file: str | Path, options: StudyOptions = StudyOptions()) -> Study:
    """Reads and checks a study file.

    Args:
        file: a path, or the name of one of :func:`ready_studies`.
        options: what replaces the file's data sets, and whether its settings are quick.

    Raises:
        AttnProbeError: for everything that would not run, naming file and step.
    """
    path = ready_studies().get(str(file), Path(file))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not there, not UTF-8, or no path at all
        ready = ", ".join(ready_studies())
        raise AttnProbeError(
            f"expected a study file or one of {ready}, cannot read {file} ({error})"
        ) from error
    with _said_of(f"{path.name}: "):
        content = plain_yaml(text)
    return _Reader(path, options).study(from_plain(StudyFile, content, path.name))


@contextmanager
def _said_of(where: str) -> Iterator[None]:
    """Prefixes errors with the part of the file that they are about."""
    try:
        yield
    except AttnProbeError as error:
        raise AttnProbeError(f"{where}{error}") from error


class _Reader:
    """Reads one file; attributes keep what later parts need."""

    def __init__(self, file: Path, options: StudyOptions) -> None:
        self.file = file
        self.options = options
        self.sources: dict[str, dict[str, Any]] = {}  # what names of data sets mean
        self.grid: dict[str, Sequence[Scalar]] = {}
        self.jobs: dict[str, list[Job]] = {}  # by step
        self.shortened: list[str] = []  # what quick replaced
        self.settings: list[str] = []  # what data sets replaced

    def study(self, content: StudyFile) -> Study:
        names = [step.name for step in content.steps]
        with _said_of(f"{self.file.name}: "):
            if content.paper not in (None, *PUBLISHED.papers):
                papers = ", ".join(PUBLISHED.papers)
                raise AttnProbeError(f"expected a paper of {papers}, got {content.paper!r}")
            if not names:
                raise AttnProbeError("expected at least one step")
            self._read_sources(content.datasets)
            self._read_grid(content)
        for number, name in enumerate(names):
            with _said_of(f"{self.file.name}, step number {number + 1}: "):
                check_step_name(name, names[:number])
        for step in content.steps:
            with _said_of(f"{self.file.name}, step {step.name}: "):
                self.jobs[step.name] = self._jobs(step, names)
        verbs = {step.name: step.verb for step in content.steps}
        for table in content.tables:
            with _said_of(f"{self.file.name}, table {table.title!r}: "):
                check_table(table, verbs)
                jobs_of_rows(table, self.jobs)
        self._check_with_libraries(content)
        return Study(
            name=self.file.stem,
            title=content.title,
            paper=content.paper,
            jobs=tuple(itertools.chain.from_iterable(self.jobs.values())),
            tables=content.tables,
            shortened=tuple(self.shortened),
            settings=tuple(self.settings),
            epochs=self.options.epochs,
        )

    def _check_with_libraries(self, content: StudyFile) -> None:
        """Checks what takes seconds of imports; last, so that all else is said at once."""
        from hf_attnprobe.training.run import check_training

        for step in content.steps:
            for job in self.jobs[step.name] if step.verb == "train" else ():
                with _said_of(f"{self.file.name}, step {step.name}: "):
                    given = verb_of("train", job.arguments).keywords(job.arguments)
                    check_training(given.get("model"), given["architecture"], given["options"])
        for table in content.tables:
            with _said_of(f"{self.file.name}, table {table.title!r}: "):
                check_statistics(table)

    # --- data sets and grid -------------------------------------------------------------

    def _read_sources(self, declared: Mapping[str, str | dict[str, Any]]) -> None:
        for name, source in declared.items():
            given = {"dataset": source} if isinstance(source, str) else source
            self.sources[name] = {"dataset": name} | given
            with _said_of(f"data set {name}: "):
                from_names(self.sources[name], Data)
        for dataset in self.options.datasets:
            name = name_of(dataset)
            if dataset != name:
                self.sources[name] = self.sources.get(name, {}) | {"dataset": dataset}

    def _read_grid(self, content: StudyFile) -> None:
        for name, values in (*content.grid.items(), *content.quick.items()):
            if name not in content.grid:
                lists = ", ".join(content.grid) or "lists"
                raise AttnProbeError(f"expected quick to change the grid's {lists}, got {name!r}")
            if not values:
                raise AttnProbeError(f"expected a list of values for {name} in the grid, got none")
        quick = content.quick if self.options.quick else {}
        chosen = {"dataset": self._dataset_names(content)} if self.options.datasets else {}
        self.grid = {**content.grid, **quick, **chosen}
        for name, values in quick.items():
            if name not in chosen:
                self.shortened.append(f"{name} {', '.join(map(str, values))}")

    def _dataset_names(self, content: StudyFile) -> list[str]:
        """The names of the data sets that replace those of the grid."""
        if "dataset" not in content.grid:
            raise AttnProbeError(
                "expected no data sets, this study has no grid over dataset; "
                "write them into the file"
            )
        names = [name_of(dataset) for dataset in self.options.datasets]
        if len(set(names)) < len(names):
            raise AttnProbeError(f"expected data sets of different names, got {', '.join(names)}")
        return names

    # --- steps --------------------------------------------------------------------------

    def _jobs(self, step: Step, names: Sequence[str]) -> list[Job]:
        """The jobs of a step, one for each cell of its part of the grid."""
        verb = verb_of(step.verb, step.given)
        verb.check_names(step.given | step.quick | step.pairs)
        for dataset, settings in step.datasets.items():
            with _said_of(f"data set {dataset}: "):
                verb.check_names(step.given | settings)
        arguments = step.given
        if self.options.quick:
            arguments = _merged(arguments, step.quick)
            self.shortened += [f"{step.name}: {said}" for said in self._changes({}, step.quick)]
        earlier = self._earlier_steps(verb, arguments, names)
        variables = self._variables([arguments, step.pairs, *step.datasets.values()], earlier)
        n_cells = math.prod(len(self.grid[variable]) for variable in variables)
        check_number(n_cells + sum(map(len, self.jobs.values())))
        jobs: list[Job] = []
        taken: set[str] = set()
        for values in itertools.product(*(self.grid[v] for v in variables)):
            cell = dict(zip(variables, values, strict=True))
            folder = folder_of_cell(step.name, cell, taken)
            taken.add(folder.casefold())
            jobs.append(self._job(step, verb, arguments, cell, folder))
        check_cells(jobs)
        self._check_allowed(jobs)
        return jobs

    def _check_allowed(self, jobs: Sequence[Job]) -> None:
        """Checks that the user, not only the file, allows code to be run."""
        for name in ("trust_remote_code", "allow_pickle"):
            asked = any(job.arguments.get(name) for job in jobs)
            if asked and not getattr(self.options, name):
                raise AttnProbeError(
                    f"the file asks for {name}, which can run code that comes with a "
                    f"model: expected --{name.replace('_', '-')} with the command too; "
                    "add it if you trust who made the model, or take it out of the file"
                )

    def _earlier_steps(self, verb: Verb, arguments: Mapping, names: Sequence[str]) -> set[str]:
        """The steps that the arguments refer to."""
        steps = set()
        given = [(name, v) for name in verb.references for v in _items(arguments.get(name))]
        for argument, value in given:
            step, slash, _ = str(value).partition("/")
            if step in self.jobs:
                steps.add(step)
            elif step in names or not (slash or value is None):
                earlier = ", ".join(self.jobs) or "none"
                raise AttnProbeError(
                    f"expected a step before it ({earlier}), or a folder or Hub id with a /, "
                    f"as {argument}, got {value!r}"
                )
        return steps

    def _variables(self, given: Sequence[Mapping], earlier: set[str]) -> list[str]:
        """Lists of the grid, in its order, that a step or one it refers to uses."""
        used = {variable for step in earlier for variable in self.jobs[step][0].cell}
        for arguments in given:
            used |= {value[1:] for value in _items({**arguments}) if _is_variable(value)}
        unknown = sorted(used - set(self.grid))
        if unknown:
            lists = ", ".join(self.grid) or "lists"
            raise AttnProbeError(f"expected one of the grid's {lists}, got ${unknown[0]}")
        return [variable for variable in self.grid if variable in used]

    def _by_dataset(self, step: Step, arguments: dict, cell: Mapping) -> dict:
        """Arguments with those for a data set; notes what they replaced."""
        dataset = _filled(arguments["dataset"], cell)
        if not isinstance(dataset, str):
            raise AttnProbeError(f"expected the name of a data set, got {in_short(dataset)}")
        settings = step.pairs if self._is_pairs(dataset) else {}
        settings = _merged(settings, step.datasets.get(dataset, {}))
        if self.options.quick:
            settings = _merged(settings, step.quick)
        changed = self._changes(arguments, settings)
        note = f"{step.name} of {dataset}: {', '.join(changed)}"
        if changed and note not in self.settings:
            self.settings.append(note)
        return _merged(arguments, settings)

    def _changes(self, arguments: Mapping, settings: Mapping) -> list[str]:
        """Names the settings that a replacement changes, except those the options replace
        anyway.
        """
        before = _leaves(arguments)
        return [
            f"{name} {value}"
            for name, value in _leaves(settings).items()
            if before.get(name) != value and name not in self.options.replaced
        ]

    def _is_pairs(self, dataset: str) -> bool:
        """Whether a data set has pairs, by its recipe, the file or the options."""
        source = self.sources.get(dataset, {}) | self.options.replaced
        recipe = named(str(source.get("dataset", dataset)))
        return recipe.is_pairs or source.get("text_pair_column") is not None

    def _job(self, step: Step, verb: Verb, arguments: dict, cell: Mapping, folder: str) -> Job:
        arguments = self._by_dataset(step, arguments, cell)
        arguments = each(arguments, lambda item: _filled(item, cell))
        arguments = self._with_given(verb, arguments)
        verb.check_values(arguments)
        after: list[str] = []
        for name in arguments.keys() & set(verb.references):
            arguments[name] = each(arguments[name], lambda item: self._resolved(item, cell))
        for name in verb.references:
            folders = [v for v in _items(arguments.get(name)) if isinstance(v, FolderOf)]
            after += [folder.job for folder in folders]
        return Job(step.name, step.verb, cell, arguments, folder, tuple(dict.fromkeys(after)))

    def _with_given(self, verb: Verb, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments with those from the options and from the data set's name."""
        name = arguments["dataset"]
        source = self.sources.get(name, {}) if isinstance(name, str) else {}
        given = self.options.defaults | arguments | source | self.options.replaced
        return {key: given[key] for key in given if key in verb.names}

    def _resolved(self, value: Any, cell: Mapping) -> Any:
        """A reference to a step, resolved to its job's folder; other values unchanged."""
        step, _, rest = str(value).partition("/")
        for job in self.jobs.get(step, []):
            if job.is_at(cell):
                return FolderOf(job.folder, rest)
        return value


def _items(value: Any) -> list:
    """Values of an argument that may be a list or named values."""
    if isinstance(value, dict):
        return [item for inner in value.values() for item in _items(inner)]
    return value if isinstance(value, list) else [value]


def _merged(arguments: Mapping, changes: Mapping) -> dict:
    """Arguments with replacements; of a test's options only those named are replaced.

    >>> _merged({"tests": ["erasure", "permutation"]}, {"tests": {"erasure": {"n_random": 1}}})
    {'tests': {'erasure': {'n_random': 1}, 'permutation': {}}}
    """
    merged = dict(arguments)
    for name, value in changes.items():
        before = merged.get(name)
        if isinstance(value, dict) and isinstance(before, list):
            before = {str(item): {} for item in before}
        if isinstance(value, dict) and isinstance(before, dict):
            value = _merged(before, value)
        merged[name] = value
    return merged


def _leaves(arguments: Mapping) -> dict[str, Any]:
    """Arguments by name; options are named with their test.

    >>> _leaves({"epochs": 2, "tests": {"erasure": {"n_random": 1}}})
    {'epochs': 2, 'erasure.n_random': 1}
    """
    leaves: dict[str, Any] = {}
    for name, value in arguments.items():
        inner = _leaves(value) if isinstance(value, dict) else {}
        within = "" if name == "tests" else f"{name}."
        leaves |= {f"{within}{key}": item for key, item in inner.items()} or {name: value}
    return leaves


def _filled(value: Any, cell: Mapping) -> Any:
    """Arguments with variables replaced by their values in a cell of the grid."""
    return cell[value[1:]] if _is_variable(value) else value


def _is_variable(value: Any) -> bool:
    """``$name`` is a value of the grid; ``$`` and ``$5`` are texts.

    >>> _is_variable("$encoder"), _is_variable("$"), _is_variable("$5")
    (True, False, False)
    """
    return isinstance(value, str) and bool(re.match(r"\$[^\W\d_]", value))


# --- What a step may be called, and what a table can show ----------------------------------------


def check_step_name(name: str, before: Sequence[str]) -> None:
    """Raises AttnProbeError for a name that no folder can have, or another step has."""
    if not name or name in before or set(name) & set("/\\$. "):
        raise AttnProbeError(
            f"expected a name of its own without / \\ $ . and blanks, got {name!r}"
        )


def check_table(table: Table, steps: Mapping[str, str]) -> None:
    """Raises AttnProbeError for a table that the steps, given with their verbs, cannot fill."""
    if not table.columns:
        raise AttnProbeError("expected at least one column, got none")
    for column in table.columns:
        with _said_of(f"column {column.name!r}: "):
            _check_column(column, steps)
            verb = steps[column.step]
            if table.lengths and (column.statistic is None or verb not in WITH_LENGTHS):
                got = "a score" if column.statistic is None else f"{column.step}, which is {verb}"
                raise AttnProbeError(
                    f"expected statistics of {' or '.join(WITH_LENGTHS)} where lengths divide "
                    f"the texts, got {got}"
                )


def _check_column(column: Column, steps: Mapping[str, str]) -> None:
    if column.step not in steps:
        raise AttnProbeError(f"expected a step of {', '.join(steps)}, got {column.step!r}")
    if (column.statistic is None) == (column.score is None):
        raise AttnProbeError("expected either a statistic or a score")
    is_score = column.score is not None
    what, verbs = ("scores", WITH_SCORES) if is_score else ("statistics", WITH_STATISTICS)
    if steps[column.step] not in verbs:
        raise AttnProbeError(
            f"expected a step with {what} ({', '.join(verbs)}), {column.step} is "
            f"{steps[column.step]}"
        )
    if is_score and str(column.score).count("/") != 2:
        raise AttnProbeError(f"expected a score as test/model/metric, got {column.score!r}")
    if (column.threshold is None) != (column.means is None):
        raise AttnProbeError("expected threshold and means together")


def check_statistics(table: Table) -> None:
    """Raises AttnProbeError for a column whose statistic no test has."""
    from hf_attnprobe.faithfulness import registry

    known = {"accuracy", "probability"}  # of the predictions
    known = known.union(*registry.readings().values(), *retraining.readings().values())
    for column in table.columns:
        for name in (column.statistic or "accuracy").split("/"):
            if name.split("@")[0] not in known:
                raise AttnProbeError(f"column {column.name!r}: unknown statistic {name!r}")


# --- The cells of a grid: how many there may be, and a folder of its own for each ----------------

MOST_JOBS = 2_000
"""Steps times cells: each is a training or an audit."""
LONGEST_NAME = 200
"""Bytes of a folder's name; file systems take 255, and verbs write longer ones inside."""


def _slug(value: Scalar) -> str:
    """A value as part of a folder's name.

    Never one that means another folder, as two dots do.

    >>> _slug("a/b-c"), _slug(0.5), _slug(""), _slug("..")
    ('a_b_c', '0.5', '_', '__')
    """
    name = re.sub(r"[^\w.+]", "_", str(value)) or "_"
    return name if name.strip(".") else "_" * len(name)


def check_number(n_jobs: int) -> None:
    """Refuses too many runs of steps, before any of them is planned.

    Raises:
        AttnProbeError: there are more than :data:`MOST_JOBS`.
    """
    if n_jobs > MOST_JOBS:
        raise AttnProbeError(
            f"expected at most {MOST_JOBS:,} runs of steps, the grid asks for "
            f"{n_jobs:,} up to here; shorten its lists"
        )


def folder_of_cell(name: str, cell: Mapping[str, Scalar], taken: set[str]) -> str:
    """Folder of a cell; with a digest if another cell has the same name.

    >>> folder_of_cell("base", {"size": "x_y"}, set())
    'base/x_y'
    >>> folder_of_cell("base", {"size": "x-y"}, {"base/x_y"})
    'base/x_y-07f132'

    Args:
        name: of the step.
        cell: of the grid.
        taken: the folders of the cells before, in small letters, since some disks do not
            tell them from capital ones.
    """
    if not cell:
        return name
    folder = f"{name}/{'-'.join(_slug(value) for value in cell.values())}"
    if folder.casefold() not in taken:
        return folder
    digest = hashlib.sha256(repr(tuple(cell.values())).encode()).hexdigest()
    return f"{folder}-{digest[:6]}"


def check_cells(jobs: Sequence[Job]) -> None:
    """Checks that cells differ and that the file system accepts the names of their folders.

    Raises:
        AttnProbeError: two cells are equal, or the name of a folder is too long.
    """
    seen: dict[tuple[Scalar, ...], Job] = {}
    for job in jobs:
        values = tuple(job.cell.values())
        if values in seen:  # 0 and false are equal, and nothing could tell them apart
            raise AttnProbeError(
                f"expected values of the grid that differ, got {_written(seen[values])} "
                f"and {_written(job)}; leave one out"
            )
        seen[values] = job
        if max(len(os.fsencode(part)) for part in job.folder.split("/")) > LONGEST_NAME:
            raise AttnProbeError(
                f"expected a name and values that make the name of a folder, of at most "
                f"{LONGEST_NAME} bytes, got {job.folder:.60}…; shorten them"
            )


def _written(job: Job) -> str:
    return ", ".join(str(value)[:60] for value in job.cell.values())


# --- YAML as plain data within bounds: what is absurd in itself is refused while it is read ------
# YAML can say more than a study needs: tags that make other objects, aliases that multiply
# ("a billion laughs"), nesting that no reader stands, and numbers of any length. The events
# of its parser are counted first, which takes no memory, and only then are objects made.

MOST_CHARACTERS = 1_000_000
DEEPEST = 20
MOST_VALUES = 100_000
LONGEST_NUMBER = 100
"""Bounds of a file: its length, its nesting, its values with all aliases written out, and
the characters of a whole number."""


def plain_yaml(text: str) -> Any:
    """The content of a YAML file as mappings, lists, texts, numbers and truth values.

    A date is the text that it is written as. Names of a mapping are texts.

    Raises:
        AttnProbeError: it is not YAML, beyond the bounds, has tags, a name twice or one
            that is no text, or a number that no table holds.
    """
    if len(text) > MOST_CHARACTERS:
        raise AttnProbeError(f"expected at most {MOST_CHARACTERS:,} characters, got {len(text):,}")
    try:
        _check_size(text)
        return yaml.load(text, _Loader)  # nosec B506: it is a safe loader, see above
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise AttnProbeError(f"is not YAML: {reason[:300]}") from error


def _check_size(text: str) -> None:
    """Counts the nodes that the file expands to, from the parser's events."""
    sizes: dict[str, int] = {}  # values below each anchor, aliases written out
    open_parts: list[tuple[str | None, int]] = []  # anchor, values counted before it
    n_values = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            inside_itself = 2 * MOST_VALUES
            n_values += sizes.get(event.anchor or "", inside_itself)
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            _check_untagged(event)
        if isinstance(event, yaml.ScalarEvent):
            n_values += 1
            sizes |= {event.anchor: 1} if event.anchor else {}
        if isinstance(event, yaml.CollectionStartEvent):
            open_parts.append((event.anchor, n_values))
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_parts.pop()
            sizes |= {anchor: n_values - before + 1} if anchor else {}
        if len(open_parts) > DEEPEST:
            raise AttnProbeError(f"expected at most {DEEPEST} levels of nesting, got more")
        if n_values > MOST_VALUES:
            raise AttnProbeError(
                f"expected at most {MOST_VALUES:,} values, aliases written out, got more"
            )


def _check_untagged(event: Any) -> None:
    if event.tag not in (None, "!"):
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        raise AttnProbeError(f"expected plain values, got the tag {in_short(tag)}")


class _Loader(yaml.SafeLoader):
    """Keeps dates as texts and refuses duplicate names in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping with unique text names."""
        names = [key.value for key, _ in node.value]
        for (key, _), name in zip(node.value, names, strict=True):
            kind = key.tag.rpartition(":")[2]
            if kind not in ("str", "merge"):
                raise AttnProbeError(
                    f"expected texts as names, got {in_short(name)}; put it in quotation marks"
                )
            if names.count(name) > 1:
                raise AttnProbeError(f"expected each name once, got {name!r} twice")
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number that fits into a table."""
        if len(node.value) <= LONGEST_NUMBER:
            number = super().construct_yaml_int(node)
            if -LARGEST <= number <= LARGEST:
                return number
        raise AttnProbeError(f"expected whole numbers within ± {LARGEST:,}, got {node.value:.40}")


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.yaml_implicit_resolvers = {
    first: [entry for entry in entries if "timestamp" not in entry[0]]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
