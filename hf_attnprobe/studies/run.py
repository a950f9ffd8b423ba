"""Runs every step of a study file once and writes one report."""

import json
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypedDict

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.run import audit
from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints
from hf_attnprobe.checkpoints.loading import load_config
from hf_attnprobe.checkpoints.origins import origin_of
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.data.examples import dataset_fingerprint
from hf_attnprobe.deception.run import deceive
from hf_attnprobe.distributed import check_one_process
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import from_flat, names_of
from hf_attnprobe.plain_data import from_plain, plain
from hf_attnprobe.progress import Bar, quiet_libraries
from hf_attnprobe.retraining.run import retrain, transfer
from hf_attnprobe.storage.folders import alone_in, differing, write_atomically, write_json
from hf_attnprobe.storage.provenance import SUMMARY, UNREADABLE
from hf_attnprobe.studies.file import read_study, verb_of
from hf_attnprobe.studies.plan import (
    STATE,
    DataUsed,
    FolderOf,
    Job,
    Study,
    StudyOptions,
    each,
    load_as,
)
from hf_attnprobe.studies.report import StudyReport, report_of
from hf_attnprobe.studies.results import check_one_head
from hf_attnprobe.training.run import train


logger = logging.getLogger(__name__)
FUNCTIONS: dict[str, Callable[..., object]] = {
    "train": train,
    "audit": audit,
    "retrain": retrain,
    "transfer": transfer,
    "compare": compare_checkpoints,
    "deceive": deceive,
}
"""What does a step of each verb.

It takes the fields of the verb's ``step`` by name, the data set as :class:`Data`, and
``options``.
"""


@quiet_libraries()
def study(
    file: str | Path,
    *,
    output_dir: str | Path,
    options: StudyOptions = StudyOptions(),
    progress: bool = True,
) -> StudyReport:
    """Runs the steps of a study file and puts their results into one report.

    Each step has a folder of its own below ``output_dir``. Run the study again with the
    same folder to continue after an interruption: finished steps are not repeated, the
    one under way continues. A step that was done with other arguments is refused; delete
    its folder, or choose another one, to have it done again. Each step is logged, at
    level ``INFO``, when it begins.

    Args:
        file: a study file, whose format :mod:`hf_attnprobe.studies.file` describes; or
            the name of a study of this package, of a paper's tables among them
            (``"wiegreffe-pinter"``).
        output_dir: folder for the steps and the report.
        options: data sets in place of the file's, seed, and whether the run is quick.
        progress: show a bar on stderr.

    Returns:
        The report, which is also written to ``report.md``, ``report.html`` and ``summary.json``.

    Raises:
        AttnProbeError: for a file, a data set or a folder that cannot be used, before
            anything is trained; and for the errors of a step, which name the step.
    """
    plan = read_study(file, options)
    check_one_process("a study")
    with alone_in(output_dir, STATE) as folder:
        report = _done(plan, folder, quick=options.quick, progress=progress)
        write_json(folder / SUMMARY, plain(report))
        write_atomically(folder / "report.md", report.to_markdown())
        write_atomically(folder / "report.html", report.to_html())
    return report


def _done(plan: Study, folder: Path, *, quick: bool, progress: bool) -> StudyReport:
    """Runs what is left of a study and returns its report."""
    state = StudyState(folder, plan, quick=quick)
    data = _data_of(plan)
    _check_heads(plan, state)
    state.claim(plan, data)
    n_left = sum(not state.finished(job) for job in plan.jobs)
    with Bar("study", progress, n_left, of="step") as bar:
        for number, job in enumerate(plan.jobs, 1):
            finished = state.finished(job)
            _log_step(job, number, len(plan.jobs), finished)
            if not finished:
                bar.part(job.folder)
                with state.step(job):
                    _run(job, folder, progress)
    return report_of(plan, folder, data, state.seconds(), quick=quick)


def _check_heads(plan: Study, state: "StudyState") -> None:
    """Refuses a table of audits of many heads, before any step runs."""
    shown = {column.step for table in plan.tables for column in table.columns}
    jobs = {job.folder: job for job in plan.jobs}
    for job in plan.jobs:
        if job.verb == "audit" and job.step in shown and not state.finished(job):
            check_one_head(_n_heads(job, jobs), job.folder)


