"""Blocks of documents: every form says all texts, numbers are numbers, and what is empty is left out."""

import re
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.documents.blocks import (
    DefinitionList,
    Document,
    ExampleTexts,
    Link,
    NextStep,
    NumberLine,
    Section,
    Table,
    UserText,
    build_glossary,
    describe_number_line,
    format_cell,
    iterate_texts,
    map_texts,
)
from hf_attnprobe.documents.html import MIN_SECTIONS_FOR_CONTENTS, render_html
from tests.documents.test_formats import documents, forms
from tests.documents.test_html import in_a_cell


NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
MARKS = count(1)
LETTERS = str.maketrans("0123456789", "abcdefghij")


def named():
    """Texts that are all different, and found by their names."""
    return st.builds(lambda: f"mark{str(next(MARKS)).translate(LETTERS)}x")


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
        "t", [], [Section(f"Part {k} <b>", ["x"]) for k in range(MIN_SECTIONS_FOR_CONTENTS)]
    )
    page = render_html(document)
    assert page.count('<a href="#part-1-b">Part 1 &lt;b&gt;</a>') == 1
    assert 'id="part-1-b"' in page
    assert "<nav" not in render_html(Document("t", [], document.sections[1:]))


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


def test_numbers_of_every_library_are_numbers():
    np = pytest.importorskip("numpy")
    html = in_a_cell(Table(["a", "b", "c"], [[np.float32(0.5), np.int64(7), np.float64("nan")]]))
    assert html.count('<th scope="col" class="n">') == 3 and 'class="t"' not in html
    assert re.findall(r"<td[^>]*>\s*(.*?)\s*<", html) == ["0.500", "7", "–"]


def test_a_small_number_is_not_zero():
    assert "1.0e-05" in in_a_cell(Table(["p"], [[1e-5]]))
    assert ">0.000<" in in_a_cell(Table(["p"], [[0.0]]))


def test_prose_is_renamed_but_no_command_address_or_text_of_the_user():
    """A report about bags renames its words, but its commands must still run."""
    step = NextStep("Audit more texts.", "attnprobe audit --unit text --dataset text")
    assert map_texts(step, str.upper) == NextStep("AUDIT MORE TEXTS.", step.command)
    link = Link("the texts", "https://example.org/text")
    assert map_texts(link, str.upper) == Link("THE TEXTS", link.address)
    sentence = (UserText("text"), " of a text")
    assert map_texts(sentence, str.upper) == (UserText("text"), " OF A TEXT")
