"""Does attention tell another model something? Wiegreffe & Pinter 2019, Section 3.4: diagnosing with a guided model.

Question: given a model's attention weights, does a model that knows no context classify better than without?
Measure:  F1, accuracy and area under the ROC curve on the test texts of a token-wise layer (``encoder="mlp"``) whose
          attention is imposed, not trained: c = Σ a_t h_t with the weights of a guide.
Compare:  the guides: uniform weights; the layer's own additive attention, trained with it; the base's weights; those of
          a trained adversary.
Reading:  base above the trained one: its weights carry information about tokens that does not depend on the model.
          Adversary far below: its weights do not, whatever it predicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import AutoModelForSequenceClassification

from hf_attnprobe.inference.guides import Guide
from hf_attnprobe.inference.outputs import predict, read_outputs, to_guide
from hf_attnprobe.retraining.base import (
    SPLITS,
    UNREGULARISED,
    Base,
    Progress,
    Trained,
    silent,
    train_again,
)
from hf_attnprobe.statistics.scores import Score, compare


READINGS = {
    "uniform_guide_correct": "guided by uniform weights, a model without context is right in {mean:.0%} of texts",
    "trained_guide_correct": "with attention of its own, a model without context is right in {mean:.0%} of texts",
    "base_guide_correct": "guided by the base's weights, a model without context is right in {mean:.0%} of texts",
    "adversary_guide_correct": "guided by the adversary's weights, a model without context is right in {mean:.0%} of texts",
}


@dataclass(frozen=True)
class DiagnosticMlpResult:
    """1 where the model guided so is right, each [texts]; None without an adversary. ``scores`` has ``base`` and the
    guides ``uniform``, ``trained``, ``base`` and ``adversary``, each followed by ``guide``, all against ``trained guide``."""

    uniform_guide_correct: Tensor
    trained_guide_correct: Tensor
    base_guide_correct: Tensor
    adversary_guide_correct: Tensor | None
    scores: tuple[Score, ...]
    trained: tuple[Trained, ...]


def diagnostic_mlp(
    base: Base,
    sets: Mapping,
    *,
    output_dir: str | Path,
    adversary: str | Path | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> DiagnosticMlpResult:
    """Trains a context-free model with each guide, with the base's settings and seed.

    Args:
        sets: train, validation and test texts. output_dir: one folder per guide in it.
        adversary: the checkpoint of a trained adversary, for the fourth guide; its folder's name is part of that of the
            model it guides.
        seed: of the bootstrap.
    """
    output_dir, guides = Path(output_dir), {"base": guides_of(base.model, base, sets)}
    if adversary is not None:
        guides["adversary"] = guides_of(
            AutoModelForSequenceClassification.from_pretrained(adversary), base, sets
        )
    # Two adversaries guide two models: the folder tells which one it was.
    folders = (
        {} if adversary is None else {"adversary": f"adversary-{Path(adversary).name}"}
    )
    trained, probs = {}, {"base": base.outputs(sets["test"]).probs.numpy()}
    for name in ("uniform", "trained", *guides):
        kind = {"uniform": "uniform", "trained": "additive"}.get(name, "guided")
        trained[name] = train_again(
            base,
            sets,
            output_dir / folders.get(name, name),
            changes={
                "encoder": "mlp",
                "attention": kind,
                "attention_size": None,
                **UNREGULARISED,
            },
            guides=guides.get(name),
            progress=progress,
        )
        found = predict(
            trained[name].model,
            base.tokenizer,
            sets["test"],
            guide=guides.get(name, {}).get("test"),
        )
        probs[f"{name} guide"] = found.numpy()
    labels = base.outputs(sets["test"]).labels
    correct = {
        f"{name}_guide_correct": _correct(probs[f"{name} guide"], labels)
        for name in trained
    }
    scores = compare(labels, probs, reference="trained guide", seed=seed)
    correct.setdefault("adversary_guide_correct", None)
    return DiagnosticMlpResult(
        **correct, scores=scores, trained=tuple(trained.values())
    )


def guides_of(model, base: Base, sets: Mapping) -> dict[str, Guide]:
    """A model's attention on the train, validation and test texts, by split and example id."""
    if model is base.model:
        return {name: to_guide(base.outputs(sets[name])) for name in SPLITS}
    return {
        name: to_guide(read_outputs(model, base.tokenizer, sets[name]))
        for name in SPLITS
    }


def _correct(probs, labels: Tensor) -> Tensor:
    return (labels.new_tensor(probs.argmax(-1)) == labels).double()
