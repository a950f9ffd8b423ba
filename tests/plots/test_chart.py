"""Charts: many points stay small, and maps of nothing or of one value are drawn."""

import math
from xml.etree import ElementTree

from hf_attnprobe.documents.html import render_cell_html
from hf_attnprobe.plots.chart import Chart, HeatMap, Series


def render_block(block):
    """Return a block as HTML."""
    return render_cell_html([block]).partition("</style>")[2].removesuffix("</div>").strip()


def test_a_figure_of_very_many_points_stays_small():
    n = 20_000
    x = tuple(k / n for k in range(n))
    y = tuple((k * 7919 % n) / n for k in range(n))
    chart = Chart("many", "", (), "", "points", "x", "y", (Series("", x, y),))
    assert len(render_block(chart)) < 300_000


def test_maps_of_nothing_and_of_one_value():
    nan = math.nan
    for values in (((nan, nan),), ((0.3,),), ((0.0, 0.0),)):
        heat_map = HeatMap(
            "k", "t", "f", "s", values, (), (), "v", (0,), tuple(range(len(values[0])))
        )
        ElementTree.fromstring(render_block(heat_map))
