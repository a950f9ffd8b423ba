"""Read the rows of ``cite``: numbered passages, a question, and an answer that cites passages."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_attnprobe.citations.statements import ParsedAnswer, parse_answer
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import format_short


logger = logging.getLogger(__name__)

ROW_KEYS = ("passages", "question", "answer")
"""Keys of a row. The answer can be missing; the model then generates one."""
FILE_ENDINGS = (".jsonl", ".json")
"""Endings of files from which rows are read."""


@dataclass(frozen=True)
class Passage:
    """A passage that an answer can cite.

    Attributes:
        title: Its title; empty if there is none.
        text: Its text.
    """

    title: str
    text: str

    @property
    def body(self) -> str:
        """Title and text, on separate lines."""
        return f"{self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True)
class CitationRow:
    """A question with its passages and its answer.

    Attributes:
        number: Number of the row in the data, counted from 1.
        passages: The passages; markers such as "[1]" count them from 1.
        question: The question.
        answer: The answer from the data; None if the model generates it.
    """

    number: int
    passages: tuple[Passage, ...]
    question: str
    answer: ParsedAnswer | None

    @property
    def name(self) -> str:
        """Name of the row in error messages."""
        return f"row {self.number}"


def read_rows(rows: str | Path | Iterable[Mapping[str, Any]]) -> list[CitationRow]:
    """Read and check all rows.

    Args:
        rows: Rows as mappings with the keys :data:`ROW_KEYS`, or the path of a JSON or JSON Lines
            file with such rows.

    Returns:
        The rows.

    Raises:
        AttnProbeError: If the file cannot be read, there are no rows, or a row cannot be used. The
            message contains the number of the row.
    """
    if isinstance(rows, str | Path):
        values: list[Any] = _read_file(Path(rows))
    else:
        values = list(rows)
    if not values:
        raise AttnProbeError("expected at least one row with passages and a question, got no rows")
    parsed_rows = [_parse_row(value, number) for number, value in enumerate(values, 1)]
    other_keys = sorted({str(key) for value in values for key in value} - set(ROW_KEYS))
    if other_keys:
        logger.warning("the columns %s are not used", ", ".join(other_keys))
    return parsed_rows


def _read_file(path: Path) -> list[Any]:
    """Read the rows of a JSON file with a list of objects, or with one object per line."""
    if path.suffix.lower() not in FILE_ENDINGS:
        raise AttnProbeError(
            f"expected a file that ends in {' or '.join(FILE_ENDINGS)}, got {path}. Write one JSON "
            "object per line, with the keys passages, question and answer."
        )
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise AttnProbeError(
            f"cannot read {path} ({error}). Check its name and encoding."
        ) from error
    if content.lstrip().startswith("["):
        return list(_parse_json(content, path, "the file"))
    lines = [line for line in content.split("\n") if line.strip()]
    return [_parse_json(line, path, f"row {number}") for number, line in enumerate(lines, 1)]


def _parse_json(text: str, path: Path, name: str) -> Any:
    """Parse JSON, and name the row in the error message if it is invalid."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise AttnProbeError(
            f"{name} of {path} is not valid JSON ({error}). Write one JSON object per line."
        ) from error


def _parse_row(value: Any, number: int) -> CitationRow:
    """Convert a row of the data, and refuse it if it cannot be used."""
    name = f"row {number}"
    if not isinstance(value, Mapping):
        raise AttnProbeError(
            f"{name} must be an object with the keys passages and question, got {format_short(value)}"
        )
    for key in ("passages", "question"):
        if key not in value:
            raise AttnProbeError(
                f"{name} has no key {key!r}; its keys are {', '.join(map(str, value)) or 'none'}. "
                "Rename the keys of the rows to passages, question and answer."
            )
    passages = value["passages"]
    if not isinstance(passages, Sequence) or isinstance(passages, str) or not passages:
        raise AttnProbeError(
            f"{name}: passages must be a list with at least one passage, got {format_short(passages)}"
        )
    parsed_passages = tuple(
        _parse_passage(passage, f"passage {k} of {name}") for k, passage in enumerate(passages, 1)
    )
    question = _check_text(value["question"], f"the question of {name}")
    answer = value.get("answer")
    parsed_answer = None
    if answer is not None:
        parsed_answer = parse_answer(_check_text(answer, f"the answer of {name}"))
        _check_answer(parsed_answer, len(passages), name)
    return CitationRow(number, parsed_passages, question, parsed_answer)


def _parse_passage(value: Any, name: str) -> Passage:
    """Convert a passage: a text, or an object with a text and optionally a title."""
    if isinstance(value, Mapping):
        unknown_keys = sorted(map(str, value.keys() - {"title", "text"}))
        if unknown_keys:
            raise AttnProbeError(
                f"{name} must have the keys text and title only, got {', '.join(unknown_keys)}. "
                "Remove the other keys, or add their content to the text."
            )
        text = _check_text(value.get("text"), f"the text of {name}")
        title = value.get("title")
        if title is None:
            return Passage("", text)
        if not isinstance(title, str):
            raise AttnProbeError(f"the title of {name} must be a string, got {format_short(title)}")
        # A title is one line, so that a prompt shows where the text begins.
        return Passage(" ".join(title.split()), text)
    return Passage("", _check_text(value, name))


def _check_text(value: Any, name: str) -> str:
    """Return a text without surrounding white space, or raise an error if it is not a usable text."""
    if not isinstance(value, str) or not value.strip():
        raise AttnProbeError(f"{name} must be a text that is not empty, got {format_short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise AttnProbeError(
            f"{name} contains an invalid Unicode character (an unpaired surrogate) at position "
            f"{error.start}; remove it"
        ) from error
    return value.strip()


def _check_answer(answer: ParsedAnswer, n_passages: int, name: str) -> None:
    """Raise an error if an answer has no statements, or cites a passage that does not exist."""
    if not answer.statements:
        raise AttnProbeError(f"the answer of {name} has no statement, got {answer.text[:60]!r}")
    numbers = [number for marker in answer.markers for number in marker.numbers]
    wrong_numbers = [number for number in numbers if not 1 <= number <= n_passages]
    if wrong_numbers:
        raise AttnProbeError(
            f"the answer of {name} cites [{wrong_numbers[0]}], but the row has {n_passages} "
            "passages, which are counted from 1. Correct the marker, or add the passage."
        )
