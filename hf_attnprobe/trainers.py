"""Trainers that keep the best epoch, can be killed and resumed, and print nothing to stdout."""

import contextlib
import json
import shutil
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
from hf_attnprobe.loading import RECORD, load_model, read_record, write_atomically
from hf_attnprobe.objectives import classification_metrics


STEPS = ".steps"  # the Trainer's own files, while it runs
STATE = "trainer_state.json"  # the last file that a Trainer writes into a checkpoint

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
    chosen_on = sets["validation"].with_format(None)["label"][:] if "validation" in sets else None
    settings = _settings(model, output_dir, chosen_on) | {"disable_tqdm": not progress} | dict(settings)
    encoded = {name: _encode(name, examples, tokenizer, columns) for name, examples in sets.items()}
    trainer = (kind or PlainTrainer)(
        model,
        TrainingArguments(**settings),
        train_dataset=encoded["train"],
        eval_dataset=encoded.get("validation"),
        data_collator=ColumnCollator(tokenizer),
        compute_metrics=classification_metrics,
        **options,
    )
    trainer.scored = {name: encoded[name] for name in ("validation", "test") if name in encoded}
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    trainer.add_callback(Stopwatch())
    if progress:
        trainer.add_callback(StderrProgress(progress if isinstance(progress, str) else None))
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
        lambda rows: tokenizer(rows["text"], truncation=True), batched=True, remove_columns=["text", "example_id"]
    )
    encoded = encoded.remove_columns(
        [c for c in encoded.column_names if c not in ("input_ids", "attention_mask", "label")]
    )
    further = columns(name, examples, encoded.with_format(None)["input_ids"][:]) if columns else {}
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
        batch = self.texts([{k: row[k] for k in self.KNOWN if k in row} for row in features])
        for name in features[0].keys() - set(self.KNOWN):
            batch[name] = pad_sequence([torch.tensor(row[name], dtype=torch.float32) for row in features], True)
        return batch


def finish(
    trainer: Trainer, tokenizer, output_dir: Path, record: Mapping, *, resume: bool = False
) -> dict[str, float]:
    """Trains, scores, saves; the record is written last. The Trainer's own files go, unless an interrupted run is to
    be resumed.

    Args:
        record: the training's settings.
        resume: continue from what an interrupted run with the same record left in ``output_dir``.
    """
    metrics, done = {}, False
    try:
        _train(trainer, output_dir / STEPS, record, resume)
        for name, examples in trainer.scored.items():
            found = trainer.predict(examples, metric_key_prefix=name).metrics
            metrics |= {k: float(v) for k, v in found.items() if k.split("_", 1)[1] in ("accuracy", "f1", "roc_auc")}
        trainer.model.eval().save_pretrained(output_dir)
        tokenizer.save_pretrained(output_dir)
        metrics = {name: value for name, value in sorted(metrics.items()) if value == value}  # NaN: a single class
        written = {"metrics": metrics, "n_epochs": round(trainer.state.epoch or 0), "seconds": seconds(trainer)}
        write_atomically(output_dir / RECORD, json.dumps(dict(record) | written, indent=1) + "\n")
        done = True
    finally:
        if done or not resume:
            shutil.rmtree(output_dir / STEPS, ignore_errors=True)
        with contextlib.suppress(OSError):  # unless there is something else in it
            output_dir.rmdir()
    return metrics


def finished(folder: Path, record: Mapping):
    """Model and metrics of a training with this record that came to its end, or None.

    Raises:
        AttnProbeError: the folder holds one with other settings.
    """
    held = read_record(folder)
    if not held:
        return None
    check_same(folder, held, record)
    shutil.rmtree(folder / STEPS, ignore_errors=True)  # of a process killed after its last word
    return load_model(folder).eval(), held["metrics"]


def check_same(folder: Path, held: Mapping, record: Mapping) -> None:
    """The settings that a folder's training had are those asked for."""
    wrong = [name for name, value in json.loads(json.dumps(dict(record))).items() if held.get(name) != value]
    if wrong:
        raise AttnProbeError(
            f"{folder} holds a training with {wrong[0].replace('_', ' ')} {held.get(wrong[0])}, not "
            f"{record[wrong[0]]}; choose another folder or delete it"
        )


def _train(trainer: Trainer, steps: Path, record: Mapping, resume: bool) -> None:
    """From the start, or from the last epoch of an interrupted run, to the same weights."""
    last = _last_checkpoint(steps) if resume else None
    if last is None:
        shutil.rmtree(steps, ignore_errors=True)
        steps.mkdir(parents=True)
        (steps / RECORD).write_text(json.dumps(dict(record)) + "\n")
        trainer.train()
        return
    check_same(steps, read_record(steps), record)
    state = _here(last)
    if _gave_up(state):
        trainer.args.num_train_epochs = round(state["epoch"])  # nothing is left but to load the best epoch
    trainer.train(resume_from_checkpoint=str(last))


def _here(checkpoint: Path) -> dict:
    """The state of a run whose folder may have been moved: its best epoch is beside the last one."""
    state = json.loads((checkpoint / STATE).read_text())
    if state.get("best_global_step"):
        state["best_model_checkpoint"] = str(checkpoint.with_name(f"checkpoint-{state['best_global_step']}"))
        write_atomically(checkpoint / STATE, json.dumps(state))
    return state


def _last_checkpoint(steps: Path) -> Path | None:
    """The last one that is whole; what a killed process left half written goes."""
    found = sorted(steps.glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]), reverse=True)
    for folder in found:
        try:
            json.loads((folder / STATE).read_text())
        except (OSError, ValueError):
            shutil.rmtree(folder)
        else:
            return folder
    return None


def _gave_up(state: Mapping) -> bool:
    """Whether the run had ended early, with only its result left to be saved."""
    stopping = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback")
    if stopping is None:
        return False
    return stopping["attributes"]["early_stopping_patience_counter"] >= stopping["args"]["early_stopping_patience"]


def seconds(trainer: Trainer) -> float:
    """Spent in training and evaluation, over all runs that it took."""
    return sum(row.get("seconds", 0.0) for row in trainer.state.log_history)


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
            shown = {k: f"{v:.3f}" for k, v in logs.items() if k in ("loss", "eval_roc_auc", "eval_accuracy", "epoch")}
            self.training_bar.write(" ".join(f"{k} {v}" for k, v in shown.items()), file=sys.stderr)
