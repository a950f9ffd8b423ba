"""A training that can be killed: finished, continued at its last epoch, or refused."""

import contextlib
import json
import logging
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from hf_attnprobe.cards.contents import Card
from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.checkpoints.readme import describe, write_files
from hf_attnprobe.checkpoints.records import (
    RECORD,
    STEPS,
    WEIGHTS,
    check_digests,
    read_record,
    weights_digest,
)
from hf_attnprobe.checkpoints.tokenizers import load_tokenizer
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.storage.disks import disk_errors
from hf_attnprobe.storage.folders import alone_in, differing, write_json
from hf_attnprobe.storage.locks import LOCK
from hf_attnprobe.storage.provenance import versions
from hf_attnprobe.training.trainer import PlainTrainer


STATE = "trainer_state.json"  # the last file that a Trainer writes into a checkpoint
SCORES = ("accuracy", "f1", "roc_auc")

logger = logging.getLogger(__name__)


class TrainedClassifier(NamedTuple):
    """The result of a training.

    Attributes:
        model: the best epoch's, in eval mode.
        tokenizer: the model's.
        metrics: scores in [0, 1] by name, such as ``validation_accuracy``.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    metrics: dict[str, float]


@contextlib.contextmanager
def begin(output_dir: str | Path, seed: int) -> Iterator[Path]:
    """Has the output folder for this training alone, and seeds everything random.

    The folder may hold an earlier training's result, or what is left of one.

    Raises:
        AttnProbeError: a folder with other files, or in which another run is at work.
    """
    with alone_in(output_dir, STEPS, RECORD) as folder:
        set_seed(seed)
        yield folder


def finish(
    trainer: PlainTrainer,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: Path,
    record: Mapping[str, Any],
    *,
    resume: bool = False,
    data_name: str | None = None,
) -> TrainedClassifier:
    """Trains, scores and saves; the training's record is written last, then a card.

    The Trainer's own files are removed, unless an interrupted run is to be resumed. They
    stay while the model is being saved: where they are and the record is not, a model is
    half written (:func:`hf_attnprobe.checkpoints.records.check_whole`).

    Args:
        trainer: as :func:`hf_attnprobe.training.trainer.make_trainer` makes it.
        tokenizer: saved beside the model.
        output_dir: of the checkpoint.
        record: the training's settings.
        resume: continue what an interrupted run with the same record left behind.
        data_name: what the data set is called; None where nobody says.
    """
    model = trainer.model
    assert isinstance(model, PreTrainedModel)  # make_trainer takes no other
    try:
        with trainer.bar, disk_errors(output_dir):
            _train(trainer, output_dir / STEPS, record, resume)
            metrics = _scores(trainer)
    except BaseException:
        if not resume:
            shutil.rmtree(output_dir / STEPS, ignore_errors=True)
        raise
    outcome = {
        "metrics": metrics,
        "n_epochs": round(trainer.state.epoch or 0),
        "seconds": _seconds(trainer),
        "n_texts": _sizes(trainer),
        "versions": versions(),
    }
    if data_name is not None:
        outcome["dataset"] = data_name
    if trainer.is_world_process_zero():
        _save(model.eval(), tokenizer, output_dir, {**record, **outcome})
    trainer.accelerator.wait_for_everyone()
    model.name_or_path = str(output_dir)  # no longer that of its base
    return TrainedClassifier(model.eval(), tokenizer, metrics)


def _save(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    record: Mapping[str, Any],
) -> None:
    """Writes a checkpoint, its record last; then there is nothing to go on with."""
    (folder / RECORD).unlink(missing_ok=True)  # that of a model which is written over
    with disk_errors(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    write_json(folder / RECORD, {**record, WEIGHTS: weights_digest(folder)})
    _write_card(folder, model)
    shutil.rmtree(folder / STEPS, ignore_errors=True)


def _write_card(folder: Path, model: PreTrainedModel) -> None:
    """Writes the checkpoint's README; no training fails because of it."""
    try:
        write_files(folder, Card(describe(folder, model)))
    except Exception as error:
        logger.warning("no model card was written in %s: %s", folder, error)


def _sizes(trainer: PlainTrainer) -> dict[str, int]:
    """Number of texts by split."""
    splits = {"train": trainer.train_dataset, **trainer.scored}
    return {name: len(texts) for name, texts in splits.items() if texts is not None}


