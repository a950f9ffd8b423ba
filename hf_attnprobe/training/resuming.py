"""A training that can be killed: finished, continued at its last epoch, or refused."""

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

from hf_attnprobe.checkpoints import RECORD, load_model, read_record
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.storage.folders import differing, write_json


STEPS = ".steps"  # the Trainer's own files, while it runs
STATE = "trainer_state.json"  # the last file that a Trainer writes into a checkpoint
SCORES = ("accuracy", "f1", "roc_auc")


def finish(
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: Path,
    record: Mapping,
    *,
    resume: bool = False,
) -> dict[str, float]:
    """Trains, scores and saves; the record is written last.

    The Trainer's own files go, unless an interrupted run is to be resumed.

    Args:
        trainer: as :func:`hf_attnprobe.training.trainer.make_trainer` makes it.
        tokenizer: saved beside the model.
        output_dir: of the checkpoint.
        record: the training's settings.
        resume: continue from what an interrupted run with the same record left in
            ``output_dir``.

    Returns:
        Scores by split and name, such as ``test_f1``.
    """
    done = False
    try:
        _train(trainer, output_dir / STEPS, record, resume)
        metrics = _scores(trainer)
        trainer.model.eval().save_pretrained(output_dir)
        tokenizer.save_pretrained(output_dir)
        outcome = {
            "metrics": metrics,
            "n_epochs": round(trainer.state.epoch or 0),
            "seconds": seconds(trainer),
        }
        write_json(output_dir / RECORD, dict(record) | outcome)
        done = True
    finally:
        if done or not resume:
            shutil.rmtree(output_dir / STEPS, ignore_errors=True)
        with contextlib.suppress(OSError):  # unless there is something else in it
            output_dir.rmdir()
    return metrics


def _scores(trainer: Trainer) -> dict[str, float]:
    """Of the best epoch on validation and test texts; NaNs are left out."""
    metrics = {}
    for split, examples in trainer.scored.items():
        scores = trainer.predict(examples, metric_key_prefix=split).metrics
        for name in SCORES:
            score = float(scores.get(f"{split}_{name}", "nan"))
            if score == score:
                metrics[f"{split}_{name}"] = score
    return dict(sorted(metrics.items()))


def finished(
    folder: Path, record: Mapping
) -> tuple[PreTrainedModel, dict[str, float]] | None:
    """Model and metrics of a training with this record that came to its end, or None.

    Raises:
        AttnProbeError: the folder holds one with other settings.
    """
    held = read_record(folder)
    if not held:
        return None
    check_same(folder, held, record)
    # A process may have been killed after it wrote the record.
    shutil.rmtree(folder / STEPS, ignore_errors=True)
    return load_model(folder).eval(), held["metrics"]


def check_same(folder: Path, held: Mapping, record: Mapping) -> None:
    """Checks that the settings of a folder's training are those asked for."""
    for name, (old, _) in differing(held, record).items():
        raise AttnProbeError(
            f"{folder} holds a training with {name.replace('_', ' ')} {old}, not "
            f"{record[name]}; choose another folder or delete it"
        )


def _train(trainer: Trainer, steps: Path, record: Mapping, resume: bool) -> None:
    """From the start, or from an interrupted run's last epoch, to the same weights."""
    last = _last_checkpoint(steps) if resume else None
    if last is None:
        shutil.rmtree(steps, ignore_errors=True)
        steps.mkdir(parents=True)
        write_json(steps / RECORD, dict(record))
        trainer.train()
        return
    check_same(steps, read_record(steps), record)
    state = _relocated_state(last)
    if _stopped_early(state):  # nothing is left but to load the best epoch
        trainer.args.num_train_epochs = round(state["epoch"])
    trainer.train(resume_from_checkpoint=str(last))


def _relocated_state(checkpoint: Path) -> dict[str, Any]:
    """The Trainer's state with ``best_model_checkpoint`` pointing into this folder.

    The folder of an interrupted run may have been moved.
    """
    state = json.loads((checkpoint / STATE).read_text())
    if state.get("best_global_step"):
        best = checkpoint.with_name(f"checkpoint-{state['best_global_step']}")
        state["best_model_checkpoint"] = str(best)
        write_json(checkpoint / STATE, state)
    return state


def _last_checkpoint(steps: Path) -> Path | None:
    """The last one that is whole; what a killed process left half written goes."""
    checkpoints = sorted(
        steps.glob("checkpoint-*"),
        key=lambda folder: int(folder.name.split("-")[1]),
        reverse=True,
    )
    for folder in checkpoints:
        try:
            json.loads((folder / STATE).read_text())
        except (OSError, ValueError):
            shutil.rmtree(folder)
        else:
            return folder
    return None


def _stopped_early(state: Mapping) -> bool:
    """Whether the run had ended early, with only its result left to be saved."""
    stopping = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback")
    if stopping is None:
        return False
    counter = stopping["attributes"]["early_stopping_patience_counter"]
    return counter >= stopping["args"]["early_stopping_patience"]


def seconds(trainer: Trainer) -> float:
    """Spent in training and evaluation, over all runs that it took."""
    return sum(row.get("seconds", 0.0) for row in trainer.state.log_history)
