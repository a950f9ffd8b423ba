"""The verb: counts are right, the small table is the stored one, the page is its own."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hf_attnprobe.calibration.constructs import CONSTRUCTS, WHOLE
from hf_attnprobe.calibration.decoders import DECODERS
from scipy.stats import binomtest, mannwhitneyu

from hf_attnprobe import AttnProbeError, CalibrationOptions, calibrate
from hf_attnprobe.calibration import report
from hf_attnprobe.plain_data import plain
from hf_attnprobe.reports.document import written
from hf_attnprobe.statistics import known_truth
from hf_attnprobe.statistics.verdicts import RULES


STORED = Path(__file__).with_name("quick.json")
OF_DECODERS = Path(__file__).with_name("quick_decoders.json")
ROOT = Path(__file__).parents[2]
TABLES = (report.by_rule, report.by_construct, report.by_texts)


def told(found) -> dict[str, dict[str, dict[str, int]]]:
    """The answers, by construct and question."""
    table: dict = {}
    for cell in found.cells:
        table.setdefault(cell.construct, {})[cell.rule] = cell.answers
    return table


EVERY_DAY = ("pointer", "three classes", "half around", "decoy", "ornament", "even", "untrained")
"""Of each kind of answer some."""


@pytest.mark.parametrize("constructs", [EVERY_DAY, pytest.param((), marks=pytest.mark.slow)])
def test_the_small_table_is_the_stored_one(constructs):
    """A change of the verdict shows here; `python tests/calibration/test_calibrate.py` stores it."""
    stored = json.loads(STORED.read_text())
    found = calibrate(options=CalibrationOptions(quick=True, constructs=constructs or None))
    assert told(found) == {name: stored[name] for name in constructs or stored}


def test_the_small_table_of_language_models_is_the_stored_one():
    found = calibrate(options=CalibrationOptions(quick=True, decoders=True))
    assert told(found) == json.loads(OF_DECODERS.read_text())


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibration")
    options = CalibrationOptions(constructs=["pointer", "decoy"], draws=2, texts=[60, 30], seed=5)
    return calibrate(folder, options=options), folder


def test_every_question_has_a_cell_for_each_number_of_texts(few):
    found, _ = few
    assert found.texts == (30, 60)
    assert len(found.cells) == 2 * 2 * len((*report.ASKED, WHOLE))
    assert all(sum(cell.answers.values()) == 2 for cell in found.cells)
    for cell in found.cells:
        truth = CONSTRUCTS[cell.construct].truths.get(cell.rule)
        assert cell.truth == (None if truth is None else truth.holds)


def test_fewer_texts_are_the_first_of_more_and_a_seed_fixes_the_answers(few):
    found, _ = few
    again = calibrate(
        options=CalibrationOptions(constructs=["pointer"], draws=2, texts=[30], seed=5)
    )
    same = [c for c in found.cells if c.construct == "pointer" and c.n == 30]
    assert list(again.cells) == same


def test_files_are_read_as_they_were_written(few):
    found, folder = few
    stored = json.loads((folder / "calibration.json").read_text())
    read = report.from_json(stored)
    assert report.to_json(read) == stored == plain(report.to_json(found))
    assert read.cells == found.cells and read.rules == found.rules
    assert (folder / "calibration.md").read_text() == found.to_markdown()
    answers = (folder / "answers.csv").read_text().splitlines()
    assert len(answers) == 1 + len(found.models)


@pytest.mark.parametrize(
    ("answer", "of_yes", "of_no"),
    [
        ("yes", "right", "wrong"),
        ("mostly yes", "right", "wrong"),
        ("partly", "undecided", "wrong"),
        ("mostly no", "wrong", "right"),
        ("no", "wrong", "right"),
        ("cannot say", "undecided", "undecided"),
        (report.NOTHING, "undecided", "undecided"),
    ],
)
def test_what_is_wrong(answer, of_yes, of_no):
    assert report.outcome_of(answer, True) == of_yes
    assert report.outcome_of(answer, False) == of_no


def test_counts_of_a_rule_add_up(few):
    found, _ = few
    for row in found.rules:
        own = [c for c in found.cells if (c.rule, c.n) == (row.rule, row.n)]
        truths = [c.truth for c in own for _ in range(sum(c.answers.values()))]
        assert (row.yes, row.no) == (truths.count(True), truths.count(False))
        assert row.false_yes + row.undecided_no <= row.no
        assert row.false_no + row.undecided_yes <= row.yes


def test_shares_have_the_exact_interval():
    low, high = binomtest(3, 40).proportion_ci(method="exact")
    assert report.share(3, 40) == f"3 of 40 [{low:.2f}, {high:.2f}]".replace("0.", ".")
    assert report.share(40, 40).endswith(", 1.00]")
    assert report.share(0, 0) == "–"


def test_auroc_is_the_statistic_of_mann_and_whitney():
    draws = np.random.default_rng(0)
    yes, no = draws.normal(1, 1, 30).round(1), draws.normal(0, 1, 20).round(1)
    expected = mannwhitneyu(yes, no).statistic / (30 * 20)
    assert report.auroc(yes, no) == pytest.approx(expected, abs=1e-4)
    assert report.auroc(yes, no[:0]) is None


def test_an_unknown_kind_is_refused():
    with pytest.raises(AttnProbeError, match="unknown construct sinc; the known ones"):
        calibrate(options=CalibrationOptions(constructs=["sinc"]))


def test_more_texts_than_a_kind_is_asked_on_are_refused():
    options = CalibrationOptions(constructs=["BERT, one head points"], texts=[500])
    with pytest.raises(AttnProbeError, match="expected fewer texts for BERT, one head points"):
        calibrate(options=options)


def test_the_command_prints_the_tables(cli, tmp_path):
    done = cli(
        *("calibrate", "--constructs", "ornament", "--draws", "1", "--texts", "30"),
        *("--output-dir", tmp_path / "out"),
    )
    assert done.code == 0, done.err
    assert re.search(r"ornament +\(yes\)", done.out) and "false yes" in done.out
    assert (tmp_path / "out" / "calibration.json").is_file()


# --- what comes with the package ---------------------------------------------------------


def test_the_page_is_made_of_what_comes_with_the_package():
    page = (ROOT / "docs" / "calibration.md").read_text()
    parts = [report.measured(decoders=decoders).to_markdown() for decoders in (False, True)]
    assert page.startswith("\n".join(parts))
    assert "proved to use a word" in page.removeprefix("\n".join(parts))


def test_the_html_page_has_every_table_and_reason():
    measured = report.measured()
    text = html.unescape(measured.to_html())
    for table in (f(measured) for f in TABLES):
        assert all(f">{name}<" in text for name in table.head)
        assert all(written(cell) in text for row in table.rows for cell in row)
    for kind, said in report.reasons(measured).said.items():
        assert kind in text and all(sentence in text for sentence in said)


def test_what_comes_with_the_package_is_of_these_rules_and_constructs():
    measured = report.measured()
    assert measured.thresholds == {key: (RULES[key].partly, RULES[key].yes) for key in report.ASKED}
    asked = {n for n, kind in CONSTRUCTS.items() if kind.sizes(measured.texts)}
    assert {cell.construct for cell in measured.cells} == asked
    of_answers = report.measured(decoders=True)
    assert {cell.construct for cell in of_answers.cells} == {*DECODERS}
    assert of_answers.thresholds == {
        key: (RULES[key].partly, RULES[key].yes) for key in report.ASKED_OF_ANSWERS
    }


@pytest.mark.parametrize("rule", report.ASKED_OF_ANSWERS)
def test_thresholds_of_language_models_are_by_the_procedure(rule):
    """At most 1 in 20 models of any kind with the truth no exceed them; some do one step lower."""
    measured = report.measured(decoders=True)
    most = [c for c in measured.cells if c.n == measured.texts[-1] and c.rule == rule]
    lows = [c for c in most if c.truth is False]
    for cell in lows:
        wrong = sum(k for a, k in cell.answers.items() if report.outcome_of(a, False) == "wrong")
        assert wrong <= measured.draws / 20
    if rule != "passage":
        step_lower = RULES[rule].partly - 0.05
        assert max(c.mean + 2 * c.sd for c in lows) > step_lower


def test_an_audit_finds_the_row_of_its_number_of_texts():
    sizes = report.measured().texts
    for rule in (*report.ASKED, WHOLE):
        assert known_truth.row_of(rule).n == sizes[-1]
        assert known_truth.row_of(rule, sizes[0] - 1).n == sizes[0]
        assert known_truth.row_of(rule, sizes[-1] + 1).n == sizes[-1]
        assert known_truth.row_of(rule).sentence.startswith("Of models whose truth")
    assert known_truth.row_of("head_effect") is None
    assert known_truth.row_of("path") is None
    most = report.measured(decoders=True).texts[-1]
    assert known_truth.row_of("path", decoders=True).n == most


if __name__ == "__main__":
    for decoders, file in ((False, STORED), (True, OF_DECODERS)):
        made = told(calibrate(options=CalibrationOptions(quick=True, decoders=decoders)))
        file.write_text(json.dumps(made, indent=1) + "\n")
