"""The training loop that all trainings share; it can be interrupted at any step and resumed.

A resumed training continues at its last complete epoch and reaches bit-identical weights. The
Trainer's checkpoint contains the model, the optimizer, the random states, the batch order and the
early-stopping counter. A checkpoint is used only if its last file is complete. If a checkpoint was
damaged afterwards, the training starts again from the beginning.
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

from hf_attnprobe.adapters.pretrained import reads_features
from hf_attnprobe.cards.metadata import CardContent
from hf_attnprobe.checkpoints.loading import load_model, load_tokenizer
from hf_attnprobe.checkpoints.records import (
    DIGESTS_KEY,
    RECORD_FILE,
    STEPS_FOLDER,
    check_digests,
    compute_digests,
    describe_checkpoint,
    read_record,
    write_readme,
)
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import limit_threads
from hf_attnprobe.core.progress import ProgressBar
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.instances import read_bag
from hf_attnprobe.statistics.scores import compute_classification_metrics
from hf_attnprobe.storage.folders import (
    LOCK_FILE,
    convert_disk_errors,
    find_differences,
    reserve_folder,
    write_json,
)
from hf_attnprobe.storage.provenance import get_versions


if TYPE_CHECKING:
    import datasets


ColumnFactory = Callable[[str, "datasets.Dataset", list[list[int]]], Mapping[str, list]]
"""Function that returns additional input columns for a split.

Its arguments are the split's name, the examples and their input ids. A column holds one number or
one list of numbers per example.
"""

DEFAULT_ARGUMENTS: Mapping[str, Any] = {
    "per_device_eval_batch_size": 128,
    "train_sampling_strategy": "group_by_length",
    "save_total_limit": 1,
    "greater_is_better": True,
    # The early-stopping counter must survive an interruption.
    "restore_callback_states_from_checkpoint": True,
    "logging_strategy": "epoch",
    "report_to": [],
    "disable_tqdm": True,
}
"""Arguments for :class:`TrainingArguments` that all trainings share."""
TOKENIZER_COLUMNS = ("input_ids", "token_type_ids", "attention_mask", "label")
"""Input columns that the data collator of Transformers pads. :class:`ColumnCollator` pads all
other columns."""
DISPLAYED_SCORES = ("accuracy", "reward")
"""Validation scores for the progress bar, which shows the first one that is available."""


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    splits: "Mapping[str, datasets.Dataset]",
    output_dir: Path,
    *,
    settings: Mapping[str, Any],
    progress: bool | str,
    trainer_class: "Callable[..., PlainTrainer] | None" = None,
    make_columns: ColumnFactory | None = None,
    **options: Any,
) -> "PlainTrainer":
    """Build a Trainer that keeps the best epoch and writes its own files to a separate folder.

    Args:
        model: The model to train.
        tokenizer: Its tokenizer, which must have a padding token; None for a model that reads bags of
            features.
        splits: Training texts and, if there are any, validation and test texts.
        output_dir: Checkpoint folder. The Trainer's files go to a folder below it.
        settings: Arguments for :class:`TrainingArguments` that replace the defaults.
        progress: Whether to show a progress bar on stderr; a string is displayed in front of it.
        trainer_class: Class of the Trainer, by default :class:`PlainTrainer`.
        make_columns: Function that returns additional input columns for the model, which are padded
            with 0.
        **options: Further arguments of the Trainer.

    Raises:
        AttnProbeError: If the tokenizer has no padding token.
    """
    defaults = _make_default_arguments(model, output_dir, splits.get("validation"))
    if tokenizer is None:
        # The Trainer knows the lengths of texts only.
        defaults["train_sampling_strategy"] = "random"
        encoded: dict[str, Any] = {name: BagDataset(examples) for name, examples in splits.items()}
        collator: Callable[..., dict[str, Tensor]] = collate_bags
    else:
        check_padding_token(tokenizer)
        encoded = {
            name: _encode_split(name, examples, tokenizer, make_columns)
            for name, examples in splits.items()
        }
        collator = ColumnCollator(tokenizer)
    arguments = {**defaults, **settings}
    trainer = (trainer_class or PlainTrainer)(
        model,
        TrainingArguments(**arguments),
        train_dataset=encoded.pop("train"),
        eval_dataset=encoded.get("validation"),
        data_collator=collator,
        # Predictions may be tuples in general, but those of a classifier are a single array.
        compute_metrics=compute_classification_metrics,  # type: ignore[arg-type]
        **options,
    )
    trainer.scored_splits = encoded
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Stopwatch())
    trainer.add_callback(DigestWriter())
    name = progress if isinstance(progress, str) else "training"
    trainer.bar = ProgressBar(name, visible=bool(progress) and trainer.is_world_process_zero())
    trainer.add_callback(ProgressBarCallback(trainer.bar))
    return trainer


def check_padding_token(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the tokenizer has a padding token, which training needs.

    Args:
        tokenizer: The tokenizer to check.

    Raises:
        AttnProbeError: If the tokenizer has no padding token.
    """
    if tokenizer.pad_token_id is None:
        raise AttnProbeError(
            "training needs a tokenizer with a padding token, but this tokenizer has none. Set "
            "tokenizer.pad_token, for example to tokenizer.eos_token, and save the tokenizer in "
            "the model's folder."
        )


