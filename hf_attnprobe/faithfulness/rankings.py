"""Rankings that order a text's units by importance, and the maps from which they are computed.

Every ranking has a name, which is also used in stored rows:

- ``attention``: attention at the site. In a head group, heads count in proportion to what they
  write, see :meth:`~hf_attnprobe.protocol.Observation.compute_head_weights`.
- ``gradient``: signed gradient of the explained class's probability p with respect to the
  attention. ``product``: attention × this gradient (Serrano & Smith 2019, Section 4).
- ``effective_attention``, ``norm_based``: a single Transformer head's attention, corrected for its
  values, see the test ``explanations``.
- ``rollout``, ``last_layer``: attention in a whole layer or in all heads together.
- ``input_gradient``: |gradient × input|.
- ``leave_one_out``: total variation distance between the outputs with and without the unit.
- ``random``: one random order per text.
- ``map``: a fitted attention map, see ``attnprobe audit --map``.
- ``given``: user-provided scores, see ``attnprobe evaluate-scores``. ``given_moved``: the same
  scores assigned to random units in the text. This baseline is as peaked as the scores and has as
  many ties.

:func:`compute_ranking` returns ranks, :func:`compute_importance` the values that are ranked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.sparse import block_diag, csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from hf_attnprobe.faithfulness.correlation import rank_by_leave_one_out, rank_with_ties
from hf_attnprobe.functional import explanations
from hf_attnprobe.functional.intervention import draw_permutation
from hf_attnprobe.functional.rank import top_overlap
from hf_attnprobe.protocol import (
    ALL,
    HEAD_SET,
    AttentionModelBase,
    BlockOutputs,
    Differentiable,
    EditableInputs,
    HeadValues,
    Observation,
    OutputProjections,
    Site,
    Stack,
)


# --- Attention flow --------------------------------------------------------------------------

CAPACITY_SCALE = 2**30
"""Factor that converts attention weights into integer capacities, which SciPy needs to compute
attention flow. A weight of 1 becomes 2^30, which fits into 32 bits."""
FLOW_DECIMALS = 7
"""Number of decimals to which attention flow is rounded. Without rounding, equal flows could differ
slightly."""


def compute_attention_flow(maps: Sequence[np.ndarray], source: int) -> np.ndarray:
    """Compute the maximum flow from one position above the last layer to each input position.

    The layers' attention maps form a flow network, in which an edge has the capacity ½ attention +
    ½ identity (Abnar & Zuidema 2020).

    Args:
        maps: Each layer's attention ``[positions, positions]``, lowest layer first. Rows sum to 1,
            or to 0 for positions that attend to nothing.
        source: Position above the last layer from which the flow starts.

    Returns:
        Flows in [0, 1], float64 ``[positions]``.

    >>> half = np.array([[0.0, 1.0], [0.0, 1.0]])
    >>> compute_attention_flow([half, half], 0).tolist()
    [0.5, 1.0]
    """
    n_positions = len(maps[0])
    capacities = []
    for layer_map in maps:
        weights = (layer_map + np.eye(n_positions)) / 2
        capacities.append(np.rint(weights * CAPACITY_SCALE).astype(np.int32))
    # Node l * n_positions + i is position i above l layers. Edges lead to the layer below.
    blocks = block_diag(capacities)
    n_nodes = blocks.shape[0] + n_positions
    edges = blocks.row + n_positions, blocks.col
    graph = csr_array((blocks.data, edges), shape=(n_nodes, n_nodes))
    source_node = len(maps) * n_positions + source
    flows = [maximum_flow(graph, source_node, sink).flow_value for sink in range(n_positions)]
    return np.array(flows) / CAPACITY_SCALE


def compute_flow_to_tokens(observation: Observation, site: Site, longest: int) -> Tensor:
    """Return the attention flow from the prediction's query row through a layer to the tokens.

    If the model reads its prediction from several rows, their flows are averaged like their
    attention, see :meth:`AttentionModel.select_row`.

    Args:
        observation: Model outputs and attention for a batch.
        site: Layer above which the flow starts.
        longest: Longest text, in positions, for which the flow is computed. The run time grows with
            the cube of the text length.

    Returns:
        Flows float64 ``[batch, keys]``, NaN in longer texts.
    """
    model, mask = observation.model, observation.batch.mask
    layers = model.require(Stack).list_layers_below(site.layer)
    maps = [observation.attention[layer].mean(1).double() for layer in layers]
    is_read_row = _find_read_rows(observation, site, maps[0])
    flows = torch.zeros_like(maps[0])
    for text, is_real in enumerate(mask.cpu()):
        positions = is_real.nonzero()[:, 0]
        if len(positions) > longest:
            flows[text] = torch.nan
            continue
        text_maps = [layer_map[text].cpu()[positions][:, positions].numpy() for layer_map in maps]
        for index, position in enumerate(positions.tolist()):
            if is_read_row[text, position]:
                row_flows = torch.from_numpy(compute_attention_flow(text_maps, index))
                flows[text, position, positions] = row_flows.to(flows)
    values = model.select_row(observation, flows, site)
    return values.round(decimals=FLOW_DECIMALS)


def _find_read_rows(observation: Observation, site: Site, values: Tensor) -> Tensor:
    """Find the query rows from which the prediction is computed, bool ``[batch, queries]``."""
    is_read = []
    # A row is used if its values influence the result of `select_row`. Therefore, each row is set
    # to 1 in turn, while all other rows are 0.
    for query in range(values.shape[1]):
        probe = torch.zeros_like(values)
        probe[:, query] = 1
        is_read.append(observation.model.select_row(observation, probe, site).amax(-1) > 0)
    return torch.stack(is_read, dim=1)


# --- Maps computed from attention --------------------------------------------------------------
# Each function maps an observation and a site (a head or a layer) to [batch, queries, keys].

ZEROED_KEYS_PER_PASS = 8
"""Number of keys that are zeroed in one forward pass of value zeroing, each in its own copy of the
batch. More keys need more memory."""


@dataclass(frozen=True)
class MapFunction:
    """Map from a head or a layer that may explain a prediction, and its requirements.

    Attributes:
        function: Function ``(observation, site) -> [batch, queries, keys]``.
        needs: Capabilities that the model must have.
        is_difference: Whether the values are differences between larger numbers. These numbers
            determine the rounding error, not the values themselves.
    """

    function: Callable[[Observation, Site], Tensor]
    needs: tuple[type, ...] = ()
    is_difference: bool = False

    def is_available(self, model: AttentionModelBase, site: Site) -> bool:
        """Return whether the model has all capabilities that the map needs at a site.

        Args:
            model: Model to be explained.
            site: Head or layer.
        """
        return all(model.lacks(need, site) is None for need in self.needs)

    def read(self, observation: Observation, site: Site) -> Tensor:
        """Return the map's absolute values in the prediction's query row.

        Args:
            observation: Model outputs and attention for a batch.
            site: Head or layer.

        Returns:
            Values ``[batch, keys]``.
        """
        values = self.function(observation, site)
        return observation.model.select_row(observation, values, site).abs()


def get_raw_attention(observation: Observation, site: Site) -> Tensor:
    """Return a head's attention, ``[batch, queries, keys]``.

    Args:
        observation: Model outputs and attention for a batch.
        site: Single head.
    """
    return observation.attention[site.layer][:, site.head]


def get_attention_gradient(observation: Observation, site: Site) -> Tensor:
    """Return the gradient of the explained probability with respect to a head's attention.

    Args:
        observation: Model outputs and attention for a batch.
        site: Single head.

    Returns:
        Gradients ``[batch, queries, keys]``.
    """
    return observation.attention_gradient[site.layer][:, site.head]


def compute_attention_times_gradient(observation: Observation, site: Site) -> Tensor:
    """Return a head's attention × gradient, ``[batch, queries, keys]``.

    Args:
        observation: Model outputs and attention for a batch.
        site: Single head.
    """
    attention = get_raw_attention(observation, site)
    gradient = get_attention_gradient(observation, site)
    return explanations.attention_times_gradient(attention, gradient)


def compute_effective_attention(observation: Observation, site: Site) -> Tensor:
    """Return a head's effective attention (Brunner et al. 2020), ``[batch, queries, keys]``.

    This is the component of the attention that changes the head's output.

    Args:
        observation: Model outputs and attention for a batch.
        site: Single head.
    """
    values = observation.head_values[site.layer][:, site.head]
    values = values * observation.batch.mask[..., None]
    return explanations.effective_attention(get_raw_attention(observation, site), values)


def compute_norm_based_attention(observation: Observation, site: Site) -> Tensor:
    """Return the norms of a head's attention-weighted values (Kobayashi et al. 2020).

    Args:
        observation: Model outputs and attention for a batch.
        site: Single head.

    Returns:
        Norms ``[batch, queries, keys]``.
    """
    head = slice(site.head, site.head + 1)
    attention = observation.attention[site.layer][:, head]
    values = observation.head_values[site.layer][:, head]
    projections = observation.model.require(OutputProjections).get_output_projections()
    projection = projections[site.layer][head]
    norms = explanations.norm_based_attention(attention, values, projection)
    return norms[:, 0]


def compute_mean_attention(observation: Observation, site: Site) -> Tensor:
    """Average a layer's attention over its heads, ``[batch, queries, keys]``.

    Args:
        observation: Model outputs and attention for a batch.
        site: Layer.
    """
    return observation.attention[site.layer].mean(1)


def compute_rollout(observation: Observation, site: Site) -> Tensor:
    """Return the attention rollout from the input to a layer (Abnar & Zuidema 2020).

    Args:
        observation: Model outputs and attention for a batch.
        site: Layer.

    Returns:
        Rollout ``[batch, queries, keys]``.
    """
    layers = observation.model.require(Stack).list_layers_below(site.layer)
    maps = [compute_mean_attention(observation, Site(layer)) for layer in layers]
    return explanations.rollout(maps)


def compute_norm_based_layer_attention(observation: Observation, site: Site) -> Tensor:
    """Return the norms of a layer's attention-weighted values (Kobayashi et al. 2020).

    The weighted values are summed over the heads before the norm is computed.

    Args:
        observation: Model outputs and attention for a batch.
        site: Layer.

    Returns:
        Norms ``[batch, queries, keys]``.
    """
    attention = observation.attention[site.layer]
    values = observation.head_values[site.layer]
    projection = observation.model.require(OutputProjections).get_output_projections()[site.layer]
    return explanations.norm_based_layer_attention(attention, values, projection)


@torch.no_grad()
def compute_value_zeroing(observation: Observation, site: Site) -> Tensor:
    """Measure how a layer's output changes when each value is zeroed (Mohebbi et al. 2023).

    Args:
        observation: Model outputs and attention for a batch.
        site: Layer.

    Returns:
        Changes ``[batch, queries, keys]``, which sum to 1 over the keys.
    """
    return observation.remember(
        ("value_zeroing", site.layer),
        lambda: _compute_value_zeroing(observation, site.layer),
    )


def _compute_value_zeroing(observation: Observation, layer: int) -> Tensor:
    """Measure how much a layer's output changes when each key's value vector is set to 0."""
    model = observation.model.require(BlockOutputs)
    n_texts = len(observation.probs)
    n_keys = observation.batch.mask.shape[1]
    is_zeroed = torch.eye(n_keys, dtype=torch.bool, device=observation.probs.device)
    # There is one copy of the batch per key, in which all keys except this one are unchanged.
    key_masks = ~is_zeroed[:, None, None, None].expand(-1, n_texts, -1, -1, -1)
    full_mask = torch.ones_like(key_masks[:1])
    original_output = model.compute_block_output(observation, layer, full_mask)
    distances_by_key = []
    for chunk in key_masks.split(ZEROED_KEYS_PER_PASS):
        changed_output = model.compute_block_output(observation, layer, chunk)
        distances_by_key.append(explanations.cosine_distance(original_output, changed_output))
    # [keys, batch, queries] becomes [batch, queries, keys].
    distances = torch.cat(distances_by_key).permute(1, 2, 0)
    visible = observation.model.get_visible_keys(observation, layer)
    return explanations.value_zeroing(distances, visible)


def compute_value_zeroing_rollout(observation: Observation, site: Site) -> Tensor:
    """Return the rollout of value zeroing from the input to a layer (Mohebbi et al. 2023).

    Args:
        observation: Model outputs and attention for a batch.
        site: Layer.

    Returns:
        Rollout ``[batch, queries, keys]``.
    """
    layers = observation.model.require(Stack).list_layers_below(site.layer)
    maps = [compute_value_zeroing(observation, Site(layer)) for layer in layers]
    return explanations.rollout(maps, residual=False)


HEAD_MAPS = {
    "raw_attention": MapFunction(get_raw_attention),
    "attention_times_gradient": MapFunction(compute_attention_times_gradient, (Differentiable,)),
    "effective_attention": MapFunction(
        compute_effective_attention, (HeadValues,), is_difference=True
    ),
    "norm_based": MapFunction(compute_norm_based_attention, (HeadValues, OutputProjections)),
}
"""Attention maps for single heads, by name. Each entry has the function that computes the map, and
the capabilities that the model needs for it."""
LAYER_MAPS = {
    "mean_attention": MapFunction(compute_mean_attention),
    "rollout": MapFunction(compute_rollout, (Stack,)),
    "layer_norm_based": MapFunction(
        compute_norm_based_layer_attention, (HeadValues, OutputProjections)
    ),
    "value_zeroing": MapFunction(compute_value_zeroing, (BlockOutputs,), is_difference=True),
    "value_zeroing_rollout": MapFunction(
        compute_value_zeroing_rollout, (Stack, BlockOutputs), is_difference=True
    ),
}
"""Attention maps for whole layers, by name. Each entry has the function that computes the map, and
the capabilities that the model needs for it."""


def read_group_maps(observation: Observation, site: Site) -> dict[str, Tensor]:
    """Return each unit's importance according to a head group's maps.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head group.

    Returns:
        Values ``[batch, keys]`` by map name. The maps depend on the head group:

        - Every group has ``attention``, in which heads count in proportion to what they write, if
          the model provides what heads write.
        - A layer also has every map in :data:`LAYER_MAPS` that the model supports.
        - The whole model also has the mean over all heads, the mean over the last layer, and
          attention rollout.
        - Any other set of heads also has the mean over its heads.
    """
    maps = {}
    if observation.pattern_norms is not None:
        maps["attention"] = observation.read(site)
    if site.layer >= 0:
        return maps | _read_layer_maps(observation, site)
    maps["mean_attention"] = _average_heads(observation, site)
    if site.layer == ALL:
        last_layer = Site(max(observation.model.get_heads_by_layer(site)), ALL, site.query)
        last_layer_maps = _read_layer_maps(observation, last_layer)
        maps["last_layer_attention"] = last_layer_maps["mean_attention"]
        if "rollout" in last_layer_maps:
            maps["rollout"] = last_layer_maps["rollout"]
    return maps


def _average_heads(observation: Observation, site: Site) -> Tensor:
    """Return the plain mean of the heads' attention in the prediction's query row."""
    rows = [
        observation.read(site._replace(layer=layer, head=head))
        for layer, heads in observation.model.get_heads_by_layer(site).items()
        for head in heads
    ]
    return torch.stack(rows).mean(0)


def _read_layer_maps(observation: Observation, site: Site) -> dict[str, Tensor]:
    """Return a layer's values ``[batch, keys]`` for every map that the model supports."""
    return {
        name: layer_map.read(observation, site)
        for name, layer_map in LAYER_MAPS.items()
        if layer_map.is_available(observation.model, site)
    }


