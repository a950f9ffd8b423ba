"""Shaded tokens: whatever a text holds is text, and a page has room for some tokens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.documents.token_shading import MAX_PAGE_TOKENS, escape_invisible
from tests.helpers.page_reader import Reader
from tests.plots.test_highlighted_text import build_text, read_rankings, render_page, render_text


def list_tags(page):
    return {tag for tag, _ in page.elements}


@settings(max_examples=40)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=8), st.text(), st.text())
def test_whatever_a_text_holds_is_text(tokens, label, predicted):
    html = render_text(build_text(tokens, label=label, predicted=predicted, why=label))
    html.encode()
    page = Reader(html)
    assert read_rankings(html)[0].split() == " ".join(map(escape_invisible, tokens)).split()
    assert list_tags(page) == list_tags(
        Reader(render_text(build_text(["a"], why="b" if label else "")))
    )
    assert dict(page.elements)["article"]["data-class"] == escape_invisible(predicted)


def test_characters_that_steer_are_named():
    assert escape_invisible("a\u202eb\x1b[0m\ud800") == "a[U+202E]b[U+001B][0m[U+D800]"
    assert escape_invisible("naïve 😀 שלום\n") == "naïve 😀 שלום\n"


def test_a_page_has_room_for_some_tokens_and_says_what_is_left_out():
    short, long = build_text(["a"] * MAX_PAGE_TOKENS), build_text(["b"] * 5000)
    both, alone = render_page(short, build_text(["a"])), render_page(long)
    assert both.count("<article") == alone.count("<article") == 1  # the first text always
    assert "The Markdown report contains 1 more texts" in both
