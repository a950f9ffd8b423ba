"""How a map of heads is shaded: a table of cells, or coarse squares for very many. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from hf_attnprobe.charts.chart import LEAST_FULL, HeatMap, drawable, short
from hf_attnprobe.markdown import bounds, number
from hf_attnprobe.reports.document import Cell, Figures, Table


MOST_CELLS = 4096
"""More of them are drawn as squares without text."""

MOST_WRITTEN = 400
"""More of them show their number only under the pointer, and in the table below."""

N_SHADES = 10


@dataclass(frozen=True)
class Shaded:
    """A number with its colour: how far from the middle, 0 to 1, and on which side."""

    value: float
    shade: float
    is_below: bool


@dataclass(frozen=True)
class HeadCell(Shaded):
    """A head's cell: what stands in it, what is said of it, and whether it is marked."""

    shown: str
    said: str
    is_bold: bool


@dataclass(frozen=True)
class ShadedMap:
    """A map of heads with the colours of its numbers.

    Attributes:
        heat_map: the numbers.
        centre: the number that has no colour.
        most: how far from it the colour is full.
    """

    heat_map: HeatMap
    centre: float
    most: float

    @property
    def n_cells(self) -> int:
        return sum(map(len, self.heat_map.values))

    @property
    def is_coarse(self) -> bool:
        """Whether there are too many cells for a table."""
        return self.n_cells > MOST_CELLS

    @property
    def is_written(self) -> bool:
        """Whether the cells have room for their numbers."""
        return self.n_cells <= MOST_WRITTEN

    @property
    def known(self) -> list[float]:
        return [v for row in self.heat_map.values for v in row if drawable(v)]

    def shaded(self, value: float) -> Shaded:
        """The colour of a number."""
        share = min(1.0, abs(value - self.centre) / self.most)
        return Shaded(value, float(f"{share:.2g}"), value < self.centre)

    def rows(self) -> Iterator[tuple[int, list[HeadCell | None]]]:
        """Each layer with its cells; None where a head was not tested."""
        for i, (layer, values) in enumerate(
            zip(self.heat_map.layers, self.heat_map.values, strict=True)
        ):
            yield layer, [self._cell(i, k) if drawable(v) else None for k, v in enumerate(values)]

    def _cell(self, i: int, k: int) -> HeadCell:
        value = self.heat_map.values[i][k]
        sign = "+" if self.heat_map.centre is not None else ""
        digits = 2 if self.most > LEAST_FULL else 3
        said = number(value, sign=sign)
        ends = interval_of(self.heat_map, i, k)
        is_bold = ends is not None and self.heat_map.is_marked(*ends)
        if self.heat_map.low:
            said += f" {bounds(ends) if ends else TOO_FEW}"
        shown = number(value, digits=digits, sign=sign) if self.is_written else ""
        return HeadCell(**vars(self.shaded(value)), shown=shown, said=said, is_bold=is_bold)

    def paths(self) -> list[tuple[bool, float, str]]:
        """The map as squares, a path for each shade; those below the middle are smaller."""
        paths: dict[tuple[bool, float], str] = {}
        for i, values in enumerate(self.heat_map.values):
            for k, value in enumerate(values):
                if drawable(value):
                    shaded = self.shaded(value)
                    key = shaded.is_below, round(shaded.shade * N_SHADES) / N_SHADES
                    square = f"M{k}.2 {i}.2h.6v.6h-.6z" if key[0] else f"M{k} {i}h1v1h-1z"
                    paths[key] = paths.get(key, "") + square
        return [(*key, path) for key, path in sorted(paths.items())]

    def legend(self) -> list[Shaded]:
        """From the smallest to the largest number in seven steps."""
        low, high = min(self.known, default=self.centre), max(self.known, default=self.centre)
        if low == high:
            return [self.shaded(low)]
        return [self.shaded(low + (high - low) * k / 6) for k in range(7)]

    def notes(self) -> list[str]:
        """What the marks of the cells mean."""
        middle, heat_map = short(self.heat_map.centre), self.heat_map
        notes = []
        if any(v < self.centre for v in self.known):
            notes.append(f"{'smaller squares' if self.is_coarse else 'hatched'}: below {middle}")
        if heat_map.low and self.is_written:
            notes.append(f"bold: {heat_map.mark}")
        if len(self.known) < self.n_cells:
            notes.append("empty: not tested" if self.is_coarse else "dot: not tested")
        if self.is_coarse:
            notes.append(
                f"layers {heat_map.layers[0]} to {heat_map.layers[-1]} from the top, "
                f"heads {heat_map.heads[0]} to {heat_map.heads[-1]} from the left"
            )
        return notes


TOO_FEW = "too few texts for an interval"


def shaded_map(heat_map: HeatMap) -> ShadedMap:
    """A map with its colours: full at the largest number, but for hardly anything."""
    known = [v for row in heat_map.values for v in row if drawable(v)]
    centre = min([0.0, *known]) if heat_map.centre is None else heat_map.centre
    return ShadedMap(heat_map, centre, max([LEAST_FULL, *(abs(v - centre) for v in known)]))


def interval_of(heat_map: HeatMap, i: int, k: int) -> tuple[float, float] | None:
    """Of a head, by the places of its layer and itself; None without one."""
    if not heat_map.low or not drawable(heat_map.low[i][k]):
        return None
    return heat_map.low[i][k], heat_map.high[i][k]


def heads_table(heat_map: HeatMap) -> Table:
    """A row for each head with a number; of a coarse map the farthest from its middle first."""
    rows: list[list[Cell]] = []
    for i, values in enumerate(heat_map.values):
        for k, value in enumerate(values):
            if drawable(value):
                ends = interval_of(heat_map, i, k)
                row: list[Cell] = [heat_map.layers[i], heat_map.heads[k], value]
                rows.append([*row, Figures(bounds(ends) if ends else TOO_FEW)])
    head = ["layer", "head", heat_map.value_label, "interval"]
    shaded = shaded_map(heat_map)
    if shaded.is_coarse:
        rows.sort(key=lambda row: -abs(row[2] - shaded.centre))  # type: ignore[operator]
    if not heat_map.low:
        head, rows = head[:3], [row[:3] for row in rows]
    return Table(head, rows)
