"""Do all the states that attention weighs point the same way?

Mohankumar et al. 2020, Section 2.

Question: if they do, their weighted means do too, whatever the weights: is that why
          shuffling attention changes nothing?
Measure:  conicity, the mean over a text's tokens of the cosine between a token's vector
          and the mean of them all. The vectors are what the attention averages: the
          encoder's states of a classifier, of sentences in a hierarchical one, the
          head's value vectors in a Transformer.
Compare:  ``conicity`` has the cosine's sign, as the paper defines it;
          ``absolute_conicity`` takes |cos| as its code does.
Reading:  1 all vectors point the same way, 0 they are spread around the origin. A text
          of one token has 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.faithfulness.options import NoOptions
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.similarity import conicity as conicity_of
from hf_attnprobe.protocol import HeadValues, Observation, Site


READINGS = {
    "conicity": (
        "the vectors that attention weighs have a mean cosine of {mean:.2f} with their mean"
    ),
    "absolute_conicity": "without the sign that mean cosine is {mean:.2f}",
}


@dataclass(frozen=True)
class ConicityResult:
    """Both [batch], over a text's tokens or sentences; in [−1, 1] and [0, 1]."""

    conicity: Tensor
    absolute_conicity: Tensor


@register_test(
    readings=READINGS,
    does="measures how alike the states are that attention chooses from",
    needs=(HeadValues,),
)
@torch.no_grad()
def conicity(
    observation: Observation,
    site: Site,
    options: NoOptions = NoOptions(),
    *,
    seed: int = 0,
) -> ConicityResult:
    """Conicity of the vectors that the attention of ``site`` weighs.

    Args:
        seed: unused, nothing here is random.
    """
    model = observation.model
    vectors = model.require(HeadValues).states(observation, site)
    counted = model.positions(observation, site.layer, observation.batch.content_mask)
    return ConicityResult(
        conicity_of(vectors, counted),
        conicity_of(vectors, counted, absolute=True),
    )
