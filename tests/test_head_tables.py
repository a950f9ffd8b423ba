"""What is said of many heads: planted numbers in, words out, recomputed with plain numpy."""

import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from hf_attnprobe.auditing.head_tables import head_tables, layer_table, prune_table, prune_title
from hf_attnprobe.auditing.heads import (
    by_head,
    has_heads,
    head_intervals,
    head_sentences,
    screen_sentences,
)
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.reports.markdown import blocks
from hf_attnprobe.statistics.estimates import simultaneous_interval
from hf_attnprobe.statistics.summary import summarize


N = 200
COLUMNS = ["test", "statistic", "example_id", "layer", "head", "value"]


def rows_of(test, statistic, values, ids=None):
    """Rows of one statistic, {(layer, head): values}; NaN is undefined."""
    parts = []
    for (layer, head), column in values.items():
        of_texts = range(len(column)) if ids is None else ids[layer, head]
        parts.append(
            pd.DataFrame(
                {
                    "test": test,
                    "statistic": statistic,
                    "example_id": of_texts,
                    "layer": layer,
                    "head": head,
                    "value": column,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def exactly(mean, deviation, n=N, seed=0):
    """Values with this very mean and spread."""
    drawn = np.random.default_rng(seed).standard_normal(n)
    return mean + deviation * (drawn - drawn.mean()) / drawn.std()


def described(*parts):
    rows = pd.concat(parts, ignore_index=True)[COLUMNS]
    return summarize(rows, ["a", "b"], readings()), rows


def the(sentences, start):
    (found,) = (s for s in sentences if s.startswith(start))
    return found


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
    said = the(head_sentences(statistics, rows), "Assignment")
    matrix = np.column_stack([shuffled[site] for site in sorted(shuffled)])
    low, high = simultaneous_interval(matrix)[:, sorted(shuffled).index((5, 9))]
    assert "2 of 72 heads (1 surely: simultaneous 95% intervals)" in said
    assert "when shuffled: 5.9 (0.25), 2.1 (0.06);" in said
    assert (
        f"the most is head 5.9 with 0.25 [{low:.2f}, {high:.2f}], interval simultaneous over "
        "72 heads" in said
    )
    naive = 1.96 * scipy.stats.sem(shuffled[5, 9])
    assert low < 0.25 - 1.4 * naive and high > 0.25 + 1.4 * naive


def test_head_intervals_are_those_of_the_matrix_without_groups_of_heads(shuffled):
    groups = {(5, -1): exactly(0.9, 0.3), (-1, -1): exactly(0.9, 0.3)}
    groups[-2, 0] = exactly(0.9, 0.3)
    few = {(6, 0): exactly(0.9, 0.3, n=29)}  # too few texts for an interval
    everything = shuffled | groups | few
    statistics, rows = described(rows_of("permutation", "median_tvd", everything))
    found = head_intervals(rows.sample(frac=1, random_state=0), "median_tvd")
    matrix = np.column_stack([shuffled[site] for site in sorted(shuffled)])
    assert sorted(found) == sorted(shuffled)
    np.testing.assert_allclose(
        np.array([found[site] for site in sorted(shuffled)]).T,
        simultaneous_interval(matrix),
    )
    assert by_head(statistics, "median_tvd").keys() == shuffled.keys() | few.keys()
    said = the(head_sentences(statistics, rows), "Assignment")
    assert (
        "3 of 73 heads (1 surely: simultaneous 95% intervals, for which 1 have too few "
        "texts)" in said
    )
    assert "the most is head 5.9" in said
    assert head_intervals(rows, "no_such_statistic") == {}


def test_groups_of_heads_are_no_heads():
    groups = {
        (0, 0): exactly(0.1, 0.1),
        (0, -1): exactly(0.9, 0.1),
        (-1, -1): exactly(0.9, 0.1),
        (-2, 0): exactly(0.9, 0.1),
    }
    statistics, rows = described(rows_of("permutation", "median_tvd", groups))
    assert not has_heads(statistics)
    assert by_head(statistics, "median_tvd").keys() == {(0, 0)}
    table = "\n".join(blocks(head_tables(statistics, rows)))
    assert "0.90" not in table and "| 0 | 0.10* |" in table
    two = rows_of("permutation", "median_tvd", {(0, 0): [0.1], (0, 1): [0.1]})
    assert has_heads(described(two)[0])


def test_explanations_of_layers_still_have_their_table():
    values = {(0, -1): exactly(0.3, 0.1), (1, -1): exactly(0.2, 0.1)}
    statistics, _ = described(rows_of("explanations", "rollout_tau", values))
    assert blocks([layer_table(statistics)])[0].splitlines()[-4:] == [
        "| layer | rollout |",
        "| --- | --- |",
        "| 0 | 0.30 |",
        "| 1 | 0.20 |",
    ]


def test_without_rows_nothing_is_sure(shuffled):
    statistics, rows = described(rows_of("permutation", "median_tvd", shuffled))
    for none in (rows[:0], pd.DataFrame()):
        said = the(head_sentences(statistics, none), "Assignment")
        assert "2 of 72 heads (by their means; no intervals)" in said
        assert "the most is head 5.9 with 0.25, by its mean alone" in said
        assert "[" not in said and "surely" not in said
        assert "*" not in "\n".join(blocks(head_tables(statistics, none)))
    few = {site: values[:29] for site, values in shuffled.items()}
    statistics, rows = described(rows_of("permutation", "median_tvd", few))
    assert "[" not in the(head_sentences(statistics, rows), "Assignment")


def test_tables_mark_what_is_sure_and_say_how_many_texts(shuffled):
    statistics, rows = described(
        rows_of("permutation", "median_tvd", shuffled),
        rows_of("conicity", "conicity", shuffled),
    )
    text = "\n".join(blocks(head_tables(statistics, rows)))
    marked, plain = text.split("\nconicity: ")
    assert re.findall(r"\S+\*", marked.split("| layer")[1]) == ["0.25*"]
    assert (
        "200 texts; * = surely 0.05 or more: the 95% interval, simultaneous over 72 "
        "heads, lies there:" in marked
    )
    assert "200 texts:" in plain and "*" not in plain
    shorter = shuffled | {(0, 0): shuffled[0, 0][:90]}
    statistics, rows = described(rows_of("permutation", "median_tvd", shorter))
    assert "90 to 200 texts a head;" in "\n".join(blocks(head_tables(statistics, rows)))


def test_agreement_stands_beside_its_yardsticks():
    tau = {(0, 0): exactly(0.4, 0.2), (0, 1): exactly(0.31, 0.3, seed=1)}
    gradient = dict.fromkeys(tau, exactly(0.16, 0.2, seed=2))
    statistics, rows = described(
        rows_of("correlation", "attention_leave_one_out_tau", tau),
        rows_of("correlation", "gradient_leave_one_out_tau", gradient),
    )
    said = the(head_sentences(statistics, rows), "Importance")
    assert "2 of 2 heads (1 surely: simultaneous 95% intervals)" in said
    assert "the best is head 0.0 with 0.40 [0.3" in said
    assert said.endswith("gradients reach 0.16, an unrelated ranking 0.")


def test_a_largest_head_below_0_is_no_agreement():
    tau = {(0, 0): exactly(-0.02, 0.1), (0, 1): exactly(-0.1, 0.1, seed=1)}
    statistics, rows = described(rows_of("correlation", "attention_leave_one_out_tau", tau))
    said = the(head_sentences(statistics, rows), "Importance")
    assert "0 of 2 heads (0 surely" in said and "0.0 with -0.02 [-0.0" in said
    table = "\n".join(blocks(head_tables(statistics, rows)))
    assert "-0.02 |" in table and "surely above 0" in table


def test_how_far_attention_can_be_moved_is_said_to_be_at_least_that():
    share = {(0, 0): exactly(0.9, 0.1), (0, 1): exactly(0.5, 0.1, seed=1)}
    statistics, rows = described(rows_of("adversarial", "share_of_largest@0.01", share))
    said = the(head_sentences(statistics, rows), "Uniqueness")
    assert "at least 1 of 2 heads (1 surely" in said
    assert "by at least 58% of the way to the farthest possible" in said
    assert "within .01" in said


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
    sentences = head_sentences(statistics, rows)
    found = [s for s in sentences if s.startswith("Erasure")]
    assert len(found) == 2
    assert "in 1 of 2 heads (1 surely" in found[0]
    assert "the most is head 0.0 with 50% [4" in found[0]
    assert "in 2 of 3 heads some order" in found[1]
    assert "(50) attention's order" in found[1] and "never flips 40%" in found[1]


def test_removal_is_paired_by_text():
    """Both rankings vary much over texts and alike, their difference little."""
    common = exactly(0.3, 0.3, seed=3)
    random = {(0, 0): common, (0, 1): common}
    attention = {(0, 0): common + exactly(0.1, 0.05), (0, 1): common}
    statistics, rows = described(
        rows_of("input_erasure", "comprehensiveness@attention", attention),
        rows_of("input_erasure", "comprehensiveness@random", random),
    )
    said = the(head_sentences(statistics, rows), "Removal")
    half = 1.96 * scipy.stats.sem(exactly(0.1, 0.05))
    assert "1 of 2 heads (1 surely" in said
    assert f"0.0 with +0.10 [{0.1 - half:+.2f}, {0.1 + half:+.2f}]" in said


def test_sentences_without_their_statistic_are_left_out(shuffled):
    statistics, rows = described(rows_of("conicity", "conicity", shuffled))
    assert head_sentences(statistics, rows) == []
    assert head_sentences((), pd.DataFrame()) == []


# The screen's word on itself


def screened(estimated, measured, n=40):
    """Rows of an estimate and what it estimates, with these means."""
    sites = [(0, k) for k in range(len(estimated))]
    return described(
        rows_of(
            "screen",
            "first_order_uniform",
            {
                site: exactly(m, 0.01, n, k)
                for k, (site, m) in enumerate(zip(sites, estimated, strict=True))
            },
        ),
        rows_of(
            "uniform_attention",
            "uniform_tvd",
            {
                site: exactly(m, 0.01, n, k)
                for k, (site, m) in enumerate(zip(sites, measured, strict=True))
            },
        ),
    )


def test_a_screen_of_five_heads_says_nothing_of_itself():
    estimated, measured = [1, 2, 3, 4, 5], [3, 5, 1, 4, 2.0]
    assert scipy.stats.spearmanr(estimated, measured).statistic == pytest.approx(-0.3)
    (said,) = screen_sentences(*screened(estimated, measured))
    assert said == (
        "Screen: whether first_order_uniform ranks heads as uniform_tvd does cannot be "
        "said from 5 tested heads (from 10 on)."
    )
    assert screen_sentences(*screened([1, 2], [1, 2])) == []


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
