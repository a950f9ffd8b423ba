"""Options for ``retrain``, for each of its tests, and for ``transfer``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import MAX_SEED, Options, option
from hf_attnprobe.training.options import ProcedureName


DEFAULT_LAMBDAS = (0.00025, 0.0005, 0.001, 0.002, 0.004)
"""Default weights λ of the attention divergence in the loss of adversaries.

They surround the best published value for SST: 5.25e-4, or 0.00105 on the scale used here. The
paper's λ is half as large because its code halves the TVD.
"""
GUIDE_LAMBDA = 0.002
"""Weight λ of the attention divergence in the loss of the adversary that guides the test
``diagnostic_mlp``.

The value is twice the λ of Wiegreffe & Pinter 2019, 0.001, because their code halves the TVD.
"""


@dataclass(frozen=True)
class Seeds(Options):
    """Options of the test ``seeds``."""

    n_seeds: int = option(8, "number of models trained with other seeds", at_least=1, at_most=1_000)


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
        "maximum number of epochs of an adversary",
        at_least=1,
        at_most=100_000,
    )
    patience: int = option(
        10,
        "stop the training of an adversary after this many epochs without a lower loss",
        at_least=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        lambdas = DEFAULT_LAMBDAS if self.lambdas is None else self.lambdas
        if not lambdas or not all(map(math.isfinite, lambdas)):
            got = ", ".join(map(str, lambdas)) or "none"
            raise AttnProbeError(f"lambdas must be finite numbers of at least 0, got {got}")

    @property
    def tvd_factor(self) -> float:
        """Factor on the TVD in the loss."""
        return 0.5 if self.tvd_scale == "half" else 1.0

    def sorted_lambdas(self) -> tuple[float, ...]:
        """Return the distinct values of λ in ascending order."""
        if self.lambdas is None:
            return tuple(self.tvd_factor * strength for strength in DEFAULT_LAMBDAS)
        return tuple(sorted({float(strength) for strength in self.lambdas}))

    def name_folder(self, strength: float) -> str:
        """Return the checkpoint folder of an adversary, below the test folder.

        Args:
            strength: The adversary's λ.
        """
        return f"lambda-{strength:g}"

    @property
    def guide_folder(self) -> str:
        """Folder of the adversary whose attention another model, the diagnostic MLP, must use.

        This adversary's λ is closest to :data:`GUIDE_LAMBDA`. If the output change (TVD) in the loss
        is halved, λ is compared with half of this value.
        """
        target = GUIDE_LAMBDA * self.tvd_factor
        closest = min(self.sorted_lambdas(), key=lambda value: abs(value - target))
        return self.name_folder(closest)


@dataclass(frozen=True)
class Deception(Options):
    """Options of the test ``deception``."""

    words: Sequence[str] | None = option(
        None,
        "impermissible words, which the model learns to put no attention on; each must be a "
        "single token of its vocabulary (required)",
        metavar="WORD",
    )
    weight: float = option(
        1.0,
        "weight λ of the penalty on attention to the words; the paper uses 0.1 and 1",
        at_least=0,
    )
    over_heads: Literal["mean", "max"] = option(
        "mean",
        "penalise the mean over the heads, or the head with the most attention to the words",
    )
    layers: Literal["last", "all"] = option(
        "last", "layers of a Transformer whose heads are penalised and measured"
    )
    epochs: int = option(5, "number of epochs of further training", at_least=1, at_most=100_000)
    batch_size: int = option(32, "texts per step", at_least=1)
    learning_rate: float | None = option(
        None,
        "learning rate (default: that of the base model's training, or 5e-5 for a Transformer)",
        at_least=0,
    )


OPTIONS_BY_TEST: dict[str, type[Options]] = {
    "uniform": Options,
    "seeds": Seeds,
    "adversary": Adversary,
    "diagnostic_mlp": Options,
    "deception": Deception,
}
"""Options class of each test, in the order in which tests run and appear in reports.

``diagnostic_mlp`` comes after ``adversary`` because it uses a trained adversary.
"""
DEFAULT_RETRAINING_TESTS = ("uniform", "seeds", "adversary", "diagnostic_mlp")
"""Names of the retraining tests that run by default. The test ``deception`` is missing because it
needs a list of words."""


@dataclass(frozen=True)
class RetrainOptions(Options):
    """Options for every training in :func:`hf_attnprobe.retrain`.

    Each test has its own options in addition. A training setting that is None keeps the base
    model's value.
    """

    seed: int = option(
        0,
        "seed of the bootstrap, the search and the test deception",
        at_least=0,
        at_most=MAX_SEED,
    )
    procedure: ProcedureName | None = option(
        None,
        "paper whose training settings are the defaults (default: the base model's)",
    )
    epochs: int | None = option(
        None,
        "epochs of all models except adversaries and deception (default: the base model's)",
        at_least=1,
        at_most=100_000,
    )
    batch_size: int | None = option(
        None, "texts per step, except for deception (default: the base model's)", at_least=1
    )
    learning_rate: float | None = option(
        None, "learning rate (default: the base model's)", at_least=0
    )
    weight_decay: float | None = option(
        None, "weight decay (default: the base model's)", at_least=0
    )
    word_vectors: str | Path | None = option(
        None, "pretrained word vectors (default: the base model's)", metavar="FILE"
    )


@dataclass(frozen=True)
class TransferOptions(Options):
    """Options for :func:`hf_attnprobe.transfer`: a third model to score, and the seed."""

    uniform: str | Path | None = option(
        None,
        "a model trained with uniform attention and the same vocabulary, which is scored too",
        metavar="MODEL",
    )
    seed: int = option(0, "seed of the bootstrap", at_least=0, at_most=MAX_SEED)
