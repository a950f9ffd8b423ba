"""Compare the choice of a map with loops over texts, heads and pairs of units."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.attention_map import MEAN_CANDIDATE
from hf_attnprobe.maps.selection import (
    HEADS_CANDIDATE,
    LAYER_CANDIDATE,
    TextCosts,
    list_candidates,
    measure_agreement,
    run_shuffled_control,
    split_into_folds,
    split_texts,
)
from hf_attnprobe.statistics.estimates import Estimate


# --- Splitting -----------------------------------------------------------------------------------

IDENTITIES = st.dictionaries(
    st.integers(0, 10**6), st.none() | st.integers(0, 30), min_size=1, max_size=60
)
"""Hashes of texts by id; texts with the same hash are copies."""


@given(IDENTITIES, st.floats(0.1, 0.5), st.randoms())
def test_the_parts_cover_all_texts_and_never_share_one(identities, share, random):
    choosing, certifying = split_texts(identities, share)
    assert choosing | certifying == identities.keys()
    assert not choosing & certifying
    hashes_of = [
        {identities[number] for number in part} - {None} for part in (choosing, certifying)
    ]
    assert not hashes_of[0] & hashes_of[1]
    shuffled = list(identities.items())
    random.shuffle(shuffled)
    assert split_texts(dict(shuffled), share) == (choosing, certifying)


@given(IDENTITIES, st.floats(0.1, 0.5))
def test_the_share_counts_different_texts(identities, share):
    choosing, _ = split_texts(identities, share)
    distinct = [hash_ if hash_ is not None else f"id {id_}" for id_, hash_ in identities.items()]
    of_choosing = {identities[n] if identities[n] is not None else f"id {n}" for n in choosing}
    assert abs(len(of_choosing) - share * len({*distinct})) <= 0.5


def test_the_part_of_a_text_does_not_depend_on_the_seed_or_its_neighbours():
    """With more texts, few of them change their part: the hash decides, not the position."""
    small, _ = split_texts(dict.fromkeys(range(400)), 0.25)
    large, _ = split_texts(dict.fromkeys(range(420)), 0.25)
    assert len(small - large) <= 20


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=40, unique=True))
def test_folds_cover_every_text_once(ids):
    folds = split_into_folds(ids)
    assert sorted(itertools.chain(*folds)) == [*range(len(ids))]
    assert len(folds) == min(5, len(ids))
    assert max(map(len, folds)) - min(map(len, folds)) <= 1


# --- Choosing ------------------------------------------------------------------------------------

HEADS = [(layer, head) for layer in range(3) for head in range(4)]


def draw_texts(seed, n_texts=12, *, good_heads=(), noise=0.3):
    """Draw texts whose good heads follow the costs, with noise; all other heads are random."""
    generator = np.random.default_rng(seed)
    texts = []
    for number in range(n_texts):
        n_units = int(generator.integers(5, 9))
        costs = generator.exponential(size=n_units)
        shares = generator.dirichlet(np.ones(n_units), len(HEADS))
        for head in good_heads:
            noisy = costs * np.exp(noise * generator.normal(size=n_units))
            shares[HEADS.index(head)] = noisy / noisy.sum()
        texts.append(TextCosts(number, costs, {MEAN_CANDIDATE: shares.mean(0)}, shares))
    return texts


def loop_gini(costs, scores):
    """Gini correlation as a loop over all pairs of units."""
    agreed = total = 0.0
    for i, j in itertools.combinations(range(len(costs)), 2):
        agreed += (costs[i] - costs[j]) * np.sign(scores[i] - scores[j])
        total += abs(costs[i] - costs[j])
    return agreed / total


def loop_best_heads(texts, k):
    """The k heads with the largest mean agreement."""
    means = [np.mean([loop_gini(t.costs, t.head_shares[h]) for t in texts]) for h in range(12)]
    return sorted(range(12), key=lambda h: -means[h])[:k]


@settings(max_examples=12)
@given(st.integers(0, 1000), st.integers(0, 3))
def test_k_is_chosen_by_cross_validation(seed, n_good):
    good_heads = HEADS[5 : 5 + n_good]
    texts = draw_texts(seed, 7, good_heads=good_heads, noise=1.0)
    by_count = {}
    for k in (1, 2, 4, 8):
        values = []
        for fold in split_into_folds(range(7)):
            heads = loop_best_heads([t for n, t in enumerate(texts) if n not in fold], k)
            values += [loop_gini(texts[n].costs, texts[n].head_shares[heads].mean(0)) for n in fold]
        by_count[k] = np.mean(values)
    best_k = max(by_count, key=by_count.get)
    candidates = {candidate.name: candidate for candidate in list_candidates(texts, HEADS)}
    chosen = candidates[HEADS_CANDIDATE]
    assert chosen.heads == tuple(HEADS[h] for h in loop_best_heads(texts, best_k))
    assert chosen.agreement == pytest.approx(by_count[best_k])
    assert chosen.n_tried == len(HEADS)
    mean = np.mean([loop_gini(t.costs, t.scores[MEAN_CANDIDATE]) for t in texts])
    assert candidates[MEAN_CANDIDATE].agreement == pytest.approx(mean)


def test_the_layer_is_chosen_on_other_folds_than_it_is_measured_on():
    texts = draw_texts(5, 9)
    values = []
    for fold in split_into_folds(range(9)):
        others = [text for number, text in enumerate(texts) if number not in fold]

        def agree(layer, chosen_from):
            rows = [HEADS.index((layer, head)) for head in range(4)]
            return [loop_gini(t.costs, t.head_shares[rows].mean(0)) for t in chosen_from]

        best = max(range(3), key=lambda layer: np.mean(agree(layer, others)))
        values += agree(best, [texts[number] for number in fold])
    candidates = {candidate.name: candidate for candidate in list_candidates(texts, HEADS)}
    assert candidates[LAYER_CANDIDATE].agreement == pytest.approx(np.mean(values))


def test_the_head_that_follows_the_costs_is_chosen():
    texts = draw_texts(0, good_heads=[(1, 2)])
    chosen = list_candidates(texts, HEADS)[0]
    assert (chosen.name, chosen.heads) == (HEADS_CANDIDATE, ((1, 2),))
    assert chosen.score_units(texts[0], HEADS) == pytest.approx(texts[0].head_shares[6])


def test_the_simplest_of_equal_candidates_is_chosen():
    costs = np.array([3.0, 1.0, 0.0])
    scores = {"attention": np.array([0.6, 0.3, 0.1]), "rollout": costs}
    texts = [TextCosts(number, costs, scores) for number in range(6)]
    assert [candidate.name for candidate in list_candidates(texts)] == ["attention", "rollout"]
    better = {"attention": -costs, "rollout": costs}
    texts = [TextCosts(number, costs, better) for number in range(6)]
    assert list_candidates(texts)[0].name == "rollout"


def choose_by_faithfulness(**values):
    """The name that is chosen if each ranking has this faithfulness, and attention agrees best."""
    costs = np.array([3.0, 1.0, 0.0])
    scores = {name: costs if name == "attention" else -costs for name in values}
    texts = [TextCosts(number, costs, scores) for number in range(6)]
    estimates = {name: Estimate(value, None, 6) for name, value in values.items()}
    return list_candidates(texts, faithfulness=estimates)[0].name


def test_faithfulness_decides_before_agreement():
    assert choose_by_faithfulness(attention=0.5, product=0.61) == "product"
    assert choose_by_faithfulness(attention=0.605, product=0.61) == "attention"
    assert choose_by_faithfulness(attention=float("nan"), product=-0.1) == "product"


def test_texts_whose_costs_are_equal_do_not_count():
    flat = TextCosts(99, np.zeros(4), {"attention": np.arange(4.0)})
    single = TextCosts(98, np.ones(1), {"attention": np.ones(1)})
    assert not flat.has_order and not single.has_order
    texts = draw_texts(1)
    with_flat = [replace_shares(text) for text in [*texts, flat, single]]
    without = [replace_shares(text) for text in texts]
    assert list_candidates(with_flat) == list_candidates(without)
    assert measure_agreement(without, [t.costs for t in without]) == pytest.approx(1)


def replace_shares(text):
    return TextCosts(text.example_id, text.costs, text.scores)


# --- Control -------------------------------------------------------------------------------------


def test_shuffled_costs_achieve_nothing_even_if_a_head_follows_the_costs():
    choosing = draw_texts(2, 12, good_heads=[(0, 1)])
    certifying = draw_texts(3, 24, good_heads=[(0, 1)])
    chosen = list_candidates(choosing, HEADS)[0]
    scores = [chosen.score_units(text, HEADS) for text in certifying]
    assert measure_agreement(certifying, scores) > 0.8
    control = run_shuffled_control(choosing, certifying, HEADS, n_runs=20, threshold=0.65, seed=0)
    assert control.n_runs == 20
    assert control.n_passing == 0
    assert abs(control.mean) < 0.1
    assert control.largest < 0.5


def test_the_control_notices_a_map_that_passes_by_chance():
    """With a threshold below the agreement of chance, repetitions are counted as passing."""
    texts = draw_texts(4, 10)
    control = run_shuffled_control(texts, texts, HEADS, n_runs=5, threshold=-2.0, seed=0)
    assert control.n_passing == 5
