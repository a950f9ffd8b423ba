"""The verb ``train``: an attention classifier from scratch, or a Transformer fine-tuned."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.data.arguments import as_data
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.training.classifier import train_classifier
from hf_attnprobe.training.fine_tuning import check_pretrained_options, fine_tune
from hf_attnprobe.training.options import Architecture, TrainingOptions
from hf_attnprobe.training.procedures import papers_config


def train(
    dataset: Any,
    *,
    output_dir: str | Path,
    model: str | Path | None = None,
    architecture: Mapping[str, Any] | AttentionClassifierConfig | None = None,
    options: TrainingOptions = TrainingOptions(),
    progress: bool = True,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, float]]:
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
        model: folder or Hub id of a pretrained model to fine-tune.
        architecture: of an attention classifier: a configuration, or some of its fields by
            name; the others are the procedure's.
        options: settings of the training; None is the procedure's or the usual one.
        progress: show a bar on stderr.

    Returns:
        model: the best epoch's, in eval mode.
        tokenizer: the model's.
        metrics: scores in [0, 1] by name, such as ``validation_accuracy``.

    Raises:
        AttnProbeError: data, sizes or settings that cannot be trained with, an option that
            means nothing to a pretrained model, a folder with other files.
    """
    config = check_training(model, architecture, options)
    splits = as_data(dataset).splits(seed=options.seed)
    rest = {
        "output_dir": output_dir,
        "options": options,
        "resume": True,
        "progress": progress,
    }
    if model is None:
        return train_classifier(config, **splits, **rest)
    return fine_tune(model, **splits, **rest)


def check_training(
    model: str | Path | None,
    architecture: Mapping[str, Any] | AttentionClassifierConfig | None,
    options: TrainingOptions,
) -> AttentionClassifierConfig | None:
    """The configuration to train; None where ``model`` is fine-tuned.

    Raises:
        AttnProbeError: sizes that make no model, unknown fields, or what means nothing to a
            pretrained model.
    """
    if isinstance(architecture, AttentionClassifierConfig):
        given = {"architecture": architecture}
    else:
        given = _given_fields(architecture or {})
    if model is not None:
        if given:
            raise AttnProbeError(
                f"{next(iter(given))} is of attention classifiers, {model} has an "
                "architecture; leave one of them out"
            )
        check_pretrained_options(options)
        return None
    if isinstance(architecture, AttentionClassifierConfig):
        return architecture
    return papers_config(options.procedure, **given)


def _given_fields(architecture: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in fields(Architecture)]
    unknown = sorted(set(architecture) - set(known))
    if unknown:
        raise AttnProbeError(
            f"expected an architecture of {', '.join(known)}, got {unknown[0]!r}"
        )
    return {name: value for name, value in architecture.items() if value is not None}