def _n_heads(job: Job, jobs: Mapping[str, Job]) -> int:
    """Heads that an audit will test, by the configuration that its model begins with.

    A model that a step makes of none is an attention classifier. Where no configuration
    tells, it is 1: the rows will tell.

    Args:
        jobs: by folder.
    """
    model = job.arguments["model"]
    while isinstance(model, FolderOf):
        model = jobs[model.job].arguments.get("model")
    options = from_flat(job.arguments, AuditOptions)
    if model is None or not options.single_heads:
        return 1
    place = ("revision", "subfolder", "token", "trust_remote_code")
    try:
        origin = origin_of(model, **{name: getattr(options, name) for name in place})
        config = load_config(origin)
        sizes: tuple[int, int] = config.num_hidden_layers, config.num_attention_heads
    except (AttnProbeError, AttributeError):
        return 1
    asked = options.layers, options.heads
    n_heads = math.prod(len(some) if some else n for some, n in zip(asked, sizes, strict=True))
    return min(n_heads, options.screen or n_heads, options.top or n_heads)


def _log_step(job: Job, number: int, n_jobs: int, finished: bool) -> None:
    note = ", done before" if finished else ""
    logger.info("step %d of %d: %s (%s)%s", number, n_jobs, job.folder, job.verb, note)


def _run(job: Job, folder: Path, progress: bool) -> None:
    """Runs a step; errors name the step."""
    verb = verb_of(job.verb, job.arguments)
    arguments = _arguments(job, folder)
    try:
        FUNCTIONS[job.verb](
            **verb.keywords(arguments),
            output_dir=folder / job.folder,
            progress=progress,
        )
    except AttnProbeError as error:
        raise AttnProbeError(f"step {job.folder}: {error}") from error


def _arguments(job: Job, folder: Path) -> dict[str, Any]:
    """Arguments for the verb: references become paths, data sets are named to be loaded."""
    verb = verb_of(job.verb, job.arguments)
    arguments = dict(job.arguments)
    for name in verb.references:
        if name in arguments:
            arguments[name] = each(arguments[name], lambda value: _path(value, folder))
    arguments["dataset"] = load_as(arguments["dataset"])
    return arguments


def _path(value: Any, folder: Path) -> Any:
    """Turns references to earlier steps into paths; other folders and Hub ids are unchanged."""
    return value.below(folder) if isinstance(value, FolderOf) else value


def _data_of(plan: Study) -> dict[str, DataUsed]:
    """Data sets that steps train on, by their arguments.

    All data sets are read before any step runs, those that are only tested on by their first
    text, so that a missing one, or a missing column, is noticed at once.
    """
    used: dict[str, DataUsed] = {}
    tested: set[str] = set()
    for job in plan.jobs:
        key = _data_key(job)
        name, seed = job.arguments["dataset"], job.arguments.get("seed", 0)
        data = replace(from_flat(job.arguments, Data), dataset=load_as(name))
        if not verb_of(job.verb, job.arguments).trains:
            if repr(data) not in tested:
                data.examples(limit=1, seed=seed)
            tested.add(repr(data))
        elif key not in used:
            used[key] = DataUsed(name, {}, {})
            for split, examples in data.splits(seed=seed).items():
                used[key].sizes[split] = len(examples)
                used[key].fingerprints[split] = dataset_fingerprint(examples)
    return used


def _data_key(job: Job) -> str:
    names = {"seed", *names_of([Data])}
    data = {k: v for k, v in job.arguments.items() if k in names}
    return json.dumps({"seed": 0} | data, sort_keys=True)


# --- The state of a study: which steps are done, and what they were done with --------------------
# It is kept in ``study.json``, which is written before each step begins and when it ends.


class State(TypedDict, total=False):
    """What ``study.json`` holds; steps and data sets by folder and name."""

    study: str
    quick: bool
    data: dict[str, dict[str, str]]
    steps: dict[str, dict[str, Any]]


