"""Estimates what an audit takes: runs and keeps its first round, then asks the clock.

The estimate is measured, not modelled: what a step costs depends on test, site and length, and no
formula knew all three. Two heads and a group of each test run on a few texts of several lengths, and
the report is made once of their rows.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import MaskedReplay
from hf_attnprobe.auditing.clock import Clock, Step, steps_of
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.prepare import PreparedAudit, prepare_audit
from hf_attnprobe.auditing.rounds import work_of
from hf_attnprobe.auditing.session import begun, provenance_of, report_of, rows_of, write_report
from hf_attnprobe.auditing.subject import Model
from hf_attnprobe.auditing.sweep import (
    FIRST_ROUND,
    PRUNE_POINTS,
    Sweep,
    Work,
    first_round,
    memory_of,
)
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.hardware import resident_bytes
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.options import Asked
from hf_attnprobe.progress import in_words, quiet_libraries
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import PREDICTION, summarize
from hf_attnprobe.storage.rows import NO_SITE, rows_in


SECONDS = 3.0
"""What a further sample may take; of large models the first takes longer already."""
GROWTH = 4  # times as many texts as before in a larger sample
MOST = 100  # texts of the report that is tried
LONG = 1800.0
"""Seconds of an audit from which on shorter ways are named."""
DEAR = 0.3
"""Of the time; a test that takes so much is named as one to leave out."""


@dataclass(frozen=True)
class Seconds:
    """Seconds of an audit, by what they are spent on.

    Attributes:
        preparation: to load, encode and check; it was taken already by the estimate.
        tests: of the model.
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
    """Work left of an audit, judged by its first round.

    Attributes:
        n_texts: texts of the audit.
        n_left: of these, how many had tests left to run before the first round.
        n_tests: tests.
        n_heads: heads, and groups of heads, at which a test runs.
        n_runs: one test at one head, or group of heads, on one text is a run.
        memory: bytes that the process holds at most.
        batch_memory: bytes of these that are a batch's.
        disk: bytes that the output folder grows by.
        seconds: by the wall clock, on this machine as busy as it is now.
        seconds_of_tests: by test.
        seconds_without_heads: of all, if no head is tested by itself; None: none is.
        measured_texts: what the first round ran.
        kept: the folder that has its rows; None: none.
    """

    n_texts: int
    n_left: int
    n_tests: int
    n_heads: int
    n_runs: int
    memory: int
    batch_memory: int
    disk: int
    seconds: Seconds
    seconds_of_tests: dict[str, float]
    seconds_without_heads: float | None
    measured_texts: int
    kept: str | None

    def to_json(self) -> dict[str, Any]:
        """Everything by name; seconds with their total."""
        found = asdict(self)
        found["seconds"]["total"] = self.seconds.total
        return found

    def to_text(self) -> str:
        """Some lines for a terminal."""
        seconds = self.seconds
        left = "" if self.n_left == self.n_texts else f", {self.n_left:,} of them left"
        kept = "nothing was written"
        if self.kept is not None:
            kept = (
                f"what it ran is kept in {self.kept}: without --estimate the same command goes on"
            )
        return "\n".join(
            [
                f"estimate of {self.n_tests} tests at {self.n_heads:,} heads and groups "
                f"on {self.n_texts:,} texts{left}",
                f"time     {in_words(seconds.total)}: {seconds.preparation:.0f} s to "
                f"prepare, {seconds.tests:,.0f} s for the tests, {seconds.report:.0f} s for the "
                "report",
                f"work     {self.n_runs:,} runs: one test at one head, or group of heads, on one "
                "text",
                f"memory   up to {in_bytes(self.memory)}, "
                f"{in_bytes(self.batch_memory)} of it for a batch",
                f"disk     {in_bytes(self.disk)}",
                *self.shorter_ways(),
                f"measured on {self.measured_texts} texts at up to two heads and one group of heads "
                f"for each test, at this machine's present load; {kept}",
            ]
        )

    def shorter_ways(self) -> list[str]:
        """Names shorter audits where this one takes long: --time, no single heads, fewer tests."""
        if self.seconds.total < LONG:
            return []
        ways = ["--time 10m reports what is known by then"]
        if self.seconds_without_heads is not None:
            ways.append(f"--no-single-heads takes {in_words(self.seconds_without_heads)}")
        total = sum(self.seconds_of_tests.values())
        dear = [name for name, s in self.seconds_of_tests.items() if s > DEAR * total]
        for name in sorted(dear, key=lambda name: -self.seconds_of_tests[name]):
            share = self.seconds_of_tests[name] / total
            ways.append(f"{name} takes {share:.0%} of it, leave it out with --tests")
        return [f"shorter  {'; '.join(ways)}"]


