"""The work of an audit that may stop: races, rounds and stages, and what came of them.

In haste answers come before numbers: with a time limit every place gets 30 texts, from which on
there is an answer, before any gets more, and a test that would not come to them waits.
``torch.compile`` is not used: it won 1 to 23% of plain passes on a processor and costs 16 to 40 s
(``benchmarks/README.md``).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from accelerate.utils import broadcast_object_list

from hf_attnprobe.attention_model import ALL, SET, AttentionModelBase, Site
from hf_attnprobe.auditing.selection import Choice, sites_by_test
from hf_attnprobe.auditing.stopping import Deadline, Limits
from hf_attnprobe.auditing.sweep import (
    Part,
    Sweep,
    beside,
    claimed_control,
    is_whole,
    of_verdict,
    read_by_verdict,
    run,
    run_missing,
    run_parts,
)
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.inference.batching import Where
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.options import Options
from hf_attnprobe.progress import in_words
from hf_attnprobe.statistics.estimates import mean_interval, simultaneous_interval
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.samples import random_order
from hf_attnprobe.statistics.stopping import (
    Standing,
    Stopping,
    standing,
    watched,
    widened,
    without_gaps,
)
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.storage.rows import NO_SITE, Done, Place, ids_by_place, read_part


RUNNERS = (("head_ablation", "zero_tvd"), ("uniform_attention", "uniform_tvd"))
"""By which heads are raced: the first test that runs, with its statistic."""
ESTIMATES = ("first_order_uniform", "first_order_zero")
"""Of the screen, which say where to look first."""
AT_ONCE = 10  # heads that are looked at together when time is short
LEFT_OUT = (
    "accuracy as heads are removed together",
    "texts shown with their scores",
    "the distance of erased texts from the data",
)
"""Of a report in haste, because it takes the model once more."""

# Shares of the time that is left when it is their turn.
FOR_PREDICTIONS = 0.15  # of all texts
FOR_ALL = 0.4  # all attention at first, later every group
FOR_MORE = 0.15  # more texts there, so that what is cheap is sure
FOR_SCREEN = 0.25
FOR_LAYERS = 0.6
FOR_FOREMOST = 0.6  # ten heads


# --- the rows so far -------------------------------------------------------------------


Decision = TypeVar("Decision")
Run = Callable[[Sequence[Text], Where, Done], None]
"""Runs tests at sites on texts, but for what is done."""


@dataclass
class RowsSoFar:
    """The rows on disk that a running audit decides by, read as they come.

    Attributes:
        folder: of the rows.
        texts: in the random order.
        stopping: how many texts there are, and the seed of their order.
        run_missing: does the work.
        done: ids of texts with rows, by test, layer and head.
    """

    folder: Path
    texts: Sequence[Text]
    stopping: Stopping
    run_missing: Run
    done: dict[Place, set[int]] = field(default_factory=dict, init=False)
    _ids: set[int] = field(init=False)
    _seen: set[str] = field(default_factory=set, init=False)
    _rows: list[pd.DataFrame] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._ids = {text.example_id for text in self.texts}

    def run(self, texts: Sequence[Text], where: Where) -> None:
        """Runs what is missing of some tests on some texts, and looks."""
        self.run_missing(texts, where, self.done)
        self.look()

    def agreed(self, decision: Decision) -> Decision:
        """The main process's decision, for all; clocks differ between processes."""
        decisions = [decision]
        broadcast_object_list(decisions)
        return decisions[0]

    def look(self) -> None:
        """Reads the parts that were added since the last look."""
        for part in sorted(self.folder.glob("part-*.parquet")):
            if part.name in self._seen:
                continue
            self._seen.add(part.name)
            rows = read_part(part)
            for place, ids in ids_by_place(rows).items():
                self.done.setdefault(place, set()).update(ids)
            self._rows.append(rows[rows.statistic.isin(self._kept(rows))])

    def _kept(self, rows: pd.DataFrame) -> list[str]:
        names = rows[["test", "statistic"]].drop_duplicates()
        by_test = names.groupby("test").statistic
        found = [watched(of_test, self.stopping) for _, of_test in by_test]
        return [*ESTIMATES, *(name for of_test in found for name in of_test)]

    def rows(self, test: str) -> pd.DataFrame:
        """Of a test the rows that decisions are made on, without gaps in the order."""
        parts = [rows[rows.test == test] for rows in self._rows]
        parts = [rows for rows in parts if len(rows)]
        if not parts:
            return pd.DataFrame()
        found = pd.concat(parts, ignore_index=True)
        return without_gaps(found, [text.example_id for text in self.texts])

    def ids(self, test: str, site: Site) -> set[int]:
        """Of the texts that a test has been run on at a site."""
        return self.done.get((test, site.layer, site.head), set())

    def lacks(self, test: str, site: Site, text: Text) -> bool:
        """Whether a test has not been run on a text at a site."""
        return text.example_id not in self.ids(test, site)

    def is_done(self, test: str, site: Site) -> bool:
        """Whether a test has been run on all texts at a site."""
        return self._ids <= self.ids(test, site)

    def lacking(self, test: str, sites: Sequence[Site]) -> list[Text]:
        """The texts, in their order, that a test has not been run on at some site."""
        everywhere = set.intersection(*(self.ids(test, site) for site in sites))
        return [text for text in self.texts if text.example_id not in everywhere]

    def n_done(self, where: Where) -> int:
        """Runs that are done: one test at one site on one text is a run."""
        return sum(
            len(self.ids(test, site) & self._ids) for test, sites in where.items() for site in sites
        )

    def tested(self, where: Where) -> list[Text]:
        """The texts that some test was run on at some site, in their order."""
        ids = {k for test, sites in where.items() for site in sites for k in self.ids(test, site)}
        return [text for text in self.texts if text.example_id in ids]


