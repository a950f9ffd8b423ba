"""Units of a passage against loops over texts, units and sets of a constructed language model."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau, spearmanr

from hf_attnprobe.attention_model import KNOCKOUTS, Site
from hf_attnprobe.faithfulness.knockout import knockout
from hf_attnprobe.faithfulness.options import Knockout, Sources
from hf_attnprobe.faithfulness.sources import (
    HELD_OUT,
    MASKS,
    _at_units,
    all_sets,
    masked_outputs,
    sources,
)
from hf_attnprobe.faithfulness.units import deletion_effects, knocked_out
from hf_attnprobe.functional.attribution import lasso, shapley_values
from passages import HELD, N_ANSWERS, READ, ConstructedDecoder, Numbers, batch_of_passages, passage


NUMBERS = Numbers()
SITE = Site()


@pytest.fixture(scope="module")
def drawn():
    draws = np.random.default_rng(1)
    answers = draws.integers(N_ANSWERS, size=12).tolist()
    adapter = ConstructedDecoder(NUMBERS)
    batch = batch_of_passages(adapter, [passage(draws, answer) for answer in answers], answers)
    return SimpleNamespace(adapter=adapter, batch=batch)


@pytest.fixture(scope="module")
def observation(drawn):
    return drawn.adapter.observe(drawn.batch)


class ByHand(NamedTuple):
    """A text's numbers without padding, and the formula of the module's docstring, unit by unit."""

    scores: np.ndarray
    values: np.ndarray
    lengths: np.ndarray
    answer: int

    @property
    def n(self):
        return len(self.scores)

    def weights(self, units=None):
        scores = self.scores if units is None else self.scores[[*units]]
        odds = np.exp(scores - scores.max()) if len(scores) else scores
        return READ * odds / odds.sum() if len(scores) else scores

    def probs(self, weights, units=None):
        values = self.values if units is None else self.values[[*units]]
        gain = NUMBERS.gain
        logits = np.zeros(N_ANSWERS)
        for weight, value in zip(weights, values, strict=True):
            logits += gain * weight / READ * (1 - NUMBERS.shared) * value
            for other in values:
                logits += gain * weight / READ * NUMBERS.shared * other
            logits += NUMBERS.around * value
        logits[self.answer] += NUMBERS.known
        odds = np.exp(logits - logits.max())
        return odds / odds.sum()

    def of_units(self, units):
        """The output for some of the units."""
        return self.probs(self.weights(units), units)

    @property
    def whole(self):
        return self.of_units(range(self.n))

    def lost(self, kept):
        """How much of the answer's log-probability goes with the units that are not kept."""
        return math.log(self.whole[self.answer] / self.of_units(kept)[self.answer])

    @property
    def effects(self):
        return np.array([self.lost({*range(self.n)} - {unit}) for unit in range(self.n)])

    def knocked_out(self, unit, operator):
        weights = self.weights()
        weights[unit] = 0
        if operator == "renormalised":
            weights = weights / (weights.sum() + sum(HELD))
        return self.probs(weights)


@pytest.fixture(scope="module")
def texts(drawn):
    found = []
    for row, real in enumerate(drawn.batch.inputs["is_unit"]):
        own = (drawn.batch.inputs[name][row, real].numpy() for name in ByHand._fields[:3])
        found.append(ByHand(*own, int(drawn.batch.labels[row])))
    return found


def at(values, row, n):
    return values[row, :n].numpy()


# --- the constructed model -----------------------------------------------------------------


def test_the_constructed_model_is_its_formula(drawn, observation, texts):
    for row, text in enumerate(texts):
        np.testing.assert_allclose(at(observation.read(SITE), row, text.n), text.weights())
        np.testing.assert_allclose(observation.probs[row], text.whole, atol=1e-12)
        lengths = drawn.adapter.unit_lengths(observation)[row, : text.n]
        assert lengths.tolist() == text.lengths.tolist()
    held = observation.read(SITE)[:, -len(HELD) :]
    torch.testing.assert_close(held, torch.tensor(HELD, dtype=held.dtype).expand_as(held))


def test_the_identity_edit_changes_nothing(observation):
    model = observation.model
    same = model.replay(observation, {0: observation.attention[0][None]})
    assert torch.equal(same[0], observation.probs)
    kept = {0: torch.ones(1, len(observation.probs), 1, 1, 1)}
    for operator in KNOCKOUTS:
        after = model.replay_masked(observation, kept, operator=operator)[0]
        torch.testing.assert_close(after, observation.probs, atol=1e-15, rtol=0)


# --- sources ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(observation):
    return sources(observation, SITE, Sources(exact_units=6), seed=3)


def test_the_gain_is_what_the_passage_adds(texts, found):
    for row, text in enumerate(texts):
        assert found.contextual_gain[row] == pytest.approx(text.lost([]))
        assert found.answer_is_greedy[row] == (text.whole.argmax() == text.answer)
        assert found.passage_share[row] == pytest.approx(READ)
        assert found.sink_share[row] == pytest.approx(HELD[-1])


