"""Reports of studies: pages are made of the tables, with what differs and what needs caution."""

import json
from dataclasses import replace

import pytest

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import convert_to_plain, parse_plain
from hf_attnprobe.documents.blocks import format_cell
from hf_attnprobe.render import save_figures
from hf_attnprobe.reports.report import Report
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.studies.paper_tables import ResultTable
from hf_attnprobe.studies.report import (
    StudyReport,
    _describe_differences,
    make_report_cell,
    read_study_report,
)
from hf_attnprobe.studies.reproduction import compare_with_published
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


def make_report(*tables):
    return StudyReport("s", "t", False, (), tables, (), ())


CORRELATION = ResultTable(
    "Does attention rank like gradients? (Table 2)",
    ("data set", "encoder", "τ", "std", "published τ", "published std"),
    (
        ("sst", "mlp", Estimate(0.69, (0.66, 0.71), 100), 0.15, 0.69, 0.15),
        ("sst", "bilstm", Estimate(0.20, (0.18, 0.22), 100), 0.2, 0.40, 0.21),
        ("imdb", "bilstm", Estimate(0.30, (0.20, 0.40), 12), 0.2, 0.39, None),
        ("20news", "bilstm", Estimate(0.50, None, 3), 0.2, None, None),
    ),
)


def test_a_study_starts_with_what_was_and_was_not_reproduced():
    lines = make_report(CORRELATION).to_text(width=400).splitlines()
    start = "\n".join(lines[:8])
    assert "Reproduced: 2 of 3 published numbers." in start
    assert (
        "Reproduced: sst, mlp (0.69, published 0.69); imdb, bilstm (0.30, published 0.39)." in start
    )
    assert "Not reproduced: sst, bilstm (0.20, published 0.40)." in start
    assert start.index("Not reproduced") < "\n".join(lines).index("published std")
    assert "Reproduced" not in str(make_report(replace(CORRELATION, head=tuple("abcdef"))))


def test_numbers_from_fewer_than_ten_texts_are_not_compared():
    """One text can neither reproduce a published number nor contradict it."""
    rows = (
        ("sst", "mlp", Estimate(0.69, None, 10), 0.15, 0.69, 0.15),
        ("sst", "bilstm", Estimate(0.40, (0.3, 0.5), 9), 0.2, 0.40, 0.21),
        ("imdb", "bilstm", Estimate(0.90, None, 1), 0.2, 0.39, None),
    )
    text = make_report(replace(CORRELATION, rows=rows)).to_text(width=1000)
    assert "Reproduced: 1 of 1 published numbers." in text
    assert "Not compared: 2 numbers, which we measured on fewer than 10 texts." in text
    assert "Not compared (too few texts): sst, bilstm; imdb, bilstm." in text
    assert "Not reproduced" not in text


@pytest.mark.parametrize(
    ("own", "published", "is_reproduced"),
    [
        # An output change that differs by .03 is twice the published one.
        (Estimate(0.061, (0.05, 0.08), 47), 0.03, False),
        (Estimate(0.061, (0.02, 0.08), 47), 0.03, True),
        (Estimate(0.035, (0.032, 0.038), 47), 0.03, True),
        # From .25, a difference of .05 is at most 20%.
        (Estimate(0.45, None, 47), 0.40, True),
        (Estimate(0.46, None, 47), 0.40, False),
        (Estimate(-0.061, None, 47), -0.03, False),
    ],
)
def test_a_small_published_number_is_only_reproduced_by_a_close_one(own, published, is_reproduced):
    head = ("data set", "median Δŷ", "published")
    table = ResultTable("Shuffled", head, (("sst", own, published),))
    (number,) = compare_with_published(table)
    assert number.is_reproduced is is_reproduced
    assert "and by at most 20% of the published number" in make_report(table).to_markdown()


def test_a_column_states_for_each_number_whether_it_was_reproduced():
    few = ("imdb", "mlp", Estimate(0.31, None, 9), 0.2, 0.31, None)
    table = replace(CORRELATION, rows=(*CORRELATION.rows, few))
    expected = ["yes", "no", "yes", "not compared", "not compared"]
    report = make_report(table)
    assert report.frame(1)["reproduced"].tolist() == expected
    lines = report.to_markdown().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    column = rows[0].index("reproduced")
    assert rows[0][column - 1] == "published τ"
    assert [row[column] for row in rows[2:7]] == expected
    # Without any published number, such as for the user's own data, there is no such column.
    unpublished = replace(CORRELATION, rows=CORRELATION.rows[3:])
    assert "reproduced" not in make_report(unpublished).frame(1)


def test_several_published_columns_have_a_column_each():
    head = ("data set", "F1 trained", "change, uniform", "published trained", "published uniform")
    table = ResultTable("Changes", head, (("sst", 83.0, -9.0, 84.0, -5.0),))
    frame = make_report(table).frame(1)
    assert frame.loc[0, ["reproduced, F1 trained", "reproduced, change, uniform"]].tolist() == [
        "yes",
        "no",
    ]
    assert frame["published uniform"].tolist() == [-5.0]


def test_a_published_number_follows_ours_and_three_texts_give_none():
    text = make_report(CORRELATION).to_text(width=400)
    (head,) = (line for line in text.splitlines() if line.split()[:1] == ["data"])
    columns = ["encoder", "τ", "published", "τ", "reproduced", "std", "published", "std"]
    assert head.split()[2:] == columns
    (few,) = (line for line in text.splitlines() if line.split()[:1] == ["20news"])
    assert "too few texts (n 3)" in few and "0.5" not in few


def test_a_finished_study_is_loaded_from_its_folder(tmp_path):
    report = make_report(CORRELATION)
    report.write(tmp_path, "summary.json")
    assert StudyReport.load(tmp_path) == report
    with pytest.raises(AttnProbeError, match="expected a study in"):
        StudyReport.load(tmp_path / "nowhere")


def test_a_study_is_no_audit_and_has_no_figures_of_its_own(tmp_path):
    make_report(CORRELATION).write(tmp_path, "summary.json")
    with pytest.raises(AttnProbeError, match=r"contains a study.*StudyReport\.load"):
        Report.load(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(AttnProbeError, match=r"contains a study.*audit/STEP"):
        save_figures(tmp_path, tmp_path / "figures")
    with pytest.raises(AttnProbeError, match=r"exactly one folder .* got 2"):
        save_figures([tmp_path, tmp_path], tmp_path / "figures")


def test_a_table_is_a_frame_by_its_number_or_its_title():
    report = make_report(CORRELATION, replace(CORRELATION, title="Overall"))
    frame = report.frame("Table 2")
    assert frame.equals(report.frame(1)) and frame.shape == (4, 10)
    own = frame.loc[0, ["τ", "τ low", "τ high", "τ n", "published τ"]]
    assert own.tolist() == [0.69, 0.66, 0.71, 100, 0.69]
    assert frame["τ low"].isna().tolist() == [False, False, False, True]
    assert "τ low" in frame.to_latex(escape=True)
    for wrong in (3, "Table 9", ""):
        with pytest.raises(AttnProbeError, match=r"tables match .*1: Does attention rank"):
            report.frame(wrong)


def test_a_single_training_text_has_no_plural():
    plan = plan_study("tutek-snajder", StudyOptions(quick=True, train_limit=1, epochs=1))
    differences = [*_describe_differences(plan, ())]
    assert "only 1 training text" in differences
    assert "at most 1 epoch of training" in differences
