"""Compare the erasure test with plain loops, scipy, brute force, and replays of single texts."""

import functools
import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.spatial.distance import jensenshannon

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.erasure import (
    ERASURE_SEED_OFFSET,
    compute_rankings,
    draw_other_positions,
    erasure,
)
from hf_attnprobe.faithfulness.options import Erasure
from hf_attnprobe.faithfulness.rankings import compute_ranking, compute_site_attention
from hf_attnprobe.functional.intervention import draw_permutations
from hf_attnprobe.protocol import ALL, HEAD_SET, Site
from hf_attnprobe.storage.rows import collect_statistics
from tests.helpers import tiny_models
from tests.helpers.adapter_families import TEXTS, WORDS, encode, make, prepare


SITE = Site()
CELLS = ("only_top_flips", "only_random_flips", "both_flip", "neither_flips")


def make_decoder(adapter, observation, row):
    """The logits of an attention over the words of one text, through the context vector, and how many words there are."""
    words = observation.batch.content_mask[row]
    states = observation.state.states[row].detach()[words]
    return lambda attention: adapter.model.decode(attention @ states), words


def divide_by_sum(attention, renormalise):
    total = attention.sum()
    return attention / total if renormalise and total > 0 else attention


def has_flipped(before, after):
    return bool(after.argmax() != before.argmax())


def has_lost_margin(before, after):
    """Whether some rival is nearer than a tenth of its distance of before."""
    first = before.argmax()
    nearer = (after[first] - after) < (before[first] - before) / 10
    return bool(nearer[torch.arange(len(after)) != first].any())


def compute_erased_fraction(
    decode, attention, order, happens=has_flipped, *, renormalise=True, all_zero=False
):
    """The paper's loop: one decode per removal."""
    before, weights = decode(attention), attention.clone()
    for n, place in enumerate(order, start=1):
        weights[place] = 0
        weights = divide_by_sum(weights, renormalise)
        if (all_zero or weights.sum() > 0) and happens(before, decode(weights)):
            return n / len(attention)
    return math.nan


def assert_all_close(result, expected):
    return float(result) == pytest.approx(float(expected), abs=1e-9, nan_ok=True)


def sentences(*_):
    """Of a hierarchical model the weights are those of sentences, here of one to seven of them; the last has one."""
    sizes = {"embedding_size": 8, "encoder_size": 6, "sep_token_id": 4, "num_labels": 3}
    model = tiny_models.classifier(30, read_out=20, encoder="bigru", hierarchical=True, **sizes)
    ids = torch.randint(5, 30, (8, 24))
    ids[:, 0], ids[:, 3:22:3], ids[:, -1] = 2, 4, 3
    for row, n in enumerate((22, 19, 16, 13, 10, 7, 4)):
        ids[row + 1, n - 1], ids[row + 1, n:] = 3, 0
    return tiny_models.seen(model, ids)


BY_LOOP = [
    (sentences, {}),
    (("bilstm", "additive", 2), {}),
    (("bilstm", "additive", 2), {"all_zero": True}),
    (("mlp", "dot_product", 4), {}),
    (("mlp", "dot_product", 4), {"renormalise": False}),
    (("cnn", "additive", 4), {"renormalise": False}),
]


