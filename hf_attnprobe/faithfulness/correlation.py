"""Does attention rank tokens as feature importance does?

Jain & Wallace 2019, Section 4.1, Algorithm 1.

Question: do tokens with more attention matter more to the output?
Measure:  Kendall's τ-b between the attention of a text's tokens and (a) |gradient ×
          input| of the output with the attention weights held fixed, (b) the change of
          the output when the token is left out of the input.
Compare:  τ-b of (a) with (b): how far two measures of importance agree that do not look
          at attention; text by text, how much more one of them agrees with the other
          than attention does (the paper's Figures 3 and 4).
Top:      the share of the k tokens that one ranks first among the k that the other does,
          beside k / T, what random orders of T tokens come to; and τ on the union of
          both, 1 − 2K / pairs for the distance K of Fagin et al. (2003) with p = ½.
Weighted: as (b), but every pair of tokens counts by how much their importances differ
          (Gini correlation, functional/rank.py): where one token decides, the order of
          the others is noise and weighs nothing. Precision: of the fewest tokens that
          hold half of the importance, the share among as many of most attention.
Reading:  1 the same order, 0 unrelated orders, −1 the reverse. Agreement is
          significant where τ > 0 and its two-sided p ≤ .05 (the papers also count
          τ < 0); an undefined τ is not. Beside it stands how often unrelated orders
          agree as significantly: 0 in texts of up to 4 tokens, 2.5% in long ones.

What differs by rounding alone is a tie. Attention and gradients are exact relative to
themselves. Leave-one-out is a difference of two outputs: exact relative to 1 − p of the
predicted class, as far as its logits are. Tokens whose effects on the logits differ by
less than the logits' own rounding (in float32 some 3e-5) share a rank; in float64 they
need not.

Where several tokens tie for the k-th place, it is drawn among them: the overlap is its
mean over the draws of both sides. For τ on the union all of them are in. Both are NaN in
texts of k tokens or fewer, whose top is the whole text.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import Correlation
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import small_side
from hf_attnprobe.functional.rank import (
    chance_of_agreement,
    dense_rank,
    gini_correlation,
    heaviest,
    kendall_tau_b_matrix,
    precision,
    top_overlap,
    top_tau,
)
from hf_attnprobe.protocol import (
    Differentiable,
    EditableInputs,
    Observation,
    Site,
)


LEVEL = 0.05
ROUNDINGS = 256
"""Values closer than so many roundings of a single operation are equal, but never
more than ``AT_MOST`` apart, which is what matters in 16 bits."""
AT_MOST = 0.01
PAIRS = ((0, 1), (0, 2), (1, 2))  # attention, gradient, leave-one-out
NAMES = (
    "attention_gradient",
    "attention_leave_one_out",
    "gradient_leave_one_out",
)

READINGS: TestReadings = {
    "attention_gradient_tau": (
        "attention and gradients order the tokens with rank correlation {mean:.2f} (1 "
        "is the same order)"
    ),
    "attention_gradient_significant": share(
        "attention and gradients agree significantly (p ≤ .05, τ > 0) in {mean:.0%} of texts"
    ),
    "attention_leave_one_out_tau": (
        "attention and leaving out order the tokens with rank correlation {mean:.2f}"
    ),
    "attention_leave_one_out_significant": share(
        "attention and leaving out agree significantly (p ≤ .05, τ > 0) in {mean:.0%} of texts"
    ),
    "gradient_leave_one_out_tau": (
        "gradients and leaving out, the yardstick, agree with rank correlation {mean:.2f}"
    ),
    "gradient_leave_one_out_significant": share(
        "gradients and leaving out agree significantly (p ≤ .05, τ > 0) in {mean:.0%} of texts"
    ),
    "significant_by_chance": share(
        "orders that have nothing to do with each other agree as significantly in "
        "{mean:.1%} of texts (never in texts of 4 tokens or fewer)"
    ),
    "attention_gradient_p_value": ("the mean p-value of attention against gradients is {mean:.2f}"),
    "attention_leave_one_out_p_value": (
        "the mean p-value of attention against leaving out is {mean:.2f}"
    ),
    "gradient_leave_one_out_p_value": (
        "the mean p-value of gradients against leaving out is {mean:.2f}"
    ),
    "leave_one_out_tau_difference": (
        "gradients order the tokens nearer to leaving out than attention does by "
        "{mean:+.2f} of rank correlation (mean over texts; below 0 attention is nearer)"
    ),
    "gradient_tau_difference": (
        "leaving out orders the tokens nearer to gradients than attention does by "
        "{mean:+.2f} of rank correlation (mean over texts; below 0 attention is nearer)"
    ),
    "attention_leave_one_out_agreement": (
        "attention puts first what matters most when left out with a Gini correlation "
        "of {mean:.2f} (1 is the best order, 0 chance)"
    ),
    "attention_leave_one_out_precision": (
        "{mean:.2f} of the tokens that together hold half of the importance by leaving out "
        "are among as many that attention ranks first"
    ),
    "attention_gradient_top_overlap": share(
        "{mean:.0%} of the {key} most attended tokens are among the {key} of the largest "
        "gradients (mean over longer texts)"
    ),
    "attention_leave_one_out_top_overlap": share(
        "{mean:.0%} of the {key} most attended tokens are among the {key} that matter "
        "most when left out (mean over longer texts)"
    ),
    "gradient_leave_one_out_top_overlap": share(
        "{mean:.0%} of the {key} tokens of the largest gradients are among the {key} "
        "that matter most when left out (mean over longer texts)"
    ),
    "top_overlap_by_chance": share(
        "orders that have nothing to do with each other share {mean:.0%} of their first "
        "{key} tokens (mean over longer texts)"
    ),
    "attention_gradient_top_tau": (
        "on the {key} first tokens of both attention and gradients have rank correlation {mean:.2f}"
    ),
    "attention_leave_one_out_top_tau": (
        "on the {key} first tokens of both attention and leaving out have rank "
        "correlation {mean:.2f}"
    ),
    "gradient_leave_one_out_top_tau": (
        "on the {key} first tokens of both gradients and leaving out have rank "
        "correlation {mean:.2f}"
    ),
}


@dataclass(frozen=True)
class CorrelationResult:
    """All [batch]: τ-b in [−1, 1] and p-values, NaN for one-token texts and constant
    rows; significant is 1 where p ≤ .05 and τ > 0, else 0.

    ``significant_by_chance`` is the probability of that for a random order of as many
    tokens, without ties. ``leave_one_out_tau_difference`` is τ(gradient, leave-one-out)
    − τ(attention, leave-one-out), ``gradient_tau_difference`` τ(gradient, leave-one-out)
    − τ(attention, gradient), both in [−2, 2]. ``attention_leave_one_out_agreement`` is in
    [−1, 1], its precision in [0, 1]; both are NaN where no token matters more than
    another.

    By number k of tokens: overlaps in [0, 1] and τ on the union in [−1, 1], NaN in texts
    of k tokens or fewer; τ also where the union is a single token.
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
    leave_one_out_tau_difference: Tensor
    gradient_tau_difference: Tensor
    attention_leave_one_out_agreement: Tensor
    attention_leave_one_out_precision: Tensor
    attention_gradient_top_overlap: Mapping[int, Tensor] = field(default_factory=dict)
    attention_leave_one_out_top_overlap: Mapping[int, Tensor] = field(default_factory=dict)
    gradient_leave_one_out_top_overlap: Mapping[int, Tensor] = field(default_factory=dict)
    top_overlap_by_chance: Mapping[int, Tensor] = field(default_factory=dict)
    attention_gradient_top_tau: Mapping[int, Tensor] = field(default_factory=dict)
    attention_leave_one_out_top_tau: Mapping[int, Tensor] = field(default_factory=dict)
    gradient_leave_one_out_top_tau: Mapping[int, Tensor] = field(default_factory=dict)


