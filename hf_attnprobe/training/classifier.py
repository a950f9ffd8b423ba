"""Training of attention classifiers from scratch, with the papers' settings.

The training runs on the Trainer of Transformers. A single Adam optimizer with two parameter groups
takes the same steps as the three optimizers in the papers' code. The papers' code never keeps the
first epoch. No paper gives a reason for this, so here the first epoch may be kept too.
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

from hf_attnprobe.adapters.pretrained import reads_features, reads_pairs
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.options import public_function
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.examples import (
    compute_dataset_fingerprint,
    get_label_names,
    prepare_splits,
)
from hf_attnprobe.data.instances import iterate_bags
from hf_attnprobe.data.tokenizer import build_tokenizer, read_vectors
from hf_attnprobe.inference.encoding import get_second_texts
from hf_attnprobe.inference.outputs import Guide, build_guide_rows, get_special_ids
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.training.options import Architecture, TrainingOptions
from hf_attnprobe.training.procedures import (
    DEFAULT_PROCEDURE,
    PROCEDURES,
    Procedure,
    choose_procedure,
    make_optimizer_and_schedule,
    make_paper_config,
    make_paper_loss,
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
def train_classifier(  # noqa: PLR0913
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
    """Train an attention classifier and save it with its tokenizer as a checkpoint.

    The epoch with the best validation score is kept. If an option is None, its value comes from a
    paper's training procedure (``options.procedure``):

    ``jain-wallace`` (default) follows the code that Jain & Wallace released in 2019: Adam with
    AMSGrad, learning rate 1e-3, weight decay 1e-5 on the encoder and the output layer but not on
    the attention, and 8 epochs with batches of 32 texts. With two classes, the positive class is
    weighted by n_negative / n_positive. The validation score is the ROC-AUC for two classes and the
    accuracy for more. Unlike in the released code, the first epoch may be kept. Models that read
    text pairs (``query_encoder``) use weight decay on all weights, mean cross-entropy, 25 epochs
    with batches of 100, and accuracy.

    ``serrano-smith`` follows the code that Serrano & Smith released in 2019, with its settings for
    IMDB: Adam with learning rate 4e-4, which is halved after each epoch that does not improve the
    validation accuracy, gradients clipped to norm 10, batches of 64, and mean cross-entropy.
    Training stops after 5 epochs without improvement, at the latest after 15 epochs (10 and 60 for
    models without an encoder). Words that occur in fewer than 5 texts become unknown. Unlike in the
    released code, word vectors start at random unless ``word_vectors`` is set, and long texts are
    kept.

    Args:
        config: The architecture. It is not modified: vocabulary size, special tokens and labels are
            filled in on a copy. None selects the procedure's architecture, see
            :func:`hf_attnprobe.training.procedures.make_paper_config`.
        train: Training texts, in any form that :func:`hf_attnprobe.load_examples` returns or
            accepts.
        validation: Validation texts, which choose the epoch.
        output_dir: A new or empty folder, or the folder of an earlier training.
        test: Test texts. They are only scored.
        options: Training settings.
        tokenizer: Tokenizer to use instead of one built from the training texts. It is not
            modified. A hierarchical model needs a separator token, see
            :func:`hf_attnprobe.build_tokenizer`.
        guides: Attention weights over the tokens of each text, by split and example id. Required
            for ``attention="guided"``, and only allowed there.
        resume: If True, continue an interrupted training with the same settings in ``output_dir``
            from its last epoch, to the same weights, or load a finished one.
        progress: Whether to show a progress bar on stderr. A string is displayed in front of the
            bar.
        data_name: Data set name, for the training record and the model card.

    Returns:
        The trained model in evaluation mode, its tokenizer, and its scores.

    Raises:
        AttnProbeError: If all labels are equal, if a model for single texts gets text pairs or the
            other way round, if a label is not among the candidate answers in its text, if the word
            vectors have the wrong width, if the output folder holds other files, or if the
            procedure needs validation texts and there are none.

    Example:
        Train a BiLSTM on SST::

            model, tokenizer, metrics = train_classifier(
                AttentionClassifierConfig(encoder="bilstm"),
                train=load_examples("sst", "train"),
                validation=load_examples("sst", "validation"),
                output_dir="bilstm-sst",
            )
    """
    config = make_paper_config(options.procedure) if config is None else config
    procedure = resolve_procedure(options, config)
    _check_validation(procedure, validation)
    _check_guides(config, guides)
    splits = prepare_splits(train, validation, test)
    _check_bags(config, splits, options, tokenizer)
    _check_text_pairs(config, splits)
    record = _build_record(config, splits, procedure, options)
    prepare = partial(
        _build_trainer,
        config,
        splits,
        procedure,
        options,
        tokenizer,
        guides,
        progress,
    )
    return train_or_load(output_dir, record, prepare, resume=resume, data_name=data_name)


def _build_trainer(
    config: AttentionClassifierConfig,
    splits: Splits,
    procedure: Procedure,
    options: TrainingOptions,
    tokenizer: PreTrainedTokenizerBase | None,
    guides: Mapping[str, Guide] | None,
    progress: bool | str,
    folder: Path,
) -> tuple[PlainTrainer, PreTrainedTokenizerBase | None]:
    """Build an attention classifier's tokenizer and the Trainer that trains it.

    A classifier that reads bags of features has no tokenizer.
    """
    if reads_features(config):
        return _build_bag_trainer(config, splits, procedure, options, progress, folder), None
    tokenizer = tokenizer or _make_tokenizer(splits["train"], config, procedure)
    tokenizer = limit_text_length(tokenizer, options.max_length)
    names = get_label_names(splits["train"])
    if options.answers_in_text:
        config = add_candidate_answers(config, tokenizer, names)
    model = build_model(config, tokenizer, names, options.word_vectors)
    if config.answer_token_ids is not None:
        check_answers_in_texts(model, tokenizer, splits["train"])
    loss = make_paper_loss(splits["train"], len(names), weighted=procedure.weighted)
    make_columns = None
    if guides is not None:
        make_columns = partial(_make_guide_column, guides, get_special_ids(tokenizer))
    trainer = make_paper_trainer(
        model,
        tokenizer,
        splits,
        folder,
        procedure,
        seed=options.seed,
        progress=progress,
        make_columns=make_columns,
        compute_loss_func=loss,
    )
    return trainer, tokenizer


def _build_bag_trainer(
    config: AttentionClassifierConfig,
    splits: Splits,
    procedure: Procedure,
    options: TrainingOptions,
    progress: bool | str,
    folder: Path,
) -> PlainTrainer:
    """Build the Trainer for an attention classifier that reads bags of features."""
    names = get_label_names(splits["train"])
    config = copy.deepcopy(config)
    config.update(make_label_fields(names))
    return make_paper_trainer(
        AttentionClassifierForSequenceClassification(config),
        None,
        splits,
        folder,
        procedure,
        seed=options.seed,
        progress=progress,
        compute_loss_func=make_paper_loss(splits["train"], len(names), weighted=procedure.weighted),
    )


def make_bag_config(
    procedure: str | None, train: "datasets.Dataset", **changes: Any
) -> AttentionClassifierConfig:
    """Return the architecture for bags of features, in which some fields can be replaced.

    By default, each instance is encoded on its own by a linear layer with tanh, and the attention is
    gated (Ilse et al. 2018).

    Args:
        procedure: Training procedure; see :func:`make_paper_config`.
        train: Training bags, which determine the size of the vectors.
        **changes: Configuration fields to replace.

    Raises:
        AttnProbeError: If the bags contain integers, or if the fields do not form a valid model.
    """
    if "features" not in train.column_names:
        raise AttnProbeError(
            "attention classifiers can be trained on bags of vectors, but the data has bags of "
            "integers (column 'items'). Convert each integer to a vector."
        )
    if "embedding_size" in changes:
        raise AttnProbeError(
            "embedding_size does not apply to bags of features, whose vectors have the size of the "
            "data. Leave it out."
        )
    fields = {"encoder": "mlp", "attention": "gated"} | changes
    size = next(iterate_bags(train, "features")).shape[1]
    return make_paper_config(
        procedure, **fields, inputs="features", feature_size=size, embedding_size=size
    )


def _check_bags(
    config: AttentionClassifierConfig,
    splits: Splits,
    options: TrainingOptions,
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Check that a model for bags gets bags of the right size, and any other model texts.

    Raises:
        AttnProbeError: If a split, an option or the tokenizer does not fit the model.
    """
    for name, examples in splits.items():
        has_features = "features" in examples.column_names
        if has_features != reads_features(config):
            content = "bags of features" if has_features else "texts or bags of integers"
            raise AttnProbeError(
                f"the {name} data has {content}, but the model has inputs={config.inputs!r}. Set "
                "inputs='features' and feature_size for bags of features, and inputs='tokens' for "
                "texts."
            )
        if has_features:
            size = next(iterate_bags(examples, "features")).shape[1]
            if size != config.feature_size:
                raise AttnProbeError(
                    f"the model has feature_size={config.feature_size}, but the vectors of the {name} "
                    f"data have the size {size}. Set feature_size={size}."
                )
    if not reads_features(config):
        return
    text_options = ("min_document_frequency", "max_length", "word_vectors", "answers_in_text")
    values = {name: getattr(options, name) for name in text_options} | {"tokenizer": tokenizer}
    for name, value in values.items():
        if value not in (None, False):
            raise AttnProbeError(
                f"{name} applies only to texts, but the data has bags of features. Leave it out."
            )


