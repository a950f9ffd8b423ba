"""A question, its answer and its numbers on one line of a terminal."""

from collections.abc import Sequence


WIDTH = 80
"""Columns that no line of a short verdict exceeds."""
QUESTION, ANSWER = 30, 11  # columns of the first two
LABEL = 13  # of a line without an answer


def verdict_line(question: str, answer: str, numbers: Sequence[str]) -> str:
    """One line; of the numbers, the most telling first, as many as fit.

    >>> verdict_line("Do the top tokens decide?", "yes", ["loses 0.23", "random 0.08"])
    'Do the top tokens decide?     yes        loses 0.23 · random 0.08'
    """
    start = f"{cut(question, QUESTION - 1):<{QUESTION}}{answer:<{ANSWER}}"
    return start + fitting(numbers, WIDTH - len(start))


def plain_line(label: str, numbers: Sequence[str]) -> str:
    """The same without an answer.

    >>> plain_line("layers", ["0 0.10", "1 0.20"])
    'layers       0 0.10 · 1 0.20'
    """
    return f"{label:<{LABEL}}" + fitting(numbers, WIDTH - LABEL)


def fitting(pieces: Sequence[str], room: int) -> str:
    """As many pieces as the room has place for; the first is cut where it is too long.

    >>> fitting(["one", "two", "three"], 9)
    'one · two'
    """
    if not pieces:
        return ""
    line = cut(pieces[0], room)
    for piece in pieces[1:]:
        if len(line) + 3 + len(piece) > room:
            break
        line += f" · {piece}"
    return line


def cut(text: str, room: int) -> str:
    """A text that is too long, without its end.

    >>> cut("abcdef", 4), cut("abcd", 4)
    ('abc…', 'abcd')
    """
    return text if len(text) <= room else text[: room - 1] + "…"


def tail(text: str, room: int) -> str:
    """A text that is too long, without its beginning, as of a path.

    >>> tail("/home/me/model", 7)
    '…/model'
    """
    return text if len(text) <= room else "…" + text[len(text) - room + 1 :]
