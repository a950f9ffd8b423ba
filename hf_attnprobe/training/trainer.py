"""Trainers that keep the best epoch, can be resumed, and print nothing to stdout."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hf_attnprobe.checkpoints.records import STEPS
from hf_attnprobe.data.examples import column_of
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.hardware.threads import suited_threads
from hf_attnprobe.progress import Bar
from hf_attnprobe.statistics.scores import classification_metrics


if TYPE_CHECKING:
    import datasets

# From a split's name, its examples and their input_ids to further columns, with one value
# or list of numbers per example.
Columns = Callable[[str, "datasets.Dataset", list[list[int]]], Mapping[str, list]]

KNOWN = ("input_ids", "token_type_ids", "attention_mask", "label")
SHOWN = {"accuracy": "accuracy", "reward": "reward"}
"""Scores that the bar shows, the first that there is."""


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: "Mapping[str, datasets.Dataset]",
    output_dir: Path,
    *,
    settings: Mapping[str, Any],
    progress: bool | str,
    kind: "Callable[..., PlainTrainer] | None" = None,
    columns: Columns | None = None,
    **options: Any,
) -> "PlainTrainer":
    """A Trainer that keeps the best epoch and puts its own files into ``STEPS``.

    Args:
        splits: train and, where there are any, validation and test.
        settings: of :class:`TrainingArguments`, in place of those here.
        progress: show a bar on stderr; a string stands before it.
        kind: class of the Trainer; default :class:`PlainTrainer`.
        columns: further columns of numbers, which the model gets beside the tokens, padded
            with 0.
        options: further arguments of the Trainer.
    """
    check_pads(tokenizer)
    arguments = {
        **_settings(model, output_dir, splits.get("validation")),
        "disable_tqdm": True,
        **settings,
    }
    encoded = {
        name: _encode(name, examples, tokenizer, columns) for name, examples in splits.items()
    }
    trainer = (kind or PlainTrainer)(
        model,
        TrainingArguments(**arguments),
        train_dataset=encoded.pop("train"),
        eval_dataset=encoded.get("validation"),
        data_collator=ColumnCollator(tokenizer),
        # Its predictions may be tuples in general; a classifier's are one array.
        compute_metrics=classification_metrics,  # type: ignore[arg-type]
        **options,
    )
    trainer.scored = encoded
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Stopwatch())
    name = progress if isinstance(progress, str) else "training"
    trainer.bar = Bar(name, shown=bool(progress) and trainer.is_world_process_zero())
    trainer.add_callback(Progress(trainer.bar))
    return trainer


def check_pads(tokenizer: PreTrainedTokenizerBase) -> None:
    """Checks that texts can be padded to one length.

    Raises:
        AttnProbeError: the tokenizer has no padding token.
    """
    if tokenizer.pad_token_id is None:
        raise AttnProbeError(
            "expected a tokenizer with a padding token to train on batches, this one has "
            "none; choose one, such as tokenizer.pad_token = tokenizer.eos_token, and "
            "save the tokenizer beside the model"
        )


def _settings(
    model: PreTrainedModel, output_dir: Path, validation: "datasets.Dataset | None"
) -> dict[str, Any]:
    """Defaults of :class:`TrainingArguments`.

    Args:
        validation: the texts that choose the epoch, if any: by ROC-AUC where they are of
            two classes and the model knows two, else by accuracy.
    """
    when, metric = "no", "accuracy"
    if validation is not None:
        when = "epoch"
        n_present = len(set(column_of(validation, "label")))
        if model.config.num_labels == n_present == 2:
            metric = "roc_auc"
    return {
        "output_dir": str(output_dir / STEPS),
        "per_device_eval_batch_size": 128,
        "train_sampling_strategy": "group_by_length",
        "eval_strategy": when,
        "save_strategy": when,
        "save_total_limit": 1,
        "load_best_model_at_end": validation is not None,
        "metric_for_best_model": metric,
        "greater_is_better": True,
        # How many epochs brought no progress is kept over an interruption.
        "restore_callback_states_from_checkpoint": True,
        "logging_strategy": "epoch",
        "report_to": [],
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def _encode(
    name: str,
    examples: "datasets.Dataset",
    tokenizer: PreTrainedTokenizerBase,
    columns: Columns | None,
) -> "datasets.Dataset":
    """A split as the model takes it: tokens, label and further columns."""
    encoded = examples.map(
        lambda rows: tokenizer(rows["text"], rows.get("text_pair"), truncation=True),
        batched=True,
        remove_columns=[c for c in examples.column_names if c != "label"],
    )
    encoded = encoded.select_columns([c for c in KNOWN if c in encoded.column_names])
    if columns is None:
        return encoded
    input_ids = column_of(encoded, "input_ids")
    for column, values in columns(name, examples, input_ids).items():
        encoded = encoded.add_column(column, values)
    return encoded


class PlainTrainer(Trainer):
    """A Trainer that does not compute the norm of gradients that are not clipped.

    Nobody reads the norm, and it takes 6% of an epoch.

    Attributes:
        scored: the encoded held-out splits by name, to be scored after the training.
        bar: of the training.
    """

    bar: Bar
    scored: "Mapping[str, datasets.Dataset]"

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        return grad_norm

    def train(self, *args: Any, **options: Any) -> Any:
        """As in Transformers, a small model with one thread."""
        with suited_threads(self.model):
            return super().train(*args, **options)

    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        """As in Transformers, a small model with one thread."""
        with suited_threads(self.model):
            return super().evaluation_loop(*args, **options)


class ColumnCollator:
    """Pads texts to the longest, and columns that no tokenizer knows with 0."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.texts = DataCollatorWithPadding(tokenizer)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Rows of a split as a batch, [texts, …]."""
        known = [{name: row[name] for name in KNOWN if name in row} for row in features]
        batch = self.texts(known)
        for name in features[0].keys() - set(KNOWN):
            rows = [torch.tensor(row[name], dtype=torch.float32) for row in features]
            batch[name] = pad_sequence(rows, batch_first=True)
        return batch


class Stopwatch(TrainerCallback):
    """Notes how long each part took in the log, which is saved with every checkpoint."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts the clock."""
        self.since = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Writes the seconds since the last entry into this one."""
        now = time.monotonic()
        state.log_history[-1]["seconds"] = now - self.since
        self.since = now


class Progress(TrainerCallback):
    """Says on a bar at which epoch a training is, with the scores of the last one."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar
        self.scores = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts the clock, at the step that an interrupted training had reached."""
        self.first, self.since = state.global_step, time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Moves the bar. Early stopping may end it sooner."""
        pace = (time.monotonic() - self.since) / (state.global_step - self.first)
        n_epochs = math.ceil(args.num_train_epochs)
        epoch = min(max(math.ceil(state.epoch), 1), n_epochs)
        left = pace * (state.max_steps - state.global_step)
        self.bar.move(left, f"epoch {epoch} of {n_epochs}{self.scores}")

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: Mapping[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Keeps the scores to be shown."""
        known = {name: (metrics or {}).get(f"eval_{name}") for name in SHOWN}
        said = [f"{SHOWN[k]} {v:.3f}" for k, v in known.items() if v is not None]
        self.scores = "".join(f", {score}" for score in said[:1])
