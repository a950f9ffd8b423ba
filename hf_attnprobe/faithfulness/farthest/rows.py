"""The rows of attention that are moved and counted, of a head and of a group of heads."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hf_attnprobe.attention_model import Observation, Site


def only_row(observation: Observation, site: Site) -> tuple[Tensor, Tensor]:
    """The one row of a linear read-out and what it may attend to, [batch, keys]."""
    visible = observation.model.visible(observation, site.layer)
    return observation.attention[site.layer][:, site.head, 0], visible[:, 0]


def as_only_query(
    epsilons: Sequence[float], attention: Sequence[Tensor] | Tensor
) -> dict[float, Tensor]:
    """By ε [batch, keys] as the only query of [batch, queries, keys]."""
    return {e: found[:, None] for e, found in zip(epsilons, attention, strict=True)}


def counting_queries(observation: Observation, layer: int, query: int | None) -> Tensor:
    """The rows that are moved and counted, bool [batch, queries].

    Those that can reach the output; one row where one was asked for.
    """
    if query is None:
        return observation.reaching(layer)
    real = observation.model.visible(observation, layer).any(-1)
    is_asked = torch.zeros_like(real)
    is_asked[:, query] = True
    return real & is_asked


def mean_over_rows(values: Tensor, counting: Tensor) -> Tensor:
    """Mean over the rows that count, [..., batch, rows] -> [..., batch]."""
    weights = counting.to(values.dtype)
    return (values * weights).sum(-1) / weights.sum(-1).clamp_min(1)


def stacked_rows(
    observation: Observation, site: Site, maps: Mapping[int, Tensor] | Sequence[Tensor]
) -> Tensor:
    """All rows of a site's heads, one below the other.

    Shape: maps by layer, each [batch, heads, queries, keys] -> [batch, rows, keys].
    """
    members = observation.model.members(site)
    return torch.cat([maps[k][:, heads].flatten(1, 2) for k, heads in members.items()], 1)


def counting_rows(observation: Observation, site: Site) -> Tensor:
    """As :func:`counting_queries`, of all rows of a site's heads, bool [batch, rows]."""
    members = observation.model.members(site)
    return torch.cat(
        [
            counting_queries(observation, layer, site.query).repeat(1, len(heads))
            for layer, heads in members.items()
        ],
        dim=1,
    )


def visible_rows(observation: Observation, site: Site) -> Tensor:
    """What each row of a site's heads may attend to, bool [batch, rows, keys]."""
    members = observation.model.members(site)
    return torch.cat(
        [
            observation.model.visible(observation, layer).repeat(1, len(heads), 1)
            for layer, heads in members.items()
        ],
        dim=1,
    )
