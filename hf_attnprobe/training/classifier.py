"""Training attention classifiers with the papers' settings, on Transformers' Trainer.

One Adam with two parameter groups takes the same steps as the papers' three optimisers. The
papers' code never keeps the first epoch; no paper says why, and here it may be kept.
"""

import copy
import logging
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import EarlyStoppingCallback, PreTrainedTokenizerBase

from hf_attnprobe.adapters.pretrained import reads_pairs
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.data.columns import column_of
from hf_attnprobe.data.examples import (
    check_sets,
    dataset_fingerprint,
    label_names,
)
from hf_attnprobe.data.tokenizer import build_tokenizer, read_vectors
from hf_attnprobe.inference.encoding import second_texts
from hf_attnprobe.inference.outputs import Guide, guide_rows, special_ids
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.training.options import Architecture, TrainingOptions
from hf_attnprobe.training.procedures import (
    DEFAULT,
    PROCEDURES,
    Procedure,
    optimizer_and_schedule,
    papers_config,
    papers_loss,
    papers_procedure,
)
from hf_attnprobe.training.trainer import (
    PlainTrainer,
    TrainedClassifier,
    make_trainer,
    train_or_load,
)


if TYPE_CHECKING:
    import datasets

logger = logging.getLogger(__name__)

Splits = Mapping[str, "datasets.Dataset"]


@public_function
def train_classifier(
    config: AttentionClassifierConfig | None,
    train: Any,
    validation: Any = None,
    *,
    output_dir: str | Path,
    test: Any = None,
    options: TrainingOptions = TrainingOptions(),
    tokenizer: PreTrainedTokenizerBase | None = None,
    guides: Mapping[str, Guide] | None = None,
    resume: bool = False,
    progress: bool | str = True,
    data_name: str | None = None,
) -> TrainedClassifier:
    """Trains an attention classifier and saves it, with its tokenizer, as a checkpoint.

    The epoch with the best validation score is kept. An option that is None is the
    procedure's.

    ``jain-wallace``: the settings of Jain & Wallace 2019's released code. Adam with amsgrad,
    learning rate 1e-3, weight decay 1e-5 on encoder and read-out but not on attention,
    8 epochs of batches of 32, and for two classes the positive one weighted by
    n_negative / n_positive. Scored by ROC-AUC for two classes, accuracy for more. Unlike
    there, the first epoch may be kept too. A model of pairs (``query_encoder``): weight
    decay on all weights, mean cross-entropy, 25 epochs of batches of 100, scored by
    accuracy.

    ``serrano-smith``: the settings of Serrano & Smith 2019's released code for IMDB. Adam,
    learning rate 4e-4, halved after each epoch without a better validation accuracy,
    gradients clipped to norm 10, batches of 64, at most 15 epochs and the end after 5
    without a better one (60 and 10 without an encoder), words in fewer than 5 texts
    unknown, mean cross-entropy. Unlike there, word vectors start at random unless
    ``word_vectors`` are given, and long texts are not dropped.

    Args:
        config: the architecture. It is not changed; the trained model's has vocabulary
            size, special tokens and labels filled in. None is the procedure's, see
            :func:`hf_attnprobe.training.procedures.papers_config`.
        train, validation, test: data sets as :func:`hf_attnprobe.load_examples` returns
            or takes them. The test texts are only scored.
        output_dir: a new or empty folder, or one that holds an earlier training's result.
        options: settings of the training.
        tokenizer: used instead of one built from the training texts, and not changed. A
            hierarchical model needs a separator, see :func:`hf_attnprobe.build_tokenizer`.
        guides: for ``attention="guided"``, the attention weights of every text over its
            tokens, by split and example id.
        resume: continue what an interrupted training with the same settings left in
            ``output_dir``, at its last epoch and to the same weights. A finished one is
            loaded.
        progress: show a bar on stderr; a string stands before it.
        data_name: what the data set is called, for the record and the model card.

    Raises:
        AttnProbeError: labels with a single class, pairs for a model of single texts or
            the other way round, a label outside the candidates of its text, word vectors of another width, an output
            folder with other files, no validation texts where the procedure needs them.
    """
    config = papers_config(options.procedure) if config is None else config
    procedure = procedure_of(options, config)
    _check_validation(procedure, validation)
    _check_guides(config, guides)
    splits = check_sets(train, validation, test)
    _check_segments(config, splits)
    record = _record(config, splits, procedure, options)
    prepare = partial(
        _trainer,
        config,
        splits,
        procedure,
        options,
        tokenizer,
        guides,
        progress,
    )
    return train_or_load(output_dir, record, prepare, resume=resume, data_name=data_name)


