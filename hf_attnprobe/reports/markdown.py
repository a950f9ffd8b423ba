"""A document as Markdown, in which no text is HTML, a link or a picture. Pure."""

import re
from collections.abc import Iterable
from functools import singledispatch

from hf_attnprobe.charts.chart import Chart, HeatMap
from hf_attnprobe.markdown import escaped, table
from hf_attnprobe.reports.document import (
    Answered,
    Block,
    Cell,
    Code,
    Document,
    Facts,
    Folded,
    Link,
    Listing,
    Note,
    NumberLine,
    Quoted,
    Scores,
    Section,
    Strong,
    Table,
    Texts,
    Words,
    number_line_in_words,
    written,
)
from hf_attnprobe.reports.texts import in_words
from hf_attnprobe.terminal import visible


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
    return [said for part in parts if part and (said := _block(part, level))]


def words(said: Words) -> str:
    """A sentence on one line.

    >>> words(("run ", Code("x"), ", not <b>"))
    'run `x`, not &lt;b>'
    """
    text = ""
    for part in map(_span, said if isinstance(said, tuple) else (said,)):
        apart = (
            " " if text.endswith("`") and part.startswith("`") else ""
        )  # or they were one code
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
    return _line(span)


def _line(text: str) -> str:
    """A text that stays within its line; spaces at its ends part it from its neighbours."""
    return READ.sub(escaped, visible(re.sub(r"\s+", " ", text)))


def _quoted(text: str) -> str:
    """Text whose every sign Markdown leaves as it is."""
    return re.sub(
        r"[\\`*_\[\]<>|#]|!$", escaped, visible(" ".join(text.split()) or text)
    )


def _code(text: str) -> str:
    """As it is, between more backquotes than it has in a row."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    shown = visible(re.sub(r"\s+", " ", text))
    return f"{fence}{space}{shown}{space}{fence}"


def _cell(cell: Cell) -> str:
    return (
        words(cell) if isinstance(cell, (str, tuple, Link)) else written(cell)
    )


@singledispatch
def _block(block: object, level: int) -> str:
    raise TypeError(
        f"expected a block of a document, got {type(block).__name__}"
    )


@_block.register(str)
@_block.register(tuple)
@_block.register(Link)
def _paragraph(block: Words, level: int) -> str:
    return words(block).strip()


@_block.register
def _(block: list, level: int) -> str:
    return "\n".join(f"- {words(item)}" for item in block)


@_block.register
def _(block: Note, level: int) -> str:
    return words(block.words)


@_block.register
def _(block: Facts, level: int) -> str:
    lines = []
    for term, said, is_list in block.items():
        lines.append(
            f"- {words(term)}:{'' if is_list else ' ' + words(said[0])}"
        )
        lines += [f"    - {words(item)}" for item in said if is_list]
    return "\n".join(lines)


@_block.register
def _(block: Table, level: int) -> str:
    lines = table(
        list(map(words, block.head)),
        [list(map(_cell, row)) for row in block.rows],
    )
    caption = [f"{words(block.caption)}:", ""] if block.caption else []
    return "\n".join([*caption, *lines])


@_block.register
def _(block: Answered, level: int) -> str:
    asked = f"**{words(block.question)}** " if block.question else ""
    said = f"{asked}**{block.answer}**: {words(block.sentence)}"
    return "\n\n".join([said, *blocks(block.blocks, level)])


@_block.register
def _(block: Scores, level: int) -> str:
    lines = []
    for row in block.rows:
        begin = f"{'    ' if row.is_part else ''}- **{words(row.name)}**"
        number = "" if row.number is None else f" {written(row.number)}"
        lines.append(f"{begin}{number}: {words(row.meaning)}")
    return "\n".join(lines)


@_block.register
def _(block: NumberLine, level: int) -> str:
    return words(number_line_in_words(block))


@_block.register
def _(block: Listing, level: int) -> str:
    fence = "`" * max(
        3, 1 + max(map(len, re.findall("`+", block.text)), default=0)
    )
    return f"{fence}\n{visible(block.text)}\n{fence}"


@_block.register(Chart)
@_block.register(HeatMap)
def _drawn(block: Chart | HeatMap, level: int) -> str:
    """What a picture shows, which is not drawn here; nothing of one that is only a table's."""
    if not block.finding:
        return ""
    said = [f"**{words(block.title)}**: {words(block.finding)}"]
    return " ".join(
        [*said, *([f"Source: {words(block.source)}."] if block.source else [])]
    )


@_block.register
def _(block: Texts, level: int) -> str:
    return "\n\n".join(
        part for text in block.texts for part in blocks(in_words(text), level)
    )


@_block.register
def _(block: Folded, level: int) -> str:
    return _headed(block.summary, block.blocks, level)


@_block.register
def _(block: Section, level: int) -> str:
    return _headed(block.title, block.blocks, level)


def _headed(title: str, parts: Iterable[Block], level: int) -> str:
    return "\n\n".join(
        [f"{'#' * level} {words(title)}", *blocks(parts, level + 1)]
    )
