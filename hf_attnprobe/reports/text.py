"""A document as text for a terminal, which no text of a user steers. Pure."""

from collections.abc import Iterable
from functools import singledispatch
from io import StringIO
from textwrap import fill, indent
from typing import Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from hf_attnprobe.charts.chart import Chart, HeatMap
from hf_attnprobe.reports.document import (
    Answered,
    Block,
    Cell,
    Document,
    Facts,
    Folded,
    Link,
    Listing,
    Note,
    NumberLine,
    Scores,
    Section,
    Table,
    Texts,
    Words,
    is_number,
    number_line_in_words,
    written,
)
from hf_attnprobe.reports.texts import in_words
from hf_attnprobe.terminal import one_line, visible


WIDTH = 100
"""Letters of a line of words at most; tables whose numbers need more room have it."""

KEPT = 8
"""Letters that a column leaves to each longer one, where a table is too wide."""

LONGEST = 30
"""Letters of a word in a table that is not broken."""


def to_text(
    report: Document, *, verbose: bool = False, width: int = WIDTH
) -> str:
    """The report, without colours.

    Args:
        report: a document.
        verbose: all of it; else its lead and the sections that are ``brief``.
        width: letters of a line.
    """
    sections = [
        s for s in report.sections if s is not None and (verbose or s.brief)
    ]
    said = [
        _words(report.heading, width),
        *_blocks([*report.lead, *sections], width),
    ]
    return "\n\n".join(said)


def _blocks(parts: Iterable[Block], width: int) -> list[str]:
    return [said for part in parts if part and (said := _block(part, width))]


def _words(said: Words, width: int, hang: str = "") -> str:
    """A sentence in lines; the lines behind the first begin with ``hang``."""
    text = " ".join(visible(written(said)).split())
    return fill(
        text,
        width,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


@singledispatch
def _block(block: object, width: int) -> str:
    raise TypeError(
        f"expected a block of a document, got {type(block).__name__}"
    )


@_block.register(str)
@_block.register(tuple)
@_block.register(Link)
def _paragraph(block: Words, width: int) -> str:
    return _words(block, width)


@_block.register
def _(block: list, width: int) -> str:
    return "\n".join(
        _words(("- ", *_spans(item)), width, hang="  ") for item in block
    )


@_block.register
def _(block: Note, width: int) -> str:
    return _words(block.words, width)


@_block.register
def _(block: Facts, width: int) -> str:
    room = max(map(len, block.said))
    lines = []
    for term, said, _ in block.items():
        for k, item in enumerate(said):
            name = one_line(term) if k == 0 else ""
            text = indent(
                _words(item, max(width - room - 2, LONGEST)), " " * (room + 2)
            )
            lines.append(text.replace(" " * room, name.ljust(room), 1))
    return "\n".join(lines)


@_block.register
def _(block: Table, width: int) -> str:
    table = RichTable(
        box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0)
    )
    for k, own in enumerate(_widths(block, width)):
        numbers = any(is_number(row[k]) for row in block.rows)
        side: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(_cell(block.head[k]), justify=side, width=own)
    for row in block.rows:
        table.add_row(*map(_cell, row))
    console = Console(file=StringIO(), width=100_000, color_system=None)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join(
        [_words(block.caption, width), *lines] if block.caption else lines
    )


def _widths(table: Table, width: int) -> list[int]:
    """Of the columns: numbers are never broken, words only between them, the longest most."""
    least, most = [], []
    for k, name in enumerate(table.head):
        cells = [_cell(name), *(_cell(row[k]) for row in table.rows)]
        whole = [_cell(row[k]) for row in table.rows if is_number(row[k])]
        words = [
            Text(word[:LONGEST])
            for cell in cells
            for word in cell.plain.split()
        ]
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


@_block.register
def _(block: Answered, width: int) -> str:
    asked = (block.question, " ") if block.question else ()
    answer = block.answer[:1].upper() + block.answer[1:]
    said = _words((*asked, f"{answer}. ", *_spans(block.sentence)), width)
    return "\n".join(
        [
            said,
            *(indent(part, "  ") for part in _blocks(block.blocks, width - 2)),
        ]
    )


@_block.register
def _(block: Scores, width: int) -> str:
    names = [
        f"{'    ' if row.is_part else '  '}{one_line(row.name)}"
        for row in block.rows
    ]
    numbers = [
        "" if row.number is None else written(row.number) for row in block.rows
    ]
    name_room, number_room = (
        2 + max(map(len, column)) for column in (names, numbers)
    )
    lines = []
    for row, name, number in zip(block.rows, names, numbers, strict=True):
        begin = name.ljust(name_room) + (
            number.ljust(number_room) if number else ""
        )
        meaning = _words(row.meaning, max(width - len(begin), LONGEST))
        lines.append(begin + indent(meaning, " " * len(begin)).lstrip())
    return "\n".join(lines)


@_block.register
def _(block: NumberLine, width: int) -> str:
    return _words(number_line_in_words(block), width)


@_block.register
def _(block: Listing, width: int) -> str:
    return indent(visible(block.text), "  ")


@_block.register(Chart)
@_block.register(HeatMap)
def _drawn(block: Chart | HeatMap, width: int) -> str:
    """What a picture shows, which is not drawn here; nothing of one that is only a table's."""
    if not block.finding:
        return ""
    source = f" Source: {block.source}." if block.source else ""
    return _words(f"{block.title}: {block.finding}{source}", width)


@_block.register
def _(block: Texts, width: int) -> str:
    return "\n\n".join(
        "\n".join(_blocks(in_words(text), width)) for text in block.texts
    )


@_block.register
def _(block: Folded, width: int) -> str:
    return "\n".join(
        [_words(block.summary, width), *_blocks(block.blocks, width)]
    )


@_block.register
def _(block: Section, width: int) -> str:
    parts = (indent(part, "  ") for part in _blocks(block.blocks, width - 2))
    return "\n".join([_words(block.title, width), "\n\n".join(parts)])


def _spans(said: Words) -> tuple[str | Link, ...]:
    return said if isinstance(said, tuple) else (said,)
