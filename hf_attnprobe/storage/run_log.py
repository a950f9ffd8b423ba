"""Log of the runs in an output folder: the settings of each run, and the time that it took.

Several runs can use one folder, because an audit resumes. A report therefore states the time and the commands
of all these runs. The log is the file ``runs.json`` in the folder.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_attnprobe.storage.folders import normalize_settings, write_json
from hf_attnprobe.storage.provenance import PARSE_ERRORS


logger = logging.getLogger(__name__)
RUNS_FILE = "runs.json"
"""Name of the log of all runs, in an output folder."""


@dataclass
class RunLog:
    """The runs in an output folder; runs with the same settings share one entry.

    Attributes:
        folder: Output folder.
        runs: Entries in the order of the first run with these settings. An entry has the keys
            "asked_for" (the settings), "seconds" (the time of all finished runs) and, while a run is in
            progress, "is_unfinished".
        settings: Settings of the present run.
        get_elapsed_seconds: Function that returns the time since the start of the present run.
    """

    folder: Path
    runs: list[dict[str, Any]]
    settings: dict[str, Any]
    get_elapsed_seconds: Callable[[], float]

    @property
    def seconds(self) -> float:
        """Time of all runs so far, including the present one."""
        return sum(run["seconds"] for run in self.runs) + self.get_elapsed_seconds()

    @property
    def earlier_settings(self) -> list[dict[str, Any]]:
        """Settings of earlier runs that differ from those of the present run."""
        return [run["asked_for"] for run in self.runs if run["asked_for"] != self.settings]

    def start(self) -> None:
        """Write an entry for the present run, whose time is not known yet."""
        if self.settings not in [run["asked_for"] for run in self.runs]:
            self.runs.append({"asked_for": self.settings, "seconds": 0.0})
        unfinished_runs = [
            {**run, "is_unfinished": True} if run["asked_for"] == self.settings else run
            for run in self.runs
        ]
        write_json(self.folder / RUNS_FILE, unfinished_runs)

    def finish(self) -> None:
        """Add the time of the present run to its entry."""
        finished_runs = []
        for run in self.runs:
            seconds = run["seconds"]
            if run["asked_for"] == self.settings:
                seconds += self.get_elapsed_seconds()
            finished_runs.append({"asked_for": run["asked_for"], "seconds": round(seconds, 1)})
        write_json(self.folder / RUNS_FILE, finished_runs)


def read_run_log(
    folder: Path, settings: Mapping[str, Any], get_elapsed_seconds: Callable[[], float]
) -> RunLog:
    """Read the log of the earlier runs in an output folder.

    If the last run was killed, its time is measured from its start to the last results that it saved.

    Args:
        folder: Output folder. If its log cannot be read, a warning states that earlier runs are not
            counted.
        settings: Settings of the present run.
        get_elapsed_seconds: Function that returns the time since the start of the present run.

    Returns:
        The log.
    """
    file = folder / RUNS_FILE
    try:
        stored_runs = json.loads(file.read_text(encoding="utf-8"))
        runs = [_parse_run(run) for run in stored_runs]
        killed_run_seconds = _measure_killed_run(folder)
    except FileNotFoundError:
        stored_runs, runs, killed_run_seconds = [], [], 0.0
    except (OSError, *PARSE_ERRORS) as error:
        logger.warning(
            "cannot read %s (%s), so the time of earlier runs is not counted",
            file,
            type(error).__name__,
        )
        stored_runs, runs, killed_run_seconds = [], [], 0.0
    for stored_run, run in zip(stored_runs, runs, strict=True):
        if stored_run.get("is_unfinished"):
            run["seconds"] += killed_run_seconds
    return RunLog(folder, runs, normalize_settings(settings), get_elapsed_seconds)


def _parse_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings and the time of an entry, without other keys."""
    return {"asked_for": dict(run["asked_for"]), "seconds": float(run["seconds"])}


def _measure_killed_run(folder: Path) -> float:
    """Measure the seconds from the start of a killed run to the last rows that it saved."""
    started = os.stat(folder / RUNS_FILE).st_mtime
    saved = [file.stat().st_mtime for file in (folder / "rows").glob("part-*")]
    return max(max(saved, default=started) - started, 0.0)
