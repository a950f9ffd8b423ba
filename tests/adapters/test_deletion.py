"""Erased inputs against token lists edited by hand and run through the model one text at a time."""

import inspect

import pytest
import torch

from benchmarks import peers
from hf_attnprobe import Site
from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.core.errors import AttnProbeError
from tests.helpers import adapter_families, tiny_models
from tests.helpers.adapter_families import (
    SOME_TEXT,
    TEXTS,
    WORDS,
    get_shared_model,
    make,
    observe_texts,
    prepare,
)


MASK = 7


def random_sets(content, n_copies=6, seed=0):
    """Sets of units, the first empty, the second everything."""
    sets = torch.rand(n_copies, *content.shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    sets[0], sets[1] = False, True
    return sets & content


@torch.no_grad()
def by_hand(model, ids):
    ids = torch.tensor([ids])
    known = inspect.signature(model.forward).parameters
    options = {"use_cache": False} if "use_cache" in known else {}
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    return output.logits.softmax(-1)[0]


def edited(ids, gone, by):
    """Special tokens are no units, so they are never in ``gone``."""
    if by == "mask":
        return [MASK if place in gone else token for place, token in enumerate(ids)]
    return [token for place, token in enumerate(ids) if place not in gone]


@pytest.mark.parametrize("by", ["deletion", "mask"])
@pytest.mark.parametrize("family", SOME_TEXT)
def test_erasure_is_an_edited_token_list(family, by):
    """Words go with all their pieces where they are known."""
    adapter = TransformerAdapter(get_shared_model(family), mask_id=MASK)
    adapter.tokens_per_pass = 30
    tokens = [range(len(text)) for text in TEXTS]
    for words, units in ((None, tokens), *([(WORDS, WORDS)] if family == "bert" else [])):
        observation = adapter.observe(prepare(adapter, words=words))
        erased = random_sets(observation.batch.content_mask)
        found = adapter.erase_inputs(observation, erased, operator=by)
        for copy, sets in enumerate(erased):
            for row, (text, unit_of) in enumerate(zip(TEXTS, units, strict=True)):
                real = observation.batch.mask[row].nonzero()[:, 0].tolist()
                named = {unit_of[real.index(k)] for k in sets[row].nonzero()[:, 0].tolist()}
                gone = {place for place, unit in enumerate(unit_of) if unit in named}
                expected = by_hand(adapter.model, edited(text, gone, by))
                torch.testing.assert_close(found[copy, row], expected, atol=1e-6, rtol=1e-5)
        assert len({tuple(x.tolist()) for x in found[:, 0]}) > 3


def test_equal_sets_are_run_once_and_nothing_erased_not_at_all(monkeypatch):
    adapter, observation = observe_texts(make("bert"))
    erased, rows = random_sets(observation.batch.content_mask), []
    logits = adapter.compute_logits

    def counted(inputs, *edit):
        rows.append(len(inputs["input_ids"]))
        return logits(inputs, *edit)

    monkeypatch.setattr(adapter, "compute_logits", counted)
    once = adapter.erase_inputs(observation, erased)
    n_once = sum(rows)
    assert n_once == len(
        {(row, tuple(s.tolist())) for sets in erased for row, s in enumerate(sets) if s.any()}
    )
    thrice = adapter.erase_inputs(observation, erased.repeat(3, 1, 1))
    assert sum(rows) == n_once and torch.equal(thrice, once.repeat(3, 1, 1))
    adapter.erase_inputs(adapter.observe(observation.batch), erased.repeat(3, 1, 1))
    assert sum(rows) == 2 * n_once + len(TEXTS)  # those that were observed anew
    assert torch.equal(once[0], observation.probs)


def test_special_tokens_and_padding_cannot_be_erased():
    adapter, observation = observe_texts(get_shared_model("bert"))
    content = observation.batch.content_mask
    everything = torch.ones(1, *content.shape, dtype=torch.bool)
    found, expected = (adapter.erase_inputs(observation, x) for x in (everything, content[None]))
    assert torch.equal(found, expected)
    assert torch.equal(adapter.erase_inputs(observation, ~content[None])[0], observation.probs)


def test_a_text_of_which_nothing_is_left_answers_as_a_whole():
    adapter = TransformerAdapter(make("bert"))
    inputs = tiny_models.encoded([[11, 12, 13], [14]])
    observation = adapter.observe(adapter.prepare(inputs, (0, 1)))
    found = adapter.erase_inputs(observation, observation.batch.content_mask[None])
    assert torch.equal(found[0], observation.probs)
    assert torch.equal(observation.leave_one_out[1, 0], observation.probs[1])


@pytest.mark.parametrize(
    ("by", "message"),
    [("mask", "use the operator 'deletion'"), ("noise", "deletion, mask, got 'noise'")],
)
def test_operators_that_cannot_be(by, message):
    adapter, observation = observe_texts(get_shared_model("bert"))
    with pytest.raises(AttnProbeError, match=message):
        adapter.erase_inputs(observation, observation.batch.content_mask[None], operator=by)


# Classifiers

IDS = torch.tensor([[2, 5, 6, 7, 7, 8, 9, 3], [2, 8, 9, 6, 3, 0, 0, 0], [2, 8, 3, 0, 0, 0, 0, 0]])


def classifier(encoder, num_labels, **options):
    return tiny_models.classifier(encoder=encoder, num_labels=num_labels, **options)


@pytest.mark.parametrize("by", ["deletion", "mask"])
@pytest.mark.parametrize(
    ("encoder", "num_labels"),
    [("bilstm", 2), ("bilstm", 4), ("bigru", 2), ("cnn", 2), ("mlp", 4), ("none", 2)],
)
def test_classifiers_read_the_edited_token_list(encoder, num_labels, by):
    model = classifier(encoder, num_labels)
    adapter, observation = tiny_models.seen(model, IDS, (4, 2, 9), mask_id=MASK)
    erased = random_sets(observation.batch.content_mask, 12)
    found, model = adapter.erase_inputs(observation, erased, operator=by), model.double()
    for copy, sets in enumerate(erased):
        for row, ids in enumerate(IDS):
            gone = set(sets[row].nonzero()[:, 0].tolist())
            expected = by_hand(model, edited(ids[ids > 0].tolist(), gone, by))
            torch.testing.assert_close(found[copy, row], expected, atol=1e-12, rtol=0)


def test_a_classifier_without_special_tokens_is_left_with_its_bias():
    model = classifier("bilstm", 2, bos_token_id=None, eos_token_id=None)
    adapter = wrap(model)
    ids = torch.tensor([[5, 6, 7], [8, 0, 0]])
    observation = adapter.observe(
        adapter.prepare({"input_ids": ids, "attention_mask": (ids > 0).long()}, (0, 1))
    )
    found = adapter.erase_inputs(observation, observation.batch.content_mask[None])[0]
    bias = model.classifier.bias.double().detach()
    expected = torch.stack([(-bias).sigmoid(), bias.sigmoid()], dim=-1).expand(2, 2)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(found[1], observation.leave_one_out[1, 0], atol=1e-12, rtol=0)


def test_our_side_of_a_benchmark_has_ferrets_rule():
    adapter = TransformerAdapter(adapter_families.make("bert"))
    batch = adapter_families.prepare(adapter)
    scores = adapter.observe(batch).read(Site(2, 0))
    found = peers.comprehensiveness(adapter, batch, scores)
    for row, ids in enumerate(adapter_families.TEXTS):

        @torch.no_grad()
        def probs(kept):
            return adapter.model(torch.tensor([kept])).logits.softmax(-1)[0]

        whole, places = probs(ids), range(1, len(ids) - 1)
        order = sorted(places, key=lambda place: -scores[row, place].item())
        sizes = sorted({len(places) * percent // 100 for percent in range(10, 101, 10)} - {0})
        after = [probs([t for place, t in enumerate(ids) if place not in order[:n]]) for n in sizes]
        target = int(whole.argmax())
        expected = sum((whole - p)[target].item() for p in after) / len(sizes)
        assert found[row].item() == pytest.approx(expected, abs=1e-5)
