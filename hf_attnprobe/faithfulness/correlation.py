"""Test ``correlation``: does attention rank tokens as feature importance does?

Jain & Wallace 2019, Section 4.1, Algorithm 1.

Question
    Do tokens with more attention have more influence on the output?

Measure
    Kendall's τ-b between the attention of a text's tokens and (a) |gradient × input| with the
    attention weights held fixed, (b) leave-one-out: the output change when the token is removed
    from the input.

Weighted agreement
    Two statistics give more weight to important tokens.

    - Gini correlation between attention and (b): each pair of tokens is weighted by their
      difference in effect (see ``functional/rank.py``). For example, if a single token decides, the
      order of the other tokens does not matter.
    - Precision: the fewest tokens that together have half of the total importance are the important
      tokens. Precision is their share among equally many tokens with the most attention.

Top-k sets
    Two statistics only compare the top k tokens of two rankings.

    - Overlap: the share of tokens that are in the top k of both rankings. Random orders of T tokens
      have an expected overlap of k / T. If tokens tie for rank k, the overlap is averaged over all
      choices between them.
    - Kendall's τ on the union of both sets, 1 − 2K / pairs, with the distance K of Fagin et al.
      2003 for p = ½. If tokens tie for rank k, all of them belong to the set.

    Both are NaN in texts with at most k tokens.

Baseline
    τ-b between (a) and (b), which is the agreement between two importance measures that do not use
    attention. For each text the test also reports how much more (a) and (b) agree with each other
    than attention does with either (Figures 3 and 4 of the paper).

Interpretation
    1 is the same order, 0 are unrelated orders, and −1 is the reverse order.

    An agreement is significant if τ > 0 and its two-sided p ≤ .05. (The paper also counts τ < 0.)
    An undefined τ is not significant. ``significant_by_chance`` is the probability that a random
    order is significant. It is 0 in texts with up to 4 tokens, and 2.5% in long texts.

Ties
    Values that differ only by rounding are ties. The rounding error of attention and gradients is
    proportional to each value. Leave-one-out is a difference between two outputs, so its rounding
    error is proportional to 1 − p, with the predicted class's probability p. In float32, tokens
    share a rank if their effects on the logits differ by less than about 3e-5. Float64 can
    distinguish such effects.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import Correlation
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.functional.rank import (
    compute_chance_of_agreement,
    dense_rank,
    gini_correlation,
    kendall_tau_b_matrix,
    r_precision,
    select_heaviest,
    top_overlap,
    top_tau,
)
from hf_attnprobe.protocol import (
    Differentiable,
    EditableInputs,
    Observation,
    Site,
)


TAU_SIGNIFICANCE_LEVEL = 0.05
"""Significance level for rank correlations (Kendall's τ), as in Jain & Wallace 2019."""
TIE_ROUNDING_STEPS = 256
"""Two values are tied if they differ by at most this number of rounding steps. A rounding step is
the machine precision, ``torch.finfo(dtype).eps``, times the value."""
MAX_TIE_TOLERANCE = 0.01
"""Largest relative difference between two tied values. This limit is only reached by 16-bit data
types, which have large rounding steps."""
RANKING_PAIR_INDICES = ((0, 1), (0, 2), (1, 2))
"""Index pairs of the rankings that are compared with each other. Index 0 is the ranking by
attention, 1 by gradients, and 2 by leave-one-out."""
RANKING_PAIR_NAMES = (
    "attention_gradient",
    "attention_leave_one_out",
    "gradient_leave_one_out",
)
"""Names of the ranking pairs, in the order of :data:`RANKING_PAIR_INDICES`. The names of statistics
start with them, for example ``attention_gradient_tau``."""

READINGS: TestReadings = {
    "attention_gradient_tau": (
        "attention and gradients rank the tokens with a rank correlation of {mean:.2f} (1 is the "
        "same order)"
    ),
    "attention_gradient_significant": make_share_reading(
        "attention and gradients agree significantly (p ≤ .05, τ > 0) in {mean:.0%} of texts"
    ),
    "attention_leave_one_out_tau": (
        "attention and leave-one-out rank the tokens with a rank correlation of {mean:.2f}"
    ),
    "attention_leave_one_out_significant": make_share_reading(
        "attention and leave-one-out agree significantly (p ≤ .05, τ > 0) in {mean:.0%} of texts"
    ),
    "gradient_leave_one_out_tau": (
        "gradients and leave-one-out, the baseline, have a rank correlation of {mean:.2f}"
    ),
    "gradient_leave_one_out_significant": make_share_reading(
        "gradients and leave-one-out agree significantly (p ≤ .05, τ > 0) in {mean:.0%} of texts"
    ),
    "significant_by_chance": make_share_reading(
        "unrelated orders would agree significantly in {mean:.1%} of texts (never in texts of 4 "
        "tokens or fewer)"
    ),
    "attention_gradient_p_value": "the mean p-value of attention and gradients is {mean:.2f}",
    "attention_leave_one_out_p_value": (
        "the mean p-value of attention and leave-one-out is {mean:.2f}"
    ),
    "gradient_leave_one_out_p_value": (
        "the mean p-value of gradients and leave-one-out is {mean:.2f}"
    ),
    "leave_one_out_tau_difference": (
        "the rank correlation with leave-one-out is larger for gradients than for attention by "
        "{mean:+.2f} (mean over texts; below 0, attention agrees better)"
    ),
    "gradient_tau_difference": (
        "the rank correlation with gradients is larger for leave-one-out than for attention by "
        "{mean:+.2f} (mean over texts; below 0, attention agrees better)"
    ),
    "attention_leave_one_out_agreement": (
        "the order of attention agrees with the effect of leaving tokens out with a Gini "
        "correlation of {mean:.2f} (1 is the best order, 0 chance)"
    ),
    "attention_leave_one_out_precision": (
        "{mean:.2f} of the tokens that carry half of the leave-one-out importance are among "
        "equally many tokens with the most attention"
    ),
    "attention_gradient_top_overlap": make_share_reading(
        "{mean:.0%} of the {key} tokens with the most attention are among the {key} with the "
        "largest gradients (mean over texts of more tokens)"
    ),
    "attention_leave_one_out_top_overlap": make_share_reading(
        "{mean:.0%} of the {key} tokens with the most attention are among the {key} most "
        "important tokens by leave-one-out (mean over texts of more tokens)"
    ),
    "gradient_leave_one_out_top_overlap": make_share_reading(
        "{mean:.0%} of the {key} tokens with the largest gradients are among the {key} most "
        "important tokens by leave-one-out (mean over texts of more tokens)"
    ),
    "top_overlap_by_chance": make_share_reading(
        "unrelated orders share {mean:.0%} of their first {key} tokens (mean over texts of more "
        "tokens)"
    ),
    "attention_gradient_top_tau": (
        "on the first {key} tokens of either ranking, attention and gradients have a rank "
        "correlation of {mean:.2f}"
    ),
    "attention_leave_one_out_top_tau": (
        "on the first {key} tokens of either ranking, attention and leave-one-out have a rank "
        "correlation of {mean:.2f}"
    ),
    "gradient_leave_one_out_top_tau": (
        "on the first {key} tokens of either ranking, gradients and leave-one-out have a rank "
        "correlation of {mean:.2f}"
    ),
}


@dataclass(frozen=True)
class CorrelationResult:
    """Statistics from the test ``correlation``: tensors ``[batch]``, or mappings to them by k.

    In the names, a pair such as ``attention_gradient`` stands for the two compared rankings.

    Attributes:
        attention_gradient_tau: Kendall's τ-b in [−1, 1]. All τ-b and p-values are NaN in one-token
            texts and for constant rankings.
        attention_gradient_p_value: Two-sided p-value of τ-b.
        attention_gradient_significant: 1 if p ≤ .05 and τ > 0, else 0.
        attention_leave_one_out_tau: Kendall's τ-b.
        attention_leave_one_out_p_value: Two-sided p-value of τ-b.
        attention_leave_one_out_significant: 1 if p ≤ .05 and τ > 0, else 0.
        gradient_leave_one_out_tau: Kendall's τ-b.
        gradient_leave_one_out_p_value: Two-sided p-value of τ-b.
        gradient_leave_one_out_significant: 1 if p ≤ .05 and τ > 0, else 0.
        significant_by_chance: Probability that a random order without ties is significant.
        leave_one_out_tau_difference: τ(gradient, leave-one-out) − τ(attention, leave-one-out), in
            [−2, 2].
        gradient_tau_difference: τ(gradient, leave-one-out) − τ(attention, gradient), in [−2, 2].
        attention_leave_one_out_agreement: Gini correlation in [−1, 1]. NaN if all tokens are
            equally important.
        attention_leave_one_out_precision: Precision in [0, 1]. NaN if all tokens are equally
            important.
        attention_gradient_top_overlap: Overlap of the top-k sets in [0, 1], by k. All top-k
            statistics are NaN in texts with k tokens or fewer.
        attention_leave_one_out_top_overlap: Overlap of the top-k sets.
        gradient_leave_one_out_top_overlap: Overlap of the top-k sets.
        top_overlap_by_chance: Expected overlap of unrelated top-k sets, k / T.
        attention_gradient_top_tau: τ on the union of the top-k sets in [−1, 1], by k. NaN also if
            the union is a single token.
        attention_leave_one_out_top_tau: τ on the union of the top-k sets.
        gradient_leave_one_out_top_tau: τ on the union of the top-k sets.
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
    summary="compares the ranking by attention with those by gradients and by leave-one-out",
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
    """Compute the rank correlations between attention, gradients and leave-one-out.

    Importance is absolute: tokens that lower the class's probability count as much as tokens that
    raise it.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose attention is ranked.
        options: Explained class and sizes of the top-k sets.
        seed: Unused, because the test is deterministic.

    Returns:
        Statistics per text.
    """
    observation = observation.with_target(options.target)
    content = observation.batch.content_mask
    attention = observation.read(site)
    gradient = observation.compute_gradient_importance()
    leave_one_out = observation.compute_leave_one_out_importance()
    values = torch.stack([attention, gradient, leave_one_out], dim=1)
    scale = _get_leave_one_out_scale(observation)
    scales = torch.stack([0 * scale, 0 * scale, scale], dim=1)
    ranks = rank_with_ties(values, content.unsqueeze(1), scales)
    kendall = kendall_tau_b_matrix(ranks, content)
    # NaN is not significant, as in the paper's count over all texts.
    significant = ((kendall.p_value <= TAU_SIGNIFICANCE_LEVEL) & (kendall.tau > 0)).double()
    matrices = torch.stack([kendall.tau, kendall.p_value, significant])
    pair_statistics = [
        matrix for first, second in RANKING_PAIR_INDICES for matrix in matrices[:, :, first, second]
    ]
    significant_by_chance = compute_chance_of_agreement(
        content.sum(-1), level=TAU_SIGNIFICANCE_LEVEL
    )
    baseline = kendall.tau[:, 1, 2]
    differences = [baseline - kendall.tau[:, 0, 2], baseline - kendall.tau[:, 0, 1]]
    top_statistics = _compare_tops(ranks, content, options.tops)
    weighted_statistics = _compare_weighted(ranks, leave_one_out, content)
    # The list follows the field order in the result.
    fields = [*pair_statistics, significant_by_chance, *differences, *weighted_statistics]
    return CorrelationResult(*fields, **top_statistics)


def _compare_weighted(ranks: Tensor, importance: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    """Compare attention with leave-one-out importance, mainly on the most important tokens.

    Kendall's τ treats all tokens alike. In these statistics, important tokens count more.

    Args:
        ranks: Ranks by attention, gradients and leave-one-out, ``[batch, 3, keys]``.
        importance: Leave-one-out importance ``[batch, keys]``.
        content: Whether each key is a token to be ranked (no padding or special token), bool
            ``[batch, keys]``.

    Returns:
        Gini correlation, and precision of the highest-ranked tokens, each ``[batch]``. Both are NaN
        if all tokens have the same importance.
    """
    attention_ranks, leave_one_out_ranks = ranks[:, 0], ranks[:, 2]
    # Ranks are counted from 0. If 0 is the largest rank, all tokens are equally important.
    is_constant = leave_one_out_ranks.masked_fill(~content, 0).amax(-1) == 0
    agreement = gini_correlation(importance, attention_ranks, content)
    important_tokens = select_heaviest(importance, content)
    precision = r_precision(attention_ranks, important_tokens, content)
    return (
        agreement.masked_fill(is_constant, torch.nan),
        precision.masked_fill(is_constant, torch.nan),
    )


def _compare_tops(ranks: Tensor, content: Tensor, tops: Sequence[int]) -> dict[str, Any]:
    """Compare the k highest-ranked tokens in each pair of rankings, by overlap and Kendall's τ.

    Args:
        ranks: Ranks by attention, gradients and leave-one-out, ``[batch, 3, keys]``.
        content: Whether each key is a token to be ranked (no padding or special token), bool
            ``[batch, keys]``.
        tops: Values of k, such as ``[1, 5, 10]``.

    Returns:
        Values ``[batch]`` by statistic and k; NaN in texts with at most k tokens.
    """
    n_tokens = content.sum(-1)
    # All pairs are compared at once: the pairs are an additional factor of the batch axis.
    first_indices = [first for first, _ in RANKING_PAIR_INDICES]
    second_indices = [second for _, second in RANKING_PAIR_INDICES]
    first_ranks = ranks[:, first_indices].flatten(0, 1)
    second_ranks = ranks[:, second_indices].flatten(0, 1)
    mask = content.repeat_interleave(len(RANKING_PAIR_INDICES), 0)
    statistics: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for k in sorted(set(tops)):
        is_too_short = n_tokens <= k
        # Two random sets of k tokens have an expected overlap of k / n.
        chance = k / n_tokens.double()
        chance = chance.masked_fill(is_too_short, torch.nan)
        statistics["top_overlap_by_chance"][k] = chance
        for measure_name, measure in (("overlap", top_overlap), ("tau", top_tau)):
            values = measure(first_ranks, second_ranks, mask, k)
            values = values.unflatten(0, (-1, len(RANKING_PAIR_INDICES)))
            values = values.masked_fill(is_too_short[:, None], torch.nan)
            for pair_name, pair_values in zip(RANKING_PAIR_NAMES, values.unbind(1), strict=True):
                statistics[f"{pair_name}_top_{measure_name}"][k] = pair_values
    return statistics


def rank_with_ties(values: Tensor, content: Tensor, scale: Tensor | float = 0.0) -> Tensor:
    """Rank values from 0 for the smallest, and give almost equal values the same rank.

    Two values are almost equal if rounding errors alone can cause their difference. For example,
    the values 0.9, 0.3 and 0.1 + 0.2 get the ranks 1, 0 and 0.

    Args:
        values: Values ``[..., keys]``.
        content: Whether each value is ranked, bool ``[..., keys]``.
        scale: Size of the numbers from which the values were computed by subtraction,
            ``[..., 1]``. The rounding error grows with it. With the default 0, the rounding error
            is proportional to each value.

    Returns:
        Ranks ``[..., keys]``.
    """
    tolerance = min(TIE_ROUNDING_STEPS * torch.finfo(values.dtype).eps, MAX_TIE_TOLERANCE)
    return dense_rank(values, content, rtol=tolerance, atol=tolerance * scale)


def rank_by_leave_one_out(observation: Observation) -> Tensor:
    """Rank the tokens by leave-one-out importance, ``[batch, keys]``.

    Two equal neighbouring tokens share a rank, because the text is the same without either of them.

    Args:
        observation: Model outputs and attention for a batch.
    """
    importance = observation.compute_leave_one_out_importance()
    scale = _get_leave_one_out_scale(observation)
    return rank_with_ties(importance, observation.batch.content_mask, scale)


def _get_leave_one_out_scale(observation: Observation) -> Tensor:
    """Return the size of the probabilities that leave-one-out subtracts, ``[batch, 1]``.

    A leave-one-out value is the difference between two probabilities. Its rounding error is
    proportional to the size of these probabilities, not to the size of the difference.
    """
    # None selects the explained class, which by default is the predicted class.
    target_classes = observation.get_target_classes(None)
    return compute_shifted_probability(observation.probs, target_classes).abs()[:, None]
