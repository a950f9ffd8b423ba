"""The runner of studies: every step of a study file once, restartable, one report at the end."""

import json
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hf_attnprobe.data.examples import dataset_fingerprint
from hf_attnprobe.data.splits import load_splits
from hf_attnprobe.distributed import process_state
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import check_at_least
from hf_attnprobe.published_results import PAPERS
from hf_attnprobe.storage.folders import (
    as_json,
    check_free,
    differing,
    write_atomically,
    write_json,
)
from hf_attnprobe.storage.provenance import SUMMARY
from hf_attnprobe.studies.file import read_study, ready_studies
from hf_attnprobe.studies.plan import Job, Study, load_as
from hf_attnprobe.studies.report import (
    DataUsed,
    StudyReport,
    report_of,
    to_json,
    to_markdown,
)
from hf_attnprobe.studies.verbs import DATA, VERBS


STATE = "study.json"  # what the steps of a folder were asked for, and which are done


def study(
    file: str | Path,
    *,
    output_dir: str | Path,
    quick: bool = False,
    dataset: str | Sequence[str] | None = None,
    config: str | None = None,
    text_column: str | Sequence[str] | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    vectors: str | Path | None = None,
    progress: bool = True,
) -> StudyReport:
    """Runs the steps of a study file, and puts what they found into one report.

    Each step has a folder of its own below ``output_dir``. Run again with the same folder to continue after an
    interruption: a step that is done is not repeated, the one under way continues. A step that was asked for with other
    arguments is refused; delete its folder, or choose another, to have it done again.

    Args:
        file: a path, see :mod:`hf_attnprobe.studies.file` for what is in it; or the name of a study of this package.
        quick: with the shorter settings of the file; the report says so.
        dataset: in place of the file's data sets: names, folders, Hub ids, or name=folder for a folder that is cut as
            the data set of that name and stands for it.
        config, text_column, label_column: of the data sets. limit: so many training texts.
        seed: of all steps that set none.
        vectors: pretrained word vectors for all trainings that name none.
        progress: on stderr.

    Returns:
        The report; also as ``report.md`` and ``summary.json`` in the folder.

    Raises:
        AttnProbeError: for anything the caller can mend, if it can be seen before anything is trained.
    """
    check_at_least(0, seed=seed)
    check_at_least(1, limit=limit)
    names = [dataset] if isinstance(dataset, str) else dataset
    given = {
        "config": config,
        "text_column": text_column,
        "label_column": label_column,
        "limit": limit,
    }
    given |= {"seed": seed, "vectors": vectors and str(vectors)}
    plan = read_study(file, quick=quick, datasets=names, given=given)
    if process_state().num_processes > 1:
        raise AttnProbeError("a study works in one process; start it without torchrun")
    folder = check_free(output_dir, STATE)
    state = _State(folder, plan, quick)
    data = _data_of(plan)
    state.check(plan, data)
    for number, job in enumerate(plan.jobs, 1):
        if progress:
            done = ", done before" if state.finished(job) else ""
            print(
                f"step {number} of {len(plan.jobs)}: {job.folder} ({job.verb}){done}",
                file=sys.stderr,
                flush=True,
            )
        if not state.finished(job):
            with state.step(job):
                _run(job, folder, progress)
    report = report_of(plan, folder, data, state.seconds(), quick=quick)
    write_json(folder / SUMMARY, to_json(report))
    write_atomically(folder / "report.md", to_markdown(report))
    return report


def reproduce(
    paper: str,
    *,
    dataset: str | Sequence[str],
    output_dir: str | Path,
    quick: bool = False,
    config: str | None = None,
    text_column: str | Sequence[str] | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    vectors: str | Path | None = None,
    progress: bool = True,
) -> StudyReport:
    """Runs the whole table of a paper for a data set, and puts the published numbers beside ours.

    Args:
        paper: one of :data:`hf_attnprobe.published_results.PAPERS`.
        dataset: as for :func:`study`; the published numbers are those of the data set's name.
        output_dir, quick, config, text_column, label_column, limit, seed, vectors, progress: see :func:`study`.
    """
    ready = {name: file for name, file in ready_studies().items() if name in PAPERS}
    if paper not in ready:
        raise AttnProbeError(
            f"expected a paper of {', '.join(ready)}, got {paper!r}; other studies are attnprobe study's"
        )
    return study(
        ready[paper],
        dataset=dataset,
        output_dir=output_dir,
        quick=quick,
        config=config,
        text_column=text_column,
        label_column=label_column,
        limit=limit,
        seed=seed,
        vectors=vectors,
        progress=progress,
    )


def read_text(folder: str | Path) -> str:
    """The report of a study's folder in Markdown."""
    try:
        return (Path(folder) / "report.md").read_text()
    except OSError as error:
        raise AttnProbeError(
            f"expected a finished study in {folder}; run it again to finish it"
        ) from error


