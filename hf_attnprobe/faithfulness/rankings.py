"""Rankings of a text's units by importance.

Attention, what it is compared with, and chance.

attention: of the site. gradient: ∂p/∂attention of the explained class's probability p,
signed; product: attention × that (Serrano & Smith 2019, Section 4).
effective_attention, norm_based: in heads, see ``explanations``.
rollout, last_layer: of a layer's heads together, or of all; see ``attention_maps``.
input_gradient: |gradient × input|. leave_one_out: how far the output moves without the
unit (total variation). random: a draw per text.
given: the scores that somebody gave, see ``attnprobe judge``; given_moved: the same at other
units of each text, drawn at random, which are as peaked and tie as often.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.attention_model import (
    ALL,
    SET,
    AttentionModelBase,
    Differentiable,
    EditableInputs,
    Observation,
    Site,
)
from hf_attnprobe.faithfulness.attention_maps import OF_HEADS, OF_LAYERS
from hf_attnprobe.faithfulness.correlation import leave_one_out_ranks, ranks
from hf_attnprobe.functional.intervention import drawn_order


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
    return observation.remember(
        key, lambda: tied(name, _of_text(observation, name, seed), content)
    )


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


def _of_site(
    observation: Observation, site: Site, name: str, rows: Rows
) -> Tensor:
    """Importance [batch, keys] at a site; sizes are comparable within a text only."""
    if name in MAPS:
        return _of_members(observation, site, name, rows)
    if name in OF_HEADS:
        values = OF_HEADS[name].function(observation, site)
        return _row(observation, values, site, rows).abs()
    top = Site(max(observation.model.members(site)))
    values = OF_LAYERS[OF_GROUP[name]].function(observation, top)
    return _row(observation, values, top._replace(query=site.query), rows)


def _of_members(
    observation: Observation, site: Site, name: str, rows: Rows
) -> Tensor:
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
    return ranks(
        values, content, values.abs().masked_fill(~content, 0).amax(-1, True)
    )
