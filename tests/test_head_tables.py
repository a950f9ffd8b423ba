"""What is said of many heads: planted numbers in, words out, recomputed with plain numpy."""

import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from hf_attnprobe.auditing.head_maps import head_maps
from hf_attnprobe.auditing.head_tables import (
    head_roles,
    prune_table,
    prune_title,
)
from hf_attnprobe.auditing.heads import (
    by_head,
    has_heads,
    head_intervals,
    head_sentences,
    heads_of,
    screen_sentences,
)
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.reports.markdown import blocks
from hf_attnprobe.statistics.estimates import simultaneous_interval
from hf_attnprobe.statistics.summary import summarize
from made_up_rows import rows_of_texts


N = 200
COLUMNS = ["test", "statistic", "example_id", "layer", "head", "value"]


def rows_of(test, statistic, values, ids=None):
    """Rows of one statistic, {(layer, head): values}; NaN is undefined."""
    parts = [
        rows_of_texts(
            {(test, statistic): column}, ids=ids and ids[site], layer=site[0], head=site[1]
        )
        for site, column in values.items()
    ]
    return pd.concat(parts, ignore_index=True)


def exactly(mean, deviation, n=N, seed=0):
    """Values with this very mean and spread."""
    drawn = np.random.default_rng(seed).standard_normal(n)
    return mean + deviation * (drawn - drawn.mean()) / drawn.std()


def described(*parts):
    rows = pd.concat(parts, ignore_index=True)[COLUMNS]
    return summarize(rows, ["a", "b"], readings()), rows


def found(statistics, rows, name):
    """The map of a statistic."""
    (one,) = [m for m in head_maps(statistics, rows) if m.key == f"heads_{name.replace('@', '_')}"]
    return one


@pytest.fixture(scope="module")
def shuffled():
    """72 heads: 5.9 moves the output, 2.1 does so only by its noisy mean, the others do not."""
    values = {
        (layer, head): exactly(0.02, 0.01, seed=12 * layer + head)
        for layer in range(6)
        for head in range(12)
    }
    values[5, 9] = exactly(0.25, 0.2, seed=90)
    values[2, 1] = exactly(0.06, 0.2, seed=91)
    return values


def test_the_largest_of_many_heads_has_an_interval_over_all_of_them(shuffled):
    statistics, rows = described(rows_of("permutation", "median_tvd", shuffled))
    said = found(statistics, rows, "median_tvd").finding
    matrix = np.column_stack([shuffled[site] for site in sorted(shuffled)])
    low, high = simultaneous_interval(matrix)[:, sorted(shuffled).index((5, 9))]
    assert said.startswith("Of 72 heads tested, each shuffled alone, head 5.9 (layer.head")
    assert f"moves the output most: 0.25 [{low:.2f}, {high:.2f}]" in said
    assert "Surely at 0.05 or more, from where on we count a head, are 1 (95% inter" in said
    naive = 1.96 * scipy.stats.sem(shuffled[5, 9])
    assert low < 0.25 - 1.4 * naive and high > 0.25 + 1.4 * naive


def test_head_intervals_are_those_of_the_matrix_without_groups_of_heads(shuffled):
    groups = {(5, -1): exactly(0.9, 0.3), (-1, -1): exactly(0.9, 0.3)}
    groups[-2, 0] = exactly(0.9, 0.3)
    few = {(6, 0): exactly(0.9, 0.3, n=29)}  # too few texts for an interval
    everything = shuffled | groups | few
    statistics, rows = described(rows_of("permutation", "median_tvd", everything))
    ends = head_intervals(rows.sample(frac=1, random_state=0), "median_tvd")
    matrix = np.column_stack([shuffled[site] for site in sorted(shuffled)])
    assert sorted(ends) == sorted(shuffled)
    np.testing.assert_allclose(
        np.array([ends[site] for site in sorted(shuffled)]).T, simultaneous_interval(matrix)
    )
    assert by_head(statistics, "median_tvd").keys() == shuffled.keys() | few.keys()
    said = found(statistics, rows, "median_tvd").finding
    assert said.startswith("Of 73 heads tested, each shuffled alone, head 5.9 (")
    assert "are 1 of the 72 with 30 texts or more" in said
    assert head_intervals(rows, "no_such_statistic") == {}


def test_groups_of_heads_are_no_heads():
    groups = {(0, 0): exactly(0.1, 0.1)}
    groups |= dict.fromkeys([(0, -1), (-1, -1), (-2, 0)], exactly(0.9, 0.1))
    statistics, _ = described(rows_of("permutation", "median_tvd", groups))
    assert not has_heads(statistics)
    assert by_head(statistics, "median_tvd").keys() == {(0, 0)}
    two = rows_of("permutation", "median_tvd", {(0, 0): [0.1], (0, 1): [0.1]})
    assert has_heads(described(two)[0])


