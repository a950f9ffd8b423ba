"""The work of an audit: every test at every head on every text, resumable, and what it costs."""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd
import pyarrow as pa
import torch

from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.audits.self_checks import (
    check_prompt_edits,
    check_recorded_prediction,
    draw_texts,
)
from hf_attnprobe.audits.site_selection import assign_half
from hf_attnprobe.core.distributed import process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import (
    PeakMemory,
    give_back_pages,
    in_halves,
)
from hf_attnprobe.core.options import Options
from hf_attnprobe.core.progress import Bar
from hf_attnprobe.faithfulness.head_ablation import (
    PruneCurve,
    sort_sites_by_effect,
    measure_prune_curve,
)
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.inference.batching import collate, form_batches, describe_text
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import (
    AttentionModelBase,
    Batch,
    Decisions,
    MaskedReplay,
    Observation,
    Site,
)
from hf_attnprobe.statistics.rows import PREDICTION, Rows, Texts
from hf_attnprobe.storage.rows import (
    NO_SITE,
    Done,
    append_rows,
    finished_ids,
    joined,
    rows_in,
    said_of,
    statistics_of,
    to_rows,
)


# --- what the work costs: the clock --------------------------------------------------------------
# The bar, --time and --estimate read it. A step is one test at one head, or group of heads, on one
# batch. What it costs depends on test and place, so each kind of step has its own seconds per
# token, those of the steps of its kind that were run.

CostClass = Literal["first", "head", "group"]
CostKey = tuple[str, CostClass]
"""A test and the place: such steps cost alike, by size."""
REPORT_TIME_SHARE = 0.1
"""Of the time; the rest is for the tests."""
MIN_REPORT_SECONDS = 10.0  # seconds
BAR_UPDATE_SECONDS = 0.3  # seconds between two moves of the bar


class Step(NamedTuple):
    """One test at one head on one batch.

    Attributes:
        test: its name.
        place: "first" for the batch's first with this test, which pays for what all
            share; of the others a head, or a group of heads.
        size: tokens of the batch, with padding.
    """

    test: str
    place: CostClass
    size: float

    @property
    def kind(self) -> CostKey:
        """Test and place."""
        return self.test, self.place


def list_steps(
    work: Iterable[tuple[Mapping[str, Sequence[Site]], Sequence[Text]]],
) -> list[Step]:
    """Steps of batches, in the order in which they run.

    Args:
        work: of each batch the tests, each with its heads, and the texts.
    """
    return [
        Step(
            test,
            get_cost_class(k, site),
            len(texts) * max(text.n_tokens for text in texts),
        )
        for where, texts in work
        for test, sites in where.items()
        for k, site in enumerate(sites)
    ]


def get_cost_class(number: int, site: Site) -> CostClass:
    """The place of a test's site by its number among them."""
    if number == 0:
        return "first"
    return "group" if site.is_group else "head"


@dataclass
class Clock:
    """Knows what is done, what is left and how long that takes; shows it on a bar.

    Attributes:
        shown: whether there is a bar.
        limit: seconds from now to the report; None: as many as it takes.
        now: seconds.
    """

    shown: bool = False
    limit: float | None = None
    now: Callable[[], float] = time.perf_counter
    bar: Bar = field(init=False)
    _seconds: dict[CostKey, float] = field(default_factory=partial(defaultdict, float), init=False)
    _sizes: dict[CostKey, float] = field(default_factory=partial(defaultdict, float), init=False)
    _left: dict[CostKey, float] = field(default_factory=partial(defaultdict, float), init=False)
    _batch: deque[Step] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self.bar = Bar("audit", shown=self.shown, clock=self.now)
        self._begun = self._last = self._looked = self.now()

    def __enter__(self) -> "Clock":
        self.bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.__exit__(*error)

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return self.now() - self._begun

    @property
    def left(self) -> float:
        """Seconds left for tests, after setting aside those for the report."""
        if self.limit is None:
            return math.inf
        kept = max(REPORT_TIME_SHARE * self.limit, MIN_REPORT_SECONDS)
        return self.limit - min(kept, self.limit / 2) - self.passed

    # What steps cost

    def add(self, step: Step, seconds: float) -> None:
        """Records how long a step took."""
        self._seconds[step.kind] += seconds
        self._sizes[step.kind] += step.size

    def forget(self) -> None:
        """Drops what was measured so far, such as steps that loaded kernels."""
        self._seconds.clear()
        self._sizes.clear()

    def knows(self, test: str) -> bool:
        """Whether some step of a test was measured."""
        return any(known == test for known, _ in self._sizes)

    def expects(self, steps: Iterable[Step]) -> float:
        """Predicted seconds of these steps."""
        return sum(self._per_token(step.kind) * step.size for step in steps)

    def _per_token(self, kind: CostKey) -> float:
        """Seconds per token of a kind, else of the same test's other steps, else of all."""
        of_test = [known for known in self._sizes if known[0] == kind[0]]
        known = [kind] if kind in self._sizes else of_test or [*self._sizes]
        size = sum(self._sizes[k] for k in known)
        return sum(self._seconds[k] for k in known) / size if size else 0.0

    # What is done

    def plan(self, steps: Iterable[Step]) -> None:
        """Replaces the steps to come."""
        self._left.clear()
        for step in steps:
            self._left[step.kind] += step.size

    def begin(self, steps: Iterable[Step]) -> None:
        """Starts a batch."""
        self._batch, self._last = deque(steps), self.now()

    def tick(self) -> None:
        """Ends the next step of the batch."""
        step, now = self._batch.popleft(), self.now()
        self.add(step, now - self._last)
        self._left[step.kind] -= step.size
        self._last = now
        if self.shown and now - self._looked >= BAR_UPDATE_SECONDS:
            self._looked = now
            self.bar.move(self.to_come(), step.test)

    def to_come(self) -> float:
        """Seconds until the plan is done or time is up."""
        if self.limit is not None:
            return max(self.left, 0.0)
        left = (self._per_token(kind) * size for kind, size in self._left.items())
        return max(sum(left), 0.0)

    def tests_end(self, doing: str) -> None:
        """Ends the prediction: from here on the bar only says what is done."""
        self.bar.name = "report"
        self.bar.move(None, doing)


