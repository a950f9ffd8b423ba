"""The cells of a grid: how many there may be, and a folder of its own for each."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.studies.plan import Job, Scalar


MOST_JOBS = 2_000
"""Steps times cells: each is a training or an audit."""
LONGEST_NAME = 200
"""Bytes of a folder's name; file systems take 255, and verbs write longer ones inside."""


def _slug(value: Scalar) -> str:
    """A value as part of the name of a folder.

    Never one that means another folder, as two dots do.

    >>> _slug("a/b-c"), _slug(0.5), _slug(""), _slug("..")
    ('a_b_c', '0.5', '_', '__')
    """
    name = re.sub(r"[^\w.+]", "_", str(value)) or "_"
    return name if name.strip(".") else "_" * len(name)


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


def folder_of_cell(name: str, cell: Mapping[str, Scalar], taken: set[str]) -> str:
    """The folder of a cell; where another's has that name, with a digest behind it.

    >>> folder_of_cell("base", {"size": "x_y"}, set())
    'base/x_y'
    >>> folder_of_cell("base", {"size": "x-y"}, {"base/x_y"})
    'base/x_y-07f132'

    Args:
        name: of the step.
        cell: of the grid.
        taken: the folders of the cells before, in small letters, since some disks do not
            tell them from capital ones.
    """
    if not cell:
        return name
    folder = f"{name}/{'-'.join(_slug(value) for value in cell.values())}"
    if folder.casefold() not in taken:
        return folder
    digest = hashlib.sha256(repr(tuple(cell.values())).encode()).hexdigest()
    return f"{folder}-{digest[:6]}"


def check_cells(jobs: Sequence[Job]) -> None:
    """Checks that cells differ, and that a file system takes their folders' names.

    Raises:
        AttnProbeError: two cells are equal, or the name of a folder is too long.
    """
    seen: dict[tuple[Scalar, ...], Job] = {}
    for job in jobs:
        values = tuple(job.cell.values())
        if values in seen:  # 0 and false are equal, and nothing could tell them apart
            raise AttnProbeError(
                f"expected values of the grid that differ, got {_written(seen[values])} "
                f"and {_written(job)}; leave one out"
            )
        seen[values] = job
        if max(len(os.fsencode(part)) for part in job.folder.split("/")) > LONGEST_NAME:
            raise AttnProbeError(
                f"expected a name and values that make the name of a folder, of at most "
                f"{LONGEST_NAME} bytes, got {job.folder:.60}…; shorten them"
            )


def _written(job: Job) -> str:
    return ", ".join(str(value)[:60] for value in job.cell.values())
