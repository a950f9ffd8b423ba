"""Options of a calibration."""

from collections.abc import Sequence
from dataclasses import dataclass

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import LARGEST_SEED, Options, option


@dataclass(frozen=True)
class CalibrationOptions(Options):
    """Which models of known truth are audited, and on how many texts."""

    constructs: Sequence[str] | None = option(
        None, "kinds of models, by name (default: all)", metavar="NAME"
    )
    draws: int | None = option(
        None, "models of each kind (default: 40, trained 3)", at_least=1, at_most=100_000
    )
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
    trained: bool = option(
        False, "trained classifiers that are proved to use a planted word, in place of these"
    )
    pretrained: str | None = option(
        None, "trained: a model to be fine-tuned among them, a folder or Hub id", metavar="MODEL"
    )
    quick: bool = option(
        False, "two models of each kind and 100 texts, in place of draws and texts"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoders and self.trained:
            raise AttnProbeError("expected decoders or trained, got both; choose one")
        if self.pretrained is not None and not self.trained:
            raise AttnProbeError(
                f"expected trained beside pretrained={self.pretrained!r}; add it, or leave it out"
            )

    @property
    def n_draws(self) -> int:
        """Number of models of each kind."""
        if self.draws is not None and not self.quick:
            return self.draws
        return 2 if self.quick else 3 if self.trained else 40

    @property
    def n_texts(self) -> tuple[int, ...]:
        """Numbers of texts, ascending."""
        return (100,) if self.quick else tuple(sorted(set(self.texts)))
