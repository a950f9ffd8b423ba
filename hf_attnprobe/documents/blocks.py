"""Data types for the contents of a report: a document is a sequence of blocks.

Every command has one function that turns its result into a :class:`Document`. The modules
``terminal_text.py``, ``markdown.py`` and ``html.py`` print any document and do not depend on the
commands. For example::

    def build_document(result: TrainingResult) -> Document:
        return Document(
            f"How good is {result.model}?",
            [INTRODUCTION, AnswerBlock(QUESTION, result.answer, describe_result(result))],
            [
                Section("Limitations", [LIMITATIONS]),
                Section("Metrics", [Table(["metric", "value"], rows)], in_short_report=True),
                Section("Settings", [Collapsible("All settings", [DefinitionList(settings)])]),
            ],
            data=plain(result),
        )

A section, a collapsible block and an answer contain blocks of these types:

========================  ==================================================================
``"a sentence"``          a paragraph; ``("run ", Code("x"))`` is a paragraph with code in it
``["first", "second"]``   a bulleted list of sentences
:class:`Note`             a paragraph in small print
:class:`DefinitionList`   terms with their descriptions, for example settings or a glossary
:class:`Table`            a table of values; every output format formats the numbers
:class:`AnswerBlock`      a question, its answer (yes, partly, no), and the reasons
:class:`NumberLine`       a number on an axis with thresholds and reference values
:class:`ScoreTable`       numbers on a common scale, one row each
:class:`CodeBlock`        a command or a file, printed verbatim
:class:`NextStep`         advice on what to do next, with a command to copy
``Chart, HeatMap``        a drawing, see :mod:`hf_attnprobe.plots.chart`
:class:`ExampleTexts`     texts whose tokens are shaded by their scores
:class:`Section`          a subsection, if it is inside another section
:class:`Collapsible`      blocks that a page hides until the reader opens them
========================  ==================================================================

Empty blocks are dropped: None, ``""``, ``[]``, a table without rows, a section without blocks.
Callers can therefore pass ``table if rows else None``.

A table cell is a text, an int, a float (None and NaN are printed as a dash), or an object with
``value`` and ``ci95``. Use :class:`FormattedNumber` to choose the digits or to add words, and
:class:`NumericText` for a number that is formatted already. :func:`format_cell` formats all cells.

Texts are plain text, never HTML or Markdown; every output format escapes them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, Protocol

from hf_attnprobe.core.formatting import MISSING_NUMBER, format_interval, format_number
from hf_attnprobe.plots.chart import Chart, HeatMap
from hf_attnprobe.plots.highlighted_text import HighlightedText


class Code(str):
    """Inline code: the name of an option, a file or a command."""

    __slots__ = ()


class Strong(str):
    """Emphasised words, printed in bold."""

    __slots__ = ()


class UserText(str):
    """Text from a user's data or model, in which no character is markup."""

    __slots__ = ()


class NumericText(str):
    """A number that is formatted already, such as "3 of 40 [.01, .20]"; it is never wrapped."""

    __slots__ = ()


@dataclass(frozen=True)
class Link:
    """A hyperlink.

    Attributes:
        words: the link's text.
        address: a relative path, a URL, or ``#id`` for a section on the same page.
    """

    words: str
    address: str


@dataclass(frozen=True)
class Label:
    """A short text with a coloured background, such as the marker of a citation.

    A page displays the meaning when the reader points at the label; all other formats print it after
    the words.

    Attributes:
        words: the label's text, such as "[1]".
        meaning: explanation of the colour, such as "used".
        tone: the colour: "good" (green), "bad" (red), "neutral" (blue) or "open" (grey).
    """

    words: str
    meaning: str
    tone: str

    def __str__(self) -> str:
        return f"{self.words} ({self.meaning})"


InlineText = str | Link | Label | tuple[str | Link | Label, ...]
"""Type for a sentence: a string, or a tuple of parts such as ``("run ", Code("x"))``."""


class NumberWithInterval(Protocol):
    """Protocol for any object with a value and an optional 95% confidence interval."""

    @property
    def value(self) -> float:
        """The number."""
        ...

    @property
    def ci95(self) -> tuple[float, float] | None:
        """The 95% confidence interval for the number; None without interval."""
        ...


@dataclass(frozen=True)
class FormattedNumber:
    """A number with instructions for its format: digits, sign, prefix and suffix.

    Attributes:
        value: the number; NaN if it is not defined.
        ci95: 95% confidence interval for the number; None without interval.
        digits: digits after the decimal point.
        sign: "+" to print the sign of positive numbers too.
        prefix: words before the number, such as "at most".
        suffix: words after the number, such as "better".
    """

    value: float
    ci95: tuple[float, float] | None = None
    digits: int = 3
    sign: Literal["", "+"] = ""
    prefix: str = ""
    suffix: str = ""