# --- Rankings by name ------------------------------------------------------------------------

RANKINGS_WITH_RELATIVE_ROUNDING = (
    "attention",
    "norm_based",
    "input_gradient",
    "rollout",
    "last_layer",
    "map",
)
"""Names of the rankings whose values have a rounding error proportional to the value itself. In other
rankings, the rounding error is proportional to the largest value in the text."""
SITE_RANKINGS = (
    "attention",
    "gradient",
    "product",
    "effective_attention",
    "norm_based",
)
"""Names of the rankings that differ between sites, that is, between heads or head groups."""
SIGNED_SITE_RANKINGS = ("gradient", "product")
"""Names of the rankings whose values can be negative. Negative values belong to units that oppose
the decision."""
FITTED_MAP_RANKING = "map"
"""Name of the ranking by a fitted attention map, which only exists for the whole model."""
TEXT_RANKINGS = ("input_gradient", "leave_one_out", "random")
"""Names of the rankings that are the same for all heads, because they do not use attention."""
USER_SCORE_RANKINGS = ("given", "given_moved")
"""Names of the rankings by user-provided scores. "given" uses the scores unchanged. "given_moved"
is its baseline, in which the scores are shuffled among the units of each text."""
GROUP_RANKINGS = {"rollout": "rollout", "last_layer": "mean_attention"}
"""Rankings that only exist for head groups. Each key is the name of a ranking, and each value is
the name of the attention map in :data:`LAYER_MAPS` that the ranking uses."""
REQUIRED_CAPABILITIES = {
    "gradient": Differentiable,
    "product": Differentiable,
    "input_gradient": Differentiable,
    "leave_one_out": EditableInputs,
}
"""Maps the name of a ranking to the capability that a model needs for it."""
RANDOM_STREAM = 4
"""Index of the random number stream for the random ranking."""
SHUFFLED_SCORES_STREAM = 5
"""Index of the random number stream that shuffles user-provided scores."""

