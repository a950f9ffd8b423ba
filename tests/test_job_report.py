"""The report of a job: that of an audit of the same texts, and without rows nearly so."""

import json

import pandas as pd
import pytest

from hf_attnprobe import (
    AttnProbeError,
    AuditOptions,
    Permutation,
    audit,
    plan_audit,
    run_partition,
)
from hf_attnprobe.auditing.result import to_json
from hf_attnprobe.partitions import report as job_reports
from hf_attnprobe.partitions.report import job_report, rows_of_job
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.storage.rows import KEY


# Batches differ, and some numbers are shares in float32: equal to 1e-6.
TESTS = ["correlation", "input_erasure", Permutation(n_permutations=3)]
PARTITIONS = 3


@pytest.fixture(scope="module")
def planned(checkpoint, reviews_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "job"
    given = {"output_dir": folder, "partitions": PARTITIONS}
    plan_audit(checkpoint, str(reviews_folder), TESTS, **given)
    return folder


@pytest.fixture(scope="module")
def job(planned):
    """Of which all is done but the last partition, for a start."""
    with pytest.raises(AttnProbeError, match="start attnprobe work"):
        job_report(planned)
    for k in range(PARTITIONS - 1):
        run_partition(planned, k)
    unfinished = job_report(planned)
    assert any("2 of 3 partitions are done" in note for note in unfinished.notes)
    run_partition(planned, PARTITIONS - 1)
    return planned


@pytest.fixture(scope="module")
def audited(checkpoint, reviews_folder):
    options = AuditOptions(control="none")
    return audit(checkpoint, str(reviews_folder), TESTS, options=options)


@pytest.fixture
def of_summaries(job, monkeypatch):
    monkeypatch.setattr(job_reports, "FEW_VALUES", 0)
    return job_report(job)


def _by_place(statistics):
    return {(s.test, s.statistic, s.layer, s.head, s.group): s for s in statistics}


def test_a_small_job_has_the_report_of_an_audit(job, audited):
    report = job_report(job)
    assert report.n == audited.n
    ours, theirs = _by_place(report.statistics), _by_place(audited.statistics)
    assert ours.keys() == theirs.keys()
    for place, statistic in theirs.items():
        for name in ("mean", "median", "n", "undefined"):
            expected = pytest.approx(getattr(statistic, name), abs=1e-6, nan_ok=True)
            assert getattr(ours[place], name) == expected, (place, name)
    answers = [(f.rule, f.group, f.answer) for f in report.findings]
    assert answers == [(f.rule, f.group, f.answer) for f in audited.findings]
    rows = pd.concat([*rows_of_job(job)]).sort_values(list(KEY), ignore_index=True)
    expected = audited.to_pandas().sort_values(list(KEY), ignore_index=True)
    pd.testing.assert_frame_equal(rows, expected, check_dtype=False, rtol=1e-6, atol=1e-6)


def test_without_rows_the_report_has_the_same_means_and_findings(of_summaries, audited):
    assert not len(of_summaries.to_pandas())
    ours, theirs = _by_place(of_summaries.statistics), _by_place(audited.statistics)
    assert ours.keys() == theirs.keys()
    for place, statistic in theirs.items():
        found = ours[place]
        assert (found.n, found.undefined) == (statistic.n, statistic.undefined)
        assert found.mean == pytest.approx(statistic.mean, abs=1e-6, nan_ok=True)
    rules = [(f.rule, f.n) for f in of_summaries.findings if f.group == "all"]
    assert rules == [(f.rule, f.n) for f in audited.findings if f.group == "all"]
    for found in of_summaries.findings:
        other = next(f for f in audited.findings if f.rule == found.rule)
        assert found.value == pytest.approx(other.value, abs=1e-6, nan_ok=True)
        assert found.answer in (other.answer, Answer.CANNOT_SAY)


def test_without_rows_every_form_is_there_and_says_what_is_not(of_summaries):
    forms = [
        of_summaries.to_text(),
        of_summaries.to_text(verbose=True),
        of_summaries.to_markdown(),
        of_summaries.to_html(),
        json.dumps(to_json(of_summaries)),
    ]
    assert all("nan" not in form.split()[:5] for form in forms)
    for form in forms[1:]:
        assert "summaries of the parts" in form
    assert len(of_summaries.summary_frame()) == len(of_summaries.statistics)


def test_the_command_shows_a_job(job, cli, tmp_path):
    status, shown, _ = cli("report", str(job))
    assert status == 0 and ": 40 texts" in shown
    page = tmp_path / "page.html"
    assert cli("report", str(job), "--output", str(page))[0] == 0
    assert "<html" in page.read_text()


def test_a_part_that_is_not_its_own_is_refused(job, copy_of):
    other = copy_of(job)
    summary = other / "parts" / "part-00001.summary"
    data = bytearray(summary.read_bytes())
    data[len(data) // 2] ^= 1
    summary.write_bytes(bytes(data))
    with pytest.raises(AttnProbeError, match="is not what was written"):
        job_report(other)