def test_the_source_is_the_unit_that_costs_most(texts, found):
    for row, text in enumerate(texts):
        effects, weights = text.effects, text.weights()
        for k in range(len(found.unit_loss)):
            own = found.unit_loss[str(k)][row], found.unit_attention[str(k)][row]
            known = (effects[k], weights[k]) if k < text.n else (math.nan, math.nan)
            assert own == pytest.approx(known, nan_ok=True)
        if effects.max() <= 0:
            assert all(hit[row].isnan() for hit in found.source_found.values())
            assert found.source_place[row].isnan()
            continue
        source, longest = effects.argmax(), text.lengths == text.lengths.max()
        expected = {
            "attention": text.scores.argmax() == source,
            "length": longest[source] / longest.sum(),
            "chance": 1 / text.n,
            "deletion": 1,
            "first": source == 0,
            "last": source == text.n - 1,
        }
        assert found.source_place[row] == source
        for name, hit in expected.items():
            assert found.source_found[name][row] == pytest.approx(float(hit)), name


def test_orders_are_compared_where_there_are_more_than_four_units(texts, found):
    for row, text in enumerate(texts):
        tau, agreement = (x["attention"][row] for x in (found.source_tau, found.source_agreement))
        if text.n <= 4:
            assert tau.isnan() and agreement.isnan()
            continue
        effects, scores = text.effects, text.scores
        assert tau == pytest.approx(kendalltau(scores, effects).statistic)
        agreed = total = 0.0
        for i, j in itertools.combinations(range(text.n), 2):
            difference = effects[i] - effects[j]
            total += abs(difference)
            agreed += difference * np.sign(scores[i] - scores[j])
        assert agreement == pytest.approx(agreed / total)
    assert {text.n > 4 for text in texts} == {True, False}


def test_drops_are_of_the_first_units(texts, found):
    """Means over the first 1, 3 and 5, of texts with twice as many; the best is never below."""
    for row, text in enumerate(texts):
        tops = [k for k in (1, 3, 5) if 2 * k <= text.n]
        effects = text.effects
        orders = {"attention": np.argsort(-text.scores), "deletion": np.argsort(-effects)}
        drops = {name: [text.lost(order[k:]) for k in tops] for name, order in orders.items()}
        assert found.drop["attention"][row] == pytest.approx(np.mean(drops["attention"]))
        least = np.mean(np.maximum(drops["attention"], drops["deletion"]))
        assert found.drop["best"][row] >= least - 1e-9
        left = [itertools.combinations(range(text.n), text.n - k) for k in tops[1:]]
        every = [[effects.mean()], *([*map(text.lost, sets)] for sets in left)]
        low, high = (np.mean([*map(end, every)]) for end in (min, max))
        assert low - 1e-9 <= found.drop["random"][row] <= high + 1e-9


def test_the_mass_on_what_matters_and_its_chance_are_means_over_all_orders(texts, found):
    for row, text in enumerate(texts):
        if text.n > 6:
            continue
        effects = text.effects.clip(min=0)
        if not effects.sum():
            assert found.mass["attention"][row].isnan()
            continue
        own, wanted = text.weights() / text.weights().sum(), effects / effects.sum()
        orders = itertools.permutations(range(text.n))
        overlaps = [np.minimum(own[[*order]], wanted).sum() for order in orders]
        assert found.mass["attention"][row] == pytest.approx(overlaps[0])
        assert found.mass_by_chance["attention"][row] == pytest.approx(np.mean(overlaps))


def test_shapley_values_and_the_smallest_set_are_those_of_all_sets(texts, observation, found):
    few = observation.batch.content_mask.sum(-1, keepdim=True) <= 6
    drops, _ = all_sets(observation, 6)
    values_of = _at_units(shapley_values(drops), observation.batch.content_mask & few)
    for row, text in enumerate(texts):
        units = range(text.n)
        if text.n > 6:
            assert found.smallest_set[row].isnan()
            continue
        expected = np.zeros(text.n)
        orders = list(itertools.permutations(units)) if text.n <= 5 else []
        for order in orders:
            for k, unit in enumerate(order):
                expected[unit] += text.lost(order[k + 1 :]) - text.lost(order[k:])
        if orders:
            expected /= len(orders)
            np.testing.assert_allclose(at(values_of, row, text.n), expected, atol=1e-9)
        sizes = [
            text.n - len(kept)
            for size in units
            for kept in itertools.combinations(units, size)
            if text.of_units(kept).argmax() != text.whole.argmax()
        ]
        assert found.no_smallest_set[row] == (not sizes)
        if sizes:
            assert found.smallest_set[row] == min(sizes)


