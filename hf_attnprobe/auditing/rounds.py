"""The work of an audit: rounds of texts over the places still open, until a rule says stop.

Texts come in a fixed random order, what an answer rests on first. With ``--time`` answers
come before numbers, so all attention gets as many texts as the measured costs allow before any
layer or head is looked at. ``torch.compile`` is not used: it won 1 to 23% of plain passes on a
processor and costs 16 to 40 s (``benchmarks/README.md``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from accelerate.utils import broadcast_object_list

from hf_attnprobe.attention_model import ALL, SET, Site
from hf_attnprobe.auditing.clock import Clock, steps_of
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.selection import Choice, crossed, sites_by_test
from hf_attnprobe.auditing.sweep import (
    Part,
    Sweep,
    Where,
    Work,
    few_sites,
    run_missing,
    work_left,
)
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.inference.batching import by_length
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.options import Options
from hf_attnprobe.progress import in_words
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.questions import EVERY_QUESTION
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.samples import random_order
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.storage.provenance import SUMMARY
from hf_attnprobe.storage.rows import (
    NO_SITE,
    Done,
    Parts,
    Place,
    finished_ids,
    parts_in,
    places_of,
    read_part,
    rows_in,
)


ESTIMATES = ("first_order_uniform", "first_order_zero")
"""Of the screen, which say where to look first."""
LEFT_OUT = (
    "accuracy as heads are removed together",
    "texts shown with their scores",
    "the distance of erased texts from the data",
)
"""Of a report in haste, because it takes the model once more."""


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
        run_missing: does the work.
        done: ids of texts with rows, by test, layer and head.
    """

    folder: Path
    texts: Sequence[Text]
    run_missing: Run
    done: dict[Place, set[int]] = field(init=False)
    _seen: set[Path] = field(default_factory=set, init=False)
    _parts: Parts = field(default_factory=Parts, init=False)

    def __post_init__(self) -> None:
        self.done = finished_ids(self.folder)

    def run(self, texts: Sequence[Text], where: Where) -> None:
        """Runs what is missing of some tests on some texts, and of the predictions."""
        self.run_missing(texts, {**where, PREDICTION: [NO_SITE]}, self.done)

    def agreed(self, decision: Decision) -> Decision:
        """The main process's decision, for all; clocks differ between processes."""
        decisions = [decision]
        broadcast_object_list(decisions)
        return decisions[0]

    def look(self) -> None:
        """Reads the parts that were added since the last look."""
        for part in (part for part in parts_in(self.folder) if part not in self._seen):
            self._seen.add(part)
            rows = read_part(part)
            for place, ids in places_of(rows).items():
                self.done.setdefault(place, set()).update(ids)
            self._parts.add(rows)

    def ids(self, test: str, site: Site) -> set[int]:
        """Of the texts that a test has been run on at a site."""
        return self.done.get((test, site.layer, site.head), set())

    def lacks(self, where: Where, text: Text) -> bool:
        """Whether some test has not been run on a text at some site."""
        places = [(test, site) for test, sites in where.items() for site in sites]
        return any(text.example_id not in self.ids(*place) for place in places)

    def n_done(self, where: Where) -> int:
        """Runs that are done: one test at one site on one text is a run."""
        known = {text.example_id for text in self.texts}
        places = [(test, site) for test, sites in where.items() for site in sites]
        return sum(len(self.ids(*place) & known) for place in places)

    def tested(self, where: Where) -> list[Text]:
        """The texts that some test was run on at some site, in their order."""
        places = [(test, site) for test, sites in where.items() for site in sites]
        ids = {k for place in places for k in self.ids(*place)}
        return [text for text in self.texts if text.example_id in ids]


def rows_so_far(sweep: Sweep, *, tell: bool = False) -> RowsSoFar:
    """What is on disk already, at the start.

    Args:
        tell: whether a first round tells how long all will take.
    """
    by_id = {text.example_id: text for text in sweep.texts}
    order = random_order(by_id, sweep.seed)

    def work(texts: Sequence[Text], where: Where, done: Done) -> None:
        run_missing(replace(sweep, texts=texts), where, done, tell=tell)

    texts = [by_id[k] for k in order]
    return RowsSoFar(sweep.folder, texts, work)


# --- rounds, and the rules that end them ------------------------------------------------


# --- within a time ----------------------------------------------------------------------

# How many texts a test gets is chosen from what they cost and from nothing else, so that the clock
# looks at no result. The cheap tests come first; a test that would not come to as many texts as an
# answer needs is left out, and what is dear by itself, erasure and search, is so the last.


SEARCHES = ("adversarial", "erasure")
"""Tests that try many edits of each text, and come last."""
ENOUGH = 60  # texts that decide most questions that can be decided
AT_ONCE = 10  # heads that are looked at together
SLICES = 24  # the time of a stage is cut into about so many portions
SHORTEST = 1.0  # seconds of a portion, where texts are left; less is overhead
CAUTION = 1.3  # portions vary; by so much more than expected one may take
TRIED = (1, 3)  # texts that tell what a test costs
QUICK = 0.02  # of the time that is left: a second try that costs less is worth it