# --- the work itself -------------------------------------------------------------------------

SAVE_INTERVAL_SECONDS = 20.0  # seconds
N_PRUNE_STEPS = 12
MAX_SINGLE_TEXT_CHECKS = 2
QUICK_ROUND_SECONDS = 3.0
"""Seconds of a first round up to which one with more texts follows."""
WARM_UP_GROWTH = 4  # times as many texts in it
MEMORY_SAFETY_FACTOR = 1.25
"""Times the memory that was measured: operations need some inside that nobody sees."""
SitesByTest = Mapping[str, Sequence[Site]]
"""Tests, each with the sites where it looks."""
WorkItem = tuple[SitesByTest, list[Text]]
"""Tests with their sites, and a batch of texts that lack them."""


def list_test_site_pairs(where: SitesByTest) -> list[tuple[str, Site]]:
    """Each test with each of its sites."""
    return [(test, site) for test, sites in where.items() for site in sites]


@dataclass(frozen=True)
class AuditRunner:
    """What stays the same over an audit.

    options: of the tests, by name.
    budget: bytes that a batch may take.
    folder: where the rows go.
    clock: measures the work that is done, and shows it.
    measured: bytes of a text by itself, by tests and tokens.
    """

    adapter: AttentionModelBase
    texts: Sequence[Text]
    options: Mapping[str, Options]
    seed: int
    pad_token_id: int
    budget: int
    batch_size: int
    folder: Path
    clock: Clock
    measured: dict[object, int] = field(default_factory=dict)

    def rows_of(self, todo: SitesByTest, texts: Sequence[Text], keep: "Keep | None" = None) -> pa.Table:
        """Runs tests on a batch of texts; its rows.

        Args:
            keep: of one batch alone, see :class:`PartialWriter`; then those that are not kept.
        """
        self.clock.begin(list_steps([(todo, texts)]))
        adapter, tick = self.adapter, self.clock.tick
        is_alone = len(texts) == 1
        if is_alone or not isinstance(adapter, LanguageModelAdapter):
            return self._rows(todo, texts, tick, keep)
        n_others = len(texts) - 1
        ticks = [*[lambda: None] * n_others, tick]  # of the last one
        jobs = [
            partial(self._rows, todo, [text], own_tick)
            for text, own_tick in zip(texts, ticks, strict=True)
        ]
        tables = adapter.side_by_side(jobs)
        return joined(tables)

    def _rows(
        self,
        todo: SitesByTest,
        texts: Sequence[Text],
        tick: Callable[[], object],
        keep: "Keep | None" = None,
    ) -> pa.Table:
        batch = collate(self.adapter, texts, self.pad_token_id)
        return run_batch(self.adapter, batch, todo, self.options, self.seed, tick, keep)


