"""The verb ``train``: an attention classifier from scratch, or a Transformer fine-tuned."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.checkpoints.loading import load_model, load_tokenizer
from hf_attnprobe.checkpoints.origins import origin_of
from hf_attnprobe.checkpoints.records import check_not_itself
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import (
    SavedModel,
    as_saved,
    check_known,
    public_function,
)
from hf_attnprobe.data.examples import (
    check_sets,
    dataset_fingerprint,
    dataset_name,
    label_names,
)
from hf_attnprobe.data.specs import as_data
from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.training.classifier import (
    named_labels,
    train_classifier,
    with_max_length,
)
from hf_attnprobe.training.options import (
    ONLY_CLASSIFIER,
    Architecture,
    TrainingOptions,
)
from hf_attnprobe.training.procedures import papers_config
from hf_attnprobe.training.trainer import (
    PlainTrainer,
    TrainedClassifier,
    make_trainer,
    train_or_load,
)


if TYPE_CHECKING:
    import datasets


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
    """Trains a classifier on a data set's splits and saves it as a checkpoint.

    Without ``model``, an attention classifier from scratch, by
    :func:`hf_attnprobe.train_classifier`; with it, that Transformer, by
    :func:`hf_attnprobe.training.run.fine_tune`. The test split is scored where it
    has labels. Run again with the same folder to continue after an interruption, at the
    last epoch and to the same weights.

    Args:
        dataset: a :class:`~hf_attnprobe.data.specs.Data`, or a name, a folder, a Hub id
            or a DatasetDict.
        output_dir: a new or empty folder, or that of the same training.
        model: folder or Hub id of a pretrained model to fine-tune, or a
            :class:`~hf_attnprobe.core.options.SavedModel`.
        architecture: of an attention classifier: a configuration, or some of its fields by
            name; the others are the procedure's.
        options: settings of the training; None is the procedure's or the usual one.
        progress: show a bar on stderr.

    Raises:
        AttnProbeError: data, sizes or settings that cannot be trained with, an option that
            means nothing to a pretrained model, a folder with other files.
    """
    config = check_training(model, architecture, options)
    data = as_data(dataset)
    splits = data.splits(seed=options.seed)
    run = partial(train_classifier, config)
    if model is not None:
        run = partial(fine_tune, model)
    return run(
        **splits,
        output_dir=output_dir,
        options=options,
        resume=True,
        progress=progress,
        data_name=dataset_name(data.dataset, "").name,
    )


def check_training(
    model: str | Path | SavedModel | None,
    architecture: Mapping[str, Any] | AttentionClassifierConfig | None,
    options: TrainingOptions,
) -> AttentionClassifierConfig | None:
    """The configuration of the model to train; None where ``model`` is fine-tuned.

    Raises:
        AttnProbeError: sizes that make no model, unknown fields, or what means nothing to a
            pretrained model.
    """
    given: dict[str, Any] = {"architecture": architecture}
    if not isinstance(architecture, AttentionClassifierConfig):
        given = _given_fields(architecture or {})
    if model is not None:
        if given:
            raise AttnProbeError(
                f"{next(iter(given))} is of attention classifiers, {as_saved(model).model} "
                "has an architecture; leave one of them out"
            )
        check_pretrained_options(options)
        return None
    if isinstance(architecture, AttentionClassifierConfig):
        return architecture
    return papers_config(options.procedure, **given)


def _given_fields(architecture: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in fields(Architecture)]
    check_known("field of an architecture", architecture, known)
    return {name: value for name, value in architecture.items() if value is not None}


# --- Pretrained Transformers, on the Trainer of Transformers ---

USUAL = {
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 5e-5,
    "weight_decay": 0.01,
}
"""What holds where no option is given (Devlin et al. 2019, Section A.3)."""
WARM_UP = 0.1  # share of the steps


@public_function
def fine_tune(
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
    """Fine-tunes a pretrained Transformer for classification and saves a checkpoint.

    AdamW, linear decay after 10% warm-up, 3 epochs of batches of 32, learning rate 5e-5,
    weight decay 0.01 (Devlin et al. 2019, Section A.3). The epoch with the best validation
    score is kept: ROC-AUC for two classes, accuracy for more.

    Args:
        model: folder or Hub id of a pretrained model with its tokenizer, or a
            :class:`~hf_attnprobe.core.options.SavedModel`.
        train, validation, test, output_dir: as for
            :func:`hf_attnprobe.train_classifier`.
        options: settings; those of attention classifiers alone are refused.
        resume: continue what an interrupted training with the same settings left in
            ``output_dir``. A finished one is loaded.
        progress: show a bar on stderr.
        data_name: what the data set is called, for the record and the model card.

    Raises:
        AttnProbeError: as :func:`hf_attnprobe.train_classifier`, a model that does not
            load, or an option that means nothing to it.
    """
    check_pretrained_options(options)
    saved = as_saved(model)
    check_not_itself(saved.model, output_dir)
    splits = check_sets(train, validation, test)
    used: dict[str, Any] = {}
    for name, default in USUAL.items():
        given = getattr(options, name)
        used[name] = default if given is None else given
    record = {
        "start": str(saved.model),
        "seed": options.seed,
        **used,
        "max_length": options.max_length,
        "data": {name: dataset_fingerprint(part) for name, part in splits.items()},
    }
    return train_or_load(
        output_dir,
        record,
        partial(_trainer, saved, splits, used, options, progress),
        resume=resume,
        trust_remote_code=saved.trust_remote_code,
        data_name=data_name,
    )


def _trainer(
    model: SavedModel,
    splits: "Mapping[str, datasets.Dataset]",
    used: Mapping[str, Any],
    options: TrainingOptions,
    progress: bool,
    folder: Path,
) -> tuple[PlainTrainer, PreTrainedTokenizerBase]:
    """The Trainer of a pretrained model with a new head, and its tokenizer."""
    labels: dict[str, Any] = named_labels(label_names(splits["train"]))
    origin = origin_of(model)
    loaded = load_model(origin, new_head=True, **labels)
    tokenizer = with_max_length(load_tokenizer(origin), options.max_length)
    if getattr(loaded.config, "pad_token_id", None) is None:
        # Decoders find the last token by it.
        loaded.config.pad_token_id = tokenizer.pad_token_id
    settings = trainer_settings(used) | {"seed": options.seed}
    trainer = make_trainer(loaded, tokenizer, splits, folder, settings=settings, progress=progress)
    return trainer, tokenizer


def trainer_settings(used: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a Trainer for the settings in :data:`USUAL`."""
    return {
        "num_train_epochs": used["epochs"],
        "per_device_train_batch_size": used["batch_size"],
        "learning_rate": used["learning_rate"],
        "weight_decay": used["weight_decay"],
        "warmup_steps": WARM_UP,
    }


def check_pretrained_options(options: TrainingOptions) -> None:
    """Refuses options that have no meaning for a pretrained model.

    Raises:
        AttnProbeError: one of them is given.
    """
    values = {name: getattr(options, name) for name in ONLY_CLASSIFIER}
    given = [name for name, value in values.items() if value not in (None, False)]
    if given:
        raise AttnProbeError(
            f"{given[0]} is for attention classifiers, which are trained from scratch; "
            "leave it out, or leave out the model"
        )