def test_without_rows_nothing_is_sure(shuffled):
    statistics, rows = described(rows_of("permutation", "median_tvd", shuffled))
    for none in (rows[:0], pd.DataFrame()):
        heads = heads_of(statistics, none, "median_tvd")
        assert heads.ranked[0] == (5, 9) and heads.said((5, 9)) == "0.25"
        assert heads.surely(0.0) == []
    few = {site: values[:29] for site, values in shuffled.items()}
    statistics, rows = described(rows_of("permutation", "median_tvd", few))
    assert "[" not in found(statistics, rows, "median_tvd").finding


def test_forms_without_drawings_mark_what_is_sure(shuffled):
    unsure = shuffled | {(2, 1): exactly(0.06, 0.4, seed=91)}
    statistics, rows = described(
        rows_of("permutation", "median_tvd", shuffled),
        rows_of("correlation", "attention_leave_one_out_tau", unsure),
    )
    (text,) = blocks([found(statistics, rows, "attention_leave_one_out_tau")])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0].startswith("| layer | head 0 | head 1 |") and len(lines) == 2 + 6
    assert "| 0.25* |" in lines[7] and "| 0.06 |" in lines[4]
    assert "*: the interval lies above 0:" in text


def test_agreement_of_a_head():
    tau = {(0, 0): exactly(0.4, 0.2), (0, 1): exactly(0.31, 0.3, seed=1)}
    statistics, rows = described(rows_of("correlation", "attention_leave_one_out_tau", tau))
    said = found(statistics, rows, "attention_leave_one_out_tau").finding
    assert "head 0.0 (layer.head, from 0) agrees most: mean τ 0.40 [0.3" in said
    assert "Surely at 0.30 or more, from where on we count a head, are 1 (" in said


def test_a_largest_head_below_0_is_no_agreement():
    tau = {(0, 0): exactly(-0.02, 0.1), (0, 1): exactly(-0.1, 0.1, seed=1)}
    statistics, rows = described(rows_of("correlation", "attention_leave_one_out_tau", tau))
    heads = found(statistics, rows, "attention_leave_one_out_tau")
    assert "mean τ -0.02 [-0.0" in heads.finding and "are 0 (" in heads.finding
    assert "-0.02 |" in blocks([heads])[0]


def test_how_far_attention_can_be_moved_is_said_to_be_at_least_that():
    share = {(0, 0): exactly(0.9, 0.1), (0, 1): exactly(0.5, 0.1, seed=1)}
    statistics, rows = described(rows_of("adversarial", "share_of_largest@0.01", share))
    said = found(statistics, rows, "share_of_largest@0.01").finding
    assert "head 0.0 (layer.head, from 0) can be moved farthest: at least 0.90 [" in said
    assert "Surely at 0.58 or more" in said and "are 1 (" in said and "within .01" in said


def test_erasure_counts_failures_only_where_some_order_flips():
    way = {(0, 0): exactly(0.5, 0.2), (0, 1): exactly(0.1, 0.2, seed=1)}
    never = {
        (0, 0): np.r_[np.ones(10), np.zeros(30), np.full(N - 40, np.nan)],
        (0, 1): np.r_[np.ones(10), np.full(N - 10, np.nan)],
        (0, 2): np.full(N, np.nan),
    }
    statistics, rows = described(
        rows_of("erasure", "way_to_best_tried@attention", way),
        rows_of("erasure", "never_flips@attention", never),
    )
    (failures,) = head_sentences(statistics, rows)
    said = found(statistics, rows, "way_to_best_tried@attention").finding
    assert "highest at head 0.0 (layer.head, from 0): 0.50 [0.4" in said and "are 1 (" in said
    assert "in 2 of 3 heads some order" in failures
    assert "(50) attention's order" in failures and "never flips 40%" in failures


def test_removal_is_paired_by_text():
    """Both rankings vary much over texts and alike, their difference little."""
    common = exactly(0.3, 0.3, seed=3)
    random = {(0, 0): common, (0, 1): common}
    attention = {(0, 0): common + exactly(0.1, 0.05), (0, 1): common}
    statistics, rows = described(
        rows_of("input_erasure", "comprehensiveness@attention", attention),
        rows_of("input_erasure", "comprehensiveness@random", random),
    )
    said = found(statistics, rows, "comprehensiveness@attention").finding
    half = 1.96 * scipy.stats.sem(exactly(0.1, 0.05))
    assert "are 1 (95%" in said
    assert f"random tokens cost: 0.10 [{0.1 - half:.2f}, {0.1 + half:.2f}]" in said


def test_sentences_without_their_statistic_are_left_out(shuffled):
    statistics, rows = described(rows_of("conicity", "conicity", shuffled))
    assert head_sentences(statistics, rows) == []
    assert head_sentences((), pd.DataFrame()) == []


