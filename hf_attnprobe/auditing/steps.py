"""What the steps of an audit take: measured at some of them, told of any other.

A step is one test at one head, or group of heads, on one batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hf_attnprobe.attention_model import AttentionModelBase
from hf_attnprobe.hardware import PeakMemory
from hf_attnprobe.inference.batching import by_length
from hf_attnprobe.inference.encoding import Text


# --- steps, and what is fitted to them --------------------------------------------------------


Place = Literal["first", "head", "group"]
Kind = tuple[str, Place]
PLACES: tuple[Place, ...] = ("first", "head", "group")


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
    def size(self) -> int:
        """Tokens of the batch, with padding."""
        return self.n_texts * self.n_tokens

    @property
    def kind(self) -> Kind:
        """Steps of a kind cost alike, by size."""
        return self.test, self.place


@dataclass
class Fitted:
    """Something that steps take, measured at some and told of any other.

    Of each kind of step it is a sum, with weights of at least 0, of a constant, the texts
    of the batch, their tokens and their tokens squared: what overheads, edits, attention
    and leaving out each token cost. The weights are those of least squared relative errors.
    """

    _points: dict[Kind, list[tuple[Step, float]]] = field(default_factory=dict)

    def add(self, step: Step, value: float) -> None:
        """A step took so much."""
        self._points.setdefault(step.kind, []).append((step, value))

    def forget(self) -> None:
        """Drops what was measured so far."""
        self._points.clear()

    def weights(self, kind: Kind) -> np.ndarray:
        """Of the constant, texts, tokens and squares, for this kind of step.

        Of kinds that were not measured those of the same test's other steps; else 0.
        """
        measured = (self._points[k] for k in alike(kind) if k in self._points)
        points = next(measured, [])
        points = [(step, value) for step, value in points if value > 0]
        if not points:
            return np.zeros(4)
        rows = np.array([_features(step) for step, _ in points], float)
        values = np.array([value for _, value in points])
        if len({row[2] for row in rows.tolist()}) == 1:  # one size says nothing more
            return np.array([0.0, 0.0, np.mean(values / rows[:, 2]), 0.0])
        found, _ = nnls(rows / values[:, None], np.ones(len(values)))
        return found

    def total(self, steps: Sequence[Step]) -> float:
        """What the steps take together."""
        sums: dict[Kind, np.ndarray] = {}
        for step in steps:
            sums[step.kind] = sums.get(step.kind, np.zeros(4)) + _features(step)
        return float(sum(self.weights(kind) @ size for kind, size in sums.items()))


def alike(kind: Kind) -> list[Kind]:
    """A kind, then those of the same test's other steps."""
    test, place = kind
    return [kind, *((test, other) for other in PLACES if other != place)]


def _features(step: Step) -> np.ndarray:
    return np.array([1.0, step.n_texts, step.size, step.size * step.n_tokens])


# --- work -------------------------------------------------------------------------------------


EDITING = ("replay", "replay_outputs", "replay_masked", "erase_inputs")
"""Methods of an adapter that run edited texts, and return [copies, batch, classes]."""


@dataclass
class Counts:
    """What was counted so far.

    Attributes:
        edited: texts with an edit that the model, or what is above the edit, was run on.
        flops: floating-point operations of matrix products, attention and convolutions.
    """

    edited: int = 0
    flops: int = 0


