"""Cumulative sums against the paper's loop, and smallest sets against all subsets."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.functional import aopc
from hf_attnprobe.functional.erasure import (
    compute_removal_order,
    compute_removal_rank,
    count_removals_to_flip,
    erase_each_weight,
    find_minimal_flip_set,
)
from tests.helpers import tiny_models


KINDS = ("normal", "ties", "zeros", "near", "one_sided", "peaked")


def instance(kind, n_classes, n_keys, random):
    """Attention [keys] and token logits [keys, classes] of one text.

    In "ties" and "zeros" all are small multiples of powers of two, so that every sum is exact and equal logits occur.
    """
    weights = random.dirichlet(np.ones(n_keys))
    logits = random.standard_normal((n_keys, n_classes))
    if kind in ("ties", "zeros"):
        weights = random.integers(0 if kind == "zeros" else 1, 4, n_keys) / 16.0
        weights[random.integers(n_keys)] = 0.25
        logits = random.integers(-2, 3, (n_keys, n_classes)).astype(float)
    if kind == "near":  # the runner-up is close behind
        logits -= (weights @ logits) * (1 - 1e-4)
    if kind == "one_sided":  # one class is ahead at every token, in some instances but one
        logits[:, random.integers(n_classes)] += 8
        logits[0] -= 8 * random.integers(2) * logits[0]
    if kind == "peaked":
        weights = random.dirichlet(np.full(n_keys, 0.2))
    return weights, logits


def padded(instances, n_keys):
    """Instances of the same number of classes as one batch: attention, token logits and mask."""
    attention = torch.zeros(len(instances), n_keys, dtype=torch.float64)
    logits = torch.randn(
        len(instances), n_keys, instances[0][1].shape[1], dtype=torch.float64
    )  # also at padding
    mask = torch.zeros(len(instances), n_keys, dtype=torch.bool)
    for row, (weights, u) in enumerate(instances):
        attention[row, : len(weights)] = torch.from_numpy(weights)
        logits[row, : len(weights)] = torch.from_numpy(u)
        mask[row, : len(weights)] = True
    return attention, logits, mask


def smallest_set(found, mask):
    """The tokens of the ``size`` largest margins, bool [batch, keys]."""
    return compute_removal_rank(found.token_margins, mask) < found.size[:, None]


def decisions_of_subsets(weights, logits, bias, renormalise):
    """For every set of erased tokens: which ones [sets, keys], the decision [sets], and the weight that is left."""
    sets = np.array(list(itertools.product([False, True], repeat=len(weights))))
    left = np.where(sets, 0, weights)
    output = left @ logits if renormalise else left @ (logits - bias) + bias
    return sets, output.argmax(-1), left.sum(-1)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_no_set_is_smaller(kind, renormalise):
    """84 instances of each kind, of 1 to 12 tokens and 2 to 5 classes, with and without renormalising: 1,008."""
    random = np.random.default_rng(KINDS.index(kind))
    n_found = 0
    for n_classes in (2, 3, 4, 5):
        bias = random.integers(-1, 2, n_classes) / 2.0
        lengths = [*range(1, 13), *random.integers(2, 11, 9)]
        instances = [instance(kind, n_classes, int(n), random) for n in lengths]
        attention, logits, mask = padded(instances, 14)
        found = find_minimal_flip_set(
            attention, logits, mask, bias=torch.from_numpy(bias), renormalise=renormalise
        )
        erased = smallest_set(found, mask)
        for row, (weights, u) in enumerate(instances):
            sets, decision, left = decisions_of_subsets(weights, u, bias, renormalise)
            flipping = (decision != decision[0]) & (left > 0)
            members = erased[row].numpy()
            assert not members[len(weights) :].any()
            if not flipping.any():
                assert found.size[row].isnan()
                continue
            n_found += 1
            assert found.size[row] == sets[flipping].sum(-1).min() == members.sum()
            place = (sets == members[: len(weights)]).all(-1).argmax()
            assert flipping[place] and (weights[members[: len(weights)]] > 0).all()
    assert 15 < n_found < 84 or kind in ("near", "normal")


def by_the_paper(weights, logits, bias, order, renormalise, all_zero):
    """The loop of Serrano & Smith (Section 4.3): fraction at the first flip, NaN for never, and the logits of each step."""

    def decode(a):
        return a @ (logits - bias) + bias

    weights, first, steps = weights.copy(), decode(weights).argmax(), []
    fraction = np.nan
    for n, place in enumerate(order, start=1):
        weights[place] = 0
        if renormalise and weights.sum() > 0:
            weights = weights / weights.sum()
        steps.append(decode(weights))
        allowed = all_zero or weights.sum() > 0
        if np.isnan(fraction) and allowed and steps[-1].argmax() != first and len(weights) > 1:
            fraction = n / len(weights)
    return fraction, np.array(steps)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("all_zero", [True, False])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_one_cumulative_sum_is_the_papers_loop(n_classes, all_zero, renormalise):
    random = np.random.default_rng(5)
    instances = [instance(KINDS[k % 6], n_classes, 1 + k % 17, random) for k in range(120)]
    instances = [(weights / weights.sum(), u) for weights, u in instances]
    attention, logits, mask = padded(instances, 20)
    bias = torch.from_numpy(random.standard_normal(n_classes))
    scores = torch.stack([attention, *torch.from_numpy(random.standard_normal((3, *mask.shape)))])
    order = compute_removal_order(scores, mask)
    options = {"bias": bias, "renormalise": renormalise}
    n_removed = count_removals_to_flip(attention, logits, mask, order, all_zero=all_zero, **options)
    fractions = n_removed / mask.sum(-1)
    n_ties = 0
    for ranking, row in itertools.product(range(len(order)), range(len(instances))):
        weights, u = instances[row]
        places = order[ranking, row, : len(weights)].numpy()
        assert sorted(places) == list(range(len(weights)))
        fraction, steps = by_the_paper(weights, u, bias.numpy(), places, renormalise, all_zero)
        found = fractions[ranking, row].item()
        best = np.sort([weights @ u, *steps], axis=-1)
        if (
            best[:, -1] - best[:, -2]
        ).min() < 1e-9:  # dividing again and again breaks ties by rounding
            n_ties += 1
            continue
        assert found == pytest.approx(fraction, abs=1e-6, nan_ok=True)
    assert n_ties < 120  # of 480
    assert 0.05 < fractions.isnan().double().mean() < 0.8
    if all_zero:
        assert (fractions == 1).any()


def test_the_released_rule_counts_the_bias_alone():
    """Both tokens speak for class 0, the bias for class 1."""
    attention, mask = torch.tensor([[0.75, 0.25]]), torch.ones(1, 2, dtype=torch.bool)
    logits = torch.tensor([[[2.0, 0.0], [1.0, 0.0]]])
    bias = torch.tensor([0.0, 1.0])
    order = torch.tensor([[0, 1]])
    assert count_removals_to_flip(attention, logits, mask, order, bias=bias).isnan().all()
    n_removed = count_removals_to_flip(attention, logits, mask, order, bias=bias, all_zero=True)
    assert n_removed.tolist() == [2.0]


def test_ties_go_to_the_lower_class():
    """After the first token is erased both classes are level: a flip for class 1, none for class 0."""
    attention, mask = torch.tensor([[0.5, 0.5]]), torch.ones(1, 2, dtype=torch.bool)
    order = torch.tensor([[0, 1]])
    for predicted, size in ((1, 1.0), (0, torch.nan)):
        logits = torch.zeros(1, 2, 2)
        logits[0, 0, predicted] = 1
        assert find_minimal_flip_set(attention, logits, mask).size.item() == pytest.approx(
            size, nan_ok=True
        )
        assert count_removals_to_flip(attention, logits, mask, order).item() == pytest.approx(
            size, nan_ok=True
        )


@pytest.mark.parametrize("renormalise", [True, False])
def test_erasing_each_alone(renormalise):
    random = np.random.default_rng(0)
    attention, logits, mask = padded([instance("peaked", 3, n, random) for n in (7, 4, 1)], 7)
    attention[0] = torch.tensor([1 - 1e-13, 1e-13, 0, 0, 0, 0, 0])  # what is left must not drown
    bias = torch.from_numpy(random.standard_normal(3))
    found = erase_each_weight(attention, logits, bias=bias, renormalise=renormalise)
    for row, n in enumerate(mask.sum(-1).tolist()):
        for place in range(n):
            weights = attention[row].clone()
            weights[place] = 0
            total = weights.sum() if renormalise else torch.tensor(1.0)
            expected = (weights[:, None] * (logits[row] - (0 if renormalise else bias))).sum(
                0
            ) / total
            expected = expected if renormalise and total > 0 else expected.nan_to_num() + bias
            assert torch.allclose(found[row, place], expected, rtol=1e-9, atol=0, equal_nan=True)
    assert torch.equal(found[2, 0], bias)


# Erasure curves and their bounds against all T! orders, counted one by one


def set_function(seed, n_units, n_texts=1):
    """A random drop for every set, [2^units, texts]; 0 without any unit."""
    drops = tiny_models.drawn(2**n_units, n_texts, seed=seed).sigmoid() - 0.3
    drops[0] = 0
    return drops


def all_orders(drops, n_units):
    """AOPC of every order, from the definition."""
    found = []
    for order in itertools.permutations(range(n_units)):
        numbers = itertools.accumulate(1 << unit for unit in order)
        found.append(sum(drops[number].item() for number in numbers) / n_units)
    return found


def test_exact_bounds_are_those_of_all_orders():
    """Texts of one to six units in one table."""
    lengths = torch.arange(1, 7).repeat(3)
    drops = set_function(0, 6, len(lengths))
    bounds = torch.stack(aopc.compute_aopc_bounds(drops, lengths), 1)
    for text, n_units in enumerate(lengths.tolist()):
        found = all_orders(drops[:, text], n_units)
        expected = [min(found), max(found)]
        assert bounds[text].tolist() == pytest.approx(expected, abs=1e-12)


def lookup(drops, positions):
    """The set function of one text, over its positions."""

    def drop(sets):
        numbers = (sets[:, 0][:, positions].long() << torch.arange(len(positions))).sum(-1)
        return drops[numbers]

    return drop


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(0, 10**6), st.integers(1, 4))
def test_a_beam_finds_orders_and_a_wide_one_the_best(n_units, seed, width):
    drops, positions = set_function(seed, n_units), list(range(1, n_units + 1))
    content = torch.zeros(1, n_units + 2, dtype=torch.bool)
    content[0, positions] = True
    found = all_orders(drops[:, 0], n_units)
    exact = aopc.compute_aopc_bounds(drops, torch.tensor([n_units]))
    lower, upper = aopc.search_aopc_bounds(lookup(drops, positions), content, width)
    assert exact[0] - 1e-12 <= lower <= upper + 1e-12 <= exact[1] + 2e-12
    for bound in (lower, upper):
        assert min(abs(bound.item() - x) for x in found) < 1e-12  # it is the value of an order
    wide = aopc.search_aopc_bounds(
        lookup(drops, positions), content, math.comb(n_units, n_units // 2)
    )
    assert torch.allclose(torch.stack(wide), torch.stack(exact), atol=1e-12)


@given(st.integers(1, 400))
def test_counts_are_rounded_up(n_units):
    counts = aopc.compute_removal_counts(torch.tensor([n_units]))[:, 0].tolist()
    assert counts == [math.ceil(n_units * p / 100 - 1e-9) for p in (1, 5, 10, 20, 50)]
    assert min(counts) >= 1


def test_order_is_by_score_then_by_place_and_knows_no_padding():
    """As NumPy sorts the text alone; of 17 tokens PyTorch leaves ties in any order unless asked."""
    scores = torch.randint(4, (1, 42), generator=torch.Generator().manual_seed(0)).float()
    content = torch.ones_like(scores).bool()
    scores[:, [0, -1]], content[:, [0, -1]] = 9, False
    order = 1 + np.argsort(-scores[0, 1:-1].numpy(), kind="stable")
    assert compute_removal_order(scores, content)[0, :40].tolist() == order.tolist()
    for n in (0, 2):
        longer = (torch.nn.functional.pad(values, (n, 0)) for values in (scores, content))
        assert compute_removal_rank(*longer)[0, n + order].tolist() == [*range(40)]


def test_equal_sets_of_one_text_have_one_number():
    sets = torch.rand(40, 3, 70, generator=torch.Generator().manual_seed(0)) < 0.5
    sets[7], sets[9, 1] = sets[3], sets[3, 0]
    numbers = aopc.number_distinct_sets(sets)
    assert torch.equal(numbers[7], numbers[3]) and numbers[9, 1] != numbers[3, 0]
    assert len(numbers.unique()) == 39 * 3


def test_normalised_is_a_share_of_the_span():
    found = aopc.normalise_aopc(
        torch.tensor([0.25, 0.0, 1.0, 0.5, 0.3]),
        torch.tensor([0.0, 0.0, 0.0, 0.5, 0.4]),
        torch.tensor([0.5, 0.5, 0.5, 0.5, 0.6]),
    )
    assert found[:3].tolist() == [0.5, 0.0, 1.0] and found[3].isnan() and found[4] == 0.0
