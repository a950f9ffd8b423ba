"""Effects of many units from few measurements: important units alone, and the others in groups.

A model that needs a forward pass for each edit cannot remove 10,000 units one at a time. Neighbours in
an order, such as the order of attention, are then removed together, and each unit gets an equal share
of its group's effect. This is exact if the effects of the units in a group add up and are equal.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor


SINGLE_SHARE = 0.25
"""Share of the measurements that is spent on the first units of the order, one at a time."""
GROUP_SHARE = 0.25
"""Share of the measurements that is spent on the first division of the other units into groups."""


def measure_in_groups(
    order: Sequence[int],
    measure: Callable[[list[list[int]]], Tensor],
    max_measurements: int,
) -> Tensor:
    """Measure the effects of units with a limited number of measurements.

    All units are measured one at a time if the limit allows this. Otherwise, the first units are
    measured one at a time, and the others are divided into groups of neighbours. The group with the
    largest effect is then halved, again and again, so that a unit with a large effect is found
    although it is late in the order.

    Args:
        order: Different indices of all units, 0 to n − 1, the presumably most important one first.
        measure: Function that takes groups of units, and returns the effect of editing each group,
            `[groups, values]`.
        max_measurements: Largest number of measured groups, at least 8.

    Returns:
        The effect of each unit, `[units, values]`, by index.

    >>> effects = torch.tensor([5.0, 0.0, 0.0, 1.0])
    >>> def measure(groups):
    ...     return torch.stack([effects[group].sum()[None] for group in groups])
    >>> measure_in_groups([3, 2, 1, 0], measure, 8)[:, 0]
    tensor([5., 0., 0., 1.])
    """
    n_single = int(SINGLE_SHARE * max_measurements)
    if len(order) <= max_measurements:
        n_single = len(order)
    singles, others = list(order[:n_single]), list(order[n_single:])
    n_groups = max(1, int(GROUP_SHARE * max_measurements))
    bounds = [len(others) * index // n_groups for index in range(n_groups + 1)]
    groups = [[unit] for unit in singles]
    groups += [others[start:end] for start, end in pairwise(bounds) if end > start]
    values = measure(groups)
    for _ in range((max_measurements - len(groups)) // 2):
        sizes = torch.tensor([len(group) for group in groups])
        magnitudes = values.abs().sum(-1).cpu().masked_fill(sizes == 1, -1)
        largest = int(magnitudes.argmax())
        if sizes[largest] == 1:
            break
        group = groups.pop(largest)
        middle = len(group) // 2
        halves = [group[:middle], group[middle:]]
        groups += halves
        values = torch.cat([values[:largest], values[largest + 1 :], measure(halves)])
    effects = values.new_zeros(len(order), values.shape[1])
    for group, value in zip(groups, values, strict=True):
        effects[group] = value / len(group)
    return effects


def measure_texts_in_groups(
    is_unit: Tensor,
    priorities: Tensor,
    measure_sets: Callable[[Tensor], Tensor],
    max_measurements: int,
) -> Tensor:
    """Measure the effects of the units of each text with a limited number of measurements per text.

    Args:
        is_unit: Positions of units, bool `[texts, keys]`.
        priorities: Presumed importance of each unit, such as its attention, `[texts, keys]`.
        measure_sets: Function that takes sets of units, bool `[sets, texts, keys]`, and returns the
            effect of editing each set, `[sets, texts, values]`. Each set only has units of one text.
        max_measurements: Largest number of measured groups per text, at least 8.

    Returns:
        The effect of each unit, `[texts, keys, values]`. Positions without a unit have the effect 0.

    >>> effects = torch.tensor([[5.0, 0.0], [2.0, 3.0]])
    >>> is_unit = torch.tensor([[True, False], [True, True]])
    >>> measure_sets = lambda sets: (sets * effects).sum(-1, keepdim=True)
    >>> measure_texts_in_groups(is_unit, effects, measure_sets, 8)[..., 0].tolist()
    [[5.0, 0.0], [2.0, 3.0]]
    """
    rows = []
    for text, priority in enumerate(priorities):
        positions = is_unit[text].nonzero()[:, 0]
        order = priority[positions].argsort(descending=True, stable=True).tolist()
        measure = partial(_measure_groups, measure_sets, is_unit.shape, text, positions)
        text_effects = measure_in_groups(order, measure, max_measurements)
        row = text_effects.new_zeros(is_unit.shape[1], text_effects.shape[1])
        row[positions] = text_effects
        rows.append(row)
    return torch.stack(rows)


def _measure_groups(
    measure_sets: Callable[[Tensor], Tensor],
    shape: torch.Size,
    text: int,
    positions: Tensor,
    groups: list[list[int]],
) -> Tensor:
    """Measure the effects of groups of units of one text.

    Args:
        measure_sets: See `measure_texts_in_groups`.
        shape: Number of texts and of keys.
        text: Index of the text.
        positions: Position of each unit of the text, int `[units]`.
        groups: Indices of the units in each group.

    Returns:
        Effects `[groups, values]`.
    """
    sets = torch.zeros(len(groups), *shape, dtype=torch.bool, device=positions.device)
    for row, group in enumerate(groups):
        sets[row, text, positions[group]] = True
    return measure_sets(sets)[:, text]
