"""Charts as inline SVG, with axes, legend and yardsticks. Pure.

Colours are classes of the page's style, so that a drawing follows light and dark; series
also differ by the shape of their marks, the dashes of their lines, the hatch of their bars.
"""

import re

from hf_attnprobe.charts.chart import Chart, Reference, Series
from hf_attnprobe.page.axes import cut, drawable, foot, short, width
from hf_attnprobe.page.frame import (
    GAP,
    LINE,
    LONGEST_NAME,
    WIDTH,
    Frame,
    axis_names,
    bin_width,
    folded,
    frame_of,
    legend_rows,
)
from hf_attnprobe.page.html import Html, tag
from hf_attnprobe.page.marks import (
    DASHES,
    colour,
    curves,
    dots,
    hatch,
    histogram,
    shape,
    write,
)


def draw(chart: Chart) -> Html:
    """A chart as an SVG element; what is not a finite number is left out, and counted."""
    key = re.sub(r"[^\w-]", "-", chart.key)
    frame = frame_of(chart)
    marks = _marks(chart, key, frame)
    return tag(
        "svg",
        tag("title", chart.title, id=f"{key}-title"),
        tag("desc", _described(chart), id=f"{key}-desc"),
        tag("defs", _clip(key, frame), _hatches(chart, key)),
        _legend(chart),
        _grid(chart, frame),
        tag("g", *marks, clip_path=f"url(#{key}-clip)"),
        _references(frame),
        None if marks else _text("no values", WIDTH / 2, frame.bottom - 90, "middle"),
        class_=f"chart {chart.kind}",
        viewBox=f"0 0 {WIDTH} {write(frame.height)}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
    )


def _marks(chart: Chart, key: str, frame: Frame) -> list[Html]:
    at: dict[str, list[int]] = {}  # series with a value at each category
    for k, s in enumerate(chart.series):
        for x, y in zip(s.x, s.y, strict=True):
            if drawable(y):
                at.setdefault(short(x), []).append(k)

    def places(k: int, s: Series) -> list:
        if not frame.names:
            return list(s.x)
        return [frame.names.index(short(x)) + beside(k, short(x)) for x in s.x]

    def beside(k: int, name: str) -> float:
        """Series stand beside each other where more than one has a value."""
        those = sorted(set(at.get(name, [])))
        if chart.kind == "curve" or k not in those:
            return 0.0
        n = len(those)
        return (those.index(k) - (n - 1) / 2) * min(0.16, 0.7 / n)

    if chart.kind == "histogram" and not frame.names:
        return histogram(chart, key, frame.point, bin_width(chart))
    if chart.kind == "curve":
        return curves(chart, frame.point, places)
    return dots(chart, frame.point, places)


def _grid(chart: Chart, frame: Frame) -> Html:
    """Both axes with their ticks, lines across at the ticks of values."""
    right, bottom = frame.right, write(frame.bottom)
    start, end, top = write(right.start), write(right.end), write(frame.top)
    axis, lines, texts = f"M{start} {bottom}H{end}", "", []
    if frame.across or not frame.names:
        n = max(2, int((right.end - right.start) / 70))
        for value, text in right.ticks(min(n, 8)):
            x = right.place(value)
            axis += f"M{write(x)} {bottom}v5"
            lines += f"M{write(x)} {top}V{bottom}" if frame.across else ""
            texts.append(_text(text, x, frame.bottom + LINE, "middle"))
    if not frame.across:
        for value, text in frame.up.ticks():
            y = frame.up.place(value)
            lines += f"M{start} {write(y)}H{end}"
            texts.append(_text(text, right.start - 7, y + 4.5, "end"))
    for k, name in enumerate(frame.names):
        x, y = frame.point(k, frame.values.low)
        if frame.across:
            parts = folded(name, 20, 2)
            first = y + 4.5 - 7 * (len(parts) - 1)
            texts += [
                _text(line, x - 7, first + 14 * i, "end", full=name) for i, line in enumerate(parts)
            ]
        else:
            texts.append(_text(name, x, frame.bottom + LINE, "middle"))
    if frame.values.holds(0.0):
        x, y = frame.point(frame.places.low, 0.0)
        axis += f"M{write(x)} {top}V{bottom}" if frame.across else f"M{start} {write(y)}H{end}"
    return tag(
        "g",
        tag("path", d=lines, class_="grid") if lines else None,
        tag("path", d=axis, class_="axis"),
        *texts,
        *_axis_names(chart, frame),
    )


