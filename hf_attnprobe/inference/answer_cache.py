"""Cache for generated answers, so that a resumed audit does not generate them again.

The cache is a hidden file in the output folder with one JSON line for each answer. If a run was
killed while it wrote a line, this line is not valid JSON and is ignored.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.storage.folders import make_folder_error


class AnswerCache:
    """File with an audit's generated answers.

    Attributes:
        file: The file; None for no cache.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file

    def read(self) -> dict[str, list[int]]:
        """Read the cached answers as token ids, by prompt name."""
        if self.file is None or not os.path.isfile(self.file):
            return {}
        answers = {}
        for line in self.file.read_bytes().splitlines():
            # A killed run may have left an incomplete line, which is ignored.
            with contextlib.suppress(ValueError, TypeError):
                name, token_ids = json.loads(line)
                answers[name] = token_ids
        return answers

    def add(self, answers: Mapping[str, Sequence[int]]) -> None:
        """Append answers to the file; the folder is created if it does not exist.

        Args:
            answers: Token ids by prompt name.

        Raises:
            AttnProbeError: If the file cannot be written.
        """
        if self.file is None:
            return
        # The first line break ends any incomplete line that a killed run has left.
        lines = [
            f"\n{json.dumps([name, list(token_ids)])}\n" for name, token_ids in answers.items()
        ]
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as stream:
                stream.writelines(lines)
        except OSError as error:
            raise make_folder_error(self.file.parent, error) from error


@contextlib.contextmanager
def discard_answers_of_refused_run(folder: str | Path | None) -> Iterator[None]:
    """Remove a run's cached answers if an error stops it before it has any results.

    Such a run, for example one with a wrong option, then leaves no output folder. If the run is
    interrupted in another way, its answers are kept for the next run.

    Args:
        folder: The run's output folder; None if there is none.
    """
    files_before = _list_cache_files(folder)
    try:
        yield
    except AttnProbeError:
        new_files = _list_cache_files(folder) - files_before
        for file in new_files:
            if not any((file.parent / "rows").glob("part-*")):
                with contextlib.suppress(OSError):
                    file.unlink()
                    file.parent.rmdir()
        raise


def _list_cache_files(folder: str | Path | None) -> set[Path]:
    """List the cache files in a folder."""
    if folder is None or not os.path.isdir(folder):
        return set()
    return {*Path(folder).glob(".answers-*.jsonl")}
