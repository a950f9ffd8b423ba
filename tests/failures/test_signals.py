"""Ctrl-C, a scheduler's SIGTERM, and output that nobody reads: one line, the right exit code, and the work goes on."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from hf_attnprobe.cli import main
from tests.helpers import tiny_models
from tests.helpers.child_processes import WriteMonitor, run_in_child


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SAID = {130: "interrupted", 143: "stopped by SIGTERM"}
VERBS = ("audit",)
OTHERS = ("train", "retrain", "compare", "deception", "study", "demo")
EACH = [*VERBS, *(pytest.param(verb, marks=pytest.mark.slow) for verb in OTHERS)]


def stopped(command, path, *signals, at=0):
    """How a command ends that is sent signals when it writes to what begins with a path."""

    def work():
        WriteMonitor(path, at, *signals)
        return main(command)

    return run_in_child(work)


def check_one_line(err, code, again="resume"):
    assert "Traceback" not in err
    ours = [line for line in err.splitlines() if line.startswith("attnprobe: ")]
    assert ours == [f"attnprobe: {SAID[code]}; run the same command again to {again}"]
    assert err.splitlines()[-1] == ours[0]


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("verb", EACH)
def test_a_signal_at_work_is_one_line_and_the_same_command_goes_on(
    verb, number, commands, tmp_path
):
    folder = tmp_path / "out"
    command = commands[verb](folder)
    ended = stopped(command, folder / ".", number, at=3)
    assert ended.code == CODES[number]
    again = ("start over",) if verb == "demo" else ()
    check_one_line(ended.err, ended.code, *again)
    assert not list(folder.rglob(".*.attnprobe*"))
    again = run_in_child(partial(main, command))
    assert again.code == 0, again.err


def test_a_second_ctrl_c_ends_at_once(commands, tmp_path):
    """It comes while the first one's half-written file is taken away."""
    folder = tmp_path / "out"
    ended = stopped(commands["audit"](folder), folder / "rows" / ".", *[signal.SIGINT] * 2)
    assert ended.code == 130
    check_one_line(ended.err, 130)
    assert run_in_child(partial(main, commands["audit"](folder))).code == 0


@pytest.mark.parametrize("number", tiny_models.daily(CODES, [signal.SIGTERM]))
def test_a_signal_while_python_imports_is_one_line(number, commands, tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "hf_attnprobe"]
    command += commands["audit"](tmp_path / "out")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.endswith("| torch.version\n") or "torch._utils_internal" in line:
                process.send_signal(number)
                break
        err = process.stderr.read()
    said = [line for line in err.splitlines() if not line.startswith("import time:")]
    check_one_line("\n".join(said), process.returncode)
    assert process.returncode == CODES[number]


def test_a_signal_that_was_ignored_before_stays_so(commands, tmp_path):
    """As Ctrl-C of a command in the background, and of one behind nohup."""

    def work():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        WriteMonitor(tmp_path / "out", 0, signal.SIGINT)
        return main(commands["audit"](tmp_path / "out"))

    assert run_in_child(work).code == 0


@pytest.mark.parametrize(
    ("stdout", "printed"), [("pipe", ("datasets",)), ("none", ("datasets", "--json"))]
)
def test_output_that_nobody_reads_ends_quietly(stdout, printed):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hf_attnprobe", *printed]
    if stdout == "none":
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_what_an_encoding_lacks_is_written_out():
    done = subprocess.run(
        [sys.executable, "-m", "hf_attnprobe", "datasets"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u2013" in done.stdout and done.stdout.isascii()
