"""Runs every step of a study once and writes one report."""

import json
import logging
import runpy
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hf_attnprobe.audits.api import audit
from hf_attnprobe.core.distributed import check_one_process
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import (
    Options,
    SavedModel,
    check_known,
    from_flat,
    names_of,
    public_function,
)
from hf_attnprobe.core.progress import Bar
from hf_attnprobe.core.serialization import plain, read_json
from hf_attnprobe.data.examples import dataset_fingerprint
from hf_attnprobe.data.specs import Data
from hf_attnprobe.retraining.deception import deceive
from hf_attnprobe.retraining.run import retrain, transfer
from hf_attnprobe.storage.folders import (
    alone_in,
    differing,
    write_json,
)
from hf_attnprobe.storage.provenance import SUMMARY
from hf_attnprobe.studies.builtin import READY, check_study
from hf_attnprobe.studies.published import PUBLISHED
from hf_attnprobe.studies.report import StudyReport, report_of
from hf_attnprobe.studies.steps import (
    MODELS,
    STATE,
    VERBS,
    Job,
    Steps,
    StudyOptions,
    StudyState,
    load_as,
    said_of,
)
from hf_attnprobe.training.options import Architecture
from hf_attnprobe.training.run import check_training, train


logger = logging.getLogger(__name__)
Study = Callable[[Steps], None]
FUNCTIONS: dict[str, Callable[..., object]] = {
    "train": train,
    "audit": audit,
    "retrain": retrain,
    "transfer": transfer,
    "deceive": deceive,
}
"""What does a step of each verb."""


@public_function
def study(
    study: str | Path | Study,
    *,
    output_dir: str | Path,
    options: StudyOptions = StudyOptions(),
    progress: bool = True,
) -> StudyReport:
    """Runs the steps of a study and puts their results into one report.

    Each step has a folder of its own below ``output_dir``. Run the study again with the
    same folder to continue after an interruption: finished steps are not repeated, the
    one under way continues. A step that was done with other arguments is refused; delete
    its folder, or choose another one, to have it done again. Each step is logged, at
    level ``INFO``, when it begins.

    Args:
        study: a function of :class:`~hf_attnprobe.studies.steps.Steps`; a Python file with a
            function ``study``, whose code is run; or the name of a study of this package, of a
            paper's tables among them (``"wiegreffe-pinter"``).
        output_dir: folder for the steps and the report.
        options: data sets in place of the study's, seed, and whether the run is quick.
        progress: show a bar on stderr.

    Returns:
        The report, which is also written to ``report.md``, ``report.html`` and ``summary.json``.

    Raises:
        AttnProbeError: for a study, a data set or a folder that cannot be used, before
            anything is trained; and for the errors of a step, which name the step.
    """
    steps = planned(study, options)
    check_one_process("a study")
    with alone_in(output_dir, STATE) as folder:
        seconds = _run_steps(steps, folder, progress)
        report = report_of(steps, folder, seconds, quick=options.quick)
        report.write(folder, SUMMARY)
    return report


def planned(study: str | Path | Study, options: StudyOptions = StudyOptions()) -> Steps:
    """The steps of a study with their options checked; nothing is run.

    Raises:
        AttnProbeError: no such study, or a step that would not run.
    """
    function = study if callable(study) else READY.get(str(study)) or _function_in(Path(study))
    name = function.__name__.replace("_", "-") if callable(study) else Path(study).stem
    title = (function.__doc__ or name).strip().splitlines()[0]
    steps = Steps(name, options, title)
    with said_of(f"study {name}: "):
        function(steps)
        _check_planned(steps)
    return steps


def _function_in(file: Path) -> Study:
    """The function ``study`` of a Python file, whose code is run."""
    check_study(file)
    found = runpy.run_path(str(file)).get("study")
    if not callable(found):
        raise AttnProbeError(f"expected a function study(steps) in {file}, found none; add it")
    return found


def _check_planned(steps: Steps) -> None:
    """Checks the whole, and what takes seconds of imports."""
    if not steps.jobs:
        raise AttnProbeError("expected at least one step, got none")
    if steps.paper is not None:
        check_known("paper", [steps.paper], PUBLISHED.papers)
    replaced = [name for name, given in steps.sources.items() if given in steps.options.datasets]
    if len(replaced) < len(steps.options.datasets):
        raise AttnProbeError(
            "expected no data sets, this study has no grid over dataset; write them into it"
        )
    for job in steps.jobs:
        if job.verb == "train":
            with said_of(f"step {job.step}: "):
                given = _keywords(job, Path())
                check_training(given.get("model"), given["architecture"], given["options"])


# --- Running ---------------------------------------------------------------------------------------


