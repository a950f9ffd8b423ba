"""Training a model to hide its attention, and what can be set."""

from dataclasses import dataclass
from typing import Literal

from hf_attnprobe.options import LARGEST_SEED, Options, option


@dataclass(frozen=True)
class DeceptionOptions(Options):
    """The penalty of :func:`hf_attnprobe.deceive`, and how long it trains."""

    weight: float = option(
        1.0, "λ of the penalty on attention; the paper has 0.1 and 1", at_least=0
    )
    over_heads: Literal["mean", "max"] = option(
        "mean", "penalise the mean over the heads, or the head that attends most"
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
        0, "seed of batches, dropout and bootstrap", at_least=0, at_most=LARGEST_SEED
    )
    trust_remote_code: bool = option(False, "run code that comes with a model from the Hub")
    allow_pickle: bool = option(
        False,
        "read weights that are not safetensors; reading those can run code hidden in them",
    )
