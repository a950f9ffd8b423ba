"""Compare the tests of linear read-outs with scipy, brute force over permutations, and definitions."""

import itertools
import math
import statistics

import pytest
import scipy.stats
import torch

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.readings import get_sentence
from hf_attnprobe.faithfulness import registry
from hf_attnprobe.faithfulness.adversarial import adversarial
from hf_attnprobe.faithfulness.correlation import correlation
from hf_attnprobe.faithfulness.interchange import collect_donors
from hf_attnprobe.faithfulness.options import Adversarial, Correlation, Permutation
from hf_attnprobe.faithfulness.permutation import permutation
from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.protocol import AnswersFromPassage, Site
from hf_attnprobe.statistics.wording import CLASS_WORDING
from hf_attnprobe.storage.rows import collect_statistics
from tests.faithfulness.test_erasure import make_decoder
from tests.helpers import tiny_models


SITE = Site()
IDS = torch.tensor(
    [[2, 5, 6, 7, 8, 9, 3], [2, 9, 6, 4, 3, 0, 0], [2, 8, 5, 3, 0, 0, 0], [2, 8, 3, 0, 0, 0, 0]]
)


def observe_classifier(attention="additive", num_labels=2, encoder="bilstm"):
    query = 10 if attention == "additive" else 1
    kind = {"encoder": encoder, "attention": attention, "num_labels": num_labels}
    model = tiny_models.classifier(read_out=10, query=query, seed=1, **kind)
    return tiny_models.seen(model, IDS, (10, 11, 12, 13))


@pytest.mark.parametrize("num_labels", [2, 4])
@pytest.mark.parametrize("target", [None, 1])
def test_correlation_equals_scipy(num_labels, target):
    _adapter, observation = observe_classifier(num_labels=num_labels)
    result = correlation(observation, SITE, Correlation(target=target))
    importances = {
        "attention": observation.read(SITE),
        "gradient": observation.with_target(target).compute_gradient_importance(),
        "leave_one_out": observation.with_target(target).compute_leave_one_out_importance(),
    }
    for pair in itertools.combinations(importances, 2):
        for row in range(3):
            real = observation.batch.content_mask[row]
            x, y = (importances[name][row][real].numpy() for name in pair)
            theirs = scipy.stats.kendalltau(x, y)
            tau, p_value, significant = (
                getattr(result, "_".join([*pair, name]))[row].item()
                for name in ("tau", "p_value", "significant")
            )
            assert (tau, p_value) == pytest.approx((theirs.statistic, theirs.pvalue), abs=1e-12)
            assert significant == float(theirs.pvalue <= 0.05 and theirs.statistic > 0)
    assert result.significant_by_chance.tolist() == pytest.approx([1 / math.factorial(5), 0, 0, 0])


def test_one_token_and_uniform_attention_have_no_rank():
    _adapter, observation = observe_classifier(attention="uniform")
    result = correlation(observation, SITE)
    assert result.attention_gradient_tau.isnan().all()
    assert (result.attention_gradient_significant == 0).all()
    assert result.gradient_leave_one_out_tau[:3].isfinite().all()
    assert result.gradient_leave_one_out_tau[3].isnan()


def test_equal_states_make_permutation_harmless():
    adapter, observation = observe_classifier(encoder="none")
    adapter.base.embeddings.weight.data[4:] = adapter.base.embeddings.weight.data[4]
    observation = adapter.observe(observation.batch)
    assert permutation(observation, SITE).max_tvd.abs().max() < 1e-12
    everything = adversarial(observation, SITE)
    assert torch.allclose(everything.epsilon_max_jsd[0.001], everything.largest_jsd, atol=1e-9)


@pytest.mark.parametrize("num_labels", [2, 4])
def test_search_stays_feasible_and_below_the_exact_answer(num_labels):
    adapter, observation = observe_classifier(num_labels=num_labels)
    result = adversarial(observation, SITE, Adversarial(method="search", n_steps=150))
    for epsilon, attention in result.attention.items():
        after = adapter.replay(observation, {0: attention[None, :, None]})[0]
        assert (tvd(after, observation.probs) <= epsilon + 1e-9).all()
        assert torch.allclose(
            jsd(attention[:, 0], observation.read(SITE)), result.epsilon_max_jsd[epsilon], atol=1e-9
        )
        assert (result.epsilon_max_jsd[epsilon] <= result.largest_jsd + 1e-9).all()
    assert result.epsilon_max_jsd[0.05][3] == 0  # one token cannot move
    if num_labels == 2:
        exact = adversarial(observation, SITE, Adversarial(method="exact", epsilons=(0.01, 0.05)))
        for epsilon in (0.01, 0.05):
            assert (exact.epsilon_max_jsd[epsilon] >= result.epsilon_max_jsd[epsilon] - 1e-9).all()


def test_exact_is_refused_where_it_does_not_hold():
    _adapter, observation = observe_classifier(num_labels=4)
    with pytest.raises(AttnProbeError, match="method='search'"):
        adversarial(observation, SITE, Adversarial(method="exact"))


def test_every_statistic_has_a_reading():
    adapter, observation = observe_classifier()
    adapter.donors = collect_donors(adapter, [observation.batch], [SITE], 0)
    for test in registry.load_tests().values():
        if AnswersFromPassage in test.needs:  # told in adapters/test_language_model.py
            continue
        result = collect_statistics(test.function(observation, SITE))
        assert result and {name.split("@")[0] for name in result} <= set(test.readings)
        for name in result:
            pattern = get_sentence(test.name, name, registry.load_readings())
            sentence = CLASS_WORDING.fill(pattern, mean=0.5, median=0.5, key="0.05")
            assert "{" not in sentence and len(sentence) > 20


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