def _scores(trainer: PlainTrainer) -> dict[str, float]:
    """Scores of the held-out splits; a score that is undefined is left out."""
    scores = {}
    for split, examples in trainer.scored.items():
        measured = trainer.predict(examples, metric_key_prefix=split).metrics or {}
        for name in SCORES:
            value = measured.get(f"{split}_{name}")
            if value is not None and not math.isnan(value):  # NaN: a single class
                scores[f"{split}_{name}"] = float(value)
    return dict(sorted(scores.items()))


def finished(
    folder: str | Path, record: Mapping[str, Any], *, trust_remote_code: bool = False
) -> TrainedClassifier | None:
    """The result of a finished training with this record, or None.

    Raises:
        AttnProbeError: the folder holds a training with other settings.
    """
    folder = Path(folder)
    held = read_record(folder)
    if not held:
        return None
    check_same(folder, held, record)
    check_digests(folder, held)
    logger.info("%s holds this training, finished", folder)
    model = load_model(folder, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    if any((folder / left).exists() for left in (STEPS, LOCK)):
        _tidy(folder, model)
    return TrainedClassifier(model, tokenizer, held["metrics"])


def _tidy(folder: Path, model: PreTrainedModel) -> None:
    """Ends what a process that was killed behind the record had still to do."""
    with alone_in(folder, RECORD):
        if (folder / STEPS).exists():
            _write_card(folder, model)
            shutil.rmtree(folder / STEPS, ignore_errors=True)


def check_same(folder: Path, held: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Checks that a folder's training had the settings asked for.

    Raises:
        AttnProbeError: it had others.
    """
    for name, (old, _) in differing(held, record).items():
        raise AttnProbeError(
            f"{folder} holds a training with {name.replace('_', ' ')} {old}, not "
            f"{record[name]}; choose another folder or delete it"
        )


def _train(trainer: PlainTrainer, steps: Path, record: Mapping[str, Any], resume: bool) -> None:
    """Trains from the start, or from the last epoch of an interrupted run."""
    with trainer.args.main_process_first(local=False):
        last = _last_checkpoint(steps) if resume else None
        if last is None and trainer.is_world_process_zero():
            shutil.rmtree(steps, ignore_errors=True)
            steps.mkdir(parents=True)
            write_json(steps / RECORD, dict(record))
    if last is None:
        trainer.train()
        return
    check_same(steps, read_record(steps), record)
    state = _relocated_state(last)
    if _stopped_early(state):
        # Nothing is left but to load the best epoch.
        trainer.args.num_train_epochs = round(state["epoch"])
    logger.info("training continues at epoch %s in %s", state["epoch"], steps.parent)
    trainer.train(resume_from_checkpoint=str(last))


def _relocated_state(checkpoint: Path) -> dict[str, Any]:
    """The Trainer's state; its ``best_model_checkpoint`` is put into this folder.

    The folder may have moved since it was written.
    """
    state = json.loads((checkpoint / STATE).read_text())
    step = state.get("best_global_step")
    if step:
        best = checkpoint.with_name(f"checkpoint-{step}")
        state["best_model_checkpoint"] = str(best)
        write_json(checkpoint / STATE, state)
    return state


def _last_checkpoint(steps: Path) -> Path | None:
    """The last complete checkpoint; incomplete ones are removed."""
    by_step = {int(f.name.split("-")[1]): f for f in steps.glob("checkpoint-*")}
    for _, folder in sorted(by_step.items(), reverse=True):
        try:
            json.loads((folder / STATE).read_text())
        except (OSError, ValueError):
            shutil.rmtree(folder)
        else:
            return folder
    return None


def _stopped_early(state: Mapping[str, Any]) -> bool:
    """Whether early stopping had ended the run before it was interrupted."""
    stopping = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback")
    if stopping is None:
        return False
    waited = stopping["attributes"]["early_stopping_patience_counter"]
    return waited >= stopping["args"]["early_stopping_patience"]


def _seconds(trainer: PlainTrainer) -> float:
    """Seconds of training and evaluation, over all runs that it took."""
    return sum(row.get("seconds", 0.0) for row in trainer.state.log_history)
