"""Metrics of the scoreboard against loops over texts and words, and its evaluation of metrics."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import kendalltau, linregress

from benchmarks.truth import aggregations, scoreboard
from benchmarks.truth.kinds import CONSTRUCTED, KINDS, MIXTURES
from benchmarks.truth.measure import rows_of, texts_of
from benchmarks.truth.nuisances import NUISANCES
from benchmarks.truth.perturbation_metrics import (
    N_SOFT_DRAWS,
    compute_mean_word,
    draw_vector_masks,
    group_words,
    measure_road,
    measure_saco,
    measure_soft_metrics,
)
from benchmarks.truth.test_truth import without
from hf_attnprobe.faithfulness.exchange import draw_replacements, measure_output_change
from hf_attnprobe.faithfulness.rankings import compute_ranking
from hf_attnprobe.faithfulness.scale import list_rankings
from hf_attnprobe.protocol import Site


SEED = 3
TOP_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)


@pytest.fixture(scope="module")
def short():
    """Texts with 3 to 5 words that all state a class, and the statistics of an audit."""
    kind = replace(KINDS["retrieval"], lengths=(3, 5), logit=2.0, score_noise=1.0, others=1.0)
    model, batch = kind.draw("short", seed=1, n_texts=30)
    texts = texts_of(rows_of(model, batch, seed=SEED))
    observation = model.observe(batch)
    attention = observation.read(Site())
    predicted = observation.probs.argmax(-1).tolist()
    return SimpleNamespace(**locals())


def list_words(data, text):
    """Attention and logits of each word in a text, and what bypasses attention."""
    n = int(data.batch.mask[text].sum())
    attention = data.attention[text, :n].numpy()
    values = data.batch.inputs["value"][text, :n].numpy()
    rest = data.batch.inputs["rest"][text, :n].numpy().sum(0)
    return attention, values, rest


def softmax(logits):
    odds = np.exp(logits - np.max(logits))
    return odds / odds.sum()


def predict_without(data, text, removed):
    """Probabilities without some words, whose rows are taken out by hand."""
    if len(removed) == int(data.batch.mask[text].sum()):
        return np.full(2, 0.5)
    return data.model.observe(without(data.batch, text, set(removed))).probs[0].numpy()


def order_by_attention(data, text):
    return np.argsort(-list_words(data, text)[0], kind="stable").tolist()


# --- Published metrics -------------------------------------------------------------------------


def test_tau_with_leave_one_out_is_kendalls_tau_with_output_changes(short):
    values = short.texts.get_values("attention_leave_one_out_tau")
    for text in range(30):
        attention, _, _ = list_words(short, text)
        before = short.observation.probs[text].numpy()
        changes = [
            np.abs(predict_without(short, text, [word]) - before).sum() / 2
            for word in range(len(attention))
        ]
        assert values[text] == pytest.approx(kendalltau(attention, changes).statistic, abs=1e-9)


def test_tau_with_gradients_is_kendalls_tau_with_slopes(short):
    values = short.texts.get_values("attention_gradient_tau")
    for text in range(30):
        attention, vectors, rest = list_words(short, text)
        slopes = []
        for word in range(len(attention)):
            ends = []
            for factor in (1 - 1e-4, 1 + 1e-4):
                scaled = vectors.copy()
                scaled[word] *= factor
                ends.append(softmax(attention @ scaled + rest)[short.predicted[text]])
            slopes.append(abs(ends[1] - ends[0]))
        assert values[text] == pytest.approx(kendalltau(attention, slopes).statistic, abs=1e-9)


def test_median_output_change_is_in_the_middle_of_all_permutations(short):
    values = short.texts.get_values("median_tvd")
    for text in range(30):
        attention, vectors, rest = list_words(short, text)
        before = softmax(attention @ vectors + rest)
        changes = [
            np.abs(softmax(np.array(shuffled) @ vectors + rest) - before).sum() / 2
            for shuffled in itertools.permutations(attention)
        ]
        low, high = np.quantile(changes, [0.3, 0.7], method="nearest")
        assert low - 1e-9 <= values[text] <= high + 1e-9


def test_epsilon_max_jsd_is_the_largest_at_the_corners_of_the_allowed_weights(short):
    """With two classes, the corners have at most two positive weights."""
    values = short.texts.get_values("epsilon_max_jsd@0.01")
    for text in range(30):
        attention, vectors, rest = list_words(short, text)
        margins = np.diff(vectors + rest)[:, 0]
        p = softmax(attention @ vectors + rest)[1]
        low, high = (math.log(q / (1 - q)) for q in (p - 0.01, p + 0.01))
        n = len(attention)
        corners = [np.eye(n)[word] for word in range(n) if low <= margins[word] <= high]
        for first, second in itertools.permutations(range(n), 2):
            for bound in (low, high):
                if margins[first] < bound < margins[second]:
                    share = (bound - margins[first]) / (margins[second] - margins[first])
                    corners.append((1 - share) * np.eye(n)[first] + share * np.eye(n)[second])
        largest = max(compute_jsd(attention, corner) for corner in corners)
        assert values[text] == pytest.approx(largest, abs=1e-6)


def compute_jsd(first, second):
    middle = (first + second) / 2
    return sum(
        sum(a * math.log(a / m) for a, m in zip(weights, middle, strict=True) if a > 0) / 2
        for weights in (first, second)
    )


def test_fraction_to_flip_by_erasing_one_weight_after_the_other(short):
    values = short.texts.get_values("fraction_to_flip@attention")
    n_compared = 0
    for text in np.flatnonzero(~np.isnan(values)).tolist():
        attention, vectors, rest = list_words(short, text)
        n = len(attention)
        fraction = 1.0
        kept = attention.copy()
        for step, word in enumerate(order_by_attention(short, text)[:-1], start=1):
            kept[word] = 0
            logits = kept / kept.sum() @ vectors + rest
            if logits.argmax() != short.predicted[text]:
                fraction = step / n
                break
        assert values[text] == pytest.approx(fraction)
        n_compared += 1
    assert n_compared >= 10


def test_comprehensiveness_and_sufficiency_by_removing_words(short):
    comprehensiveness = short.texts.get_values("comprehensiveness@attention")
    sufficiency = short.texts.get_values("sufficiency@attention")
    for text in range(30):
        order, predicted = order_by_attention(short, text), short.predicted[text]
        before = float(short.observation.probs[text, predicted])
        counts = [max(math.ceil(share * len(order)), 1) for share in TOP_SHARES]
        without_top = [predict_without(short, text, order[:k])[predicted] for k in counts]
        only_top = [predict_without(short, text, order[k:])[predicted] for k in counts]
        assert comprehensiveness[text] == pytest.approx(before - np.mean(without_top))
        assert sufficiency[text] == pytest.approx(before - np.mean(only_top))


def test_normalised_aopc_against_all_orders(short):
    values = short.texts.get_values("naopc_comprehensiveness@attention")
    for text in range(30):
        order, predicted = order_by_attention(short, text), short.predicted[text]
        n, before = len(order), float(short.observation.probs[text, predicted])

        losses = {
            frozenset(removed): before - predict_without(short, text, removed)[predicted]
            for size in range(1, n + 1)
            for removed in itertools.combinations(range(n), size)
        }

        def average_loss(removal_order, losses=losses, n=n):
            return np.mean([losses[frozenset(removal_order[:k])] for k in range(1, n + 1)])

        every_aopc = [average_loss(other) for other in itertools.permutations(range(n))]
        position = (average_loss(order) - min(every_aopc)) / (max(every_aopc) - min(every_aopc))
        assert values[text] == pytest.approx(position)


def test_soft_metrics_by_masking_one_text_at_a_time(short):
    results = measure_soft_metrics(short.model, short.batch, seed=SEED)
    generator = torch.Generator().manual_seed(SEED)
    for metric in ("comprehensiveness", "sufficiency"):
        keep = short.attention if metric == "sufficiency" else 1 - short.attention
        draws = [draw_vector_masks(short.batch, keep, generator) for _ in range(N_SOFT_DRAWS)]
        for text in range(30):
            attention, vectors, _ = list_words(short, text)
            n, predicted = len(attention), short.predicted[text]
            before = float(short.observation.probs[text, predicted])
            zero_sufficiency = 1 - max(0, before - 0.5)
            if zero_sufficiency >= 1 - 1e-6:
                assert math.isnan(results[metric][text])
                continue
            scores = []
            for masks in draws:
                value = vectors * masks["value"][text, :n].numpy()
                rest = short.batch.inputs["rest"][text, :n] * masks["rest"][text, :n]
                after = softmax(attention @ value + rest.numpy().sum(0))[predicted]
                loss = max(0, before - after)
                if metric == "comprehensiveness":
                    score = loss / (1 - zero_sufficiency)
                else:
                    score = ((1 - loss) - zero_sufficiency) / (1 - zero_sufficiency)
                scores.append(min(max(score, 0), 1))
            assert float(results[metric][text]) == pytest.approx(np.mean(scores))


def test_elements_of_word_vectors_are_kept_with_the_given_probability(short):
    keep = torch.full(short.batch.mask.shape, 0.3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    masks = [draw_vector_masks(short.batch, keep, generator)["value"] for _ in range(50)]
    assert float(torch.stack(masks).mean()) == pytest.approx(0.3, abs=0.02)


def replace_by_hand(data, text, replaced):
    """Probabilities of a text in which words are replaced with the mean ordinary word."""
    inputs = data.batch.inputs
    n = int(data.batch.mask[text].sum())
    mean = compute_mean_word_by_hand(data)
    scores, vectors, rest = [], [], np.zeros(2)
    for word in range(n):
        is_replaced = word in replaced
        row = {
            name: mean[name] if is_replaced else inputs[name][text, word].numpy()
            for name in ("score", "value", "rest")
        }
        scores.append(float(row["score"]))
        vectors.append(row["value"])
        rest = rest + row["rest"]
    return softmax(softmax(np.array(scores)) @ np.array(vectors) + rest)


def compute_mean_word_by_hand(data):
    rows = []
    for text, mask in enumerate(data.batch.mask.tolist()):
        for word, is_word in enumerate(mask):
            if is_word and float(data.attention[text, word]) <= 1 / sum(mask):
                rows.append((text, word))
    return {
        name: np.mean([data.batch.inputs[name][row].numpy() for row in rows], axis=0)
        for name in ("score", "value", "rest")
    }


def test_the_mean_word_has_whole_flags():
    model, batch = KINDS["backup key"].draw("backup key", seed=0, n_texts=20)
    mean_word = compute_mean_word(model, batch)
    assert float(mean_word["mark"]) == 0
    assert mean_word["value"].shape == (2,)


def test_road_by_replacing_words_in_one_text_at_a_time(short):
    values = measure_road(short.model, short.batch)
    for text in range(30):
        order = order_by_attention(short, text)
        is_right = []
        for tenth in range(1, 10):
            # Python rounds halves to even, as torch does.
            k = max(round(tenth / 10 * len(order)), 1)
            after = replace_by_hand(short, text, order[:k])
            is_right.append(after.argmax() == int(short.batch.labels[text]))
        assert float(values[text]) == pytest.approx(np.mean(is_right))


def test_saco_by_comparing_all_pairs_of_groups():
    kind = replace(KINDS["retrieval"], lengths=(4, 25), score_noise=1.0)
    model, batch = kind.draw("saco", seed=0, n_texts=12)
    observation = model.observe(batch)
    data = SimpleNamespace(model=model, batch=batch, attention=observation.read(Site()))
    values = measure_saco(model, batch)
    for text in range(12):
        order = order_by_attention(data, text)
        groups = [part.tolist() for part in np.array_split(order, min(10, len(order)))]
        predicted = int(observation.probs[text].argmax())
        before = float(observation.probs[text, predicted])
        saliences = [float(data.attention[text, group].sum()) for group in groups]
        losses = [before - replace_by_hand(data, text, group)[predicted] for group in groups]
        total, total_weight = 0.0, 0.0
        for i in range(len(groups) - 1):
            for j in range(i + 1, len(groups)):
                weight = saliences[i] - saliences[j]
                if losses[i] < losses[j]:
                    weight = -weight
                total += weight
                total_weight += abs(weight)
        assert float(values[text]) == pytest.approx(total / total_weight)


def test_groups_of_words_are_those_of_array_split():
    generator = torch.Generator().manual_seed(0)
    for n in range(1, 40):
        attention = torch.rand(1, n + 2, generator=generator)
        mask = torch.arange(n + 2)[None] < n
        groups = group_words(attention, mask)[0]
        order = attention[0, :n].argsort(descending=True).numpy()
        for number, words in enumerate(np.array_split(order, min(10, n))):
            assert set(words.tolist()) == set((groups == number).nonzero()[:, 0].tolist())
        assert (groups[n:] == -1).all()


@pytest.mark.parametrize(("name", "expected"), [("pointer", 1.0), ("decoy", 0.0)])
def test_state_interchange_with_every_possible_donor(name, expected):
    """In these kinds, all donors of a text have the same result, so the draw does not matter."""
    model, batch = KINDS[name].draw(name, seed=0, n_texts=12)
    texts = texts_of(rows_of(model, batch, seed=SEED, tests=["interchange"]))
    observation = model.observe(batch)
    predicted = observation.probs.argmax(-1)
    top = observation.read(Site()).argmax(-1)
    states, rest = observation.state
    for text in range(12):
        results = {"attention": set(), "other": set()}
        for donor in (predicted != predicted[text]).nonzero()[:, 0].tolist():
            for word in range(int(batch.mask[text].sum())):
                edited = states[text].clone()
                edited[word] = states[donor, top[donor]]
                logits = observation.read(Site())[text] @ edited + rest[text]
                place = "attention" if word == int(top[text]) else "other"
                results[place].add(float(logits.argmax() == predicted[donor]))
        assert results["attention"] == {expected}
        assert texts.get_values("follows@attention")[text] == expected
        if len(results["other"]) == 1:
            assert texts.get_values("follows@other")[text] == results["other"].pop()


def test_path_share_is_the_lost_margin_with_even_weights(short):
    values = short.texts.get_values("path_share")
    for text in range(30):
        attention, vectors, rest = list_words(short, text)
        sign = 1 if short.predicted[text] else -1
        margin = sign * np.diff(attention @ vectors + rest)[0]
        even_margin = sign * np.diff(vectors.mean(0) + rest)[0]
        assert values[text] == pytest.approx(min(max(1 - even_margin / margin, 0), 1))


# --- Aggregations ------------------------------------------------------------------------------


def compute_parts(texts, *, test):
    """The four parts from the means of statistics, by deletion ("") or by exchange ("exchange_")."""

    def average(name):
        return np.nanmean(texts.get_values(name))

    def compute_position(start, value, end):
        return (value - start) / (end - start)

    erasure = [average(f"fraction_to_lose_lead@{name}") for name in ("random", "attention", "best")]
    removal = [average(f"{test}removal@{name}") for name in ("random", "attention", "best")]
    chance = average(f"{test}mass_by_chance@attention")
    return {
        "importance": average(f"{test}importance@attention"),
        "erasure": compute_position(*erasure) * average("lead_is_lost"),
        "removal": compute_position(*removal),
        "mass": compute_position(chance, average(f"{test}mass@attention"), 1.0),
    }


def test_aggregations_are_means_of_parts():
    model, batch = KINDS["retrieval"].draw("retrieval", seed=0, n_texts=40)
    texts = texts_of(rows_of(model, batch, seed=SEED))
    estimates = scoreboard.estimate_aggregations(model, batch, texts, seed=SEED)
    deletion = compute_parts(texts, test="")
    exchange = compute_parts(texts, test="exchange_")
    mixed = {**deletion, "removal": exchange["removal"]}
    both = [*deletion.values(), *exchange.values()]
    best = aggregations.measure_cross_fitted_best(model, batch, seed=SEED).numpy()
    random, attention = (
        np.nanmean(texts.get_values(f"exchange_removal@{name}")) for name in ("random", "attention")
    )
    cross_fitted = {
        **exchange,
        "removal": (attention - random) / (np.nanmean(best) - random),
    }
    expected = {
        "F before": np.mean(list(deletion.values())),
        "m1": np.mean(list(mixed.values())),
        "F now": np.mean(list(exchange.values())),
        "both operators": np.mean(both),
        "cross-fitted best": np.mean(list(cross_fitted.values())),
    }
    assert {name: estimates[name][0] for name in expected} == pytest.approx(expected)
    assert len({round(value, 3) for value in expected.values()}) > 2


def test_the_cross_fitted_best_by_a_loop_over_halves_of_the_donors():
    kind = replace(KINDS["retrieval"], lengths=(3, 6), score_noise=1.0)
    model, batch = kind.draw("cross-fitted", seed=0, n_texts=10)
    rows_of(model, batch, seed=SEED, tests=["exchange"])
    observation = model.observe(batch)
    draws = draw_replacements(observation, 4, SEED)
    site = model.sites()[0]
    ranks = {
        name: compute_ranking(observation, site, name, seed=SEED)
        for name in list_rankings(observation, site)
    }

    def move(text, words, donor):
        """Output change if some words of a text are exchanged for those of a donor."""
        exchanged = torch.zeros(1, *batch.mask.shape, dtype=torch.bool)
        exchanged[0, text, list(words)] = True
        probs = model.exchange_inputs(observation, exchanged, draws.replacements[donor])
        return float(measure_output_change(observation, probs)[0, text])

    values = aggregations.measure_cross_fitted_best(model, batch, seed=SEED)
    plain_best = texts_of(rows_of(model, batch, seed=SEED, tests=["exchange"])).get_values(
        "exchange_removal@best"
    )
    for text in range(10):
        words = range(int(batch.mask[text].sum()))
        counts = [max(math.ceil(share * len(words)), 1) for share in TOP_SHARES]

        def remove(order, donors, text=text, counts=counts):
            return np.mean([move(text, order[:k], donor) for k in counts for donor in donors])

        results = []
        for searched, evaluated in (((0, 1), (2, 3)), ((2, 3), (0, 1))):
            losses = [np.mean([move(text, [word], d) for d in searched]) for word in words]
            scores = [*(rank[text].tolist() for rank in ranks.values()), losses]
            orders = [sorted(words, key=lambda word, own=own: -own[word]) for own in scores]
            best = max(orders, key=lambda order: remove(order, searched))
            results.append(remove(best, evaluated))
        assert float(values[text]) == pytest.approx(np.mean(results))
    assert float(values.mean()) <= plain_best.mean() + 1e-12


def make_models(rows):
    """Models with two seeds per kind, an interval of ±.02, and a path share."""
    records = []
    for kind, truth, right, value, path_share in rows:
        for seed in (0, 1):
            record = {"kind": kind, "truth": truth, "right": right, "seed": seed}
            for name, number in (("F now", value), ("path share", path_share)):
                ends = {f"{name} low": number - 0.02, f"{name} high": number + 0.02}
                record |= {name: number, f"{name} n": 100, **ends}
            records.append(record)
    return pd.DataFrame(records)


MIXTURE_ROWS = [
    (f"right in {10 * tenth}%", "no", tenth / 10, 0.9 * tenth / 10, 0.9) for tenth in range(11)
]


def test_answers_depend_on_the_gate_and_on_both_thresholds():
    models = make_models(
        [
            ("faithful", "yes", 1.0, 0.9, 0.9),
            ("idle", "no", 1.0, 0.9, 0.1),
            ("nearly idle", "no", 1.0, 0.9, 0.15),
            ("half", "partly", 1.0, 0.5, 0.9),
            ("low", "yes", 1.0, 0.1, 0.9),
            ("between", "yes", 1.0, 0.65, 0.9),
            ("low and nearly idle", "no", 1.0, 0.1, 0.15),
            ("too high", "partly", 1.0, 0.8, 0.9),
            ("deceiving", "no", 1.0, 0.8, 0.9),
        ]
    )
    selected = aggregations.select_aggregation(models, "F now")
    answers = aggregations.answer_models(selected, partly=0.4, yes=0.65)
    assert answers[::2].tolist() == [
        *("yes", "no", "cannot say", "partly", "no"),
        *("cannot say", "no", "yes", "yes"),
    ]
    errors = aggregations.find_errors(selected, answers)
    assert errors.wrong == ["deceiving", "low", "too high"]
    assert errors.opposite == ["deceiving", "low"]
    assert errors.open == ["between", "nearly idle"]


def test_thresholds_are_tested_on_kinds_that_they_were_not_chosen_from():
    rows = [
        ("yes 1", "yes", 1.0, 0.8, 0.9),
        ("yes 2", "yes", 1.0, 0.5, 0.9),
        ("partly 1", "partly", 1.0, 0.6, 0.9),
        ("partly 2", "partly", 1.0, 0.3, 0.9),
        ("no 1", "no", 1.0, 0.0, 0.9),
        ("no 2", "no", 1.0, 0.1, 0.9),
    ]
    models = aggregations.select_aggregation(make_models([*MIXTURE_ROWS, *rows]), "F now")
    chosen, errors = aggregations.evaluate_on_other_half(models)
    # The first half of the kinds has the numbers 1: "partly" begins anywhere up to .6, and "yes"
    # between .6 and .8. Of the equally good pairs, the middle one is chosen.
    assert chosen == pytest.approx((0.4, 0.7))
    assert errors.wrong == ["partly 2", "yes 2"]
    assert errors.opposite == []
    left_out = aggregations.evaluate_leaving_one_out(models)
    # Only the two kinds that no pair of thresholds separates from the others are wrong.
    assert left_out.wrong == ["partly 2", "yes 2"]


# --- Evaluation of metrics ---------------------------------------------------------------------


def make_values(yes, partly, no):
    index = [
        (truth, f"{truth} {number}")
        for truth, values in (("yes", yes), ("partly", partly), ("no", no))
        for number in range(len(values))
    ]
    return pd.Series([*yes, *partly, *no], index=pd.MultiIndex.from_tuples(index), dtype=float)


def test_auroc_and_its_bootstrap_by_a_loop():
    draws = np.random.default_rng(0)
    yes, partly, no = (draws.normal(mean, 1, 12).round(1) for mean in (1.0, 0.5, 0.0))
    yes[0] = np.nan
    estimate = scoreboard.compute_auroc(make_values(yes, partly, no), ["no", "partly"])

    def count_pairs(first, second):
        wins = [(a > b) + (a == b) / 2 for a in first for b in second]
        return sum(wins) / len(wins)

    yes = yes[1:]
    assert estimate.value == pytest.approx(count_pairs(yes, [*no, *partly]))
    assert estimate.n == 11 + 24
    resampled = [
        count_pairs(
            draws.choice(yes, len(yes)),
            [*draws.choice(no, len(no)), *draws.choice(partly, len(partly))],
        )
        for _ in range(1000)
    ]
    assert estimate.ci95 == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.03)


def test_the_worst_kind_has_the_fewest_kinds_on_its_right_side():
    worst = scoreboard.find_worst_kind(make_values([0.9, 0.8, 0.3], [5.0], [0.1, 0.2, 0.4, 0.5]))
    assert (worst.name, worst.truth) == ("yes 2", "yes")
    assert worst.share == pytest.approx(0.5)
    # Both a yes kind and a no kind are entirely on the wrong side: 2.0 is farther from the middle.
    worst = scoreboard.find_worst_kind(make_values([0.9, -0.1], [], [0.0, 0.0, 0.0, 2.0]))
    assert worst == scoreboard.WorstKind("no 3", "no", 0.0)


def test_kinds_below_the_gate_rank_last_even_if_the_metric_is_undefined():
    models = make_models(
        [("a", "yes", 1.0, 0.5, 0.9), ("b", "no", 1.0, 0.9, 0.1), ("c", "no", 1.0, 0.6, 0.9)]
    )
    names = {*scoreboard.METRICS, *scoreboard.AGGREGATIONS} - {"F now", "path share"}
    models = models.assign(**dict.fromkeys(names, np.nan))
    plain = scoreboard.average_kinds(models)
    gated = scoreboard.average_kinds(models, gate=True)
    assert scoreboard.compute_auroc(plain["F now"], ["no"]).value == 0.0
    assert scoreboard.compute_auroc(gated["F now"], ["no"]).value == 0.5
    models = models.assign(SaCo=[0.5, 0.5, np.nan, np.nan, 0.2, 0.2])
    gated = scoreboard.average_kinds(models, gate=True)
    assert gated["SaCo"]["no"]["b"] < 0.2 and np.isnan(plain["SaCo"]["no"]["b"])


def test_the_response_is_a_line_and_its_middle():
    values = [(tenth / 10) ** 2 for tenth in range(11)]
    rows = [(*row[:3], value, 1.0) for row, value in zip(MIXTURE_ROWS, values, strict=True)]
    response = scoreboard.compute_response(make_models(rows), "F now")
    line = linregress(np.arange(11) / 10, values)
    assert response.r_squared == pytest.approx(line.rvalue**2)
    assert response.half == pytest.approx(0.25)


def test_cross_sensitivity_is_relative_to_the_change_from_no_right_text_to_all():
    rows = []
    for name, nuisance in NUISANCES.items():
        for number, level in enumerate(nuisance.levels):
            for p in (0.0, 0.5, 1.0):
                shift = 0.1 * number if name == "classes" and p == 0.5 else 0.0
                rows.append({"nuisance": name, "level": level, "right": p, "SaCo": 2 * p + shift})
    sensitivities = scoreboard.compute_cross_sensitivities(pd.DataFrame(rows), "SaCo")
    n_levels = len(NUISANCES["classes"].levels)
    assert sensitivities.pop("classes") == pytest.approx(0.1 * (n_levels - 1) / 2)
    assert set(sensitivities.values()) == {0.0}


@pytest.mark.slow
def test_the_scoreboard_from_measurement_to_page(tmp_path, monkeypatch):
    names = ("pointer", "hard pointer", "decoy", "exact zeros, idle", "sink and key", "backup key")
    kinds = {name: CONSTRUCTED[name] for name in names} | MIXTURES
    monkeypatch.setattr(scoreboard, "EVERY_KIND", kinds)
    few = {name: replace(NUISANCES[name], levels=NUISANCES[name].levels[:2]) for name in NUISANCES}
    few = {name: few[name] for name in ("label noise", "classes")}
    monkeypatch.setattr(scoreboard, "NUISANCES", few)
    scoreboard.run_scoreboard(tmp_path, [0, 1], 40)
    sections = scoreboard.format_sections(tmp_path)
    rows = sections["scoreboard"].splitlines()[2:]
    assert {row.split(" | ")[0].removeprefix("| ") for row in rows} == set(scoreboard.METRICS)
    assert len(sections["definitions"].splitlines()) == len(rows) + 2
    assert sections["n_scored_kinds"] == 6
    (row,) = [row for row in rows if row.startswith("| F now |")]
    # The idle kind has a larger F than one of two pointers, and the gate excludes it.
    cells = row.split(" | ")
    assert cells[2].startswith("0.75 ") and cells[4] == "exact zeros, idle (no, 50%)"
    assert cells[5:7] == ["1.00 [1.00, 1.00]"] * 2 and cells[7] == "none |"
    for file in (tmp_path / "first.svg", tmp_path / "second.svg"):
        scoreboard.write_figure(tmp_path, file)
    image = (tmp_path / "first.svg").read_bytes()
    assert image == (tmp_path / "second.svg").read_bytes()
    assert all(metric.encode() in image for metric in scoreboard.METRICS)
