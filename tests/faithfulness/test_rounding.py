"""Check that ranks and ties in float32 equal those in float64."""

import pytest
import torch
from transformers import BertForSequenceClassification

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.correlation import correlation, rank_by_leave_one_out, rank_with_ties
from hf_attnprobe.faithfulness.rankings import compute_ranking
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.functional.divergence import compute_shifted_probability, tvd
from hf_attnprobe.protocol import Observation, Site
from tests.helpers import tiny_models


N_TEXTS, LENGTH = 12, 62
PAIRS = ("attention_gradient", "attention_leave_one_out", "gradient_leave_one_out")


def bert(scale: float, n_classes: int = 2) -> BertForSequenceClassification:
    """Random weights; the scale of the classifier makes it more or less confident."""
    sizes = {"width": 32, "intermediate_size": 64, "max_position_embeddings": 140}
    model = tiny_models.bert(200, spread=0.15, num_labels=n_classes, **sizes)
    model.classifier.weight.data.mul_(scale)
    return model


def observe(
    scale: float, dtype: torch.dtype, n_classes: int = 2, *, repeat: int = 1
) -> Observation:
    """Texts of random tokens; each token ``repeat`` times in a row."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 200, (N_TEXTS, LENGTH // repeat), generator=generator)
    ids = ids.repeat_interleave(repeat, dim=1)
    ids[:, 0], ids[:, -1] = 2, 3
    adapter = wrap(bert(scale, n_classes), dtype=dtype)
    return adapter.observe(
        adapter.prepare(tiny_models.encoded(ids.tolist()), tuple(range(N_TEXTS)))
    )


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_leave_one_out_is_total_variation(dtype):
    """The definition of Jain & Wallace, for four classes; of a target its own change."""
    observation = observe(3, dtype, 4)
    without, probs = observation.leave_one_out, observation.probs[:, None]
    content = observation.batch.content_mask
    tolerance = 4 * torch.finfo(dtype).eps
    total = observation.compute_leave_one_out_importance()
    assert (total - tvd(without, probs))[content].abs().max() < tolerance
    for target in range(4):
        own = observation.with_target(target).compute_leave_one_out_importance()
        expected = (without - probs)[..., target].abs()
        assert (own - expected)[content].abs().max() < tolerance
        assert (total - own)[content].min() > -tolerance
    assert (total - own)[content].max() > 0.01


def test_leave_one_out_keeps_its_digits_next_to_probability_1():
    """1 − p is some 1e-6: p itself has lost all but its first digit in float32."""
    single, double = (observe(30, dtype) for dtype in (torch.float32, torch.float64))
    content = double.batch.content_mask
    exact = double.compute_leave_one_out_importance()[content]
    ours = single.compute_leave_one_out_importance()[content].double()
    assert ((ours - exact).abs() / exact).median() < 1e-4
    of_predicted = single.leave_one_out.amax(-1) - single.probs.amax(-1)[:, None]
    naive = of_predicted.abs()[content].double()
    assert ((naive - exact).abs() / exact).median() > 0.1


def test_small_side_is_the_probability_up_to_1():
    logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    logits.requires_grad_()
    target = torch.arange(50) % 3
    probs = (4 * logits).softmax(-1)
    own = probs[torch.arange(50), target]
    small = compute_shifted_probability(probs, target)
    assert torch.allclose(small, torch.where(own > 0.5, own - 1, own))
    (expected,) = torch.autograd.grad(own.sum(), logits, retain_graph=True)
    (result,) = torch.autograd.grad(small.sum(), logits)
    assert torch.allclose(result, expected, atol=1e-12)


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
