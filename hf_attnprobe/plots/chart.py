"""A chart as data: what is drawn, from which numbers, and what it shows in words.

Whatever draws (the page in SVG, the figures in matplotlib) draws the same numbers, and a
table of them stands behind each drawing. Pure.
"""

from dataclasses import dataclass, field
from numbers import Real
from typing import Literal


LARGEST = 1e100
"""Beyond it a number is treated as infinite: it is in the table and not drawn."""

LEAST_FULL = 0.1
"""Colours of a map are never full below it, so that one of hardly anything looks like that."""

Grid = tuple[tuple[float, ...], ...]
"""Numbers by layer and head, [layers][heads]."""

Kind = Literal["histogram", "dots", "curve", "points"]


@dataclass(frozen=True)
class Series:
    """One group of a chart: a colour, a mark, a line of its legend.

    Attributes:
        name: in the legend.
        x: places: numbers, or names where the axis has categories. Of a histogram the
            lower edges of bins of equal width.
        y: values, one per place; NaN where there is none.
        low: lower ends of the bars around the values; empty without bars.
        high: upper ends.
        n: texts behind each value; empty where that is said elsewhere.
        joined: of single points, whether a line joins them, in their order.
    """

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    n: tuple[int, ...] = ()
    joined: bool = False


@dataclass(frozen=True)
class Reference:
    """A yardstick: a line across a chart.

    Attributes:
        name: such as "chance".
        value: on the axis.
        axis: that it is on.
    """

    name: str
    value: float
    axis: Literal["x", "y"] = "y"


@dataclass(frozen=True)
class Chart:
    """A chart of one kind.

    Attributes:
        key: its name in files and links, lower case with underscores.
        title: what is shown.
        sentences: what is to be seen, with its numbers, and how these are to be read.
        source: paper and figure that it follows.
        kind: bars over bins of numbers, values with bars at categories, lines over
            numbers, or single points.
        x_label: of the axis, with its unit.
        y_label: of the axis, with its unit.
        series: the groups.
        references: yardsticks.
        bars: what ``low`` and ``high`` of the series are, such as "95% interval".
        x_range: ends of the axis; None for those of the values.
        y_range: ends of the axis.
        bin_width: of a histogram.
    """

    key: str
    title: str
    sentences: tuple[str, ...] = field(repr=False)
    source: str
    kind: Kind
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
        """The sentences, one after the other."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class HeatMap:
    """A number of every head, by layer.

    Attributes:
        key: its name in files and links.
        title: what is shown.
        finding: one sentence that says what is to be seen, with its numbers.
        source: paper, or rule, that it follows.
        values: [layers][heads]; NaN where a head was not tested.
        low: lower ends of the intervals, simultaneous over all heads where the finding
            says so; empty without intervals.
        high: upper ends.
        value_label: what the number is, with its unit.
        layers: numbers of the layers.
        heads: numbers of the heads.
        centre: the value in the middle of two colours; None for one colour.
        threshold: heads whose interval reaches it are marked; None marks those whose interval
            excludes the centre, or 0.
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
        """Whether an interval is that of a head that is marked."""
        if self.threshold is not None:
            return low >= self.threshold
        middle = self.centre or 0.0
        return low > middle or high < middle

    @property
    def mark(self) -> str:
        """What the mark of a head means, in words."""
        if self.threshold is not None:
            return f"the interval lies at {self.threshold:.2f} or more"
        return f"the interval excludes {self.centre or 0:g}"


def drawable(value: object) -> bool:
    """Whether a value is a number that an axis can reach; NaN and infinity are not."""
    return isinstance(value, Real) and abs(float(value)) <= LARGEST


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
