"""One run at a time in a folder, and nothing left of one that was killed.

The lock is the kernel's, on a hidden file in the folder: it goes with the process that
holds it, however that ends. Whoever holds it may take away what a killed run left half
written, since nobody else is writing there.
"""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from hf_attnprobe.errors import AttnProbeError


LOCK = ".attnprobe.lock"
ENDING = ".attnprobe"
"""Of files that are being written: ``.NAME.PROCESS.attnprobe``."""
OURS = (
    r"(audit|control|retraining|training|study|demo|comparison|deception|summary|texts)"
    r"\.json|report\.(md|html)|comparison\.md"
)
LEFT = {
    ".": re.compile(rf"\..+\.\d+\{ENDING}|\.({OURS})\.\d+"),
    "rows": re.compile(rf"\..+\.\d+\{ENDING}|\.[0-9a-f]{{32}}"),
}
"""Names of half written files by the folder below that of a run: as they are called, and
as they were before they had an ending of their own."""
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)

logger = logging.getLogger(__name__)


def half_written(file: Path) -> Path:
    """Where a file is written before it is whole: beside it, hidden, this process's."""
    return file.with_name(f".{file.name}.{os.getpid()}{ENDING}")


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Has a folder for this run alone while the block lasts; made where there is none.

    A folder that was made for it and that nothing was written to goes away again.

    Raises:
        AttnProbeError: another run is at work in it.
        OSError: it cannot be made or written to.
    """
    existed = folder.is_dir()
    file = folder / LOCK
    descriptor = _open(file)
    try:
        _clean(folder)
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()  # while it is held: who waits for it looks again
        os.close(descriptor)
        if not existed:
            with contextlib.suppress(OSError):  # something is in it
                folder.rmdir()


def _open(file: Path) -> int:
    """The descriptor that holds the lock."""
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(file, FLAGS, 0o666)
        except FileNotFoundError:  # who made the folder took it away again
            continue
        try:
            _hold(descriptor, file.parent)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_at(descriptor, file):
            with contextlib.suppress(OSError):  # only for the message of others
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
            return descriptor
        os.close(descriptor)  # its holder took it away between the two calls


def _hold(descriptor: int, folder: Path) -> None:
    """Takes the kernel's lock of an open file, or says who has it."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        who = f" (process {holder})" if holder.isdigit() else ""
        raise AttnProbeError(
            f"another run{who} is at work in {folder}; wait for its end, or choose "
            "another --output-dir"
        ) from error
    except OSError as error:  # some network disks have none
        logger.warning(
            "%s is on a disk without locks (%s); start one run at a time in it",
            folder,
            error.strerror,
        )


def _is_at(descriptor: int, file: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _clean(folder: Path) -> None:
    """Takes away the files that a killed run was writing; no others."""
    for name, pattern in LEFT.items():
        place = folder / name
        for file in place.iterdir() if place.is_dir() else ():
            if pattern.fullmatch(file.name) and file.is_file():
                file.unlink(missing_ok=True)
