"""Erasure of attention weights for models whose logits are linear in the attention.

The encoder states h_t are fixed, and logits = Σ_t a_t u_t with u_t = W h_t + b. Serrano & Smith
2019 (Section 4) set one weight after the other to 0, divide the remaining weights by their sum, and
run the decoder again. Here, a single cumulative sum replaces all these runs.

Serrano & Smith call it infeasible to find the smallest set of weights that flips the decision. Here
it only requires sorting the tokens once per rival class: class c loses to class k if
Σ_{t remaining} a_t [(u_t)_c − (u_t)_k] is negative. This sum is the margin of c over k, and its
summands are the token margins.

Common arguments:
    attention: [batch, keys], 0 outside ``mask``.
    token_logits: the u_t, [batch, keys, classes].
    mask: bool [batch, keys], the weights that may be erased.
    bias: the logits b without any attention, [classes] or one number for all classes. If the
        remaining weights are not renormalised, logits = Σ_t a_t (u_t − b) + b. If they are
        renormalised, the bias only matters when all weights are erased (``all_zero``).
    order: int64 [..., batch, keys], the keys in the order of their removal, with the keys
        outside the mask last.

All arithmetic is in float64. As in ``argmax``, the class with the lower index wins among equal
logits.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class FlipSet(NamedTuple):
    """Smallest set of weights whose erasure changes the decision.

    The set consists of the ``size`` tokens with the largest ``token_margins``.

    Attributes:
        size: number of weights in the set, float64 [batch]; NaN if no set flips the decision.
        token_margins: how much each token adds to the predicted class's margin over its rival,
            float64 [batch, keys]. The rival is the class that wins after the erasure, or the
            runner-up if no set flips the decision.
    """

    size: Tensor
    token_margins: Tensor


class _ClassComparison(NamedTuple):
    """Margins of the predicted class, or of a target class, over all rival classes.

    Attributes:
        weights: attention weights, [batch, keys].
        token_margins: how much each token adds to the margin over each rival,
            [batch, rivals, keys].
        margin_offset: constant that is added to the sum of the token margins, [batch, rivals].
        bias_margin: margin without any attention, [batch, rivals].
        rival_wins_ties: whether the rival has the lower index, bool [batch, rivals].
        starts_lost: whether some rival wins before anything is erased, bool [batch]. This can
            only happen for a target class.
    """

    weights: Tensor
    token_margins: Tensor
    margin_offset: Tensor
    bias_margin: Tensor
    rival_wins_ties: Tensor
    starts_lost: Tensor

    def loses_to_rival(self, margins: Tensor) -> Tensor:
        """Check for each rival class whether its logit is higher than that of the explained class.

        Args:
            margins: logit of the explained class minus the logit of each rival class,
                [..., batch, rivals, n].

        Returns:
            bool with the same shape. If both logits are equal, the class with the lower index
            wins.
        """
        # At a margin of 0, the explained class only loses to a rival with a lower index.
        return torch.where(self.rival_wins_ties.unsqueeze(-1), margins <= 0, margins < 0)


def _compare_classes(
    attention: Tensor,
    token_logits: Tensor,
    mask: Tensor,
    bias: Tensor | float,
    renormalise: bool,
    target: int | None = None,
) -> _ClassComparison:
    """Compute how much each token adds to the margin of a class over every other class.

    Args:
        attention: attention weights, [batch, keys].
        token_logits: token logits, [batch, keys, classes].
        mask: weights that may be erased, bool [batch, keys].
        bias: logits without any attention.
        renormalise: whether the remaining weights are divided by their sum after an erasure.
        target: class that is compared with all others; by default the predicted class.

    Returns:
        The token margins, and constants from which the margins after an erasure follow.
    """
    # Renormalisation divides all logits by the same number, which does not change the decision.
    # The unnormalised sums are therefore sufficient.
    weights = attention.double() * mask
    logits = token_logits.double()
    bias_logits = torch.as_tensor(bias).to(logits).expand(logits.shape[-1])
    offset_logits = torch.zeros_like(bias_logits)
    if not renormalise:
        offset_logits = bias_logits
        logits = logits - offset_logits
    total_logits = (weights.unsqueeze(1) @ logits)[:, 0] + offset_logits
    predicted = total_logits.argmax(-1, keepdim=True)
    compared = predicted if target is None else torch.full_like(predicted, target)
    rivals = torch.arange(logits.shape[-1] - 1, device=logits.device)
    rivals = rivals + (rivals >= compared)

    class_logits = logits.transpose(1, 2)
    margins_per_weight = class_logits.take_along_dim(compared.unsqueeze(-1), 1)
    rival_logits = class_logits.take_along_dim(rivals.unsqueeze(-1), 1)
    margins_per_weight = margins_per_weight - rival_logits
    return _ClassComparison(
        weights=weights,
        token_margins=margins_per_weight * weights.unsqueeze(1),
        margin_offset=offset_logits[compared] - offset_logits[rivals],
        bias_margin=bias_logits[compared] - bias_logits[rivals],
        rival_wins_ties=rivals < compared,
        starts_lost=(predicted != compared)[:, 0],
    )


def compute_removal_order(scores: Tensor, mask: Tensor) -> Tensor:
    """List the keys in the order of their removal, highest score first.

    Args:
        scores: [..., keys]; keys with equal scores are removed from left to right.
        mask: bool [..., keys]; keys outside the mask come last.

    Returns:
        int64 [..., keys]; entry n is the key that is removed in step n.

    >>> compute_removal_order(torch.tensor([1.0, 3.0, 2.0]), torch.ones(3).bool()).tolist()
    [1, 2, 0]
    """
    masked_scores = scores.masked_fill(~mask, -torch.inf)
    return masked_scores.argsort(dim=-1, descending=True, stable=True)


def compute_removal_rank(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the step in which each key is removed, highest score first.

    The result is the inverse permutation of :func:`compute_removal_order`.

    Args:
        scores: [..., keys]; keys with equal scores are removed from left to right.
        mask: bool [..., keys]; keys outside the mask come last.

    Returns:
        int64 [..., keys]; entry k is the step of key k, 0 for the highest score.

    >>> compute_removal_rank(torch.tensor([1.0, 3.0, 2.0]), torch.ones(3).bool()).tolist()
    [2, 0, 1]
    """
    return compute_removal_order(scores, mask).argsort(-1)


