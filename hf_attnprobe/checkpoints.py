"""Models and tokenizers from folders or the Hub, with errors that say what is wrong in one line."""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from hf_attnprobe.errors import AttnProbeError


RECORD = (
    "training.json"  # of a training's settings and scores; marks a folder as its result
)


def load_model(
    model: str | Path,
    *,
    trust_remote_code: bool = False,
    new_head: bool = False,
    **labels,
) -> torch.nn.Module:
    """A sequence classifier from a folder or a Hub id.

    Args:
        new_head: whether weights that the checkpoint lacks may be drawn at random, to be trained.
        labels: ``id2label`` and ``label2id``, where they replace the checkpoint's.

    Raises:
        AttnProbeError: no such folder or Hub id, a folder without configuration or weights, an unknown model type, a
            checkpoint without the weights of a classification head.
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
    except (
        Exception
    ) as error:  # safetensors, tokenizers and torch raise kinds of their own
        if folder.is_dir():
            raise AttnProbeError(
                f"expected a model in {folder}, but it does not load: {_first_line(error)}"
            ) from error
        raise AttnProbeError(
            f"expected a model folder or a Hub id, got {str(model)!r}, which is no folder here and does not load from "
            f"the Hub: {_first_line(error)}"
        ) from error
    if info["missing_keys"] and not new_head:
        raise AttnProbeError(
            f"expected a fine-tuned classifier in {str(model)!r}, but it has no weights for "
            f"{', '.join(sorted(info['missing_keys'])[:3])}; fine-tune it first with attnprobe train --model"
        )
    return loaded


def load_tokenizer(model: str | Path, *, trust_remote_code: bool = False):
    """The tokenizer saved with a model."""
    try:
        return AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise AttnProbeError(
            f"expected a tokenizer with the model {str(model)!r}, but none loads ({_first_line(error)}); save one beside "
            "the weights with tokenizer.save_pretrained"
        ) from error


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").exists():
        raise AttnProbeError(
            f"expected a model in {folder}, found no config.json there; give the folder of save_pretrained"
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise AttnProbeError(
            f"expected weights in {folder}, found a configuration only; save the model there again"
        )


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return (
        f"{line} Allow it with --trust-remote-code"
        if "`trust_remote_code=True`" in str(error)
        else line
    )


def check_not_itself(model: str | Path, output_dir: str | Path) -> None:
    """A model that is trained on must not be written over by what becomes of it."""
    if (
        Path(output_dir).exists()
        and Path(output_dir).resolve() == Path(model).resolve()
    ):
        raise AttnProbeError(
            f"expected another folder than the model's own, got {output_dir}; choose another --output-dir"
        )


def read_record(folder: Path) -> dict:
    """What a training wrote down of itself; nothing where the model comes from elsewhere."""
    file = folder / RECORD
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise AttnProbeError(
            f"cannot read {file} ({error}); train the model again"
        ) from error
