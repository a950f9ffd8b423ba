"""Training attention classifiers with the papers' settings, on the Trainer of Transformers."""

import contextlib
import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_attnprobe.attention_classifier import AttentionClassifierConfig, AttentionClassifierForSequenceClassification
from hf_attnprobe.data import label_names, load_examples, read_vectors
from hf_attnprobe.errors import AttnProbeError, NoSuchSplit
from hf_attnprobe.loading import check_at_least, check_new_folder, load_model, load_tokenizer
from hf_attnprobe.objectives import classification_metrics, papers_loss, papers_optimizer
from hf_attnprobe.tokenization import build_tokenizer


RECORD = "training.json"  # marks a folder as the result of a training
STEPS = ".steps"  # the Trainer's own files, while it runs


def train_classifier(
    config: AttentionClassifierConfig | None,
    train,
    validation=None,
    *,
    output_dir: str | Path,
    test=None,
    seed: int = 0,
    epochs: int = 8,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-5,
    min_document_frequency: int = 1,
    vectors: str | Path | None = None,
    tokenizer=None,
    progress: bool = True,
):
    """Trains an attention classifier and saves it with its tokenizer as an ordinary checkpoint.

    The settings of Jain & Wallace 2019's released code: Adam with amsgrad, learning rate 1e-3, weight decay 1e-5 on
    encoder and read-out but not on attention, 8 epochs of batches of 32, and for two classes the positive one weighted
    by n_negative / n_positive; the epoch with the best validation score is kept, ROC-AUC for two classes, accuracy for
    more. Unlike there, the first epoch may be kept too.

    Args:
        config: the architecture; vocabulary size and labels are filled in. ``None`` is the BiLSTM with additive attention.
        train, validation, test: data sets as :func:`hf_attnprobe.load_examples` returns or takes them.
        output_dir: a new or empty folder, or one that holds an earlier training's result.
        vectors: a word2vec, fastText or GloVe text file; words it lacks keep their random vector.
        tokenizer: an existing one instead of one built from the training texts.

    Returns:
        (model, tokenizer, metrics): the best model in eval mode, and its scores as plain floats.

    Raises:
        AttnProbeError: labels with a single class, word vectors of another width, an output folder with other files.
    """
    check_at_least(0, learning_rate=learning_rate, weight_decay=weight_decay)
    check_at_least(1, epochs=epochs, batch_size=batch_size)
    output_dir, sets, names = _begin(output_dir, train, validation, test, seed)
    tokenizer = tokenizer or build_tokenizer(
        sets["train"].with_format(None)["text"][:], min_document_frequency=min_document_frequency
    )
    model = _new_model(config or AttentionClassifierConfig(), tokenizer, names)
    if vectors is not None:
        set_word_vectors(model, tokenizer, vectors)
    optimizer = papers_optimizer(model, learning_rate=learning_rate, weight_decay=weight_decay)
    trainer = _trainer(
        model, tokenizer, sets, output_dir, progress=progress, compute_loss_func=papers_loss(sets["train"], len(names)),
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)),
        settings={
            "num_train_epochs": epochs, "per_device_train_batch_size": batch_size, "seed": seed,
            "max_grad_norm": 0.0,  # the papers do not clip
        },
    )  # fmt: skip
    return model, tokenizer, _finish(trainer, tokenizer, output_dir)


