"""A report in its forms: fifteen lines, frames, JSON, a notebook's cell."""

import json
import re

import pandas as pd
import pytest

from hf_attnprobe import Report, audit
from hf_attnprobe.documents.blocks import format_cell
from hf_attnprobe.reports.first_screen import build_rankings_table
from tests.helpers.error_messages import refused


@pytest.fixture(scope="module")
def folder(audited):
    return audited("classifier")


@pytest.fixture(scope="module")
def report(folder):
    return Report.load(folder)


def test_what_has_no_labels_says_so(checkpoint, reviews):
    texts = list(reviews["test"]["text"])[:5]
    said = str(audit(checkpoint, texts, "permutation", progress=False))
    assert "There are only 5 of the 30 required texts." in said
    assert "nan" not in said and not re.search(r"right in|\d%|0\.\d\d", said)


def test_frames_are_the_rows(report, tmp_path):
    rows, wide = report.to_pandas(), report.wide_frame()
    tau = rows[rows.statistic == "attention_leave_one_out_tau"]
    by_hand = tau.set_index("example_id").value
    pd.testing.assert_series_equal(
        wide.attention_leave_one_out_tau, by_hand.sort_index(), check_names=False
    )
    assert len(wide) == report.n and "predicted_class" in wide
    assert wide.size == len(rows.drop_duplicates())
    summary = report.summary_frame()
    row = summary[(summary.statistic == tau.statistic.iloc[0]) & (summary.group == "all")]
    assert row["mean"].item() == pytest.approx(by_hand.mean())
    report.to_csv(tmp_path / "summary.csv")
    assert pd.read_csv(tmp_path / "summary.csv").shape == summary.shape


def test_rankings_are_numbers_with_their_intervals(report):
    cells = [format_cell(score) for _, score in build_rankings_table(report).rows]
    assert cells and all(
        re.fullmatch(r"-?\d\.\d\d \[-?\d\.\d\d, -?\d\.\d\d\]", cell) for cell in cells
    )


def test_the_summary_of_another_version_is_refused(folder, copy_of):
    folder = copy_of(folder)
    file = folder / "summary.json"
    data = json.loads(file.read_text())
    for version in ("1", None):
        file.write_text(json.dumps({**data, "schema_version": version}))
        refused("can only read version 3.", Report.load, folder)


def test_a_gate_needs_no_thresholds(cli, checkpoint, reviews_folder):
    command = ["audit", "--model", checkpoint, "--dataset", reviews_folder]
    command += ["--test-limit", "3", "--tests", "permutation"]  # too few to say
    done = cli(*command, "--fail-on", "cannot-say", "no")
    assert done.code == 3
    assert done.err.endswith("attnprobe: --fail-on: the answer is cannot say\n")
    assert cli(*command, "--fail-on", "no").code == 0
    scored = cli(*command, "--fail-on", "effect<2", "faithfulness<.5")
    assert scored.code == 3
    assert scored.err.endswith(
        "attnprobe: --fail-on: effect was not measured: 3 of 10 texts; faithfulness was not measured\n"
    )
    wrong = cli(*command, "--fail-on", "effect=2")
    assert wrong.code == 2 and "The answers are yes, partly, no, cannot-say." in wrong.err
