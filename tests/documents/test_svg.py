"""SVG drawings are well-formed for every chart, small, and show its data."""

import re
from importlib.resources import files
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hf_attnprobe.core.formatting import format_interval
from hf_attnprobe.documents.blocks import FormattedNumber, NumberLine
from hf_attnprobe.documents.html import render_cell_html
from hf_attnprobe.documents.svg import CSS_COLOURS, render_svg
from hf_attnprobe.plots import matplotlib_backend as figures
from hf_attnprobe.plots.chart import Chart, Reference, Series
from tests.helpers.sample_page import charts, heads


def render_block(block):
    """Return a block as HTML."""
    return render_cell_html([block]).partition("</style>")[2].removesuffix("</div>").strip()


def render_number_line(value, ci95=None, thresholds=None, references=None, ends=None):
    return render_block(
        NumberLine(FormattedNumber(value, ci95), thresholds or {}, references or {}, ends)
    )


NUMBERS = st.floats() | st.integers(-3, 3).map(float)
TEXTS = st.text(max_size=30)


@st.composite
def any_series(draw_, kind):
    n = draw_(st.integers(0, 6))
    column = st.lists(NUMBERS, min_size=n, max_size=n).map(tuple)
    places = {
        "dots": st.lists(TEXTS, min_size=n, max_size=n).map(tuple),
        "histogram": st.floats(-9, 9).map(lambda start: tuple(start + k for k in range(n))),
    }
    has_bars = draw_(st.booleans())
    return Series(
        draw_(TEXTS),
        draw_(places.get(kind, column)),
        draw_(column),
        draw_(column) if has_bars else (),
        draw_(column) if has_bars else (),
        tuple(range(n)) if draw_(st.booleans()) else (),
    )


@st.composite
def any_chart(draw_):
    kind = draw_(st.sampled_from(["histogram", "dots", "curve", "points"]))
    ends = st.none() | st.tuples(NUMBERS, NUMBERS)
    reference = st.builds(Reference, TEXTS, NUMBERS, st.sampled_from(["x", "y"]))
    return Chart(
        key="some_chart",
        title=draw_(TEXTS),
        sentences=(),
        source="",
        kind=kind,
        x_label=draw_(TEXTS),
        y_label=draw_(TEXTS),
        series=tuple(draw_(st.lists(any_series(kind), max_size=8))),
        references=tuple(draw_(st.lists(reference, max_size=4))),
        x_range=draw_(ends),
        y_range=draw_(ends),
        bin_width=draw_(st.none() | st.just(1.0)),
    )


@settings(max_examples=25)
@given(any_chart())
def test_every_chart_is_well_formed_and_the_same_every_time(chart):
    drawn = render_svg(chart)
    svg = ElementTree.fromstring(drawn)
    assert svg.get("role") == "img"
    assert svg.find("title") is not None and svg.find("desc").text
    # The path of an empty series has no attribute "d".
    for path in svg.iter("path"):
        assert not re.search("nan|inf|e", path.get("d", ""))
    ids = [element.get("id") for element in svg.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', drawn)) <= set(ids)
    assert render_svg(chart) == drawn


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.key)
def test_drawings_are_small(chart):
    assert len(render_svg(chart)) < 20_000


def test_two_drawings_on_a_page_share_no_names():
    ids = [set(re.findall('id="(.*?)"', render_svg(chart))) for chart in charts()]
    assert sum(map(len, ids)) == len(set().union(*ids))


def test_colours_are_the_page_s_own_in_light_and_dark():
    page = files("hf_attnprobe.documents").joinpath("page.css").read_text()
    for chart in charts():
        drawn = render_svg(chart)
        assert not re.search("#[0-9a-fA-F]{6}\\b", drawn)
        for name in re.findall(r"var\((--\w+)\)", drawn):
            assert f"{name}: light-dark(" in page


def test_letters_are_the_page_s_own():
    assert not any("font-family" in render_svg(chart) for chart in charts())


def test_every_colour_of_the_figures_has_one_of_the_page():
    used = {
        *figures.COLOURS,
        *figures.REFERENCE_LINE_COLOURS,
        figures.GRID_COLOUR,
        "#000000",
        "#ffffff",
    }
    assert {colour.lower() for colour in used} <= CSS_COLOURS.keys()
    assert len({CSS_COLOURS[c.lower()] for c in figures.COLOURS}) == len(figures.COLOURS)


