"""Documents: every form says all of them, nothing else, and takes no text for anything but text."""

import re

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
    NextStep,
    Note,
    NumberLine,
    Section,
    Strong,
    Table,
    UserText,
)
from hf_attnprobe.documents.formats import DocumentedResult
from hf_attnprobe.documents.html import render_html
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


def forms(document):
    """What a reader sees of every form."""
    page = Reader(render_html(document))
    return {
        "page": " ".join(page.text),
        "markdown": render_markdown(document),
        "text": render_text(document, verbose=True),
    }


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


def test_data_for_machines_ends_no_script():
    page = render_html(Document("t", [], [], data={"text": "</script><b>\u2028\ud800"}))
    assert page.count("</script>") == 2 and "\\u003c/script\\u003e" in page
    with pytest.raises(ValueError, match="Out of range"):
        render_html(Document("t", [], [], data={"a": float("nan")}))


class _Audited(DocumentedResult):
    def build_document(self):
        return Document(
            "title",
            [AnswerBlock("", "no", "So."), NextStep("Add --test-limit 60 to:", "attnprobe audit")],
            [
                Section("Three texts", ["A text."], in_notebook=True),
                Section("All numbers", ["A number."]),
            ],
            heading="Does attention explain it?",
        )


def test_a_notebook_has_the_question_the_texts_and_advice_that_runs_in_it():
    cell = Reader(_Audited()._repr_html_()).apart
    assert cell.index("Does attention explain it?") < cell.index("So.") < cell.index("Three texts")
    assert "A text." in cell and "A number." not in cell
    assert "Add test_limit=60 to: !attnprobe audit" in cell
    assert "Next step: Add --test-limit 60 to:\n\n  attnprobe audit" in str(_Audited())


def test_the_terminal_prints_the_output_folder_of_a_command_that_resumes(tmp_path):
    class Resuming(DocumentedResult):
        def build_document(self):
            return Document("t", [NextStep("Run:", "attnprobe audit --model m", resumes=True)], [])

    folder = tmp_path / "my audit"
    command = f"attnprobe audit --model m --output-dir '{folder}'"
    printed = Resuming().to_text(output_dir=folder, width=1000)
    assert printed.endswith(f"It continues from the saved results:\n\n  {command}")
    # The command without a folder starts a new audit, and other advice has no folder.
    assert str(folder) not in Resuming().to_markdown()
    assert _Audited().to_text(output_dir=folder) == _Audited().to_text()
