"""The standard temperature against logits that are multiplied before the softmax."""

import pytest
import torch

from hf_attnprobe.functional import predictions
from hf_attnprobe.functional.predictions import STANDARD_MARGIN, Prediction


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
def test_the_median_lead_is_the_standard_one_at_any_gain(gain):
    prediction = predictions.make_class_prediction(["a", "b", "c"])
    probs = (gain * LOGITS).softmax(-1)
    sharp = prediction.sharpen(probs, prediction.compute_standard_sharpness(probs))
    assert prediction.compute_margins(sharp).quantile(0.5).item() == pytest.approx(
        STANDARD_MARGIN, rel=1e-6
    )


def test_numbers_are_in_standard_deviations_of_the_predictions():
    prediction = Prediction("number", "", scale=2.0, decides=False)
    numbers = torch.tensor([1.0, 3.0, 8.0], dtype=torch.float64)
    pairs = torch.stack([numbers, -numbers], -1)
    sharp = prediction.sharpen(pairs, prediction.compute_standard_sharpness(pairs))
    assert sharp[:, 0].std(correction=0).item() == pytest.approx(1)


def test_models_without_a_lead_stay_as_they_are():
    even = torch.full((4, 2), 0.5)
    assert predictions.make_class_prediction(["a", "b"]).compute_standard_sharpness(even) == 1.0
