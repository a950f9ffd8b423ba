"""Test ``uniform_attention``: does a head need its attention pattern?

The attention of a trained model is replaced with uniform attention.

Question
    Does it matter that the head attends more to some tokens than to others?

Measure
    Output change (total variation distance) and decision flips if the attention is made uniform.
    Tutek & Šnajder 2020 (Section 4.1, "Un") do this to their classifiers. Training a model with
    uniform attention is a different experiment.

Groups
    All heads in a layer or in the model get uniform attention at once.

Interpretation
    0: a uniform average would do as well. 1: the pattern determines the output.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import NoOptions
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import make_uniform
from hf_attnprobe.protocol import Observation, Site


READINGS: TestReadings = {
    "uniform_tvd": "uniform attention moves the output by {mean:.2f} {unit}",
    "uniform_tvd_of": "uniform attention moves the prediction of {key} by {mean:.2f} of 1",
    "uniform_flip": make_share_reading("uniform attention flips {decision} in {mean:.0%} of texts"),
}


@dataclass(frozen=True)
class UniformAttentionResult:
    """Statistics from the test ``uniform_attention``, tensors ``[batch]``.

    Attributes:
        uniform_tvd: Output change in [0, 1]; for models that predict a number, in its unit.
        uniform_flip: 1 if the decision flips, else 0.
        uniform_tvd_of: Output change for each label or tag. None unless a prediction consists of
            several labels or tags with names.
    """

    uniform_tvd: Tensor
    uniform_flip: Tensor
    uniform_tvd_of: Mapping[str, Tensor] | None = None


@register_test(
    readings=READINGS,
    summary="gives all tokens of a text the same attention weight",
    groups=True,
)
@torch.no_grad()
def uniform_attention(
    observation: Observation,
    site: Site,
    options: NoOptions = NoOptions(),
    *,
    seed: int = 0,
) -> UniformAttentionResult:
    """Measure the output change if a head or a head group attends uniformly to its visible keys.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group. With ``site.query``, only this query row is edited.
        options: Unused, because the test has no options.
        seed: Unused, because the test is deterministic.

    Returns:
        Statistics per text.
    """
    model = observation.model

    def flatten_attention(layer: int, attention: Tensor) -> Tensor:
        visible = model.get_visible_keys(observation, layer)
        return make_uniform(attention, visible.unsqueeze(1))[None]

    edited_attention = observation.edit_attention(site, flatten_attention)
    probs = model.replay(observation, edited_attention)[0]
    flips = observation.find_flips(probs).to(torch.float64)
    output_change = tvd(probs, observation.probs)
    return UniformAttentionResult(output_change, flips, observation.compute_change_by_part(probs))
