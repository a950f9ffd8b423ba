"""Documents as terminal text: width, brevity, and numbers that are never cut."""

import pytest

from hf_attnprobe.documents.blocks import DefinitionList, Document, FormattedNumber, Section, Table
from hf_attnprobe.documents.formats import DocumentedResult
from hf_attnprobe.documents.html import render_cell_html
from hf_attnprobe.documents.terminal_text import render_text


def test_a_report_in_brief_is_its_lead_and_what_is_read_first():
    sections = [Section("first", ["one"], in_short_report=True), Section("then", ["two"])]
    document = Document("t", ["lead"], sections)
    assert render_text(document, verbose=False) == "t\n\nlead\n\nfirst\n  one"
    assert "two" in render_text(document, verbose=True)
    assert "lead" in render_cell_html(document.lead) and "<script" not in render_cell_html(
        document.lead
    )


def test_numbers_of_a_table_are_never_cut():
    number = FormattedNumber(0.123, (0.1, 0.2))
    row = ["a name of several words that may be broken", *[number] * 9]
    said = render_text(Document("t", [Table(["", *"abcdefghi"], [row])], []), verbose=True)
    assert said.count("0.123 [0.100, 0.200]") == 9


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
