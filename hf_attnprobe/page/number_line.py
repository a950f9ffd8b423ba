"""A number among its yardsticks, on one line. Pure."""

from collections.abc import Mapping

from hf_attnprobe.markdown import interval
from hf_attnprobe.page.axes import (
    Axis,
    cut,
    drawable,
    foot,
    reach,
    short,
    spread,
    width,
)
from hf_attnprobe.page.html import Html, tag
from hf_attnprobe.page.marks import shape, write


WIDTH = 600
LINE = 20
NEAR = 8
"""How far the end of a label may be from its mark."""


def number_line(
    value: float,
    low: float | None,
    high: float | None,
    thresholds: Mapping[str, float],
    yardsticks: Mapping[str, float],
    ends: tuple[float, float] | None,
    before: str = "",
) -> Html:
    """A value with its interval on a line, thresholds above it, yardsticks below.

    Args:
        value: NaN where there is none: the yardsticks are drawn all the same.
        low: lower end of its interval; None without one.
        high: upper end.
        thresholds: where an answer changes, by what they are; dashed.
        yardsticks: what others reach, by what they are; solid.
        ends: of the line; None for round numbers around all that is on it.
        before: what stands before the value, such as "at most".
    """
    bars = [v for v in (low, high) if v is not None]
    others = [*thresholds.values(), *yardsticks.values()]
    start, end = reach([value, *bars, *others], ends)
    left, right = short(start), short(end)
    axis = Axis(start, end, width(left) + 12, WIDTH - width(right) - 12)
    above, below = _placed(axis, thresholds), _placed(axis, yardsticks)
    middle = 34 + LINE * _n_rows(above)
    return tag(
        "svg",
        tag("path", d=f"M{write(axis.start)} {middle}H{write(axis.end)}", class_="rail"),
        _label(left, axis.start - 10, middle + 4.5, "end", "end"),
        _label(right, axis.end + 10, middle + 4.5, "end", "start"),
        [_mark(mark, middle, -1, "threshold") for mark in above],
        [_mark(mark, middle, 1, "yardstick") for mark in below],
        _value(axis, middle, value, low, high, before),
        class_="number-line",
        viewBox=f"0 0 {WIDTH} {middle + 16 + LINE * _n_rows(below)}",
        role="img",
        aria_label=in_words(value, low, high, thresholds, yardsticks),
    )


def in_words(
    value: float,
    low: float | None,
    high: float | None,
    thresholds: Mapping[str, float],
    yardsticks: Mapping[str, float],
) -> str:
    """The same as a sentence.

    >>> in_words(0.34, 0.31, 0.37, {"agrees": 0.6}, {"chance": 0.0})
    'The value is 0.340 [0.310, 0.370]. Thresholds: agrees 0.6. Compare: chance 0.'
    """
    sentences = [f"The value is {_number(value, low, high)}."]
    for word, marks in (("Thresholds", thresholds), ("Compare", yardsticks)):
        if marks:
            said = ", ".join(f"{name} {short(v)}" for name, v in marks.items())
            sentences.append(f"{word}: {said}.")
    return " ".join(sentences)


def _placed(axis: Axis, marks: Mapping[str, float]) -> list[tuple[str, float, float, int]]:
    """Label, place, centre of the label and its row, of what lies on the line."""
    held = {name: v for name, v in marks.items() if axis.holds(v)}
    labels = [cut(f"{name} {short(v)}", 44) for name, v in held.items()]
    places = [axis.place(v) for v in held.values()]
    found = spread(places, labels, 0, WIDTH)
    far = [
        abs(x - at) > width(label) / 2 + NEAR
        for label, x, (at, _) in zip(labels, places, found, strict=True)
    ]
    if any(far):  # a label beside its mark, in a row of its own
        found = spread(places, labels, 0, WIDTH, rows=2)
    return [(label, x, *at) for label, x, at in zip(labels, places, found, strict=True)]


def _n_rows(marks: list[tuple[str, float, float, int]]) -> int:
    return max((row + 1 for *_, row in marks), default=0)


def _mark(mark: tuple[str, float, float, int], middle: float, side: int, kind: str) -> list[Html]:
    """A stroke through the line, bent to its label: above with side −1, below with 1."""
    text, x, centre, row = mark
    bend, stop = middle + 6 * side, middle + (15 + LINE * row) * side
    path = f"M{write(x)} {write(middle - 8 * side)}V{write(bend)}"
    path += f"L{write(foot(x, centre, text))} {write(stop)}"
    y = stop + (13 if side > 0 else -4)
    return [tag("path", d=path, class_=kind), _label(text, centre, y, kind)]


def _value(
    axis: Axis,
    middle: float,
    value: float,
    low: float | None,
    high: float | None,
    before: str,
) -> list[Html]:
    if not drawable(value):
        return []
    drawn = []
    x = _held(axis, value)
    if low is not None and high is not None and low <= high:
        path = f"M{write(_held(axis, low))} {middle}H{write(_held(axis, high))}"
        drawn.append(tag("path", d=path, class_="interval"))
    drawn.append(tag("path", d=shape(2, x, middle, 7), class_="value"))
    text = f"{before} {_number(value, low, high)}".lstrip()
    ((centre, _),) = spread([x], [text], 0, WIDTH)
    return [*drawn, _label(text, centre, 14, "value")]


def _held(axis: Axis, value: float) -> float:
    """Where a number is; at the end of the line where it is beyond."""
    return axis.place(min(max(value, axis.low), axis.high))


def _number(value: float, low: float | None, high: float | None) -> str:
    return interval(value, None if low is None or high is None else (low, high))


def _label(text: str, x: float, y: float, kind: str, anchor: str = "middle") -> Html:
    return tag("text", text, x=write(x), y=write(y), text_anchor=anchor, class_=kind)
