"""Rankings of a text's units by importance.

Attention, what it is compared with, and chance.

attention: of the site. gradient: ∂p/∂attention of the explained class's probability p,
signed; product: attention × that (Serrano & Smith 2019, Section 4).
effective_attention, norm_based: in heads, see ``explanations``.
rollout, last_layer: of a layer's heads together, or of all.
input_gradient: |gradient × input|. leave_one_out: how far the output moves without the
unit (total variation). random: a draw per text.
given: the scores that somebody gave, see ``attnprobe judge``; given_moved: the same at other
units of each text, drawn at random, which are as peaked and tie as often.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.sparse import block_diag, csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from hf_attnprobe.faithfulness.correlation import leave_one_out_ranks, ranks
from hf_attnprobe.functional import explanations
from hf_attnprobe.functional.intervention import drawn_order
from hf_attnprobe.protocol import (
    ALL,
    SET,
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


# --- Maps of attention that tokens are ranked by -----------------------------


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
    # ½ map + ½ I in units of 1 / SCALE.
    capacities = []
    for layer in maps:
        weights = (layer + np.eye(n)) / 2
        capacities.append(np.rint(weights * SCALE).astype(np.int32))
    # Node l·n + i is position i above l layers; the edges go down.
    below = block_diag(capacities)
    size = below.shape[0] + n
    edges = below.row + n, below.col
    graph = csr_array((below.data, edges), shape=(size, size))
    top = len(maps) * n + source
    flows = [maximum_flow(graph, top, sink).flow_value for sink in range(n)]
    return np.array(flows) / SCALE


def flow_to_tokens(observation: Observation, site: Site, longest: int) -> Tensor:
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
    return explanations.effective_attention(raw_attention(observation, site), values)


def norm_based(observation: Observation, site: Site) -> Tensor:
    """Returns norms of a head's weighted values (Kobayashi et al. 2020)."""
    head = slice(site.head, site.head + 1)
    attention = observation.attention[site.layer][:, head]
    values = observation.head_values[site.layer][:, head]
    projections = observation.model.require(OutputProjections).output_projections()
    projection = projections[site.layer][head]
    norms = explanations.norm_based(attention, values, projection)
    return norms[:, 0]


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
    """How far a layer's output moves when each value is zeroed (Mohebbi et al. 2023)."""
    return observation.remember(
        ("value_zeroing", site.layer),
        lambda: _value_zeroing(observation, site.layer),
    )


