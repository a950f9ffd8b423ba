"""Is attention needed here at all? Wiegreffe & Pinter 2019, Section 3.2: uniform attention.

Question: does the same model, trained from scratch with every token weighted 1/T, classify
          as well?
Measure:  F1 of the positive class (macro for over two classes), accuracy and area under
          the ROC curve on the test texts, beside the base's; the paired bootstrap interval
          of their difference over the test texts.
Compare:  per text, how far the two models' outputs (total variation) and attentions
          (Jensen-Shannon) are apart.
Reading:  where nothing is lost, attention explains nothing: the paper drops such data sets
          ("attention is not explanation if you don't need it").
"""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.inference.outputs import read_outputs
from hf_attnprobe.options import Options
from hf_attnprobe.readings import TestReadings, share
from hf_attnprobe.retraining.base import (
    Base,
    Progress,
    Splits,
    Trained,
    compare_probs,
    is_correct,
    silent,
    train_again,
)
from hf_attnprobe.retraining.registry import register_retraining
from hf_attnprobe.statistics.scores import Score


READINGS: TestReadings = {
    "uniform_model_tvd": (
        "the model trained with uniform attention predicts {mean:.2f} of 1 away from the base"
    ),
    "uniform_model_jsd": (
        "the base's attention is a divergence of {mean:.2f} (at most 0.69) away from uniform"
    ),
    "uniform_model_correct": share(
        "the model trained with uniform attention is right in {mean:.0%} of texts "
    ),
}


@dataclass(frozen=True)
class UniformResult:
    """Result of :func:`uniform`; tensors are [texts].

    Attributes:
        uniform_model_tvd: total variation of the two outputs, in [0, 1].
        uniform_model_jsd: JSD of the two attentions, in [0, ln 2].
        uniform_model_correct: 1 where the uniform model is right, else 0.
        scores: of the models ``base`` and ``uniform``.
        trained: the uniform model.
    """

    uniform_model_tvd: Tensor
    uniform_model_jsd: Tensor
    uniform_model_correct: Tensor
    scores: tuple[Score, ...]
    trained: tuple[Trained, ...]


@register_retraining(
    title="A model trained with uniform attention",
    readings=READINGS,
    n_models=lambda options: 1,
)
def uniform(
    base: Base,
    splits: Splits,
    options: Options = Options(),
    *,
    output_dir: str | Path,
    seed: int = 0,
    progress: Progress = silent,
) -> UniformResult:
    """Trains the base with ``attention="uniform"`` and compares the two on the test texts.

    Args:
        splits: train, validation and test texts.
        options: none.
        output_dir: folder of the model; what an interrupted run left there is continued.
        seed: of the bootstrap; the model is trained with the base's own.
    """
    trained = train_again(
        base,
        splits,
        Path(output_dir),
        changes={"attention": "uniform"},
        progress=progress,
    )
    own = base.outputs(splits["test"])
    other = read_outputs(trained.model, base.tokenizer, splits["test"])
    probs = {"base": own.probs, "uniform": other.probs}
    return UniformResult(
        tvd(own.probs, other.probs),
        jsd(own.attention, other.attention),
        is_correct(other.probs, other.labels),
        compare_probs(own.labels, probs, reference="base", seed=seed),
        (trained,),
    )
