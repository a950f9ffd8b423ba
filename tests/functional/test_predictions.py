"""The standard temperature against logits that are multiplied before the softmax."""

import math

import pytest
import torch

from hf_attnprobe.functional import predictions
from hf_attnprobe.functional.predictions import STANDARD_PROBABILITY, Prediction


LOGITS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4


@pytest.mark.parametrize("sharpness", [0.05, 0.7, 1.0, 9.0])
def test_classes_are_those_of_multiplied_logits(sharpness):
    prediction = predictions.make_class_prediction(["a", "b", "c"])
    found = prediction.sharpen(LOGITS.softmax(-1), sharpness)
    torch.testing.assert_close(found, (sharpness * LOGITS).softmax(-1))


@pytest.mark.parametrize("sharpness", [0.2, 3.0])
def test_labels_are_sharpened_one_by_one(sharpness):
    prediction = Prediction("labels", "", ("no", "yes"), ("x", "y", "z"), n_parts=3)

    def as_entries(logits):
        yes = logits.sigmoid()
        return torch.stack([1 - yes, yes], dim=-1).flatten(-2) / 3

    found = prediction.sharpen(as_entries(LOGITS), sharpness)
    torch.testing.assert_close(found, as_entries(sharpness * LOGITS))


def test_absent_parts_and_candidates_stay_without_probability():
    tags = Prediction("tags", "", ("a", "b"), n_parts=None, n_outcomes=2)
    two_words = torch.tensor([[0.45, 0.05, 0.1, 0.4, 0.0, 0.0]], dtype=torch.float64)
    found = tags.sharpen(two_words, 0.5)
    assert found[0, 4:].tolist() == [0, 0]
    assert found.sum().item() == pytest.approx(1)
    expected = (0.5 * torch.tensor([0.9, 0.1]).double().log()).softmax(-1) / 2
    torch.testing.assert_close(found[0, :2], expected)
    choice = Prediction("choice", "", n_parts=1)
    candidates = torch.tensor([[0.6, 0.4, 0.0]], dtype=torch.float64)
    assert choice.sharpen(candidates, 0.01)[0, 2] == 0


@pytest.mark.parametrize("gain", [0.03, 1.0, 20.0])
@pytest.mark.parametrize("n_classes", [2, 3, 10, 1000])
def test_the_median_top_probability_is_the_standard_one_for_any_number_of_classes(gain, n_classes):
    generator = torch.Generator().manual_seed(n_classes)
    logits = torch.randn(51, n_classes, generator=generator, dtype=torch.float64)
    prediction = predictions.make_class_prediction([str(k) for k in range(n_classes)])
    probs = (gain * logits).softmax(-1)
    sharpness = prediction.compute_standard_sharpness(probs)
    top = (sharpness * gain * logits).softmax(-1).amax(-1)
    assert top.quantile(0.5).item() == pytest.approx(STANDARD_PROBABILITY, abs=1e-9)
    # For two classes, .95 is a margin of ln 19 nats.
    if n_classes == 2:
        margin = (gain * logits).sort(-1).values.diff(dim=-1).quantile(0.5).item()
        assert sharpness == pytest.approx(math.log(19) / margin)


def test_saturated_probabilities_have_a_temperature_or_are_refused():
    """Margins of 700 nats are still known in float64, and margins of 800 nats are not."""
    prediction = predictions.make_class_prediction(["a", "b"])
    margins = torch.tensor([690.0, 700.0, 707.0], dtype=torch.float64)
    probs = torch.stack([margins, torch.zeros(3, dtype=torch.float64)], -1).softmax(-1)
    assert prediction.compute_standard_sharpness(probs) == pytest.approx(math.log(19) / 700)
    with pytest.raises(ValueError, match="rounded to 0 in 3 of 3 texts"):
        prediction.compute_standard_sharpness((probs.log() * 2).softmax(-1))


def test_decision_margins_compare_with_the_best_other_outcome():
    prediction = predictions.make_class_prediction(["a", "b", "c"])
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]], dtype=torch.float64)
    margins = prediction.compute_decision_margins(probs, torch.tensor([[0], [0]]))
    expected = [math.log(0.7 / 0.2), math.log(0.2 / 0.5)]
    torch.testing.assert_close(margins, torch.tensor(expected, dtype=torch.float64))


def test_numbers_are_in_standard_deviations_of_the_predictions():
    prediction = Prediction("number", "", scale=2.0, decides=False)
    numbers = torch.tensor([1.0, 3.0, 8.0], dtype=torch.float64)
    pairs = torch.stack([numbers, -numbers], -1)
    sharp = prediction.sharpen(pairs, prediction.compute_standard_sharpness(pairs))
    assert sharp[:, 0].std(correction=0).item() == pytest.approx(1)


def test_tied_predictions_have_no_standard_temperature():
    even = torch.full((4, 2), 0.5)
    prediction = predictions.make_class_prediction(["a", "b"])
    assert prediction.compute_standard_sharpness(even) is None
