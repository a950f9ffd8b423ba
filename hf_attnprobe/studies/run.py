"""The function ``study``, which runs every step of a study once and writes one report."""

import json
import logging
import runpy
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hf_attnprobe.audits.api import audit
from hf_attnprobe.core.distributed import require_single_process
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import (
    Options,
    SavedModel,
    check_known_names,
    collect_fields,
    public_function,
    select_options,
)
from hf_attnprobe.core.progress import ProgressBar
from hf_attnprobe.core.serialization import convert_to_plain, read_json
from hf_attnprobe.data.examples import compute_dataset_fingerprint
from hf_attnprobe.data.specs import Data
from hf_attnprobe.retraining.run import retrain, transfer
from hf_attnprobe.storage.folders import (
    find_differences,
    reserve_folder,
    write_json,
)
from hf_attnprobe.storage.provenance import SUMMARY_FILE
from hf_attnprobe.studies.builtin import STUDIES_BY_NAME, check_study
from hf_attnprobe.studies.published import PUBLISHED
from hf_attnprobe.studies.report import StudyReport, build_study_report
from hf_attnprobe.studies.steps import (
    MODEL_ARGUMENTS,
    STATE_FILE,
    VERBS,
    Job,
    Steps,
    StudyOptions,
    StudyState,
    prefix_errors,
    resolve_dataset,
)
from hf_attnprobe.training.options import Architecture
from hf_attnprobe.training.run import resolve_architecture, train


logger = logging.getLogger(__name__)
Study = Callable[[Steps], None]
"""A function that plans the steps of a study."""
VERB_FUNCTIONS: dict[str, Callable[..., object]] = {
    "train": train,
    "audit": audit,
    "retrain": retrain,
    "transfer": transfer,
}
"""Maps each verb of a step to the function that runs the step."""


@public_function
def study(
    study: str | Path | Study,
    *,
    output_dir: str | Path,
    options: StudyOptions = StudyOptions(),
    progress: bool = True,
) -> StudyReport:
    """Run the steps of a study and put their results into one report.

    Each step has a folder of its own below ``output_dir``. Run the study again with the same folder
    to continue after an interruption: finished steps are not repeated, and the interrupted one is
    continued. If the arguments of a finished step have changed, an error is raised. To run that
    step again, delete its folder or choose another output folder. Each step is logged at level
    ``INFO`` when it begins.

    Args:
        study: A function that takes :class:`~hf_attnprobe.studies.steps.Steps`, a Python file with
            a function ``study`` (the file is executed), or the name of a built-in study, such as
            ``"wiegreffe-pinter"``.
        output_dir: Folder for the steps and the report.
        options: Data sets that replace the study's, the seed, and whether the run is quick.
        progress: Whether to show a progress bar on stderr.

    Returns:
        The report, which is also written to ``report.md``, ``report.html`` and ``summary.json``.

    Raises:
        AttnProbeError: If the study, a data set or the folder is invalid, which is checked before
            anything is trained, or if a step fails. The message names the step.

    Example:
        Run a study on a single data set::

            report = study("encoders", output_dir="encoders", options=StudyOptions(dataset="sst"))
            print(report)
    """
    steps = plan_study(study, options)
    require_single_process("a study")
    with reserve_folder(output_dir, STATE_FILE) as folder:
        seconds = _run_steps(steps, folder, progress)
        report = build_study_report(steps, folder, seconds, quick=options.quick)
        report.write(folder, SUMMARY_FILE)
    return report


def plan_study(study: str | Path | Study, options: StudyOptions = StudyOptions()) -> Steps:
    """Plan the steps of a study and check their options, without running them.

    Args:
        study: A function, a Python file or the name of a built-in study, see :func:`study`.
        options: Data sets that replace the study's, the seed, and whether the run is quick.

    Raises:
        AttnProbeError: If the study does not exist, or if a step could not run.
    """
    if callable(study):
        study_function, name = study, study.__name__.replace("_", "-")
    else:
        study_function = STUDIES_BY_NAME.get(str(study)) or _load_study_function(Path(study))
        name = Path(study).stem
    # The title of the report is the first line of the function's docstring.
    title = (study_function.__doc__ or name).strip().splitlines()[0].rstrip(".")
    steps = Steps(name, options, title)
    with prefix_errors(f"study {name}: "):
        study_function(steps)
        _check_plan(steps)
    return steps


