"""The adversary's loss by hand, and that nothing in it can become infinite."""

import math

import pytest
import torch

from hf_attnprobe.retraining.adversary import compute_adversary_loss


def batch():
    """Two texts of two classes; the second has a padded position."""
    probs = torch.tensor([[0.3, 0.7], [0.6, 0.4]])
    base_probs = torch.tensor([[0.1, 0.9], [0.9, 0.1]])
    attention = torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.25, 0.0]])
    base_attention = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.5, 0.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    return probs, attention, base_probs, base_attention, mask


def test_hand_computed():
    # TVD .2 + .3. KL: .5 ln 2 − .25 ln 2 = .25 ln 2 and .75 ln 1.5 + .25 ln .5.
    divergence = 0.25 * math.log(2) + 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert divergence == pytest.approx(0.304098831, abs=1e-8)
    assert compute_adversary_loss(*batch(), lambda_=0.1).item() == pytest.approx(
        0.5 - 0.1 * 0.304098831, abs=1e-6
    )
    assert compute_adversary_loss(*batch(), lambda_=0.0).item() == pytest.approx(0.5, abs=1e-6)


def test_the_papers_half_scale():
    """Half the TVD with half the λ is half the loss: the same optimum."""
    half = compute_adversary_loss(*batch(), lambda_=0.05, tvd_factor=0.5)
    assert half.item() == pytest.approx(
        compute_adversary_loss(*batch(), lambda_=0.1).item() / 2, abs=1e-7
    )


def test_an_underflowed_base_weight_counts_as_1e_minus_10():
    probs, _, base_probs, _, _ = batch()
    attention, base = torch.tensor([[0.5, 0.5]] * 2), torch.tensor([[1.0, 0.0]] * 2)
    loss = compute_adversary_loss(
        probs, attention, base_probs, base, torch.ones(2, 2, dtype=torch.bool), lambda_=1.0
    )
    divergence = 0.5 * math.log(0.5) + 0.5 * (math.log(0.5) - math.log(1e-10))
    assert loss.item() == pytest.approx(0.5 - 2 * divergence, abs=1e-4)


@pytest.mark.parametrize("scores", [[0.0, 0.0, 0.0], [200.0, 0.0, -200.0], [-300.0, 300.0, 0.0]])
def test_gradients_are_finite_at_masked_and_underflowed_positions(scores):
    scores = torch.tensor([scores], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    attention = scores.masked_fill(~mask, torch.finfo(torch.float32).min).softmax(-1) * mask
    probs = torch.tensor([[0.5, 0.5]])
    for base in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]):
        loss = compute_adversary_loss(
            probs, attention, probs, torch.tensor([base]), mask, lambda_=1.0
        )
        (slope,) = torch.autograd.grad(loss, scores, retain_graph=True)
        assert loss.isfinite() and slope.isfinite().all() and slope[0, 2] == 0


def test_what_is_masked_does_not_count():
    probs, attention, base_probs, base, mask = batch()
    attention[1, 2], base[1, 2] = 0.9, 0.1  # no weight that a model would give
    assert compute_adversary_loss(
        probs, attention, base_probs, base, mask, lambda_=0.1
    ) == compute_adversary_loss(*batch(), lambda_=0.1)


def test_the_gradient_against_finite_differences():
    probs, attention, base_probs, base, mask = (
        x.double() if x.is_floating_point() else x for x in batch()
    )
    attention[1, 2] = 0.3

    def loss(probs, attention):
        return compute_adversary_loss(probs, attention, base_probs, base, mask, lambda_=0.3)

    assert torch.autograd.gradcheck(loss, (probs.requires_grad_(), attention.requires_grad_()))