# Shares of the time that is left when it is their turn.
FOR_PREDICTIONS = 0.15  # of all texts
FOR_ALL = 0.85  # all attention
FOR_SCREEN = 0.25
FOR_LAYERS = 0.6
FOR_FOREMOST = 0.6  # ten heads


@dataclass(frozen=True)
class Stage:
    """Tests at sites that belong together.

    Attributes:
        where: the tests, each with its sites.
        share: of the time that is left when it begins.
        first: so many texts of each test are enough; None: all.
    """

    where: Where
    share: float = 1.0
    first: int | None = None

    def goals(self, n_texts: int) -> Iterator[int]:
        """Numbers of texts that one test after the other comes to."""
        goal = self.first or ENOUGH
        yield min(goal, n_texts)
        while self.first is None and goal < n_texts:
            goal *= 2
            yield min(goal, n_texts)


@dataclass
class Timetable:
    """Runs stages within the time of a clock.

    Attributes:
        so_far: the rows on disk.
        batch_size: largest number of texts in a portion.
    """

    so_far: RowsSoFar
    clock: Clock
    batch_size: int

    def run(self, stages: Iterable[Stage]) -> None:
        """The stages one after the other, as far as the time goes.

        Args:
            stages: may be made as they are asked for, from what is known by then.
        """
        for stage in stages:
            self._run_stage(stage)
            if self.so_far.agreed(self.clock.left <= 0):
                return

    def _run_stage(self, stage: Stage) -> None:
        end = self.clock.left * (1 - stage.share)
        for test, sites in stage.where.items():
            if sites and not self.so_far.agreed(self.clock.knows(test)):
                self._try(test, sites, end)
        for goal in stage.goals(len(self.so_far.texts)):
            for test in self._cheap_first(stage.where, goal):
                for n in sorted({goal, min(goal, MIN_TEXTS)}, reverse=True):
                    sites = stage.where[test]
                    if self._fits(test, sites, self._lacking(test, sites, n), end):
                        self._bring(test, sites, n, end)
                        break
        if stage.first is None:  # with the rest of the time what does not fit as a whole
            n_texts = len(self.so_far.texts)
            for test in self._cheap_first(stage.where, n_texts):
                self._bring(test, stage.where[test], n_texts, end)

    def _lacking(self, test: str, sites: Sequence[Site], n: int) -> list[Text]:
        """Of the first n texts those on which the test is left to run."""
        where = {test: sites}
        return [text for text in self.so_far.texts[:n] if self.so_far.lacks(where, text)]

    def _expects(self, test: str, sites: Sequence[Site], texts: Sequence[Text]) -> float:
        """Seconds of a test on some texts."""
        texts, n = by_length(texts), self.batch_size
        batches = [texts[start : start + n] for start in range(0, len(texts), n)]
        return self.clock.expects(steps_of([({test: sites}, batch) for batch in batches]))

    def _fits(self, test: str, sites: Sequence[Site], texts: Sequence[Text], end: float) -> bool:
        """Whether there is time for a test on some texts."""
        return self.so_far.agreed(self._expects(test, sites, texts) <= self.clock.left - end)

    def _cheap_first(self, where: Where, n_texts: int) -> list[str]:
        """The tests, that with the least seconds a text first, and searches last.

        Above :data:`ENOUGH` texts those come first that an answer rests on.
        """
        text, more = self.so_far.texts[:1], n_texts > ENOUGH
        asked = {question.test for question in EVERY_QUESTION.values()}

        def place(test: str) -> tuple[bool, bool, float]:
            is_besides = more and test not in asked
            return is_besides, test in SEARCHES, self._expects(test, where[test], text)

        return self.so_far.agreed(sorted(where, key=place))

    def _try(self, test: str, sites: Sequence[Site], end: float) -> None:
        """Runs a test whose cost is not known on a few texts, which the clock measures."""
        few, start = few_sites(sites), 0
        for n in TRIED:
            texts = self.so_far.texts[start : start + n]
            is_quick = self._expects(test, few, texts) <= QUICK * self.clock.left
            if not texts or not self.so_far.agreed(
                self.clock.left > end and (is_quick or not start)
            ):
                return
            self._run(texts, {test: few})
            start += n

    def _bring(self, test: str, sites: Sequence[Site], n_texts: int, end: float) -> None:
        """Runs a test portion by portion on the first texts, while there is time."""
        slice_ = max((self.clock.left - end) / SLICES, SHORTEST)
        while texts := self._lacking(test, sites, n_texts):
            one = max(self._expects(test, sites, texts[:1]), 1e-9)
            room = min((self.clock.left - end) / CAUTION, slice_)
            n = self.so_far.agreed(min(int(room / one), self.batch_size))
            if n < 1 and not self._fits(test, sites, texts[:1], end):
                return
            self._run(texts[: max(n, 1)], {test: sites})

    def _run(self, texts: Sequence[Text], where: Where) -> None:
        self.so_far.run(texts, where)
        self.so_far.look()


