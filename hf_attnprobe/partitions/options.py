"""The options of a worker."""

import os
from dataclasses import dataclass

from hf_attnprobe.options import Options, option


@dataclass(frozen=True)
class WorkOptions(Options):
    """Which share of a job a worker takes, and how much may go wrong."""

    partition: str | None = option(
        None,
        "compute this partition alone, written as 17/512, counted from 0, and end",
        metavar="K/N",
    )
    processes: int | None = option(
        None,
        "workers to start here, each a process; one that is killed is started again "
        "(default: work in this process)",
        at_least=1,
        at_most=max(64, 4 * (os.cpu_count() or 1)),
        metavar="N",
    )
    fail_on_error: float = option(
        0.01,
        "share of the texts that may be set aside, because they fail or kill a worker, "
        "before the work stops",
        at_least=0,
        metavar="SHARE",
    )
    token: str | None = option(
        None, "token of the Hub for a private model; it is not recorded", secret=True
    )
    trust_remote_code: bool = option(False, "run code that comes with a model from the Hub")
    allow_pickle: bool = option(
        False,
        "read weights that are not safetensors; reading those can run code hidden in them",
    )
