"""Attention maps that explanations rank tokens by: raw, rolled out, flow, gradients, norms, value zeroing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from hf_attnprobe.attention_model import (
    ALL,
    AttentionModelBase,
    BlockOutputs,
    Differentiable,
    HeadValues,
    Observation,
    OutputProjections,
    Site,
    Stack,
)
from hf_attnprobe.functional import explanations


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


def flow_to_tokens(
    observation: Observation, site: Site, longest: int
) -> Tensor:
    """Flow from the rows that the prediction is read from, through a layer and those below it.

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
        inside = [
            layer[text].cpu()[places][:, places].numpy() for layer in maps
        ]
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
        rows.append(
            observation.model.read_map(observation, only, site).amax(-1) > 0
        )
    return torch.stack(rows, dim=1)


# --- Quantities computed from attention that may explain a prediction ----------------------------
# Each is a function from an observation and a site, a head or a layer, to a map
# [batch, queries, keys].

COLUMNS_AT_ONCE = 8
"""Of value zeroing: a block output [batch, queries, hidden] for each is held at a time."""


@dataclass(frozen=True)
class AttentionMap:
    """A map and the capabilities it needs.

    function: observation and site -> [batch, queries, keys].
    needs: the capabilities that it asks of the model.
    is_difference: whether its values are differences of larger numbers, whose rounding
        stays where they cancel; other values are exact relative to themselves.
    """

    function: Callable[[Observation, Site], Tensor]
    needs: tuple[type, ...] = ()
    is_difference: bool = False

    def is_possible(self, model: AttentionModelBase, site: Site) -> bool:
        """Whether a model has what the map needs at a site."""
        return all(model.lacks(need, site) is None for need in self.needs)

    def read(self, observation: Observation, site: Site) -> Tensor:
        """Absolute values of the map in the row that the prediction is read from, [batch, keys]."""
        values = self.function(observation, site)
        return observation.model.read_map(observation, values, site).abs()


def raw_attention(observation: Observation, site: Site) -> Tensor:
    """The attention of a head."""
    return observation.attention[site.layer][:, site.head]


def attention_gradient(observation: Observation, site: Site) -> Tensor:
    """Gradient of the explained class's probability with respect to a head's attention."""
    return observation.attention_gradient[site.layer][:, site.head]


def attention_times_gradient(observation: Observation, site: Site) -> Tensor:
    """Attention × gradient of a head."""
    attention = raw_attention(observation, site)
    gradient = attention_gradient(observation, site)
    return explanations.attention_times_gradient(attention, gradient)


def effective_attention(observation: Observation, site: Site) -> Tensor:
    """Attention without what its values cannot tell apart (Brunner et al. 2020)."""
    values = observation.head_values[site.layer][:, site.head]
    values = values * observation.batch.mask[..., None]
    return explanations.effective_attention(
        raw_attention(observation, site), values
    )


def norm_based(observation: Observation, site: Site) -> Tensor:
    """Returns norms of a head's weighted values (Kobayashi et al. 2020)."""
    head = slice(site.head, site.head + 1)
    attention = observation.attention[site.layer][:, head]
    values = observation.head_values[site.layer][:, head]
    projections = observation.model.require(
        OutputProjections
    ).output_projections()
    projection = projections[site.layer][head]
    norms = explanations.norm_based(attention, values, projection)
    return norms[:, 0]


def mean_attention(observation: Observation, site: Site) -> Tensor:
    """The mean attention of a layer's heads."""
    return observation.attention[site.layer].mean(1)


def rollout(observation: Observation, site: Site) -> Tensor:
    """Attention rolled out from the input to a layer (Abnar & Zuidema 2020)."""
    below = observation.model.require(Stack).layers_below(site.layer)
    return explanations.rollout(
        [mean_attention(observation, Site(layer)) for layer in below]
    )


def layer_norm_based(observation: Observation, site: Site) -> Tensor:
    """Norms of the weighted values of a layer's heads together (Kobayashi et al. 2020)."""
    attention = observation.attention[site.layer]
    values = observation.head_values[site.layer]
    projection = observation.model.require(
        OutputProjections
    ).output_projections()[site.layer]
    return explanations.norm_based_layer(attention, values, projection)


@torch.no_grad()
def value_zeroing(observation: Observation, site: Site) -> Tensor:
    """How far a layer's output moves when each value is zeroed (Mohebbi et al. 2023)."""
    return observation.remember(
        ("value_zeroing", site.layer),
        lambda: _value_zeroing(observation, site.layer),
    )


def _value_zeroing(observation: Observation, layer: int) -> Tensor:
    model = observation.model.require(BlockOutputs)
    n_texts = len(observation.probs)
    n_keys = observation.batch.mask.shape[1]
    zeroed = torch.eye(
        n_keys, dtype=torch.bool, device=observation.probs.device
    )
    kept = ~zeroed[:, None, None, None].expand(-1, n_texts, -1, -1, -1)
    every = torch.ones_like(kept[:1])
    original = model.block_output(observation, layer, every)
    columns = []
    for part in kept.split(COLUMNS_AT_ONCE):
        output = model.block_output(observation, layer, part)
        columns.append(explanations.cosine_distance(original, output))
    distances = torch.cat(columns).permute(1, 2, 0)
    visible = observation.model.visible(observation, layer)
    return explanations.value_zeroing(distances, visible)


def value_zeroing_rollout(observation: Observation, site: Site) -> Tensor:
    """Value zeroing rolled out from the input to a layer."""
    below = observation.model.require(Stack).layers_below(site.layer)
    zeroing = [value_zeroing(observation, Site(layer)) for layer in below]
    return explanations.rollout(zeroing, residual=False)


OF_HEADS = {
    "raw_attention": AttentionMap(raw_attention),
    "attention_times_gradient": AttentionMap(
        attention_times_gradient, (Differentiable,)
    ),
    "effective_attention": AttentionMap(
        effective_attention, (HeadValues,), is_difference=True
    ),
    "norm_based": AttentionMap(norm_based, (HeadValues, OutputProjections)),
}
OF_LAYERS = {
    "mean_attention": AttentionMap(mean_attention),
    "rollout": AttentionMap(rollout, (Stack,)),
    "layer_norm_based": AttentionMap(
        layer_norm_based, (HeadValues, OutputProjections)
    ),
    "value_zeroing": AttentionMap(
        value_zeroing, (BlockOutputs,), is_difference=True
    ),
    "value_zeroing_rollout": AttentionMap(
        value_zeroing_rollout, (Stack, BlockOutputs), is_difference=True
    ),
}


def group_readings(observation: Observation, site: Site) -> dict[str, Tensor]:
    """Importance of each unit by the maps of a group of heads, by name, each [batch, keys].

    Of a layer all of :data:`OF_LAYERS` that the model allows. Of all attention the mean
    over all heads, the mean over those of the last layer, and attention rolled out to
    it. Of a set of heads their mean.
    """
    if site.layer >= 0:
        return _of_layer(observation, site)
    readings = {"mean_attention": observation.read(site)}
    if site.layer == ALL:
        last = Site(max(observation.model.members(site)), ALL, site.query)
        of_last = _of_layer(observation, last)
        readings["last_layer_attention"] = of_last["mean_attention"]
        if "rollout" in of_last:
            readings["rollout"] = of_last["rollout"]
    return readings


def _of_layer(observation: Observation, site: Site) -> dict[str, Tensor]:
    return {
        name: explanation.read(observation, site)
        for name, explanation in OF_LAYERS.items()
        if explanation.is_possible(observation.model, site)
    }
