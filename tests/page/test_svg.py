"""Drawings are XML for every chart, small, and show what their data say."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo_page import charts, heads
from hf_attnprobe.charts.chart import Chart, HeatMap, Reference, Series
from hf_attnprobe.page.axes import Axis, reach, spread, width
from hf_attnprobe.page.elements import figure, head_map, scale
from hf_attnprobe.page.svg import draw


NUMBERS = st.floats() | st.integers(-3, 3).map(float)
TEXTS = st.text(max_size=30)


@st.composite
def any_series(draw_, kind):
    n = draw_(st.integers(0, 6))
    column = st.lists(NUMBERS, min_size=n, max_size=n).map(tuple)
    names = st.lists(TEXTS, min_size=n, max_size=n).map(tuple)
    has_bars = draw_(st.booleans())
    return Series(
        draw_(TEXTS),
        draw_(names if kind == "dots" else column),
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
        finding="",
        source="",
        kind=kind,
        x_label=draw_(TEXTS),
        y_label=draw_(TEXTS),
        series=tuple(draw_(st.lists(any_series(kind), max_size=8))),
        references=tuple(draw_(st.lists(reference, max_size=4))),
        x_range=draw_(ends),
        y_range=draw_(ends),
        bin_width=draw_(st.none() | NUMBERS),
    )


@settings(deadline=None, max_examples=60)
@given(any_chart())
def test_every_chart_is_well_formed_and_stays_in_its_frame(chart):
    svg = ElementTree.fromstring(draw(chart))
    assert svg.get("role") == "img"
    assert svg.find("title") is not None and svg.find("desc").text
    high = float(svg.get("viewBox").split()[3])
    for text in svg.iter("text"):
        assert -1 <= float(text.get("x")) <= 601
        assert 0 <= float(text.get("y")) <= high + 400
    for path in svg.iter("path"):
        assert not re.search("nan|inf|e", path.get("d"))
    assert ElementTree.tostring(svg) == ElementTree.tostring(ElementTree.fromstring(draw(chart)))


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.key)
def test_drawings_are_small(chart):
    assert len(draw(chart)) < 40_000


def test_marks_are_where_the_values_are():
    chart = Chart(
        "k", "", "", "", "points", "x", "y",
        (Series("a", (0.0, 4.0, 10.0), (0.0, 0.5, math.nan)),),
        x_range=(0, 10), y_range=(0, 1),
    )  # fmt: skip
    svg = ElementTree.fromstring(draw(chart))
    marks = [path for path in svg.iter("path") if "mark" in path.get("class", "")]
    places = [
        tuple(map(float, re.match(r"M(\S+) (\S+?)m", mark.get("d")).groups()))
        for mark in marks
        if mark.find("title") is not None
    ]
    (left, bottom), (middle, half) = places  # the third has no value
    ticks = {t.text: t for t in svg.iter("text")}
    assert float(ticks["4"].get("x")) == pytest.approx(middle, abs=0.1)
    assert left == pytest.approx(float(ticks["0"].get("x")), abs=0.1)
    assert half == pytest.approx(bottom - 115, abs=0.2)  # the field is 230 high
    assert "1 values are missing" in svg.find("desc").text


def test_series_differ_by_more_than_colour():
    one, two = [s for s in charts() if s.key in ("tau", "penalty")]
    fills = set(re.findall(r'fill="(url[^"]*)"', draw(one)))
    angles = set(re.findall(r"rotate\(([-\d]+)\)", draw(one)))
    assert len(fills) == len(angles) == 2
    assert len(set(re.findall(r'stroke-dasharray="([^"]*)"', draw(two)))) == 2  # one solid


def test_hidden_words_say_what_is_drawn():
    svg = ElementTree.fromstring(draw(charts()[1]))
    titles = [title.text for title in svg.iter("title")]
    assert "negative, .5–.75: 0.2 [0.15, 0.26], 95% interval, 61 texts" in titles
    assert "threshold of mattering: 0.1" in titles


def test_a_figure_has_its_numbers_behind_it():
    chart = charts()[1]
    html = figure(chart)
    assert html.count("<tr>") == 1 + 8 + 1  # head, values, threshold
    assert chart.finding in html and chart.source.replace("&", "&amp;") in html


def test_a_figure_of_very_many_points_stays_small():
    n = 50_000
    x = tuple(k / n for k in range(n))
    y = tuple((k * 7919 % n) / n for k in range(n))
    chart = Chart("many", "", "", "", "points", "x", "y", (Series("", x, y),))
    assert len(figure(chart)) < 700_000
    assert "30 of 50,000 values" in figure(chart)


# --- axes ---------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(-1e90, 1e90), min_size=1, max_size=5))
def test_axes_reach_all_values_with_round_ticks_within(values):
    low, high = reach(values)
    slack = 1e-6 * (high - low)
    assert low < high
    assert low - slack <= min(values) and max(values) <= high + slack
    ticks = Axis(low, high, 0, 1).ticks()
    assert 1 <= len(ticks) <= 7
    assert all(low - slack <= value <= high + slack for value, _ in ticks)


def test_ticks_are_round():
    assert [text for _, text in Axis(-1, 1, 0, 1).ticks()] == [
        "−1.0", "−0.5", "0.0", "0.5", "1.0",
    ]  # fmt: skip
    assert [text for _, text in Axis(0, 870, 0, 1).ticks()] == [
        "0",
        "200",
        "400",
        "600",
        "800",
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 600), st.text("ab", min_size=1, max_size=20)), max_size=8))
def test_labels_do_not_run_into_each_other(labels):
    places = [place for place, _ in labels]
    texts = [text for _, text in labels]
    found = spread(places, texts, 0, 600)
    spans = [
        (row, x - width(text) / 2, x + width(text) / 2)
        for (x, row), text in zip(found, texts, strict=True)
    ]
    for k, (row, start, end) in enumerate(spans):
        for other, begin, stop in spans[:k]:
            assert row != other or end <= begin or stop <= start


def test_a_label_with_room_stays_where_it_belongs():
    assert spread([100, 400], ["a", "b"], 0, 600) == [(100, 0), (400, 0)]


# --- number lines and maps ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    NUMBERS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    st.dictionaries(TEXTS, NUMBERS, max_size=4),
    st.dictionaries(TEXTS, NUMBERS, max_size=4),
    st.none() | st.tuples(NUMBERS, NUMBERS),
)
def test_every_number_line_is_well_formed(value, low, high, thresholds, yardsticks, ends):
    svg = ElementTree.fromstring(scale(value, low, high, thresholds, yardsticks, ends)).find("svg")
    assert svg.get("aria-label").startswith("The value is")
    assert not any(re.search("nan|inf", path.get("d")) for path in svg.iter("path"))


def test_a_number_line_says_everything_in_words():
    html = scale(0.34, 0.31, 0.37, {"agrees": 0.6}, {"chance": 0.0}, (0, 1))
    assert "0.340 [0.310, 0.370]" in html
    assert "Thresholds: agrees 0.6. Compare: chance 0." in html


def test_a_map_shows_each_head_with_sign_and_interval():
    heat_map = heads(6, 12)
    table = ElementTree.fromstring(head_map(heat_map)).find(".//table[@class='map']")
    cells = list(table.iter("td"))
    assert len(cells) == 72
    value, cell = heat_map.values[1][3], cells[15]
    shown = "".join(cell.itertext())
    assert shown == f"{value:+.2f}"
    assert cell.get("title") == f"{value:+.3f} [{value - 0.05:.3f}, {value + 0.05:.3f}]"
    for value, cell in zip(sum(heat_map.values, ()), cells, strict=True):
        if value != value:
            assert cell.get("class") == "none" and "".join(cell.itertext()) == "·"
            continue
        assert (cell.get("class") == "below") == (value < 0)
        is_sure = abs(value) > 0.05
        assert (cell.find("b") is not None) == is_sure


@pytest.mark.parametrize(
    ("size", "most"), [((6, 12), 25_000), ((32, 32), 250_000), ((128, 96), 400_000)]
)
def test_maps_stay_small(size, most):
    html = head_map(heads(*size))
    ElementTree.fromstring(html)
    assert len(html) < most


def test_a_coarse_map_tells_signs_by_size_and_lists_the_largest():
    heat_map = heads(80, 64)
    html = head_map(heat_map)
    assert "400 of 5,120 values" in html
    largest = max((v for row in heat_map.values for v in row if v == v), key=abs)
    first = re.search(r"<tbody>.*?</tr>", html)[0]
    assert f"{largest:.3f}" in first
    assert "smaller squares: below 0" in html and ".2h.6v.6" in html


def test_maps_of_nothing_and_of_one_value():
    nan = math.nan
    for values in (((nan, nan),), ((0.3,),), ((0.0, 0.0),)):
        heat_map = HeatMap(
            "k", "t", "f", "s", values, (), (), "v", (0,), tuple(range(len(values[0])))
        )
        ElementTree.fromstring(head_map(heat_map))
