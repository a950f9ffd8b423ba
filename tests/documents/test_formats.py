"""Documents: every form says all of them, nothing else, and takes no text for anything but text."""

import re
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from hf_attnprobe.documents.blocks import (
    AnswerBlock,
    Code,
    CodeBlock,
    Collapsible,
    DefinitionList,
    Document,
    ExampleTexts,
    FormattedNumber,
    Link,
    Note,
    NumberLine,
    Section,
    Strong,
    Table,
    UserText,
    build_glossary,
    describe_number_line,
    format_cell,
    iterate_texts,
)
from hf_attnprobe.documents.formats import DocumentedResult
from hf_attnprobe.documents.html import MIN_LISTED_SECTIONS, render_cell_html, render_html
from hf_attnprobe.documents.markdown import render_markdown
from hf_attnprobe.documents.terminal_text import render_text
from hf_attnprobe.plots.chart import Chart, HeatMap, Reference, Series
from hf_attnprobe.plots.highlighted_text import HighlightedText
from tests.helpers.page_reader import Reader


HOSTILE = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>"]
HOSTILE += ["![picture](http://x/y.png)", "[link](javascript:alert(1))", "`code` | cell"]
HOSTILE += ["``` fence", "[red]rich[/red] :smile:", "\x1b[31mred\x1b]0;title\x07"]
HOSTILE += ["\u202eturned\u2066", '"quoted" & <b', "{{ 7 * 7 }} {% raw %}"]
HOSTILE += ["line\nbreak\r\n# heading", "half \ud800 surrogate", "\\\\<b>twice\\"]
HOSTILE += ["`a|b` <i> `c`", "a picture!", "[x]: http://x", "</style></title>"]
NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
MARKS = count(1)
LETTERS = str.maketrans("0123456789", "abcdefghij")


def words(texts):
    """Sentences of every kind made of such texts."""
    kinds = st.sampled_from([str, Code, Strong, UserText, lambda t: Link(t, "#id")])
    span = st.builds(lambda kind, text: kind(text), kinds, texts)
    return st.one_of(texts, span, st.lists(span, min_size=1, max_size=3).map(tuple))


def documents(texts):
    """Documents of every kind of block but drawings."""
    floats = st.floats(-1000, 1000, width=32) | st.just(float("nan"))
    numbers = st.builds(
        lambda v, half, digits, sign: FormattedNumber(v, (v - half, v + half), digits, sign=sign),
        st.floats(-9, 9),
        st.floats(0, 3),
        st.integers(0, 4),
        st.sampled_from(["", "+"]),
    )
    said = words(texts)
    cells = st.one_of(said, floats, st.integers(-9, 999), numbers, st.none())
    tables = st.integers(1, 4).flatmap(
        lambda n: st.builds(
            Table,
            st.lists(said, min_size=n, max_size=n),
            st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1, max_size=3),
            texts,
        )
    )
    marks = st.dictionaries(texts, st.sampled_from([-0.5, 0.25, 1.5]), max_size=2)
    leaves = st.one_of(
        said,
        st.lists(said, min_size=1, max_size=3),
        said.map(Note),
        texts.map(CodeBlock),
        st.dictionaries(texts, said | st.lists(said, min_size=1, max_size=2), min_size=1).map(
            DefinitionList
        ),
        tables,
        st.builds(NumberLine, numbers, marks, marks),
    )

    def nested(blocks):
        some = st.lists(blocks, min_size=1, max_size=2)
        answers = st.sampled_from(["yes", "mostly no", "cannot say"])
        return st.one_of(
            st.builds(AnswerBlock, texts, answers, said, some),
            st.builds(Collapsible, texts, some),
            st.builds(Section, texts, some),
        )

    blocks = st.recursive(leaves, nested, max_leaves=4)
    some = st.lists(blocks, max_size=2)
    sections = st.builds(Section, texts, st.lists(blocks, min_size=1, max_size=2))
    return st.builds(Document, texts, some, st.lists(sections, max_size=3))


def named():
    """Texts that are all different, and found by their names."""
    return st.builds(lambda: f"mark{str(next(MARKS)).translate(LETTERS)}x")


def forms(document):
    """What a reader sees of every form."""
    page = Reader(render_html(document))
    return {
        "page": " ".join(page.text),
        "markdown": render_markdown(document),
        "text": render_text(document, verbose=True),
    }


