"""All sets of few units against definitions, and against the numbers of Edin et al. 2025.

The oracle is the released data of JoakimEdin/naopc (MIT) in ``../shared/oracles``: outputs of six
classifiers for every set of masked words of 66 short SST-2 texts, scores of ten explainers, and the
areas and limits that its code found.
"""

import itertools
import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import stdtrit
from scipy.stats import sem

from hf_attnprobe.functional.aopc import compute_aopc, compute_aopc_bounds, enumerate_subsets
from hf_attnprobe.functional.attribution import (
    average_over_orders,
    shapley_interactions,
    shapley_values,
)
from tests.helpers import tiny_models


ORACLES = Path(__file__).parents[2].parent / "shared" / "oracles"
MODELS = (
    "bert-base-uncased-SST-2",
    "bert-base-uncased-imdb",
    "bert-base-uncased-yelp-polarity",
    "roberta-base-SST-2",
    "roberta-base-finetuned-yelp-polarity",
    "roberta-base-imdb",
)
needs_oracle = pytest.mark.skipif(
    not (ORACLES / "naopc").is_dir(), reason="the oracle is not at hand"
)


def value(drops, units):
    return drops[sum(1 << unit for unit in units)]


@pytest.mark.parametrize("n_units", [2, 3, 5])
def test_interactions_are_those_of_the_definition(n_units):
    drops, units = tiny_models.drawn(2**n_units, 3), range(n_units)
    found = shapley_interactions(drops)
    assert torch.equal(found, found.transpose(1, 2))
    assert not found.diagonal(dim1=1, dim2=2).any()
    for i, j in itertools.combinations(units, 2):
        expected = torch.zeros(3).double()
        others = [unit for unit in units if unit not in (i, j)]
        for size in range(n_units - 1):
            weight = math.factorial(size) * math.factorial(n_units - size - 2)
            for some in itertools.combinations(others, size):
                more = value(drops, (*some, i, j)) - value(drops, (*some, i))
                more = more - value(drops, (*some, j)) + value(drops, some)
                expected += weight / math.factorial(n_units - 1) * more
        torch.testing.assert_close(found[:, i, j], expected)


def test_a_sum_of_effects_has_no_interactions_and_every_ruler_agrees():
    effects = tiny_models.drawn(4, 5)
    drops = enumerate_subsets(4).double() @ effects
    assert shapley_interactions(drops).abs().max() < 1e-12
    torch.testing.assert_close(shapley_values(drops), effects.T)


def test_one_unit_interacts_with_none():
    assert shapley_interactions(torch.tensor([[0.0], [1.0]])).tolist() == [[[0.0]]]


def test_areas_are_means_along_the_order_and_within_the_limits():
    drops = tiny_models.drawn(2**4, 1)
    drops[0] = 0
    lower, upper = compute_aopc_bounds(drops, torch.tensor([4]))
    areas = []
    for order in itertools.permutations(range(4)):
        turns = torch.tensor([[order.index(unit) for unit in range(4)]])
        area = compute_aopc(drops, turns, torch.tensor([4]))
        expected = sum(value(drops, order[:k]) for k in range(1, 5)) / 4
        torch.testing.assert_close(area, expected)
        areas.append(area.item())
    assert (min(areas), max(areas)) == pytest.approx((lower.item(), upper.item()))


def drawn_gains(drops, n_units, n_orders, generator):
    gains = torch.zeros(n_orders, n_units).double()
    for draw in gains:
        gone = 0
        for unit in generator.permutation(n_units).tolist():
            draw[unit] = (drops[gone | 1 << unit] - drops[gone]).item()
            gone |= 1 << unit
    return gains


def test_drawn_orders_find_the_exact_values_within_their_errors():
    drops = tiny_models.drawn(2**5, 1)
    gains = drawn_gains(drops, 5, 2_000, np.random.default_rng(0))
    found, error = average_over_orders(gains)
    assert ((found - shapley_values(drops)[0]).abs() < 3 * error).all()
    np.testing.assert_allclose(error, sem(gains.numpy()))