def _value_zeroing(observation: Observation, layer: int) -> Tensor:
    model = observation.model.require(BlockOutputs)
    n_texts = len(observation.probs)
    n_keys = observation.batch.mask.shape[1]
    zeroed = torch.eye(n_keys, dtype=torch.bool, device=observation.probs.device)
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
    "attention_times_gradient": AttentionMap(attention_times_gradient, (Differentiable,)),
    "effective_attention": AttentionMap(effective_attention, (HeadValues,), is_difference=True),
    "norm_based": AttentionMap(norm_based, (HeadValues, OutputProjections)),
}
OF_LAYERS = {
    "mean_attention": AttentionMap(mean_attention),
    "rollout": AttentionMap(rollout, (Stack,)),
    "layer_norm_based": AttentionMap(layer_norm_based, (HeadValues, OutputProjections)),
    "value_zeroing": AttentionMap(value_zeroing, (BlockOutputs,), is_difference=True),
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


RELATIVE = (
    "attention",
    "norm_based",
    "input_gradient",
    "rollout",
    "last_layer",
)
"""Rankings whose values are exact relative to themselves."""
OF_SITE = (
    "attention",
    "gradient",
    "product",
    "effective_attention",
    "norm_based",
)
SIGNED = ("gradient", "product")
"""Rankings in which what speaks against the side that the text is on comes last."""
OF_TEXT = ("input_gradient", "leave_one_out", "random")
GIVEN = ("given", "given_moved")
OF_GROUP = {"rollout": "rollout", "last_layer": "mean_attention"}
"""Maps of a whole layer that rank for a group of heads, by name of the ranking."""
NEEDS = {
    "gradient": Differentiable,
    "product": Differentiable,
    "input_gradient": Differentiable,
    "leave_one_out": EditableInputs,
}
RANDOM_STREAM = 4
MOVED_STREAM = 5

Rows = Literal["read", "reaching"]
"""Which query rows of a map rank: the one that the prediction is read from, where units
are erased from the text; all that can reach the output, where their weights are erased
in every row. With ``site.query`` it is that row."""


def ranking(
    observation: Observation,
    site: Site,
    name: str,
    *,
    seed: int = 0,
    rows: Rows = "read",
) -> Tensor:
    """Returns importance as dense ranks, [batch, keys], higher for more important.

    Only ``content_mask`` counts. What differs by rounding alone is equal. Gradients are
    signed: what speaks for the decision is important, with a class explained that for it or
    against it. What does not depend on the site
    is computed once per observation.

    Args:
        name: one of :data:`OF_SITE`, :data:`OF_GROUP`, :data:`OF_TEXT` or :data:`GIVEN`, for
            which :func:`is_possible`.
        seed: of the random ranking and of moved scores.
        rows: see :data:`Rows`.
    """
    content = observation.batch.content_mask
    if name not in (*OF_TEXT, *GIVEN):
        values = importance(observation, site, name, seed=seed, rows=rows)
        return tied(name, values, content)
    key = f"ranking {name}", seed, observation.explains
    return observation.remember(key, lambda: tied(name, _of_text(observation, name, seed), content))


def importance(
    observation: Observation,
    site: Site,
    name: str,
    *,
    seed: int = 0,
    rows: Rows = "read",
) -> Tensor:
    """Returns the values behind :func:`ranking`, [batch, keys]; of leave-one-out its ranks.

    Comparable within a text only. Signed ones are positive for what speaks for the side that
    the text is on.
    """
    if name in (*OF_TEXT, *GIVEN):
        return _of_text(observation, name, seed)
    values = _of_site(observation, site, name, rows)
    return values * observation.side if name in SIGNED else values


def is_possible(observation: Observation, site: Site, name: str) -> bool:
    """Whether the model can compute a ranking, and whether it means anything at this site."""
    model = observation.model
    if name in GIVEN:
        return observation.batch.scores is not None
    if name in OF_HEADS:
        return not site.is_group and OF_HEADS[name].is_possible(model, site)
    if name in OF_GROUP:
        return _is_of_group(model, site, name)
    need = NEEDS.get(name)
    return need is None or model.lacks(need, site) is None


def _is_of_group(model: AttentionModelBase, site: Site, name: str) -> bool:
    """Whether the ranking has a form for this group of heads."""
    if not site.is_group or site.layer == SET:
        return False
    layers = model.members(site)
    if name == "last_layer" and (site.layer != ALL or len(layers) == 1):
        return False
    return OF_LAYERS[OF_GROUP[name]].is_possible(model, Site(max(layers)))


def attention_of(observation: Observation, site: Site) -> Tensor:
    """Attention [batch, keys] that is edited when a key is erased in every row.

    The mean over the site's heads, and over the rows that can reach the output.
    """

    def compute() -> Tensor:
        members = observation.model.members(site)
        total = _of_members(observation, site, "attention", "reaching")
        return total / sum(map(len, members.values()))

    return observation.remember(("attention_of", site), compute)


def _of_site(observation: Observation, site: Site, name: str, rows: Rows) -> Tensor:
    """Importance [batch, keys] at a site; sizes are comparable within a text only."""
    if name in MAPS:
        return _of_members(observation, site, name, rows)
    if name in OF_HEADS:
        values = OF_HEADS[name].function(observation, site)
        return _row(observation, values, site, rows).abs()
    top = Site(max(observation.model.members(site)))
    values = OF_LAYERS[OF_GROUP[name]].function(observation, top)
    return _row(observation, values, top._replace(query=site.query), rows)


def _of_members(observation: Observation, site: Site, name: str, rows: Rows) -> Tensor:
    """Sums a signed map over the heads of the site.

    Attention is averaged over rows. What erasing a key in all rows changes is, to first
    order, the sum over rows; of several layers, as if each of them was edited alone.
    """
    total: Tensor | float = 0.0
    is_added = name != "attention"
    for layer, heads in observation.model.members(site).items():
        values = MAPS[name](observation, layer)[:, heads].sum(1)
        first = Site(layer, heads[0], site.query)
        total = total + _row(observation, values, first, rows, added=is_added)
    return torch.as_tensor(total)


def _row(
    observation: Observation,
    values: Tensor,
    site: Site,
    rows: Rows,
    *,
    added: bool = False,
) -> Tensor:
    """Reduces a map [batch, queries, keys] to one row [batch, keys], see :data:`Rows`."""
    if rows == "read" or site.query is not None:
        return observation.model.read_map(observation, values, site)
    reaching = observation.reaching(site.layer).to(values.dtype)
    if not added:
        n_reaching = reaching.sum(-1, keepdim=True)
        reaching = reaching / n_reaching.clamp_min(1)
    row = reaching.unsqueeze(1) @ values
    return observation.model.read_map(observation, row, site._replace(query=0))


def _attention(observation: Observation, layer: int) -> Tensor:
    return observation.attention[layer]


def _gradient(observation: Observation, layer: int) -> Tensor:
    return observation.attention_gradient[layer]


def _product(observation: Observation, layer: int) -> Tensor:
    return observation.attention[layer] * observation.attention_gradient[layer]


MAPS: dict[str, Callable[[Observation, int], Tensor]] = {
    "attention": _attention,
    "gradient": _gradient,
    "product": _product,
}
"""Maps of all heads of a layer, [batch, heads, queries, keys]."""


def _of_text(observation: Observation, name: str, seed: int) -> Tensor:
    if name == "input_gradient":
        return observation.gradient_importance()
    if name == "leave_one_out":
        return leave_one_out_ranks(observation)
    if name == "random":
        return _drawn(observation, seed, RANDOM_STREAM)
    return given_scores(observation, name, seed)


def given_scores(observation: Observation, name: str, seed: int) -> Tensor:
    """The scores of a batch that has some, as they are or moved, [batch, keys].

    Args:
        name: one of :data:`GIVEN`.
        seed: of the places that they are moved to.
    """
    given = observation.batch.scores
    assert given is not None  # see `is_possible`
    return given if name == "given" else _moved(observation, given, seed)


def _drawn(observation: Observation, seed: int, stream: int) -> Tensor:
    """A random number of every unit: its place in an order, float64 [batch, keys]."""
    content = observation.batch.content_mask
    values = torch.zeros(content.shape, dtype=torch.float64)
    texts = zip(observation.batch.example_ids, content.cpu(), strict=True)
    for row, (example_id, real) in enumerate(texts):
        draw = drawn_order(seed, int(example_id), stream, int(real.sum()))
        values[row, real] = torch.from_numpy(draw.astype(np.float64))
    return values.to(content.device)


def _moved(observation: Observation, given: Tensor, seed: int) -> Tensor:
    """The scores of each text's units in a random order, [batch, keys]."""
    content = observation.batch.content_mask
    places = _drawn(observation, seed, MOVED_STREAM).long()
    moved = torch.zeros_like(given)
    for row, real in enumerate(content):
        moved[row, real] = given[row, real][places[row, real]]
    return moved


def rankings_of_text(observation: Observation) -> tuple[str, ...]:
    """The rankings that do not depend on the site: :data:`OF_TEXT`, and given scores."""
    given = observation.batch.scores is not None
    return (*OF_TEXT, *GIVEN) if given else OF_TEXT


def tied(name: str, values: Tensor, content: Tensor) -> Tensor:
    """Dense ranks [batch, keys].

    Weights, norms and sizes of gradients are exact relative to themselves, what has a
    sign is relative to the largest. Leave-one-out comes as ranks.
    """
    if name == "leave_one_out":
        return values
    if name in RELATIVE:
        return ranks(values, content)
    return ranks(values, content, values.abs().masked_fill(~content, 0).amax(-1, True))


STEPS_AT_ONCE = 8
"""Of removals: then the orders in which all has happened are left out."""


def removals_until(
    happens: Callable[[Tensor], Tensor],
    n_events: int,
    turns: Tensor,
    content: Tensor,
    counts: Tensor,
) -> Tensor:
    """Units that are gone when something first happens, as they leave in some orders.

    Args:
        happens: sets of units bool [copies, batch, keys] -> bool [events, copies, batch].
        n_events: how many events it tells of.
        turns: at which each unit leaves, int [orders, batch, keys].
        content: bool [batch, keys], the units.
        counts: how many are gone at each step, int [steps, batch].

    Returns:
        float64 [events, orders, batch]; NaN where it never happens.
    """
    shape = n_events, *turns.shape[:2]
    n_removed = torch.full(shape, torch.nan, dtype=torch.float64)
    n_removed = n_removed.to(turns.device)
    for some in counts.split(STEPS_AT_ONCE):
        is_open = n_removed.isnan()
        if not is_open.any():
            break
        is_followed = is_open.any(0)[..., None]
        gone = (turns < some[:, None, :, None]) & content & is_followed
        happened = happens(gone.flatten(0, 1)).unflatten(1, gone.shape[:2])
        happened &= gone.any(-1)
        first = happened.to(torch.int8).argmax(1)
        count = some.double().gather(0, first.flatten(0, 1)).view(shape)
        is_new = is_open & happened.any(1)
        n_removed = torch.where(is_new, count, n_removed)
    return n_removed