@register_test(
    readings=READINGS,
    does="compares the order of attention with that of gradients and of leaving out",
    groups=True,
    needs=(Differentiable, EditableInputs),
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
    observation = observation.explaining(options.target)
    content = observation.batch.content_mask
    attention = observation.read(site)
    gradient = observation.gradient_importance()
    leave_one_out = observation.leave_one_out_importance()
    values = torch.stack([attention, gradient, leave_one_out], dim=1)
    unit = _unit_of_leave_one_out(observation)
    units = torch.stack([0 * unit, 0 * unit, unit], dim=1)
    ranked = ranks(values, content.unsqueeze(1), units)
    found = kendall_tau_b_matrix(ranked, content)
    # NaN is not significant, as in the paper's count over all texts.
    significant = ((found.p_value <= LEVEL) & (found.tau > 0)).double()
    parts = torch.stack([found.tau, found.p_value, significant])
    by_pair = [part for x, y in PAIRS for part in parts[:, :, x, y]]
    by_chance = chance_of_agreement(content.sum(-1), level=LEVEL)
    baseline = found.tau[:, 1, 2]
    differences = [baseline - found.tau[:, 0, 2], baseline - found.tau[:, 0, 1]]
    tops = _tops(ranked, content, options.tops)
    agreements = _weighted(ranked, leave_one_out, content)
    found_ones = [*by_pair, by_chance, *differences, *agreements]
    return CorrelationResult(*found_ones, **tops)


def _weighted(ranked: Tensor, importance: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    """Returns Gini correlation and precision of attention against leave-one-out, each [batch].

    Shape: ranked [batch, 3, keys], see :data:`PAIRS`.
    """
    attention = ranked[:, 0]
    all_equal = ranked[:, 2].masked_fill(~content, 0).amax(-1) == 0
    agreement = gini_correlation(importance, attention, content)
    agreement = agreement.masked_fill(all_equal, torch.nan)
    wanted = heaviest(importance, content)
    precise = precision(attention, wanted, content)
    precise = precise.masked_fill(all_equal, torch.nan)
    return agreement, precise


def _tops(ranked: Tensor, content: Tensor, tops: Sequence[int]) -> dict[str, Any]:
    """Overlap and τ of the first k tokens of each pair of rankings, by statistic and k, each
    [batch].

    Shape: ranked [batch, 3, keys], see :data:`PAIRS`.
    """
    n_tokens = content.sum(-1)
    one, other = (list(side) for side in zip(*PAIRS, strict=True))
    first = ranked[:, one].flatten(0, 1)
    second = ranked[:, other].flatten(0, 1)
    mask = content.repeat_interleave(len(PAIRS), 0)
    found: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for k in sorted(set(tops)):
        too_short = n_tokens <= k
        chance = k / n_tokens.double()
        chance = chance.masked_fill(too_short, torch.nan)
        found["top_overlap_by_chance"][k] = chance
        for kind, measure in (("overlap", top_overlap), ("tau", top_tau)):
            measured = measure(first, second, mask, k)
            by_pair = measured.unflatten(0, (-1, len(PAIRS)))
            by_pair = by_pair.masked_fill(too_short[:, None], torch.nan)
            for name, values in zip(NAMES, by_pair.unbind(1), strict=True):
                found[f"{name}_top_{kind}"][k] = values
    return found


def ranks(values: Tensor, content: Tensor, unit: Tensor | float = 0.0) -> Tensor:
    """Dense ranks [..., keys] in which values that differ by rounding alone are equal.

    Args:
        values, content: [..., keys].
        unit: the numbers whose difference the values are, [..., 1]: their rounding
            stays where they cancel. Without one, rounding is relative to each value.
    """
    rounding = min(ROUNDINGS * torch.finfo(values.dtype).eps, AT_MOST)
    return dense_rank(values, content, rtol=rounding, atol=rounding * unit)


def leave_one_out_ranks(observation: Observation) -> Tensor:
    """Ranks [batch, keys] of the leave-one-out importance.

    Leaving out either of two equal neighbours leaves the same text, hence a tie.
    """
    importance = observation.leave_one_out_importance()
    unit = _unit_of_leave_one_out(observation)
    return ranks(importance, observation.batch.content_mask, unit)


def _unit_of_leave_one_out(observation: Observation) -> Tensor:
    """Size of the probability that leave-one-out subtracts from, [batch, 1]; it sets the
    rounding.
    """
    return small_side(observation.probs, observation.target(None)).abs()[:, None]
