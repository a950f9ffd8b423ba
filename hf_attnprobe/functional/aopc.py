"""Area over the perturbation curve (AOPC), and its bounds over all removal orders.

A removal order removes the units of a text (such as its words) one after the other. After each
step, the model's prediction has dropped by some amount. The AOPC is the mean drop over all steps
(Samek et al. 2017; DeYoung et al. 2020, ERASER).

The range of the AOPC differs between texts and models. NAOPC therefore normalises it by its
lower and upper bound over all orders (Edin et al. 2025, arXiv 2408.08137).

A set of removed units is stored either as a bool vector, or as a set number whose bit i is 1 if
unit i is in the set.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


REMOVAL_PERCENTAGES = (1, 5, 10, 20, 50)
"""Percentages of a text's units (such as its words) that are removed to evaluate a ranking, as in
ERASER (DeYoung et al. 2020, Section 4)."""
MAX_UNITS_OF_EXACT_BOUNDS = 8
"""Largest number of units for which the bounds of the AOPC (area over the perturbation curve) are
computed exactly. For 8 units, this takes 2^8 = 256 runs of the model. For longer texts, a beam
search is used."""


def compute_removal_counts(n_units: Tensor) -> Tensor:
    """Compute how many units are 1, 5, 10, 20 and 50 percent of each text.

    Counts are rounded up. ERASER removes these percentages (DeYoung et al. 2020, Section 4).

    Args:
        n_units: number of units per text, int [batch].

    Returns:
        Unit counts, int [5, batch], at least 1.

    For texts with 3, 20 and 200 units:

    >>> compute_removal_counts(torch.tensor([3, 20, 200])).T.tolist()
    [[1, 1, 1, 1, 2], [1, 1, 2, 4, 10], [2, 10, 20, 40, 100]]
    """
    percentages = torch.tensor(REMOVAL_PERCENTAGES, device=n_units.device)[:, None]
    # Adding 99 before the division by 100 rounds up. Integer arithmetic is exact, whereas in
    # floating point, 10% of 30 could be rounded up to 4.
    return (n_units * percentages + 99) // 100


def compute_removal_steps(n_units: Tensor, n_steps: int = 0) -> Tensor:
    """Compute how many units have been removed after each step, until one unit is left.

    Args:
        n_units: number of units per text, int [batch].
        n_steps: number of steps. Every step removes the same share of a text, rounded up. With
            0, every step removes one unit.

    Returns:
        Removed units after each step, int [steps, batch]. Short texts repeat their last number.

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


def list_unit_positions(unit_mask: Tensor) -> Tensor:
    """List the positions of each text's units from left to right.

    Args:
        unit_mask: which positions are units of the text, such as words, and not special tokens or
            padding, bool [batch, keys].

    Returns:
        Positions, int64 [batch, units], for as many units as the longest text has. Shorter texts
        are padded with positions that are not units.

    >>> list_unit_positions(torch.arange(40)[None] % 13 == 0).tolist()
    [[0, 13, 26, 39]]
    """
    # False sorts before True, so the positions of the units come first and stay in order.
    positions = (~unit_mask).sort(dim=1, stable=True).indices
    return positions[:, : int(unit_mask.sum(1).max())]


def expand_to_positions(sets: Tensor, positions: Tensor, n_keys: int) -> Tensor:
    """Convert sets of units to masks over all positions of a text.

    For example, if the units have the positions 1 and 3, the set with only the second unit
    becomes the mask [False, False, False, True].

    Args:
        sets: whether each unit is in the set, bool [..., batch, units].
        positions: position of each unit, int64 [batch, units], from :func:`list_unit_positions`.
        n_keys: number of positions.

    Returns:
        Masks, bool [..., batch, keys], True at the positions of the units in the set.
    """
    shape = (*sets.shape[:-1], n_keys)
    empty = torch.zeros(shape, dtype=torch.bool, device=sets.device)
    return empty.scatter(-1, positions.expand(sets.shape), sets)


def enumerate_subsets(n_units: int) -> Tensor:
    """List all subsets of ``n_units`` units as bool vectors.

    Args:
        n_units: number of units, at least 0.

    Returns:
        bool [2^units, units]. Row s contains unit i if bit i in the binary number s is 1.

    >>> enumerate_subsets(2).tolist()
    [[False, False], [True, False], [False, True], [True, True]]
    """
    # Shift bit i of each set number to the last position, and check whether it is 1.
    set_numbers = torch.arange(2**n_units)[:, None]
    return (set_numbers >> torch.arange(n_units)) % 2 == 1


