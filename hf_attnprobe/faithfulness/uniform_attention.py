"""Does a head need its pattern at all?

Its attention replaced by uniform attention, in the trained model.

Question: does it matter that this head attends to some tokens more than to others?
Measure:  total variation distance between the outputs with and without the pattern, and
          whether the decision flips. Tutek & Šnajder 2020 (Section 4.1, "Un") do this
          to their classifiers; retraining is another test.
Groups:   the heads of a layer, or of all layers, made uniform at once.
Reading:  0 a uniform average would do, 1 the pattern decides everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import NoOptions
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import uniform
from hf_attnprobe.protocol import Observation, Site


READINGS: TestReadings = {
    "uniform_tvd": ("with uniform attention the output moves by {mean:.2f} {unit}"),
    "uniform_tvd_of": ("with uniform attention what is said of {key} moves by {mean:.2f} of 1"),
    "uniform_flip": share("with uniform attention {decision} flips in {mean:.0%} of texts"),
}


@dataclass(frozen=True)
class UniformAttentionResult:
    """All [batch]: change of the output in [0, 1] (of a number, in its unit), 1 where the
    decision flipped, and the change by part; None where the parts have no names.
    """

    uniform_tvd: Tensor
    uniform_flip: Tensor
    uniform_tvd_of: Mapping[str, Tensor] | None = None


@register_test(
    readings=READINGS,
    does="gives all tokens of a text the same weight",
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
    """Makes the attention of a head or a group uniform over the keys each query may see.

    All queries are edited, or ``site.query`` alone.

    Args:
        seed: unused, nothing here is random.
    """
    model = observation.model

    def flat(layer: int, attention: Tensor) -> Tensor:
        visible = model.visible(observation, layer)
        return uniform(attention, visible.unsqueeze(1))[None]

    after = model.replay(observation, observation.edited(site, flat))[0]
    flipped = observation.flips(after).to(torch.float64)
    moved = tvd(after, observation.probs)
    by_part = observation.moved_by_part(after)
    return UniformAttentionResult(moved, flipped, by_part)
