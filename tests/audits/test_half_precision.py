"""--dtype: every test runs in it."""

import pytest
import torch

from hf_attnprobe import Answers, AuditOptions, audit
from tests.helpers import tiny_language_models, tiny_models


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
