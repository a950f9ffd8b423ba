"""When an audit may stop: what ``--until``, ``--top`` and ``--time`` say."""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.errors import AttnProbeError


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NARROWEST = 1e-6
FOR_THE_REPORT = 0.1
"""Of the time; the rest is for the tests."""
LEAST_FOR_THE_REPORT = 10.0  # seconds


@dataclass(frozen=True)
class Limits:
    """When to stop; None where nothing is said.

    Attributes:
        width: every interval of what the verdict rests on is at most so wide.
        n_first: so many heads are singled out, and only they are tested further.
        seconds: wall-clock time from the start to the report.
    """

    width: float | None = None
    n_first: int | None = None
    seconds: float | None = None

    @property
    def given(self) -> bool:
        """Whether the audit may stop before all is done."""
        return self != Limits()


def limits_of(options: AuditOptions) -> Limits:
    """The limits that the options set.

    Raises:
        AttnProbeError: another form, or options that contradict each other.
    """
    width = None if options.until is None else width_of(options.until)
    seconds = None if options.time is None else seconds_of(options.time)
    limits = Limits(width, options.top, seconds)
    if limits.given and options.screen is not None:
        raise AttnProbeError(
            "expected --screen or one of --until, --top and --time, got both; leave "
            "--screen out: --top races the heads, --time screens them by itself"
        )
    if options.top is not None and not options.single_heads:
        raise AttnProbeError(
            "expected single heads for --top to choose from; leave it or --no-single-heads out"
        )
    return limits


def width_of(text: str) -> float:
    """The width in "width=.02".

    Raises:
        AttnProbeError: another form, or no width from 0.000001 to 1.

    >>> width_of("width=.02")
    0.02
    """
    name, _, value = text.replace(" ", "").partition("=")
    try:
        width = float(value)
    except ValueError:
        width = math.nan
    if name != "width" or not NARROWEST <= width <= 1:
        raise AttnProbeError(
            f"expected --until width= and a width up to 1, such as width=.02, got {text!r}"
        )
    return width


def seconds_of(text: str) -> float:
    """The seconds of "90s", "10m", "2h", "1d" or a plain number of seconds.

    Raises:
        AttnProbeError: anything else, and less than a second.

    >>> seconds_of("10m"), seconds_of("1.5h"), seconds_of("90")
    (600.0, 5400.0, 90.0)
    """
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([smhd]?)", text.strip().lower())
    seconds = float(found[1]) * UNITS[found[2] or "s"] if found else 0.0
    if not 1 <= seconds < math.inf:
        raise AttnProbeError(
            f"expected a time of a second or more, such as 90s, 10m or 2h, got {text!r}"
        )
    return seconds


def without_extras(options: AuditOptions) -> AuditOptions:
    """The options of a report in haste: without what runs the model once more."""
    return replace(options, prune=False, shown_texts=0)


@dataclass
class Deadline:
    """How much time is left for the tests; without a limit there is always enough.

    Attributes:
        seconds: from now to the report.
        clock: seconds.
    """

    seconds: float | None = None
    clock: Callable[[], float] = time.perf_counter
    _begun: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun = self.clock()

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return self.clock() - self._begun

    def halved(self) -> "Deadline":
        """Another one, from now on, for half of the work that is to come."""
        if self.seconds is None:
            return self
        half = Deadline(self.seconds - max(self.left, 0.0) / 2, self.clock)
        half._begun = self._begun
        return half

    @property
    def left(self) -> float:
        """Seconds that tests may still take; what the report takes is kept back."""
        if self.seconds is None:
            return math.inf
        kept = max(FOR_THE_REPORT * self.seconds, LEAST_FOR_THE_REPORT)
        return self.seconds - min(kept, self.seconds / 2) - self.passed
