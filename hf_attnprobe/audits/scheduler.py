"""The work of an audit: texts in a fixed random order, and within a time what matters most first.

With ``--time`` all attention gets its texts before any layer or head is looked at, and what the
verdict rests on before all else, until the clock says stop. ``torch.compile`` is not used: it won
1 to 23% of plain passes on a processor (torch 2.13, two cores) and took 16 to 40 s to compile.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from typing import Any, TypeVar

from accelerate.utils import broadcast_object_list

from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.runner import (
    AuditRunner,
    Clock,
    SitesByTest,
    list_test_site_pairs,
    run_pending,
    list_steps,
)
from hf_attnprobe.audits.site_selection import (
    TestSelection,
    sort_by_screen,
    assign_screened_sites,
    list_sites_by_test,
)
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import in_portions
from hf_attnprobe.core.progress import in_words
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import (
    ALL,
    HEAD_SET,
    AnswersFromPassage,
    Site,
)
from hf_attnprobe.statistics.estimates import MIN_SHOWN
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.questions import EVERY_QUESTION
from hf_attnprobe.statistics.sampling import random_order
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.storage.rows import (
    NO_SITE,
    Done,
    Place,
    finished_ids,
    rows_in,
)


# --- the rows so far -------------------------------------------------------------------


Decision = TypeVar("Decision")
RunTests = Callable[[Sequence[Text], SitesByTest, Done], None]
"""Runs tests at sites on texts, but for what is done."""


@dataclass
class CompletedWork:
    """The rows on disk that a running audit decides by.

    Attributes:
        folder: of the rows.
        texts: in the random order.
        run_missing: does the work.
        done: ids of texts with rows, by test, layer and head.
    """

    folder: Path
    texts: Sequence[Text]
    run_missing: RunTests
    done: dict[Place, set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.done = finished_ids(self.folder)

    def run(self, texts: Sequence[Text], where: SitesByTest) -> None:
        """Runs what is missing of some tests on some texts, and of the predictions."""
        every = {**where, PREDICTION: [NO_SITE]}
        self.run_missing(texts, every, self.done)
        for place in list_test_site_pairs(every):
            self.ids(*place).update(text.example_id for text in texts)

    def agreed(self, decision: Decision) -> Decision:
        """The main process's decision, for all; clocks differ between processes."""
        decisions = [decision]
        broadcast_object_list(decisions)
        return decisions[0]

    def ids(self, test: str, site: Site) -> set[int]:
        """Of the texts that a test has been run on at a site."""
        return self.done.setdefault((test, site.layer, site.head), set())

    def is_missing(self, where: SitesByTest, text: Text) -> bool:
        """Whether some test has not been run on a text at some site."""
        held = (self.ids(*place) for place in list_test_site_pairs(where))
        return any(text.example_id not in ids for ids in held)

    def n_done(self, where: SitesByTest) -> int:
        """Runs that are done: one test at one site on one text is a run."""
        known = {text.example_id for text in self.texts}
        return sum(len(self.ids(*place) & known) for place in list_test_site_pairs(where))


def load_completed_work(sweep: AuditRunner) -> CompletedWork:
    """What is on disk already, at the start."""
    by_id = {text.example_id: text for text in sweep.texts}
    order = random_order(by_id, sweep.seed)

    def work(texts: Sequence[Text], where: SitesByTest, done: Done) -> None:
        run_pending(replace(sweep, texts=texts), where, done)

    texts = [by_id[k] for k in order]
    return CompletedWork(sweep.folder, texts, work)


# --- within a time ----------------------------------------------------------------------

# How many texts a test gets is chosen from what they cost and from nothing else, so that the clock
# looks at no result and intervals are those of as many texts.


FIRST_GOAL = MIN_TEXTS
"""Texts without which nothing is answered: so many everywhere, then twice as many."""
PREDICTION_FACTOR = 4
"""Times as many texts are predicted: accuracy takes more of them to tell, and one pass of each."""
HEADS_PER_TURN = 10  # heads that are looked at together
TIME_SAFETY_FACTOR = 1.3  # portions vary; by so much more than expected one may take


def run_within_time(
    so_far: CompletedWork,
    clock: Clock,
    turns: Callable[[], Iterable[SitesByTest]],
    batch_size: int,
) -> None:
    """Runs tests on the first texts of the random order, then on twice as many, while there is time.

    Args:
        so_far: the rows on disk.
        clock: with a limit.
        turns: the tests at sites in their order, what matters most first; made anew in each
            round, from what is known by then.
        batch_size: largest number of texts in a portion.
    """
    goal, n_texts = FIRST_GOAL, len(so_far.texts)
    bring = partial(_run_in_portions, so_far, clock, batch_size)
    while True:
        for where in turns():
            for test in where:  # one text tells what a test costs
                if not so_far.agreed(clock.knows(test)):
                    own = {test: where[test]}
                    lacking = [t for t in so_far.texts if so_far.is_missing(own, t)]
                    bring(own, lacking[:1])
            for test in _sort_by_cost(so_far, clock, where):
                n = goal * PREDICTION_FACTOR if test == PREDICTION else goal
                bring({test: where[test]}, so_far.texts[:n])
        if goal >= n_texts or so_far.agreed(clock.left <= 0):
            return
        goal *= 2


def _sort_by_cost(so_far: CompletedWork, clock: Clock, where: SitesByTest) -> list[str]:
    """The tests: the cheapest first."""
    text = so_far.texts[:1]

    def cost(test: str) -> float:
        return clock.expects(list_steps([({test: where[test]}, text)]))

    return so_far.agreed(sorted((test for test in where if where[test]), key=cost))


