"""The files of a job: a folder here, or any place that fsspec knows.

A file is there whole or not at all. On a disk it is written beside its place, forced
down and renamed; an object store takes whole objects at once.
"""

import contextlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from hf_attnprobe.errors import AttnProbeError


TIDIED = 100
"""Times that a half-written file may be taken away by workers that saw the job done."""


@dataclass(frozen=True)
class Store:
    """The files of one job.

    Attributes:
        url: a folder, or ``s3://bucket/job``, ``hf://…``, ``memory://…``: what fsspec
            has a file system for.
    """

    url: str

    def read(self, name: str) -> bytes | None:
        """The whole file; None where there is none."""
        system, root = self._place()
        try:
            return bytes(system.cat_file(f"{root}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """Writes the whole file or nothing; the last of several writers stays.

        Args:
            lasting: whether it must outlive a loss of power.
        """
        system, root = self._place()
        if isinstance(system, LocalFileSystem):
            _replace(Path(root) / name, data, lasting)
        else:
            system.pipe_file(f"{root}/{name}", data)

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        system, root = self._place()
        system.invalidate_cache()
        try:
            return int(system.size(f"{root}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder, sorted, without those half-written."""
        return [name for name in self._listed(folder) if not name.startswith(".")]

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        system, root = self._place()
        with contextlib.suppress(FileNotFoundError):
            system.rm_file(f"{root}/{name}")

    def remove_empty(self, folder: str) -> None:
        """Removes a folder on a disk, if nothing is in it."""
        system, root = self._place()
        if isinstance(system, LocalFileSystem):
            with contextlib.suppress(OSError):
                Path(root, folder).rmdir()

    def sweep(self, folder: str) -> None:
        """Removes what writers left half-written that were killed."""
        for name in self._listed(folder):
            if name.startswith("."):
                self.remove(f"{folder}/{name}")

    def _listed(self, folder: str) -> list[str]:
        system, root = self._place()
        system.invalidate_cache()
        try:
            found = system.ls(f"{root}/{folder}", detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def _place(self) -> tuple[Any, str]:
        try:
            system, root = url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise AttnProbeError(
                f"expected a folder, or a place that fsspec knows, got {self.url!r} "
                f"({error}); install its file system or choose another"
            ) from error
        return system, root.rstrip("/")


def _replace(file: Path, data: bytes, lasting: bool) -> None:
    """Puts a file into its place on a disk, whole even if the power fails."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(TIDIED):
        with contextlib.suppress(FileNotFoundError):
            _move_into_place(file, data, lasting)
            break
    else:
        _move_into_place(file, data, lasting)
    if lasting:
        _force_down(file.parent)


def _move_into_place(file: Path, data: bytes, lasting: bool) -> None:
    hidden = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        _write_down(hidden, data, lasting)
        os.replace(hidden, file)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def _write_down(file: Path, data: bytes, lasting: bool) -> None:
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        if lasting:
            os.fsync(stream.fileno())


def _force_down(folder: Path) -> None:
    """Forces the names in a folder down to the disk, where the system can."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