@pytest.mark.parametrize(
    ("kind", "rules"), BY_LOOP, ids=lambda given: getattr(given, "__name__", str(given))
)
def test_rankings_of_a_classifier_go_as_in_the_papers_loop(observe, kind, rules):
    adapter, observation = kind() if kind is sentences else observe(*kind)
    (site,) = adapter.sites()
    result = erasure(observation, site, Erasure(**rules), seed=3)
    ids, content = observation.batch.example_ids, observation.batch.content_mask
    shuffled = draw_permutations(
        content[:, None], 5, seed=3 + ERASURE_SEED_OFFSET, example_ids=ids
    )[:, :, 0]
    for row in range(len(ids) - 1):
        decode, words = make_decoder(adapter, observation, row)
        attention = observation.read(site)[row, words]
        leaf = attention.clone().requires_grad_()
        (slope,) = torch.autograd.grad(decode(leaf).softmax(-1).max(), leaf)
        assert torch.allclose(
            observation.attention_gradient[site.layer][row, 0, 0, words], slope, atol=1e-12
        )
        scores = {
            "attention": attention,
            "gradient": slope,
            "product": attention * slope,
            "leave_one_out": observation.compute_leave_one_out_importance()[row, words],
            "input_gradient": observation.compute_gradient_importance()[row, words],
        }
        assert scores.keys() | {"random", "margin"} == result.fraction_to_flip.keys()
        smallest = find_smallest_by_brute_force(decode, attention, **rules)
        nothing_flips = math.isnan(smallest)
        assert result.no_set_flips[row] == float(nothing_flips)
        assert assert_all_close(result.minimal_size[row], smallest)
        assert assert_all_close(result.minimal_fraction[row], smallest / len(attention))

        def counted(fraction, nothing_flips=nothing_flips):
            never_as_all = 1.0 if math.isnan(fraction) else fraction
            return math.nan if nothing_flips else never_as_all

        orders = [drawn[row, words].argsort(descending=True).tolist() for drawn in shuffled]
        draws = [compute_erased_fraction(decode, attention, order, **rules) for order in orders]
        never = math.nan if nothing_flips else np.isnan(draws).mean()
        assert assert_all_close(result.never_flips["random"][row], never)
        random = np.mean([counted(draw) for draw in draws])
        assert assert_all_close(result.fraction_to_flip["random"][row], random)
        for name, values in scores.items():
            order = values.argsort(descending=True).tolist()
            expected = compute_erased_fraction(decode, attention, order, **rules)
            never = math.nan if nothing_flips else float(math.isnan(expected))
            assert assert_all_close(result.never_flips[name][row], never), (row, name)
            expected = counted(expected)
            assert assert_all_close(result.fraction_to_flip[name][row], expected), (row, name)
            way, regret = math.nan, math.nan
            if not nothing_flips:
                n_removed = round(expected * len(order))
                mass, regret = attention[order[:n_removed]].sum(), n_removed - smallest
                if random > smallest / len(order) + 1e-9:
                    way = (random - expected) / (random - smallest / len(order))
            else:
                mass = math.nan
            assert assert_all_close(result.probability_mass_removed[name][row], mass)
            assert assert_all_close(result.regret[name][row], regret)
            assert assert_all_close(result.way_to_best[name][row], way)
        if not rules:
            least = find_smallest_by_brute_force(decode, attention, has_lost_margin)
            tried = [attention.argsort(descending=True).tolist(), *orders]
            needed = [
                compute_erased_fraction(decode, attention, order, has_lost_margin)
                for order in tried
            ]
            check_margin_loss(result, row, needed[0], needed[1:], least / len(attention))
    everything = collect_statistics(result)
    assert all(values[-1].isnan() for values in everything.values())  # one word
    assert (result.never_flips["attention"][:-1] == 0).sum() > 0
    margin = result.fraction_to_flip["margin"].nan_to_num()
    assert torch.equal(margin, result.minimal_fraction.nan_to_num())


def check_margin_loss(result, row, attention, random, best):
    """Against the shares that loops find; an order that never gets there counts as all."""
    expected = dict.fromkeys(("attention", "random", "best"), math.nan)
    if not math.isnan(best):
        attention, *random = np.nan_to_num([attention, *random], nan=1.0)
        expected = {"attention": attention, "random": np.mean(random), "best": best}
    for name, share in expected.items():
        assert assert_all_close(result.fraction_to_lose_lead[name][row], share), (row, name)
    assert result.lead_is_lost[row] == float(not math.isnan(best))


def find_smallest_by_brute_force(
    decode, attention, happens=has_flipped, renormalise=True, all_zero=False
):
    """Over all subsets."""
    kept = torch.tensor(
        list(itertools.product([0.0, 1.0], repeat=len(attention))), dtype=torch.float64
    )[1:]
    weights = kept * attention
    logits = decode(weights / weights.sum(-1, keepdim=True) if renormalise else weights)
    before = decode(attention)
    flipping = torch.tensor([happens(before, after) for after in logits])
    sizes = (len(attention) - kept[flipping].sum(-1)).tolist()
    if all_zero and decode(attention * 0).argmax() != decode(attention).argmax():
        sizes.append(len(attention))
    return min(sizes, default=math.nan)


