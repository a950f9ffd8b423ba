"""Is attention needed here at all? Wiegreffe & Pinter 2019, Section 3.2: uniform attention as the adversary.

Question: does the same model, trained from scratch with every token weighted 1/T, classify as well?
Measure:  F1 of the positive class (macro for over two classes), accuracy and area under the ROC curve on the test texts,
          beside the base's; the paired bootstrap interval of their difference over the test texts.
Compare:  per text, how far the two models' outputs (total variation) and attentions (Jensen-Shannon) are apart.
Reading:  where nothing is lost, attention explains nothing: the paper drops such data sets ("attention is not
          explanation if you don't need it").
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.inference.outputs import read_outputs
from hf_attnprobe.retraining.base import Base, Progress, Trained, silent, train_again
from hf_attnprobe.statistics.scores import Score, compare


READINGS = {
    "uniform_model_tvd": "the model trained with uniform attention predicts {mean:.2f} of 1 away from the base",
    "uniform_model_jsd": "the base's attention is a divergence of {mean:.2f} (at most 0.69) away from uniform",
    "uniform_model_correct": "the model trained with uniform attention is right in {mean:.0%} of texts",
}


@dataclass(frozen=True)
class UniformResult:
    """The tensors are [texts]; ``scores`` has the models ``base`` and ``uniform``."""

    uniform_model_tvd: Tensor
    uniform_model_jsd: Tensor
    uniform_model_correct: Tensor
    scores: tuple[Score, ...]
    trained: tuple[Trained, ...]


def uniform(
    base: Base,
    sets: Mapping,
    *,
    output_dir: str | Path,
    seed: int = 0,
    progress: Progress = silent,
) -> UniformResult:
    """Trains the base's configuration with ``attention="uniform"`` and compares the two on the test texts.

    Args:
        sets: train, validation and test texts, as :func:`hf_attnprobe.data.splits.load_splits` returns them.
        output_dir: where the model goes; what an interrupted run left there is continued.
        seed: of the bootstrap; the model is trained with the base's own.
    """
    trained = train_again(
        base,
        sets,
        Path(output_dir),
        changes={"attention": "uniform"},
        progress=progress,
    )
    own, other = (
        base.outputs(sets["test"]),
        read_outputs(trained.model, base.tokenizer, sets["test"]),
    )
    probs = {"base": own.probs.numpy(), "uniform": other.probs.numpy()}
    return UniformResult(
        tvd(own.probs, other.probs),
        jsd(own.attention, other.attention),
        (other.probs.argmax(-1) == other.labels).double(),
        compare(own.labels, probs, reference="base", seed=seed),
        (trained,),
    )
