"""Texts as HTML: whole, escaped, and readable without colours or scripts."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.documents.blocks import Document, Section, Texts
from hf_attnprobe.documents.highlighted_text import MOST_TOKENS, legible, rankings
from hf_attnprobe.documents.html import to_cell, to_html
from hf_attnprobe.plots.shown_text import ShownText, without_marks
from tests.helpers.page_reader import Reader


def shown(tokens, **fields):
    n = len(tokens)
    given = {
        "example_id": 7,
        "tokens": tuple(tokens),
        "predicted": "positive",
        "probability": 0.75,
        "label": "negative",
        "correct": False,
        "scores": {
            "attention": tuple((k + 1) / (n * (n + 1) / 2) for k in range(n)),
            "gradient": tuple((-1) ** k * (k + 1) / n for k in range(n)),
        },
    }
    return ShownText(**(given | fields))


def text_view(text):
    """One text with its legend."""
    return to_cell([Texts([text])]).partition("</style>")[2]


def page_of(*texts):
    return to_html(Document("texts", [Texts(texts)], []))


def names(page):
    return {tag for tag, _ in page.elements}


def rankings_of(html):
    """The text of every ranking of a page, whose articles are well-formed."""
    articles = re.findall("<article.*?</article>", html, re.DOTALL)
    shown = [e for a in articles for e in ElementTree.fromstring(a).iter() if "class" in e.attrib]
    ranked = [e for e in shown if "ranking" in e.get("class").split()]
    return [
        "".join(t for e in r.iter() if "tokens" in e.get("class", "").split() for t in e.itertext())
        for r in ranked
    ]


def shading(text):
    """By ranking, the classes of each token."""
    return [[kinds.split() for _, _, kinds, *_ in ranking.tokens] for ranking in rankings(text)]


def test_a_long_text_with_markup_and_emoji_is_whole_and_legible():
    words = ["<script>alert(1)</script>", "😀", "</span>", "&amp;", "<!--", "שלום", "]]>"]
    tokens = [f"{words[k % 7]}{k}" for k in range(5000)]
    html = page_of(shown(tokens))
    assert [r.split() for r in rankings_of(html)] == [tokens, tokens]
    assert html.count("<script") == page_of().count("<script")
    assert len(html) < 2 * 100 * 5000


@settings(max_examples=40)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=8), st.text(), st.text())
def test_whatever_a_text_holds_is_text(tokens, label, predicted):
    html = text_view(shown(tokens, label=label, predicted=predicted, why=label))
    html.encode()
    page = Reader(html)
    assert rankings_of(html)[0].split() == " ".join(map(legible, tokens)).split()
    assert names(page) == names(Reader(text_view(shown(["a"], why="b" if label else ""))))
    assert dict(page.elements)["article"]["data-class"] == legible(predicted)


def test_characters_that_steer_are_named():
    assert legible("a\u202eb\x1b[0m\ud800") == "a[U+202E]b[U+001B][0m[U+D800]"
    assert legible("naïve 😀 שלום\n") == "naïve 😀 שלום\n"


def test_shading_is_by_the_rows_largest_and_signs_are_classes():
    scores = {"attention": (0.0, 0.1, 0.2, 0.9), "gradient": (-2.0, 1.0, 0.0, 0.1)}
    weights, signed = shading(shown(["a", "b", "c", "d"], scores=scores))
    assert weights == [[], ["s1"], ["s2"], ["s9"]]  # a token without shade has no element
    assert signed == [["s9", "m"], ["s5"], [], []]


@pytest.mark.parametrize("correct, word", [(True, "right"), (False, "wrong"), (None, None)])
def test_right_and_wrong_are_words_and_data(correct, word):
    html = text_view(shown(["a"], correct=correct))
    told = {True: "true", False: "false", None: "unknown"}[correct]
    assert dict(Reader(html).elements)["article"]["data-right"] == told
    assert [w for w in ("right", "wrong") if f" {w}</span>" in html] == ([word] if word else [])


def test_pieces_are_read_as_words():
    tokens, glued = without_marks(["em", "##bed", "##ding", "s", "##"])
    html = text_view(shown(tokens, glued=glued))
    text = re.sub("<[^>]+>", "", html[html.index("<h4>") : html.index("</p>", html.index("<h4>"))])
    assert text.endswith("embedding s ##")
    assert without_marks(["▁An", "t", "▁bee"]) == (("An", "t", "bee"), (1,))


def test_a_page_has_room_for_some_tokens_and_says_what_is_left_out():
    short, long = shown(["a"] * MOST_TOKENS), shown(["b"] * 5000)
    both, alone = page_of(short, shown(["a"])), page_of(long)
    assert both.count("<article") == alone.count("<article") == 1  # the first text always
    assert "1 more texts are in the report as Markdown" in both


def test_without_texts_there_is_no_section():
    assert to_html(Document("t", [], [Section("Texts", [Texts(())])])).count("<section") == 0


def test_styles_are_part_of_pages_and_fragments():
    for html in (page_of(shown(["a"])), to_cell([])):
        assert ".tokens .s9" in html


@pytest.mark.parametrize("size, is_shaded", [(1e-9, False), (1e-5, True)])
def test_next_to_nothing_is_not_shaded(size, is_shaded):
    page = text_view(shown(["a", "b"], scores={"gradient": (size, -size / 2)}))
    tokens = page.partition("</h4>")[2]
    assert ('class="s9"' in tokens) == is_shaded
    assert ("all below 1e-6" in page) != is_shaded


def test_a_shaded_word_says_its_number_and_the_others_are_folded():
    scores = {"attention": (0.0, 0.125, 0.875), "leave_one_out": (-0.5, 0.25, 0.001)}
    scores["gradient"] = (1.0, 0.0, 0.0)
    html = text_view(shown(["a", "b", "c"], scores=scores))
    titles = [own["title"] for tag, own in Reader(html).elements if "title" in own]
    assert titles == ["0.12", "0.88", "-0.5", "+0.25", "+1"]  # what has no shade has no number
    first, folded = html.split("<details>")
    assert first.count('class="ranking"') == 2 and folded.count('class="ranking"') == 1


def test_a_screen_reader_is_told_the_number(open_page, tmp_path):
    """What a style puts behind a word is read, and seen by nobody."""
    file = tmp_path / "page.html"
    file.write_text(page_of(shown(["a", "b"], scores={"attention": (0.25, 0.75)})))
    opened = open_page(file, axe=True)
    words = opened.page.locator("article.text .tokens").first
    assert "b 0.75" in words.aria_snapshot()
    assert words.inner_text() == "a b"
    assert opened.findings() == []