def test_masks_fit_contextcite_and_score_every_ranking(texts, observation):
    n_masks, n_held = 64, 20
    options = Sources(exact_units=0, masks=n_masks, held_out=n_held)
    found = sources(observation, SITE, options, seed=5)
    assert found.smallest_set is None
    assert found.lds.keys() >= {"attention", "length", "deletion", "contextcite"}
    fitted, outputs = masked_outputs(observation, n_masks, MASKS, 5)
    kept, held = masked_outputs(observation, n_held, HELD_OUT, 5)
    for row, text in enumerate(texts):
        own = kept[:, row, : text.n]
        p = np.array([text.of_units(np.flatnonzero(mask))[text.answer] for mask in own])
        np.testing.assert_allclose(held[:, row], np.log(p / (1 - p)))
        summed = own.double().numpy() @ text.weights()
        expected = spearmanr(summed, np.log(p / (1 - p))).statistic
        np.testing.assert_allclose(found.lds["attention"][row], expected, atol=1e-9)
        summed = own.double() @ lasso(fitted[:, row, : text.n], outputs[:, row])
        expected = spearmanr(summed, held[:, row]).statistic
        np.testing.assert_allclose(found.lds["contextcite"][row], expected, atol=1e-9)
    assert not torch.equal(fitted[:n_held], kept)


def test_a_text_alone_is_measured_as_in_a_batch(drawn, texts, found):
    """Random units and masks are drawn by text, and padding changes nothing."""
    for row, text in enumerate(texts):
        batch = batch_of_passages(drawn.adapter, [text._asdict()], [text.answer])
        alone = drawn.adapter.observe(replace(batch, example_ids=(row,)))
        again = sources(alone, SITE, Sources(exact_units=6), seed=3)
        for name in ("drop", "mass", "source_found", "source_agreement", "shapley_agreement"):
            of_all = getattr(found, name)
            for key, value in (getattr(again, name) or {}).items():
                np.testing.assert_allclose(value[0], of_all[key][row], atol=1e-12)


# --- knockout --------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", KNOCKOUTS)
def test_knockout_sets_a_units_cells_to_zero(texts, observation, operator):
    lost, moved = knocked_out(observation, SITE, operator)
    result = knockout(observation, SITE, Knockout(operators=(operator,)))
    assert result.largest_knockout.keys() == {operator}
    for row, text in enumerate(texts):
        after = [text.knocked_out(unit, operator) for unit in range(text.n)]
        expected = np.array([math.log(text.whole[text.answer] / p[text.answer]) for p in after])
        np.testing.assert_allclose(at(lost, row, text.n), expected, atol=1e-9)
        distances = [np.abs(p - text.whole).sum() / 2 for p in after]
        np.testing.assert_allclose(at(moved, row, text.n), distances, atol=1e-9)
        assert lost[row, text.n :].abs().max() == 0
        assert result.largest_knockout[operator][row] == pytest.approx(expected.max())
        assert result.largest_knockout_tvd[operator][row] == pytest.approx(max(distances))
        if expected.max() > 0:
            hit = text.scores.argmax() == expected.argmax()
            assert result.knockout_found[operator][row] == hit


def test_what_is_mediated_is_of_the_units_that_matter_and_never_clipped(texts, observation):
    result = knockout(observation, SITE, Knockout(least_effect=0.2))
    seen = set()
    for row, text in enumerate(texts):
        effects = text.effects
        after = [text.knocked_out(unit, "renormalised") for unit in range(text.n)]
        lost = np.array([math.log(text.whole[text.answer] / p[text.answer]) for p in after])
        matters = (effects >= 0.2) & (effects >= 0.1 * effects.max())
        assert result.units_that_matter[row] == matters.sum()
        seen.add(bool(matters.any()))
        assert result.lost_by_knockout[row] == pytest.approx(lost[matters].sum())
        assert result.lost_by_deletion[row] == pytest.approx(effects[matters].sum())
        for unit, does in enumerate(matters):
            assert result.unit_matters[str(unit)][row] == does
            assert result.unit_knockout[str(unit)][row] == pytest.approx(lost[unit])
    assert seen == {True, False}


def test_a_unit_at_the_limit_matters(observation):
    limit = deletion_effects(observation)[0].max().item()
    result = knockout(observation, SITE, Knockout(least_effect=limit))
    assert result.units_that_matter[0] == 1


def test_units_within_the_noise_of_deleting_do_not_matter(observation):
    """A model whose positions matter: what the gap changes is noise."""

    class Positions(ConstructedDecoder):
        def erase_inputs(self, observation, erased, *, by="deletion"):
            probs = super().erase_inputs(observation, erased, by=by)
            return probs if by == "deletion" else observation.probs.expand_as(probs)

    model = Positions(NUMBERS)
    noisy = model.observe(observation.batch)  # with a gap nothing is lost: all is noise
    assert not knockout(noisy, SITE).units_that_matter.any()
