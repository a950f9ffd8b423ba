"""Importance of the units in a text (such as words), from outputs without some of the units.

For short texts, the model is run without every possible set of units
(:func:`~hf_attnprobe.functional.aopc.enumerate_subsets`), which gives exact Shapley values. For long
texts, random halves of the units are removed, and a linear model is fitted to the outputs.
"""

import math

import torch
from torch import Tensor

from hf_attnprobe.functional.rank import count_smaller_minus_larger
from hf_attnprobe.functional.similarity import pearson


def shapley_values(drops: Tensor) -> Tensor:
    """Compute each unit's Shapley value: the drop that its removal adds, averaged over all orders.

    φ_i = Σ_S |S|! (n − |S| − 1)! / n! · (drop(S ∪ i) − drop(S)), summed over the sets S without
    unit i (Shapley 1953). A text's values sum to the drop without all units.

    Args:
        drops: drop of the output for each set of removed units, [2^units, batch], in the order
            of :func:`~hf_attnprobe.functional.aopc.enumerate_subsets`. Units that a short text
            does not have must not change its drops, and get the value 0.

    Returns:
        Shapley values, [batch, units].

    >>> shapley_values(torch.tensor([[0.0], [1.0], [0.0], [3.0]])).tolist()
    [[2.0, 1.0]]
    """
    n_units = len(drops).bit_length() - 1
    sets = torch.arange(len(drops), device=drops.device)
    set_sizes = torch.zeros_like(sets)
    for unit in range(n_units):
        set_sizes += sets >> unit & 1
    size_weights = []
    for size in range(n_units):
        n_sets = math.comb(n_units - 1, size)
        size_weights.append(1 / (n_units * n_sets))
    # No unit can join the full set.
    size_weights.append(0.0)
    weights = torch.tensor(size_weights, dtype=drops.dtype, device=drops.device)[set_sizes]

    values = drops.new_zeros(drops.shape[1], n_units)
    for unit in range(n_units):
        unit_bit = 1 << unit
        sets_without_unit = sets[sets & unit_bit == 0]
        added_drops = drops[sets_without_unit | unit_bit] - drops[sets_without_unit]
        values[:, unit] = weights[sets_without_unit] @ added_drops
    return values


