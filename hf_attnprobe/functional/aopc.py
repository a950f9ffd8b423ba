"""Erasure curves: their area (AOPC) and the least and the most any order can reach.

A set function ``drop`` gives the fall of a prediction without some units of a text. An
order removes the units one by one: a chain of sets from none to all. Its AOPC is the
mean drop along the chain (Samek et al. 2017; DeYoung et al. 2020, ERASER). Its range
differs between texts and models, so NAOPC normalises it by the bounds over all orders
(Edin et al. 2025, arXiv 2408.08137).
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


PERCENT = (1, 5, 10, 20, 50)
EXACT_UP_TO = 8  # units: 2^8 sets are run, where their 8! orders would be 40,320


def removal_counts(n_units: Tensor) -> Tensor:
    """How many units are the top 1, 5, 10, 20 and 50 percent.

    Rounded up as in ERASER's models, so at least 1 of any text (DeYoung et al. 2020,
    Section 4).

    Args:
        n_units: int [batch].

    Returns:
        int [5, batch].

    >>> removal_counts(torch.tensor([3, 20, 200])).T.tolist()
    [[1, 1, 1, 1, 2], [1, 1, 2, 4, 10], [2, 10, 20, 40, 100]]
    """
    percent = torch.tensor(PERCENT, device=n_units.device)[:, None]
    return (n_units * percent + 99) // 100  # in integers: .1 · 30 must not become 4


def removal_steps(n_units: Tensor, n_steps: int = 0) -> Tensor:
    """Returns how many units are erased at each step of an order, until one is left.

    Args:
        n_units: int [batch].
        n_steps: steps of an equal share of each text, rounded up; 0: a unit a step.

    Returns:
        int [steps, batch], the last number again where a text has no more steps.

    >>> removal_steps(torch.tensor([4, 2, 1])).T.tolist()
    [[1, 2, 3], [1, 1, 1], [0, 0, 0]]
    >>> removal_steps(torch.tensor([10, 4]), n_steps=4).T.tolist()
    [[3, 5, 8, 9], [1, 2, 3, 3]]
    """
    last = n_units - 1
    number = n_steps or max(int(last.max()), 1)
    gone = torch.arange(1, number + 1, device=n_units.device)[:, None]
    if n_steps:
        gone = -(-n_units * gone // n_steps)  # rounded up
    return torch.minimum(gone, last)


def units_first(content: Tensor) -> Tensor:
    """Positions of each text's units, in their order.

    Args:
        content: bool [batch, keys], the units.

    Returns:
        int64 [batch, units of the longest text]; behind a text's last unit stand
        positions that are none.

    >>> units_first(torch.arange(40)[None] % 13 == 0).tolist()
    [[0, 13, 26, 39]]
    """
    positions = (~content).sort(dim=1, stable=True).indices
    return positions[:, : int(content.sum(1).max())]


def at_positions(sets: Tensor, positions: Tensor, n_keys: int) -> Tensor:
    """Sets of units as sets of positions.

    Args:
        sets: bool [..., batch, units].
        positions: int64 [batch, units], see :func:`units_first`.
        n_keys: number of positions.

    Returns:
        bool [..., batch, keys].
    """
    shape = (*sets.shape[:-1], n_keys)
    empty = torch.zeros(shape, dtype=torch.bool, device=sets.device)
    return empty.scatter(-1, positions.expand(sets.shape), sets)


def subsets(n_units: int) -> Tensor:
    """All sets of ``n_units`` units, numbered by their bits.

    Returns:
        bool [2^units, units]; set number s holds unit i where bit i of s is 1.

    >>> subsets(2).tolist()
    [[False, False], [True, False], [False, True], [True, True]]
    """
    numbers = torch.arange(2**n_units)[:, None]
    return (numbers >> torch.arange(n_units)) % 2 == 1


def every_set(content: Tensor) -> Tensor:
    """Every set of each text's units.

    Args:
        content: bool [batch, keys], the units.

    Returns:
        bool [2^units of the longest text, batch, keys], numbered as in :func:`subsets`.
    """
    positions = units_first(content)
    is_unit = content.gather(1, positions)
    sets = subsets(positions.shape[1]).to(content.device)
    return at_positions(sets[:, None] & is_unit, positions, content.shape[1])


def chain_bounds(
    drops: Tensor, n_units: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the least and the largest AOPC over all n! orders of a text's units; exact.

    They are the shortest and the longest path from the empty to the full set. The best
    path to a set is its drop plus the best path to a set with one unit less, so 2^n
    sums suffice.

    Args:
        drops: [2^units, batch], numbered as in :func:`subsets`.
        n_units: int [batch], at least 1; of a text with fewer units the first 2^n sets
            count.
        weights: of the sets of 0, 1, … units along an order, [units + 1, batch]; by default
            1 / n_units each.

    Returns:
        Least and largest, each [batch].
    """
    if weights is None:
        longest = len(drops).bit_length() - 1
        weights = 1 / n_units.double()
        weights = weights.expand(longest + 1, -1)
    lower = torch.zeros_like(drops)
    upper = torch.zeros_like(drops)
    for number in range(1, len(drops)):
        one_less = []
        for bit in range(number.bit_length()):
            if number >> bit & 1:
                one_less.append(number ^ (1 << bit))
        own = drops[number] * weights[len(one_less)]
        lower[number] = own + lower[one_less].amin(0)
        upper[number] = own + upper[one_less].amax(0)
    full = (2**n_units - 1)[None]
    least = lower.gather(0, full)[0]
    largest = upper.gather(0, full)[0]
    return least, largest


