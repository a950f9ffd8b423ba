"""What ranks the units of a text by importance.

Attention, what it is compared with, and chance.

attention: of the site. gradient: ∂p/∂attention of the predicted class's probability p,
signed; product: attention × that (Serrano & Smith 2019, Section 4).
effective_attention, norm_based: in heads, see ``explanations``.
input_gradient: |gradient × input|. leave_one_out: how far the output moves without the
unit (total variation). random: a draw per text.
"""

import torch
from torch import Tensor

from hf_attnprobe.attention_model import (
    Differentiable,
    EditableInputs,
    Observation,
    Site,
)
from hf_attnprobe.faithfulness.attention_maps import (
    OF_HEADS,
    attention_gradient,
    attention_times_gradient,
    raw_attention,
)
from hf_attnprobe.faithfulness.correlation import leave_one_out_ranks, ranks
from hf_attnprobe.functional.intervention import random_generator


OF_SITE = ("attention", "gradient", "product", "effective_attention", "norm_based")
OF_TEXT = ("input_gradient", "leave_one_out", "random")
SIGNED = {
    "attention": raw_attention,
    "gradient": attention_gradient,
    "product": attention_times_gradient,
}
NEEDS = {
    "gradient": Differentiable,
    "product": Differentiable,
    "input_gradient": Differentiable,
    "leave_one_out": EditableInputs,
}
RANDOM_STREAM = 4


def ranking(
    observation: Observation, site: Site, name: str, *, seed: int = 0
) -> Tensor:
    """Importance as dense ranks, [batch, keys], higher for more important.

    Only ``content_mask`` counts. What differs by rounding alone is equal. Gradients are
    signed: what speaks for the decision is important. What does not depend on the site
    is computed once per observation.

    Args:
        name: one of :data:`OF_SITE` or :data:`OF_TEXT`, for which :func:`is_possible`.
        seed: of the random ranking.
    """
    content = observation.batch.content_mask
    if name in OF_SITE:
        return tied(name, _of_site(observation, site, name), content)
    key = f"ranking {name}", seed
    return observation.remember(
        key, lambda: tied(name, _of_text(observation, name, seed), content)
    )


def is_possible(observation: Observation, site: Site, name: str) -> bool:
    """Whether the model has what a ranking needs."""
    model = observation.model
    if name in OF_HEADS:
        return OF_HEADS[name].is_possible(model, site)
    need = NEEDS.get(name)
    return need is None or model.lacks(need, site) is None


def _of_site(observation: Observation, site: Site, name: str) -> Tensor:
    if name in OF_HEADS:
        return OF_HEADS[name].read(observation, site)
    values = SIGNED[name](observation, site)
    return observation.model.read_map(observation, values, site)


def _of_text(observation: Observation, name: str, seed: int) -> Tensor:
    if name == "input_gradient":
        return observation.gradient_importance()
    if name == "leave_one_out":
        return leave_one_out_ranks(observation)
    return _random(observation, seed)


def _random(observation: Observation, seed: int) -> Tensor:
    content = observation.batch.content_mask
    values = torch.zeros(content.shape, dtype=torch.float64)
    texts = zip(observation.batch.example_ids, content.cpu(), strict=True)
    for row, (example_id, real) in enumerate(texts):
        generator = random_generator(seed, int(example_id), RANDOM_STREAM)
        draw = generator.permutation(int(real.sum()))
        values[row, real] = torch.from_numpy(draw).double()
    return values.to(content.device)


def tied(name: str, values: Tensor, content: Tensor) -> Tensor:
    """Dense ranks [batch, keys].

    Weights, norms and sizes of gradients are exact relative to themselves, what has a
    sign is relative to the largest. Leave-one-out comes as ranks.
    """
    if name == "leave_one_out":
        return values
    if name in ("attention", "norm_based", "input_gradient"):
        return ranks(values, content)
    return ranks(values, content, values.abs().masked_fill(~content, 0).amax(-1, True))
