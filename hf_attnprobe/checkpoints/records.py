"""Records that a training leaves beside the weights.

A model is whole or is refused: while a training saves its model, ``.steps`` is there and
``training.json``, which is written last, is not. The record holds the weights' SHA-256, so damaged
ones are not taken for finished. Seconds stand here and in no report, so that the reports of two
runs are equal.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from hf_attnprobe.cards.card import updated
from hf_attnprobe.cards.metadata import Card, Checkpoint
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import read_json
from hf_attnprobe.storage.folders import lock, write_atomically


if TYPE_CHECKING:
    from transformers import PreTrainedModel


RECORD = "training.json"
"""File of a training's settings and scores; it marks a folder as a training's result."""
STEPS = ".steps"
"""Folder of what a training keeps to go on, there until all else is written."""
WEIGHTS = "weights_sha256"
"""Key of the digests of a record's weights."""


class Training(TypedDict, total=False):
    """What a training records of itself, as far as others read it."""

    seed: int
    procedure: str | None
    data: dict[str, str]
    dataset: str


class Trained(Training):
    """The same of one that is finished."""

    metrics: dict[str, float]
    n_epochs: int
    seconds: float
    n_texts: dict[str, int]
    versions: dict[str, str]
    weights_sha256: dict[str, str]


def check_not_itself(model: str | Path, output_dir: str | Path) -> None:
    """Checks that further training does not overwrite the model it starts from.

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
    """Checks that a training has finished writing the model in a folder.

    While a training saves its model, its steps are there and its record is not.

    Raises:
        AttnProbeError: it is; weights and tokenizer may belong to two models.
    """
    if (folder / STEPS).exists() and not (folder / RECORD).exists():
        raise AttnProbeError(
            f"expected a finished model in {folder}, its training was interrupted; run "
            "the same training again, it goes on"
        )


def digests(folder: Path, files: str = "*.safetensors") -> dict[str, str]:
    """SHA-256 of the files in a folder, by name; default: of every weights file."""
    found = {}
    for file in sorted(folder.glob(files)):
        with file.open("rb") as content:
            found[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
    return found


def check_digests(folder: Path, record: Mapping[str, Any]) -> None:
    """Checks that a folder's weights are the ones its training wrote.

    Raises:
        AttnProbeError: a file of them is another, or is not there.
    """
    wanted = record.get(WEIGHTS)
    if not isinstance(wanted, Mapping):
        raise AttnProbeError(f"cannot read {folder / RECORD} (no {WEIGHTS}); train the model again")
    found = digests(folder)
    for name, digest in wanted.items():
        if found.get(name) != digest:
            raise AttnProbeError(
                f"expected the weights that the training wrote, {folder / name} holds "
                "others, or was damaged; delete the folder and train the model again"
            )


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a training in its folder; empty for other models.

    Raises:
        AttnProbeError: the record cannot be read.
    """
    file = folder / RECORD
    if not file.is_file():
        return {}
    again = "train the model again"
    data = read_json(file, dict[str, Any], again)
    kind = Trained if WEIGHTS in data else Training
    return dict(read_json(file, kind, again))


# --- Writes a checkpoint's card, beside whatever its user wrote ----------------------------------

README = "README.md"


def describe(folder: Path, model: "PreTrainedModel", name: str | None = None) -> Checkpoint:
    """Describes a checkpoint in words and numbers.

    Args:
        folder: of the checkpoint, with the record of its training where it has one.
        model: the checkpoint, loaded.
        name: by which it is known; default the folder's.

    Raises:
        AttnProbeError: its record cannot be read.
    """
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return Checkpoint(
        name=name or folder.resolve().name,
        config=config,
        record=read_record(folder),
        n_parameters=model.num_parameters(),
    )


def write_readme(folder: Path, card: Card) -> Path:
    """Writes or updates README.md, and returns its path.

    Raises:
        AttnProbeError: what is there cannot be read or kept.
    """
    readme = folder / README
    write_atomically(readme, updated(read_text(readme), card))
    return readme


def write_alone(folder: Path, card: Card) -> Path:
    """Writes the same, alone in the folder.

    Raises:
        AttnProbeError: also where another run is at work there, or nothing can be written.
    """
    try:
        with lock(folder):
            return write_readme(folder, card)
    except OSError as error:
        raise AttnProbeError(
            f"cannot write the card into {folder} ({error}); make it writable"
        ) from error


def read_text(file: Path) -> str | None:
    """Reads a text file with its line ends; None where there is none.

    Raises:
        AttnProbeError: it cannot be read.
    """
    if not file.exists():
        return None
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            return opened.read()
    except (OSError, ValueError) as error:
        raise AttnProbeError(f"cannot read {file} ({error}); mend or delete it") from error
