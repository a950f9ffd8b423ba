"""Cache for generated answers, so that a resumed audit does not generate them again.

The cache is a hidden file in the output folder with one JSON line for each answer: the name of the
prompt, the token ids of the answer, and a checksum. The checksum covers the prompt too, so that an
answer is never used for another prompt, for example if a chat template inserts today's date. If a run
was killed while it wrote a line, this line is not valid JSON and is ignored.
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.storage.folders import make_folder_error


logger = logging.getLogger(__name__)


class AnswerCache:
    """File with an audit's generated answers.

    Attributes:
        file: The file; None for no cache.
        prompts: Token ids of all prompts, by prompt name.
    """

    def __init__(self, file: Path | None, prompts: Mapping[str, Sequence[int]]) -> None:
        self.file = file
        self.prompts = prompts

    def read(self) -> dict[str, list[int]]:
        """Read the cached answers to the prompts as token ids, by prompt name.

        A line with another checksum is not used, and a warning is logged: the line was changed, or
        the answer belongs to another version of its prompt.
        """
        if self.file is None or not os.path.isfile(self.file):
            return {}
        answers = {}
        unusable_names = set()
        for line in self.file.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                # A killed run may have left an incomplete line.
                continue
            name = entry[0] if isinstance(entry, list) and entry else None
            if not isinstance(name, str) or name not in self.prompts:
                # The line belongs to a text that this run does not audit.
                continue
            if _is_valid_answer(entry, self.prompts[name]):
                answers[name] = entry[1]
            else:
                unusable_names.add(name)
        unusable_names -= answers.keys()
        if unusable_names:
            logger.warning(
                "%d cached answers in %s were changed or belong to other prompts, so they are "
                "generated again",
                len(unusable_names),
                self.file,
            )
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
        lines = []
        for name, token_ids in answers.items():
            checksum = _compute_checksum(name, self.prompts[name], token_ids)
            # The first line break ends any incomplete line that a killed run has left.
            lines.append(f"\n{json.dumps([name, list(token_ids), checksum])}\n")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as stream:
                stream.writelines(lines)
        except OSError as error:
            raise make_folder_error(self.file.parent, error) from error


def _is_valid_answer(entry: list[Any], prompt_ids: Sequence[int]) -> bool:
    """Check whether a line holds a name, token ids and their checksum.

    Args:
        entry: The line's content, which begins with the name of the prompt.
        prompt_ids: Token ids of this prompt.
    """
    if len(entry) != 3:
        return False
    name, token_ids, checksum = entry
    if not isinstance(token_ids, list):
        return False
    # The type must be exactly int, since True is an instance of int too.
    if not all(type(token_id) is int and token_id >= 0 for token_id in token_ids):
        return False
    return bool(checksum == _compute_checksum(name, prompt_ids, token_ids))


def _compute_checksum(name: str, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """Compute the checksum of a prompt and its answer: 16 hexadecimal digits."""
    content = json.dumps([name, list(prompt_ids), list(token_ids)])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@contextlib.contextmanager
def discard_answers_of_refused_run(folder: str | Path | None) -> Iterator[None]:
    """Remove a run's cached answers if an error stops it before it has any results.

    Such a run, for example one with a wrong option, then leaves no output folder. If the run is
    interrupted in another way, its answers are kept for the next run. The folder must be locked, so
    that the answers of another run are never removed.

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
