"""Several workers on one machine, started again when they are killed."""

import logging
import os
import subprocess  # nosec B404: starts this program only
import sys
import time

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.partitions.options import WorkOptions
from hf_attnprobe.partitions.store import Store


logger = logging.getLogger(__name__)
LOOK = 0.2
"""Seconds between looks at the workers."""
DEATHS_IN_A_ROW = 50
"""Workers that may be killed while no partition is finished."""


def supervise(job: str, options: WorkOptions) -> None:
    """Runs ``options.processes`` workers until each has ended by itself.

    Raises:
        AttnProbeError: a worker gave up, having said why; or they are killed again and
            again, and nothing gets done.
    """
    n_workers = options.processes or 1
    workers = {number: _start(job, number, options) for number in range(n_workers)}
    n_deaths, n_done = 0, _n_done(job)
    try:
        while workers:
            time.sleep(LOOK)
            for number, worker in [*workers.items()]:
                if worker.poll() is None:
                    continue
                del workers[number]
                if worker.returncode > 0:
                    raise AttnProbeError(
                        f"worker {number} gave up with exit code {worker.returncode}, "
                        "see above; what is done stays"
                    )
                if worker.returncode < 0:
                    n_deaths = n_deaths + 1 if _n_done(job) == n_done else 1
                    n_done = _n_done(job)
                    _check_deaths(n_deaths)
                    logger.warning(
                        "worker %d was killed by signal %d and is started again",
                        number,
                        -worker.returncode,
                    )
                    workers[number] = _start(job, number, options)
    finally:
        for worker in workers.values():
            worker.terminate()
        for worker in workers.values():
            worker.wait()


def _check_deaths(n_deaths: int) -> None:
    if n_deaths > DEATHS_IN_A_ROW:
        raise AttnProbeError(
            f"{n_deaths} workers were killed and no partition got done; give them more "
            "memory, or plan with a smaller --batch-size"
        )


def _n_done(job: str) -> int:
    return sum(name.endswith(".json") for name in Store(job).names("parts"))


def _start(job: str, number: int, options: WorkOptions) -> "subprocess.Popen[bytes]":
    """One worker, in one thread, with a GPU of its own where there are several."""
    command = [sys.executable, "-m", "hf_attnprobe", "work", job]
    command += ["--fail-on-error", str(options.fail_on_error)]
    if options.trust_remote_code:
        command.append("--trust-remote-code")
    if options.allow_pickle:
        command.append("--allow-pickle")
    environment = {
        **os.environ,
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(options.processes),
        "OMP_NUM_THREADS": "1",
        **({"HF_TOKEN": options.token} if options.token else {}),
    }
    # The command is this Python and this package, without a shell.
    return subprocess.Popen(  # nosec B603
        command, env=environment, stdout=subprocess.DEVNULL
    )
