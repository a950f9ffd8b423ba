"""Documents as Markdown, in which no user text becomes HTML, a link or an image.

Every block type has a macro in ``blocks.md``.
"""

import re
from collections.abc import Iterable
from functools import cache

from jinja2 import Environment

from hf_attnprobe.core.formatting import escape_markdown_match, format_table
from hf_attnprobe.core.terminal import escape_control_characters
from hf_attnprobe.documents.blocks import (
    Block,
    Cell,
    Code,
    Document,
    InlineText,
    Label,
    Link,
    Strong,
    Table,
    UserText,
    describe_number_line,
    format_cell,
)
from hf_attnprobe.documents.templates import load_templates, render_blocks
from hf_attnprobe.documents.token_shading import describe_highlighted_text


MARKUP_IN_PACKAGE_TEXT = re.compile(
    r"\\(?=[^\w\s]|$)|`|~(?=~)|<(?=[A-Za-z/!?])|\](?=[(\[])|!$|(?:^|(?<=^ ))\[(?=[^\]]*\]:)"
)
"""Pattern for characters that are escaped when this package's sentences are written as Markdown.

It matches characters that would begin code, HTML, an escape sequence or a link.
"""

MARKUP_IN_USER_TEXT = re.compile(r"[\\`*_\[\]<>|#]|!$")
"""Pattern for characters that are escaped when a user's texts are written as Markdown.

It matches all characters that could be markup.
"""


def render_markdown(document: Document) -> str:
    """Render a document as Markdown.

    Args:
        document: the document to render.
    """
    parts = [
        f"# {format_inline(document.heading)}",
        *render_markdown_blocks(document.lead, 3),
        *render_markdown_blocks(document.sections),
    ]
    return "\n\n".join(parts) + "\n"


def render_markdown_blocks(blocks: Iterable[Block], level: int = 2) -> list[str]:
    """Render blocks as Markdown.

    Args:
        blocks: blocks to render; empty ones are skipped.
        level: heading level for sections among the blocks; the document's title has level 1.

    Returns:
        One text per block, to be separated by blank lines.
    """
    return render_blocks(_load_templates(), "blocks.md", blocks, level)


@cache
def _load_templates() -> Environment:
    """Load the Markdown templates, with the functions that the templates call."""
    filters = {
        "inline": format_inline,
        "format_cell": format_cell,
        "table": _format_table,
        "code_block": _format_code_block,
        "describe_number_line": describe_number_line,
        "describe_text": describe_highlighted_text,
        "blocks": lambda blocks, level: "\n\n".join(render_markdown_blocks(blocks, level)),
    }
    return load_templates("documents", filters)


def format_inline(text: InlineText) -> str:
    """Format a sentence as one line of Markdown.

    >>> format_inline(("run ", Code("x"), ", not <b>"))
    'run `x`, not &lt;b>'

    Args:
        text: the sentence.
    """
    parts = text if isinstance(text, tuple) else (text,)
    line = ""
    for part in parts:
        span = _format_span(part)
        # Without a space, two adjacent pieces of code would become one.
        space = " " if line.endswith("`") and span.startswith("`") else ""
        line += f"{space}{span}"
    return line


def _format_span(span: str | Link | Label) -> str:
    """Format a part of a sentence as Markdown, such as a link, code or bold text."""
    match span:
        case Link():
            address = re.sub(r"[<>\s]", "", escape_control_characters(span.address))
            return f"[{_escape_user_text(span.words)}](<{address}>)"
        case Label():
            return _escape_user_text(str(span))
        case Code():
            return _format_code(span)
        case Strong():
            return f"**{_escape_user_text(span)}**"
        case UserText():
            return _escape_user_text(span)
    # Leading and trailing spaces are kept, because they separate the span from its neighbours.
    line = escape_control_characters(re.sub(r"\s+", " ", span))
    return MARKUP_IN_PACKAGE_TEXT.sub(escape_markdown_match, line)


def _escape_user_text(text: str) -> str:
    """Escape a user's text so that Markdown treats no character in it as markup."""
    return MARKUP_IN_USER_TEXT.sub(
        escape_markdown_match, escape_control_characters(" ".join(text.split()) or text)
    )


def _format_code(text: str) -> str:
    """Format a text as inline code in Markdown."""
    # The fence is a row of backticks that is longer than any in the text.
    fence = _choose_fence(text)
    # Spaces separate the fence from backticks at the start or end of the text.
    space = " " if "`" in text else ""
    line = escape_control_characters(re.sub(r"\s+", " ", text))
    return f"{fence}{space}{line}{space}{fence}"


def _format_code_block(text: str) -> str:
    """Format a text as a fenced code block."""
    fence = _choose_fence(text, min_length=3)
    return f"{fence}\n{escape_control_characters(text)}\n{fence}"


def _choose_fence(text: str, min_length: int = 1) -> str:
    """Choose a delimiter for code: more backquotes than the text has in a row."""
    longest_run = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(min_length, 1 + longest_run)


def _format_table(block: Table) -> str:
    """Format a table as Markdown."""
    head = map(format_inline, block.head)
    rows = (map(_format_table_cell, row) for row in block.rows)
    return "\n".join(format_table([*head], map(list, rows)))


def _format_table_cell(cell: Cell) -> str:
    """Format a table cell as Markdown.

    Texts may contain code, bold words and links.
    """
    if isinstance(cell, (str, tuple, Link, Label)):
        return format_inline(cell)
    return format_cell(cell)
