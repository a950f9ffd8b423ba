"""Compare the tests of passages with loops over texts, units and sets in a hand-made language model."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau, spearmanr

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.options import Sources
from hf_attnprobe.faithfulness.sources import (
    CONTEXTCITE_STREAM,
    LDS_STREAM,
    _find_source,
    _rank_units,
    _scatter_to_units,
    measure_all_sets,
    measure_random_halves,
    sources,
)
from hf_attnprobe.functional.attribution import fit_lasso, shapley_values
from hf_attnprobe.protocol import ALL, Site
from tests.helpers.manual_passes import (
    PromptTokens,
    compute_answer_probs,
    compute_probs_at_positions,
)
from tests.helpers.transformer_families import BEGIN, N_WORDS, tiny_model


SITE = Site(ALL, ALL)
CLOSE = 1e-6
"""Of nats: the softmax of attention is in float32."""


class ByHand:
    """What a decoder says of one prompt, pass by pass.

    Args:
        asked: its tokens and units.
        number: of the prompt.
    """

    def __init__(self, adapter, asked, number):
        self.adapter, self.asked, self.n = adapter, asked, len(asked.units)
        self.observation = adapter.observe(adapter.prepare(asked.inputs(), (number,)))
        self.lengths = np.array([*map(len, asked.units)])
        self.of_units = cache(self._of_units)
        self.whole = self.of_units(tuple(range(self.n)))

    def _of_units(self, kept):
        """The probabilities of the word that answers, with some of the units alone."""
        gone = {place for k, unit in enumerate(self.asked.units) if k not in kept for place in unit}
        left = [place for place in range(self.asked.ids.shape[1]) if place not in gone]
        return compute_answer_probs(
            self.adapter.model, self.asked._replace(ids=self.asked.ids[:, left])
        )[0]

    def log_prob(self, probs):
        return math.log(probs[self.asked.ids[0, -1]])

    def lost(self, kept):
        """How much of the answer's log-probability goes with the units that are not kept."""
        return self.log_prob(self.whole) - self.log_prob(self.of_units(tuple(sorted(kept))))

    @property
    def effects(self):
        return np.array([self.lost({*range(self.n)} - {unit}) for unit in range(self.n)])

    def lost_by_gap(self, unit):
        """What goes with a unit where the others keep their positions."""
        left = [p for p in range(self.asked.ids.shape[1]) if p not in self.asked.units[unit]]
        shorter = self.asked._replace(ids=self.asked.ids[:, left])
        return self.log_prob(self.whole) - self.log_prob(
            compute_probs_at_positions(self.adapter.model, shorter, left)[0]
        )

    @property
    def weights(self):
        """The mean over the layers of the mean over their heads."""
        maps = [own[0, :, -1].mean(0) for own in self.observation.attention]
        return (sum(maps) / len(maps)).numpy()

    def knocked_out(self, unit, operator):
        """The nats that go with a unit's cells, and how far the output moves."""
        kept = torch.ones(1, 1, 1, 1, self.n + 2, dtype=torch.float64)
        kept[..., unit] = 0
        layers = range(len(self.observation.attention))
        after = self.adapter.replay_masked(
            self.observation, dict.fromkeys(layers, kept), operator=operator
        )[0]
        log_probs = (
            self.adapter.compute_log_prob(self.observation, p)
            for p in (self.observation.probs, after)
        )
        before, left = log_probs
        return float(before - left), float((after - self.observation.probs).abs().sum() / 2)


@pytest.fixture(scope="module")
def texts():
    """Prompts of two to seven units of one to three words."""
    draws = np.random.default_rng(3)
    adapter = wrap(tiny_model("LlamaForCausalLM", "llama", attn_implementation="eager").double())
    result = []
    for number in range(12):
        lengths = draws.integers(1, 4, 2 + number % 6)
        ends = 2 + np.cumsum(lengths)
        units = [[*range(end - n, end)] for n, end in zip(lengths, ends, strict=True)]
        ids = torch.from_numpy(draws.integers(5, N_WORDS, (1, ends[-1] + 3)))
        ids[0, 0] = BEGIN
        result.append(ByHand(adapter, PromptTokens(ids, units, 1), number))
    return result


