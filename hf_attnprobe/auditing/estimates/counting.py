"""The work of tests, counted while they run: edited texts, floating-point operations."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import nnls
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hf_attnprobe.attention_model import AttentionModelBase
from hf_attnprobe.auditing.progress import Step


EDITING = ("replay", "replay_outputs", "replay_masked", "erase_inputs")
"""Methods of an adapter that run edited texts, and return [copies, batch, classes]."""

Kind = tuple[str, bool]


@dataclass
class Fitted:
    """Something that steps take, measured at some and told of any other.

    Of each kind of step it is a sum, with weights of at least 0, of a constant, the
    tokens of the batch and its tokens squared: what attention, leaving out each token and
    overheads cost. The weights are those of least squared relative errors.
    """

    _points: dict[Kind, list[tuple[Step, float]]] = field(default_factory=dict)

    def add(self, step: Step, value: float) -> None:
        """A step took so much."""
        self._points.setdefault(step.kind, []).append((step, value))

    def forget(self) -> None:
        """Drops what was measured so far."""
        self._points.clear()

    def weights(self, kind: Kind) -> np.ndarray:
        """Of the constant, the tokens and the squares, for this kind of step.

        Of kinds that were not measured those of the same test's other steps; else 0.
        """
        test, is_first = kind
        points = self._points.get(kind) or self._points.get((test, not is_first), [])
        points = [(step, value) for step, value in points if value > 0]
        if not points:
            return np.zeros(3)
        rows = np.array([_features(step) for step, _ in points], float)
        values = np.array([value for _, value in points])
        if len({row[1] for row in rows.tolist()}) == 1:  # one size says nothing more
            return np.array([0.0, np.mean(values / rows[:, 1]), 0.0])
        found, _ = nnls(rows / values[:, None], np.ones(len(values)))
        return found

    def total(self, steps: Sequence[Step]) -> float:
        """What the steps take together."""
        sums: dict[Kind, np.ndarray] = {}
        for step in steps:
            sums[step.kind] = sums.get(step.kind, np.zeros(3)) + _features(step)
        return float(sum(self.weights(kind) @ size for kind, size in sums.items()))


def _features(step: Step) -> np.ndarray:
    return np.array([1.0, step.size, step.size * step.n_tokens])


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
