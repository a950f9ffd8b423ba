"""Summaries of parts, merged, against numpy, scipy and the summary of all rows."""

import numpy as np
import pandas as pd
import pytest
from hf_attnprobe.statistics.merging import (
    EVERY,
    bin_of,
    edges,
    estimate_of,
    histogram,
    merge,
    merged,
    merged_quality,
    merged_statistics,
    nothing,
    of_cell,
    quantile,
    to_lists,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.statistics.estimates import mean_estimate
from hf_attnprobe.statistics.scores import quality
from hf_attnprobe.statistics.summary import predictions_of, summarize
from hf_attnprobe.storage.wide_rows import partial_bytes, read_partial, summary_of_rows, to_wide
from made_up_rows import audit_rows, head_rows, long_rows


CLASSES = ["no", "yes"]


def _with_predictions(rows):
    """Labels and probabilities beside the predicted classes."""
    ids = np.sort(rows.example_id.unique())
    draw = np.random.default_rng(3)
    label = draw.integers(-1, 2, size=len(ids)).astype(float)
    values = {"label": label, "probability": draw.uniform(0.5, 1, size=len(ids))}
    beside = long_rows(values, "prediction", -1, -1)
    beside["example_id"] = np.tile(ids, len(values))
    return pd.concat([rows, beside], ignore_index=True)


def _parts(rows, n_parts, n_classes=2):
    """Summaries of the parts of the rows, by a hash of the ids, through their bytes."""
    of_part = rows.example_id * 7919 % 104729 % n_parts
    tables = [to_wide(rows[of_part == k]) for k in range(n_parts)]
    summaries = [summary_of_rows(table, n_classes) for table in tables]
    return [read_partial(partial_bytes(summary)) for summary in summaries]


@pytest.fixture(scope="module")
def rows():
    return _with_predictions(audit_rows())


@pytest.fixture(scope="module")
def parts(rows):
    return _parts(rows, 3)


@pytest.fixture(scope="module")
def whole(rows):
    return merged(_parts(rows, 1))


def test_merged_statistics_are_those_of_all_rows(rows, parts):
    found = merged_statistics(merged(parts), CLASSES, readings())
    expected = summarize(rows, CLASSES, readings())
    key = lambda s: (s.test, s.statistic, s.layer, s.head, s.group)  # noqa: E731
    assert [key(s) for s in found] == [key(s) for s in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.n, ours.undefined) == (theirs.n, theirs.undefined)
        close = pytest.approx((theirs.mean, theirs.std), abs=1e-12, nan_ok=True)
        assert (ours.mean, ours.std) == close
        width = 2 / 1024 * max(1, abs(theirs.median))
        assert ours.median == pytest.approx(theirs.median, abs=width, nan_ok=True)
        assert ours.ci95 == pytest.approx(theirs.ci95, abs=1e-9, nan_ok=True)


def test_of_many_heads_only_what_merges_cheaply_is_kept():
    rows = _with_predictions(head_rows(n=60, n_layers=9, n_heads=8))
    merged_rows = merged(_parts(rows, 3))
    assert merged_rows.is_brief.any()
    found = merged_statistics(merged_rows, CLASSES, readings())
    expected = summarize(rows, CLASSES, readings())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.mean == pytest.approx(theirs.mean, abs=1e-12, nan_ok=True)
        width = 2 / 64 * max(1, abs(theirs.median))
        assert ours.median == pytest.approx(theirs.median, abs=width, nan_ok=True)
        assert ours.ci95 == pytest.approx(theirs.ci95, abs=1e-9, nan_ok=True)


def test_merged_accuracy_is_that_of_all_rows(rows, parts):
    ours = merged_quality(merged(parts))
    theirs = quality(predictions_of(rows))
    assert (ours.n, ours.n_labelled) == (theirs.n, theirs.n_labelled)
    for name in ("accuracy", "beyond_majority"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert one.value == pytest.approx(other.value, abs=1e-12)
        assert one.ci95 == pytest.approx(other.ci95, abs=1e-12)
    assert ours.majority == pytest.approx(theirs.majority)
    assert ours.calibration_error == pytest.approx(theirs.calibration_error, abs=1e-12)
    assert ours.top_probability.value == pytest.approx(theirs.top_probability.value)


def test_paired_differences_have_intervals_of_their_own(rows, parts):
    every = of_cell(merged(parts), EVERY)
    name = "comprehensiveness@attention − comprehensiveness@random"
    ours = estimate_of(every, ("input_erasure", name, 0, 0))
    wide = rows.pivot_table(index="example_id", columns="statistic", values="value")
    paired = (wide["comprehensiveness@attention"] - wide["comprehensiveness@random"]).to_numpy()
    assert ours.value == pytest.approx(np.nanmean(paired), abs=1e-12)
    assert ours.ci95 == pytest.approx(mean_estimate(paired).ci95, abs=1e-9)


def test_merging_commutes_to_the_last_bit_and_nothing_changes_nothing(parts):
    first, second, third = parts
    one = partial_bytes(merge(first, second))
    assert one == partial_bytes(merge(second, first))
    assert partial_bytes(merge(first, nothing())) == partial_bytes(first)
    left, right = merge(merge(first, second), third), merge(first, merge(second, third))
    for name in ("n", "n_zero", "n_one", "low", "high"):
        assert (getattr(left, name) == getattr(right, name)).all()
    assert (left.bins != right.bins).nnz == 0
    np.testing.assert_allclose(left.m2, right.m2, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(left.m3, right.m3, rtol=1e-12, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_lies_in_its_bin(value):
    low, high = edges(int(bin_of(np.array(value))))
    assert low <= value <= high
    assert value < high or value < 0
    assert high - low <= max(1, abs(value)) / 1024 or np.inf in (high, -low)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 1.0]) | st.floats(-3, 3), min_size=1, max_size=50),
    st.sampled_from([0.0, 0.25, 0.5, 0.975, 1.0]),
)
def test_quantiles_are_within_their_bin(values, share):
    values = np.array(values)
    _, numbers, counts = to_lists(histogram(values[:, None]))
    n_zero, n_one = (values == 0).sum(), (values == 1).sum()
    found = quantile(numbers, counts, share, n_zero=n_zero, n_one=n_one)
    assert found == pytest.approx(np.quantile(values, share), abs=3.01 / 1024)
