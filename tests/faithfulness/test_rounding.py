"""Check that ranks and ties in float32 equal those in float64."""

import pytest
import torch
from transformers import BertForSequenceClassification

from hf_attnprobe.adapters import wrap
from hf_attnprobe.functional.divergence import compute_shifted_probability, tvd
from hf_attnprobe.protocol import Observation
from tests.helpers import tiny_models


N_TEXTS, LENGTH = 12, 62


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
