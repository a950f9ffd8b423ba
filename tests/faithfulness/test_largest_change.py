"""The worst of all shuffles, and the median in log-odds, by plain loops over a classifier's read-out."""

import itertools
import math
import statistics

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_model import Site
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.faithfulness.permutation import permutation


def odds(logits, of):
    """Log-odds of a class against the others, from its probability alone."""
    p = logits.softmax(-1)
    end = -math.log(torch.finfo(torch.float64).eps)
    others = p.sum() - p[of] if p[of] < 0.5 else p[torch.arange(len(p)) != of].sum()
    return max(-end, min(end, math.log(max(p[of], 1e-300) / max(others, 1e-300))))


def changes(before, after, of):
    """Total variation, and the share of the log-odds that goes."""
    tvd = 0.5 * (before.softmax(-1) - after.softmax(-1)).abs().sum().item()
    old, new = odds(before, of), odds(after, of)
    return tvd, min(1, abs(old - new) / max(abs(old), abs(new), 4))


@pytest.fixture(params=[1, 3], ids=["unsure", "saturated"])
def case(request, make_model, tokenizer, texts):
    """A function to an observation of short texts, with states and weights of each."""

    def run(n_labels):
        adapter = wrap(make_model("mlp", "additive", n_labels))
        with torch.no_grad():
            adapter.model.classifier.weight *= request.param
        cut = [" ".join(text.split()[: 1 + k % 6]) for k, text in enumerate(texts[:12])]
        inputs = tokenizer(cut, padding=True, return_tensors="pt")
        observation = adapter.observe(adapter.prepare(inputs, tuple(range(12))))
        return adapter, observation

    return run


def of_text(adapter, observation, row):
    """Weights of the content, and the logits that weights have."""
    content = observation.batch.content_mask[row]
    states = observation.state.states[row].detach()[content]
    weights = observation.attention[0][row, 0, 0, content]
    return weights, lambda weights: adapter.model.decode(weights @ states)


def test_the_largest_change_is_that_of_all_permutations(case):
    adapter, observation = case(2)
    found = permutation(observation, Site(), Permutation(n_permutations=20))
    for row in range(12):
        weights, decode = of_text(adapter, observation, row)
        assert len(weights) <= 6
        before = decode(weights)
        of = int(before.argmax())
        every = [
            changes(before, decode(weights[list(order)]), of)
            for order in itertools.permutations(range(len(weights)))
        ]
        worst = max(max(pair) for pair in every)
        assert found.largest_change[row].item() == pytest.approx(worst, abs=1e-9)
        worst_tvd = max(tvd for tvd, _ in every)
        assert found.max_tvd[row].item() == pytest.approx(worst_tvd, abs=1e-9)
        assert found.largest_drawn_change[row] <= worst + 1e-9


@pytest.mark.parametrize("n_labels", [2, 3])
def test_the_drawn_shuffles_one_by_one(case, n_labels):
    adapter, observation = case(n_labels)
    found = permutation(observation, Site(), Permutation(n_permutations=9))
    drawn = observation.permutations(0, 9, 0)[:, :, 0]
    assert found.largest_change is None or n_labels == 2
    for row in range(12):
        weights, decode = of_text(adapter, observation, row)
        before = decode(weights)
        of = int(before.argmax())
        moved = []
        content = observation.batch.content_mask[row]
        for order in drawn[:, row]:
            whole = observation.attention[0][row, 0, 0, order]
            moved.append(changes(before, decode(whole[content]), of))
        tvd, share = (statistics.median(x) for x in zip(*moved, strict=True))
        assert found.median_tvd[row].item() == pytest.approx(tvd, abs=1e-9)
        got = found.median_share_of_log_odds[row].item()
        assert got == pytest.approx(share, abs=1e-7)
        worst = max(max(pair) for pair in moved)
        got = found.largest_drawn_change[row].item()
        assert got == pytest.approx(worst, abs=1e-7)