def numbers_of(document):
    """All numbers that a form may show, as text."""
    found = []

    def walk(part):
        if isinstance(part, NumberLine):
            found.append(describe_number_line(part))
        elif isinstance(part, Table):
            found.extend(format_cell(cell) for row in part.rows for cell in row)
        for inner in getattr(part, "blocks", ()):
            walk(inner)

    for part in (*document.lead, *document.sections):
        walk(part)
    return set(NUMBERS.findall(" ".join([*found, *iterate_texts(document)])))


@settings(max_examples=40)
@given(documents(named()))
def test_every_form_says_all_texts_and_no_other_numbers(document):
    texts, numbers = list(iterate_texts(document)), numbers_of(document)
    marks = {mark for text in texts for mark in re.findall(r"mark[a-j]+x", text)}
    for name, said in forms(document).items():
        missing = {mark for mark in marks if mark not in said}
        assert not missing, (name, missing)
        assert numbers <= set(NUMBERS.findall(said)), name
        if name != "page":  # whose number lines have ends, and whose labels fewer digits
            said = re.sub(r"\((#id|<#id>)\)", "", said)
            assert set(NUMBERS.findall(said)) <= numbers, name


OURS = {
    *("html", "head", "meta", "title", "link", "style", "body", "script", "header", "footer"),
    *("a", "nav", "main", "section", "article", "h1", "h2", "h3", "h4", "h5", "h6", "p", "div"),
    *("ul", "ol", "li", "dl", "dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("strong", "span", "code", "bdi", "pre", "details", "summary", "svg", "circle", "path"),
    "i",  # strokes of a number line
}


@settings(max_examples=40)
@given(documents(st.sampled_from(HOSTILE)))
def test_no_text_is_anything_but_text(document):
    page, text = render_html(document), render_text(document, verbose=True)
    page.encode("utf-8")
    seen = Reader(page).elements
    assert {tag for tag, _ in seen} <= OURS and page.count("<script") == 1
    given = [(name, value or "") for _, own in seen for name, value in own.items()]
    assert not [name for name, _ in given if name.startswith("on") or name == "src"]
    assert not [value for _, value in given if value.startswith("javascript:")]
    assert "\x1b" not in page and "\u202e" not in page
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text
    )
    shown = render_markdown(document)
    shown.encode("utf-8")
    tokens = MarkdownIt("commonmark").enable("table").parse(shown)
    kinds = {t.type for token in tokens for t in (token, *(token.children or ()))}
    assert not kinds & {"html_block", "html_inline", "image"}
    links = [t for token in tokens for t in (token.children or ()) if t.type == "link_open"]
    assert {link.attrs["href"] for link in links} <= {"#id"}


def drawings():
    """A chart, a map of heads and a text."""
    chart = Chart(
        "key_of_chart",
        "a chart",
        ("What <is> seen, 0.5.",),
        "a paper",
        "dots",
        "place",
        "value",
        (Series("one", ("a", "b"), (0.25, 0.5), (0.2, 0.4), (0.3, 0.6)),),
        (Reference("chance", 0.0),),
    )
    values = ((0.25, 0.5),)
    heads = HeatMap("key_of_map", "a map", "Heads <0.0>.", "", values, (), (), "τ", (0,), (0, 1))
    text = HighlightedText(
        3,
        ("a", "<b>", "*c*"),
        "yes",
        0.75,
        "no",
        False,
        {"attention": (0.125, 0.625, 0.25), "gradient": (0.5, -0.25, 0.0)},
        why="it is wrong",
    )
    return chart, heads, text


def test_drawings_have_their_place_in_every_form():
    chart, heads, text = drawings()
    document = Document(
        "a report", [chart], [Section("heads", [heads]), Section("x", [ExampleTexts([text])])]
    )
    for name, said in forms(document).items():
        for words_ in (
            "a chart",
            "seen, 0.5.",
            "a paper",
            "a map",
            "Text 3",
            "it is wrong",
            "75%" if name == "page" else "0.750",
        ):
            assert words_.lower() in " ".join(said.lower().split()), (name, words_)
    page = render_html(document)
    assert page.count("<figure") == 2 and 'id="key_of_chart"' in page and "<b>" not in page
    assert "**&lt;b\\>** (0.62)" in render_markdown(document)


