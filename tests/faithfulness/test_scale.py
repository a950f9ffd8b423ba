"""Compare the parts of the scale with a plain loop over edited token lists."""

import itertools

import numpy as np
import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.options import Scale
from hf_attnprobe.faithfulness.scale import scale
from hf_attnprobe.protocol import ALL, Site
from tests.faithfulness.test_input_erasure import ByHand
from tests.helpers import tiny_models


SITE = Site(0, 0)
TEXTS = ([2, 9, 6, 4, 7, 11, 3], [2, 8, 5, 3], [2, *range(5, 17), 3], [2, 12, 3])
SHARPNESS = 0.37


def observe(model, sharpness=SHARPNESS, texts=TEXTS, ids=(3, 1, 4, 15)):
    adapter = wrap(model, dtype=torch.float64)
    adapter.sharpness = sharpness
    return adapter.observe(adapter.prepare(tiny_models.encoded(texts), ids))


def classifier(classes=2):
    return tiny_models.classifier(60, read_out=10, query=10, seed=1, num_labels=classes)


def compute_gini_by_pairs(values, order):
    """Of all pairs, how much of their differences an order places rightly."""
    pairs = list(itertools.combinations(range(len(values)), 2))
    sign = lambda x: (x > 0) - (x < 0)  # noqa: E731
    own = sum(abs(values[i] - values[j]) for i, j in pairs)
    placed = ((values[i] - values[j]) * sign(round(order[i] - order[j], 12)) for i, j in pairs)
    return sum(placed) / own


@pytest.mark.parametrize("classes", [2, 3])
def test_every_part_is_that_of_a_plain_loop(classes):
    model = classifier(classes)
    observation = observe(model)
    result = scale(observation, SITE)
    for row in (0, 1):
        hand = ByHand(model, observation, row, sharpness=SHARPNESS)
        n = len(hand.units)
        attention = observation.read(SITE)[row, 1 : n + 1].tolist()
        losses = [hand.drop((unit,)) for unit in range(n)]
        importance = compute_gini_by_pairs([abs(loss) for loss in losses], attention)
        assert result.importance["attention"][row].item() == pytest.approx(importance)
        assert result.largest_loss[row].item() == pytest.approx(max(losses))
        removed = hand.removal(sorted(range(n), key=lambda unit: -attention[unit]))
        assert result.removal["attention"][row].item() == pytest.approx(removed)
        best = max(hand.removal(order) for order in hand.every_order)
        assert result.removal["best"][row].item() == pytest.approx(best)


def test_mass_of_short_texts_is_overlap_with_shapley_values():
    model = classifier()
    observation = observe(model)
    result = scale(observation, SITE)
    hand = ByHand(model, observation, 0, sharpness=SHARPNESS)
    expected = hand.values().clip(min=0)
    expected /= expected.sum()
    attention = observation.read(SITE)[0, 1 : len(expected) + 1].numpy()
    given = attention / attention.sum()
    overlap = np.minimum(given, expected).sum()
    assert result.mass["attention"][0].item() == pytest.approx(overlap)
    moved = [np.minimum(given[[*order]], expected).sum() for order in hand.every_order]
    assert result.mass_by_chance["attention"][0].item() == pytest.approx(np.mean(moved))


def test_longer_texts_have_the_best_order_that_is_known():
    observation = observe(classifier())
    greedy = scale(observation, SITE).removal
    tried = scale(observation, SITE, Scale(greedy_units=0)).removal
    assert greedy["best"][2] >= tried["best"][2]
    for name, values in greedy.items():
        assert (values <= greedy["best"] + 1e-12).all(), name


@pytest.mark.parametrize("gain", [0.1, 3.0])
def test_multiplied_logits_change_no_part(gain):
    model = classifier()
    before = scale(observe(model), SITE)
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter *= gain
    after = scale(observe(model, SHARPNESS / gain), SITE)
    for part in ("importance", "mass", "mass_by_chance", "removal"):
        for name, values in getattr(before, part).items():
            result = getattr(after, part)[name]
            torch.testing.assert_close(result, values, equal_nan=True, atol=1e-7, rtol=0)


def test_where_nothing_matters_importance_and_mass_are_undefined_and_removal_is_zero():
    model = classifier()
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.fill_(1.0)
    result = scale(observe(model), SITE)
    assert result.importance["attention"].isnan().all()
    assert result.mass["attention"].isnan().all()
    assert result.removal["best"].abs().max() < 1e-9
    assert result.largest_loss.abs().max() < 1e-9


def test_one_head_among_several_is_placed_by_its_attention_alone():
    observation = observe(tiny_models.bert())
    assert "product" not in scale(observation, SITE).importance
    assert {"attention", "rollout", "last_layer"} <= set(
        scale(observation, Site(ALL, ALL)).importance
    )
