"""Measures time and memory during an audit, and estimates costs and the remaining time.

The unit of work is a *step*: one test at one site on one batch. The estimated time per step is used
by the progress bar, ``--time`` and ``--estimate``. The estimated memory per text determines the batch
size.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from hf_attnprobe.core.progress import ProgressBar
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import Site


REPORT_TIME_SHARE = 0.1
"""Fraction of the time limit that is reserved for writing the report."""
MIN_REPORT_SECONDS = 10.0
"""Minimum time that is reserved for writing the report, in seconds.

If this is more than half the time limit, half the time limit is reserved instead.
"""
BAR_UPDATE_SECONDS = 0.3
"""Minimum time in seconds between two updates of the progress bar."""

CostClass = Literal["first", "head", "group"]
"""Cost class of a step: "first" for the first site of its test, otherwise "head" or "group".

The first site takes longer, because some computations are shared by all sites of a test.
"""
CostKey = tuple[str, CostClass]
"""Test name and cost class, such as ("permutation", "head").

Steps with the same key take about the same time per token.
"""


class Step(NamedTuple):
    """One test at one site on one batch.

    Attributes:
        test: Test name.
        cost_class: "first" for the first site of the test, "head" or "group" for later sites.
        n_tokens: Number of tokens in the batch, including padding.
    """

    test: str
    cost_class: CostClass
    n_tokens: float

    @property
    def cost_key(self) -> CostKey:
        """Test and cost class."""
        return self.test, self.cost_class


def list_steps(
    batches: Iterable[tuple[Mapping[str, Sequence[Site]], Sequence[Text]]],
) -> list[Step]:
    """List the steps for several batches in the order in which they run.

    Args:
        batches: For each batch, its sites by test and its texts.

    Returns:
        One step for each batch, test and site.
    """
    steps = []
    for sites_by_test, texts in batches:
        # All texts in a batch are padded to the length of the longest text.
        n_tokens = len(texts) * max(text.n_tokens for text in texts)
        for test, sites in sites_by_test.items():
            for index, site in enumerate(sites):
                steps.append(Step(test, get_cost_class(index, site), n_tokens))
    return steps


def get_cost_class(index: int, site: Site) -> CostClass:
    """Return the cost class of a step: steps of the same class take about the same time.

    Args:
        index: Index of the site in the test's list of sites, from 0.
        site: The head, or group of heads, on which the step runs.
    """
    # The first site takes longer, because some computations are shared by all sites.
    if index == 0:
        return "first"
    return "group" if site.is_group else "head"


class CostModel:
    """Measured time per step and memory per text, and estimates for further steps.

    Attributes:
        measured_bytes: Peak memory for single texts in bytes, by test names and token count. The
            runner fills this dictionary, so that no text is measured twice.
    """

    def __init__(self) -> None:
        self.measured_bytes: dict[object, int] = {}
        self._seconds: dict[CostKey, float] = defaultdict(float)
        self._n_tokens: dict[CostKey, float] = defaultdict(float)

    def add_measurement(self, step: Step, seconds: float) -> None:
        """Record the duration of a finished step."""
        self._seconds[step.cost_key] += seconds
        self._n_tokens[step.cost_key] += step.n_tokens

    def clear_seconds(self) -> None:
        """Discard all measured durations, for example if they include loading GPU kernels."""
        self._seconds.clear()
        self._n_tokens.clear()

    def has_measured(self, test: str) -> bool:
        """Return whether the duration of a test has been measured."""
        return any(measured_test == test for measured_test, _ in self._n_tokens)

    def count_measured_tokens(self, test: str) -> float:
        """Return the number of tokens on which the duration of a test was measured.

        Each batch of texts counts once, even if the test ran at several sites.
        """
        return self._n_tokens.get((test, "first"), 0.0)

    def estimate_seconds(self, steps: Iterable[Step]) -> float:
        """Estimate the total duration of some steps, in seconds."""
        return sum(self.estimate_seconds_per_token(step.cost_key) * step.n_tokens for step in steps)

    def estimate_seconds_per_token(self, cost_key: CostKey) -> float:
        """Estimate the seconds per token for a step.

        The estimate is the mean over the measured steps with the same key. If there are none, it is
        the mean over all steps of the same test, or else over all steps. It is 0 if nothing has been
        measured.
        """
        keys: Sequence[CostKey] = [cost_key]
        if cost_key not in self._n_tokens:
            test, _ = cost_key
            keys_of_test = [key for key in self._n_tokens if key[0] == test]
            keys = keys_of_test or list(self._n_tokens)
        n_tokens = sum(self._n_tokens[key] for key in keys)
        n_seconds = sum(self._seconds[key] for key in keys)
        return n_seconds / n_tokens if n_tokens else 0.0


def estimate_text_bytes(
    n_tokens: int,
    lengths: Collection[int],
    measure: Callable[[int], int],
    negligible_bytes: float,
) -> int:
    """Estimate the memory that one text takes in a batch, from measurements of single texts.

    Only a few texts are measured:

    - The longest available text is always measured. If it needs at most ``negligible_bytes``, all
      shorter texts are assumed to need the same memory.
    - Otherwise, the text length is rounded up to a power of two, and the longest available text up to
      this length is measured.
    - For a text that is longer than all available texts, the memory is assumed to grow with the
      squared length.

    Args:
        n_tokens: Text length in tokens.
        lengths: Lengths of the texts that can be measured, in tokens.
        measure: Function that measures a text with the given length, and returns its bytes.
        negligible_bytes: Maximum memory per text with which a full batch fits into the memory
            budget.

    Returns:
        Estimated memory in bytes.
    """
    longest = max(lengths)
    n_bytes = measure(longest)
    if n_tokens > longest:
        return int(n_bytes * (n_tokens / longest) ** 2)
    next_power_of_two = 1 << (n_tokens - 1).bit_length()
    if n_bytes <= negligible_bytes or longest <= next_power_of_two:
        return n_bytes
    sufficient_lengths = sorted(length for length in lengths if length >= n_tokens)
    close_lengths = [length for length in sufficient_lengths if length <= next_power_of_two]
    return measure(max(close_lengths or sufficient_lengths[:1]))


@dataclass
class AuditProgress:
    """Progress of a running audit: finished and planned work, time limit and progress bar.

    Attributes:
        is_displayed: Whether a progress bar is displayed.
        time_limit: Seconds from the start of the audit to its report; None for no limit.
        now: Function that returns the current time in seconds.
        costs: Measured costs, for estimates of the remaining time.
        seconds_before: Seconds of the time limit that have passed before this object is created.
        bar: The progress bar.
    """

    is_displayed: bool = False
    time_limit: float | None = None
    now: Callable[[], float] = time.perf_counter
    costs: CostModel = field(default_factory=CostModel)
    seconds_before: float = 0.0
    bar: ProgressBar = field(init=False)
    _planned_tokens: dict[CostKey, float] = field(
        default_factory=partial(defaultdict, float), init=False
    )
    _batch: deque[Step] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self.bar = ProgressBar("audit", visible=self.is_displayed, clock=self.now)
        self._step_start = self._last_update = self.now()
        self._start = self._step_start - self.seconds_before

    def __enter__(self) -> "AuditProgress":
        self.bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.__exit__(*error)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start of the audit."""
        return self.now() - self._start

    @property
    def remaining_seconds(self) -> float:
        """Seconds that remain for tests, excluding the time reserved for the report."""
        if self.time_limit is None:
            return math.inf
        reserve = max(REPORT_TIME_SHARE * self.time_limit, MIN_REPORT_SECONDS)
        reserve = min(reserve, self.time_limit / 2)
        return self.time_limit - reserve - self.elapsed_seconds

    @staticmethod
    def estimate_time_limit(seconds: float) -> float:
        """Return the time limit that leaves a number of seconds for the audit's tests.

        Args:
            seconds: Seconds from the start of the audit to the end of its tests.

        Returns:
            Seconds from the start of the audit to its report.
        """
        return max(seconds / (1 - REPORT_TIME_SHARE), seconds + MIN_REPORT_SECONDS)

    def plan_steps(self, steps: Iterable[Step]) -> None:
        """Replace the planned work with new steps."""
        self._planned_tokens.clear()
        for step in steps:
            self._planned_tokens[step.cost_key] += step.n_tokens

    def start_batch(self, steps: Iterable[Step]) -> None:
        """Start the clock for the steps in a batch."""
        self._batch, self._step_start = deque(steps), self.now()

    def finish_step(self) -> None:
        """Record that the next step in the batch is finished, and update the progress bar."""
        step, now = self._batch.popleft(), self.now()
        self.costs.add_measurement(step, now - self._step_start)
        self._planned_tokens[step.cost_key] -= step.n_tokens
        self._step_start = now
        if self.is_displayed and now - self._last_update >= BAR_UPDATE_SECONDS:
            self._last_update = now
            self.bar.update(self.estimate_remaining(), step.test)

    def estimate_remaining(self) -> float:
        """Estimate the seconds until the planned work is finished or the time limit is reached."""
        if self.time_limit is not None:
            return max(self.remaining_seconds, 0.0)
        seconds = sum(
            self.costs.estimate_seconds_per_token(key) * n_tokens
            for key, n_tokens in self._planned_tokens.items()
        )
        return max(seconds, 0.0)

    def start_report(self, activity: str) -> None:
        """Switch the progress bar from the tests to the report, whose duration is not estimated.

        Args:
            activity: Current work for display, such as "writing the page".
        """
        self.bar.name = "report"
        self.bar.update(None, activity)
