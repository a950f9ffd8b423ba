"""Test ``screen``: which heads could matter at all?

A single backward pass estimates the effect of an edit on every head to first order.

Question
    For which heads are the exact tests worth their time?

Measure
    |⟨∂p/∂A, A' − A⟩|, the change of the explained class's probability p that the gradient at the
    model's attention A predicts for the edited attention A'. The edits are uniform attention and no
    attention (which zeroes the head's output). This is attribution patching (Nanda 2023; Kramár et
    al. 2024, AtP) of attention. A third edit gives even weights to the explained tokens, as the path
    share in ``uniform_attention``. Only the loss of p counts: max(0, ⟨∂p/∂A, A − A'⟩). Like the path
    share, it always concerns the predicted class, even if another class is explained.

Interpretation
    The statistics estimate the results that ``uniform_attention`` and ``head_ablation`` would give.
    They are wrong for saturated models. Heads are sorted by ``first_order_even``, because a head is
    graded by its path share. In a fine-tuned MiniLM with 72 heads (24 texts of SST), the rank
    correlation with the path share is .96 for ``first_order_even`` and .59 for
    ``first_order_uniform``.
"""

from dataclasses import dataclass

from torch import Tensor

from hf_attnprobe.faithfulness.options import Screen
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.intervention import make_uniform
from hf_attnprobe.protocol import Differentiable, Observation, Site


READINGS = {
    "first_order_uniform": (
        "to first order, uniform attention in this head moves the output by {mean:.3f} {unit}"
    ),
    "first_order_even": (
        "to first order, even weights in this head cost the prediction {mean:.3f} {unit}"
    ),
    "first_order_zero": (
        "to first order, zeroing the output of this head moves the output by {mean:.3f} {unit}"
    ),
}


@dataclass(frozen=True)
class ScreenResult:
    """Statistics from the test ``screen``, non-negative tensors ``[batch]``.

    They are estimates of probability changes and can exceed 1.

    Attributes:
        first_order_uniform: Estimated effect of uniform attention.
        first_order_even: Estimated loss of the predicted class's probability with even weights over
            the explained tokens. For a predicted number, its estimated change.
        first_order_zero: Estimated effect of zeroing the head's output.
    """

    first_order_uniform: Tensor
    first_order_even: Tensor
    first_order_zero: Tensor


@register_test(
    readings=READINGS,
    summary="estimates the effect of each head from one backward pass",
    needs=(Differentiable,),
    default="many heads",
)
def screen(
    observation: Observation,
    site: Site,
    options: Screen = Screen(),
    *,
    seed: int = 0,
) -> ScreenResult:
    """Estimate to first order how much a head's attention affects the prediction.

    One backward pass gives the gradients for all heads. It is cached.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head.
        options: Explained class.
        seed: Unused, because the test is deterministic.

    Returns:
        Statistics per text.
    """
    predicted_gradient = observation.attention_gradient[site.layer][:, site.head]
    observation = observation.with_target(options.target)
    model = observation.model
    visible = model.get_visible_keys(observation, site.layer)
    tokens = model.get_unit_positions(observation, site.layer, observation.batch.content_mask)
    is_even = visible & tokens[:, None]
    attention = observation.attention[site.layer][:, site.head]
    gradient = observation.attention_gradient[site.layer][:, site.head]
    slope, predicted_slope = gradient * visible, predicted_gradient * visible
    if site.query is not None:
        rows = slice(site.query, site.query + 1)
        attention = attention[:, rows]
        slope, predicted_slope = slope[:, rows], predicted_slope[:, rows]
        visible, is_even = visible[:, rows], is_even[:, rows]
    uniform_effect = slope * (make_uniform(attention, visible) - attention)
    even_effect = (predicted_slope * (make_uniform(attention, is_even) - attention)).sum((-2, -1))
    zero_effect = slope * attention
    return ScreenResult(
        uniform_effect.sum((-2, -1)).abs(),
        even_effect.abs() if model.prediction.is_number else (-even_effect).clamp_min(0),
        zero_effect.sum((-2, -1)).abs(),
    )
