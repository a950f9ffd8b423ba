"""What an audit will take, before it runs: work, time, memory, disk.

The estimate is measured, not modelled: what a step costs depends on test, site and length, and no
formula knew all three. Two heads and a group of each test run on a few texts; a constant, texts,
tokens and their squares are fitted to several sizes of batch, and the report is made once.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import AttentionModelBase, MaskedReplay, Site
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.prepare import prepare_audit, sweep_of
from hf_attnprobe.auditing.progress import FIRST_BATCH, Pace, Step, steps_of
from hf_attnprobe.auditing.rehearsal import rehearse
from hf_attnprobe.auditing.selection import Choice, half_of, sites_by_test
from hf_attnprobe.auditing.session import provenance_of, report_of, rows_of, write_report
from hf_attnprobe.auditing.steps import (
    Costs,
    as_batch,
    counting,
    in_bytes,
    in_flops,
    samples_of,
)
from hf_attnprobe.auditing.subject import Model
from hf_attnprobe.auditing.sweep import (
    PRUNE_POINTS,
    Sweep,
    Where,
    Work,
    beside,
    few_sites,
    is_whole,
    of_verdict,
    run_batch,
    work_left,
)
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.hardware import PeakMemory, resident_bytes
from hf_attnprobe.inference.batching import by_length, collate
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.options import Asked
from hf_attnprobe.progress import in_words, quiet_libraries
from hf_attnprobe.statistics.summary import PREDICTION, summarize
from hf_attnprobe.storage.folders import check_claim
from hf_attnprobe.storage.rows import KEY, NO_SITE, append_rows


SECONDS = 3.0
"""What a further sample may take; of large models the first takes longer already."""
FEWEST, MOST = 24, 400
"""Texts of the report that is tried; a line tells of more."""
REPORT_SECONDS = 10.0
"""What it may take to run the model on them, one by one."""


@dataclass(frozen=True)
class Seconds:
    """Where the time of an audit goes.

    Attributes:
        preparation: to load, encode and check; it was taken already by the estimate.
        tests: of the model, and of its control where there is one.
        report: intervals, shown texts, page.
    """

    preparation: float
    tests: float
    report: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.preparation + self.tests + self.report


@dataclass(frozen=True)
class AuditEstimate:
    """What is left of an audit, from a short calibration; nothing of it was run.

    Attributes:
        n_texts: texts of the audit.
        n_left: of these, how many have tests left to run.
        n_tests: tests.
        n_heads: heads, and groups of heads, at which a test runs.
        with_control: whether the tests run on a control too; they count twice.
        edited_texts: texts with an edit that are run, from the edit upwards.
        flops: floating-point operations of matrix products and convolutions.
        forward_flops: those of one plain forward pass over all texts.
        memory: bytes that the process holds at most.
        batch_memory: bytes of these that are a batch's.
        disk: bytes that the output folder grows by.
        seconds: by the wall clock, on this machine as busy as it is now.
        measured_texts, measured_heads: what the calibration ran.
    """

    n_texts: int
    n_left: int
    n_tests: int
    n_heads: int
    with_control: bool
    edited_texts: int
    flops: float
    forward_flops: float
    memory: int
    batch_memory: int
    disk: int
    seconds: Seconds
    measured_texts: int
    measured_heads: int

    def to_json(self) -> dict[str, Any]:
        """Everything by name; seconds with their total."""
        found = asdict(self)
        found["seconds"]["total"] = self.seconds.total
        return found

    def to_text(self) -> str:
        """Five lines for a terminal."""
        seconds, control = self.seconds, " and its control" if self.with_control else ""
        passes = self.flops / self.forward_flops if self.forward_flops else 0.0
        left = "" if self.n_left == self.n_texts else f", {self.n_left:,} of them left"
        several = "up to two heads and one group of heads"
        places = several if self.measured_heads > 1 else "the one place"
        return "\n".join(
            [
                f"estimate of {self.n_tests} tests at {self.n_heads:,} heads and groups "
                f"on {self.n_texts:,} texts{left}; nothing was written",
                f"time     {in_words(seconds.total)}: {seconds.preparation:.0f} s to "
                f"prepare, {seconds.tests:,.0f} s for the tests on the "
                f"model{control}, {seconds.report:.0f} s for the report",
                f"work     {self.edited_texts:,} edited texts, {in_flops(self.flops)}, "
                f"as much as {passes:,.0f} plain passes over the texts",
                f"memory   up to {in_bytes(self.memory)}, "
                f"{in_bytes(self.batch_memory)} of it for a batch",
                f"disk     {in_bytes(self.disk)}",
                f"measured on {self.measured_texts} texts at {places} for each test, at this machine's "
                "present load; in trials the estimate was .7 to 1.4 times the time taken",
            ]
        )


# --- the estimate -----------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """A share of the work in which equal steps cost alike.

    Attributes:
        work: the batches that are left.
        costs: of their steps, as measured.
    """

    work: Sequence[Work]
    costs: Costs

    @property
    def steps(self) -> list[Step]:
        """Of all batches."""
        return [step for todo, texts in self.work for step in steps_of(todo, texts)]


@quiet_libraries()
def estimate_audit(
    model: Model,
    dataset: Any,
    tests: Asked | None = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> AuditEstimate:
    """What :func:`audit` with these arguments will take; nothing is written.

    It prepares the audit, runs each test at a few sites on a few texts, and makes the
    report once from these rows. What an output folder holds already is not counted.

    Args:
        model, dataset, tests, options, output_dir, tokenizer: those of :func:`audit`.
        clock: seconds; by default those that pass, ``time.process_time`` for those that
            the processor works.

    Returns:
        Work, time, memory and disk space of what is left. Time was .7 to 1.4 times what
        five jobs took (benchmarks/README.md), if the machine stays as busy as it is.

    Raises:
        AttnProbeError: whatever would stop the audit before its first rows.
    """
    begun = clock()
    job = prepare_audit(model, dataset, tests, options, tokenizer)
    pace = Pace(shown=False, clock=clock)
    with tempfile.TemporaryDirectory() as elsewhere, job.on_this_machine():
        where = Path(elsewhere if output_dir is None else output_dir)
        sweep = sweep_of(job, where, pace)
        rehearse(
            sweep.adapter,
            sweep.texts,
            sweep.options,
            job.choice.sites,
            tokenizer=job.subject.tokenizer,
            rationales=job.choice.rationales,
        )
        if output_dir is not None:
            check_claim(where, job.identity)
        prepared = clock() - begun
        controls = job.subject.controls
        whole, brief = _work_of_controls(sweep, controls, job.choice, options)
        shares = [_measured(sweep, [*_work_of(sweep, job.choice, options), *whole])]
        if brief:
            last = len(controls) - 1
            shares.append(_measured(beside(sweep, controls[last], last), brief))

        def report_on(folder: Path, n_texts: int) -> None:
            tried = replace(sweep, folder=folder / "rows", texts=sweep.texts[:n_texts])
            provenance = provenance_of(job.identity, tried, {}, job.besides)
            others = [rows_of(tried)] if whole or brief else []
            without = replace(options, prune=False)
            report = report_of(job, tried, provenance, others, without)
            if output_dir is not None:  # else nobody asks for a page, whose charts take their time
                write_report(report, folder)

        works = [work for share in shares for work in share.work]
        tested = [sites for todo, _ in works for test, sites in todo.items() if test != PREDICTION]
        heads = {site for sites in tested for site in sites}
        own = shares[0].costs
        n_values = sum(map(_n_values, shares))
        report, disk = _try_report(sweep, own, report_on, n_values, Path(elsewhere))
        batch = max((s.costs.memory_of(texts) for s in shares for _, texts in s.work), default=0)
        return AuditEstimate(
            n_texts=len(sweep.texts),
            n_left=len({text.example_id for _, texts in works for text in texts}),
            n_tests=len(sweep.options),
            n_heads=len(heads),
            with_control=bool(whole or brief),
            edited_texts=round(sum(s.costs.edited.total(s.steps) for s in shares)),
            flops=sum(s.costs.flops.total(s.steps) for s in shares),
            forward_flops=own.forward_flops.total([as_batch([text]) for text in sweep.texts]),
            memory=resident_bytes() + batch,
            batch_memory=batch,
            disk=disk,
            seconds=Seconds(prepared, sum(s.costs.seconds.total(s.steps) for s in shares), report),
            measured_texts=len(own.texts),
            measured_heads=min(2, len(heads)),  # see `few_sites`
        )


# --- the work that is left --------------------------------------------------------------


def _work_of(sweep: Sweep, choice: Choice, options: AuditOptions) -> list[Work]:
    """All batches that an audit has left.

    With a screen nobody knows the heads yet that it puts first; others stand for them.
    """
    if options.screen is None:
        heads = choice.sites if options.single_heads else []
        return work_left(
            sweep, sites_by_test([*sweep.options], sweep.adapter, heads, choice.groups)
        )
    screened = sites_by_test(["screen"], sweep.adapter, choice.sites)
    return [*work_left(sweep, screened), *_work_after_screen(sweep, choice, options.screen)]


def _work_after_screen(sweep: Sweep, choice: Choice, n: int) -> list[Work]:
    """The batches at the n heads that a screen chooses, and at the groups."""
    every = max(len(choice.sites) // max(n, 1), 1)
    names = [name for name in sweep.options if name != "screen"]
    where = sites_by_test(names, sweep.adapter, choice.sites[::every][:n], choice.groups)
    parts = [[t for t in sweep.texts if half_of(t.example_id) == h] for h in (0, 1)]
    return [w for half in parts for w in work_left(replace(sweep, texts=half), where)]


def _work_of_controls(
    sweep: Sweep, controls: Sequence[AttentionModelBase], choice: Choice, options: AuditOptions
) -> tuple[list[Work], list[Work]]:
    """The batches of draws that run what the audit runs, and of those that a verdict reads."""
    whole: list[Work] = []
    brief: list[Work] = []
    for draw, control in enumerate(controls):
        other = beside(sweep, control, draw)
        if is_whole(control, draw):
            after = options.screen
            whole += (
                _work_of(other, choice, options)
                if after is None
                else _work_after_screen(other, choice, after)
            )
        elif where := of_verdict(other.adapter, other.options, choice.groups):
            brief += work_left(other, where)
    return whole, brief


# --- a few texts that are run -----------------------------------------------------------


def _measured(sweep: Sweep, left: Sequence[Work]) -> Share:
    """Runs every test that is left at a few sites, on samples of the texts that are left.

    First a few texts of middle length and one alone, then larger batches and the longest
    texts, while a sample takes no more than :data:`SECONDS`; at last single texts, on
    which work and memory are counted.
    """
    found = Costs()
    work = left or [({PREDICTION: [NO_SITE]}, list(sweep.texts))]  # for the report
    where: dict[str, Sequence[Site]] = {}
    for todo, _ in work:
        where |= {test: few_sites(sites) for test, sites in todo.items()}
    for texts in _samples(sweep, work, where, found):
        _time(sweep, where, texts, found)
    for texts in samples_of([text for _, some in work for text in some]):
        _count(sweep, where, texts, found)
    return Share(left, found)


def _samples(
    sweep: Sweep, work: Sequence[Work], where: Where, found: Costs
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


def _time(sweep: Sweep, where: Where, texts: Sequence[Text], found: Costs) -> None:
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


def _count(sweep: Sweep, where: Where, texts: Sequence[Text], found: Costs) -> None:
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


# --- the report, tried ------------------------------------------------------------------


def _n_values(share: Share) -> int:
    """Rows that the steps make: each test's statistics, of every text."""
    if not share.work:
        return 0
    kinds = pd.concat(share.costs.rows).groupby("test").statistic.nunique()
    return sum(step.n_texts * int(kinds.get(step.test, 0)) for step in share.steps)


