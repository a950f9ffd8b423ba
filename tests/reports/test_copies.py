"""A text that occurs several times counts once: in reports, gates, comparisons and pages."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.reports.ci_gate import list_failures, parse_conditions
from hf_attnprobe.reports.comparison import compare_reports
from hf_attnprobe.reports.paired_differences import UNCLEAR_DIFFERENCE_TEXT
from hf_attnprobe.reports.report import assemble_report
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.rows import Rows
from tests.helpers import sample_comparisons
from tests.helpers.synthetic_rows import make_rows
from tests.helpers.verdict_rows import good_model, moving, way_of


N_COPIES = 20
TESTS = ["scale", "erasure", "permutation"]


def copy_texts(rows, n_copies, *, with_identity=True):
    """Rows with copies of every text, with or without the identity by which they are recognised."""
    n_texts = int(rows.example_id.max()) + 1
    copies = [rows.assign(example_id=rows.example_id + k * n_texts) for k in range(n_copies)]
    if with_identity:
        identity = np.tile(np.arange(n_texts), n_copies)
        columns = {("prediction", "identity"): identity}
        copies.append(make_rows(columns, layer=-1, head=-1))
    return pd.concat(copies, ignore_index=True)


def make_unfaithful_rows(n):
    """Rows of a model that is right, with attention that is far from the best order."""
    ways = np.random.default_rng(3).normal(0.1, 0.05, n)
    return good_model(n, **way_of(ways), **moving(n, 0.2))


def make_report(rows, n_distinct):
    """A report of an audit whose provenance counts the different texts, as an audit does."""
    n = rows.example_id.nunique()
    provenance = {
        "tests": TESTS,
        "unsupported_tests": {"exchange": "its units cannot be exchanged"},
        "options": {},
        "classes": ["neg", "pos"],
        "prediction": {"kind": "classes", "name": "classes", "outcomes": ["neg", "pos"]},
        "asked_for": {"model": "m", "dataset": "sst"},
        "versions": {},
    }
    if n_distinct < n:
        provenance["different_texts"] = n_distinct
    return assemble_report(
        Rows.coerce(rows),
        model="m",
        dataset=DatasetName("sst", "test"),
        n=n,
        seed=0,
        provenance=provenance,
        example_ids=tuple(range(n)),
    )


@pytest.fixture(scope="module")
def repeated():
    """A report about 12 texts that each occur 20 times."""
    rows = copy_texts(make_unfaithful_rows(12), N_COPIES)
    return make_report(rows, n_distinct=12)


@pytest.fixture(scope="module")
def unrecognised():
    """The same report without identities, as an earlier version stored it."""
    rows = copy_texts(make_unfaithful_rows(12), N_COPIES, with_identity=False)
    return make_report(rows, n_distinct=240)


def test_copies_of_twelve_texts_cannot_decide_a_report(repeated, unrecognised):
    assert unrecognised.answer == Answer.NO
    assert repeated.answer == Answer.CANNOT_SAY
    assert {f.answer for f in repeated.findings} == {Answer.CANNOT_SAY}
    assert {f.n for f in repeated.findings} == {12}
    assert repeated.score.value == pytest.approx(unrecognised.score.value, abs=1e-9)
    low, high = repeated.score.ci95
    raw_low, raw_high = unrecognised.score.ci95
    assert high - low == pytest.approx((raw_high - raw_low) * N_COPIES**0.5, rel=0.25)


def test_the_gate_sees_different_texts(repeated, unrecognised):
    (no,) = parse_conditions(["no"])
    (cannot_say,) = parse_conditions(["cannot-say"])
    assert list_failures(unrecognised, [no]) and not list_failures(repeated, [no])
    assert list_failures(repeated, [cannot_say])


def test_fewer_than_ten_different_texts_have_no_number():
    report = make_report(copy_texts(make_unfaithful_rows(9), 30), n_distinct=9)
    assert report.n == 270 and report.score.n == 9
    text = str(report)
    assert "There are only 9 of the 30 required texts" in text and "0.1" not in text
    assert "270 texts (9 different)" in text


def test_thirty_different_texts_decide():
    report = make_report(copy_texts(make_unfaithful_rows(30), 2), n_distinct=30)
    assert report.answer == Answer.NO and report.score.n == 30


@pytest.mark.parametrize("form", ["__str__", "to_markdown", "to_html", "__repr__"])
def test_every_form_counts_texts_and_different_texts(form, repeated, unrecognised):
    text = getattr(repeated, form)()
    assert "240 texts (12 different)" in text
    assert "different)" not in getattr(unrecognised, form)()
    if form in ("to_markdown", "to_html"):
        assert "240 (12 different) of" in text
        assert "Copies: only 12 of the 240 texts are different. All copies of the same text" in text
        assert "Copies:" not in getattr(unrecognised, form)()


def test_stored_rows_keep_all_copies(repeated):
    assert repeated.to_pandas().example_id.nunique() == len(repeated.wide_frame()) == 240
    assert len(repeated.distinct_rows) == 12
    assert repeated.distinct_rows.ids.tolist() == list(range(12))
    assert not any(s.statistic == "identity" for s in repeated.statistics)


def test_without_copies_the_report_is_the_same_as_without_identities():
    rows = make_unfaithful_rows(40)
    first = make_report(rows, n_distinct=40)
    second = make_report(copy_texts(rows, 1), n_distinct=40)
    assert repr(dataclasses.asdict(dataclasses.replace(first, rows=second.rows))) == repr(
        dataclasses.asdict(second)
    )
    assert first.to_html() == second.to_html()
    assert [*first.charts()] == [*second.charts()]


def test_advice_on_more_texts_counts_different_texts(repeated):
    asked = {**repeated.provenance["asked_for"], "test_limit": 240}
    provenance = {**repeated.provenance, "asked_for": asked}
    # 30 different texts are needed, and only one in twenty texts is different.
    assert "--test-limit 600" in str(dataclasses.replace(repeated, provenance=provenance))


# --- comparisons ----------------------------------------------------------------------------------


def compare(n_texts, n_copies, *, with_identity):
    """Compare two audits with a small difference that the same texts show again and again."""
    reports = []
    for seed, moved in ((1, 0.0), (2, 0.02)):
        rows = sample_comparisons.rows_of(seed, moved=moved, ids=range(n_texts))
        rows = copy_texts(rows, n_copies, with_identity=with_identity)
        different = {"different_texts": n_texts} if with_identity and n_copies > 1 else {}
        reports.append(sample_comparisons.report_of(rows, model=f"models/{seed}", **different))
    return compare_reports(reports)


def get_tau_difference(comparison):
    return sample_comparisons.by_name(comparison)["attention_leave_one_out_tau"].differences[0]


def test_copies_of_twelve_texts_cannot_tell_two_audits_apart():
    raw, merged = (compare(12, N_COPIES, with_identity=flag) for flag in (False, True))
    assert raw.n_shared == (240,) and get_tau_difference(raw).has_clear_sign
    assert merged.n == (240, 240) and merged.n_distinct == (12, 12) and merged.n_shared == (12,)
    difference = get_tau_difference(merged)
    assert difference.n == 12 and difference.paired and not difference.has_clear_sign
    assert difference.value == pytest.approx(get_tau_difference(raw).value)
    for question in merged.questions:
        assert all(d is None or not d.has_clear_sign for d in question.differences)
        assert not question.has_changed_answer(1)
    text = merged.to_markdown()
    assert UNCLEAR_DIFFERENCE_TEXT in text and "240 (12 different)" in text
    assert "240 (12 different)" not in raw.to_markdown()


def test_copies_change_no_comparison():
    once, copied = compare(40, 1, with_identity=False), compare(40, 7, with_identity=True)
    assert repr(once.statistics) == repr(copied.statistics)
    assert repr(once.questions) == repr(copied.questions)


def test_texts_with_other_tokens_in_another_model_are_still_pairs():
    """Hashes of token ids differ between tokenizers; the data and the text ids decide."""
    rows = sample_comparisons.rows_of(1, ids=range(40))
    first = copy_texts(rows, 1)
    other = first.assign(value=first.value.where(first.statistic != "identity", first.value + 99))
    reports = [sample_comparisons.report_of(r, model=m) for r, m in ((first, "a"), (other, "b"))]
    assert compare_reports(reports).n_shared == (40,)
