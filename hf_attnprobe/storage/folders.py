"""Locks on output folders, checks before work starts, and atomic writes.

- :func:`reserve_folder` locks an output folder and checks that it belongs to the same run.
- :func:`write_atomically` and :func:`write_json` write a file completely or not at all.
- :func:`check_writable` and :func:`check_available` check a folder before work starts.

A run marks its output folder with a file such as ``audit.json`` or ``training.json``, which contains its
settings. A folder can be used if it is new or empty, or if it has this file with the same settings.
"""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from hf_attnprobe.core import options
from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import read_json


logger = logging.getLogger(__name__)


# --- Disk errors ---

OS_ERROR_PATTERN = re.compile(r"\(os error (\d+)\)")
"""Pattern for the system error number in messages from safetensors and tokenizers."""
TEST_FILE_BYTES = 1 << 16
"""Size in bytes of the test file that is written to find out whether a disk is full."""
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
"""System error numbers for a full disk and for an exceeded disk quota."""


@contextlib.contextmanager
def convert_disk_errors(folder: Path) -> Iterator[None]:
    """Convert errors about a full or broken disk to ``OSError`` inside a ``with`` block.

    safetensors, tokenizers and PyTorch raise other types of errors. PyTorch does not report why
    writing failed, so a test file is written to find the reason.

    Args:
        folder: Folder to which the block writes.

    Raises:
        OSError: Writing failed; ``errno`` is the system's error number, for example for a full disk.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        error_number = _find_error_number(error, folder)
        if error_number is None:
            raise
        raise OSError(error_number, os.strerror(error_number), str(folder)) from error


def _find_error_number(error: Exception, folder: Path) -> int | None:
    """Find the operating system's number for an error that the disk caused.

    Args:
        error: Any exception.
        folder: Folder to which data were written.

    Returns:
        The error number; None if the disk did not cause the error.
    """
    # Some messages contain the number, such as "os error 28".
    match = OS_ERROR_PATTERN.search(str(error))
    if match:
        return int(match[1])
    from safetensors import SafetensorError

    if not isinstance(error, RuntimeError | SafetensorError):
        return None
    try:
        # If the disk caused the error, writing a test file fails for the same reason.
        with TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(TEST_FILE_BYTES))
    except OSError as disk_error:
        return disk_error.errno
    return None


# --- Locks and temporary files ---
# The operating system releases a lock when its process ends, even if the process is killed. A process
# with the lock on a folder may therefore delete the temporary files that killed runs left there.

LOCK_FILE = ".attnprobe.lock"
"""Name of the lock file in an output folder."""
TEMPORARY_SUFFIX = ".attnprobe"
"""Suffix of temporary files, such as ``.report.html.1234.attnprobe`` (1234 is the process id)."""
TEMPORARY_FILE_PATTERN = re.compile(rf"\..+\.\d+\{TEMPORARY_SUFFIX}")
"""Pattern for the names of temporary files, such as ``.report.html.1234.attnprobe``."""
NO_LOCK_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""System error numbers for a disk without file locks. Some network disks have none."""


