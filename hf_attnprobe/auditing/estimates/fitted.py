"""What steps take, measured at some of them and told of any other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.optimize import nnls


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
