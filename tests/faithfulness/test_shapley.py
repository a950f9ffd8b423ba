"""Compare the test of all unit sets with plain loops over edited texts and over all orders."""

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from hf_attnprobe.faithfulness.input_erasure import input_erasure
from hf_attnprobe.faithfulness.options import InputErasure, Shapley
from hf_attnprobe.faithfulness.rankings import TEXT_RANKINGS
from hf_attnprobe.faithfulness.shapley import _RemovalGame, shapley
from hf_attnprobe.protocol import ALL, Site
from tests.faithfulness.test_input_erasure import (
    TEXTS,
    ByHand,
    bert,
    classifier,
    observe,
    rank_by_all_orders,
)


FEW = 5  # units: the second to fourth text have so many at most
CASES = [(classifier, Site()), (bert, Site(0, 1))]


@pytest.mark.parametrize("by", ["deletion", "mask"])
@pytest.mark.parametrize(("make", "site"), CASES)
def test_all_of_it_is_what_plain_loops_find(make, site, by):
    model = make()
    adapter, observation = observe(model)
    result = shapley(observation, site, Shapley(by=by, exact_units=FEW), seed=5)
    names = {"attention", "product", *TEXT_RANKINGS}
    assert result.shapley_tau.keys() == result.naopc_sufficiency.keys() == names
    n_all = observation.batch.content_mask.sum(-1).tolist()
    assert result.is_exact.tolist() == [float(n <= FEW) for n in n_all]
    for row in (1, 2, 3):
        game = ByHand(model, observation, row, by)
        n_units = n_all[row]
        values, areas = game.values(), [game.aopc(order) for order in game.every_order]
        assert result.largest_value[row].item() == pytest.approx(abs(values).max(), abs=1e-6)
        assert result.lowest_area[row].item() == pytest.approx(min(areas), abs=1e-6)
        assert result.highest_area[row].item() == pytest.approx(max(areas), abs=1e-6)
        for name, order in rank_by_all_orders(adapter, observation, site, row).items():
            own = {"comprehensiveness": game.aopc(order), "sufficiency": game.aopc(order[::-1])}
            for statistic, expected in own.items():
                measured = getattr(result, statistic)[name][row].item()
                assert measured == pytest.approx(expected, abs=1e-6)
            if n_units > 1 and name in ("random", "input_gradient"):  # without ties
                score = [-order.index(unit) for unit in range(n_units)]
                tau = kendalltau(score, values).statistic
                assert result.shapley_tau[name][row].item() == pytest.approx(tau)
    long = result.is_exact == 0
    assert result.lowest_area[long].isnan().all() and not result.half_width[long].isnan().any()


@pytest.mark.parametrize(("make", "site"), CASES)
def test_sets_of_a_decision_are_the_smallest_of_all(make, site):
    _, observation = observe(make())
    game = _RemovalGame(observation, site, Shapley(exact_units=FEW))
    _, flips = game.measure_every_set()
    result = shapley(observation, site, Shapley(exact_units=FEW))
    for row in (1, 2, 3):
        n_units = int(game.n_units[row])
        gone = [s for s in range(2**n_units) if flips[s, row]]
        kept = [s for s in range(2**n_units) if not flips[2**n_units - 1 - s, row]]
        expected = min((s.bit_count() for s in gone), default=float("nan"))
        smallest = result.necessary_units["smallest"][row].item()
        assert smallest == pytest.approx(expected, nan_ok=True)
        assert result.no_necessary_set[row].item() == (not gone)
        assert result.sufficient_units["smallest"][row] == min(s.bit_count() for s in kept)
        for name in result.shapley_tau:
            assert not result.necessary_units[name][row] < smallest
            assert result.sufficient_units["smallest"][row] <= result.sufficient_units[name][row], (
                name
            )