def area_along(drops: Tensor, turns: Tensor, n_units: Tensor) -> Tensor:
    """Returns the AOPC of orders in which a text's units leave, from the drops of all sets.

    Comprehensiveness of a ranking is that of the most important unit first, sufficiency
    that of the least important first, ``n_units − 1 − turns`` (Edin et al. 2025, Section 3).

    Args:
        drops: [2^units, batch], numbered as in :func:`subsets`.
        turns: int [..., batch, units], each unit's place in the order, 0 leaves first.
        n_units: int [batch], at least 1; units behind a text's last change nothing.

    Returns:
        [..., batch].

    >>> drops = torch.tensor([[0.0], [0.5], [0.1], [0.6]])
    >>> round(area_along(drops, torch.tensor([[0, 1]]), torch.tensor([2])).item(), 2)
    0.55
    """
    text = torch.arange(turns.shape[-2], device=turns.device)
    sets = sets_along(turns)[1:]
    along = drops[sets, text]
    # Steps beyond a text's own units do not count.
    step = torch.arange(1, len(along) + 1, device=turns.device)
    other_axes = [1] * (turns.dim() - 1)
    step = step.view(-1, *other_axes)
    counts = step <= n_units
    total = (along * counts).sum(0)
    return total / n_units


def sets_along(turns: Tensor) -> Tensor:
    """The sets that are gone after each step of an order, from none to all.

    Args:
        turns: int [..., units], each unit's place in the order, 0 leaves first.

    Returns:
        int64 [units + 1, ...], numbered as in :func:`subsets`.

    >>> sets_along(torch.tensor([1, 0, 2])).tolist()
    [0, 2, 3, 7]
    """
    n_units = turns.shape[-1]
    bits = 1 << torch.arange(n_units, device=turns.device)
    return torch.stack([((turns < step) * bits).sum(-1) for step in range(n_units + 1)])