def fine_tune(
    model: str | Path,
    train,
    validation=None,
    *,
    output_dir: str | Path,
    test=None,
    seed: int = 0,
    epochs: int = 3,
    batch_size: int = 32,
    learning_rate: float = 5e-5,
    weight_decay: float = 0.01,
    max_length: int | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
):
    """Fine-tunes a pretrained Transformer for classification and saves an ordinary checkpoint.

    The usual recipe (Devlin et al. 2019, Section A.3): AdamW, linear decay after 10% warm-up, a few epochs; the epoch
    with the best validation score is kept, ROC-AUC for two classes, accuracy for more.

    Args:
        model: folder or Hub id of a pretrained model with its tokenizer.
        train, validation, test, output_dir: as for :func:`train_classifier`.
        max_length: longer texts are cut; ``None`` is what the tokenizer states.

    Returns:
        (model, tokenizer, metrics).

    Raises:
        AttnProbeError: as :func:`train_classifier`, or a model that does not load.
    """
    check_at_least(0, learning_rate=learning_rate, weight_decay=weight_decay)
    check_at_least(1, epochs=epochs, batch_size=batch_size)
    output_dir, sets, names = _begin(output_dir, train, validation, test, seed)
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: k for k, name in enumerate(names)}}
    loaded = load_model(model, trust_remote_code=trust_remote_code, new_head=True, **labels)
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
    if max_length is not None:
        tokenizer.model_max_length = max_length
    trainer = _trainer(
        loaded, tokenizer, sets, output_dir, progress=progress,
        settings={
            "num_train_epochs": epochs, "per_device_train_batch_size": batch_size, "seed": seed,
            "learning_rate": learning_rate, "weight_decay": weight_decay, "warmup_steps": 0.1,
        },
    )  # fmt: skip
    return loaded, tokenizer, _finish(trainer, tokenizer, output_dir)


def _begin(output_dir: str | Path, train, validation, test, seed: int) -> tuple[Path, dict, list[str]]:
    """The folder, the splits and the names of the classes, all checked; from here on everything is seeded."""
    check_at_least(0, seed=seed)
    output_dir = check_new_folder(output_dir, holding=RECORD)
    sets = _load_sets(train, validation, test)
    set_seed(seed)
    return output_dir, sets, label_names(sets["train"])


def _load_sets(train, validation, test) -> dict:
    given = {"train": train, "validation": validation, "test": test}
    sets = {name: load_examples(data, name) for name, data in given.items() if data is not None}
    names = label_names(sets["train"])
    _check_classes(sets["train"], names)
    for name in sets.keys() - {"train"}:
        _check_held_out(name, sets[name], names)
    return sets


def _trainer(model, tokenizer, sets, output_dir: Path, *, settings: dict, progress: bool, **options) -> Trainer:
    """A Trainer that keeps the best epoch, prints nothing to stdout, and puts its own files into ``STEPS``."""
    has_validation = "validation" in sets
    settings = {
        "output_dir": str(output_dir / STEPS),
        "per_device_eval_batch_size": 128,
        "train_sampling_strategy": "group_by_length",
        "eval_strategy": "epoch" if has_validation else "no",
        "save_strategy": "epoch" if has_validation else "no",
        "save_total_limit": 1,
        "load_best_model_at_end": has_validation,
        "metric_for_best_model": "roc_auc" if model.config.num_labels == 2 else "accuracy",
        "greater_is_better": True,
        "logging_strategy": "epoch",
        "report_to": [],
        "disable_tqdm": not progress,
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
    } | settings
    encoded = {name: _encode(examples, tokenizer) for name, examples in sets.items()}
    trainer = Trainer(
        model,
        TrainingArguments(**settings),
        train_dataset=encoded["train"],
        eval_dataset=encoded.get("validation"),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=classification_metrics,
        **options,
    )
    trainer.scored = {name: encoded[name] for name in ("validation", "test") if name in encoded}
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    if progress:
        trainer.add_callback(StderrProgress)
    return trainer