def enumerate_unit_sets(unit_mask: Tensor) -> Tensor:
    """List all subsets of each text's units, as masks over the positions of the text.

    Args:
        unit_mask: which positions are units of the text, such as words, and not special tokens or
            padding, bool [batch, keys].

    Returns:
        bool [sets, batch, keys], in the order of :func:`enumerate_subsets`. There are 2^n sets
        if the longest text has n units.
    """
    positions = list_unit_positions(unit_mask)
    is_unit = unit_mask.gather(1, positions)
    sets = enumerate_subsets(positions.shape[1]).to(unit_mask.device)
    return expand_to_positions(sets[:, None] & is_unit, positions, unit_mask.shape[1])


def compute_aopc_bounds(
    drops: Tensor, n_units: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the exact smallest and largest AOPC over all n! removal orders of n units.

    A removal order is a path from the empty to the full set. The best path to a set is its own
    drop plus the best path to a set with one unit less, so 2^n sums suffice.

    Args:
        drops: drop of the prediction for each set of removed units, [2^units, batch], in the
            order of :func:`enumerate_subsets`.
        n_units: number of units per text, int [batch], at least 1. Texts with n units only use
            the first 2^n rows of ``drops``.
        weights: weight of the step that leads to 0, 1, … removed units, [units + 1, batch]. By
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
    """Compute the AOPC: the mean drop of the prediction after each step of a removal order.

    The drop after every possible set of removed units must be known. If the most important unit
    is removed first, the result is a ranking's comprehensiveness. If it is removed last, the
    result is its sufficiency (Edin et al. 2025, Section 3).

    Args:
        drops: drop of the prediction for each set of removed units, [2^units, batch], in the
            order of :func:`enumerate_subsets`.
        ranks: step in which each unit is removed, from 0, int [..., batch, units].
        n_units: number of units per text, int [batch], at least 1. Ranks after a text's last
            unit have no effect.

    Returns:
        AOPC, [..., batch].

    In this example, the drop is .5 after the first and .6 after the second removal:

    >>> drops = torch.tensor([[0.0], [0.5], [0.1], [0.6]])
    >>> round(compute_aopc(drops, torch.tensor([[0, 1]]), torch.tensor([2])).item(), 2)
    0.55
    """
    text = torch.arange(ranks.shape[-2], device=ranks.device)
    set_numbers = list_removed_sets(ranks)[1:]
    step_drops = drops[set_numbers, text]
    # A short text has fewer steps than the longest text in the batch, so only its first steps
    # count. The step numbers get extra axes, so that they broadcast over all other axes.
    step = torch.arange(1, len(step_drops) + 1, device=ranks.device)
    n_trailing_axes = ranks.dim() - 1
    step = step.view(-1, *[1] * n_trailing_axes)
    is_counted = step <= n_units
    total = (step_drops * is_counted).sum(0)
    return total / n_units


def list_removed_sets(removal_steps: Tensor) -> Tensor:
    """List the sets of removed units after 0, 1, … steps of a removal order.

    Args:
        removal_steps: step in which each unit is removed, from 0, int [..., units].

    Returns:
        Set numbers, int64 [units + 1, ...]. As in :func:`enumerate_subsets`, unit i adds 2^i to
        the number of a set.

    In this example, unit 1 is removed first, then unit 0, then unit 2:

    >>> list_removed_sets(torch.tensor([1, 0, 2])).tolist()
    [0, 2, 3, 7]
    """
    n_units = removal_steps.shape[-1]
    bits = 1 << torch.arange(n_units, device=removal_steps.device)
    set_numbers = []
    for step in range(n_units + 1):
        is_removed = removal_steps < step
        set_numbers.append((is_removed * bits).sum(-1))
    return torch.stack(set_numbers)


def search_aopc_bounds(
    drop: Callable[[Tensor], Tensor], unit_mask: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Search for the smallest and the largest AOPC of all removal orders, with a beam search.

    See Edin et al. 2025, Section 4. With a sufficiently wide beam, the result equals the exact
    bounds from :func:`compute_aopc_bounds`.

    Args:
        drop: function that receives masks of removed positions, bool [copies, batch, keys], and
            returns the drops of the prediction, [copies, batch].
        unit_mask: which positions are units of the text, such as words, and not special tokens or
            padding, bool [batch, keys].
        width: beam width, the number of sets that are kept after each step. If several orders
            remove the same set, only the best one is kept.

    Returns:
        Smallest and largest AOPC that the search found, each float64 [batch].
    """
    largest = _search_largest_aopc(drop, unit_mask, width)
    # The smallest AOPC is minus the largest AOPC of the negated drops.
    smallest = -_search_largest_aopc(lambda sets: -drop(sets), unit_mask, width)
    return smallest, largest


def _search_largest_aopc(drop: Callable[[Tensor], Tensor], unit_mask: Tensor, width: int) -> Tensor:
    """Search for the largest AOPC with a beam search.

    Each step adds every unit to every set in the beam. The sets with the largest sum of drops over
    all steps so far form the next beam.

    Args:
        drop: function from masks of removed positions, bool [copies, batch, keys], to drops of
            the prediction, [copies, batch].
        unit_mask: which positions are units of the text, such as words, and not special tokens or
            padding, bool [batch, keys].
        width: beam width.

    Returns:
        Largest AOPC that was found, float64 [batch].
    """
    n_keys = unit_mask.shape[1]
    n_units = unit_mask.sum(1)
    positions = list_unit_positions(unit_mask)
    max_units = positions.shape[1]
    is_unit = torch.arange(max_units, device=unit_mask.device) < n_units[:, None]
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
    """Create new sets by adding each unit to each set.

    Args:
        sets: bool [copies, batch, units].
        allowed: units that may be added, bool [copies, batch, units]. Other units leave the set
            unchanged.

    Returns:
        New sets, bool [copies · units, batch, units].
    """
    n_units = sets.shape[-1]
    # Row i of the identity matrix is the set that only contains unit i.
    single_units = torch.eye(n_units, dtype=torch.bool, device=sets.device)[None, :, None]
    new_sets = sets[:, None] | (single_units & allowed[:, None])
    return new_sets.flatten(0, 1)


def _mask_duplicate_sets(sets: Tensor, values: Tensor) -> Tensor:
    """Set the values of duplicate sets to −∞, so that a beam search keeps each set only once.

    Different removal orders can lead to the same set of removed units. The copy with the largest
    value is not changed.

    Args:
        sets: bool [copies, batch, units].
        values: [copies, batch].

    Returns:
        Masked values, [copies, batch].
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
    """Assign a number to each set, so that equal sets in the same text get equal numbers.

    Args:
        sets: bool [copies, batch, keys].

    Returns:
        Set numbers, int64 [copies, batch]. Different sets and different texts never share one.
    """
    n_texts = sets.shape[1]
    # Eight units are packed into each byte, so that comparing sets is fast.
    flat_sets = sets.flatten(0, 1).cpu().numpy()
    packed_sets = np.packbits(flat_sets, axis=-1)
    _, distinct_indices = np.unique(packed_sets, axis=0, return_inverse=True)
    set_numbers = torch.from_numpy(distinct_indices).to(sets.device)

    # Text t gets the numbers t, t + n_texts, t + 2 · n_texts, …, so that no two texts share one.
    text = torch.arange(n_texts, device=sets.device)
    return set_numbers.view(-1, n_texts) * n_texts + text


def normalise_aopc(aopc: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Normalise an AOPC, so that 0 is the smallest and 1 the largest value of all orders.

    NAOPC = (AOPC − lower) / (upper − lower) (Edin et al. 2025, Section 4).

    Args:
        aopc: AOPC of a removal order, [...]. If it exceeds a bound, because a beam search missed
            this order, it is clipped to the bound.
        lower: smallest AOPC over all orders, [...].
        upper: largest AOPC over all orders, [...].

    Returns:
        NAOPC in [0, 1], [...]; NaN if the two bounds are equal up to rounding.
    """
    span = upper - lower
    # A difference up to 1024 times the float precision can be a rounding error.
    is_undefined = span <= 1024 * torch.finfo(span.dtype).eps
    return ((aopc - lower) / span).clamp(0, 1).masked_fill(is_undefined, torch.nan)
