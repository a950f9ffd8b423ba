"""The whole file: head, style, script, contents, and data for machines. Pure."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from hf_attnprobe.page.html import Child, Html, join, tag


IN_A_SCRIPT = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
"""What could end a script, or a line of it, or cannot be written in UTF-8."""


def document(
    title: str,
    *body: Child,
    data: Mapping | None = None,
    lang: str = "en",
    description: str = "",
) -> str:
    """A self-contained page: no request leaves it, and without scripts all is readable.

    Args:
        title: of the browser's window, and the first heading where the body has none.
        body: its content; its sections are listed at the beginning.
        data: the same for machines, as JSON; plain data, None for NaN.
        lang: of the page.
        description: in a sentence, for search engines and previews.

    Raises:
        ValueError: NaN or infinity in ``data``, which JSON does not have.
    """
    content = join(body)
    script = _file("page.js")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content="hf_attnprobe"),
        tag("meta", name="description", content=description) if description else None,
        tag("title", title),
        tag("link", rel="icon", href="data:,"),  # or the browser would ask for one
        _style(),
    )
    heading = None if "<h1" in content else tag("header", tag("h1", title))
    page = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        _contents(content),
        tag("main", heading, content, id="content"),
        tag(
            "footer",
            tag(
                "p",
                "Written by hf_attnprobe. This file loads nothing and sends nothing.",
            ),
        ),
        _data(data) if data is not None else None,
        tag("script", Html(script)),
        class_="attnprobe page",
    )
    return f"<!DOCTYPE html>\n{tag('html', head, page, lang=lang)}\n"


def fragment(*body: Child) -> Html:
    """The same for a notebook's cell: style and content, without script.

    The style holds within the fragment alone. A shadow root would part them more strictly,
    but notebooks insert output in a way that leaves declared shadow roots out, and then
    nothing would be seen.
    """
    return tag("div", _style(), *body, class_="attnprobe")


def policy(script: str) -> str:
    """What the page may do: show itself and run one script, known by its SHA-256."""
    digest = hashlib.sha256(script.encode()).digest()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{base64.b64encode(digest).decode()}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _contents(content: str) -> Html | None:
    """Links to the sections; nothing where there are only few."""
    found = re.findall(r'<section id="([^"]+)"[^>]*><h2>(.*?)</h2>', content)
    if len(found) < 3:
        return None
    links = [tag("li", tag("a", Html(title), href=f"#{id}")) for id, title in found]
    return tag("nav", tag("ol", *links), aria_label="Contents")


def _data(data: Mapping) -> Html:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return tag(
        "script",
        Html(IN_A_SCRIPT.sub(_as_json_may, text)),
        type="application/json",
        id="report-data",
    )


def _as_json_may(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


@cache
def _style() -> Html:
    """All styles of this folder, valid within the class of the page alone."""
    folder = files(__package__)
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".css"))
    rules = "\n".join(_file(name) for name in names)
    return tag("style", Html(f".attnprobe {{\n{rules}}}\n"))


@cache
def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
