"""Markdown tables, numbers and confidence intervals as text, in the same format in every report."""

import math
import re
from collections.abc import Iterable, Sequence


MISSING_NUMBER = "–"
"""Dash that is printed in place of a missing or undefined number."""
UNSAFE_MARKDOWN = re.compile(r"(?<!\\)(?:\||<(?=[A-Za-z/!?])|\](?=[(\[:]))")
"""Pattern for unescaped characters that would be read as Markdown or HTML.

It matches ``|`` (end of a table cell), ``<`` before an HTML tag, and ``]`` at the end of a link text.
"""


def format_count(count: int, noun: str) -> str:
    """Format a number with a noun, such as "1 text" or "1,200 texts".

    Args:
        count: The number.
        noun: The noun in the singular; its plural must end in "s" or "ses".

    >>> format_count(1, "text"), format_count(1200, "text"), format_count(2, "class")
    ('1 text', '1,200 texts', '2 classes')
    """
    if count == 1:
        return f"1 {noun}"
    suffix = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{suffix}"


def format_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    r"""Format a Markdown table.

    Names from users cannot break the table: every cell is one line, and characters that end a cell,
    begin HTML or make a link are escaped.

    Args:
        header: Column titles.
        rows: Cells of each row.

    Returns:
        The Markdown lines.

    >>> format_table(["model", "F1"], [["base", "0.812"]])
    ['| model | F1 |', '| --- | --- |', '| base | 0.812 |']
    >>> format_table(["class"], [["a|b"], ["<i>"]])[2:]
    ['| a\\|b |', '| &lt;i> |']
    """
    separator = ["---"] * len(header)
    lines = [header, separator, *rows]
    return [f"| {' | '.join(map(_format_cell, cells))} |" for cells in lines]


def _format_cell(content: object) -> str:
    """Convert the content of a table cell to one line, and escape unsafe characters."""
    text = " ".join(str(content).split())
    return UNSAFE_MARKDOWN.sub(escape_markdown_match, text)


def escape_markdown_match(match: re.Match[str]) -> str:
    r"""Escape a Markdown character that a regular expression has matched.

    This function can be passed to ``re.sub`` as the replacement.

    ``<`` becomes ``&lt;``, since ``\<`` still begins HTML in some Markdown dialects.

    Args:
        match: A match of a single character.

    Returns:
        The escaped character.

    >>> re.sub("[<|]", escape_markdown_match, "a < b | c")
    'a &lt; b \\| c'
    """
    return "&lt;" if match[0] == "<" else f"\\{match[0]}"


def format_number(value: float | str | None, *, digits: int = 3, sign: str = "") -> str:
    """Format a number with a fixed number of decimals, or a dash if it is missing.

    Args:
        value: The number. A string is returned unchanged.
        digits: Digits after the decimal point.
        sign: ``+`` to print the sign of positive numbers too.

    Returns:
        The number as text, or a dash for None and NaN.

    >>> format_number(0.12345), format_number(2, digits=1, sign="+"), format_number(None)
    ('0.123', '+2.0', '–')
    >>> format_number("≤ 0.1"), format_number(-1e-9)
    ('≤ 0.1', '0.000')
    """
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return MISSING_NUMBER
    # The format option `z` avoids -0.000.
    return f"{value:{sign}z.{digits}f}"


def format_bounds(ci95: tuple[float, float] | None, *, digits: int = 3, sign: str = "") -> str:
    """Format the bounds of a confidence interval.

    Args:
        ci95: Lower and upper bound; None if there is no interval.
        digits: Digits after the decimal point.
        sign: ``+`` to print the sign of positive numbers too.

    Returns:
        The bounds in brackets, or a dash if the interval is None or NaN.

    >>> format_bounds((0.5, 0.75), digits=2)
    '[0.50, 0.75]'
    """
    if ci95 is None or math.isnan(ci95[0]):
        return MISSING_NUMBER
    low, high = (format_number(value, digits=digits, sign=sign) for value in ci95)
    return f"[{low}, {high}]"


def format_interval(
    value: float | None,
    ci95: tuple[float, float] | None,
    *,
    digits: int = 3,
    sign: str = "",
) -> str:
    """Format an estimate with its confidence interval.

    Args:
        value: The estimate.
        ci95: Lower and upper bound of its confidence interval; None if there is none.
        digits: Digits after the decimal point.
        sign: ``+`` to print the sign of positive numbers too.

    Returns:
        The estimate, followed by the bounds in brackets; a dash if the estimate is None or NaN.

    >>> format_interval(0.8, (0.75, 0.85), digits=1, sign="+"), format_interval(0.8, None)
    ('+0.8 [+0.8, +0.8]', '0.800')
    """
    estimate = format_number(value, digits=digits, sign=sign)
    if ci95 is None or estimate == MISSING_NUMBER:
        return estimate
    return f"{estimate} {format_bounds(ci95, digits=digits, sign=sign)}"
