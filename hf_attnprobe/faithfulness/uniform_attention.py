"""Does a head need its pattern at all? Its attention replaced by uniform attention, in the trained model.

Question: does it matter that this head attends to some tokens more than to others?
Measure:  total variation distance between the outputs with and without the pattern, and whether the decision flips.
          Tutek & Šnajder 2020 (Section 4.1, "Un") do this to their classifiers; retraining is another test.
Reading:  0 a uniform average would do, 1 the pattern decides everything.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.attention_model import AttentionModel, Observation, Site
from hf_attnprobe.functional.divergence import decision_flip, tvd
from hf_attnprobe.functional.intervention import at_head, uniform


READINGS = {
    "uniform_tvd": "with uniform attention in this head the output moves by {mean:.2f} of 1",
    "uniform_flip": "with uniform attention in this head the decision flips in {mean:.0%} of texts",
}


@dataclass(frozen=True)
class UniformAttentionResult:
    """Both [batch]: change of the output in [0, 1], and 1 where the predicted class changed."""

    uniform_tvd: Tensor
    uniform_flip: Tensor


@torch.no_grad()
def uniform_attention(
    model: AttentionModel, observation: Observation, site: Site, *, seed: int = 0
) -> UniformAttentionResult:
    """One head's attention uniform over what each query may see (all its queries, or ``site.query`` alone)."""
    attention = observation.attention[site.layer]
    flat = uniform(attention[:, site.head], model.visible(observation, site.layer))[
        None
    ]
    after = model.replay(
        observation, {site.layer: at_head(attention, site.head, site.query, flat)}
    )[0]
    flipped = decision_flip(observation.probs, after).to(torch.float64)
    return UniformAttentionResult(tvd(after, observation.probs), flipped)
