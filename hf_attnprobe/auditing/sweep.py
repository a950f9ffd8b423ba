"""The work of an audit: every test at every head on every text, resumable."""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from accelerate import PartialState

from hf_attnprobe.attention_model import (
    AttentionModelBase,
    Batch,
    Decisions,
    MaskedReplay,
    Site,
)
from hf_attnprobe.auditing.head_tables import values_by_head
from hf_attnprobe.auditing.progress import FIRST_BATCH, Pace, steps_of
from hf_attnprobe.auditing.selection import half_of, sites_by_test
from hf_attnprobe.faithfulness import tests
from hf_attnprobe.faithfulness.prune_curve import (
    PruneCurve,
    crossed_prune_curve,
    least_first,
)
from hf_attnprobe.inference.batching import Where, collate, plan
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.options import Options
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.storage.folders import claim
from hf_attnprobe.storage.rows import (
    NO_SITE,
    Place,
    append_rows,
    finished_ids,
    prediction_statistics,
    statistics_of,
    to_rows,
)


def give_back_freed_memory() -> None:
    """Hands the C library's free pages back to the system, where it is glibc.

    Tensors of a few megabytes leave holes in its heap, and some hundred tests of changing
    shapes leave so many that an audit of MiniLM with a budget of 500 MB held 900 MB: its
    tensors kept to the budget, the heap did not. Costs 1%.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


PRUNE_POINTS = 12
Done = Mapping[Place, Collection[int]]
"""The ids of the texts that have rows, by test, layer and head."""


@dataclass(frozen=True)
class Sweep:
    """What stays the same over an audit.

    options: of the tests, by name.
    budget: bytes that a batch may take.
    folder: where the rows go.
    pace: what is told of the work that is done.
    name: what the bar says.
    """

    adapter: AttentionModelBase
    texts: Sequence[Text]
    options: Mapping[str, Options]
    seed: int
    pad_token_id: int
    budget: int
    batch_size: int
    folder: Path
    state: PartialState
    pace: Pace
    name: str = "audit"


def run(sweep: Sweep, where: Where) -> None:
    """Runs this process's share of the tests that are not on disk yet.

    The longest come first, so that a batch that does not fit into memory is met soon; but
    where an estimate is shown, a few texts before them that say how long it will take.
    """
    run_missing(sweep, {**where, PREDICTION: [NO_SITE]}, finished_ids(sweep.folder))


def run_missing(sweep: Sweep, where: Where, done: Done) -> None:
    """Runs this process's share of the tests, where they are not done.

    Args:
        done: the ids of texts with rows, by test, layer and head.
    """
    jobs = _jobs(sweep, where, done)
    sweep.state.wait_for_everyone()  # everyone has planned before anyone adds rows
    share = jobs[::-1][sweep.state.process_index :: sweep.state.num_processes]
    is_measured = sweep.pace.shown and sweep.pace.estimate is None
    if is_measured:
        share = _small_first(share)
    sweep.pace.expect(sweep.name, [steps_of(todo, texts) for todo, texts in share])
    if is_measured and share:
        _measure(sweep, *share[0])
    for todo, texts in share:
        batch = collate(sweep.adapter, texts, sweep.pad_token_id)
        rows = run_batch(
            sweep.adapter, batch, todo, sweep.options, sweep.seed, sweep.pace.tick
        )
        append_rows(sweep.folder, rows)
        sweep.pace.end_of_batch(len(texts))
    sweep.state.wait_for_everyone()


Part = tuple[Sequence[Text], Sequence[Site]]
"""Some of the texts, with the heads that are tested on them."""


def run_parts(
    sweep: Sweep, parts: Sequence[Part], groups: Sequence[Site], done: str | None
) -> None:
    """Runs the tests, all but ``done``, on each part at its heads and at the groups."""
    names = [name for name in sweep.options if name != done]
    for texts, sites in parts:
        part = replace(sweep, texts=texts)
        run(part, sites_by_test(names, sweep.adapter, sites, groups))


def beside(sweep: Sweep, control: AttentionModelBase) -> Sweep:
    """The same sweep of the control, its rows in a folder of their own."""
    control.head_sets = sweep.adapter.head_sets
    folder = sweep.folder.parent / "control" / "rows"
    return replace(sweep, adapter=control, folder=folder, name="control")


def run_control(
    sweep: Sweep, parts: Sequence[Part], groups: Sequence[Site], kind: str
) -> None:
    """Runs the tests of an audit on its control.

    Args:
        sweep: of :func:`beside`.
        parts: the heads that the audit tested, by texts.
        kind: of control, in words.
    """
    with claimed_control(sweep, kind):
        run_parts(sweep, parts, groups, done="screen")


def claimed_control(sweep: Sweep, kind: str) -> contextlib.AbstractContextManager[None]:
    """Marks the folder of a control as this run's.

    Args:
        sweep: of :func:`beside`.
        kind: of control, in words.
    """
    identity = {"model_fingerprint": sweep.adapter.fingerprint(), "kind": kind}
    return claim(sweep.folder.parent, identity, sweep.state, kind="control")


def _has_many_sites(where: Where) -> bool:
    return any(len(sites) > 1 for sites in where.values())


Job = tuple[Where, list[Text]]
"""Tests with their sites, and a batch of texts that lack them."""


def _jobs(sweep: Sweep, where: Where, done: Done) -> list[Job]:
    """The tests that are not done, with the texts that lack them, in batches."""
    size = _bytes_per_text(sweep)
    return plan(sweep.texts, where, done, size, sweep.budget, sweep.batch_size)


def _small_first(jobs: list[Job]) -> list[Job]:
    """The same jobs with a few texts of middle length before them."""
    if sum(len(texts) for _, texts in jobs) <= 2 * FIRST_BATCH:
        return jobs
    middle = len(jobs) // 2
    todo, texts = jobs[middle]
    start = max(len(texts) - FIRST_BATCH, 0) // 2
    few, others = texts[start : start + FIRST_BATCH], texts[:start]
    others += texts[start + FIRST_BATCH :]
    rest = [(todo, others)] if others else []
    return [(todo, few), *jobs[:middle], *rest, *jobs[middle + 1 :]]


def _measure(sweep: Sweep, where: Where, texts: Sequence[Text]) -> None:
    """Runs the tests at two heads each, to see how long all of them will take.

    Of many heads even a batch of a few texts takes minutes. The rows are not kept.
    """
    few = {test: _two(sites) for test, sites in where.items()}
    if few == where:
        return
    sweep.pace.first(steps_of(few, texts))
    batch = collate(sweep.adapter, texts, sweep.pad_token_id)
    run_batch(sweep.adapter, batch, few, sweep.options, sweep.seed, sweep.pace.tick)
    sweep.pace.end_of_batch(len(texts))


def _two(sites: Sequence[Site]) -> Sequence[Site]:
    """The first site, which pays for what all share, and one of middle depth."""
    return [sites[0], sites[len(sites) // 2]] if len(sites) > 2 else sites


def _bytes_per_text(sweep: Sweep) -> Callable[[int], int]:
    """The memory of the most demanding test: its edited copies at once, or gradients."""
    chosen = [(tests()[name], options) for name, options in sweep.options.items()]
    forward = max(test.copies_at_once(options) for test, options in chosen)
    backward = max(test.gradient_copies_at_once(options) for test, options in chosen)

    def size(n_keys: int) -> int:
        return max(
            sweep.adapter.bytes_per_example(n_keys, forward, backward=False),
            sweep.adapter.bytes_per_example(n_keys, backward, backward=True),
        )

    return size


def prune_heads(sweep: Sweep, rows: pd.DataFrame) -> PruneCurve | None:
    """Accuracy as heads are zero-ablated together, in the order of their own effect.

    Crossed: on either half of the texts in the order of the effects on the other half.

    Args:
        rows: of the audit.

    Returns:
        None where the effects were not measured on both halves, or heads cannot be
        ablated together.
    """
    effects = values_by_head(rows, "zero_tvd")
    lacks = sweep.adapter.lacks
    if effects.empty or lacks(MaskedReplay) or lacks(Decisions):
        return None
    parts, n_heads = [], []
    for half in (0, 1):
        of_others = effects[effects.index.map(half_of) != half].mean().dropna()
        texts = [text for text in sweep.texts if half_of(text.example_id) == half]
        if len(of_others) < 2 or not texts:
            return None
        parts.append((_batches(sweep, texts), least_first(of_others.to_dict())))
        n_heads.append(len(of_others))
    steps = range(PRUNE_POINTS + 1)
    points = sorted({round(k * min(n_heads) / PRUNE_POINTS) for k in steps})
    return crossed_prune_curve(sweep.adapter, parts, n_removed=points)


def _batches(sweep: Sweep, texts: Sequence[Text]) -> Iterator[Batch]:
    jobs = _jobs(replace(sweep, texts=texts), {PREDICTION: [NO_SITE]}, {})
    return (collate(sweep.adapter, batch, sweep.pad_token_id) for _, batch in jobs)


def run_batch(
    adapter: AttentionModelBase,
    batch: Batch,
    where: Where,
    options: Mapping[str, Options],
    seed: int,
    tick: Callable[[], object] = lambda: None,
) -> pd.DataFrame:
    """Rows of the given tests at the given sites, for one batch.

    Args:
        options: of the tests, by name; their defaults where they are not given.
        tick: called after each test at each site.
    """
    observation = adapter.observe(batch)
    parts = []
    for name, sites in where.items():
        for site in sites:
            if name == PREDICTION:
                assert batch.labels is not None  # collate gives −1 to unlabelled texts
                n_tokens = observation.batch.content_mask.sum(-1)
                statistics = prediction_statistics(
                    adapter.prediction, observation.probs, batch.labels, n_tokens
                )
            else:
                test = tests()[name]
                given = options.get(name, test.options())
                result = test.function(observation, site, given, seed=seed)
                statistics = statistics_of(result)
            parts.append(to_rows(name, statistics, batch.example_ids, site))
            if _has_many_sites(where):
                give_back_freed_memory()
            tick()
    return pd.concat(parts, ignore_index=True)
