"""The training loop; it can be killed and resumed at any step.

An interrupted training goes on at its last epoch to bit-identical weights: model, optimiser,
random numbers and batch order are in the Trainer's checkpoint, how long there was no progress too.
A checkpoint counts if its last file is whole. Where one was damaged since, the training begins anew.
"""

import contextlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    set_seed,
)

from hf_attnprobe.cards.metadata import Card
from hf_attnprobe.checkpoints.loading import load_model, load_tokenizer
from hf_attnprobe.checkpoints.records import (
    RECORD,
    STEPS,
    WEIGHTS,
    check_digests,
    describe,
    digests,
    read_record,
    write_readme,
)
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import suited_threads
from hf_attnprobe.core.progress import Bar
from hf_attnprobe.data.columns import column_of
from hf_attnprobe.statistics.scores import classification_metrics
from hf_attnprobe.storage.folders import (
    LOCK,
    alone_in,
    differing,
    disk_errors,
    write_json,
)
from hf_attnprobe.storage.provenance import versions


if TYPE_CHECKING:
    import datasets


# From a split's name, its examples and their input_ids to further columns, with one value
# or list of numbers per example.
Columns = Callable[[str, "datasets.Dataset", list[list[int]]], Mapping[str, list]]

USUAL_SETTINGS: Mapping[str, Any] = {
    "per_device_eval_batch_size": 128,
    "train_sampling_strategy": "group_by_length",
    "save_total_limit": 1,
    "greater_is_better": True,
    # How many epochs brought no progress is kept over an interruption.
    "restore_callback_states_from_checkpoint": True,
    "logging_strategy": "epoch",
    "report_to": [],
    "disable_tqdm": True,
}
"""Of :class:`TrainingArguments`, whatever is trained."""
KNOWN = ("input_ids", "token_type_ids", "attention_mask", "label")
SHOWN = ("accuracy", "reward")
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
    """A Trainer that keeps the best epoch and writes its own files to ``STEPS``.

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
    trainer.add_callback(Seal())
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
    model: PreTrainedModel,
    output_dir: Path,
    validation: "datasets.Dataset | None",
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
    has_gpu = torch.cuda.is_available()
    return {
        **USUAL_SETTINGS,
        "output_dir": str(output_dir / STEPS),
        "eval_strategy": when,
        "save_strategy": when,
        "load_best_model_at_end": validation is not None,
        "metric_for_best_model": metric,
        "use_cpu": not has_gpu,
        "dataloader_pin_memory": has_gpu,
    }


def _encode(
    name: str,
    examples: "datasets.Dataset",
    tokenizer: PreTrainedTokenizerBase,
    columns: Columns | None,
) -> "datasets.Dataset":
    """A split in the form the model takes: tokens, label and further columns."""
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
    """A Trainer that skips the gradient norm where gradients are not clipped.

    Nobody reads the norm, and it takes 6% of an epoch.

    Attributes:
        scored: the encoded held-out splits by name, to be scored after the training.
        bar: of the training.
    """

    bar: Bar
    scored: "Mapping[str, datasets.Dataset]"

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        return grad_norm

    def evaluated(self, metrics: dict[str, float]) -> dict[str, float]:
        """The same, told to the callbacks: an evaluation by other than the labels' scores."""
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def train(self, *args: Any, **options: Any) -> Any:
        """As in Transformers; a small model runs on one thread."""
        with suited_threads(self.model):
            return super().train(*args, **options)

    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        """As in Transformers; a small model runs on one thread."""
        with suited_threads(self.model):
            return super().evaluation_loop(*args, **options)


class ColumnCollator:
    """Pads texts to the longest one, and with 0 the columns that no tokenizer knows."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.texts = DataCollatorWithPadding(tokenizer)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Makes a batch of the rows of a split, [texts, …]."""
        known = [{name: row[name] for name in KNOWN if name in row} for row in features]
        batch = self.texts(known)
        others = features[0].keys() - set(KNOWN)
        for name in others:
            rows = [torch.tensor(row[name], dtype=torch.float32) for row in features]
            batch[name] = pad_sequence(rows, batch_first=True)
        return batch


