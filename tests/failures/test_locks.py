"""Two runs on one folder: one works, the other is refused in a line, however the first one ends."""

import contextlib
import errno
import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from hf_attnprobe import AttnProbeError
from hf_attnprobe.cli import main
from hf_attnprobe.storage.folders import LOCK_FILE, lock_folder, reserve_folder
from tests.helpers.child_processes import run_in_child


VERBS = ("train", "audit", "study")
OTHERS = ("retrain", "compare", "deception", "demo")
EACH = [*VERBS, *(pytest.param(verb, marks=pytest.mark.slow) for verb in OTHERS)]


@contextlib.contextmanager
def held_elsewhere(folder: Path):
    """Another process has the lock of a folder; its number."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        try:
            with lock_folder(folder):
                os.write(writer, b"!")
                time.sleep(300)
        finally:
            os._exit(1)
    os.read(reader, 1)
    try:
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("verb", EACH)
def test_the_second_run_is_refused_in_one_line(verb, commands, cli, tmp_path):
    folder = tmp_path / "out"
    with held_elsewhere(folder) as process:
        before = sorted(folder.iterdir())
        done = cli(*commands[verb](folder))
        assert done.code == 1 and done.out == ""
        last = done.err.splitlines()[-1]
        assert f"another run (process {process}) uses {folder}" in last
        assert sorted(folder.iterdir()) == before == [folder / LOCK_FILE]


def test_a_lock_goes_with_the_process_that_is_killed(commands, cli, tmp_path):
    with held_elsewhere(tmp_path):
        pass
    assert (tmp_path / LOCK_FILE).exists()
    assert cli(*commands["audit"](tmp_path)).code == 0
    assert not [file for file in tmp_path.rglob(".*") if file.is_file()]


def test_of_two_trainings_at_once_one_ends_right(commands, tmp_path):
    def both():
        process = os.fork()
        code = 99
        try:
            code = main(commands["train"](tmp_path / "out"))
        finally:
            if not process:
                os._exit(code)
        _, status = os.waitpid(process, 0)
        return 10 * code + os.waitstatus_to_exitcode(status)

    ended = run_in_child(both)
    assert ended.code in (1, 10), ended.err
    assert ended.err.count("another run") == 1 and "Traceback" not in ended.err
    assert {"model.safetensors", "training.json"} <= {
        file.name for file in (tmp_path / "out").iterdir()
    }


def test_never_two_at_a_time(tmp_path):
    """Four processes add to a number that is lost where two read it before either writes."""
    number, folder, n_rounds = tmp_path / "number", tmp_path / "folder", 50
    number.write_text("0")

    def add():
        for _ in range(n_rounds):
            while True:
                with contextlib.suppress(AttnProbeError), lock_folder(folder):
                    value = int(number.read_text())
                    time.sleep(0.0002)
                    number.write_text(str(value + 1))
                    break

    processes = []
    for _ in range(4):
        process = os.fork()
        if not process:
            try:
                add()
                os._exit(0)
            finally:
                os._exit(1)
        processes.append(process)
    assert [os.waitpid(process, 0)[1] for process in processes] == [0] * 4
    assert int(number.read_text()) == 4 * n_rounds
    assert not folder.exists() or not [*folder.iterdir()]


def test_a_disk_without_locks_is_told_of(monkeypatch, tmp_path, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with reserve_folder(tmp_path):
        (tmp_path / "result").touch()
    (record,) = caplog.records
    assert "without locks (No locks available)" in record.getMessage()
    assert [file.name for file in tmp_path.iterdir()] == ["result"]


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "thesis").write_text("all of it")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LOCK_FILE).symlink_to(tmp_path / "thesis")
    with pytest.raises(AttnProbeError, match="leads out of the output folder"), reserve_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "thesis").read_text() == "all of it"
