"""Options of a calibration."""

from collections.abc import Sequence
from dataclasses import dataclass

from hf_attnprobe.options import LARGEST_SEED, Options, option


@dataclass(frozen=True)
class CalibrationOptions(Options):
    """Which models of known truth are audited, and on how many texts."""

    constructs: Sequence[str] | None = option(
        None, "kinds of models, by name (default: all)", metavar="NAME"
    )
    draws: int = option(40, "models of each kind", at_least=1, at_most=100_000)
    texts: Sequence[int] = option(
        (30, 60, 200, 500),
        "numbers of texts on which the verdict is asked for; each has those before it",
        at_least=1,
        at_most=1_000_000,
    )
    seed: int = option(0, "seed of models and texts", at_least=0, at_most=LARGEST_SEED)
    decoders: bool = option(
        False, "language models that answer from a passage, in place of classifiers"
    )
    quick: bool = option(
        False, "two models of each kind and 100 texts, in place of draws and texts"
    )

    @property
    def n_draws(self) -> int:
        """Number of models of each kind."""
        return 2 if self.quick else self.draws

    @property
    def n_texts(self) -> tuple[int, ...]:
        """Numbers of texts, ascending."""
        return (100,) if self.quick else tuple(sorted(set(self.texts)))
