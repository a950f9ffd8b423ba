"""Attention at other tokens: every model against its own modules, run on each shorter text with weights given by hand."""

import copy

import numpy as np
import pytest
import test_classifier as classifiers
import test_hierarchical as hierarchical
import torch
from families import TEXTS, WORDS, Given, encode, make, shared

import zoo
from hf_attnprobe import AttnProbeError
from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_model import Reassignable
from hf_attnprobe.auditing.control import kind_of
from pairs import PAIRS, ByHand, batch_of
from pairs import make as make_pair


SEED = 7
ENCODERS = ("bilstm", "bigru", "cnn", "mlp", "none", "orthogonal_lstm")
KINDS = [(encoder, n) for encoder in ENCODERS for n in (2, 4)]
KINDS += [("bilstm+concat", 2), ("cnn+concat", 2)]
NAMES = [*(f"{encoder} {n}" for encoder, n in KINDS), "pair", "hierarchical", "bert", "gpt2"]


def inputs_of(name, rows=None, more=0):
    """A model's inputs: some of the texts, so many places of padding behind them."""
    if name == "pair":
        chosen = [PAIRS[k] for k in rows or range(len(PAIRS))]
        return batch_of(chosen, more and 14 + more)
    if name == "hierarchical":
        texts = hierarchical.TEXTS
        chosen = [texts[k] for k in rows or range(len(texts))]
        return hierarchical.batch_of(chosen, more and 16 + more)
    if name in ("bert", "gpt2"):
        chosen, words = ([source[k] for k in rows or range(3)] for source in (TEXTS, WORDS))
        return encode(shared(name), chosen, words)
    ids = classifiers.IDS[rows] if rows else classifiers.IDS
    ids = ids[:, : int((ids != 0).sum(1).max())]
    ids = torch.nn.functional.pad(ids, (0, more))
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def model_of(name):
    if name == "pair":
        return make_pair()
    if name == "hierarchical":
        return hierarchical.make()
    if name in ("bert", "gpt2"):
        return make(name).double()
    encoder, n_labels = name.split()
    return classifiers.make(encoder, "additive", int(n_labels))


def observed(adapter, name, rows=None, more=0):
    inputs = inputs_of(name, rows, more)
    ids = rows or range(len(inputs["input_ids"]))
    return adapter.observe(adapter.prepare(inputs, tuple(ids)))


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def adapter(name):
    return wrap(model_of(name))


def layers_of(observation):
    """The layers whose attention is read."""
    return sorted({site.layer for site in observation.model.sites()})


def test_the_same_weights_stand_at_other_content_tokens(adapter, name):
    own, other = observed(adapter, name), observed(adapter.reassigned(SEED), name)
    content = own.batch.content_mask
    if name in ("bert", "gpt2"):  # pieces are tokens
        content = content.gather(-1, own.batch.inputs["units"])
    assert torch.equal(own.batch.content_mask, other.batch.content_mask)
    moved = False
    for layer in layers_of(own):
        before, after = own.attention[layer], other.attention[layer]
        fixed = ~content[:, None, None].expand_as(before)
        torch.testing.assert_close(after[fixed], before[fixed])
        torch.testing.assert_close(after.sort(-1).values, before.sort(-1).values)
        moved |= not torch.allclose(before, after)
    assert moved and not torch.allclose(own.probs, other.probs, atol=1e-6)


def test_identity_replay_is_the_prediction(adapter, name):
    observation = observed(adapter.reassigned(SEED), name)
    for layer in layers_of(observation):
        kept = observation.attention[layer].expand(2, -1, -1, -1, -1)
        for copy_ in adapter.reassigned(SEED).replay(observation, {layer: kept}):
            torch.testing.assert_close(copy_, observation.probs)


def test_leaving_out_is_erasing_each_unit(adapter, name):
    other = adapter.reassigned(SEED)
    observation = observed(other, name)
    content = observation.batch.content_mask
    each = torch.eye(content.shape[1], dtype=torch.bool)[:, None].expand(-1, len(content), -1)
    erased = other.erase_inputs(observation, each).transpose(0, 1)
    found = other.leave_one_out(observation)
    torch.testing.assert_close(found[content], erased[content])
    nothing = other.erase_inputs(observation, torch.zeros_like(each[:1]))[0]
    torch.testing.assert_close(nothing, observation.probs)


def test_padding_and_batch_change_nothing(adapter, name):
    other = adapter.reassigned(SEED)
    together = observed(other, name)
    rows = [k for k in range(len(together.probs)) if together.batch.content_mask[k].any()]
    for row in rows:
        more = 0 if name in ("bert", "gpt2") else 3
        alone = observed(other, name, [row], more)
        torch.testing.assert_close(alone.probs[0], together.probs[row])
        content = together.batch.content_mask[row]
        own = alone.batch.content_mask[0]
        assert content.sum() == own.sum()
        torch.testing.assert_close(
            alone.leave_one_out[0][own], together.leave_one_out[row][content]
        )
    backwards = observed(other, name, rows[::-1])
    torch.testing.assert_close(backwards.probs.flip(0), together.probs[rows])


