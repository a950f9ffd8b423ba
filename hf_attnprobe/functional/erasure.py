"""Erasing attention weights with the encoder fixed, where the read-out is linear: logits = Σ_t a_t u_t, u_t = W h_t + b.

Serrano & Smith 2019 (Section 4) set weights to 0, divide the rest by their sum and decode again, once per erased
weight. Here all steps of a ranking are one cumulative sum, and the smallest set that flips the decision, which they
call infeasible, is one sort per rival class: class c loses to k when Σ_{t kept} a_t [(u_t)_c − (u_t)_k] < 0.

Everywhere attention is [batch, keys] and 0 outside ``mask`` (bool [batch, keys], what may be erased), token_logits
[batch, keys, classes], ``bias`` [classes] the logits b without any attention: needed without renormalising, where
logits = Σ_t a_t (u_t − b) + b, and for the rule ``all_zero``. An ``order`` lists keys, the first to go first and those
outside the mask last. All arithmetic is in float64.

Decisions are those of ``argmax``: of equal logits the class with the lower number wins. A predicted class is thus beaten
by one of a lower number at a tie, by one of a higher number only below it.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class FlipSet(NamedTuple):
    """A smallest set of weights whose erasure changes the decision.

    size: float64 [batch], NaN where no set does. members: bool [batch, keys], none where no set does.
    rival: int64 [batch], a class that then beats the predicted one (the lowest of several), −1 where no set does.
    margin: float64 [batch, keys], what each token adds to the predicted class's lead over ``rival``, over the runner-up
    where there is none. To erase by descending margin is to erase a smallest set first.
    """

    size: Tensor
    members: Tensor
    rival: Tensor
    margin: Tensor


class _Duel(NamedTuple):
    """The predicted class against every other.

    weights: [batch, keys]. rival: [batch, rivals]. margin: a token's part in the lead over each, [batch, rivals, keys].
    lead: what is added to the sum of margins, [batch, rivals]. bare_lead: the lead without any attention.
    """

    weights: Tensor
    rival: Tensor
    margin: Tensor
    lead: Tensor
    bare_lead: Tensor | None
    at_tie: Tensor  # bool [batch, rivals]: a rival with a lower number wins ties

    def lost(self, lead: Tensor) -> Tensor:
        """Whether a lead [..., batch, rivals, any] is lost."""
        return torch.where(self.at_tie.unsqueeze(-1), lead <= 0, lead < 0)


def _duel(
    attention: Tensor,
    token_logits: Tensor,
    mask: Tensor,
    bias: Tensor | None,
    renormalise: bool,
) -> _Duel:
    # To divide all logits by the weight that is left changes no decision, so the sums will do.
    weights, logits = attention.double() * mask, token_logits.double()
    start = logits.new_zeros(logits.shape[-1])
    if not renormalise:
        start = bias.double()
        logits = logits - start
    predicted = ((weights.unsqueeze(1) @ logits)[:, 0] + start).argmax(-1, keepdim=True)
    rival = torch.arange(logits.shape[-1] - 1, device=logits.device).expand(
        len(logits), -1
    )
    rival = rival + (rival >= predicted)
    columns, n_keys = logits.transpose(1, 2), logits.shape[1]
    own, others = (
        columns.gather(1, x.unsqueeze(-1).expand(-1, -1, n_keys))
        for x in (predicted, rival)
    )
    margin = (own - others) * weights.unsqueeze(1)
    lead = start[predicted] - start[rival]
    bare = None if bias is None else bias.double()[predicted] - bias.double()[rival]
    return _Duel(weights, rival, margin, lead, bare, rival < predicted)


def removal_order(scores: Tensor, mask: Tensor) -> Tensor:
    """Keys by descending score, equal ones from left to right, those outside the mask last; int64 [..., batch, keys]."""
    return scores.masked_fill(~mask, -torch.inf).argsort(
        dim=-1, descending=True, stable=True
    )


def removals_to_flip(
    attention: Tensor,
    token_logits: Tensor,
    mask: Tensor,
    order: Tensor,
    *,
    bias: Tensor | None = None,
    renormalise: bool = True,
    all_zero: bool = False,
) -> Tensor:
    """How many weights are erased, in the given order, when the decision first changes; NaN where it never does.

    One positive weight must be left; with ``all_zero``, as in the released code of Serrano & Smith, the decision of the
    bias alone counts too. NaN for texts of one token.

    Shape: order [..., batch, keys] -> float64 [..., batch].
    """
    duel = _duel(attention, token_logits, mask, bias, renormalise)
    kept, n_keys = order.flip(-1), mask.shape[-1]
    # Sums from the end, of what is kept: the total minus what was erased would cancel.
    lead = _running_sum(duel.margin, kept)
    n_kept = torch.arange(1, n_keys + 1, dtype=torch.int32, device=mask.device)
    n_kept[-1] = 0  # all kept: nothing is erased yet
    most = (duel.lost(lead.add_(duel.lead.unsqueeze(-1))) * n_kept).amax((-2, -1))
    alive = (duel.weights > 0).to(torch.int8).expand(order.shape).gather(-1, kept)
    least = (
        alive.argmax(-1) + 1
    )  # so many are kept when a single positive weight is left
    n_removed = (n_keys - most).double().masked_fill(most < least, torch.nan)
    if all_zero:
        at_bias = duel.lost(duel.bare_lead.unsqueeze(-1)).any(1)[:, 0]
        n_removed = torch.where(
            n_removed.isnan() & at_bias, (n_keys - least + 1).double(), n_removed
        )
    return n_removed.masked_fill(mask.sum(-1) < 2, torch.nan)


def _running_sum(values: Tensor, order: Tensor) -> Tensor:
    """Cumulative sums of values [batch, rows, keys] in every order [..., batch, keys]: [..., batch, rows, keys]."""
    index = order.unsqueeze(-2).expand(*order.shape[:-1], values.shape[1], -1)
    return values.expand(index.shape).gather(-1, index).cumsum(-1)


def fraction_to_flip(
    attention: Tensor, token_logits: Tensor, mask: Tensor, order: Tensor, **options
) -> Tensor:
    """:func:`removals_to_flip` as a share of the text's tokens, float64 [..., batch] in (0, 1] or NaN.

    Two tokens of weight .9 and .1, for class 0 and class 1: without the first, class 1 wins.

    >>> attention, mask = torch.tensor([[0.9, 0.1]]), torch.ones(1, 2, dtype=torch.bool)
    >>> fraction_to_flip(attention, torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), mask, removal_order(attention, mask))
    tensor([0.5000], dtype=torch.float64)
    """
    return removals_to_flip(attention, token_logits, mask, order, **options) / mask.sum(
        -1
    )


def prefix_logits(
    attention: Tensor,
    token_logits: Tensor,
    order: Tensor,
    *,
    bias: Tensor | None = None,
    renormalise: bool = True,
) -> Tensor:
    """Logits after the first 1, 2, …, keys of an order are erased, [..., batch, keys, classes].

    Renormalised, they are the bias where nothing is left, NaN where none is given.
    """
    weights, logits = attention.double(), token_logits.double()
    logits = logits if renormalise else logits - bias.double()
    sums = torch.cat(
        [weights.unsqueeze(-1) * logits, weights.unsqueeze(-1)], dim=-1
    ).transpose(1, 2)
    left = (
        torch.nn.functional.pad(_running_sum(sums, order.flip(-1)), (1, 0))[..., :-1]
        .flip(-1)
        .transpose(-2, -1)
    )
    if not renormalise:
        return left[..., :-1] + bias.double()
    nothing = (
        logits.new_full(logits.shape[-1:], torch.nan) if bias is None else bias.double()
    )
    return torch.where(left[..., -1:] > 0, left[..., :-1] / left[..., -1:], nothing)


def erase_each(
    attention: Tensor,
    token_logits: Tensor,
    *,
    bias: Tensor | None = None,
    renormalise: bool = True,
) -> Tensor:
    """Logits with one weight erased, each in turn, [batch, keys, classes].

    Renormalised, they are the bias where nothing is left, NaN where none is given.
    """
    weights, logits = attention.double().unsqueeze(-1), token_logits.double()
    if not renormalise:
        return _all_but_one(weights * (logits - bias.double())) + bias.double()
    left = _all_but_one(weights)
    return torch.where(
        left > 0,
        _all_but_one(weights * logits) / left,
        torch.nan if bias is None else bias.double(),
    )


def _all_but_one(values: Tensor) -> Tensor:
    """Σ over the other keys, [batch, keys, ...]: what stands before and what stands behind, so that nothing cancels."""
    before = torch.zeros_like(values)
    before[:, 1:] = values.cumsum(1)[:, :-1]
    before[:, :-1] += values.flip(1).cumsum(1).flip(1)[:, 1:]
    return before


def minimal_flip_set(
    attention: Tensor,
    token_logits: Tensor,
    mask: Tensor,
    *,
    bias: Tensor | None = None,
    renormalise: bool = True,
) -> FlipSet:
    """The fewest weights whose erasure changes the decision, one positive weight being left; exact, for any classes.

    For each rival the tokens that add most to the lead over it go first: no other set of as many leaves less of it.
    Tokens without weight are never members.
    """
    duel = _duel(attention, token_logits, mask, bias, renormalise)
    alive = duel.weights > 0
    ascending, place = duel.margin.masked_fill(~alive.unsqueeze(1), torch.inf).sort(
        dim=-1
    )
    n_alive = alive.sum(-1, keepdim=True)  # [batch, 1]
    n_kept = torch.arange(1, mask.shape[-1] + 1, device=mask.device)
    lost = duel.lost(ascending.cumsum(-1) + duel.lead.unsqueeze(-1)) & (
        n_kept < n_alive
    ).unsqueeze(1)
    most = (lost * n_kept).amax(-1)  # [batch, rivals]: the most that can be kept
    size = (n_alive - most).double().masked_fill(most == 0, torch.inf)
    exists = (most > 0).any(-1)
    whole_lead = duel.margin.sum(-1) + duel.lead
    best = torch.where(exists, size.argmin(-1), whole_lead.argmin(-1))[:, None]
    row = best.unsqueeze(-1).expand(-1, -1, mask.shape[-1])
    erased = (n_kept > most.gather(1, best)) & (n_kept <= n_alive) & exists[:, None]
    return FlipSet(
        size=size.gather(1, best)[:, 0].masked_fill(~exists, torch.nan),
        members=torch.zeros_like(mask).scatter(1, place.gather(1, row)[:, 0], erased),
        rival=duel.rival.gather(1, best)[:, 0].masked_fill(~exists, -1),
        margin=duel.margin.gather(1, row)[:, 0],
    )
