"""Ctrl-C, a scheduler's SIGTERM, and output that nobody reads: one line, the right exit code, and the work goes on."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest
from children import Writes, in_child
from hf_attnprobe.partitions.store import Leases, Store

from hf_attnprobe.cli import main


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SAID = {130: "interrupted", 143: "stopped by SIGTERM"}
VERBS = ("train", "audit")
OTHERS = ("retrain", "compare", "deceive", "study", "demo")
EACH = [*VERBS, *(pytest.param(verb, marks=pytest.mark.slow) for verb in OTHERS)]


def stopped(command, path, *signals, at=0):
    """How a command ends that is sent signals when it writes to what begins with a path."""

    def work():
        Writes(path, at, *signals)
        return main(command)

    return in_child(work)


def check_one_line(err, code, again="continue"):
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
    check_one_line(
        ended.err, ended.code, "start over" if verb in ("demo", "deceive") else "continue"
    )
    assert not list(folder.rglob(".*.attnprobe*"))
    again = in_child(partial(main, command))
    assert again.code == 0, again.err


def test_a_second_ctrl_c_ends_at_once(commands, tmp_path):
    """It comes while the first one's half-written file is taken away."""
    folder = tmp_path / "out"
    ended = stopped(commands["audit"](folder), folder / "rows" / ".", *[signal.SIGINT] * 2)
    assert ended.code == 130
    check_one_line(ended.err, 130)
    assert in_child(partial(main, commands["audit"](folder))).code == 0


@pytest.mark.parametrize("number", CODES)
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
        Writes(tmp_path / "out", 0, signal.SIGINT)
        return main(commands["audit"](tmp_path / "out"))

    assert in_child(work).code == 0


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


# --- workers of a job -----------------------------------------------------------------


def test_a_worker_that_was_suspended_counts_as_dead_after_a_while(tmp_path):
    """As by Ctrl-Z; it may go on later, and writes the same bytes."""
    now = [0.0]
    here = Leases(Store(str(tmp_path)), clock=lambda: now[0], patience=10)
    process = os.fork()
    if not process:
        Leases(Store(str(tmp_path))).say(0, [1])
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.waitpid(process, os.WUNTRACED)
        (lease,) = here.others()
        assert not here.is_dead(lease)
        now[0] = 11.0
        assert here.is_dead(lease)
        os.kill(process, signal.SIGCONT)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert here.is_dead(lease)


@pytest.fixture(scope="module")
def job(few, base, tmp_path_factory):
    """A planned audit."""
    folder = tmp_path_factory.mktemp("job") / "job"
    command = ("plan", "--model", base, "--dataset", few, "--tests", "conicity", "--control")
    command = (*command, "none", "--partitions", 8, "--output-dir", folder)
    assert main([str(part) for part in command]) == 0
    return folder


def test_more_workers_than_a_machine_can_run_are_refused(job, cli):
    done = cli("work", job, "--processes", 1_000_000)
    assert done.code == 1 and "processes must be at most" in done.err


def test_a_killed_supervisor_leaves_no_workers(job):
    command = [sys.executable, "-m", "hf_attnprobe", "work", str(job), "--processes", "2"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        workers = wait_for(lambda: psutil.Process(process.pid).children(), 2)
        process.kill()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


def wait_for(look, n):
    """What is seen once there are so many, within half a minute."""
    for _ in range(300):
        if len(found := look()) >= n:
            return found
        time.sleep(0.1)
    raise AssertionError(f"expected {n}, got {look()}")


def test_a_worker_that_is_stopped_takes_its_lease_away(job):
    def work():
        Writes(job / "parts" / ".", 0, signal.SIGTERM)
        return main(["work", str(job)])

    ended = in_child(work)
    assert ended.code == 143
    check_one_line(ended.err, 143)
    assert not list((job / "leases").glob("*.json"))