def shapley_interactions(drops: Tensor) -> Tensor:
    """Compute the Shapley interaction index for every pair of units (Grabisch & Roubens 1999).

    The index is negative if one unit can replace the other, and positive if removing both units
    has a larger effect than the two single removals together. The formula for the units i and j
    is Σ_S |S|! (n − |S| − 2)! / (n − 1)! · (drop(S ∪ ij) − drop(S ∪ i) − drop(S ∪ j) + drop(S)),
    with a sum over all sets S without i and j.

    Args:
        drops: drop of the output for each set of removed units, [2^units, batch], in the order
            of :func:`~hf_attnprobe.functional.aopc.enumerate_subsets`. Units that a short text
            does not have must not change its drops, and get the interaction 0.

    Returns:
        Interactions, [batch, units, units], symmetric, with 0 on the diagonal.

    In this example, the output only drops if both units are removed:

    >>> drops = torch.tensor([[0.0], [0.0], [0.0], [1.0]])
    >>> shapley_interactions(drops)[0].tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    # The interaction between i and j is the Shapley value of j if each drop is replaced by the
    # difference that removing unit i makes.
    n_units = len(drops).bit_length() - 1
    sets = torch.arange(len(drops), device=drops.device)
    upper_triangle = drops.new_zeros(drops.shape[1], n_units, n_units)
    for unit in range(n_units):
        # Bit i in the number of a set is 1 if unit i is removed.
        is_removed = (sets >> unit & 1).bool()
        differences = drops[is_removed] - drops[~is_removed]
        other_units_values = shapley_values(differences)
        upper_triangle[:, unit, unit + 1 :] = other_units_values[:, unit:]
    return upper_triangle + upper_triangle.transpose(1, 2)


def average_over_orders(gains: Tensor) -> tuple[Tensor, Tensor]:
    """Estimate Shapley values from random removal orders (Castro et al. 2009).

    A unit's Shapley value is the additional drop of the output when the unit is removed,
    averaged over all orders in which units can be removed.

    Args:
        gains: additional drop when a unit is removed, for each random order, [orders, ...]. At
            least two orders are needed.

    Returns:
        Means over the orders and their standard errors, each [...].
    """
    return gains.mean(0), gains.std(0) / math.sqrt(len(gains))


def find_smallest_set_size(meets_condition: Tensor) -> Tensor:
    """Find the size of the smallest set of units that meets a condition.

    For example, if the condition is that the removal of the set flips the decision, the result is
    the number of units that must be removed to flip the decision.

    Args:
        meets_condition: whether each set meets the condition, bool [2^units, batch]. The sets are in
            the order of :func:`~hf_attnprobe.functional.aopc.enumerate_subsets`.

    Returns:
        float64 [batch]; 0 if the empty set meets the condition, NaN if no set does.

    In this example with two units, the set {1} and the set {0, 1} meet the condition:

    >>> find_smallest_set_size(torch.tensor([[False], [False], [True], [True]])).tolist()
    [1.0]
    """
    # A set contains one unit for each 1 in its binary number.
    sizes = [set_number.bit_count() for set_number in range(len(meets_condition))]
    set_sizes = torch.tensor(sizes, dtype=torch.float64, device=meets_condition.device)[:, None]
    smallest = set_sizes.where(meets_condition, torch.inf).amin(0)
    return smallest.masked_fill(smallest.isinf(), torch.nan)


def compute_logit(log_prob: Tensor) -> Tensor:
    """Convert the logarithm of a probability p to a logit, log p − log(1 − p).

    ContextCite fits its linear model to logits.

    Args:
        log_prob: log p, [...]. If p rounds to 1, 1 − p is replaced by the machine epsilon.

    Returns:
        Logits, [...].

    >>> round(compute_logit(torch.tensor(0.8, dtype=torch.float64).log()).item(), 4)
    1.3863
    """
    rounding = torch.finfo(log_prob.dtype).eps
    # Computed as −expm1(log p), the probability 1 − p is precise even if p is near 0.
    complement = (-torch.expm1(log_prob)).clamp_min(rounding)
    return log_prob - complement.log()


def fit_lasso(
    is_kept: Tensor,
    outputs: Tensor,
    penalty: float = 0.01,
    *,
    n_rounds: int = 1000,
) -> Tensor:
    """Fit a sparse linear model that predicts the output from the units that are kept.

    As in ContextCite (Cohen-Wang et al. 2024), LASSO minimises ‖y − Xw − b‖² / 2n + penalty · ‖w‖₁
    over standardised columns. Like the authors' code, it updates one weight after the other until
    no weight changes.

    Args:
        is_kept: random masks, bool [masks, units], True for units that stay in the text.
        outputs: model output for each mask, [masks], such as :func:`compute_logit` divided by
            the answer's token count.
        penalty: L1 penalty on the weights of the standardised columns.
        n_rounds: maximum number of passes over all weights.

    Returns:
        Weights on the scale of the original columns, [units]. A unit that is kept in all masks
        or in none has weight 0.
    """
    columns = is_kept.to(outputs.dtype)
    scale = columns.std(0, unbiased=False)
    varies = scale > 0
    scale = scale.masked_fill(~varies, 1)
    columns = (columns - columns.mean(0)) / scale
    gram_matrix = columns.T @ columns / len(columns)
    correlations = columns.T @ (outputs - outputs.mean()) / len(columns)
    weights = torch.zeros_like(correlations)
    for _ in range(n_rounds):
        previous_weights = weights.clone()
        # One weight is optimised at a time; the L1 penalty moves its optimum towards 0.
        for unit in varies.nonzero().flatten().tolist():
            residual = correlations[unit] - gram_matrix[unit] @ weights + weights[unit]
            weights[unit] = residual.sign() * (residual.abs() - penalty).clamp_min(0)
        largest_change = (weights - previous_weights).abs().max()
        if largest_change <= 1e-12 * weights.abs().max():
            break
    return weights / scale


def spearman(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Compute Spearman's rank correlation between a and b.

    Equal values share their mean rank. If a and b are predicted and true outputs for random sets
    of units, this is the linear datamodeling score (LDS; Park et al. 2023), which ContextCite
    also uses.

    Args:
        a: [..., keys].
        b: [..., keys].
        mask: bool [..., keys], the positions to include.

    Returns:
        Correlation in [−1, 1], [...].

    >>> a, mask = torch.tensor([1.0, 2.0, 9.0]), torch.ones(3).bool()
    >>> round(spearman(a, a.log(), mask).item(), 6)
    1.0
    """
    # The number of smaller values minus the number of larger values is a linear function of the mean
    # rank, so it has the same correlation.
    ranks_a = count_smaller_minus_larger(a.double(), mask).double()
    ranks_b = count_smaller_minus_larger(b.double(), mask).double()
    return pearson(ranks_a, ranks_b, mask)
