"""Who works on what: so that workers part ways, and know at what another one died.

Nothing depends on a lease for its correctness. A worker that is thought dead and is not
writes the same bytes once more. No clock is compared with another: of a worker elsewhere
one sees, by one's own clock, that it has not moved for a while.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hf_attnprobe.partitions.store import Store


PATIENCE = 300.0
"""Seconds without a move after which a worker on another machine counts as dead."""
FOLDER = "leases"


@dataclass(frozen=True)
class Lease:
    """What a worker said last.

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
        """Whether its worker is gone, or has not moved for long."""
        if lease.process[0] == _this_process()[0]:
            return _started(lease.process[1]) != lease.process[2]
        beat, since = self._seen.get(lease.name, (-1, 0.0))
        if beat != lease.beat:
            self._seen[lease.name] = lease.beat, self.clock()
            return False
        return self.clock() - since > self.patience

    def forget(self, partition: int) -> None:
        """Removes what dead workers said of a partition that is done."""
        for lease in self.others():
            if lease.partition == partition and self.is_dead(lease):
                self.store.remove(f"{FOLDER}/{lease.name}")


def _parsed(name: str, held: bytes) -> Lease | None:
    """A lease; None of what is none, which is then nobody's."""
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
    """What differs between machines, boots and containers."""
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
