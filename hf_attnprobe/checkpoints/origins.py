"""Locate checkpoints, and check that loading them cannot run code from them."""

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

CONFIG_FILES = ("config.json", "adapter_config.json")
"""Names of the configuration files of a model and of a peft adapter, in this order."""
MAX_ERROR_LENGTH = 300
"""Maximum length of an error message, in characters. Longer messages are cut."""


@dataclass(frozen=True)
class Origin:
    """A checkpoint's source and the permissions for loading it; see :func:`locate_checkpoint`.

    Attributes:
        name: a folder or a Hub id.
        revision: branch, tag or commit in the Hub repository; None for the main branch.
        token: Hub token for a private repository; None for the logged-in user's token.
        subfolder: the checkpoint's folder within the Hub repository.
        trust_remote_code: whether code that comes with the model may run.
        allow_pickle: whether pickled weights may be read.
        gguf_file: name of a GGUF file with configuration, tokenizer and quantised weights, which
            are dequantised when loaded; None for other checkpoints.
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
        """The local folder; None for a checkpoint on the Hub."""
        return Path(self.name) if Path(self.name).is_dir() else None

    @property
    def hub_arguments(self) -> dict[str, Any]:
        """Arguments for ``from_pretrained`` that locate the model, in addition to its name."""
        arguments = {
            "revision": self.revision,
            "token": self.token,
            "subfolder": self.subfolder,
        }
        return {name: value for name, value in arguments.items() if value is not None}

    @property
    def load_arguments(self) -> dict[str, Any]:
        """The ``hub_arguments``, with ``gguf_file`` if the checkpoint is a GGUF file."""
        return self.hub_arguments | ({"gguf_file": self.gguf_file} if self.gguf_file else {})

    def find_file(self, name: str) -> Path | None:
        """Return the local path to a file in the checkpoint, which is downloaded if necessary.

        Args:
            name: the file name.

        Returns:
            The path; None if the checkpoint has no such file.

        Raises:
            AttnProbeError: if the Hub cannot be reached.
        """
        if self.folder is not None:
            return self.folder / name if (self.folder / name).is_file() else None
        with self.convert_errors():
            path = cached_file(
                self.name,
                name,
                _raise_exceptions_for_missing_entries=False,
                **self.hub_arguments,
            )
        return Path(path) if path else None

    @contextlib.contextmanager
    def convert_errors(self) -> Iterator[None]:
        """Convert any exception in a ``with`` block to an AttnProbeError with a one-line message.

        Raises:
            AttnProbeError: if the block raises an exception.
        """
        try:
            yield
        # safetensors, tokenizers and torch raise exceptions with their own types.
        except Exception as error:
            reason = summarize_error(error).rstrip(".")
            if self.folder is not None:
                raise AttnProbeError(f"the model in {self.name} does not load: {reason}") from error
            raise AttnProbeError(
                f"{self.name!r} is not a local folder, and does not load from the Hub: {reason}. "
                "Without a network, choose a local folder, or set HF_HUB_OFFLINE=1 to use an "
                "earlier download."
            ) from error


def locate_checkpoint(
    model: str | Path | Origin | SavedModel,
    *,
    revision: str | None = None,
    token: str | None = None,
    subfolder: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    gguf_file: str | None = None,
) -> Origin:
    """Locate the checkpoint that a user named.

    If a folder contains several checkpoints from a training with the Trainer, the best one is
    chosen according to ``trainer_state.json``, and this choice is logged.

    Args:
        model: a folder, a Hub id, ``org/name@revision``, or a
            :class:`~hf_attnprobe.core.options.SavedModel`, which contains the other arguments.
        revision: see :class:`Origin`.
        token: see :class:`Origin`.
        subfolder: see :class:`Origin`; also for folders.
        trust_remote_code: see :class:`Origin`.
        allow_pickle: see :class:`Origin`.
        gguf_file: see :class:`Origin`.

    Returns:
        The checkpoint's source.

    Raises:
        AttnProbeError: if a folder is combined with a revision, two revisions differ, the subfolder
            does not exist, or a folder has several checkpoints but does not record the best one.
    """
    if isinstance(model, Origin):
        return model
    if isinstance(model, SavedModel):
        options = {
            name: value for name, value in vars(model).items() if name not in ("model", "task")
        }
        return locate_checkpoint(model.model, **options)
    name = str(model)
    check_name("model", name)
    check_name("subfolder", subfolder or "")
    if Path(name).is_dir():
        if revision is not None:
            raise AttnProbeError(
                f"revision {revision!r} cannot be used, because {name} is a local folder. Leave the "
                "revision out, or choose a Hub id."
            )
        name = _choose_folder(Path(name), subfolder)
        token = subfolder = None
    else:
        check_path("model", name)
        name, separator, named_revision = name.partition("@")
        if separator:
            if revision not in (None, named_revision):
                raise AttnProbeError(
                    f"expected one revision for {name}, got {named_revision!r} and {revision!r}. "
                    "Remove one of them."
                )
            revision = named_revision
    return Origin(
        name,
        revision,
        token,
        subfolder,
        trust_remote_code,
        allow_pickle,
        gguf_file,
    )


def find_commit(origin: Origin) -> str | None:
    """Find the Hub commit from which a checkpoint is loaded.

    Args:
        origin: the checkpoint's source.

    Returns:
        The commit hash; None for folders.

    Raises:
        AttnProbeError: if the repository cannot be read.
    """
    if origin.folder is not None:
        return None
    for name in CONFIG_FILES:
        config_path = origin.find_file(name)
        if config_path is not None:
            return extract_commit_hash(str(config_path), None)
    return None


def _choose_folder(folder: Path, subfolder: str | None) -> str:
    """Return the folder that contains the model's files.

    This is ``folder`` itself, or its subfolder. If this folder contains several checkpoints of a
    training, it is the folder of the best checkpoint.
    """
    if subfolder is not None:
        if not (folder / subfolder).is_dir():
            raise AttnProbeError(
                f"the subfolder {subfolder!r} does not exist in {folder}. Correct its name, or remove "
                "this option."
            )
        folder = folder / subfolder
    if any((folder / name).exists() for name in CONFIG_FILES):
        return str(folder)
    newest_checkpoint = get_last_checkpoint(str(folder))
    if newest_checkpoint is None:
        return str(folder)
    best_name = _find_best_checkpoint(folder) or _find_best_checkpoint(Path(newest_checkpoint))
    if best_name is None or not (folder / best_name).is_dir():
        raise AttnProbeError(
            f"{folder} contains several checkpoints of a training, and the best of them is unknown. "
            f"Choose one, such as the newest, {newest_checkpoint}."
        )
    logger.warning("%s holds several checkpoints; the best one, %s, is used", folder, best_name)
    return str(folder / best_name)


def _find_best_checkpoint(folder: Path) -> str | None:
    """Return the best checkpoint's name from ``trainer_state.json``, or None if it is unknown."""
    try:
        state = json.loads((folder / "trainer_state.json").read_text())
        return Path(state["best_model_checkpoint"]).name
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def summarize_error(error: Exception) -> str:
    """Shorten an exception's message to one line.

    Args:
        error: another library's exception.

    Returns:
        The first line, with the second line if the first ends with a colon.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    summary = lines[0]
    if summary.endswith(":") and len(lines) > 1:
        summary = f"{summary} {lines[1].strip()}"
    if len(summary) > MAX_ERROR_LENGTH:
        summary = summary[:MAX_ERROR_LENGTH] + "…"
    if "`trust_remote_code=True`" in str(error):
        return f"{summary} Allow it with --trust-remote-code"
    return summary


# --- Checks that a checkpoint runs no code -------------------------------------------------------
# Reading a pickle can call any function. Transformers and peft read pickled weights with PyTorch's
# restricted reader, but this reader has been broken before (CVE-2025-32434). Pickled weights are
# therefore refused unless the user allows them.

ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
"""Name of the weights file of a peft adapter."""
SAFETENSORS_SUFFIX = ".safetensors"
"""Suffix of weights files in the safetensors format. Such files cannot contain code."""
INDEX_SUFFIX = ".index.json"
"""Suffix of an index file, such as ``model.safetensors.index.json``.

