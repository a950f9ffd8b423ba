"""Training a model that predicts as another one does while it attends elsewhere.

Source: Wiegreffe & Pinter 2019, Section 4.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    Trainer,
)

from hf_attnprobe.data.examples import label_names
from hf_attnprobe.inference.guides import guide_rows, special_ids
from hf_attnprobe.inference.outputs import to_guide
from hf_attnprobe.options import check_at_least
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
from hf_attnprobe.training.classifier import new_model, procedure_of
from hf_attnprobe.training.losses import adversary_loss, with_penalties
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.procedures import optimizer_and_schedule
from hf_attnprobe.training.resuming import begin, finish, finished
from hf_attnprobe.training.trainer import PlainTrainer, make_trainer


if TYPE_CHECKING:
    import datasets

TARGETS = ("base_probs", "base_attention")


class AdversaryTrainer(PlainTrainer):
    """Minimises an objective of outputs and attention against the base's.

    The base's come with every training batch. The epoch that is kept has the lowest mean
    objective over the training texts as the epoch went, so there is no second pass over the
    data. The penalties of a regularised model are in the loss, since its adversary is
    regularised too, and not in the score, which they would decide alone.
    """

    def __init__(self, *args: Any, objective: Callable[..., Tensor], **options: Any):
        super().__init__(*args, **options)
        self.objective = objective
        self.reached: list[Tensor] = []

    def compute_loss(
        self,
        model: PreTrainedModel,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        **options: Any,
    ) -> Any:
        """The objective with penalties; validation and test texts are only classified."""
        if TARGETS[0] not in inputs:
            return super().compute_loss(model, inputs, return_outputs, **options)
        targets = [inputs.pop(name) for name in TARGETS]
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
        AttnProbeError: a negative λ, or a folder with another training.
    """
    check_at_least(0, lambda_=lambda_)
    used = replace(
        base.settings,
        seed=base.settings.seed + 1,
        epochs=options.adversary_epochs,
        patience=options.adversary_patience,
        plateau_factor=1.0,
    )
    used = replace(used, **settings)
    record = shared_settings(used)
    record |= {"lambda": lambda_, "tvd_scale": options.tvd_scale}
    folder = Path(folder)
    done = finished(folder, record)
    if done is not None:
        return as_trained(folder, *done)
    begin(folder, used.seed, resume=True)
    names = label_names(splits["train"])
    model = new_model(base.config(), base.tokenizer, names, used.word_vectors)
    objective = partial(adversary_loss, lambda_=lambda_, tvd_factor=options.tvd_factor)
    trainer = _trainer(base, model, splits, folder, used, objective, progress(folder))
    metrics = finish(trainer, base.tokenizer, folder, record, resume=True)
    return as_trained(folder, model, metrics)


def _trainer(
    base: Base,
    model: PreTrainedModel,
    splits: Splits,
    folder: Path,
    used: TrainingOptions,
    objective: Callable[..., Tensor],
    progress: bool | str,
) -> Trainer:
    """A Trainer with the base's batches and optimizer, another objective and another end."""
    procedure = procedure_of(used, model.config)
    settings = {
        "num_train_epochs": procedure.epochs,
        "per_device_train_batch_size": procedure.batch_size,
        "max_grad_norm": procedure.max_grad_norm,
        "seed": used.seed,
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        "remove_unused_columns": False,
    }
    return make_trainer(
        model,
        base.tokenizer,
        {name: splits[name] for name in SPLITS},
        folder,
        settings=settings,
        progress=progress,
        columns=partial(_targets, base),
        kind=partial(AdversaryTrainer, objective=objective),
        optimizers=optimizer_and_schedule(model, procedure),
        callbacks=[EarlyStoppingCallback(procedure.patience)],
    )


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
    n_classes = outputs.probs.shape[-1]
    equal = [1 / n_classes] * n_classes
    ids = examples.with_format(None)["example_id"][:]
    return {
        "base_attention": rows,
        "base_probs": [probs.get(example_id, equal) for example_id in ids],
    }