def count_removals_to_flip(
    attention: Tensor,
    token_logits: Tensor,
    mask: Tensor,
    order: Tensor,
    *,
    bias: Tensor | float = 0.0,
    renormalise: bool = True,
    all_zero: bool = False,
    target: int | None = None,
) -> Tensor:
    """Count how many weights are erased, in a given order, until the decision changes.

    See Serrano & Smith 2019, Section 4.3.

    Args:
        attention: attention weights a_t, [batch, keys], 0 outside ``mask``.
        token_logits: token logits u_t, [batch, keys, classes].
        mask: bool [batch, keys], the weights that may be erased.
        order: keys in the order of their removal, int64 [..., batch, keys].
        bias: logits without any attention, [classes] or one number.
        renormalise: whether the remaining weights are divided by their sum.
        all_zero: whether all weights may be erased, so that the bias decides, as in the paper's
            released code. Otherwise one positive weight must remain.
        target: a class index. If given, the decision is only whether this class is predicted;
            a change between two other classes does not count.

    Returns:
        Counts, float64 [..., batch]; NaN if the decision never changes, and for texts with only
        one token.

    In this example, two tokens with weights .9 and .1 support class 0 and class 1. Without the
    first token, class 1 wins:

    >>> attention, mask = torch.tensor([[0.9, 0.1]]), torch.ones(1, 2).bool()
    >>> order = compute_removal_order(attention, mask)
    >>> count_removals_to_flip(attention, torch.eye(2)[None], mask, order).tolist()
    [1.0]
    """
    comparison = _compare_classes(attention, token_logits, mask, bias, renormalise, target)
    n_keys = mask.shape[-1]
    # The margins of the remaining tokens are summed from the last token in the order to the
    # first. Subtracting the erased tokens from the total would lose precision.
    reversed_order = order.flip(-1)
    margins = _sum_in_order(comparison.token_margins, reversed_order)
    margins.add_(comparison.margin_offset.unsqueeze(-1))
    is_lost = comparison.loses_to_rival(margins).any(-2)
    flips = is_lost != comparison.starts_lost[:, None]
    n_remaining = torch.arange(1, n_keys + 1, dtype=torch.int32, device=mask.device)
    # With all tokens remaining nothing is erased, so this is no flip.
    n_remaining[-1] = 0
    max_remaining = (flips * n_remaining).amax(-1)

    # One positive weight must remain.
    is_positive = (comparison.weights > 0).to(torch.int8)
    is_positive = is_positive.expand(order.shape).gather(-1, reversed_order)
    min_remaining = is_positive.argmax(-1) + 1
    has_no_weight = max_remaining < min_remaining
    n_removed = (n_keys - max_remaining).double()
    n_removed = n_removed.masked_fill(has_no_weight, torch.nan)

    if all_zero:
        is_lost = comparison.loses_to_rival(comparison.bias_margin.unsqueeze(-1))
        is_lost = is_lost.any(1)[:, 0]
        only_bias_flips = n_removed.isnan() & (is_lost != comparison.starts_lost)
        n_removed_until_bias = (n_keys - min_remaining + 1).double()
        n_removed = torch.where(only_bias_flips, n_removed_until_bias, n_removed)
    return n_removed.masked_fill(mask.sum(-1) < 2, torch.nan)


