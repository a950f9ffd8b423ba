"""Units of a passage against loops over texts, units and sets of a constructed language model."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

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
from hf_attnprobe.faithfulness.units import knocked_out
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


def texts_of(batch):
    """Each text's numbers without padding: scores, values, lengths, answer."""
    for row, real in enumerate(batch.inputs["is_unit"]):
        scores, values, lengths = (
            batch.inputs[name][row, real].numpy() for name in ("scores", "values", "lengths")
        )
        yield scores, values, lengths, int(batch.labels[row])


def weights_of(scores):
    odds = np.exp(scores - scores.max()) if len(scores) else scores
    return READ * odds / odds.sum() if len(scores) else scores


def probs_by_hand(weights, values, answer):
    """The formula of the module's docstring, unit by unit."""
    gain = NUMBERS.gain
    logits = np.zeros(N_ANSWERS)
    for weight, value in zip(weights, values, strict=True):
        logits += gain * weight / READ * (1 - NUMBERS.shared) * value
        for other in values:
            logits += gain * weight / READ * NUMBERS.shared * other
        logits += NUMBERS.around * value
    logits[answer] += NUMBERS.known
    odds = np.exp(logits - logits.max())
    return odds / odds.sum()


def log_p(scores, values, answer, units=None):
    """Of the answer to some of the units, all by default."""
    units = range(len(scores)) if units is None else units
    some = [*units]
    return math.log(probs_by_hand(weights_of(scores[some]), values[some], answer)[answer])


def effects_of(scores, values, answer):
    whole = log_p(scores, values, answer)
    everything = range(len(scores))
    return np.array(
        [whole - log_p(scores, values, answer, {*everything} - {u}) for u in everything]
    )


def at(values, row, n):
    return values[row, :n].numpy()


# --- the constructed model -----------------------------------------------------------------


def test_the_constructed_model_is_its_formula(drawn, observation):
    for row, (scores, values, lengths, answer) in enumerate(texts_of(drawn.batch)):
        n = len(scores)
        weights = weights_of(scores)
        np.testing.assert_allclose(at(observation.read(SITE), row, n), weights)
        expected = probs_by_hand(weights, values, answer)
        np.testing.assert_allclose(observation.probs[row], expected, atol=1e-12)
        assert drawn.adapter.unit_lengths(observation)[row, :n].tolist() == lengths.tolist()
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


def test_the_gain_is_what_the_passage_adds(drawn, found):
    for row, (scores, values, _, answer) in enumerate(texts_of(drawn.batch)):
        gain = log_p(scores, values, answer) - log_p(scores, values, answer, [])
        assert found.contextual_gain[row] == pytest.approx(gain)
        whole = probs_by_hand(weights_of(scores), values, answer)
        assert found.answer_is_greedy[row] == (whole.argmax() == answer)
        assert found.passage_share[row] == pytest.approx(READ)
        assert found.sink_share[row] == pytest.approx(HELD[-1])


def test_the_source_is_the_unit_that_costs_most(drawn, found):
    for row, (scores, values, lengths, answer) in enumerate(texts_of(drawn.batch)):
        effects = effects_of(scores, values, answer)
        n = len(scores)
        source = effects.argmax()
        if effects.max() <= 0:
            assert all(hit[row].isnan() for hit in found.source_found.values())
            continue
        assert found.source_found["attention"][row] == (scores.argmax() == source)
        longest = lengths == lengths.max()
        assert found.source_found["length"][row] == pytest.approx(longest[source] / longest.sum())
        assert found.source_found["chance"][row] == pytest.approx(1 / n)
        assert found.source_found["deletion"][row] == 1


def test_orders_are_compared_where_there_are_more_than_four_units(drawn, found):
    seen = set()
    for row, (scores, values, _, answer) in enumerate(texts_of(drawn.batch)):
        tau, agreement = (x["attention"][row] for x in (found.source_tau, found.source_agreement))
        seen.add(len(scores) > 4)
        if len(scores) <= 4:
            assert tau.isnan() and agreement.isnan()
            continue
        effects = effects_of(scores, values, answer)
        assert tau == pytest.approx(kendalltau(scores, effects).statistic)
        pairs = itertools.combinations(range(len(scores)), 2)
        agreed = total = 0.0
        for i, j in pairs:
            difference = effects[i] - effects[j]
            total += abs(difference)
            agreed += difference * np.sign(scores[i] - scores[j])
        assert agreement == pytest.approx(agreed / total)
    assert seen == {True, False}


def test_the_source_has_a_place_and_places_that_need_no_attention(drawn, found):
    for row, (scores, values, _, answer) in enumerate(texts_of(drawn.batch)):
        effects = effects_of(scores, values, answer)
        if effects.max() <= 0:
            assert found.source_place[row].isnan()
            continue
        source = effects.argmax()
        assert found.source_place[row] == source
        assert found.source_found["first"][row] == (source == 0)
        assert found.source_found["last"][row] == (source == len(scores) - 1)


