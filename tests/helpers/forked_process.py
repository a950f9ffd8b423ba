"""Commands in processes that skip slow imports, because they are forks of a process that has done them.

Run as a script, this module is that process: it reads lines of jobs, runs the jobs of a line at the same time, and prints
their exit codes.
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


COMMAND_TIMEOUT = 300
"""Seconds after which a command is killed."""


class ForkServer:
    """Client of the process that forks, which is started when it is first needed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def run(self, arguments: list[str], envs: list[dict[str, str]]) -> tuple[int, str, str]:
        """Run ``python arguments`` once for each environment, at the same time.

        Returns:
            Exit code, stdout and stderr of all processes together.
        """
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        output_paths = [str(self.folder / str(number)) for number in range(len(envs))]
        jobs = [
            {"arguments": arguments, "env": env, "cwd": str(self.folder), "output_path": path}
            for env, path in zip(envs, output_paths, strict=True)
        ]
        print(json.dumps(jobs), file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        out, err = (
            "".join(Path(f"{path}.{stream}").read_text() for path in output_paths)
            for stream in ("out", "err")
        )
        return code, out, err

    def close(self) -> None:
        """Stop the process."""
        if self.process is not None:
            self.process.communicate()


def get_two_process_environments() -> list[dict[str, str]]:
    """Return the environment variables that torchrun sets for each of two processes."""
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]


def serve() -> None:
    """Fork for every job until the input ends; a child returns after its job.

    As with torchrun, a child that fails ends the others, and its exit code is printed.
    """
    for line in sys.stdin:
        children, code = set(), 0
        for job in json.loads(line):
            child = os.fork()
            if not child:
                run_job(**job)
                return
            children.add(child)
        while children:
            child, status = os.wait()
            children.remove(child)
            if status and not code:
                code = os.waitstatus_to_exitcode(status)
                for other in children:
                    os.kill(other, signal.SIGTERM)
        print(code, flush=True)


def run_job(arguments: list[str], env: dict[str, str], cwd: str, output_path: str) -> None:
    """Run the same code as ``python arguments`` in this process."""
    signal.alarm(COMMAND_TIMEOUT)
    files = (
        os.open(os.devnull, os.O_RDONLY),
        *(
            os.open(f"{output_path}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in ("out", "err")
        ),
    )
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:0] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    flag, source, *further_arguments = arguments
    sys.argv = [source if flag == "-m" else "-c", *further_arguments]
    if flag == "-m":
        runpy.run_module(source, run_name="__main__", alter_sys=True)
    else:
        main: dict[str, Any] = {"__name__": "__main__"}
        exec(source, main)


def _import_slow_packages() -> None:
    """Import the packages that take long to import."""
    import evaluate  # noqa: F401
    from transformers import AutoModelForSequenceClassification, Trainer  # noqa: F401

    from hf_attnprobe.audits import api  # noqa: F401
    from hf_attnprobe.reports import report  # noqa: F401


if __name__ == "__main__":
    # Remove the folder of this file.
    sys.path.pop(0)
    _import_slow_packages()
    serve()