def _sum_in_order(values: Tensor, order: Tensor) -> Tensor:
    """Sort values in a given order, and compute their cumulative sums.

    For example, the values [1, 2, 3] in the order [2, 0, 1] are [3, 1, 2], with the sums
    [3, 4, 6].

    Args:
        values: [batch, rows, keys].
        order: indices of the keys in the new order, int64 [..., batch, keys].

    Returns:
        Cumulative sums, [..., batch, rows, keys].
    """
    *leading_shape, n_keys = order.shape
    index = order.unsqueeze(-2).expand(*leading_shape, values.shape[1], n_keys)
    ordered_values = values.expand(index.shape).gather(-1, index)
    return ordered_values.cumsum(-1)


def erase_each_weight(
    attention: Tensor,
    token_logits: Tensor,
    *,
    bias: Tensor | float = 0.0,
    renormalise: bool = True,
) -> Tensor:
    """Compute the logits of the model after erasing a single attention weight, for each weight.

    See Serrano & Smith 2019, Section 4.1. The logits of the model are bias + Σ_t a_t u_t.

    Args:
        attention: attention weights a_t, [batch, keys].
        token_logits: token logits u_t, [batch, keys, classes].
        bias: logits without any attention, [classes] or one number.
        renormalise: whether the remaining weights are divided by their sum.

    Returns:
        Logits, float64 [batch, keys, classes]; entry k is computed without the weight of key k.
        If no weight remains, the logits are the bias.
    """
    weights = attention.double().unsqueeze(-1)
    logits = token_logits.double()
    bias_logits = torch.as_tensor(bias).to(logits)
    if not renormalise:
        return _sum_over_other_keys(weights * (logits - bias_logits)) + bias_logits
    # The remaining weights are divided by their sum, so the logits are a weighted mean.
    remaining_weight = _sum_over_other_keys(weights)
    mean_logits = _sum_over_other_keys(weights * logits) / remaining_weight
    return torch.where(remaining_weight > 0, mean_logits, bias_logits)


def _sum_over_other_keys(values: Tensor) -> Tensor:
    """Compute for each key the sum of the values of all other keys.

    For example, the values [1, 2, 4] become [6, 5, 3].

    Args:
        values: [batch, keys, ...].

    Returns:
        Sums with the same shape.
    """
    # The keys to the left and to the right are summed separately. Subtracting a key from the
    # total would lose precision.
    sums = torch.zeros_like(values)
    sums[:, 1:] = values.cumsum(1)[:, :-1]
    sums[:, :-1] += values.flip(1).cumsum(1).flip(1)[:, 1:]
    return sums


