"""--dtype: every test runs in it, and half precision is compared with float32."""

import pytest
import torch

from hf_attnprobe import Answers, AuditOptions, audit
from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits import self_checks as checks
from hf_attnprobe.inference.batching import collate
from tests.helpers import tiny_language_models, tiny_models
from tests.helpers.error_messages import refused


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_attention_classifier_is_audited_in_any_format(dtype, checkpoint, reviews_folder):
    options = AuditOptions(dtype=dtype, shown_texts=3)
    tests = ["adversarial", "permutation"]  # the shown adversary is of float64
    report = audit(checkpoint, reviews_folder, tests, options=options, progress=False)
    found = report.provenance.get("rounding")
    if dtype == "float32":
        assert found is None
    else:
        largest = {"bfloat16": 0.1, "float16": 0.02}[dtype]
        assert 0 < found["probability"] < largest and found["texts"] == 8


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
    monkeypatch.setattr(checks, "MAX_DIFFERENCE", expected / 4)
    refused("use --dtype float32", checks.compare_with_float32, half, lambda: exact, texts, 0)


def test_a_language_model_saved_in_half_precision_is_audited_in_float32(tmp_path):
    """Its own passes are as coarse as it was saved, and are compared so."""
    tokenizer = tiny_language_models.tokenizer(chat=False)
    model = tiny_language_models.llama(tokenizer, initializer_range=0.5).to(torch.bfloat16)
    folder = tiny_models.saved(tmp_path / "half", model, tokenizer)
    options = AuditOptions(dtype="float32", shown_texts=2)
    report = audit(
        folder, Answers(tiny_language_models.ROWS), ["knockout"], options=options, progress=False
    )
    assert report.n == len(tiny_language_models.ROWS)
