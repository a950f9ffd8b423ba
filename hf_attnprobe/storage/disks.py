"""Libraries that cannot write, and do not say so as Python does."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

from safetensors import SafetensorError


OF_SYSTEM = re.compile(r"\(os error (\d+)\)")
"""How Rust's libraries, safetensors and tokenizers among them, end such a message."""
PROBE = 1 << 16  # bytes


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Errors of safetensors, tokenizers and torch that are the disk's, as ``OSError``.

    torch says that a write failed and not why; then the disk is asked.

    Args:
        folder: that is written to.

    Raises:
        OSError: with the system's number, of a full or a read-only disk, say.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = _number_of(error, folder)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(folder)) from error


def _number_of(error: Exception, folder: Path) -> int | None:
    """The system's number for what went wrong with the disk; None where it did not."""
    found = OF_SYSTEM.search(str(error))
    if found:
        return int(found[1])
    if not isinstance(error, RuntimeError | SafetensorError):
        return None
    try:
        with TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(PROBE))
    except OSError as refused:
        return refused.errno
    return None
