"""Exchanged words in the classifiers against edited texts that the model reads one at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_attnprobe.adapters.classifier import unit_exchange
from tests.adapters.classifier.test_adapter import IDS, KINDS, make
from tests.helpers import tiny_models


N_WORDS = 10
"""Size of the vocabulary of the tiny models, with special tokens."""


def draw_edits(generator, observation, n_copies):
    """Draw units to exchange and a new word for every unit."""
    content = observation.batch.content_mask
    sets = torch.rand(n_copies, *content.shape, generator=generator) < 0.4
    sets[0], sets[1] = False, True
    sets &= content
    new_ids = torch.randint(4, N_WORDS, content.shape, generator=generator)
    replacements = [
        {k: new_ids[text, k : k + 1] for k in row.nonzero()[:, 0].tolist()}
        for text, row in enumerate(content)
    ]
    return sets, new_ids, replacements


def expect_edited_texts(kind, seed, n_copies):
    """Compare all edited copies with a run of the original model on each edited text."""
    model = make(*kind)
    adapter, observation = tiny_models.seen(model, IDS)
    generator = torch.Generator().manual_seed(seed)
    sets, new_ids, replacements = draw_edits(generator, observation, n_copies)
    probs = adapter.exchange_inputs(observation, sets, replacements)
    assert torch.equal(probs[0], observation.probs)
    model = model.double().eval()
    for copy, exchanged in enumerate(sets):
        edited = torch.where(exchanged, new_ids, IDS)
        for text, ids in enumerate(edited):
            with torch.no_grad():
                logits = model(ids[None, IDS[text] != 0]).logits[0]
            expected = logits.softmax(-1)
            torch.testing.assert_close(probs[copy, text], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_an_exchange_is_an_edited_text(kind):
    expect_edited_texts(kind, seed=0, n_copies=5)


@given(st.sampled_from(["bilstm", "cnn", "mlp", "none"]), st.integers(0, 2**31))
def test_any_sets_of_words_can_be_exchanged(encoder, seed):
    expect_edited_texts((encoder, "additive", 2), seed, n_copies=3)


@pytest.mark.parametrize("encoder", unit_exchange.EXCHANGE_METHODS)
def test_chunks_of_copies_change_nothing(encoder, monkeypatch):
    adapter, observation = tiny_models.seen(make(encoder), IDS)
    generator = torch.Generator().manual_seed(3)
    sets, _, replacements = draw_edits(generator, observation, 7)
    whole = adapter.exchange_inputs(observation, sets, replacements)
    monkeypatch.setattr(unit_exchange, "MAX_COPIES_PER_STEP", 3)
    chunks = adapter.exchange_inputs(observation, sets, replacements)
    torch.testing.assert_close(chunks, whole, atol=1e-14, rtol=0)
    assert whole[2:].unique().numel() > 20


def test_an_exchange_of_nothing_returns_the_original_output():
    adapter, observation = tiny_models.seen(make("bilstm"), IDS)
    nothing = torch.zeros(2, *IDS.shape, dtype=torch.bool)
    probs = adapter.exchange_inputs(observation, nothing, [{} for _ in IDS])
    assert torch.equal(probs, observation.probs.expand(2, -1, -1))


def test_words_of_several_tokens_make_the_text_longer():
    """A content of several tokens is inserted, so that states of the original text cannot be reused."""
    model = make("bilstm")
    adapter, observation = tiny_models.seen(model, IDS)
    exchanged = torch.zeros(1, *IDS.shape, dtype=torch.bool)
    exchanged[0, 2, 1] = True
    replacements = [{} for _ in IDS]
    replacements[2] = {1: torch.tensor([5, 6]), 2: torch.tensor([7])}
    probs = adapter.exchange_inputs(observation, exchanged, replacements)
    with torch.no_grad():
        logits = model.double().eval()(torch.tensor([[2, 5, 6, 8, 3]])).logits[0]
    torch.testing.assert_close(probs[0, 2], logits.softmax(-1), atol=1e-12, rtol=0)
