"""Rows in which texts are missing at random, on either side: what is said of a control."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.auditing.verdict import findings
from hf_attnprobe.statistics.differences import contrast
from hf_attnprobe.statistics.stopping import MARK


LOSSES = ("comprehensiveness@attention", "comprehensiveness@random")
LEAD = [f"fraction_to_lose_lead@{ranking}" for ranking in ("attention", "random", "best")]
TESTS = {
    "correlation": ("attention_leave_one_out_agreement",),
    "permutation": ("median_tvd", "max_attention"),
    "adversarial": ("share_of_largest@0.01",),
    "erasure": tuple(LEAD),
    "input_erasure": LOSSES,
}
NAMES = [name for names in TESTS.values() for name in names]


def wide(generator, n, *, is_control, kept):
    """A text per row; of every test some texts have nothing."""
    values = generator.random((n, len(NAMES)))
    frame = pd.DataFrame(values, columns=NAMES)
    named = 0.0 if is_control else 0.3  # what attention names beyond random tokens
    lost = frame[LOSSES[1]] * 0.4
    frame[LOSSES[1]], frame[LOSSES[0]] = lost, lost + named + frame[LOSSES[0]] * 0.2
    for names in TESTS.values():
        frame.loc[generator.random(n) > kept, list(names)] = np.nan
    return frame


def rows_of(frame, predictions):
    parts = [predictions]
    for test, names in TESTS.items():
        for name in names:
            known = frame[name].dropna()
            values = {"example_id": known.index, "value": known.to_numpy()}
            parts.append(pd.DataFrame({"test": test, "statistic": name, **values}))
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(layer=rows.layer.fillna(0).astype(int), head=rows["head"].fillna(0))


def predictions_of(n):
    told = {"predicted_class": np.arange(n) % 2, "label": np.arange(n) % 2}
    told["probability"] = np.full(n, 0.9)
    parts = [
        pd.DataFrame({"statistic": k, "example_id": range(n), "value": v.astype(float)})
        for k, v in told.items()
    ]
    return pd.concat(parts).assign(test="prediction", layer=-1, head=-1)


def way(means):
    attention, random, best = means
    return 1 - (attention - best) / (random - best)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 60),
    n_draws=st.integers(1, 3),
    kept=st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)),
    shares_draws=st.booleans(),
    stopped=st.booleans(),
)
def test_a_control_is_compared_over_the_texts_that_both_have(
    seed, n, n_draws, kept, shares_draws, stopped
):
    generator = np.random.default_rng(seed)
    own = wide(generator, n, is_control=False, kept=kept[0])
    draws = [wide(generator, n, is_control=True, kept=kept[1]) for _ in range(n_draws)]
    nothing = predictions_of(n)[:0]
    rows = rows_of(own, predictions_of(n))
    if stopped:
        rows.attrs[MARK] = {"n_texts": 100, "seed": 0}
    control = pd.concat(
        [rows_of(draw, nothing).assign(draw=k) for k, draw in enumerate(draws)],
        ignore_index=True,
    )
    found = findings(rows, control, ["a", "b"], shares_draws=shares_draws)
    theirs = pd.concat(draws).groupby(level=0).mean()
    pooled = {f.rule: f for f in found if f.group == "all"}
    for f in pooled.values():
        told = {name: v for name, v in f.yardsticks.items() if name != "control"}
        if "control" in f.yardsticks:
            expected = control_by_hand(f.rule, own, theirs)
            assert f.yardsticks["control"] == pytest.approx(expected, abs=1e-9)
        if f.rule == "removal":
            numbers = [f.value, *(f.ci95 or ()), *told.values()]
            numbers += map(float, re.findall(r"-?\d+\.\d\d", f.sentence))
            assert all(-1 <= number <= 1 for number in numbers), f.sentence
    compared = contrast(rows, control, ["a", "b"])
    for c in (c for c in compared if c.group == "all" and c.n):
        both = (own[c.statistic] - theirs[c.statistic]).dropna()
        assert (c.n, c.value) == (len(both), pytest.approx(both.mean(), abs=1e-9))


def control_by_hand(rule, own, theirs):
    """The control's number over the texts where both have all that it needs."""
    names = {
        "importance": ["attention_leave_one_out_agreement"],
        "uniqueness": ["share_of_largest@0.01"],
        "erasure": LEAD,
        "removal": list(LOSSES),
    }[rule]
    both = theirs[names][own[names].notna().all(axis=1)].dropna()
    means = both.mean()
    if rule == "erasure":
        return way(means)
    return means.iloc[0] - means.iloc[1] if rule == "removal" else means.iloc[0]
