"""Replays that compute only what an edit changes and the prediction reads, against runs of the whole model."""

import pytest
import torch

from hf_attnprobe.adapters.transformer.partial_replay import PartialReplay
from hf_attnprobe.protocol import ALL, Site
from tests.adapters.transformer.test_adapter import random_attention, rerun
from tests.helpers.adapter_families import TEXTS, WORDS, get_shared_model, observe_texts, prepare


def shuffled(observation, layer, n_copies=3, seed=0):
    return random_attention(observation.model, observation, layer, n_copies, seed)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_the_self_check_gives_up_partial_replays_that_are_wrong(monkeypatch):
    adapter, observation = observe_texts(get_shared_model("bert"))
    assert adapter.sublayers is not None
    replay = PartialReplay.replay
    monkeypatch.setattr(PartialReplay, "replay", lambda *args: replay(*args) * 1.01)
    adapter.self_check(observation.batch)
    assert adapter.sublayers is None
    edited = shuffled(observation, 1)
    expected = [rerun(adapter, observation, 1, attention) for attention in edited]
    close(adapter.replay(observation, {1: edited}), torch.stack(expected))


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_batch_padding_and_parts_change_nothing(family):
    adapter, observation = observe_texts(get_shared_model(family))
    for layer in range(len(adapter.layers)):
        edited = shuffled(observation, layer)
        found = adapter.replay(observation, {layer: edited})
        adapter.tokens_per_pass = 1
        close(adapter.replay(observation, {layer: edited}), found)
        adapter.tokens_per_pass = 4096
        for row, text in enumerate(TEXTS):
            alone = adapter.observe(prepare(adapter, [text]))
            own = edited[:, row : row + 1, :, : len(text), : len(text)]
            close(adapter.replay(alone, {layer: own})[:, 0], found[:, row])


def test_only_the_row_that_is_read_goes_through_the_last_block():
    adapter, observation = observe_texts(get_shared_model("bert"))
    edits = [shuffled(observation, layer) for layer in range(3)]
    adapter.replay(observation, {2: edits[2]})  # what is tried once is tried here
    rows = dict.fromkeys(range(3), 0)

    def count(n):
        def note(module, args):
            rows[n] += args[0].shape[:-1].numel()

        return note

    for n, block in enumerate(adapter.layout.blocks):
        block.intermediate.dense.register_forward_pre_hook(count(n))
    whole = 3 * 9  # a layer's attention is computed once, by one run of its block
    adapter.replay(observation, {2: edits[2]})
    assert rows == {0: 0, 1: 0, 2: 3 * 3}
    adapter.replay(observation, {1: edits[1]})
    assert rows == {0: 0, 1: 3 * whole + whole, 2: 2 * 3 * 3}
    one = observation.attention[0][None].clone()
    one[:, :, 1, 4] = edits[0][:1, :, 1, 4]
    adapter.replay(observation, {0: one})  # the row of one query
    assert rows[0] == 3 + whole


# Units erased from the attention of all heads


def draw_erased_units(observation, n_copies=3):
    content = observation.batch.content_mask
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(n_copies, *content.shape, generator=generator) < 0.5) & content


def run_without_keys(adapter, observation, is_erased, renormalise):
    """Run the whole model with the attention to some keys set to 0, one copy of the texts at a time."""
    copies = []
    for is_erased_in_copy in is_erased:
        edited = []
        for attention in observation.attention:
            weights = attention * ~is_erased_in_copy[:, None, None]
            if renormalise:
                weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
            edited.append(weights)
        logits = adapter.compute_logits(observation.batch.inputs, lambda n, *_, e=edited: e[n])
        copies.append(logits.softmax(-1))
    return torch.stack(copies)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt_neo", "llama", "vit"])
def test_leaving_out_rows_equals_full_passes_without_keys(family, renormalise):
    adapter, observation = observe_texts(get_shared_model(family))
    is_erased = draw_erased_units(observation)
    expected = run_without_keys(adapter, observation, is_erased, renormalise)
    for tokens_per_pass in (4096, 1):
        adapter.tokens_per_pass = tokens_per_pass
        observation.cache.clear()
        probs = adapter.replay_without_units(
            observation, Site(ALL, ALL), is_erased, renormalise=renormalise
        )
        close(probs, expected)


def test_all_pieces_of_erased_words_are_left_out():
    adapter, observation = observe_texts(get_shared_model("bert"), words=WORDS)
    is_erased = draw_erased_units(observation)
    pieces = is_erased.gather(-1, observation.batch.inputs["units"].expand(is_erased.shape))
    assert pieces.sum() > is_erased.sum()
    probs = adapter.replay_without_units(observation, Site(ALL, ALL), is_erased, renormalise=True)
    close(probs, run_without_keys(adapter, observation, pieces, True))


def test_only_rows_of_remaining_tokens_run_and_each_set_runs_once():
    adapter, observation = observe_texts(get_shared_model("bert"))
    is_erased = torch.zeros(2, *observation.batch.mask.shape, dtype=torch.bool)
    is_erased[:, 0, 1:4] = True
    adapter.replay_without_units(observation, Site(ALL, ALL), ~is_erased, renormalise=True)
    rows = []
    block = adapter.layout.blocks[1]
    block.intermediate.dense.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape))
    adapter.replay_without_units(observation, Site(ALL, ALL), is_erased, renormalise=True)
    # The first text has 9 tokens, the other texts are not edited, and the two copies are equal.
    assert [shape[:2].numel() for shape in rows] == [9 - 3]


@pytest.mark.parametrize("family", ["modernbert", "xlnet", "gpt2"])
def test_models_that_cannot_leave_out_rows_use_ordinary_replays(family):
    adapter, observation = observe_texts(get_shared_model(family))
    is_erased = draw_erased_units(observation)
    assert (
        adapter.replay_without_units(observation, Site(ALL, ALL), is_erased, renormalise=True)
        is None
    )


@pytest.mark.parametrize("site", [Site(1, ALL), Site(0, 1), Site(ALL, ALL, 0)])
def test_other_sites_do_not_leave_out_rows(site):
    adapter, observation = observe_texts(get_shared_model("bert"))
    is_erased = draw_erased_units(observation)
    assert adapter.replay_without_units(observation, site, is_erased, renormalise=True) is None


def test_wrong_results_without_rows_are_not_used(monkeypatch):
    adapter, observation = observe_texts(get_shared_model("bert"))
    compute = PartialReplay.compute_readout_states
    monkeypatch.setattr(
        PartialReplay,
        "compute_readout_states",
        lambda *args, **kwargs: compute(*args, **kwargs) * 2,
    )
    is_erased = draw_erased_units(observation)
    assert (
        adapter.replay_without_units(observation, Site(ALL, ALL), is_erased, renormalise=True)
        is None
    )
