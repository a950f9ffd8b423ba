"""Reports of studies: pages are made of the tables, with what differs and what needs caution."""

import json
from dataclasses import replace

import pytest

from hf_attnprobe.core.serialization import convert_to_plain, parse_plain
from hf_attnprobe.documents.blocks import format_cell
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.studies.report import (
    StudyReport,
    _describe_differences,
    make_report_cell,
    read_study_report,
)
from hf_attnprobe.studies.run import plan_study, study
from hf_attnprobe.studies.steps import StudyOptions
from tests.helpers.page_reader import Reader
from tests.studies.test_run import write


@pytest.fixture(scope="module")
def file(once):
    def make(folder):
        folder.mkdir()
        write(folder)

    (made,) = once("study-file", make).iterdir()
    return made


@pytest.fixture(scope="module")
def folder(file, reviews_folder, once):
    """What the tiny study leaves behind; do not write into it."""
    given = StudyOptions(dataset=f"reviews={reviews_folder}")
    return once("study", lambda made: study(file, options=given, output_dir=made, progress=False))


@pytest.fixture(scope="module")
def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_what_differs_counts_training_texts():
    """The quick study's limit of 500 is one of texts to compare on."""
    plan = plan_study("tutek-snajder", StudyOptions(quick=True))
    assert "training texts" not in _describe_differences(plan, ())
    plan = plan_study("tutek-snajder", StudyOptions(quick=True, train_limit=70))
    assert "only 70 training texts" in _describe_differences(plan, ())


def test_the_page_is_made_of_the_tables(folder, summary):
    page = (folder / "report.html").read_text()
    report = parse_plain(StudyReport, summary)
    assert convert_to_plain(report) == summary
    assert page == report.to_html()
    seen = Reader(page)
    for table in report.tables:
        assert table.title in seen.words
        assert all(sentence in seen.words for sentence in table.sentences)
        for row in table.rows:
            for cell in row:
                if isinstance(cell, str | Estimate):
                    assert format_cell(make_report_cell(cell)) in seen.words
    assert all(note in seen.words for note in report.notes)
    evil = replace(report, title="<b>bold</b>")
    assert "<b>" not in evil.to_html()


def test_models_at_chance_carry_a_caution(folder):
    """Whatever is said of their attention, nobody knows that they learned anything."""
    report = read_study_report(folder)
    for audit in folder.glob("audit/*/summary.json"):
        answer = json.loads(audit.read_text())["accuracy"]["answer"]
        name = str(audit.parent.relative_to(folder))
        caution = next((note for note in report.notes if note.startswith("Caution")), "")
        assert (name in caution) == (answer in ("no", "cannot say"))