SPARSE_TEXTS = (
    [2, 9, 6, 41, 9, 7, 3],
    [2, 8, 5, 8, 8, 3],
    [2, 7, 7, 7, 3],
    [2, 11, 12, 13, 14, 15, 16, 3],
    [2, 33, 12, 33, 9, 9, 3],
    [2, 5, 3],
)
"""Texts in which words are repeated; all words of the third are the same."""


@pytest.mark.parametrize("bias", [0.0, 40.0])
@pytest.mark.parametrize("n_labels", [2, 4])
def test_the_last_step_counts_if_weights_of_exactly_0_remain(n_labels, bias):
    """As in models with sparse attention: without the last positive weight there is no attention.

    It does not count in texts without such weights, which would be erased as a whole, or if the
    model decides alike without any attention, as by a large bias.
    """
    sizes = {"read_out": 30, "query": 1e5, "encoder": "none", "num_labels": n_labels}
    model = tiny_models.classifier(60, attention="dot_product", **sizes).double()
    with torch.no_grad():
        model.classifier.bias[0] = bias
    adapter = wrap(model)
    batch = adapter.prepare(tiny_models.encoded(SPARSE_TEXTS), range(50, 50 + len(SPARSE_TEXTS)))
    observation = adapter.observe(batch)
    result = erasure(observation, SITE, seed=3)
    shuffled = draw_permutations(
        observation.batch.content_mask[:, None],
        5,
        seed=3 + ERASURE_SEED_OFFSET,
        example_ids=observation.batch.example_ids,
    )[:, :, 0]
    n_counted = 0
    for row in range(len(SPARSE_TEXTS) - 1):
        decode, words = make_decoder(adapter, observation, row)
        attention = observation.read(SITE)[row, words]
        n_positive = int((attention > 0).sum())
        has_zeros = n_positive < len(attention)
        assert has_zeros == (row != 2) and n_positive in (1, 2, 3)
        is_lost = has_lost_margin(decode(attention), decode(0 * attention))
        best = find_smallest_by_brute_force(decode, attention, has_lost_margin)
        if has_zeros and is_lost:
            best = np.nanmin([best, n_positive])
            n_counted += 1
        orders = [
            attention.argsort(descending=True, stable=True).tolist(),
            *(drawn[row, words].argsort(descending=True).tolist() for drawn in shuffled),
        ]
        needed = [
            compute_erased_fraction(
                decode, attention, order, has_lost_margin, all_zero=has_zeros and is_lost
            )
            for order in orders
        ]
        check_margin_loss(result, row, needed[0], needed[1:], best / len(attention))
    assert n_counted == 0 if bias else n_counted > 0


def test_product_and_margins_differ_by_the_bias_alone(observe):
    adapter, observation = observe()
    adapter.model.classifier.bias.data.fill_(4.0)
    taus = {}
    for bias in (4.0, 0.0):
        adapter.model.classifier.bias.data.fill_(bias)
        again = adapter.observe(observation.batch)
        taus[bias] = erasure(again, SITE).product_margin_tau[:-1]
        left = erasure(again, SITE, Erasure(renormalise=False)).product_margin_tau[:-1]
        assert torch.allclose(left, torch.ones_like(left))
    assert torch.allclose(taus[0.0], torch.ones_like(taus[0.0])) and taus[4.0].min() < 0.99


