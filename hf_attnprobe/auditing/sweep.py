"""The work of an audit: every test at every head on every text, resumable."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd
from accelerate import PartialState

from hf_attnprobe.attention_model import (
    ALL,
    AttentionModelBase,
    Batch,
    Decisions,
    MaskedReplay,
    Site,
)
from hf_attnprobe.auditing.heads import values_by_head
from hf_attnprobe.auditing.progress import FIRST_BATCH, Pace, Step, steps_of
from hf_attnprobe.auditing.recomputed import check_rows, drawn_texts, said_of
from hf_attnprobe.auditing.selection import half_of, sites_by_test
from hf_attnprobe.auditing.steps import Room, measured_memory, work_in_words
from hf_attnprobe.faithfulness.options import InputErasure
from hf_attnprobe.faithfulness.prune_curve import (
    PruneCurve,
    crossed_prune_curve,
    least_first,
)
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.hardware import give_back_pages, in_halves
from hf_attnprobe.inference.batching import (
    Where,
    collate,
    in_batches,
    plan,
    text_in_words,
)
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.options import Options
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.storage.folders import claim
from hf_attnprobe.storage.rows import (
    NO_SITE,
    Done,
    append_rows,
    draw_folder,
    finished_ids,
    owner,
    read_rows,
    statistics_of,
    to_rows,
)


PRUNE_POINTS = 12
CUT = 1.5  # times as many batches as need be make it worth to measure their memory
Work = tuple[Where, list[Text]]
"""Tests with their sites, and a batch of texts that lack them."""


@dataclass(frozen=True)
class Sweep:
    """What stays the same over an audit.

    options: of the tests, by name.
    budget: bytes that a batch may take.
    folder: where the rows go.
    pace: what is told of the work that is done.
    name: what the bar says.
    measures_memory: whether batches are planned by what a few texts took, where a worst
        case per text would make many; the rows do not depend on it.
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
    measures_memory: bool = True


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
    work = _jobs(sweep, where, done)[::-1]
    sweep.state.wait_for_everyone()  # everyone has planned before anyone adds rows
    share = work[sweep.state.process_index :: sweep.state.num_processes]
    is_measured = sweep.pace.shown and sweep.pace.estimate is None
    if sweep.measures_memory and _is_cut(sweep, share):
        share = _in_measured_batches(sweep, share)
    if is_measured:
        share = _small_first(share)
    sweep.pace.expect(sweep.name, [steps_of(todo, texts) for todo, texts in share])
    if is_measured and share:
        _measure(sweep, *share[0])
    room = Room()
    for todo, texts in share:
        _run_and_keep(sweep, todo, texts, room)
    sweep.state.wait_for_everyone()


def check_kept(sweep: Sweep, n_texts: int, cause: str) -> None:
    """Recomputes some texts whose rows are on disk, see :func:`check_rows`.

    Args:
        n_texts: how many of them.
        cause: why a text may come out differently, and what to do.
    """
    rows = read_rows(sweep.folder, PREDICTION)
    drawn = drawn_texts(sweep.texts, rows, n_texts, sweep.seed)
    check_rows(
        sweep.adapter,
        drawn,
        rows,
        sweep.pad_token_id,
        where=f"in {sweep.folder}",
        cause=cause,
    )


def work_left(sweep: Sweep, where: Where) -> list[Work]:
    """The tests that are not on disk yet, in batches, the longest texts first.

    Nothing is run or written, and every process gets the same.
    """
    where = {**where, PREDICTION: [NO_SITE]}
    return _jobs(sweep, where, finished_ids(sweep.folder))[::-1]


def _is_cut(sweep: Sweep, share: Sequence[Work]) -> bool:
    """Whether the worst case makes more batches than their largest size does."""
    n_texts = sum(len(texts) for _, texts in share)
    return len(share) >= CUT * max(n_texts / sweep.batch_size, 2)


