"""``run_partition``: one part of a job, the same bytes whoever computes it and how often."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from hf_attnprobe.auditing.recomputed import N_AFTER, check_rows, drawn_texts
from hf_attnprobe.auditing.sweep import run_batch
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.hardware.memory import give_back_pages
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.partitions.auditor import Auditor, Trust, load_auditor
from hf_attnprobe.partitions.leases import Leases
from hf_attnprobe.partitions.parts import Part, commit, read_record
from hf_attnprobe.partitions.plan import read_plan
from hf_attnprobe.partitions.store import Store
from hf_attnprobe.partitions.trials import (
    Trial,
    can_be_copied,
    lives_anew,
    lives_through,
)
from hf_attnprobe.storage.partials import partial_bytes, summary_of_rows
from hf_attnprobe.storage.rows import COLUMNS
from hf_attnprobe.storage.wide_rows import parquet_bytes, to_wide


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
    rows, n_split = [], 0
    for batch in auditor.batches(texts):
        pieces = trial.pieces(batch)
        leases.say(k, [text.example_id for text in batch])
        n_before = len(trial.aside)
        found = [part for p in pieces for part in _rows(auditor, p, trial.aside)]
        n_split += len(pieces) != 1 or len(found) != 1 or len(trial.aside) > n_before
        rows += found
    long = pd.concat(rows) if rows else pd.DataFrame({name: [] for name in COLUMNS})
    _check(auditor, texts, long)
    ids = sorted({text.example_id for text in texts} - trial.aside.keys())
    table = to_wide(long)
    summary = summary_of_rows(table, len(auditor.plan.classes))
    return Part(
        index=k,
        ids=ids,
        n_rows=table.num_rows,
        aside=dict(sorted(trial.aside.items())),
        n_split=n_split,
        files={"parquet": parquet_bytes(table), "summary": partial_bytes(summary)},
    )


def _check(auditor: Auditor, texts: Sequence[Text], rows: pd.DataFrame) -> None:
    """Recomputes some texts of a partition; what differs is not committed."""
    check_rows(
        auditor.subject.adapter,
        drawn_texts(texts, rows, N_AFTER, auditor.plan.seed),
        rows,
        auditor.pad_token_id,
        where="in the partition",
        cause="it looks at padding or at the texts beside; plan with --batch-size 1",
    )


def _rows(auditor: Auditor, texts: Sequence[Text], aside: dict[int, str]) -> list[pd.DataFrame]:
    """Rows of the texts; where that fails, of halves, down to the text that fails."""
    try:
        return [_run(auditor, texts)]
    except Exception as error:
        if isinstance(error, AttnProbeError):  # concerns all texts alike
            raise
        if len(texts) == 1:
            aside[texts[0].example_id] = _said(error)
            return []
    middle = len(texts) // 2
    first = _rows(auditor, texts[:middle], aside)
    return first + _rows(auditor, texts[middle:], aside)


def _run(auditor: Auditor, texts: Sequence[Text]) -> pd.DataFrame:
    adapter, plan = auditor.subject.adapter, auditor.plan
    batch = collate(adapter, texts, auditor.pad_token_id)
    return run_batch(adapter, batch, auditor.where, auditor.tests, plan.seed)


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _survives(auditor: Auditor, k: int, texts: Sequence[Text]) -> bool:
    if can_be_copied(next(auditor.subject.adapter.model.parameters()).device):
        return lives_through(lambda: _run(auditor, texts))
    options = auditor.options
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
