"""Training a model that predicts as another one does while it attends elsewhere.

Source: Wiegreffe & Pinter 2019, Section 4.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_attnprobe.attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.data.columns import column_of
from hf_attnprobe.data.examples import label_names
from hf_attnprobe.inference.guides import guide_rows, special_ids
from hf_attnprobe.inference.outputs import to_guide
from hf_attnprobe.retraining.base import (
    SPLITS,
    Base,
    Progress,
    Splits,
    Trained,
    as_trained,
    shared_settings,
    silent,
)
from hf_attnprobe.retraining.options import Adversary
from hf_attnprobe.training.classifier import new_model, papers_trainer, procedure_of
from hf_attnprobe.training.procedures import with_penalties
from hf_attnprobe.training.trainer import PlainTrainer, begin, finish, finished


if TYPE_CHECKING:
    import datasets

TARGETS = ("base_probs", "base_attention")
LOWEST_OBJECTIVE = {
    "metric_for_best_model": "loss",
    "greater_is_better": False,
    "remove_unused_columns": False,
}
"""Arguments of the Trainer with which it keeps the epoch of the lowest objective."""


class AdversaryTrainer(PlainTrainer):
    """Minimises an objective of outputs and attention against the base's.

    The base's come with every training batch. The epoch that is kept has the lowest mean
    objective over the training texts as the epoch went, so there is no second pass over the
    data. The penalties of a regularised model are in the loss, since its adversary is
    regularised too, and not in the score, which they would decide alone.
    """

    objective: Callable[..., Tensor]

    def __init__(self, *args: Any, objective: Callable[..., Tensor], **options: Any) -> None:
        super().__init__(*args, **options)
        self.objective = objective
        self.reached: list[Tensor] = []

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The objective with penalties; validation and test texts are only classified."""
        if TARGETS[0] not in inputs:
            return super().compute_loss(model, inputs, return_outputs)
        targets = [inputs.pop(name) for name in TARGETS]
        assert isinstance(model, AttentionClassifierForSequenceClassification)
        ids, real = inputs["input_ids"], inputs["attention_mask"]
        mask = model.attention_classifier.content_mask(real, ids)
        outputs = model(ids, real, output_attentions=True)
        probs, attention = outputs.logits.softmax(-1), outputs.attentions[0][:, 0, 0]
        objective = self.objective(probs, attention, *targets, mask)
        self.reached.append(objective.detach())
        loss = with_penalties(objective, outputs, torch.sum)
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """The mean objective of the batches of the epoch that has just ended."""
        metrics = {"eval_loss": torch.stack(self.reached).mean().item()}
        self.reached = []
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


def train_adversary(
    base: Base,
    splits: Splits,
    folder: str | Path,
    lambda_: float,
    options: Adversary = Adversary(),
    *,
    progress: Progress = silent,
    **settings: Any,
) -> Trained:
    """Trains a fresh model of the base's configuration on Σ TVD − λ·KL to the base.

    All parameters are trained with the base's optimizer; the epoch with the lowest objective
    is kept. A regularised base's penalties are added in training, with their weights. A
    finished model in ``folder`` is loaded, an interrupted one continued.

    Args:
        splits: train, validation and test texts.
        lambda_: weight of the divergence, at least 0.
        options: scale of the TVD, epochs and patience; its λ are not used.
        settings: of the training, in place of the base's, such as ``learning_rate``. The
            seed is the base's plus 1, so that not even the start is shared.

    Raises:
        AttnProbeError: a folder with another training.
    """
    used = replace(
        base.settings,
        seed=base.settings.seed + 1,
        epochs=options.adversary_epochs,
        patience=options.adversary_patience,
        plateau_factor=1.0,
    )
    used = replace(used, **settings)
    tvd_scale = options.tvd_scale
    record = shared_settings(used) | {"lambda": lambda_, "tvd_scale": tvd_scale}
    folder = Path(folder)
    done = finished(folder, record)
    if done is not None:
        return as_trained(folder, done)
    with begin(folder, used.seed):
        names = label_names(splits["train"])
        model = new_model(base.config(), base.tokenizer, names, used.word_vectors)
        objective = partial(adversary_loss, lambda_=lambda_, tvd_factor=options.tvd_factor)
        trainer = papers_trainer(
            model,
            base.tokenizer,
            {name: splits[name] for name in SPLITS},
            folder,
            procedure_of(used, model.config),
            seed=used.seed,
            progress=progress(folder),
            settings=LOWEST_OBJECTIVE,
            columns=partial(_targets, base),
            kind=partial(AdversaryTrainer, objective=objective),
        )
        result = finish(trainer, base.tokenizer, folder, record, resume=True)
    return as_trained(folder, result)


def _targets(
    base: Base, split: str, examples: "datasets.Dataset", input_ids: list[list[int]]
) -> Mapping[str, list]:
    """What the base says and where it looks, as columns of the training texts.

    A text without tokens has nothing to imitate: its targets are equal probabilities.
    """
    if split != "train":
        return {}
    outputs = base.outputs(examples)
    probs = dict(zip(outputs.example_ids, outputs.probs.tolist(), strict=True))
    special = special_ids(base.tokenizer)
    rows = guide_rows(to_guide(outputs), examples, input_ids, special)
    n_classes = len(base.labels)
    equal = [1 / n_classes] * n_classes
    ids = column_of(examples, "example_id")
    return {
        "base_attention": rows,
        "base_probs": [probs.get(example_id, equal) for example_id in ids],
    }


def adversary_loss(
    probs: Tensor,
    attention: Tensor,
    base_probs: Tensor,
    base_attention: Tensor,
    mask: Tensor,
    *,
    lambda_: float,
    tvd_factor: float = 1.0,
) -> Tensor:
    """Σ over the batch of TVD(ŷ_a, ŷ_b) − λ·KL(α_a‖α_b), a finite scalar.

    It is low for a model close to the base in output and far from it in attention
    (Wiegreffe & Pinter 2019, Section 4). ln α_b is clamped at ln 1e-10: where the base's
    weight underflows, the KL would be infinite. The paper's code then multiplies every
    batch by its class weights; this does not.

    Args:
        probs, base_probs: [batch, classes].
        attention, base_attention: [batch, keys].
        mask: bool [batch, keys], the tokens that enter the KL.
        lambda_: weight of the KL, at least 0.
        tvd_factor: 0.5 for the TVD of the paper's code, which halves the difference of
            two sigmoids.
    """
    distance = (probs - base_probs).abs().sum(-1) / 2
    smallest = torch.finfo(attention.dtype).tiny
    log_attention = attention.clamp_min(smallest).log()
    log_ratio = log_attention - base_attention.clamp_min(1e-10).log()
    divergence = (attention * log_ratio).masked_fill(~mask, 0).sum(-1)
    return (tvd_factor * distance - lambda_ * divergence).sum()
