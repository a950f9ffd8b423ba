"""Compare all tests that explain a chosen class with loops that only use this class."""

import math
from functools import partial

import pytest
import scipy.stats
import torch
from transformers import AutoConfig

from hf_attnprobe import Correlation, Erasure, Explanations, InputErasure, Screen, SingleToken
from hf_attnprobe.adapters import wrap
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.correlation import correlation
from hf_attnprobe.faithfulness.erasure import ERASURE_SEED_OFFSET, draw_other_positions, erasure
from hf_attnprobe.faithfulness.explanations import explanations
from hf_attnprobe.faithfulness.input_erasure import input_erasure
from hf_attnprobe.faithfulness.rankings import compute_site_attention
from hf_attnprobe.faithfulness.screen import screen
from hf_attnprobe.faithfulness.single_token import single_token
from hf_attnprobe.functional.intervention import draw_permutations, make_uniform
from hf_attnprobe.protocol import Site
from hf_attnprobe.storage.rows import collect_statistics
from tests.faithfulness.test_erasure import make_decoder


SITE = Site()
TARGET = 2


SHORT = {"lengths": range(3, 9), "n_texts": 16}


def tokens_of(observation):
    """The token ids of each text."""
    rows = observation.batch.inputs["input_ids"].tolist()
    return [[token for token in row if token] for row in rows]


def removed(is_for, weights, order):
    """Weights gone when a text changes sides; NaN where it never does."""
    left, before = weights.clone(), is_for(weights)
    for n, place in enumerate(order, start=1):
        left[place] = 0
        if left.sum() > 0 and is_for(left / left.sum()) != before:
            return n
    return math.nan


def descending(values):
    """Places from the largest value on, equal ones from left to right."""
    return sorted(range(len(values)), key=lambda k: (-round(float(values[k]), 9), k))


@pytest.mark.parametrize("kind", [("bilstm", "additive", 4), ("mlp", "dot_product", 4)], ids=str)
def test_erasure_goes_on_until_the_text_changes_sides(observe, kind):
    adapter, observation = observe(*kind, **SHORT)
    options = Erasure(target=TARGET, bottom_up=True, each_random=True, n_random=3)
    result = erasure(observation, SITE, options, seed=3)
    is_predicted = observation.probs.argmax(-1) == TARGET
    assert is_predicted.any() and not is_predicted.all()
    assert result.minimal_size is result.no_set_flips is None and not result.way_to_best
    ids, content = observation.batch.example_ids, observation.batch.content_mask
    shuffled = draw_permutations(
        content[:, None], 3, seed=3 + ERASURE_SEED_OFFSET, example_ids=ids
    )[:, :, 0]
    top = compute_site_attention(observation, SITE).masked_fill(~content, -1).argmax(-1)
    other = draw_other_positions(top, content, "uniform", seed=3, example_ids=ids)
    n_flipped = 0
    for row in range(len(ids) - 1):
        decode, words = make_decoder(adapter, observation, row)
        weights = observation.read(SITE)[row, words]
        leaf = weights.clone().requires_grad_()
        (slope,) = torch.autograd.grad(decode(leaf).softmax(-1)[TARGET], leaf)
        slope = slope if is_predicted[row] else -slope  # for the side it is on
        scores = {
            "attention": weights,
            "gradient": slope,
            "product": weights * slope,
            **{f"random_{k}": o[row, words] for k, o in enumerate(shuffled, 1)},
        }
        own = ("attention", "gradient", "product")
        scores |= {f"least_{name}": -scores[name] for name in own}

        def is_for(attention, decode=decode):
            return bool(decode(attention).argmax() == TARGET)

        n = int(words.sum())
        counts = {name: removed(is_for, weights, descending(x)) for name, x in scores.items()}
        fewest = result.greedy_bound_size[row].item()
        flipped = [count for count in counts.values() if not math.isnan(count)]
        assert not flipped or fewest <= min(flipped)
        n_flipped += bool(flipped)
        for name, count in counts.items():
            expected = count / n
            if math.isnan(fewest):
                assert math.isnan(count)
            elif math.isnan(count):
                expected = 1.0
            value = result.fraction_to_flip[name][row].item()
            assert value == pytest.approx(expected, nan_ok=True), name
        draws = [result.fraction_to_flip[f"random_{k}"][row] for k in (1, 2, 3)]
        wanted = sum(draws).item() / 3
        assert result.fraction_to_flip["random"][row].item() == pytest.approx(wanted, nan_ok=True)
        places = content[row].nonzero()[:, 0].tolist()
        for flips, place in ((result.top_flips, top), (result.random_flips, other)):
            left = weights.clone()
            left[places.index(int(place[row]))] = 0
            assert flips[row].item() == (is_for(left / left.sum()) != is_for(weights))
    assert n_flipped > 3