def beam_bounds(
    drop: Callable[[Tensor], Tensor], content: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Bounds of the AOPC over the orders that a beam search finds.

    Edin et al. 2025, Section 4. Equal to the exact bounds where the beam is wide.

    Args:
        drop: sets bool [copies, batch, keys] -> [copies, batch].
        content: bool [batch, keys], the units.
        width: number of sets kept after each step; equal sets count once, with the
            best path to them.

    Returns:
        Least and largest, each float64 [batch].
    """
    largest = _beam_search(drop, content, width)
    return -_beam_search(lambda sets: -drop(sets), content, width), largest


def _beam_search(drop: Callable[[Tensor], Tensor], content: Tensor, width: int) -> Tensor:
    """Returns the largest AOPC found, [batch]."""
    n_keys = content.shape[1]
    n_units = content.sum(1)
    positions = units_first(content)
    longest = positions.shape[1]
    is_unit = torch.arange(longest, device=content.device) < n_units[:, None]
    sets = torch.zeros_like(positions, dtype=torch.bool)[None]
    totals = torch.zeros_like(n_units, dtype=torch.float64)[None]
    best = totals[0]
    for step in range(1, longest + 1):
        grown = _add_each_unit(sets, is_unit & totals.isfinite()[..., None])
        before = sets.repeat_interleave(longest, 0)
        has_grown = (grown != before).any(-1)
        to_run = at_positions(grown & has_grown[..., None], positions, n_keys)
        reached = totals.repeat_interleave(longest, 0) + drop(to_run).double()
        reached = reached.masked_fill(~has_grown, -torch.inf)

        n_kept = min(width, len(grown))
        totals, kept = _best_of_equal(grown, reached).topk(n_kept, 0)
        sets = grown.take_along_dim(kept[..., None], 0)
        best = torch.where(n_units >= step, totals[0], best)
    return best / n_units


def _add_each_unit(sets: Tensor, allowed: Tensor) -> Tensor:
    """Every set with every allowed unit added, [copies · units, batch, units]."""
    n_units = sets.shape[-1]
    unit = torch.eye(n_units, dtype=torch.bool, device=sets.device)[None, :, None]
    return (sets[:, None] | (unit & allowed[:, None])).flatten(0, 1)


def _best_of_equal(sets: Tensor, values: Tensor) -> Tensor:
    """Returns the values [copies, batch]; copies of a set get −∞ but for the first best."""
    # By value first: of equal sets the best comes first, and of equally good ones the first.
    by_value = values.argsort(dim=0, descending=True, stable=True)
    numbers = same_sets(sets).gather(0, by_value)
    numbers, place = numbers.sort(dim=0, stable=True)
    is_again = torch.zeros_like(numbers, dtype=torch.bool)
    is_again[1:] = numbers[1:] == numbers[:-1]
    copy = by_value.gather(0, place)
    is_copy = torch.zeros_like(is_again)
    is_copy.scatter_(0, copy, is_again)
    return values.masked_fill(is_copy, -torch.inf)


def same_sets(sets: Tensor) -> Tensor:
    """Returns hash numbers: equal for equal sets of the same text, and only for those.

    Args:
        sets: bool [copies, batch, keys].

    Returns:
        int64 [copies, batch].
    """
    n_texts = sets.shape[1]
    every = sets.flatten(0, 1).cpu().numpy()
    packed = np.packbits(every, axis=-1)
    _, inverse = np.unique(packed, axis=0, return_inverse=True)
    number = torch.from_numpy(inverse).to(sets.device)

    # Of each number and each text another one.
    text = torch.arange(n_texts, device=sets.device)
    return number.view(-1, n_texts) * n_texts + text


def normalised(aopc: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """NAOPC: (AOPC − lower) / (upper − lower) (Edin et al. 2025, Section 4).

    Args:
        aopc, lower, upper: [...]. An order that a beam search missed may exceed the
            bounds; it counts as the bound.

    Returns:
        [...] in [0, 1]; NaN where all orders are equal, to rounding.
    """
    span = upper - lower
    is_undefined = span <= 1024 * torch.finfo(span.dtype).eps
    return ((aopc - lower) / span).clamp(0, 1).masked_fill(is_undefined, torch.nan)
