"""Training attention classifiers with the papers' settings, on the Trainer of Transformers."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import EarlyStoppingCallback, set_seed

from hf_attnprobe.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.checkpoints import RECORD, load_tokenizer
from hf_attnprobe.data.examples import label_names
from hf_attnprobe.data.splits import check_sets
from hf_attnprobe.data.tokenizer import build_tokenizer
from hf_attnprobe.data.word_vectors import read_vectors
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.guides import Guide, guide_rows, special_ids
from hf_attnprobe.options import check_at_least
from hf_attnprobe.storage.folders import check_free
from hf_attnprobe.training.losses import papers_loss
from hf_attnprobe.training.procedures import (
    Procedure,
    papers_config,
    papers_optimizer,
    papers_procedure,
)
from hf_attnprobe.training.resuming import STEPS, finish, finished
from hf_attnprobe.training.trainer import make_trainer


def train_classifier(
    config: AttentionClassifierConfig | None,
    train,
    validation=None,
    *,
    output_dir: str | Path,
    test=None,
    seed: int = 0,
    recipe: str = "jain-wallace",
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    min_document_frequency: int | None = None,
    max_grad_norm: float | None = None,
    plateau_factor: float | None = None,
    patience: int | None = None,
    max_length: int | None = None,
    vectors: str | Path | None = None,
    tokenizer=None,
    guides: Mapping[str, Guide] | None = None,
    resume: bool = False,
    progress: bool | str = True,
):
    """Trains an attention classifier and saves it with its tokenizer as an ordinary checkpoint.

    What is None is the recipe's; the epoch with the best validation score is kept.

    ``jain-wallace``: the settings of Jain & Wallace 2019's released code: Adam with amsgrad, learning rate 1e-3, weight
    decay 1e-5 on encoder and read-out but not on attention, 8 epochs of batches of 32, and for two classes the positive
    one weighted by n_negative / n_positive; scored by ROC-AUC for two classes, accuracy for more. Unlike there, the first
    epoch may be kept too.

    ``serrano-smith``: those of Serrano & Smith 2019's released code for IMDB: Adam, learning rate 4e-4, halved after each
    epoch without a better validation accuracy, gradients clipped to norm 10, batches of 64, at most 15 epochs and the
    end after 5 without a better one (60 and 10 without an encoder), words in fewer than 5 texts unknown, mean
    cross-entropy. Unlike there, word vectors start at random unless ``vectors`` are given, and long texts are not dropped.

    Args:
        config: the architecture, as it is; vocabulary size and labels are filled in. ``None`` is the recipe's, see
            :func:`hf_attnprobe.training.procedures.papers_config`.
        train, validation, test: data sets as :func:`hf_attnprobe.load_examples` returns or takes them.
        output_dir: a new or empty folder, or one that holds an earlier training's result.
        recipe: ``jain-wallace`` or ``serrano-smith``.
        max_grad_norm, plateau_factor, patience: see :class:`hf_attnprobe.training.procedures.Procedure`.
        max_length: longer texts are cut, the special tokens included; ``None`` is not at all.
        vectors: a word2vec, fastText or GloVe text file; words it lacks keep their random vector.
        tokenizer: an existing one instead of one built from the training texts; for a hierarchical model one with a
            separator, see :func:`hf_attnprobe.build_tokenizer`.
        guides: for ``attention="guided"``, the attention weights of every text over its tokens, by split and example id.
        resume: continue what an interrupted training with the same settings left in ``output_dir``, at its last epoch
            and to the same weights; one that came to its end is loaded.
        progress: a bar on stderr; a string stands before it.

    Returns:
        (model, tokenizer, metrics): the best model in eval mode, and its scores as plain floats.

    Raises:
        AttnProbeError: an option out of range, labels with a single class, word vectors of another width, an output
            folder with other files, no validation texts where the recipe needs them.
    """
    config = config or papers_config(recipe)
    procedure = papers_procedure(
        recipe,
        config.encoder,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        min_document_frequency=min_document_frequency,
        max_grad_norm=max_grad_norm,
        plateau_factor=plateau_factor,
        patience=patience,
    )
    _check_procedure(procedure, max_length, validation)
    record = _record(
        recipe, procedure, seed=seed, max_length=max_length, vectors=vectors
    )
    if resume and (found := finished(Path(output_dir), record)) is not None:
        return found[0], tokenizer or load_tokenizer(output_dir), found[1]
    output_dir, sets, names = begin(
        output_dir, train, validation, test, seed, resume=resume
    )
    tokenizer = tokenizer or _new_tokenizer(sets["train"], config, procedure)
    if max_length is not None:
        tokenizer.model_max_length = max_length
    model = new_model(config, tokenizer, names, vectors)
    trainer = _papers_trainer(
        model,
        tokenizer,
        sets,
        output_dir,
        procedure,
        seed=seed,
        progress=progress,
        columns=_guide_columns(config, guides, tokenizer),
    )
    return (
        model,
        tokenizer,
        finish(trainer, tokenizer, output_dir, record, resume=resume),
    )


def _record(recipe: str, procedure: Procedure, **settings) -> dict:
    """What a training with the same settings is known by."""
    used = (
        "epochs",
        "batch_size",
        "learning_rate",
        "weight_decay",
        "min_document_frequency",
        "max_grad_norm",
    )
    kept = {
        name: getattr(procedure, name) for name in (*used, "plateau_factor", "patience")
    }
    settings["vectors"] = settings["vectors"] and str(settings["vectors"])
    return {"recipe": recipe} | kept | settings


def _guide_columns(config, guides: Mapping[str, Guide] | None, tokenizer):
    """The guides as a column of the data; None where attention is the model's own."""
    if (config.attention == "guided") != (guides is not None):
        raise AttnProbeError(
            "expected guides, the attention weights of every text, with attention='guided' and only there; got "
            f"attention={config.attention!r} {'with' if guides is not None else 'without'} guides"
        )

    def columns(split: str, examples, input_ids) -> dict[str, list]:
        if split not in guides:
            raise AttnProbeError(
                f"expected guides for the {split} texts too, got {', '.join(guides) or 'none'}"
            )
        return {
            "guide": guide_rows(
                guides[split], examples, input_ids, special_ids(tokenizer)
            )
        }

    return None if guides is None else columns