def _make_default_arguments(
    model: PreTrainedModel,
    output_dir: Path,
    validation: "datasets.Dataset | None",
) -> dict[str, Any]:
    """Return default arguments for :class:`TrainingArguments`.

    Args:
        model: The model to train.
        output_dir: Checkpoint folder.
        validation: Texts that choose the epoch, if any. The score is the ROC-AUC if both the texts
            and the model have two classes, else the accuracy.
    """
    strategy, metric = "no", "accuracy"
    if validation is not None:
        strategy = "epoch"
        n_classes = len(set(read_column(validation, "label")))
        if model.config.num_labels == n_classes == 2:
            metric = "roc_auc"
    has_gpu = torch.cuda.is_available()
    return {
        **DEFAULT_ARGUMENTS,
        "output_dir": str(output_dir / STEPS_FOLDER),
        "eval_strategy": strategy,
        "save_strategy": strategy,
        "load_best_model_at_end": validation is not None,
        "metric_for_best_model": metric,
        "use_cpu": not has_gpu,
        "dataloader_pin_memory": has_gpu,
    }


def _encode_split(
    name: str,
    examples: "datasets.Dataset",
    tokenizer: PreTrainedTokenizerBase,
    columns: ColumnFactory | None,
) -> "datasets.Dataset":
    """Tokenize the texts of a split, and keep only the columns that the model needs.

    Args:
        name: Name of the split, such as "train".
        examples: Texts of the split, with labels.
        tokenizer: The model's tokenizer.
        columns: Function that computes additional input columns, or None.
    """
    encoded = examples.map(
        lambda rows: tokenizer(rows["text"], rows.get("text_pair"), truncation=True),
        batched=True,
        remove_columns=[c for c in examples.column_names if c != "label"],
    )
    encoded = encoded.select_columns([c for c in TOKENIZER_COLUMNS if c in encoded.column_names])
    if columns is None:
        return encoded
    input_ids = read_column(encoded, "input_ids")
    for column, values in columns(name, examples, input_ids).items():
        encoded = encoded.add_column(column, values)
    return encoded


