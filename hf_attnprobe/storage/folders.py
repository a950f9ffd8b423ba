"""Folders of results: claimed by one process, continued, replaced, or refused.

A run has its folder alone: a lock of the kernel on a hidden file, which goes with the process
however it ends, so nobody has to take a dead run's lock away. Whoever holds it takes away files
that a killed run was writing, by their names. What only reads needs no lock.
"""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from hf_attnprobe.core import options
from hf_attnprobe.core.distributed import process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import read_json


OF_SYSTEM = re.compile(r"\(os error (\d+)\)")
"""How Rust's libraries, safetensors and tokenizers among them, end such a message."""
PROBE = 1 << 16  # bytes


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Errors of safetensors, tokenizers and torch that are the disk's, as ``OSError``.

    torch says that a write failed and not why; then the disk is asked.

    Args:
        folder: that is written to.

    Raises:
        OSError: with the system's number, of a full or a read-only disk, say.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = _number_of(error, folder)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(folder)) from error


def _number_of(error: Exception, folder: Path) -> int | None:
    """The system's error number for a failure of the disk; None for other errors."""
    found = OF_SYSTEM.search(str(error))
    if found:
        return int(found[1])
    from safetensors import SafetensorError

    if not isinstance(error, RuntimeError | SafetensorError):
        return None
    try:
        with TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(PROBE))
    except OSError as refused:
        return refused.errno
    return None


# --- One run at a time in a folder, and nothing left of one that was killed ----------------------
# The lock is the kernel's, on a hidden file in the folder: it goes with the process that
# holds it, however that ends. Whoever holds it may take away what a killed run left half
# written, since nobody else is writing there.

LOCK = ".attnprobe.lock"
ENDING = ".attnprobe"
"""Of files that are being written: ``.NAME.PROCESS.attnprobe``."""
LEFT = re.compile(rf"\..+\.\d+\{ENDING}")
"""Names of half written files."""
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What network disks without locks answer."""

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
    held = FileLock(folder / LOCK, fallback_to_soft=False)
    _take(held, folder)
    try:
        _clean(folder)
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / LOCK).unlink()  # while it is held: who waits for it looks again
        held.release()
        if not existed:
            with contextlib.suppress(OSError):  # something is in it
                folder.rmdir()


def _take(held: BaseFileLock, folder: Path) -> None:
    """Takes the lock of a folder, or says who has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.acquire(blocking=False)
        with contextlib.suppress(OSError):  # only for the message of others
            (folder / LOCK).write_text(str(os.getpid()))
    except (
        FileNotFoundError,
        FileExistsError,
    ):  # who made the folder took it away again
        if os.path.lexists(folder) and not folder.is_dir():  # a broken link is there, too
            raise
        _take(held, folder)
    except Timeout as error:
        raise AttnProbeError(
            f"another run{_holder(folder)} is at work in {folder}; wait for its end, or choose "
            "another --output-dir"
        ) from error
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        logger.warning(
            "%s is on a disk without locks (%s); start one run at a time in it",
            folder,
            error.strerror,
        )


def _holder(folder: Path) -> str:
    """The number of the process that has the lock, where it is known."""
    try:
        number = (folder / LOCK).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
    return f" (process {number})" if number.isdigit() else ""


def _clean(folder: Path) -> None:
    """Takes away the files that a killed run was writing; no others."""
    for place in (folder, folder / "rows"):
        for file in place.iterdir() if place.is_dir() else ():
            if LEFT.fullmatch(file.name) and file.is_file():
                file.unlink(missing_ok=True)


# --- Folders of results: whose they are, and what is written whole or not at all -----------------
# Whoever writes a folder leaves a file in it that says so, its mark: ``audit.json``,
# ``training.json``, ``study.json``, …. A folder can be written to if it is new, holds
# nothing visible, or has the writer's mark; then the settings in the mark must be the
# same.

URL = re.compile(r"[A-Za-z][\w+.-]+:/")
"""How a URL begins, as a path too, which has no two slashes in a row; no drive has two letters."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""A full disk, a full share of one."""


def write_atomically(file: Path, text: str) -> None:
    """Writes the whole text, in UTF-8, or nothing."""
    hidden = half_written(file)
    try:
        hidden.write_text(text, encoding="utf-8")
        os.replace(hidden, file)
    except BaseException:
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise


def write_json(file: Path, data: object) -> None:
    """Writes plain data as JSON, the whole file or nothing."""
    write_atomically(file, json.dumps(data, indent=1) + "\n")


def check_usable(folder: str | Path) -> None:
    """Raises AttnProbeError where a folder can be neither made nor written to."""
    there = check_name(folder)
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    try:
        TemporaryFile(dir=there).close()
    except OSError as error:
        refused = OSError(error.errno, error.strerror, str(there))
        raise cannot_use(folder, refused) from error


def check_name(folder: str | Path) -> Path:
    """The folder as a path.

    Raises:
        AttnProbeError: a name that no file system takes, or a URL.
    """
    options.check_name("the output", str(folder))
    if URL.match(str(folder)):
        raise AttnProbeError(
            f"expected a folder of this machine for the output, got the URL {folder}; choose "
            "another --output-dir"
        )
    return Path(folder)