def test_a_small_document_word_by_word():
    table = Table(["", "before"], [["F1", FormattedNumber(0.5, (0.25, 0.75))], ["n", 7]], "Means")
    asked = AnswerBlock(
        "Is it?", "no", "It is not.", [NumberLine(FormattedNumber(0.1), {"yes from": 0.3})]
    )
    document = Document("Title", [asked], [Section("More", [("run ", Code("x"), "."), table])])
    assert render_text(document, verbose=True) == (
        "Title\n\n"
        "Is it? No. It is not.\n  0.100; yes from 0.3\n\n"
        "More\n  run x.\n\n"
        "  Means\n                    before\n  F1  0.500 [0.250, 0.750]\n  n                      7"
    )
    assert render_markdown(document) == (
        "# Title\n\n"
        "**Is it?** **no**: It is not.\n\n0.100; yes from 0.3\n\n"
        "## More\n\nrun `x`.\n\n"
        "Means:\n\n|  | before |\n| --- | --- |\n| F1 | 0.500 [0.250, 0.750] |\n| n | 7 |\n"
    )


def test_a_report_in_brief_is_its_lead_and_what_is_read_first():
    sections = [Section("first", ["one"], in_short_report=True), Section("then", ["two"])]
    document = Document("t", ["lead"], sections)
    assert render_text(document, verbose=False) == "t\n\nlead\n\nfirst\n  one"
    assert "two" in render_text(document, verbose=True)
    assert "lead" in render_cell_html(document.lead) and "<script" not in render_cell_html(
        document.lead
    )


def test_what_is_empty_is_left_out():
    empty = [
        None,
        "",
        [],
        Table(["a"], []),
        DefinitionList({"a": None}),
        Section("s", [""]),
        ExampleTexts(()),
    ]
    document = Document("t", empty, [Section("s", empty), None, Section("u", ["kept"])])
    assert not document.lead and [s.title for s in document.sections] == ["u"]


def test_contents_are_the_sections():
    document = Document(
        "t", [], [Section(f"Part {k} <b>", ["x"]) for k in range(MIN_LISTED_SECTIONS)]
    )
    page = render_html(document)
    assert page.count('<a href="#part-1-b">Part 1 &lt;b&gt;</a>') == 1
    assert 'id="part-1-b"' in page
    assert "<nav" not in render_html(Document("t", [], document.sections[1:]))


def test_numbers_of_a_table_are_never_cut():
    number = FormattedNumber(0.123, (0.1, 0.2))
    row = ["a name of several words that may be broken", *[number] * 9]
    said = render_text(Document("t", [Table(["", *"abcdefghi"], [row])], []), verbose=True)
    assert said.count("0.123 [0.100, 0.200]") == 9


def test_a_glossary_has_the_terms_that_occur():
    meanings = {"JSD": "a distance", "regret": "a loss", "head": "a part"}
    part = Section(
        "s", [Table(["", "mean JSD"], [["no regrets", 1.0]]), DefinitionList({"ahead": "x"})]
    )
    (facts,) = build_glossary([part], meanings).blocks
    assert set(facts.definitions) == {"JSD", "regret"}
    assert not build_glossary([Section("s", ["nothing"])], meanings)


@pytest.mark.parametrize("number_", [np.float32(0.5), np.int64(3), np.float64("nan")])
def test_numbers_of_numpy_are_numbers(number_):
    assert format_cell(number_) in ("0.500", "3", "–")


def test_data_for_machines_ends_no_script():
    page = render_html(Document("t", [], [], data={"text": "</script><b>\u2028\ud800"}))
    assert page.count("</script>") == 2 and "\\u003c/script\\u003e" in page
    with pytest.raises(ValueError, match="Out of range"):
        render_html(Document("t", [], [], data={"a": float("nan")}))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_report_fits_the_terminal(width, monkeypatch):
    """The verdict's table had lines of 100 letters, which a terminal of 80 broke anywhere."""
    row = ["Do the top weights decide it?", "mostly yes", FormattedNumber(0.57, (0.46, 0.67))]
    table = Table(["question", "answer", "number", "beside it"], [[*row, "own 0.88, random 0.2"]])
    facts = DefinitionList({"heads": "a sentence that is longer than a line of a terminal " * 3})
    shown = DocumentedResult()
    monkeypatch.setattr(
        shown, "build_document", lambda: Document("t", [table, facts, "word " * 60], [])
    )
    monkeypatch.setenv("COLUMNS", str(width))
    lines = str(shown).splitlines()
    assert width - 12 < max(map(len, lines)) <= width
    assert "0.570 [0.460, 0.670]" in str(shown)
