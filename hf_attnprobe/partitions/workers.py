"""The public function ``work``: one worker of a job, of as many as anyone starts."""

import contextlib
import hashlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.partitions.auditor import Trust
from hf_attnprobe.partitions.leases import FOLDER, Leases
from hf_attnprobe.partitions.options import WorkOptions
from hf_attnprobe.partitions.parts import part_name, read_record, records
from hf_attnprobe.partitions.plan import Plan, read_plan
from hf_attnprobe.partitions.processes import supervise
from hf_attnprobe.partitions.run import auditor_of, check_partition, run_open
from hf_attnprobe.partitions.store import Store
from hf_attnprobe.progress import quiet_libraries


logger = logging.getLogger(__name__)
POLL = 0.5
"""Seconds between looks at partitions that others work on."""


@dataclass(frozen=True)
class WorkDone:
    """How far a job is.

    Attributes:
        job: folder or URL.
        here: partitions that this worker computed.
        done: partitions that are done, by whomever.
        partitions: of the job.
        texts: of the job.
        set_aside: by id of a text without rows, why.
    """

    job: str
    here: int
    done: int
    partitions: int
    texts: int
    set_aside: Mapping[int, str]

    def __str__(self) -> str:
        lines = [f"{self.done} of {self.partitions} partitions are done"]
        if self.here:
            lines[0] += f", {self.here} of them by this worker"
        if self.set_aside:
            share = len(self.set_aside) / self.texts
            lines.append(
                f"{len(self.set_aside)} of {self.texts} texts ({share:.2%}) were set "
                f"aside: {_listed(self.set_aside)}"
            )
        again = f"attnprobe work {self.job} goes on"
        lines.append(f"attnprobe report {self.job}" if self.is_complete else again)
        return "\n".join(lines)

    @property
    def is_complete(self) -> bool:
        """Whether no partition is left."""
        return self.done == self.partitions


@quiet_libraries()
def work(job: str | Path, *, options: WorkOptions = WorkOptions()) -> WorkDone:
    """Computes partitions of a planned audit until none is left.

    Start as many workers as you like, anywhere, at any time, and stop them at any time:
    each takes open partitions in an order of its own, waits for those that others have,
    and takes over from those that died. Under ``torchrun`` and ``accelerate launch``
    each process begins with its share.

    Args:
        job: folder or URL of a plan.
        options: which share, and how much may go wrong.

    Returns:
        How far the job is.

    Raises:
        AttnProbeError: no plan; another model than the plan's; more texts set aside
            than ``fail_on_error`` allows; or a part that came out differently twice.
    """
    store = Store(str(job))
    plan = read_plan(store)
    _check_share(store, plan, options)
    if options.processes is not None and options.partition is None:
        supervise(store.url, options)
        here = 0
    else:
        with _ended_by_a_word():
            here = _Worker(store, plan, options).run()
    _check_share(store, plan, options)
    done = _progress(store, plan, here)
    if done.is_complete:
        for folder in ("parts", "texts", FOLDER):
            store.sweep(folder)
    return done


@dataclass
class _Worker:
    """One worker: what it has seen, and what it did."""

    store: Store
    plan: Plan
    options: WorkOptions
    done: set[int] = field(default_factory=set)

    def run(self) -> int:
        """Computes partitions until none is left; how many."""
        leases, n_here = Leases(self.store), 0
        only = self.options.partition
        wanted = range(self.plan.n_partitions)
        if only is not None:
            k = _parsed(only, self.plan.n_partitions)
            wanted = range(k, k + 1)
        while left := self._open(wanted):
            k = left[0] if only else self._next(left, leases)
            if k < 0:
                time.sleep(POLL)
                continue
            self._compute(k, leases)
            n_here += 1
        return n_here

    def _compute(self, k: int, leases: Leases) -> None:
        said = self.options
        trust = Trust(said.token, said.trust_remote_code, said.allow_pickle)
        auditor = auditor_of(self.store.url, self.plan.name, trust)
        record = run_open(auditor, k, leases)
        logger.info("partition %d of %d is done", k, self.plan.n_partitions)
        if record["set_aside"]:
            _check_share(self.store, self.plan, self.options)

    def _open(self, wanted: range) -> list[int]:
        """The partitions that are not done, those first that no one else will take."""
        present = set(self.store.names("parts"))
        for k in set(wanted) - self.done:
            is_said = part_name(k, "json").rpartition("/")[2] in present
            if is_said and read_record(self.store, self.plan, k) is not None:
                self.done.add(k)
        return sorted(set(wanted) - self.done, key=_own_order)

    def _next(self, left: list[int], leases: Leases) -> int:
        """The first open partition on which no living worker is; −1 for none."""
        others = leases.others()
        taken = {lease.partition for lease in others if not leases.is_dead(lease)}
        return next((k for k in left if k not in taken), -1)


def _own_order(k: int) -> tuple[bool, bytes]:
    """The share of this process first, then by a hash that is this process's own."""
    rank, world = (int(os.environ.get(n, d)) for n, d in (("RANK", 0), ("WORLD_SIZE", 1)))
    order = hashlib.sha256(f"{_SALT} {rank} {k}".encode()).digest()
    return k % world != rank, order


_SALT = os.urandom(8).hex()


def _parsed(text: str, n_partitions: int) -> int:
    """The partition of "17/512"."""
    number, _, total = text.partition("/")
    if not number.isdecimal() or total != str(n_partitions):
        raise AttnProbeError(
            f"expected a partition from 0/{n_partitions} to "
            f"{n_partitions - 1}/{n_partitions}, as many as the plan has, got {text!r}"
        )
    check_partition(int(number), n_partitions)
    return int(number)


def _progress(store: Store, plan: Plan, here: int) -> WorkDone:
    held = records(store, plan)
    return WorkDone(
        job=store.url,
        here=here,
        done=len(held),
        partitions=plan.n_partitions,
        texts=plan.n_texts,
        set_aside=_set_aside(held),
    )


def _set_aside(held: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    return {
        text["example_id"]: text["reason"]
        for record in held.values()
        for text in record["set_aside"]
    }


def _check_share(store: Store, plan: Plan, options: WorkOptions) -> None:
    """Raises AttnProbeError where too many texts were set aside."""
    aside = _set_aside(records(store, plan))
    allowed = options.fail_on_error
    if len(aside) > allowed * plan.n_texts:
        raise AttnProbeError(
            f"{len(aside)} of {plan.n_texts} texts were set aside "
            f"({_listed(aside)}), more than --fail-on-error {allowed:g} allows; mend or "
            "drop them, or allow more"
        )


def _listed(aside: Mapping[int, str]) -> str:
    """The first texts that were set aside, and why."""
    first = [f"{example_id} ({why})" for example_id, why in [*aside.items()][:3]]
    return ", ".join(first) + (", …" if len(aside) > 3 else "")


@contextlib.contextmanager
def _ended_by_a_word() -> Iterator[None]:
    """SIGTERM, which schedulers send before they kill, ends the worker in good order.

    So the texts that it had begun are not suspected.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