def stages(
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
    single = heads if len(sweep.adapter.sites()) == 1 else []
    if whole or single:
        yield Stage(where(single, whole), FOR_ALL, first=ENOUGH)
    if heads and "screen" in sweep.options:
        yield Stage(sites_by_test(["screen"], sweep.adapter, heads), FOR_SCREEN)
    ranked = by_promise(rows_in(sweep.folder, "screen"), heads)
    foremost = ranked[:AT_ONCE]
    if layers:
        yield Stage(where([], layers), FOR_LAYERS, first=MIN_TEXTS)
    if foremost:
        yield Stage(where(foremost, []), FOR_FOREMOST, first=MIN_TEXTS)
    if whole or single:
        yield Stage(where(single, whole), FOR_ALL)
    if groups:
        yield Stage(where([], groups), FOR_LAYERS)
    for start in range(0, len(ranked), AT_ONCE):
        yield Stage(where(ranked[start : start + AT_ONCE], []), FOR_FOREMOST)
    yield Stage(sites_by_test(list(sweep.options), sweep.adapter, heads, groups))


def by_promise(estimates: Rows, heads: Sequence[Site]) -> list[Site]:
    """The heads, those with the largest first-order effects first.

    Args:
        estimates: rows of the screen; without any the heads stay in their order.
    """
    if not len(estimates):
        return list(heads)
    of_heads = pd.concat([estimates.of_heads(name) for name in ESTIMATES])
    effects = of_heads.mean().to_dict()
    return sorted(heads, key=lambda site: (-effects.get(site[:2], 0.0), site))


# --- the work ----------------------------------------------------------------------------


def run_tests(
    sweep: Sweep, choice: Choice, options: AuditOptions, limit: float | None
) -> dict[str, Any]:
    """Runs the tests of an audit within its time.

    With ``screen`` only at the heads with the largest estimates: they are chosen for one half of
    the texts by the estimates on the other half. Groups of heads are tested whatever it says.

    Returns:
        What a limit left undone, plain data for the report's provenance; nothing without one.
    """
    names, groups = [*sweep.options], [*choice.groups]
    heads = choice.heads
    so_far = rows_so_far(sweep, tell=limit is None)
    everything = sites_by_test(names, sweep.adapter, heads, groups)
    if limit is not None:
        was_seen = (sweep.folder.parent / SUMMARY).is_file()
        timetable = Timetable(so_far, sweep.clock, sweep.batch_size)
        timetable.run(stages(sweep, so_far, heads, groups))
        _check_begun(so_far, limit)
        so_far.look()
        return work_facts(
            so_far, limit, everything, sweep.options, seed=sweep.seed, was_seen=was_seen
        )
    parts: Sequence[Part] = [(so_far.texts, heads)]
    if options.screen is not None:
        so_far.run(so_far.texts, sites_by_test(["screen"], sweep.adapter, heads))
        estimates = rows_in(sweep.folder, "screen")
        parts = crossed(sweep.texts, estimates, heads, options.screen)
        names.remove("screen")
    for texts, sites in parts:
        so_far.run(texts, sites_by_test(names, sweep.adapter, sites, groups))
    return {}


def _check_begun(so_far: RowsSoFar, seconds: float) -> None:
    """Raises AttnProbeError where there is nothing to report on."""
    if not any(test != PREDICTION for test, _, _ in so_far.done):
        raise AttnProbeError(
            f"expected a time in which some test can begin, {in_words(seconds)} were up "
            "before; give more with --time"
        )


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
    limit: float,
    everything: Where,
    options: Mapping[str, Options],
    *,
    seed: int,
    was_seen: bool,
) -> dict[str, Any]:
    """How much was done of what a full audit does, and what was to stop it.

    Args:
        options: of the tests, by name.
        was_seen: whether somebody saw a report of this folder before.
    """
    n_full = sum(len(sites) for sites in everything.values()) * len(so_far.texts)
    return {
        "limits": {"seconds": limit},
        "runs_done": so_far.n_done(everything),
        "runs_of_full_audit": n_full,
        "left_out": list(LEFT_OUT),
        "in_haste": _as_in_haste(options),
        "n_texts": len(so_far.texts),
        "seed": seed,
        "looked": was_seen,
    }


def work_of(sweep: Sweep, choice: Choice, options: AuditOptions) -> list[Work]:
    """All batches that are left of an audit without a limit.

    With a screen nobody knows the heads yet that it puts first; others stand for them.
    """
    heads, names = choice.heads, [*sweep.options]
    left: list[Work] = []
    if options.screen is not None:
        left = work_left(sweep, sweep.texts, sites_by_test(["screen"], sweep.adapter, heads))
        names.remove("screen")
        heads = heads[:: max(len(heads) // options.screen, 1)][: options.screen]
    where = sites_by_test(names, sweep.adapter, heads, choice.groups)
    return [*left, *work_left(sweep, sweep.texts, where)]
