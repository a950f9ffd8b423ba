"""Workers of a planned audit: parts taken, audited, tried again, set aside."""

import contextlib
import ctypes
import functools
import hashlib
import logging
import multiprocessing
import os
import signal
import subprocess  # nosec B404: starts this program only
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from hf_attnprobe.auditing.clock import Clock
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.prepare import PreparedModel, encoded, fingerprints, prepare_model
from hf_attnprobe.auditing.recomputed import N_AFTER, check_rows, drawn_texts
from hf_attnprobe.auditing.rounds import full_audit
from hf_attnprobe.auditing.selection import choose
from hf_attnprobe.auditing.subject import Subject, make_subject
from hf_attnprobe.auditing.sweep import Sweep, Where, memory_of
from hf_attnprobe.data.columns import column_of
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import asked_tests
from hf_attnprobe.hardware import give_back_pages, in_halves
from hf_attnprobe.inference.batching import by_length, in_batches
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.options import Options, from_flat
from hf_attnprobe.partitions.options import WorkOptions
from hf_attnprobe.partitions.plan import (
    Part,
    Plan,
    commit,
    part_name,
    partition_of,
    read_plan,
    read_record,
    read_texts_of,
    records,
    rows_ending,
)
from hf_attnprobe.partitions.store import FOLDER, Leases, Store
from hf_attnprobe.progress import quiet_libraries
from hf_attnprobe.statistics.rows import PREDICTION, Texts
from hf_attnprobe.storage.provenance import versions
from hf_attnprobe.storage.rows import NO_SITE, joined, parquet_bytes, rows_of_parts


if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class Trust:
    """The user's own settings, which no plan may set: the token, and what foreign files may do."""

    token: str | None = field(default=None, repr=False)
    trust_remote_code: bool = False
    allow_pickle: bool = False


@dataclass(frozen=True)
class Auditor:
    """Turns the texts of a job into rows.

    Attributes:
        store: of the job.
        plan: of the job.
        prepared: the model and what is measured of it.
        turns: of the model, and of every draw of its control of which something is measured:
            its work, on the sample of the texts that it was tried on, and the tests and places.
        anchor: a text with tokens. It is tokenized beside those of a partition and
            dropped, since a partition may have none but empty ones.
    """

    store: Store
    plan: Plan
    prepared: PreparedModel
    turns: Sequence[tuple[Sweep, Where]]
    anchor: "datasets.Dataset"

    def texts(self, k: int) -> list[Text]:
        """The texts of a partition that have tokens, in ascending order of length."""
        import datasets

        examples = read_texts_of(self.store, k, self.plan.texts[k]["sha256"])
        both = datasets.concatenate_datasets([examples, self.anchor])
        tokenized = encoded(self.prepared.subject, both, self.prepared.options)
        own = set(column_of(examples, "example_id"))
        found = {text.example_id: text for text in tokenized.texts}
        return by_length([text for key, text in found.items() if key in own])

    def batches(self, texts: Sequence[Text]) -> list[list[Text]]:
        """The texts in batches that follow from the plan alone.

        What a text is padded beside moves its numbers in the last bits, and every worker must
        write the same bytes. So memory is measured on texts of the sample that the model was tried
        on, which all workers have, and never on a text of whose id no lease was left.
        """
        if not texts:
            return []
        sweep, where = self.turns[0]
        return [*in_batches(texts, memory_of(sweep, where), sweep.budget, sweep.batch_size)]


def load_auditor(store: Store, plan: Plan, trust: Trust) -> Auditor:
    """Loads the model of a plan and checks that it is the one.

    Args:
        trust: what the user says.

    Raises:
        AttnProbeError: other versions or weights than the plan's, or a model that does
            not load.
    """
    _check_versions(plan)
    options = replace(from_flat(plan.options, AuditOptions), **vars(trust))
    subject = make_subject(plan.model["name"], None, options, device_here(), spread=plan.spread)
    for name, found in fingerprints(subject).items():
        if found != plan.model.get(name):
            raise AttnProbeError(
                f"expected the {name.replace('_', ' ')} of the plan, {plan.model.get(name)}, "
                f"{plan.model['name']} has {found}; bring the model back as it was, or "
                "make another plan"
            )
    return tried_auditor(store, plan, subject, options, asked_tests(plan.tests))


