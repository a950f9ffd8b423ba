"""The scale's parts against a plain loop over edited token lists, at multiplied logits."""

import functools
import itertools

import pytest
import torch

import zoo
from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_model import ALL, Site
from hf_attnprobe.faithfulness.options import Scale
from hf_attnprobe.faithfulness.scale import scale
from hf_attnprobe.functional import aopc


SITE = Site(0, 0)
TEXTS = ([2, 9, 6, 4, 7, 11, 3], [2, 8, 5, 3], [2, *range(5, 17), 3], [2, 12, 3])
SHARPNESS = 0.37


def observe(model, sharpness=SHARPNESS, texts=TEXTS, ids=(3, 1, 4, 15)):
    adapter = wrap(model, dtype=torch.float64)
    adapter.sharpness = sharpness
    return adapter.observe(adapter.prepare(zoo.encoded(texts), ids))


def classifier(classes=2):
    return zoo.classifier(60, read_out=10, query=10, seed=1, num_labels=classes)


class ByHand:
    """p of the predicted class at the standard temperature, through the model itself."""

    def __init__(self, model, ids, sharpness=SHARPNESS):
        self.model, self.ids, self.sharpness = model.double(), ids, sharpness
        self.n = len(ids) - 2
        self.logits = functools.cache(self.logits_without)
        self.target = int(self.logits(frozenset()).argmax())

    @torch.no_grad()
    def logits_without(self, gone):
        kept = [token for place, token in enumerate(self.ids) if place - 1 not in gone]
        ids = torch.tensor([kept])
        return self.model(ids, attention_mask=torch.ones_like(ids)).logits[0]

    def p(self, gone):
        return (self.sharpness * self.logits(frozenset(gone))).softmax(-1)[self.target].item()

    def drop(self, gone):
        return self.p(()) - self.p(gone)

    def removal(self, order):
        counts = aopc.removal_counts(torch.tensor([self.n]))[:, 0].tolist()
        return sum(self.drop(order[:count]) for count in counts) / len(counts)

    def gini(self, values, order):
        pairs = list(itertools.combinations(range(self.n), 2))
        sign = lambda x: (x > 0) - (x < 0)  # noqa: E731
        own = sum(abs(values[i] - values[j]) for i, j in pairs)
        placed = sum(
            (values[i] - values[j]) * sign(round(order[i] - order[j], 12)) for i, j in pairs
        )
        return placed / own


@pytest.mark.parametrize("classes", [2, 3])
def test_every_part_is_that_of_a_plain_loop(classes):
    model = classifier(classes)
    observation = observe(model)
    found = scale(observation, SITE)
    for row, ids in enumerate(TEXTS[:2]):
        hand = ByHand(model, ids)
        attention = observation.read(SITE)[row, 1 : hand.n + 1].tolist()
        losses = [hand.drop((unit,)) for unit in range(hand.n)]
        importance = hand.gini([abs(loss) for loss in losses], attention)
        assert found.importance["attention"][row].item() == pytest.approx(importance)
        assert found.largest_loss[row].item() == pytest.approx(max(losses))
        by_attention = sorted(range(hand.n), key=lambda unit: -attention[unit])
        removed = hand.removal(by_attention)
        assert found.removal["attention"][row].item() == pytest.approx(removed)
        every = [hand.removal(order) for order in itertools.permutations(range(hand.n))]
        assert found.removal["best"][row].item() == pytest.approx(max(every))


def test_mass_of_short_texts_is_overlap_with_shapley_values():
    model = classifier()
    observation = observe(model)
    found = scale(observation, SITE)
    hand = ByHand(model, TEXTS[0])
    orders = list(itertools.permutations(range(hand.n)))
    worth = [0.0] * hand.n
    for order in orders:
        for place, unit in enumerate(order):
            worth[unit] += (hand.drop(order[: place + 1]) - hand.drop(order[:place])) / len(orders)
    positive = [max(value, 0) for value in worth]
    wanted = [value / sum(positive) for value in positive]
    attention = observation.read(SITE)[0, 1 : hand.n + 1]
    given = (attention / attention.sum()).tolist()
    overlap = sum(map(min, given, wanted))
    assert found.mass["attention"][0].item() == pytest.approx(overlap)
    moved = [
        sum(min(given[unit], w) for unit, w in zip(order, wanted, strict=True)) for order in orders
    ]
    chance = found.mass_by_chance["attention"][0].item()
    assert chance == pytest.approx(sum(moved) / len(moved))


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
            found = getattr(after, part)[name]
            torch.testing.assert_close(found, values, equal_nan=True, atol=1e-7, rtol=0)


def test_where_nothing_matters_importance_and_mass_are_undefined_and_removal_is_zero():
    model = classifier()
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.fill_(1.0)
    found = scale(observe(model), SITE)
    assert found.importance["attention"].isnan().all()
    assert found.mass["attention"].isnan().all()
    assert found.removal["best"].abs().max() < 1e-9
    assert found.largest_loss.abs().max() < 1e-9


def test_one_head_among_several_is_placed_by_its_attention_alone():
    observation = observe(zoo.bert())
    assert "product" not in scale(observation, SITE).importance
    assert {"attention", "rollout", "last_layer"} <= set(
        scale(observation, Site(ALL, ALL)).importance
    )