def _trainer(
    config: AttentionClassifierConfig,
    splits: Splits,
    procedure: Procedure,
    options: TrainingOptions,
    tokenizer: PreTrainedTokenizerBase | None,
    guides: Mapping[str, Guide] | None,
    progress: bool | str,
    folder: Path,
) -> tuple[PlainTrainer, PreTrainedTokenizerBase]:
    tokenizer = tokenizer or _new_tokenizer(splits["train"], config, procedure)
    tokenizer = with_max_length(tokenizer, options.max_length)
    names = label_names(splits["train"])
    if options.answers_in_text:
        config = with_answers(config, tokenizer, names)
    model = new_model(config, tokenizer, names, options.word_vectors)
    if config.answer_token_ids is not None:
        check_answers_in_texts(model, tokenizer, splits["train"])
    loss = papers_loss(splits["train"], len(names), weighted=procedure.weighted)
    columns = None
    if guides is not None:
        columns = partial(_guide_columns, guides, special_ids(tokenizer))
    trainer = papers_trainer(
        model,
        tokenizer,
        splits,
        folder,
        procedure,
        seed=options.seed,
        progress=progress,
        columns=columns,
        compute_loss_func=loss,
    )
    return trainer, tokenizer


def procedure_of(options: TrainingOptions, config: AttentionClassifierConfig) -> Procedure:
    """The procedure that the options name, with their settings."""
    names = PROCEDURES[DEFAULT].settings()
    changes = {name: getattr(options, name) for name in names}
    pairs = reads_pairs(config)
    return papers_procedure(options.procedure, config.encoder, pairs=pairs, **changes)


def _record(
    config: AttentionClassifierConfig,
    splits: Splits,
    procedure: Procedure,
    options: TrainingOptions,
) -> dict[str, Any]:
    """The settings that must be equal for a training to be continued."""
    vectors = options.word_vectors
    architecture = {field.name: getattr(config, field.name) for field in fields(Architecture)}
    record = {
        "procedure": options.procedure or DEFAULT,
        **procedure.settings(),
        "seed": options.seed,
        "max_length": options.max_length,
        "word_vectors": None if vectors is None else str(vectors),
        "architecture": architecture,
        "data": {name: dataset_fingerprint(part) for name, part in splits.items()},
    }
    if not architecture["query_encoder"]:  # folders from before pairs do not have it
        del architecture["query_encoder"]
        return record
    answers = config.answer_token_ids
    return record | {
        "answers_in_text": options.answers_in_text,
        "answer_token_ids": None if answers is None else list(answers),
    }


def _check_validation(procedure: Procedure, validation: Any) -> None:
    needed = procedure.patience is not None or procedure.plateau_factor < 1
    if needed and validation is None:
        raise AttnProbeError(
            "expected validation texts, which decide on learning rate and end; give some"
        )


def _check_segments(config: AttentionClassifierConfig, splits: Splits) -> None:
    """Checks that a model with a query encoder gets pairs, and others single texts."""
    for name, examples in splits.items():
        is_pair = second_texts(examples) is not None
        if is_pair and not config.query_encoder:
            raise AttnProbeError(
                f"the {name} texts are pairs, this attention classifier reads one text; "
                "set query_encoder=True (--query-encoder), or name one text column with "
                "--text-column"
            )
        if config.query_encoder and not is_pair:
            raise AttnProbeError(
                f"expected pairs of texts for a model with a query encoder, the {name} "
                "texts are single; name the second ones with --text-pair-column"
            )