@contextmanager
def counting(adapter: AttentionModelBase) -> Iterator[Callable[[], Counts]]:
    """A function that tells what was counted since it was last called.

    FLOPs by PyTorch's counter: two per multiplication and addition, elementwise
    operations left out.
    """
    edited, seen = [0], Counts()

    def wrapped(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(*args: Any, **kwargs: Any) -> Tensor:
            result = method(*args, **kwargs)
            edited[0] += result.shape[0] * result.shape[1]
            return result

        return counted

    names = [name for name in EDITING if callable(getattr(adapter, name, None))]
    with FlopCounterMode(display=False) as counter:

        def since() -> Counts:
            now = Counts(edited[0], counter.get_total_flops())
            new = Counts(now.edited - seen.edited, now.flops - seen.flops)
            seen.edited, seen.flops = now.edited, now.flops
            return new

        for name in names:
            setattr(adapter, name, wrapped(getattr(adapter, name)))
        try:
            yield since
        finally:
            for name in names:
                delattr(adapter, name)


def work_in_words(
    adapter: AttentionModelBase,
    run: Callable[[Callable[[], object]], object],
    measured: Sequence[Step],
    to_come: Sequence[Step],
) -> str:
    """What steps to come are in edited texts and FLOPs, by counting a few of them.

    Args:
        run: runs the steps ``measured``, and calls its argument after each.
    """
    edited, flops, steps = Fitted(), Fitted(), iter(measured)
    with counting(adapter) as since:

        def tick() -> None:
            step, new = next(steps), since()
            edited.add(step, new.edited)
            flops.add(step, new.flops)

        run(tick)
    return f", {edited.total(to_come):,.0f} edited texts, {in_flops(flops.total(to_come))}"


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


# --- memory and time of a few texts -----------------------------------------------------------


SPARE = 1.25
"""Times the memory that was measured: operations need some inside that nobody sees."""


def as_batch(texts: Sequence[Text]) -> Step:
    """A batch as a single step."""
    longest = max(text.n_tokens for text in texts)
    return Step("batch", "first", len(texts), longest)


def samples_of(texts: Sequence[Text]) -> list[Sequence[Text]]:
    """A short text, a long one, two of middle length: sizes that tell a curve."""
    texts = by_length(texts)
    middle = len(texts) // 2
    samples = [texts[:1], texts[middle : middle + 2], texts[-1:]]
    different = {(len(some), some[-1].n_tokens): some for some in samples}
    return list(different.values())


def measured_memory(
    texts: Sequence[Text],
    run: Callable[[Sequence[Text]], object],
    device: torch.device,
) -> Callable[[int], int]:
    """Bytes that a text of so many tokens takes in a batch, with some to spare.

    Where a batch takes a constant besides, each of its texts is said to.

    Args:
        texts: those that batches will be made of.
        run: runs a batch.
        device: where it runs.
    """
    found = Fitted()
    for some in samples_of(texts):
        with PeakMemory(device) as memory:
            run(some)
        found.add(as_batch(some), memory.peak)

    def size(n_tokens: int) -> int:
        constant, each, linear, squared = found.weights(("batch", "first"))
        n_bytes = constant + each + linear * n_tokens + squared * n_tokens**2
        return int(SPARE * n_bytes)

    return size


@dataclass(frozen=True)
class Costs:
    """What steps take, fitted to those that were run.

    Attributes:
        seconds, edited, flops: by step.
        memory: bytes, of the one step that stands for a batch.
        forward_flops: of one plain forward pass, by batch.
        rows: of the samples that were run.
        texts: ids of the texts in them.
    """

    seconds: Fitted = field(default_factory=Fitted)
    edited: Fitted = field(default_factory=Fitted)
    flops: Fitted = field(default_factory=Fitted)
    memory: Fitted = field(default_factory=Fitted)
    forward_flops: Fitted = field(default_factory=Fitted)
    rows: list[pd.DataFrame] = field(default_factory=list)
    texts: set[int] = field(default_factory=set)

    def memory_of(self, texts: Sequence[Text]) -> int:
        """Bytes that a batch of these texts takes, with some to spare."""
        return int(SPARE * self.memory.total([as_batch(texts)]))


# --- room -------------------------------------------------------------------------------------


@dataclass
class Room:
    """What is known of the memory that there really is.

    Attributes:
        size: padded tokens of a batch that may fit; more did not.
    """

    size: float = math.inf

    def did_not_fit(self, halves: Sequence[Sequence[Text]]) -> None:
        """A batch was split into these, so that batches as large are not tried again."""
        sizes = (as_batch(half).size for half in halves)
        self.size = min(self.size, max(sizes))

    def parts(self, texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
        """The texts in batches that are not known to be too large, in their order."""
        longest = max(text.n_tokens for text in texts)
        n = max(1, int(min(self.size / longest, len(texts))))
        for start in range(0, len(texts), n):
            yield texts[start : start + n]
