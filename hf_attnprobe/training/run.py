"""The verb ``train``: an attention classifier from scratch, or a Transformer fine-tuned."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.data.arguments import as_data
from hf_attnprobe.data.examples import dataset_name
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import SavedModel, as_saved, public_function
from hf_attnprobe.training.classifier import train_classifier
from hf_attnprobe.training.fine_tuning import (
    check_pretrained_options,
    fine_tune,
)
from hf_attnprobe.training.options import Architecture, TrainingOptions
from hf_attnprobe.training.procedures import papers_config
from hf_attnprobe.training.trainer import TrainedClassifier


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
    :func:`hf_attnprobe.training.fine_tuning.fine_tune`. The test split is scored where it
    has labels. Run again with the same folder to continue after an interruption, at the
    last epoch and to the same weights.

    Args:
        dataset: a :class:`~hf_attnprobe.data.arguments.Data`, or a name, a folder, a Hub id
            or a DatasetDict.
        output_dir: a new or empty folder, or that of the same training.
        model: folder or Hub id of a pretrained model to fine-tune, or a
            :class:`~hf_attnprobe.options.SavedModel`.
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
    known = {field.name for field in fields(Architecture)}
    unknown = sorted(set(architecture) - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise AttnProbeError(
            f"expected an architecture of {names}, got {unknown[0]!r}"
        )
    return {
        name: value for name, value in architecture.items() if value is not None
    }
