"""Area over the perturbation curve (AOPC), and its bounds over all orders of removal.

A set function ``drop`` maps a set of removed units to the fall of a prediction without these
units. An order removes the units of a text one after the other: it is a chain of sets that
starts with no unit and ends with all. Its AOPC is the mean drop along this chain (Samek et al.
2017; DeYoung et al. 2020, ERASER).

The range of the AOPC differs between texts and models. NAOPC therefore normalises it by its
lower and upper bound over all orders (Edin et al. 2025, arXiv 2408.08137).

A set of units is stored in one of two ways: as a bool vector, or as a set number whose bit i is
1 if unit i is in the set.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


REMOVAL_PERCENTAGES = (1, 5, 10, 20, 50)
"""Percentages of a text's units that ERASER removes (DeYoung et al. 2020, Section 4)."""
MAX_UNITS_OF_EXACT_BOUNDS = 8
"""Largest number of units for which all 2^n sets are run, instead of a beam search.

With 8 units there are 256 sets, and 40,320 orders.
"""


def compute_removal_counts(n_units: Tensor) -> Tensor:
    """Compute how many units are the top 1, 5, 10, 20 and 50 percent of each text.

    Numbers are rounded up as in the models of ERASER, so each is at least 1 (DeYoung et al.
    2020, Section 4).

    Args:
        n_units: number of units per text, int [batch].

    Returns:
        int [5, batch].

    >>> compute_removal_counts(torch.tensor([3, 20, 200])).T.tolist()
    [[1, 1, 1, 1, 2], [1, 1, 2, 4, 10], [2, 10, 20, 40, 100]]
    """
    percentages = torch.tensor(REMOVAL_PERCENTAGES, device=n_units.device)[:, None]
    # Integers are exact. In floating point 10% of 30 could be rounded up to 4.
    return (n_units * percentages + 99) // 100


