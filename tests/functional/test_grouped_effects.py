"""Effects that are measured in groups, against effects that are known for every unit."""

import numpy as np
import torch

from hf_attnprobe.functional.grouped_effects import measure_in_groups


def measure_sums(effects, n_calls):
    """Return a function that measures the summed effects of groups and counts them."""

    def measure(groups):
        n_calls.append(len(groups))
        return torch.stack([effects[group].sum(0) for group in groups])

    return measure


def test_few_units_are_measured_one_at_a_time():
    effects = torch.randn(40, 2, dtype=torch.float64)
    n_calls = []
    order = np.random.default_rng(0).permutation(40).tolist()
    actual = measure_in_groups(order, measure_sums(effects, n_calls), 40)
    torch.testing.assert_close(actual, effects)
    assert n_calls == [40]


def test_important_units_are_found_late_in_the_order():
    generator = np.random.default_rng(1)
    effects = torch.tensor(generator.normal(0, 1e-4, (5000, 1)))
    order = generator.permutation(5000).tolist()
    # Three units with large effects, which the order puts in the middle and at the end.
    important = [order[2000], order[3500], order[4999]]
    effects[important] = torch.tensor([[2.0], [-1.0], [0.5]], dtype=torch.float64)
    n_calls = []
    actual = measure_in_groups(order, measure_sums(effects, n_calls), 512)
    assert sum(n_calls) <= 512
    torch.testing.assert_close(actual[important], effects[important])
    torch.testing.assert_close(actual[order[:128]], effects[order[:128]])
    # Each group's members share its effect, so nothing is lost or counted twice.
    torch.testing.assert_close(actual.sum(), effects.sum())
    assert actual.abs().topk(3, dim=0).indices[:, 0].tolist() == important