QueryRows = Literal["read", "reaching"]
"""Query rows from which a ranking is computed. "read": the row from which the model reads its
prediction, for tests that remove units from the text. "reaching": all rows that can influence the
output, for tests that erase a unit's weights in every row. A site with ``query`` only uses that
row."""


def compute_ranking(
    observation: Observation,
    site: Site,
    name: str,
    *,
    seed: int = 0,
    rows: QueryRows = "read",
) -> Tensor:
    """Return each text's dense unit ranks in a ranking.

    Values that differ only by rounding share a rank. Gradients are signed: units that support the
    decision are important. If a class is explained, the decision is for or against this class.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        name: Available ranking from :data:`SITE_RANKINGS`, :data:`GROUP_RANKINGS`,
            :data:`TEXT_RANKINGS` or :data:`USER_SCORE_RANKINGS`, or :data:`FITTED_MAP_RANKING`, see
            :func:`is_ranking_available`.
        seed: Seed for the random ranking and the shuffled user-provided scores.
        rows: Query rows to be used, see :data:`QueryRows`.

    Returns:
        Ranks ``[batch, keys]``, larger for more important units. Only entries in ``content_mask``
        are meaningful.
    """
    content = observation.batch.content_mask
    if name not in (*TEXT_RANKINGS, *USER_SCORE_RANKINGS):
        values = compute_importance(observation, site, name, seed=seed, rows=rows)
        return rank_scores(name, values, content)

    def compute() -> Tensor:
        return rank_scores(name, _compute_text_importance(observation, name, seed), content)

    return observation.remember((f"ranking {name}", seed, observation.explained_class), compute)


