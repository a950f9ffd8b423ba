"""A report in its forms: ten lines, frames, LaTeX, JSON, a notebook's cell."""

import json
import re

import pandas as pd
import pytest

from hf_attnprobe import AttnProbeError, Report, audit
from hf_attnprobe.auditing.forms.terminal import PIECES, QUESTIONS
from hf_attnprobe.auditing.result import to_json
from hf_attnprobe.auditing.verdict import ALL_TEXTS
from hf_attnprobe.statistics.verdict_lines import WIDTH, verdict_line
from hf_attnprobe.statistics.verdicts import Answer, Finding


@pytest.fixture(scope="module")
def audited(checkpoint, reviews, tmp_path_factory):
    """An audit of 40 texts with its control, and its folder."""
    folder = tmp_path_factory.mktemp("forms") / "audit"
    tests = ["correlation", "permutation", "adversarial"]
    report = audit(
        checkpoint, reviews["test"], tests, output_dir=folder, progress=False
    )
    return report, folder


def numbers_of(report):
    """All that a line may say, with two digits."""
    found = []
    for f in report.findings:
        found += [f.value, 1 - f.value, *(f.ci95 or ()), *f.yardsticks.values()]
        found += [1 - end for end in f.ci95 or ()]
    found += [s.mean for s in report.statistics]
    thresholds = {"0.05", "0.10", "0.25", "0.30", "0.75"}
    return {f"{value:z.2f}" for value in found if value == value} | thresholds


def test_the_verdict_comes_first_in_about_ten_lines(audited):
    report, _ = audited
    lines = str(report).splitlines()
    assert lines[0].startswith("Does this attention explain the predictions? ")
    assert str(report.answer).upper() in lines[0]
    assert len(lines) <= 14 and max(map(len, lines)) <= WIDTH
    assert lines[3].startswith("Is the model any good? ")
    for found in report.findings:
        (at,) = [k for k, line in enumerate(lines) if QUESTIONS[found.rule] in line]
        if found.group != ALL_TEXTS:  # the classes stand below their question
            at = lines.index(next(x for x in lines[at:] if f" {found.group} " in x))
        assert f" {found.answer} " in lines[at]
        assert f"{found.value:z.2f}" in lines[at] or found.rule == "uniqueness"
    said = re.findall(r"-?\d\.\d\d", "\n".join(lines[3:]))
    assert len(said) > 8 and set(said) <= numbers_of(report)
    verbose = report.to_text(verbose=True)
    assert "attention_leave_one_out_tau" in verbose and "Verdict" in verbose


def test_what_has_no_labels_says_so(checkpoint, reviews):
    texts = list(reviews["test"]["text"])[:5]
    said = str(audit(checkpoint, texts, "permutation", progress=False))
    assert re.search(
        r"^Is the model any good\? +cannot say +The texts have no labels$", said, re.M
    )
    assert "nan" not in said


def test_a_notebook_is_shown_little(audited):
    report, _ = audited
    assert len(repr(report)) < 200 and "\n" not in repr(report)
    assert len(report._repr_html_()) < 50_000
    assert report._repr_html_().startswith("<div")
    assert report.to_html().startswith("<!DOCTYPE html>")


def test_frames_are_the_rows(audited):
    report, folder = audited
    rows, wide = report.to_pandas(), report.wide_frame()
    tau = rows[rows.statistic == "attention_leave_one_out_tau"]
    by_hand = tau.set_index("example_id").value
    pd.testing.assert_series_equal(
        wide.attention_leave_one_out_tau, by_hand.sort_index(), check_names=False
    )
    assert len(wide) == report.n and "predicted_class" in wide
    assert wide.size == len(rows.drop_duplicates())
    summary = report.summary_frame()
    row = summary[
        (summary.statistic == tau.statistic.iloc[0]) & (summary.group == "all")
    ]
    assert row["mean"].item() == pytest.approx(by_hand.mean())
    others = pd.read_parquet(folder / "control" / "rows")
    others = others[others.statistic == tau.statistic.iloc[0]].set_index("example_id")
    assert row.control.item() == pytest.approx(others.value.mean())
    assert row.difference.item() == pytest.approx((by_hand - others.value).mean())
    report.to_csv(folder / "summary.csv")
    assert pd.read_csv(folder / "summary.csv").shape == summary.shape


def test_latex_reads_back(audited):
    report, _ = audited
    lines = report.to_latex().splitlines()
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    means = {s.statistic: s for s in report.statistics if s.group == "all"}
    assert len(body) > 5
    for line in body:
        assert line.endswith(r" \\")
        name, mean, ends, n, *_ = line[:-3].split(" & ")
        known = means[name.replace(r"\_", "_")]
        assert (mean, int(n)) == (f"{known.mean:z.3f}", known.n)
        assert ends == "[{:z.3f}, {:z.3f}]".format(*known.ci95)
    text = "\n".join(lines[1:])
    assert text.count("{") == text.count("}") and not re.search(r"(?<!\\)[_%]", text)
    with pytest.raises(AttnProbeError, match="summary_frame"):
        report.to_latex(["median_tv"])


def test_json_carries_the_verdict(audited):
    report, folder = audited
    data = json.loads(json.dumps(to_json(report), allow_nan=False))
    assert data["schema_version"] == "1"
    assert data["verdict"]["answer"] == str(report.answer)
    sentences = [f["sentence"] for f in data["verdict"]["findings"]]
    assert sentences == [f.sentence for f in report.findings]
    rows = report.to_pandas().set_index("example_id")
    predicted = rows[rows.statistic == "predicted_class"].value
    right = (predicted == rows[rows.statistic == "label"].value).mean()
    assert data["accuracy"]["accuracy"] == pytest.approx(right)
    assert json.loads((folder / "summary.json").read_text())["schema_version"] == "1"


def test_a_newer_summary_is_refused_and_an_older_one_read(audited, copy_of):
    folder = copy_of(audited[1])
    file = folder / "summary.json"
    data = json.loads(file.read_text())
    for key in ("schema_version", "verdict", "accuracy"):
        del data[key]
    file.write_text(json.dumps(data))
    assert str(Report.load(folder)) == str(audited[0])
    file.write_text(json.dumps({**data, "schema_version": "2"}))
    with pytest.raises(AttnProbeError, match="schema version 1 or older") as error:
        Report.load(folder)
    assert "\n" not in str(error.value)


def test_a_gate_needs_no_thresholds(cli, checkpoint, reviews_folder):
    command = ["audit", "--model", checkpoint, "--dataset", reviews_folder]
    command += ["--test-limit", "3", "--tests", "permutation"]  # too few to say
    assert cli(*command, "--fail-on", "cannot-say", "no").code == 3
    assert cli(*command, "--fail-on", "no").code == 0


@pytest.mark.parametrize("rule", ["accuracy", "importance", "assignment", "removal"])
def test_the_graded_number_has_place_on_its_line(audited, rule):
    """At its longest: every number negative, where one can be."""
    report, _ = audited
    found = Finding(
        rule=rule,
        answer=Answer.CANNOT_SAY,
        value=-0.88,
        ci95=(-0.99, -0.77),
        group=ALL_TEXTS,
        n=40,
        sentence="",
        yardsticks={"majority": 0.99, "control": -0.55, "random": -0.55},
    )
    numbers = PIECES[rule](found, report)
    line = verdict_line(QUESTIONS[rule], str(found.answer), numbers)
    assert "more by -0.88 [-0.99, -0.77]" in line and len(line) <= WIDTH
