"""Rankings: readings of heads and layers, and attention flow against linear programs."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.optimize import linprog

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.faithfulness.explanations import explanations
from hf_attnprobe.faithfulness.rankings import (
    HEAD_MAPS,
    LAYER_MAPS,
    compute_attention_flow,
    compute_flow_to_tokens,
    measure_top_positions,
)
from hf_attnprobe.protocol import ALL, Site
from tests.helpers.adapter_families import make, prepare
from tests.helpers.attention_maps_by_hand import TEXTS, ByHand, make_model, make_padded_inputs


@pytest.fixture(scope="module")
def observed():
    adapter = wrap(make_model())
    return adapter, adapter.observe(adapter.prepare(make_padded_inputs(), (0, 1, 2)))


def check(observed, name, reading, site):
    """The map itself on every text, and τ of its first row with leave-one-out."""
    _, observation = observed
    result = reading.function(observation, site)
    taus = getattr(explanations(observation, site), f"{name}_tau")
    importance = observation.compute_leave_one_out_importance()
    for row, text in enumerate(TEXTS):
        expected, n = getattr(ByHand(text), name)(site.layer, site.head), len(text)
        torch.testing.assert_close(result[row, :n, :n].double(), expected, atol=1e-6, rtol=1e-5)
        orders = expected[0, 1:-1].abs(), importance[row, 1 : n - 1]
        tau = scipy.stats.kendalltau(*orders).statistic if n > 3 else np.nan
        assert taus[row].item() == pytest.approx(tau, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("site", [Site(0, 1), Site(2, 3)])
@pytest.mark.parametrize("name", HEAD_MAPS)
def test_readings_of_a_head(observed, name, site):
    check(observed, name, HEAD_MAPS[name], site)


@pytest.mark.parametrize("site", [Site(0, ALL), Site(2, ALL)])
@pytest.mark.parametrize("name", LAYER_MAPS)
def test_readings_of_a_layer(observed, name, site):
    check(observed, name, LAYER_MAPS[name], site)


def draw_random_maps(n_layers, n, seed, *, sparse=False):
    rng = np.random.default_rng(seed)
    maps = rng.dirichlet(np.full(n, 0.3), size=(n_layers, n))
    if sparse:  # causal
        maps = np.tril(maps) / np.tril(maps).sum(-1, keepdims=True)
    return list(maps)


def solve_flow_program(maps, source, sink):
    """The maximum flow as a linear program over edges."""
    n, edges, capacities = len(maps[0]), [], []
    for layer, weights in enumerate(maps):
        for i in range(n):
            for j in range(n):
                edges.append(((layer + 1, i), (layer, j)))
                capacities.append(0.5 * weights[i, j] + 0.5 * (i == j))
    top = len(maps)
    inner = [(layer, i) for layer in range(1, top) for i in range(n)]
    # what flows into a node flows out; no other node of the top or the bottom takes part
    balance = np.array(
        [[(head == node) - (tail == node) for tail, head in edges] for node in inner], dtype=float
    ).reshape(len(inner), len(edges))
    closed = [
        (tail[0] == top and tail[1] != source) or (head[0] == 0 and head[1] != sink)
        for tail, head in edges
    ]
    bounds = [(0, 0 if c else most) for c, most in zip(closed, capacities, strict=True)]
    cost = [-1.0 if head == (0, sink) else 0.0 for _, head in edges]
    equal = {"A_eq": balance, "b_eq": np.zeros(len(inner))} if inner else {}
    result = linprog(cost, bounds=bounds, **equal)
    assert result.success
    return -result.fun


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("n_layers", "n"), [(1, 4), (2, 3), (3, 4)])
def test_flow_against_linear_programs(n_layers, n, sparse):
    maps = draw_random_maps(n_layers, n, seed=n, sparse=sparse)
    for source in (0, n - 1):
        expected = [solve_flow_program(maps, source, sink) for sink in range(n)]
        np.testing.assert_allclose(
            compute_attention_flow(maps, source), expected, atol=n * 2**-31 + 1e-9
        )


@pytest.mark.parametrize(("family", "readout"), [("bert", "first"), ("gpt2", "last")])
def test_of_a_model_it_is_read_at_the_row_of_the_prediction(family, readout):
    adapter = TransformerAdapter(make(family), dtype=torch.float64)
    observation = adapter.observe(prepare(adapter))
    result = compute_flow_to_tokens(observation, Site(2, ALL), longest=20)
    for text, real in enumerate(observation.batch.mask):
        places = real.nonzero()[:, 0]
        maps = [a[text].mean(0)[places][:, places].numpy() for a in observation.attention]
        row = 0 if readout == "first" else len(places) - 1
        expected = [solve_flow_program(maps, row, sink) for sink in range(len(places))]
        np.testing.assert_allclose(result[text, places].numpy(), expected, atol=1e-6)
    assert not result[~observation.batch.mask].any()


def test_top_places_equal_those_of_argmax():
    """The first and the last unit are compared with the argmax over the units of each text."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.rand(40, 6, generator=generator)
    content = torch.ones(40, 6, dtype=torch.bool)
    content[::2, 0] = False
    content[::3, 4:] = False
    content[0] = torch.tensor([False, True, False, False, False, False])
    places = measure_top_positions(ranks, content)
    for row in range(40):
        positions = content[row].nonzero()[:, 0].tolist()
        best = max(positions, key=lambda position: ranks[row, position])
        for name, index in (("first", 0), ("last", -1)):
            value = float(places[name][row])
            if len(positions) == 1:
                assert math.isnan(value)
            else:
                assert value == float(best == positions[index])
    ties = measure_top_positions(torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bool))
    assert ties["first"].item() == ties["last"].item() == 0.25
