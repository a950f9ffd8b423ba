"""Knockout of units of a passage: their cells are set to zero, and what is mediated is never clipped."""

import numpy as np
import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.knockout import knockout
from hf_attnprobe.faithfulness.options import Knockout
from hf_attnprobe.faithfulness.passage_units import measure_deletion_effects, measure_knockouts
from hf_attnprobe.protocol import KNOCKOUTS
from tests.faithfulness.test_sources import CLOSE, SITE, ByHand
from tests.helpers.manual_passes import PromptTokens
from tests.helpers.transformer_families import BEGIN, N_WORDS, tiny_model


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


@pytest.mark.parametrize("operator", KNOCKOUTS)
def test_knockout_sets_a_units_cells_to_zero(texts, operator):
    for text in texts:
        lost, moved = measure_knockouts(text.observation, SITE, operator)
        result = knockout(text.observation, SITE, Knockout(operators=(operator,)))
        assert result.largest_knockout.keys() == {operator}
        after = [text.knocked_out(unit, operator) for unit in range(text.n)]
        expected, distances = map(np.array, zip(*after, strict=True))
        np.testing.assert_allclose(lost[0, : text.n], expected, atol=CLOSE)
        np.testing.assert_allclose(moved[0, : text.n], distances, atol=CLOSE)
        assert lost[0, text.n :].abs().max() == 0
        assert result.largest_knockout[operator].item() == pytest.approx(expected.max(), abs=CLOSE)
        assert result.largest_knockout_tvd[operator].item() == pytest.approx(
            distances.max(), abs=CLOSE
        )
        if expected.max() > 0:
            hit = text.weights[: text.n].argmax() == expected.argmax()
            assert result.knockout_found[operator].item() == hit


def test_what_is_mediated_is_of_the_units_that_matter_and_never_clipped(texts):
    """A unit at the limit matters; one does not whose loss is less than what keeping positions changes."""
    seen, noisy = set(), 0
    for text in texts:
        effects, units = text.effects, range(text.n)
        lost = np.array([text.knocked_out(unit, "renormalised")[0] for unit in units])
        noise = [abs(effects[unit] - text.lost_by_gap(unit)) for unit in units]
        for limit in (0.02, measure_deletion_effects(text.observation).max().clamp_min(0).item()):
            result = knockout(text.observation, SITE, Knockout(least_effect=limit))
            costs = effects >= max(limit - 1e-12, 0.1 * effects.max(), 1e-12)
            matters = costs & (effects > noise)
            noisy += (costs & ~matters).sum()
            assert result.units_that_matter.item() == matters.sum()
            seen.add(int(matters.sum()))
            assert result.lost_by_knockout.item() == pytest.approx(lost[matters].sum(), abs=CLOSE)
            assert result.lost_by_deletion.item() == pytest.approx(
                effects[matters].sum(), abs=CLOSE
            )
            assert [v.item() for v in result.unit_matters.values()] == matters.tolist()
            assert [v.item() for v in result.unit_knockout.values()] == pytest.approx(
                lost.tolist(), abs=CLOSE
            )
    assert noisy and seen >= {0, 1, 2}


def test_the_noise_is_measured_only_for_units_that_may_matter(texts, monkeypatch):
    """A unit whose loss is below the limits gets no pass with kept positions: no star needs it."""
    counts = set()
    for text in texts:
        adapter = text.observation.model
        observation = adapter.observe(text.observation.batch)
        requested = []
        original = adapter.erase_inputs

        def count(observation, erased, *, operator="deletion", original=original, log=requested):
            if operator == "gap":
                log.extend(erased[:, 0].nonzero()[:, 1].tolist())
            return original(observation, erased, operator=operator)

        monkeypatch.setattr(adapter, "erase_inputs", count)
        knockout(observation, SITE, Knockout(least_effect=0.1))
        monkeypatch.undo()
        effects = np.array(text.effects)
        limit = max(0.1, 0.1 * effects.max())
        assert sorted(requested) == np.flatnonzero(effects >= limit - 1e-12).tolist()
        counts.add(len(requested))
    assert counts >= {0, 1} and max(counts) > 1
