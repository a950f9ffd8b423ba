"""Split an answer with markers, such as "[1]" or "[2, 3]", into statements and their citations."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hf_attnprobe.data.tokenizer import locate_sentences


MARKER = re.compile(r"\[\s*\d+(?:\s*[-–,;]\s*\d+)*\s*\]")
"""Pattern for a marker, such as "[1]", "[2, 3]" or "[2-4]"."""
NUMBER_OR_RANGE = re.compile(r"(\d+)(?:\s*[-–]\s*(\d+))?")
"""Pattern for a number in a marker, such as "2", or for a range of numbers, such as "2-4"."""
MAX_RANGE = 100
"""Largest number of passages in a range such as "[2-4]". A longer range is not a marker."""


@dataclass(frozen=True)
class Marker:
    """A marker in an answer.

    Attributes:
        start: Position of its first character in the answer.
        end: Position after its last character.
        numbers: Numbers of the cited passages, counted from 1.
        statement: Index of the statement to which it belongs.
    """

    start: int
    end: int
    numbers: tuple[int, ...]
    statement: int


@dataclass(frozen=True)
class Statement:
    """A sentence of an answer, without its markers.

    Attributes:
        text: The sentence.
        cited: Numbers of the cited passages, counted from 1, without repetitions.
    """

    text: str
    cited: tuple[int, ...]


@dataclass(frozen=True)
class ParsedAnswer:
    """An answer, its statements and its markers.

    Attributes:
        text: The answer with its markers.
        statements: The statements in text order.
        markers: The markers in text order. There are none if the answer has no statements.
    """

    text: str
    statements: tuple[Statement, ...]
    markers: tuple[Marker, ...]


def parse_answer(answer: str) -> ParsedAnswer:
    """Split an answer into sentences, and assign each marker to a sentence.

    A marker belongs to the sentence before it, whether it stands before or after the full stop. A
    marker at the start of a line belongs to the sentence after it.

    Args:
        answer: An answer with markers, such as "It opened in 1921 [1]. Ann directs it. [2, 3]".

    Returns:
        The statements without markers, and the markers.

    >>> for statement in parse_answer("It opened in 1921 [1]. Ann directs it. [2, 3]").statements:
    ...     print(statement.text, statement.cited)
    It opened in 1921. (1,)
    Ann directs it. (2, 3)
    """
    text, marks = _remove_markers(answer)
    sentences = locate_sentences(text)
    if not sentences:
        return ParsedAnswer(answer, (), ())
    markers = [
        Marker(start, end, numbers, _find_sentence(text, sentences, position))
        for (start, end), numbers, position in marks
    ]
    statements = []
    for index, (start, end) in enumerate(sentences):
        numbers = [
            number for marker in markers if marker.statement == index for number in marker.numbers
        ]
        statements.append(Statement(text[start:end].strip(), tuple(dict.fromkeys(numbers))))
    return ParsedAnswer(answer, tuple(statements), tuple(markers))


def parse_numbers(marker: str) -> tuple[int, ...]:
    """List the passage numbers in a marker.

    Args:
        marker: A marker, such as "[1, 3-5]".

    Returns:
        The numbers in the order of the marker. The result is empty if a range is reversed or has more
        than `MAX_RANGE` numbers.

    >>> parse_numbers("[1, 3-5]")
    (1, 3, 4, 5)
    """
    numbers: list[int] = []
    for match in NUMBER_OR_RANGE.finditer(marker):
        first = int(match[1])
        last = int(match[2] or match[1])
        if not 0 <= last - first < MAX_RANGE:
            return ()
        numbers += range(first, last + 1)
    return tuple(numbers)


def _remove_markers(
    answer: str,
) -> tuple[str, list[tuple[tuple[int, int], tuple[int, ...], int]]]:
    """Remove all markers from an answer, with the spaces before them.

    Returns:
        The answer without markers; and for each marker its start and end in the answer, its numbers,
        and its position in the answer without markers.
    """
    text = ""
    marks = []
    end_of_previous = 0
    for match in MARKER.finditer(answer):
        numbers = parse_numbers(match[0])
        if not numbers:
            continue
        text += answer[end_of_previous : match.start()]
        text = text.rstrip(" \t\u00a0\u202f")
        marks.append((match.span(), numbers, len(text)))
        end_of_previous = match.end()
        # A space is necessary if the marker was the only character between two words.
        if text[-1:].isalnum() and answer[end_of_previous : end_of_previous + 1].isalnum():
            text += " "
    return text + answer[end_of_previous:], marks


def _find_sentence(text: str, sentences: Sequence[tuple[int, int]], position: int) -> int:
    """Find the index of the sentence to which a marker belongs.

    Args:
        text: The answer without markers.
        sentences: Start and end of each sentence in this text.
        position: Position of the marker in this text.
    """
    line_start = text.rfind("\n", 0, position) + 1
    earlier = [index for index, (start, _) in enumerate(sentences) if start < position]
    later = [index for index, (start, _) in enumerate(sentences) if start >= position]
    begins_line = not text[line_start:position].strip()
    if later and (begins_line or not earlier):
        return later[0]
    return earlier[-1]
