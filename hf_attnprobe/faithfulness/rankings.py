"""What ranks the units of a text by importance: attention, what it is compared with, and chance.

attention: of the site. gradient: ∂p/∂attention of the predicted class's probability p, signed; product: attention × that
(Serrano & Smith 2019, Section 4). effective_attention, norm_based: in heads, see ``explanations``.
input_gradient: |gradient × input|. leave_one_out: the size of the change of p without the unit. random: a draw per text.
"""

import torch
from torch import Tensor

from hf_attnprobe.attention_model import (
    AttentionModel,
    Differentiable,
    EditableInputs,
    HeadValues,
    Observation,
    OutputProjections,
    Site,
)
from hf_attnprobe.faithfulness.correlation import ranks
from hf_attnprobe.faithfulness.explanations import OF_HEADS
from hf_attnprobe.functional.intervention import random_generator
from hf_attnprobe.functional.rank import dense_rank


NEEDS = {
    "attention": AttentionModel,
    "gradient": Differentiable,
    "product": Differentiable,
    "effective_attention": HeadValues,
    "norm_based": OutputProjections,
    "input_gradient": Differentiable,
    "leave_one_out": EditableInputs,
    "random": AttentionModel,
}
"""What a ranking asks of the model."""

OF_SITE = ("attention", "gradient", "product", "effective_attention", "norm_based")
OF_TEXT = ("input_gradient", "leave_one_out", "random")
RANDOM_STREAM = 4


def ranking(
    model: AttentionModel,
    observation: Observation,
    site: Site,
    name: str,
    *,
    seed: int = 0,
) -> Tensor:
    """Importance as dense ranks, [batch, keys], higher for more important; what only differs by rounding is equal.

    Only ``content_mask`` counts. Gradients are signed: what speaks for the decision is important. What does not depend
    on the site is found once per observation.

    Raises:
        AttnProbeError: the model has no such thing.
    """
    content = observation.batch.content_mask
    if name in OF_SITE:
        return tied(name, _of_site(model, observation, site, name), content)
    key = f"ranking {name}", seed
    return observation.remember(
        key, lambda: tied(name, _of_text(observation, name, seed), content)
    )


def _of_site(
    model: AttentionModel, observation: Observation, site: Site, name: str
) -> Tensor:
    if name in OF_HEADS:
        return model.read_map(
            observation, OF_HEADS[name](model, observation, site), site
        ).abs()
    values = observation.attention[site.layer][:, site.head]
    if name != "attention":
        slope = observation.attention_gradient[site.layer][:, site.head]
        values = slope if name == "gradient" else values * slope
    return model.read_map(observation, values, site)


def _of_text(observation: Observation, name: str, seed: int) -> Tensor:
    if name == "input_gradient":
        return observation.gradient_importance()
    return (
        observation.leave_one_out_importance()
        if name == "leave_one_out"
        else _random(observation, seed)
    )


def _random(observation: Observation, seed: int) -> Tensor:
    content = observation.batch.content_mask
    values = torch.zeros(content.shape, dtype=torch.float64)
    for row, (example_id, real) in enumerate(
        zip(observation.batch.example_ids, content.cpu(), strict=True)
    ):
        draw = random_generator(seed, int(example_id), RANDOM_STREAM).permutation(
            int(real.sum())
        )
        values[row, real] = torch.from_numpy(draw).double()
    return values.to(content.device)


def tied(name: str, values: Tensor, content: Tensor) -> Tensor:
    """Dense ranks [batch, keys]. Weights and norms are exact relative to themselves, differences relative to the largest."""
    if name == "leave_one_out":
        return ranks(values, content)
    largest = values.abs().masked_fill(~content, 0).amax(-1, keepdim=True)
    values = values / largest.clamp_min(torch.finfo(values.dtype).tiny)
    if name in ("attention", "norm_based"):
        return dense_rank(values, content, rtol=256 * torch.finfo(values.dtype).eps)
    return ranks(values, content)