def with_answers(
    config: AttentionClassifierConfig,
    tokenizer: PreTrainedTokenizerBase,
    names: list[str],
) -> AttentionClassifierConfig:
    """A copy of the configuration whose candidate answers are the labels.

    Raises:
        AttnProbeError: no query encoder, or a label that is no one known token.
    """
    if not config.query_encoder:
        raise AttnProbeError(
            "answers_in_text is for models of pairs, whose first text has the answers; "
            "set query_encoder=True (--query-encoder)"
        )
    ids = []
    for name in names:
        tokens = tokenizer(name, add_special_tokens=False)["input_ids"]
        if len(tokens) != 1 or tokens[0] == tokenizer.unk_token_id:
            raise AttnProbeError(
                f"expected every label to be one word of the texts, {name!r} is "
                f"{len(tokens)} tokens, or unknown; leave answers_in_text out"
            )
        ids.append(tokens[0])
    config = copy.deepcopy(config)
    config.update({**named_labels(names), "answer_token_ids": ids})
    return config


def check_answers_in_texts(
    model: AttentionClassifierForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    train: "datasets.Dataset",
) -> None:
    """Raises AttnProbeError where a training label does not occur among the candidates in its
    text.
    """
    answers, names = model.config.answer_token_ids or (), label_names(train)
    labels, ids = column_of(train, "label"), column_of(train, "example_id")
    columns = column_of(train, "text"), column_of(train, "text_pair")
    texts = tokenizer(*columns, truncation=True)
    rows = zip(ids, labels, texts["input_ids"], texts["token_type_ids"], strict=True)
    for example_id, label, tokens, types in rows:
        first = {token for token, kind in zip(tokens, types, strict=True) if kind == 0}
        if answers[label] not in first and first & set(answers):
            raise AttnProbeError(
                f"text {example_id}: its label {names[label]!r} is not "
                "among the answers in its first text; leave such texts out of training, "
                "or allow all answers (answers_in_text=False)"
            )


def _check_guides(config: AttentionClassifierConfig, guides: Mapping[str, Guide] | None) -> None:
    if (config.attention == "guided") != (guides is not None):
        with_or_without = "without" if guides is None else "with"
        raise AttnProbeError(
            "expected guides, the attention weights of every text, with "
            "attention='guided' and only there; got "
            f"attention={config.attention!r} {with_or_without} guides"
        )


def _guide_columns(
    guides: Mapping[str, Guide],
    special: set[int],
    split: str,
    examples: "datasets.Dataset",
    input_ids: list[list[int]],
) -> dict[str, list]:
    """The guide's weights for a split, as a column."""
    if split not in guides:
        got = ", ".join(guides) or "none"
        raise AttnProbeError(f"expected guides for the {split} texts too, got {got}")
    return {"guide": guide_rows(guides[split], examples, input_ids, special)}


def _new_tokenizer(
    train: "datasets.Dataset",
    config: AttentionClassifierConfig,
    procedure: Procedure,
) -> PreTrainedTokenizerBase:
    seconds = second_texts(train) or []
    return build_tokenizer(
        [*column_of(train, "text"), *seconds],
        min_document_frequency=procedure.min_document_frequency,
        sentences=config.hierarchical,
        pairs=config.query_encoder,
    )


def with_max_length(
    tokenizer: PreTrainedTokenizerBase, max_length: int | None
) -> PreTrainedTokenizerBase:
    """A copy of the tokenizer that cuts texts to ``max_length`` tokens; itself for None."""
    if max_length is None:
        return tokenizer
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = max_length
    return tokenizer


