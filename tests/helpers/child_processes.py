"""Child processes that can be killed at a chosen write, and small or read-only disks for them.

A child is a fork of the test process, which has already imported everything. It starts in a fraction of a second, and it
can mount a disk that other processes do not see.
"""

import ctypes
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import pytest
import tqdm


CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_PRIVATE, MS_REC = 1, 32, 1 << 18, 1 << 14
WRITE_EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}
"""Audit events of Python that change files, in addition to ``open`` for writing."""


class ChildResult(NamedTuple):
    """Exit code of a child (or the negative number of the signal that killed it), and its output."""

    code: int
    out: str
    err: str


def run_in_child(function: Callable[[], int | None]) -> ChildResult:
    """Run a function in a child process.

    The child exits with the number that the function returns, or with 99 after an exception.
    """
    with TemporaryFile() as out, TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if not process:
            _run_and_exit(function, out.fileno(), err.fileno())
        _, status = os.waitpid(process, 0)
        outputs = []
        for file in (out, err):
            file.seek(0)
            outputs.append(file.read().decode())
    return ChildResult(os.waitstatus_to_exitcode(status), *outputs)


def _run_and_exit(function: Callable[[], int | None], out: int, err: int) -> None:
    """Redirect stdout and stderr, run the function, and end this process."""
    code = 99
    # The default lock of progress bars is shared by all forks, and a child that was killed while it
    # held this lock would block all later children.
    tqdm.tqdm.set_lock(threading.RLock())
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


class WriteMonitor:
    """Counts the operations of this process that change certain files, and kills it at one of them.

    The writes of safetensors and pyarrow are not visible to Python, but operations before and after them are.

    Args:
        path: Files whose path begins with this text are counted.
        kill_at: Number of the operation, from 0, before which the process is killed; None to only count.
        signals: Signals to send instead of SIGKILL, one at each operation from there on.

    Attributes:
        seen: The operations so far.
    """

    def __init__(
        self, path: Path | str, kill_at: int | None = None, *signals: signal.Signals
    ) -> None:
        self.path, self.kill_at = str(path), kill_at
        self.signals = [*signals] or [signal.SIGKILL]
        self.seen: list[str] = []
        sys.addaudithook(self._handle_event)

    def _handle_event(self, event: str, arguments: tuple) -> None:
        if not self._is_change(event, arguments):
            return
        if self.kill_at is not None and len(self.seen) >= self.kill_at and self.signals:
            os.kill(os.getpid(), self.signals.pop(0))
        self.seen.append(f"{event} {arguments[0]}")

    def _is_change(self, event: str, arguments: tuple) -> bool:
        if event == "open":
            _, mode, flags = arguments
            has_write_mode = isinstance(mode, str) and set(mode) & set("wax+")
            has_write_flag = mode is None and isinstance(flags, int) and flags & 3
            if not (has_write_mode or has_write_flag):
                return False
        elif event not in WRITE_EVENTS:
            return False
        return str(arguments[0]).startswith(self.path)


def can_mount() -> bool:
    """Return whether a child process is allowed to mount a disk."""
    return run_in_child(lambda: mount_disk(Path("/mnt"), "64k")).code == 0


def skip_without_mount() -> None:
    """Skip a test if a child process cannot mount a disk."""
    if not can_mount():
        pytest.skip("needs the permission to mount a disk in a new namespace")


def mount_disk(folder: Path, size: str) -> None:
    """Mount an empty disk that only this process and its children see; ``size`` is as for tmpfs."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWNS))
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    folder.mkdir(exist_ok=True)
    mount_point, options = os.fsencode(folder), f"size={size}".encode()
    _check(libc.mount(b"tmpfs", mount_point, b"tmpfs", 0, options))


def make_read_only(folder: Path) -> None:
    """Remount a disk of :func:`mount_disk` as read-only."""
    libc = ctypes.CDLL(None, use_errno=True)
    mount_point = os.fsencode(folder)
    _check(libc.mount(b"tmpfs", mount_point, b"tmpfs", MS_REMOUNT | MS_RDONLY, None))


def fill_disk(folder: Path, leave: int = 0) -> None:
    """Fill a disk except for ``leave`` bytes."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            pass
        size = file.tell()
    os.truncate(folder / "ballast", max(size - leave, 0))


def _check(result: int) -> None:
    """Raise OSError if a call of the C library failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
