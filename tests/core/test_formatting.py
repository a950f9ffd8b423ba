"""Numbers, intervals and Markdown tables as text: against Python's own formats and a Markdown parser."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from hf_attnprobe.core.formatting import (
    MISSING_NUMBER,
    format_bounds,
    format_interval,
    format_number,
    format_table,
)


FINITE = st.floats(-1e6, 1e6)


@given(FINITE, st.integers(0, 6))
def test_a_number_reads_back_as_it_was_rounded(value, digits):
    shown = format_number(value, digits=digits)
    assert float(shown) == round(value, digits)
    assert len(shown.partition(".")[2]) == digits
    assert not re.fullmatch(r"-[0.]+", shown)  # no negative zero


@pytest.mark.parametrize(("value", "shown"), [(1.5, "+1.500"), (-1.5, "-1.500"), (0, "+0.000")])
def test_signs_are_shown_on_request(value, shown):
    assert format_number(value, sign="+") == shown


def test_what_is_missing_is_a_dash_everywhere():
    for missing in (None, math.nan):
        assert format_number(missing) == MISSING_NUMBER
        assert format_interval(missing, (0, 1)) == MISSING_NUMBER
    assert format_bounds(None) == format_bounds((math.nan, math.nan)) == MISSING_NUMBER
    assert format_interval(0.5, None, digits=1) == "0.5"


@given(FINITE, FINITE, FINITE)
def test_an_interval_has_its_three_numbers_in_order(value, low, high):
    shown = format_interval(value, (low, high), digits=2)
    assert re.findall(r"-?\d+\.\d\d", shown) == [
        format_number(x, digits=2) for x in (value, low, high)
    ]


@pytest.mark.parametrize(
    "cell",
    ["a|b", "<b>bold</b>", "[text](http://x)", "![image](x)", "two\nlines", "plain", "1 < 2"],
)
def test_a_cell_is_shown_as_its_text_whatever_it_holds(cell):
    lines = format_table(["name", "n"], [[cell, 3]])
    tokens = MarkdownIt("commonmark").enable("table").parse("\n".join(lines))
    cells = [token for token in tokens if token.type == "inline"]
    found = [
        [part.content for part in token.children if part.type in ("text", "text_special")]
        for token in cells
    ]
    assert len(found) == 4 and {part.type for t in cells for part in t.children} <= {
        "text",
        "text_special",
    }
    assert ["".join(texts) for texts in found] == ["name", "n", " ".join(cell.split()), "3"]