def find_minimal_flip_set(
    attention: Tensor,
    token_logits: Tensor,
    mask: Tensor,
    *,
    bias: Tensor | float = 0.0,
    renormalise: bool = True,
    all_zero: bool = False,
) -> FlipSet:
    """Find the smallest set of weights whose erasure changes the decision.

    The result is exact for any number of classes. For each rival class, the tokens with the
    largest margins over it are erased first: no other set of the same size leaves a smaller
    margin. One positive weight must remain, unless ``all_zero`` is set. Tokens without weight
    never belong to the set.

    Args:
        attention: attention weights a_t, [batch, keys], 0 outside ``mask``.
        token_logits: token logits u_t, [batch, keys, classes].
        mask: bool [batch, keys], the weights that may be erased.
        bias: logits without any attention, [classes] or one number.
        renormalise: whether the remaining weights are divided by their sum.
        all_zero: whether all weights may be erased, so that the bias decides.

    Returns:
        Size of the smallest set, and the token margins that determine it.
    """
    comparison = _compare_classes(attention, token_logits, mask, bias, renormalise)
    is_positive = comparison.weights > 0
    n_positive = is_positive.sum(-1, keepdim=True)  # [batch, 1]
    is_weightless = ~is_positive.unsqueeze(1)
    token_margins = comparison.token_margins.masked_fill(is_weightless, torch.inf)
    ascending_margins, _ = token_margins.sort(dim=-1)
    margins = ascending_margins.cumsum(-1)
    margins += comparison.margin_offset.unsqueeze(-1)

    n_keys = mask.shape[-1]
    n_remaining = torch.arange(1, n_keys + 1, device=mask.device)
    is_erased = n_remaining < n_positive
    flips = comparison.loses_to_rival(margins) & is_erased.unsqueeze(1)
    max_remaining = (flips * n_remaining).amax(-1)  # [batch, rivals]
    size = (n_positive - max_remaining).double()
    size = size.masked_fill(max_remaining == 0, torch.inf)

    if all_zero:
        has_several_tokens = mask.sum(-1, keepdim=True) > 1
        full_set_flips = comparison.loses_to_rival(comparison.bias_margin.unsqueeze(-1))
        full_set_flips = full_set_flips[..., 0] & has_several_tokens
        only_full_set_flips = size.isinf() & full_set_flips
        size = torch.where(only_full_set_flips, n_positive.double(), size)

    exists = size.isfinite().any(-1)
    full_margin = comparison.token_margins.sum(-1) + comparison.margin_offset
    rival = torch.where(exists, size.argmin(-1), full_margin.argmin(-1))
    rival = rival[:, None]
    size = size.gather(1, rival)[:, 0]
    size = size.masked_fill(~exists, torch.nan)
    rival_margins = comparison.token_margins.take_along_dim(rival.unsqueeze(-1), 1)
    rival_margins = rival_margins[:, 0]
    return FlipSet(size, rival_margins)


def replace_unflipped_counts(n_removed: Tensor, n_tokens: Tensor, can_flip: Tensor) -> Tensor:
    """Replace NaN by the number of all tokens, in texts whose decision some order can flip.

    NaN means that an order never flips the decision. Afterwards, this order counts as if it must
    remove all tokens. This way, all orders are compared on the same texts.

    Args:
        n_removed: removals until the decision flips, float64 [..., batch]; NaN if it never
            flips.
        n_tokens: token count of each text, [batch].
        can_flip: whether any order flips the decision, bool [batch].

    Returns:
        Removal counts, float64 [..., batch]; NaN for texts whose decision cannot flip.

    >>> n_removed = torch.tensor([2.0, torch.nan, torch.nan]).double()
    >>> n_tokens, can_flip = torch.tensor([5, 5, 5]), torch.tensor([True, True, False])
    >>> replace_unflipped_counts(n_removed, n_tokens, can_flip).tolist()
    [2.0, 5.0, nan]
    """
    filled = torch.where(n_removed.isnan(), n_tokens.to(n_removed), n_removed)
    return filled.masked_fill(~can_flip, torch.nan)


def normalise_removals(n_removed: Tensor, random: Tensor, best: Tensor) -> Tensor:
    """Rescale removal counts so that a random order gets 0 and the best order gets 1.

    Args:
        n_removed: removal counts, or shares of removed tokens, [batch].
        random: the same number for a random order, [batch].
        best: the same number for the best order, [batch].

    Returns:
        Scores, [batch]: negative if more removals are needed than in a random order, and NaN if
        a random order is as good as the best order.

    >>> removals = torch.tensor([4.0, 8.0, 3.0])
    >>> random, best = torch.tensor([6.0, 6.0, 2.0]), torch.tensor([2.0, 2.0, 2.0])
    >>> normalise_removals(removals, random, best).tolist()
    [0.5, -0.5, nan]
    """
    scale_length = random - best
    scores = (random - n_removed) / scale_length
    return scores.masked_fill(scale_length == 0, torch.nan)
