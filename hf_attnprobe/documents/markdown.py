"""A document as Markdown, in which no text is HTML, a link or a picture. Pure.

Each kind of block is a macro of ``blocks.md``.
"""

import re
from collections.abc import Iterable
from functools import cache

from jinja2 import Environment

from hf_attnprobe.core.formatting import escaped, table
from hf_attnprobe.core.terminal import visible
from hf_attnprobe.documents.blocks import (
    Block,
    Cell,
    Code,
    Document,
    Link,
    Quoted,
    Strong,
    Table,
    Words,
    number_line_in_words,
    written,
)
from hf_attnprobe.documents.highlighted_text import in_words
from hf_attnprobe.documents.templates import printed, templates_of


READ = re.compile(
    r"\\(?=[^\w\s]|$)|`|~(?=~)|<(?=[A-Za-z/!?])|\](?=[(\[])|!$|(?:^|(?<=^ ))\[(?=[^\]]*\]:)"
)
"""What begins code or HTML, escapes, or makes a link or a picture of what it stands beside."""


def to_markdown(report: Document) -> str:
    """The whole report."""
    parts = [
        f"# {words(report.heading)}",
        *blocks(report.lead, 3),
        *blocks(report.sections),
    ]
    return "\n\n".join(parts) + "\n"


def blocks(parts: Iterable[Block], level: int = 2) -> list[str]:
    """The Markdown of blocks, to be parted by empty lines.

    Args:
        parts: blocks.
        level: of the headings of sections among them; 1 is the title's.
    """
    return printed(_templates(), "blocks.md", parts, level)


@cache
def _templates() -> Environment:
    filters = {
        "words": words,
        "written": written,
        "table": _table,
        "fenced": _fenced,
        "in_words": number_line_in_words,
        "shown": in_words,
        "blocks": lambda parts, level: "\n\n".join(blocks(parts, level)),
    }
    return templates_of("documents", filters)


def words(said: Words) -> str:
    """A sentence on one line.

    >>> words(("run ", Code("x"), ", not <b>"))
    'run `x`, not &lt;b>'
    """
    text = ""
    for part in map(_span, said if isinstance(said, tuple) else (said,)):
        apart = " " if text.endswith("`") and part.startswith("`") else ""  # or they were one code
        text += f"{apart}{part}"
    return text


def _span(span: str | Link) -> str:
    match span:
        case Link():
            address = re.sub(r"[<>\s]", "", visible(span.address))
            return f"[{_quoted(span.words)}](<{address}>)"
        case Code():
            return _code(span)
        case Strong():
            return f"**{_quoted(span)}**"
        case Quoted():
            return _quoted(span)
    # Spaces at its ends part it from its neighbours.
    return READ.sub(escaped, visible(re.sub(r"\s+", " ", span)))


def _quoted(text: str) -> str:
    """Text whose every sign Markdown leaves as it is."""
    return re.sub(r"[\\`*_\[\]<>|#]|!$", escaped, visible(" ".join(text.split()) or text))


def _code(text: str) -> str:
    """As it is, between more backquotes than it has in a row."""
    fence = _fence(text)
    space = " " if "`" in text else ""
    shown = visible(re.sub(r"\s+", " ", text))
    return f"{fence}{space}{shown}{space}{fence}"


def _fenced(text: str) -> str:
    fence = _fence(text, least=3)
    return f"{fence}\n{visible(text)}\n{fence}"


def _fence(text: str, least: int = 1) -> str:
    """More backquotes than a text has in a row."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(least, 1 + longest)


def _table(block: Table) -> str:
    head, rows = map(words, block.head), (map(_cell, row) for row in block.rows)
    return "\n".join(table([*head], map(list, rows)))


def _cell(cell: Cell) -> str:
    if isinstance(cell, (str, tuple, Link)):
        return words(cell)
    return written(cell)
