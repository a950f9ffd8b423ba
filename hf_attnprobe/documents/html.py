"""Documents as one self-contained HTML page, or as the output of a notebook cell.

``page.html`` is the page layout, and ``blocks.html`` has a macro for every block type. Jinja escapes
every text. A page loads nothing, sends nothing, and is readable without scripts.
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

from hf_attnprobe.documents import token_shading
from hf_attnprobe.documents.blocks import (
    Block,
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
    get_macro_name,
    is_numeric_cell,
)
from hf_attnprobe.documents.number_line import layout_number_line
from hf_attnprobe.documents.templates import load_templates
from hf_attnprobe.documents.token_shading import escape_invisible
from hf_attnprobe.plots.chart import Chart, HeatMap
from hf_attnprobe.plots.highlighted_text import HighlightedText


UNSAFE_IN_SCRIPT = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
"""Pattern for characters that must be escaped in JSON within an HTML script element."""

MIN_SECTIONS_FOR_CONTENTS = 5
"""Smallest number of visible sections with which a page gets a table of contents."""

MAX_SIDE_CAPTION_LENGTH = 420
"""Maximum length, in characters, of a caption next to its chart.

Longer captions are placed below the chart.
"""

ANSWER_SYMBOLS = {
    "yes": "M4.5 8.5l2.5 2.5 4.5-5.5",
    "partly": "M4 8h8",
    "no": "M5 5l6 6M11 5l-6 6",
    "cannot say": "M6 6.2c.2-2.6 4-2.4 4 0 0 1.6-2 1.5-2 3.1M8 11.3v.6",
}
"""Maps each answer to the SVG path of its symbol: a tick, a dash, a cross or a question mark."""


def render_html(document: Document) -> str:
    """Render a document as a complete HTML page.

    The same document always gives the same bytes.

    Args:
        document: the document to render.

    Returns:
        The page's HTML source.

    Raises:
        ValueError: If the document's data contain NaN or infinity, which JSON cannot represent.
    """
    script = _read_file("page.js")
    visible_sections = [
        section for section in document.sections if section is not None and not section.is_collapsed
    ]
    return (
        _load_templates()
        .get_template("page.html")
        .render(
            document=document,
            listed_sections=visible_sections,
            min_listed_sections=MIN_SECTIONS_FOR_CONTENTS,
            security_policy=build_security_policy(script),
            style=_build_style(),
            # The script is a file of this package, not user input.
            script=Markup(script),  # nosec B704
            data=None if document.data is None else _embed_json(document.data),
        )
    )


def render_cell_html(blocks: Iterable[Block], *, title: str = "") -> str:
    """Render blocks as HTML for a notebook cell, with style but without scripts.

    The style rules only apply to this output and not to the rest of the notebook.

    Args:
        blocks: blocks to render; empty ones are skipped.
        title: heading above the blocks; empty for no heading.
    """
    filled_blocks = [block for block in blocks if block]
    # A shadow root would isolate the style better, but notebooks would display nothing.
    template = _load_templates().get_template("cell.html")
    return template.render(parts=filled_blocks, title=title, style=_build_style())


def build_security_policy(script: str) -> str:
    """Return a Content-Security-Policy that allows inline styles and one script.

    The browser then refuses all other scripts, and loads nothing from other servers.

    Args:
        script: source code of the allowed script, which the policy identifies by its SHA-256 hash.
    """
    digest = hashlib.sha256(script.encode()).digest()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{base64.b64encode(digest).decode()}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def _load_templates() -> Environment:
    """Load the HTML templates, with the functions and constants that the templates use."""
    filters = {
        "macro_name": get_macro_name,
        "spans": lambda text: text if isinstance(text, tuple) else (text,),
        "span_type": _get_span_type,
        "format_cell": format_cell,
        "find_numeric_columns": _find_numeric_columns,
        "layout_number_line": layout_number_line,
        "describe_number_line": describe_number_line,
        "svg": _render_chart,
        "svg_of_maps": _render_unit_maps,
    }
    templates = load_templates(
        "documents",
        filters,
        autoescape=True,
        finalize=lambda value: escape_invisible(value) if isinstance(value, str) else value,
    )
    templates.globals |= {
        "answer_symbols": ANSWER_SYMBOLS,
        "max_side_caption": MAX_SIDE_CAPTION_LENGTH,
        "token_shading": token_shading,
    }
    templates.tests["number"] = is_numeric_cell
    return templates


def _get_span_type(span: InlineText) -> str:
    """Return the name under which the template handles a part of a sentence, such as "code"."""
    types = {Code: "code", Strong: "strong", UserText: "user_text", Link: "link", Label: "label"}
    return types.get(type(span), "plain")


def _find_numeric_columns(table: Table) -> list[bool]:
    """Check for each column of a table whether it contains a number.

    Columns with numbers are aligned to the right.
    """
    n_columns = len(table.head)
    return [any(is_numeric_cell(row[k]) for row in table.rows) for k in range(n_columns)]


def _render_chart(chart: Chart | HeatMap) -> Markup:
    """Render a chart as an SVG element."""
    # Matplotlib is slow to import, and many pages have no charts.
    from hf_attnprobe.documents.svg import render_svg

    # ElementTree has escaped all texts in the drawing.
    return Markup(render_svg(chart))  # nosec B704


def _render_unit_maps(text: HighlightedText) -> Markup:
    """Render the maps of an image or a bag as an SVG element."""
    # Matplotlib is slow to import, and most pages have no maps.
    from hf_attnprobe.documents.svg import render_unit_maps

    # ElementTree has escaped all texts in the drawing.
    return Markup(render_unit_maps(text))  # nosec B704


def _embed_json(data: object) -> Markup:
    """Convert data to JSON whose characters cannot end the script element that contains it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    safe_text = UNSAFE_IN_SCRIPT.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return Markup(safe_text)  # nosec B704


@cache
def _build_style() -> Markup:
    """Build the CSS rules, restricted to elements within the class ``attnprobe``."""
    rules = "\n".join(_read_file(name) for name in ("page.css", "texts.css"))
    # The rules are files of this package, not user input.
    return Markup(f".attnprobe {{\n{rules}}}\n")  # nosec B704


@cache
def _read_file(name: str) -> str:
    """Read a text file from this package."""
    return files("hf_attnprobe.documents").joinpath(name).read_text(encoding="utf-8")