def test_erased_attention_is_the_read_out_without_some_weights():
    _, observation = observe(classifier())
    game = _RemovalGame(observation, Site(), Shapley(by="attention", exact_units=FEW))
    drops, _ = game.measure_every_set()
    weights, logits = observation.attention[0][:, 0, 0], observation.token_logits
    for row in (1, 2, 3):
        units = observation.batch.content_mask[row].nonzero()[:, 0].tolist()
        for number in range(2 ** len(units) - 1):
            left = weights[row].clone()
            for k, place in enumerate(units):
                left[place] *= not number >> k & 1
            probs = ((left / left.sum()) @ logits[row]).softmax(-1)
            target = observation.probs[row].argmax()
            expected = observation.probs[row, target] - probs[target]
            torch.testing.assert_close(drops[number, row], expected, atol=1e-9, rtol=0)


def test_a_head_that_is_edited_has_values_of_its_own():
    _, observation = observe(bert())
    options = Shapley(by="attention", exact_units=FEW)
    one, whole = (shapley(observation, site, options) for site in (Site(1, 0), Site(ALL, ALL)))
    assert (one.largest_value[1:3] < whole.largest_value[1:3]).all()


def test_random_orders_come_near_the_exact_values():
    """Of a text of 11 units, whose exact values are known too."""
    _, observation = observe(classifier())
    site, row = Site(), 4
    exact = _RemovalGame(observation, site, Shapley(exact_units=12))
    values, half = exact.compute_values(exact.measure_every_set()[0], seed=0)
    drawn = _RemovalGame(observation, site, Shapley(exact_units=3, n_orders=400))
    near, width = drawn.compute_values(drawn.measure_every_set()[0], seed=0)
    gaps = (near - values)[row, : int(exact.n_units[row])].abs()
    assert half[row].isnan() and width[row] > 0
    assert gaps.mean() < width[row] and gaps.max() < 4 * width[row]
    fewer = _RemovalGame(observation, site, Shapley(exact_units=3, n_orders=100))
    wider = fewer.compute_values(fewer.measure_every_set()[0], seed=0)[1][row]
    assert wider.item() == pytest.approx(2 * width[row].item(), rel=0.3)


def test_phrases_stand_for_the_units_of_longer_texts():
    _, observation = observe(classifier())
    game = _RemovalGame(observation, Site(), Shapley(exact_units=4, longer="phrases"))
    assert game.is_exact.all() and game.n_units.tolist() == [4, 4, 2, 1, 4]
    content = observation.batch.content_mask
    for row, n_units in enumerate(game.n_units.tolist()):
        own = game.unit_index[row][content[row]]
        assert own.tolist() == sorted(own.tolist()) and {*own.tolist()} == {*range(n_units)}
        counts = own.bincount()
        assert counts.max() - counts.min() <= 1
    ranked = game.compute_rankings(0)["attention"]
    weights = observation.read(Site())
    for row in range(len(TEXTS)):
        best = [
            weights[row][(game.unit_index[row] == k) & content[row]].max()
            for k in range(4)[: int(game.n_units[row])]
        ]
        assert np.argmax(best) == ranked[row].argmax().item()
    result = shapley(observation, Site(), Shapley(exact_units=4, longer="phrases"))
    assert not result.highest_area.isnan().any()


def test_limits_are_those_of_input_erasure():
    _, observation = observe(classifier())
    ours = shapley(observation, Site(), Shapley(exact_units=FEW), seed=2)
    known = input_erasure(observation, Site(), InputErasure(beam_width=2), seed=2)
    for name, expected in known.naopc_comprehensiveness.items():
        for row in (1, 2):
            wanted = expected[row].item()
            assert ours.naopc_comprehensiveness[name][row].item() == pytest.approx(wanted)


def test_a_target_turns_the_side():
    """Of two classes the values of a class are those of the prediction, whichever it is."""
    _, observation = observe(classifier())
    own = shapley(observation, Site(), Shapley(exact_units=FEW))
    other = shapley(observation, Site(), Shapley(exact_units=FEW, target=0))
    for name, tau in own.shapley_tau.items():
        if name != "product":
            torch.testing.assert_close(tau, other.shapley_tau[name], equal_nan=True)
