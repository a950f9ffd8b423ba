"""The functions ``train`` and ``fine_tune``, which train a classifier on a data set."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.checkpoints.loading import load_model, load_tokenizer
from hf_attnprobe.checkpoints.origins import locate_checkpoint
from hf_attnprobe.checkpoints.records import check_output_is_not_model
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import (
    SavedModel,
    check_known_names,
    convert_model_name,
    public_function,
)
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.examples import (
    compute_dataset_fingerprint,
    get_dataset_name,
    get_label_names,
    prepare_splits,
)
from hf_attnprobe.data.instances import has_instances
from hf_attnprobe.data.specs import make_data
from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.training.classifier import (
    limit_text_length,
    make_bag_config,
    make_label_fields,
    train_classifier,
)
from hf_attnprobe.training.options import (
    CLASSIFIER_ONLY_OPTIONS,
    Architecture,
    TrainingOptions,
)
from hf_attnprobe.training.procedures import make_paper_config
from hf_attnprobe.training.trainer import (
    PlainTrainer,
    TrainedClassifier,
    make_trainer,
    train_or_load,
)


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)


@public_function
def train(
    dataset: Any,
    *,
    output_dir: str | Path,
    model: str | Path | SavedModel | None = None,
    architecture: Mapping[str, Any] | AttentionClassifierConfig | None = None,
    options: TrainingOptions = TrainingOptions(),
    progress: bool = True,
) -> TrainedClassifier:
    """Train a classifier on the splits of a data set and save it as a checkpoint.

    Without ``model``, an attention classifier is trained from scratch with
    :func:`hf_attnprobe.train_classifier`. With ``model``, that Transformer is fine-tuned with
    :func:`hf_attnprobe.training.run.fine_tune`. The test split is scored if it has labels. Run the
    function again with the same folder to continue an interrupted training: it resumes at the last
    epoch and reaches the same weights.

    Args:
        dataset: A :class:`~hf_attnprobe.data.specs.Data`, or a name, a folder, a Hub id or a
            DatasetDict.
        output_dir: A new or empty folder, or the folder of the same training.
        model: Folder or Hub id of a pretrained model to fine-tune, or a
            :class:`~hf_attnprobe.core.options.SavedModel`.
        architecture: Architecture of an attention classifier: a configuration, or some of its
            fields by name. The procedure supplies the remaining fields.
        options: Training settings. A setting that is None gets the procedure's default, or the
            default for fine-tuning.
        progress: Whether to show a progress bar on stderr.

    Returns:
        The trained model in evaluation mode, its tokenizer, and its scores.

    Raises:
        AttnProbeError: If the data, the architecture or the settings are unsuitable for a training,
            if an option does not apply to a pretrained model, or if the folder holds other files.

    Example:
        Train a BiLSTM with attention on SST::

            model, tokenizer, metrics = train("sst", output_dir="bilstm-sst")
    """
    needs_bags = isinstance(architecture, Mapping) and bool(architecture.get("class_attention"))
    config = None
    if not needs_bags:
        # Mistakes in the architecture of a model for texts are reported before the data is loaded.
        config = resolve_architecture(model, architecture, options)
    data = make_data(dataset)
    splits = data.load_splits(seed=options.seed)
    if has_instances(splits["train"]):
        config = _resolve_bag_architecture(model, architecture, options, splits["train"])
    elif needs_bags:
        config = resolve_architecture(model, architecture, options)
    run = partial(train_classifier, config)
    if model is not None:
        run = partial(fine_tune, model)
    trained = run(
        **splits,
        output_dir=output_dir,
        options=options,
        resume=True,
        progress=progress,
        data_name=get_dataset_name(data.dataset, "").name,
    )
    _warn_about_guessing(trained.metrics, splits)
    return trained


def _warn_about_guessing(
    scores: Mapping[str, float], splits: "Mapping[str, datasets.Dataset]"
) -> None:
    """Log a warning if a trained model is not better than always predicting the same label.

    Args:
        scores: Scores of the model, such as "test_accuracy".
        splits: The splits by name. The test split is used if there is one.
    """
    split = "test" if "test_accuracy" in scores else "validation"
    accuracy = scores.get(f"{split}_accuracy")
    if accuracy is None:
        return
    labels = read_column(splits[split], "label")
    majority = max(Counter(labels).values()) / len(labels)
    # Accuracies are stored as floating-point numbers, so equal shares can differ by rounding.
    if accuracy <= majority + 1e-9:
        logger.warning(
            "the model is not better than guessing: its %s accuracy is %.3f, and a model that always "
            "predicts the most frequent label reaches %.3f. An audit needs a better model, so train it again in "
            "another folder, for example with more --epochs or another --learning-rate",
            split,
            accuracy,
            majority,
        )


def resolve_architecture(
    model: str | Path | SavedModel | None,
    architecture: Mapping[str, Any] | AttentionClassifierConfig | None,
    options: TrainingOptions,
) -> AttentionClassifierConfig | None:
    """Return the configuration of the model to train, or None if ``model`` is fine-tuned.

    Args:
        model: Pretrained model to fine-tune, or None.
        architecture: A configuration, some of its fields by name, or None.
        options: Training settings; its procedure supplies the remaining fields.

    Raises:
        AttnProbeError: If the sizes do not form a valid model, if a field is unknown, or if an
            architecture or option is passed that does not apply to a pretrained model.
    """
    changes: dict[str, Any] = {"architecture": architecture}
    if not isinstance(architecture, AttentionClassifierConfig):
        changes = _check_architecture_fields(architecture or {})
    if model is not None:
        if changes:
            model_name = convert_model_name(model).model
            raise AttnProbeError(
                f"{next(iter(changes))} applies only to attention classifiers that are trained "
                f"from scratch. Remove it, or remove the pretrained model {model_name}."
            )
        check_pretrained_options(options)
        return None
    if isinstance(architecture, AttentionClassifierConfig):
        return architecture
    return make_paper_config(options.procedure, **changes)


def _resolve_bag_architecture(
    model: str | Path | SavedModel | None,
    architecture: Mapping[str, Any] | AttentionClassifierConfig | None,
    options: TrainingOptions,
    train: "datasets.Dataset",
) -> AttentionClassifierConfig:
    """Return the configuration of a classifier for bags of features.

    Args:
        model: Pretrained model to fine-tune, which must be None.
        architecture: A configuration, some of its fields by name, or None.
        options: Training settings.
        train: Training bags.
    """
    if model is not None:
        raise AttnProbeError(
            f"the pretrained model {convert_model_name(model).model} cannot be fine-tuned on bags of "
            "instances, because it reads texts. Leave out the model to train an attention classifier."
        )
    if isinstance(architecture, AttentionClassifierConfig):
        return architecture
    return make_bag_config(
        options.procedure, train, **_check_architecture_fields(architecture or {})
    )


def _check_architecture_fields(architecture: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the names of all architecture fields exist, and return those that are set."""
    field_names = [field.name for field in fields(Architecture)]
    check_known_names("field of an architecture", architecture, field_names)
    return {name: value for name, value in architecture.items() if value is not None}