# --- sources ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(texts):
    return [sources(text.observation, SITE, Sources(exact_units=6), seed=3) for text in texts]


def test_the_gain_is_what_the_passage_adds(texts, result):
    for text, own in zip(texts, result, strict=True):
        assert own.contextual_gain.item() == pytest.approx(text.lost([]), abs=CLOSE)
        assert own.answer_is_greedy.item() == (text.whole.argmax() == text.asked.ids[0, -1])
        assert own.passage_share.item() == pytest.approx(text.weights[: text.n].sum(), abs=CLOSE)
        assert own.sink_share.item() == pytest.approx(text.weights[-1], abs=CLOSE)


@pytest.mark.parametrize("rounding", [(0, 0, 0), (0, 3e-7, 0), (0, 0, 3e-7), (3e-7, 0, 0)])
def test_rounding_does_not_decide_which_of_equal_units_is_the_source(rounding):
    """Three copies of a sentence cost the same; another batch changes the last digits."""
    effects = torch.tensor([[0.25, 2.0, 2.0, 0.5, 2.0]])
    effects[0, [1, 2, 4]] += torch.tensor(rounding)
    content = torch.ones(1, 5, dtype=torch.bool)
    ranks = _rank_units({"deletion": effects}, content, log_prob=torch.tensor([-12.0]))
    hits, position = _find_source(ranks, effects, content)
    assert position.tolist() == [1]
    assert hits["deletion"].item() == pytest.approx(1 / 3)


def test_the_source_is_the_unit_that_costs_most(texts, result):
    for text, own in zip(texts, result, strict=True):
        effects, weights = text.effects, text.weights[: text.n]
        assert [v.item() for v in own.unit_loss.values()] == pytest.approx(
            effects.tolist(), abs=CLOSE
        )
        assert [v.item() for v in own.unit_attention.values()] == pytest.approx(
            weights.tolist(), abs=CLOSE
        )
        if effects.max() <= 0:
            assert all(hit.isnan() for hit in own.source_found.values())
            assert own.source_place.isnan()
            continue
        source, longest = effects.argmax(), text.lengths == text.lengths.max()
        expected = {
            "attention": weights.argmax() == source,
            "length": longest[source] / longest.sum(),
            "chance": 1 / text.n,
            "deletion": 1,
            "first": source == 0,
            "last": source == text.n - 1,
        }
        assert own.source_place.item() == source
        for name, hit in expected.items():
            assert own.source_found[name].item() == pytest.approx(float(hit), abs=CLOSE), name
    assert {text.effects.max() > 0 for text in texts} == {True, False}


def test_orders_are_compared_where_there_are_more_than_four_units(texts, result):
    for text, own in zip(texts, result, strict=True):
        tau, agreement = (x["attention"][0] for x in (own.source_tau, own.source_agreement))
        if text.n <= 4:
            assert tau.isnan() and agreement.isnan()
            continue
        effects, weights = text.effects, text.weights[: text.n]
        assert tau == pytest.approx(kendalltau(weights, effects).statistic, abs=CLOSE)
        agreed = total = 0.0
        for i, j in itertools.combinations(range(text.n), 2):
            difference = effects[i] - effects[j]
            total += abs(difference)
            agreed += difference * np.sign(weights[i] - weights[j])
        assert agreement == pytest.approx(agreed / total, abs=CLOSE)


