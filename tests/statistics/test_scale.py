"""Faithfulness from rows: by hand, by a brute-force jackknife, and where texts say nothing."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.statistics.rows import Texts
from hf_attnprobe.statistics.scale import (
    CLASSIFIER_PARTS,
    DELETION_IMPORTANCE,
    DELETION_MASS,
    DELETION_PARTS,
    DELETION_REMOVAL,
    ERASURE,
    IMPORTANCE,
    MASS,
    REMOVAL,
    compute_contributions,
    compute_faithfulness,
    estimate_part,
    find_default_classes,
    has_exchanges,
)
from tests.helpers import recompute


def texts_of(columns):
    """Texts with these statistics, each [texts]."""
    return Texts.from_frame(pd.DataFrame(columns))


def measured(n=60, seed=0, unreached=0.0, change=""):
    """Made-up statistics of all four parts, with the beginning "exchange_" of those by exchange."""
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
        f"{change}importance@attention": draw.uniform(0.2, 1, n),
        **lost,
        "lead_is_lost": reached,
        f"{change}removal@random": draw.uniform(0, 0.2, n),
        f"{change}removal@attention": draw.uniform(0.2, 0.6, n),
        f"{change}removal@best": draw.uniform(0.6, 0.9, n),
        f"{change}mass@attention": draw.uniform(0.3, 0.9, n),
        f"{change}mass_by_chance@attention": draw.uniform(0.0, 0.2, n),
        "largest_loss": draw.uniform(0.5, 0.9, n),
    }


def measured_both(n=60, seed=0, unreached=0.0):
    """Made-up statistics by exchange, and others by deletion; the erasure is the same for both."""
    return measured(n, seed + 1000, unreached) | measured(n, seed, unreached, "exchange_")


MEASURED = {"": measured, "exchange_": measured_both}
"""Made-up statistics by the beginning of the names of those from which the parts are computed."""


def by_hand(columns, wanted):
    """The mean of the four parts of some texts, from their definitions in plain pandas."""
    frame = pd.DataFrame(columns)
    is_exchanged = recompute.has_exchanges(frame)
    parts = recompute.EXCHANGE_PARTS if is_exchanged else recompute.DELETION_PARTS
    return recompute.ScalePosition(frame[wanted], [*parts.values()]).value


@settings(max_examples=25)
@given(
    st.integers(5, 40),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([*MEASURED]),
)
def test_faithfulness_is_the_mean_of_its_parts_and_its_jackknife_leaves_each_text_out(
    n, seed, un, change
):
    columns = MEASURED[change](n, seed, un)
    everyone = np.arange(n)
    found = compute_faithfulness(texts_of(columns))
    whole = by_hand(columns, everyone >= 0)
    assert found.score.value == pytest.approx(whole, abs=1e-9)
    without = np.array([by_hand(columns, everyone != k) for k in everyone])
    expected = n * whole - (n - 1) * without
    np.testing.assert_allclose(compute_contributions(texts_of(columns)), expected, atol=1e-7)
    assert found.score.n == n


@pytest.mark.parametrize("change", MEASURED)
def test_each_part_is_of_the_texts_that_have_it(change):
    columns, draw = MEASURED[change](80), np.random.default_rng(3)
    for part in ("importance", "fraction_to_lose_lead", "removal", "mass"):
        gone = draw.uniform(size=80) < 0.3
        beginning = part if part == "fraction_to_lose_lead" else change + part
        for name in columns:
            if name.startswith(beginning):
                columns[name] = np.where(gone, np.nan, columns[name])
        if part == "fraction_to_lose_lead":
            columns["lead_is_lost"] = np.where(gone, np.nan, columns["lead_is_lost"])
    found = compute_faithfulness(texts_of(columns))
    assert found.score.value == pytest.approx(by_hand(columns, np.full(80, True)), abs=1e-9)
    assert found.parts["mass"].n == np.isfinite(columns[f"{change}mass@attention"]).sum()


def test_words_that_were_exchanged_in_any_text_are_never_deleted():
    """One text is enough, so that no number is a mixture of both ways."""
    both = measured_both()
    only_exchange = {k: v for k, v in both.items() if k not in measured() or "lead" in k}
    found = compute_faithfulness(texts_of(both))
    assert found == compute_faithfulness(texts_of(only_exchange))
    assert found != compute_faithfulness(texts_of(both), parts=DELETION_PARTS)
    for part in (IMPORTANCE, REMOVAL, MASS):
        assert part.resolve(texts_of(both)) is part
    assert has_exchanges(texts_of(both))
    once = {
        name: np.where(np.arange(60) == 7, values, np.nan) if "exchange_" in name else values
        for name, values in both.items()
    }
    assert IMPORTANCE.resolve(texts_of(once)) is IMPORTANCE
    # Only text 7 has these two parts, so that their interval is undefined.
    for part in (IMPORTANCE, MASS):
        assert estimate_part(texts_of(once), part).n == 1
    score = estimate_part(texts_of(once), IMPORTANCE)
    assert score.value == both["exchange_importance@attention"][7]


@pytest.mark.parametrize("leaves_empty_columns", [False, True])
def test_words_are_deleted_if_no_word_was_exchanged(leaves_empty_columns):
    """As in a model that predicts one class only: its statistics by exchange are NaN or absent."""
    deleted = measured()
    columns = dict(deleted)
    if leaves_empty_columns:
        exchanged = measured(change="exchange_")
        columns |= {k: np.full(60, np.nan) for k in exchanged if k.startswith("exchange_")}
        assert len(columns) == len(deleted) + 6
    texts = texts_of(columns)
    assert not has_exchanges(texts)
    fallbacks = {IMPORTANCE: DELETION_IMPORTANCE, REMOVAL: DELETION_REMOVAL, MASS: DELETION_MASS}
    for part, fallback in fallbacks.items():
        assert part.resolve(texts) is fallback is part.fallback
        assert estimate_part(texts, part) == estimate_part(texts_of(deleted), fallback)
    assert ERASURE.resolve(texts) is ERASURE and ERASURE.fallback is None
    found = compute_faithfulness(texts, parts=CLASSIFIER_PARTS)
    assert found == compute_faithfulness(texts_of(deleted), parts=DELETION_PARTS)
    assert found.score.value == pytest.approx(by_hand(deleted, np.full(60, True)), abs=1e-9)
    np.testing.assert_array_equal(
        compute_contributions(texts), compute_contributions(texts, parts=DELETION_PARTS)
    )


def test_another_ranking_is_measured_in_the_same_way_as_attention():
    """If words were exchanged for attention, then no ranking falls back to deletion."""
    columns = measured_both()
    deleted = {
        name.replace("@attention", "@product"): values
        for name, values in columns.items()
        if not name.startswith("exchange_")
    }
    texts = texts_of(columns | deleted)
    assert estimate_part(texts, IMPORTANCE, "product").n == 0
    assert estimate_part(texts, DELETION_IMPORTANCE, "product").n == 60


@pytest.mark.parametrize("change", MEASURED)
def test_a_part_of_few_texts_is_not_counted_beside_parts_of_many(change):
    """As where time ended a slow test: nine texts would move the score of sixty."""
    columns = MEASURED[change]()
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