def compute_importance(
    observation: Observation,
    site: Site,
    name: str,
    *,
    seed: int = 0,
    rows: QueryRows = "read",
) -> Tensor:
    """Return the values by which :func:`compute_ranking` orders the units.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        name: Ranking name, see :func:`compute_ranking`.
        seed: Seed for the random ranking and the shuffled user-provided scores.
        rows: Query rows to be used, see :data:`QueryRows`.

    Returns:
        Values ``[batch, keys]``, comparable only within a text. Leave-one-out values are ranks.
        Signed values are positive for units that support the decision.
    """
    if name in (*TEXT_RANKINGS, *USER_SCORE_RANKINGS):
        return _compute_text_importance(observation, name, seed)
    values = _compute_site_importance(observation, site, name, rows)
    return values * observation.target_sign if name in SIGNED_SITE_RANKINGS else values


def is_ranking_available(observation: Observation, site: Site, name: str) -> bool:
    """Return whether a ranking is defined for a site and supported by the model and the data.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        name: Ranking name.
    """
    if name in USER_SCORE_RANKINGS:
        return observation.batch.scores is not None
    return supports_ranking(observation.model, site, name)


def supports_ranking(model: AttentionModelBase, site: Site, name: str) -> bool:
    """Return whether a model supports a ranking, except for rankings by user-provided scores.

    Args:
        model: Model to be explained.
        site: Head or head group.
        name: Ranking name.
    """
    if name == FITTED_MAP_RANKING:
        return model.compute_fitted_map is not None and is_whole_model(model, site)
    if name in HEAD_MAPS:
        return not site.is_group and HEAD_MAPS[name].is_available(model, site)
    if name in GROUP_RANKINGS:
        return _is_group_ranking_available(model, site, name)
    capability = REQUIRED_CAPABILITIES.get(name)
    return capability is None or model.lacks(capability, site) is None


