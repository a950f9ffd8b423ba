import math

import pytest
import torch

from hf_attnprobe.functional import search
from hf_attnprobe.functional.divergence import jsd
from hf_attnprobe.functional.linear import epsilon_max_jsd
from hf_attnprobe.functional.search import (
    LOG_OFFSET,
    make_linear_distance,
    search_adversarial_attention,
)


def plain_search(start, original, mask, logits, probs, *, n_steps, epsilon=0.01, penalty=500.0):
    """Algorithm 3 as it is written: the loss, autograd, Adam."""

    def divergence(p, q):
        log = lambda x: (x + LOG_OFFSET).log()  # noqa: E731
        mean = (p + q) / 2
        return ((p * (log(p) - log(mean))).sum(-1) + (q * (log(q) - log(mean))).sum(-1)) / 2

    z = start.masked_fill(~mask, -1e30).clone().requires_grad_()
    optimizer = torch.optim.Adam([z], lr=0.01, amsgrad=True)
    for _ in range(n_steps):
        attention = z.softmax(-1)
        change = (torch.einsum("cbk,bkn->cbn", attention, logits).softmax(-1) - probs).abs().sum(
            -1
        ) / 2
        pairs = divergence(attention[:, None], attention[None]).sum() / len(start) ** 2
        loss = (penalty * (change - epsilon).relu() - divergence(attention, original)).sum() - pairs
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return z.detach().softmax(-1) * mask


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("n_steps", [0, 1, 10, 60])
def test_follows_the_plain_procedure(n_classes, n_steps):
    torch.manual_seed(n_classes)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 4:] = mask[2, 0] = False
    logits = torch.randn(3, 7, n_classes, dtype=torch.float64)
    if n_classes == 2:
        logits[..., 0] = 0
    original = torch.randn(3, 7, dtype=torch.float64).masked_fill(~mask, -1e30).softmax(-1)
    probs = torch.einsum("bk,bkn->bn", original, logits).softmax(-1)
    start = 3 * torch.randn(5, 3, 7, dtype=torch.float64)
    ours = search_adversarial_attention(
        start, original, mask, make_linear_distance(logits, probs), n_steps=n_steps
    )
    theirs = plain_search(start, original, mask, logits, probs, n_steps=n_steps)
    assert (ours - theirs).abs().max() < 1e-9
    assert (ours[:, ~mask] == 0).all()


def test_layout_of_the_start_in_memory_does_not_matter():
    torch.manual_seed(0)
    mask, original = torch.ones(2, 5, dtype=torch.bool), torch.rand(2, 5).softmax(-1)
    logits = torch.randn(2, 5, 2)
    distance = make_linear_distance(
        logits, torch.einsum("bk,bkn->bn", original, logits).softmax(-1)
    )
    start = torch.randn(2, 5, 3).permute(2, 0, 1)
    ours = search_adversarial_attention(start, original, mask, distance, n_steps=20)
    again = search_adversarial_attention(start.contiguous(), original, mask, distance, n_steps=20)
    assert torch.equal(ours, again)


# Steered candidates


def steered_candidates(attention, slope, movable):
    return torch.stack(list(search.generate_steered_candidates(attention, slope, movable)))


def problem(n_queries=4, n_keys=6):
    torch.manual_seed(0)
    visible = torch.ones(3, n_queries, n_keys, dtype=torch.bool)
    visible[1, :, 0] = visible[1, :, 4:] = False
    visible[2] = torch.ones(n_queries, n_keys, dtype=torch.bool).tril()
    visible[1, 3:] = False  # a row of padding
    scores = torch.randn(visible.shape, dtype=torch.float64)
    attention = scores.masked_fill(~visible, -1e30).softmax(-1) * visible
    return attention, torch.randn_like(attention), visible


@pytest.mark.parametrize("steepness", [1.0, 1e-306, 0.0])
def test_candidates_are_attentions(steepness):
    attention, slope, visible = problem()
    found = steered_candidates(attention, steepness * slope, visible)
    assert found.shape == (search.N_CANDIDATES, *attention.shape)
    assert (found[:, ~visible] == 0).all() and (found >= 0).all()
    assert torch.allclose(found.sum(-1), attention.sum(-1).expand(found.shape[:-1]))


def test_the_first_is_the_farthest_of_all():
    attention, slope, visible = problem()
    farthest = jsd(steered_candidates(attention, slope, visible)[0], attention)
    corners = jsd(torch.eye(6, dtype=torch.float64), attention.unsqueeze(-2))
    corners = corners.masked_fill(~visible, -1).amax(-1)
    assert torch.allclose(farthest[visible.any(-1)], corners[visible.any(-1)])


def test_the_others_lie_on_either_side_of_no_change():
    attention, slope, visible = problem(n_queries=8)
    found = steered_candidates(attention, slope, visible)
    change = (slope * (found - attention)).sum((-2, -1))
    below, above = change[2], change[1]
    assert (below <= 1e-9).all() and (above >= -1e-9).all()


def test_on_a_linear_model_none_is_beyond_the_exact_answer():
    """With one query and p = σ(Σ a u) the gradient is p (1 − p) u, and the exact ε-max JSD bounds every candidate."""
    attention, scores, visible = problem(n_queries=1)
    attention, scores = attention[:1], scores[:1]
    prob = (attention * scores).sum((-2, -1)).sigmoid()
    found = steered_candidates(attention, (prob * (1 - prob))[:, None, None] * scores, visible[:1])
    after = (found * scores).sum((-2, -1)).sigmoid()
    exact = epsilon_max_jsd(attention[:, 0], scores[:, 0], visible[:1, 0], (0.05,)).jsd[0]
    kept = jsd(found, attention)[:, :, 0].masked_fill((after - prob).abs() > 0.05, 0).amax(0)
    assert 0 < kept.item() <= exact.item() + 1e-9 <= math.log(2) + 1e-9


def test_a_text_of_one_token_stays():
    attention = torch.ones(1, 1, 1, dtype=torch.float64)
    found = steered_candidates(attention, torch.randn_like(attention), attention.bool())
    assert found.unique().tolist() == pytest.approx([1.0])


def test_only_rows_that_may_move_do():
    attention, slope, visible = problem()
    movable = visible.clone()
    movable[:, 1] = False
    found = steered_candidates(attention, slope, movable)
    assert torch.equal(found[:, :, 1], attention[:, 1].expand_as(found[:, :, 1]))
    can_move = movable.sum(-1) > 1
    assert ((found - attention).abs().amax((0, -1))[can_move] > 0.1).all()


def test_rows_of_most_effect_are_kept_first():
    """Against sorting the effects by hand: with k rows kept the change is that of the others."""
    attention, slope, visible = problem(n_queries=8)
    found = steered_candidates(attention, slope, visible)
    effects = (slope * (found[0] - attention)).sum(-1).abs()
    for place, share in enumerate(search.UNCHANGED_ROW_SHARES):
        candidate = found[3 + place]
        for text in range(len(attention)):
            n_rows = int(visible[text].any(-1).sum())
            by_effect = sorted(range(n_rows), key=lambda r: -effects[text, r].item())
            kept = set(by_effect[: max(1, math.ceil(share * n_rows))])
            for row in range(n_rows):
                expected = attention if row in kept else found[0]
                assert torch.equal(candidate[text, row], expected[text, row])