def rows_so_far(sweep: Sweep, n_heads: int) -> RowsSoFar:
    """What is on disk already, at the start.

    Args:
        n_heads: single heads that the audit may look at.
    """
    stopping = Stopping(
        n_texts=len(sweep.texts),
        seed=sweep.seed,
        n_heads=n_heads,
        is_number=sweep.adapter.prediction.is_number,
    )
    by_id = {text.example_id: text for text in sweep.texts}
    order = random_order(by_id, sweep.seed)

    def work(texts: Sequence[Text], where: Where, done: Done) -> None:
        # Rounds are small, and to measure memory in each would cost more than it saves.
        run_missing(replace(sweep, texts=texts, measures_memory=False), where, done)

    so_far = RowsSoFar(sweep.folder, [by_id[k] for k in order], stopping, work)
    so_far.look()
    return so_far


# --- rounds ----------------------------------------------------------------------------


FIRST_ROUND = 32
GROWTH = 0.5  # a round has half as many texts as all before it


def in_rounds(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """The texts cut into rounds that grow.

    >>> [len(texts) for texts in in_rounds(range(200))]
    [32, 32, 32, 48, 56]
    """
    start = 0
    while start < len(texts):
        size = max(FIRST_ROUND, int(start * GROWTH))
        yield texts[start : start + size]
        start += size


def run_until_narrow(so_far: RowsSoFar, where: Where, width: float | None) -> None:
    """Runs the tests round by round, each at its sites until the intervals are narrow.

    Args:
        width: how wide an interval may be; None: until all texts are done.
    """
    left = still_wide(so_far, where, width)
    for texts in in_rounds(so_far.texts):
        if not left:
            return
        so_far.run(texts, left)
        left = still_wide(so_far, left, width)


def still_wide(so_far: RowsSoFar, where: Where, width: float | None) -> dict[str, Sequence[Site]]:
    """The tests and sites with an interval that is wider, or not known yet."""
    left: dict[str, Sequence[Site]] = {}
    for test, sites in where.items():
        open_sites = [site for site in sites if not so_far.is_done(test, site)]
        if width is not None and open_sites:
            narrow = _narrow(so_far, test, width)
            open_sites = [site for site in open_sites if site[:2] not in narrow]
        if open_sites:
            left[test] = open_sites
    return left


def _narrow(so_far: RowsSoFar, test: str, width: float) -> set[tuple[int, int]]:
    """Where all intervals of a test are narrow enough: layers and heads."""
    rows = so_far.rows(test)
    if not len(rows) or test == "screen":
        return set()
    widest: dict[tuple[int, int], float] = {}
    for name, of_statistic in rows.groupby("statistic"):
        for place, found in interval_widths(of_statistic, str(name), so_far).items():
            widest[place] = max(widest.get(place, 0.0), found)
    return {place for place, found in widest.items() if found <= width}


def interval_widths(
    rows: pd.DataFrame, statistic: str, so_far: RowsSoFar
) -> dict[tuple[int, int], float]:
    """How wide the intervals of a statistic are as a report gives them, by site.

    Those of single heads are simultaneous. Infinite below ``MIN_TEXTS`` texts.
    """
    wide = rows.pivot(index="example_id", columns=["layer", "head"], values="value")
    single = np.array([min(place) >= 0 for place in wide.columns])
    found: dict[tuple[int, int], float] = {}
    for these, is_single in ((single, True), (~single, False)):
        values = wide.loc[:, these]
        if not values.shape[1]:
            continue
        table = values.to_numpy(dtype=np.float64)
        made = simultaneous_interval if is_single else mean_interval
        ends = widened(
            made(table),
            values,
            [so_far.stopping.bounds(statistic)] * values.shape[1],
            so_far.stopping,
            together=so_far.stopping.n_heads if is_single else 1,
        )
        enough = (~np.isnan(table)).sum(0) >= MIN_TEXTS
        sizes = np.where(enough, ends[1] - ends[0], np.inf)
        found |= dict(zip(map(tuple, values.columns), sizes.tolist(), strict=True))
    return found


def race(
    so_far: RowsSoFar,
    runner: tuple[str, str],
    sites: Sequence[Site],
    n_first: int,
    deadline: Deadline,
) -> Standing:
    """Runs one test at the heads until the first ones are singled out.

    Args:
        runner: the test, and its statistic by which heads are ranked.
        sites: the heads.
        n_first: how many are looked for.
        deadline: asked before each round.
    """
    test, _ = runner
    found = _standing(so_far, runner, sites, n_first)
    for texts in in_rounds(so_far.texts):
        left = [s for s, is_open in zip(sites, found.undecided, strict=True) if is_open]
        if not left or so_far.agreed(deadline.left <= 0):
            break
        so_far.run(texts, {test: left})
        found = _standing(so_far, runner, sites, n_first)
    return found


def _standing(
    so_far: RowsSoFar, runner: tuple[str, str], sites: Sequence[Site], n_first: int
) -> Standing:
    test, statistic = runner
    rows = so_far.rows(test)
    values = np.full((0, len(sites)), np.nan)
    if len(rows):  # in the random order
        own = rows[rows.statistic == statistic]
        wide = own.pivot(index="example_id", columns=["layer", "head"], values="value")
        order = [text.example_id for text in so_far.texts]
        places = pd.MultiIndex.from_tuples([site[:2] for site in sites])
        values = wide.reindex(index=order, columns=places).to_numpy(dtype=np.float64)
    bounds = so_far.stopping.bounds(statistic)
    assert bounds is not None  # who starts a race has asked
    return standing(values, n_first, so_far.stopping.n_texts, bounds=bounds)


# --- stages within a time ---------------------------------------------------------------

# The work in stages: all attention, then layers, the screen, then single heads, those that
# promise most first. A stage has a share of the time that is left. Within it the test goes
# next that would have taken the least time after its next few texts, so a cheap test is
# through with all texts before a dear one has had many. A test that would not come to as many
# texts as an answer needs waits for those that do. What a portion costs is known from those
# before it.


PARTS = 24  # a stage is cut into about so many portions
SHORTEST = 1.0  # seconds of a portion, where texts are left; less is overhead
CAUTION = 1.3  # portions vary; by so much more than its mean one may take


@dataclass(frozen=True)
class Stage:
    """Tests at sites that belong together.

    Attributes:
        where: the tests, each with its sites.
        share: of the time that is left when it begins.
        first: so many texts of each test are enough; None: all.
    """

    where: Where
    share: float
    first: int | None = None


@dataclass
class Rates:
    """Seconds per token and site of each test, as measured."""

    seconds: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, test: str, size: int, seconds: float) -> None:
        """A portion of so many tokens × sites took so long."""
        self.seconds[test] = self.seconds.get(test, 0.0) + seconds
        self.sizes[test] = self.sizes.get(test, 0) + size

    def predicted(self, test: str, size: int) -> float | None:
        """Seconds of a portion; None of a test that did not run yet."""
        if not self.sizes.get(test):
            return None
        return size * self.seconds[test] / self.sizes[test]