class PlainTrainer(Trainer):
    """Trainer that does not compute the gradient norm if gradients are not clipped.

    The norm would not be used for anything, and computing it would add 6% to the time per epoch.

    Attributes:
        bar: Progress bar.
        scored_splits: Encoded validation and test texts by split name. They are scored after the
            training.
    """

    bar: ProgressBar
    scored_splits: "Mapping[str, datasets.Dataset | BagDataset]"

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        return grad_norm

    def report_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Pass metrics that were computed elsewhere to the callbacks, and return them.

        Args:
            metrics: Values by name, such as ``eval_loss``.
        """
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def train(self, *args: Any, **options: Any) -> Any:
        """Train as in Transformers, with a single thread if the model is small.

        Args:
            *args: Arguments of :meth:`Trainer.train`.
            **options: Keyword arguments of :meth:`Trainer.train`.
        """
        with limit_threads(self.model):
            return super().train(*args, **options)

    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        """Evaluate as in Transformers, with a single thread if the model is small.

        Args:
            *args: Arguments of :meth:`Trainer.evaluation_loop`.
            **options: Keyword arguments of :meth:`Trainer.evaluation_loop`.
        """
        with limit_threads(self.model):
            return super().evaluation_loop(*args, **options)


class ColumnCollator:
    """Data collator that pads texts to the longest one, and additional columns with 0."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.text_collator = DataCollatorWithPadding(tokenizer)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Pad encoded texts to one length, and combine them into tensors of shape [texts, …]."""
        tokenized = [
            {name: row[name] for name in TOKENIZER_COLUMNS if name in row} for row in features
        ]
        batch = self.text_collator(tokenized)
        additional_columns = features[0].keys() - set(TOKENIZER_COLUMNS)
        for name in additional_columns:
            rows = [torch.tensor(row[name], dtype=torch.float32) for row in features]
            batch[name] = pad_sequence(rows, batch_first=True)
        return batch


class BagDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Bags with their labels, which are read one at a time.

    Args:
        examples: A loaded split with a column ``features``.
    """

    def __init__(self, examples: "datasets.Dataset") -> None:
        self.examples = examples
        self.labels = read_column(examples, "label")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        bag = torch.tensor(read_bag(self.examples, "features", index), dtype=torch.float32)
        return {"features": bag, "label": self.labels[index]}


def collate_bags(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Pad bags to the largest one, and combine them into tensors.

    Args:
        rows: Bags with ``features``, a tensor `[instances, size]`, and ``label``.

    Returns:
        ``features`` `[batch, instances, size]`, ``attention_mask`` `[batch, instances]` and
        ``labels`` `[batch]`.
    """
    bags = [row["features"] for row in rows]
    masks = [torch.ones(len(bag), dtype=torch.long) for bag in bags]
    return {
        "features": pad_sequence(bags, batch_first=True),
        "attention_mask": pad_sequence(masks, batch_first=True),
        "labels": torch.tensor([int(row["label"]) for row in rows]),
    }


