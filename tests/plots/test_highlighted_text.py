"""Texts as HTML: whole, escaped, and readable without colours or scripts."""

import math
import re
from xml.etree import ElementTree

import pytest

from hf_attnprobe.documents.blocks import Document, ExampleTexts, Section
from hf_attnprobe.documents.html import render_cell_html, render_html
from hf_attnprobe.documents.markdown import render_markdown
from hf_attnprobe.documents.token_shading import shade_rankings
from hf_attnprobe.plots.highlighted_text import (
    AGREEMENT_REASON,
    WRONG_PREDICTION_REASON,
    HighlightedText,
    split_tokenizer_markers,
)
from tests.helpers.page_reader import Reader


def build_text(tokens, **fields):
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
    return HighlightedText(**(given | fields))


def render_text(text):
    """Return one text with its legend as HTML."""
    return render_cell_html([ExampleTexts([text])]).partition("</style>")[2]


def render_page(*texts):
    return render_html(Document("texts", [ExampleTexts(texts)], []))


def read_rankings(html):
    """Return the text of every ranking on a page."""
    articles = re.findall("<article.*?</article>", html, re.DOTALL)
    shown = [e for a in articles for e in ElementTree.fromstring(a).iter() if "class" in e.attrib]
    ranked = [e for e in shown if "ranking" in e.get("class").split()]
    return [
        "".join(t for e in r.iter() if "tokens" in e.get("class", "").split() for t in e.itertext())
        for r in ranked
    ]


def list_shades(text):
    """Return the CSS classes of every token for each ranking."""
    return [
        [kinds.split() for _, _, kinds, *_ in ranking.tokens] for ranking in shade_rankings(text)
    ]


def test_a_long_text_with_markup_and_emoji_is_whole_and_legible():
    words = ["<script>alert(1)</script>", "😀", "</span>", "&amp;", "<!--", "שלום", "]]>"]
    tokens = [f"{words[k % 7]}{k}" for k in range(5000)]
    html = render_page(build_text(tokens))
    assert [r.split() for r in read_rankings(html)] == [tokens, tokens]
    assert html.count("<script") == render_page().count("<script")
    assert len(html) < 2 * 100 * 5000


def test_shading_is_by_the_rows_largest_and_signs_are_classes():
    scores = {"attention": (0.0, 0.1, 0.2, 0.9), "gradient": (-2.0, 1.0, 0.0, 0.1)}
    weights, signed = list_shades(build_text(["a", "b", "c", "d"], scores=scores))
    assert weights == [[], ["s1"], ["s2"], ["s9"]]  # a token without shade has no element
    assert signed == [["s9", "m"], ["s5"], [], []]


@pytest.mark.parametrize("correct, word", [(True, "right"), (False, "wrong"), (None, None)])
def test_right_and_wrong_are_words_and_data(correct, word):
    html = render_text(build_text(["a"], correct=correct))
    told = {True: "true", False: "false", None: "unknown"}[correct]
    assert dict(Reader(html).elements)["article"]["data-right"] == told
    assert [w for w in ("right", "wrong") if f" {w}</span>" in html] == ([word] if word else [])


def test_pieces_are_read_as_words():
    tokens, glued = split_tokenizer_markers(["em", "##bed", "##ding", "s", "##"])
    html = render_text(build_text(tokens, glued=glued))
    text = re.sub("<[^>]+>", "", html[html.index("<h4>") : html.index("</p>", html.index("<h4>"))])
    assert text.endswith("embedding s ##")
    assert split_tokenizer_markers(["▁An", "t", "▁bee"]) == (("An", "t", "bee"), (1,))


def test_without_texts_there_is_no_section():
    assert (
        render_html(Document("t", [], [Section("Texts", [ExampleTexts(())])])).count("<section")
        == 0
    )


def test_styles_are_part_of_pages_and_fragments():
    for html in (render_page(build_text(["a"])), render_cell_html([])):
        assert ".tokens .s9" in html


@pytest.mark.parametrize("size, is_shaded", [(1e-9, False), (1e-5, True)])
def test_next_to_nothing_is_not_shaded(size, is_shaded):
    page = render_text(build_text(["a", "b"], scores={"gradient": (size, -size / 2)}))
    tokens = page.partition("</h4>")[2]
    assert ('class="s9"' in tokens) == is_shaded
    assert ("all below 1e-6" in page) != is_shaded


