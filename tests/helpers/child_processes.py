"""Processes that die, and disks that are small or only read: real ones, without a Python start each.

A child is a fork of the test process, which has imported everything: it costs a fraction of a second, it can be
killed at a chosen system call, and it can mount a disk of its own that nobody else sees.
"""

import ctypes
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import pytest


CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_PRIVATE, MS_REC = 1, 32, 1 << 18, 1 << 14
WRITES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}
"""Events of Python's audit hooks that change a disk, beside ``open`` for writing."""


class Ended(NamedTuple):
    """How a child ended: its exit code, or minus the signal that killed it, and what it said."""

    code: int
    out: str
    err: str


def in_child(function: Callable[[], int | None]) -> Ended:
    """Runs a function in a child that ends with what it returns; a traceback is exit code 99."""
    with TemporaryFile() as out, TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if not process:
            _be_child(function, out.fileno(), err.fileno())
        _, status = os.waitpid(process, 0)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return Ended(os.waitstatus_to_exitcode(status), *said)


def _be_child(function: Callable[[], int | None], out: int, err: int) -> None:
    code = 99
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False))
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), write_through=True)
        try:
            code = function() or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


class Writes:
    """Counts what changes files whose path begins so, in this process, and kills it at a given one.

    ``kill_at`` counts from 0; the process dies before the operation is done, or is sent other signals, one at each
    operation from there. safetensors and pyarrow write outside of Python's sight, but what comes before and after it is
    seen.
    """

    def __init__(
        self, path: Path | str, kill_at: int | None = None, *signals: signal.Signals
    ) -> None:
        self.path, self.kill_at = str(path), kill_at
        self.signals = [*signals] or [signal.SIGKILL]
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple) -> None:
        if not self._changes(event, arguments):
            return
        if self.kill_at is not None and len(self.seen) >= self.kill_at and self.signals:
            os.kill(os.getpid(), self.signals.pop(0))
        self.seen.append(f"{event} {arguments[0]}")

    def _changes(self, event: str, arguments: tuple) -> bool:
        if event == "open":
            _, mode, flags = arguments
            writes = isinstance(mode, str) and set(mode) & set("wax+")
            flagged = mode is None and isinstance(flags, int) and flags & 3
            if not (writes or flagged):
                return False
        elif event not in WRITES:
            return False
        return str(arguments[0]).startswith(self.path)


def can_mount() -> bool:
    """Whether a child may mount a disk of its own here."""
    return in_child(lambda: mount_disk(Path("/mnt"), "64k")).code == 0


def needs_mount() -> None:
    """Skips a test where a child cannot mount a disk."""
    if not can_mount():
        pytest.skip("needs the right to mount a small disk in a namespace of its own")


def mount_disk(folder: Path, size: str) -> None:
    """Mounts an empty disk of some bytes, which only this process and its children see."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWNS))
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    folder.mkdir(exist_ok=True)
    place, options = os.fsencode(folder), f"size={size}".encode()
    _check(libc.mount(b"tmpfs", place, b"tmpfs", 0, options))


def only_read(folder: Path) -> None:
    """Makes a disk of :func:`mount_disk` one that is only read."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = os.fsencode(folder)
    _check(libc.mount(b"tmpfs", place, b"tmpfs", MS_REMOUNT | MS_RDONLY, None))


def fill(folder: Path, leave: int = 0) -> None:
    """Fills a disk to its last byte, but for some that are left."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            pass
        size = file.tell()
    os.truncate(folder / "ballast", max(size - leave, 0))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
