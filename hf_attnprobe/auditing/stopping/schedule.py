"""What to do first when time is short.

The work of an audit in stages: all attention, then layers, the screen, then single heads,
those that promise most first. A stage has a share of the time that is left. Within it the
test goes next that would have taken the least time after its next few texts, so a cheap
test is through with all texts before a dear one has had many. A test that would not come
to as many texts as an answer needs waits for those that do. What a step costs is known
from the steps before it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hf_attnprobe.attention_model import Site
from hf_attnprobe.auditing.stopping.known import Known
from hf_attnprobe.auditing.stopping.limits import Deadline
from hf_attnprobe.auditing.stopping.rounds import still_wide
from hf_attnprobe.inference.batching import Where
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.statistics.verdicts import MIN_TEXTS
from hf_attnprobe.storage.rows import NO_SITE


PARTS = 24  # a stage is cut into about so many steps
SHORTEST = 1.0  # seconds of a step, where texts are left; less is overhead
CAUTION = 1.3  # steps vary; by so much more than its mean one may take


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
        """A step of so many tokens × sites took so long."""
        self.seconds[test] = self.seconds.get(test, 0.0) + seconds
        self.sizes[test] = self.sizes.get(test, 0) + size

    def predicted(self, test: str, size: int) -> float | None:
        """Seconds of a step; None of a test that did not run yet."""
        if not self.sizes.get(test):
            return None
        return size * self.seconds[test] / self.sizes[test]


@dataclass(frozen=True)
class Step:
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
    """Tokens × sites of a step."""
    return sum(text.n_tokens for text in texts) * len(sites)


@dataclass
class Timetable:
    """Runs stages within a deadline.

    Attributes:
        batch_size: largest number of texts in a step.
        width: of intervals that are narrow enough; None: there is no such.
        clock: seconds.
    """

    known: Known
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
            if self.known.agreed(self.deadline.left <= 0):
                return

    def _run_stage(self, stage: Stage) -> None:
        budget = stage.share * max(self.deadline.left, 0.0)
        spent = dict.fromkeys(stage.where, 0.0)
        while True:
            left = min(budget - sum(spent.values()), self.deadline.left)
            step = self.known.agreed(self._next(stage, spent, budget, left))
            if step is None:
                return
            spent[step.test] += self._take(step)

    def _next(
        self, stage: Stage, spent: dict[str, float], budget: float, left: float
    ) -> Step | None:
        """The step after which its test has had the least time; None where none fits."""
        if left <= 0:
            return None
        open_sites = still_wide(self.known, stage.where, self.width)
        steps = [
            self._step(test, sites, max(budget / PARTS, SHORTEST), left, stage.first)
            for test, sites in open_sites.items()
        ]
        possible = [step for step in steps if step is not None]
        return min(
            possible,
            key=lambda step: (not step.is_enough, spent[step.test] + step.seconds),
            default=None,
        )

    def _step(
        self,
        test: str,
        sites: Sequence[Site],
        slice_: float,
        left: float,
        first: int | None,
    ) -> Step | None:
        """A test's next texts: as many as fit a slice of time, at least one."""
        candidates = {text.example_id for text in self.known.texts[:first]}
        lacking_texts = self.known.lacking(test, sites)
        texts = [text for text in lacking_texts if text.example_id in candidates]
        if not texts:
            return None
        # All of these sites go on together, so that they have the same texts.
        lacking = [site for site in sites if self.known.lacks(test, site, texts[0])]
        one = self.rates.predicted(test, size_of(texts[:1], lacking[:1]))
        if one is None:
            return Step(test, lacking[:1], texts[:1], 0.0)
        n_sites = min(len(lacking), int(left / (CAUTION * one) if one else 1e9))
        if not n_sites:
            return None
        lacking = lacking[:n_sites]
        slice_ = min(slice_, left / CAUTION)
        n_texts = max(1, int(slice_ / max(one * n_sites, 1e-9)))
        texts = texts[: min(n_texts, self.batch_size)]
        seconds = self.rates.predicted(test, size_of(texts, lacking)) or 0.0
        is_enough = self._needs(test, sites) <= left
        return Step(test, lacking, texts, seconds, is_enough)

    def _needs(self, test: str, sites: Sequence[Site]) -> float:
        """Seconds until the test has the texts of an answer at all of these sites."""
        size = sum(
            text.n_tokens
            for text in self.known.texts[:MIN_TEXTS]
            for site in sites
            if self.known.lacks(test, site, text)
        )
        return self.rates.predicted(test, size) or 0.0

    def _take(self, step: Step) -> float:
        """Runs a step; how long it took."""
        begun = self.clock()
        where = {PREDICTION: [NO_SITE], step.test: step.sites}
        self.known.run(step.texts, where)
        taken = self.clock() - begun
        self.rates.add(step.test, size_of(step.texts, step.sites), taken)
        return taken
