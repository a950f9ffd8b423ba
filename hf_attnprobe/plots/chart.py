"""Charts as data: numbers, labels, and a description in words.

Pages and papers draw the same chart object, so their numbers cannot differ.
"""

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal


MAX_DRAWABLE_VALUE = 1e100
"""Largest absolute value that a chart draws. Larger values are omitted, like infinite ones."""

MIN_COLOUR_SCALE_END = 0.1
"""Smallest number at the end of a heat map's colour scale.

A scale that ends at a smaller number would make tiny values look large.
"""

Grid = tuple[tuple[float, ...], ...]
"""Type for one number per attention head, as nested tuples ``[layers][heads]``."""

ChartKind = Literal["histogram", "dots", "curve", "points"]
"""Types of charts: bars over bins, values with error bars, lines, and single points."""


@dataclass(frozen=True)
class Series:
    """A group of values that share a colour, a marker and a legend entry.

    Attributes:
        name: legend entry.
        x: x positions: numbers or category names; for a histogram, the lower edges of equally wide
            bins.
        y: values; NaN if missing.
        low: lower ends of the error bars; empty without error bars.
        high: upper ends of the error bars; empty without error bars.
        n: text count for each value; empty if not displayed.
        is_connected: connect single points by a line, in their order.
    """

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    n: tuple[int, ...] = ()
    is_connected: bool = False


@dataclass(frozen=True)
class Reference:
    """A value to compare with, drawn as a line across the chart.

    Attributes:
        name: legend entry, such as "chance".
        value: position on the axis.
        axis: axis of the value; "y" draws a horizontal line.
    """

    name: str
    value: float
    axis: Literal["x", "y"] = "y"


@dataclass(frozen=True)
class Chart:
    """A chart with one or several series.

    Attributes:
        key: name in files and links, in lower case with underscores.
        title: the chart's title.
        sentences: description of the result with its numbers, and how to interpret them.
        source: paper and figure on which the chart is modelled.
        kind: type of drawing.
        x_label: x-axis label with unit.
        y_label: y-axis label with unit.
        series: groups of values.
        references: values to compare with, drawn as lines.
        bars: meaning of the error bars, such as "95% interval".
        x_range: both ends of the x axis; None fits them to the values.
        y_range: both ends of the y axis; None fits them to the values.
        bin_width: bin width for histograms; None for other drawings.
    """

    key: str
    title: str
    sentences: tuple[str, ...] = field(repr=False)
    source: str
    kind: ChartKind
    x_label: str
    y_label: str
    series: tuple[Series, ...] = field(repr=False)
    references: tuple[Reference, ...] = ()
    bars: str = "95% interval"
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    bin_width: float | None = None

    @property
    def finding(self) -> str:
        """The chart's description as one paragraph."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class HeatMap:
    """A heat map with one number per head; layers are rows, heads are columns.

    Attributes:
        key: name in files and links.
        title: the map's title.
        finding: description of the result with its numbers.
        source: paper or rule on which the map is modelled.
        values: numbers, [layers][heads]; NaN if a head was not tested.
        low: lower ends of the confidence intervals, [layers][heads]; empty without intervals.
        high: upper ends of the confidence intervals; empty without intervals.
        value_label: meaning and unit of the numbers, for the colour scale.
        layers: layer indices.
        heads: head indices.
        centre: value at which the colour changes; None uses shades of one colour.
        threshold: heads whose interval lies at or above this value are marked; None marks heads
            whose interval excludes ``centre``, or 0 without a centre.
    """

    key: str
    title: str
    finding: str
    source: str
    values: Grid
    low: Grid
    high: Grid
    value_label: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    centre: float | None = None
    threshold: float | None = None

    def is_marked(self, low: float, high: float) -> bool:
        """Check whether the map marks a head, because its confidence interval shows a clear effect.

        The interval must lie above the map's threshold. Without a threshold, it must exclude 0 or
        the centre of the map.

        Args:
            low: lower end of the confidence interval.
            high: upper end of the confidence interval.
        """
        if self.threshold is not None:
            return low >= self.threshold
        middle = self.centre or 0.0
        return low > middle or high < middle

    @property
    def mark_description(self) -> str:
        """Reason for marking a head in the map, such as "the interval excludes 0"."""
        if self.threshold is not None:
            return f"the interval lies at {self.threshold:.2f} or more"
        return f"the interval excludes {self.centre or 0:g}"


def is_drawable(value: object) -> bool:
    """Check whether a value is a finite number that is not too large for a chart.

    Args:
        value: any value.
    """
    # The comparison is false for NaN and infinity.
    return isinstance(value, Real) and abs(float(value)) <= MAX_DRAWABLE_VALUE


def format_label(value: object) -> str:
    """Format a value as a label.

    Numbers are printed with about three digits. Other values are converted to text.

    >>> format_label(0.123456), format_label(-2.0), format_label(1234567.0), format_label("max")
    ('0.123', '−2', '1.23e+06', 'max')

    Args:
        value: a number or a category name.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    value = float(value)
    if math.isnan(value):
        return "–"
    magnitude = abs(value)
    if 0 < magnitude < 5e-4 or magnitude >= 1e6:
        text = f"{value:.3g}"
    elif magnitude >= 1e3:
        text = f"{value:.0f}"
    else:
        # The option z prints −0 as 0.
        text = f"{value:z.3f}".rstrip("0").rstrip(".")
    return text.replace("-", "−")