def resolve_procedure(options: TrainingOptions, config: AttentionClassifierConfig) -> Procedure:
    """Return the training procedure that the options select.

    Options such as the number of epochs replace the value in the procedure, unless they are None.

    Args:
        options: Training options.
        config: The architecture. Models without an encoder, or for text pairs, have other defaults.
    """
    setting_names = PROCEDURES[DEFAULT_PROCEDURE].get_settings()
    changes = {name: getattr(options, name) for name in setting_names}
    return choose_procedure(
        options.procedure, config.encoder, is_pair_model=reads_pairs(config), **changes
    )


def _build_record(
    config: AttentionClassifierConfig,
    splits: Splits,
    procedure: Procedure,
    options: TrainingOptions,
) -> dict[str, Any]:
    """Return all settings of a training as a dictionary.

    It is stored with the training. An interrupted training can only be resumed if all settings
    are the same.
    """
    vectors = options.word_vectors
    architecture = {field.name: getattr(config, field.name) for field in fields(Architecture)}
    record = {
        "procedure": options.procedure or DEFAULT_PROCEDURE,
        **procedure.get_settings(),
        "seed": options.seed,
        "max_length": options.max_length,
        "word_vectors": None if vectors is None else str(vectors),
        "architecture": architecture,
        "data": {name: compute_dataset_fingerprint(part) for name, part in splits.items()},
    }
    if not architecture["query_encoder"]:
        # Records that were written before text pairs were supported do not have this key.
        del architecture["query_encoder"]
        if reads_features(config):
            architecture |= {"inputs": config.inputs, "feature_size": config.feature_size}
        return record
    answers = config.answer_token_ids
    return record | {
        "answers_in_text": options.answers_in_text,
        "answer_token_ids": None if answers is None else list(answers),
    }


