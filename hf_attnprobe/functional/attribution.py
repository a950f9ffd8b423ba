"""How much each unit of a text counts, from outputs without some of its units.

A game gives every set of units that is gone a number: how far an output falls without
them. Of few units all sets can be run (:func:`~hf_attnprobe.functional.aopc.subsets`),
which gives exact Shapley values; of many a random half is taken away again and again,
and a linear model is fitted to what is left.
"""

import math

import torch
from torch import Tensor

from hf_attnprobe.functional.rank import wins
from hf_attnprobe.functional.similarity import pearson


def shapley_values(drops: Tensor) -> Tensor:
    """Returns each unit's fall of the output, averaged over all orders of leaving.

    φ_i = Σ_S |S|! (n − |S| − 1)! / n! · (drop(S ∪ i) − drop(S)) over the sets S without i
    (Shapley 1953). They add up to the drop without any unit.

    Args:
        drops: [2^units, batch], numbered as in :func:`~hf_attnprobe.functional.aopc.subsets`.
            A unit that a text does not have changes nothing, and gets 0.

    Returns:
        [batch, units].

    >>> shapley_values(torch.tensor([[0.0], [1.0], [0.0], [3.0]])).tolist()
    [[2.0, 1.0]]
    """
    n_units = len(drops).bit_length() - 1
    sets = torch.arange(len(drops), device=drops.device)
    sizes = torch.zeros_like(sets)
    for unit in range(n_units):
        sizes += sets >> unit & 1
    by_size = []
    for size in range(n_units):
        n_sets = math.comb(n_units - 1, size)
        by_size.append(1 / (n_units * n_sets))
    by_size.append(0.0)  # of the full set, which no unit can join
    weights = torch.tensor(by_size, dtype=drops.dtype, device=drops.device)[sizes]

    values = drops.new_zeros(drops.shape[1], n_units)
    for unit in range(n_units):
        own = 1 << unit
        without = sets[sets & own == 0]
        gained = drops[without | own] - drops[without]
        values[:, unit] = weights[without] @ gained
    return values


def interactions(drops: Tensor) -> Tensor:
    """Returns how much more two units cost together than each alone, over all sets of others.

    I_ij = Σ_S |S|! (n − |S| − 2)! / (n − 1)! · (drop(S ∪ ij) − drop(S ∪ i) − drop(S ∪ j) +
    drop(S)) over the sets S without i and j: the Shapley interaction index (Grabisch &
    Roubens 1999). Below 0 where one unit stands in for the other, above 0 where either is
    needed with the other.

    Args:
        drops: [2^units, batch], numbered as in :func:`~hf_attnprobe.functional.aopc.subsets`.
            A unit that a text does not have changes nothing, and gets 0.

    Returns:
        [batch, units, units], symmetric, 0 of a unit with itself.

    >>> either = torch.tensor([[0.0], [0.0], [0.0], [1.0]])  # falls without both alone
    >>> interactions(either)[0].tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    # Shapley values of the other units, with this one gone less with it there.
    n_units = len(drops).bit_length() - 1
    sets = torch.arange(len(drops), device=drops.device)
    found = drops.new_zeros(drops.shape[1], n_units, n_units)
    for unit in range(n_units):
        is_gone = (sets >> unit & 1).bool()
        difference = drops[is_gone] - drops[~is_gone]
        of_others = shapley_values(difference)
        behind = of_others[:, unit:]
        found[:, unit, unit + 1 :] = behind
    return found + found.transpose(1, 2)


def mean_over_orders(gains: Tensor) -> tuple[Tensor, Tensor]:
    """Shapley values from some random orders, and how well they are known.

    Args:
        gains: [orders, ...], how far the output falls further when a unit leaves in its turn
            (Castro et al. 2009); at least two orders.

    Returns:
        The means and their standard errors, each [...].
    """
    return gains.mean(0), gains.std(0) / math.sqrt(len(gains))


def smallest_set(holds: Tensor) -> Tensor:
    """The number of units in the smallest set of which something holds.

    Of a set's removal: ``flips`` gives the smallest necessary set, without which a decision
    flips. ``~flips.flip(0)`` gives the smallest sufficient one, which keeps it alone: the set
    behind number s from the end is all that set s leaves.

    Args:
        holds: bool [2^units, batch], numbered as in
            :func:`~hf_attnprobe.functional.aopc.subsets`.

    Returns:
        float64 [batch]; NaN where it holds of no set, 0 where of the empty one.

    >>> smallest_set(torch.tensor([[False], [False], [True], [True]])).tolist()
    [1.0]
    """
    sizes = [number.bit_count() for number in range(len(holds))]
    by_set = torch.tensor(sizes, dtype=torch.float64, device=holds.device)[:, None]
    least = by_set.where(holds, torch.inf).amin(0)
    return least.masked_fill(least.isinf(), torch.nan)


def logit_of(log_prob: Tensor) -> Tensor:
    """log p − log(1 − p), the scale on which ContextCite fits.

    A probability next to 1 counts as one rounding below it.

    >>> round(logit_of(torch.tensor(0.8, dtype=torch.float64).log()).item(), 4)
    1.3863
    """
    rounding = torch.finfo(log_prob.dtype).eps
    other = (-torch.expm1(log_prob)).clamp_min(rounding)
    return log_prob - other.log()


def lasso(
    kept: Tensor,
    outputs: Tensor,
    penalty: float = 0.01,
    *,
    n_rounds: int = 1000,
) -> Tensor:
    """Returns weights of units by LASSO on random sets of them.

    ContextCite (Cohen-Wang et al. 2024): minimises ‖y − Xw − b‖² / 2n + penalty · ‖w‖₁ over
    standardised columns, as in the authors' code, one coordinate after the other until none
    moves.

    Args:
        kept: bool [masks, units], the units that stay.
        outputs: [masks], such as :func:`logit_of` per answer token.
        penalty: on the weights of the standardised columns.

    Returns:
        [units], on the columns' own scale; 0 of a unit that all masks treat alike.
    """
    columns = kept.to(outputs.dtype)
    scale = columns.std(0, unbiased=False)
    varies = scale > 0
    scale = scale.masked_fill(~varies, 1)
    columns = (columns - columns.mean(0)) / scale
    products = columns.T @ columns / len(columns)
    wanted = columns.T @ (outputs - outputs.mean()) / len(columns)
    weights = torch.zeros_like(wanted)
    for _ in range(n_rounds):
        before = weights.clone()
        for unit in varies.nonzero().flatten().tolist():
            rest = wanted[unit] - products[unit] @ weights + weights[unit]
            weights[unit] = rest.sign() * (rest.abs() - penalty).clamp_min(0)
        moved = (weights - before).abs().max()
        if moved <= 1e-12 * weights.abs().max():
            break
    return weights / scale


def spearman(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Spearman's rank correlation, ties with their mean rank; [..., keys] -> [...].

    Of predicted and true outputs over random sets of units it is the linear datamodeling
    score (LDS; Park et al. 2023, as in ContextCite).

    >>> a, mask = torch.tensor([1.0, 2.0, 9.0]), torch.ones(3).bool()
    >>> round(spearman(a, a.log(), mask).item(), 6)
    1.0
    """
    first, second = (wins(values.double(), mask).double() for values in (a, b))
    return pearson(first, second, mask)