def test_intervals_of_drawn_orders_hold_as_often_as_they_say():
    drops, generator, hits = tiny_models.drawn(2**4, 1), np.random.default_rng(1), []
    many, exact = drawn_gains(drops, 4, 5_000, generator), shapley_values(drops)[0]
    for _ in range(500):
        found, error = average_over_orders(many[generator.integers(0, len(many), 30)])
        hits.append(((found - exact).abs() <= stdtrit(29, 0.975) * error).double())
    assert 0.92 < torch.stack(hits).mean() < 0.98


# --- Edin et al. 2025 ---------------------------------------------------------------------------

THEIRS_IS_WRONG = {
    "bert-base-uncased-SST-2": {19},
    "bert-base-uncased-imdb": {19, 44},
    "bert-base-uncased-yelp-polarity": {27, 28, 61},
    "roberta-base-SST-2": {47},
    "roberta-base-finetuned-yelp-polarity": {47, 48},
    "roberta-base-imdb": {20, 47, 48},
}
"""Texts whose upper limit the reference has too high: where the best path to a set has a sum below
0, its maximum, which starts at 0, stays there."""


@cache
def oracle(kind, model, ending="parquet"):
    path = ORACLES / "naopc" / f"{kind}_sst2_{model}.{ending}"
    return pd.read_parquet(path) if ending == "parquet" else pd.read_csv(path)


@cache
def lattices(model):
    """By text the falls of p(positive) [2^words, 1] without each set of words."""
    found = {}
    for text, rows in oracle("subsets", model).groupby("id"):
        keys = [
            sum(1 << int(n) - 1 for n in key.strip("[]").split(",") if n.strip())
            for key in rows.word_key
        ]
        odds = torch.tensor((rows.positive_logit - rows.negative_logit).to_numpy()).double()
        probs = torch.full((max(keys) + 1, 1), torch.nan).double()
        probs[keys, 0] = odds.sigmoid()
        found[text] = probs[0] - probs
    return found


@cache
def areas(model):
    """Of every explainer and text: comprehensiveness and sufficiency, from scores and outputs."""
    rows = []
    for row in oracle("attributions", model).itertuples():
        drops, scores = lattices(model)[row.id], np.asarray(row.word_attributions)[1:-1]
        n_units = torch.tensor([len(scores)])
        if len(drops) != 1 << len(scores):
            continue  # words of scores and of outputs differ in number
        turns = torch.tensor(np.argsort(np.argsort(-scores, kind="stable")))[None]
        both = torch.stack([turns, n_units - 1 - turns])
        first, last = compute_aopc(drops, both, n_units)[:, 0].tolist()
        rows.append((row.id, row.explanation_method, first, last))
    return pd.DataFrame(rows, columns=["id", "explanation_method", "comp", "suff"])


@needs_oracle
@pytest.mark.parametrize("model", MODELS)
def test_areas_of_ten_explainers_are_the_published_ones(model):
    keys = ["id", "explanation_method"]
    both = areas(model).merge(oracle("aopc", model, "csv"), on=keys)
    assert len(both) >= 630 and both.explanation_method.nunique() == 10
    np.testing.assert_allclose(both.comp, both.comprehensiveness, atol=1e-5)
    np.testing.assert_allclose(both.suff, both.sufficiency, atol=1e-5)


@cache
def limits(model):
    """By text the least and the largest area."""
    found = {}
    for text, drops in lattices(model).items():
        lower, upper = compute_aopc_bounds(drops, torch.tensor([len(drops).bit_length() - 1]))
        found[text] = lower.item(), upper.item()
    return found


@needs_oracle
@pytest.mark.parametrize("model", MODELS)
def test_limits_are_the_published_ones_but_where_those_start_at_0(model):
    known, wrong = oracle("limits", model).set_index("id"), set()
    for text, (lower, upper) in limits(model).items():
        assert lower == pytest.approx(known.lower_limit[text], abs=1e-12)
        if upper != pytest.approx(known.upper_limit[text], abs=1e-12):
            wrong.add(text)
            assert upper < known.upper_limit[text]
    assert wrong == THEIRS_IS_WRONG[model]