def compute_removal_steps(n_units: Tensor, n_steps: int = 0) -> Tensor:
    """Compute how many units are erased after each step of an order, until one is left.

    Args:
        n_units: number of units per text, int [batch].
        n_steps: number of steps, each of which erases the same share of a text, rounded up.
            With 0, every step erases one unit.

    Returns:
        int [steps, batch]. A text that needs fewer steps repeats its last number.

    >>> compute_removal_steps(torch.tensor([4, 2, 1])).T.tolist()
    [[1, 2, 3], [1, 1, 1], [0, 0, 0]]
    >>> compute_removal_steps(torch.tensor([10, 4]), n_steps=4).T.tolist()
    [[3, 5, 8, 9], [1, 2, 3, 3]]
    """
    max_removed = n_units - 1
    n_rows = n_steps or max(int(max_removed.max()), 1)
    n_removed = torch.arange(1, n_rows + 1, device=n_units.device)[:, None]
    if n_steps:
        # Negated twice, floor division rounds up.
        n_removed = -(-n_units * n_removed // n_steps)
    return torch.minimum(n_removed, max_removed)


def list_unit_positions(content: Tensor) -> Tensor:
    """List the positions of each text's units from left to right.

    Args:
        content: bool [batch, keys], True at the units.

    Returns:
        int64 [batch, units of the longest text]. After the last unit of a shorter text follow
        positions that are not units.

    >>> list_unit_positions(torch.arange(40)[None] % 13 == 0).tolist()
    [[0, 13, 26, 39]]
    """
    positions = (~content).sort(dim=1, stable=True).indices
    return positions[:, : int(content.sum(1).max())]


def expand_to_positions(sets: Tensor, positions: Tensor, n_keys: int) -> Tensor:
    """Convert sets of units to sets of positions.

    Args:
        sets: bool [..., batch, units].
        positions: int64 [batch, units], from :func:`list_unit_positions`.
        n_keys: number of positions.

    Returns:
        bool [..., batch, keys].
    """
    shape = (*sets.shape[:-1], n_keys)
    empty = torch.zeros(shape, dtype=torch.bool, device=sets.device)
    return empty.scatter(-1, positions.expand(sets.shape), sets)


def enumerate_subsets(n_units: int) -> Tensor:
    """Enumerate all sets of ``n_units`` units in the order of their set numbers.

    Returns:
        bool [2^units, units]. Row s is the set with number s: unit i is in it if bit i of s
        is 1.

    >>> enumerate_subsets(2).tolist()
    [[False, False], [True, False], [False, True], [True, True]]
    """
    set_numbers = torch.arange(2**n_units)[:, None]
    return (set_numbers >> torch.arange(n_units)) % 2 == 1


def enumerate_unit_sets(content: Tensor) -> Tensor:
    """Enumerate all sets of each text's units as sets of positions.

    Args:
        content: bool [batch, keys], True at the units.

    Returns:
        bool [2^units of the longest text, batch, keys], in the order of
        :func:`enumerate_subsets`.
    """
    positions = list_unit_positions(content)
    is_unit = content.gather(1, positions)
    sets = enumerate_subsets(positions.shape[1]).to(content.device)
    return expand_to_positions(sets[:, None] & is_unit, positions, content.shape[1])


def compute_aopc_bounds(
    drops: Tensor, n_units: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the smallest and the largest AOPC over all n! orders of a text's units.

    The bounds are exact. They are the shortest and the longest path from the empty to the full
    set. The best path to a set is its own drop plus the best path to a set with one unit less,
    so 2^n sums suffice.

    Args:
        drops: drop per set, [2^units, batch], in the order of :func:`enumerate_subsets`.
        n_units: number of units per text, int [batch], at least 1. Only the first 2^n rows
            of ``drops`` are used for a text of n units.
        weights: weight of the sets with 0, 1, … units along an order, [units + 1, batch]. By
            default every weight is 1 / n_units.

    Returns:
        Smallest and largest AOPC, each [batch].
    """
    if weights is None:
        max_units = len(drops).bit_length() - 1
        weights = 1 / n_units.double()
        weights = weights.expand(max_units + 1, -1)
    lower = torch.zeros_like(drops)
    upper = torch.zeros_like(drops)
    for set_number in range(1, len(drops)):
        predecessors = []
        for bit in range(set_number.bit_length()):
            if set_number >> bit & 1:
                predecessors.append(set_number ^ (1 << bit))
        weighted_drop = drops[set_number] * weights[len(predecessors)]
        lower[set_number] = weighted_drop + lower[predecessors].amin(0)
        upper[set_number] = weighted_drop + upper[predecessors].amax(0)
    full_set = (2**n_units - 1)[None]
    smallest = lower.gather(0, full_set)[0]
    largest = upper.gather(0, full_set)[0]
    return smallest, largest


def compute_aopc(drops: Tensor, ranks: Tensor, n_units: Tensor) -> Tensor:
    """Compute the AOPC of removal orders from the drop per set.

    If the most important unit leaves first, the result is the comprehensiveness of a ranking.
    Its sufficiency is the AOPC of the reversed order, with ranks ``n_units − 1 − ranks`` (Edin
    et al. 2025, Section 3).

    Args:
        drops: drop per set, [2^units, batch], in the order of :func:`enumerate_subsets`.
        ranks: unit ranks in the order, int [..., batch, units]; rank 0 leaves first.
        n_units: number of units per text, int [batch], at least 1. Ranks after the last
            unit of a text have no effect.

    Returns:
        [..., batch].

    >>> drops = torch.tensor([[0.0], [0.5], [0.1], [0.6]])
    >>> round(compute_aopc(drops, torch.tensor([[0, 1]]), torch.tensor([2])).item(), 2)
    0.55
    """
    text = torch.arange(ranks.shape[-2], device=ranks.device)
    set_numbers = list_removed_sets(ranks)[1:]
    step_drops = drops[set_numbers, text]
    # A shorter text has fewer steps than the longest one; later steps do not count.
    step = torch.arange(1, len(step_drops) + 1, device=ranks.device)
    n_trailing_axes = ranks.dim() - 1
    step = step.view(-1, *[1] * n_trailing_axes)
    is_counted = step <= n_units
    total = (step_drops * is_counted).sum(0)
    return total / n_units


def list_removed_sets(ranks: Tensor) -> Tensor:
    """List the sets that are removed after 0, 1, … all steps of an order.

    Args:
        ranks: unit ranks in the order, int [..., units]; rank 0 leaves first.

    Returns:
        Set numbers, int64 [units + 1, ...], as in :func:`enumerate_subsets`.

    >>> list_removed_sets(torch.tensor([1, 0, 2])).tolist()
    [0, 2, 3, 7]
    """
    n_units = ranks.shape[-1]
    bits = 1 << torch.arange(n_units, device=ranks.device)
    return torch.stack([((ranks < step) * bits).sum(-1) for step in range(n_units + 1)])


def search_aopc_bounds(
    drop: Callable[[Tensor], Tensor], content: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Search for the smallest and the largest AOPC of any order with a beam search.

    Edin et al. 2025, Section 4. If the beam is wide enough, the result equals the exact bounds
    of :func:`compute_aopc_bounds`.

    Args:
        drop: maps removed sets, bool [copies, batch, keys], to drops, [copies, batch].
        content: bool [batch, keys], True at the units.
        width: number of sets that survive each step. Equal sets count as one, with the best
            path that leads to them.

    Returns:
        Smallest and largest AOPC that the search met, each float64 [batch].
    """
    largest = _search_largest_aopc(drop, content, width)
    return -_search_largest_aopc(lambda sets: -drop(sets), content, width), largest


def _search_largest_aopc(drop: Callable[[Tensor], Tensor], content: Tensor, width: int) -> Tensor:
    """Return the largest AOPC that a beam search meets, [batch]."""
    n_keys = content.shape[1]
    n_units = content.sum(1)
    positions = list_unit_positions(content)
    max_units = positions.shape[1]
    is_unit = torch.arange(max_units, device=content.device) < n_units[:, None]
    sets = torch.zeros_like(positions, dtype=torch.bool)[None]
    totals = torch.zeros_like(n_units, dtype=torch.float64)[None]
    best_totals = totals[0]
    for step in range(1, max_units + 1):
        successors = _add_each_unit(sets, is_unit & totals.isfinite()[..., None])
        parents = sets.repeat_interleave(max_units, 0)
        has_grown = (successors != parents).any(-1)
        sets_to_run = expand_to_positions(successors & has_grown[..., None], positions, n_keys)
        successor_totals = totals.repeat_interleave(max_units, 0) + drop(sets_to_run).double()
        successor_totals = successor_totals.masked_fill(~has_grown, -torch.inf)

        beam_size = min(width, len(successors))
        distinct_totals = _mask_duplicate_sets(successors, successor_totals)
        totals, beam_indices = distinct_totals.topk(beam_size, 0)
        sets = successors.take_along_dim(beam_indices[..., None], 0)
        best_totals = torch.where(n_units >= step, totals[0], best_totals)
    return best_totals / n_units


def _add_each_unit(sets: Tensor, allowed: Tensor) -> Tensor:
    """Add every allowed unit to every set, [copies · units, batch, units]."""
    n_units = sets.shape[-1]
    unit = torch.eye(n_units, dtype=torch.bool, device=sets.device)[None, :, None]
    return (sets[:, None] | (unit & allowed[:, None])).flatten(0, 1)


def _mask_duplicate_sets(sets: Tensor, values: Tensor) -> Tensor:
    """Replace the values of duplicate sets by −∞, except for the first best one.

    Args:
        sets: bool [copies, batch, units].
        values: [copies, batch].

    Returns:
        [copies, batch].
    """
    # Two stable sorts, by value and then by set, put the best copy of each set first.
    order_by_value = values.argsort(dim=0, descending=True, stable=True)
    set_numbers = number_distinct_sets(sets).gather(0, order_by_value)
    set_numbers, order_by_set = set_numbers.sort(dim=0, stable=True)
    is_repeated = torch.zeros_like(set_numbers, dtype=torch.bool)
    is_repeated[1:] = set_numbers[1:] == set_numbers[:-1]
    sorted_copies = order_by_value.gather(0, order_by_set)
    is_duplicate = torch.zeros_like(is_repeated)
    is_duplicate.scatter_(0, sorted_copies, is_repeated)
    return values.masked_fill(is_duplicate, -torch.inf)


def number_distinct_sets(sets: Tensor) -> Tensor:
    """Number the sets such that two numbers are equal only for equal sets of the same text.

    Args:
        sets: bool [copies, batch, keys].

    Returns:
        int64 [copies, batch].
    """
    n_texts = sets.shape[1]
    flat_sets = sets.flatten(0, 1).cpu().numpy()
    packed_sets = np.packbits(flat_sets, axis=-1)
    _, distinct_indices = np.unique(packed_sets, axis=0, return_inverse=True)
    set_numbers = torch.from_numpy(distinct_indices).to(sets.device)

    # Equal sets of two texts must not share a number.
    text = torch.arange(n_texts, device=sets.device)
    return set_numbers.view(-1, n_texts) * n_texts + text


def normalise_aopc(aopc: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Compute NAOPC = (AOPC − lower) / (upper − lower) (Edin et al. 2025, Section 4).

    Args:
        aopc: AOPC of an order, [...]. If it lies outside the bounds, because a beam search
            missed this order, it counts as the nearer bound.
        lower: smallest AOPC of any order, [...].
        upper: largest AOPC of any order, [...].

    Returns:
        [...] in [0, 1]; NaN if the two bounds are equal up to rounding.
    """
    span = upper - lower
    is_undefined = span <= 1024 * torch.finfo(span.dtype).eps
    return ((aopc - lower) / span).clamp(0, 1).masked_fill(is_undefined, torch.nan)
