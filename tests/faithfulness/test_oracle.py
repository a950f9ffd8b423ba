"""Compare all numbers with the reference implementation of Jain & Wallace 2019 on 64 sentences."""

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.adversarial import adversarial
from hf_attnprobe.faithfulness.correlation import correlation
from hf_attnprobe.faithfulness.options import Adversarial
from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.functional.intervention import permute
from hf_attnprobe.functional.search import make_linear_distance, search_adversarial_attention
from hf_attnprobe.protocol import Site
from tests.helpers import reference_oracle as reference


SITE = Site()


@pytest.fixture(scope="module")
def oracle():
    return reference.load_oracle()


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=["float32", "float64"])
def observed(request, oracle):
    """Adapter, observation, suffix of the arrays to compare with, and the tolerance of the issue."""
    adapter = wrap(reference.load_model(oracle), dtype=request.param)
    ids = oracle["tokens"]
    batch = adapter.prepare(
        {"input_ids": ids, "attention_mask": (ids != 0).long()}, tuple(range(len(ids)))
    )
    exact = request.param == torch.float64
    return (adapter, adapter.observe(batch), "_f64" if exact else "", 1e-9 if exact else 1e-5)


def largest(x):
    return x.abs().max().item()


def test_forward_pass(observed, oracle):
    _, observation, suffix, tolerance = observed
    assert torch.equal(observation.batch.mask, oracle["mask"] == 0)
    assert largest(observation.probs[:, 1] - oracle["yhat" + suffix]) < tolerance
    assert largest(observation.read(SITE) - oracle["attn" + suffix]) < tolerance


def test_normalised_gradient(observed, oracle):
    adapter, observation, suffix, tolerance = observed
    raw = adapter.compute_gradient_times_input(observation, torch.ones(64, dtype=torch.long))
    assert largest(raw - oracle["grad_xxex_raw" + suffix]) < tolerance
    normalised = raw.abs() / raw.abs().sum(-1, keepdim=True)
    assert largest(normalised - oracle["grad_xxex_norm" + suffix]) < tolerance


def test_leave_one_out(observed, oracle):
    _, observation, suffix, tolerance = observed
    content = observation.batch.content_mask
    error = observation.leave_one_out[..., 1] - oracle["loo_yhat" + suffix]
    assert largest(error[content]) < tolerance


def test_rank_correlations(oracle):
    """In the audit's precision: in float32 a rank that hangs on rounding is the machine's, not the model's."""
    adapter = wrap(reference.load_model(oracle))
    ids = oracle["tokens"]
    batch = adapter.prepare(
        {"input_ids": ids, "attention_mask": (ids != 0).long()}, tuple(range(64))
    )
    result = correlation(adapter.observe(batch), SITE)
    names = {
        "attention_gradient": "tau_attn_gradxxex_f64",
        "attention_leave_one_out": "tau_attn_loo_f64",
        "gradient_leave_one_out": "tau_loo_gradxxex_f64",
    }
    for ours, theirs in names.items():
        assert largest(getattr(result, ours + "_tau") - oracle[theirs][:, 0]) < 1e-6
        assert largest(getattr(result, ours + "_p_value") - oracle[theirs][:, 1]) < 1e-6


def test_permutations(observed, oracle):
    adapter, observation, suffix, _ = observed
    attention = permute(observation.read(SITE), oracle["perm_index"].transpose(0, 1))
    probs = adapter.replay(observation, {0: attention[:, :, None, None]})
    assert largest(probs[..., 1].T - oracle["perm_yhat"]) < 1e-5
    median = tvd(probs, observation.probs).quantile(0.5, dim=0)
    assert largest(median - oracle["perm_median_dy" + suffix]) < 1e-5


def search(observed, oracle, n_steps):
    adapter, observation, _, _ = observed
    attention = observation.read(SITE)
    noise, lengths = oracle["adv_noise"].transpose(0, 1), oracle["lengths"]
    start = 3 * noise.to(attention) - lengths.to(attention).log()[:, None]
    distance = make_linear_distance(adapter.compute_token_logits(observation), observation.probs)
    return search_adversarial_attention(
        start, attention, observation.batch.mask, distance, n_steps=n_steps
    )


@pytest.mark.parametrize("n_steps", [0, 1, 10])
def test_first_steps_of_the_search(observed, oracle, n_steps):
    result = search(observed, oracle, n_steps).transpose(0, 1)
    assert largest(result - oracle[f"adv_attn_step{n_steps}"]) < 1e-5


def test_whole_search_and_exact_answer(observed, oracle):
    adapter, observation, suffix, _ = observed
    result = search(observed, oracle, 500)
    assert largest(result.transpose(0, 1) - oracle["adv_attn" + suffix]) < 1e-3
    change = tvd(adapter.replay(observation, {0: result[:, :, None, None]}), observation.probs)
    own = observation.read(SITE)
    searched = jsd(result, own).masked_fill(change > 0.05, 0).amax(0)
    assert largest(searched - oracle["emax_jsd" + suffix]) < 1e-3

    exact = adversarial(observation, SITE, Adversarial(method="exact", epsilons=(0.01, 0.05)))
    assert (exact.epsilon_max_jsd[0.05] >= searched - 1e-6).all()
    assert exact.epsilon_max_jsd[0.05].quantile(0.5).item() == pytest.approx(0.669, abs=0.002)
    assert exact.epsilon_max_jsd[0.01].quantile(0.5).item() == pytest.approx(0.660, abs=0.002)
