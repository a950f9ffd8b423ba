"""The standard temperature of an audit: models for which there is none."""

import torch

from hf_attnprobe import audit
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused


def make_constant_classifier(tokenizer, bias):
    """A classifier whose logits do not depend on the text."""
    model = tiny_models.classifier(tokenizer)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.fill_(bias)
    return model


def test_tied_predictions_are_read_at_the_models_own_temperature(tokenizer, caplog):
    model = make_constant_classifier(tokenizer, bias=0.0)
    with caplog.at_level("WARNING", logger="hf_attnprobe"):
        report = audit(
            model, ["a film", "a dull plot"], ["permutation"], tokenizer=tokenizer, progress=False
        )
    assert report.provenance["sharpness"] == 1.0
    assert any("the model's own temperature is used" in r.getMessage() for r in caplog.records)


def test_saturated_predictions_have_no_standard_temperature(tokenizer):
    model = make_constant_classifier(tokenizer, bias=2000.0)
    refused(
        "the standard temperature cannot be computed, because all probabilities but one are rounded",
        audit,
        model,
        ["a film", "a dull plot"],
        ["permutation"],
        tokenizer=tokenizer,
        progress=False,
    )