def _run_in_portions(
    so_far: CompletedWork,
    clock: Clock,
    batch_size: int,
    where: SitesByTest,
    texts: Sequence[Text],
) -> None:
    """Runs a test portion by portion on the texts that lack it, while there is time.

    Without time for as many texts as have a number it is not begun. Each text is expected to
    take as long as its own length says: texts of one portion differ tenfold.
    """
    (test,) = where
    lacking = [text for text in texts if so_far.is_missing(where, text)]
    while lacking:
        unshown = MIN_SHOWN - (len(texts) - len(lacking))
        least = max(1, min(unshown, len(lacking)))
        portion = lacking[: max(batch_size, least)]
        taken = accumulate(clock.expects(list_steps([(where, [text])])) for text in portion)
        room = clock.left / TIME_SAFETY_FACTOR if clock.knows(test) else clock.left
        n = so_far.agreed(sum(room > 0 and all_so_far <= room for all_so_far in taken))
        if n < least:
            return
        some = lacking[: min(n, batch_size)]
        so_far.run(some, where)
        lacking = lacking[len(some) :]


def list_tests_with_role(role: str) -> set[str]:
    """The tests that are read by the questions with a role in the verdict."""
    return {asked.test for asked in EVERY_QUESTION.values() if asked.role == role}


def plan_turns(
    sweep: AuditRunner, heads: Sequence[Site], groups: Sequence[Site]
) -> Callable[[], Iterator[SitesByTest]]:
    """What answers come of first.

    Whether a classifier is right; all attention with what the verdict rests on, then how
    faithful each head is; what else there is of all attention, then what each head does;
    layers, and the rest of heads. Heads come by their promise, all of them for one test before
    the next.
    """
    names = [name for name in sweep.options if name != "screen"]
    whole = [group for group in groups if group.layer in (ALL, HEAD_SET)]
    layers = [group for group in groups if group not in whole]
    only = heads if len(sweep.adapter.sites()) == 1 else []
    scores, effects, parts = (
        [name for name in names if name in list_tests_with_role(role)] for role in ("score", "effect", "part")
    )
    deciding = {*scores, *effects, *parts}
    others = [name for name in names if name not in deciding]

    def of_heads(tests: Iterable[str]) -> Iterator[SitesByTest]:
        ranked = sort_by_screen(rows_in(sweep.folder, "screen"), heads)
        for test, ten in product(tests, in_portions(ranked, HEADS_PER_TURN)):
            yield list_sites_by_test([test], sweep.adapter, ten)

    def turns() -> Iterator[SitesByTest]:
        if sweep.adapter.is_missing(AnswersFromPassage):
            yield {PREDICTION: [NO_SITE]}
        yield list_sites_by_test(sorted(deciding), sweep.adapter, only, whole)
        if not only:
            screens = [name for name in sweep.options if name == "screen"]
            yield list_sites_by_test(screens, sweep.adapter, heads)
            yield from of_heads(scores)
        yield list_sites_by_test(others, sweep.adapter, only, whole)
        if not only:
            yield from of_heads(effects)
            yield list_sites_by_test(names, sweep.adapter, [], layers)
            yield from of_heads(names)

    return turns


# --- the work ----------------------------------------------------------------------------


def run_tests(
    sweep: AuditRunner, choice: TestSelection, options: AuditOptions, limit: float | None
) -> dict[str, Any]:
    """Runs the tests of an audit within its time.

    With ``screen`` only at the heads with the largest estimates: they are chosen for one half of
    the texts by the estimates on the other half. Groups of heads are tested whatever it says.

    Returns:
        What a limit left undone, plain data for the report's provenance; nothing without one.
    """
    names, groups = [*sweep.options], [*choice.groups]
    heads = choice.heads
    so_far = load_completed_work(sweep)
    everything = list_sites_by_test(names, sweep.adapter, heads, groups)
    if limit is not None:
        turns = plan_turns(sweep, heads, groups)
        run_within_time(so_far, sweep.clock, turns, sweep.batch_size)
        _check_any_test_ran(so_far, limit)
        return summarise_work(so_far, limit, everything, sweep.seed)
    parts: Sequence[tuple[Sequence[Text], Sequence[Site]]] = [(so_far.texts, heads)]
    if options.screen is not None:
        so_far.run(so_far.texts, list_sites_by_test(["screen"], sweep.adapter, heads))
        estimates = rows_in(sweep.folder, "screen")
        parts = assign_screened_sites(sweep.texts, estimates, heads, options.screen)
        names.remove("screen")
    for texts, sites in parts:
        so_far.run(texts, list_sites_by_test(names, sweep.adapter, sites, groups))
    return {}


def _check_any_test_ran(so_far: CompletedWork, seconds: float) -> None:
    """Raises AttnProbeError where there is nothing to report on."""
    begun = {test for (test, *_), ids in so_far.done.items() if ids}
    if not begun - {PREDICTION}:
        raise AttnProbeError(
            f"expected a time in which some test can begin, {in_words(seconds)} were up "
            "before; give more with --time"
        )


def summarise_work(so_far: CompletedWork, limit: float, everything: SitesByTest, seed: int) -> dict[str, Any]:
    """How much was done of what a full audit does, and what was to stop it."""
    n_full = sum(len(sites) for sites in everything.values()) * len(so_far.texts)
    return {
        "seconds": limit,
        "runs_done": so_far.n_done(everything),
        "runs_of_full_audit": n_full,
        "n_texts": len(so_far.texts),
        "seed": seed,
    }
