"""Erasing attention weights where the read-out is linear in the attention.

The encoder states h_t stay fixed and logits = Σ_t a_t u_t with u_t = W h_t + b.
Serrano & Smith 2019 (Section 4) set weights to 0, divide the rest by their sum and
decode again, once per erased weight. Here all steps of a ranking are one cumulative
sum. The smallest set of weights that flips the decision, which they call infeasible,
is one sort per rival class: class c loses to k when Σ_{t kept} a_t [(u_t)_c − (u_t)_k]
is negative.

Common arguments:
    attention: [batch, keys], 0 outside ``mask``.
    token_logits: the u_t, [batch, keys, classes].
    mask: bool [batch, keys], the weights that may be erased.
    bias: the logits b without any attention, [classes] or one number for all. It counts
        without renormalising, where logits = Σ_t a_t (u_t − b) + b, and for the rule
        ``all_zero``.
    order: int64 [..., batch, keys], keys in the order of their removal, those outside
        the mask last.

All arithmetic is in float64. Decisions are those of ``argmax``: of equal logits the
class with the lower number wins.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class FlipSet(NamedTuple):
    """A smallest set of weights whose erasure changes the decision.

    Attributes:
        size: float64 [batch], the number of weights; NaN where no set flips.
        margin: float64 [batch, keys], what each token adds to the lead of the
            predicted class over the rival that then wins, or over the runner-up where
            no set flips. The ``size`` largest margins are a smallest set.
    """

    size: Tensor
    margin: Tensor


class _Duel(NamedTuple):
    """The predicted class, or a target, against every other class, its rivals.

    Attributes:
        weights: [batch, keys].
        margin: what a token adds to the lead over each rival, [batch, rivals, keys].
        lead: what is added to the sum of margins, [batch, rivals].
        bias_lead: the lead without any attention, [batch, rivals].
        loses_ties: bool [batch, rivals], whether the rival has the lower number.
        is_lost: bool [batch], whether a rival is ahead with every weight in place, as
            of a target it may be.
    """

    weights: Tensor
    margin: Tensor
    lead: Tensor
    bias_lead: Tensor
    loses_ties: Tensor
    is_lost: Tensor

    def lost(self, lead: Tensor) -> Tensor:
        """Whether a lead [..., batch, rivals, any] is lost."""
        return torch.where(self.loses_ties.unsqueeze(-1), lead <= 0, lead < 0)


def _duel(
    attention: Tensor,
    token_logits: Tensor,
    mask: Tensor,
    bias: Tensor | float,
    renormalise: bool,
    target: int | None = None,
) -> _Duel:
    # Dividing all logits by the remaining weight changes no decision: sums suffice.
    weights = attention.double() * mask
    logits = token_logits.double()
    alone = torch.as_tensor(bias).to(logits).expand(logits.shape[-1])
    start = torch.zeros_like(alone)
    if not renormalise:
        start = alone
        logits = logits - start
    total = (weights.unsqueeze(1) @ logits)[:, 0] + start
    decided = total.argmax(-1, keepdim=True)
    predicted = decided if target is None else torch.full_like(decided, target)
    rivals = torch.arange(logits.shape[-1] - 1, device=logits.device)
    rivals = rivals + (rivals >= predicted)

    by_class = logits.transpose(1, 2)
    lead_per_weight = by_class.take_along_dim(predicted.unsqueeze(-1), 1)
    lead_per_weight = lead_per_weight - by_class.take_along_dim(rivals.unsqueeze(-1), 1)
    return _Duel(
        weights=weights,
        margin=lead_per_weight * weights.unsqueeze(1),
        lead=start[predicted] - start[rivals],
        bias_lead=alone[predicted] - alone[rivals],
        loses_ties=rivals < predicted,
        is_lost=(decided != predicted)[:, 0],
    )


def removal_order(scores: Tensor, mask: Tensor) -> Tensor:
    """Keys in the order of removal, highest score first.

    Args:
        scores: [..., keys]; equal ones are removed from left to right.
        mask: bool [..., keys]; keys outside come last.

    Returns:
        int64 [..., keys]: entry n is the key removed at turn n.

    >>> removal_order(torch.tensor([1.0, 3.0, 2.0]), torch.ones(3).bool()).tolist()
    [1, 2, 0]
    """
    outside_last = scores.masked_fill(~mask, -torch.inf)
    return outside_last.argsort(dim=-1, descending=True, stable=True)


def removal_rank(scores: Tensor, mask: Tensor) -> Tensor:
    """The turn at which each key is removed: the inverse of :func:`removal_order`.

    Args:
        scores: [..., keys]; equal ones are removed from left to right.
        mask: bool [..., keys]; keys outside come last.

    Returns:
        int64 [..., keys]: entry k is the turn of key k, 0 for the highest score.

    >>> removal_rank(torch.tensor([1.0, 3.0, 2.0]), torch.ones(3).bool()).tolist()
    [2, 0, 1]
    """
    return removal_order(scores, mask).argsort(-1)


def removals_to_flip(
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
    """Returns how many weights are erased, in the given order, when the decision changes first.

    Serrano & Smith 2019, Section 4.3.

    Args:
        attention, token_logits, mask, bias: as in :func:`minimal_flip_set`.
        order: int64 [..., batch, keys].
        renormalise: whether the weights that stay are divided by their sum.
        all_zero: whether the decision of the bias alone counts, with every weight
            erased, as in the paper's released code. Otherwise one positive weight
            must be left.
        target: a class; then the decision is for it or not for it, and nothing else
            is a change.

    Returns:
        float64 [..., batch]; NaN where the decision never changes and for texts of
        one token.

    Two tokens of weight .9 and .1, for class 0 and class 1: without the first, class 1
    wins.

    >>> attention, mask = torch.tensor([[0.9, 0.1]]), torch.ones(1, 2).bool()
    >>> order = removal_order(attention, mask)
    >>> removals_to_flip(attention, torch.eye(2)[None], mask, order).tolist()
    [1.0]
    """
    duel = _duel(attention, token_logits, mask, bias, renormalise, target)
    n_keys = mask.shape[-1]
    # Sums run from the end, over what is kept: a difference of sums would cancel.
    kept = order.flip(-1)
    lead = _cumulative_sums(duel.margin, kept)
    lead.add_(duel.lead.unsqueeze(-1))
    is_lost = duel.lost(lead).any(-2)
    flips = is_lost != duel.is_lost[:, None]
    n_kept = torch.arange(1, n_keys + 1, dtype=torch.int32, device=mask.device)
    n_kept[-1] = 0  # all are kept: nothing is erased yet
    most_kept = (flips * n_kept).amax(-1)

    # One positive weight must be left.
    is_positive = (duel.weights > 0).to(torch.int8)
    is_positive = is_positive.expand(order.shape).gather(-1, kept)
    least_kept = is_positive.argmax(-1) + 1
    is_too_few = most_kept < least_kept
    n_removed = (n_keys - most_kept).double()
    n_removed = n_removed.masked_fill(is_too_few, torch.nan)

    if all_zero:
        is_lost = duel.lost(duel.bias_lead.unsqueeze(-1))
        is_lost = is_lost.any(1)[:, 0]
        only_bias_flips = n_removed.isnan() & (is_lost != duel.is_lost)
        n_to_bias = (n_keys - least_kept + 1).double()
        n_removed = torch.where(only_bias_flips, n_to_bias, n_removed)
    return n_removed.masked_fill(mask.sum(-1) < 2, torch.nan)


def _cumulative_sums(values: Tensor, order: Tensor) -> Tensor:
    """Cumulative sums of values [batch, rows, keys] in every order [..., batch, keys].

    Returns:
        [..., batch, rows, keys].
    """
    *leading, n_keys = order.shape
    index = order.unsqueeze(-2).expand(*leading, values.shape[1], n_keys)
    ordered = values.expand(index.shape).gather(-1, index)
    return ordered.cumsum(-1)


def erase_each(
    attention: Tensor,
    token_logits: Tensor,
    *,
    bias: Tensor | float = 0.0,
    renormalise: bool = True,
) -> Tensor:
    """Logits with one weight erased, each in turn (Serrano & Smith 2019, Section 4.1).

    Args:
        attention, token_logits, bias, renormalise: as in :func:`minimal_flip_set`.

    Returns:
        float64 [batch, keys, classes]; the bias where no weight is left.
    """
    weights = attention.double().unsqueeze(-1)
    logits = token_logits.double()
    alone = torch.as_tensor(bias).to(logits)
    if not renormalise:
        return _sum_of_others(weights * (logits - alone)) + alone
    rest = _sum_of_others(weights)
    return torch.where(rest > 0, _sum_of_others(weights * logits) / rest, alone)


def _sum_of_others(values: Tensor) -> Tensor:
    """Sum over all other keys, [batch, keys, ...].

    The keys before and the keys behind are summed apart, so that nothing cancels.
    """
    total = torch.zeros_like(values)
    total[:, 1:] = values.cumsum(1)[:, :-1]
    total[:, :-1] += values.flip(1).cumsum(1).flip(1)[:, 1:]
    return total


def minimal_flip_set(
    attention: Tensor,
    token_logits: Tensor,
    mask: Tensor,
    *,
    bias: Tensor | float = 0.0,
    renormalise: bool = True,
    all_zero: bool = False,
) -> FlipSet:
    """Returns the fewest weights whose erasure changes the decision; exact, for any classes.

    For each rival class the tokens that add most to the lead over it are erased first:
    no other set of as many leaves a smaller lead. One positive weight must be left, or
    with ``all_zero`` none. Tokens without weight never belong to the set.

    Args:
        attention: [batch, keys], 0 outside ``mask``.
        token_logits: each token's logits u_t, [batch, keys, classes].
        mask: bool [batch, keys], the weights that may be erased.
        bias: the logits without any attention, [classes] or one number.
        renormalise: whether the weights that stay are divided by their sum.
        all_zero: whether every weight may be erased; the bias then decides.
    """
    duel = _duel(attention, token_logits, mask, bias, renormalise)
    is_positive = duel.weights > 0
    n_positive = is_positive.sum(-1, keepdim=True)  # [batch, 1]
    is_weightless = ~is_positive.unsqueeze(1)
    smallest_first, _ = duel.margin.masked_fill(is_weightless, torch.inf).sort(dim=-1)
    lead = smallest_first.cumsum(-1)
    lead += duel.lead.unsqueeze(-1)

    n_keys = mask.shape[-1]
    n_kept = torch.arange(1, n_keys + 1, device=mask.device)
    is_erased = n_kept < n_positive
    flips = duel.lost(lead) & is_erased.unsqueeze(1)
    most_kept = (flips * n_kept).amax(-1)  # [batch, rivals]
    size = (n_positive - most_kept).double()
    size = size.masked_fill(most_kept == 0, torch.inf)

    if all_zero:
        has_several = mask.sum(-1, keepdim=True) > 1
        of_all = duel.lost(duel.bias_lead.unsqueeze(-1))
        of_all = of_all[..., 0] & has_several
        only_all = size.isinf() & of_all
        size = torch.where(only_all, n_positive.double(), size)

    exists = size.isfinite().any(-1)
    whole_lead = duel.margin.sum(-1) + duel.lead
    rival = torch.where(exists, size.argmin(-1), whole_lead.argmin(-1))
    rival = rival[:, None]
    size = size.gather(1, rival)[:, 0]
    size = size.masked_fill(~exists, torch.nan)
    margin = duel.margin.take_along_dim(rival.unsqueeze(-1), 1)
    margin = margin[:, 0]
    return FlipSet(size, margin)


def never_as_all(n_removed: Tensor, n_tokens: Tensor, can_flip: Tensor) -> Tensor:
    """Removals on the texts that can be flipped, where never counts as all tokens.

    So all orders are compared on the same texts.

    Args:
        n_removed: float64 [..., batch], NaN where the decision never changes.
        n_tokens: [batch], the tokens of each text.
        can_flip: bool [batch]; the others get NaN.

    >>> n_removed = torch.tensor([2.0, torch.nan, torch.nan]).double()
    >>> n_tokens, can_flip = torch.tensor([5, 5, 5]), torch.tensor([True, True, False])
    >>> never_as_all(n_removed, n_tokens, can_flip).tolist()
    [2.0, 5.0, nan]
    """
    counted = torch.where(n_removed.isnan(), n_tokens.to(n_removed), n_removed)
    return counted.masked_fill(~can_flip, torch.nan)


def way_to_best(n_removed: Tensor, random: Tensor, best: Tensor) -> Tensor:
    """Normalised score of an order of erasure: 0 for a random order, 1 for the best.

    Negative where it needs more removals than a random one, NaN where the random one is
    the best already. At most 1 as long as nothing needs less than the best.

    Args:
        n_removed, random, best: removals, or shares of the tokens, [batch].

    >>> removals = torch.tensor([4.0, 8.0, 3.0])
    >>> random, best = torch.tensor([6.0, 6.0, 2.0]), torch.tensor([2.0, 2.0, 2.0])
    >>> way_to_best(removals, random, best).tolist()
    [0.5, -0.5, nan]
    """
    room = random - best
    return ((random - n_removed) / room).masked_fill(room == 0, torch.nan)
