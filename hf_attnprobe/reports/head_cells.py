"""The cells of a map of heads: a table with colours, or coarse squares for very many. Pure."""

from hf_attnprobe.charts.chart import LEAST_FULL, HeatMap, drawable, short
from hf_attnprobe.markdown import bounds, number
from hf_attnprobe.reports.tags import Html, tag


MOST_CELLS = 4096
"""More of them are drawn as squares without text."""

MOST_WRITTEN = 400
"""More of them show their number only under the pointer, and in the table below."""

TOO_FEW = "too few texts for an interval"

N_SHADES = 10


def colours(heat_map: HeatMap) -> tuple[float, float]:
    """The number that has no colour, and how far from it the colour is full."""
    known = [v for row in heat_map.values for v in row if drawable(v)]
    centre = heat_map.centre
    if centre is None:
        centre = min(0.0, *known) if known else 0.0
    return centre, max([LEAST_FULL, *(abs(v - centre) for v in known)])


def is_coarse(heat_map: HeatMap) -> bool:
    """Whether there are too many cells for a table."""
    return sum(map(len, heat_map.values)) > MOST_CELLS


def cells(heat_map: HeatMap) -> Html:
    """A table with a row per layer and a column per head, each cell shaded by its number."""
    written = sum(map(len, heat_map.values)) <= MOST_WRITTEN
    shades = colours(heat_map)
    head = [tag("th", "layer ↓ head →", scope="col"), *_heads(heat_map.heads)]
    body = [
        tag(
            "tr",
            tag("th", layer, scope="row"),
            *[_cell(heat_map, i, k, shades, written) for k in range(len(values))],
        )
        for i, (layer, values) in enumerate(zip(heat_map.layers, heat_map.values, strict=True))
    ]
    return tag(
        "table",
        tag("caption", f"{heat_map.value_label}, by layer and head"),
        tag("thead", tag("tr", *head)),
        tag("tbody", *body),
        class_="map" if written else "map small",
    )


def squares(heat_map: HeatMap) -> Html:
    """The same as one drawing, a path per shade; squares below the middle are smaller."""
    centre, most = colours(heat_map)
    paths: dict[tuple[str, int], str] = {}
    for i, values in enumerate(heat_map.values):
        for k, value in enumerate(values):
            if drawable(value):
                share = (value - centre) / most
                shade = max(1, round(abs(share) * N_SHADES)) if share else 0
                key = "below" if share < 0 else "above", shade
                square = f"M{k}.2 {i}.2h.6v.6h-.6z" if share < 0 else f"M{k} {i}h1v1h-1z"
                paths[key] = paths.get(key, "") + square
    n_heads = max(map(len, heat_map.values), default=1)
    drawn = [
        tag("path", d=path, class_=side, style=f"--v:{shade / N_SHADES:g}")
        for (side, shade), path in sorted(paths.items())
    ]
    return tag(
        "svg",
        *drawn,
        class_="squares",
        viewBox=f"0 0 {n_heads} {len(heat_map.values)}",
        role="img",
        aria_label=f"{heat_map.value_label}: a row for each of {len(heat_map.layers)} "
        f"layers, a column for each of {n_heads} heads",
    )


def scale_of_colours(heat_map: HeatMap) -> Html:
    """The legend: from the smallest to the largest number."""
    centre, most = colours(heat_map)
    known = [v for row in heat_map.values for v in row if drawable(v)]
    low, high = min(known, default=centre), max(known, default=centre)
    steps = [low + (high - low) * k / 6 for k in range(7)] if high > low else [low]
    boxes = [tag("i", class_=_side(v, centre), style=_shade(v, centre, most)) for v in steps]
    bar = tag("span", *boxes, aria_hidden="true")
    return tag(
        "p",
        tag("span", number(low), bar, number(high)),
        [tag("span", note) for note in _notes(heat_map, low < centre)],
        class_="legend",
    )


def _notes(heat_map: HeatMap, has_below: bool) -> list[str]:
    """What the marks of the cells mean."""
    middle = short(heat_map.centre)
    coarse = is_coarse(heat_map)
    notes = []
    if has_below:
        notes.append(f"{'smaller squares' if coarse else 'hatched'}: below {middle}")
    if _can_be_bold(heat_map) and sum(map(len, heat_map.values)) <= MOST_WRITTEN:
        notes.append(f"bold: the interval excludes {middle}")
    if not all(drawable(v) for row in heat_map.values for v in row):
        notes.append("empty: not tested" if coarse else "dot: not tested")
    if coarse:
        notes.append(
            f"layers {heat_map.layers[0]} to {heat_map.layers[-1]} from the top, "
            f"heads {heat_map.heads[0]} to {heat_map.heads[-1]} from the left"
        )
    return notes


def rows_of_heads(heat_map: HeatMap) -> tuple[list[str], list[list[object]]]:
    """Head and rows of all numbers, a row per cell in reading order."""
    head = ["layer", "head", heat_map.value_label]
    head += ["interval"] if heat_map.low else []
    rows: list[list[object]] = []
    for i, values in enumerate(heat_map.values):
        for k, value in enumerate(values):
            row: list[object] = [heat_map.layers[i], heat_map.heads[k], value]
            rows.append([*row, _bounds(heat_map, i, k)] if heat_map.low else row)
    return head, rows


def _heads(heads: tuple[int, ...]) -> list[Html]:
    return [tag("th", head, scope="col") for head in heads]


def _cell(heat_map: HeatMap, i: int, k: int, shades: tuple[float, float], written: bool) -> Html:
    value = heat_map.values[i][k]
    if not drawable(value):
        return tag("td", "·", class_="none")
    centre, most = shades
    sign = "+" if heat_map.centre is not None else ""
    shown = number(value, digits=2 if most > LEAST_FULL else 3, sign=sign)
    said = number(value, sign=sign)
    if heat_map.low:
        said += f" {_bounds(heat_map, i, k)}"
    is_bold = _can_be_bold(heat_map) and (
        heat_map.low[i][k] > centre or heat_map.high[i][k] < centre
    )
    return tag(
        "td",
        (tag("b", shown) if is_bold else shown) if written else None,
        class_="below" if value < centre else None,
        style=_shade(value, centre, most),
        title=said,
    )


def _bounds(heat_map: HeatMap, i: int, k: int) -> str:
    return (
        bounds((heat_map.low[i][k], heat_map.high[i][k]))
        if heat_map.low and drawable(heat_map.low[i][k])
        else TOO_FEW
    )


def _can_be_bold(heat_map: HeatMap) -> bool:
    return heat_map.centre is not None and bool(heat_map.low)


def _shade(value: float, centre: float, most: float) -> str:
    return f"--v:{min(1.0, abs(value - centre) / most):.2g}"


def _side(value: float, centre: float) -> str | None:
    return "below" if value < centre else None
