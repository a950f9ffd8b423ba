"""Commands in processes of their own that do not import again what is heavy: forks of one process that did.

As a script it is that process: it reads lines of jobs, runs the jobs of a line at once, and writes their exit codes.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


ONE_COMMAND = 300  # seconds


class Warm:
    """The process that forks, started when it is first needed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def run(self, arguments: list[str], envs: list[dict[str, str]]) -> tuple[int, str, str]:
        """``python arguments`` once for each environment, all at once: exit code, output and errors."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        places = [str(self.folder / str(k)) for k in range(len(envs))]
        jobs = [
            {"arguments": arguments, "env": env, "cwd": str(self.folder), "place": place}
            for env, place in zip(envs, places, strict=True)
        ]
        print(json.dumps(jobs), file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        out, err = (
            "".join(Path(f"{place}.{kind}").read_text() for place in places)
            for kind in ("out", "err")
        )
        return code, out, err

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()


def as_two() -> list[dict[str, str]]:
    """What torchrun tells each of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]


def serve() -> None:
    """Forks for every job until its input ends; a child returns with its job.

    As with torchrun, one that fails ends the others, and its exit code is that of all.
    """
    for line in sys.stdin:
        children, code = set(), 0
        for job in json.loads(line):
            child = os.fork()
            if not child:
                return become(**job)
            children.add(child)
        while children:
            child, status = os.wait()
            children.remove(child)
            if status and not code:
                code = os.waitstatus_to_exitcode(status)
                for other in children:
                    os.kill(other, signal.SIGTERM)
        print(code, flush=True)


def become(arguments: list[str], env: dict[str, str], cwd: str, place: str) -> None:
    """Runs what ``python arguments`` would."""
    signal.alarm(ONE_COMMAND)
    files = (
        os.open(os.devnull, os.O_RDONLY),
        *(
            os.open(f"{place}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for kind in ("out", "err")
        ),
    )
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:0] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    how, what, *rest = arguments
    sys.argv = [what if how == "-m" else "-c", *rest]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        main: dict[str, Any] = {"__name__": "__main__"}
        exec(what, main)


def _import() -> None:
    import evaluate  # noqa: F401
    from transformers import AutoModelForSequenceClassification, Trainer  # noqa: F401

    from hf_attnprobe.audits import api  # noqa: F401
    from hf_attnprobe.reports import report  # noqa: F401


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    _import()
    serve()
