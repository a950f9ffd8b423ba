"""Compare the tests of single heads of a tiny BERT with hooks and full forward passes."""

import itertools

import pytest
import scipy.stats
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.adversarial import adversarial
from hf_attnprobe.faithfulness.correlation import correlation
from hf_attnprobe.faithfulness.options import Adversarial, Permutation
from hf_attnprobe.faithfulness.permutation import permutation
from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd
from hf_attnprobe.functional.intervention import replace_head
from hf_attnprobe.protocol import ALL, HEAD_SET, Site
from tests.helpers.hooked_bert import SITES, inputs, make_model, predict_with_hook


@pytest.fixture(scope="module")
def observed():
    adapter = wrap(make_model())
    observation = adapter.observe(adapter.prepare(inputs(), (3, 1, 4, 15, 9)))
    return adapter, observation


@pytest.mark.parametrize("site", SITES)
def test_permutation_equals_full_passes(observed, site):
    _adapter, observation = observed
    result = permutation(observation, site, Permutation(n_permutations=5), seed=2)
    order = observation.draw_permutations(site.layer, 5, 2)
    attention = observation.attention[site.layer]
    shuffled = attention[:, site.head].expand(5, -1, -1, -1).gather(-1, order)
    passes = [
        predict_with_hook(site, edited)
        for edited in replace_head(attention, site.head, site.query, shuffled).double()
    ]
    expected = torch.stack([tvd(p, observation.probs) for p in passes]).quantile(0.5, dim=0)
    assert torch.allclose(result.median_tvd, expected, atol=1e-6)
    assert result.max_tvd is None and result.logit_mean is None


def test_correlation_reads_the_first_row_and_leaves_special_tokens_out(observed):
    _adapter, observation = observed
    result = correlation(observation, Site(2, 1))
    attention = observation.attention[2][:, 1, 0]
    importance = observation.compute_leave_one_out_importance().round(
        decimals=6
    )  # equal neighbours tie
    for row, n_tokens in enumerate((6, 6, 3, 1, 6)):
        tokens = slice(1, 1 + n_tokens)
        ranks = attention[row, tokens], importance[row, tokens]
        theirs = scipy.stats.kendalltau(*ranks).statistic if n_tokens > 1 else float("nan")
        assert result.attention_leave_one_out_tau[row].item() == pytest.approx(
            theirs, abs=1e-9, nan_ok=True
        )


@pytest.mark.parametrize(("site", "n_steps"), list(itertools.product(SITES, (0, 25))))
def test_adversary_is_what_it_says(observed, site, n_steps):
    _adapter, observation = observed
    result = adversarial(observation, site, Adversarial(n_steps=n_steps, n_starts=2))
    own, rows = observation.attention[site.layer][:, site.head], observation.batch.mask
    if site.layer == 2:  # of the last layer only the first row is read
        rows = torch.zeros_like(rows).index_fill(1, torch.tensor([0]), True)
    for epsilon, attention in result.attention.items():
        edited = replace_head(
            observation.attention[site.layer], site.head, site.query, attention[None]
        )[0]
        assert (
            tvd(predict_with_hook(site, edited.double()), observation.probs) <= epsilon + 1e-5
        ).all()
        divergence = jsd(attention, own)
        mean = (divergence * rows).sum(-1) / rows.sum(-1)
        mean = mean if site.query is None else divergence[:, site.query]
        assert torch.allclose(mean, result.epsilon_max_jsd[epsilon], atol=1e-6)
        assert (result.epsilon_max_jsd[epsilon] <= result.largest_jsd + 1e-6).all()
    assert (result.epsilon_max_jsd[0.05] >= result.epsilon_max_jsd[0.01]).all()
    assert result.epsilon_max_jsd[0.05].max() > 0.05


def test_rows_that_cannot_reach_the_output_are_neither_moved_nor_counted(observed):
    """All rows of the last layer but [CLS] put elsewhere: the same output, and no room."""
    adapter, observation = observed
    for head in range(4):
        own = observation.attention[2][:, head]
        free = own.clone()
        free[:, 1:] = 0
        rows = torch.arange(8)[1:]
        free[:, rows, own[:, 1:].argmin(-1)[0]] = 1
        edited = replace_head(observation.attention[2], head, None, free[None])
        with torch.no_grad():
            moved = adapter.replay(observation, {2: edited})[0]
        assert tvd(moved, observation.probs).max() < 1e-7
        result = adversarial(observation, Site(2, head))
        bound = largest_jsd(own[:, 0], observation.batch.mask)
        assert torch.allclose(result.largest_jsd, bound, atol=1e-6)
        for epsilon, attention in result.attention.items():
            assert torch.equal(attention[:, 1:], own[:, 1:])
            first = jsd(attention[:, 0], own[:, 0])
            assert torch.allclose(result.epsilon_max_jsd[epsilon], first, atol=1e-6)


GROUPS = [Site(1, ALL), Site(ALL, ALL), Site(2, ALL), Site(HEAD_SET, 0)]


@pytest.mark.parametrize("site", GROUPS)
def test_heads_of_a_group_are_moved_together(observed, site, monkeypatch):
    """Each value is that of a replay in which only the group's heads differ, computed by plain loops."""
    adapter, observation = observed
    monkeypatch.setattr(adapter, "head_sets", [[Site(0, 2), Site(2, 1)]])
    members = {
        (layer, head)
        for layer in range(3)
        for head in range(4)
        if ((layer, head) in {(0, 2), (2, 1)} if site.layer == HEAD_SET else True)
        and site.layer in (HEAD_SET, ALL, layer)
    }
    replays, replay = [], adapter.replay

    def recorded(observation, attention):
        replays.append((attention, replay(observation, attention)))
        return replays[-1][1]

    monkeypatch.setattr(adapter, "replay", recorded)
    result = adversarial(observation, site)
    attained = {epsilon: torch.zeros(5).double() for epsilon in (0.01, 0.05)}
    for attention, probs in replays:
        change = tvd(probs[0], observation.probs)
        moved = torch.zeros(5, dtype=torch.double)
        n_rows = torch.zeros(5, dtype=torch.double)
        for layer, own in enumerate(observation.attention):
            new = attention[layer][0] if layer in attention else own
            divergence = jsd(new, own)
            for head in range(4):
                if (layer, head) not in members:
                    assert torch.equal(new[:, head], own[:, head])
                    continue
                rows = observation.batch.mask.double()
                if layer == 2:
                    rows = rows * (torch.arange(8) == 0)
                moved += (divergence[:, head] * rows).sum(-1)
                n_rows += rows.sum(-1)
        for epsilon, known in attained.items():
            known.copy_(torch.maximum(known, (moved / n_rows) * (change <= epsilon)))
    for epsilon, expected in attained.items():
        assert torch.allclose(result.epsilon_max_jsd[epsilon], expected, atol=1e-6)
        assert (result.epsilon_max_jsd[epsilon] <= result.largest_jsd + 1e-6).all()
    assert result.epsilon_max_jsd[0.05].max() > 0.02
    assert (result.epsilon_max_jsd_exact == 0).all() and not result.attention


def test_groups_are_not_searched(observed):
    _adapter, observation = observed
    group = Site(1, ALL)
    quick, asked = (
        adversarial(observation, group, Adversarial(n_steps=steps)).epsilon_max_jsd
        for steps in (None, 5)
    )
    assert all(torch.equal(quick[epsilon], asked[epsilon]) for epsilon in quick)
