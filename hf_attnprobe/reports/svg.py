"""Charts as inline SVG: matplotlib's drawing, trimmed to what a page needs. Pure.

Text stays text, in the page's type; colours are the page's, so that a drawing follows light
and dark; ids are the chart's own. Values show their numbers under the pointer.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from xml.etree import ElementTree  # nosec B405: it reads what matplotlib wrote

from matplotlib.axes import Axes

from hf_attnprobe import figures
from hf_attnprobe.charts.chart import Chart, Series, drawable, short
from hf_attnprobe.reports.texts import legible


COLOURS = {
    "#0072b2": "blue",
    "#d55e00": "orange",
    "#009e73": "green",
    "#cc79a7": "rose",
    "#e69f00": "ochre",
    "#56b4e9": "violet",
    "#000000": "ink",
    "#222222": "ink",
    "#555555": "quiet",
    "#777777": "quiet",
    "#dddddd": "rule",
    "#ffffff": "ground",
}
"""By colour on paper that of the page, a variable of its style."""

KEPT = {"fill", "fill-opacity", "stroke", "stroke-dasharray", "stroke-width"}
"""Properties of matplotlib's; the page's style says the rest."""

MOST_SPOTS = 80
"""More values than this of a series have no words each."""

Element = ElementTree.Element
Place = Callable[[float, float], tuple[float, float]]
"""From a value's place on the axes to one in the figures."""


def draw(chart: Chart) -> str:
    """A chart as an SVG element; what is not a finite number is left out, and counted."""
    key = re.sub(r"[^\w-]", "-", chart.key)
    with warnings.catch_warnings(action="ignore"):  # a browser has glyphs that our font lacks
        ax = figures.draw(chart)
        figure = ax.get_figure(root=True)
        assert figure is not None  # it was made for these axes
        for background in (figure.patch, ax.patch):
            background.set_visible(False)
        svg = figures.written(figure, "svg", salt=key)
        drawn = ElementTree.fromstring(svg)  # nosec B314
    named = {f"{key}-title": ("title", chart.title), f"{key}-desc": ("desc", _described(chart))}
    whole = Element(
        "svg",
        {
            "class": f"chart {chart.kind}",
            "viewBox": drawn.get("viewBox", ""),
            "role": "img",
            "aria-labelledby": " ".join(named),
        },
    )
    for own, (name, words) in named.items():
        _with_text(ElementTree.SubElement(whole, name, {"id": own}), words)
    for element in drawn:
        whole.extend(_trimmed(element))
    ElementTree.SubElement(whole, "g", {"class": "spots"}).extend(_spots(chart, ax))
    return legible(ElementTree.tostring(whole, encoding="unicode"))


def _with_text(element: Element, words: str) -> Element:
    element.text = words
    return element


def _trimmed(element: Element) -> list[Element]:
    """An element and what is in it, without what a page does not need."""
    name = _local(element.tag)
    if name in ("metadata", "style") or (name == "path" and "d" not in element.attrib):
        return []
    attributes = {
        _local(k): _in_few_letters(v)
        for k, v in element.items()
        if k != "style" and not v.startswith("rotate(-0 ")
    }
    style = _style(element)
    if name == "text":
        attributes |= _anchor(element)
    if name == "use":
        style = {}  # it looks like the mark, and is filled by the group
    if name == "g":
        attributes.pop("id", None)  # nobody refers to groups
        marks = element.findall("{*}use")
        if len(marks) > MOST_SPOTS:
            return [_cloud(marks, attributes)]
        style = {k: v for mark in marks for k, v in _style(mark).items() if k.startswith("fill")}
    if style:
        attributes["style"] = ";".join(f"{k}:{v}" for k, v in style.items())
    inner = [kept for child in element for kept in _trimmed(child)]
    if (name in ("g", "defs") and not inner) or (name == "g" and not attributes):
        return inner
    kept = _with_text(Element(name, attributes), (element.text or "").strip())
    kept.extend(inner)
    return [kept]


def _cloud(marks: list[Element], attributes: dict[str, str]) -> Element:
    """Many discs in few letters: ends of lines without length."""
    style = _style(marks[0])
    path = _in_few_letters("".join(f"M {mark.get('x')} {mark.get('y')}h0" for mark in marks))
    stroke = f"stroke:{style['fill']};stroke-opacity:{style['fill-opacity']}"
    size = str(figures.SMALL_MARK)
    own = {"d": path, "class": "cloud", "style": stroke, "stroke-width": size}
    return Element("path", own | attributes)