A model whose weights are split into several files has an index file, which lists them.
"""
KERNEL_SETTINGS = ("attn_implementation", "experts_implementation")
"""Settings in ``config.json`` that select a kernel.

The value may be the Hub id of a kernel, such as ``owner/kernel``. Transformers would download and
run its code.
"""


def check_weights_are_data(origin: Origin, values: Mapping[str, Any]) -> None:
    """Check that a model's weights are stored as safetensors.

    Args:
        origin: the checkpoint's source; nothing is checked if it allows pickled weights.
        values: its parsed config.json.

    Raises:
        AttnProbeError: if there are no safetensors, or their index names files in other formats or
            other folders.
    """
    if origin.allow_pickle:
        return
    custom_name = values.get("transformers_weights")
    names = [str(custom_name)] if custom_name else [SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME]
    weights_path = next(filter(None, map(origin.find_file, names)), None)
    if weights_path is None:
        raise _make_pickle_error(origin)
    part_names = [weights_path.name]
    if weights_path.name.endswith(INDEX_SUFFIX):
        with origin.convert_errors():
            index = json.loads(weights_path.read_text())
            part_names = [str(name) for name in index["weight_map"].values()]
    for part_name in part_names:
        if not part_name.endswith(SAFETENSORS_SUFFIX):
            raise _make_pickle_error(origin)
        if "/" in part_name or "\\" in part_name:
            raise AttnProbeError(
                f"{weights_path.name} in {origin.name} must list only files in the same folder, got "
                f"{part_name[:80]!r}. Move the file to this folder, and correct the list."
            )


def check_adapter_is_data(origin: Origin) -> None:
    """Check that a peft adapter's weights are stored as safetensors.

    Args:
        origin: the adapter's source; nothing is checked if it allows pickled weights.

    Raises:
        AttnProbeError: if there are no safetensors.
    """
    if not origin.allow_pickle and origin.find_file(ADAPTER_WEIGHTS_FILE) is None:
        raise _make_pickle_error(origin)


def check_selects_no_hub_kernel(origin: Origin, values: Mapping[str, Any]) -> None:
    """Check that a configuration does not select a kernel on the Hub.

    Transformers would download the kernel and run its code.

    Args:
        origin: the checkpoint's source; nothing is checked if its code is trusted.
        values: its parsed config.json.

    Raises:
        AttnProbeError: if it selects a kernel on the Hub.
    """
    if origin.trust_remote_code:
        return
    for name, value in _iterate_settings(values):
        if any(setting in name for setting in KERNEL_SETTINGS) and "/" in str(value):
            raise AttnProbeError(
                f"the setting {name} in the config.json of {origin.name} loads code from the Hub "
                f"({str(value)[:80]!r}). Set --trust-remote-code to allow it, or correct the file."
            )


def _iterate_settings(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each setting's name and value, including settings in nested configurations."""
    for name, value in values.items():
        yield str(name), value
        if isinstance(value, Mapping):
            yield from _iterate_settings(value)


def _make_pickle_error(origin: Origin) -> AttnProbeError:
    """Return the error for a checkpoint whose weights are not stored as safetensors."""
    return AttnProbeError(
        f"{origin.name} has no weights in the safetensors format, and other formats can run hidden "
        "code. Save the model again with save_pretrained, or set --allow-pickle if you trust its "
        "author."
    )
