"""What an audit measures in advance: the standard temperature, and the noise floor."""

import copy

import numpy as np
import pytest
import torch

from hf_attnprobe import Answers, AuditOptions, audit, explain
from hf_attnprobe.faithfulness.options import Knockout
from tests.helpers import tiny_language_models, tiny_models
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


# --- The noise floor of a language model ---------------------------------------------------------


@pytest.fixture(scope="module")
def words():
    return tiny_language_models.tokenizer(chat=False)


def make_rounded_copies(words):
    """Return a Llama in bfloat16, and the same weights in float64."""
    rounded = tiny_language_models.llama(words, num_hidden_layers=6).to(torch.bfloat16)
    return rounded, copy.deepcopy(rounded).double()


def measure_losses(model, words):
    """Delete every sentence of every prompt, and compute the losses without this package's adapter."""
    losses = []
    for row in tiny_language_models.prompts(tiny_language_models.ROWS, words, model):
        answer_ids = words(row["answer"])["input_ids"]

        def compute_log_prob(text, answer_ids=answer_ids):
            ids = torch.tensor([words(text)["input_ids"] + answer_ids])
            with torch.no_grad():
                log_probs = model(input_ids=ids).logits[0].double().log_softmax(-1)
            rows = range(ids.shape[1] - len(answer_ids) - 1, ids.shape[1] - 1)
            return sum(log_probs[row, i] for row, i in zip(rows, answer_ids, strict=True))

        text = row["text"]
        shorter = [text[:start] + text[end:] for start, end in row["units"]]
        losses += [compute_log_prob(text) - compute_log_prob(part) for part in shorter]
    return np.array(losses, dtype=float)


def audit_prompts(model, words, dtype, least_effect=0.0):
    tests = ["sources", Knockout(least_effect=least_effect)]
    data = Answers(tiny_language_models.ROWS, units="sentence")
    options = AuditOptions(dtype=dtype)
    return audit(model, data, tests, options=options, tokenizer=words, progress=False)


def test_the_noise_floor_has_the_size_of_the_rounding_errors(words):
    rounded, exact = make_rounded_copies(words)
    errors = np.abs(measure_losses(rounded, words) - measure_losses(exact, words))
    report = audit_prompts(rounded, words, "bfloat16")
    floor = report.provenance["noise_floor"]
    assert errors.max() / 4 < floor < errors.max() * 4
    # No unit with a smaller loss has a star, and every text states the threshold.
    for text in report.examples:
        assert text.least_effect == floor
        losses = text.scores["leave_one_out"]
        assert all(losses[unit] >= floor for unit in text.matters)
    assert f"Losses below {floor:.2g} nats count as noise" in " ".join(str(report).split())
    table = str(report.examples[0])
    assert f"* more than noise, at least {floor:.2f}" in table
    # A threshold of the user that is above the floor is kept.
    assert audit_prompts(rounded, words, "bfloat16", 9.0).examples[0].least_effect == 9.0


def test_in_float32_there_is_no_noise_floor(words):
    model = tiny_language_models.llama(words)
    report = audit_prompts(model, words, "float32", 0.1)
    assert "noise_floor" not in report.provenance
    assert {text.least_effect for text in report.examples} == {0.1}
    text = explain(model, words, tiny_language_models.PASSAGE, "Where does Bob live?", "Oslo")
    assert text.least_effect == 0.1
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    text = explain(rounded, words, tiny_language_models.PASSAGE, "Where does Bob live?", "Oslo")
    assert text.least_effect >= 0.1
    # The small changes by which the floor is measured are removed afterwards.
    assert not rounded.get_input_embeddings()._forward_hooks