@dataclass
class PartialWriter:
    """Keeps the rows of a batch now and then, so that a run that is killed has lost seconds.

    Attributes:
        is_used: whether some were kept before all tests had run.
    """

    folder: Path
    now: Callable[[], float]
    is_used: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._last = self.now()

    @property
    def is_due(self) -> bool:
        """Whether nothing was kept for a while."""
        return self.now() - self._last >= SAVE_INTERVAL_SECONDS

    def __call__(self, tables: Sequence[pa.Table]) -> None:
        append_rows(self.folder, joined(tables))
        self._last, self.is_used = self.now(), True


def run_pending(sweep: AuditRunner, where: SitesByTest, done: Done) -> None:
    """Runs this process's share of the tests, where they are not done.

    The longest texts come first, so that a batch that does not fit into memory is met soon.

    Args:
        done: the ids of texts with rows, by test, layer and head.
    """
    work = _plan_pending_work(sweep, where, done)[::-1]
    state = process_state()
    state.wait_for_everyone()  # everyone has planned before anyone adds rows
    share = work[state.process_index :: state.num_processes]
    sweep.clock.plan(list_steps(share))
    room = BatchLimit()
    for todo, texts in share:
        run_and_save(sweep, todo, texts, room)
    state.wait_for_everyone()


def warm_up(sweep: AuditRunner, where: SitesByTest) -> None:
    """Runs the tests at a few places on a few texts, then on more while that is quick.

    Of many heads even a batch of a few texts takes minutes. The clock keeps what the last texts
    took, since the first ones load kernels; the rows are kept.
    """
    places = {test: pick_warm_up_sites(sites) for test, sites in where.items()}
    n_texts, texts = 1, sweep.texts
    while texts:
        some, texts = texts[:n_texts], texts[n_texts:]
        work = plan_batches(
            some,
            places,
            finished_ids(sweep.folder),
            lambda n: 0,
            sweep.budget,
            sweep.batch_size,
        )
        if work:
            sweep.clock.forget()
        begun = sweep.clock.passed
        for todo, batch in work:
            run_and_save(sweep, todo, batch, BatchLimit())
        if sweep.clock.passed - begun > QUICK_ROUND_SECONDS:
            return
        n_texts *= WARM_UP_GROWTH


def verify_saved_rows(sweep: AuditRunner, n_texts: int, cause: str) -> None:
    """Recomputes some texts whose rows are on disk, see :func:`check_recorded_prediction`.

    Of a language model the same prompts are changed too, see :func:`check_prompt_edits`: two show it
    as well as eight, since a change that is not the model's own comes from its code, or from
    the length of a text.

    Args:
        n_texts: how many of them; fewer of a model that reads texts one at a time anyway.
        cause: why a text may come out differently, and what to do.
    """
    held = Texts.among(rows_in(sweep.folder, PREDICTION)).frame()
    _check_prompt_identities(sweep, held)
    n_texts = min(n_texts, MAX_SINGLE_TEXT_CHECKS) if sweep.adapter.max_batch_size == 1 else n_texts
    drawn = draw_texts(sweep.texts, held, n_texts, sweep.seed)
    for text in drawn:
        batch = collate(sweep.adapter, [text], sweep.pad_token_id)
        if isinstance(sweep.adapter, LanguageModelAdapter):
            check_prompt_edits(sweep.adapter, batch)
        where = f"in {sweep.folder}"
        check_recorded_prediction(sweep.adapter, batch, held, where=where, cause=cause)


def _check_prompt_identities(sweep: AuditRunner, held: pd.DataFrame) -> None:
    """Raises AttnProbeError where rows are of another prompt or answer than a text now has."""
    known = held.get("identity", pd.Series(dtype=float))
    for text in sweep.texts:
        if text.identity is not None and known.get(text.example_id, text.identity) != text.identity:
            raise AttnProbeError(
                f"expected the prompt and the answer of text {text.example_id} as they were for the "
                f"rows in {sweep.folder}, one of them is another now; give the answers with the "
                "data, or choose another --output-dir"
            )


MAX_PROFILED_OPERATIONS = 1000
"""Of a test that are counted: a search takes no more memory in its later steps."""


