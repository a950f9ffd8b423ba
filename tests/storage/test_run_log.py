"""The log of the runs in an output folder: their commands, and the time of all of them."""

import json
import os

import pytest

from hf_attnprobe.storage.folders import write_json
from hf_attnprobe.storage.run_log import RUNS_FILE, read_run_log


FIRST, SECOND = {"model": "m", "time": "6m"}, {"model": "m", "time": "1s"}


def run(folder, settings, seconds):
    """A finished run that took so long."""
    log = read_run_log(folder, settings, lambda: seconds)
    log.start()
    log.finish()
    return log


def test_times_add_up_and_each_command_is_listed_once(tmp_path):
    assert run(tmp_path, FIRST, 360.0).seconds == 360
    assert run(tmp_path, SECOND, 5.0).seconds == 365
    last = run(tmp_path, SECOND, 4.0)
    assert last.seconds == 369 and last.earlier_settings == [FIRST]
    stored = json.loads((tmp_path / RUNS_FILE).read_text())
    assert stored == [
        {"asked_for": FIRST, "seconds": 360.0},
        {"asked_for": SECOND, "seconds": 9.0},
    ]
    again = read_run_log(tmp_path, FIRST, lambda: 1.0)
    assert again.earlier_settings == [SECOND] and again.seconds == 370


def test_a_killed_run_took_as_long_as_from_its_start_to_its_last_rows(tmp_path):
    read_run_log(tmp_path, FIRST, lambda: 0.0).start()  # and is killed
    (tmp_path / "rows").mkdir()
    for name, seconds in (("part-1", 20), ("part-2", 50), ("other", 900)):
        (tmp_path / "rows" / name).touch()
        started = os.stat(tmp_path / RUNS_FILE).st_mtime
        os.utime(tmp_path / "rows" / name, (started + seconds, started + seconds))
    resumed = run(tmp_path, FIRST, 10.0)
    assert resumed.seconds == pytest.approx(60) and resumed.earlier_settings == []
    assert read_run_log(tmp_path, FIRST, lambda: 0.0).seconds == pytest.approx(60)


@pytest.mark.parametrize("content", ["", "3", "{}", "[3]", '[{"asked_for": 3, "seconds": 1}]'])
def test_an_unreadable_log_is_an_empty_one(tmp_path, content):
    (tmp_path / RUNS_FILE).write_text(content)
    log = run(tmp_path, FIRST, 2.0)
    assert (log.seconds, log.earlier_settings) == (2, [])
    write_json(tmp_path / RUNS_FILE, [])
    assert read_run_log(tmp_path, FIRST, lambda: 0.0).seconds == 0
