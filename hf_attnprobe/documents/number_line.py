"""Positions of a number, its thresholds and its reference values on a drawn line."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from hf_attnprobe.core.formatting import format_interval
from hf_attnprobe.documents.blocks import NumberLine
from hf_attnprobe.plots.chart import format_label, is_drawable


TICK_LOCATOR = MaxNLocator(5, steps=[1, 2, 5, 10])
"""Finds about five round numbers that cover a range of values."""

NARROW_CHARACTER_WIDTH = 2.1
"""Width of a label character on phones, in percent of the line's length."""

WIDE_CHARACTER_WIDTH = 1.2
"""Width of a label character on larger screens, in percent of the line's length."""


@dataclass(frozen=True)
class PositionedLabel:
    """A label with its position.

    Attributes:
        text: text of the label.
        x: position in percent of the line.
        narrow_row: row of the label on a phone, chosen so that labels do not overlap.
        wide_row: row of the label on larger screens.
    """

    text: str
    x: float
    narrow_row: int
    wide_row: int


@dataclass(frozen=True)
class NumberLineLayout:
    """Positions of all elements of a number line, in percent of its length.

    Attributes:
        number_labels: label of the number; empty if the number is NaN or infinite.
        threshold_labels: labels of the thresholds, above the line.
        reference_labels: labels of ends and reference values, below the line.
        bar: start and width of the confidence interval; None if there is none.
    """

    number_labels: list[PositionedLabel]
    threshold_labels: list[PositionedLabel]
    reference_labels: list[PositionedLabel]
    bar: tuple[float, float] | None


def layout_number_line(line: NumberLine) -> NumberLineLayout:
    """Compute the positions of all elements of a number line.

    A number beyond the ends of the line is drawn at the nearer end. Thresholds and reference
    values beyond the ends are omitted.

    Args:
        line: the number line.
    """
    value, ci95 = line.number.value, line.number.ci95
    marks = [*line.thresholds.values(), *line.references.values()]
    start, end = _choose_ends([value, *(ci95 or ()), *marks], line.ends)

    def compute_percent(number: float) -> float:
        """Return a position in percent, clipped to the ends of the line."""
        share = (min(max(number, start), end) - start) / (end - start)
        return round(100 * share, 2)

    def position_marks(values: Mapping[str, float]) -> dict[str, float]:
        """Return the labels of all values on the line with their positions."""
        tolerance = 1e-9 * (end - start)
        return {
            f"{name} {format_label(mark)}": compute_percent(mark)
            for name, mark in values.items()
            if start - tolerance <= mark <= end + tolerance
        }

    number_position = {}
    bar = None
    if is_drawable(value):
        text = f"{line.prefix} {format_interval(value, ci95)}".lstrip()
        number_position = {text: compute_percent(value)}
        if ci95 is not None and ci95[0] <= ci95[1]:
            low, high = map(compute_percent, ci95)
            bar = low, round(high - low, 2)
    unmarked_ends = [v for v in (start, end) if v not in line.references.values()]
    end_positions = {format_label(v): compute_percent(v) for v in unmarked_ends}
    return NumberLineLayout(
        position_labels(number_position),
        position_labels(position_marks(line.thresholds)),
        position_labels(end_positions | position_marks(line.references)),
        bar,
    )


def position_labels(positions: Mapping[str, float]) -> list[PositionedLabel]:
    """Arrange labels in rows for narrow and wide screens.

    Args:
        positions: position of each label in percent of the line.
    """
    narrow_rows = assign_label_rows(positions, NARROW_CHARACTER_WIDTH)
    wide_rows = assign_label_rows(positions, WIDE_CHARACTER_WIDTH)
    return [
        PositionedLabel(text, x, narrow_rows[text], wide_rows[text])
        for text, x in positions.items()
    ]


def assign_label_rows(positions: Mapping[str, float], character_width: float) -> dict[str, int]:
    """Assign each label to a row so that no labels overlap.

    A label at the left end of the line begins there and a label at the right end stops there, so
    no label extends beyond the line.

    Args:
        positions: position of each label in percent of the line.
        character_width: width of a character in percent of the line.
    """
    rows: dict[str, int] = {}
    row_ends: list[float] = []
    for text, x in sorted(positions.items(), key=lambda item: item[1]):
        width = character_width * (len(text) + 1)
        label_start = x - width * x / 100
        row = next((k for k, row_end in enumerate(row_ends) if row_end <= label_start), None)
        if row is None:
            row = len(row_ends)
            row_ends.append(0.0)
        row_ends[row] = label_start + width
        rows[text] = row
    return rows


def _choose_ends(
    values: Iterable[float], fixed_ends: tuple[float, float] | None
) -> tuple[float, float]:
    """Return the ends of a line: the fixed ones if valid, else round numbers around the values.

    >>> _choose_ends([0.12, 0.87], None), _choose_ends([3.0], None), _choose_ends([], None)
    ((0.0, 1.0), (2.5, 3.5), (0.0, 1.0))
    """
    if fixed_ends is not None:
        are_drawable = all(map(is_drawable, fixed_ends))
        if are_drawable and fixed_ends[0] < fixed_ends[1]:
            return fixed_ends
    drawable_values = [float(value) for value in values if is_drawable(value)]
    low = min(drawable_values, default=0.0)
    high = max(drawable_values, default=1.0)
    magnitude = max(abs(low), abs(high))
    if high - low <= 1e-9 * magnitude + 1e-100:
        # All values are equal, so they are centred on the line.
        margin = max(0.5, 0.1 * magnitude)
        return low - margin, high + margin
    first_tick, *_, last_tick = map(float, TICK_LOCATOR.tick_values(low, high))
    return min(first_tick, low), max(last_tick, high)