def check_free(folder: str | Path, *marks: str) -> Path:
    """Checks that a folder can be written to.

    Hidden files do not count: an interrupted run may have left some.

    Args:
        marks: names or patterns of files, one of which says that it is the writer's.

    Returns:
        The folder as a path. It need not exist.

    Raises:
        AttnProbeError: it holds other files or a link that leads out of it, or is none.
    """
    folder = check_name(folder)
    try:
        paths = list(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise cannot_use(folder, error) from error
    visible = any(not path.name.startswith(".") for path in paths)
    marked = any(any(folder.glob(mark)) for mark in marks)
    if visible and not marked:
        raise AttnProbeError(
            f"expected a new or an empty folder, {folder} holds other files; choose "
            "another --output-dir"
        )
    for path in paths:
        is_inside = path.resolve().is_relative_to(folder.resolve())
        if path.is_symlink() and not is_inside:
            raise AttnProbeError(
                f"expected no links in the output folder, {path} leads out of it; delete "
                "the link, or choose another --output-dir"
            )
    return folder


def cannot_use(folder: str | Path, error: Exception) -> AttnProbeError:
    """The error for a folder that cannot be read or written."""
    is_full = isinstance(error, OSError) and error.errno in FULL
    advice = "make room, or choose" if is_full else "choose"
    return AttnProbeError(
        f"cannot use {folder} for the output ({error}); {advice} another --output-dir"
    )


def differing(held: object, wanted: Mapping) -> dict[str, tuple[object, object]]:
    """Where the settings that a folder holds are not those wanted.

    Args:
        held: as JSON gave them back; what is no mapping holds none.
        wanted: by name; compared as JSON would give them back.

    Returns:
        (held, wanted) by the name of each setting that differs, in the order wanted.
    """
    held = held if isinstance(held, Mapping) else {}
    return {
        name: (held.get(name), value)
        for name, value in as_json(wanted).items()
        if held.get(name) != value
    }


def as_json(settings: Mapping) -> dict:
    """Settings as JSON gives them back: a tuple is a list there."""
    return json.loads(json.dumps(dict(settings)))


@contextlib.contextmanager
def alone_in(folder: str | Path, *marks: str, identity: Mapping | None = None) -> Iterator[Path]:
    """Has a folder for this run alone, on all its processes together.

    With an identity the first mark says whose the folder is, until the run fails before
    its first rows.

    Args:
        folder: of the output; made where there is none, and taken away again where
            nothing was written to it.
        marks: as for :func:`check_free`.
        identity: the settings without which the rows would be other rows.

    Raises:
        AttnProbeError: another run is at work in it, it holds other files or is of a run
            with another identity, or it cannot be written to.
    """
    from accelerate.utils import broadcast_object_list

    folder = Path(folder)
    is_main = process_state().is_main_process
    is_new, wrong = False, None
    with contextlib.ExitStack() as held:
        try:
            if is_main:
                check_free(folder, *marks)
                held.enter_context(lock(folder))
                if identity is not None:
                    is_new = _mark(folder / marks[0], identity)
        except AttnProbeError as error:
            wrong = str(error)
        except OSError as error:
            wrong = str(cannot_use(folder, error))
        # no process may wait for one that has given up
        said = [wrong]
        broadcast_object_list(said)
        if said[0] is not None:
            raise AttnProbeError(said[0])
        try:
            yield folder
        except BaseException:
            if is_new and not any((folder / "rows").glob("part-*")):
                (folder / marks[0]).unlink(missing_ok=True)
                shutil.rmtree(folder / "rows", ignore_errors=True)
            raise


def _mark(mark: Path, identity: Mapping) -> bool:
    """Writes the mark if the folder has none; whether it was so."""
    if not mark.exists():
        write_json(mark, identity)
        return True
    check_same(mark, identity)
    return False


def check_same(mark: Path, identity: Mapping) -> None:
    """Raises AttnProbeError where a mark is there and says another identity."""
    if not os.path.exists(mark):  # whatever is wrong with its name
        return
    held = read_json(mark, Any, "choose another --output-dir")
    wrong = differing(held, identity)
    if wrong:
        names = ", ".join(name.replace("_", " ") for name in wrong)
        theirs, ours = next(iter(wrong.values()))
        raise AttnProbeError(
            f"{mark.parent} belongs to another {mark.stem}: its {names} "
            f"({_changed(theirs, ours)}) is not this one's ({_changed(ours, theirs)}); "
            "choose another --output-dir"
        )


def _changed(value: object, other: object) -> object:
    """Of nested settings only those that are not the other's, in words."""
    if not isinstance(value, Mapping) or not isinstance(other, Mapping):
        return value
    changed = [
        f"{name} {_changed(inner, other.get(name))}"
        for name, inner in value.items()
        if name not in other or other[name] != inner
    ]
    return ", ".join(changed) or "none of them"
