"""Correlation of attention with importance: against scipy, and what rounding does to ties."""

import itertools
import math

import pytest
import scipy.stats
import torch

from hf_attnprobe.faithfulness.correlation import correlation, rank_by_leave_one_out, rank_with_ties
from hf_attnprobe.faithfulness.options import Correlation
from hf_attnprobe.faithfulness.rankings import compute_ranking
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.protocol import Site
from tests.faithfulness.test_rounding import observe
from tests.helpers import tiny_models
from tests.helpers.observed_classifiers import SITE, observe_classifier


PAIRS = ("attention_gradient", "attention_leave_one_out", "gradient_leave_one_out")


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


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("scale", tiny_models.daily([8, 11, 14, 17, 30], [17, 30]))
def test_float32_has_the_correlations_of_float64(scale, n_classes):
    """At scale 17 (mean p .9997) half of the texts were undefined."""
    result, twin = (
        correlation(observe(scale, dtype, n_classes), Site(1, 0))
        for dtype in (torch.float32, torch.float64)
    )
    for pair in PAIRS:
        ours, exact = getattr(result, f"{pair}_tau"), getattr(twin, f"{pair}_tau")
        assert ours.isfinite().all() and exact.isfinite().all()
        assert (ours - exact).abs().mean() < 0.002
        assert (ours - exact).abs().max() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1, 17])
def test_equal_neighbours_are_ties_of_leave_one_out(scale, dtype):
    """Leaving out either leaves the same text."""
    observation = observe(scale, dtype, repeat=2)
    for ranked in (
        rank_by_leave_one_out(observation),
        compute_ranking(observation, Site(1, 0), "leave_one_out"),
    ):
        inner = ranked[:, 2:-2].unflatten(1, (-1, 2))
        assert torch.equal(inner[..., 0], inner[..., 1])
        assert len(inner[0, :, 0].unique()) > 20  # and others are told apart


def test_a_scale_alone_never_makes_ties():
    values = torch.rand(4, 30, generator=torch.Generator().manual_seed(0))
    content = torch.ones(4, 30).bool()
    expected = rank_with_ties(values, content)
    assert (expected.amax(-1) == 29).all()
    for scale in (1e-30, 1e-9, 1e9):
        assert torch.equal(rank_with_ties(values * scale, content), expected)
    half = rank_with_ties(values.bfloat16() * 1e-9, content)
    assert (half.amax(-1) > 15).all()


def test_opposite_orders_do_not_agree():
    """τ is −1 in every text, which was once called agreement in 100% of them."""
    model = tiny_models.classifier(
        40, embedding_size=2, encoder="none", attention="dot_product"
    ).double()
    x = torch.linspace(0, 2, 40).double()
    weights = torch.stack([x, torch.exp(3 * x) / 100], 1)
    model.attention_classifier.embeddings.weight.data[:] = weights
    query = torch.tensor([[-1.5 * 2**0.5, 0.0]])
    model.attention_classifier.attention.query.weight.data[:] = query
    model.classifier.weight.data[:] = torch.tensor([[0.0, 1.0]])
    model.classifier.bias.data[:] = 0
    tokens = torch.stack([torch.randperm(36)[:12] + 4 for _ in range(20)])
    ids = torch.cat([torch.full((20, 1), 2), tokens, torch.full((20, 1), 3)], 1)
    result = correlation(tiny_models.seen(model, ids)[1], Site())
    assert (result.attention_gradient_tau < -0.99).all()
    assert (result.attention_gradient_p_value <= 0.05).all()
    share = result.attention_gradient_significant.mean().item()
    reading = load_readings()["correlation"]["attention_gradient_significant"]
    assert reading.sentence.format(mean=share) == (
        "attention and gradients agree significantly (p ≤ .05, τ > 0) in 0% of texts"
    )
