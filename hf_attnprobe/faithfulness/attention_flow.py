"""Attention flow: how much attention can reach a token at most, through all layers.

Abnar & Zuidema 2020, Section 3: the layers are a graph with a node per position, and
½ map + ½ I are the capacities of the edges from a layer to the one below. The flow of a
token is the maximum flow from the position that is read at the top to it. Rollout is one
flow of these, so flow is never less.

Maximum flow needs whole numbers here: capacities are rounded to multiples of 2⁻³⁰, so
that a flow over n positions is off by at most n · 2⁻³¹.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from hf_attnprobe.attention_model import Observation, Site, Stack


SCALE = 2**30
"""Capacities of a position sum to 1, and 2³¹ is the first number too large."""
DIGITS = 7
"""Flows that are equal in so many digits are equal."""


def attention_flow(maps: Sequence[np.ndarray], source: int) -> np.ndarray:
    """Maximum flow from one position of the last layer to every position of the input.

    Args:
        maps: per layer [positions, positions], the lowest first; rows sum to 1, or to 0
            where a position sees nothing.
        source: the position at the top.

    Returns:
        float64 [positions], in [0, 1].

    >>> half = np.array([[0.0, 1.0], [0.0, 1.0]])
    >>> attention_flow([half, half], 0).tolist()
    [0.5, 1.0]
    """
    n = len(maps[0])
    capacities = [_capacities(layer) for layer in maps]
    graph = _graph(capacities)
    top = len(maps) * n + source
    flows = [maximum_flow(graph, top, sink).flow_value for sink in range(n)]
    return np.array(flows) / SCALE


def _capacities(layer: np.ndarray) -> np.ndarray:
    """½ map + ½ I in units of 1 / SCALE, int32."""
    weights = (layer + np.eye(len(layer))) / 2
    return np.rint(weights * SCALE).astype(np.int32)


def _graph(capacities: Sequence[np.ndarray]) -> csr_array:
    """Node l·n + i is position i above l layers; the edges go down."""
    n = len(capacities[0])
    tails, heads, values = [], [], []
    for below, layer in enumerate(capacities):
        rows, columns = layer.nonzero()
        tails.append(rows + (below + 1) * n)
        heads.append(columns + below * n)
        values.append(layer[rows, columns])
    size = (len(capacities) + 1) * n
    edges = np.concatenate(tails), np.concatenate(heads)
    return csr_array((np.concatenate(values), edges), shape=(size, size))


def flow_to_tokens(observation: Observation, site: Site, longest: int) -> Tensor:
    """Flow from the rows that the prediction is read from, up to a layer.

    Several rows are averaged as :meth:`AttentionModel.read_map` does.

    Args:
        longest: real positions that a text may have; it grows with their square.

    Returns:
        float64 [batch, keys]; NaN in longer texts.
    """
    model, mask = observation.model, observation.batch.mask
    below = model.require(Stack).layers_below(site.layer)
    maps = [observation.attention[layer].mean(1).double() for layer in below]
    is_read = _rows_read(observation, site, maps[0])
    flows = torch.zeros_like(maps[0])
    for text, real in enumerate(mask.cpu()):
        places = real.nonzero()[:, 0]
        if len(places) > longest:
            flows[text] = torch.nan
            continue
        inside = [layer[text].cpu()[places][:, places].numpy() for layer in maps]
        for row, place in enumerate(places.tolist()):
            if is_read[text, place]:
                found = torch.from_numpy(attention_flow(inside, row))
                flows[text, place, places] = found.to(flows)
    values = model.read_map(observation, flows, site)
    return values.round(decimals=DIGITS)


def _rows_read(observation: Observation, site: Site, values: Tensor) -> Tensor:
    """The query rows that :meth:`AttentionModel.read_map` reads, bool [batch, queries]."""
    rows = []
    for query in range(values.shape[1]):
        only = torch.zeros_like(values)
        only[:, query] = 1
        rows.append(observation.model.read_map(observation, only, site).amax(-1) > 0)
    return torch.stack(rows, dim=1)
