"""Which heads can matter at all?

The first-order effect of an edit on every head, from one backward pass.

Question: where is it worth running the exact tests?
Measure:  |⟨∂p/∂A, A' − A⟩|, the change of the explained class's probability p that the
          gradient at the model's own attention A predicts for the edited A': uniform
          attention, and no attention (the head's output zeroed). Attribution patching
          (Nanda 2023; Kramár et al. 2024, AtP) of attention edits.
Reading:  an estimate of what ``uniform_attention`` and ``head_ablation`` measure; wrong
          where the model saturates. The report says how well it ranked the heads that
          were then tested.
"""

from dataclasses import dataclass

from torch import Tensor

from hf_attnprobe.faithfulness.options import Screen
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.intervention import uniform
from hf_attnprobe.protocol import Differentiable, Observation, Site


READINGS = {
    "first_order_uniform": (
        "to first order, uniform attention in this head moves the output by {mean:.3f} {unit}"
    ),
    "first_order_zero": (
        "to first order, zero-ablating this head moves the output by {mean:.3f} {unit}"
    ),
}


@dataclass(frozen=True)
class ScreenResult:
    """Both [batch], not negative; estimates, so they may exceed 1."""

    first_order_uniform: Tensor
    first_order_zero: Tensor


@register_test(
    readings=READINGS,
    does="estimates quickly what each head does",
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
    """Estimates a head's effect to first order; all heads share one backward pass.

    Args:
        seed: unused, nothing here is random.
    """
    observation = observation.explaining(options.target)
    visible = observation.model.visible(observation, site.layer)
    attention = observation.attention[site.layer][:, site.head]
    gradient = observation.attention_gradient[site.layer][:, site.head]
    slope = gradient * visible
    if site.query is not None:
        rows = slice(site.query, site.query + 1)
        attention = attention[:, rows]
        slope = slope[:, rows]
        visible = visible[:, rows]
    moved = slope * (uniform(attention, visible) - attention)
    removed = slope * attention
    return ScreenResult(moved.sum((-2, -1)).abs(), removed.sum((-2, -1)).abs())
