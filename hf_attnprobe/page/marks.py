"""Marks of a chart: bars, dots, lines and bands, told apart by shape, dash and hatch. Pure."""

from collections.abc import Callable, Iterable

from hf_attnprobe.charts.chart import Chart, Series
from hf_attnprobe.page.axes import drawable, short
from hf_attnprobe.page.html import Html, tag


N_COLOURS = 6
DASHES = (None, "8 4", "2 4", "10 4 2 4", "14 5", "5 2")
ANGLES = (45, -45, 0, 90, 20, -20)
MANY = 80
"""More points than this are one path, without a label each."""

Point = Callable[[float, float], tuple[float, float]]
"""From a place on the axis of places and a value to a place in the drawing."""


def write(number: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{number:z.1f}".removesuffix(".0")


def colour(k: int) -> str:
    """The class of the k-th series."""
    return f"s{k % N_COLOURS}"


def shape(k: int, x: float, y: float, size: float = 4.5) -> str:
    """The path of the k-th kind of mark: disc, square, diamond, triangles, cross."""
    a, b = write(size), write(2 * size)
    at = f"M{write(x)} {write(y)}"
    return (
        at
        + (
            f"m-{a} 0a{a} {a} 0 1 0 {b} 0a{a} {a} 0 1 0-{b} 0z",
            f"m-{a}-{a}h{b}v{b}h-{b}z",
            f"m0-{write(1.3 * size)}l{a} {write(1.3 * size)}-{a} {write(1.3 * size)}"
            f"-{a}-{write(1.3 * size)}z",
            f"m-{a} {a}h{b}l-{a}-{b}z",
            f"m-{a}-{a}h{b}l-{a} {b}z",
            f"m-{a}-{a}l{b} {b}m-{b} 0l{b}-{b}",
        )[k % len(DASHES)]
    )


def hatch(key: str, k: int) -> Html:
    """The pattern that fills the k-th series of a histogram."""
    line = tag("path", d="M0 0V6", stroke_width=1.6, class_=f"line {colour(k)}")
    return tag(
        "pattern",
        line,
        id=f"{key}-hatch-{k}",
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
        patternTransform=f"rotate({ANGLES[k % len(ANGLES)]})",
    )


def histogram(chart: Chart, key: str, point: Point, bin_width: float) -> list[Html]:
    """Bars from zero, each series a hatch of its own; a label over each bin."""
    drawn, labels = [], dict[float, list[str]]()
    for k, s in enumerate(chart.series):
        path = ""
        for x, y in zip(s.x, s.y, strict=True):
            if not (drawable(x) and drawable(y)):
                continue
            labels.setdefault(x, []).append(f"{s.name}: {short(y)}")  # type: ignore
            left, top = point(x, y)  # type: ignore[arg-type]
            right, base = point(x + bin_width, 0.0)  # type: ignore[operator]
            if y:
                path += f"M{write(left)} {write(base)}V{write(top)}H{write(right)}V{write(base)}z"
        if path:
            fill = f"url(#{key}-hatch-{k})"
            drawn.append(tag("path", d=path, class_=f"bar {colour(k)}", fill=fill))
    top = min((point(0.0, y)[1] for s in chart.series for y in s.y if drawable(y)), default=0)
    for x, lines in labels.items():
        left, right = point(x, 0.0)[0], point(x + bin_width, 0.0)[0]
        text = "; ".join([f"{short(x)} to {short(x + bin_width)}", *lines])
        drawn.append(
            tag(
                "path",
                tag("title", text),
                d=f"M{write(left)} {write(top)}H{write(right)}"
                f"V{write(point(x, 0.0)[1])}H{write(left)}z",
                class_="target",
            )
        )
    return drawn


def dots(
    chart: Chart,
    point: Point,
    places: Callable[[int, Series], list],
    *,
    bars: bool = True,
) -> list[Html]:
    """A mark per value with its bar; many of them as one path.

    Args:
        chart: what is drawn.
        point: its axes.
        places: numbers of the places of the k-th series.
        bars: whether a series of more than one value has its bars; on lines it has not.
    """
    drawn = []
    for k, s in enumerate(chart.series):
        items = list(_items(s, places(k, s)))
        if bars or len(items) == 1:
            whiskers = ((x, low, high) for _, x, _, low, high in items)
            drawn.append(_bars(k, whiskers, point))
        centres = [(i, *point(x, y)) for i, x, y, _, _ in items if drawable(y)]
        if not bars:  # on a line, so many marks that its kind is seen
            centres = centres[:: max(1, len(centres) // 10)]
        class_ = f"mark {colour(k)}"
        if len(centres) > MANY:
            places_of = _distinct(centres)
            if k % len(DASHES):
                path = "".join(shape(k, x, y, 3) for x, y in places_of)
                drawn.append(tag("path", d=path, class_=f"{class_} many"))
            else:  # discs are ends of lines without length, in few letters each
                path = "".join(f"M{write(x)} {write(y)}h0" for x, y in places_of)
                drawn.append(tag("path", d=path, class_=f"{class_} many round"))
            continue
        drawn += [
            tag(
                "path",
                tag("title", said(chart, s, i)),
                d=shape(k, x, y),
                class_=class_,
            )
            for i, x, y in centres
        ]
    return [mark for mark in drawn if mark]


def curves(chart: Chart, point: Point, places: Callable[[int, Series], list]) -> list[Html]:
    """Lines with a band around each; a missing value leaves a gap."""
    drawn: list[Html] = []
    for k, s in enumerate(chart.series):
        items = list(_items(s, places(k, s)))
        for run in _runs([drawable(low) and drawable(high) for *_, low, high in items]):
            there = [point(items[i][1], items[i][3]) for i in run]
            back = [point(items[i][1], items[i][4]) for i in reversed(run)]
            drawn.append(tag("path", d=f"{_line(there + back)}z", class_=f"band {colour(k)}"))
        for run in _runs([drawable(y) for _, _, y, *_ in items]):
            line = _line([point(items[i][1], items[i][2]) for i in run])
            dash = DASHES[k % len(DASHES)]
            drawn.append(tag("path", d=line, class_=f"line {colour(k)}", stroke_dasharray=dash))
    return drawn + dots(chart, point, places, bars=False)


def said(chart: Chart, s: Series, i: int) -> str:
    """The i-th value of a series in words, with its bar and its number of texts."""
    text = f"{s.name}, {short(s.x[i])}: {short(s.y[i])}"
    if s.low and s.high:
        text += f" [{short(s.low[i])}, {short(s.high[i])}], {chart.bars}"
    return text + (f", {s.n[i]} texts" if s.n else "")


def _distinct(centres: list[tuple[int, float, float]]) -> list[tuple[float, float]]:
    """Places that can be told apart; of very many points coarser ones."""
    step = 1 if len(centres) < 5000 else 4
    return sorted({(step * round(x / step), step * round(y / step)) for _, x, y in centres})


def _items(s: Series, places: list) -> Iterable[tuple[int, float, float, float, float]]:
    """Index, place, value, low and high of what has a place."""
    none = [float("nan")] * len(s.y)
    columns = zip(places, s.y, s.low or none, s.high or none, strict=True)
    for i, (x, y, low, high) in enumerate(columns):
        if drawable(x):
            yield i, x, y, low, high


def _bars(k: int, items: Iterable[tuple[float, float, float]], point: Point) -> Html | None:
    path = ""
    for x, low, high in items:
        if drawable(low) and drawable(high) and low < high:
            path += _line([point(x, low), point(x, high)])
    return tag("path", d=path, class_=f"whisker {colour(k)}") if path else None


def _line(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{write(x)} {write(y)}" for x, y in points)


def _runs(good: list[bool]) -> list[list[int]]:
    """Stretches of indices that are good.

    >>> _runs([True, False, True, True])
    [[0], [2, 3]]
    """
    runs: list[list[int]] = []
    for i, is_good in enumerate(good):
        if is_good and i and good[i - 1]:
            runs[-1].append(i)
        elif is_good:
            runs.append([i])
    return runs
