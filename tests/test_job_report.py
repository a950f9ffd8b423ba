"""The report of a job is that of an audit of the same texts, number by number."""

import json

import pandas as pd
import pytest
from hf_attnprobe.partitions.report import job_report, rows_of_job

from hf_attnprobe import (
    AttnProbeError,
    AuditOptions,
    Permutation,
    audit,
    plan_audit,
    run_partition,
)
from hf_attnprobe.auditing.result import to_json
from hf_attnprobe.statistics.rows import KEY


# Batches differ, and some numbers are shares in float32: equal to 1e-6.
TESTS = ["correlation", "input_erasure", "erasure", Permutation(n_permutations=3)]
PARTITIONS = 3
DRAWS = AuditOptions(control_draws=2)


@pytest.fixture(scope="module")
def planned(checkpoint, reviews_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "job"
    given = {"output_dir": folder, "partitions": PARTITIONS, "options": DRAWS}
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
    return audit(checkpoint, str(reviews_folder), TESTS, options=DRAWS, progress=False)


def agree(ours, theirs, where=""):
    """Plain data, numbers to rounding."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        pairs = [(ours[key], theirs[key], f"{where}.{key}") for key in theirs]
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        pairs = [(*both, f"{where}[{k}]") for k, both in enumerate(zip(ours, theirs, strict=True))]
    else:
        is_number = isinstance(theirs, float)
        expected = pytest.approx(theirs, abs=1e-6, rel=1e-6) if is_number else theirs
        assert ours == expected, where
        return
    for pair in pairs:
        agree(*pair)


def test_a_job_has_the_report_of_an_audit(job, audited):
    ours, theirs = to_json(job_report(job)), to_json(audited)
    for key in ("n", "answer", "verdict", "accuracy", "findings", "statistics"):
        agree(ours[key], theirs[key], key)
    for key in ("contrasts", "comparisons", "contradictions"):
        agree(ours[key], theirs[key], key)
    assert ours["contrasts"] and ours["comparisons"]
    assert ours["provenance"]["control"] == theirs["provenance"]["control"]


def test_a_job_has_the_charts_of_an_audit(job, audited):
    ours, theirs = job_report(job).charts(), audited.charts()
    assert [c.key for c in ours] == [c.key for c in theirs] and ours
    assert [c.title for c in ours] == [c.title for c in theirs]


def test_rows_of_a_job_are_those_of_an_audit(job, audited):
    expected = audited.to_pandas()
    for rows in (job_report(job).to_pandas(), pd.concat([*rows_of_job(job)])):
        rows = rows.sort_values(list(KEY), ignore_index=True)
        pd.testing.assert_frame_equal(rows, expected, check_dtype=False, rtol=1e-6, atol=1e-6)


def test_every_form_is_there(job):
    report = job_report(job)
    forms = [report.to_text(verbose=True), report.to_markdown(), report.to_html()]
    assert all(forms) and json.loads(json.dumps(to_json(report)))
    assert len(report.summary_frame()) >= len(report.statistics)


def test_the_command_shows_a_job(job, cli, tmp_path):
    status, shown, _ = cli("report", str(job))
    assert status == 0 and ": 40 texts" in shown
    page = tmp_path / "page.html"
    assert cli("report", str(job), "--output", str(page))[0] == 0
    assert "<html" in page.read_text()


def test_a_part_that_is_not_its_own_is_refused(job, copy_of):
    other = copy_of(job)
    rows = other / "parts" / "part-00001.control-0.parquet"
    data = bytearray(rows.read_bytes())
    data[len(data) // 2] ^= 1
    rows.write_bytes(bytes(data))
    with pytest.raises(AttnProbeError, match="is not what was written"):
        job_report(other)