def tried_auditor(
    store: Store, plan: Plan, subject: Subject, options: AuditOptions, asked: Mapping[str, Options]
) -> Auditor:
    """An auditor whose model was tried on a sample of the texts.

    Args:
        asked: of :func:`~hf_attnprobe.faithfulness.registry.asked_tests`.

    Raises:
        AttnProbeError: edits that do not arrive, probabilities that are not the model's
            own, or what a test refuses.
    """
    examples = reference_examples(store, plan.texts, plan.reference, plan.seed)
    choice = choose(subject.adapter, asked, plan.rationales, options)
    tried = encoded(subject, examples, options).texts
    made = prepare_model(subject, choice, examples, tried, options)
    made.rehearse(tried)
    sweep = made.sweep(tried, Path(), Clock())
    turns = [
        (one, {**where, PREDICTION: [NO_SITE]})
        for one, work in full_audit(sweep, made.choice, options, subject.controls)
        for _, where in work
    ]
    return Auditor(store, plan, made, turns, examples.select([0]))


def reference_examples(
    store: Store, texts: Sequence[Mapping], reference: Sequence[int], seed: int
) -> "datasets.Dataset":
    """The texts of the sample that the plan names, in the order of their ids."""
    import datasets

    wanted = set(reference)
    found = []
    for k in sorted(set(partition_of([*reference], len(texts), seed).tolist())):
        examples = read_texts_of(store, k, texts[k]["sha256"])
        ids = column_of(examples, "example_id")
        rows = [row for row, example_id in enumerate(ids) if example_id in wanted]
        found.append(examples.select(rows))
    joined = datasets.concatenate_datasets(found)
    ids = column_of(joined, "example_id")
    return joined.select(sorted(range(len(ids)), key=ids.__getitem__))


def device_here() -> torch.device:
    """This process's GPU, or the CPU; processes of a launcher have a GPU each."""
    n_devices = torch.cuda.device_count()
    if not n_devices:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % n_devices)


def _check_versions(plan: Plan) -> None:
    """Refuses versions of libraries that may compute other bytes."""
    here = versions()
    for name, version in plan.versions.items():
        if name != "python" and here.get(name) != version:
            raise AttnProbeError(
                f"expected {name} {version} as in the plan, here is {here.get(name)}; "
                "install that version, or make another plan"
            )


# --- Workers of a planned audit: parts taken, run, tried again, set aside ------------------------

DEATHS = 2
"""How often texts must kill before they are held guilty."""
TOGETHER = 20
"""How often worker and child must die together at the same texts, for the same.

Of 200 kills at random three workers had two such pairs at one batch: two prove nothing.
"""
REASON = f"killed a worker {DEATHS} times"


@dataclass
class Trial:
    """What is known of the texts of one partition, and how they are tried.

    Attributes:
        died: the texts that dead workers had begun, once for each death.
        tried: the same of workers that died with the child they tried them in.
        survives: tries texts in a child; whether it lived.
    """

    died: Collection[frozenset[int]]
    tried: Collection[frozenset[int]]
    survives: Callable[[Sequence[Text]], bool]
    aside: dict[int, str] = field(default_factory=dict)

    def pieces(self, batch: Sequence[Text]) -> list[list[Text]]:
        """The batch as it can be run: whole, or without those that kill, in parts."""
        ids = frozenset(text.example_id for text in batch)
        if not any(ids & suspects for suspects in self.died):
            return [list(batch)]
        return self._harmless(list(batch))

    def fails(self, text: Text, error: Exception) -> None:
        """Sets aside a text that fails by itself."""
        self.aside[text.example_id] = _said(error)

    def _harmless(self, texts: list[Text]) -> list[list[Text]]:
        ids = frozenset(text.example_id for text in texts)
        together = sum(ids == others for others in self.tried)
        for _ in range(DEATHS if together < TOGETHER else 0):
            if self.survives(texts):
                return [texts]
        if len(texts) == 1:
            self.aside[texts[0].example_id] = REASON
            return []
        middle = len(texts) // 2
        return self._harmless(texts[:middle]) + self._harmless(texts[middle:])


def lives_through(work: Callable[[], object]) -> bool:
    """Does the work in a child of this process; False where a signal killed the child.

    An error is not death: whoever does the work then meets it too. Only where a process
    can be copied: on Linux, before any GPU is used.
    """
    child = multiprocessing.get_context("fork").Process(target=_quietly, args=(work,))
    child.start()
    child.join()
    return child.exitcode is not None and child.exitcode >= 0


def lives_anew(target: Callable[..., object], *arguments: object) -> bool:
    """The same in a fresh process, where a copy cannot use the GPU."""
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=target, args=arguments)
    child.start()
    child.join()
    return child.exitcode is not None and child.exitcode >= 0


def can_be_copied(device: torch.device) -> bool:
    """Whether a child may be a copy of this process."""
    return sys.platform == "linux" and device.type == "cpu"


