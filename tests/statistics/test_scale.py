"""Faithfulness from rows: by hand, by a brute-force jackknife, and where texts say nothing."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.statistics.rows import Texts
from hf_attnprobe.statistics.scale import (
    ERASURE,
    IMPORTANCE,
    MASS,
    REMOVAL,
    compute_contributions,
    compute_faithfulness,
    estimate_part,
    find_default_classes,
)
from tests.helpers import recompute


def texts_of(columns):
    """Texts with these statistics, each [texts]."""
    return Texts.from_frame(pd.DataFrame(columns))


def measured(n=60, seed=0, unreached=0.0):
    """Made-up statistics of all four parts."""
    draw = np.random.default_rng(seed)
    best = draw.uniform(0.05, 0.3, n)
    own, random = best + draw.uniform(0, 0.3, n), best + draw.uniform(0.2, 0.6, n)
    reached = (draw.uniform(size=n) >= unreached).astype(float)
    lost = {
        "fraction_to_lose_lead@random": random,
        "fraction_to_lose_lead@attention": own,
        "fraction_to_lose_lead@best": best,
    }
    lost = {name: np.where(reached > 0, column, np.nan) for name, column in lost.items()}
    return {
        "importance@attention": draw.uniform(0.2, 1, n),
        **lost,
        "lead_is_lost": reached,
        "removal@random": draw.uniform(0, 0.2, n),
        "removal@attention": draw.uniform(0.2, 0.6, n),
        "removal@best": draw.uniform(0.6, 0.9, n),
        "mass@attention": draw.uniform(0.3, 0.9, n),
        "mass_by_chance@attention": draw.uniform(0.0, 0.2, n),
        "largest_loss": draw.uniform(0.5, 0.9, n),
    }


def by_hand(columns, wanted):
    """The mean of the four parts of some texts, from their definitions in plain pandas."""
    own = pd.DataFrame(columns)[wanted]
    return recompute.ScalePosition(own, [*recompute.PARTS.values()]).value


@settings(max_examples=25)
@given(st.integers(5, 40), st.integers(0, 99), st.sampled_from([0.0, 0.3, 1.0]))
def test_faithfulness_is_the_mean_of_its_parts_and_its_jackknife_leaves_each_text_out(n, seed, un):
    columns = measured(n, seed, un)
    everyone = np.arange(n)
    found = compute_faithfulness(texts_of(columns))
    whole = by_hand(columns, everyone >= 0)
    assert found.score.value == pytest.approx(whole, abs=1e-9)
    without = np.array([by_hand(columns, everyone != k) for k in everyone])
    expected = n * whole - (n - 1) * without
    np.testing.assert_allclose(compute_contributions(texts_of(columns)), expected, atol=1e-7)
    assert found.score.n == n


def test_each_part_is_of_the_texts_that_have_it():
    columns, draw = measured(80), np.random.default_rng(3)
    for part in ("importance", "fraction_to_lose_lead", "removal", "mass"):
        gone = draw.uniform(size=80) < 0.3
        for name in columns:
            if name.startswith(part):
                columns[name] = np.where(gone, np.nan, columns[name])
        if part == "fraction_to_lose_lead":
            columns["lead_is_lost"] = np.where(gone, np.nan, columns["lead_is_lost"])
    found = compute_faithfulness(texts_of(columns))
    assert found.score.value == pytest.approx(by_hand(columns, np.full(80, True)), abs=1e-9)
    assert found.parts["mass"].n == np.isfinite(columns["mass@attention"]).sum()


def test_a_part_of_few_texts_is_not_counted_beside_parts_of_many():
    """As where time ended a slow test: nine texts would move the score of sixty."""
    columns = measured()
    without = [IMPORTANCE, REMOVAL, MASS]
    for n, counted in ((9, without), (10, [IMPORTANCE, ERASURE, REMOVAL, MASS])):
        few = {
            name: np.where(np.arange(60) < n, values, np.nan) if "lead" in name else values
            for name, values in columns.items()
        }
        texts = texts_of(few)
        found = compute_faithfulness(texts)
        assert list(found.parts) == [part.key for part in counted]
        assert found.score == compute_faithfulness(texts, parts=counted).score
        assert np.isclose(
            compute_contributions(texts).mean(), compute_contributions(texts, parts=counted).mean()
        )
    all_few = {name: values[:9] for name, values in columns.items()}
    assert list(compute_faithfulness(texts_of(all_few)).parts) == [
        "importance",
        "erasure",
        "removal",
        "mass",
    ]


def test_two_parts_are_needed_and_what_was_not_asked_is_left_out():
    columns = measured()
    one = {name: values for name, values in columns.items() if name.startswith("importance")}
    assert compute_faithfulness(texts_of(one)).score.n == 0
    assert set(compute_faithfulness(texts_of(one)).parts) == {"importance"}
    two = {name: v for name, v in columns.items() if name.startswith(("importance", "mass"))}
    parts = [estimate_part(texts_of(columns), part).value for part in (IMPORTANCE, MASS)]
    assert compute_faithfulness(texts_of(two)).score.value == pytest.approx(np.mean(parts))


def test_the_parts_of_another_ranking_are_read_by_its_name():
    columns = measured()
    others = {name.replace("@attention", "@product"): v for name, v in columns.items()}
    both = texts_of(columns | others | {"removal@product": columns["removal@random"]})
    assert estimate_part(both, REMOVAL, "product").value == pytest.approx(0, abs=1e-12)
    assert estimate_part(both, MASS, "product") == estimate_part(both, MASS)
    assert estimate_part(both, MASS, "rollout").n == 0


def default_and_other(largest_of_default):
    """Texts of a class with a reason, then as many of one without."""
    with_reason, without = measured(60, 1), measured(60, 2, unreached=1.0)
    without |= {
        "importance@attention": np.full(60, np.nan),
        "mass@attention": np.full(60, np.nan),
        "mass_by_chance@attention": np.full(60, np.nan),
        "removal@attention": without["removal@random"],
        "largest_loss": np.full(60, largest_of_default),
    }
    columns = {name: np.concatenate([with_reason[name], without[name]]) for name in with_reason}
    is_first = np.arange(120) < 60
    return texts_of(columns), {"positive": is_first, "other": ~is_first}


def test_a_class_in_which_nothing_matters_is_said_by_default():
    assert find_default_classes(*default_and_other(0.02)) == ["other"]


def test_a_class_with_tokens_that_matter_is_not_said_by_default_however_badly_it_is_shown():
    assert find_default_classes(*default_and_other(0.4)) == []


def test_classes_of_few_texts_or_all_classes_are_not_said_by_default():
    texts, classes = default_and_other(0.02)
    assert find_default_classes(
        texts, {"other": classes["other"]} | {"one": classes["positive"]}
    ) == ["other"]
    few = np.zeros(120, dtype=bool)
    few[115:] = True
    assert find_default_classes(texts, {"few": few, "rest": ~few}) == []
