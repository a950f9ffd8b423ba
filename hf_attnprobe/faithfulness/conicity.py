"""Test ``conicity``: do all states that attention averages point in the same direction?

Mohankumar et al. 2020, Section 2.

Question
    If all states point in the same direction, so does any weighted mean of them. Does this explain
    why shuffling attention hardly changes the output?

Measure
    Conicity is the mean cosine between a text's token states and their mean. The states are the
    vectors that attention averages: encoder states in an attention classifier (sentence states if
    it is hierarchical), value vectors in a Transformer head.

Variants
    ``conicity`` keeps the sign of the cosine, as in the paper's definition. ``absolute_conicity``
    uses its absolute value, as in the paper's code.

Interpretation
    1: all states point in the same direction. 0: they are spread around the origin. A one-token
    text has 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.faithfulness.options import NoOptions
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.similarity import conicity as compute_conicity
from hf_attnprobe.protocol import HeadValues, Observation, Site


READINGS = {
    "conicity": (
        "the states that attention averages have a mean cosine of {mean:.2f} with their mean"
    ),
    "absolute_conicity": (
        "the absolute cosine of these states with their mean is {mean:.2f} on average"
    ),
}


@dataclass(frozen=True)
class ConicityResult:
    """Statistics from the test ``conicity``, tensors ``[batch]``.

    Attributes:
        conicity: Mean cosine with the mean state, in [−1, 1].
        absolute_conicity: Mean absolute cosine with the mean state, in [0, 1].
    """

    conicity: Tensor
    absolute_conicity: Tensor


@register_test(
    readings=READINGS,
    summary="measures how similar the states are that attention averages",
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
    """Compute how similar the states are that a head's attention averages (their conicity).

    Args:
        observation: Model outputs and attention for a batch.
        site: Head.
        options: Unused, because the test has no options.
        seed: Unused, because the test is deterministic.

    Returns:
        Statistics per text.
    """
    model = observation.model
    states = model.require(HeadValues).get_states(observation, site)
    positions = model.get_unit_positions(observation, site.layer, observation.batch.content_mask)
    return ConicityResult(
        compute_conicity(states, positions),
        compute_conicity(states, positions, absolute=True),
    )
