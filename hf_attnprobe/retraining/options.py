"""Options of the tests that train models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import LARGEST_SEED, Options, option
from hf_attnprobe.training.options import ProcedureName


LAMBDAS = (0.00025, 0.0005, 0.001, 0.002, 0.004)
"""Around the published λ. The paper's code takes half the TVD, so its λ is half of ours:
its best for SST, 5.25e-4, is .00105 here."""
GUIDE_LAMBDA = 0.002
"""The λ of the adversary that guides the paper's diagnostic MLP: .001 with half the TVD."""


@dataclass(frozen=True)
class Seeds(Options):
    """Options of the test ``seeds``."""

    n_seeds: int = option(8, "models trained with another seed", at_least=1, at_most=1_000)


@dataclass(frozen=True)
class Adversary(Options):
    """Options of the test ``adversary``."""

    lambdas: Sequence[float] | None = option(
        None,
        "weights λ of the divergence in the adversary's loss, one adversary each "
        "(default: five from 0.00025 to 0.004)",
        at_least=0,
        metavar="LAMBDA",
    )
    tvd_scale: Literal["true", "half"] = option(
        "true", "TVD in the adversary's loss; the paper's code takes half of it"
    )
    epochs: int = option(
        80,
        "largest number of epochs of an adversary",
        at_least=1,
        at_most=100_000,
    )
    patience: int = option(
        10,
        "epochs without a lower loss that end an adversary's training",
        at_least=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = LAMBDAS if self.lambdas is None else self.lambdas
        if not given or not all(map(math.isfinite, given)):
            got = ", ".join(map(str, given)) or "none"
            raise AttnProbeError(f"expected finite lambdas of 0 or more, got {got}")

    @property
    def tvd_factor(self) -> float:
        """Factor on the true TVD."""
        return 0.5 if self.tvd_scale == "half" else 1.0

    def sorted_lambdas(self) -> tuple[float, ...]:
        """Each λ once, in ascending order."""
        if self.lambdas is None:
            return tuple(self.tvd_factor * strength for strength in LAMBDAS)
        return tuple(sorted({float(strength) for strength in self.lambdas}))

    def folder_of(self, strength: float) -> str:
        """Folder of the adversary trained with a λ, below that of the test."""
        return f"lambda-{strength:g}"

    @property
    def guide(self) -> str:
        """Folder of the adversary whose λ is nearest to that of the paper's Table 3."""
        wanted = GUIDE_LAMBDA * self.tvd_factor
        return self.folder_of(min(self.sorted_lambdas(), key=lambda value: abs(value - wanted)))


KINDS: dict[str, type[Options]] = {
    "uniform": Options,
    "seeds": Seeds,
    "adversary": Adversary,
    "diagnostic_mlp": Options,
}
"""The tests, in the order of reports: the diagnostic MLP uses the adversary's models."""


@dataclass(frozen=True)
class RetrainOptions(Options):
    """Options of all trainings of :func:`hf_attnprobe.retrain`; its tests have their own.

    A setting of the training that is None is the base's own.
    """

    seed: int = option(0, "seed of bootstrap and search", at_least=0, at_most=LARGEST_SEED)
    procedure: ProcedureName | None = option(
        None,
        "the paper whose settings hold where none is given (default: the base's)",
    )
    epochs: int | None = option(
        None,
        "epochs of all models but adversaries (default: the base's)",
        at_least=1,
        at_most=100_000,
    )
    batch_size: int | None = option(None, "texts per step (default: the base's)", at_least=1)
    learning_rate: float | None = option(None, "learning rate (default: the base's)", at_least=0)
    weight_decay: float | None = option(None, "weight decay (default: the base's)", at_least=0)
    word_vectors: str | Path | None = option(
        None, "pretrained word vectors (default: the base's)", metavar="FILE"
    )


@dataclass(frozen=True)
class TransferOptions(Options):
    """A third model for :func:`hf_attnprobe.transfer` to score, and the seed."""

    uniform: str | Path | None = option(
        None,
        "a model trained with uniform attention and the same vocabulary, scored too",
        metavar="MODEL",
    )
    seed: int = option(0, "seed of the bootstrap", at_least=0, at_most=LARGEST_SEED)


@dataclass(frozen=True)
class DeceptionOptions(Options):
    """The penalty of :func:`hf_attnprobe.deceive`, and how long it trains."""

    weight: float = option(
        1.0,
        "λ of the penalty on attention; the paper has 0.1 and 1",
        at_least=0,
    )
    over_heads: Literal["mean", "max"] = option(
        "mean",
        "penalise the mean over the heads, or the head that attends most",
    )
    layers: Literal["last", "all"] = option(
        "last", "layers of a Transformer whose heads are penalised and measured"
    )
    epochs: int = option(5, "epochs of further training", at_least=1, at_most=100_000)
    batch_size: int = option(32, "texts per step", at_least=1)
    learning_rate: float | None = option(
        None,
        "learning rate (default: that of the classifier's own training, else 5e-5)",
        at_least=0,
    )
    seed: int = option(
        0,
        "seed of batches, dropout and bootstrap",
        at_least=0,
        at_most=LARGEST_SEED,
    )