def _load_study_function(file: Path) -> Study:
    """Execute a Python file and return its function ``study``."""
    check_study(file)
    study_function = runpy.run_path(str(file)).get("study")
    if not callable(study_function):
        raise AttnProbeError(f"{file} has no function study(steps). Add one.")
    return study_function


def _check_plan(steps: Steps) -> None:
    """Check that a plan has steps, uses the data sets from the options, and trains valid models."""
    if not steps.jobs:
        raise AttnProbeError("the study plans no steps. Call steps.add at least once.")
    if steps.paper is not None:
        check_known_names("paper", [steps.paper], PUBLISHED.papers)
    replaced_datasets = [
        name for name, source in steps.sources.items() if source in steps.options.datasets
    ]
    if len(replaced_datasets) < len(steps.options.datasets):
        raise AttnProbeError(
            "--dataset has no effect on this study, because its grid has no list of data sets. "
            "Remove --dataset, or add dataset=[...] to steps.grid."
        )
    for job in steps.jobs:
        if job.verb == "train":
            with prefix_errors(f"step {job.step}: "):
                keywords = _make_keywords(job, Path())
                resolve_architecture(
                    keywords.get("model"), keywords["architecture"], keywords["options"]
                )


# --- Running -------------------------------------------------------------------------------------


def _run_steps(steps: Steps, folder: Path, progress: bool) -> dict[str, float]:
    """Run all unfinished steps of a study.

    Returns:
        The duration of each step in seconds, by folder.

    Raises:
        AttnProbeError: If a finished step had other arguments or texts, or if a step fails.
    """
    fingerprints = _fingerprint_texts(steps)
    state = _read_state(steps, folder)
    planned_states = {
        job.folder: _make_step_state(job, fingerprints[job.folder]) for job in steps.jobs
    }
    unfinished_folders = _find_unfinished_steps(steps, state, planned_states, folder)
    # A step is also unfinished if it depends on a step that has to be repeated.
    for name in unfinished_folders:
        state.steps.pop(name, None)
    write_json(folder / STATE_FILE, convert_to_plain(state))
    with ProgressBar("study", progress, len(unfinished_folders), part_name="step") as bar:
        for number, job in enumerate(steps.jobs, 1):
            note = "" if job.folder in unfinished_folders else ", already finished"
            logger.info(
                "step %d of %d: %s (%s)%s",
                number,
                len(steps.jobs),
                job.folder,
                job.verb,
                note,
            )
            if job.folder in unfinished_folders:
                bar.start_part(job.folder)
                start_time = time.monotonic()
                _run_step(job, steps, folder, progress)
                seconds = round(time.monotonic() - start_time, 2)
                state.steps[job.folder] = {
                    **planned_states[job.folder],
                    "seconds": seconds,
                }
                write_json(folder / STATE_FILE, convert_to_plain(state))
    return {name: step_state["seconds"] for name, step_state in state.steps.items()}


def _fingerprint_texts(steps: Steps) -> dict[str, dict[str, str]]:
    """Compute fingerprints of each step's training texts, by folder and split.

    All data sets are opened before any step runs, so that a missing data set or column raises an
    error at once. If a step only tests a model, its first text is read to check the data set.
    """
    fingerprints_by_data: dict[str, dict[str, str]] = {}
    fingerprints_by_folder = {}
    for job in steps.jobs:
        data = _make_data(job)
        seed = job.arguments.get("seed", 0)
        is_training = VERBS[job.verb].is_training
        # Steps with the same data share their fingerprints.
        key = f"{is_training} {seed} {data!r}"
        if key not in fingerprints_by_data:
            fingerprints_by_data[key] = {}
            if is_training:
                splits = data.load_splits(seed=seed)
                fingerprints_by_data[key] = {
                    split: compute_dataset_fingerprint(part) for split, part in splits.items()
                }
            else:
                data.load_examples(limit=1, seed=seed)
        fingerprints_by_folder[job.folder] = fingerprints_by_data[key]
    return fingerprints_by_folder


def _make_data(job: Job) -> Data:
    """Convert a step's arguments to the data that the step uses."""
    return select_options(
        job.arguments | {"dataset": resolve_dataset(job.arguments["dataset"])}, Data
    )