def make_memory_estimator(
    adapter: AttentionModelBase,
    texts: Sequence[Text],
    where: SitesByTest,
    options: Mapping[str, Options],
    pad_token_id: int,
    enough: float,
    measured: dict[object, int],
) -> Callable[[int], int]:
    """Bytes that a text of so many tokens takes in a batch, with some to spare.

    Measured is a text by itself at one place of each test: the longest one. A shorter one is
    taken to need as much; where that is more than ``enough``, the longest of at most the next
    power of two tokens is measured too. What is longer than all of them needs more by the square.

    Args:
        texts: those that batches will be made of, or a sample of them.
        where: the tests, each with its sites.
        options: of the tests, by name.
        enough: bytes of a text that still fill no budget.
        measured: what is known already, by tests and tokens; filled.
    """
    by_length = {text.n_tokens: text for text in texts}
    # All attention, else a layer, else the first head: whose edit takes the most memory.
    widest = {
        test: min(sites, key=lambda site: (site.head >= 0, site.layer >= 0))
        for test, sites in where.items()
        if sites
    }

    def taken(some: Sequence[Text]) -> int:
        with PeakMemory() as memory:
            observation = adapter.observe(collate(adapter, some, pad_token_id))
            for test, site in widest.items():
                with memory.of(MAX_PROFILED_OPERATIONS):
                    run_test(observation, test, site, options, seed=0)
        return int(MEMORY_SAFETY_FACTOR * memory.peak)

    def alone(n_tokens: int) -> int:
        key = (*widest, n_tokens)
        if key not in measured:
            [(_, measured[key])] = in_halves([by_length[n_tokens]], taken, name=describe_text)
        return measured[key]

    def size(n_tokens: int) -> int:
        most, longest = 1 << (n_tokens - 1).bit_length(), max(by_length)
        n_bytes = alone(longest)
        if n_tokens > longest:
            return int(n_bytes * (n_tokens / longest) ** 2)
        if n_bytes <= enough or longest <= most:
            return n_bytes
        longer = sorted(n for n in by_length if n >= n_tokens)
        return alone(max([n for n in longer if n <= most] or longer[:1]))

    return size


@dataclass
class BatchLimit:
    """What is known of the memory that there really is.

    Attributes:
        size: padded tokens of a batch that may fit; more did not.
    """

    size: float = math.inf

    def did_not_fit(self, halves: Sequence[Sequence[Text]]) -> None:
        """A batch was split into these, so that batches as large are not tried again."""
        self.size = min(self.size, max(len(half) * _count_longest_tokens(half) for half in halves))

    def at_once(self, texts: Sequence[Text]) -> int:
        """How many of the texts make no batch that is known to be too large."""
        return max(1, int(min(self.size / _count_longest_tokens(texts), len(texts))))


def _count_longest_tokens(texts: Sequence[Text]) -> int:
    return max(text.n_tokens for text in texts)


def run_and_save(sweep: AuditRunner, todo: SitesByTest, texts: Sequence[Text], room: BatchLimit) -> None:
    """Runs the tests on a batch and keeps its rows; on halves where memory runs out.

    Raises:
        AttnProbeError: a single text does not fit.
    """
    n = room.at_once(texts)
    keep = PartialWriter(sweep.folder, sweep.clock.now)

    def run(part: Sequence[Text]) -> pa.Table:
        done = finished_ids(sweep.folder) if keep.is_used else {}
        [(left, _)] = plan_batches(part, todo, done, lambda n: 0, sweep.budget, len(part))
        return sweep.rows_of(left, part, keep)

    parts = in_halves(
        texts,
        run,
        at_once=n,
        name=describe_text,
        split=room.did_not_fit,
    )
    for _, rows in parts:
        if rows.num_rows:  # else all are kept
            append_rows(sweep.folder, rows)


def _plan_pending_work(sweep: AuditRunner, where: SitesByTest, done: Done) -> list[WorkItem]:
    """The tests that are not done, with the texts that lack them, in batches."""
    is_alone = sweep.batch_size == 1  # then memory decides nothing
    enough = sweep.budget / sweep.batch_size
    size = (
        (lambda n_tokens: 0)
        if is_alone
        else make_memory_estimator(
            sweep.adapter,
            sweep.texts,
            where,
            sweep.options,
            sweep.pad_token_id,
            enough,
            sweep.measured,
        )
    )
    return plan_batches(sweep.texts, where, done, size, sweep.budget, sweep.batch_size)


def plan_batches(
    texts: Sequence[Text],
    where: SitesByTest,
    done: Done,
    bytes_per_text: Callable[[int], int],
    budget: int,
    batch_size: int,
) -> list[WorkItem]:
    """Batches of texts of similar length with the tests and sites still to run on them.

    Args:
        done: the ids of texts with rows, by test, layer and head.
        bytes_per_text, budget, batch_size: of :func:`form_batches`.
    """
    places = list_test_site_pairs(where)
    finished: dict[int, set[int]] = {}  # of a text the numbers of the places
    for k, (test, site) in enumerate(places):
        for example_id in done.get((test, site.layer, site.head), ()):
            finished.setdefault(example_id, set()).add(k)
    left: dict[frozenset[int], list[Text]] = {}
    for text in texts:
        left.setdefault(frozenset(finished.get(text.example_id, ())), []).append(text)
    work: list[WorkItem] = []
    for held, group in left.items():
        todo: dict[str, list[Site]] = {}
        for k, (test, site) in enumerate(places):
            if k not in held:
                todo.setdefault(test, []).append(site)
        if todo:
            batches = form_batches(group, bytes_per_text, budget, batch_size)
            work += [(todo, batch) for batch in batches]
    return work