@pytest.mark.parametrize("n_labels", [2, 4])
@pytest.mark.parametrize(
    ("draw", "divide"), [("uniform", True), ("released", True), ("uniform", False)]
)
def test_single_weights_against_scipy(observe, n_labels, draw, divide):
    adapter, observation = observe("bilstm", "additive", n_labels)
    result = erasure(observation, SITE, Erasure(draw=draw, renormalise=divide), seed=2)
    attention, content = observation.read(SITE), observation.batch.content_mask
    top = attention.argmax(-1)
    other = draw_other_positions(
        top, content, draw, seed=2, example_ids=observation.batch.example_ids
    )
    for row in range(len(top) - 1):
        decode, words = make_decoder(adapter, observation, row)
        before = decode(attention[row, words])

        def moved(place, renormalise=divide, row=row, words=words, decode=decode, before=before):
            weights = attention[row].clone()
            weights[place] = 0
            after = decode(divide_by_sum(weights[words], renormalise))
            p, q = before.softmax(-1).numpy(), after.softmax(-1).numpy()
            return jensenshannon(p, q) ** 2, float(after.argmax() != before.argmax())

        (js_top, flip_top), (js_other, flip_other) = moved(top[row]), moved(other[row])
        assert assert_all_close(result.delta_js[row], js_top - js_other)
        unnormalised = moved(top[row], False)[0] - moved(other[row], False)[0]
        assert assert_all_close(result.delta_js_unnormalised[row], unnormalised)
        assert assert_all_close(
            result.delta_attention[row], attention[row, top[row]] - attention[row, other[row]]
        )
        assert (result.top_flips[row], result.random_flips[row]) == (flip_top, flip_other)
        cells = [getattr(result, name)[row] for name in CELLS]
        pair = (flip_top, flip_other)
        assert cells == [pair == (1, 0), pair == (0, 1), pair == (1, 1), pair == (0, 0)]
        others = [moved(place)[0] for place in words.nonzero()[:, 0].tolist() if place != top[row]]
        assert assert_all_close(result.delta_js_expected[row], js_top - np.mean(others))
        assert result.top_moves_most[row] == float(js_top >= max(others))


def test_draws():
    """Texts of two to seven words behind a start token, 3,000 ids each."""
    ids, top_place = range(3000), 2
    for length in (2, 4, 7):
        content = torch.zeros(len(ids), 10, dtype=torch.bool)
        content[:, 1 : length + 1] = True
        top = torch.full((len(ids),), min(top_place, length))
        uniform, released = (
            draw_other_positions(top, content, draw, seed=1, example_ids=ids)
            for draw in ("uniform", "released")
        )
        counts = np.bincount(uniform, minlength=10)
        assert counts[top[0]] == 0 and counts[[0, *range(length + 1, 10)]].sum() == 0
        possible = [k for k in range(1, length + 1) if k != top[0]]
        assert len(possible) == 1 or scipy.stats.chisquare(counts[possible]).pvalue > 1e-3
        counts = np.bincount(released, minlength=10)
        assert counts[[0, 1, *range(length + 1, 10)]].sum() == 0  # never the first word
        assert counts[top[0]] > 0
        assert length == 2 or scipy.stats.chisquare(counts[2 : length + 1]).pvalue > 1e-3


def test_constant_attention(observe):
    """All orders by attention are those from left to right; the largest weight is no larger than the other."""
    adapter, observation = observe("mlp", "uniform")
    result = erasure(observation, SITE)
    assert result.delta_attention[:-1].abs().max() < 1e-12
    for row in range(len(observation.probs) - 1):
        decode, words = make_decoder(adapter, observation, row)
        attention = observation.read(SITE)[row, words]
        assert assert_all_close(
            result.minimal_size[row], find_smallest_by_brute_force(decode, attention)
        )
        expected = compute_erased_fraction(decode, attention, range(len(attention)))
        if math.isnan(expected) and result.no_set_flips[row] == 0:
            expected = 1.0
        assert assert_all_close(result.fraction_to_flip["attention"][row], expected)