def get_temporary_path(file: Path) -> Path:
    """Return a temporary path for a file that this process is about to write.

    When the file is complete, it is renamed to its final path.

    Args:
        file: The final path. The temporary file is a hidden file in the same folder.
    """
    return file.with_name(f".{file.name}.{os.getpid()}{TEMPORARY_SUFFIX}")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder inside a ``with`` block, so that no other run can write to it.

    The folder and its parents are created if they do not exist, and removed again if nothing was
    written to them.

    Args:
        folder: The folder.

    Raises:
        AttnProbeError: Another run uses the folder.
        OSError: The folder cannot be created or written to.
    """
    new_folders = _list_missing_folders(folder)
    file_lock = FileLock(folder / LOCK_FILE, fallback_to_soft=False)
    _acquire_lock(file_lock, folder)
    try:
        _delete_temporary_files(folder)
        yield
    finally:
        with contextlib.suppress(OSError):
            # The file is deleted before the lock is released, so that the next process creates a
            # new file.
            (folder / LOCK_FILE).unlink()
        file_lock.release()
        # Removal fails if a folder is not empty, and then the folder and its parents are kept.
        with contextlib.suppress(OSError):
            for new_folder in new_folders:
                new_folder.rmdir()


def _list_missing_folders(folder: Path) -> list[Path]:
    """List the folders that must be created for a new folder, beginning with the folder itself."""
    return [path for path in (folder, *folder.parents) if not os.path.lexists(path)]


def _acquire_lock(file_lock: BaseFileLock, folder: Path) -> None:
    """Acquire the lock on a folder, or raise an error that names the process that holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file_lock.acquire(blocking=False)
        # Other processes display this number in their error message.
        with contextlib.suppress(OSError):
            (folder / LOCK_FILE).write_text(str(os.getpid()))
    except (FileNotFoundError, FileExistsError):
        if os.path.lexists(folder) and not folder.is_dir():
            # The path is a file or a broken link.
            raise
        # Another run has removed the folder that this run created, so try again.
        _acquire_lock(file_lock, folder)
    except Timeout as error:
        raise AttnProbeError(
            f"another run{_describe_lock_holder(folder)} uses {folder}. Wait until it has finished, "
            "or choose another --output-dir."
        ) from error
    except OSError as error:
        if error.errno not in NO_LOCK_ERRORS:
            raise
        logger.warning(
            "%s is on a disk without locks (%s). Use this folder for only one run at a time.",
            folder,
            error.strerror,
        )


def _describe_lock_holder(folder: Path) -> str:
    """Describe the process that locks a folder as " (process NUMBER)", or "" if it is unknown."""
    try:
        process_id = (folder / LOCK_FILE).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
    return f" (process {process_id})" if process_id.isdigit() else ""


def _delete_temporary_files(folder: Path) -> None:
    """Delete the temporary files that killed runs left in an output folder."""
    for parent in (folder, folder / "rows"):
        if not parent.is_dir():
            continue
        for file in parent.iterdir():
            if TEMPORARY_FILE_PATTERN.fullmatch(file.name) and file.is_file():
                file.unlink(missing_ok=True)


# --- Writing files ---