def test_drops_are_of_the_first_units(drawn, found):
    """Means over the first 1, 3 and 5, of texts with twice as many; the best is never below."""
    for row, (scores, values, _, answer) in enumerate(texts_of(drawn.batch)):
        n, whole = len(scores), log_p(scores, values, answer)

        def lost(kept, scores=scores, values=values, answer=answer, whole=whole):
            return whole - log_p(scores, values, answer, kept)

        tops = [k for k in (1, 3, 5) if 2 * k <= n]
        effects = effects_of(scores, values, answer)
        orders = {"attention": np.argsort(-scores), "deletion": np.argsort(-effects)}
        drops = {name: [lost(order[k:]) for k in tops] for name, order in orders.items()}
        assert found.drop["attention"][row] == pytest.approx(np.mean(drops["attention"]))
        least = np.mean(np.maximum(drops["attention"], drops["deletion"]))
        assert found.drop["best"][row] >= least - 1e-9
        of_one = effects.mean()
        if len(tops) == 1:
            assert found.drop["random"][row] == pytest.approx(of_one)
        else:
            every = [
                [lost(kept) for kept in itertools.combinations(range(n), n - k)] for k in tops[1:]
            ]
            low, high = (np.mean([of_one, *map(end, every)]) for end in (min, max))
            assert low - 1e-9 <= found.drop["random"][row] <= high + 1e-9


def test_the_mass_on_what_matters_and_its_chance_are_means_over_all_orders(drawn, found):
    for row, (scores, values, _, answer) in enumerate(texts_of(drawn.batch)):
        if len(scores) > 6:
            continue
        effects = effects_of(scores, values, answer).clip(min=0)
        if not effects.sum():
            assert found.mass["attention"][row].isnan()
            continue
        own, wanted = weights_of(scores) / weights_of(scores).sum(), effects / effects.sum()
        overlaps = [
            np.minimum(own[list(order)], wanted).sum()
            for order in itertools.permutations(range(len(scores)))
        ]
        assert found.mass["attention"][row] == pytest.approx(overlaps[0])
        assert found.mass_by_chance["attention"][row] == pytest.approx(np.mean(overlaps))


def test_every_unit_has_its_loss_and_its_attention(drawn, found):
    for row, (scores, values, _, answer) in enumerate(texts_of(drawn.batch)):
        effects, weights = effects_of(scores, values, answer), weights_of(scores)
        for k in range(len(found.unit_loss)):
            loss, weight = found.unit_loss[str(k)][row], found.unit_attention[str(k)][row]
            assert loss.isnan() and weight.isnan() if k >= len(scores) else True
            if k < len(scores):
                assert (loss, weight) == (pytest.approx(effects[k]), pytest.approx(weights[k]))


def test_shapley_values_and_the_smallest_set_are_those_of_all_sets(drawn, observation, found):
    few = observation.batch.content_mask.sum(-1, keepdim=True) <= 6
    drops, _ = all_sets(observation, 6)
    values_of = _at_units(shapley_values(drops), observation.batch.content_mask & few)
    for row, (scores, values, _, answer) in enumerate(texts_of(drawn.batch)):
        n = len(scores)
        if n > 6:
            assert found.smallest_set[row].isnan()
            continue
        whole = log_p(scores, values, answer)
        expected = np.zeros(n)
        orders = list(itertools.permutations(range(n))) if n <= 5 else []
        for order in orders:
            left, before = list(range(n)), whole
            for unit in order:
                left.remove(unit)
                after = log_p(scores, values, answer, left)
                expected[unit] += before - after
                before = after
        if orders:
            np.testing.assert_allclose(at(values_of, row, n), expected / len(orders), atol=1e-9)
        said = probs_by_hand(weights_of(scores), values, answer).argmax()
        sizes = []
        for size in range(1, n + 1):
            for gone in itertools.combinations(range(n), size):
                kept = [u for u in range(n) if u not in gone]
                weights = weights_of(scores[kept])
                if probs_by_hand(weights, values[kept], answer).argmax() != said:
                    sizes.append(size)
        assert found.no_smallest_set[row] == (not sizes)
        if sizes:
            assert found.smallest_set[row] == min(sizes)