def test_names_and_numbers_are_written_as_they_are():
    """Coordinates are cut to tenths and colours replaced, but in no text."""
    names = ("0.00012345", "#000000", "font: b; c", " xlink:href")
    one = Series("a", names, (1e-4, 2e-4, 3e-4, 4e-4))
    drawn = render_svg(Chart("k", "", (), "", "dots", "x", "y", (one,)))
    shown = {text.text for text in ElementTree.fromstring(drawn).iter("text")}
    assert set(map(str.strip, names)) <= set(map(str.strip, shown))


# --- what is drawn is what the chart says -----------------------------------------------------------------------------


def draw_sample_chart(key):
    """Return a sample chart and its axes."""
    (chart,) = [c for c in charts() if c.key == key]
    return chart, figures.draw(chart)


def read_coordinates(svg):
    """Return all coordinates in a drawing."""
    attributes = re.findall(' (?:d|x|y)="([^"]*)"', svg)
    return [float(n) for place in attributes for n in re.findall(NUMBER, place)]


NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


@pytest.mark.parametrize("chart", [*charts()[:-1], heads(6, 12)], ids=lambda chart: chart.key)
def test_every_place_is_matplotlibs_to_a_tenth_of_a_point(chart):
    ax = figures.draw(chart)
    figure = ax.get_figure(root=True)
    figure.patch.set_visible(False), ax.patch.set_visible(False)
    theirs = read_coordinates(figures.render_figure(figure, "svg", salt=chart.key).decode())
    assert len(theirs) > 20
    assert read_coordinates(render_svg(chart)) == pytest.approx(theirs, abs=0.1)


def test_points_and_lines_are_where_the_values_are():
    for key in ("points", "penalty"):
        chart, ax = draw_sample_chart(key)
        lines = [line for line in ax.lines if len(line.get_xdata()) > 2]
        for k, (series, line) in enumerate(zip(chart.series, lines, strict=True)):
            assert line.get_xdata() == pytest.approx(series.x)
            assert line.get_ydata() == pytest.approx(series.y)
            if series.low:
                ends = {*ax.collections[k].get_paths()[0].vertices[:, 1].round(9)}
                assert {round(v, 9) for v in (*series.low, *series.high)} <= ends
    level = [line.get_ydata() for line in ax.lines[3:]]
    assert level[:2] == [[0.3, 0.3], [0.32, 0.32]] and ax.lines[5].get_xdata() == [0.2, 0.2]


def test_dots_and_their_bars_stand_beside_their_names():
    for key in ("shuffles", "rankings"):
        chart, ax = draw_sample_chart(key)
        assert tuple(t.get_text() for t in ax.get_yticklabels())[:4] == chart.series[0].x[:4]
        assert ax.yaxis_inverted()  # names from the top
        for k, series in enumerate(chart.series):
            dots, (bars,) = ax.containers[k][0], ax.containers[k][2]
            assert dots.get_xdata() == pytest.approx(series.y, nan_ok=True)
            assert [*map(round, dots.get_ydata())] == [*range(len(series.x))]
            ends = [(s[0, 0], s[1, 0]) for s in bars.get_segments() if len(s)]
            known = [
                pair for pair in zip(series.low, series.high, strict=True) if pair[0] == pair[0]
            ]
            assert [e for e in ends if e[0] == e[0]] == [pytest.approx(pair) for pair in known]


def test_every_bin_has_the_height_of_its_value():
    chart, ax = draw_sample_chart("tau")
    for series, stairs in zip(chart.series, ax.patches, strict=True):
        values, edges, _ = stairs.get_data()
        assert values == pytest.approx(series.y)
        assert edges == pytest.approx([*series.x, series.x[-1] + chart.bin_width])


def test_what_is_missing_is_counted():
    svg = ElementTree.fromstring(render_svg(charts()[-1]))
    assert "2 values are missing" in svg.find("desc").text
    assert "no values" in [text.text for text in svg.iter("text")]


