"""Trainers that keep the best epoch, can be killed and resumed, and print nothing to stdout."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.scores import classification_metrics
from hf_attnprobe.training.resuming import STEPS


# From a split, its examples and their input_ids to further columns, one value or list of numbers per example.
Columns = Callable[[str, object, list[list[int]]], Mapping[str, list]]


def make_trainer(
    model,
    tokenizer,
    sets: Mapping,
    output_dir: Path,
    *,
    settings: Mapping,
    progress: bool | str,
    kind: Callable[..., Trainer] | None = None,
    columns: Columns | None = None,
    **options,
) -> Trainer:
    """A Trainer that keeps the best epoch, prints nothing to stdout, and puts its own files into ``STEPS``.

    Args:
        settings: of :class:`TrainingArguments`, in place of those here.
        kind: default :class:`PlainTrainer`. options: its own.
        progress: a bar on stderr; a string stands before it.
        columns: of numbers, which go to the model beside the tokens, padded with 0.
    """
    check_pads(tokenizer)
    chosen_on = (
        sets["validation"].with_format(None)["label"][:]
        if "validation" in sets
        else None
    )
    settings = (
        _settings(model, output_dir, chosen_on)
        | {"disable_tqdm": not progress}
        | dict(settings)
    )
    encoded = {
        name: _encode(name, examples, tokenizer, columns)
        for name, examples in sets.items()
    }
    trainer = (kind or PlainTrainer)(
        model,
        TrainingArguments(**settings),
        train_dataset=encoded["train"],
        eval_dataset=encoded.get("validation"),
        data_collator=ColumnCollator(tokenizer),
        compute_metrics=classification_metrics,
        **options,
    )
    trainer.scored = {
        name: encoded[name] for name in ("validation", "test") if name in encoded
    }
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    trainer.add_callback(Stopwatch())
    if progress:
        trainer.add_callback(
            StderrProgress(progress if isinstance(progress, str) else None)
        )
    return trainer


def check_pads(tokenizer) -> None:
    """Texts can be made equally long."""
    if tokenizer.pad_token_id is None:
        raise AttnProbeError(
            "expected a tokenizer with a padding token to train on batches, this one has none; choose one, such as "
            "tokenizer.pad_token = tokenizer.eos_token, and save the tokenizer beside the model"
        )


def _settings(model, output_dir: Path, chosen_on: Sequence[int] | None) -> dict:
    """Of :class:`TrainingArguments`. chosen_on: labels of the validation texts, which choose the epoch: by the area under
    the ROC curve for two classes, if they are of both, else by accuracy."""
    has_validation = chosen_on is not None
    has_curve = has_validation and model.config.num_labels == len(set(chosen_on)) == 2
    return {
        "output_dir": str(output_dir / STEPS),
        "per_device_eval_batch_size": 128,
        "train_sampling_strategy": "group_by_length",
        "eval_strategy": "epoch" if has_validation else "no",
        "save_strategy": "epoch" if has_validation else "no",
        "save_total_limit": 1,
        "load_best_model_at_end": has_validation,
        "metric_for_best_model": "roc_auc" if has_curve else "accuracy",
        "greater_is_better": True,
        "restore_callback_states_from_checkpoint": True,  # how long there has been no progress
        "logging_strategy": "epoch",
        "report_to": [],
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def _encode(name: str, examples, tokenizer, columns: Columns | None):
    encoded = examples.map(
        lambda rows: tokenizer(rows["text"], truncation=True),
        batched=True,
        remove_columns=["text", "example_id"],
    )
    encoded = encoded.remove_columns(
        [
            c
            for c in encoded.column_names
            if c not in ("input_ids", "attention_mask", "label")
        ]
    )
    further = (
        columns(name, examples, encoded.with_format(None)["input_ids"][:])
        if columns
        else {}
    )
    for column, values in further.items():
        encoded = encoded.add_column(column, values)
    return encoded


class PlainTrainer(Trainer):
    """Without the norm of the gradients where they are not clipped: nobody reads it, and it takes 6% of an epoch."""

    def _get_grad_norm(self, model, grad_norm=None):
        return grad_norm


class ColumnCollator:
    """Pads texts to the longest, and columns that no tokenizer knows with 0."""

    KNOWN = ("input_ids", "attention_mask", "label")

    def __init__(self, tokenizer):
        self.texts = DataCollatorWithPadding(tokenizer)

    def __call__(self, features: Sequence[Mapping]) -> dict[str, torch.Tensor]:
        batch = self.texts(
            [{k: row[k] for k in self.KNOWN if k in row} for row in features]
        )
        for name in features[0].keys() - set(self.KNOWN):
            batch[name] = pad_sequence(
                [torch.tensor(row[name], dtype=torch.float32) for row in features], True
            )
        return batch


class Stopwatch(TrainerCallback):
    """Notes in the log, which is saved with every checkpoint, how long each part took."""

    def on_train_begin(self, args, state, control, **options):
        self.since = time.monotonic()

    def on_log(self, args, state, control, **options):
        now = time.monotonic()
        state.log_history[-1]["seconds"], self.since = now - self.since, now


class StderrProgress(ProgressCallback):
    """The Trainer's progress bar without its log lines on stdout, which belongs to results."""

    def __init__(self, name: str | None = None):
        super().__init__()
        self.name = name

    def on_train_begin(self, args, state, control, **options):
        super().on_train_begin(args, state, control, **options)
        if self.training_bar is not None:
            self.training_bar.set_description(self.name)

    def on_log(self, args, state, control, logs=None, **options):
        if state.is_world_process_zero and self.training_bar is not None and logs:
            shown = {
                k: f"{v:.3f}"
                for k, v in logs.items()
                if k in ("loss", "eval_roc_auc", "eval_accuracy", "epoch")
            }
            self.training_bar.write(
                " ".join(f"{k} {v}" for k, v in shown.items()), file=sys.stderr
            )
