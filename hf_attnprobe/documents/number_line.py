"""Where a number, its thresholds and its yardsticks stand on a line, for a page. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from hf_attnprobe.core.formatting import interval
from hf_attnprobe.documents.blocks import NumberLine
from hf_attnprobe.plots.chart import drawable, short


ROUND = MaxNLocator(5, steps=[1, 2, 5, 10])
"""Finds round numbers, some five of them from below the least to above the largest."""
NARROW, WIDE = 2.1, 1.2
"""Room for a letter of a label, in percent of the line on a phone and on other screens."""


@dataclass(frozen=True)
class Label:
    """A label at its place.

    Attributes:
        text: of the label.
        x: its place in percent of the line.
        narrow: its row on a phone, so that no label runs into another.
        wide: its row on other screens.
    """

    text: str
    x: float
    narrow: int
    wide: int


@dataclass(frozen=True)
class Placed:
    """A line with all that stands on it, in percent of its length.

    Attributes:
        own: the number's label; none where there is no number.
        thresholds: where an answer changes; dashed, above the line.
        below: ends of the line and yardsticks; solid, below it.
        bar: where the interval begins, and its width; None without one.
    """

    own: list[Label]
    thresholds: list[Label]
    below: list[Label]
    bar: tuple[float, float] | None


def placed(line: NumberLine) -> Placed:
    """Everything on the line at its place; what is beyond its ends is left out."""
    value, ci95 = line.number.value, line.number.ci95
    marks = [*line.thresholds.values(), *line.yardsticks.values()]
    start, end = _reach([value, *(ci95 or ()), *marks], line.ends)

    def place(number: float) -> float:
        """In percent of the line; at its end where a number is beyond."""
        share = (min(max(number, start), end) - start) / (end - start)
        return round(100 * share, 2)

    def held(named: Mapping[str, float]) -> dict[str, float]:
        slack = 1e-9 * (end - start)
        held = {name: v for name, v in named.items() if start - slack <= v <= end + slack}
        return {f"{name} {short(v)}": place(v) for name, v in held.items()}

    own = (
        {f"{line.before} {interval(value, ci95)}".lstrip(): place(value)} if drawable(value) else {}
    )
    ends = {short(v): place(v) for v in (start, end) if v not in line.yardsticks.values()}
    bar = None
    if own and ci95 is not None and ci95[0] <= ci95[1]:
        low, high = map(place, ci95)
        bar = low, round(high - low, 2)
    return Placed(
        labels(own),
        labels(held(line.thresholds)),
        labels(ends | held(line.yardsticks)),
        bar,
    )


def labels(places: Mapping[str, float]) -> list[Label]:
    """Labels at their places, each in a row where it has room on a narrow and a wide screen."""
    narrow, wide = (label_rows(places, letter) for letter in (NARROW, WIDE))
    return [Label(text, x, narrow[text], wide[text]) for text, x in places.items()]


def label_rows(places: Mapping[str, float], letter: float) -> dict[str, int]:
    """The row of each label, so that none runs into another.

    A label at the left end begins there and one at the right end stops there, so that none
    is ever outside.
    """
    rows, stops = {}, list[float]()  # where the last label of each row stops
    for text, x in sorted(places.items(), key=lambda label: label[1]):
        room = letter * (len(text) + 1)
        begin = x - room * x / 100
        row = next((k for k, stop in enumerate(stops) if stop <= begin), len(stops))
        stops[row : row + 1] = [begin + room]
        rows[text] = row
    return rows


def _reach(values: Iterable[float], ends: tuple[float, float] | None) -> tuple[float, float]:
    """Ends of the line: those that are given, else round numbers around the values.

    >>> _reach([0.12, 0.87], None), _reach([3.0], None), _reach([], None)
    ((0.0, 1.0), (2.5, 3.5), (0.0, 1.0))
    """
    if ends is not None and all(map(drawable, ends)) and ends[0] < ends[1]:
        return ends
    known = [float(value) for value in values if drawable(value)]
    low = min(known, default=0.0)
    high = max(known, default=1.0)
    size = max(abs(low), abs(high))
    is_one = high - low <= 1e-9 * size + 1e-100
    if is_one:  # it stands in the middle
        around = max(0.5, 0.1 * size)
        return low - around, high + around
    begin, *_, end = map(float, ROUND.tick_values(low, high))
    begin = min(begin, low)
    end = max(end, high)
    return begin, end
