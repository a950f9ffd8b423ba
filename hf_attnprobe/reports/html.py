"""A document as one page that stands by itself, or for a notebook's cell. Pure.

The layout is ``page.html``; jinja2 escapes every text in it. A page loads nothing, sends
nothing, and can be read without scripts.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hf_attnprobe.charts.chart import Chart, HeatMap
from hf_attnprobe.reports import elements
from hf_attnprobe.reports.document import (
    Answered,
    Block,
    Code,
    Document,
    Facts,
    Folded,
    Link,
    Listing,
    Note,
    NumberLine,
    Quoted,
    Section,
    Strong,
    Table,
    Texts,
    Words,
    is_number,
    written,
)
from hf_attnprobe.reports.tags import Html, legible
from hf_attnprobe.reports.texts import texts_view


IN_A_SCRIPT = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
"""What could end a script, or a line of it, or cannot be written in UTF-8."""

FEWEST_LISTED = 3
"""A page with fewer sections has no contents."""

KINDS = {
    list: "bullets",
    Note: "note",
    Facts: "facts",
    Table: "table",
    Answered: "answered",
    NumberLine: "number_line",
    Listing: "listing",
    Chart: "drawing",
    HeatMap: "drawing",
    Texts: "drawing",
    Folded: "folded",
    Section: "part",
}
"""By class of block the macro of ``page.html`` that shows it; all others are paragraphs."""


def to_html(report: Document) -> str:
    """The whole page: the same document gives the same bytes.

    Raises:
        ValueError: NaN or infinity in its data, which JSON does not have.
    """
    script = _file("page.js")
    return (
        _templates()
        .get_template("page.html")
        .render(
            report=report,
            is_listed=len(report.sections) >= FEWEST_LISTED,
            policy=policy(script),
            style=_style(),
            script=Markup(script),  # nosec B704: a file of this package
            data=None if report.data is None else _as_json(report.data),
        )
    )


def to_cell(parts: Iterable[Block]) -> str:
    """Blocks for a notebook's cell: style and content, without script.

    The style holds within the cell's output alone. A shadow root would part them more
    strictly, but notebooks insert output in a way that leaves declared shadow roots out,
    and then nothing would be seen.
    """
    kept = [part for part in parts if part]
    return _templates().get_template("cell.html").render(parts=kept, style=_style())


def policy(script: str) -> str:
    """What the page may do: show itself and run one script, known by its SHA-256."""
    digest = hashlib.sha256(script.encode()).digest()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{base64.b64encode(digest).decode()}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("hf_attnprobe", "reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: legible(value) if isinstance(value, str) else value,
    )
    templates.filters |= {
        "kind": lambda block: KINDS.get(type(block), "paragraph"),
        "spans": lambda words: words if isinstance(words, tuple) else (words,),
        "span": _span,
        "symbol": lambda answer: _markup(elements.symbol(answer)),
        "written": written,
        "numbers": _columns_of_numbers,
        "drawn": _drawn,
    }
    templates.tests["number"] = is_number
    return templates


def _span(words: Words) -> str:
    """The kind of a span of words."""
    kinds = {Code: "code", Strong: "strong", Quoted: "quoted", Link: "link"}
    return kinds.get(type(words), "plain")


def _columns_of_numbers(table: Table) -> list[bool]:
    """Which columns have numbers, which are aligned to the right."""
    return [any(is_number(row[k]) for row in table.rows) for k in range(len(table.head))]


def _drawn(block: NumberLine | Chart | HeatMap | Texts) -> Markup:
    """What is drawn, with everything that belongs to it."""
    match block:
        case NumberLine():
            low, high = block.number.ci95 or (None, None)
            line = elements.scale(
                block.number.value,
                low,
                high,
                block.thresholds,
                block.yardsticks,
                block.ends,
                block.before,
            )
            return _markup(line)
        case Chart():
            return _markup(elements.figure(block))
        case HeatMap():
            return _markup(elements.head_map(block))
    return _markup(texts_view(block.texts))


def _markup(html: Html | None) -> Markup:
    return Markup(html or "")  # nosec B704: Html is escaped where it is made


def _as_json(data: object) -> Markup:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    safe = IN_A_SCRIPT.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return Markup(safe)  # nosec B704: nothing in it ends a script


@cache
def _style() -> Markup:
    """All styles, valid within the class of the page alone."""
    rules = "\n".join(_file(name) for name in ("page.css", "texts.css"))
    return Markup(f".attnprobe {{\n{rules}}}\n")  # nosec B704: files of this package


@cache
def _file(name: str) -> str:
    return files("hf_attnprobe.reports").joinpath(name).read_text(encoding="utf-8")
