"""Nothing of a checkpoint runs: its weights are data, and no code is named in it.

A pickle may call any function while it is read. Transformers and peft read pickled
weights with PyTorch's restricted reader, which has been broken before
(CVE-2025-32434), so that they are not read at all unless the user says so.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from hf_attnprobe.checkpoints.origins import Origin
from hf_attnprobe.errors import AttnProbeError


ADAPTER_WEIGHTS = "adapter_model.safetensors"
SAFE = ".safetensors"
INDEX = ".index.json"
FUNCTIONS = ("attn_implementation", "experts_implementation")
"""What a configuration may ask for by name; one with a slash is code of the Hub."""


def check_weights_are_data(origin: Origin, values: Mapping[str, Any]) -> None:
    """Checks that a whole model has weights that are not pickled.

    Args:
        values: of its config.json.

    Raises:
        AttnProbeError: it has none, or names other files or other folders, and no
            ``allow_pickle``.
    """
    if origin.allow_pickle:
        return
    named = values.get("transformers_weights")
    names = [str(named)] if named else [SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME]
    found = (file for name in names if (file := _file_of(origin, name)) is not None)
    file = next(found, None)
    if file is None:
        raise _pickled(origin)
    parts = [file.name]
    if file.name.endswith(INDEX):
        with origin.reported():
            parts = _parts(file)
    for part in parts:
        if not part.endswith(SAFE):
            raise _pickled(origin)
        if "/" in part or "\\" in part:
            raise AttnProbeError(
                f"expected names of files beside the index {file.name} of {origin.name}, "
                f"got {part[:80]!r}; put the weights there and correct their names"
            )


def check_adapter_is_data(origin: Origin) -> None:
    """Checks that an adapter of peft has weights that are not pickled.

    Raises:
        AttnProbeError: it has none, and no ``allow_pickle``.
    """
    if not origin.allow_pickle and _file_of(origin, ADAPTER_WEIGHTS) is None:
        raise _pickled(origin)


def check_names_no_code(origin: Origin, values: Mapping[str, Any]) -> None:
    """Checks that a configuration asks for no attention that the Hub would send as code.

    Raises:
        AttnProbeError: it does, and no ``trust_remote_code``.
    """
    if origin.trust_remote_code:
        return
    for name, value in _named(values):
        if any(function in name for function in FUNCTIONS) and "/" in str(value):
            raise AttnProbeError(
                f"expected no code in the configuration of {origin.name}, its {name} "
                f"{str(value)[:80]!r} is code of the Hub; allow it with "
                "--trust-remote-code, or correct its config.json"
            )


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All names and values, of the parts of a configuration too."""
    for name, value in values.items():
        yield str(name), value
        if isinstance(value, Mapping):
            yield from _named(value)


def _file_of(origin: Origin, name: str) -> Path | None:
    """A file of the checkpoint, fetched from the Hub where it is there."""
    if origin.folder is not None:
        file = origin.folder / name
        return file if file.is_file() else None
    with origin.reported():
        found = cached_file(
            origin.name,
            name,
            _raise_exceptions_for_missing_entries=False,
            **origin.place,
        )
    return Path(found) if found else None


def _parts(index: Path) -> list[str]:
    """The files that the index of a model in several parts names."""
    return [str(part) for part in json.loads(index.read_text())["weight_map"].values()]


def _pickled(origin: Origin) -> AttnProbeError:
    return AttnProbeError(
        f"expected weights of {origin.name} in safetensors, found none; reading other "
        "weights can run code that is hidden in them: save the model again with "
        "save_pretrained, or allow it with --allow-pickle if you trust who made them"
    )