def test_seeds_differ_and_the_adapter_stays_as_it_was(adapter, name):
    before, weights = observed(adapter, name), copy.deepcopy(adapter.model.state_dict())
    first, again, second = (observed(adapter.reassigned(seed), name).probs for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.allclose(first, second, atol=1e-6)
    after = observed(adapter, name)
    assert adapter.reassignment is None
    assert torch.equal(after.probs, before.probs)
    for ours, theirs in zip(after.attention, before.attention, strict=True):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())
    assert all(torch.equal(v, weights[k]) for k, v in adapter.model.state_dict().items())
    assert adapter.native_probs(before.batch) is not None
    assert adapter.reassigned(1).native_probs(before.batch) is None


def normalised(weights):
    return weights / weights.sum() if weights.sum() > 0 else weights


@pytest.mark.parametrize("kind", zoo.daily(KINDS, zoo.FEW_ENCODERS), ids=str)
def test_a_classifier_by_hand(kind):
    """The shorter text is encoded, and its states averaged by what is left of the weights."""
    model = classifiers.make(kind[0], "additive", kind[1])
    other = wrap(model).reassigned(SEED)
    observation = observed(other, f"{kind[0]} {kind[1]}")
    model = model.double()
    base = model.attention_classifier

    def probs(ids, weights):
        states = base.encode(base.embeddings(ids[None]), torch.ones(1, len(ids)).long())
        return model.decode(normalised(weights) @ states[0]).softmax(-1)

    for row, ids in enumerate(classifiers.IDS):
        n = int((ids != 0).sum())
        given = observation.attention[0][row, 0, 0, :n]
        torch.testing.assert_close(observation.probs[row], probs(ids[:n], given))
        for place in range(1, n - 1):
            kept = torch.arange(n) != place
            expected = probs(ids[:n][kept], given[kept])
            found = observation.leave_one_out[row, place]
            torch.testing.assert_close(found, expected)


def test_a_pair_by_hand():
    model = make_pair(answers=[5, 6, 7])
    observation = observed(wrap(model).reassigned(SEED), "pair")
    hand = ByHand(model)
    for row, (first, second) in enumerate(PAIRS):
        q, candidates = hand.question(second), hand.candidates(first)
        given = observation.attention[0][row, 0, 0, 1 : len(first) + 1].numpy()
        for place in range(len(first)):
            shorter = first[:place] + first[place + 1 :]
            weights = np.delete(given, place)
            context = np.zeros(len(q))
            if shorter:
                context = weights / weights.sum() @ hand.states(shorter)
            expected = hand.decode(context, q, candidates)
            found = observation.leave_one_out[row, place + 1].numpy()
            np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("encoder", zoo.daily(["bigru", "cnn", "none"], zoo.FEW_ENCODERS))
def test_sentences_by_hand(encoder):
    """What reads the sentences runs again on those that stay."""
    model = hierarchical.make(encoder)
    observation = observed(wrap(model).reassigned(SEED), "hierarchical")
    plain = wrap(model)
    for row, text in enumerate(hierarchical.TEXTS):
        given = observation.attention[1][row, 0, 0, : len(text)]
        for place in range(len(text)):
            shorter = text[:place] + text[place + 1 :]
            if not shorter:
                expected = plain.readout_bias().softmax(-1)
            else:
                _, whole = hierarchical.observe(model, [shorter])
                kept = torch.arange(len(text)) != place
                expected = (normalised(given[kept]) @ whole.token_logits[0]).softmax(-1)
            torch.testing.assert_close(observation.leave_one_out[row, place], expected)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_transformer_by_hand(family, monkeypatch):
    """Words of pieces in padded texts; each map is cut to what stays, its rows divided by their sums."""
    observation = observed(wrap(make(family).double()).reassigned(SEED), family)
    hand = Given(family, monkeypatch)
    for row, (text, words) in enumerate(zip(TEXTS, WORDS, strict=True)):
        n = len(text)
        maps = [attention[row, :, :n, :n] for attention in observation.attention]
        torch.testing.assert_close(observation.probs[row], hand.probs(text, maps))
        for word in sorted({*words} - {-1}):
            kept = [k for k in range(n) if words[k] != word]
            cut = [m[:, kept][:, :, kept] for m in maps]
            cut = [m / m.sum(-1, keepdim=True) for m in cut]
            expected = hand.probs([text[k] for k in kept], cut)
            found = observation.leave_one_out[row, words.index(word)]
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_transformers_own_maps_are_shuffled(family):
    """Of a text, one order in all layers, heads and rows that see the same."""
    adapter = wrap(make(family, attn_implementation="eager").double())
    other = observed(adapter.reassigned(SEED), family)
    for row, text in enumerate(TEXTS):
        n = len(text)
        ids = torch.tensor([text])
        with torch.no_grad():
            own = adapter.model(input_ids=ids, output_attentions=True).attentions
        last = n - 1
        order = None
        for layer, whole in enumerate(own):
            for head in range(4):
                before, after = (whole[0, head, last], other.attention[layer][row, head, last, :n])
                near = (after[:, None] - before).abs().argmin(1)
                torch.testing.assert_close(before[near], after)
                assert order is None or torch.equal(order, near)
                order = near


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_several_stacks_are_refused(family):
    adapter = wrap(make(family))
    assert adapter.lacks(Reassignable)
    assert kind_of("auto", adapter) == "none"
    with pytest.raises(AttnProbeError, match=r"expected one stack of layers") as error:
        adapter.reassigned(0)
    assert "\n" not in str(error.value)
    assert kind_of("auto", wrap(shared("bert"))) == "reassigned"
    assert kind_of("randomised", adapter) == "randomised"