Cell = InlineText | int | float | NumberWithInterval | FormattedNumber | None
"""Type for the content of a table cell: a text or a number, which :func:`format_cell` formats."""


@dataclass(frozen=True)
class Note:
    """A paragraph in small print, for example the source of a claim."""

    words: InlineText

    def __bool__(self) -> bool:
        return bool(self.words)


@dataclass(frozen=True)
class CodeBlock:
    """A command or the contents of a file, printed verbatim."""

    text: str


@dataclass(frozen=True)
class NextStep:
    """Advice on what to do next; a page prints it in a box and adds a button that copies the command.

    Attributes:
        words: the advice; if there is a command, its introduction.
        command: a command that follows the advice; empty without one.
        resumes: whether the command continues from the saved results if it has their output folder.
    """

    words: InlineText
    command: str = ""
    resumes: bool = False


@dataclass(frozen=True)
class DefinitionList:
    """A list of terms with descriptions, such as settings or a glossary.

    Attributes:
        definitions: description or list of descriptions for each term; empty ones are dropped.
    """

    definitions: Mapping[str, InlineText | list[InlineText] | list[str] | None]

    def __post_init__(self) -> None:
        definitions = {term: words for term, words in self.definitions.items() if words}
        object.__setattr__(self, "definitions", definitions)

    def __bool__(self) -> bool:
        return bool(self.definitions)

    def items(self) -> Iterator[tuple[str, Sequence[InlineText], bool]]:
        """Yield each term, its descriptions, and whether the descriptions are printed as a list.

        A term without a description is omitted.
        """
        for term, description in self.definitions.items():
            if isinstance(description, list):
                yield term, description, True
            elif description:
                yield term, [description], False


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows.

    Attributes:
        head: column titles.
        rows: cell values for every row.
        caption: short description of the table.
        sortable: whether readers of a page may sort the rows; False if their order has a meaning.
    """

    head: Sequence[InlineText]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    sortable: bool = True

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True)
class NumberLine:
    """A number with its interval on an axis, together with thresholds and reference values.

    Attributes:
        number: the number to mark; NaN is not drawn.
        thresholds: positions at which the answer changes, by name.
        references: positions of values to compare with, such as a random order, by name.
        ends: both ends of the axis; None chooses round numbers around all values.
        prefix: words before the number, such as "at most".
    """

    number: NumberWithInterval
    thresholds: Mapping[str, float] = field(default_factory=dict)
    references: Mapping[str, float] = field(default_factory=dict)
    ends: tuple[float, float] | None = None
    prefix: str = ""


@dataclass(frozen=True)
class ScoreTableRow:
    """A row of a :class:`ScoreTable`.

    Attributes:
        name: name of the measured quantity.
        number: measured value; None if the row is only a sentence.
        meaning: explanation of the number, or the sentence.
        line: number line, which only pages draw.
        is_part: whether the number contributes to the mean in the row above, and is indented.
        is_secondary: whether a page displays the row after the example texts.
        grade: answer that a mark displays: "yes", "partly", "no" or "cannot say"; empty if the row
            answers no question.
    """

    name: str
    number: FormattedNumber | None
    meaning: InlineText
    line: NumberLine | None = None
    is_part: bool = False
    is_secondary: bool = False
    grade: str = ""

    @property
    def mark(self) -> str:
        """Mark for the grade, such as "◐" for partly; a space without grade."""
        return GRADE_MARKS.get(self.grade, " ")


GRADE_MARKS = {"yes": "●", "partly": "◐", "no": "○", "cannot say": "?"}
"""Maps each answer to the character that marks the rows with this answer in a score table."""


@dataclass(frozen=True)
class ScoreTable:
    """Numbers on a common scale, each in a row with its explanation.

    Attributes:
        rows: the rows in reading order.
        secondary_title: heading above the rows that a page displays after the example texts.
    """

    rows: Sequence[ScoreTableRow]
    secondary_title: str = ""

    @property
    def legend(self) -> dict[str, str]:
        """Name of each mark, such as "open", by grade; empty if no row has a grade."""
        if not any(row.grade for row in self.rows):
            return {}
        return {grade: "open" if grade == "cannot say" else grade for grade in GRADE_MARKS}

    @property
    def legend_text(self) -> str:
        """Legend of the marks on one line; empty if no row has a grade."""
        return "  ".join(f"{GRADE_MARKS[grade]} {name}" for grade, name in self.legend.items())

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True)
class AnswerBlock:
    """A question with its answer.

    Attributes:
        question: the question as a reader would ask it; "" if it is the report's heading.
        answer: "yes", "partly", "no" or "cannot say"; also "mostly yes" and "mostly no".
        sentence: the result that leads to the answer, with its number.
        blocks: further details, such as the number line and notes.
    """

    question: str
    answer: str
    sentence: InlineText
    blocks: "Sequence[Block]" = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(filter(None, self.blocks)))


@dataclass(frozen=True)
class ExampleTexts:
    """Texts whose tokens are shaded by their scores, with a legend."""

    texts: Sequence[HighlightedText]

    def __bool__(self) -> bool:
        return bool(self.texts)


class BlockContainer:
    """Base class for blocks that contain other blocks.

    Empty inner blocks are dropped. A container without inner blocks counts as empty itself.
    """

    blocks: "Sequence[Block]"

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(filter(None, self.blocks)))

    def __bool__(self) -> bool:
        return bool(self.blocks)


@dataclass(frozen=True)
class Collapsible(BlockContainer):
    """Blocks that a page hides until the reader opens them; other formats print them as a section.

    Attributes:
        summary: the visible heading.
        blocks: the hidden blocks.
    """

    summary: str
    blocks: "Sequence[Block]"


@dataclass(frozen=True)
class Section(BlockContainer):
    """A part of a document with a heading.

    Attributes:
        title: the section's heading.
        blocks: the section's contents.
        id: anchor for links to the section; "" derives it from the title.
        in_short_report: whether the terminal prints the section even without ``--verbose``.
        is_collapsed: whether a page shows only the heading until the reader opens the section.
        in_notebook: whether a notebook displays the section below the beginning of the report.
    """

    title: str
    blocks: "Sequence[Block]"
    id: str = ""
    in_short_report: bool = False
    is_collapsed: bool = False
    in_notebook: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.id:
            words = re.findall(r"\w+", self.title.lower())
            object.__setattr__(self, "id", "-".join(words))


Block = (
    InlineText
    | list[InlineText]
    | list[str]
    | Note
    | DefinitionList
    | Table
    | AnswerBlock
    | NumberLine
    | ScoreTable
    | CodeBlock
    | NextStep
    | Chart
    | HeatMap
    | ExampleTexts
    | Collapsible
    | Section
    | None
)


MACRO_NAMES = {
    list: "bullets",
    Note: "note",
    DefinitionList: "definition_list",
    Table: "table",
    AnswerBlock: "answer",
    NumberLine: "number_line",
    ScoreTable: "score_table",
    CodeBlock: "code_block",
    NextStep: "next_step",
    Chart: "chart",
    HeatMap: "chart",
    ExampleTexts: "example_texts",
    Collapsible: "collapsible",
    Section: "subsection",
}
"""Maps each type of block to the Jinja macro that prints it.

