"""A document as text for a terminal, which no text of a user steers. Pure.

Each kind of block is a macro of ``blocks.txt``.
"""

from collections.abc import Iterable
from functools import cache
from io import StringIO
from textwrap import fill, indent
from typing import Literal

from jinja2 import Environment
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from hf_attnprobe.core.terminal import one_line, visible
from hf_attnprobe.documents.blocks import (
    Block,
    Cell,
    Document,
    Facts,
    Scores,
    Table,
    Words,
    is_number,
    number_line_in_words,
    written,
)
from hf_attnprobe.documents.highlighted_text import in_words
from hf_attnprobe.documents.templates import printed, templates_of


WIDTH = 100
"""Letters of a line of words at most; tables whose numbers need more room have it."""

KEPT = 8
"""Letters that a column leaves to each longer one, where a table is too wide."""

LONGEST = 30
"""Letters of a word in a table that is not broken."""


def to_text(report: Document, *, verbose: bool = False, width: int = WIDTH) -> str:
    """The report, without colours.

    Args:
        report: a document.
        verbose: all of it; else its lead and the sections that are ``brief``.
        width: letters of a line.
    """
    sections = [s for s in report.sections if s is not None and (verbose or s.brief)]
    said = [
        _words(report.heading, width),
        *_blocks([*report.lead, *sections], width),
    ]
    return "\n\n".join(said)


def _blocks(parts: Iterable[Block], width: int) -> list[str]:
    return printed(_templates(), "blocks.txt", parts, width)


@cache
def _templates() -> Environment:
    filters = {
        "words": _words,
        "facts": _facts,
        "table": _table,
        "scores": _scores,
        "in_words": number_line_in_words,
        "shown": in_words,
        "listing": lambda text: indent(visible(text), "  "),
        "blocks": lambda parts, width, between: between.join(_blocks(parts, width)),
        "inner": lambda parts, width, between: indent(
            between.join(_blocks(parts, width - 2)), "  "
        ),
    }
    return templates_of("documents", filters)


def _words(said: Words, width: int, begin: str = "", hang: str = "") -> str:
    """A sentence in lines; the first begins with ``begin``, those behind it with ``hang``."""
    text = " ".join(visible(begin + written(said)).split())
    return fill(
        text,
        width,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _beside(name: str, said: Words, width: int) -> str:
    """A name on the left of a sentence in lines."""
    lines = _words(said, max(width - len(name), LONGEST))
    return name + indent(lines, " " * len(name)).lstrip()


def _facts(block: Facts, width: int) -> str:
    room = 2 + max(map(len, block.said))
    lines = []
    for term, said, _ in block.items():
        names = [one_line(term), *[""] * (len(said) - 1)]
        for name, item in zip(names, said, strict=True):
            lines.append(_beside(name.ljust(room), item, width))
    return "\n".join(lines)


def _scores(block: Scores, width: int) -> str:
    names = [f"{'    ' if row.is_part else '  '}{one_line(row.name)}" for row in block.rows]
    numbers = ["" if row.number is None else written(row.number) for row in block.rows]
    room, room_of_number = (2 + max(map(len, column)) for column in (names, numbers))
    lines = []
    for row, name, number in zip(block.rows, names, numbers, strict=True):
        shown = number.ljust(room_of_number) if number else ""
        lines.append(_beside(name.ljust(room) + shown, row.meaning, width))
    return "\n".join(lines)


def _table(block: Table, width: int) -> str:
    table = RichTable(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for k, own in enumerate(_widths(block, width)):
        numbers = any(is_number(row[k]) for row in block.rows)
        side: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(_cell(block.head[k]), justify=side, width=own)
    for row in block.rows:
        table.add_row(*map(_cell, row))
    console = Console(file=StringIO(), width=100_000, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _widths(table: Table, width: int) -> list[int]:
    """Returns the column widths that fit `width`.

    Numbers are never broken; words are broken only between each other, the longest column most.
    """
    least, most = [], []
    for k, name in enumerate(table.head):
        cells = [_cell(name), *(_cell(row[k]) for row in table.rows)]
        whole = [_cell(row[k]) for row in table.rows if is_number(row[k])]
        words = [Text(word[:LONGEST]) for cell in cells for word in cell.plain.split()]
        least.append(max([1, *(text.cell_len for text in (*whole, *words))]))
        most.append(max(cell.cell_len for cell in cells))
    spare = max(0, width - sum(least) - 2 * (len(least) - 1))
    widths = list(least)
    by_need = sorted(range(len(least)), key=lambda k: most[k] - least[k])
    for n_before, k in enumerate(by_need):
        n_left = len(least) - n_before
        room = max(spare // n_left, spare - KEPT * (n_left - 1))
        more = min(most[k] - least[k], room)
        widths[k] += more
        spare -= more
    return widths


def _cell(cell: Cell) -> Text:
    return Text(one_line(written(cell)))  # a Text has no markup
