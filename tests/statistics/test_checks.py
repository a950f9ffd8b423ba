"""Every rule finds the row that breaks it, names it with its numbers, and finds nothing else."""

import numpy as np
import pandas as pd

from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.statistics.checks import find_contradictions
from tests.helpers.synthetic_rows import make_rows


POSSIBLE = {
    "erasure": {
        "minimal_fraction": [0.2, 0.5, np.nan],
        "no_set_flips": [0.0, 0.0, 1.0],
        "fraction_to_flip@attention": [0.2, 1.0, np.nan],
        "fraction_to_flip@random": [0.6, 0.5, np.nan],
        "never_flips@attention": [0.0, 1.0, np.nan],
        "never_flips@random": [0.4, 0.0, np.nan],
        "probability_mass_removed@attention": [0.9, 1.0, np.nan],
        "regret@attention": [0.0, 5.0, np.nan],
        "way_to_best@attention": [1.0, np.nan, np.nan],
    },
    "permutation": {"median_tvd": [0.1, 0.2, 0.0], "max_tvd": [0.1, 0.9, 0.0]},
    "adversarial": {
        "epsilon_max_jsd@0.01": [0.1, 0.2, 0.3],
        "epsilon_max_jsd@0.05": [0.4, 0.5, 0.6],
        "epsilon_max_jsd_upper@0.01": [0.1, 0.3, 0.35],
        "largest_jsd": [0.4, 0.5, 0.69],
    },
}


def rows_of(values):
    named = {(test, name): v for test, of_test in values.items() for name, v in of_test.items()}
    return make_rows(named, ids=[7, 8, 9], layer=1, head=2)


FORBIDDEN = [
    ("erasure", "fraction_to_flip@attention", 8, 0.4, "than the smallest set"),
    ("erasure", "way_to_best@attention", 7, 1.02, "better than the smallest set"),
    ("erasure", "regret@attention", 7, -1.0, "fewer tokens than the smallest set"),
    ("erasure", "probability_mass_removed@attention", 8, 1.1, "it is a share"),
    ("erasure", "never_flips@random", 8, -0.2, "it is a share"),
    ("permutation", "median_tvd", 8, 0.95, "than the worst shuffle"),
    ("permutation", "max_tvd", 8, 1.2, "it is a share"),
    ("adversarial", "epsilon_max_jsd@0.05", 9, 0.7, "the farthest attention of all"),
    ("adversarial", "epsilon_max_jsd@0.01", 8, 0.4, "than the upper bound"),
    ("adversarial", "epsilon_max_jsd_upper@0.01", 8, 0.6, "the farthest attention of all"),
]


def test_what_is_possible_gives_nothing():
    assert find_contradictions(rows_of(POSSIBLE), load_readings()) == []
    assert find_contradictions(rows_of(POSSIBLE)[:0], load_readings()) == []


def test_what_is_forbidden_is_named():
    for test, statistic, text, value, said in FORBIDDEN:
        rows = rows_of(POSSIBLE)
        chosen = (rows.statistic == statistic) & (rows.example_id == text)
        rows.loc[chosen, "value"] = value
        (sentence,) = find_contradictions(rows, load_readings())
        assert sentence.startswith(f"{test}, layer 1, head 2, text {text}: ")
        assert statistic in sentence and f"{value:g}" in sentence and said in sentence


def test_rankings_on_different_texts_are_named():
    rows = rows_of(POSSIBLE)
    chosen = (rows.statistic == "fraction_to_flip@attention") & (rows.example_id == 8)
    rows.loc[chosen, "value"] = np.nan
    (sentence,) = find_contradictions(rows, load_readings())
    assert (
        "text 8: fraction_to_flip@attention has no value while other rankings have one" in sentence
    )


def test_sites_are_apart():
    """A ranking that only groups have is lacking nowhere else; each site is named."""
    single = rows_of(POSSIBLE)
    group = rows_of(POSSIBLE).assign(layer=-1, head=-1)
    only_here = group[group.statistic == "never_flips@random"]
    group = pd.concat([group, only_here.assign(statistic="never_flips@rollout")])
    rows = pd.concat([single, group], ignore_index=True)
    assert find_contradictions(rows, load_readings()) == []
    chosen = (rows.statistic == "max_tvd") & (rows.example_id == 9) & (rows.layer == -1)
    rows.loc[chosen, "value"] = 2.0
    (sentence,) = find_contradictions(rows, load_readings())
    assert sentence.startswith("permutation, layer -1, head -1, text 9: max_tvd is 2")
    # Of a row that is there twice the first counts.
    again = rows[chosen].assign(value=0.5)
    assert find_contradictions(pd.concat([again, rows]), load_readings()) == []
    assert find_contradictions(pd.concat([rows, again]), load_readings()) == [sentence]


def test_what_a_reading_calls_a_share_is_one():
    """Its interval follows from the flag, so a number beyond 1 is a mistake."""
    rows = rows_of({"uniform_attention": {"uniform_flip": [0.0, 1.0, 2.0]}})
    (sentence,) = find_contradictions(rows, load_readings())
    assert "text 9: uniform_flip is 2, but it is a share" in sentence
