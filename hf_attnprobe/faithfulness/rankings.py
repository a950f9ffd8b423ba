"""What ranks the units of a text by importance: attention, what it is compared with, and chance.

attention: of the site. product: attention × ∂p/∂attention of the predicted class's probability p, signed (Serrano & Smith
2019 rank by it). input_gradient: |gradient × input|. leave_one_out: the size of the change of p without the unit.
random: one draw per text.
"""

import torch
from torch import Tensor

from hf_attnprobe.attention_model import AttentionModel, Observation, Site
from hf_attnprobe.faithfulness.correlation import ranks
from hf_attnprobe.functional.explanations import attention_times_gradient
from hf_attnprobe.functional.intervention import random_generator


OF_SITE = ("attention", "product")
OF_TEXT = ("input_gradient", "leave_one_out", "random")
RANDOM_STREAM = 4


def ranking(model: AttentionModel, observation: Observation, site: Site, name: str, *, seed: int = 0) -> Tensor:
    """Importance as dense ranks, [batch, keys], higher for more important, ties told with room for rounding.

    Only ``content_mask`` counts. What does not depend on the site is found once per observation.
    """
    if name in OF_SITE:
        return ranks(_of_site(model, observation, site, name), observation.batch.content_mask)
    key = f"ranking {name}", seed
    if key not in observation.maps:
        values = _of_text(observation, name, seed)
        observation.maps[key] = ranks(values, observation.batch.content_mask)
    return observation.maps[key]


def _of_site(model: AttentionModel, observation: Observation, site: Site, name: str) -> Tensor:
    if name == "attention":
        return observation.read(site)
    attention, gradient = (
        x[site.layer][:, site.head] for x in (observation.attention, observation.attention_gradient)
    )
    values = model.read_map(observation, attention_times_gradient(attention, gradient), site)
    return _scaled(values, observation.batch.content_mask)


def _of_text(observation: Observation, name: str, seed: int) -> Tensor:
    content = observation.batch.content_mask
    if name == "input_gradient":
        return _scaled(observation.gradient_importance(), content)
    return observation.leave_one_out_importance() if name == "leave_one_out" else _random(observation, seed)


def _random(observation: Observation, seed: int) -> Tensor:
    content = observation.batch.content_mask
    values = torch.zeros(content.shape, dtype=torch.float64)
    for row, (example_id, real) in enumerate(zip(observation.batch.example_ids, content.cpu(), strict=True)):
        draw = random_generator(seed, int(example_id), RANDOM_STREAM).permutation(int(real.sum()))
        values[row, real] = torch.from_numpy(draw).double()
    return values.to(content.device)


def _scaled(values: Tensor, content: Tensor) -> Tensor:
    """With 1 the largest size in a text: ties are told on the scale of attention."""
    largest = (values.abs() * content).amax(-1, keepdim=True)
    return values / largest.clamp_min(torch.finfo(values.dtype).tiny)