def test_a_weight_of_one_leaves_nothing(observe):
    """All attention on one word: without it nothing is left to decide on, unless the bias counts."""
    adapter, observation = observe()
    attention = observation.attention[0]
    attention.zero_()[:, 0, 0, 1] = 1
    adapter.model.classifier.bias.data.fill_(-50.0)
    result = erasure(observation, SITE)
    assert result.delta_js.isnan().all() and result.top_flips.isnan().all()
    assert (result.no_set_flips[:-1] == 1).all() and result.delta_js_unnormalised.isnan().all()
    counted = erasure(observation, SITE, Erasure(all_zero=True))
    assert not counted.delta_js[:-1].isnan().any()
    assert not counted.delta_js_expected[:-1].isnan().any()
    assert result.delta_js_expected.isnan().all() and result.top_moves_most.isnan().all()
    flips = observation.probs.argmax(-1)[:-1] == 1
    assert torch.equal(counted.top_flips[:-1], flips.double())


# --- heads --------------------------------------------------------------------------------------------------------


def count_removals_with_replays(
    adapter, alone, site, order, pieces, *, renormalise=True, all_zero=False
):
    """One full replay per removal for a single text: removals until the decision flips, and until its lead is lost.

    Args:
        pieces: by layer, the positions of each unit.
    """
    members, result = (
        adapter.get_heads_by_layer(site),
        dict.fromkeys((has_flipped, has_lost_margin), math.nan),
    )
    edited = {layer: alone.attention[layer].clone() for layer in members}
    for n, unit in enumerate(order, start=1):
        left = 0
        for layer, heads in members.items():
            for head in heads:
                weights = edited[layer][0, head]
                for row in weights.unbind() if site.query is None else [weights[site.query]]:
                    row[pieces[layer][unit]] = 0
                    if renormalise and row.sum() > 0:
                        row /= row.sum()
                own = Site(layer, head, site.query)
                left += adapter.select_row(alone, edited[layer][:, head], own).sum()
        after = adapter.replay(alone, {layer: own[None] for layer, own in edited.items()})[0, 0]
        for happens, before in result.items():
            is_new = math.isnan(before) and (all_zero or left > 0)
            if is_new and happens(alone.probs[0].log(), after.log()):
                result[happens] = n
        if not any(map(math.isnan, result.values())):
            break
    return result.values()


def average_over_rows(observation, site):
    """Attention to each word, averaged over the rows that can reach the output and over a group's heads.

    Heads of a group count by what their patterns write in these rows.
    """
    if site.query is not None:
        return observation.read(site)
    adapter, maps, amounts = observation.model, [], []
    for layer, heads in adapter.get_heads_by_layer(site).items():
        reaching = observation.find_effective_queries(layer).double()
        for head in heads:
            own = observation.attention[layer][:, head]
            by_query = [
                adapter.select_row(observation, own, Site(layer, head, query))
                for query in range(own.shape[1])
            ]
            counted = torch.stack(by_query, 1) * reaching[..., None]
            maps.append(counted.sum(1) / reaching.sum(1, keepdim=True))
            written = observation.pattern_norms[layer][:, head] * reaching
            amounts.append(written.sum(1) / reaching.sum(1))
    if len(maps) == 1:
        return maps[0]
    total = sum(amounts)
    is_written = total > 0
    shares = [torch.where(is_written, own / total, 1 / len(maps)) for own in amounts]
    return sum(share[:, None] * own for share, own in zip(shares, maps, strict=True))


SITES = [
    ("bert", Site(0, 1), {}),
    ("bert", Site(2, 0), {"renormalise": False}),
    ("bert", Site(2, 0, 0), {}),
    ("gpt2", Site(0, 2), {"all_zero": True}),
    ("t5", Site(2, 1), {}),
    ("bert", Site(1, ALL), {}),
    ("bert", Site(ALL, ALL), {}),
    ("bert", Site(HEAD_SET, 0), {}),
    ("gpt2", Site(ALL, ALL), {}),
]


