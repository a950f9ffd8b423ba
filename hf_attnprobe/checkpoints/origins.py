"""Where a checkpoint comes from, and whether it may be loaded."""

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    cached_file,
)
from transformers.utils.hub import extract_commit_hash

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import SavedModel, check_name, check_path


logger = logging.getLogger(__name__)
CONFIGS = ("config.json", "adapter_config.json")
"""Either marks a folder as that of a model."""
LONGEST = 300
"""Characters of somebody else's error that are shown."""


@dataclass(frozen=True)
class Origin:
    """Where model and tokenizer are loaded from; :func:`origin_of` makes it.

    Attributes:
        name: a folder or a Hub id.
        revision: branch, tag or commit of the Hub repository; None: its main branch.
        token: of the Hub, for a private repository; None: the one that is logged in.
        subfolder: of the Hub repository.
        trust_remote_code: allow code that comes with the model.
        allow_pickle: allow weights that are pickled.
        gguf_file: the file of the repository or folder that has configuration, tokenizer
            and quantised weights; they are dequantised.
    """

    name: str
    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    subfolder: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    gguf_file: str | None = None

    @property
    def folder(self) -> Path | None:
        """The folder; None on the Hub."""
        return Path(self.name) if Path(self.name).is_dir() else None

    @property
    def place(self) -> dict[str, Any]:
        """Keywords of ``from_pretrained`` that locate the model, beside its name."""
        given = {
            "revision": self.revision,
            "token": self.token,
            "subfolder": self.subfolder,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def loading(self) -> dict[str, Any]:
        """Keywords of ``from_pretrained``: the place, and the one file where all is in one."""
        return self.place | ({"gguf_file": self.gguf_file} if self.gguf_file else {})

    def file(self, name: str) -> Path | None:
        """A file of the checkpoint, fetched from the Hub; None where it has none."""
        if self.folder is not None:
            return self.folder / name if (self.folder / name).is_file() else None
        with self.reported():
            found = cached_file(
                self.name,
                name,
                _raise_exceptions_for_missing_entries=False,
                **self.place,
            )
        return Path(found) if found else None

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """Turns any exception of a loader into one line.

        Raises:
            AttnProbeError: anything was raised.
        """
        try:
            yield
        except Exception as error:  # safetensors, tokenizers and torch raise their own
            reason = first_line(error)
            if self.folder is not None:
                raise AttnProbeError(
                    f"expected a model in {self.name}, but it does not load: {reason}"
                ) from error
            raise AttnProbeError(
                f"expected a model folder or a Hub id, got {self.name!r}, which is no "
                f"folder here and does not load from the Hub: {reason}; without a "
                "network give a folder, or set HF_HUB_OFFLINE=1 to load what was "
                "downloaded before"
            ) from error


def origin_of(
    model: str | Path | Origin | SavedModel,
    *,
    revision: str | None = None,
    token: str | None = None,
    subfolder: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    gguf_file: str | None = None,
) -> Origin:
    """Finds the model that is meant.

    Of the folder of a training with checkpoints inside it is the best one, where the
    training recorded which that is; a line of the log says so.

    Args:
        model: a folder, a Hub id, or ``org/name@revision``; or with the other
            arguments in a :class:`~hf_attnprobe.core.options.SavedModel`.
        revision, token, subfolder, trust_remote_code, allow_pickle, gguf_file: see
            :class:`Origin`.

    Raises:
        AttnProbeError: a revision of a folder, two revisions, no such subfolder, or
            checkpoints of which none is known to be the best.
    """
    if isinstance(model, Origin):
        return model
    if isinstance(model, SavedModel):
        given = vars(model).items()
        place = {k: v for k, v in given if k not in ("model", "task")}
        return origin_of(model.model, **place)
    name = str(model)
    check_name("model", name)
    check_name("subfolder", subfolder or "")
    if Path(name).is_dir():
        if revision is not None:
            raise AttnProbeError(
                f"expected no revision with a folder, got {revision!r} for {name}; name "
                "a Hub id, or leave it out"
            )
        name = _folder_meant(Path(name), subfolder)
        token = subfolder = None
    else:
        check_path("model", name)
        name, found, behind = name.partition("@")
        if found and revision not in (None, behind):
            raise AttnProbeError(
                f"expected one revision of {name}, got {behind!r} and {revision!r}; leave one out"
            )
        revision = behind if found else revision
    return Origin(
        name,
        revision,
        token,
        subfolder,
        trust_remote_code,
        allow_pickle,
        gguf_file,
    )


def commit_of(origin: Origin) -> str | None:
    """The commit loaded from the Hub; None for folders.

    Raises:
        AttnProbeError: the repository cannot be read.
    """
    if origin.folder is not None:
        return None
    file = next(filter(None, map(origin.file, CONFIGS)), None)
    return None if file is None else extract_commit_hash(str(file), None)


def _folder_meant(folder: Path, subfolder: str | None) -> str:
    if subfolder is not None:
        if not (folder / subfolder).is_dir():
            raise AttnProbeError(
                f"expected a folder {subfolder} in {folder}, found none; leave subfolder out"
            )
        folder = folder / subfolder
    if any((folder / name).exists() for name in CONFIGS):
        return str(folder)
    newest = get_last_checkpoint(str(folder))
    if newest is None:
        return str(folder)
    best = _best_checkpoint(folder) or _best_checkpoint(Path(newest))
    if best is None or not (folder / best).is_dir():
        raise AttnProbeError(
            f"expected a model in {folder}, found checkpoints of a training and no record "
            f"of a best one among them; name one, such as the newest, {newest}"
        )
    logger.warning("of %s the best checkpoint is taken, %s", folder, best)
    return str(folder / best)


def _best_checkpoint(folder: Path) -> str | None:
    """Name of the best checkpoint according to ``trainer_state.json``."""
    try:
        state = json.loads((folder / "trainer_state.json").read_text())
        return Path(state["best_model_checkpoint"]).name
    except (OSError, ValueError, LookupError, TypeError):
        return None


def first_line(error: Exception) -> str:
    """An error's message in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = lines[0]
    if said.endswith(":") and len(lines) > 1:
        said = f"{said} {lines[1].strip()}"
    if len(said) > LONGEST:
        said = said[:LONGEST] + "…"
    if "`trust_remote_code=True`" in str(error):
        return f"{said} Allow it with --trust-remote-code"
    return said


# --- Nothing of a checkpoint runs: its weights are data, and no code is named in it --------------
# A pickle may call any function while it is read. Transformers and peft read pickled
# weights with PyTorch's restricted reader, which has been broken before
# (CVE-2025-32434), so that they are not read at all unless the user says so.

ADAPTER_WEIGHTS = "adapter_model.safetensors"
SAFE = ".safetensors"
INDEX = ".index.json"
FUNCTIONS = ("attn_implementation", "experts_implementation")
"""What a configuration may ask for by name; one with a slash is code of the Hub."""


def check_weights_are_data(origin: Origin, values: Mapping[str, Any]) -> None:
    """Checks that a whole model has weights in a format other than pickle.

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
    file = next(filter(None, map(origin.file, names)), None)
    if file is None:
        raise _pickled(origin)
    parts = [file.name]
    if file.name.endswith(INDEX):
        with origin.reported():
            index = json.loads(file.read_text())
            parts = [str(part) for part in index["weight_map"].values()]
    for part in parts:
        if not part.endswith(SAFE):
            raise _pickled(origin)
        if "/" in part or "\\" in part:
            raise AttnProbeError(
                f"expected names of files beside the index {file.name} of {origin.name}, "
                f"got {part[:80]!r}; put the weights there and correct their names"
            )


def check_adapter_is_data(origin: Origin) -> None:
    """Checks that a peft adapter has weights in a format other than pickle.

    Raises:
        AttnProbeError: it has none, and no ``allow_pickle``.
    """
    if not origin.allow_pickle and origin.file(ADAPTER_WEIGHTS) is None:
        raise _pickled(origin)


def check_names_no_code(origin: Origin, values: Mapping[str, Any]) -> None:
    """Refuses configurations whose attention Transformers would load as code from the Hub.

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
    """All names and values of a configuration, nested ones too."""
    for name, value in values.items():
        yield str(name), value
        if isinstance(value, Mapping):
            yield from _named(value)


def _pickled(origin: Origin) -> AttnProbeError:
    return AttnProbeError(
        f"expected weights of {origin.name} in safetensors, found none; reading other "
        "weights can run code that is hidden in them: save the model again with "
        "save_pretrained, or allow it with --allow-pickle if you trust who made them"
    )