def test_drops_are_of_the_first_units(texts, result):
    """Means over the first 1, 3 and 5, of texts with twice as many; the best is never below."""
    for text, own in zip(texts, result, strict=True):
        tops = [k for k in (1, 3, 5) if 2 * k <= text.n]
        effects = text.effects
        orders = {
            "attention": np.argsort(-text.weights[: text.n]),
            "deletion": np.argsort(-effects),
        }
        drops = {name: [text.lost(order[k:]) for k in tops] for name, order in orders.items()}
        assert own.drop["attention"].item() == pytest.approx(np.mean(drops["attention"]), abs=CLOSE)
        least = np.mean(np.maximum(drops["attention"], drops["deletion"]))
        assert own.drop["best"].item() >= least - CLOSE
        left = [itertools.combinations(range(text.n), text.n - k) for k in tops[1:]]
        every = [[effects.mean()], *([*map(text.lost, sets)] for sets in left)]
        low, high = (np.mean([*map(end, every)]) for end in (min, max))
        assert low - CLOSE <= own.drop["random"].item() <= high + CLOSE


def test_the_mass_on_what_matters_and_its_chance_are_means_over_all_orders(texts, result):
    for text, of_text in zip(texts, result, strict=True):
        if text.n > 6:
            continue
        effects = text.effects.clip(min=0)
        if not effects.sum():
            assert of_text.mass["attention"].isnan()
            continue
        weights, expected = text.weights[: text.n], effects / effects.sum()
        own, orders = weights / weights.sum(), itertools.permutations(range(text.n))
        overlaps = [np.minimum(own[[*order]], expected).sum() for order in orders]
        assert of_text.mass["attention"].item() == pytest.approx(overlaps[0], abs=CLOSE)
        assert of_text.mass_by_chance["attention"].item() == pytest.approx(
            np.mean(overlaps), abs=CLOSE
        )


def test_shapley_values_and_the_smallest_set_are_those_of_all_sets(texts, result):
    for text, own in zip(texts, result, strict=True):
        units = range(text.n)
        if text.n > 6:
            assert own.smallest_set is None
            continue
        if text.n <= 5:
            expected, orders = np.zeros(text.n), [*itertools.permutations(units)]
            for order in orders:
                for k, unit in enumerate(order):
                    expected[unit] += text.lost(order[k + 1 :]) - text.lost(order[k:])
            values = shapley_values(measure_all_sets(text.observation, 6)[0])
            values = _scatter_to_units(values, text.observation.batch.content_mask)[0, : text.n]
            np.testing.assert_allclose(values, expected / len(orders), atol=CLOSE)
        sizes = [
            text.n - len(kept)
            for size in units
            for kept in itertools.combinations(units, size)
            if text.of_units(kept).argmax() != text.whole.argmax()
        ]
        assert own.no_smallest_set.item() == (not sizes)
        assert own.smallest_set.item() == pytest.approx(
            min(sizes, default=math.nan), nan_ok=True, abs=CLOSE
        )


def test_masks_fit_contextcite_and_score_every_ranking(texts):
    n_masks, n_held = 64, 20
    assert Sources().exact_units == Sources().masks == 0  # on request alone
    options = Sources(exact_units=0, masks=n_masks, held_out=n_held)
    for text in texts:
        result = sources(text.observation, SITE, options, seed=5)
        assert result.smallest_set is None
        assert result.lds.keys() >= {"attention", "length", "deletion", "contextcite"}
        fitted, outputs = measure_random_halves(text.observation, n_masks, CONTEXTCITE_STREAM, 5)
        kept, held = measure_random_halves(text.observation, n_held, LDS_STREAM, 5)
        own = kept[:, 0, : text.n]
        every = [text.of_units(tuple(np.flatnonzero(mask).tolist())) for mask in own]
        p = np.exp([*map(text.log_prob, every)])
        np.testing.assert_allclose(held[:, 0], np.log(p / (1 - p)), atol=CLOSE)
        weights = {
            "attention": torch.from_numpy(text.weights[: text.n]).double(),
            "contextcite": fit_lasso(fitted[:, 0, : text.n], outputs[:, 0]).double(),
        }
        for name, of_units in weights.items():
            expected = spearmanr(own.double() @ of_units, held[:, 0]).statistic
            np.testing.assert_allclose(result.lds[name].item(), expected, atol=CLOSE)
        assert not torch.equal(fitted[:n_held], kept)
