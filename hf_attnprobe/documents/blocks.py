"""What a report says, as data: a verb writes it once, and every form prints it.

A verb has one function ``document(result) -> Document``. ``text.py`` prints it for a terminal,
``markdown.py`` as Markdown, ``html.py`` as a page or a notebook's cell; none of them knows a verb::

    def document(d: Deception) -> Document:
        return Document(
            f"Does {d.model} hide what it uses?",
            [LEAD, Answered(QUESTION, d.overall, verdict(d))],
            [
                Section("What this cannot say", [LIMITS]),
                Section("Before and after", [Table(["", "before", "after"], rows(d))], brief=True),
                Section("How it was made", [Folded("Every setting", [Facts(d.settings)])]),
            ],
            data=plain(d),
        )

Blocks, which are what stands in a lead, a section, a fold or an answer:

=====================  =====================================================================
``"a sentence"``       a paragraph; ``("run ", Code("x"))`` is one with code or strong words
``["one", "two"]``     a list, of sentences as above
:class:`Note`          a paragraph in small print
:class:`Facts`         terms, each with what is said of it: "model", "texts", a glossary
:class:`Table`         cells are values; their digits are the form's affair
:class:`Answered`      a question with its graded answer and what it rests on
:class:`NumberLine`    a number among its thresholds and yardsticks
:class:`Scores`        numbers on one scale, a row each: name, number, line, meaning
:class:`Listing`       a command or a file, letter by letter
``Chart, HeatMap``     of :mod:`hf_attnprobe.plots.chart`: a drawing, its numbers behind it
:class:`Texts`         texts whose tokens are shaded by their scores
:class:`Section`       within a section: a part with a smaller heading
:class:`Folded`        what is folded away on a page until it is asked for
=====================  =====================================================================

Whatever is empty is left out: None, "", [], a table without rows, a section without blocks. So a
verb writes ``table if rows else None``, or nothing at all, and asks no further.

A cell, and a number on a line, is a text, an int, a float (None and NaN are a dash), an
estimate (anything with ``value`` and ``ci95``), or a :class:`Number` that wants other digits,
points, a sign or a word beside it, or :class:`Figures`, written elsewhere. :func:`written` is the one place that makes text of a cell.

Texts are plain: each form escapes them. Nothing here is HTML or Markdown. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from typing import Any, Literal, Protocol

from hf_attnprobe.core.formatting import MISSING, interval, number
from hf_attnprobe.plots.chart import Chart, HeatMap
from hf_attnprobe.plots.shown_text import ShownText


class Code(str):
    """Words that are code: a name, an option, a command."""

    __slots__ = ()


class Strong(str):
    """Words that carry the sentence."""

    __slots__ = ()


class Quoted(str):
    """Words of somebody's text, of which no sign means anything."""

    __slots__ = ()


class Figures(str):
    """A number that is a text already, such as "3 of 40 [.01, .20]"; it is never broken."""

    __slots__ = ()


@dataclass(frozen=True)
class Link:
    """Words that lead to another place.

    Attributes:
        words: what is read.
        address: of a file beside this one, of a section as ``#id``, or of a page.
    """

    words: str
    address: str


Words = str | Link | tuple[str | Link, ...]
"""A sentence; a tuple where some of its words are code, strong, quoted or a link."""


class Estimated(Protocol):
    """A number that may have an interval."""

    @property
    def value(self) -> float: ...
    @property
    def ci95(self) -> tuple[float, float] | None: ...


@dataclass(frozen=True)
class Number:
    """A number that is not written with three digits, or not by itself.

    Attributes:
        value: NaN where there is none.
        ci95: its interval.
        digits: behind the point.
        sign: ``+`` to write the sign of positive numbers too.
        before: words before it, such as "at most".
        after: words behind it, such as "(?)".
    """

    value: float
    ci95: tuple[float, float] | None = None
    digits: int = 3
    sign: Literal["", "+"] = ""
    before: str = ""
    after: str = ""


Cell = Words | int | float | Estimated | Number | None


@dataclass(frozen=True)
class Note:
    """A paragraph in small print: what a number is of, where a claim comes from."""

    words: Words

    def __bool__(self) -> bool:
        return bool(self.words)