def test_masks_fit_contextcite_and_score_every_ranking(drawn, observation):
    n_masks, n_held = 64, 20
    found = sources(
        observation, SITE, Sources(exact_units=0, masks=n_masks, held_out=n_held), seed=5
    )
    assert found.smallest_set is None
    assert found.lds.keys() >= {"attention", "length", "deletion", "contextcite"}
    fitted, outputs = masked_outputs(observation, n_masks, MASKS, 5)
    kept, held = masked_outputs(observation, n_held, HELD_OUT, 5)
    for row, (scores, values, _, answer) in enumerate(texts_of(drawn.batch)):
        n = len(scores)
        p = np.array(
            [math.exp(log_p(scores, values, answer, np.flatnonzero(m))) for m in kept[:, row, :n]]
        )
        np.testing.assert_allclose(held[:, row], np.log(p / (1 - p)))
        summed = kept[:, row, :n].double().numpy() @ weights_of(scores)
        expected = spearmanr(summed, np.log(p / (1 - p))).statistic
        np.testing.assert_allclose(found.lds["attention"][row], expected, atol=1e-9)
        fit = lasso(fitted[:, row, :n], outputs[:, row])
        summed = kept[:, row, :n].double() @ fit
        expected = spearmanr(summed, held[:, row]).statistic
        np.testing.assert_allclose(found.lds["contextcite"][row], expected, atol=1e-9)
    assert not torch.equal(fitted[:n_held], kept)


def test_a_text_alone_is_measured_as_in_a_batch(drawn, found):
    """Random units and masks are drawn by text, and padding changes nothing."""
    for row, text in enumerate(texts_of(drawn.batch)):
        scores, values, lengths, answer = text
        one = {"scores": scores, "values": values, "lengths": lengths}
        batch = batch_of_passages(drawn.adapter, [one], [answer])
        alone = drawn.adapter.observe(replace(batch, example_ids=(row,)))
        again = sources(alone, SITE, Sources(exact_units=6), seed=3)
        for name in ("drop", "mass", "source_found", "source_agreement", "shapley_agreement"):
            of_all = getattr(found, name)
            for key, value in (getattr(again, name) or {}).items():
                np.testing.assert_allclose(value[0], of_all[key][row], atol=1e-12)


# --- knockout --------------------------------------------------------------------------------


def knocked_by_hand(scores, values, answer, unit, operator):
    weights = weights_of(scores)
    weights[unit] = 0
    if operator == "renormalised":
        weights = weights / (weights.sum() + sum(HELD))
    return probs_by_hand(weights, values, answer)


@pytest.mark.parametrize("operator", KNOCKOUTS)
def test_knockout_sets_a_units_cells_to_zero(drawn, observation, operator):
    lost, moved = knocked_out(observation, SITE, operator)
    result = knockout(observation, SITE, Knockout(operators=(operator,)))
    assert result.largest_knockout.keys() == {operator}
    for row, (scores, values, _, answer) in enumerate(texts_of(drawn.batch)):
        n = len(scores)
        whole = probs_by_hand(weights_of(scores), values, answer)
        after = [knocked_by_hand(scores, values, answer, u, operator) for u in range(n)]
        expected = np.array([math.log(whole[answer] / p[answer]) for p in after])
        np.testing.assert_allclose(at(lost, row, n), expected, atol=1e-9)
        distances = [np.abs(p - whole).sum() / 2 for p in after]
        np.testing.assert_allclose(at(moved, row, n), distances, atol=1e-9)
        assert lost[row, n:].abs().max() == 0
        assert result.largest_knockout[operator][row] == pytest.approx(expected.max())
        assert result.largest_knockout_tvd[operator][row] == pytest.approx(max(distances))
        if expected.max() > 0:
            hit = scores.argmax() == expected.argmax()
            assert result.knockout_found[operator][row] == hit


def test_what_is_mediated_is_of_the_units_that_matter_and_never_clipped(drawn, observation):
    result = knockout(observation, SITE, Knockout(least_effect=0.2))
    seen = set()
    for row, (scores, values, _, answer) in enumerate(texts_of(drawn.batch)):
        whole = log_p(scores, values, answer)
        effects = effects_of(scores, values, answer)
        lost = np.array(
            [
                whole - math.log(knocked_by_hand(scores, values, answer, u, "renormalised")[answer])
                for u in range(len(scores))
            ]
        )
        matters = (effects >= 0.2) & (effects >= 0.1 * effects.max())
        assert result.units_that_matter[row] == matters.sum()
        seen.add(bool(matters.any()))
        assert result.lost_by_knockout[row] == pytest.approx(lost[matters].sum())
        assert result.lost_by_deletion[row] == pytest.approx(effects[matters].sum())
        for unit, does in enumerate(matters):
            assert result.unit_matters[str(unit)][row] == does
            assert result.unit_knockout[str(unit)][row] == pytest.approx(lost[unit])
    assert seen == {True, False}


def test_units_within_the_noise_of_deleting_do_not_matter(observation):
    """A model whose positions matter: what the gap changes is noise."""

    class Positions(ConstructedDecoder):
        def erase_inputs(self, observation, erased, *, by="deletion"):
            probs = super().erase_inputs(observation, erased, by=by)
            return probs if by == "deletion" else observation.probs.expand_as(probs)

    model = Positions(NUMBERS)
    noisy = model.observe(observation.batch)  # with a gap nothing is lost: all is noise
    assert not knockout(noisy, SITE).units_that_matter.any()
