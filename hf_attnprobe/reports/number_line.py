"""A number among its yardsticks, on one line of HTML. Pure."""

import math
from collections.abc import Iterable, Mapping

from hf_attnprobe.charts.chart import drawable, short
from hf_attnprobe.markdown import interval
from hf_attnprobe.reports.tags import Html, tag


NARROW, WIDE = 2.1, 1.2
"""Room for a letter of a label, in percent of the line on a phone and on other screens."""


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
    start, end = _reach([value, *bars, *thresholds.values(), *yardsticks.values()], ends)

    def place(number: float) -> float:
        """In percent of the line; at its end where a number is beyond."""
        share = (min(max(number, start), end) - start) / (end - start)
        return round(100 * share, 2)

    def held(named: Mapping[str, float]) -> dict[str, float]:
        """Labels of what is on the line, with their places."""
        slack = 1e-9 * (end - start)
        return {
            f"{name} {short(v)}": place(v)
            for name, v in named.items()
            if start - slack <= v <= end + slack
        }

    own = {f"{before} {_number(value, low, high)}".lstrip(): value} if drawable(value) else {}
    ends_of_line = {short(v): place(v) for v in (start, end) if v not in yardsticks.values()}
    bar = None
    if own and low is not None and high is not None and low <= high:
        width = round(place(high) - place(low), 2)
        bar = tag("i", class_="interval", style=f"left:{place(low)}%;width:{width}%")
    return tag(
        "div",
        _labels({text: place(v) for text, v in own.items()}, "own"),
        _labels(held(thresholds), "threshold"),
        tag(
            "div",
            bar,
            [tag("i", class_="point", style=f"left:{place(v)}%") for v in own.values()],
            class_="rail",
        ),
        _labels(ends_of_line | held(yardsticks), "below"),
        class_="number-line",
        role="img",
        aria_label=line_in_words(value, low, high, thresholds, yardsticks),
    )


def line_in_words(
    value: float,
    low: float | None,
    high: float | None,
    thresholds: Mapping[str, float],
    yardsticks: Mapping[str, float],
) -> str:
    """The same as a sentence.

    >>> line_in_words(0.34, 0.31, 0.37, {"agrees": 0.6}, {"chance": 0.0})
    'The value is 0.340 [0.310, 0.370]. Thresholds: agrees 0.6. Compare: chance 0.'
    """
    sentences = [f"The value is {_number(value, low, high)}."]
    for word, marks in (("Thresholds", thresholds), ("Compare", yardsticks)):
        if marks:
            said = ", ".join(f"{name} {short(v)}" for name, v in marks.items())
            sentences.append(f"{word}: {said}.")
    return " ".join(sentences)


def _labels(labels: Mapping[str, float], kind: str) -> Html | None:
    """Labels at their places in percent of the line, each with a stroke to the line.

    A label at the left end begins there and one at the right end stops there, so that none
    is ever outside.
    """
    if not labels:
        return None
    rows = {"narrow": label_rows(labels, NARROW), "wide": label_rows(labels, WIDE)}
    drawn = []
    for k, (text, x) in enumerate(labels.items()):
        at = ";".join([f"left:{x:g}%", *(f"--{name}:{row[k]}" for name, row in rows.items())])
        drawn += [tag("i", style=at), tag("span", text, style=f"{at};--shift:-{x:g}%")]
    sizes = ";".join(f"--{name}-rows:{1 + max(row)}" for name, row in rows.items())
    return tag("div", *drawn, class_=kind, style=sizes)


def label_rows(labels: Mapping[str, float], letter: float) -> list[int]:
    """The row of each label, so that none runs into another."""
    rows, stops = {}, list[float]()  # where the last label of each row stops
    for text, x in sorted(labels.items(), key=lambda label: label[1]):
        room = letter * (len(text) + 1)
        begin = x - room * x / 100
        row = next((k for k, stop in enumerate(stops) if stop <= begin), len(stops))
        stops[row : row + 1] = [begin + room]
        rows[text] = row
    return [rows[text] for text in labels]


def _number(value: float, low: float | None, high: float | None) -> str:
    return interval(value, None if low is None or high is None else (low, high))


def _reach(values: Iterable[float], ends: tuple[float, float] | None) -> tuple[float, float]:
    """Ends of the line: those that are given, else round numbers around the values.

    >>> _reach([0.12, 0.87], None), _reach([3.0], None), _reach([], None)
    ((0.0, 1.0), (2.5, 3.5), (0.0, 1.0))
    """
    if ends is not None and all(map(drawable, ends)) and ends[0] < ends[1]:
        return ends
    known = [float(v) for v in values if drawable(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, 1e-100):  # one value: it stands in the middle
        around = 0.5 if size <= 5 else 0.1 * size
        return low - around, high + around
    step = _round_up((high - low) / 5)
    begin, end = step * math.floor(low / step + 1e-6), step * math.ceil(high / step - 1e-6)
    return min(begin, low), max(end, high)  # a value may lie beyond by less than the rounding


def _round_up(number: float) -> float:
    """The next of 1, 2, 5, 10, 20, … and their tenths."""
    magnitude = 10.0 ** math.floor(math.log10(number))
    return next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= number)
