"""Erasure curves: what is removed when, their area (AOPC), and the least and the most that any order can reach.

A set function ``drop`` says how far a prediction falls without some units of a text. An order removes them one by one
and so walks a chain of sets from none to all; its AOPC is the mean drop along the chain (Samek et al. 2017; DeYoung et
al. 2020, ERASER). How large that can be differs between texts and models, so NAOPC sets it between the bounds over all
orders (Edin et al. 2025, arXiv 2408.08137).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


PERCENT = (1, 5, 10, 20, 50)
EXACT_UP_TO = 8  # units: 2^8 sets are run, where their 8! orders would be 40,320


def removal_counts(n_units: Tensor, percent: Sequence[int] = PERCENT) -> Tensor:
    """How many units are the top so many percent, rounded up as ERASER's models do, so at least 1 of any text.

    Shape: int [batch] -> int [steps, batch].

    >>> removal_counts(torch.tensor([3, 20, 200])).T.tolist()
    [[1, 1, 1, 1, 2], [1, 1, 2, 4, 10], [2, 10, 20, 40, 100]]
    """
    shares = torch.tensor(percent, device=n_units.device)[:, None]
    return (n_units * shares + 99) // 100  # in integers: .1 · 30 must not become 4


def removal_order(scores: Tensor, content: Tensor) -> Tensor:
    """The turn of each unit, 0 for the highest score; equal scores in the order of the text; all others come last.

    Shape: scores [..., keys], content bool [..., keys] -> int [..., keys].
    """
    order = (-scores).masked_fill(~content, torch.inf).argsort(dim=-1, stable=True)
    return order.argsort(-1)


def units_first(content: Tensor) -> Tensor:
    """The positions of a text's units in their order, one column per unit of the longest text, int [batch, units].

    Behind a text's last unit come positions that are none.
    """
    return (~content).sort(dim=1, stable=True).indices[:, : int(content.sum(1).max())]


def at_positions(sets: Tensor, positions: Tensor, n_keys: int) -> Tensor:
    """Sets of units as sets of positions: bool [..., batch, units] -> [..., batch, keys]."""
    places = torch.zeros(*sets.shape[:-1], n_keys, dtype=torch.bool, device=sets.device)
    return places.scatter(-1, positions.expand(sets.shape), sets)


def subsets(n_units: int) -> Tensor:
    """All sets of ``n_units`` units, bool [2^units, units]; set number s holds unit i where bit i of s is 1."""
    return (torch.arange(2**n_units)[:, None] >> torch.arange(n_units)) % 2 == 1


def chain_bounds(drops: Tensor, n_units: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest AOPC over all n! orders: the shortest and the longest way from no unit to all of them.

    The best way to a set is its drop and the best way to a set that lacks one of its units, so 2^n sums do.

    Args:
        drops: [2^units, batch], numbered as :func:`subsets` does.
        n_units: int [batch], at least 1; of a text with fewer units the first 2^n sets count.
    """
    lower, upper = torch.zeros_like(drops), torch.zeros_like(drops)
    for number in range(1, len(drops)):
        before = [
            number ^ (1 << bit)
            for bit in range(number.bit_length())
            if number >> bit & 1
        ]
        lower[number] = drops[number] + lower[before].amin(0)
        upper[number] = drops[number] + upper[before].amax(0)
    last = (2**n_units - 1)[None]
    return tuple(best.gather(0, last)[0] / n_units for best in (lower, upper))


def beam_bounds(
    drop: Callable[[Tensor], Tensor], content: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Bounds of the AOPC over the orders that a beam search finds; equal to the exact ones where the beam is wide.

    Args:
        drop: sets bool [copies, batch, keys] -> [copies, batch].
        content: bool [batch, keys], the units.
        width: how many sets to go on from after each step; equal sets count once, with the best way to them.

    Returns:
        Least and largest, [batch].
    """
    return -_beam(lambda sets: -drop(sets), content, width), _beam(drop, content, width)


def _beam(drop: Callable[[Tensor], Tensor], content: Tensor, width: int) -> Tensor:
    """The largest AOPC found, [batch]."""
    n_units, positions = content.sum(1), units_first(content)
    real = torch.arange(positions.shape[1], device=content.device) < n_units[:, None]
    sets = torch.zeros(1, *positions.shape, dtype=torch.bool, device=content.device)
    totals, best = sets.new_zeros(1, len(content), dtype=torch.float64), None
    for step in range(1, positions.shape[1] + 1):
        grown = _grown(sets, real & totals.isfinite()[..., None])
        changed = (grown != sets.repeat_interleave(positions.shape[1], 0)).any(-1)
        fallen = drop(
            at_positions(grown & changed[..., None], positions, content.shape[1])
        ).double()
        reached = torch.where(
            changed,
            totals.repeat_interleave(positions.shape[1], 0) + fallen,
            -torch.inf,
        )
        totals, kept = _once(grown, reached).topk(min(width, len(grown)), dim=0)
        sets = grown.gather(0, kept[..., None].expand(-1, -1, positions.shape[1]))
        best = (
            totals[0] if best is None else torch.where(n_units >= step, totals[0], best)
        )
    return best / n_units


def _grown(sets: Tensor, allowed: Tensor) -> Tensor:
    """Every set with every allowed unit added to it, [copies · units, batch, units]."""
    added = torch.eye(sets.shape[-1], dtype=torch.bool, device=sets.device)[
        None, :, None
    ]
    return (sets[:, None] | (added & allowed[:, None])).flatten(0, 1)


def _once(sets: Tensor, values: Tensor) -> Tensor:
    """Values [copies, batch] with −∞ at all but the best of the copies that hold the same set."""
    number = same_sets(sets)
    best = values.new_full((int(number.max()) + 1,), -torch.inf).scatter_reduce(
        0, number.flatten(), values.flatten(), "amax"
    )
    copy = torch.arange(len(sets), device=sets.device)[:, None].expand(number.shape)
    leads = torch.where(values == best[number], copy, len(sets))
    first = leads.new_full(best.shape, len(sets)).scatter_reduce(
        0, number.flatten(), leads.flatten(), "amin"
    )
    return torch.where(copy == first[number], values, -torch.inf)


def same_sets(sets: Tensor) -> Tensor:
    """A number for every set, the same for equal sets of one text only: bool [copies, batch, keys] -> int [copies, batch]."""
    _, n_texts, n_keys = sets.shape
    bits = (
        torch.nn.functional.pad(sets, (0, -n_keys % 62)).unflatten(-1, (-1, 62)).long()
    )
    packed = (bits << torch.arange(62, device=sets.device)).sum(-1)
    text = torch.arange(n_texts, device=sets.device).expand(sets.shape[:2])
    rows = torch.cat([text[..., None], packed], dim=-1).flatten(0, 1)
    return rows.unique(dim=0, return_inverse=True)[1].view(sets.shape[:2])


def normalised(aopc: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(AOPC − lower) / (upper − lower), in [0, 1]; NaN where all orders are equal, to rounding.

    An order that a search of the bounds has missed is itself the bound that it surpasses.
    """
    span = upper - lower
    undefined = span <= 1024 * torch.finfo(span.dtype).eps
    return ((aopc - lower) / span).clamp(0, 1).masked_fill(undefined, torch.nan)