# The screen's word on itself


def screened(estimated, measured, n=40):
    """Rows of an estimate and what it estimates, with these means."""

    def of_heads(means):
        return {(0, k): exactly(mean, 0.01, n, k) for k, mean in enumerate(means)}

    return described(
        rows_of("screen", "first_order_uniform", of_heads(estimated)),
        rows_of("uniform_attention", "uniform_tvd", of_heads(measured)),
    )


def test_a_screen_of_five_heads_says_nothing_of_itself():
    estimated, measured = [1, 2, 3, 4, 5], [3, 5, 1, 4, 2.0]
    assert scipy.stats.spearmanr(estimated, measured).statistic == pytest.approx(-0.3)
    (said,) = screen_sentences(*screened(estimated, measured))
    assert said == (
        "Screen: whether first_order_uniform ranks heads as uniform_tvd does cannot be "
        "said from 5 tested heads (from 10 on)."
    )
    assert not [*screen_sentences(*screened([1, 2], [1, 2]))]


def test_a_screen_of_many_heads_has_an_interval():
    rng = np.random.default_rng(0)
    estimated = np.arange(20.0)
    measured = estimated + 3 * rng.standard_normal(20)
    (said,) = screen_sentences(*screened(estimated, measured))
    rho = scipy.stats.spearmanr(estimated, measured).statistic
    assert "ranked 20 tested heads as uniform_tvd did" in said
    found, low, high = map(float, re.findall(r"-?\d\.\d\d", said))
    assert found == pytest.approx(rho, abs=0.006) and 0 < low < rho < high < 1
    unrelated = rng.permutation(20).astype(float)
    (said,) = screen_sentences(*screened(estimated, unrelated))
    assert "cannot be said from 20 tested heads: Spearman ρ" in said
    (said,) = screen_sentences(*screened(estimated, np.zeros(20)))
    assert "cannot be said" in said and "ρ" not in said.split(":")[0]


def test_the_interval_of_spearman_covers():
    """Of bivariate normal heads with a known rank correlation."""
    rng = np.random.default_rng(1)
    truth, covered = 6 / np.pi * np.arcsin(0.7 / 2), 0
    for _ in range(60):
        one = rng.standard_normal(30)
        other = 0.7 * one + np.sqrt(1 - 0.49) * rng.standard_normal(30)
        (said,) = screen_sentences(*screened(one, other, n=3))
        _, low, high = map(float, re.findall(r"-?\d\.\d\d", said))
        covered += low <= truth <= high
    assert covered >= 52


def test_a_screen_is_judged_on_the_texts_where_the_heads_were_tested():
    """On the texts that chose the heads the estimates are reversed."""
    sites = [(0, k) for k in range(12)]
    half = range(20, 40)
    estimates = {
        site: np.r_[np.full(20, 100.0 - 10 * k), np.full(20, float(k))]
        for k, site in enumerate(sites)
    }
    exact = {site: np.full(20, k / 20) for k, site in enumerate(sites)}
    statistics, rows = described(
        rows_of("screen", "first_order_uniform", estimates),
        rows_of("uniform_attention", "uniform_tvd", exact, dict.fromkeys(sites, half)),
    )
    (said,) = screen_sentences(statistics, rows)
    assert "Spearman ρ 1.00" in said


# The prune curve


def test_the_prune_table_has_intervals_and_says_that_it_is_crossed():
    curve = PruneCurve((0, 48), (1.0, 0.88), (0.9, 0.8), 200, 0, crossed=True)
    table = blocks([prune_table(curve)])[0].splitlines()
    expected = scipy.stats.binomtest(176, 200).proportion_ci(method="exact")
    assert f"| 48 | 0.880 [{expected.low:.3f}, {expected.high:.3f}] | 0.800 |" in table
    assert "200 texts, crossed: each half's order comes from the other half" in (prune_title(curve))
    assert "crossed" not in prune_title(PruneCurve((0,), (1.0,), (1.0,)))


def test_a_head_has_the_name_of_a_role_where_half_of_its_attention_is():
    induction = {(0, 1): 0.51, (1, 0): 0.9, (1, 1): 0.7, (1, 2): 0.6, (1, 3): 0.49}
    values = {"induction": induction, "previous_token": {(0, 0): 0.5}, "first_token": {(0, 0): 0.3}}
    roles = [
        rows_of("head_roles", role, {site: exactly(mean, 0.01) for site, mean in heads.items()})
        for role, heads in values.items()
    ]
    statistics, _ = described(*roles)
    assert head_roles(statistics) == [
        "the token before: 0.0 0.50",
        "what followed earlier copies (induction heads): 1.0 0.90, 1.1 0.70, 1.2 0.60 and 1 more",
    ]
