"""The distance of erased texts: a calibrated p-value, and what it is computed on."""

import numpy as np
import pytest
import torch

from hf_attnprobe import AttentionClassifierConfig, audit, wrap
from hf_attnprobe.attention_classifier.modeling_attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.auditing.distance import _without, masf_p_values
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import tokenize


def draws(n, generator, shift=0.0):
    """Features [texts, 2 layers, 8 dimensions] that depend on each other."""
    common = generator.normal(0, 1, (n, 1, 1))
    return common + generator.normal(shift, 1, (n, 2, 8))


def test_p_values_of_texts_of_the_data_are_uniform():
    generator = np.random.default_rng(0)
    p_values = np.concatenate(
        [masf_p_values(*(draws(n, generator) for n in (60, 60, 40))) for _ in range(60)]
    )
    for level in (0.05, 0.25, 0.5):
        assert (p_values <= level).mean() == pytest.approx(level, abs=0.04)


@pytest.mark.parametrize("shift", [-4, 4])
def test_texts_from_elsewhere_are_far_on_either_side(shift):
    generator = np.random.default_rng(0)
    reference, held_out = draws(80, generator), draws(80, generator)
    p_values = masf_p_values(reference, held_out, draws(40, generator, shift))
    assert (p_values <= 0.05).mean() > 0.8


def test_an_audit_says_how_far_erased_texts_are(tokenizer):
    torch.manual_seed(0)
    config = AttentionClassifierConfig(
        vocab_size=len(tokenizer), embedding_size=8, encoder="mlp", encoder_size=8
    )
    model = AttentionClassifierForSequenceClassification(config).eval()
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    generator = np.random.default_rng(0)
    rows = [
        {"text": " ".join(generator.choice(words, 8)), "label": k % 2, "example_id": k}
        for k in range(190)
    ]
    run = {"tokenizer": tokenizer, "progress": False}
    (note,) = audit(model, rows, ["input_erasure"], **run).notes
    assert note.startswith("Distance:") and "MaSF" in note
    (again,) = audit(model, rows[::-1], ["input_erasure"], **run).notes
    assert again == note  # whatever the order of the texts
    assert audit(model, rows[:120], ["input_erasure"], **run).notes == ()
    assert audit(model, rows, ["permutation"], **run).notes == ()


def test_what_is_erased_are_the_tokens_of_the_units(tokenizer, reviews):
    torch.manual_seed(0)
    config = AttentionClassifierConfig(vocab_size=len(tokenizer), embedding_size=8)
    adapter = wrap(AttentionClassifierForSequenceClassification(config).eval())
    text = tokenize(tokenizer, reviews["train"].select([0]), adapter).texts[0]
    observation = adapter.observe(collate(adapter, [text], 0))
    units = observation.batch.content_mask[0].nonzero()[:2, 0].tolist()
    kept = _without(observation, text, units)
    ids = text.inputs["input_ids"]
    expected = [token for place, token in enumerate(ids) if place not in units]
    assert kept.inputs["input_ids"] == expected