def is_whole_model(model: AttentionModelBase, site: Site) -> bool:
    """Return whether a site is the model's whole attention: its only head, or all heads.

    Args:
        model: Model whose attention is tested.
        site: Head or head group.
    """
    return site.layer == site.head == ALL or len(model.sites()) == 1


def _is_group_ranking_available(model: AttentionModelBase, site: Site, name: str) -> bool:
    """Return whether a ranking from :data:`GROUP_RANKINGS` is available at a site."""
    if not site.is_group or site.layer == HEAD_SET:
        return False
    layers = model.get_heads_by_layer(site)
    # The last layer is only a separate ranking if the head group contains several layers.
    if name == "last_layer" and (site.layer != ALL or len(layers) == 1):
        return False
    last_layer = Site(max(layers))
    return LAYER_MAPS[GROUP_RANKINGS[name]].is_available(model, last_layer)


def compute_site_attention(observation: Observation, site: Site) -> Tensor:
    """Return the attention to each key, averaged over heads and over effective query rows.

    Effective query rows are rows that can influence the output. The result is therefore the
    attention that disappears when a key is erased. Heads count in proportion to what they write,
    see :meth:`~hf_attnprobe.protocol.Observation.compute_head_weights`.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.

    Returns:
        Attention ``[batch, keys]``.
    """
    return observation.remember(
        ("attention_of", site), lambda: _average_effective_rows(observation, site)
    )