def _check_validation(procedure: Procedure, validation: Any) -> None:
    """Check that there are validation texts if the training procedure needs them."""
    is_needed = procedure.patience is not None or procedure.plateau_factor < 1
    if is_needed and validation is None:
        raise AttnProbeError(
            "this training procedure needs validation texts, because it adapts the learning rate "
            "and stops early. Pass validation texts."
        )


def _check_text_pairs(config: AttentionClassifierConfig, splits: Splits) -> None:
    """Check that a model with a query encoder gets text pairs, and any other model single texts.

    Raises:
        AttnProbeError: If a split does not fit the model.
    """
    for name, examples in splits.items():
        is_pair = get_second_texts(examples) is not None
        if is_pair and not config.query_encoder:
            raise AttnProbeError(
                f"the {name} texts are pairs, but this attention classifier reads single texts. "
                "Set query_encoder=True (--query-encoder), or choose one column with "
                "--text-column."
            )
        if config.query_encoder and not is_pair:
            raise AttnProbeError(
                f"the {name} texts are not pairs, but a model with a query encoder reads text "
                "pairs. Name the column of the second texts with --text-pair-column."
            )


def add_candidate_answers(
    config: AttentionClassifierConfig,
    tokenizer: PreTrainedTokenizerBase,
    names: list[str],
) -> AttentionClassifierConfig:
    """Return a copy of the configuration for a model that chooses among words in its first text.

    The label names become the candidate answers: the model only predicts labels whose word occurs
    in the first text.

    Args:
        config: The architecture of a model that reads text pairs.
        tokenizer: The model's tokenizer.
        names: Label names; each must be a single known token.

    Raises:
        AttnProbeError: If the model has no query encoder, or if a label is not a single known
            token.
    """
    if not config.query_encoder:
        raise AttnProbeError(
            "answers_in_text needs a model for text pairs. Set query_encoder=True "
            "(--query-encoder)."
        )
    ids = []
    for name in names:
        tokens = tokenizer(name, add_special_tokens=False)["input_ids"]
        if len(tokens) != 1 or tokens[0] == tokenizer.unk_token_id:
            raise AttnProbeError(
                f"answers_in_text needs labels that are single known words, but {name!r} is "
                f"unknown or has {format_count(len(tokens), 'token')}. Remove answers_in_text."
            )
        ids.append(tokens[0])
    config = copy.deepcopy(config)
    config.update({**make_label_fields(names), "answer_token_ids": ids})
    return config