def _local(name: str) -> str:
    """A name of XML without its namespace."""
    return name.rpartition("}")[2]


def _style(element: Element) -> dict[str, str]:
    """What of an element's style the page does not say, in the page's colours."""
    said = (part.split(": ") for part in element.get("style", "").split("; ") if part)
    return {
        name: re.sub(r"#[0-9a-f]{6}\b", lambda found: f"var(--{COLOURS[found[0]]})", value)
        for name, value in said
        if name in KEPT
    }


def _anchor(text: Element) -> dict[str, str]:
    found = re.search("text-anchor: (middle|end)", text.get("style", ""))
    return {"text-anchor": found[1]} if found else {}


def _in_few_letters(value: str) -> str:
    """Coordinates, to a tenth of a point; other words as they are."""
    value = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):z.1f}".removesuffix(".0"), value)
    is_path = value.startswith("M ")
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", value.strip()) if is_path else value


def _places(ax: Axes) -> Place:
    """From the data of axes to the drawing, whose origin is at the upper left."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    to_figure = ax.transData - figure.transFigure
    width, height = 72 * figure.get_size_inches()

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = to_figure.transform((x, y))
        return round(float(across * width), 1), round(float((1 - up) * height), 1)

    return place


def _spots(chart: Chart, ax: Axes) -> Iterator[Element]:
    """What says a value in words while the pointer is there."""
    place = _places(ax)
    if chart.kind == "histogram":
        bottom, top = ax.get_ylim()
        for start, end, words in _bins(chart):
            (left, low), (right, high) = place(start, bottom), place(end, top)
            yield _spot("path", words, d=f"M{left} {low}H{right}V{high}H{left}z")
        return
    for k, series in enumerate(chart.series):
        spots = list(enumerate(figures.spots(chart, k)))
        if chart.kind == "curve":
            spots = spots[figures.marked(chart, k)]
        for i, spot in spots if len(spots) <= MOST_SPOTS else ():
            if all(map(drawable, spot)):
                x, y = place(*spot)
                yield _spot("circle", _said(chart, series, i), cx=str(x), cy=str(y))


def _spot(name: str, words: str, **attributes: str) -> Element:
    spot = Element(name, attributes)
    _with_text(ElementTree.SubElement(spot, "title"), words)
    return spot


def _bins(chart: Chart) -> Iterator[tuple[float, float, str]]:
    """The ends of each bin that has a value, and what all series have there."""
    held: dict[float, dict[str, float]] = {}
    for s in chart.series:
        for x, y in zip(s.x, s.y, strict=True):
            held.setdefault(float(x), {})[s.name] = y  # type: ignore[arg-type]
    for start, values in held.items():
        end = start + figures.bin_width(chart.series[0], chart)
        said = [f"{name}: {short(y)}" for name, y in values.items()]
        if any(values.values()):
            yield start, end, "; ".join([f"{short(start)} to {short(end)}", *said])


def _said(chart: Chart, s: Series, i: int) -> str:
    """The i-th value of a series in words, with its bar and its number of texts."""
    text = f"{s.name}, {short(s.x[i])}: {short(s.y[i])}"
    if s.low and s.high:
        text += f" [{short(s.low[i])}, {short(s.high[i])}], {chart.bars}"
    return text + (f", {s.n[i]} texts" if s.n else "")


def _described(chart: Chart) -> str:
    """The drawing in words, for those who do not see it."""
    what = {
        "histogram": "Histogram",
        "dots": "Values with bars",
        "curve": "Lines",
        "points": "Points",
    }
    names = ", ".join(s.name for s in chart.series if s.name)
    said = f"{what[chart.kind]}: {chart.y_label} by {chart.x_label}"
    said += f", for {names}." if names else "."
    if chart.references:
        lines = ", ".join(f"{r.name} {short(r.value)}" for r in chart.references)
        said += f" Lines for comparison: {lines}."
    missing = sum(not drawable(y) for s in chart.series for y in s.y)
    said += f" {missing} values are missing or infinite and not drawn." if missing else ""
    return f"{said} The numbers are in the table below."