def _in_measured_batches(sweep: Sweep, share: Sequence[Work]) -> list[Work]:
    """The same work in batches that fill the budget, the longest texts first."""
    together: dict[object, tuple[Where, list[Text]]] = {}
    for todo, texts in share:
        key = tuple((test, tuple(sites)) for test, sites in todo.items())
        together.setdefault(key, (todo, []))[1].extend(texts)
    again = []
    for todo, texts in together.values():
        few = {
            test: [*dict.fromkeys((s[0], s[len(s) // 2], s[-1]))] for test, s in todo.items() if s
        }
        size = measured_memory(texts, partial(_try, sweep, few), sweep.state.device)
        batches = [*in_batches(texts, size, sweep.budget, sweep.batch_size)]
        again += [(todo, batch) for batch in batches[::-1]]
    return again


def _try(
    sweep: Sweep,
    where: Where,
    texts: Sequence[Text],
    tick: Callable[[], object] = lambda: None,
) -> None:
    """Runs the tests; the rows are not kept."""
    batch = collate(sweep.adapter, texts, sweep.pad_token_id)
    run_batch(sweep.adapter, batch, where, sweep.options, sweep.seed, tick)


def _run_and_keep(sweep: Sweep, todo: Where, texts: Sequence[Text], room: Room) -> None:
    """Runs the tests on a batch and keeps its rows; on halves where memory runs out.

    Raises:
        AttnProbeError: a single text does not fit.
    """

    def rows_of(part: Sequence[Text]) -> pd.DataFrame:
        sweep.pace.begin(steps_of(todo, part))
        batch = collate(sweep.adapter, part, sweep.pad_token_id)
        return run_batch(sweep.adapter, batch, todo, sweep.options, sweep.seed, sweep.pace.tick)

    def smaller(halves: Sequence[Sequence[Text]]) -> None:
        room.did_not_fit(halves)
        sweep.pace.again([step for half in halves for step in steps_of(todo, half)])

    whole, parts = steps_of(todo, texts), [*room.parts(texts)]
    if len(parts) > 1:
        sweep.pace.begin(whole)
        sweep.pace.again([step for part in parts for step in steps_of(todo, part)])
    for some in parts:
        for part, rows in in_halves(some, rows_of, name=text_in_words, split=smaller):
            append_rows(sweep.folder, rows)
            sweep.pace.end_of_batch(len(part))


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


def beside(sweep: Sweep, control: AttentionModelBase, draw: int) -> Sweep:
    """The same sweep of a draw of the control, its rows in a folder of their own.

    A draw that is not whole measures only what a verdict reads of each test.
    """
    control.head_sets = sweep.adapter.head_sets
    return replace(
        sweep,
        adapter=control,
        folder=draw_folder(sweep.folder.parent, draw),
        options=sweep.options if is_whole(control, draw) else read_by_verdict(sweep.options),
        name="control",
    )


def is_whole(control: AttentionModelBase, draw: int) -> bool:
    """Whether a draw of the control runs all that the audit runs.

    The first one of a model with other weights does: what it says of every head stands
    beside the model's numbers.
    """
    return draw == 0 and control.reassignment is None


def read_by_verdict(options: Mapping[str, Options]) -> dict[str, Options]:
    """The same options of the tests, without what no verdict reads."""
    brief = dict(options)
    erased = brief.get("input_erasure")
    if isinstance(erased, InputErasure):
        brief["input_erasure"] = replace(erased, comprehensiveness_only=True)
    return brief


CONTROLLED = ("correlation", "erasure", "input_erasure")
"""The tests whose numbers a verdict reads beside those of a control."""


def of_verdict(
    adapter: AttentionModelBase, options: Mapping[str, Options], groups: Sequence[Site]
) -> Where:
    """The tests and the place that a verdict reads of a control; none without a place.

    All attention, or the only head.
    """
    names = [name for name in options if name in CONTROLLED]
    whole = [g for g in groups if g.layer == g.head == ALL]
    heads = adapter.sites()
    single = heads if len(heads) == 1 else []
    if not (whole or single):
        return {}
    where = sites_by_test(names, adapter, single, whole)
    return {test: sites for test, sites in where.items() if sites}


def claimed_control(sweep: Sweep, kind: str) -> contextlib.AbstractContextManager[None]:
    """Marks the folder of a control's draw as this run's.

    Args:
        sweep: of :func:`beside`.
        kind: of control, in words.
    """
    seed, folder = sweep.adapter.reassignment, sweep.folder.parent
    identity = {
        "model_fingerprint": sweep.adapter.fingerprint(),
        "kind": kind,
        "audit": owner(folder.parent),
        **({} if seed is None else {"reassignment": seed}),
    }
    return claim(folder, identity, sweep.state, kind="control")


def _has_many_sites(where: Where) -> bool:
    return any(len(sites) > 1 for sites in where.values())


def _jobs(sweep: Sweep, where: Where, done: Done) -> list[Work]:
    """The tests that are not done, with the texts that lack them, in batches."""
    size = bytes_per_text(sweep.adapter, sweep.options)
    return plan(sweep.texts, where, done, size, sweep.budget, sweep.batch_size)


def _small_first(jobs: list[Work]) -> list[Work]:
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
    """Runs the tests at a few places, to see how long all of them will take.

    Of many heads even a batch of a few texts takes minutes. The rows are not kept.
    """
    few = {test: few_sites(sites) for test, sites in where.items()}
    sweep.pace.besides = partial(_work_in_words, sweep, few, texts[:1])
    if few == where:
        return
    sweep.pace.first(steps_of(few, texts))
    batch = collate(sweep.adapter, texts, sweep.pad_token_id)
    run_batch(sweep.adapter, batch, few, sweep.options, sweep.seed, sweep.pace.tick)
    sweep.pace.end_of_batch(len(texts))


def _work_in_words(
    sweep: Sweep, where: Where, texts: Sequence[Text], to_come: Sequence[Step]
) -> str:
    """Of all steps, counted on one text; it runs once, where an estimate is shown."""
    run = partial(_try, sweep, where, texts)
    return work_in_words(sweep.adapter, run, steps_of(where, texts), to_come)


def few_sites(sites: Sequence[Site]) -> Sequence[Site]:
    """The first site, which pays for what all share, and of heads and groups the middle."""
    heads = [site for site in sites[1:] if not site.is_group]
    groups = [site for site in sites[1:] if site.is_group]
    return [*sites[:1], *_middle(heads), *_middle(groups)]


def _middle(sites: Sequence[Site]) -> Sequence[Site]:
    return sites[len(sites) // 2 :][:1]


def bytes_per_text(
    adapter: AttentionModelBase, chosen: Mapping[str, Options]
) -> Callable[[int], int]:
    """The memory of the most demanding test: its edited copies at once, or gradients."""
    known = [(tests()[name], options) for name, options in chosen.items()]
    forward = max(test.copies_at_once(options) for test, options in known)
    backward = max(test.gradient_copies_at_once(options) for test, options in known)

    def size(n_keys: int) -> int:
        return max(
            adapter.bytes_per_example(n_keys, forward, backward=False),
            adapter.bytes_per_example(n_keys, backward, backward=True),
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
                statistics = said_of(adapter, batch, observation.probs)
            else:
                test = tests()[name]
                given = options.get(name, test.options())
                result = test.function(observation, site, given, seed=seed)
                statistics = statistics_of(result)
            parts.append(to_rows(name, statistics, batch.example_ids, site))
            if _has_many_sites(where):
                give_back_pages()
            tick()
    return pd.concat(parts, ignore_index=True)
