"""Measures seconds by kind of work while an audit runs, and predicts the rest.

The bar, ``--time`` and ``--estimate`` read it. A step is one test at one head, or group of heads,
on one batch. Steps differ in cost by orders of magnitude, and what a step costs depends on test,
site and length, so nothing is modelled: a constant, texts, tokens and their squares are fitted to
the steps of a kind that were run.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from hf_attnprobe.attention_model import Site
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.progress import Bar, in_words


Place = Literal["first", "head", "group"]
Kind = tuple[str, Place]
"""A test and the place: such steps cost alike, by size."""
REMEMBERED = 256
"""Steps of a kind that are fitted: the last ones, since a machine may be busier than before."""
FOR_THE_REPORT = 0.1
"""Of the time; the rest is for the tests."""
LEAST_FOR_THE_REPORT = 10.0  # seconds
BETWEEN_LOOKS = 0.3  # seconds between two moves of the bar
TELLING = 10.0  # seconds to come that are worth a line


@dataclass(frozen=True)
class Step:
    """One test at one head on one batch.

    Attributes:
        test: its name.
        place: "first" for the batch's first with this test, which pays for what all
            share; of the others a head, or a group of heads.
        n_texts: of the batch.
        n_tokens: of its longest text.
    """

    test: str
    place: Place
    n_texts: int
    n_tokens: int

    @property
    def kind(self) -> Kind:
        """Test and place."""
        return self.test, self.place

    @property
    def features(self) -> np.ndarray:
        """A constant, texts, their tokens with padding, and tokens squared."""
        size = self.n_texts * self.n_tokens
        return np.array([1.0, self.n_texts, size, size * self.n_tokens])


def steps_of(
    work: Iterable[tuple[Mapping[str, Sequence[Site]], Sequence[Text]]],
) -> list[Step]:
    """Steps of batches, in the order in which they run.

    Args:
        work: of each batch the tests, each with its heads, and the texts.
    """
    return [
        Step(test, _place(k, site), len(texts), max(text.n_tokens for text in texts))
        for where, texts in work
        for test, sites in where.items()
        for k, site in enumerate(sites)
    ]


def _place(number: int, site: Site) -> Place:
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
    _measured: dict[Kind, deque[tuple[Step, float]]] = field(default_factory=dict, init=False)
    _to_come: dict[Kind, np.ndarray] = field(default_factory=dict, init=False)
    _batch: deque[Step] = field(default_factory=deque, init=False)
    _ticked: list[Step] = field(default_factory=list, init=False)

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
        points = self._measured.setdefault(step.kind, deque(maxlen=REMEMBERED))
        points.append((step, seconds))

    def forget(self) -> None:
        """Drops what was measured so far, such as steps that loaded kernels."""
        self._measured.clear()

    @property
    def is_new(self) -> bool:
        """Whether nothing was measured yet."""
        return not self._measured

    def knows(self, test: str) -> bool:
        """Whether some step of a test was measured."""
        return any(known == test for known, _ in self._measured)

    def expects(self, steps: Iterable[Step]) -> float:
        """Predicted seconds of these steps."""
        return self._seconds(_summed(steps))

    def _seconds(self, sizes: Mapping[Kind, np.ndarray]) -> float:
        found = (self._weights(kind) @ size for kind, size in sizes.items())
        return max(float(sum(found)), 0.0)

    def _weights(self, kind: Kind) -> np.ndarray:
        """Seconds per feature, by least squares of relative errors, at least 0.

        Of a kind that was not measured those of the same test's other steps, else of all.
        """
        test, place = kind
        known = [k for k in self._measured if k[0] == test]
        if known:
            nearest = max(known, key=lambda k: k[1] == place)
            points = [*self._measured[nearest]]
        else:
            points = [point for of_kind in self._measured.values() for point in of_kind]
        points = [(step, seconds) for step, seconds in points if seconds > 0]
        if not points:
            return np.zeros(4)
        rows = np.array([step.features for step, _ in points])
        values = np.array([seconds for _, seconds in points])
        if len({row[2] for row in rows.tolist()}) == 1:  # one size says nothing more
            return np.array([0.0, 0.0, np.mean(values / rows[:, 2]), 0.0])
        found, _ = nnls(rows / values[:, None], np.ones(len(values)))
        return found

    # What is done

    def plan(self, steps: Iterable[Step]) -> None:
        """Replaces the steps to come."""
        self._to_come = _summed(steps)

    def begin(self, steps: Sequence[Step]) -> None:
        """Starts a batch; one that did not come to its end is still to come."""
        self._batch, self._ticked = deque(steps), []
        self._last = self.now()

    def tick(self) -> None:
        """Ends the next step of the batch."""
        step, now = self._batch.popleft(), self.now()
        self.add(step, now - self._last)
        self._last = now
        self._ticked.append(step)
        if not self._batch:
            self._to_come, self._ticked = self._planned(), []
        if self.shown and now - self._looked >= BETWEEN_LOOKS:
            self._looked = now
            self.bar.move(self.to_come(), step.test)

    def to_come(self) -> float:
        """Seconds until the plan is done or time is up."""
        if self.limit is not None:
            return max(self.left, 0.0)
        return self._seconds(self._planned())

    def _planned(self) -> dict[Kind, np.ndarray]:
        """The sizes of the steps to come, without those of this batch that ended."""
        ended = _summed(self._ticked)
        return {k: np.maximum(size - ended.get(k, 0), 0) for k, size in self._to_come.items()}

    def say_how_long(self, steps: Iterable[Step], what: str) -> None:
        """Says how long all will take, where it is worth a line.

        Args:
            steps: that are left.
            what: is done, in words.
        """
        seconds = self.expects(steps)
        if seconds >= TELLING:
            self.bar.say(
                f"{in_words(self.passed + seconds)} for {what}; stop any time, the same command "
                "goes on where there is an output folder"
            )

    def tests_end(self, doing: str) -> None:
        """Ends the prediction: from here on the bar only says what is done."""
        self.bar.name = "report"
        self.bar.move(None, doing)


def _summed(steps: Iterable[Step]) -> dict[Kind, np.ndarray]:
    """The features of the steps of each kind, added up."""
    sums: dict[Kind, np.ndarray] = {}
    for step in steps:
        sums[step.kind] = sums.get(step.kind, 0) + step.features
    return sums
