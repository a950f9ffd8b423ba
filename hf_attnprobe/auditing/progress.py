"""How long an audit will take, and how much of that is left.

A step is one test at one head on one batch. Steps differ in cost by orders of
magnitude, and the first head of a batch also pays for what all heads share, so a step
weighs what steps of its kind have taken so far.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hf_attnprobe.attention_model import Site
from hf_attnprobe.auditing.steps import Kind, Place, Step, alike
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.progress import Bar, in_words


FIRST_BATCH = 4  # texts; small, so that an estimate comes soon
TELLING = 10.0  # seconds of a first batch that is no mere overhead; less needs no line


def steps_of(where: Mapping[str, Sequence[Site]], texts: Sequence[Text]) -> list[Step]:
    """The steps of a batch, in the order in which they run.

    Args:
        where: the tests, each with its heads.
        texts: of the batch.
    """
    longest = max(text.n_tokens for text in texts)
    return [
        Step(test, _place(k, site), len(texts), longest)
        for test, sites in where.items()
        for k, site in enumerate(sites)
    ]


def _place(number: int, site: Site) -> Place:
    if number == 0:
        return "first"
    return "group" if site.is_group else "head"


@dataclass
class Pace:
    """What is done, what is left, and how long that takes; shown by a bar.

    Attributes:
        shown: whether there is a bar.
        n_runs: the same work is done so often in all, such as on a control.
        is_kept: whether what is done stays when the audit is stopped.
        clock: seconds.
        besides: what else the line says of the steps to come.
        deadline: seconds until the run stops, where it does so whatever is left.
    """

    shown: bool
    n_runs: int = 1
    is_kept: bool = True
    clock: Callable[[], float] = time.perf_counter
    besides: Callable[[Sequence[Step]], str] = lambda steps: ""
    deadline: Callable[[], float] | None = None
    estimate: float | None = field(default=None, init=False)
    _to_do: deque[Step] = field(default_factory=deque, init=False)
    _left: Counter = field(default_factory=Counter, init=False)  # tokens by kind
    _first_run: Counter = field(default_factory=Counter, init=False)
    _seconds: dict[Kind, float] = field(default_factory=dict, init=False)
    _sizes: Counter = field(default_factory=Counter, init=False)
    _names: list[str] = field(default_factory=list, init=False)
    _n_texts: int = field(default=0, init=False)
    _in_batch: int = field(default=0, init=False)
    bar: Bar = field(init=False)

    def __enter__(self) -> "Pace":
        self.bar = Bar("audit", shown=self.shown, clock=self.clock)
        self.bar.__enter__()
        self._begun = self._last = self.clock()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.__exit__(*error)

    def expect(self, name: str, batches: Iterable[Sequence[Step]]) -> None:
        """What is to be done next, a sequence of steps per batch.

        Args:
            name: of the run, such as "audit" and then "control".
            batches: of the run, or of a part of it.
        """
        batches = [batch for batch in batches if batch]
        self._to_do = deque(step for batch in batches for step in batch)
        self._left = Counter()
        for step in self._to_do:
            self._left[step.kind] += step.size
        if name not in self._names:
            self._names.append(name)
        if name == self._names[0]:
            self._n_texts += sum(batch[0].n_texts for batch in batches)
            self._first_run += self._left
        self.bar.name = name
        self._last = self.clock()

    def first(self, steps: Sequence[Step]) -> None:
        """Steps to be done before all others, only to see how long those will take."""
        self._to_do.extendleft(reversed(steps))
        for step in steps:
            self._left[step.kind] += step.size

    def begin(self, steps: Sequence[Step]) -> None:
        """A batch of these steps, the next that are to be done."""
        self._in_batch = len(steps)

    def again(self, steps: Sequence[Step]) -> None:
        """These steps take the place of what is left of the batch that was begun."""
        for _ in range(self._in_batch):
            step = self._to_do.popleft()
            self._left[step.kind] -= step.size
        self._in_batch = 0
        self.first(steps)
        self._last = self.clock()

    def tick(self) -> None:
        """A step is done."""
        step, now = self._to_do.popleft(), self.clock()
        self._in_batch -= 1
        taken, self._last = now - self._last, now
        self._seconds[step.kind] = self._seconds.get(step.kind, 0.0) + taken
        self._sizes[step.kind] += step.size
        self._left[step.kind] -= step.size
        self.bar.move(self.seconds_left(), step.test)

    def end_of_batch(self, n_texts: int) -> None:
        """A batch of so many texts is done.

        The first one of cheap tests is mostly overhead, which tells nothing of larger
        ones.
        """
        is_telling = n_texts > FIRST_BATCH or self.clock() - self._begun > TELLING
        if self.estimate is None and (is_telling or not self._to_do):
            self._say_estimate(n_texts)

    def seconds_left(self) -> float:
        """At the pace so far; of kinds of steps that did not run yet at its mean."""
        if self.deadline is not None:
            return max(self.deadline(), 0.0)
        n_to_come = max(self.n_runs - len(self._names), 0)
        left = self._left.copy()
        for kind, size in self._first_run.items():
            left[kind] += n_to_come * size
        return sum(size * self._rate(kind) for kind, size in left.items())

    def _rate(self, kind: Kind) -> float:
        """Seconds per token of such a step."""
        for known in alike(kind):
            if self._sizes[known]:
                return self._seconds[known] / self._sizes[known]
        n_tokens = sum(self._sizes.values())
        return sum(self._seconds.values()) / n_tokens if n_tokens else 0.0

    def _say_estimate(self, n_measured: int) -> None:
        """Where it is worth a line."""
        left = self.seconds_left()
        self.estimate = self.clock() - self._begun + left
        if left < TELLING:
            return
        n_tests = len({test for test, _ in self._first_run})
        stop = (
            "stop any time, the same command goes on"
            if self.is_kept
            else "with an output folder it could be stopped and go on"
        )
        self.bar.say(
            f"{in_words(self.estimate)} for {n_tests} tests on {self._n_texts} texts "
            f"(measured on {n_measured}){self.besides([*self._to_do] * self.n_runs)}; "
            f"{stop}"
        )
        self._last = self.clock()