def _average_effective_rows(observation: Observation, site: Site) -> Tensor:
    """Average a site's attention over its heads and over all rows that can change the output."""
    heads_by_layer = observation.model.get_heads_by_layer(site)
    n_heads = sum(map(len, heads_by_layer.values()))
    weights = observation.compute_head_weights(site, all_rows=True) if n_heads > 1 else None
    if weights is None:
        weights = torch.full_like(observation.batch.mask, 1 / n_heads, dtype=torch.float64)
        weights = weights[:, :1].expand(-1, n_heads)
    total: Tensor | float = 0.0
    n_used = 0
    for layer, heads in heads_by_layer.items():
        attention = observation.attention[layer][:, heads]
        layer_weights = weights[:, n_used : n_used + len(heads)].to(attention.dtype)
        n_used += len(heads)
        layer_map = (attention * layer_weights[..., None, None]).sum(1)
        first_head = Site(layer, heads[0], site.query)
        total = total + _reduce_to_row(observation, layer_map, first_head, "reaching")
    return torch.as_tensor(total)


def _compute_site_importance(
    observation: Observation, site: Site, name: str, rows: QueryRows
) -> Tensor:
    """Return the values ``[batch, keys]`` for a ranking that depends on the site."""
    if name == "attention":
        is_read = rows == "read" or site.query is not None
        return observation.read(site) if is_read else compute_site_attention(observation, site)
    if name == FITTED_MAP_RANKING:
        compute_fitted_map = observation.model.compute_fitted_map
        # Callers check `is_ranking_available` before.
        assert compute_fitted_map is not None
        return compute_fitted_map(observation, site)
    if name in PER_LAYER_MAPS:
        return _sum_head_maps(observation, site, name, rows)
    if name in HEAD_MAPS:
        values = HEAD_MAPS[name].function(observation, site)
        return _reduce_to_row(observation, values, site, rows).abs()
    # All other rankings belong to head groups and are computed from the group's last layer.
    last_layer = Site(max(observation.model.get_heads_by_layer(site)))
    values = LAYER_MAPS[GROUP_RANKINGS[name]].function(observation, last_layer)
    return _reduce_to_row(observation, values, last_layer._replace(query=site.query), rows)


