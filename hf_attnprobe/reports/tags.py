"""HTML that escapes whatever is not HTML already. Pure."""

import re
from collections.abc import Iterable
from html import escape


FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that neither HTML nor XML can hold, half surrogates among them."""

TURNING = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Characters that turn the direction of all that follows, beyond the text they stand in."""

VOID = {"br", "circle", "col", "hr", "input", "line", "meta", "path", "rect", "use"}
"""Elements without content, those of SVG among them."""


class Html(str):
    """A string that is HTML; any other string is text and is escaped.

    A character that HTML cannot hold is shown as the sign for that, U+FFFD; one that
    turns the direction of writing by its name, such as [U+202E].
    """

    __slots__ = ()


Child = object
"""Html as it is; None and False as nothing; lists one after the other; else as text."""


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element.

    Args:
        name: of the element.
        children: its content.
        attributes: by name; a trailing underscore is dropped and others become hyphens,
            so that ``class_`` and ``aria_label`` can be written. None and False leave an
            attribute out, True writes its name alone.

    >>> tag("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    start = f"<{name}{''.join(map(_attribute, attributes.items()))}"
    if name in VOID and not children:
        return Html(f"{start}/>")
    return Html(f"{start}>{join(children)}</{name}>")


def join(children: Iterable[Child], between: str = "") -> Html:
    """Children one after the other.

    >>> join(["a", None, tag("b", "&")])
    'a<b>&amp;</b>'
    """
    return Html(between.join(map(_rendered, children)))


def _rendered(child: Child) -> str:
    if child is None or child is False:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, (list, tuple)):
        return join(child)
    return legible(escape(str(child), quote=False))


def _attribute(item: tuple[str, object]) -> str:
    name, value = item
    if value is None or value is False:
        return ""
    written = name.removesuffix("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{legible(escape(str(value)))}"'


def legible(text: str) -> str:
    """A text as HTML can hold it: see :class:`Html`; what is HTML already stays."""
    if hasattr(text, "__html__"):
        return text
    named = TURNING.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)
    return FORBIDDEN.sub("\ufffd", named)