def _make_step_state(job: Job, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return a step's entry for ``study.json``, with arguments converted to plain JSON values."""

    def convert_value(value: Any) -> Any:
        return vars(value) if isinstance(value, Options) else str(value)

    arguments = json.dumps(job.arguments, default=convert_value)
    return {"arguments": json.loads(arguments), "texts": dict(texts)}


def _read_state(steps: Steps, folder: Path) -> StudyState:
    """Read the finished steps from ``study.json``.

    Raises:
        AttnProbeError: If the folder holds another study, or the other version (quick or full).
    """
    new_state = StudyState(steps.name, steps.quick, {})
    file = folder / STATE_FILE
    if not file.is_file():
        return new_state
    state: StudyState = read_json(file, StudyState, "Choose another --output-dir.")
    if state.kind != new_state.kind:
        raise AttnProbeError(
            f"{folder} contains the results of the {state.kind}, not of the {new_state.kind}. "
            "Choose another --output-dir."
        )
    return state


def _find_unfinished_steps(
    steps: Steps, state: StudyState, planned_states: Mapping[str, Mapping], folder: Path
) -> set[str]:
    """Return the folders of steps that are unfinished or depend on an unfinished step.

    Raises:
        AttnProbeError: If a finished step had other arguments or texts.
    """
    unfinished_folders: set[str] = set()
    for job in steps.jobs:
        finished_state = state.steps.get(job.folder)
        if finished_state is None or not (folder / job.folder).is_dir():
            unfinished_folders.add(job.folder)
            continue
        old_arguments = finished_state["arguments"]
        # If the step no longer has an argument, its new value counts as None.
        new_arguments = dict.fromkeys(old_arguments) | planned_states[job.folder]["arguments"]
        # The first difference raises an error.
        for name, (old_value, new_value) in find_differences(old_arguments, new_arguments).items():
            raise AttnProbeError(
                f"step {job.folder} was run with {name} {old_value}, not {new_value}. Choose another "
                f"--output-dir, or delete {folder / job.folder} and the steps that depend on it."
            )
        if finished_state["texts"] != planned_states[job.folder]["texts"]:
            raise AttnProbeError(
                f"the texts of {job.arguments['dataset']} have changed since step {job.folder} was "
                "run. Choose another --output-dir."
            )
        if unfinished_folders & set(job.depends_on):
            unfinished_folders.add(job.folder)
    return unfinished_folders


def _run_step(job: Job, steps: Steps, folder: Path, progress: bool) -> None:
    """Run a step of a study.

    If the step fails and no step has finished, the study's state file is removed, so that the study
    can be started again with other options.
    """
    step_folder = folder / job.folder
    try:
        with prefix_errors(f"step {job.folder}: "):
            VERB_FUNCTIONS[job.verb](
                **_make_keywords(job, folder), output_dir=step_folder, progress=progress
            )
    except AttnProbeError:
        has_results = any((folder / any_job.folder).is_dir() for any_job in steps.jobs)
        if not has_results:
            (folder / STATE_FILE).unlink()
            # The folder may not exist, or it may contain other files.
            with suppress(OSError):
                step_folder.parent.rmdir()
        raise


def _make_keywords(job: Job, folder: Path) -> dict[str, Any]:
    """Convert the arguments of a step to keyword arguments for the function that runs it.

    Args:
        job: The step, whose arguments are plain values by name.
        folder: Output folder of the study, which contains the models from earlier steps.
    """
    # The verb of a step is the command that runs it, such as "train".
    verb = VERBS[job.verb]
    arguments = {name: job.arguments[name] for name in job.arguments if name in verb.argument_names}
    for name in arguments.keys() & set(MODEL_ARGUMENTS):
        model = arguments[name]
        # The model may be the result of an earlier step, or a folder below this result.
        if any(f"{model}/".startswith(f"{step_folder}/") for step_folder in job.depends_on):
            arguments[name] = str(folder / model)
    plain_names = (*verb.required_arguments, *verb.optional_arguments)
    keywords = {name: arguments[name] for name in plain_names if name in arguments}
    if SavedModel in verb.further_option_classes and "model" in arguments:
        keywords["model"] = select_options(arguments, SavedModel)
    if Architecture in verb.further_option_classes:
        architecture_names = arguments.keys() & collect_fields([Architecture])
        keywords["architecture"] = {k: arguments[k] for k in architecture_names}
    keywords["dataset"] = _make_data(job)
    keywords["options"] = select_options(arguments, verb.options)
    return keywords
