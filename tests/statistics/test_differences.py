"""Paired comparisons against scipy, hand-computed corrections, and the error rate under the null hypothesis."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from hf_attnprobe import audit
from hf_attnprobe.reports.report import read_audit
from hf_attnprobe.statistics.differences import (
    compare_rankings,
    compute_sign_flip_p_values,
    correct_by_holm,
)
from tests.helpers.synthetic_rows import make_rows


def rows_of(test, values, **site):
    """Rows of statistics given as arrays over texts."""
    return make_rows({(test, name): column for name, column in values.items()}, **site)


def erasure_rows(n=120, seed=0, **site):
    """Attention needs more removals than gradient, random most; some texts never flip, the first three by no set."""
    draws = np.random.default_rng(seed)
    values = {"top_flips": draws.random(n) < 0.4, "random_flips": draws.random(n) < 0.1}
    for name, scale in (("random", 0.9), ("attention", 0.6), ("gradient", 0.4)):
        never = (draws.random(n) < 0.1).astype(float)
        fraction = np.where(never, 1.0, np.round(draws.random(n) * scale, 1))
        fraction[3] = 1.0  # by all three, or never
        fraction[:3] = never[:3] = np.nan
        values |= {f"fraction_to_flip@{name}": fraction, f"never_flips@{name}": never}
    values["never_flips@attention"][3] = 1
    values["never_flips@gradient"][3] = 0
    return rows_of("erasure", {k: v.astype(float) for k, v in values.items()}, **site)


def column(rows, name):
    return rows[rows.statistic == name].sort_values("example_id").value.to_numpy()


def one(comparisons, statistic, second):
    (found,) = (c for c in comparisons if (c.statistic, c.second) == (statistic, second))
    return found


# --- the p-values -------------------------------------------------------------------------------------------------


def test_with_few_texts_all_signs_are_tried_as_scipy_does():
    every = {"permutation_type": "samples", "n_resamples": np.inf, "vectorized": True}
    for n in (2, 5, 9, 13):  # rounded: with ties
        differences = np.round(np.random.default_rng(n).normal(0.3, 1, (n, 2)), 1)
        for k, p in enumerate(compute_sign_flip_p_values(differences)):
            theirs = scipy.stats.permutation_test((differences[:, k],), np.sum, **every)
            # scipy doubles the smaller tail, which for a symmetric null distribution is the share of larger magnitude
            assert p == pytest.approx(theirs.pvalue)


def test_with_many_texts_the_signs_are_drawn_and_agree_with_scipys():
    differences = np.random.default_rng(0).normal(0.12, 1, (200, 1))
    drawn = {"permutation_type": "samples", "n_resamples": 50_000, "vectorized": True, "rng": 1}
    theirs = scipy.stats.permutation_test((differences[:, 0],), np.mean, **drawn)
    ours = compute_sign_flip_p_values(differences)[0]
    assert ours == pytest.approx(theirs.pvalue, abs=5 * math.sqrt(ours / 9_999))
    assert (
        ours
        == compute_sign_flip_p_values(differences)[0]
        != compute_sign_flip_p_values(differences, seed=1)[0]
    )


def test_texts_without_a_value_count_in_nothing():
    differences = np.random.default_rng(0).normal(0.5, 1, (11, 1))
    gaps = np.insert(differences, [3, 7], np.nan, axis=0)
    assert compute_sign_flip_p_values(gaps) == pytest.approx(
        compute_sign_flip_p_values(differences)
    )


def test_no_difference_has_p_one_and_a_clear_one_the_smallest():
    assert compute_sign_flip_p_values(np.zeros((50, 1)))[0] == 1
    assert compute_sign_flip_p_values(np.full((50, 1), 0.1))[0] == pytest.approx(1 / 10_000)


# --- Holm ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_rejects_as_the_procedure_step_by_step_does(p_values):
    for level in (0.01, 0.05, 0.3):
        rejected, left = [False] * len(p_values), list(range(len(p_values)))
        while left and min(p_values[k] for k in left) * len(left) <= level:
            smallest = min(left, key=lambda k: p_values[k])
            rejected[smallest] = True
            left.remove(smallest)
        assert [p <= level for p in correct_by_holm(p_values)] == rejected


# --- from rows ----------------------------------------------------------------------------------------------------


def test_single_weights_by_mcnemars_test():
    rows = erasure_rows()
    found = one(compare_rankings(rows), "flips", "random")
    top, other = column(rows, "top_flips"), column(rows, "random_flips")
    n_first, n_second = int((top > other).sum()), int((other > top).sum())
    assert (found.method, found.first) == ("mcnemar", "top")
    assert (found.n_first, found.n_second) == (n_first, n_second)
    whole = scipy.stats.binomtest(n_first, n_first + n_second)
    assert found.p_value == pytest.approx(whole.pvalue, rel=1e-10)
    assert found.value == pytest.approx(top.mean() - other.mean())
    assert found.ci95[0] < found.value < found.ci95[1]


def test_which_ranking_needs_fewer_removals_by_the_sign_test():
    rows = erasure_rows()
    found = one(compare_rankings(rows), "fewer_removals", "gradient")
    names = itertools.product(("fraction_to_flip", "never_flips"), ("attention", "gradient"))
    fewer = more = undefined = 0
    columns = [column(rows, "@".join(name)) for name in names]
    for a, b, a_never, b_never in zip(*columns, strict=True):
        if math.isnan(b_never):
            undefined += 1
        elif a_never or b_never:  # never is more than even all of them
            fewer, more = fewer + (b_never > a_never), more + (a_never > b_never)
        else:
            fewer, more = fewer + (a < b), more + (b < a)
    assert found.first == "attention" and undefined == found.dropped > 0
    assert (found.n_first, found.n_second) == (fewer, more)
    whole = scipy.stats.binomtest(fewer, fewer + more)
    assert found.p_value == pytest.approx(whole.pvalue, rel=1e-10)
    assert found.value == pytest.approx((fewer - more) / (120 - undefined))


def test_mean_fractions_are_of_the_same_texts_with_never_as_all():
    """REVIEW A2: dropping what one ranking never flips makes the worse one look better."""
    flipped = np.array([0.1] * 60 + [0.2] * 20)  # both flip the first sixty
    attention = np.array([0.1] * 60 + [1.0] * 20)  # the others only the gradient does
    gradient = flipped + 0.05
    values = {
        "fraction_to_flip@attention": attention,
        "never_flips@attention": (attention == 1).astype(float),
        "fraction_to_flip@gradient": gradient,
        "never_flips@gradient": np.zeros(80),
    }
    found = one(compare_rankings(rows_of("erasure", values)), "fraction_to_flip", "gradient")
    assert (found.n, found.dropped) == (80, 0)
    expected = (60 * -0.05 + 20 * 0.75) / 80  # dropped, it would be -0.05
    assert found.value == pytest.approx(expected) and found.adjusted_p_value < 0.01
    rows = erasure_rows()
    for second in ("gradient", "random"):
        found = one(compare_rankings(rows), "fraction_to_flip", second)
        a, b = (column(rows, f"fraction_to_flip@{r}") for r in ("attention", second))
        assert (found.n, found.dropped) == (117, 3)
        assert found.value == pytest.approx((a - b)[3:].mean())


def test_the_interval_of_many_pairs_is_near_the_bootstraps():
    rows = erasure_rows(400)
    a, b = (pd.Series(column(rows, f"fraction_to_flip@{r}")) for r in ("attention", "random"))
    theirs = scipy.stats.bootstrap(
        ((a - b).dropna(),), np.mean, method="percentile", n_resamples=5_000, rng=0
    )
    found = one(compare_rankings(rows), "fraction_to_flip", "random")
    assert found.ci95 == pytest.approx(tuple(theirs.confidence_interval), abs=0.01)


def test_p_values_are_corrected_within_each_test():
    draws = np.random.default_rng(5)
    names = [
        f"{name}@{r}"
        for name in ("comprehensiveness", "sufficiency")
        for r in ("attention", "random")
    ]
    other = {name: draws.random(50) + name.endswith("random") for name in names}
    comparisons = compare_rankings(pd.concat([erasure_rows(), rows_of("input_erasure", other)]))
    for test, n in (("erasure", 1 + 2 + 2), ("input_erasure", 2)):
        of_test = [c for c in comparisons if c.test == test]
        assert len(of_test) == n
        assert [c.adjusted_p_value for c in of_test] == correct_by_holm(
            [c.p_value for c in of_test]
        )


def test_against_one_ranking_or_every_pair():
    def pairs(against):
        compared = compare_rankings(erasure_rows(), against=against)
        return [(c.first, c.second) for c in compared if c.method == "sign"]

    of_attention = [("attention", "random"), ("attention", "gradient")]
    assert pairs("attention") == of_attention
    assert pairs(None) == [("random", "attention"), ("random", "gradient"), of_attention[1]]
    assert pairs("product") == []


def test_a_flip_at_the_last_token_is_sooner_than_never():
    values = {
        "fraction_to_flip@attention": [0.5, 0.5, 1.0, 1.0],
        "never_flips@attention": [0.0, 0.0, 0.0, 1.0],
        "fraction_to_flip@random": [0.4, 0.88, 1.0, 1.0],
        "never_flips@random": [0.0, 0.8, 0.2, 1.0],
    }
    comparisons = compare_rankings(rows_of("erasure", {k: np.array(v) for k, v in values.items()}))
    sign = one(comparisons, "fewer_removals", "random")
    # .5 against .4, against .88, at last against sometimes never; never is a tie
    assert (sign.n_first, sign.n_second, sign.n) == (2, 1, 4)


def test_regrets_are_compared_too():
    rows = erasure_rows()
    fractions = {
        r: column(rows, f"fraction_to_flip@{r}") for r in ("attention", "random", "gradient")
    }
    regrets = {f"regret@{r}": f * np.arange(120) for r, f in fractions.items()}
    comparisons = compare_rankings(pd.concat([rows, rows_of("erasure", regrets)]))
    found = one(comparisons, "regret", "random")
    assert found.value == pytest.approx(
        np.nanmean(regrets["regret@attention"] - regrets["regret@random"])
    )


def test_one_site_or_the_one_that_is_asked_for():
    many = pd.concat([erasure_rows(layer=1, head=2), erasure_rows(layer=0, head=1, seed=3)])
    assert compare_rankings(many) == ()
    one, other = (compare_rankings(many, site=site) for site in ((1, 2), (0, 1)))
    assert one == compare_rankings(erasure_rows()) != other != ()
    assert compare_rankings(many, site=(5, 5)) == () == compare_rankings(many[many.test == "none"])


def test_the_order_of_rows_does_not_matter():
    rows = erasure_rows()
    assert compare_rankings(rows) == compare_rankings(rows.sample(frac=1, random_state=0))


def test_no_text_with_both_values_gives_no_comparison():
    values = {
        "comprehensiveness@attention": np.array([0.5, np.nan]),
        "comprehensiveness@random": np.array([np.nan, 0.1]),
    }
    assert compare_rankings(rows_of("input_erasure", values)) == ()


# --- in an audit --------------------------------------------------------------------------------------------------


def test_an_audit_of_one_head_compares_and_its_folder_renders_again(
    make_checkpoint, reviews, tmp_path, cli
):
    folder = tmp_path / "audit"
    report = audit(make_checkpoint(), reviews, tests=["erasure"], output_dir=folder, progress=False)
    assert {c.method for c in report.comparisons} == {"mcnemar", "sign", "permutation"}
    assert report.comparisons == compare_rankings(report.to_pandas(), seed=0)
    rendered = (folder / "report.md").read_text()
    assert "### erasure: rankings compared" in rendered and "| attention | margin |" in rendered
    assert cli("report", folder).out == f"{report}\n"
    assert str(read_audit(folder)) == str(report)
