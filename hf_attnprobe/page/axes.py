"""Axes: how far they reach, where their ticks stand, how numbers are written. Pure."""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real


LARGEST = 1e100
"""Beyond it a number is treated as infinite: it is in the table and not drawn."""

LETTER = 9.0
"""Room for a letter, in units of a drawing: letters are larger on narrow screens."""

GAP = 14.0
"""Between two labels."""


def drawable(value: object) -> bool:
    """Whether a value is a number that an axis can reach; NaN and infinity are not."""
    return isinstance(value, Real) and abs(float(value)) <= LARGEST


@dataclass(frozen=True)
class Axis:
    """A range of numbers laid over a range of places.

    Attributes:
        low: number at ``start``.
        high: number at ``end``; above ``low``.
        start: place in the drawing.
        end: place in the drawing; below ``start`` where numbers grow upwards.
    """

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Where a number lies; far outside of the drawing no farther than is needed."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, -2.0), 3.0) * (self.end - self.start)

    def holds(self, value: object) -> bool:
        """Whether a number lies between the ends."""
        if not drawable(value):
            return False
        slack = 1e-9 * (self.high - self.low)
        return self.low - slack <= value <= self.high + slack  # type: ignore[operator]

    def ticks(self, n: int = 5) -> list[tuple[float, str]]:
        """About ``n`` round numbers between the ends, with how they are written."""
        step = _step(self.high - self.low, n)
        first = math.ceil(self.low / step - 1e-6)
        last = math.floor(self.high / step + 1e-6)
        largest = max(abs(self.low), abs(self.high))
        return [(k * step, _written(k * step, step, largest)) for k in range(first, last + 1)]


def reach(
    values: Iterable[object],
    given: tuple[float, float] | None = None,
    *,
    zero: bool = False,
) -> tuple[float, float]:
    """Ends of an axis: those that are given, else round numbers around the values.

    Args:
        values: what is to be shown; what is not drawable does not count.
        given: ends that somebody has chosen.
        zero: whether zero is shown at any rate.

    >>> reach([0.12, 0.87]), reach([3.0]), reach([])
    ((0.0, 1.0), (2.5, 3.5), (0.0, 1.0))
    """
    if given is not None and all(map(drawable, given)) and given[0] < given[1]:
        return given
    numbers = [float(v) for v in values if drawable(v)]  # type: ignore[arg-type]
    numbers += [0.0] if zero else []
    if not numbers:
        return 0.0, 1.0
    low, high = min(numbers), max(numbers)
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, 1e-100):  # one value: it stands in the middle
        around = 0.5 if size <= 5 else 0.1 * size
        return (0.0, 1.0) if zero and size == 0 else (low - around, high + around)
    step = _step(high - low, 5)
    return step * math.floor(low / step + 1e-6), step * math.ceil(high / step - 1e-6)


def _step(span: float, n: int) -> float:
    """The smallest of 1, 2, 5, 10, 20, … that divides a span into at most ``n``."""
    share = max(span / n, 1e-300)  # of the smallest spans it rounds to 0
    magnitude = 10.0 ** math.floor(math.log10(share))
    return next(m * magnitude for m in (1, 2, 5, 10, 20) if m * magnitude * n >= span)


def _written(value: float, step: float, largest: float) -> str:
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    plain = decimals <= 5 and largest < 1e6
    text = f"{value:z.{decimals}f}" if plain else f"{value:.4g}"
    return text.replace("-", "−")


def short(value: object) -> str:
    """A value in a label: a name as it is, a number with about three digits.

    >>> short(0.123456), short(-2.0), short(1234567.0), short("max")
    ('0.123', '−2', '1.23e+06', 'max')
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    value = float(value)
    if value != value:
        return "–"
    size = abs(value)
    if size and (size < 5e-4 or size >= 1e6):
        text = f"{value:.3g}"
    else:
        text = f"{value:z.3f}".rstrip("0").rstrip(".") if size < 1e3 else f"{value:.0f}"
    return text.replace("-", "−")


def width(text: str) -> float:
    """Room that a text needs in a drawing; wide letters take two."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return LETTER * (len(text) + wide)


def cut(text: str, letters: int) -> str:
    """A text of at most so many letters, the last a … where more were cut."""
    return text if len(text) <= letters else f"{text[: letters - 1].rstrip()}…"


def spread(
    places: Sequence[float],
    texts: Sequence[str],
    start: float,
    end: float,
    rows: int = 1,
) -> list[tuple[float, int]]:
    """Centres and rows of labels that do not run into each other.

    Labels of a row move as little sideways as they must; where one row has too little room
    they are dealt out to more of them.

    Args:
        places: where the centres should be.
        texts: of the labels.
        start: no label begins before it.
        end: no label goes on behind it.
        rows: at least so many.

    Returns:
        Centre and row, 0 the first, of each label.
    """
    order = sorted(range(len(texts)), key=lambda k: (places[k], k))
    needed = sum(width(text) + GAP for text in texts)
    n_rows = max(rows, math.ceil(needed / (end - start + GAP)))
    found: dict[int, tuple[float, int]] = {}
    for row in range(n_rows):
        those = order[row::n_rows]
        rooms = [width(texts[k]) + GAP for k in those]
        centres = _apart([places[k] for k in those], rooms, start, end)
        found |= {k: (x, row) for k, x in zip(those, centres, strict=True)}
    return [found[k] for k in range(len(texts))]


def _apart(places: list[float], rooms: list[float], start: float, end: float) -> list[float]:
    """Centres in ascending order, a room apart, as near to their places as can be.

    Labels that touch move as one group, whose middle stays where its places are on average:
    the least squares under an order, by pooling neighbours that violate it.
    """
    offsets, total = [], 0.0
    for room in rooms:
        offsets.append(total + room / 2)
        total += room
    groups: list[tuple[float, int]] = []  # mean of where a group would begin, its size
    for place, offset in zip(places, offsets, strict=True):
        mean, size = place - offset, 1
        while groups and groups[-1][0] > mean:
            last, n = groups.pop()
            mean, size = (last * n + mean * size) / (n + size), n + size
        groups.append((mean, size))
    first, last = start - GAP / 2, end + GAP / 2 - total
    begins = [min(max(mean, first), last) for mean, size in groups for _ in range(size)]
    return [begin + offset for begin, offset in zip(begins, offsets, strict=True)]


def foot(place: float, centre: float, text: str) -> float:
    """Where a stroke from a place meets its label: within the label, at the nearest."""
    half = 0.35 * width(text)
    return min(max(place, centre - half), centre + half)