class Stopwatch(TrainerCallback):
    """Logs how long each part took; the log is saved with every checkpoint."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts the clock."""
        self.since = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Writes the seconds since the last entry into this one."""
        now = time.monotonic()
        state.log_history[-1]["seconds"] = now - self.since
        self.since = now


class Seal(TrainerCallback):
    """Notes what a checkpoint's files hold once it is written."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Writes the digests into the checkpoint."""
        if state.is_world_process_zero:
            _seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class Progress(TrainerCallback):
    """Shows the epoch and the last scores on a bar."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar
        self.scores = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts the bar at the step that an interrupted training had reached."""
        self.first, self.since = state.global_step, time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Moves the bar; early stopping may end it sooner."""
        seconds = time.monotonic() - self.since
        pace = seconds / (state.global_step - self.first)
        n_left = state.max_steps - state.global_step
        n_epochs = math.ceil(args.num_train_epochs)
        epoch = min(max(math.ceil(state.epoch), 1), n_epochs)
        doing = f"epoch {epoch} of {n_epochs}{self.scores}"
        self.bar.move(pace * n_left, doing)

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: Mapping[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Keeps the scores to show."""
        self.scores = ""
        for name in SHOWN:
            score = (metrics or {}).get(f"eval_{name}")
            if score is not None:
                self.scores = f", {name} {score:.3f}"
                break


# --- A training that can be killed: finished, continued at its last epoch, or refused ------------

STATE = "trainer_state.json"  # the last file that a Trainer writes into a checkpoint
SEAL = ".digests.json"  # what each of its files held then
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


def train_or_load(
    output_dir: str | Path,
    record: Mapping[str, Any],
    prepare: "Callable[[Path], tuple[PlainTrainer, PreTrainedTokenizerBase]]",
    *,
    resume: bool = True,
    trust_remote_code: bool = False,
    data_name: str | None = None,
) -> TrainedClassifier:
    """Trains and saves a model; loads a finished one, and continues an interrupted training.

    Args:
        record: the training's settings, its seed among them.
        prepare: makes the Trainer and the tokenizer, given the folder.
        resume: False trains anew, whatever the folder holds of a training.
        trust_remote_code: run code that comes with a finished model.
        data_name: what the data set is called; None where nobody says.

    Raises:
        AttnProbeError: the folder holds other files, or a training with other settings.
    """
    folder = Path(output_dir)
    held = read_record(folder) if resume else {}
    if held:
        return _finished(folder, held, record, trust_remote_code)
    with begin(folder, record["seed"]):
        trainer, tokenizer = prepare(folder)
        return finish(
            trainer,
            tokenizer,
            folder,
            record,
            resume=resume,
            data_name=data_name,
        )


