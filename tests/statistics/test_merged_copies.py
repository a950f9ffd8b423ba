"""Copies of a text count once: merging against pandas, in any order, and only when it is needed."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.reports.verdict import compute_findings
from hf_attnprobe.statistics.differences import compare_rankings
from hf_attnprobe.statistics.evidence import build_evidence
from hf_attnprobe.statistics.heads import evaluate_heads
from hf_attnprobe.statistics.rows import PREDICTION_TEST, Rows
from hf_attnprobe.statistics.summary import select_predictions, summarize
from hf_attnprobe.statistics.verdicts import RULES
from tests.helpers.synthetic_rows import make_audit_rows, make_rows


CLASSES = ("neg", "pos")
MEAN = ("permutation", "median_tvd")
LABEL, PREDICTED = (PREDICTION_TEST, "label"), (PREDICTION_TEST, "predicted_class")


def with_identities(rows, identities):
    """Rows in long form with the identity of each text, by text id."""
    ids, values = zip(*identities.items(), strict=True)
    identity = make_rows({(PREDICTION_TEST, "identity"): values}, ids=ids, layer=-1, head=-1)
    return pd.concat([rows, identity], ignore_index=True)


def find_only_mode(labels):
    """The most frequent class of plain Python; −1 if there is none or if two are as frequent."""
    counts = Counter(label for label in labels if label >= 0).most_common(2)
    if not counts or len({n for _, n in counts}) < len(counts):
        return -1
    return counts[0][0]


@st.composite
def texts_with_copies(draw):
    """A frame with one row per text: identity (NaN: unknown), value (NaN: undefined), label."""
    n = draw(st.integers(1, 25))
    finite = st.floats(-1e6, 1e6)
    ids = draw(st.lists(st.integers(0, 200), min_size=n, max_size=n, unique=True))
    frame = {
        "identity": st.sampled_from([0.0, 3.0, 2.0**52 - 1, np.nan]),
        "value": st.one_of(finite, st.just(np.nan)),
        "label": st.sampled_from([-1.0, 0.0, 1.0, 2.0]),
        "is_measured": st.booleans(),
    }
    columns = {name: draw(st.lists(s, min_size=n, max_size=n)) for name, s in frame.items()}
    return pd.DataFrame(columns, index=pd.Index(ids, name="example_id"))


@settings(max_examples=50)
@given(texts_with_copies())
def test_merging_is_a_groupby_of_pandas(texts):
    measured = texts[texts.is_measured]
    parts = [
        make_rows({LABEL: texts.label}, ids=texts.index, layer=-1, head=-1),
        make_rows({(PREDICTION_TEST, "identity"): texts.identity}, ids=texts.index, layer=-1),
        make_rows({MEAN: measured.value}, ids=measured.index) if len(measured) else None,
    ]
    merged = Rows.coerce(pd.concat([part for part in parts if part is not None])).merge_duplicates()

    own = pd.Series([f"alone {k}" for k in texts.index], texts.index)
    text_of = texts.identity.astype(str).where(texts.identity.notna(), own)
    groups = texts.assign(text=text_of, example_id=texts.index).groupby("text")
    expected = pd.DataFrame(
        {
            "example_id": groups.example_id.min(),
            "label": groups.label.agg(find_only_mode),
            "value": texts.value.where(texts.is_measured).groupby(text_of).mean(),
            "is_measured": groups.is_measured.any(),
        }
    ).sort_values("example_id")
    assert merged.ids.tolist() == expected.example_id.tolist()
    found = select_predictions(merged)
    assert found.get_values("label").tolist() == expected.label.tolist()
    if len(measured):
        column = (*MEAN, 0, 0)
        np.testing.assert_allclose(merged.read_column(column), expected.value, rtol=1e-9, atol=1e-6)
        assert merged.read_mask(column).tolist() == expected.is_measured.tolist()


@settings(max_examples=30)
@given(st.floats(allow_nan=False), st.integers(2, 50))
def test_the_mean_of_equal_values_is_this_value(value, n):
    rows = make_rows({MEAN: np.full(n, value)})
    merged = Rows.coerce(with_identities(rows, dict.fromkeys(range(n), 5))).merge_duplicates()
    assert merged.read_column((*MEAN, 0, 0)).tolist() == [value]


def test_the_order_of_texts_and_copies_changes_nothing():
    draws = np.random.default_rng(0)
    n_copies = draws.integers(1, 6, size=40)
    text = np.repeat(np.arange(40), n_copies)
    values, labels = draws.normal(size=len(text)), draws.integers(0, 2, size=len(text))

    def merge(order):
        """Merge the texts in another order; the result is sorted by identity."""
        columns = {LABEL: labels[order], (PREDICTION_TEST, "identity"): text[order]}
        predictions = make_rows(columns, layer=-1, head=-1)
        rows = pd.concat([predictions, make_rows({MEAN: values[order]})])
        merged = Rows.coerce(rows).merge_duplicates().build_wide_frame()
        merged.columns = merged.columns.get_level_values("statistic")
        return merged.sort_values("identity").reset_index(drop=True)

    expected = merge(np.arange(len(text)))
    assert len(expected) == 40 and expected.identity.tolist() == list(range(40))
    for _ in range(5):
        found = merge(draws.permutation(len(text)))
        pd.testing.assert_frame_equal(found, expected, rtol=1e-12)


def test_rows_without_copies_are_returned_unchanged():
    rows = make_audit_rows(n=30)
    without_identity = Rows.coerce(rows)
    assert without_identity.merge_duplicates() is without_identity
    ids = sorted(rows.example_id.unique())
    all_different = Rows.coerce(with_identities(rows, {k: 2.0**52 - 1 - k for k in ids}))
    assert all_different.merge_duplicates() is all_different
    merged = Rows.coerce(with_identities(rows, {k: k // 2 for k in ids})).merge_duplicates()
    assert merged.merge_duplicates() is merged


def test_a_column_is_read_when_it_is_needed():
    read = []
    rows = make_audit_rows(n=30)
    rows = Rows.coerce(with_identities(rows, {k: k % 7 for k in rows.example_id.unique()}))

    def read_column(column):
        read.append(column)
        return rows.read_column(column)

    watched = replace(rows, read_column=read_column)
    merged = watched.merge_duplicates()
    assert [statistic for _, statistic, *_ in read] == ["identity"]
    merged.read_column((*MEAN, 0, 0))
    assert [statistic for _, statistic, *_ in read] == ["identity", "median_tvd"]


# --- every function that computes results from rows ---------------------------------------------


def compute_all_results(rows):
    """Everything that is computed from rows, as text."""
    evidence = build_evidence(rows, CLASSES)
    return repr(
        (
            summarize(rows, CLASSES, load_readings()),
            compare_rankings(rows),
            compute_findings(rows, CLASSES),
            evaluate_heads(rows, RULES),
            evidence.texts.to_frame().to_csv(),
            {name: members.tolist() for name, members in evidence.classes.items()},
        )
    )


@pytest.fixture(scope="module")
def rows():
    audit_rows = make_audit_rows(n=60)
    ids = sorted(audit_rows.example_id.unique())
    labels = np.random.default_rng(1).integers(0, 2, size=60)
    predictions = make_rows({LABEL: labels}, ids=ids, layer=-1, head=-1)
    is_label = (audit_rows.test == PREDICTION_TEST) & (audit_rows.statistic == "label")
    return pd.concat([audit_rows[~is_label], predictions], ignore_index=True)


def test_identities_of_different_texts_change_no_result(rows):
    different = with_identities(rows, {k: k + 1 for k in rows.example_id.unique()})
    assert compute_all_results(different) == compute_all_results(rows)


def test_copies_change_no_result_at_all(rows):
    """Twenty copies of each text give bit-identical results, and no statistic of identities."""
    copies = pd.concat([rows.assign(example_id=rows.example_id + 1000 * k) for k in range(20)])
    copied = with_identities(copies, {k: k % 1000 for k in copies.example_id.unique()})
    assert compute_all_results(copied) == compute_all_results(rows)
    assert compute_all_results(copies) != compute_all_results(rows)
    statistics = summarize(copied, CLASSES, load_readings())
    assert statistics and {s.statistic for s in statistics}.isdisjoint({"identity"})


def test_copies_with_different_labels_have_the_most_frequent_one():
    identities = [number + group for group in range(0, 50, 10) for number in (7, 7, 7, 8, 8, 9)]
    columns = {
        PREDICTED: [1, 1, 1, 0, 0, 2] * 5,
        LABEL: [1, 0, 1, 0, 2, 2] * 5,
        (PREDICTION_TEST, "probability"): [0.9] * 30,
        (PREDICTION_TEST, "identity"): identities,
    }
    rows = make_rows(columns, layer=-1, head=-1)
    (accuracy,) = [f for f in compute_findings(rows, ("a", "b", "c")) if f.rule == "accuracy"]
    # The second text of each group is labelled 0 once and 2 once, so its label is unknown.
    assert accuracy.n == 10 and accuracy.yardsticks["accuracy"] == 1