def _quietly(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:
        os._exit(1)
    os._exit(0)


# --- Several workers on one machine, started again when they are killed --------------------------

logger = logging.getLogger(__name__)
LOOK = 0.2
"""Seconds between looks at the workers."""
PR_SET_PDEATHSIG = 1
DEATHS_IN_A_ROW = 50
"""Workers that may be killed while no partition is finished."""


def supervise(job: str, options: WorkOptions) -> None:
    """Runs ``options.processes`` workers until each has ended by itself.

    Raises:
        AttnProbeError: a worker gave up, having said why; or they are killed again and
            again, and nothing gets done.
    """
    n_workers = options.processes or 1
    workers = {number: _start(job, number, options) for number in range(n_workers)}
    n_deaths, n_done = 0, _n_done(job)
    try:
        while workers:
            time.sleep(LOOK)
            for number, worker in [*workers.items()]:
                if worker.poll() is None:
                    continue
                del workers[number]
                if worker.returncode > 0:
                    raise AttnProbeError(
                        f"worker {number} gave up with exit code {worker.returncode}, "
                        "see above; what is done stays"
                    )
                if worker.returncode < 0:
                    n_deaths = n_deaths + 1 if _n_done(job) == n_done else 1
                    n_done = _n_done(job)
                    _check_deaths(n_deaths)
                    logger.warning(
                        "worker %d was killed by signal %d and is started again",
                        number,
                        -worker.returncode,
                    )
                    workers[number] = _start(job, number, options)
    finally:
        for worker in workers.values():
            worker.terminate()
        for worker in workers.values():
            worker.wait()


def _check_deaths(n_deaths: int) -> None:
    if n_deaths > DEATHS_IN_A_ROW:
        raise AttnProbeError(
            f"{n_deaths} workers were killed and no partition got done; give them more "
            "memory, or plan with a smaller --batch-size"
        )


def _n_done(job: str) -> int:
    return sum(name.endswith(".json") for name in Store(job).names("parts"))


def _start(job: str, number: int, options: WorkOptions) -> "subprocess.Popen[bytes]":
    """One worker, in one thread, with a GPU of its own where there are several."""
    command = [sys.executable, "-m", "hf_attnprobe", "work", job]
    command += ["--fail-on-error", str(options.fail_on_error)]
    if options.trust_remote_code:
        command.append("--trust-remote-code")
    if options.allow_pickle:
        command.append("--allow-pickle")
    environment = {
        **os.environ,
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(options.processes),
        "OMP_NUM_THREADS": "1",
        **({"HF_TOKEN": options.token} if options.token else {}),
    }
    # The command is this Python and this package, without a shell.
    on_linux = sys.platform == "linux"
    return subprocess.Popen(  # nosec B603
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=_die_with_parent if on_linux else None,
    )


def _die_with_parent() -> None:
    """Linux sends SIGTERM to a worker whose supervisor is gone, killed too."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


# --- ``run_partition``: one part of a job, the same bytes whoever computes it and how often ------


def run_partition(
    job: str | Path,
    k: int,
    *,
    token: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Mapping[str, Any]:
    """Computes one partition of a job and commits it, if nobody has yet.

    Needs no other process, and may be called any number of times, anywhere: by a loop,
    by an array of a scheduler, by an engine. The model stays loaded between calls.

    Args:
        job: folder or URL of :func:`~hf_attnprobe.partitions.planning.plan_audit`.
        k: the partition, from 0.
        token: of the Hub, for a private model.
        trust_remote_code: run code that comes with the model.
        allow_pickle: read weights that are not safetensors.

    Returns:
        The part's record: rows, SHA-256 and the texts that were set aside.

    Raises:
        AttnProbeError: no such partition; another model, other texts or versions than
            the plan's; or other bytes than somebody else's.
    """
    store = Store(str(job))
    plan = read_plan(store)
    check_partition(k, plan.n_partitions)
    held = read_record(store, plan, k)
    if held is not None:
        return held
    trust = Trust(token, trust_remote_code, allow_pickle)
    auditor = auditor_of(store.url, plan.name, trust)
    return run_open(auditor, k, Leases(store))


def check_partition(k: int, n_partitions: int) -> None:
    """Raises AttnProbeError where there is no such partition."""
    if not 0 <= k < n_partitions:
        raise AttnProbeError(
            f"expected a partition from 0 to {n_partitions - 1}, got {k}; count them from 0"
        )


@functools.lru_cache(maxsize=1)
def auditor_of(url: str, job: str, trust: Trust) -> Auditor:
    """The loaded model of a job, kept for its next partition.

    Args:
        url: of the job.
        job: name of the plan, which the plan there must still have.
        trust: what the user says.
    """
    store = Store(url)
    plan = read_plan(store)
    if plan.name != job:
        raise AttnProbeError(f"the plan in {url} was replaced; start the worker again")
    return load_auditor(store, plan, trust)


def run_open(auditor: Auditor, k: int, leases: Leases) -> Mapping[str, Any]:
    """Computes a partition that is not done, and commits it; its record."""
    leases.say(k, [])
    with one_thread():
        try:
            part = _compute(auditor, k, leases)
            record = commit(auditor.store, auditor.plan, part)
        finally:  # whoever gets here was not killed
            leases.end(k)
    leases.forget(k)
    give_back_pages()
    return record


def _compute(auditor: Auditor, k: int, leases: Leases) -> Part:
    texts = auditor.texts(k)
    dead = [lease for lease in leases.others() if lease.partition == k]
    dead = [lease for lease in dead if leases.is_dead(lease)]

    def survives(some: Sequence[Text]) -> bool:
        leases.say(k, [text.example_id for text in some], trial=True)
        return _survives(auditor, k, some)

    trial = Trial(
        died=[lease.ids for lease in dead],
        tried=[lease.ids for lease in dead if lease.trial],
        survives=survives,
    )
    rows: list[list[pa.Table]] = []
    n_split = 0
    for batch in auditor.batches(texts):
        pieces = trial.pieces(batch)
        leases.say(k, [text.example_id for text in batch])
        n_before = len(trial.aside)
        found = [
            part
            for piece in pieces
            for _, part in in_halves(piece, partial(_run, auditor), refused=trial.fails)
        ]
        n_split += len(pieces) != 1 or len(found) != 1 or len(trial.aside) > n_before
        rows += found
    draws = [None, *range(len(auditor.turns) - 1)]
    tables = {
        rows_ending(draw): joined(found[number] for found in rows)
        for number, draw in enumerate(draws)
    }
    _check(auditor, texts, tables[rows_ending()])
    return Part(
        index=k,
        ids=sorted({text.example_id for text in texts} - trial.aside.keys()),
        n_rows=sum(table.num_rows for table in tables.values()),
        aside=dict(sorted(trial.aside.items())),
        n_split=n_split,
        files={ending: parquet_bytes(table) for ending, table in tables.items()},
    )


def _check(auditor: Auditor, texts: Sequence[Text], rows: pa.Table) -> None:
    """Recomputes some texts of a partition; what differs is not committed."""
    held = Texts.among(rows_of_parts([rows], PREDICTION)).frame()
    sweep, _ = auditor.turns[0]
    check_rows(
        sweep.adapter,
        drawn_texts(texts, held, N_AFTER, sweep.seed),
        held,
        sweep.pad_token_id,
        where="in the partition",
        cause="it looks at padding or at the texts beside; plan with --batch-size 1",
    )


def _run(auditor: Auditor, texts: Sequence[Text]) -> list[pa.Table]:
    """Rows of the texts, of the model and of every draw of its control."""
    return [sweep.rows_of(where, texts) for sweep, where in auditor.turns]


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _survives(auditor: Auditor, k: int, texts: Sequence[Text]) -> bool:
    prepared = auditor.prepared
    if can_be_copied(next(prepared.subject.adapter.model.parameters()).device):
        return lives_through(lambda: _run(auditor, texts))
    options = prepared.options
    trust = Trust(options.token, options.trust_remote_code, options.allow_pickle)
    ids = [text.example_id for text in texts]
    plan = auditor.plan
    return lives_anew(_try_anew, auditor.store.url, plan.name, trust, k, ids)


def _try_anew(url: str, job: str, trust: Trust, k: int, ids: Sequence[int]) -> None:
    """What a fresh process does to try some texts of a partition."""
    auditor = auditor_of(url, job, trust)
    with one_thread():
        _run(auditor, [text for text in auditor.texts(k) if text.example_id in ids])


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Computes in one thread: sums are then in one order, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- The public function ``work``: one worker of a job, of as many as anyone starts --------------


POLL = 0.5
"""Seconds between looks at partitions that others work on."""
SILENCE = 60.0
"""Seconds of waiting after which a worker says that it waits."""


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
        since = time.monotonic()
        while left := self._open(wanted):
            k = left[0] if only else self._next(left, leases)
            if k < 0:
                if time.monotonic() - since > SILENCE:
                    logger.info("waiting for %d partitions that other workers began", len(left))
                    since = time.monotonic()
                time.sleep(POLL)
                continue
            self._compute(k, leases)
            n_here, since = n_here + 1, time.monotonic()
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