Other types are printed as paragraphs.
"""


def get_macro_name(block: object) -> str:
    """Return the name of the Jinja macro that prints a block, such as "table" for a table.

    The templates ``blocks.html``, ``blocks.md`` and ``blocks.txt`` define macros with these names.

    Args:
        block: any block of a document.

    Raises:
        TypeError: If the object is not a block.
    """
    name = MACRO_NAMES.get(type(block))
    if name is None and not isinstance(block, str | tuple | Link | Label):
        raise TypeError(
            f"expected a document block, such as a string, a Table or a Section, got {type(block).__name__}"
        )
    return name or "paragraph"


@dataclass(frozen=True)
class Document:
    """A report that every output format can print.

    Attributes:
        title: title for the browser window.
        lead: blocks at the beginning: the answer and its explanation.
        sections: other parts in reading order; a page lists them in its table of contents.
        data: results for programs, embedded into the page as JSON, with None instead of NaN.
        heading: main heading; "" uses the title.
    """

    title: str
    lead: Sequence[Block]
    sections: Sequence[Section | None]
    data: Mapping[str, Any] | None = None
    heading: str = ""

    def __post_init__(self) -> None:
        for name in ("lead", "sections"):
            object.__setattr__(self, name, tuple(filter(None, getattr(self, name))))
        object.__setattr__(self, "heading", self.heading or self.title)


def format_cell(cell: Cell) -> str:
    """Format a table cell as text.

    Numbers get three digits after the decimal point; very small ones get scientific notation.

    >>> format_cell(0.12345), format_cell(2e-5), format_cell(7), format_cell(None)
    ('0.123', '2.0e-05', '7', '–')
    >>> format_cell("a name"), format_cell(FormattedNumber(0.8, (0.75, 0.85), 1, suffix="(?)"))
    ('a name', '0.8 [0.8, 0.8] (?)')

    Args:
        cell: the cell's value.
    """
    match cell:
        case None:
            return MISSING_NUMBER
        case str():
            return str(cell)
        case Link():
            return cell.words
        case Label():
            return str(cell)
        case tuple():
            return "".join(map(format_cell, cell))
        case FormattedNumber():
            return _format_number(cell)
        case int() | Integral():
            return str(cell)
        case float() | Real():
            value = float(cell)
            return f"{value:.1e}" if 0 < abs(value) < 5e-4 else format_number(value)
    # The only other type of cell is an estimate with a confidence interval.
    return format_interval(cell.value, cell.ci95)


def _format_number(cell: FormattedNumber) -> str:
    """Format a number with the words before it, its confidence interval and the words after it."""
    text = format_interval(cell.value, cell.ci95, digits=cell.digits, sign=cell.sign)
    return " ".join(filter(None, [cell.prefix, text, cell.suffix]))


def is_numeric_cell(cell: Cell) -> bool:
    """Check whether a cell is a number, which tables align to the right.

    Args:
        cell: the cell's value.
    """
    if isinstance(cell, NumericText):
        return True
    return not isinstance(cell, (str, tuple, Link, Label, bool, type(None)))


def describe_number_line(line: NumberLine) -> str:
    """Describe a number line in words, for formats without drawings.

    >>> line = NumberLine(FormattedNumber(0.34, (0.31, 0.37)), {"yes from": 0.3})
    >>> describe_number_line(line)
    '0.340 [0.310, 0.370]; yes from 0.3'

    Args:
        line: the number with its thresholds and reference values.
    """
    number = FormattedNumber(line.number.value, line.number.ci95, prefix=line.prefix)
    marks = {**line.thresholds, **line.references}
    mark_descriptions = [f"{name} {position:.3g}" for name, position in marks.items()]
    return "; ".join([format_cell(number), *mark_descriptions])


NON_TEXT_FIELDS = {"key", "id", "kind", "data", "answer", "grade", "tone", "command", "address"}
"""Names of dataclass fields that contain ids, commands or data instead of text for readers."""


def iterate_texts(part: object) -> Iterator[str]:
    """Yield every readable text in a document or a block.

    Args:
        part: a document, a block, or a collection of them.
    """
    if isinstance(part, str):
        yield part
    elif isinstance(part, Mapping):
        for term, description in part.items():
            yield str(term)
            yield from iterate_texts(description)
    elif is_dataclass(part):
        for part_field in fields(part):
            if part_field.name not in NON_TEXT_FIELDS:
                yield from iterate_texts(getattr(part, part_field.name))
    elif isinstance(part, Iterable):
        for item in part:
            yield from iterate_texts(item)


def map_texts(part: Any, function: Callable[[str], str]) -> Any:
    """Apply a function to every readable text in a document or a block.

    Code, texts from a user's data, formatted numbers and example texts are not changed.

    Args:
        part: a document, a block, or a collection of them.
        function: function that returns a new text.

    Returns:
        The changed copy.
    """
    if isinstance(part, str):
        is_prose = type(part) in (str, Strong)
        return type(part)(function(part)) if is_prose else part
    if isinstance(part, Mapping):
        return {map_texts(key, function): map_texts(value, function) for key, value in part.items()}
    if isinstance(part, tuple | list):
        items = [map_texts(item, function) for item in part]
        # A named tuple takes its fields as separate arguments.
        return type(part)(*items) if hasattr(part, "_fields") else type(part)(items)
    if is_dataclass(part) and not isinstance(part, type | HighlightedText | CodeBlock):
        changes = {
            part_field.name: map_texts(getattr(part, part_field.name), function)
            for part_field in fields(part)
            if part_field.init and part_field.name not in NON_TEXT_FIELDS
        }
        return replace(part, **changes)
    return part


def build_glossary(parts: Iterable[object], meanings: Mapping[str, str]) -> Section:
    """Build a section that explains the technical terms in a document.

    Args:
        parts: the document's sections or blocks.
        meanings: explanations of all known terms, by term.

    Returns:
        A section with the terms that occur in ``parts``, in the order of ``meanings``.
    """
    text = " ".join(iterate_texts(list(parts)))
    definitions: dict[str, InlineText | list[InlineText] | None] = {}
    for term, meaning in meanings.items():
        # A term counts only at the beginning of a word.
        pattern = rf"(?<!\w){re.escape(term)}"
        if re.search(pattern, text, re.IGNORECASE):
            definitions[term] = meaning
    return Section("Glossary", [DefinitionList(definitions)], id="glossary")
