import pytest
import torch

from hf_attnprobe.functional.search import LOG_OFFSET, linear_distance, search_adversarial_attention


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
        start, original, mask, linear_distance(logits, probs), n_steps=n_steps
    )
    theirs = plain_search(start, original, mask, logits, probs, n_steps=n_steps)
    assert (ours - theirs).abs().max() < 1e-9
    assert (ours[:, ~mask] == 0).all()


def test_layout_of_the_start_in_memory_does_not_matter():
    torch.manual_seed(0)
    mask, original = torch.ones(2, 5, dtype=torch.bool), torch.rand(2, 5).softmax(-1)
    logits = torch.randn(2, 5, 2)
    distance = linear_distance(logits, torch.einsum("bk,bkn->bn", original, logits).softmax(-1))
    start = torch.randn(2, 5, 3).permute(2, 0, 1)
    ours = search_adversarial_attention(start, original, mask, distance, n_steps=20)
    again = search_adversarial_attention(start.contiguous(), original, mask, distance, n_steps=20)
    assert torch.equal(ours, again)