def long_texts():
    """Eight texts of one to seven words, some of several pieces, and their words."""
    random = np.random.default_rng(3)
    return tuple(
        [3, *random.integers(5, 60, n).tolist(), 2] for n in (7, 5, 6, 3, 4, 7, 1, 2)
    ), tuple(
        [-1, *sorted(random.integers(0, 1 + n // 2 * 2, n).tolist()), -1]
        for n in (7, 5, 6, 3, 4, 7, 1, 2)
    )


@pytest.mark.parametrize(("family", "site", "rules"), SITES, ids=str)
def test_heads_and_groups_against_single_replays(family, site, rules):
    """A group loses a word in all its heads."""
    adapter, observation = observed(family)
    adapter.head_sets = [[Site(0, 1), Site(2, 0), Site(2, 3)]]
    texts, words = long_texts()
    result = erasure(observation, site, Erasure(n_random=2, **rules))
    content, n_flips = observation.batch.content_mask, 0
    scores = compute_rankings(observation, site)
    orders = draw_permutations(
        content[:, None], 2, seed=ERASURE_SEED_OFFSET, example_ids=range(len(texts))
    )
    scores_of_all = {**scores, 0: orders[0, :, 0], 1: orders[1, :, 0]}
    attention = average_over_rows(observation, site)
    assert torch.allclose(compute_site_attention(observation, site)[content], attention[content])
    for row, text in enumerate(texts):
        inputs = encode(adapter.model, (text,), (words[row],))
        alone = adapter.observe(adapter.prepare(inputs, (row,)))
        places = content[row].nonzero()[:, 0].tolist()
        if len(places) < 2:
            assert all(values[row].isnan() for values in collect_statistics(result).values())
            continue
        units, pieces = alone.batch.inputs["units"][0].tolist(), {}
        for layer in adapter.get_heads_by_layer(site):
            shift = adapter.layers[layer].kind == "decoder"
            n_keys = len(units)
            pieces[layer] = {
                u: [k + shift for k, own in enumerate(units) if own == u and k + shift < n_keys]
                for u in places
            }
        expected, lost = {}, {}
        for name, values in scores_of_all.items():
            order = sorted(places, key=lambda u, v=values[row]: (-v[u].item(), u))
            needed = count_removals_with_replays(adapter, alone, site, order, pieces, **rules)
            expected[name], lost[name] = needed
        lost = {name: n / len(places) for name, n in lost.items()}
        best = min((share for share in lost.values() if share == share), default=math.nan)
        check_margin_loss(result, row, lost["attention"], [lost[0], lost[1]], best)
        flipping = [n for n in expected.values() if not math.isnan(n)]
        best = min(flipping, default=math.nan)
        assert assert_all_close(result.greedy_bound_size[row], best)
        assert result.no_order_flips[row] == float(not flipping)
        all_of = len(places) if flipping else math.nan
        never = {k: float(math.isnan(n)) for k, n in expected.items()}
        counted = {k: all_of if never[k] else n for k, n in expected.items()}
        counted["random"] = (counted.pop(0) + counted.pop(1)) / 2
        never["random"] = (never.pop(0) + never.pop(1)) / 2
        for name, n_removed in counted.items():
            share = result.fraction_to_flip[name][row]
            assert assert_all_close(share, n_removed / len(places)), (row, name)
            if flipping:
                assert result.never_flips[name][row] == never[name]
            if name != "random" and flipping and counted["random"] > best:
                way = (counted["random"] - n_removed) / (counted["random"] - best)
                assert assert_all_close(result.way_to_best_tried[name][row], way)
        n_flips += len(flipping)
        single = erasure(alone, site, Erasure(n_random=2, **rules))
        for name, value in collect_statistics(single).items():
            assert assert_all_close(
                value[0].float(), collect_statistics(result)[name][row].float()
            ), name
    assert n_flips > 3 and result.minimal_size is None


@functools.cache
def make_undecided_model(family):
    """A model that is hardly decided between its classes, so that some of its heads decide."""
    model = make(family, num_labels=5)
    with torch.no_grad():
        adapter = wrap(model)
        texts, words = long_texts()
        modules = dict(model.named_modules())
        names = ("classifier", "score", "classification_head.out_proj")
        head = next(modules[name] for name in names if name in modules)
        logits = adapter.compute_logits(prepare(adapter, texts, words).inputs)
        if head.bias is not None:
            head.bias -= logits.mean(0)
    return model


def test_pieces_of_a_word_go_together():
    adapter = wrap(make("bert"))
    observation = adapter.observe(prepare(adapter, TEXTS, WORDS))
    units = torch.zeros_like(observation.batch.content_mask)
    units[0, 5], units[1, 1], units[2, 3] = True, True, True
    places = adapter.get_unit_positions(observation, 0, torch.stack([units, ~units]))
    assert [row.nonzero()[:, 0].tolist() for row in places[0]] == [[5, 6, 7], [1, 2], [3]]
    assert torch.equal(places[1], ~places[0])


# --- rows and groups ----------------------------------------------------------------------------------------------


def observed(family):
    adapter = wrap(make_undecided_model(family), dtype=torch.float64)
    return adapter, adapter.observe(prepare(adapter, *long_texts()))


def compute_column_slopes(adapter, observation, site):
    """By finite differences, layer by layer: the predicted class's probability by each word's columns, [batch, keys]."""
    step, content = 1e-5, observation.batch.content_mask
    predicted = observation.probs.argmax(-1, keepdim=True)
    slopes = torch.zeros(content.shape, dtype=torch.float64)
    for place in range(content.shape[1]):
        unit = torch.zeros_like(content)
        unit[:, place] = content[:, place]
        for layer, heads in adapter.get_heads_by_layer(site).items():
            columns = adapter.get_unit_positions(observation, layer, unit[None])[0]
            probs = []
            for sign in (1, -1):
                attention = observation.attention[layer].clone()
                attention[:, heads] *= 1 + sign * step * columns[:, None, None]
                after = adapter.replay(observation, {layer: attention[None]})[0]
                probs.append(after.gather(-1, predicted)[:, 0])
            slopes[:, place] += (probs[0] - probs[1]) / (2 * step)
    return slopes


@pytest.mark.parametrize("site", [Site(0, 1), Site(1, ALL), Site(ALL, ALL)], ids=str)
def test_the_product_is_what_erasing_the_columns_changes_to_first_order(site):
    adapter, observation = observed("bert")
    slopes = compute_column_slopes(adapter, observation, site)
    ranks = compute_rankings(observation, site)["product"]
    n_pairs = 0
    for row, words in enumerate(observation.batch.content_mask):
        order = ranks[row, words].argsort()
        in_order = slopes[row, words][order]
        assert (in_order.diff() > -1e-8).all(), row
        n_pairs += len(order) - 1
    assert n_pairs > 10 and slopes.abs().max() > 1e-4


def test_a_target_of_several_has_no_lead(observe):
    _, observation = observe("mlp", "additive", 3)
    assert erasure(observation, SITE, Erasure(target=1)).fraction_to_lose_lead == {}


def test_which_rankings_a_group_has():
    adapter, observation = observed("bert")
    adapter.head_sets = [[Site(0, 1), Site(2, 0)]]
    common = {"attention", "gradient", "product", "leave_one_out", "input_gradient"}
    names = {
        site: compute_rankings(observation, site).keys() - common
        for site in (Site(0, 1), Site(1, ALL), Site(ALL, ALL), Site(HEAD_SET, 0))
    }
    assert list(names.values()) == [
        {"effective_attention", "norm_based"},
        {"rollout"},  # the mean over a layer's heads is its attention
        {"rollout", "last_layer"},
        set(),
    ]
    content = observation.batch.content_mask
    last = compute_ranking(observation, Site(2, ALL), "attention") * content
    assert torch.equal(compute_rankings(observation, Site(ALL, ALL))["last_layer"] * content, last)
    eye = total = torch.eye(content.shape[1], dtype=torch.float64)
    for attention in observation.attention:
        total = (attention.mean(1) + eye) / 2 @ total
    of_cls, units = total[:, 0], observation.batch.inputs["units"]
    of_words = torch.zeros_like(of_cls).scatter_add_(1, units, of_cls)
    ranks = compute_rankings(observation, Site(ALL, ALL))["rollout"]
    for row, own in enumerate(content):
        assert torch.equal(ranks[row, own].argsort(), of_words[row, own].argsort())
    _t5, decoding = observed("t5")
    assert "rollout" not in compute_rankings(decoding, Site(ALL, ALL))  # it joins two stacks
