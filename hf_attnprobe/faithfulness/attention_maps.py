"""Quantities computed from attention that may explain a prediction.

Each is a function from an observation and a site, a head or a layer, to a map
[batch, queries, keys].
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
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


COLUMNS_AT_ONCE = 8
"""Of value zeroing: a block output [batch, queries, hidden] for each is held at a time."""


@dataclass(frozen=True)
class AttentionMap:
    """A map and what it needs.

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
        """The size of the map's values in the row of the prediction, [batch, keys]."""
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
    return explanations.effective_attention(raw_attention(observation, site), values)


def norm_based(observation: Observation, site: Site) -> Tensor:
    """Norms of a head's weighted values (Kobayashi et al. 2020)."""
    head = slice(site.head, site.head + 1)
    attention = observation.attention[site.layer][:, head]
    values = observation.head_values[site.layer][:, head]
    projection = observation.model.require(OutputProjections).output_projections()[site.layer][head]
    return explanations.norm_based(attention, values, projection)[:, 0]


def mean_attention(observation: Observation, site: Site) -> Tensor:
    """The mean attention of a layer's heads."""
    return observation.attention[site.layer].mean(1)


def rollout(observation: Observation, site: Site) -> Tensor:
    """Attention rolled out from the input to a layer (Abnar & Zuidema 2020)."""
    below = observation.model.require(Stack).layers_below(site.layer)
    return explanations.rollout([mean_attention(observation, Site(layer)) for layer in below])


def layer_norm_based(observation: Observation, site: Site) -> Tensor:
    """Norms of the weighted values of a layer's heads together (Kobayashi et al. 2020)."""
    attention = observation.attention[site.layer]
    values = observation.head_values[site.layer]
    projection = observation.model.require(OutputProjections).output_projections()[site.layer]
    return explanations.norm_based_layer(attention, values, projection)


@torch.no_grad()
def value_zeroing(observation: Observation, site: Site) -> Tensor:
    """How far a layer's output moves without each value (Mohebbi et al. 2023)."""
    return observation.remember(
        ("value_zeroing", site.layer), lambda: _value_zeroing(observation, site.layer)
    )


def _value_zeroing(observation: Observation, layer: int) -> Tensor:
    model, n_texts = observation.model.require(BlockOutputs), len(observation.probs)
    n_keys = observation.batch.mask.shape[1]
    zeroed = torch.eye(n_keys, dtype=torch.bool, device=observation.probs.device)
    kept = ~zeroed[:, None, None, None].expand(-1, n_texts, -1, -1, -1)
    original = model.block_output(observation, layer, torch.ones_like(kept[:1]))
    columns = []
    for part in kept.split(COLUMNS_AT_ONCE):
        output = model.block_output(observation, layer, part)
        columns.append(explanations.cosine_distance(original, output))
    distances = torch.cat(columns).permute(1, 2, 0)
    return explanations.value_zeroing(distances, observation.model.visible(observation, layer))


def value_zeroing_rollout(observation: Observation, site: Site) -> Tensor:
    """Value zeroing rolled out from the input to a layer."""
    below = observation.model.require(Stack).layers_below(site.layer)
    zeroing = [value_zeroing(observation, Site(layer)) for layer in below]
    return explanations.rollout(zeroing, residual=False)


OF_HEADS = {
    "raw_attention": AttentionMap(raw_attention),
    "attention_times_gradient": AttentionMap(attention_times_gradient, (Differentiable,)),
    "effective_attention": AttentionMap(effective_attention, (HeadValues,), is_difference=True),
    "norm_based": AttentionMap(norm_based, (OutputProjections,)),
}
OF_LAYERS = {
    "mean_attention": AttentionMap(mean_attention),
    "rollout": AttentionMap(rollout, (Stack,)),
    "layer_norm_based": AttentionMap(layer_norm_based, (OutputProjections,)),
    "value_zeroing": AttentionMap(value_zeroing, (BlockOutputs,), is_difference=True),
    "value_zeroing_rollout": AttentionMap(
        value_zeroing_rollout, (Stack, BlockOutputs), is_difference=True
    ),
}


def group_readings(observation: Observation, site: Site) -> dict[str, Tensor]:
    """What a group of heads says of each unit, by name, each [batch, keys].

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