def _axis_names(chart: Chart, frame: Frame) -> list[Html]:
    """Upright ones are hard to read: that of the upward axis stands above it."""
    below, above = axis_names(chart, frame.across)
    n_rows = len(legend_rows(chart))
    first = LINE * (n_rows + 1) - 5 + (GAP if n_rows else 0)
    under = frame.bottom + 2 * LINE + 2
    middle = (frame.right.start + frame.right.end) / 2
    half = min(max(map(width, below), default=0), WIDTH) / 2
    middle = min(max(middle, half), WIDTH - half)
    texts = [_text(t, middle, under + LINE * i, "middle") for i, t in enumerate(below)]
    texts += [_text(t, 2, first + LINE * i) for i, t in enumerate(above)]
    return [tag("g", *texts, class_="axis-name")]


def _legend(chart: Chart) -> Html | None:
    """A mark and a name for each series; nothing where there is only one without a name."""
    drawn = []
    for row, entries in enumerate(legend_rows(chart)):
        for k, x in entries:
            y = LINE * row + 12
            name = cut(chart.series[k].name, LONGEST_NAME)
            drawn += [_swatch(chart, k, x, y), _text(name, x + 28, y + 4.5)]
    return tag("g", *drawn, class_="legend") if drawn else None


def _swatch(chart: Chart, k: int, x: float, y: float) -> Html:
    if chart.kind == "histogram":
        key = re.sub(r"[^\w-]", "-", chart.key)
        box = f"M{write(x + 2)} {y - 6}h20v12h-20z"
        return tag("path", d=box, class_=f"bar {colour(k)}", fill=f"url(#{key}-hatch-{k})")
    mark = tag("path", d=shape(k, x + 12, y), class_=f"mark {colour(k)}")
    if chart.kind != "curve":
        return mark
    line = tag(
        "path",
        d=f"M{write(x)} {y}h24",
        class_=f"line {colour(k)}",
        stroke_dasharray=DASHES[k % len(DASHES)],
    )
    return tag("g", line, mark)


def _references(frame: Frame) -> Html | None:
    """A line across for each yardstick, with its name at the edge."""
    drawn = []
    for u in frame.uprights:
        y = frame.top - LINE * u.row - 12
        name = cut(u.reference.name, 44)
        path = f"M{write(u.x)} {write(frame.bottom)}V{write(frame.top)}"
        path += f"L{write(foot(u.x, u.centre, name))} {write(y + 4)}"
        drawn.append(_reference(u.reference, path))
        drawn.append(_text(name, u.centre, y, "middle", full=u.reference.name))
    start, end, lowest = frame.places.start, frame.places.end, frame.top
    for r in sorted(frame.levels, key=lambda r: -r.value):
        y = frame.values.place(r.value)
        drawn.append(_reference(r, f"M{write(start)} {write(y)}H{write(end)}"))
        lines = folded(r.name)
        first = max(lowest + 4, y - 8 * (len(lines) - 1) + 4.5)
        lowest = first + 16 * len(lines) - 4
        drawn += [_text(line, end + 6, first + 16 * i) for i, line in enumerate(lines)]
    return tag("g", *drawn, class_="references") if drawn else None


def _reference(r: Reference, path: str) -> Html:
    return tag("path", tag("title", f"{r.name}: {short(r.value)}"), d=path, class_="reference")


def _clip(key: str, frame: Frame) -> Html:
    x, y = frame.right.start - 6, frame.top - 6
    across = frame.right.end - frame.right.start + 12
    down = frame.bottom - frame.top + 12
    box = tag("rect", x=write(x), y=write(y), width=write(across), height=write(down))
    return tag("clipPath", box, id=f"{key}-clip")


def _hatches(chart: Chart, key: str) -> list[Html]:
    if chart.kind != "histogram":
        return []
    return [hatch(key, k) for k in range(len(chart.series))]


def _text(text: str, x: float, y: float, anchor: str | None = None, *, full: str = "") -> Html:
    """A text; where it was cut, the full one shows under the pointer."""
    title = tag("title", full) if full and full != text else None
    return tag("text", title, text, x=write(x), y=write(y), text_anchor=anchor)


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
