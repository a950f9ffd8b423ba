"""Writes a checkpoint's card, beside whatever its user wrote."""

from pathlib import Path
from typing import TYPE_CHECKING

from hf_attnprobe.cards.card import updated
from hf_attnprobe.cards.metadata import EVAL_RESULTS, Card, Checkpoint, eval_results_yaml
from hf_attnprobe.checkpoints.records import read_record
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.storage.folders import write_atomically


if TYPE_CHECKING:
    from transformers import PreTrainedModel

README = "README.md"


def describe(folder: Path, model: "PreTrainedModel", name: str | None = None) -> Checkpoint:
    """A checkpoint in words and numbers.

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


def write_files(folder: Path, card: Card) -> list[Path]:
    """Writes README.md and, where there are findings, the results beside it.

    Returns:
        The files that were written.

    Raises:
        AttnProbeError: what is there cannot be read or kept, or nothing can be written.
    """
    readme, results = folder / README, folder / EVAL_RESULTS
    text = updated(read_text(readme), card)
    found = eval_results_yaml(card, read_text(results))
    try:
        write_atomically(readme, text)
        if found is None:
            results.unlink(missing_ok=True)
            return [readme]
        results.parent.mkdir(exist_ok=True)
        write_atomically(results, found)
    except OSError as error:
        raise AttnProbeError(
            f"cannot write the card into {folder} ({error}); make it writable"
        ) from error
    return [readme, results]


def read_text(file: Path) -> str | None:
    """A text file with its own line ends; None where there is none.

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