def _sum_head_maps(observation: Observation, site: Site, name: str, rows: QueryRows) -> Tensor:
    """Sum a map over the heads in a site, ``[batch, keys]``.

    The values are also summed over the query rows, because the sum predicts (to first order) the
    effect of erasing a key in all rows.
    """
    total: Tensor | float = 0.0
    for layer, heads in observation.model.get_heads_by_layer(site).items():
        values = PER_LAYER_MAPS[name](observation, layer)[:, heads].sum(1)
        first_head = Site(layer, heads[0], site.query)
        total = total + _reduce_to_row(observation, values, first_head, rows, is_summed=True)
    return torch.as_tensor(total)


def _reduce_to_row(
    observation: Observation,
    values: Tensor,
    site: Site,
    rows: QueryRows,
    *,
    is_summed: bool = False,
) -> Tensor:
    """Reduce a map ``[batch, queries, keys]`` to one row ``[batch, keys]``.

    For ``rows="read"``, the result is the row from which the prediction is computed. For
    ``rows="reaching"``, it is the mean of all rows that can influence the output, or their sum if
    ``is_summed`` is set.
    """
    if rows == "read" or site.query is not None:
        return observation.model.select_row(observation, values, site)
    row_weights = observation.find_effective_queries(site.layer).to(values.dtype)
    if not is_summed:
        n_rows = row_weights.sum(-1, keepdim=True)
        row_weights = row_weights / n_rows.clamp_min(1)
    # [batch, 1, queries] @ [batch, queries, keys]: a weighted sum of the rows.
    row = row_weights.unsqueeze(1) @ values
    single_row_site = site._replace(query=0)
    return observation.model.select_row(observation, row, single_row_site)


def _get_attention_gradient(observation: Observation, layer: int) -> Tensor:
    """Return the gradient with respect to a layer's attention."""
    return observation.attention_gradient[layer]


def _multiply_by_gradient(observation: Observation, layer: int) -> Tensor:
    """Return a layer's attention × gradient."""
    return observation.attention[layer] * observation.attention_gradient[layer]


PER_LAYER_MAPS: dict[str, Callable[[Observation, int], Tensor]] = {
    "gradient": _get_attention_gradient,
    "product": _multiply_by_gradient,
}
"""Maps the name of a ranking to the function that returns its values for all heads in a layer,
``[batch, heads, queries, keys]``."""


def _compute_text_importance(observation: Observation, name: str, seed: int) -> Tensor:
    """Return the values ``[batch, keys]`` for a ranking that does not depend on the site."""
    if name == "input_gradient":
        return observation.compute_gradient_importance()
    if name == "leave_one_out":
        return rank_by_leave_one_out(observation)
    if name == "random":
        return _draw_random_orders(observation, seed, RANDOM_STREAM)
    return read_user_scores(observation, name, seed)


def read_user_scores(observation: Observation, name: str, seed: int) -> Tensor:
    """Return a batch's user-provided scores, unchanged or shuffled among the units of each text.

    Args:
        observation: Model outputs and attention for a batch with user-provided scores.
        name: "given" for the unchanged scores, "given_moved" for the shuffled scores.
        seed: Seed for the shuffle.

    Returns:
        Scores ``[batch, keys]``.
    """
    scores = observation.batch.scores
    # Callers check `is_ranking_available` before.
    assert scores is not None
    return scores if name == "given" else _shuffle_scores(observation, scores, seed)


def _draw_random_orders(observation: Observation, seed: int, stream: int) -> Tensor:
    """Draw a random order for each text's units, float64 ``[batch, keys]``."""
    content = observation.batch.content_mask
    values = torch.zeros(content.shape, dtype=torch.float64)
    texts = zip(observation.batch.example_ids, content.cpu(), strict=True)
    for row, (example_id, is_unit) in enumerate(texts):
        order = draw_permutation(seed, int(example_id), stream, int(is_unit.sum()))
        values[row, is_unit] = torch.from_numpy(order.astype(np.float64))
    return values.to(content.device)


def _shuffle_scores(observation: Observation, scores: Tensor, seed: int) -> Tensor:
    """Shuffle the scores among each text's units, ``[batch, keys]``."""
    content = observation.batch.content_mask
    orders = _draw_random_orders(observation, seed, SHUFFLED_SCORES_STREAM).long()
    shuffled = torch.zeros_like(scores)
    for row, is_unit in enumerate(content):
        unit_scores = scores[row, is_unit]
        order = orders[row, is_unit]
        shuffled[row, is_unit] = unit_scores[order]
    return shuffled


