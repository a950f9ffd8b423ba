"""Documents as plain text for a terminal.

Every block type has a macro in ``blocks.txt``. Control characters in users' texts are replaced, so
that they cannot change the terminal's state.
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

from hf_attnprobe.core.terminal import escape_control_characters, escape_line
from hf_attnprobe.documents.blocks import (
    Block,
    Cell,
    DefinitionList,
    Document,
    InlineText,
    ScoreTable,
    Table,
    describe_number_line,
    format_cell,
    is_numeric_cell,
)
from hf_attnprobe.documents.templates import load_templates, render_blocks
from hf_attnprobe.documents.token_shading import describe_highlighted_text


MAX_LINE_WIDTH = 100
"""Maximum length, in characters, of a line in a terminal report. Only tables can be wider."""

RESERVED_COLUMN_GROWTH = 8
"""Number of characters by which each later column can still grow after a table column is widened."""

MAX_UNBROKEN_WORD_LENGTH = 30
"""Length, in characters, up to which a word in a table is not split over two lines."""


def render_text(document: Document, *, verbose: bool = False, width: int = MAX_LINE_WIDTH) -> str:
    """Render a document as plain text without colours.

    Args:
        document: the document to render.
        verbose: include all sections instead of only those for the short report.
        width: characters per line.
    """
    sections = [
        section
        for section in document.sections
        if section is not None and (verbose or section.in_short_report)
    ]
    parts = [
        _wrap(document.heading, width),
        *_render_blocks([*document.lead, *sections], width),
    ]
    return "\n\n".join(parts)


def _render_blocks(blocks: Iterable[Block], width: int) -> list[str]:
    """Render each block of a document as plain text with lines of at most ``width`` characters."""
    return render_blocks(_load_templates(), "blocks.txt", blocks, width)


def _render_indented_blocks(blocks: Iterable[Block], width: int, separator: str) -> str:
    """Render blocks as one text, indented by two spaces."""
    return indent(separator.join(_render_blocks(blocks, width - 2)), "  ")


@cache
def _load_templates() -> Environment:
    """Load the plain-text templates, with the functions that the templates call."""
    filters = {
        "wrap": _wrap,
        "definition_list": _format_definition_list,
        "table": _format_table,
        "score_table": _format_score_table,
        "describe_number_line": describe_number_line,
        "format_cell": format_cell,
        "describe_text": describe_highlighted_text,
        "code_block": lambda text: indent(escape_control_characters(text), "  "),
        "blocks": lambda blocks, width, separator: separator.join(_render_blocks(blocks, width)),
        "indented_blocks": _render_indented_blocks,
    }
    return load_templates("documents", filters)


def _wrap(text: InlineText, width: int, prefix: str = "", hanging_indent: str = "") -> str:
    """Wrap a sentence into lines of at most ``width`` characters.

    Args:
        text: the sentence.
        width: characters per line.
        prefix: text in front of the sentence.
        hanging_indent: spaces in front of every line except the first.
    """
    line = " ".join(escape_control_characters(prefix + format_cell(text)).split())
    return fill(
        line,
        width,
        subsequent_indent=hanging_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _wrap_next_to(label: str, text: InlineText, width: int) -> str:
    """Wrap a sentence into lines that all begin to the right of a label."""
    lines = _wrap(text, max(width - len(label), MAX_UNBROKEN_WORD_LENGTH))
    return label + indent(lines, " " * len(label)).lstrip()


def _format_definition_list(block: DefinitionList, width: int) -> str:
    """Format a definition list, with each term to the left of its descriptions."""
    label_width = 2 + max(map(len, block.definitions))
    lines = []
    for term, descriptions, _ in block.items():
        for k, description in enumerate(descriptions):
            # Only the first description has the term to its left.
            label = escape_line(term) if k == 0 else ""
            lines.append(_wrap_next_to(label.ljust(label_width), description, width))
    return "\n".join(lines)


def _format_score_table(block: ScoreTable, width: int) -> str:
    """Format a score table with the columns name, number and explanation."""
    names, numbers = [], []
    for row in block.rows:
        indentation = "  " if row.is_part else ""
        names.append(f"{indentation}{row.mark} {escape_line(row.name)}")
        numbers.append("" if row.number is None else format_cell(row.number))
    name_width = 2 + max(map(len, names))
    number_width = 2 + max(map(len, numbers))
    lines = []
    for row, name, number in zip(block.rows, names, numbers, strict=True):
        padded_number = number.ljust(number_width) if number else ""
        lines.append(_wrap_next_to(name.ljust(name_width) + padded_number, row.meaning, width))
    if block.legend_text:
        lines.append(f"{' ' * name_width}{block.legend_text}")
    return "\n".join(lines)


def _format_table(block: Table, width: int) -> str:
    """Format a table as plain text, with columns that fit into ``width`` characters if possible."""
    table = RichTable(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for k, column_width in enumerate(_compute_column_widths(block, width)):
        has_numbers = any(is_numeric_cell(row[k]) for row in block.rows)
        side: Literal["left", "right"] = "right" if has_numbers else "left"
        table.add_column(_build_rich_text(block.head[k]), justify=side, width=column_width)
    for row in block.rows:
        table.add_row(*map(_build_rich_text, row))
    # The console is wide enough for any table, because rich would otherwise shorten numbers.
    console = Console(file=StringIO(), width=100_000, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _compute_column_widths(table: Table, width: int) -> list[int]:
    """Compute column widths, in characters, so that a table fits the terminal if possible.

    Numbers are never wrapped. Texts are wrapped at spaces, and the widest column is wrapped first.
    """
    # A column with its minimum width fits numbers and single words. A column with its maximum width
    # fits whole cells.
    min_widths, max_widths = [], []
    for k, name in enumerate(table.head):
        cells = [_build_rich_text(name), *(_build_rich_text(row[k]) for row in table.rows)]
        numbers = [_build_rich_text(row[k]) for row in table.rows if is_numeric_cell(row[k])]
        words = [word for cell in cells for word in cell.plain.split()]
        words_or_parts = [Text(word[:MAX_UNBROKEN_WORD_LENGTH]) for word in words]
        min_widths.append(max([1, *(text.cell_len for text in (*numbers, *words_or_parts))]))
        max_widths.append(max(cell.cell_len for cell in cells))
    # Two spaces separate neighbouring columns.
    separators_width = 2 * (len(min_widths) - 1)
    available_width = max(0, width - sum(min_widths) - separators_width)
    widths = list(min_widths)
    growth = [high - low for low, high in zip(min_widths, max_widths, strict=True)]
    # Widen the columns that need the least space first. The space that they do not need remains
    # available for the other columns.
    columns_by_growth = sorted(range(len(widths)), key=lambda k: growth[k])
    for n_widened, k in enumerate(columns_by_growth):
        n_remaining = len(widths) - n_widened
        max_growth = max(
            available_width // n_remaining,
            available_width - RESERVED_COLUMN_GROWTH * (n_remaining - 1),
        )
        column_growth = min(growth[k], max_growth)
        widths[k] += column_growth
        available_width -= column_growth
    return widths


def _build_rich_text(cell: Cell) -> Text:
    """Format a cell as rich text, in which square brackets are not markup."""
    return Text(escape_line(format_cell(cell)))