@dataclass(frozen=True)
class Listing:
    """A command or a file, letter by letter."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Terms, each with what is said of it; a list where there is more than one thing to say."""

    said: Mapping[str, Words | list[Words] | list[str] | None]

    def __post_init__(self) -> None:
        kept = {term: words for term, words in self.said.items() if words}
        object.__setattr__(self, "said", kept)

    def __bool__(self) -> bool:
        return bool(self.said)

    def items(self) -> Iterator[tuple[str, Sequence[Words], bool]]:
        """Each term, what is said of it, and whether that is a list."""
        for term, said in self.said.items():
            if isinstance(said, list):
                yield term, said, True
            elif said:
                yield term, [said], False


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it.

    Attributes:
        head: names of the columns.
        rows: cells, as values.
        caption: what is in it.
        sortable: whether its order means nothing, so that a page may sort it.
    """

    head: Sequence[Words]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    sortable: bool = True

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True)
class NumberLine:
    """A number with its interval on a line, among what it is to be compared with.

    Attributes:
        number: what is on the line; a NaN is not drawn.
        thresholds: where the answer changes, by what they are.
        yardsticks: what others reach, such as a random order, by what they are.
        ends: of the line; None for round numbers around all that is on it.
        before: words before the number, such as "at most".
    """

    number: Estimated
    thresholds: Mapping[str, float] = field(default_factory=dict)
    yardsticks: Mapping[str, float] = field(default_factory=dict)
    ends: tuple[float, float] | None = None
    before: str = ""


@dataclass(frozen=True)
class Score:
    """A row of :class:`Scores`.

    Attributes:
        name: of the question.
        number: None of a row that is a sentence alone.
        meaning: of the number, or the sentence.
        line: the number on its scale, for a page.
        is_part: whether it is a part of the row above it.
        is_beside: whether it stands beside the scale; a page shows it below the texts.
    """

    name: str
    number: Number | None
    meaning: Words
    line: NumberLine | None = None
    is_part: bool = False
    is_beside: bool = False


@dataclass(frozen=True)
class Scores:
    """Numbers on one scale, each with its meaning on its row."""

    rows: Sequence[Score]

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True)
class Answered:
    """A question with its graded answer.

    Attributes:
        question: as a reader would ask it; "" where the report's heading asks it.
        answer: yes, partly, no, or cannot say.
        sentence: what was found, with its number.
        blocks: what the answer rests on: its number's line, notes, folds.
    """

    question: str
    answer: str
    sentence: Words
    blocks: "Sequence[Block]" = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(filter(None, self.blocks)))


@dataclass(frozen=True)
class Texts:
    """Texts whose tokens are shaded by their scores, with a legend."""

    texts: Sequence[ShownText]

    def __bool__(self) -> bool:
        return bool(self.texts)


class WithBlocks:
    """What is nothing without its blocks; those that are empty are left out."""

    blocks: "Sequence[Block]"

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", tuple(filter(None, self.blocks)))

    def __bool__(self) -> bool:
        return bool(self.blocks)


@dataclass(frozen=True)
class Folded(WithBlocks):
    """What is folded away on a page; other forms print it like a section.

    Attributes:
        summary: what is always seen.
        blocks: what is folded away.
    """

    summary: str
    blocks: "Sequence[Block]"


@dataclass(frozen=True)
class Section(WithBlocks):
    """A part with a heading.

    Attributes:
        title: its heading.
        blocks: what stands in it.
        id: its name in links to a page; "" for one made of the title.
        brief: whether the terminal shows it without being asked for all.
        folded: whether a page folds it away, so that it is printed only where it is opened.
    """

    title: str
    blocks: "Sequence[Block]"
    id: str = ""
    brief: bool = False
    folded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.id:
            words = re.findall(r"\w+", self.title.lower())
            object.__setattr__(self, "id", "-".join(words))


Block = (
    Words
    | list[Words]
    | list[str]
    | Note
    | Facts
    | Table
    | Answered
    | NumberLine
    | Scores
    | Listing
    | Chart
    | HeatMap
    | Texts
    | Folded
    | Section
    | None
)


KINDS = {
    list: "bullets",
    Note: "note",
    Facts: "facts",
    Table: "table",
    Answered: "answered",
    NumberLine: "number_line",
    Scores: "scores",
    Listing: "listing",
    Chart: "chart",
    HeatMap: "chart",
    Texts: "texts",
    Folded: "folded",
    Section: "part",
}
"""By class of block the macro that prints it; all others are paragraphs."""


def kind_of(block: object) -> str:
    """The kind of a block: the name of what prints it in ``blocks.html`` and ``blocks.md``.

    Raises:
        TypeError: it is no block.
    """
    kind = KINDS.get(type(block))
    if kind is None and not isinstance(block, str | tuple | Link):
        raise TypeError(f"expected a block of a document, got {type(block).__name__}")
    return kind or "paragraph"


@dataclass(frozen=True)
class Document:
    """A report.

    Attributes:
        title: of the browser's window.
        lead: the answer, and what must be known to read it; every form begins with it.
        sections: the rest, in the order of reading; a page lists them at its beginning.
        data: the same for machines, as JSON in the page; plain data, None for NaN.
        heading: the first heading; "" for the title.
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