def check_answers_in_texts(
    model: AttentionClassifierForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    train: "datasets.Dataset",
) -> None:
    """Check that every training text contains its own label as a word.

    If the words of other labels are in a text, but not its own, the model cannot predict it. Texts
    that contain no label at all are accepted.

    Args:
        model: A model with ``answer_token_ids``.
        tokenizer: The model's tokenizer.
        train: Training texts with the columns ``text``, ``text_pair``, ``label`` and
            ``example_id``.

    Raises:
        AttnProbeError: If a text contains the words of other labels, but not of its own.
    """
    answers, names = model.config.answer_token_ids or (), get_label_names(train)
    labels, ids = read_column(train, "label"), read_column(train, "example_id")
    columns = read_column(train, "text"), read_column(train, "text_pair")
    texts = tokenizer(*columns, truncation=True)
    rows = zip(ids, labels, texts["input_ids"], texts["token_type_ids"], strict=True)
    for example_id, label, tokens, types in rows:
        # Tokens of the first text have the type 0, and tokens of the second text the type 1.
        token_types = zip(tokens, types, strict=True)
        first_tokens = {token for token, token_type in token_types if token_type == 0}
        if answers[label] not in first_tokens and first_tokens & set(answers):
            raise AttnProbeError(
                f"text {example_id} has the label {names[label]!r}, but its first text contains "
                "only other labels. Remove such texts, or set answers_in_text=False."
            )


def _check_guides(config: AttentionClassifierConfig, guides: Mapping[str, Guide] | None) -> None:
    """Check that attention weights (guides) are passed to exactly the models that need them.

    A model with ``attention='guided'`` does not compute attention, but receives it as an input.
    """
    if config.attention == "guided" and guides is None:
        raise AttnProbeError(
            "attention='guided' needs attention weights for every text. Pass them as guides."
        )
    if config.attention != "guided" and guides is not None:
        raise AttnProbeError(
            "guides can only be passed to a model with attention='guided', got "
            f"attention={config.attention!r}. Remove guides."
        )


def _make_guide_column(
    guides: Mapping[str, Guide],
    special: set[int],
    split: str,
    examples: "datasets.Dataset",
    input_ids: list[list[int]],
) -> dict[str, list]:
    """Return an input column with the attention weights that the model receives for each text.

    Args:
        guides: Attention weights by the name of the split.
        special: Ids of special tokens, which get no weight.
        split: Name of the split, such as "train".
        examples: Texts of the split.
        input_ids: Token ids of each text.
    """
    if split not in guides:
        guided_splits = ", ".join(guides) or "no texts"
        raise AttnProbeError(
            f"guides are also needed for the {split} texts, got guides for {guided_splits}"
        )
    return {"guide": build_guide_rows(guides[split], examples, input_ids, special)}


def _make_tokenizer(
    train: "datasets.Dataset",
    config: AttentionClassifierConfig,
    procedure: Procedure,
) -> PreTrainedTokenizerBase:
    """Build a tokenizer with the vocabulary of the training texts.

    In a data set of text pairs, the vocabulary includes the words of the second texts.
    """
    second_texts = get_second_texts(train) or []
    return build_tokenizer(
        [*read_column(train, "text"), *second_texts],
        min_document_frequency=procedure.min_document_frequency,
        sentences=config.hierarchical,
        pairs=config.query_encoder,
    )


