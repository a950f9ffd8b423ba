"""A few texts and heads run before an audit, to tell what all of them will take."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hf_attnprobe.attention_model import AttentionModelBase, Site
from hf_attnprobe.auditing.estimates.counting import counting
from hf_attnprobe.auditing.estimates.measured import (
    Calibration,
    as_batch,
    samples_of,
)
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.progress import FIRST_BATCH, steps_of
from hf_attnprobe.auditing.selection import Choice, half_of, sites_by_test
from hf_attnprobe.auditing.sweep import (
    Sweep,
    Where,
    Work,
    beside,
    few_sites,
    of_verdict,
    run_batch,
    work_left,
)
from hf_attnprobe.hardware.memory import PeakMemory
from hf_attnprobe.inference.batching import by_length, collate
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.storage.rows import NO_SITE


SECONDS = 3.0
"""What a further sample may take; of large models the first takes longer already."""


def work_of(sweep: Sweep, choice: Choice, options: AuditOptions) -> list[Work]:
    """All batches that an audit has left, none of them run.

    With a screen nobody knows the heads yet that it puts first; others stand for them.
    """
    heads = choice.sites if options.single_heads else []
    names = [*sweep.options]
    if options.screen is None:
        return work_left(sweep, sites_by_test(names, sweep.adapter, heads, choice.groups))
    screened = sites_by_test(["screen"], sweep.adapter, choice.sites)
    return [*work_left(sweep, screened), *work_after_screen(sweep, choice, options)]


def work_after_screen(sweep: Sweep, choice: Choice, options: AuditOptions) -> list[Work]:
    """The batches at the heads that a screen chooses, and at the groups."""
    n = options.screen or 0
    every = max(len(choice.sites) // max(n, 1), 1)
    names = [name for name in sweep.options if name != "screen"]
    where = sites_by_test(names, sweep.adapter, choice.sites[::every][:n], choice.groups)
    parts = [[t for t in sweep.texts if half_of(t.example_id) == h] for h in (0, 1)]
    return [w for half in parts for w in work_left(replace(sweep, texts=half), where)]


def work_of_control(
    sweep: Sweep,
    controls: Sequence[AttentionModelBase],
    choice: Choice,
    options: AuditOptions,
) -> list[Work]:
    """The batches of the control's draws that are left."""
    work: list[Work] = []
    for draw, control in enumerate(controls):
        other = beside(sweep, control, draw)
        if control.reassignment is None and draw == 0:
            plan = work_of if options.screen is None else work_after_screen
            work += plan(other, choice, options)
        elif where := of_verdict(other, choice.groups):
            work += work_left(other, where)
    return work


def calibrate(sweep: Sweep, work: Sequence[Work]) -> Calibration:
    """Runs every test that is left at a few sites, on samples of the texts that are left.

    First a few texts of middle length and one alone, then larger batches and the longest
    texts, while a sample takes no more than :data:`SECONDS`; at last single texts, on
    which work and memory are counted.
    """
    found = Calibration()
    work = work or [({PREDICTION: [NO_SITE]}, list(sweep.texts))]  # for the report
    where: dict[str, Sequence[Site]] = {}
    for todo, _ in work:
        where |= {test: few_sites(sites) for test, sites in todo.items()}
    for texts in _samples(sweep, work, where, found):
        _time(sweep, where, texts, found)
    for texts in samples_of([text for _, some in work for text in some]):
        _count(sweep, where, texts, found)
    return found


def _samples(
    sweep: Sweep, work: Sequence[Work], where: Where, found: Calibration
) -> Iterator[Sequence[Text]]:
    """Texts to run; each time as many as what was found so far allows."""
    texts = by_length([*{t.example_id: t for _, some in work for t in some}.values()])
    most = max(len(some) for _, some in work)
    middle = len(texts) // 2

    def around(n: int) -> Sequence[Text]:
        start = max(min(middle - n // 2, len(texts) - n), 0)
        return texts[start : start + n]

    def told(some: Sequence[Text]) -> float:
        return found.seconds.total(steps_of(where, some))

    few = around(min(FIRST_BATCH, most))
    yield few
    if told(few) < SECONDS:  # the first one also loads and compiles kernels
        found.seconds.forget()
        yield few
    if len(few) > 1:
        yield around(1)  # beside the first it tells what every batch takes
    n = len(few)
    while n < min(most, len(texts)) and told(around(4 * n)) < SECONDS:
        n = min(4 * n, most, len(texts))
        yield around(n)
    longest = max(1, min(n, int(n * SECONDS / max(told(texts[-n:]), 1e-9))))
    if texts[-1].n_tokens > 1.2 * texts[middle].n_tokens:
        yield texts[-longest:]


def _time(sweep: Sweep, where: Where, texts: Sequence[Text], found: Calibration) -> None:
    steps, clock = iter(steps_of(where, texts)), sweep.pace.clock
    last = [clock()]

    def tick() -> None:
        now = clock()
        found.seconds.add(next(steps), now - last[0])
        last[0] = now

    batch = collate(sweep.adapter, texts, sweep.pad_token_id)
    rows = run_batch(sweep.adapter, batch, where, sweep.options, sweep.seed, tick)
    found.rows.append(rows)
    found.texts.update(text.example_id for text in texts)


def _count(sweep: Sweep, where: Where, texts: Sequence[Text], found: Calibration) -> None:
    adapter, steps = sweep.adapter, iter(steps_of(where, texts))
    batch = collate(adapter, texts, sweep.pad_token_id)
    with counting(adapter) as since, PeakMemory(sweep.state.device) as memory:
        adapter.observe(batch)
        found.forward_flops.add(as_batch(texts), since().flops)

        def tick() -> None:
            step, new = next(steps), since()
            found.edited.add(step, new.edited)
            found.flops.add(step, new.flops)

        run_batch(adapter, batch, where, sweep.options, sweep.seed, tick)
    found.memory.add(as_batch(texts), memory.peak)