def written(cell: Cell) -> str:
    """The text of a cell: three digits, and more of them where a small number needs them.

    >>> written(0.12345), written(2e-5), written(7), written(None), written("a name")
    ('0.123', '2.0e-05', '7', '–', 'a name')
    >>> written(Number(0.8, (0.75, 0.85), digits=1, after="(?)"))
    '0.8 [0.8, 0.8] (?)'
    """
    match cell:
        case None:
            return MISSING
        case str():
            return str(cell)
        case Link():
            return cell.words
        case tuple():
            return "".join(map(written, cell))
        case Number():
            return _number(cell)
        case int() | Integral():
            return str(cell)
        case float() | Real():
            value = float(cell)
            return f"{value:.1e}" if 0 < abs(value) < 5e-4 else number(value)
    return interval(cell.value, cell.ci95)


def _number(cell: Number) -> str:
    shown = interval(cell.value, cell.ci95, digits=cell.digits, sign=cell.sign)
    return " ".join(filter(None, [cell.before, shown, cell.after]))


def is_number(cell: Cell) -> bool:
    """Whether a cell is a number, which is aligned to the right."""
    if isinstance(cell, Figures):
        return True
    return not isinstance(cell, (str, tuple, Link, bool, type(None)))


def number_line_in_words(line: NumberLine) -> str:
    """What a form without drawings says of it.

    >>> number_line_in_words(NumberLine(Number(0.34, (0.31, 0.37)), {"yes from": 0.3}))
    '0.340 [0.310, 0.370]; yes from 0.3'
    """
    number = line.number
    own = written(Number(number.value, number.ci95, before=line.before))
    marks = {**line.thresholds, **line.yardsticks}
    return "; ".join([own, *(f"{name} {value:.3g}" for name, value in marks.items())])


NOT_READ = {"key", "id", "kind", "data", "answer"}
"""Fields of blocks whose strings are not for readers."""


def texts_in(part: object) -> Iterator[str]:
    """All that is to be read in a document, a section or a block, text by text."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, Mapping):
        for term, said in part.items():
            yield str(term)
            yield from texts_in(said)
    elif is_dataclass(part):
        for own in fields(part):
            if own.name not in NOT_READ:
                yield from texts_in(getattr(part, own.name))
    elif isinstance(part, Iterable):
        for each in part:
            yield from texts_in(each)


def glossary(parts: Iterable[object], meanings: Mapping[str, str]) -> Section:
    """The terms that occur in parts of a document, with what they mean.

    Args:
        parts: sections or blocks.
        meanings: by term.
    """
    text = " ".join(texts_in(list(parts)))
    known: dict[str, Words | list[Words] | None] = {
        term: meaning
        for term, meaning in meanings.items()
        if re.search(rf"(?<!\w){re.escape(term)}", text, re.IGNORECASE)
    }
    return Section("What the words mean", [Facts(known)], id="glossary")
