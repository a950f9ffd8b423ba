"""Training attention classifiers with the papers' settings, on the Trainer of Transformers."""

import contextlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata
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
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.loading import check_new_folder
from hf_attnprobe.tokenization import build_tokenizer


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
    output_dir = check_new_folder(output_dir, holding="config.json")
    sets = {
        name: load_examples(d, name)
        for name, d in (("train", train), ("validation", validation), ("test", test))
        if d is not None
    }
    names = label_names(sets["train"])
    _check_classes(sets["train"], names)
    set_seed(seed)
    tokenizer = tokenizer or build_tokenizer(
        sets["train"].with_format(None)["text"][:], min_document_frequency=min_document_frequency
    )
    model = _new_model(config or AttentionClassifierConfig(), tokenizer, names)
    if vectors is not None:
        set_word_vectors(model, tokenizer, vectors)
    encoded = {name: _encode(examples, tokenizer) for name, examples in sets.items()}
    steps = TrainingArguments(
        output_dir=str(output_dir / "steps"),
        num_train_epochs=epochs,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=128,
        train_sampling_strategy="group_by_length",
        eval_strategy="epoch" if validation is not None else "no",
        save_strategy="epoch" if validation is not None else "no",
        save_total_limit=1,
        load_best_model_at_end=validation is not None,
        metric_for_best_model="roc_auc" if len(names) == 2 else "accuracy",
        greater_is_better=True,
        max_grad_norm=0.0,  # the papers do not clip
        logging_strategy="epoch",
        report_to=[],
        disable_tqdm=not progress,
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    optimizer = papers_optimizer(model, learning_rate=learning_rate, weight_decay=weight_decay)
    trainer = Trainer(
        model,
        steps,
        train_dataset=encoded["train"],
        eval_dataset=encoded.get("validation"),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_loss_func=papers_loss(sets["train"], len(names)),
        compute_metrics=classification_metrics,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)),
    )
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    if progress:
        trainer.add_callback(StderrProgress)
    trainer.train()
    metrics = {}
    for name in encoded.keys() & {"validation", "test"}:
        found = trainer.predict(encoded[name], metric_key_prefix=name).metrics
        metrics |= {k: float(v) for k, v in found.items() if k.split("_", 1)[1] in ("accuracy", "f1", "roc_auc")}
    shutil.rmtree(output_dir / "steps", ignore_errors=True)
    model.eval().save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    return model, tokenizer, dict(sorted(metrics.items()))


def load_splits(dataset, *, seed: int = 0, **columns) -> dict:
    """Train and, where the data set has them, validation and test, as keyword arguments of :func:`train_classifier`."""
    found = {"train": load_examples(dataset, "train", seed=seed, **columns)}
    for name in ("validation", "test"):
        with contextlib.suppress(AttnProbeError):
            found[name] = load_examples(dataset, name, seed=seed, **columns)
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


def papers_optimizer(model, *, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """Adam with amsgrad; weight decay on everything but attention (Jain & Wallace 2019, released code)."""
    attention = {id(p) for p in model.attention_classifier.attention.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in attention], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if id(p) in attention], "weight_decay": 0.0},
    ]
    return torch.optim.Adam([g for g in groups if g["params"]], lr=learning_rate, amsgrad=True, fused=True)


def papers_loss(train, n_classes: int) -> Callable:
    """Cross-entropy; for two classes the positive one weighs n_negative / n_positive and the batch is summed."""
    if n_classes > 2:
        return lambda outputs, labels, num_items_in_batch=None: torch.nn.functional.cross_entropy(
            outputs.logits, labels
        )
    labels = np.asarray(train.with_format(None)["label"][:])
    weight = torch.tensor([1.0, (labels == 0).sum() / (labels == 1).sum()], dtype=torch.float32)

    def loss(outputs, labels, num_items_in_batch=None):
        weights = weight.to(outputs.logits)
        return torch.nn.functional.cross_entropy(outputs.logits, labels, weights, reduction="sum")

    return loss


def classification_metrics(prediction) -> dict[str, float]:
    """Accuracy; for two classes also F1 of class 1 and the area under the ROC curve."""
    logits, labels = prediction.predictions, prediction.label_ids
    predicted = logits.argmax(-1)
    found = {"accuracy": float((predicted == labels).mean())}
    if logits.shape[-1] == 2:
        hits = ((predicted == 1) & (labels == 1)).sum()
        found["f1"] = float(2 * hits / max(1, (predicted == 1).sum() + (labels == 1).sum()))
        found["roc_auc"] = roc_auc(logits[:, 1] - logits[:, 0], labels)
    return found


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Probability that a positive text scores above a negative one, ties counting half (Mann-Whitney); NaN for one class."""
    n_positive = int((labels == 1).sum())
    n_pairs = n_positive * (len(labels) - n_positive)
    if n_pairs == 0:
        return float("nan")
    return float((rankdata(scores)[labels == 1].sum() - n_positive * (n_positive + 1) / 2) / n_pairs)


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
    encoded = examples.map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=["text", "example_id"])
    return encoded.remove_columns(
        [c for c in encoded.column_names if c not in ("input_ids", "attention_mask", "label")]
    )


def _check_classes(train, names) -> None:
    present = set(train.with_format(None)["label"][:])
    if len(names) < 2 or not set(range(len(names))) <= present or -1 in present:
        raise AttnProbeError(
            f"expected labelled training texts of every class of {', '.join(names)}, got labels {sorted(present)}; "
            "check the label column"
        )
