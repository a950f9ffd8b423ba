"""Attention flow against linear programs, which know nothing of paths, and against what must hold of a maximum flow."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from adapters.families import make, prepare
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.attention_model import ALL, Site
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.attention_maps import attention_flow, flow_to_tokens
from hf_attnprobe.faithfulness.explanations import explanations
from hf_attnprobe.faithfulness.options import Explanations
from hf_attnprobe.faithfulness.registry import AuditPreview
from hf_attnprobe.faithfulness.registry import tests as all_tests


def random_maps(n_layers, n, seed, *, sparse=False):
    rng = np.random.default_rng(seed)
    maps = rng.dirichlet(np.full(n, 0.3), size=(n_layers, n))
    if sparse:  # causal
        maps = np.tril(maps) / np.tril(maps).sum(-1, keepdims=True)
    return list(maps)


def program(maps, source, sink):
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
    bounds = [
        (
            0,
            0
            if (tail[0] == top and tail[1] != source) or (head[0] == 0 and head[1] != sink)
            else capacity,
        )
        for (tail, head), capacity in zip(edges, capacities, strict=True)
    ]
    cost = [-1.0 if head == (0, sink) else 0.0 for _, head in edges]
    found = linprog(
        cost,
        A_eq=balance if len(inner) else None,
        b_eq=np.zeros(len(inner)) if len(inner) else None,
        bounds=bounds,
    )
    assert found.success
    return -found.fun


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("n_layers", "n"), [(1, 4), (2, 3), (3, 4)])
def test_flow_against_linear_programs(n_layers, n, sparse):
    maps = random_maps(n_layers, n, seed=n, sparse=sparse)
    for source in (0, n - 1):
        expected = [program(maps, source, sink) for sink in range(n)]
        np.testing.assert_allclose(attention_flow(maps, source), expected, atol=n * 2**-31 + 1e-9)


@pytest.mark.parametrize(("family", "readout"), [("bert", "first"), ("gpt2", "last")])
def test_of_a_model_it_is_read_at_the_row_of_the_prediction(family, readout):
    adapter = TransformerAdapter(make(family), dtype=torch.float64)
    observation = adapter.observe(prepare(adapter))
    found = flow_to_tokens(observation, Site(2, ALL), longest=20)
    for text, real in enumerate(observation.batch.mask):
        places = real.nonzero()[:, 0]
        maps = [a[text].mean(0)[places][:, places].numpy() for a in observation.attention]
        row = 0 if readout == "first" else len(places) - 1
        expected = [program(maps, row, sink) for sink in range(len(places))]
        np.testing.assert_allclose(found[text, places].numpy(), expected, atol=1e-6)
    assert not found[~observation.batch.mask].any()


def test_longer_texts_have_no_flow_and_all_too_long_is_an_error():
    adapter = TransformerAdapter(make("bert"), dtype=torch.float64)
    observation = adapter.observe(prepare(adapter))
    lengths = observation.batch.mask.sum(-1).tolist()
    assert lengths == [9, 5, 7]
    short = explanations(observation, Site(1, ALL), Explanations(flow_positions=7))
    assert short.flow_tau.isnan().tolist() == [True, False, False]
    assert explanations(observation, Site(1, ALL)).flow_tau is None
    assert explanations(observation, Site(1, 1), Explanations(flow_positions=7)).flow_tau is None
    preview = AuditPreview(observation, adapter.sites(), False)
    check = all_tests()["explanations"].check
    with pytest.raises(AttnProbeError, match=r"short enough for attention flow, the .*"):
        check(preview, Explanations(flow_positions=4))
