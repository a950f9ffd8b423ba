"""Read and write the training record and the model card next to the weights.

Incomplete models are refused. While a training saves its model, the folder ``.steps`` exists. The
record ``training.json`` is written last, so it marks a finished training. It contains the SHA-256
of the weights, so that damaged weights are noticed. Training times are stored only here and not in
reports, so that two equal runs have equal reports.
"""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from hf_attnprobe.cards.card import list_removed_audits, update_readme
from hf_attnprobe.cards.metadata import (
    EVAL_RESULTS_FOLDER,
    EVAL_RESULTS_PREFIX,
    CardContent,
    Checkpoint,
    build_eval_result_files,
)
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import read_json
from hf_attnprobe.storage.folders import lock_folder, write_atomically


if TYPE_CHECKING:
    from transformers import PreTrainedModel


logger = logging.getLogger(__name__)

RECORD_FILE = "training.json"
"""Name of the training record, a file with the settings and scores of a training.

It is written when the training ends.
"""
STEPS_FOLDER = ".steps"
"""Name of the folder with the intermediate steps of a training.

An interrupted training resumes from this folder. It is deleted when the training ends.
"""
DIGESTS_KEY = "weights_sha256"
"""Key in the training record for the SHA-256 digests of the weights files."""


class TrainingRecord(TypedDict, total=False):
    """Fields that this package reads from the record of any training."""

    seed: int
    procedure: str | None
    data: dict[str, str]
    dataset: str


class FinishedTrainingRecord(TrainingRecord):
    """Fields that only the record of a finished training has, in addition to the others."""

    metrics: dict[str, float]
    n_epochs: int
    seconds: float
    n_texts: dict[str, int]
    versions: dict[str, str]
    weights_sha256: dict[str, str]


def check_output_is_not_model(model: str | Path, output_dir: str | Path) -> None:
    """Check that a training does not overwrite the model from which it starts.

    Args:
        model: the initial model's folder or Hub id.
        output_dir: the new model's folder.

    Raises:
        AttnProbeError: if they are the same folder.
    """
    folder = Path(output_dir)
    if folder.exists() and folder.resolve() == Path(model).resolve():
        raise AttnProbeError(
            f"--output-dir {output_dir} is the folder of the initial model; choose another folder"
        )


def check_training_finished(folder: Path) -> None:
    """Check that the training that writes a folder's model has finished.

    Args:
        folder: the model's folder.

    Raises:
        AttnProbeError: if the training was interrupted, so that weights and tokenizer may not
            belong together.
    """
    if (folder / STEPS_FOLDER).exists() and not (folder / RECORD_FILE).exists():
        raise AttnProbeError(
            f"the training of the model in {folder} was interrupted; run the same training command "
            "again to resume it"
        )


def compute_digests(folder: Path, pattern: str = "*.safetensors") -> dict[str, str]:
    """Compute SHA-256 digests for the files in a folder.

    Args:
        folder: the folder.
        pattern: glob pattern for the files; default all weights.

    Returns:
        Hexadecimal digests by file name.
    """
    digest_by_name = {}
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as content:
            digest_by_name[path.name] = hashlib.file_digest(content, "sha256").hexdigest()
    return digest_by_name


def check_digests(folder: Path, record: Mapping[str, Any]) -> None:
    """Check that a folder's weights are unchanged since the training wrote them.

    Args:
        folder: the model's folder.
        record: its training record.

    Raises:
        AttnProbeError: if a weights file is missing or differs.
    """
    recorded_digests = record.get(DIGESTS_KEY)
    if not isinstance(recorded_digests, Mapping):
        raise AttnProbeError(
            f"{folder / RECORD_FILE} has no key {DIGESTS_KEY!r}; train the model again"
        )
    current_digests = compute_digests(folder)
    for name, digest in recorded_digests.items():
        if current_digests.get(name) != digest:
            raise AttnProbeError(
                f"the weights in {folder / name} are damaged, or were changed after the training; "
                "delete the folder and train the model again"
            )


def read_record(folder: Path) -> dict[str, Any]:
    """Read the training record in a model's folder.

    Args:
        folder: the model's folder.

    Returns:
        The record; empty if the folder has none.

    Raises:
        AttnProbeError: if the record cannot be read.
    """
    path = folder / RECORD_FILE
    if not path.is_file():
        return {}
    advice = "Train the model again."
    fields = read_json(path, dict[str, Any], advice)
    record_type = FinishedTrainingRecord if DIGESTS_KEY in fields else TrainingRecord
    return dict(read_json(path, record_type, advice))


# --- The model card next to the weights ----------------------------------------------------------

README_FILE = "README.md"
"""Name of the model card file."""


def describe_checkpoint(
    folder: Path, model: "PreTrainedModel", name: str | None = None
) -> Checkpoint:
    """Collect the facts about a checkpoint for its card.

    Args:
        folder: the checkpoint's folder, with its training record if there is one.
        model: the loaded checkpoint.
        name: model name; default the folder name.

    Returns:
        Name, configuration, training record and parameter count.

    Raises:
        AttnProbeError: if the training record cannot be read.
    """
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return Checkpoint(
        name=name or folder.resolve().name,
        config=config,
        record=read_record(folder),
        n_parameters=model.num_parameters(),
    )


def write_readme(folder: Path, card: CardContent) -> Path:
    """Write or update the model card in a folder, and the files with its evaluation results.

    Args:
        folder: the checkpoint's folder.
        card: content for the generated part; the user's own text in an existing card is kept.

    Returns:
        The card's path.

    Raises:
        AttnProbeError: if the existing card cannot be read.
    """
    path = folder / README_FILE
    existing = read_text_file(path)
    new_text = update_readme(existing, card)
    removed_audits = list_removed_audits(existing, card)
    if removed_audits:
        logger.warning(
            "%s no longer contains the audit results on %s; name the output folders of all audits to "
            "keep their results",
            path,
            ", ".join(removed_audits),
        )
    write_atomically(path, new_text)
    _write_eval_results(folder, build_eval_result_files(card))
    return path


def _write_eval_results(folder: Path, files: Mapping[str, str]) -> None:
    """Write the evaluation results of a model, and delete those that an earlier card wrote.

    Args:
        folder: the checkpoint's folder.
        files: YAML texts by path in the folder.
    """
    for earlier_file in (folder / EVAL_RESULTS_FOLDER).glob(f"{EVAL_RESULTS_PREFIX}*.yaml"):
        if earlier_file.relative_to(folder).as_posix() not in files:
            earlier_file.unlink()
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        write_atomically(folder / path, text)


def write_readme_locked(folder: Path, card: CardContent) -> Path:
    """Lock a folder, and write or update the model card in it.

    Args:
        folder: the checkpoint's folder.
        card: content for the generated part; the user's own text in an existing card is kept.

    Returns:
        The card's path.

    Raises:
        AttnProbeError: if another run uses the folder, it is not writable, or the existing card
            cannot be read.
    """
    try:
        with lock_folder(folder):
            return write_readme(folder, card)
    except OSError as error:
        raise AttnProbeError(
            f"cannot write the model card into {folder} ({error}); make the folder writable"
        ) from error


def read_text_file(path: Path) -> str | None:
    """Read a text file, keeping its line endings.

    Args:
        path: the file.

    Returns:
        The text; None if there is no such file.

    Raises:
        AttnProbeError: if the file cannot be read.
    """
    if not path.exists():
        return None
    try:
        with path.open(newline="", encoding="utf-8-sig") as content:
            return content.read()
    except (OSError, ValueError) as error:
        raise AttnProbeError(f"cannot read {path} ({error}); correct or delete it") from error
