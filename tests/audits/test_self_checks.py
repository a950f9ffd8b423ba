"""Self-checks: the rounding that is reported is the difference of the two models."""

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits import self_checks as checks
from hf_attnprobe.inference.batching import collate
from tests.helpers.error_messages import refused


def test_the_difference_is_that_of_the_two_models(
    make_model, tokenizer, reviews, caplog, monkeypatch
):
    from hf_attnprobe.data.examples import load_examples
    from hf_attnprobe.inference.encoding import tokenize

    model = make_model()
    half, exact = wrap(model, dtype=torch.bfloat16), wrap(model, dtype=torch.float32)
    rows = [{"text": text, "example_id": k} for k, text in enumerate(reviews["test"]["text"][:8])]
    texts = tokenize(tokenizer, load_examples(rows, "test"), half).texts
    found = checks.compare_with_float32(half, lambda: exact, texts, 0)
    batch = collate(half, sorted(texts, key=lambda t: (t.n_tokens, t.example_id)), 0)
    with torch.no_grad():  # the checkpoint's own forward, without any adapter
        own = model.float()(**batch.inputs).logits.softmax(-1)
        coarse = half.model(**batch.inputs).logits.softmax(-1)
    expected = float((own - coarse).abs().max())
    assert found["rounding"]["probability"] == pytest.approx(expected, abs=5e-3)
    monkeypatch.setattr(checks, "PRECISION_ERROR_THRESHOLD", expected / 4)
    refused("Use --dtype float32", checks.compare_with_float32, half, lambda: exact, texts, 0)
