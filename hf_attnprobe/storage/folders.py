"""Folders of results: who owns one, what is written whole or not at all."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from hf_attnprobe.errors import AttnProbeError


def check_new_folder(folder: str | Path, *, holding: str) -> Path:
    """The folder as a path, if it is new, empty, or holds a result of the same kind (a file named ``holding``).

    Hidden files do not count: an interrupted run may have left some.
    """
    folder = Path(folder)
    try:
        visible = folder.exists() and any(
            not f.name.startswith(".") for f in folder.iterdir()
        )
    except OSError as error:
        raise AttnProbeError(
            f"cannot use {folder} for the output ({error}); choose another --output-dir"
        ) from error
    if visible and not (folder / holding).exists():
        raise AttnProbeError(
            f"expected a new or an empty folder, {folder} holds other files; choose another --output-dir"
        )
    return folder


def write_atomically(file: Path, text: str) -> None:
    """The whole text or nothing."""
    hidden = file.with_name(f".{file.name}.{os.getpid()}")
    hidden.write_text(text)
    os.replace(hidden, file)


IDENTITY = "audit.json"  # what the rows of a folder belong to


@contextlib.contextmanager
def claim(
    folder: Path, identity: Mapping, state: PartialState, *, name: str = IDENTITY
) -> Iterator[None]:
    """Marks the folder as this run's, on all processes together; where it fails before the first rows, the mark goes.

    Args:
        name: of the file that is the mark.

    Raises:
        AttnProbeError: the folder holds other files, or the rows of a run with another identity.
    """
    existed, answer = folder.exists(), [None]
    if state.is_main_process:
        try:
            answer = [_take(folder, identity, name)]
        except AttnProbeError as error:
            answer = [str(error)]
    broadcast_object_list(answer)  # no process may wait for one that has given up
    if isinstance(answer[0], str):
        raise AttnProbeError(answer[0])
    try:
        yield
    except BaseException:
        if (
            answer[0]
            and state.is_main_process
            and not any((folder / "rows").glob("part-*"))
        ):
            (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / "rows", ignore_errors=True)
            if not existed:
                with contextlib.suppress(OSError):  # something else is in it
                    folder.rmdir()
        raise


def _take(folder: Path, identity: Mapping, name: str) -> bool:
    """Whether the folder is new; it now says whose it is."""
    file = folder / name
    try:
        if file.exists():
            _check_identity(
                folder,
                json.loads(file.read_text()),
                identity,
                name.removesuffix(".json"),
            )
            return False
        if folder.exists() and any(
            not f.name.startswith(".") for f in folder.iterdir()
        ):
            raise AttnProbeError(
                f"expected an empty or a new folder, {folder} holds other files; choose another --output-dir"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(identity, indent=1) + "\n")
    except (OSError, json.JSONDecodeError) as error:
        raise AttnProbeError(
            f"cannot use {folder} for the output ({error}); choose another --output-dir"
        ) from error
    return True


def _check_identity(folder: Path, held, identity: Mapping, kind: str) -> None:
    held = held if isinstance(held, dict) else {}
    wrong = [
        key
        for key, value in json.loads(json.dumps(identity)).items()
        if held.get(key) != value
    ]
    if wrong:
        raise AttnProbeError(
            f"{folder} belongs to another {kind}: its {', '.join(w.replace('_', ' ') for w in wrong)} "
            f"({_differing(held.get(wrong[0]), identity[wrong[0]])}) is not this one's "
            f"({_differing(identity[wrong[0]], held.get(wrong[0]))}); choose another --output-dir"
        )


def _differing(value, other):
    """Of settings by name those that are not the other's."""
    if not isinstance(value, Mapping) or not isinstance(other, Mapping):
        return value
    other = json.loads(json.dumps(other))  # a tuple comes back as a list
    changed = {
        k: v
        for k, v in json.loads(json.dumps(value)).items()
        if k not in other or other[k] != v
    }
    return (
        ", ".join(f"{k} {_differing(v, other.get(k))}" for k, v in changed.items())
        or "none of them"
    )