@dataclass(frozen=True)
class Portion:
    """One test at some sites on a few texts.

    Attributes:
        seconds: how long it should take.
        is_enough: whether in its stage the test comes to as many texts as an answer
            needs.
    """

    test: str
    sites: Sequence[Site]
    texts: Sequence[Text]
    seconds: float
    is_enough: bool = True


def size_of(texts: Sequence[Text], sites: Sequence[Site]) -> int:
    """Tokens × sites of a portion."""
    return sum(text.n_tokens for text in texts) * len(sites)


@dataclass
class Timetable:
    """Runs stages within a deadline.

    Attributes:
        batch_size: largest number of texts in a portion.
        width: of intervals that are narrow enough; None: there is no such.
        clock: seconds.
    """

    so_far: RowsSoFar
    deadline: Deadline
    batch_size: int
    width: float | None = None
    clock: Callable[[], float] = time.perf_counter
    rates: Rates = field(default_factory=Rates)

    def run(self, stages: Iterable[Stage]) -> None:
        """The stages one after the other, as far as the time goes.

        Args:
            stages: may be made as they are asked for, from what is known by then.
        """
        for stage in stages:
            self._run_stage(stage)
            if self.so_far.agreed(self.deadline.left <= 0):
                return

    def _run_stage(self, stage: Stage) -> None:
        budget = stage.share * max(self.deadline.left, 0.0)
        spent = dict.fromkeys(stage.where, 0.0)
        while True:
            left = min(budget - sum(spent.values()), self.deadline.left)
            portion = self.so_far.agreed(self._next(stage, spent, budget, left))
            if portion is None:
                return
            spent[portion.test] += self._run_portion(portion)

    def _next(
        self, stage: Stage, spent: dict[str, float], budget: float, left: float
    ) -> Portion | None:
        """The portion after which its test has had the least time; None where none fits."""
        if left <= 0:
            return None
        open_sites = still_wide(self.so_far, stage.where, self.width)
        portions = [
            self._portion(test, sites, max(budget / PARTS, SHORTEST), left, stage.first)
            for test, sites in open_sites.items()
        ]
        possible = [portion for portion in portions if portion is not None]
        return min(
            possible,
            key=lambda p: (not p.is_enough, spent[p.test] + p.seconds),
            default=None,
        )

    def _portion(
        self,
        test: str,
        sites: Sequence[Site],
        slice_: float,
        left: float,
        first: int | None,
    ) -> Portion | None:
        """A test's next texts: as many as fit a slice of time, at least one."""
        candidates = {text.example_id for text in self.so_far.texts[:first]}
        lacking_texts = self.so_far.lacking(test, sites)
        texts = [text for text in lacking_texts if text.example_id in candidates]
        if not texts:
            return None
        # All of these sites go on together, so that they have the same texts.
        lacking = [site for site in sites if self.so_far.lacks(test, site, texts[0])]
        one = self.rates.predicted(test, size_of(texts[:1], lacking[:1]))
        if one is None:
            return Portion(test, lacking[:1], texts[:1], 0.0)
        n_sites = min(len(lacking), int(left / (CAUTION * one) if one else 1e9))
        if not n_sites:
            return None
        lacking = lacking[:n_sites]
        slice_ = min(slice_, left / CAUTION)
        n_texts = max(1, int(slice_ / max(one * n_sites, 1e-9)))
        texts = texts[: min(n_texts, self.batch_size)]
        seconds = self.rates.predicted(test, size_of(texts, lacking)) or 0.0
        is_enough = self._needs(test, sites) <= left
        return Portion(test, lacking, texts, seconds, is_enough)

    def _needs(self, test: str, sites: Sequence[Site]) -> float:
        """Seconds until the test has the texts of an answer at all of these sites."""
        size = sum(
            text.n_tokens
            for text in self.so_far.texts[:MIN_TEXTS]
            for site in sites
            if self.so_far.lacks(test, site, text)
        )
        return self.rates.predicted(test, size) or 0.0

    def _run_portion(self, portion: Portion) -> float:
        """How long it took."""
        begun = self.clock()
        where = {PREDICTION: [NO_SITE], portion.test: portion.sites}
        self.so_far.run(portion.texts, where)
        taken = self.clock() - begun
        self.rates.add(portion.test, size_of(portion.texts, portion.sites), taken)
        return taken


