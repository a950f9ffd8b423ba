"""A language model's answers, kept as they are said: a run that goes on asks for none again.

A line for each answer. Where a run was killed as it wrote, the line is no JSON and counts for nothing.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.storage.folders import cannot_use


class AnswerCache:
    """A hidden file in the folder of a run; one that is refused before its first rows leaves none.

    Attributes:
        file: None until the run is known.
        is_new: whether no answers were there before it.
    """

    file: Path | None = None
    is_new = False

    def begin(self, folder: Path, run: str) -> None:
        """Says whose answers these are: those of a run with some settings, in its folder."""
        self.file = folder / f".answers-{run}.jsonl"
        self.is_new = not os.path.exists(self.file)

    def read(self) -> dict[str, list[int]]:
        """The tokens of each answer by the name of its prompt."""
        file, found = self.file, {}
        if file is None or not os.path.isfile(file):
            return {}
        for line in file.read_bytes().splitlines():
            with contextlib.suppress(ValueError, TypeError):
                name, tokens = json.loads(line)
                found[name] = tokens
        return found

    def add(self, answers: Mapping[str, Sequence[int]]) -> None:
        """Adds answers; the folder is made where there is none.

        Raises:
            AttnProbeError: it cannot be written to.
        """
        if self.file is None:
            return
        each = answers.items()
        lines = [f"\n{json.dumps([name, [*some]])}\n" for name, some in each]
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as out:
                out.writelines(lines)
        except OSError as error:
            raise cannot_use(self.file.parent, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        file = self.file
        if file is None or not (self.is_new and os.path.isfile(file)):
            return
        is_refused = kind is not None and issubclass(kind, AttnProbeError)
        if is_refused and not any((file.parent / "rows").glob("part-*")):
            with contextlib.suppress(OSError):
                file.unlink()
                file.parent.rmdir()
