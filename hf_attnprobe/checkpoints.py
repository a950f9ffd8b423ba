"""Models and tokenizers from folders or the Hub, with errors of one line."""

import json
from pathlib import Path
from typing import Any, TypeGuard

from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_attnprobe.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.errors import AttnProbeError


RECORD = "training.json"
"""File of a training's settings and scores; it marks a folder as a training's result."""


def load_model(
    model: str | Path,
    *,
    trust_remote_code: bool = False,
    new_head: bool = False,
    **labels: Any,
) -> PreTrainedModel:
    """Loads a sequence classifier from a folder or a Hub id.

    Args:
        trust_remote_code: allow code that comes with the model on the Hub.
        new_head: whether weights that the checkpoint lacks may be drawn at random, to be
            trained.
        labels: ``id2label`` and ``label2id``, in place of the checkpoint's.

    Raises:
        AttnProbeError: no such folder or Hub id, a folder without configuration or weights,
            an unknown model type, a checkpoint without a classification head.
    """
    folder = Path(model)
    if folder.is_dir():
        _check_folder(folder)
    try:
        config = AutoConfig.from_pretrained(
            model, trust_remote_code=trust_remote_code, **labels
        )
        loaded, info = AutoModelForSequenceClassification.from_pretrained(
            model,
            config=config,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    except Exception as error:  # safetensors, tokenizers and torch raise their own
        reason = _first_line(error)
        if folder.is_dir():
            raise AttnProbeError(
                f"expected a model in {folder}, but it does not load: {reason}"
            ) from error
        raise AttnProbeError(
            f"expected a model folder or a Hub id, got {str(model)!r}, which is no folder "
            f"here and does not load from the Hub: {reason}"
        ) from error
    if info["missing_keys"] and not new_head:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise AttnProbeError(
            f"expected a fine-tuned classifier in {str(model)!r}, but it has no weights "
            f"for {missing}; fine-tune it first with attnprobe train --model"
        )
    return loaded


def load_attention_classifier(
    model: str | Path, purpose: str, advice: str
) -> AttentionClassifierForSequenceClassification:
    """Loads an attention classifier.

    Args:
        purpose: such as ``to compare``, for the error.
        advice: what to do about a model of another kind, for the error.

    Raises:
        AttnProbeError: as :func:`load_model`, and a model of another kind.
    """
    loaded = load_model(model)
    if not isinstance(loaded, AttentionClassifierForSequenceClassification):
        raise AttnProbeError(
            f"expected an attention classifier {purpose}, {model} is a "
            f"{loaded.config.model_type}; {advice}"
        )
    return loaded


def load_tokenizer(
    model: str | Path, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Loads the tokenizer saved with a model.

    Raises:
        AttnProbeError: there is none, or it does not load.
    """
    try:
        return AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise AttnProbeError(
            f"expected a tokenizer with the model {str(model)!r}, but none loads "
            f"({_first_line(error)}); save one beside the weights with "
            "tokenizer.save_pretrained"
        ) from error


def is_attention_classifier(
    config: PreTrainedConfig,
) -> TypeGuard[AttentionClassifierConfig]:
    """Whether a configuration is that of this package's attention classifiers."""
    return config.model_type == AttentionClassifierConfig.model_type


def has_trained_attention(config: PreTrainedConfig) -> bool:
    """Whether a model is an attention classifier of one level that trains its attention."""
    if not is_attention_classifier(config) or config.hierarchical:
        return False
    return config.attention not in ("uniform", "guided")


def class_names(config: PreTrainedConfig) -> list[str]:
    """Names of a model's classes, in the order of their labels."""
    names: dict[Any, str] = dict(config.id2label or {})
    return [str(names[label]) for label in sorted(names)]


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").exists():
        raise AttnProbeError(
            f"expected a model in {folder}, found no config.json there; give the folder "
            "of save_pretrained"
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise AttnProbeError(
            f"expected weights in {folder}, found a configuration only; save the model "
            "there again"
        )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if "`trust_remote_code=True`" in str(error):
        return f"{lines[0]} Allow it with --trust-remote-code"
    return lines[0]


def check_not_itself(model: str | Path, output_dir: str | Path) -> None:
    """Checks that training a model further does not overwrite it.

    Raises:
        AttnProbeError: the output folder is the model's own.
    """
    folder = Path(output_dir)
    if folder.exists() and folder.resolve() == Path(model).resolve():
        raise AttnProbeError(
            f"expected another folder than the model's own, got {output_dir}; choose "
            "another --output-dir"
        )


def read_record(folder: Path) -> dict[str, Any]:
    """The record that a training left in its folder; empty for other models.

    Raises:
        AttnProbeError: the record cannot be read.
    """
    file = folder / RECORD
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise AttnProbeError(
            f"cannot read {file} ({error}); train the model again"
        ) from error