def limit_text_length(
    tokenizer: PreTrainedTokenizerBase, max_length: int | None
) -> PreTrainedTokenizerBase:
    """Return a copy of the tokenizer that truncates texts to ``max_length`` tokens.

    Args:
        tokenizer: The tokenizer, which is not modified.
        max_length: Largest number of tokens; None returns the tokenizer itself.
    """
    if max_length is None:
        return tokenizer
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = max_length
    return tokenizer


def make_paper_trainer(
    model: AttentionClassifierForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase | None,
    splits: Splits,
    output_dir: Path,
    procedure: Procedure,
    *,
    seed: int,
    progress: bool | str,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> PlainTrainer:
    """Build the Trainer that follows a paper's training procedure.

    Args:
        model: The model to train.
        tokenizer: Its tokenizer; None for a model that reads bags of features.
        splits: Training texts, and validation and test texts if there are any.
        output_dir: Checkpoint folder.
        procedure: The training procedure.
        seed: Seed for batches and dropout.
        progress: Whether to show a progress bar; a string is displayed in front of it.
        settings: Trainer arguments that replace the procedure's.
        **options: Further arguments for :func:`hf_attnprobe.training.trainer.make_trainer`.
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
        optimizers=make_optimizer_and_schedule(model, procedure),
        callbacks=callbacks,
        **options,
    )


def set_word_vectors(
    model: AttentionClassifierForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    file: str | Path,
) -> None:
    """Copy pretrained word vectors from a file into the model's embeddings.

    The embeddings of words that are not in the file do not change.

    Args:
        model: The model to change in place.
        tokenizer: The model's tokenizer, whose vocabulary contains the words.
        file: Text file with word vectors in word2vec, fastText or GloVe format.

    Raises:
        AttnProbeError: If the file cannot be read or its vectors have another width.
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
            f"the word vectors in {file} have {width} dimensions, but the model's embeddings have "
            f"{weight.shape[1]}. Set embedding_size={width}."
        )
    with torch.no_grad():
        for table in tables:
            table[ids] = vectors.to(table)
    logger.info("%d of %d words have vectors in %s", len(ids), len(weight), file)


def make_label_fields(names: list[str]) -> dict[str, dict]:
    """Return the configuration fields ``id2label`` and ``label2id`` for a list of class names."""
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: label for label, name in enumerate(names)},
    }


def build_model(
    config: AttentionClassifierConfig,
    tokenizer: PreTrainedTokenizerBase,
    names: list[str],
    word_vectors: str | Path | None = None,
) -> AttentionClassifierForSequenceClassification:
    """Build an attention classifier with random weights for a tokenizer and named classes.

    Args:
        config: The architecture; it is not modified.
        tokenizer: The model's tokenizer.
        names: Class names, in the order of their labels.
        word_vectors: File of pretrained word vectors, see :func:`set_word_vectors`.

    Raises:
        AttnProbeError: If the model is hierarchical and the tokenizer does not separate sentences,
            or if the model reads pairs and the tokenizer does not mark the second text.
    """
    if config.hierarchical and tokenizer.sep_token_id is None:
        raise AttnProbeError(
            "a hierarchical model needs a tokenizer that separates sentences. Create it with "
            "build_tokenizer(texts, sentences=True)."
        )
    if config.query_encoder and "token_type_ids" not in tokenizer.model_input_names:
        raise AttnProbeError(
            "a model for text pairs needs a tokenizer that returns token_type_ids. Create it with "
            "build_tokenizer(texts, pairs=True)."
        )
    config = copy.deepcopy(config)
    if config.hierarchical:
        config.sep_token_id = tokenizer.sep_token_id
    config.vocab_size = len(tokenizer)
    config.pad_token_id = tokenizer.pad_token_id
    config.unk_token_id = tokenizer.unk_token_id
    # Some tokenizers have [CLS] and [SEP] instead of tokens for the begin and the end of a text.
    begin_id, end_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    config.bos_token_id = tokenizer.cls_token_id if begin_id is None else begin_id
    config.eos_token_id = tokenizer.sep_token_id if end_id is None else end_id
    config.update(make_label_fields(names))
    model = AttentionClassifierForSequenceClassification(config)
    if word_vectors is not None:
        set_word_vectors(model, tokenizer, word_vectors)
    return model
