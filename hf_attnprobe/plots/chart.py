"""Charts as data: the numbers to draw, labels, and the finding in words.

Pages and papers draw the same chart object, so drawing, table and text cannot differ.
"""

from dataclasses import dataclass, field
from numbers import Real
from typing import Literal


LARGEST_DRAWABLE = 1e100
"""Largest absolute value that is drawn; larger ones are treated as infinite."""

MIN_COLOUR_RANGE = 0.1
"""Smallest value that gets the darkest colour of a map, so that tiny values look small."""

Grid = tuple[tuple[float, ...], ...]
"""One number for each layer and head, [layers][heads]."""

ChartKind = Literal["histogram", "dots", "curve", "points"]
"""How a chart is drawn: bars over bins, values with error bars, lines, or single points."""


@dataclass(frozen=True)
class Series:
    """A group of values that share a colour, a marker and an entry in the legend.

    Attributes:
        name: entry in the legend.
        x: position of each value: numbers, or category names. For a histogram, the lower edges
            of equally wide bins.
        y: the values; NaN if a value is missing.
        low: lower ends of the error bars; empty without error bars.
        high: upper ends of the error bars.
        n: number of texts for each value; empty if not displayed.
        is_connected: whether single points are connected by a line, in their order.
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
        name: entry in the legend, such as "chance".
        value: position on the axis.
        axis: the axis that the value belongs to.
    """

    name: str
    value: float
    axis: Literal["x", "y"] = "y"


@dataclass(frozen=True)
class Chart:
    """A chart of one or several series.

    Attributes:
        key: name in files and links, in lower case with underscores.
        title: title of the chart.
        sentences: what the chart shows, with its numbers, and how to read them.
        source: paper and figure on which the chart is modelled.
        kind: histogram, values with error bars, lines, or single points.
        x_label: label of the x axis, with the unit.
        y_label: label of the y axis, with the unit.
        series: the groups of values.
        references: values to compare with.
        bars: meaning of the error bars, such as "95% interval".
        x_range: both ends of the x axis; None fits them to the values.
        y_range: both ends of the y axis; None fits them to the values.
        bin_width: bin width of a histogram.
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
        """All sentences as one text."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class HeatMap:
    """A map with one number for each head, layers as rows and heads as columns.

    Attributes:
        key: name in files and links.
        title: title of the map.
        finding: what the map shows, with its numbers.
        source: paper or rule on which the map is modelled.
        values: the numbers, [layers][heads]; NaN if a head was not tested.
        low: lower ends of the confidence intervals, [layers][heads]; empty without intervals.
        high: upper ends of the confidence intervals.
        value_label: meaning of the numbers, with their unit.
        layers: numbers of the layers.
        heads: numbers of the heads.
        centre: value between two colours; None uses one colour.
        threshold: heads whose interval lies at or above it are marked; None marks heads whose
            interval excludes ``centre``, or 0.
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
        """Check whether a head with this interval is marked.

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
        """Meaning of a marked head, in words."""
        if self.threshold is not None:
            return f"the interval lies at {self.threshold:.2f} or more"
        return f"the interval excludes {self.centre or 0:g}"


def is_drawable(value: object) -> bool:
    """Check whether a value is a number that an axis can represent; NaN and infinity are not.

    Args:
        value: any value.
    """
    return isinstance(value, Real) and abs(float(value)) <= LARGEST_DRAWABLE


def format_label(value: object) -> str:
    """Return a value as a label: a number with about three digits, anything else as text.

    >>> format_label(0.123456), format_label(-2.0), format_label(1234567.0), format_label("max")
    ('0.123', '−2', '1.23e+06', 'max')

    Args:
        value: a number or the name of a category.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    value = float(value)
    if value != value:
        return "–"
    magnitude = abs(value)
    if magnitude and (magnitude < 5e-4 or magnitude >= 1e6):
        text = f"{value:.3g}"
    else:
        text = f"{value:z.3f}".rstrip("0").rstrip(".") if magnitude < 1e3 else f"{value:.0f}"
    return text.replace("-", "−")
