"""The farthest attention of several heads, moved together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_attnprobe.attention_model import Observation, Site
from hf_attnprobe.faithfulness.farthest.candidates import candidates_of
from hf_attnprobe.faithfulness.farthest.result import ROUNDING, AdversarialResult
from hf_attnprobe.faithfulness.farthest.rows import (
    counting_rows,
    mean_over_rows,
    stacked_rows,
    visible_rows,
)
from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd


def of_group(observation: Observation, site: Site, epsilons: Sequence[float]) -> AdversarialResult:
    """The best candidate of all; there is no search.

    One candidate at a time: copies of all attention of a model are large.
    """
    own = stacked_rows(observation, site, observation.attention)
    counting = counting_rows(observation, site)
    visible = visible_rows(observation, site)
    largest = mean_over_rows(largest_jsd(own, visible), counting)
    farthest = {epsilon: torch.zeros_like(largest) for epsilon in epsilons}
    for candidate in candidates_of(observation, site):
        probs = _replay_rows(observation, site, candidate)
        change = tvd(probs, observation.probs)
        divergence = mean_over_rows(jsd(candidate, own), counting)
        for epsilon, known in farthest.items():
            found = divergence.masked_fill(change > epsilon, 0)
            farthest[epsilon] = torch.maximum(known, found)
        # Nothing is farther than all of it; most candidates are not needed.
        if (largest - farthest[min(epsilons)] <= ROUNDING).all():
            break
    return AdversarialResult(farthest, largest, torch.zeros_like(largest))


def _replay_rows(observation: Observation, site: Site, rows: Tensor) -> Tensor:
    """Probabilities with all rows of a site's heads replaced.

    Shape: [batch, rows, keys] -> [batch, classes].
    """
    members = observation.model.members(site)
    sizes = [len(heads) * observation.attention[layer].shape[2] for layer, heads in members.items()]
    parts = dict(zip(members, rows.split(sizes, dim=1), strict=True))

    def change(layer: int, own: Tensor) -> Tensor:
        return parts[layer].unflatten(1, own.shape[1:3])[None]

    edited = observation.edited(site, change)
    with torch.no_grad():
        return observation.model.replay(observation, edited)[0]