def papers_trainer(
    model: AttentionClassifierForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    splits: Splits,
    output_dir: Path,
    procedure: Procedure,
    *,
    seed: int,
    progress: bool | str,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> PlainTrainer:
    """The Trainer that follows a paper's procedure.

    Args:
        settings: of its arguments, in place of the procedure's.
        options: of :func:`hf_attnprobe.training.trainer.make_trainer`.
    """
    callbacks = []
    if procedure.patience is not None:
        callbacks.append(EarlyStoppingCallback(procedure.patience))
    arguments: dict[str, Any] = {
        "num_train_epochs": procedure.epochs,
        "per_device_train_batch_size": procedure.batch_size,
        "max_grad_norm": procedure.max_grad_norm,
        "seed": seed,
    }
    if procedure.metric is not None:
        arguments["metric_for_best_model"] = procedure.metric
    return make_trainer(
        model,
        tokenizer,
        splits,
        output_dir,
        settings=arguments | dict(settings or {}),
        progress=progress,
        optimizers=optimizer_and_schedule(model, procedure),
        callbacks=callbacks,
        **options,
    )


def set_word_vectors(
    model: AttentionClassifierForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    file: str | Path,
) -> None:
    """Replaces the word vectors that the file has.

    Raises:
        AttnProbeError: a file that cannot be read, or vectors of another width.
    """
    vectors, ids = read_vectors(file, tokenizer.get_vocab())
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    tables = [embedding.weight]
    if reads_pairs(model.config):
        tables.append(model.attention_classifier.query_reader.embeddings.weight)
    weight, width = tables[0], vectors.shape[1]
    if len(ids) and width != weight.shape[1]:
        raise AttnProbeError(
            f"the word vectors in {file} have {width} numbers, the model embeds in "
            f"{weight.shape[1]}; set embedding_size={width}"
        )
    with torch.no_grad():
        for table in tables:
            table[ids] = vectors.to(table)
    logger.info("%d of %d words have vectors in %s", len(ids), len(weight), file)


def named_labels(names: list[str]) -> dict[str, dict]:
    """Configuration fields that name the classes."""
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: label for label, name in enumerate(names)},
    }


def new_model(
    config: AttentionClassifierConfig,
    tokenizer: PreTrainedTokenizerBase,
    names: list[str],
    word_vectors: str | Path | None = None,
) -> AttentionClassifierForSequenceClassification:
    """A model with random weights for a tokenizer's vocabulary and named classes.

    Args:
        config: the architecture; it is not changed.
        names: of the classes, in the order of their labels.
        word_vectors: a file of pretrained word vectors, see :func:`set_word_vectors`.

    Raises:
        AttnProbeError: a hierarchical model with a tokenizer that separates no sentences,
            a model of pairs with one that does not tell the second text apart.
    """
    if config.hierarchical and tokenizer.sep_token_id is None:
        raise AttnProbeError(
            "expected a tokenizer that separates sentences for a hierarchical model; "
            "build one with build_tokenizer(texts, sentences=True)"
        )
    if config.query_encoder and "token_type_ids" not in tokenizer.model_input_names:
        raise AttnProbeError(
            "expected a tokenizer with token_type_ids for a model of pairs; build one "
            "with build_tokenizer(texts, pairs=True)"
        )
    config = copy.deepcopy(config)
    if config.hierarchical:
        config.sep_token_id = tokenizer.sep_token_id
    config.vocab_size = len(tokenizer)
    config.pad_token_id = tokenizer.pad_token_id
    config.unk_token_id = tokenizer.unk_token_id
    # Some tokenizers begin a text with [CLS] and end it with [SEP]: neither is content.
    begin_id, end_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    config.bos_token_id = tokenizer.cls_token_id if begin_id is None else begin_id
    config.eos_token_id = tokenizer.sep_token_id if end_id is None else end_id
    config.update(named_labels(names))
    model = AttentionClassifierForSequenceClassification(config)
    if word_vectors is not None:
        set_word_vectors(model, tokenizer, word_vectors)
    return model
