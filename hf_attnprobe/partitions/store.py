"""Where the workers of a planned audit meet: files, and leases on parts."""

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from hf_attnprobe.errors import AttnProbeError


TIDIED = 100
"""Times that a half-written file may be taken away by workers that saw the job done."""


@dataclass(frozen=True)
class Store:
    """The files of one job.

    Attributes:
        url: a folder, or ``s3://bucket/job``, ``hf://…``, ``memory://…``: what fsspec
            has a file system for.
    """

    url: str

    def read(self, name: str) -> bytes | None:
        """The whole file; None where there is none."""
        system, root = self._place()
        try:
            return bytes(system.cat_file(f"{root}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """Writes the whole file or nothing; the last of several writers stays.

        Args:
            lasting: whether it must outlive a loss of power.
        """
        system, root = self._place()
        if isinstance(system, LocalFileSystem):
            _replace(Path(root) / name, data, lasting)
        else:
            system.pipe_file(f"{root}/{name}", data)

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        system, root = self._place()
        system.invalidate_cache()
        try:
            return int(system.size(f"{root}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder, sorted, without those half-written."""
        return [name for name in self._listed(folder) if not name.startswith(".")]

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        system, root = self._place()
        with contextlib.suppress(FileNotFoundError):
            system.rm_file(f"{root}/{name}")

    def remove_empty(self, folder: str) -> None:
        """Removes a folder on a disk, if nothing is in it."""
        system, root = self._place()
        if isinstance(system, LocalFileSystem):
            with contextlib.suppress(OSError):
                Path(root, folder).rmdir()

    def sweep(self, folder: str) -> None:
        """Deletes half-written files of writers that were killed."""
        for name in self._listed(folder):
            if name.startswith("."):
                self.remove(f"{folder}/{name}")

    def _listed(self, folder: str) -> list[str]:
        system, root = self._place()
        system.invalidate_cache()
        try:
            found = system.ls(f"{root}/{folder}", detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def _place(self) -> tuple[Any, str]:
        try:
            system, root = url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise AttnProbeError(
                f"expected a folder, or a place that fsspec knows, got {self.url!r} "
                f"({error}); install its file system or choose another"
            ) from error
        return system, root.rstrip("/")


def _replace(file: Path, data: bytes, lasting: bool) -> None:
    """Puts a file into its place on a disk, whole even if the power fails."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(TIDIED):
        with contextlib.suppress(FileNotFoundError):
            _move_into_place(file, data, lasting)
            break
    else:
        _move_into_place(file, data, lasting)
    if lasting:
        _force_down(file.parent)


def _move_into_place(file: Path, data: bytes, lasting: bool) -> None:
    hidden = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        _write_down(hidden, data, lasting)
        os.replace(hidden, file)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def _write_down(file: Path, data: bytes, lasting: bool) -> None:
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        if lasting:
            os.fsync(stream.fileno())


def _force_down(folder: Path) -> None:
    """Forces the names in a folder down to the disk, where the system can."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# --- Who works on what: so that workers part ways, and know at what another one died -------------
# Nothing depends on a lease for its correctness. A worker that is thought dead and is not
# writes the same bytes once more. No clock is compared with another: of a worker elsewhere
# one sees, by one's own clock, that it has not moved for a while.

PATIENCE = 300.0
"""Seconds without a move after which a worker on another machine counts as dead."""
FOLDER = "leases"


@dataclass(frozen=True)
class Lease:
    """A worker's last message.

    Attributes:
        name: of the file.
        partition: the worker is at.
        process: machine, process and its start, see :func:`_this_process`.
        beat: counts what it said.
        ids: of the texts that it had begun.
        trial: whether it tried them in a child first.
    """

    name: str
    partition: int
    process: tuple[str, int, str]
    beat: int
    ids: frozenset[int]
    trial: bool


@dataclass
class Leases:
    """The leases of a job as one worker sees them.

    Attributes:
        store: of the job.
        clock: seconds, from anywhere; only differences count.
        patience: seconds, see ``PATIENCE``.
    """

    store: Store
    clock: Callable[[], float] = time.monotonic
    patience: float = PATIENCE
    _own: str = field(default_factory=lambda: uuid.uuid4().hex)
    _beat: int = 0
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)

    def say(self, partition: int, ids: Iterable[int], *, trial: bool = False) -> None:
        """Says that this worker begins with these texts."""
        self._beat += 1
        said = {
            "process": _this_process(),
            "beat": self._beat,
            "ids": sorted(ids),
            "trial": trial,
        }
        name = f"{FOLDER}/{partition:05d}.{self._own}.json"
        self.store.write(name, json.dumps(said).encode(), lasting=False)

    def end(self, partition: int) -> None:
        """Takes this worker's lease away."""
        self.store.remove(f"{FOLDER}/{partition:05d}.{self._own}.json")

    def others(self) -> list[Lease]:
        """The leases of other workers, of living and dead ones."""
        found = []
        for name in self.store.names(FOLDER):
            held = None if self._own in name else self.store.read(f"{FOLDER}/{name}")
            lease = None if held is None else _parsed(name, held)
            if lease is not None:
                found.append(lease)
        return found

    def is_dead(self, lease: Lease) -> bool:
        """Whether its worker is gone, or elsewhere or suspended and has not moved for long."""
        if lease.process[0] == _this_process()[0]:
            if _started(lease.process[1]) != lease.process[2]:
                return True
            if not _is_suspended(lease.process[1]):
                return False
        beat, since = self._seen.get(lease.name, (-1, 0.0))
        if beat != lease.beat:
            self._seen[lease.name] = lease.beat, self.clock()
            return False
        return self.clock() - since > self.patience

    def forget(self, partition: int) -> None:
        """Deletes messages of dead workers about a finished partition."""
        for lease in self.others():
            if lease.partition == partition and self.is_dead(lease):
                self.store.remove(f"{FOLDER}/{lease.name}")


def _parsed(name: str, held: bytes) -> Lease | None:
    """Parses a lease; None for anything else, which counts as nobody's."""
    try:
        said = json.loads(held)
        host, number, started = said["process"]
        process = str(host), int(number), str(started)
        ids = frozenset(map(int, said["ids"]))
        partition = int(name.partition(".")[0])
        return Lease(name, partition, process, int(said["beat"]), ids, said["trial"])
    except (ValueError, TypeError, KeyError):
        return None


def _this_process() -> tuple[str, int, str]:
    """A machine and its boot, a process number there, and when that was given out."""
    number = os.getpid()
    return f"{socket.gethostname()} {_boot()}", number, _started(number)


def _boot() -> str:
    """An identifier that differs between machines, boots and containers."""
    files = ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid")
    known = []
    for file in files:
        try:
            is_link = os.path.islink(file)
            known.append(os.readlink(file) if is_link else Path(file).read_text())
        except OSError:
            known.append("")
    return " ".join(text.strip() for text in known)


def _started(number: int) -> str:
    """When a process was started, in ticks since the boot; "" where it is gone."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _alive_elsewhere(number)
    return "" if fields[0] in "ZX" else fields[19]


def _is_suspended(number: int) -> bool:
    """Whether a process of this machine was stopped, as by Ctrl-Z."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _alive_elsewhere(number: int) -> str:
    """The same where there is no /proc: whether the process is there."""
    if Path("/proc").is_dir():
        return ""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "there"
    return "there"
