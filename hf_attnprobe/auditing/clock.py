"""Measures seconds by kind of work while an audit runs, and extrapolates them.

The bar, ``--time`` and ``--estimate`` read it. A step is one test at one head, or group of heads,
on one batch. What it costs depends on test and place, so each kind of step has its own seconds per
token, those of the steps of its kind that were run.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from hf_attnprobe.attention_model import Site
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.progress import Bar


Place = Literal["first", "head", "group"]
Kind = tuple[str, Place]
"""A test and the place: such steps cost alike, by size."""
FOR_THE_REPORT = 0.1
"""Of the time; the rest is for the tests."""
LEAST_FOR_THE_REPORT = 10.0  # seconds
BETWEEN_LOOKS = 0.3  # seconds between two moves of the bar


class Step(NamedTuple):
    """One test at one head on one batch.

    Attributes:
        test: its name.
        place: "first" for the batch's first with this test, which pays for what all
            share; of the others a head, or a group of heads.
        size: tokens of the batch, with padding.
    """

    test: str
    place: Place
    size: float

    @property
    def kind(self) -> Kind:
        """Test and place."""
        return self.test, self.place


def steps_of(
    work: Iterable[tuple[Mapping[str, Sequence[Site]], Sequence[Text]]],
) -> list[Step]:
    """Steps of batches, in the order in which they run.

    Args:
        work: of each batch the tests, each with its heads, and the texts.
    """
    return [
        Step(
            test,
            place_of(k, site),
            len(texts) * max(text.n_tokens for text in texts),
        )
        for where, texts in work
        for test, sites in where.items()
        for k, site in enumerate(sites)
    ]


def place_of(number: int, site: Site) -> Place:
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
    _seconds: dict[Kind, float] = field(
        default_factory=partial(defaultdict, float), init=False
    )
    _sizes: dict[Kind, float] = field(
        default_factory=partial(defaultdict, float), init=False
    )
    _left: dict[Kind, float] = field(
        default_factory=partial(defaultdict, float), init=False
    )
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
        kept = max(FOR_THE_REPORT * self.limit, LEAST_FOR_THE_REPORT)
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

    def _per_token(self, kind: Kind) -> float:
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
        if self.shown and now - self._looked >= BETWEEN_LOOKS:
            self._looked = now
            self.bar.move(self.to_come(), step.test)

    def to_come(self) -> float:
        """Seconds until the plan is done or time is up."""
        if self.limit is not None:
            return max(self.left, 0.0)
        left = (
            self._per_token(kind) * size for kind, size in self._left.items()
        )
        return max(sum(left), 0.0)

    def tests_end(self, doing: str) -> None:
        """Ends the prediction: from here on the bar only says what is done."""
        self.bar.name = "report"
        self.bar.move(None, doing)