def pick_warm_up_sites(sites: Sequence[Site]) -> Sequence[Site]:
    """The first site, which pays for what all share, and of heads and groups the middle."""
    heads = [site for site in sites[1:] if not site.is_group]
    groups = [site for site in sites[1:] if site.is_group]
    return [*sites[:1], *_pick_middle_site(heads), *_pick_middle_site(groups)]


def _pick_middle_site(sites: Sequence[Site]) -> Sequence[Site]:
    return sites[len(sites) // 2 :][:1]


def compute_prune_curve(sweep: AuditRunner, rows: Rows) -> PruneCurve | None:
    """Accuracy as heads are zero-ablated together, in the order of their own effect.

    Crossed: on either half of the texts in the order of the effects on the other half.

    Args:
        rows: of the audit.

    Returns:
        None where the effects were not measured on both halves, or heads cannot be
        ablated together.
    """
    effects = rows.of_heads("zero_tvd")
    lacks = sweep.adapter.lacks
    if effects.empty or lacks(MaskedReplay) or lacks(Decisions):
        return None
    parts, n_heads = [], []
    for half in (0, 1):
        of_others = effects[effects.index.map(assign_half) != half].mean().dropna()
        texts = [text for text in sweep.texts if assign_half(text.example_id) == half]
        if len(of_others) < 2 or not texts:
            return None
        parts.append((_collate_batches(sweep, texts), sort_sites_by_effect(of_others.to_dict())))
        n_heads.append(len(of_others))
    steps = range(N_PRUNE_STEPS + 1)
    points = sorted({round(k * min(n_heads) / N_PRUNE_STEPS) for k in steps})
    return measure_prune_curve(sweep.adapter, parts, n_removed=points)


def _collate_batches(sweep: AuditRunner, texts: Sequence[Text]) -> Iterator[Batch]:
    for _, some in _plan_pending_work(replace(sweep, texts=texts), {PREDICTION: [NO_SITE]}, {}):
        sweep.clock.tests_end("accuracy as heads are removed together")
        yield collate(sweep.adapter, some, sweep.pad_token_id)


def run_batch(
    adapter: AttentionModelBase,
    batch: Batch,
    where: SitesByTest,
    options: Mapping[str, Options],
    seed: int,
    tick: Callable[[], object] = lambda: None,
    keep: PartialWriter | None = None,
) -> pa.Table:
    """Rows of the given tests at the given sites, for one batch.

    Args:
        options: of the tests, by name; their defaults where they are not given.
        tick: called after each test at each site.
        keep: takes rows before all are there; they are not returned then.
    """
    observation = adapter.observe(batch)
    return compute_rows(observation, where, options, seed, tick, keep)


def compute_rows(
    observation: Observation,
    where: SitesByTest,
    options: Mapping[str, Options],
    seed: int,
    tick: Callable[[], object] = lambda: None,
    keep: PartialWriter | None = None,
) -> pa.Table:
    """Rows of the given tests at the given sites; see :func:`run_batch`."""
    ids = observation.batch.example_ids
    tables: list[pa.Table] = []
    has_many_sites = len(list_test_site_pairs(where)) > len(where)
    for name, sites in where.items():
        found = {}
        for site in sites:
            statistics = run_test(observation, name, site, options, seed=seed)
            found[site] = {key: value.detach().cpu() for key, value in statistics.items()}
            if has_many_sites:
                give_back_pages()
            tick()
            if keep is not None and keep.is_due:
                keep([*tables, to_rows(name, ids, found)])
                tables, found = [], {}
        if found:
            tables.append(to_rows(name, ids, found))
    return joined(tables)


def run_test(
    observation: Observation,
    name: str,
    site: Site,
    options: Mapping[str, Options],
    *,
    seed: int,
) -> dict[str, torch.Tensor]:
    """The statistics of a test at a site, or of the prediction, each [batch]."""
    if name == PREDICTION:
        return said_of(observation.model, observation.batch, observation.probs)
    test = load_tests()[name]
    given = options.get(name, test.options())
    return statistics_of(test.function(observation, site, given, seed=seed))
