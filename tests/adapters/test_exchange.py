"""Exchanged units against token lists that are edited by hand and run one text at a time."""

import pytest
import torch

from hf_attnprobe.adapters.exchange import read_unit_token_ids
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from tests.adapters.test_deletion import by_hand
from tests.helpers.adapter_families import SOME_TEXT, TEXTS, WORDS, get_shared_model, prepare


NEW_TOKENS = [[21], [22, 23, 24], [25, 26], [27], [28]]
"""Contents that replace units, some of them longer than the unit that they replace."""


def make_replacements(content):
    """A new content for every unit, in turn from the list."""
    return [
        {
            position: torch.tensor(NEW_TOKENS[position % len(NEW_TOKENS)])
            for position in row.nonzero()[:, 0].tolist()
        }
        for row in content
    ]


def draw_sets(content, n_copies=6):
    """Sets of units, the first empty and the second everything."""
    generator = torch.Generator().manual_seed(1)
    sets = torch.rand(n_copies, *content.shape, generator=generator) < 0.4
    sets[0], sets[1] = False, True
    return sets & content


def edit_by_hand(ids, exchanged, replacements, units):
    """The token list of a text in which some units have new tokens."""
    edited, replaced = [], set()
    for position, token in enumerate(ids):
        unit = units[position]
        if unit not in exchanged:
            edited.append(token)
        elif unit not in replaced:
            replaced.add(unit)
            edited += replacements[unit].tolist()
    return edited


@pytest.mark.parametrize("family", SOME_TEXT)
def test_an_exchange_is_an_edited_token_list(family):
    """Words are exchanged with all their pieces."""
    adapter = TransformerAdapter(get_shared_model(family))
    adapter.tokens_per_pass = 30
    for words in [None, WORDS] if family == "bert" else [None]:
        observation = adapter.observe(prepare(adapter, words=words))
        content = observation.batch.content_mask
        replacements, sets = make_replacements(content), draw_sets(content)
        probs = adapter.exchange_inputs(observation, sets, replacements)
        torch.testing.assert_close(probs[0], observation.probs)
        units = observation.batch.inputs["units"]
        for copy, exchanged in enumerate(sets):
            for row, text in enumerate(TEXTS):
                positions = observation.batch.mask[row].nonzero()[:, 0].tolist()
                edited = edit_by_hand(
                    text,
                    set(exchanged[row].nonzero()[:, 0].tolist()),
                    replacements[row],
                    units[row, positions].tolist(),
                )
                expected = by_hand(adapter.model, edited)
                torch.testing.assert_close(probs[copy, row], expected, atol=1e-6, rtol=1e-5)
        assert len({tuple(row.tolist()) for row in probs[:, 0]}) > 3


def test_exchanging_units_for_themselves_changes_nothing():
    adapter = TransformerAdapter(get_shared_model("bert"))
    observation = adapter.observe(prepare(adapter, words=WORDS))
    content = observation.batch.content_mask
    originals = adapter.read_unit_contents(observation)
    units = observation.batch.inputs["units"]
    assert [list(text) for text in originals] == [row.nonzero()[:, 0].tolist() for row in content]
    assert max(len(ids) for text in originals for ids in text.values()) > 1
    probs = adapter.exchange_inputs(observation, draw_sets(content), originals)
    expected = observation.probs.expand_as(probs)
    torch.testing.assert_close(probs, expected, atol=1e-6, rtol=1e-5)
    assert read_unit_token_ids(observation, units)[0].keys() == originals[0].keys()


def test_texts_do_not_grow_beyond_the_limit():
    """Long replacements are shortened if a text could exceed the model's positions."""
    adapter = TransformerAdapter(get_shared_model("bert"))
    observation = adapter.observe(prepare(adapter))
    content = observation.batch.content_mask
    n_positions = adapter.model.config.max_position_embeddings
    long = torch.full((n_positions,), 21)
    replacements = [dict.fromkeys(row.nonzero()[:, 0].tolist(), long) for row in content]
    short = [dict.fromkeys(row.nonzero()[:, 0].tolist(), long[:1]) for row in content]
    probs = adapter.exchange_inputs(observation, content[None], replacements)
    expected = adapter.exchange_inputs(observation, content[None], short)
    torch.testing.assert_close(probs, expected)