class StudyState:
    """The content of a study's folder.

    Raises:
        AttnProbeError: the folder holds another study, or this one with other settings.
    """

    def __init__(self, folder: Path, plan: Study, *, quick: bool) -> None:
        self.folder = folder
        self.file = folder / STATE
        self.is_new = not self.file.exists()
        self.made_folder = not folder.exists()
        self.content: dict[str, Any] = {
            "study": plan.name,
            "quick": quick,
            "data": {},
            "steps": {},
        }
        if self.file.is_file():
            self.content |= self._read()
        present = _kind(self.content["study"], self.content["quick"])
        wanted = _kind(plan.name, quick)
        if present != wanted:
            raise AttnProbeError(
                f"{folder} holds the {present}, not the {wanted}; choose another --output-dir"
            )

    def _read(self) -> dict[str, Any]:
        try:
            return dict(from_plain(State, json.loads(self.file.read_text())))
        except UNREADABLE as error:
            raise AttnProbeError(
                f"cannot read {self.file} ({error}); choose another --output-dir"
            ) from error

    def claim(self, plan: Study, data: Mapping[str, DataUsed]) -> None:
        """Marks the folder as this study's.

        Args:
            plan: the study.
            data: the data sets that models are trained on, by their arguments.

        Raises:
            AttnProbeError: a step was begun with other arguments or on other texts.
        """
        for job in plan.jobs:
            self._check_arguments(job)
        begun = any(self._step(job) for job in plan.jobs)
        for key, used in data.items():
            before = self.content["data"].get(key, used.fingerprints)
            if begun and before != used.fingerprints:
                raise AttnProbeError(
                    f"the texts of {used.name} are not those that {self.folder} was "
                    "begun with; choose another --output-dir"
                )
            self.content["data"][key] = dict(used.fingerprints)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write()

    def _check_arguments(self, job: Job) -> None:
        before = self._step(job).get("arguments")
        if before is None:
            return
        wanted = dict.fromkeys(before) | _plain(job.arguments)
        for name, (old, new) in differing(before, wanted).items():
            raise AttnProbeError(
                f"step {job.folder} was done with {name} {old}, not {new}; choose "
                f"another --output-dir, or delete {self.folder / job.folder} and what "
                "was made of it"
            )

    def _step(self, job: Job) -> dict[str, Any]:
        """The record of a job; empty if its folder was deleted."""
        if not (self.folder / job.folder).is_dir():
            return {}
        return self.content["steps"].get(job.folder, {})

    def finished(self, job: Job) -> bool:
        """Whether a job has run on the present results of earlier jobs."""
        step = self._step(job)
        return step.get("done", False) and step.get("made_of") == self._runs(job)

    def _runs(self, job: Job) -> dict[str, str | None]:
        """Jobs that this one refers to, each with an id that changes when it runs again."""
        steps = self.content["steps"]
        return {name: steps.get(name, {}).get("run") for name in job.after}

    def seconds(self) -> dict[str, float]:
        """Seconds of each job over all its runs."""
        return {name: step["seconds"] for name, step in self.content["steps"].items()}

    @contextmanager
    def step(self, job: Job) -> Iterator[None]:
        """Records that a job begins, and when the block ends without error, is done."""
        before = self._step(job)
        seconds = before.get("seconds", 0.0)
        step = {
            "verb": job.verb,
            "arguments": _plain(job.arguments),
            "seconds": seconds,
            "done": False,
            "run": before.get("run", uuid.uuid4().hex),
            "made_of": self._runs(job),
        }
        self.content["steps"][job.folder] = step
        self._write()
        begin = time.monotonic()
        try:
            yield
            step["done"] = True
        finally:
            step["seconds"] = round(seconds + time.monotonic() - begin, 2)
            if self.is_new and self._left_nothing():
                self._give_back()
            else:
                self._write()

    def _left_nothing(self) -> bool:
        """Whether a study whose mark is this run's has no folder of a step."""
        return not any((self.folder / step).exists() for step in self.content["steps"])

    def _give_back(self) -> None:
        """Takes the mark of a study away that was refused at its first step."""
        self.file.unlink(missing_ok=True)
        for folder in {(self.folder / step).parent for step in self.content["steps"]}:
            if folder != self.folder:
                with suppress(OSError):  # something else is in it, or it is not there
                    folder.rmdir()
        if self.made_folder:
            with suppress(OSError):
                self.folder.rmdir()

    def _write(self) -> None:
        write_json(self.file, self.content)


def _kind(name: str, quick: bool) -> str:
    return f"{'quick' if quick else 'full'} study {name}"


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON reads them back; references become mappings."""
    return json.loads(json.dumps(dict(arguments), default=asdict))