def test_of_two_classes_a_target_changes_nothing(observe):
    _adapter, observation = observe("bilstm", "additive", 2, **SHORT)
    tests = {
        erasure: Erasure,
        input_erasure: partial(InputErasure, tokens_to_flip=True, beam_width=1),
        correlation: Correlation,
        explanations: Explanations,
        screen: Screen,
        single_token: SingleToken,
    }
    for test, options in tests.items():
        plain = collect_statistics(test(observation, SITE, options(), seed=1))
        for target in (0, 1):
            own = test(observation, SITE, options(target=target), seed=1)
            own = collect_statistics(own)
            assert own.keys() == plain.keys()
            for name, values in own.items():
                torch.testing.assert_close(
                    values, plain[name], equal_nan=True, atol=1e-8, rtol=0, msg=name
                )


def test_all_weights_gone_is_a_decision_for_or_against_the_target(observe):
    adapter, observation = observe("bilstm", "additive", 4, **SHORT)
    with torch.no_grad():
        adapter.model.classifier.bias[TARGET] += 0.3
    observation = adapter.observe(observation.batch)
    result = erasure(observation, SITE, Erasure(target=TARGET, all_zero=True))
    empty = adapter.model.classifier.bias.argmax().item() == TARGET
    is_for = observation.probs.argmax(-1) == TARGET
    several = observation.batch.content_mask.sum(-1) > 1
    assert not result.no_order_flips[several & (is_for != empty)].any()


def probability(adapter, ids, target):
    """p(target) of token ids, through the model itself."""
    model = adapter.model
    ids = torch.tensor([ids])
    with torch.no_grad():
        logits = model(ids, attention_mask=torch.ones_like(ids)).logits
    return logits.softmax(-1)[0]


@pytest.mark.parametrize("n_steps", [0, 3])
def test_input_erasure_of_a_class(observe, n_steps):
    adapter, observation = observe("bilstm", "additive", 4, **SHORT)
    texts = tokens_of(observation)
    options = InputErasure(target=TARGET, tokens_to_flip=True, n_steps=n_steps)
    result = input_erasure(observation, SITE, options, seed=5)
    slopes = adapter.compute_attention_gradient(
        observation, observation.get_target_classes(TARGET)
    )[0]
    product = observation.read(SITE) * slopes[:, 0, 0]
    importance = observation.with_target(TARGET).compute_leave_one_out_importance()
    n_flipped = 0
    for row, ids in [*enumerate(texts)][6:]:
        content = observation.batch.content_mask[row]
        n = int(content.sum())
        whole = probability(adapter, ids, TARGET)
        is_for = whole.argmax() == TARGET

        def without(gone, ids=ids):
            kept = [t for k, t in enumerate(ids) if k - 1 not in gone]
            return probability(adapter, kept, TARGET)

        values = {
            "attention": observation.read(SITE)[row, content],
            "product": product[row, content],
            "leave_one_out": importance[row, content],
        }
        counts = [max(1, math.ceil(round(n * s, 9))) for s in (0.01, 0.05, 0.1, 0.2, 0.5)]
        steps = (
            range(1, n)
            if not n_steps
            else [min(math.ceil(round(n * s / n_steps, 9)), n - 1) for s in range(1, n_steps + 1)]
        )
        needed = {}
        for name, x in values.items():
            order = descending(x)
            if name == "product" and not is_for:
                order = descending(-x)
            lost = [float((whole - without(order[:k]))[TARGET]) for k in counts]
            expected = (1 if is_for else -1) * sum(lost) / 5
            assert result.comprehensiveness[name][row].item() == pytest.approx(expected, abs=1e-6)
            flips = [k for k in steps if k and (without(order[:k]).argmax() == TARGET) != is_for]
            needed[name] = min(flips, default=math.nan)
        none = result.no_tokens_flip[row].item()
        n_flipped += none == 0
        for name, count in needed.items():
            value = result.tokens_to_flip[name][row].item()
            never = result.tokens_never_flip[name][row].item()
            if none != 0:
                assert math.isnan(count) and math.isnan(value) and math.isnan(never)
            else:
                assert never == math.isnan(count)
                assert value == pytest.approx(1.0 if never else count / n)
    assert n_flipped > 3 and math.isnan(none)  # the last text has one token


def test_no_tokens_to_flip_unless_asked(observe):
    _adapter, observation = observe("bilstm", "additive", 2, **SHORT)
    result = input_erasure(observation, SITE, InputErasure())
    assert result.tokens_to_flip is result.no_tokens_flip is None


