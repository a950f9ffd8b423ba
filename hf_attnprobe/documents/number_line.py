"""Layout of number lines: positions of the number, thresholds, reference values and labels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from hf_attnprobe.core.formatting import format_interval
from hf_attnprobe.documents.blocks import NumberLine
from hf_attnprobe.plots.chart import format_label, is_drawable


TICK_LOCATOR = MaxNLocator(5, steps=[1, 2, 5, 10])
"""Matplotlib object that chooses about five round numbers as ticks, such as 0, 0.2, …, 1."""

PHONE_CHARACTER_WIDTH = 2.1
"""Estimated width of one character in a label on a phone.

It is in percent of the number line's length, and is used to place labels so that they do not
overlap.
"""

LARGE_SCREEN_CHARACTER_WIDTH = 1.2
"""Estimated width of one character in a label on a large screen.

It is in percent of the number line's length, and is used to place labels so that they do not
overlap.
"""


@dataclass(frozen=True)
class PositionedLabel:
    """A label on a number line, with its position and its row.

    Labels are distributed over several rows so that they do not overlap.

    Attributes:
        text: the label's text.
        x: position in percent of the line's length.
        narrow_row: row on phones, counted from 0.
        wide_row: row on larger screens, counted from 0.
    """

    text: str
    x: float
    narrow_row: int
    wide_row: int


@dataclass(frozen=True)
class NumberLineLayout:
    """Positions of a number line's elements, in percent of its length.

    Attributes:
        number_labels: the number's label; empty if the number is NaN or infinite.
        threshold_labels: labels for thresholds, above the line.
        reference_labels: labels for line ends and reference values, below the line.
        bar: start and width of the confidence interval; None without interval.
    """

    number_labels: list[PositionedLabel]
    threshold_labels: list[PositionedLabel]
    reference_labels: list[PositionedLabel]
    bar: tuple[float, float] | None


def layout_number_line(line: NumberLine) -> NumberLineLayout:
    """Compute where to draw a number line's elements.

    A number beyond the line's ends is drawn at the nearer end. Thresholds and reference values beyond
    the ends are omitted.

    Args:
        line: the number line.

    Returns:
        Positions in percent of the line's length.
    """
    value, ci95 = line.number.value, line.number.ci95
    marks = [*line.thresholds.values(), *line.references.values()]
    start, end = _choose_ends([value, *(ci95 or ()), *marks], line.ends)

    def compute_percent(number: float) -> float:
        """Compute a number's position in percent of the line's length."""
        share = (min(max(number, start), end) - start) / (end - start)
        return round(100 * share, 2)

    def position_marks(values: Mapping[str, float]) -> dict[str, float]:
        """Compute the position of each threshold or reference value on the line, by its label.

        Values beyond the ends are left out.
        """
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
    unmarked_ends = [number for number in (start, end) if number not in line.references.values()]
    end_positions = {format_label(number): compute_percent(number) for number in unmarked_ends}
    return NumberLineLayout(
        position_labels(number_position),
        position_labels(position_marks(line.thresholds)),
        position_labels(end_positions | position_marks(line.references)),
        bar,
    )


def position_labels(positions: Mapping[str, float]) -> list[PositionedLabel]:
    """Assign the labels of a number line to rows, so that they do not overlap.

    On phones, characters are wider relative to the line, so that more rows are needed. Each label
    gets one row for phones and one for large screens.

    Args:
        positions: label positions in percent of the line's length, by text.
    """
    narrow_rows = assign_label_rows(positions, PHONE_CHARACTER_WIDTH)
    wide_rows = assign_label_rows(positions, LARGE_SCREEN_CHARACTER_WIDTH)
    return [
        PositionedLabel(text, x, narrow_rows[text], wide_rows[text])
        for text, x in positions.items()
    ]


def assign_label_rows(positions: Mapping[str, float], character_width: float) -> dict[str, int]:
    """Assign labels to rows so that they do not overlap.

    Labels do not extend beyond the line: the leftmost label begins at the left end, and the
    rightmost label stops at the right end.

    Args:
        positions: label positions in percent of the line's length, by text.
        character_width: character width in percent of the line's length.

    Returns:
        Row index for each label, by text.
    """
    rows: dict[str, int] = {}
    row_ends: list[float] = []
    for text, x in sorted(positions.items(), key=lambda item: item[1]):
        width = character_width * (len(text) + 1)
        # A label at 0% starts at its position, a label at 50% is centred on it, and a label at 100%
        # ends there.
        label_start = x - width * x / 100
        # The label is placed in the first row with enough space.
        free_rows = [k for k, row_end in enumerate(row_ends) if row_end <= label_start]
        if free_rows:
            row = free_rows[0]
        else:
            row = len(row_ends)
            row_ends.append(0.0)
        row_ends[row] = label_start + width
        rows[text] = row
    return rows


def _choose_ends(
    values: Iterable[float], fixed_ends: tuple[float, float] | None
) -> tuple[float, float]:
    """Choose the numbers at the left and right end of a number line.

    Args:
        values: numbers that the line must contain; NaN and infinite ones are ignored.
        fixed_ends: ends that are used if they are finite and in ascending order. Otherwise, or if
            this is None, round numbers around the values are chosen.

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
