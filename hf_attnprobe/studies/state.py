"""The state of a study: which steps are done, and what they were done with.

It is kept in ``study.json``, which is written before each step begins and when it ends.
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.storage.folders import differing, write_json
from hf_attnprobe.studies.plan import DataUsed, Job, Study


STATE = "study.json"


class StudyState:
    """What the folder of a study holds.

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
            return dict(json.loads(self.file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise AttnProbeError(
                f"cannot read {self.file} ({error}); choose another --output-dir"
            ) from error

    def claim(self, plan: Study, data: Mapping[str, DataUsed]) -> None:
        """Makes the folder that of this study.

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
        """What is known of a job; nothing if its folder was deleted."""
        if not (self.folder / job.folder).is_dir():
            return {}
        return self.content["steps"].get(job.folder, {})

    def finished(self, job: Job) -> bool:
        """Whether a job is done, with the present results of the jobs before it."""
        step = self._step(job)
        return step.get("done", False) and step.get("made_of") == self._runs(job)

    def _runs(self, job: Job) -> dict[str, str | None]:
        """The jobs that this one refers to, each with an id that a new run changes."""
        steps = self.content["steps"]
        return {name: steps.get(name, {}).get("run") for name in job.after}

    def seconds(self) -> dict[str, float]:
        """How long each job took, over all its runs."""
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
    """Arguments as JSON gives them back; references are mappings there."""
    return json.loads(json.dumps(dict(arguments), default=asdict))