def _try_report(
    sweep: Sweep,
    found: Costs,
    report_on: Callable[[Path, int], None],
    n_values: int,
    folder: Path,
) -> tuple[float, int]:
    """Seconds and bytes of the report, tried on rows that repeat those measured.

    A line through a small and a larger report tells of more texts. Of more heads the
    statistics take longer in proportion.
    """
    forward = _seconds_of_forward(sweep)
    n_texts = len(sweep.texts)
    room = int(REPORT_SECONDS / max(2 * forward, 1e-9))  # it observes texts one by one
    larger = min(n_texts, max(FEWEST, min(MOST, room)))
    sizes = sorted({max(larger // 4, min(FEWEST, n_texts)), larger})
    taken = []
    for n in sizes:
        place = folder / str(n)
        n_rows, statistics = _write_rows(sweep, found, n, place / "rows")
        begun = sweep.pace.clock()
        report_on(place, n)
        taken.append(sweep.pace.clock() - begun)
    slope = max(taken[-1] - taken[0], 0.0) / max(sizes[-1] - sizes[0], 1)
    more = n_values / max(n_rows * n_texts / larger, 1) - 1
    seconds = taken[-1] + slope * (n_texts - larger) + max(more, 0.0) * statistics
    seconds += _n_pruned(sweep, found) * forward
    n_bytes = _size(place / "rows") * n_values / max(n_rows, 1)
    besides = sum(f.stat().st_size for f in place.iterdir() if f.is_file())
    return seconds, int(n_bytes) + besides


def _write_rows(sweep: Sweep, found: Costs, n: int, folder: Path) -> tuple[int, float]:
    """Rows of n texts, those measured again and again; how many, seconds to sum them up."""
    rows = found.rows[-1].drop_duplicates(list(KEY))
    measured = sorted(rows.example_id.unique())
    ids = [text.example_id for text in sweep.texts[:n]]
    names = pd.DataFrame(
        {
            "example_id": [measured[k % len(measured)] for k in range(n)],
            "new": ids,
        }
    )
    rows = rows.merge(names, on="example_id")
    rows = rows.drop(columns="example_id").rename(columns={"new": "example_id"})
    for start in range(0, n, sweep.batch_size):
        part = rows[rows.example_id.isin(ids[start : start + sweep.batch_size])]
        append_rows(folder, part)
    begun = sweep.pace.clock()
    summarize(rows, sweep.adapter.label_names, readings())
    return len(rows), sweep.pace.clock() - begun


def _seconds_of_forward(sweep: Sweep) -> float:
    """Of one text of middle length, by itself."""
    text = sorted(sweep.texts, key=lambda text: text.n_tokens)[len(sweep.texts) // 2]
    batch = collate(sweep.adapter, [text], sweep.pad_token_id)
    begun = sweep.pace.clock()
    sweep.adapter.observe(batch)
    return sweep.pace.clock() - begun


def _n_pruned(sweep: Sweep, found: Costs) -> int:
    """Texts that are run with heads taken away, at every point of the prune curve."""
    measured = "zero_tvd" in set(found.rows[-1].statistic)
    is_single = len(sweep.adapter.sites()) < 2
    if is_single or not measured or sweep.adapter.lacks(MaskedReplay) is not None:
        return 0
    return (PRUNE_POINTS + 1) * len(sweep.texts)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
