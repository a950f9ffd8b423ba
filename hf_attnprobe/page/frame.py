"""Where the parts of a chart stand: its axes, its legend, room for names. Pure."""

from dataclasses import dataclass
from itertools import pairwise

from hf_attnprobe.charts.chart import Chart, Reference
from hf_attnprobe.page.axes import (
    LETTER,
    Axis,
    cut,
    drawable,
    reach,
    short,
    spread,
    width,
)


WIDTH = 600
"""Of every chart, in its own units; the page makes it as wide as there is room."""

HEIGHT = 230
"""Of the field in which the marks are."""

LONGEST_NAME = 66
"""Letters of a name in the legend."""

GAP = 10
"""Between the legend and what stands beneath it."""

LINE = 20
"""Between two lines of text."""


@dataclass(frozen=True)
class Upright:
    """A yardstick that stands upright, with its name above it.

    Attributes:
        reference: what it is.
        x: where it stands.
        centre: of its name.
        row: of its name, 0 nearest to the field.
    """

    reference: Reference
    x: float
    centre: float
    row: int


@dataclass(frozen=True)
class Frame:
    """Where things are.

    Attributes:
        places: the axis of places.
        values: the axis of values.
        names: of categories; empty where places are numbers.
        across: whether values run to the right and categories are under each other.
        top: of the field with the marks.
        bottom: of the field.
        height: of the whole drawing.
        uprights: yardsticks across the axis that runs to the right.
        levels: yardsticks across the axis that runs upwards.
    """

    places: Axis
    values: Axis
    names: tuple[str, ...]
    across: bool
    top: float
    bottom: float
    height: float
    uprights: tuple[Upright, ...]
    levels: tuple[Reference, ...]

    @property
    def right(self) -> Axis:
        """The axis that runs to the right."""
        return self.values if self.across else self.places

    @property
    def up(self) -> Axis:
        """The axis that runs upwards, or of categories downwards."""
        return self.places if self.across else self.values

    def point(self, place: float, value: float) -> tuple[float, float]:
        """Where a value at a place is in the drawing."""
        x, y = self.places.place(place), self.values.place(value)
        return (y, x) if self.across else (x, y)


def frame_of(chart: Chart) -> Frame:
    """Room for everything that a chart shows."""
    names = names_of(chart)
    place_ends, value_ends = _place_ends(chart, names), _value_ends(chart)
    longest = max(map(width, names), default=0)
    across = bool(names) and (longest + 10) * len(names) > WIDTH - 80
    to_the_right, upwards = (value_ends, place_ends) if across else (place_ends, value_ends)
    upright = _within(chart, "y" if across else "x", to_the_right)
    levels = [] if across else _within(chart, "y", upwards)
    # The left margin holds the labels of the axis, the right one the names of levels.
    numbers = [text for _, text in Axis(*upwards, 0, 1).ticks()]
    left = min(max(map(width, names if across else numbers), default=0), 20 * LETTER)
    names_of_levels = [line for r in levels for line in folded(r.name)]
    end = WIDTH - max([16.0, *(width(line) + 10 for line in names_of_levels)])
    axis = Axis(*to_the_right, left + 12, end)
    uprights = _placed(upright, axis)
    below, above = axis_names(chart, across)
    n_rows = max([0, *(u.row + 1 for u in uprights)])
    n_rows += len(legend_rows(chart)) + max(1, len(above))
    top = LINE * n_rows + 12 + (GAP if legend_rows(chart) else 0)
    bottom = top + (len(names) * (18 + 12 * len(chart.series)) if across else HEIGHT)
    other = Axis(*upwards, *((top, bottom) if across else (bottom, top)))
    places, values = (other, axis) if across else (axis, other)
    height = bottom + LINE * (1 + max(1, len(below))) + 8
    return Frame(places, values, names, across, top, bottom, height, uprights, tuple(levels))


def _within(chart: Chart, axis: str, ends: tuple[float, float]) -> list[Reference]:
    """The yardsticks of an axis that lie between its ends."""
    holds = Axis(*ends, 0, 1).holds
    return [r for r in chart.references if r.axis == axis and holds(r.value)]


def _placed(references: list[Reference], axis: Axis) -> tuple[Upright, ...]:
    places = [axis.place(r.value) for r in references]
    labels = spread(places, [cut(r.name, 44) for r in references], 0, WIDTH)
    return tuple(
        Upright(r, x, *label) for r, x, label in zip(references, places, labels, strict=True)
    )


def names_of(chart: Chart) -> tuple[str, ...]:
    """Categories, in the order in which they occur; empty where places are numbers."""
    places = [place for s in chart.series for place in s.x]
    if chart.kind == "dots" or any(isinstance(place, str) for place in places):
        return tuple(dict.fromkeys(short(place) for place in places))
    return ()


def _place_ends(chart: Chart, names: tuple[str, ...]) -> tuple[float, float]:
    if names:
        return -0.5, len(names) - 0.5
    places: list[object] = [x for s in chart.series for x in s.x]
    if chart.kind == "histogram":
        step = bin_width(chart)
        places += [x + step for x in places if drawable(x)]  # type: ignore[operator]
    places += [r.value for r in chart.references if r.axis == "x"]
    return reach(places, chart.x_range)


def _value_ends(chart: Chart) -> tuple[float, float]:
    values: list[object] = [v for s in chart.series for v in (*s.y, *s.low, *s.high)]
    values += [r.value for r in chart.references if r.axis == "y"]
    return reach(values, chart.y_range, zero=chart.kind == "histogram")


def bin_width(chart: Chart) -> float:
    """Of a histogram; where it is not given, the least distance of two edges."""
    if chart.bin_width and drawable(chart.bin_width):
        return chart.bin_width
    edges = sorted({float(x) for s in chart.series for x in s.x if drawable(x)})
    steps = [b - a for a, b in pairwise(edges) if b > a]
    return min(steps, default=1.0)


def legend_rows(chart: Chart) -> list[list[tuple[int, float]]]:
    """Per row the indices of series, and where each begins."""
    if len(chart.series) < 2 and not any(s.name for s in chart.series):
        return []
    rows: list[list[tuple[int, float]]] = []
    x = 2.0
    for k, s in enumerate(chart.series):
        room = width(cut(s.name, LONGEST_NAME)) + 44
        if not rows or x + room - 16 > WIDTH:
            rows.append([])
            x = 2.0
        rows[-1].append((k, x))
        x += room
    return rows


def folded(name: str, letters: int = 13, most: int = 4) -> list[str]:
    """A name in lines of so many letters, and at most so many lines.

    >>> folded("uniform attention"), folded("chance")
    (['uniform', 'attention'], ['chance'])
    """
    lines: list[str] = []
    for word in name.split():
        if lines and len(lines[-1]) + 1 + len(word) <= letters:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    kept = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return [cut(line, letters) for line in kept if line]


def axis_names(chart: Chart, frame_is_across: bool) -> tuple[list[str], list[str]]:
    """Lines of what stands below the field, and of what stands above it."""
    letters = int(WIDTH / LETTER)
    labels = chart.x_label, chart.y_label
    below, above = reversed(labels) if frame_is_across else labels
    return folded(below, letters, 2), folded(above, letters, 2)
