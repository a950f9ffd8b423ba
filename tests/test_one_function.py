"""One function has one answer, however it is parametrised: a model without context, and as a convolution."""

import numpy as np
import pytest
import torch

import zoo
from hf_attnprobe import audit
from same_rows import assert_same


WIDTH = 12


def classifier(encoder, vocabulary):
    sizes = {"embedding_size": WIDTH, "encoder_size": WIDTH, "kernel_sizes": (3,)}
    return zoo.classifier(vocabulary, encoder=encoder, **sizes)


@pytest.fixture(scope="module")
def twins(tokenizer):
    """Both from the same word vectors, attention and read-out; no vector is negative."""
    plain = classifier("none", len(tokenizer))
    with torch.no_grad():
        plain.attention_classifier.embeddings.weight.abs_()
        plain.attention_classifier.attention.query.weight.mul_(20)
        plain.classifier.weight.sub_(plain.classifier.weight.mean()).mul_(40)
    convolved = classifier("cnn", len(tokenizer))
    held = dict(plain.named_parameters())
    with torch.no_grad():
        for name, parameter in convolved.named_parameters():
            if name in held:
                parameter.copy_(held[name])
            else:
                parameter.zero_()
        (convolution,) = convolved.attention_classifier.encoder.convolutions
        convolution.weight[:, :, 1] = torch.eye(WIDTH)
    return plain, convolved


@pytest.fixture(scope="module")
def data(twins, tokenizer):
    """Texts, four of five with the label that the model says."""
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, draw.integers(3, 11))) for _ in range(60)]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        said = twins[0](inputs["input_ids"], inputs["attention_mask"]).logits.argmax(-1)
    assert 10 < said.sum() < 50
    return [
        {"text": text, "label": int(k if row % 5 else 1 - k)}
        for row, (text, k) in enumerate(zip(texts, said.tolist(), strict=True))
    ]


def test_both_compute_the_same(twins, tokenizer, data):
    inputs = tokenizer([row["text"] for row in data], padding=True, return_tensors="pt")
    given = inputs["input_ids"], inputs["attention_mask"]
    with torch.no_grad():
        first, second = (twin(*given, output_attentions=True) for twin in twins)
    torch.testing.assert_close(first.logits, second.logits)
    torch.testing.assert_close(first.attentions[0], second.attentions[0])
    assert first.attentions[0].amax(-1).mean() > 0.3


def same(first, second):
    return first == pytest.approx(second, abs=1e-9, nan_ok=True)


def test_an_audit_says_the_same_of_both(twins, tokenizer, data):
    first, second = (audit(twin, data, tokenizer=tokenizer, progress=False) for twin in twins)
    assert first.answer == second.answer
    assert sum(f.answer != "cannot say" for f in first.findings) >= 3
    assert len(first.findings) == len(second.findings) >= 6
    for ours, theirs in zip(first.findings, second.findings, strict=True):
        assert (ours.rule, ours.answer, ours.n) == (theirs.rule, theirs.answer, theirs.n)
        assert ours.sentence == theirs.sentence
        assert same(ours.value, theirs.value) and same(ours.ci95, theirs.ci95)
        assert same(ours.yardsticks, theirs.yardsticks)
    assert_same(first.to_pandas(), second.to_pandas(), tolerance=1e-9)
