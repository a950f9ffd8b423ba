"""Training a model to predict as another one does while it attends elsewhere (Wiegreffe & Pinter 2019, Section 4)."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from transformers import EarlyStoppingCallback

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.guides import guide_rows, special_ids
from hf_attnprobe.inference.outputs import to_guide
from hf_attnprobe.options import check_at_least
from hf_attnprobe.retraining.base import Base, Progress, Trained, as_trained, silent
from hf_attnprobe.training.classifier import begin, new_model
from hf_attnprobe.training.losses import adversary_loss, penalised
from hf_attnprobe.training.procedures import papers_optimizer, papers_procedure
from hf_attnprobe.training.resuming import finish, finished
from hf_attnprobe.training.trainer import PlainTrainer, make_trainer


TARGETS = ("base_probs", "base_attention")


class AdversaryTrainer(PlainTrainer):
    """Minimises an objective of outputs and attention against the base's, which come with every training batch.

    The score that decides which epoch is kept is the objective over the training texts as the epoch went: there is no second
    pass over the data. The penalties of a regularised model are in the loss, since its adversary is one too, and not in the
    score: they would outweigh it.
    """

    def __init__(self, *args, objective: Callable, **options):
        super().__init__(*args, **options)
        self.objective, self.reached = objective, []

    def compute_loss(self, model, inputs, return_outputs=False, **options):
        if TARGETS[0] not in inputs:  # validation and test texts are only classified
            return super().compute_loss(model, inputs, return_outputs, **options)
        targets = [inputs.pop(name) for name in TARGETS]
        mask = model.attention_classifier.content_mask(
            inputs["attention_mask"], inputs["input_ids"]
        )
        outputs = model(
            inputs["input_ids"], inputs["attention_mask"], output_attentions=True
        )
        loss = self.objective(
            outputs.logits.softmax(-1), outputs.attentions[0][:, 0, 0], *targets, mask
        )
        self.reached.append(loss.detach())
        loss = penalised(loss, outputs, torch.sum)
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args, **options) -> dict[str, float]:
        """The objective over the epoch that has just ended, per batch."""
        metrics = {"eval_loss": torch.stack(self.reached).mean().item()}
        self.reached = []
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


def train_adversary(
    base: Base,
    sets: Mapping,
    folder: str | Path,
    *,
    lambda_: float,
    tvd_scale: Literal["true", "half"] = "true",
    epochs: int = 80,
    patience: int = 10,
    start=None,
    progress: Progress = silent,
    **settings,
) -> Trained:
    """A fresh model of the base's configuration, trained on Σ TVD − λ·KL to the base over the training texts.

    All parameters are trained with the base's optimiser; the epoch with the lowest objective is kept. What the base says and
    where it looks is computed once. A regularised base's penalties are added in training, with their weights: the
    adversary is a model of the same kind. A finished model in ``folder`` is loaded, an interrupted one continued.

    Args:
        epochs, patience: at most so many, and the end after so many without a lower objective.
        start: a model whose weights it starts from; ``None`` is a fresh one drawn with the base's seed plus 1, so that
            not even the beginning is shared.
        settings: that replace the base's, such as ``learning_rate``.

    Raises:
        AttnProbeError: a scale that is none, numbers out of range.
    """
    if tvd_scale not in ("true", "half"):
        raise AttnProbeError(f"expected tvd_scale true or half, got {tvd_scale!r}")
    check_at_least(0, lambda_=lambda_)
    check_at_least(1, epochs=epochs, patience=patience)
    settings = (
        {**base.settings, "seed": base.settings["seed"] + 1}
        | settings
        | {"epochs": epochs, "patience": patience}
    )
    record = settings | {"lambda": lambda_, "tvd_scale": tvd_scale}
    folder = Path(folder)
    if (found := finished(folder, record)) is not None:
        return as_trained(folder, *found)
    folder, sets, names = begin(
        folder,
        sets["train"],
        sets["validation"],
        sets["test"],
        settings["seed"],
        resume=True,
    )
    model = new_model(
        type(base.model.config).from_dict(base.model.config.to_dict()),
        base.tokenizer,
        names,
        settings["vectors"],
    )
    if start is not None:
        model.load_state_dict(copy.deepcopy(start.state_dict()))
    objective = partial(
        adversary_loss, lambda_=lambda_, tvd_factor=0.5 if tvd_scale == "half" else 1.0
    )
    trainer = _trainer(base, model, sets, folder, settings, objective, progress(folder))
    return as_trained(
        folder, model, finish(trainer, base.tokenizer, folder, record, resume=True)
    )


def _trainer(
    base: Base,
    model,
    sets: Mapping,
    folder: Path,
    settings: Mapping,
    objective,
    progress: bool | str,
):
    """The base's batches and optimiser with another objective and another end."""
    names = ("batch_size", "learning_rate", "weight_decay", "max_grad_norm")
    procedure = papers_procedure(
        settings["recipe"], model.config.encoder, **{k: settings[k] for k in names}
    )
    optimizer = papers_optimizer(
        model,
        learning_rate=procedure.learning_rate,
        weight_decay=procedure.weight_decay,
        amsgrad=procedure.amsgrad,
    )
    return make_trainer(
        model,
        base.tokenizer,
        sets,
        folder,
        progress=progress,
        columns=partial(_targets, base),
        kind=partial(AdversaryTrainer, objective=objective),
        optimizers=(
            optimizer,
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0),
        ),
        callbacks=[EarlyStoppingCallback(settings["patience"])],
        settings={
            "num_train_epochs": settings["epochs"],
            "per_device_train_batch_size": procedure.batch_size,
            "max_grad_norm": procedure.max_grad_norm,
            "seed": settings["seed"],
            "metric_for_best_model": "loss",
            "greater_is_better": False,
            "remove_unused_columns": False,
        },
    )


def _targets(
    base: Base, split: str, examples, input_ids: list[list[int]]
) -> dict[str, list]:
    """What the base says and where it looks, at the texts' tokens; a text without tokens has nothing to imitate."""
    if split != "train":
        return {}
    outputs = base.outputs(examples)
    probs = dict(zip(outputs.example_ids, outputs.probs.tolist(), strict=True))
    rows = guide_rows(
        to_guide(outputs), examples, input_ids, special_ids(base.tokenizer)
    )
    empty = [1 / outputs.probs.shape[-1]] * outputs.probs.shape[-1]
    ids = examples.with_format(None)["example_id"][:]
    return {"base_attention": rows, "base_probs": [probs.get(k, empty) for k in ids]}
