"""What a training leaves in its folder beside the weights.

A model is whole or is refused: while a training saves its model, ``.steps`` is there and
``training.json``, which is written last, is not. The record holds the weights' SHA-256, so damaged
ones are not taken for finished. Seconds stand here and in no report, so that the reports of two
runs are equal.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_attnprobe.errors import AttnProbeError


RECORD = "training.json"
"""File of a training's settings and scores; it marks a folder as a training's result."""
STEPS = ".steps"
"""Folder of what a training keeps to go on, there until all else is written."""
WEIGHTS = "weights_sha256"
"""Key of the digests of a record's weights."""


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


def check_whole(folder: Path) -> None:
    """Checks that the model in a folder is not one that a training was still writing.

    While a training saves its model, its steps are there and its record is not.

    Raises:
        AttnProbeError: it is; weights and tokenizer may belong to two models.
    """
    if (folder / STEPS).exists() and not (folder / RECORD).exists():
        raise AttnProbeError(
            f"expected a finished model in {folder}, its training was interrupted; run "
            "the same training again, it goes on"
        )


def weights_digest(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of weights in a folder, by its name."""
    digests = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as weights:
            digests[file.name] = hashlib.file_digest(weights, "sha256").hexdigest()
    return digests


def check_digests(folder: Path, record: Mapping[str, Any]) -> None:
    """Checks that a folder's weights are those that its training wrote.

    Raises:
        AttnProbeError: a file of them is another, or is not there.
    """
    wanted = record.get(WEIGHTS)
    if not isinstance(wanted, Mapping):
        raise AttnProbeError(f"cannot read {folder / RECORD} (no {WEIGHTS}); train the model again")
    found = weights_digest(folder)
    for name, digest in wanted.items():
        if found.get(name) != digest:
            raise AttnProbeError(
                f"expected the weights that the training wrote, {folder / name} holds "
                "others, or was damaged; delete the folder and train the model again"
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
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise AttnProbeError(f"cannot read {file} ({error}); train the model again") from error