def _run(job: Job, folder: Path, progress: bool) -> None:
    """Calls the verb; errors say which step they are of."""
    arguments = {name: _place(value, folder) for name, value in job.arguments.items()}
    arguments["dataset"] = load_as(arguments["dataset"])
    try:
        VERBS[job.verb].run(
            output_dir=folder / job.folder, progress=progress, **arguments
        )
    except AttnProbeError as error:
        raise AttnProbeError(f"step {job.folder}: {error}") from error


def _place(value, folder: Path):
    """References to earlier steps as folders."""
    if isinstance(value, list):
        return [_place(item, folder) for item in value]
    return (
        str(folder / value[1:])
        if isinstance(value, str) and value.startswith("<")
        else value
    )


def _data_of(plan: Study) -> dict[str, DataUsed]:
    """Every data set as it is trained on, by its arguments; so one that is not there is met before anything is trained."""
    found: dict[str, DataUsed] = {}
    for job in plan.jobs:
        data = {k: v for k, v in job.arguments.items() if k in DATA}
        key = _key(job)
        if VERBS[job.verb].training_limit == "limit" and key not in found:
            dataset = load_as(data.pop("dataset"))
            sets = load_splits(dataset, seed=job.arguments.get("seed", 0), **data)
            sizes = {name: len(examples) for name, examples in sets.items()}
            fingerprints = {
                name: dataset_fingerprint(examples) for name, examples in sets.items()
            }
            found[key] = DataUsed(job.arguments["dataset"], sizes, fingerprints)
    return found


def _key(job: Job) -> str:
    data = {k: v for k, v in job.arguments.items() if k in DATA}
    return json.dumps(data | {"seed": job.arguments.get("seed", 0)}, sort_keys=True)


class _State:
    """What is done, in a file that every step is written to before it begins and when it has ended."""

    def __init__(self, folder: Path, plan: Study, quick: bool):
        self.folder, self.file = folder, folder / STATE
        self.held = {"study": plan.name, "quick": quick, "data": {}, "steps": {}}
        if self.file.is_file():
            try:
                self.held |= json.loads(self.file.read_text())
            except (OSError, ValueError, TypeError) as error:
                raise AttnProbeError(
                    f"cannot read {self.file} ({error}); choose another --output-dir"
                ) from error
        if (self.held["study"], self.held["quick"]) != (plan.name, quick):
            kind = "quick" if self.held["quick"] else "full"
            raise AttnProbeError(
                f"{folder} holds the {kind} study {self.held['study']}, not the {'quick' if quick else 'full'} "
                f"{plan.name}; choose another --output-dir"
            )

    def check(self, plan: Study, data: Mapping[str, DataUsed]) -> None:
        """Refuses steps that were begun with other arguments or other texts; from here on the folder is this study's."""
        for job in plan.jobs:
            held = self._held(job)
            if held:
                _check_arguments(held["arguments"], job, self.folder / job.folder)
        for key, used in data.items():
            if self.held["data"].get(
                key, used.fingerprints
            ) != used.fingerprints and any(map(self._held, plan.jobs)):
                raise AttnProbeError(
                    f"the texts of {used.name} are not those that {self.folder} was begun with; choose another --output-dir"
                )
        self.held["data"] |= {
            key: dict(used.fingerprints) for key, used in data.items()
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write()

    def _held(self, job: Job) -> dict:
        return (
            self.held["steps"].get(job.folder, {})
            if (self.folder / job.folder).is_dir()
            else {}
        )

    def finished(self, job: Job) -> bool:
        """Done, and of what the steps before it are now: a folder that was deleted is made anew."""
        held = self._held(job)
        return held.get("done", False) and held.get("made_of") == self._runs(job)

    def _runs(self, job: Job) -> dict[str, str | None]:
        return {name: self.held["steps"].get(name, {}).get("run") for name in job.after}

    def seconds(self) -> dict[str, float]:
        return {name: step["seconds"] for name, step in self.held["steps"].items()}

    @contextmanager
    def step(self, job: Job) -> Iterator[None]:
        """Notes that a step has begun, how long it took over all runs, and, if nothing went wrong, that it is done."""
        held = self._held(job)
        before, run = held.get("seconds", 0.0), held.get("run", uuid.uuid4().hex)
        step = {
            "verb": job.verb,
            "arguments": as_json(job.arguments),
            "seconds": before,
            "done": False,
        }
        step |= {"run": run, "made_of": self._runs(job)}
        self.held["steps"][job.folder] = step
        self._write()
        since = time.monotonic()
        try:
            yield
            step["done"] = True
        finally:
            step["seconds"] = round(before + time.monotonic() - since, 2)
            self._write()

    def _write(self) -> None:
        write_json(self.file, self.held)


def _check_arguments(held: Mapping, job: Job, folder: Path) -> None:
    """A step that was begun has the arguments that it was begun with, and no others."""
    wrong = differing(held, dict.fromkeys(held) | dict(job.arguments))
    for name, (old, new) in wrong.items():
        raise AttnProbeError(
            f"step {job.folder} was done with {name} {old}, not {new}; choose another "
            f"--output-dir, or delete {folder} and what was made of it"
        )