@contextlib.contextmanager
def begin(output_dir: str | Path, seed: int) -> Iterator[Path]:
    """Reserves the output folder for this training and seeds everything random.

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
    """Trains, scores and saves; then writes the training's record and, last, a card.

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
    log = trainer.state.log_history  # of all runs that it took
    outcome = {
        "metrics": metrics,
        "n_epochs": round(trainer.state.epoch or 0),
        "seconds": sum(row.get("seconds", 0.0) for row in log),
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
    """Writes a checkpoint, its record last, and deletes the steps to resume from."""
    (folder / RECORD).unlink(missing_ok=True)  # that of a model which is written over
    with disk_errors(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    write_json(folder / RECORD, {**record, WEIGHTS: digests(folder)})
    _write_card(folder, model)
    shutil.rmtree(folder / STEPS, ignore_errors=True)


def _write_card(folder: Path, model: PreTrainedModel) -> None:
    """Writes the checkpoint's README; no training fails because of it."""
    try:
        write_readme(folder, Card(describe(folder, model)))
    except Exception as error:
        logger.warning("no model card was written in %s: %s", folder, error)


def _sizes(trainer: PlainTrainer) -> dict[str, int]:
    """Number of texts by split."""
    splits = {"train": trainer.train_dataset, **trainer.scored}
    return {name: len(texts) for name, texts in splits.items() if texts is not None}


def _scores(trainer: PlainTrainer) -> dict[str, float]:
    """Scores on the held-out splits; undefined scores are left out."""
    scores = {}
    for split, examples in trainer.scored.items():
        measured = trainer.predict(examples, metric_key_prefix=split).metrics or {}
        for name in SCORES:
            value = measured.get(f"{split}_{name}")
            if value is not None and not math.isnan(value):  # NaN: a single class
                scores[f"{split}_{name}"] = float(value)
    return dict(sorted(scores.items()))


def _finished(
    folder: Path,
    held: Mapping[str, Any],
    record: Mapping[str, Any],
    trust_remote_code: bool,
) -> TrainedClassifier:
    """The result of a finished training, which had the settings asked for."""
    check_same(folder, held, record)
    check_digests(folder, held)
    logger.info("%s holds this training, finished", folder)
    model = load_model(folder, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    if any((folder / left).exists() for left in (STEPS, LOCK)):
        _tidy(folder, model)
    return TrainedClassifier(model, tokenizer, held["metrics"])


def _tidy(folder: Path, model: PreTrainedModel) -> None:
    """Finishes what a process killed after writing the record had left to do."""
    with alone_in(folder, RECORD):
        if (folder / STEPS).exists():
            _write_card(folder, model)
            shutil.rmtree(folder / STEPS, ignore_errors=True)


def check_same(folder: Path, held: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Checks that the training in a folder had the settings asked for.

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
    """The Trainer's state, with ``best_model_checkpoint`` moved into this folder.

    The folder may have moved since it was written.
    """
    state = json.loads((checkpoint / STATE).read_text())
    step = state.get("best_global_step")
    if step:
        best = checkpoint.with_name(f"checkpoint-{step}")
        state["best_model_checkpoint"] = str(best)
        write_json(checkpoint / STATE, state)
        _seal(checkpoint)
    return state


def _last_checkpoint(steps: Path) -> Path | None:
    """The last complete checkpoint; deletes incomplete ones.

    None where one was damaged: its weights, or a step from it, would be others than those of
    this training, which are the same from the start.
    """
    for folder in steps.glob("checkpoint-*"):
        if not _is_as_written(folder):
            logger.warning("%s was damaged; the training begins anew", folder)
            return None
    by_step = {int(f.name.split("-")[1]): f for f in steps.glob("checkpoint-*")}
    for _, folder in sorted(by_step.items(), reverse=True):
        try:
            json.loads((folder / STATE).read_text())
        except (OSError, ValueError):
            shutil.rmtree(folder)
        else:
            return folder
    return None


def _seal(checkpoint: Path) -> None:
    write_json(checkpoint / SEAL, digests(checkpoint, "[!.]*"))


def _is_as_written(checkpoint: Path) -> bool:
    """Whether the files of a checkpoint hold what was written.

    A process may be killed before it notes that; then its files are taken as they are.
    """
    try:
        written = json.loads((checkpoint / SEAL).read_text())
        return written == digests(checkpoint, "[!.]*")
    except FileNotFoundError:
        return not (checkpoint / SEAL).exists()
    except (OSError, ValueError):
        return False


def _stopped_early(state: Mapping[str, Any]) -> bool:
    """Whether early stopping had already ended the interrupted run."""
    stopping = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback")
    if stopping is None:
        return False
    waited = stopping["attributes"]["early_stopping_patience_counter"]
    return waited >= stopping["args"]["early_stopping_patience"]