def _run_steps(steps: Steps, folder: Path, progress: bool) -> dict[str, float]:
    """Runs the steps that are not done; seconds of each, by its folder.

    Raises:
        AttnProbeError: a step was done with other arguments or texts, or fails.
    """
    texts = _texts_of(steps)
    state = _read_state(steps, folder)
    wanted = {job.folder: _as_done(job, texts[job.folder]) for job in steps.jobs}
    todo = _to_do(steps, state, wanted, folder)
    for name in todo:  # also what was made of a step that is done again
        state.steps.pop(name, None)
    write_json(folder / STATE, plain(state))
    with Bar("study", progress, len(todo), of="step") as bar:
        for number, job in enumerate(steps.jobs, 1):
            note = "" if job.folder in todo else ", done before"
            logger.info(
                "step %d of %d: %s (%s)%s",
                number,
                len(steps.jobs),
                job.folder,
                job.verb,
                note,
            )
            if job.folder in todo:
                bar.part(job.folder)
                begun = time.monotonic()
                _run(job, steps, folder, progress)
                seconds = round(time.monotonic() - begun, 2)
                state.steps[job.folder] = {
                    **wanted[job.folder],
                    "seconds": seconds,
                }
                write_json(folder / STATE, plain(state))
    return {name: done["seconds"] for name, done in state.steps.items()}


def _texts_of(steps: Steps) -> dict[str, dict[str, str]]:
    """Fingerprints of the texts that steps train on, by folder and split.

    All data sets are read before any step runs, those that are only tested on by their first
    text, so that a missing one, or a missing column, is noticed at once.
    """
    read: dict[str, dict[str, str]] = {}
    found = {}
    for job in steps.jobs:
        data, seed = _data(job), job.arguments.get("seed", 0)
        trains = VERBS[job.verb].trains
        key = f"{trains} {seed} {data!r}"
        if key not in read:
            read[key] = {}
            if trains:
                splits = data.splits(seed=seed)
                read[key] = {split: dataset_fingerprint(part) for split, part in splits.items()}
            else:
                data.examples(limit=1, seed=seed)
        found[job.folder] = read[key]
    return found


def _data(job: Job) -> Data:
    return from_flat(job.arguments | {"dataset": load_as(job.arguments["dataset"])}, Data)


def _as_done(job: Job, texts: Mapping[str, str]) -> dict[str, Any]:
    """What ``study.json`` keeps of a step, as JSON gives it back."""

    def as_plain(value: Any) -> Any:
        return vars(value) if isinstance(value, Options) else str(value)

    arguments = json.dumps(job.arguments, default=as_plain)
    return {"arguments": json.loads(arguments), "texts": dict(texts)}


def _read_state(steps: Steps, folder: Path) -> StudyState:
    """What is done, by ``study.json``.

    Raises:
        AttnProbeError: the folder holds another study, or this one in the other length.
    """
    fresh = StudyState(steps.name, steps.quick, {})
    file = folder / STATE
    if not file.is_file():
        return fresh
    state: StudyState = read_json(file, StudyState, "choose another --output-dir")
    if state.kind != fresh.kind:
        raise AttnProbeError(
            f"{folder} holds the {state.kind}, not the {fresh.kind}; choose another --output-dir"
        )
    return state


def _to_do(
    steps: Steps, state: StudyState, wanted: Mapping[str, Mapping], folder: Path
) -> set[str]:
    """Folders of the steps that are not done, or made of one that is not.

    Raises:
        AttnProbeError: a step was done with other arguments, or on other texts.
    """
    todo: set[str] = set()
    for job in steps.jobs:
        done = state.steps.get(job.folder)
        if done is None or not (folder / job.folder).is_dir():
            todo.add(job.folder)
            continue
        before = done["arguments"]  # what is not given is None
        given = dict.fromkeys(before) | wanted[job.folder]["arguments"]
        for name, (old, new) in differing(before, given).items():
            raise AttnProbeError(
                f"step {job.folder} was done with {name} {old}, not {new}; choose another "
                f"--output-dir, or delete {folder / job.folder} and what was made of it"
            )
        if done["texts"] != wanted[job.folder]["texts"]:
            raise AttnProbeError(
                f"the texts of {job.arguments['dataset']} are not those that step {job.folder} "
                "was done with; choose another --output-dir"
            )
        if todo & {*job.made_of}:
            todo.add(job.folder)
    return todo


def _run(job: Job, steps: Steps, folder: Path, progress: bool) -> None:
    """Runs a step; errors name it, and where it is the first one nothing is left."""
    place = folder / job.folder
    try:
        with said_of(f"step {job.folder}: "):
            FUNCTIONS[job.verb](**_keywords(job, folder), output_dir=place, progress=progress)
    except AttnProbeError:
        if not any((folder / other.folder).is_dir() for other in steps.jobs):
            (folder / STATE).unlink()
            with suppress(OSError):  # not there, or something else is in it
                place.parent.rmdir()
        raise


def _keywords(job: Job, folder: Path) -> dict[str, Any]:
    """Returns the keyword arguments of what does a step."""
    kind = VERBS[job.verb]
    arguments = {name: job.arguments[name] for name in job.arguments if name in kind.names}
    for name in MODELS:
        if name in arguments:
            model = arguments[name]
            if any(f"{model}/".startswith(f"{made}/") for made in job.made_of):
                arguments[name] = str(folder / model)
    others = (*kind.needed, *kind.further)
    keywords = {name: arguments[name] for name in others if name in arguments}
    if SavedModel in kind.others and "model" in arguments:
        keywords["model"] = from_flat(arguments, SavedModel)
    if Architecture in kind.others:
        of_architecture = arguments.keys() & names_of([Architecture])
        keywords["architecture"] = {k: arguments[k] for k in of_architecture}
    keywords["dataset"] = _data(job)
    keywords["options"] = from_flat(arguments, kind.options)
    return keywords