# --- the work ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What was done, and what a report says of it.

    Attributes:
        parts: the heads that were tested, by texts, as a control repeats them.
        groups: groups of heads that were tested.
        facts: plain data for the report's provenance.
    """

    parts: list[Part]
    groups: Sequence[Site]
    facts: dict[str, Any] = field(default_factory=dict)


def runner_of(sweep: Sweep) -> tuple[str, str]:
    """The test, and its statistic, by which heads are raced.

    Raises:
        AttnProbeError: no such test runs, or changes of the output have no bound.
    """
    if sweep.adapter.prediction.is_number:
        raise AttnProbeError(
            "expected a model of classes for --top, changes of a predicted number have "
            "no bound to race by; use --screen"
        )
    for test, statistic in RUNNERS:
        if test in sweep.options:
            return test, statistic
    raise AttnProbeError(
        f"expected {' or '.join(test for test, _ in RUNNERS)} among the tests to race "
        f"the heads by, got {', '.join(sweep.options)}; add one with --tests"
    )


def run_until_sure(
    sweep: Sweep,
    choice: Choice,
    heads: Sequence[Site],
    limits: Limits,
    deadline: Deadline,
) -> Outcome:
    """Runs the tests of an audit until the limits let it stop.

    Args:
        heads: that are tested by themselves.
        limits: at least one.
        deadline: of the tests.
    """
    sweep.pace.estimate = deadline.left  # what it would say is of a full audit
    if limits.seconds is not None:
        sweep.pace.deadline = lambda: deadline.left
    so_far = rows_so_far(sweep, max(len(choice.sites), 1))
    names = list(sweep.options)
    everything = sites_by_test(names, sweep.adapter, heads, choice.groups)
    groups, facts = list(choice.groups), {}
    is_race = limits.n_first is not None and limits.n_first < len(heads)
    runner = runner_of(sweep) if is_race else None
    if limits.seconds is None:
        so_far.run(so_far.texts, {PREDICTION: [NO_SITE]})  # accuracy and classes of all texts
    if runner is not None and limits.n_first is not None:
        found = race(so_far, runner, heads, limits.n_first, deadline)
        facts["race"] = race_facts(found, heads, runner, so_far)
        groups = [g for g in groups if g.layer in (ALL, SET)]
        heads = [heads[k] for k in sorted(found.first())]
    where = sites_by_test(names, sweep.adapter, heads, groups)
    if limits.seconds is None:
        run_until_narrow(so_far, where, limits.width)
    else:
        timetable = Timetable(so_far, deadline, sweep.batch_size, limits.width)
        timetable.run(_stages(sweep, so_far, heads, groups))
        _check_begun(so_far, limits.seconds)
    hasty = {} if limits.seconds is None else _as_in_haste(sweep.options)
    facts |= work_facts(so_far, limits, everything, hasty)
    return Outcome([(so_far.tested(where), heads)], groups, facts)


def _check_begun(so_far: RowsSoFar, seconds: float) -> None:
    """Raises AttnProbeError where there is nothing to report on."""
    if not any(test != PREDICTION for test, _, _ in so_far.done):
        raise AttnProbeError(
            f"expected a time in which some test can begin, {in_words(seconds)} were up "
            "before; give more with --time"
        )


def _stages(
    sweep: Sweep, so_far: RowsSoFar, heads: Sequence[Site], groups: Sequence[Site]
) -> Iterator[Stage]:
    """What answers come of first: of few texts, at the places that matter most.

    Predictions; then all attention, the layers and the foremost ten heads, each with as
    many texts as an answer needs; then more texts there, the other heads, and the rest.
    """
    names = [name for name in sweep.options if name != "screen"]

    def where(sites: Sequence[Site], groups: Sequence[Site]) -> Where:
        return sites_by_test(names, sweep.adapter, sites, groups)

    yield Stage({PREDICTION: [NO_SITE]}, FOR_PREDICTIONS)
    whole = [g for g in groups if g.layer in (ALL, SET)]
    layers = [g for g in groups if g not in whole]
    if whole:
        yield Stage(where([], whole), FOR_ALL, first=MIN_TEXTS)
        yield Stage(where([], whole), FOR_MORE)
    if heads and "screen" in sweep.options:
        yield Stage(sites_by_test(["screen"], sweep.adapter, heads), FOR_SCREEN)
    ranked = by_promise(so_far.rows("screen"), heads)
    foremost = ranked[:AT_ONCE]
    if layers:
        yield Stage(where([], layers), FOR_LAYERS, first=MIN_TEXTS)
    if foremost:
        yield Stage(where(foremost, []), FOR_FOREMOST, first=MIN_TEXTS)
    if groups:
        yield Stage(where([], groups), FOR_ALL)
    for start in range(0, len(ranked), AT_ONCE):
        yield Stage(where(ranked[start : start + AT_ONCE], []), FOR_FOREMOST)
    every = sites_by_test(list(sweep.options), sweep.adapter, heads, groups)
    yield Stage(every, 1.0)


def by_promise(estimates: pd.DataFrame, heads: Sequence[Site]) -> list[Site]:
    """The heads, those with the largest first-order effects first.

    Args:
        estimates: rows of the screen; without any the heads stay in their order.
    """
    if not len(estimates):
        return list(heads)
    own = estimates[estimates.statistic.isin(ESTIMATES)]
    effects = own.groupby(["layer", "head"]).value.mean().to_dict()
    return sorted(heads, key=lambda site: (-effects.get(site[:2], 0.0), site))


def _as_in_haste(chosen: Mapping[str, Options]) -> dict[str, dict[str, Any]]:
    """By test the options that it has in haste, where they are not the default ones."""
    found = {}
    for name, options in chosen.items():
        test = tests()[name]
        if options == test.in_haste:
            usual, here = asdict(test.options()), asdict(options)
            found[name] = {k: v for k, v in here.items() if v != usual[k]}
    return found


def work_facts(
    so_far: RowsSoFar,
    limits: Limits,
    everything: Where,
    in_haste: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """How much was done of what a full audit does, and what was to stop it.

    Args:
        in_haste: by test the options that it has in haste.
    """
    n_full = sum(len(sites) for sites in everything.values()) * len(so_far.texts)
    return {
        "limits": {k: v for k, v in asdict(limits).items() if v is not None},
        "runs_done": so_far.n_done(everything),
        "runs_of_full_audit": n_full,
        "left_out": list(LEFT_OUT) if limits.seconds is not None else [],
        "in_haste": in_haste,
        "order": asdict(so_far.stopping),
    }


def race_facts(
    found: Standing, heads: Sequence[Site], runner: tuple[str, str], so_far: RowsSoFar
) -> dict[str, Any]:
    """Who came in first, who is decided, and on how many texts."""
    test, statistic = runner
    sizes = [len(so_far.ids(test, site)) for site in heads]
    first = found.first()
    low, high = found.bands

    def names(which: Sequence[int]) -> list[str]:
        return [f"{heads[k].layer}.{heads[k].head}" for k in which]

    return {
        "statistic": statistic,
        "n_heads": len(heads),
        "first": names(first),
        "surely_first": names([k for k in first if found.inside[k]]),
        "undecided": names([k for k in range(len(heads)) if found.undecided[k]]),
        "means": [float(found.means[k]) for k in first],
        "intervals": [[float(low[k]), float(high[k])] for k in first],
        "texts": [min(sizes, default=0), max(sizes, default=0)],
    }


def repeat_on_control(
    sweep: Sweep,
    controls: Sequence[AttentionModelBase],
    outcome: Outcome,
    limits: Limits,
    deadline: Deadline,
    kind: str,
) -> None:
    """Runs every draw of the control, as far as the time goes.

    Args:
        sweep: of the audit.
        controls: the draws.
        kind: of control, in words.
    """
    texts = [text for part, _ in outcome.parts for text in part]
    for draw, control in enumerate(controls):
        other = replace(beside(sweep, control, draw), texts=texts)
        where = of_verdict(other.adapter, other.options, outcome.groups)
        in_haste = limits.seconds is not None
        everything = is_whole(control, draw) and not in_haste
        if not everything and not (where and texts):
            continue
        with claimed_control(other, kind):
            if everything:
                run_parts(other, outcome.parts, outcome.groups, done="screen")
            elif in_haste:
                other = replace(other, options=read_by_verdict(other.options))
                timetable = Timetable(rows_so_far(other, n_heads=1), deadline, sweep.batch_size)
                timetable.run([Stage(where, 1.0)])
            else:
                run(other, where)