def list_text_rankings(observation: Observation) -> tuple[str, ...]:
    """Return the names of the available rankings that do not depend on the site.

    Args:
        observation: Model outputs and attention for a batch.
    """
    has_scores = observation.batch.scores is not None
    return (*TEXT_RANKINGS, *USER_SCORE_RANKINGS) if has_scores else TEXT_RANKINGS


def rank_scores(name: str, values: Tensor, content: Tensor) -> Tensor:
    """Return dense ranks for a ranking's values, with ties for values that differ by rounding.

    For weights, norms and absolute gradients, the rounding error is proportional to each value. For
    signed values, it is proportional to the largest value in the text.

    Args:
        name: Ranking name, which determines the rounding error. Values of ``leave_one_out`` are
            ranks already and are returned unchanged.
        values: Values ``[batch, keys]``.
        content: Boolean unit mask ``[batch, keys]``.

    Returns:
        Dense ranks ``[batch, keys]``.
    """
    if name == "leave_one_out":
        return values
    if name in RANKINGS_WITH_RELATIVE_ROUNDING:
        return rank_with_ties(values, content)
    largest_value = values.abs().masked_fill(~content, 0).amax(-1, True)
    return rank_with_ties(values, content, largest_value)


def measure_top_positions(ranks: Tensor, content: Tensor) -> dict[str, Tensor]:
    """Measure whether a ranking puts the first or the last unit of each text first.

    Args:
        ranks: Unit ranks ``[batch, keys]``, larger for more important units.
        content: Boolean unit mask ``[batch, keys]``.

    Returns:
        For "first" and "last", 1 if the unit at this position has the largest rank, and 0 otherwise,
        ``[batch]``. Units that share the largest rank share the 1. NaN in texts with a single unit.
    """
    positions = torch.arange(ranks.shape[-1], dtype=torch.float64, device=ranks.device)
    positions = positions.expand_as(ranks)
    is_too_short = content.sum(-1) < 2
    orders = {"first": -positions, "last": positions}
    return {
        name: top_overlap(ranks, order, content, 1).masked_fill(is_too_short, torch.nan)
        for name, order in orders.items()
    }


REMOVAL_STEPS_PER_PASS = 8
"""Number of removal steps that are evaluated in one forward pass. Removal orders that are finished,
for example because the decision has flipped, are skipped in the next pass."""


def count_removals_until(
    detect_events: Callable[[Tensor], Tensor],
    n_events: int,
    turns: Tensor,
    content: Tensor,
    counts: Tensor,
) -> Tensor:
    """Count the units that have been removed when each event first happens, in several orders.

    An event is, for example, a flip of the decision.

    Args:
        detect_events: Function from sets of removed units, bool ``[copies, batch, keys]``, to
            whether each event happens, bool ``[events, copies, batch]``.
        n_events: Number of events that ``detect_events`` distinguishes.
        turns: Place of each unit in the order of removal, from 0 for the unit that is removed
            first, int ``[orders, batch, keys]``.
        content: Boolean unit mask ``[batch, keys]``.
        counts: Number of units that are removed after each step, int ``[steps, batch]``.

    Returns:
        Unit counts, float64 ``[events, orders, batch]``; NaN if an event never happens.
    """
    shape = n_events, *turns.shape[:2]
    n_removed = torch.full(shape, torch.nan, dtype=torch.float64)
    n_removed = n_removed.to(turns.device)
    for step_counts in counts.split(REMOVAL_STEPS_PER_PASS):
        # An order needs further steps if an event has not yet happened in some text.
        is_pending = n_removed.isnan()
        if not is_pending.any():
            break
        has_pending_event = is_pending.any(0)[..., None]
        is_removed = (turns < step_counts[:, None, :, None]) & content & has_pending_event
        happens = detect_events(is_removed.flatten(0, 1)).unflatten(1, is_removed.shape[:2])
        happens &= is_removed.any(-1)
        # `argmax` returns the first step at which the event happens.
        first_step = happens.to(torch.int8).argmax(1)
        count = step_counts.double().gather(0, first_step.flatten(0, 1)).view(shape)
        is_new = is_pending & happens.any(1)
        n_removed = torch.where(is_new, count, n_removed)
    return n_removed