# --- Fine-tuning of pretrained Transformers -----------------------------------------------------

FINE_TUNING_DEFAULTS = {
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 5e-5,
    "weight_decay": 0.01,
}
"""Default settings for fine-tuning, from Devlin et al. 2019, Section A.3."""
WARM_UP_SHARE = 0.1
"""Fraction of the training steps in which the learning rate rises linearly from 0 to its
maximum."""


@public_function
def fine_tune(  # noqa: PLR0913
    model: str | Path | SavedModel,
    train: Any,
    validation: Any = None,
    *,
    output_dir: str | Path,
    test: Any = None,
    options: TrainingOptions = TrainingOptions(),
    resume: bool = False,
    progress: bool = True,
    data_name: str | None = None,
) -> TrainedClassifier:
    """Fine-tune a pretrained Transformer for classification and save it as a checkpoint.

    The defaults follow Devlin et al. 2019, Section A.3: AdamW with linear decay after 10% warm-up,
    3 epochs with batches of 32, learning rate 5e-5 and weight decay 0.01. The epoch with the best
    validation score is kept. The score is the ROC-AUC for two classes and the accuracy for more.

    Args:
        model: Folder or Hub id of a pretrained model with its tokenizer, or a
            :class:`~hf_attnprobe.core.options.SavedModel`.
        train: Training texts, as for :func:`hf_attnprobe.train_classifier`.
        validation: Validation texts, which choose the epoch.
        output_dir: A new or empty folder, or the folder of an earlier training.
        test: Test texts. They are only scored.
        options: Training settings. Settings that only apply to attention classifiers are
            refused.
        resume: If True, continue an interrupted training with the same settings in ``output_dir``,
            or load a finished one.
        progress: Whether to show a progress bar on stderr.
        data_name: Data set name, for the training record and the model card.

    Returns:
        The trained model in evaluation mode, its tokenizer, and its scores.

    Raises:
        AttnProbeError: If :func:`hf_attnprobe.train_classifier` would raise it, if the model cannot
            be loaded, or if an option does not apply to it.

    Example:
        Fine-tune BERT on SST::

            splits = load_splits("sst")
            fine_tune("google-bert/bert-base-uncased", splits["train"], output_dir="bert-sst")
    """
    check_pretrained_options(options)
    saved = convert_model_name(model)
    check_output_is_not_model(saved.model, output_dir)
    splits = prepare_splits(train, validation, test)
    settings: dict[str, Any] = {}
    for name, default in FINE_TUNING_DEFAULTS.items():
        value = getattr(options, name)
        settings[name] = default if value is None else value
    record = {
        "start": str(saved.model),
        "seed": options.seed,
        **settings,
        "max_length": options.max_length,
        "data": {name: compute_dataset_fingerprint(part) for name, part in splits.items()},
    }
    return train_or_load(
        output_dir,
        record,
        partial(_build_trainer, saved, splits, settings, options, progress),
        resume=resume,
        trust_remote_code=saved.trust_remote_code,
        data_name=data_name,
    )


