"""An audit with fewer tests is never more confident than the same audit with more tests."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.reports.verdict import compute_answer, compute_findings
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.questions import ANSWER_QUESTIONS, CLASSIFIER_QUESTIONS
from hf_attnprobe.statistics.verdicts import ANSWER_SET, CLASSIFIER_SET
from hf_attnprobe.statistics.wording import build_wording
from tests.helpers.verdict_rows import exchanging, predictions, rows_of, way_of


CLASSES = ("neg", "pos")
PROMPTS = build_wording({"kind": "answer", "name": "it"})
SEVERAL_TESTS = ("scale", "erasure", "exchange", "uniform_attention", "permutation")


def make_classifier_rows(seed, sizes, ways, noise, path_share, default_share=0.0):
    """Rows of a classifier.

    Args:
        seed: seed of the noise.
        sizes: number of texts of each test, by test name.
        ways: mean position between random and best, by test name.
        noise: standard deviation of the position between texts.
        path_share: mean share of the decision that passes through attention.
        default_share: share of texts whose words do not matter; they are predicted "neg".
    """
    n = max(sizes.values())
    generator = np.random.default_rng(seed)
    labels = (np.arange(n) % 2).astype(float)
    is_default = (labels == 0) & (generator.random(n) < 2 * default_share)
    columns = {}
    for test in ("scale", "erasure"):
        way = generator.normal(ways[test], noise, n)
        columns[test] = way_of(np.where(is_default, 0.0, way))[test]
    columns["scale"]["largest_loss"] = np.where(is_default, 0.01, 0.6)
    columns["exchange"] = exchanging(generator.normal(ways["exchange"], noise, n))["exchange"]
    shares = generator.normal(path_share, 0.2, n).clip(0, 1)
    columns["uniform_attention"] = {"path_share": shares, "uniform_tvd": shares}
    columns["permutation"] = {"standard_tvd": shares / 4, "largest_standard_tvd": shares}
    tests = [
        rows_of(test, {name: values[: sizes[test]] for name, values in columns[test].items()})
        for test in SEVERAL_TESTS
    ]
    return pd.concat([predictions(labels, labels), *tests])


def make_prompt_rows(seed, n, hit_share, path, effect, gain):
    """Rows of a language model that answers from passages."""
    generator = np.random.default_rng(seed)
    is_hit = (generator.random(n) < hit_share).astype(float)
    loss = generator.uniform(1, 4, n)
    sources = {
        "answer_is_greedy": np.ones(n),
        "contextual_gain": generator.normal(gain, 1, n),
        "source_place": generator.integers(0, 6, n).astype(float),
        "source_found@attention": is_hit,
        "source_found@length": generator.integers(0, 2, n) * 0.2,
        "source_found@first": np.zeros(n),
        "source_found@last": np.zeros(n),
        "source_found@chance": np.full(n, 1 / 6),
        "source_agreement@attention": np.where(is_hit, 0.9, generator.uniform(-1, 1, n)),
        "drop@random": loss * 0.3,
        "drop@attention": np.where(is_hit, loss, loss * 0.3),
        "drop@best": loss,
    }
    knockout = {"lost_by_deletion": loss, "lost_by_knockout": path * loss}
    shuffles = generator.uniform(0.5, 1.5, n) * effect
    permutation = {"standard_tvd": shuffles, "largest_standard_tvd": shuffles}
    tests = {"sources": sources, "knockout": knockout, "permutation": permutation}
    return pd.concat([rows_of(test, columns) for test, columns in tests.items()])


def answer(rows, words=None, unsupported_tests=()):
    options = {} if words is None else {"words": words}
    labels = CLASSES if words is None else ()
    findings = compute_findings(rows, labels, unsupported_tests=unsupported_tests, **options)
    return compute_answer(findings)


def check_no_subset_is_more_confident(rows, tests, **options):
    """Drop every set of tests. Return the answers of all sets, the complete one first."""
    answers = []
    for n_dropped in range(len(tests) + 1):
        for dropped in itertools.combinations(tests, n_dropped):
            answers.append(answer(rows[~rows.test.isin(dropped)], **options))
    if answers[0] == Answer.CANNOT_SAY:
        assert {*answers} == {Answer.CANNOT_SAY}
    # Fewer tests never contradict more tests either.
    assert {*answers} <= {answers[0], Answer.CANNOT_SAY}
    return answers


WAYS = st.sampled_from([0.1, 0.3, 0.42, 0.6, 0.7, 0.9])
SIZES = st.sampled_from([12, 29, 30, 60])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_dropping_a_test_never_turns_cannot_say_into_an_answer(data):
    rows = make_classifier_rows(
        seed=data.draw(st.integers(0, 99)),
        sizes={test: data.draw(SIZES) for test in SEVERAL_TESTS},
        ways={test: data.draw(WAYS) for test in ("scale", "erasure", "exchange")},
        noise=data.draw(st.sampled_from([0.02, 0.3, 1.0])),
        path_share=data.draw(st.sampled_from([0.02, 0.14, 0.5])),
        default_share=data.draw(st.sampled_from([0.0, 0.4])),
    )
    unsupported_tests = data.draw(st.sampled_from([(), ("erasure",), ("exchange",)]))
    rows = rows[~rows.test.isin(unsupported_tests)]
    tests = [test for test in SEVERAL_TESTS if test not in unsupported_tests]
    check_no_subset_is_more_confident(rows, tests, unsupported_tests=unsupported_tests)


@pytest.mark.parametrize("seed", range(3))
def test_a_few_audits_with_fewer_tests_are_never_more_confident(seed):
    generator = np.random.default_rng(seed)
    choices = {"sizes": [12, 30, 60], "ways": [0.1, 0.3, 0.42, 0.7, 0.9]}
    rows = make_classifier_rows(
        seed=seed,
        sizes={test: generator.choice(choices["sizes"]) for test in SEVERAL_TESTS},
        ways={test: generator.choice(choices["ways"]) for test in ("scale", "erasure", "exchange")},
        noise=0.3,
        path_share=generator.choice([0.02, 0.14, 0.5]),
        default_share=0.2,
    )
    check_no_subset_is_more_confident(rows, SEVERAL_TESTS[:4])


def test_the_answer_of_a_model_does_not_become_no_without_erasure():
    """Three parts are certainly below .4, and erasure is certainly above .65."""
    ways = {"scale": 0.28, "exchange": 0.28, "erasure": 0.8}
    sizes = dict.fromkeys(SEVERAL_TESTS, 60)
    rows = make_classifier_rows(0, sizes, ways, noise=0.15, path_share=0.5)
    assert answer(rows) == Answer.CANNOT_SAY
    without = rows[rows.test != "erasure"]
    assert answer(without) == Answer.CANNOT_SAY
    # Only a model that cannot run the test gets an answer without it.
    assert answer(without, unsupported_tests=["erasure"]) == Answer.NO


def test_ten_texts_of_one_part_do_not_widen_the_interval_of_thirty():
    ways = {"scale": 0.28, "exchange": 0.28, "erasure": 0.23}
    sizes = dict.fromkeys(SEVERAL_TESTS, 30) | {"erasure": 10}
    rows = make_classifier_rows(1, sizes, ways, noise=0.1, path_share=0.5)
    is_erasure = rows.statistic.str.startswith("fraction_to_lose_lead@attention")
    generator = np.random.default_rng(0)
    rows.loc[is_erasure, "value"] = generator.uniform(0, 1, is_erasure.sum())
    (score,) = [f for f in compute_findings(rows, CLASSES) if f.rule == "faithfulness"]
    without = rows[rows.test != "erasure"]
    (narrow,) = [f for f in compute_findings(without, CLASSES) if f.rule == "faithfulness"]
    assert (score.value, score.ci95, score.n) == (narrow.value, narrow.ci95, 30)
    assert score.averaged_parts == ("importance", "removal", "mass")
    assert score.incomplete_tests == {"erasure": 10} and answer(rows) == Answer.CANNOT_SAY
    assert "the test erasure ran on only 10 texts." in score.sentence


@pytest.mark.parametrize("gain", [0.0, 5.0])
@pytest.mark.parametrize(("path", "effect"), [(0.05, 0.5), (0.9, 0.002), (0.9, 0.5)])
def test_prompts_with_fewer_tests_are_never_more_confident(gain, path, effect):
    """Without the test of the passage, nothing shows that the answers depend on it."""
    tests = ANSWER_SET.required_tests
    rows = make_prompt_rows(0, 40, hit_share=0.9, path=path, effect=effect, gain=gain)
    answers = check_no_subset_is_more_confident(rows, tests, words=PROMPTS)
    assert (answers[0] == Answer.CANNOT_SAY) == (gain == 0)


def test_the_required_tests_are_those_of_the_questions_that_decide():
    for question_set, questions in (
        (CLASSIFIER_SET, CLASSIFIER_QUESTIONS),
        (ANSWER_SET, ANSWER_QUESTIONS),
    ):
        deciding = {q.test for q in questions.values() if q.role in ("part", "effect")}
        # Words are deleted by the test scale, which a language model cannot run.
        deleting = {"scale"} if question_set is CLASSIFIER_SET else set()
        assert {*question_set.required_tests} == deciding | deleting


@pytest.mark.parametrize("n", [3, 9, 10])
def test_no_finding_of_fewer_than_ten_different_texts_has_a_number(n):
    sizes = dict.fromkeys(SEVERAL_TESTS, n)
    rows = make_classifier_rows(0, sizes, dict.fromkeys(SEVERAL_TESTS, 0.5), 0.1, 0.5)
    copies = pd.concat([rows.assign(example_id=rows.example_id + k * n) for k in range(4)])
    identity = {"identity": np.tile(np.arange(n), 4)}
    copied = pd.concat([copies, rows_of("prediction", identity, layer=-1, head=-1)])
    for own_rows in (rows, copied):
        findings = compute_findings(own_rows, CLASSES)
        assert {f.rule for f in findings} >= {"accuracy", "faithfulness", "erasure", "effect"}
        assert {f.n for f in findings} == {n}
        has_number = [np.isfinite(f.value) or f.ci95 is not None for f in findings]
        assert all(has_number) if n >= 10 else not any(has_number)
        assert all(f.sentence.count(str(n)) for f in findings) or n == 10
