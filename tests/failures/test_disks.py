"""Full and read-only disks, real ones: a result or one line with the cause, and with room the same command goes on."""

import resource
import shutil
import sys
from pathlib import Path

import pytest

from hf_attnprobe.cli import main
from tests.helpers.child_processes import (
    fill_disk,
    make_read_only,
    mount_disk,
    run_in_child,
    skip_without_mount,
)


VERBS = ("train", "audit", "retrain", "study", "compare", "deception", "demo")
SHOWN = ("train", "audit")
EACH = [*SHOWN, *(pytest.param(v, marks=pytest.mark.slow) for v in VERBS[2:])]
FULL, READ_ONLY = "No space left on device", "Read-only file system"
AGAIN = "===== again\n"


@pytest.fixture(scope="module", autouse=True)
def _mounts():
    skip_without_mount()


def refused(ended, *causes):
    """The one line of a command that failed, behind what it logged."""
    assert ended.code == 1 and "Traceback" not in ended.err, ended
    (line,) = (x for x in ended.err.splitlines() if x.startswith("attnprobe: "))
    assert line == ended.err.splitlines()[-1] and any(c in line for c in causes), line
    return line


def on_a_disk(disk, command, prepare):
    """Runs a command in a child that has made a disk ready."""

    def run():
        mount_disk(disk, "16m")
        prepare(disk)
        return main(command)

    return run_in_child(run)


def again_on_a_disk(disk, command, second, prepare):
    """Runs a command on a good disk, and another one on what the disk has become."""

    def run():
        mount_disk(disk, "16m")
        if main(command):
            return 50
        prepare(disk)
        print(AGAIN, end="", file=sys.stderr, flush=True)
        return main(second)

    ended = run_in_child(run)
    return ended._replace(err=ended.err.split(AGAIN)[-1])


@pytest.mark.parametrize("verb", EACH)
def test_a_disk_that_is_only_read(verb, commands, tmp_path):
    disk = tmp_path / "disk"
    ended = on_a_disk(disk, commands[verb](disk / "out"), make_read_only)
    assert "cannot use" in refused(ended, READ_ONLY)


@pytest.mark.parametrize("verb", EACH)
def test_a_folder_below_a_file(verb, commands, cli, tmp_path):
    (tmp_path / "file").touch()
    done = cli(*commands[verb](tmp_path / "file" / "out"))
    assert done.code == 1 and "Not a directory" in done.err.splitlines()[-1]
    assert done.out == ""


def test_a_disk_that_fills_up_and_has_room_again(commands, tmp_path):
    disk, leave = tmp_path / "disk", 60_000
    command = commands["train"](disk / "out")

    def run():
        mount_disk(disk, "2m")
        fill_disk(disk, leave)
        first = main(command)
        (disk / "ballast").unlink()
        print(AGAIN, end="", file=sys.stderr, flush=True)
        return 10 * first + main(command)

    ended = run_in_child(run)
    first, again = ended.err.split(AGAIN)
    assert ended.code == 10 and "attnprobe: " not in again, ended
    refused(ended._replace(code=1, err=first), FULL)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_is_full_after_some_bytes(verb, commands, tmp_path):
    disk, n_refused = tmp_path / "disk", 0
    for leave in range(0, 2_000_000, 12_288):
        ended = on_a_disk(
            disk, commands[verb](disk / "out"), lambda at, leave=leave: fill_disk(at, leave)
        )
        if ended.code == 0:
            break
        refused(ended, FULL)
        n_refused += 1
    assert ended.code == 0 and n_refused
    print(f"{verb}: {n_refused} full disks, a line each")


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [fill_disk, make_read_only])
@pytest.mark.parametrize("verb", VERBS)
def test_nothing_left_to_do(verb, prepare, commands, tmp_path):
    disk = tmp_path / "disk"
    command = commands[verb](disk / "out")
    ended = again_on_a_disk(disk, command, command, prepare)
    if ended.code:
        refused(ended, FULL, READ_ONLY)
    else:
        assert verb == "train"  # it is only read again


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_limit_of_the_size_of_files(verb, commands, tmp_path):
    def run():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        return main(commands[verb](tmp_path / "out"))

    refused(run_in_child(run), "File too large")
    assert main(commands[verb](tmp_path / "out")) == 0  # with larger files


def drawn(command):
    """The same audit with a test that has a figure, of as many texts as it needs."""
    instead = {"conicity": "permutation", "4": "10"}
    return [instead.get(part, part) for part in command]


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [fill_disk, make_read_only])
def test_reports_figures_and_cards(prepare, commands, base, tmp_path):
    disk, audited = tmp_path / "disk", tmp_path / "audit"
    assert main(drawn(commands["audit"](audited))) == 0
    for form in ("html", "md", "json", "csv"):
        report = ["report", str(audited), "--output", str(disk / f"report.{form}")]
        refused(on_a_disk(disk, report, prepare), FULL, READ_ONLY)
    figures = ["report", str(audited), "--figures", str(disk / "figures")]
    refused(on_a_disk(disk, figures, prepare), FULL, READ_ONLY)

    def with_model(place):
        shutil.copytree(base, place / "model")
        (place / "model" / "README.md").unlink()
        prepare(place)

    card = ["card", str(disk / "model"), str(audited)]
    refused(on_a_disk(disk, card, with_model), FULL, READ_ONLY)

    def with_audit(place):
        shutil.copytree(audited, place / "audit")
        prepare(place)

    ended = on_a_disk(disk, ["report", str(disk / "audit")], with_audit)
    assert ended.code == 0 and ended.out  # who only reads needs no lock


CACHE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.helpers.child_processes import fill_disk, make_read_only, mount_disk
place = Path(sys.argv[2])
mount_disk(place, "256k")
{"full": fill_disk, "read-only": make_read_only}[sys.argv[3]](place)
os.environ["HF_HOME"] = str(place)
from hf_attnprobe.cli import main
sys.exit(main(sys.argv[4:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_cache_that_cannot_be_written_to(kind, commands, run_python, tmp_path):
    here = str(Path(__file__).parents[2])
    command = commands["train"](tmp_path / "out")
    done = run_python("-c", CACHE, here, tmp_path / "cache", kind, *command)
    line = refused(done, FULL, READ_ONLY, "Not enough disk space")
    assert "HF_HOME" in line and "expected one of" not in line
