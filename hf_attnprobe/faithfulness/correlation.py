"""Does attention rank tokens as feature importance does?

Jain & Wallace 2019, Section 4.1, Algorithm 1.

Question: do tokens with more attention matter more to the output?
Measure:  Kendall's τ-b between the attention of a text's tokens and (a) |gradient ×
          input| of the output with the attention weights held fixed, (b) the change of
          the output when the token is left out of the input.
Compare:  τ-b of (a) with (b): how far two measures of importance agree that do not look
          at attention.
Reading:  1 the same order, 0 unrelated orders, −1 the reverse. Agreement is
          significant where τ > 0 and its two-sided p ≤ .05 (the papers also count
          τ < 0); an undefined τ is not. Beside it stands how often unrelated orders
          agree as significantly: 0 in texts of up to 4 tokens, 2.5% in long ones.

What differs by rounding alone is a tie. Attention and gradients are exact relative to
themselves. Leave-one-out is a difference of two outputs: exact relative to 1 − p of the
predicted class, as far as its logits are. Tokens whose effects on the logits differ by
less than the logits' own rounding (in float32 some 3e-5) share a rank; in float64 they
need not.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.attention_model import (
    Differentiable,
    EditableInputs,
    Observation,
    Site,
)
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import AuditPreview, register_test
from hf_attnprobe.functional.divergence import small_side
from hf_attnprobe.functional.rank import (
    chance_of_agreement,
    dense_rank,
    kendall_tau_b_matrix,
)
from hf_attnprobe.options import Options, option


LEVEL = 0.05
ROUNDINGS = 256
"""Values closer than so many roundings of a single operation are equal, but never
more than ``AT_MOST`` apart, which is what matters in 16 bits."""
AT_MOST = 0.01
PAIRS = ((0, 1), (0, 2), (1, 2))  # attention, gradient, leave-one-out

READINGS = {
    "attention_gradient_tau": (
        "attention and gradients order the tokens with rank correlation {mean:.2f} (1 "
        "is the same order)"
    ),
    "attention_gradient_significant": (
        "attention and gradients agree significantly (p ≤ .05, τ > 0) in "
        "{mean:.0%} of texts"
    ),
    "attention_leave_one_out_tau": (
        "attention and leave-one-out order the tokens with rank correlation {mean:.2f}"
    ),
    "attention_leave_one_out_significant": (
        "attention and leave-one-out agree significantly (p ≤ .05, τ > 0) in "
        "{mean:.0%} of texts"
    ),
    "gradient_leave_one_out_tau": (
        "gradients and leave-one-out, the baseline, agree with rank correlation "
        "{mean:.2f}"
    ),
    "gradient_leave_one_out_significant": (
        "gradients and leave-one-out agree significantly (p ≤ .05, τ > 0) in "
        "{mean:.0%} of texts"
    ),
    "significant_by_chance": (
        "orders that have nothing to do with each other agree as significantly in "
        "{mean:.1%} of texts (never in texts of 4 tokens or fewer)"
    ),
    "attention_gradient_p_value": (
        "the mean p-value of attention against gradients is {mean:.2f}"
    ),
    "attention_leave_one_out_p_value": (
        "the mean p-value of attention against leave-one-out is {mean:.2f}"
    ),
    "gradient_leave_one_out_p_value": (
        "the mean p-value of gradients against leave-one-out is {mean:.2f}"
    ),
}
HEAD_TITLES = {
    "attention_leave_one_out_tau": "rank correlation of attention with leave-one-out",
    "attention_gradient_tau": "rank correlation of attention with gradients",
}


@dataclass(frozen=True)
class CorrelationResult:
    """All [batch]: τ-b in [−1, 1] and p-values, NaN for one-token texts and constant
    rows; significant is 1 where p ≤ .05 and τ > 0, else 0.

    ``significant_by_chance`` is the probability of that for a random order of as many
    tokens, without ties.
    """

    attention_gradient_tau: Tensor
    attention_gradient_p_value: Tensor
    attention_gradient_significant: Tensor
    attention_leave_one_out_tau: Tensor
    attention_leave_one_out_p_value: Tensor
    attention_leave_one_out_significant: Tensor
    gradient_leave_one_out_tau: Tensor
    gradient_leave_one_out_p_value: Tensor
    gradient_leave_one_out_significant: Tensor
    significant_by_chance: Tensor


@dataclass(frozen=True)
class Correlation(Options):
    """Which class's probability the importances explain."""

    target: int | None = option(
        None, "class whose probability is explained (default: the predicted one)"
    )


def _check(preview: AuditPreview, options: Correlation) -> None:
    n_classes = preview.shortest.probs.shape[-1]
    if options.target is not None and not 0 <= options.target < n_classes:
        raise AttnProbeError(
            f"expected a target class from 0 to {n_classes - 1}, got {options.target}"
        )


@register_test(
    readings=READINGS,
    head_titles=HEAD_TITLES,
    groups=True,
    needs=(Differentiable, EditableInputs),
    check=_check,
)
def correlation(
    observation: Observation,
    site: Site,
    options: Correlation = Correlation(),
    *,
    seed: int = 0,
) -> CorrelationResult:
    """Rank correlation of attention with gradient and leave-one-out importance.

    Importance is absolute: what lowers the class counts as much as what raises it.

    Args:
        seed: unused, nothing here is random.
    """
    content = observation.batch.content_mask
    attention = observation.read(site)
    gradient = observation.gradient_importance(options.target)
    leave_one_out = observation.leave_one_out_importance(options.target)
    values = torch.stack([attention, gradient, leave_one_out], dim=1)
    unit = _unit_of_leave_one_out(observation, options.target)
    units = torch.stack([0 * unit, 0 * unit, unit], dim=1)
    ranked = ranks(values, content.unsqueeze(1), units)
    found = kendall_tau_b_matrix(ranked, content)
    # NaN is not significant, as in the paper's count over all texts.
    significant = ((found.p_value <= LEVEL) & (found.tau > 0)).double()
    parts = torch.stack([found.tau, found.p_value, significant])
    by_pair = [part for x, y in PAIRS for part in parts[:, :, x, y]]
    by_chance = chance_of_agreement(content.sum(-1), level=LEVEL)
    return CorrelationResult(*[*by_pair, by_chance])


def ranks(values: Tensor, content: Tensor, unit: Tensor | float = 0.0) -> Tensor:
    """Dense ranks [..., keys] in which values that differ by rounding alone are equal.

    Args:
        values, content: [..., keys].
        unit: the numbers whose difference the values are, [..., 1]: their rounding
            stays where they cancel. Without one, rounding is relative to each value.
    """
    rounding = min(ROUNDINGS * torch.finfo(values.dtype).eps, AT_MOST)
    return dense_rank(values, content, rtol=rounding, atol=rounding * unit)


def leave_one_out_ranks(observation: Observation, target: int | None = None) -> Tensor:
    """Ranks [batch, keys] of the leave-one-out importance.

    Leaving out either of two equal neighbours leaves the same text, hence a tie.
    """
    importance = observation.leave_one_out_importance(target)
    unit = _unit_of_leave_one_out(observation, target)
    return ranks(importance, observation.batch.content_mask, unit)


def _unit_of_leave_one_out(observation: Observation, target: int | None) -> Tensor:
    """The numbers that leave-one-out is a difference of, [batch, 1]."""
    return small_side(observation.probs, observation.target(target)).abs()[:, None]