def write_atomically(file: Path, text: str) -> None:
    """Write a text file in UTF-8, completely or not at all.

    Args:
        file: File path.
        text: Content of the file.
    """
    temporary_file = get_temporary_path(file)
    try:
        temporary_file.write_text(text, encoding="utf-8")
        os.replace(temporary_file, file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary_file.unlink()
        raise


def write_json(file: Path, data: object) -> None:
    """Write data to a JSON file, completely or not at all.

    Args:
        file: File path.
        data: Dicts, lists, strings, numbers, booleans and None.
    """
    write_atomically(file, json.dumps(data, indent=1) + "\n")


# --- Checks of output folders ---

URL_PATTERN = re.compile(r"[A-Za-z][\w+.-]+:/")
"""Pattern for the beginning of a URL, such as "https:/".

The pattern has only one slash, because ``Path`` shortens "https://" to "https:/". It requires two
characters before the colon, because a single letter is a Windows drive, as in "C:/".
"""


def check_writable(folder: str | Path) -> None:
    """Raise an error if a folder can neither be created nor written to.

    Args:
        folder: The folder, which does not need to exist.

    Raises:
        AttnProbeError: Neither the folder nor its nearest existing parent is writable.
    """
    # Find the nearest existing parent of a folder that does not exist.
    existing_folder = check_output_path(folder)
    while not os.path.lexists(existing_folder) and existing_folder != existing_folder.parent:
        existing_folder = existing_folder.parent
    try:
        TemporaryFile(dir=existing_folder).close()
    except OSError as error:
        # The error message must name the folder instead of the temporary file.
        folder_error = OSError(error.errno, error.strerror, str(existing_folder))
        raise make_folder_error(folder, folder_error) from error


def check_output_path(folder: str | Path) -> Path:
    """Check the name of an output folder, and convert it to a path.

    Args:
        folder: The folder.

    Returns:
        The folder as a path.

    Raises:
        AttnProbeError: The name is a URL, or too long for a file system.
    """
    options.check_name("the output", str(folder))
    if URL_PATTERN.match(str(folder)):
        raise AttnProbeError(f"expected a local folder as --output-dir, got the URL {folder}")
    return Path(folder)


def check_available(folder: str | Path, *markers: str) -> Path:
    """Check that an output folder is empty or belongs to the same command.

    Hidden files are ignored, because an interrupted run can leave some.

    Args:
        folder: The folder, which does not need to exist.
        markers: File names or patterns. The folder belongs to the command if one such file exists.

    Returns:
        The folder as a path.

    Raises:
        AttnProbeError: The folder contains other files, or the folder or one of its subfolders
            contains a link to a path outside the folder.
    """
    folder = check_output_path(folder)
    try:
        paths = list(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise make_folder_error(folder, error) from error
    has_visible_files = any(not path.name.startswith(".") for path in paths)
    has_marker = any(any(folder.glob(marker)) for marker in markers)
    if has_visible_files and not has_marker:
        raise AttnProbeError(
            f"the output folder {folder} already contains other files. Choose another --output-dir."
        )
    for parent, folder_names, file_names in os.walk(folder):
        for name in (*folder_names, *file_names):
            refuse_outside_link(Path(parent, name), folder)
    return folder


def refuse_outside_link(path: Path, folder: Path) -> None:
    """Raise an error if a path is a link that leads out of an output folder.

    Args:
        path: A file or folder inside the output folder, which does not need to exist.
        folder: The output folder.

    Raises:
        AttnProbeError: The path is a link to a path outside the folder.
    """
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise AttnProbeError(
            f"the link {path} leads out of the output folder. Delete the link, or choose another "
            "--output-dir."
        )


def make_folder_error(folder: str | Path, error: Exception) -> AttnProbeError:
    """Create the error for an output folder that cannot be read or written.

    Args:
        folder: The folder.
        error: Cause of the problem.
    """
    is_full = isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS
    advice = "Choose another --output-dir."
    if is_full:
        advice = "Free some space, or choose another --output-dir."
    return AttnProbeError(f"cannot use the output folder {folder} ({error}). {advice}")


# --- Settings of the run to which a folder belongs ---


def find_differences(stored: object, settings: Mapping) -> dict[str, tuple[object, object]]:
    """Compare the settings that a folder stores with the settings of this run.

    Args:
        stored: Settings that were read from JSON. A value that is not a mapping counts as empty.
        settings: Settings of this run. They are converted to JSON and back before the comparison.

    Returns:
        For each setting that differs, the stored and the new value, by name.
    """
    stored_settings = stored if isinstance(stored, Mapping) else {}
    return {
        name: (stored_settings.get(name), value)
        for name, value in normalize_settings(settings).items()
        if stored_settings.get(name) != value
    }


def normalize_settings(settings: Mapping) -> dict:
    """Convert settings to JSON and back, which for example turns tuples into lists."""
    return json.loads(json.dumps(dict(settings)))


@contextlib.contextmanager
def reserve_folder(
    folder: str | Path, *markers: str, identity: Mapping | None = None
) -> Iterator[Path]:
    """Lock an output folder for this run, in all of its processes, and mark it with its settings.

    Args:
        folder: The output folder. It is created if it does not exist, and removed again if nothing
            was written to it.
        markers: Names of files that belong to the command, see :func:`check_available`. The settings
            are stored in the first one.
        identity: Settings that determine the results; a folder with other settings is refused. The
            stored settings are deleted again if the run fails before it has written rows.

    Yields:
        The folder as a path.

    Raises:
        AttnProbeError: Another run uses the folder, it contains other files or results with other
            settings, or it cannot be written to.
    """
    folder = Path(folder)
    with contextlib.ExitStack() as stack:
        with _share_errors(folder) as is_main:
            if is_main:
                check_available(folder, *markers)
                stack.enter_context(lock_folder(folder))
        if identity is not None:
            stack.enter_context(mark_folder(folder / markers[0], identity))
        yield folder


@contextlib.contextmanager
def mark_folder(file: Path, settings: Mapping) -> Iterator[None]:
    """Mark a locked output folder with the settings of this run, in all of its processes.

    The mark of a new folder is deleted again if the run fails before it has written rows.

    Args:
        file: JSON file in the folder, in which the settings are stored.
        settings: Settings that determine the results.

    Raises:
        AttnProbeError: The file contains other settings, or it cannot be written.
    """
    is_new = False
    with _share_errors(file.parent) as is_main:
        if is_main:
            is_new = _store_settings(file, settings)
    try:
        yield
    except BaseException:
        rows_folder = file.parent / "rows"
        if is_new and not any(rows_folder.glob("part-*")):
            file.unlink(missing_ok=True)
            shutil.rmtree(rows_folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def _share_errors(folder: Path) -> Iterator[bool]:
    """Raise an error of the main process in all processes, instead of letting them wait for it.

    Args:
        folder: Output folder, for the message of an error that the disk caused.

    Yields:
        Whether this process is the main process, which alone does the work in the ``with`` block.
    """
    from accelerate.utils import broadcast_object_list

    message = None
    try:
        yield get_process_state().is_main_process
    except AttnProbeError as error:
        message = str(error)
    except OSError as error:
        message = str(make_folder_error(folder, error))
    messages = [message]
    broadcast_object_list(messages)
    if messages[0] is not None:
        raise AttnProbeError(messages[0])


def _store_settings(file: Path, settings: Mapping) -> bool:
    """Store a run's settings in a file. If the file exists, check that its settings are the same.

    Returns:
        Whether the file is new.

    Raises:
        AttnProbeError: The stored settings differ.
    """
    if not file.exists():
        write_json(file, settings)
        return True
    check_same_settings(file, settings)
    return False


def check_same_settings(
    file: Path, settings: Mapping, advice_by_setting: Mapping[str, str] = {}
) -> None:
    """Raise an error if the settings stored in a file differ from the settings of this run.

    Args:
        file: JSON file with stored settings. Nothing is checked if it does not exist.
        settings: Settings of this run.
        advice_by_setting: End of the error message if a certain setting differs, by its name.

    Raises:
        AttnProbeError: A setting differs, or the file cannot be read.
    """
    # Unlike `Path.exists`, this function never raises an error for an invalid name.
    if not os.path.exists(file):
        return
    stored = read_json(file, Any, "Choose another --output-dir.")
    differences = find_differences(stored, settings)
    if differences:
        first_name, *other_names = [name.replace("_", " ") for name in differences]
        stored_value, value = next(iter(differences.values()))
        first_difference = (
            f"{first_name} ({_describe_difference(stored_value, value)} instead of "
            f"{_describe_difference(value, stored_value)})"
        )
        advice = [advice_by_setting[name] for name in differences if name in advice_by_setting]
        raise AttnProbeError(
            f"{file.parent} belongs to another {file.stem} with different settings: "
            f"{', '.join([first_difference, *other_names])}. "
            f"{' '.join(advice) or 'Choose another --output-dir.'}"
        )


def _describe_difference(value: object, other_value: object) -> object:
    """Describe the value of a setting that differs between two runs.

    If the value contains further settings, only those that differ are described. For example,
    {"a": 1, "b": 2} compared with {"a": 1, "b": 3} is described as "b 2".

    Args:
        value: Value to describe.
        other_value: Value of the same setting in the other run.
    """
    if not isinstance(value, Mapping) or not isinstance(other_value, Mapping):
        return value
    different_parts = [
        f"{name} {_describe_difference(inner_value, other_value.get(name))}"
        for name, inner_value in value.items()
        if name not in other_value or other_value[name] != inner_value
    ]
    return ", ".join(different_parts) or "none"