def test_a_shaded_word_says_its_number_and_the_others_are_folded():
    scores = {"attention": (0.0, 0.125, 0.875), "leave_one_out": (-0.5, 0.25, 0.001)}
    scores["gradient"] = (1.0, 0.0, 0.0)
    html = render_text(build_text(["a", "b", "c"], scores=scores))
    titles = [own["title"] for tag, own in Reader(html).elements if "title" in own]
    assert titles == ["0.12", "0.88", "-0.5", "+0.25", "+1"]  # what has no shade has no number
    first, folded = html.split("<details>")
    assert first.count('class="ranking"') == 2 and folded.count('class="ranking"') == 1


def test_a_screen_reader_is_told_the_number(open_page, tmp_path):
    """What a style puts behind a word is read, and seen by nobody."""
    file = tmp_path / "page.html"
    file.write_text(render_page(build_text(["a", "b"], scores={"attention": (0.25, 0.75)})))
    opened = open_page(file, axe=True)
    words = opened.page.locator("article.text .tokens").first
    assert "b 0.75" in words.aria_snapshot()
    assert words.inner_text() == "a b"
    assert opened.findings() == []


@pytest.mark.parametrize("has_losses", [False, True])
@pytest.mark.parametrize("why", [AGREEMENT_REASON, WRONG_PREDICTION_REASON])
def test_a_heading_about_leave_one_out_needs_its_line(why, has_losses):
    scores = {"attention": (0.2, 0.8)}
    if has_losses:
        scores["leave_one_out"] = (0.1, 0.5)
    text = build_text(["a", "b"], scores=scores, why=why)
    is_shown = has_losses or why == WRONG_PREDICTION_REASON
    for form in (render_text(text), render_markdown(Document("t", [ExampleTexts([text])], []))):
        assert (why.lower() in form.lower()) == is_shown


def build_prompt(**fields):
    scores = {"attention": (0.2, 0.3), "leave_one_out": (25.93, 0.0), "knockout": (1.5, -0.5)}
    known = {"scores": scores, "unit": "sentence", "matters": (0,), "correct": None}
    known |= {"around": ("<|system|>Help!<|end|>\n", "", "\n\nWho?<|end|>\n<|assistant|>\n")}
    return build_text(["It is Ann.", "No."], **(known | fields))


def test_a_printed_prompt_has_the_names_and_signs_of_its_units():
    text = build_prompt(noise=(0.25, math.nan))
    printed = str(text)
    lines = printed.splitlines()
    assert lines[:2] == ["question: Who?", "answered: positive"]
    assert lines[2].split() == ["leave-one-out", "noise", "knockout", "attention"]
    assert lines[3].split()[:5] == ["1*", "+25.93", "0.25", "+1.50", "0.20"]
    assert text.units[0]["leave_one_out"] == 25.93
    assert "– not measured" in printed
    # Without a dash in the table, its explanation would be about nothing.
    assert "–" not in str(build_prompt(scores=text.scores | {"leave_one_out": (25.93, 0.5)}))


def test_a_printed_text_has_a_row_for_each_word():
    text = build_text(["a", "fine", "film"], attention_of="the mean of all 4 heads")
    first, titles, *rows, last = str(text).splitlines()
    assert first == "predicted: positive (probability 0.75), labelled negative"
    assert titles.split() == ["attention", "gradient", "×", "input"]
    expected = zip(text.tokens, text.scores["attention"], text.scores["gradient"], strict=True)
    for row, (token, weight, slope) in zip(rows, expected, strict=True):
        printed_token, *numbers = row.split()
        assert printed_token == token and list(map(float, numbers)) == pytest.approx(
            [weight, slope], abs=0.05
        )
    assert last == "attention: the mean of all 4 heads"
    number = build_text(["a"], probability=None, label=None, scores={"attention": (math.nan,)})
    assert str(number).splitlines()[0] == "predicted: positive" and str(number).endswith("–")


def test_a_question_before_the_passage_is_the_question_too():
    around = ("<|user|>\nRead.\nWho is it?\n", "", "<|end|>\n<|assistant|>\n")
    assert build_prompt(around=around).question == "Who is it?"
    assert build_prompt().question == "Who?"
