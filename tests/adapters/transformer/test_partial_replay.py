"""Replays that compute only what an edit changes and the prediction reads, against runs of the whole model."""

import pytest
import torch

from hf_attnprobe.adapters.transformer.partial_replay import PartialReplay
from tests.adapters.transformer.test_adapter import random_attention, rerun
from tests.helpers.adapter_families import TEXTS, get_shared_model, observe_texts, prepare


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
