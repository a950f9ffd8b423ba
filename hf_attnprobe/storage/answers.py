"""A language model's answers, kept as they are said: a run that goes on asks for none again.

A line for each answer. Where a run was killed as it wrote, the line is no JSON and counts for nothing.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_attnprobe.storage.folders import cannot_use


def answers_in(file: Path) -> dict[str, list[int]]:
    """The tokens of each answer by the name of its prompt; none where there is no file."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    found = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):
            name, tokens = json.loads(line)
            found[name] = tokens
    return found


def add_answers(file: Path, answers: Mapping[str, Sequence[int]]) -> None:
    """Adds answers, whose folder is made where there is none.

    Raises:
        AttnProbeError: it cannot be written to.
    """
    each = answers.items()
    lines = [f"\n{json.dumps([name, [*tokens]])}\n" for name, tokens in each]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as out:
            out.writelines(lines)
    except OSError as error:
        raise cannot_use(file.parent, error) from error