def _check_procedure(procedure: Procedure, max_length: int | None, validation) -> None:
    for name in ("learning_rate", "weight_decay", "max_grad_norm"):
        check_at_least(0, **{name: getattr(procedure, name)})
    check_at_least(1, epochs=procedure.epochs, batch_size=procedure.batch_size)
    check_at_least(1, max_length=max_length, patience=procedure.patience)
    if not 0 < procedure.plateau_factor <= 1:
        raise AttnProbeError(
            f"plateau_factor must be above 0 and at most 1, got {procedure.plateau_factor}"
        )
    if validation is None and (
        procedure.patience is not None or procedure.plateau_factor < 1
    ):
        raise AttnProbeError(
            "expected validation texts, which decide on learning rate and end; give some"
        )


def _new_tokenizer(train, config, procedure: Procedure):
    return build_tokenizer(
        train.with_format(None)["text"][:],
        min_document_frequency=procedure.min_document_frequency,
        sentences=config.hierarchical,
    )


def _papers_trainer(
    model,
    tokenizer,
    sets,
    output_dir: Path,
    procedure: Procedure,
    *,
    seed: int,
    **options,
):
    """The Trainer that follows a paper's procedure."""
    rates = {
        "learning_rate": procedure.learning_rate,
        "weight_decay": procedure.weight_decay,
    }
    optimizer = papers_optimizer(model, **rates, amsgrad=procedure.amsgrad)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    if procedure.plateau_factor < 1:
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode="max", factor=procedure.plateau_factor, patience=0
        )
    stopping = (
        []
        if procedure.patience is None
        else [EarlyStoppingCallback(procedure.patience)]
    )
    loss = papers_loss(
        sets["train"], model.config.num_labels, weighted=procedure.weighted
    )
    settings = {
        "num_train_epochs": procedure.epochs,
        "per_device_train_batch_size": procedure.batch_size,
        "max_grad_norm": procedure.max_grad_norm,
        "seed": seed,
    } | (
        {} if procedure.metric is None else {"metric_for_best_model": procedure.metric}
    )
    return make_trainer(
        model,
        tokenizer,
        sets,
        output_dir,
        settings=settings,
        compute_loss_func=loss,
        optimizers=(optimizer, scheduler),
        callbacks=stopping,
        **options,
    )


def begin(
    output_dir: str | Path, train, validation, test, seed: int, *, resume: bool = False
) -> tuple[Path, dict, list[str]]:
    """The folder, the splits and the names of the classes, all checked; from here on everything is seeded."""
    check_at_least(0, seed=seed)
    interrupted = resume and (Path(output_dir) / STEPS).exists()
    output_dir = check_free(output_dir, STEPS if interrupted else RECORD)
    sets = check_sets(train, validation, test)
    set_seed(seed)
    return output_dir, sets, label_names(sets["train"])


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


def new_model(
    config, tokenizer, names, vectors=None
) -> AttentionClassifierForSequenceClassification:
    """The architecture of ``config`` with this tokenizer's vocabulary, these labels, and word vectors from a file."""
    if config.hierarchical and tokenizer.sep_token_id is None:
        raise AttnProbeError(
            "expected a tokenizer that separates sentences for a hierarchical model; "
            "build one with build_tokenizer(texts, sentences=True)"
        )
    if config.hierarchical:
        config.sep_token_id = tokenizer.sep_token_id
    config.vocab_size = len(tokenizer)
    config.pad_token_id, config.unk_token_id = (
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
    )
    # Some tokenizers begin a text with [CLS] and end it with [SEP]: none of them is content.
    for name, other in (
        ("bos_token_id", "cls_token_id"),
        ("eos_token_id", "sep_token_id"),
    ):
        own = getattr(tokenizer, name)
        setattr(config, name, getattr(tokenizer, other) if own is None else own)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: k for k, name in enumerate(names)}
    model = AttentionClassifierForSequenceClassification(config)
    if vectors is not None:
        set_word_vectors(model, tokenizer, vectors)
    return model