class Stopwatch(TrainerCallback):
    """Callback that adds the duration of each epoch to the log that checkpoints contain."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock."""
        self.start_time = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the seconds since the previous log entry to the current entry."""
        now = time.monotonic()
        state.log_history[-1]["seconds"] = now - self.start_time
        self.start_time = now


class DigestWriter(TrainerCallback):
    """Callback that writes file digests into each checkpoint, to detect damaged files later."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the digests into the new checkpoint."""
        if state.is_world_process_zero:
            _write_digests(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class ProgressBarCallback(TrainerCallback):
    """Callback that displays the epoch and the latest score on a progress bar."""

    def __init__(self, bar: ProgressBar) -> None:
        self.bar = bar
        self.scores = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the first step (above 0 if a training is resumed) and the time."""
        self.first_step, self.start_time = state.global_step, time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Update the progress bar and the estimate of the remaining seconds."""
        seconds = time.monotonic() - self.start_time
        seconds_per_step = seconds / (state.global_step - self.first_step)
        n_remaining = state.max_steps - state.global_step
        n_epochs = math.ceil(args.num_train_epochs)
        epoch = min(max(math.ceil(state.epoch), 1), n_epochs)
        status = f"epoch {epoch} of {n_epochs}{self.scores}"
        self.bar.update(seconds_per_step * n_remaining, status)

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: Mapping[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Store the latest validation score, so that the progress bar displays it."""
        self.scores = ""
        for name in DISPLAYED_SCORES:
            score = (metrics or {}).get(f"eval_{name}")
            if score is not None:
                self.scores = f", {name} {score:.3f}"
                break


# --- Trainings that can be interrupted: load, continue or refuse ---------------------------------

TRAINER_STATE = "trainer_state.json"
"""Name of the file that the Trainer of Transformers writes last when it saves a checkpoint."""
DIGESTS_FILE = ".digests.json"
"""Name of the file with the SHA-256 digests of all other files in a checkpoint."""
SAVED_SCORES = ("accuracy", "f1", "roc_auc")
"""Scores that the training record contains for the validation and test texts."""

logger = logging.getLogger(__name__)


class TrainedClassifier(NamedTuple):
    """Training result.

    Attributes:
        model: The model from the best epoch, in evaluation mode.
        tokenizer: The model's tokenizer; None for a model that reads bags of features.
        metrics: Scores in [0, 1] by name, such as ``validation_accuracy``.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    metrics: dict[str, float]


def train_or_load(
    output_dir: str | Path,
    record: Mapping[str, Any],
    prepare: "Callable[[Path], tuple[PlainTrainer, PreTrainedTokenizerBase | None]]",
    *,
    resume: bool = True,
    trust_remote_code: bool = False,
    data_name: str | None = None,
) -> TrainedClassifier:
    """Train and save a model, load a finished one, or continue an interrupted training.

    Args:
        output_dir: Checkpoint folder.
        record: Training settings, including the seed. If the folder holds an earlier training, its
            settings must be the same.
        prepare: Function that takes the folder and builds the Trainer and the tokenizer.
        resume: If False, train from the beginning, even if the folder holds an earlier training.
        trust_remote_code: Whether a finished model may run code that comes with it.
        data_name: Data set name, or None if it is unknown.

    Raises:
        AttnProbeError: If the folder holds other files, or a training with other settings.
    """
    folder = Path(output_dir)
    finished_record = read_record(folder) if resume else {}
    if finished_record:
        return _load_finished(folder, finished_record, record, trust_remote_code)
    with reserve_output_dir(folder, record["seed"]):
        trainer, tokenizer = prepare(folder)
        return train_and_save(
            trainer,
            tokenizer,
            folder,
            record,
            resume=resume,
            data_name=data_name,
        )


@contextlib.contextmanager
def reserve_output_dir(output_dir: str | Path, seed: int) -> Iterator[Path]:
    """Reserve the output folder for one training and seed all random generators.

    The folder may hold the result of an earlier training, complete or not.

    Args:
        output_dir: Checkpoint folder.
        seed: Training seed.

    Yields:
        The folder, locked until the context ends.

    Raises:
        AttnProbeError: If the folder holds other files, or if another process is using it.
    """
    with reserve_folder(output_dir, STEPS_FOLDER, RECORD_FILE) as folder:
        set_seed(seed)
        yield folder


def train_and_save(
    trainer: PlainTrainer,
    tokenizer: PreTrainedTokenizerBase | None,
    output_dir: Path,
    record: Mapping[str, Any],
    *,
    resume: bool = False,
    data_name: str | None = None,
) -> TrainedClassifier:
    """Train, score and save a model, then write its training record and its model card.

    The Trainer's own files are removed at the end, and also after an error unless ``resume`` is
    True. They are kept while the model is being saved: if they exist and the record does not, the
    saved model is incomplete (:func:`hf_attnprobe.checkpoints.records.check_training_finished`).

    Args:
        trainer: A Trainer from :func:`make_trainer`.
        tokenizer: Tokenizer that is saved with the model, or None.
        output_dir: Checkpoint folder.
        record: Training settings.
        resume: Whether to continue an interrupted training with the same record.
        data_name: Data set name, or None if it is unknown.

    Returns:
        The trained model in evaluation mode, its tokenizer, and its scores.
    """
    model = trainer.model
    # `make_trainer` accepts no other models.
    assert isinstance(model, PreTrainedModel)
    try:
        with trainer.bar, convert_disk_errors(output_dir):
            _train(trainer, output_dir / STEPS_FOLDER, record, resume)
            metrics = _compute_scores(trainer)
    except BaseException:
        if not resume:
            shutil.rmtree(output_dir / STEPS_FOLDER, ignore_errors=True)
        raise
    # The log includes the entries of earlier runs that were interrupted.
    log = trainer.state.log_history
    outcome = {
        "metrics": metrics,
        "n_epochs": round(trainer.state.epoch or 0),
        "seconds": sum(row.get("seconds", 0.0) for row in log),
        "n_texts": _count_texts(trainer),
        "versions": get_versions(),
    }
    if data_name is not None:
        outcome["dataset"] = data_name
    if trainer.is_world_process_zero():
        _save_checkpoint(model.eval(), tokenizer, output_dir, {**record, **outcome})
    trainer.accelerator.wait_for_everyone()
    # The trained model differs from the model that was loaded, so it gets the new folder's name.
    model.name_or_path = str(output_dir)
    return TrainedClassifier(model.eval(), tokenizer, metrics)


def _save_checkpoint(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    folder: Path,
    record: Mapping[str, Any],
) -> None:
    """Write a checkpoint with its training record, then delete the Trainer's own files."""
    # The folder may contain the record of an earlier model, which is overwritten.
    (folder / RECORD_FILE).unlink(missing_ok=True)
    with convert_disk_errors(folder):
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    write_json(folder / RECORD_FILE, {**record, DIGESTS_KEY: compute_digests(folder)})
    _write_card(folder, model)
    shutil.rmtree(folder / STEPS_FOLDER, ignore_errors=True)


def _write_card(folder: Path, model: PreTrainedModel) -> None:
    """Write a checkpoint's README. If this fails, log a warning instead of raising an error."""
    try:
        write_readme(folder, CardContent(describe_checkpoint(folder, model)))
    except Exception as error:
        logger.warning("no model card was written in %s: %s", folder, error)


def _count_texts(trainer: PlainTrainer) -> dict[str, int]:
    """Count the texts in each split."""
    splits: dict[str, Any] = {"train": trainer.train_dataset, **trainer.scored_splits}
    return {name: len(texts) for name, texts in splits.items() if texts is not None}


def _compute_scores(trainer: PlainTrainer) -> dict[str, float]:
    """Score the model on the validation and test texts, and leave out undefined scores."""
    scores = {}
    for split, examples in trainer.scored_splits.items():
        metrics = trainer.predict(examples, metric_key_prefix=split).metrics or {}
        for name in SAVED_SCORES:
            value = metrics.get(f"{split}_{name}")
            # The score is NaN if all texts have the same label.
            if value is not None and not math.isnan(value):
                scores[f"{split}_{name}"] = float(value)
    return dict(sorted(scores.items()))


def _load_finished(
    folder: Path,
    finished_record: Mapping[str, Any],
    record: Mapping[str, Any],
    trust_remote_code: bool,
) -> TrainedClassifier:
    """Load the model of a finished training, after checking that the settings are the same."""
    check_same_training(folder, finished_record, record)
    check_digests(folder, finished_record)
    logger.info("%s already holds the finished model of this training", folder)
    model = load_model(folder, trust_remote_code=trust_remote_code)
    tokenizer = None
    if not reads_features(model.config):
        tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    if any((folder / leftover).exists() for leftover in (STEPS_FOLDER, LOCK_FILE)):
        _remove_leftovers(folder, model)
    return TrainedClassifier(model, tokenizer, finished_record["metrics"])


def _remove_leftovers(folder: Path, model: PreTrainedModel) -> None:
    """Write the README and delete temporary files, if a training was killed before it did so."""
    with reserve_folder(folder, RECORD_FILE):
        if (folder / STEPS_FOLDER).exists():
            _write_card(folder, model)
            shutil.rmtree(folder / STEPS_FOLDER, ignore_errors=True)


def check_same_training(
    folder: Path, finished_record: Mapping[str, Any], record: Mapping[str, Any]
) -> None:
    """Check that an earlier training had the same settings.

    Args:
        folder: Folder of the earlier training, for the error message.
        finished_record: Record of the earlier training.
        record: Settings of the current training.

    Raises:
        AttnProbeError: If a setting differs.
    """
    for name, (old, _) in find_differences(finished_record, record).items():
        raise AttnProbeError(
            f"{folder} holds a training with {name.replace('_', ' ')} {old}, not {record[name]}. "
            "Choose another output folder, or delete this one."
        )


def _train(trainer: PlainTrainer, steps: Path, record: Mapping[str, Any], resume: bool) -> None:
    """Train from the beginning, or from the last epoch of an interrupted run."""
    with trainer.args.main_process_first(local=False):
        checkpoint = _find_last_checkpoint(steps) if resume else None
        if checkpoint is None and trainer.is_world_process_zero():
            shutil.rmtree(steps, ignore_errors=True)
            steps.mkdir(parents=True)
            write_json(steps / RECORD_FILE, dict(record))
    if checkpoint is None:
        trainer.train()
        return
    check_same_training(steps, read_record(steps), record)
    state = _relocate_best_checkpoint(checkpoint)
    if _has_stopped_early(state):
        # The training was complete, so the Trainer only has to load the best epoch.
        trainer.args.num_train_epochs = round(state["epoch"])
    logger.info("training continues at epoch %s in %s", state["epoch"], steps.parent)
    trainer.train(resume_from_checkpoint=str(checkpoint))


def _relocate_best_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """Update the path ``best_model_checkpoint`` in a Trainer's saved state, and return the state.

    The path must point into the current folder, which may have been moved since the last run.
    """
    state = json.loads((checkpoint / TRAINER_STATE).read_text())
    step = state.get("best_global_step")
    if step:
        best = checkpoint.with_name(f"checkpoint-{step}")
        state["best_model_checkpoint"] = str(best)
        write_json(checkpoint / TRAINER_STATE, state)
        _write_digests(checkpoint)
    return state


def _find_last_checkpoint(steps: Path) -> Path | None:
    """Find the last checkpoint from which an interrupted training can continue.

    Later checkpoints that are incomplete are deleted.

    Args:
        steps: Folder with the checkpoints of the Trainer.

    Returns:
        Folder of the checkpoint. It is None if there is no complete checkpoint, or if the files of
        any checkpoint were changed, because then continuing could lead to different weights.
    """
    for folder in steps.glob("checkpoint-*"):
        if not _is_unchanged(folder):
            logger.warning("%s was damaged; the training starts from the beginning", folder)
            return None
    folders_by_step = {int(f.name.split("-")[1]): f for f in steps.glob("checkpoint-*")}
    for _, folder in sorted(folders_by_step.items(), reverse=True):
        try:
            json.loads((folder / TRAINER_STATE).read_text())
        except (OSError, ValueError, RecursionError):
            shutil.rmtree(folder)
        else:
            return folder
    return None


def _write_digests(checkpoint: Path) -> None:
    """Compute digests of all files in a checkpoint, and write them into the checkpoint."""
    write_json(checkpoint / DIGESTS_FILE, compute_digests(checkpoint, "[!.]*"))


def _is_unchanged(checkpoint: Path) -> bool:
    """Check that a checkpoint's files have not changed since they were written.

    The files are compared with the recorded digests (hashes). If the process was killed before it
    recorded any digests, the checkpoint counts as unchanged.
    """
    try:
        recorded_digests = json.loads((checkpoint / DIGESTS_FILE).read_text())
        return recorded_digests == compute_digests(checkpoint, "[!.]*")
    except FileNotFoundError:
        return not (checkpoint / DIGESTS_FILE).exists()
    except (OSError, ValueError, RecursionError):
        return False


def _has_stopped_early(state: Mapping[str, Any]) -> bool:
    """Check whether early stopping had already ended the interrupted training."""
    callback = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback")
    if callback is None:
        return False
    n_epochs_without_improvement = callback["attributes"]["early_stopping_patience_counter"]
    return n_epochs_without_improvement >= callback["args"]["early_stopping_patience"]
