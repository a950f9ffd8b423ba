"""A document as one page that stands by itself, or for a notebook's cell. Pure.

The layout is ``page.html``, each kind of block a macro of ``blocks.html``; jinja2 escapes
every text in them. A page loads nothing, sends nothing, and can be read without scripts.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from jinja2 import Environment
from markupsafe import Markup

from hf_attnprobe.documents import highlighted_text as texts
from hf_attnprobe.documents.blocks import (
    Block,
    Code,
    Document,
    Link,
    Quoted,
    Strong,
    Table,
    Words,
    is_number,
    kind_of,
    number_line_in_words,
    written,
)
from hf_attnprobe.documents.highlighted_text import legible
from hf_attnprobe.documents.number_line import placed
from hf_attnprobe.documents.templates import templates_of
from hf_attnprobe.plots.chart import Chart, HeatMap


IN_A_SCRIPT = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
"""What could end a script, or a line of it, or cannot be written in UTF-8."""

FEWEST_LISTED = 5
"""A page with fewer sections that are not folded has no contents."""

LONG = 420
"""Letters of a finding that is too long to stand beside its drawing."""

SYMBOLS = {
    "yes": "M4.5 8.5l2.5 2.5 4.5-5.5",
    "partly": "M4 8h8",
    "no": "M5 5l6 6M11 5l-6 6",
    "cannot say": "M6 6.2c.2-2.6 4-2.4 4 0 0 1.6-2 1.5-2 3.1M8 11.3v.6",
}
"""The sign of each answer, beside its word."""


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
            listed=[s for s in report.sections if s is not None and not s.folded],
            fewest=FEWEST_LISTED,
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
    filters = {
        "kind": kind_of,
        "spans": lambda words: words if isinstance(words, tuple) else (words,),
        "span": _span,
        "written": written,
        "numbers": _columns_of_numbers,
        "placed": placed,
        "in_words": number_line_in_words,
        "svg": _svg,
    }
    templates = templates_of(
        "documents",
        filters,
        autoescape=True,
        finalize=lambda value: legible(value) if isinstance(value, str) else value,
    )
    templates.globals |= {"symbols": SYMBOLS, "long": LONG, "shown": texts}
    templates.tests["number"] = is_number
    return templates


def _span(words: Words) -> str:
    """The kind of a span of words."""
    kinds = {Code: "code", Strong: "strong", Quoted: "quoted", Link: "link"}
    return kinds.get(type(words), "plain")


def _columns_of_numbers(table: Table) -> list[bool]:
    """Which columns have numbers, which are aligned to the right."""
    return [any(is_number(row[k]) for row in table.rows) for k in range(len(table.head))]


def _svg(chart: Chart | HeatMap) -> Markup:
    from hf_attnprobe.documents.svg import draw  # matplotlib is slow to import

    return Markup(draw(chart))  # nosec B704: ElementTree has escaped its texts


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
    return files("hf_attnprobe.documents").joinpath(name).read_text(encoding="utf-8")
