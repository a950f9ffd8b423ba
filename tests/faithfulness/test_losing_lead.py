"""When nine tenths of a decision's lead are gone, by plain loops, all subsets and whole forward passes."""

import itertools
import math

import pytest
import torch

from adapters.families import TEXTS, WORDS, Given, encode, make
from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_model import ALL, Site
from hf_attnprobe.faithfulness.erasure import ORDER_STREAM, erasure, orders, rankings
from hf_attnprobe.faithfulness.options import Erasure
from hf_attnprobe.functional.intervention import random_permutations


N_RANDOM = 3
SITE = Site()


def is_lost(before, after):
    """Whether some rival is nearer than a tenth of its distance of before."""
    first = int(before.argmax())
    lead = (before[first] - before).tolist()
    left = (after[first] - after).tolist()
    return any(
        now < then / 10 for k, (then, now) in enumerate(zip(lead, left, strict=True)) if k != first
    )


def steps(before, after_erasing, order):
    """How many go until the lead is lost; NaN where it never is."""
    for n in range(1, len(order) + 1):
        after = after_erasing(order[:n])
        if after is not None and is_lost(before, after):
            return float(n)
    return math.nan


def random_orders(observation, row, n_random=N_RANDOM):
    """Those of the test: the places of the content, by shuffles of their own stream."""
    content = observation.batch.content_mask
    drawn = random_permutations(
        content[:, None], n_random, seed=ORDER_STREAM, example_ids=observation.batch.example_ids
    )[:, row, 0]
    places = content[row].nonzero()[:, 0].tolist()
    return [sorted(places, key=lambda p, d=d: -d[p].item()) for d in drawn]


def check(found, row, before, after_erasing, tried, best):
    """Against the fractions that the loops find; an order that never does counts as all."""
    needed = [steps(before, after_erasing, order) for order in tried]
    n = len(tried[0])
    fractions = found.fraction_to_lose_lead
    if math.isnan(best):
        assert all(values[row].isnan() for values in fractions.values())
        return False
    counted = [n if math.isnan(k) else k for k in needed]
    assert fractions["attention"][row].item() == pytest.approx(counted[0] / n)
    random = sum(counted[1:]) / len(counted[1:]) / n
    assert fractions["random"][row].item() == pytest.approx(random)
    assert fractions["best"][row].item() == pytest.approx(best / n)
    return True


@pytest.mark.parametrize("encoder", ["bilstm", "none"])
@pytest.mark.parametrize("n_labels", [2, 3])
def test_of_a_classifier(make_model, tokenizer, texts, encoder, n_labels):
    """Decodes the weighted mean of its states; the best is the smallest of all subsets."""
    model = make_model(encoder, "additive", n_labels)
    adapter = wrap(model)
    cut = [" ".join(text.split()[: 2 + k % 6]) for k, text in enumerate(texts[:20])]
    inputs = tokenizer(cut, padding=True, return_tensors="pt")
    observation = adapter.observe(adapter.prepare(inputs, tuple(range(20))))
    found = erasure(observation, SITE, Erasure(n_random=N_RANDOM))
    base, n_known = adapter.base, 0
    for row in range(20):
        n = int(inputs["attention_mask"][row].sum())
        ids = inputs["input_ids"][row : row + 1, :n]
        states = base.encode(base.embeddings(ids), torch.ones_like(ids))[0]
        given = observation.attention[0][row, 0, 0, :n]
        content = observation.batch.content_mask[row].nonzero()[:, 0].tolist()

        def after_erasing(gone, given=given, states=states):
            weights = given.clone()
            weights[list(gone)] = 0
            if weights.sum() == 0:
                return None
            return adapter.model.decode(weights / weights.sum() @ states)

        before = adapter.model.decode(given @ states)
        by_attention = sorted(content, key=lambda p: -given[p].item())
        best = min(
            (
                float(size)
                for size in range(1, len(content))
                for gone in itertools.combinations(content, size)
                if is_lost(before, after_erasing(gone))
            ),
            default=math.nan,
        )
        tried = [by_attention, *random_orders(observation, row)]
        n_known += check(found, row, before, after_erasing, tried, best)
    assert n_known > 8


@torch.no_grad()
def balanced(model):
    """The same with a bias that decides nothing: leads are of the texts."""
    logits = [model(input_ids=torch.tensor([text])).logits[0] for text in TEXTS]
    model.classifier.bias -= torch.stack(logits).mean(0)
    return model


@pytest.mark.parametrize("n_labels", [2, 3])
def test_of_a_transformer(n_labels, monkeypatch):
    """Every layer's map loses the words' columns, and the model runs on the text alone."""
    model = balanced(make("bert", num_labels=n_labels).double())
    adapter = wrap(model)
    batch = adapter.prepare(encode(adapter.model, TEXTS, WORDS), (0, 1, 2))
    observation, site = adapter.observe(batch), Site(ALL, ALL)
    found = erasure(observation, site, Erasure(n_random=N_RANDOM))
    ranked = rankings(observation, site)
    tried = orders(observation, batch.content_mask, ranked, N_RANDOM, 0)
    hand = Given("bert", monkeypatch, num_labels=n_labels)
    hand.model.load_state_dict(model.state_dict())
    n_known = 0
    for row, (text, words) in enumerate(zip(TEXTS, WORDS, strict=True)):
        n = len(text)
        maps = [attention[row, :, :n, :n] for attention in observation.attention]

        def after_erasing(gone, maps=maps, text=text, words=words):
            places = enumerate(words)
            columns = [k for k, w in places if w >= 0 and words.index(w) in gone]
            cut = [m.index_fill(-1, torch.tensor(columns), 0) for m in maps]
            cut = [m / m.sum(-1, keepdim=True) for m in cut]
            return hand.probs(text, cut).log()

        before = hand.probs(text, maps).log()
        torch.testing.assert_close(before.exp(), observation.probs[row])
        content = batch.content_mask[row]
        places = [[p for p in o.tolist() if content[p]] for o in tried[:, row]]
        needed = [steps(before, after_erasing, order) for order in places]
        best = min((k for k in needed if not math.isnan(k)), default=math.nan)
        attention = places[N_RANDOM + [*ranked].index("attention")]
        of_test = [attention, *places[:N_RANDOM]]
        n_known += check(found, row, before, after_erasing, of_test, best)
    assert n_known > 0


def test_a_target_of_several_has_no_lead(make_model, tokenizer, texts):
    adapter = wrap(make_model("mlp", "additive", 3))
    inputs = tokenizer(texts[:3], padding=True, return_tensors="pt")
    observation = adapter.observe(adapter.prepare(inputs, (0, 1, 2)))
    assert erasure(observation, SITE).fraction_to_lose_lead
    assert erasure(observation, SITE, Erasure(target=1)).fraction_to_lose_lead == {}