def _finish(trainer: Trainer, tokenizer, output_dir: Path) -> dict[str, float]:
    """Trains, scores, saves; the Trainer's own files go, however it ends."""
    metrics = {}
    try:
        trainer.train()
        for name, examples in trainer.scored.items():
            found = trainer.predict(examples, metric_key_prefix=name).metrics
            metrics |= {k: float(v) for k, v in found.items() if k.split("_", 1)[1] in ("accuracy", "f1", "roc_auc")}
    finally:
        shutil.rmtree(output_dir / STEPS, ignore_errors=True)
        with contextlib.suppress(OSError):  # unless there is something else in it
            output_dir.rmdir()
    trainer.model.eval().save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    metrics = {name: value for name, value in sorted(metrics.items()) if value == value}  # NaN: a single class
    record = {"metrics": metrics, "seed": trainer.args.seed, "epochs": trainer.args.num_train_epochs}
    (output_dir / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    return metrics


def load_splits(dataset, *, seed: int = 0, **columns) -> dict:
    """Train, validation and, where there is one with labels, test, as keyword arguments of :func:`train_classifier`."""
    found = {"train": load_examples(dataset, "train", seed=seed, **columns)}
    for name in ("validation", "test"):
        try:
            examples = load_examples(dataset, name, seed=seed, **columns)
        except NoSuchSplit:
            continue
        if name == "validation" or max(examples.with_format(None)["label"][:]) >= 0:
            found[name] = examples
    if "validation" not in found:
        raise AttnProbeError(
            f"expected a validation split in {dataset}, which chooses the epoch to keep; add one, or call train_classifier"
        )
    return found


class StderrProgress(ProgressCallback):
    """The Trainer's progress bar without its log lines on stdout, which belongs to results."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and self.training_bar is not None and logs:
            shown = {k: f"{v:.3f}" for k, v in logs.items() if k in ("loss", "eval_roc_auc", "eval_accuracy", "epoch")}
            self.training_bar.write(" ".join(f"{k} {v}" for k, v in shown.items()), file=sys.stderr)


def set_word_vectors(model, tokenizer, path: str | Path) -> int:
    """Replaces the vectors of the words in the file; returns how many were found."""
    vectors, ids = read_vectors(path, tokenizer.get_vocab())
    weight = model.get_input_embeddings().weight
    if len(ids) and vectors.shape[1] != weight.shape[1]:
        raise AttnProbeError(
            f"the word vectors in {path} have {vectors.shape[1]} numbers, the model embeds in {weight.shape[1]}; "
            f"set embedding_size={vectors.shape[1]}"
        )
    with torch.no_grad():
        weight[ids] = vectors.to(weight)
    return len(ids)


def _new_model(config, tokenizer, names) -> AttentionClassifierForSequenceClassification:
    """The architecture of ``config`` with this tokenizer's vocabulary and these labels."""
    config.vocab_size = len(tokenizer)
    config.pad_token_id, config.bos_token_id = tokenizer.pad_token_id, tokenizer.bos_token_id
    config.eos_token_id = tokenizer.eos_token_id
    config.id2label = dict(enumerate(names))
    config.label2id = {name: k for k, name in enumerate(names)}
    return AttentionClassifierForSequenceClassification(config)


def _encode(examples, tokenizer):
    encoded = examples.map(
        lambda rows: tokenizer(rows["text"], truncation=True), batched=True, remove_columns=["text", "example_id"]
    )
    return encoded.remove_columns(
        [c for c in encoded.column_names if c not in ("input_ids", "attention_mask", "label")]
    )


def _check_held_out(name: str, examples, names) -> None:
    """The same classes under the same numbers as in the training texts; numbers alone may be fewer."""
    present, own = set(examples.with_format(None)["label"][:]), label_names(examples)
    if -1 in present or own != names[: len(own)]:
        raise AttnProbeError(
            f"expected labelled {name} texts of the training texts' classes {', '.join(names)}, got labels "
            f"{sorted(present)} of {', '.join(own) or 'none'}; give all splits the same classes"
        )


def _check_classes(train, names) -> None:
    present = set(train.with_format(None)["label"][:])
    if len(names) < 2 or not set(range(len(names))) <= present or -1 in present:
        raise AttnProbeError(
            f"expected labelled training texts of every class of {', '.join(names)}, got labels {sorted(present)}; "
            "check the label column"
        )
