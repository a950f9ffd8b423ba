"""A training that can be killed: finished, continued at its last epoch, or refused."""

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from transformers import Trainer

from hf_attnprobe.checkpoints import RECORD, load_model, read_record
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.storage.folders import write_atomically


STEPS = ".steps"  # the Trainer's own files, while it runs
STATE = "trainer_state.json"  # the last file that a Trainer writes into a checkpoint


def finish(
    trainer: Trainer,
    tokenizer,
    output_dir: Path,
    record: Mapping,
    *,
    resume: bool = False,
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
            metrics |= {
                k: float(v)
                for k, v in found.items()
                if k.split("_", 1)[1] in ("accuracy", "f1", "roc_auc")
            }
        trainer.model.eval().save_pretrained(output_dir)
        tokenizer.save_pretrained(output_dir)
        metrics = {
            name: value for name, value in sorted(metrics.items()) if value == value
        }  # NaN: a single class
        written = {
            "metrics": metrics,
            "n_epochs": round(trainer.state.epoch or 0),
            "seconds": seconds(trainer),
        }
        write_atomically(
            output_dir / RECORD, json.dumps(dict(record) | written, indent=1) + "\n"
        )
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
    shutil.rmtree(
        folder / STEPS, ignore_errors=True
    )  # of a process killed after its last word
    return load_model(folder).eval(), held["metrics"]


def check_same(folder: Path, held: Mapping, record: Mapping) -> None:
    """The settings that a folder's training had are those asked for."""
    wrong = [
        name
        for name, value in json.loads(json.dumps(dict(record))).items()
        if held.get(name) != value
    ]
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
        trainer.args.num_train_epochs = round(
            state["epoch"]
        )  # nothing is left but to load the best epoch
    trainer.train(resume_from_checkpoint=str(last))


def _here(checkpoint: Path) -> dict:
    """The state of a run whose folder may have been moved: its best epoch is beside the last one."""
    state = json.loads((checkpoint / STATE).read_text())
    if state.get("best_global_step"):
        state["best_model_checkpoint"] = str(
            checkpoint.with_name(f"checkpoint-{state['best_global_step']}")
        )
        write_atomically(checkpoint / STATE, json.dumps(state))
    return state


def _last_checkpoint(steps: Path) -> Path | None:
    """The last one that is whole; what a killed process left half written goes."""
    found = sorted(
        steps.glob("checkpoint-*"),
        key=lambda folder: int(folder.name.split("-")[1]),
        reverse=True,
    )
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
    return (
        stopping["attributes"]["early_stopping_patience_counter"]
        >= stopping["args"]["early_stopping_patience"]
    )


def seconds(trainer: Trainer) -> float:
    """Spent in training and evaluation, over all runs that it took."""
    return sum(row.get("seconds", 0.0) for row in trainer.state.log_history)