def _build_trainer(
    model: SavedModel,
    splits: "Mapping[str, datasets.Dataset]",
    settings: Mapping[str, Any],
    options: TrainingOptions,
    progress: bool,
    folder: Path,
) -> tuple[PlainTrainer, PreTrainedTokenizerBase]:
    """Load a pretrained model for fine-tuning, and build its Trainer and its tokenizer.

    The model gets a new classification head with random weights.
    """
    labels: dict[str, Any] = make_label_fields(get_label_names(splits["train"]))
    origin = locate_checkpoint(model)
    classifier = load_model(origin, new_head=True, **labels)
    tokenizer = limit_text_length(load_tokenizer(origin), options.max_length)
    if getattr(classifier.config, "pad_token_id", None) is None:
        # Decoders need the padding token to find the last token of a text.
        classifier.config.pad_token_id = tokenizer.pad_token_id
    arguments = make_trainer_arguments(settings) | {"seed": options.seed}
    trainer = make_trainer(
        classifier, tokenizer, splits, folder, settings=arguments, progress=progress
    )
    return trainer, tokenizer


def make_trainer_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert fine-tuning settings to arguments for a Trainer.

    Args:
        settings: Values by the names in :data:`FINE_TUNING_DEFAULTS`.
    """
    return {
        "num_train_epochs": settings["epochs"],
        "per_device_train_batch_size": settings["batch_size"],
        "learning_rate": settings["learning_rate"],
        "weight_decay": settings["weight_decay"],
        # Transformers interprets a number below 1 as a fraction of all steps.
        "warmup_steps": WARM_UP_SHARE,
    }


def check_pretrained_options(options: TrainingOptions) -> None:
    """Check that no option is set that only applies to attention classifiers.

    Args:
        options: Training settings.

    Raises:
        AttnProbeError: If one of :data:`~hf_attnprobe.training.options.CLASSIFIER_ONLY_OPTIONS` is
            set.
    """
    values = {name: getattr(options, name) for name in CLASSIFIER_ONLY_OPTIONS}
    set_options = [name for name, value in values.items() if value not in (None, False)]
    if set_options:
        raise AttnProbeError(
            f"{set_options[0]} applies only to attention classifiers that are trained from "
            "scratch. Remove it, or remove the pretrained model."
        )