def test_series_differ_by_more_than_colour():
    one, two = [
        ElementTree.fromstring(render_svg(c)) for c in charts() if c.key in ("tau", "penalty")
    ]
    hatches = [p.find("path").get("d") for p in one.iter("pattern")]
    assert len(set(hatches)) == 2
    styles = [p.get("style", "") for p in two.iter("path") if p.get("clip-path")]
    lines = {s for s in styles if re.search("stroke: var\\(--(blue|orange|green)", s)}
    assert len({re.sub("stroke: [^;]*", "", line) for line in lines}) == 3  # solid, dashes
    groups = [g for g in two.iter("g") if g.get("clip-path") and g[0].get("x") != "0"]  # no bands
    used = {u.get("href") for g in groups for u in g}
    shapes = [p.get("d") for p in two.iter("path") if f"#{p.get('id')}" in used]
    assert len(set(shapes)) == 3


def test_hidden_words_say_what_is_drawn():
    svg = ElementTree.fromstring(render_svg(charts()[1]))
    assert [title.text for title in svg.iter("title")] == [charts()[1].title]
    said = svg.find("desc").text
    assert "for negative, positive" in said and "threshold of mattering 0.1" in said


def test_a_figure_says_its_finding_and_its_source():
    chart = charts()[1]
    html = render_block(chart)
    assert "<table" not in html
    assert chart.finding in html and chart.source.replace("&", "&amp;") in html


# --- number lines and maps ----------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    NUMBERS,
    st.none() | st.tuples(NUMBERS, NUMBERS),
    st.dictionaries(TEXTS, NUMBERS, max_size=4),
    st.dictionaries(TEXTS, NUMBERS, max_size=4),
    st.none() | st.tuples(NUMBERS, NUMBERS),
)
def test_every_number_line_is_well_formed(value, ci95, thresholds, references, ends):
    (line,) = ElementTree.fromstring(render_number_line(value, ci95, thresholds, references, ends))
    assert line.get("aria-label").startswith(format_interval(value, ci95))
    places = re.findall(r"left:([^%]*)%", ElementTree.tostring(line, encoding="unicode"))
    assert all(0 <= float(place) <= 100 for place in places)


def test_marks_of_a_number_line_are_where_the_values_are():
    html = render_number_line(
        0.34, (0.31, 0.37), {"agrees": 0.6}, {"chance": 0.0, "far": 9.0}, (-0.2, 0.8)
    )
    (line,) = ElementTree.fromstring(html)
    places = {
        span.text: float(re.match(r"left:([^%]*)%", span.get("style"))[1])
        for span in line.iter("span")
    }
    assert places == {
        "0.340 [0.310, 0.370]": 54.0,
        "agrees 0.6": 80.0,
        "chance 0": 20.0,
        "−0.2": 0.0,
        "0.8": 100.0,
    }
    assert line.get("aria-label").startswith("0.340 [0.310, 0.370]; agrees 0.6; chance 0")
    (bar,) = [i for i in line.iter("i") if i.get("class") == "interval"]
    assert bar.get("style") == "left:51.0%;width:6.0%"


@given(st.lists(st.floats(-1e90, 1e90), min_size=1, max_size=5))
@example([2.5e18, -4.7e9])  # the second is nearly 0 beside the first
def test_a_number_line_reaches_all_that_is_on_it(values):
    (line,) = ElementTree.fromstring(
        render_number_line(values[0], references=dict(zip("abcde", values, strict=False)))
    )
    drawn = [span.text for span in line.iter("span")]
    for name in "abcde"[: len(values)]:
        assert any(text.startswith(f"{name} ") for text in drawn)


def test_a_map_shows_each_head_and_those_that_are_sure_in_bold():
    heat_map = heads(6, 12)
    svg = ElementTree.fromstring(render_svg(heat_map))
    values = [value for row in heat_map.values for value in row]
    cells = [t for t in svg.iter("text") if f"{figures.CELL_FONT_SIZE:g}px" in t.get("style", "")]
    assert len(cells) == len(values) == 72
    for value, cell in zip(values, cells, strict=True):
        digits = f"{abs(value):.2f}".removeprefix("0")
        sign = "−" if value < 0 and digits != ".00" else ""
        assert cell.text == ("–" if value != value else f"{sign}{digits}")
        assert ("font-weight: 700" in cell.get("style")) == (abs(value) > 0.05)
        assert "var(" not in cell.get("style")  # its shade is the same on a dark page


@pytest.mark.parametrize(
    ("size", "most"), [((6, 12), 25_000), ((32, 32), 250_000), ((128, 96), 400_000)]
)
def test_maps_stay_small(size, most):
    html = render_block(heads(*size))
    ElementTree.fromstring(html)
    assert len(html) < most
