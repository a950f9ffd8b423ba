"""What an audit will take, as data and in words."""

from dataclasses import asdict, dataclass
from typing import Any

from hf_attnprobe.progress import in_words


@dataclass(frozen=True)
class Seconds:
    """Where the time of an audit goes.

    Attributes:
        preparation: to load, encode and check; it was taken already by the estimate.
        tests: of the model, and of its control where there is one.
        report: intervals, shown texts, page.
    """

    preparation: float
    tests: float
    report: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.preparation + self.tests + self.report


@dataclass(frozen=True)
class Estimate:
    """What is left of an audit, from a short calibration; nothing of it was run.

    Attributes:
        n_texts: texts of the audit.
        n_left: of these, how many have tests left to run.
        n_tests: tests.
        n_heads: heads, and groups of heads, at which a test runs.
        with_control: whether the tests run on a control too; they count twice.
        edited_texts: texts with an edit that are run, from the edit upwards.
        flops: floating-point operations of matrix products and convolutions.
        forward_flops: those of one plain forward pass over all texts.
        memory: bytes that the process holds at most.
        batch_memory: bytes of these that are a batch's.
        disk: bytes that the output folder grows by.
        seconds: by the wall clock, on this machine as busy as it is now.
        measured_texts, measured_heads: what the calibration ran.
    """

    n_texts: int
    n_left: int
    n_tests: int
    n_heads: int
    with_control: bool
    edited_texts: int
    flops: float
    forward_flops: float
    memory: int
    batch_memory: int
    disk: int
    seconds: Seconds
    measured_texts: int
    measured_heads: int

    def to_json(self) -> dict[str, Any]:
        """Everything by name; seconds with their total."""
        found = asdict(self)
        found["seconds"]["total"] = self.seconds.total
        return found

    def to_text(self) -> str:
        """Five lines for a terminal."""
        seconds, control = self.seconds, " and its control" if self.with_control else ""
        passes = self.flops / self.forward_flops if self.forward_flops else 0.0
        left = "" if self.n_left == self.n_texts else f", {self.n_left:,} of them left"
        several = "up to two heads and a group"
        places = several if self.measured_heads > 1 else "the one place"
        return "\n".join(
            [
                f"estimate of {self.n_tests} tests at {self.n_heads:,} heads and groups "
                f"on {self.n_texts:,} texts{left}; nothing was written",
                f"time     {in_words(seconds.total)}: {seconds.preparation:.0f} s to "
                f"prepare, {seconds.tests:,.0f} s for the tests on the "
                f"model{control}, {seconds.report:.0f} s for the report",
                f"work     {self.edited_texts:,} edited texts, {in_flops(self.flops)}, "
                f"as much as {passes:,.0f} plain passes over the texts",
                f"memory   up to {in_bytes(self.memory)}, "
                f"{in_bytes(self.batch_memory)} of it for a batch",
                f"disk     {in_bytes(self.disk)}",
                f"measured on {self.measured_texts} texts at {places} of each test, on "
                "this machine as busy as it is now; of jobs that were tried it said .7 to "
                "1.4 times what they took",
            ]
        )


def in_flops(flops: float) -> str:
    """Floating-point operations in words.

    >>> in_flops(31.4e12)
    '31 TFLOP'
    """
    return _scaled(flops, "FLOP")


def in_bytes(n_bytes: float) -> str:
    """Bytes in words.

    >>> in_bytes(1_340_000_000), in_bytes(52_000)
    ('1.3 GB', '52 KB')
    """
    return _scaled(n_bytes, "B").replace(" k", " K")


def _scaled(value: float, unit: str) -> str:
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            number = value / size
            digits = 1 if number < 10 else 0
            return f"{number:,.{digits}f} {prefix}{unit}"
    return f"{value:.0f} {unit}"
