"""Tables, numbers and intervals as every report writes them. Pure."""

import re
from collections.abc import Iterable, Sequence


MISSING = "–"
UNSAFE = re.compile(r"(?<!\\)(?:\||<(?=[A-Za-z/!?])|\](?=[(\[:]))")
"""What ends a column, begins HTML or makes a link, where it is not escaped already."""


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table.

    A cell keeps to its place, whatever name of a user's stands in it.

    >>> table(["model", "F1"], [["base", "0.812"]])
    ['| model | F1 |', '| --- | --- |', '| base | 0.812 |']
    >>> table(["class"], [["a|b"], ["<i>"]])[2:]
    ['| a\\\\|b |', '| &lt;i> |']
    """
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(_cell, cells))} |" for cells in lines]


def _cell(content: object) -> str:
    """One line in which no column ends and no HTML begins."""
    text = " ".join(str(content).split())
    return UNSAFE.sub(escaped, text)


def escaped(sign: re.Match[str]) -> str:
    r"""A sign that Markdown leaves as it is; ``\<`` begins HTML in some dialects all the same.

    >>> re.sub("[<|]", escaped, "a < b | c")
    'a &lt; b \\| c'
    """
    return "&lt;" if sign[0] == "<" else f"\\{sign[0]}"


def number(value: float | str | None, *, digits: int = 3, sign: str = "") -> str:
    """A number with so many digits; a dash for None and NaN, a text as it is.

    Args:
        sign: ``+`` to write the sign of positive numbers too.

    >>> number(0.12345), number(2, digits=1, sign="+"), number(None), number("≤ 0.1")
    ('0.123', '+2.0', '–', '≤ 0.1')
    >>> number(-1e-9)
    '0.000'
    """
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return MISSING
    return f"{value:{sign}z.{digits}f}"  # z: no -0.000


def bounds(ci95: tuple[float, float] | None, *, digits: int = 3, sign: str = "") -> str:
    """An interval in brackets; a dash without one.

    >>> bounds((0.5, 0.75), digits=2)
    '[0.50, 0.75]'
    """
    if ci95 is None or ci95[0] != ci95[0]:
        return MISSING
    low, high = (number(value, digits=digits, sign=sign) for value in ci95)
    return f"[{low}, {high}]"


def interval(
    value: float | None,
    ci95: tuple[float, float] | None,
    *,
    digits: int = 3,
    sign: str = "",
) -> str:
    """A number with its interval, where it has one; a dash for None and NaN.

    Args:
        sign: ``+`` to write the sign of positive numbers too.

    >>> interval(0.8, (0.75, 0.85), digits=1, sign="+"), interval(0.8, None)
    ('+0.8 [+0.8, +0.8]', '0.800')
    """
    shown = number(value, digits=digits, sign=sign)
    if ci95 is None or shown == MISSING:
        return shown
    return f"{shown} {bounds(ci95, digits=digits, sign=sign)}"