def test_correlation_explanations_screen_and_single_tokens_of_a_class(observe):
    adapter, observation = observe("bilstm", "additive", 4, **SHORT)
    texts = tokens_of(observation)
    target = observation.get_target_classes(TARGET)
    correlated = correlation(observation, SITE, Correlation(target=TARGET, tops=[1, 2]))
    explained = explanations(observation, SITE, Explanations(target=TARGET))
    alone = single_token(observation, SITE, SingleToken(target=TARGET))
    screened = screen(observation, SITE, Screen(target=TARGET))
    slope = adapter.compute_attention_gradient(observation, target)[0][:, 0]
    attention = observation.attention[0][:, 0]
    flat = make_uniform(attention, adapter.get_visible_keys(observation, 0))
    moved = (slope * adapter.get_visible_keys(observation, 0) * (flat - attention)).sum((-2, -1))
    torch.testing.assert_close(screened.first_order_uniform, moved.abs())
    gradient = adapter.compute_gradient_times_input(observation, target).abs()
    for row, ids in enumerate(texts[:-1]):
        content = observation.batch.content_mask[row]
        whole = probability(adapter, ids, TARGET)[TARGET]
        left_out = [
            abs(float(probability(adapter, ids[:k] + ids[k + 1 :], TARGET)[TARGET] - whole))
            for k in range(1, len(ids) - 1)
        ]
        weights = attention[row, 0, content]
        tau = scipy.stats.kendalltau(weights, left_out).statistic
        other = scipy.stats.kendalltau(gradient[row, content], left_out).statistic
        third = scipy.stats.kendalltau(weights, gradient[row, content]).statistic
        assert correlated.attention_leave_one_out_tau[row].item() == pytest.approx(tau)
        assert explained.raw_attention_tau[row].item() == pytest.approx(tau)
        product = (slope[row, 0] * attention[row, 0])[content].abs()
        of_product = scipy.stats.kendalltau(product, left_out).statistic
        assert explained.attention_times_gradient_tau[row].item() == pytest.approx(of_product)
        for values, expected in (
            (correlated.leave_one_out_tau_difference, other - tau),
            (correlated.gradient_tau_difference, other - third),
        ):
            assert values[row].item() == pytest.approx(expected)
        first = [max(range(len(x)), key=x.__getitem__) for x in (weights.tolist(), left_out)]
        overlap = correlated.attention_leave_one_out_top_overlap[1][row].item()
        assert overlap == (first[0] == first[1])
        n = len(left_out)
        assert correlated.top_overlap_by_chance[2][row].item() == pytest.approx(2 / n)
        probs = [
            float(probability(adapter, [ids[0], token, ids[-1]], TARGET)[TARGET])
            for token in ids[1:-1]
        ]
        if observation.probs[row].argmax() != TARGET:
            probs = [1 - p for p in probs]
        assert alone.lowest_probability[row].item() == pytest.approx(min(probs), abs=1e-6)
        assert alone.highest_probability[row].item() == pytest.approx(max(probs), abs=1e-6)
    assert correlated.attention_gradient_top_overlap[1][-1].isnan()  # one token


def test_a_view_shares_what_no_class_changes(observe, monkeypatch):
    adapter, observation = observe("bilstm", "additive", 4, **SHORT)
    runs = []
    leave_one_out = adapter.compute_leave_one_out
    monkeypatch.setattr(
        adapter, "compute_leave_one_out", lambda o: runs.append(1) or leave_one_out(o)
    )
    for target in (None, 0, 2):
        correlation(observation, SITE, Correlation(target=target))
    assert len(runs) == 1
    view = observation.with_target(1)
    assert view.with_target(None).explained_class is None and view.with_target(1) is view
    assert observation.explained_class is None
    plain, own = observation.attention_gradient[0], view.attention_gradient[0]
    assert not torch.equal(plain, own) and view.leave_one_out is observation.leave_one_out


def test_a_class_by_name_or_number(observe):
    adapter, observation = observe("bilstm", "additive", 4, **SHORT)
    names = adapter.label_names
    for number, name in enumerate(names):
        for target in (number, str(number), name):
            assert observation.with_target(target).explained_class == number
    for wrong in (4, -1, "4", "", "none of them", names[0].upper()):
        with pytest.raises(AttnProbeError, match="expected a target class from 0 to 3"):
            observation.with_target(wrong)
    stars = wrap(adapter.model)
    stars.label_names = ["1", "2", "3", "4"]
    starred = stars.observe(observation.batch)
    assert starred.with_target("1").explained_class == 0  # the name
    assert starred.with_target(1).explained_class == 1
    assert starred.with_target("0").explained_class == 0
    stars.label_names = ["same", "same", "other", "one"]
    with pytest.raises(AttnProbeError):
        stars.observe(observation.batch).with_target("same")


def test_the_report_names_the_class(cli, make_checkpoint, reviews_folder, tmp_path):
    folder = make_checkpoint("bilstm", "additive", 2)
    name = AutoConfig.from_pretrained(folder).id2label[1]
    audited = ("audit", "--model", folder, "--dataset", reviews_folder, "--test-limit", 6)
    audited += ("--tests", "correlation", "erasure")
    more = ("--set", "erasure.bottom_up=true", "--output-dir", tmp_path / "out", "--verbose")
    run = cli(*audited, "--target", name, *more)
    assert run.code == 0, run.err
    report = (tmp_path / "out" / "report.md").read_text()
    said = f"these tests explain the decision for or against the class {name}"
    assert f"correlation, erasure: {said}" in report and "least_attention" in report
    assert said in " ".join(run.out.split())
    wrong = cli(*audited, "--target", "nothing")
    assert wrong.code != 0 and "expected a target class from 0 to 1" in wrong.err