def in_bytes(n_bytes: float) -> str:
    """A number of bytes in words.

    >>> in_bytes(1_340_000_000), in_bytes(52_000)
    ('1.3 GB', '52 KB')
    """
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if n_bytes >= size:
            number = n_bytes / size
            return f"{number:,.{1 if number < 10 else 0}f} {prefix}B"
    return f"{n_bytes:.0f} B"


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
    """Estimates what :func:`audit` with these arguments takes.

    It begins the audit: it runs each test at a few sites on a few texts, keeps these rows where
    there is a folder, and makes the report once of them. What the folder holds already is not
    counted.

    Args:
        model, dataset, tests, options, output_dir, tokenizer: those of :func:`audit`.
        clock: seconds; by default those that pass, ``time.process_time`` for those that
            the processor works.

    Returns:
        Work, time, memory and disk space of what is left, if the machine stays as busy as it is.

    Raises:
        AttnProbeError: whatever would stop the audit before its first rows.
    """
    measures = Clock(now=clock)
    job = prepare_audit(model, dataset, tests, options, tokenizer)
    with begun(job, output_dir, measures) as (sweep, _):
        prepared = measures.passed
        work = work_of(sweep, job.choice, options)
        _measure(sweep, work)
        steps = steps_of(work)
        tested = {(test, site) for todo, _ in work for test in todo for site in todo[test]}
        of_tests = {
            name: measures.expects(s for s in steps if s.test == name) for name in sweep.options
        }
        report, disk, n_measured = _report(
            job, sweep, steps, options, is_page=output_dir is not None
        )
        first = work[0][0] if work else {PREDICTION: [NO_SITE]}
        size = memory_of(sweep, first)
        longest = [(len(some), max(text.n_tokens for text in some)) for _, some in work]
        batch = max((n * size(n_tokens) for n, n_tokens in longest), default=0)
        seconds = Seconds(prepared, measures.expects(steps), report)
        return AuditEstimate(
            n_texts=len(sweep.texts),
            n_left=len({text.example_id for _, some in work for text in some}),
            n_tests=len(sweep.options),
            n_heads=len({site for test, site in tested if test != PREDICTION}),
            n_runs=sum(step.n_texts for step in steps if step.test != PREDICTION),
            memory=resident_bytes() + batch,
            batch_memory=batch,
            disk=disk,
            seconds=seconds,
            seconds_of_tests=of_tests,
            seconds_without_heads=_without_heads(job, sweep, work, seconds),
            measured_texts=n_measured,
            kept=None if output_dir is None else str(output_dir),
        )


def _measure(sweep: Sweep, work: Sequence[Work]) -> None:
    """Runs the first round: every test at a few sites, on samples of several sizes.

    A few texts of middle length and one alone, larger batches while they are quick, and the
    longest texts.
    """
    left = [*work]
    taken = _sample(sweep, left, FIRST_ROUND)
    if taken < SECONDS:  # the first one also loads and compiles kernels
        sweep.clock.forget()
        taken = _sample(sweep, left, FIRST_ROUND)
    _sample(sweep, left, 1)
    n = FIRST_ROUND
    while taken * GROWTH < SECONDS and n < sweep.batch_size:
        n *= GROWTH
        taken = _sample(sweep, left, n)
    _sample(sweep, left, min(n, FIRST_ROUND) if taken < SECONDS else 1, job=0)


def _sample(sweep: Sweep, left: list[Work], n_texts: int, job: int | None = None) -> float:
    """Runs a sample of the work left, in place; returns seconds."""
    begun = sweep.clock.passed
    if left:
        left[:] = first_round(sweep, left, n_texts, job)
    return sweep.clock.passed - begun


def _without_heads(
    job: PreparedAudit, sweep: Sweep, work: Sequence[Work], seconds: Seconds
) -> float | None:
    """Seconds of the same audit without single heads; None if it has none, or no groups."""
    if not (job.choice.heads and job.choice.groups):
        return None
    total = seconds.preparation + seconds.report
    for todo, texts in work:
        groups = {test: [s for s in todo[test] if s.is_group] for test in todo}
        total += sweep.clock.expects(steps_of([(groups, texts)]))
    return total


def _report(
    job: PreparedAudit,
    sweep: Sweep,
    steps: Sequence[Step],
    options: AuditOptions,
    *,
    is_page: bool,
) -> tuple[float, int, int]:
    """Seconds of the report, bytes of rows and report, and texts of which rows are there.

    The report is made of the rows so far. Of more rows the statistics take longer in
    proportion; heads taken away together take forward passes.
    """
    clock, held = sweep.clock, rows_of(sweep)
    known = set(held.ids.tolist())
    texts = [text for text in sweep.texts if text.example_id in known][:MOST]
    tried = replace(sweep, texts=texts)
    rows = rows_of(tried)
    n_bytes = _size(sweep.folder) / max(_n_values(rows_in(sweep.folder)), 1)
    with tempfile.TemporaryDirectory() as elsewhere:
        folder = Path(elsewhere)
        tried = replace(tried, folder=folder / "rows")
        begun = clock.passed
        summarize(rows, sweep.adapter.label_names, readings())
        statistics = clock.passed - begun
        provenance = provenance_of(job.identity, tried, {}, job.besides)
        report = report_of(job, tried, rows, provenance, replace(options, prune=False))
        if is_page:  # else nobody asks for a page, whose charts take their time
            write_report(report, folder)
        seconds = clock.passed - begun - statistics
        besides = _size(folder)
    per_text = Counter(test for test, _ in {column[:2] for column in held.columns})
    n_tried = _n_values(rows)
    n_rows = n_tried + sum(step.n_texts * per_text[step.test] for step in steps)
    begun = clock.passed
    sweep.adapter.observe(collate(sweep.adapter, texts[:1], sweep.pad_token_id))
    seconds += (clock.passed - begun) * _n_passes(sweep, held, options)
    seconds += statistics * (n_rows / max(n_tried, 1) - 1)
    return seconds, int(n_bytes * n_rows) + besides, len(known)


def _n_values(rows: Rows) -> int:
    return sum(int(rows.is_there(column).sum()) for column in rows.columns)


def _n_passes(sweep: Sweep, rows: Rows, options: AuditOptions) -> int:
    """Number of forward passes of single texts for a report."""
    adapter, n_texts = sweep.adapter, len(sweep.texts)
    is_pruned = options.prune and len(rows.of_heads("zero_tvd")) > 0
    is_pruned = is_pruned and adapter.lacks(MaskedReplay) is None and len(adapter.sites()) > 1
    return (PRUNE_POINTS + 1) * is_pruned * n_texts


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
