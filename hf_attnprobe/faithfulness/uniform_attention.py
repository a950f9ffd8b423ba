"""Test ``uniform_attention``: does a head need its attention pattern?

The attention of a trained model is replaced with uniform attention.

Question
    Does it matter that the head attends more to some tokens than to others?

Measure
    Output change (total variation distance) and decision flips if the attention is made uniform.
    Tutek & Šnajder 2020 (Section 4.1, "Un") do this to their classifiers. Training a model with
    uniform attention is a different experiment.

Path share
    Share of the decision that passes through the attention pattern::

        path_share = 1 - margin(even weights) / margin(own weights), clipped to [0, 1]

    The margin is the log-probability of the predicted class minus that of the best other class. With
    even weights, all explained tokens share their attention equally, and special tokens keep theirs.
    If a share s of the margin passes through attention to the deciding word, and the rest bypasses
    it, then the path share is about s. It depends neither on the temperature nor on the number of
    classes. For a predicted number, it is the change of the number in standard deviations of the
    predictions, at most 1. Code: :func:`measure_path_share`.

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
    "path_share": "{mean:.0%} of the decision passes through the attention pattern",
    "uniform_flip": make_share_reading("uniform attention flips {decision} in {mean:.0%} of texts"),
}


@dataclass(frozen=True)
class UniformAttentionResult:
    """Statistics from the test ``uniform_attention``, tensors ``[batch]``.

    Attributes:
        uniform_tvd: Output change in [0, 1]; for models that predict a number, in its unit.
        uniform_flip: 1 if the decision flips, else 0.
        path_share: Share of the decision that passes through the attention pattern, in [0, 1]. NaN
            in texts with fewer than two tokens, whose attention has no pattern.
        uniform_tvd_of: Output change for each label or tag. None unless a prediction consists of
            several labels or tags with names.
    """

    uniform_tvd: Tensor
    uniform_flip: Tensor
    path_share: Tensor
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
    return UniformAttentionResult(
        output_change,
        flips,
        measure_path_share(observation, site),
        observation.compute_change_by_part(probs),
    )


def measure_path_share(observation: Observation, site: Site) -> Tensor:
    """Measure which share of the decision passes through the attention pattern.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose weights become even over the explained tokens.

    Returns:
        Shares ``[batch]`` in [0, 1]; NaN in texts with fewer than two explained tokens.
    """
    model, content = observation.model, observation.batch.content_mask

    def spread_evenly(layer: int, attention: Tensor) -> Tensor:
        tokens = model.get_unit_positions(observation, layer, content)
        is_even = model.get_visible_keys(observation, layer) & tokens[:, None]
        return make_uniform(attention, is_even.unsqueeze(1))[None]

    probs = model.replay(observation, observation.edit_attention(site, spread_evenly))[0]
    prediction = model.prediction
    if prediction.is_number:
        share = (probs - observation.probs)[:, 0].abs().double() * model.sharpness
    else:
        decisions = prediction.decide(observation.probs)
        margin = prediction.compute_decision_margins(observation.probs, decisions)
        even_margin = prediction.compute_decision_margins(probs, decisions)
        share = 1 - even_margin / margin
    has_pattern = content.sum(-1) > 1
    return share.clamp(0, 1).masked_fill(~has_pattern, torch.nan)
