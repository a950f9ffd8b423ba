"""Permutation of attention: against all permutations, and shuffles that are drawn one by one."""

import itertools
import statistics

import pytest
import torch

from hf_attnprobe.faithfulness.adversarial import adversarial
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.faithfulness.permutation import permutation
from hf_attnprobe.protocol import Site
from tests.faithfulness.test_erasure import make_decoder
from tests.helpers.observed_classifiers import SITE, observe_classifier


def test_equal_states_make_permutation_harmless():
    adapter, observation = observe_classifier(encoder="none")
    adapter.base.embeddings.weight.data[4:] = adapter.base.embeddings.weight.data[4]
    observation = adapter.observe(observation.batch)
    assert permutation(observation, SITE).max_tvd.abs().max() < 1e-12
    everything = adversarial(observation, SITE)
    assert torch.allclose(everything.epsilon_max_jsd[0.001], everything.largest_jsd, atol=1e-9)


# shuffles


SHARPNESS = 2.5
"""A temperature that is not the model's own."""


def compute_output_changes(before, after, sharpness=1.0):
    """Total variation of two outputs, whose logits are multiplied by a factor."""
    first, second = ((logits * sharpness).softmax(-1) for logits in (before, after))
    return 0.5 * (first - second).abs().sum().item()


@pytest.fixture(params=[1, 3], ids=["unsure", "saturated"])
def case(request, observe):
    """A function to an observation of short texts."""

    def run(n_labels):
        adapter, observation = observe("mlp", "additive", n_labels, lengths=range(1, 7))
        adapter.sharpness = SHARPNESS
        with torch.no_grad():
            adapter.model.classifier.weight *= request.param
        return adapter, adapter.observe(observation.batch)

    return run


@pytest.mark.parametrize("n_labels", [2, 3])
def test_shuffles_against_all_permutations(case, n_labels):
    adapter, observation = case(n_labels)
    result = permutation(observation, SITE, Permutation(n_permutations=3000))
    for row in range(12):
        decode, words = make_decoder(adapter, observation, row)
        weights = observation.read(SITE)[row, words]
        orders = itertools.permutations(range(len(weights)))
        before, every = decode(weights), torch.stack([decode(weights[list(o)]) for o in orders])
        changes = torch.tensor([compute_output_changes(before, after) for after in every]).double()
        low, high = (
            changes.quantile(q, interpolation=i) for q, i in ((0.45, "lower"), (0.55, "higher"))
        )
        assert low - 1e-6 <= result.median_tvd[row] <= high + 1e-6
        flips = (every.argmax(-1) != before.argmax()).any().item()
        assert result.flip_possible[row] == flips
        logit = every[:, 1] - every[:, 0] if n_labels == 2 else every[:, before.argmax()]
        assert result.logit_mean[row].item() == pytest.approx(logit.mean().item(), abs=1e-6)
        variance = logit.var(correction=0).item()
        assert result.logit_variance[row].item() == pytest.approx(variance, rel=1e-5, abs=1e-6)
        if n_labels == 2:  # by the linear read-out
            worst = max(compute_output_changes(before, after, SHARPNESS) for after in every)
            assert result.max_tvd[row].item() == pytest.approx(changes.max().item(), abs=1e-6)
            assert result.largest_standard_tvd[row].item() == pytest.approx(worst, abs=1e-6)
    assert (n_labels == 2) == (result.max_tvd is not None)


@pytest.mark.parametrize("n_labels", [2, 3])
def test_the_drawn_shuffles_one_by_one(case, n_labels):
    adapter, observation = case(n_labels)
    result = permutation(observation, Site(), Permutation(n_permutations=9))
    drawn = observation.draw_permutations(0, 9, 0)[:, :, 0]
    for row in range(12):
        decode, words = make_decoder(adapter, observation, row)
        weights = observation.read(SITE)[row, words]
        before = decode(weights)
        after = [decode(observation.read(SITE)[row, order][words]) for order in drawn[:, row]]
        plain = statistics.median(compute_output_changes(before, logits) for logits in after)
        assert result.median_tvd[row].item() == pytest.approx(plain, abs=1e-6)
        standard = [compute_output_changes(before, logits, SHARPNESS) for logits in after]
        expected = statistics.median(standard)
        assert result.standard_tvd[row].item() == pytest.approx(expected, abs=1e-6)
        flips = sum(bool(logits.argmax() != before.argmax()) for logits in after)
        assert result.flips_drawn[row].item() == pytest.approx(flips / 9)
        largest = result.largest_standard_tvd[row].item()
        if n_labels == 2:  # of all shuffles, by the linear read-out
            assert largest >= max(standard) - 1e-6
        else:
            assert largest == pytest.approx(max(standard), abs=1e-6)
