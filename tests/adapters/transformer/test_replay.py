"""Replays: which families are replayed partially, and which as a whole."""

import itertools

import pytest
import torch

from hf_attnprobe.adapters.transformer.replay import prepare_partial_replay
from tests.adapters.transformer.test_adapter import random_attention, rerun
from tests.helpers.adapter_families import TEXTS, get_shared_model, make, observe_texts


SHORT = """
bert roberta electra distilbert deberta modernbert mpnet gpt2 gpt_neo gpt_neox llama qwen2 mistral
gemma2 falcon opt vit
"""


WHOLE = ("albert", "deberta_v2", "xlnet", "bloom", "t5", "bart")
LAST = [[len(text) - 1] for text in TEXTS]


def shuffled(observation, layer, n_copies=3, seed=0):
    return random_attention(observation.model, observation, layer, n_copies, seed)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", SHORT.split())
def test_families_that_are_replayed_partially(family):
    """As whole passes give, and read where the family's classifier reads."""
    adapter, observation = observe_texts(get_shared_model(family))
    partial_replay = prepare_partial_replay(adapter, observation)
    assert partial_replay is not None
    causal = ["gpt2", "gpt_neo", "gpt_neox", "llama", "qwen2", "mistral", "gemma2", "falcon", "opt"]
    if family == "modernbert":  # the mean of all tokens
        assert partial_replay.readout_rows is None
    else:
        assert partial_replay.readout_rows.tolist() == (LAST if family in causal else [[0]] * 3)
    whole, _ = observe_texts(get_shared_model(family))
    whole.sublayers = None
    for layer, rows in itertools.product(range(len(adapter.layers)), (slice(None), slice(2))):
        edited = observation.attention[layer].repeat(3, 1, 1, 1, 1)
        edited[..., rows, :] = shuffled(observation, layer)[..., rows, :]
        expected = whole.replay(whole.observe(observation.batch), {layer: edited})
        close(adapter.replay(observation, {layer: edited}), expected)


@pytest.mark.parametrize("family", WHOLE)
def test_families_of_another_form_are_replayed_as_a_whole(family):
    adapter, observation = observe_texts(get_shared_model(family))
    assert adapter.sublayers is None and prepare_partial_replay(adapter, observation) is None


def test_a_block_that_mixes_rows_is_not_cut():
    """Its feed-forward network looks at the row before."""
    model = make("bert")
    model.bert.encoder.layer[2].intermediate.register_forward_pre_hook(
        lambda module, args: args[0] + 0.5 * args[0].roll(1, 1)
    )
    adapter, observation = observe_texts(model)
    assert prepare_partial_replay(adapter, observation) is None
    edited = shuffled(observation, 2)
    found = adapter.replay(observation, {2: edited})
    close(found, torch.stack([rerun(adapter, observation, 2, attention) for attention in edited]))


def test_a_classifier_that_reads_more_than_one_row_gets_all():
    model = make("bert")
    model.bert.pooler.register_forward_pre_hook(lambda module, args: args[0] + args[0][:, 1:2])
    adapter, observation = observe_texts(model)
    assert prepare_partial_replay(adapter, observation).readout_rows is None
