"""The cells of a grid: how many there may be, and a folder of its own for each."""

import os
import re
from collections.abc import Mapping, Sequence

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.studies.plan import Job, Scalar


MOST_JOBS = 2_000
"""Steps times cells: each is a training or an audit."""
LONGEST_NAME = 200
"""Bytes of a folder's name; file systems take 255, and verbs write longer ones inside."""


def slug(value: Scalar) -> str:
    """A value as part of the name of a folder.

    >>> slug("a/b-c"), slug(0.5), slug("")
    ('a_b_c', '0.5', '_')
    """
    return re.sub(r"[^\w.+]", "_", str(value)) or "_"


def check_number(n_jobs: int) -> None:
    """Refuses too many runs of steps, before any of them is planned.

    Raises:
        AttnProbeError: there are more than :data:`MOST_JOBS`.
    """
    if n_jobs > MOST_JOBS:
        raise AttnProbeError(
            f"expected at most {MOST_JOBS:,} runs of steps, the grid asks for "
            f"{n_jobs:,} up to here; shorten its lists"
        )


def check_folders(jobs: Sequence[Job]) -> None:
    """Checks that every cell has a folder of its own, whose name a file system takes.

    Raises:
        AttnProbeError: two cells would share one, or its name is too long.
    """
    cells: dict[str, Mapping[str, Scalar]] = {}
    for job in jobs:
        name = job.folder.casefold()  # some file systems take both for one
        if name in cells:
            raise AttnProbeError(
                f"expected values of the grid with folders of their own, "
                f"{_written(cells[name])} and {_written(job.cell)} both make "
                f"{job.folder}; leave one out, or name it otherwise"
            )
        cells[name] = job.cell
        if max(len(os.fsencode(part)) for part in name.split("/")) > LONGEST_NAME:
            raise AttnProbeError(
                f"expected a name and values that make the name of a folder, of at most "
                f"{LONGEST_NAME} bytes, got {job.folder:.60}…; shorten them"
            )


def _written(cell: Mapping[str, Scalar]) -> str:
    return ", ".join(str(value)[:60] for value in cell.values())
