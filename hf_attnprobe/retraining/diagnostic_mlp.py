"""Does attention tell another model something? Wiegreffe & Pinter 2019, Section 3.4.

Question: given a model's attention weights, does a model that knows no context classify
          better than without?
Measure:  F1, accuracy and area under the ROC curve on the test texts of a token-wise layer
          (``encoder="mlp"``) whose attention is imposed, not trained: c = Σ a_t h_t with
          the weights of a guide.
Compare:  the guides: uniform weights; the layer's own additive attention, trained with it;
          the base's weights; those of a trained adversary.
Reading:  base above the trained one: its weights carry information about tokens that does
          not depend on the model. Adversary far below: its weights do not, whatever it
          predicts.
"""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.inference.guides import Guide
from hf_attnprobe.inference.outputs import predict, read_outputs, to_guide
from hf_attnprobe.options import Options
from hf_attnprobe.readings import TestReadings, share
from hf_attnprobe.retraining.base import (
    SPLITS,
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


UNREGULARISED = {
    "residual_connection": "none",
    "tying": 0.0,
    "mlm_weight": 0.0,
    "conicity_weight": 0.0,
}
READINGS: TestReadings = {
    "uniform_guide_correct": share(
        "guided by uniform weights, a model without context is right in {mean:.0%} of texts"
    ),
    "trained_guide_correct": share(
        "with attention of its own, a model without context is right in {mean:.0%} of texts"
    ),
    "base_guide_correct": share(
        "guided by the base's weights, a model without context is right in {mean:.0%} of texts"
    ),
    "adversary_guide_correct": share(
        "guided by the adversary's weights, a model without context is right in {mean:.0%} of texts"
    ),
}


@dataclass(frozen=True)
class DiagnosticMlpResult:
    """Result of :func:`diagnostic_mlp`; tensors are [texts].

    Attributes:
        uniform_guide_correct, trained_guide_correct, base_guide_correct: 1 where the model
            with this guide is right, else 0.
        adversary_guide_correct: the same; None without an adversary.
        scores: of ``base`` and of ``… guide`` for every guide, against ``trained guide``.
        trained: one model per guide.
    """

    uniform_guide_correct: Tensor
    trained_guide_correct: Tensor
    base_guide_correct: Tensor
    adversary_guide_correct: Tensor | None
    scores: tuple[Score, ...]
    trained: tuple[Trained, ...]


@register_retraining(
    title="A model without context, guided by attention weights",
    readings=READINGS,
    n_models=lambda options: 3,
)
def diagnostic_mlp(
    base: Base,
    splits: Splits,
    options: Options = Options(),
    *,
    output_dir: str | Path,
    adversary: str | Path | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> DiagnosticMlpResult:
    """Trains a context-free model with each guide, with the base's settings and seed.

    Args:
        splits: train, validation and test texts.
        options: none.
        output_dir: one folder per guide in it.
        adversary: the checkpoint of a trained adversary, for the fourth guide. Its folder's
            name is part of that of the model it guides.
        seed: of the bootstrap.
    """
    folders = {name: name for name in ("uniform", "trained", "base")}
    guides = {"base": guides_of(base.model, base, splits)}
    if adversary is not None:
        # Two adversaries guide two models: the folder tells which one it was.
        folders["adversary"] = f"adversary-{Path(adversary).name}"
        guides["adversary"] = guides_of(load_model(adversary), base, splits)
    attentions = {"uniform": "uniform", "trained": "additive"}
    own = base.outputs(splits["test"])
    probs, trained, correct = {"base": own.probs}, [], {}
    for name, folder in folders.items():
        changes = {
            "encoder": "mlp",
            "attention": attentions.get(name, "guided"),
            "attention_size": None,
            **UNREGULARISED,
        }
        guide = guides.get(name)
        run = train_again(
            base,
            splits,
            Path(output_dir) / folder,
            changes=changes,
            guides=guide,
            progress=progress,
        )
        imposed = None if guide is None else guide["test"]
        guided = predict(run.model, base.tokenizer, splits["test"], guide=imposed)
        trained.append(run)
        probs[f"{name} guide"] = guided
        correct[name] = is_correct(guided, own.labels)
    return DiagnosticMlpResult(
        correct["uniform"],
        correct["trained"],
        correct["base"],
        correct.get("adversary"),
        compare_probs(own.labels, probs, reference="trained guide", seed=seed),
        tuple(trained),
    )


def guides_of(model: PreTrainedModel, base: Base, splits: Splits) -> dict[str, Guide]:
    """A model's attention on all splits, by split and example id."""
    guides = {}
    for name in SPLITS:
        if model is base.model:
            outputs = base.outputs(splits[name])
        else:
            outputs = read_outputs(model, base.tokenizer, splits[name])
        guides[name] = to_guide(outputs)
    return guides
