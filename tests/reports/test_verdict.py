"""Answers from rows: the rules, what decides, and when nothing can be said."""

import itertools
import math
import re

import datasets
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe import audit
from hf_attnprobe.reports.verdict import compute_answer, compute_findings, format_conclusion
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import (
    MIN_TEXTS,
    Answer,
    grade,
    grade_range,
    list_possible_answers,
)
from hf_attnprobe.statistics.questions import CLASSIFIER_QUESTIONS, EFFECT_THRESHOLD
from hf_attnprobe.statistics.rows import Texts
from hf_attnprobe.statistics.scores import measure_quality
from hf_attnprobe.statistics.verdicts import RULES, Finding, apply_thresholds, conclude
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused
from tests.helpers.synthetic_rows import make_rows


def rows_of(test, columns, *, layer=0, head=0):
    """Long rows of one site from columns of per-text values."""
    named = {(test, name): values for name, values in columns.items()}
    return make_rows(named, layer=layer, head=head)


def predictions(predicted, labels, probability=0.9):
    n = len(predicted)
    columns = {
        "predicted_class": predicted,
        "label": labels,
        "probability": np.full(n, probability),
        "n_tokens": np.full(n, 9.0),
    }
    return rows_of("prediction", columns, layer=-1, head=-1)


def good_model(n, **tests):
    """Rows of a model that is right, with the statistics of some tests."""
    labels = np.arange(n) % 2.0
    return pd.concat([predictions(labels, labels), *(rows_of(t, c) for t, c in tests.items())])


def found(rule, rows, labels=("neg", "pos")):
    return [f for f in compute_findings(rows, labels) if f.rule == rule]


# --- rules --------------------------------------------------------------------------


@given(st.sampled_from(sorted(RULES)), st.floats(-1, 1), st.floats(0, 0.5), st.integers(0, 200))
def test_an_answer_needs_texts_and_an_interval_that_crosses_no_threshold(key, value, half, n):
    rule = RULES[key]
    low, high = value - half, value + half
    answer = grade(Estimate(value, (low, high), n), rule)
    above = [limit for limit in (rule.partly, rule.yes) if low >= limit]
    if rule.partly == rule.yes == 0:  # exactly 0 is not more than nothing
        above = [0.0, 0.0] if low > 0 else []
        crossed = low <= 0 < high
    else:
        crossed = any(low < limit <= high for limit in (rule.partly, rule.yes))
    if n < MIN_TEXTS or crossed:
        assert answer == Answer.CANNOT_SAY
    else:
        assert answer == (Answer.NO, Answer.PARTLY, Answer.YES)[len(above)]


def test_a_number_between_bounds_is_graded_by_both_of_them():
    rule = RULES["uniqueness"]
    sure = Estimate(0.9, (0.88, 0.92), 100)
    unknown = Estimate(0.0, (0.0, 0.0), 100)
    assert grade_range(sure, sure, rule) == Answer.YES
    assert grade_range(unknown, sure, rule) == Answer.CANNOT_SAY
    assert list_possible_answers(unknown, sure, rule) == tuple(RULES_ANSWERS)
    low = Estimate(0.1, (0.05, 0.2), 100)
    assert grade_range(unknown, low, rule) == Answer.NO


RULES_ANSWERS = (Answer.NO, Answer.PARTLY, Answer.YES)


# --- the verdict ----------------------------------------------------------------------


def finding_of(rule, answer, **more):
    return Finding(rule, answer, "", 0.5, (0.4, 0.6), 100, **more)


def findings_by(**answers):
    return [finding_of(rule, answer) for rule, answer in answers.items()]


BY_HAND = [  # accuracy, effect, faithfulness: the answer
    ("yes", "yes", "yes", "yes"),
    ("yes", "yes", "partly", "partly"),
    ("yes", "yes", "no", "no"),
    ("yes", "yes", "cannot say", "cannot say"),
    ("yes", "no", "yes", "no"),
    ("yes", "no", "cannot say", "no"),
    ("yes", "cannot say", "yes", "cannot say"),
    ("yes", "cannot say", "no", "no"),
    ("yes", None, "yes", "cannot say"),
    ("yes", None, "no", "no"),
    ("yes", "yes", None, "cannot say"),
    ("yes", "no", None, "no"),
    ("no", "yes", "yes", "cannot say"),
    ("cannot say", "yes", "no", "cannot say"),
    (None, "yes", "yes", "yes"),
]


BESIDE = [
    key for key, asked in CLASSIFIER_QUESTIONS.items() if asked.role in ("part", "additional")
]


@pytest.mark.parametrize(("gate", "effect", "score", "expected"), BY_HAND)
@settings(max_examples=20)
@given(beside=st.dictionaries(st.sampled_from(BESIDE), st.sampled_from([*Answer])))
def test_faithfulness_answers_where_attention_has_an_effect_and_what_is_beside_decides_nothing(
    gate, effect, score, expected, beside
):
    asked = {"accuracy": gate, "faithfulness": score, "effect": effect}
    answers = {rule: Answer(said) for rule, said in asked.items() if said is not None}
    assert conclude(findings_by(**answers, **beside)).answer == expected


def test_what_surely_does_nothing_explains_nothing():
    """Removal says yes of any ranking that happens to be right."""
    answers = findings_by(faithfulness=Answer.YES)
    nothing = finding_of("effect", Answer.NO, has_no_effect=True)
    assert conclude([*answers, nothing]).answer == Answer.NO
    assert "Even the worst shuffle" in format_conclusion([*answers, nothing])
    little = finding_of("effect", Answer.NO)
    assert "hardly changes" in format_conclusion([*answers, little])


def test_at_chance_nothing_is_concluded():
    answers = findings_by(faithfulness=Answer.YES)
    nothing = finding_of("effect", Answer.NO, has_no_effect=True)
    for answer in (Answer.NO, Answer.CANNOT_SAY):
        at_chance = conclude([finding_of("accuracy", answer), *answers, nothing])
        assert at_chance.answer == Answer.CANNOT_SAY and at_chance.is_closed
    no_labels = Finding("accuracy", Answer.CANNOT_SAY, "", math.nan, None, 0)
    assert conclude([no_labels, *answers, nothing]).answer == Answer.NO


def test_what_a_verdict_still_needs_is_named():
    assert "A verdict also needs effect" in format_conclusion(findings_by(faithfulness=Answer.YES))
    lacking = format_conclusion(findings_by(effect=Answer.YES))
    assert "A verdict also needs faithfulness" in lacking
    open_effect = findings_by(effect=Answer.CANNOT_SAY, faithfulness=Answer.YES)
    assert "answer to effect is open" in format_conclusion(open_effect)


@pytest.mark.parametrize(
    "given",
    [
        "faithfulness",
        "faithfulness=x",
        "faithfulness=.7,.4",
        "effect=.1,.2",
        "luck=.1",
        "effect=inf",
    ],
)
def test_thresholds_that_are_none_are_refused(given):
    refused("is not valid; use one of", apply_thresholds, [given])


def test_thresholds_of_faithfulness_are_those_of_its_parts():
    rules = apply_thresholds(["mass=.3,.5", "faithfulness=.5,.8"])
    assert (rules["faithfulness"].partly, rules["faithfulness"].yes) == (0.5, 0.8)
    assert (rules["erasure"].partly, rules["erasure"].yes) == (0.5, 0.8)
    assert (rules["mass"].partly, rules["mass"].yes) == (0.3, 0.5)
    assert rules["effect"] == RULES["effect"]


# --- quality ------------------------------------------------------------------------


def test_quality_equals_its_definition_in_plain_numpy():
    generator = np.random.default_rng(0)
    n = 500
    labels = generator.integers(0, 3, n)
    predicted = np.where(generator.random(n) < 0.6, labels, generator.integers(0, 3, n))
    probability = generator.uniform(1 / 3, 1, n)
    frame = pd.DataFrame(
        {"predicted_class": predicted, "label": labels, "probability": probability}
    )
    is_right = predicted == labels
    edges = np.linspace(0, 1, 11)
    expected = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (probability >= low) & (probability < high)
        if inside.any():
            gap = is_right[inside].mean() - probability[inside].mean()
            expected += inside.mean() * abs(gap)
    got = measure_quality(Texts.from_frame(frame))
    assert got.accuracy.value == pytest.approx(is_right.mean())
    assert got.majority == np.bincount(labels).max() / n
    assert got.beyond_majority.value == pytest.approx(got.accuracy.value - got.majority)
    assert got.top_probability.value == pytest.approx(probability.mean())
    assert got.calibration_error == pytest.approx(expected)
    unlabelled = measure_quality(Texts.from_frame(frame.assign(label=-1)))
    assert unlabelled.accuracy is None and unlabelled.n_labelled == 0
    # one text without a label counts in the certainty alone
    frame.loc[0, "label"] = -1
    but_one = measure_quality(Texts.from_frame(frame))
    assert but_one.n_labelled == n - 1 and but_one.n == n


# --- rows of a model whose attention is some way from random to best -----------------


def way_of(ways, lost=None):
    """Statistics of the four parts, each text ``ways`` [texts] from random to best."""
    n = len(ways)
    every = np.ones(n)
    random, best = 0.6, 0.2
    return {
        "scale": {
            "importance@attention": ways,
            "removal@attention": 0.1 + 0.4 * ways,
            "removal@random": 0.1 * every,
            "removal@best": 0.5 * every,
            "mass@attention": 0.2 + 0.8 * ways,
            "mass_by_chance@attention": 0.2 * every,
            "largest_loss": 0.6 * every,
        },
        "erasure": {
            "fraction_to_lose_lead@attention": random - ways * (random - best),
            "fraction_to_lose_lead@random": random * every,
            "fraction_to_lose_lead@best": best * every,
            "lead_is_lost": every if lost is None else lost,
        },
    }


def moving(n, moved, worst=None):
    """Statistics of shuffles that move the output so far."""
    worst = 2 * moved if worst is None else worst
    standard = {"standard_tvd": np.full(n, moved), "largest_standard_tvd": np.full(n, worst)}
    return {"permutation": {**standard, "median_tvd": np.full(n, moved)}}


def evidence(n, way, moved=0.3, worst=None, noise=0.02):
    """Rows of a model that is right, whose attention goes so far."""
    ways = way + np.random.default_rng(5).normal(0, noise, n)
    return good_model(n, **way_of(ways), **moving(n, moved, worst))


@pytest.mark.parametrize(
    ("way", "moved", "worst", "expected"),
    [
        (0.9, 0.3, None, "yes"),
        (0.55, 0.3, None, "partly"),
        (0.1, 0.3, None, "no"),
        (-0.5, 0.3, None, "no"),  # worse than a random order
        (0.9, 0.02, 0.5, "no"),
        (0.9, 0.02, 0.03, "no"),
    ],
)
def test_the_verdict_of_rows(way, moved, worst, expected):
    rows = evidence(200, way, moved, worst)
    assert compute_answer(compute_findings(rows, ["neg", "pos"])) == expected
    (score,) = found("faithfulness", rows)
    own = rows[rows.statistic == "importance@attention"].value.mean()
    assert score.value == pytest.approx(own) and score.n == 200
    for part in ("importance", "erasure", "removal", "mass"):
        assert found(part, rows)[0].value == pytest.approx(own)


# --- the questions ------------------------------------------------------------------


def test_a_text_in_which_no_order_gets_there_is_0_of_the_way():
    n = 100
    lost = np.arange(n) % 4 > 0.0
    statistics = way_of(np.full(n, 0.8), lost=lost.astype(float))
    for name in ("attention", "random", "best"):
        statistics["erasure"][f"fraction_to_lose_lead@{name}"][~lost] = np.nan
    (finding,) = found("erasure", good_model(n, **statistics))
    assert finding.value == pytest.approx(0.8 * 0.75) and finding.n == n
    assert "In 25% of the texts no order" in finding.sentence
    nobody = way_of(np.full(n, 0.8), lost=np.zeros(n))
    for name in ("attention", "random", "best"):
        nobody["erasure"][f"fraction_to_lose_lead@{name}"][:] = np.nan
    (finding,) = found("erasure", good_model(n, **nobody))
    assert (finding.answer, finding.value) == (Answer.NO, 0.0)


def test_a_class_that_is_said_by_default_is_left_out_and_named():
    n = 120
    is_default = np.arange(n) % 2 == 0  # predicted "neg"
    statistics = way_of(np.where(is_default, 0.0, 0.9))
    statistics["scale"]["largest_loss"] = np.where(is_default, 0.01, 0.6)
    rows = good_model(n, **statistics, **moving(n, 0.3))
    (finding,) = found("faithfulness", rows)
    assert finding.value == pytest.approx(0.9) and finding.n == n / 2
    assert "predicts neg by default, so these texts (50%)" in finding.sentence
    statistics["scale"]["largest_loss"] = np.full(n, 0.6)  # it matters, and attention misses it
    (finding,) = found("faithfulness", good_model(n, **statistics, **moving(n, 0.3)))
    assert finding.value == pytest.approx(0.45) and "by default" not in finding.sentence
    assert "Predicted classes differ: 0.00" in finding.sentence


def test_the_effect_is_graded_at_the_standard_temperature():
    n = 100
    rows = good_model(n, **moving(n, 2 * EFFECT_THRESHOLD))
    (moved,) = found("effect", rows)
    assert (moved.answer, moved.value) == (Answer.YES, pytest.approx(2 * EFFECT_THRESHOLD))
    unsure = rows.assign(value=rows.value.mask(rows.statistic == "median_tvd", 0.001))
    assert found("effect", unsure)[0].answer == Answer.YES  # that of its own logits is beside
    (little,) = found("effect", good_model(n, **moving(n, 0.01, worst=0.5)))
    assert little.answer == Answer.NO and not little.has_no_effect
    (nothing,) = found("effect", good_model(n, **moving(n, 0.01, worst=0.02)))
    assert nothing.has_no_effect


def test_pinned_down_needs_an_upper_bound():
    """A lower bound of .35 of .69 was called "fairly well pinned down" once."""
    n = 100
    lower = {
        "share_of_largest@0.01": np.full(n, 0.1),
        "epsilon_max_jsd@0.01": np.full(n, 0.06),
        "largest_jsd": np.full(n, 0.6),
        "epsilon_max_jsd_exact": np.zeros(n),
    }
    (unknown,) = found("uniqueness", good_model(n, adversarial=lower))
    assert unknown.answer == Answer.CANNOT_SAY
    assert "at least 0.10" in unknown.sentence
    far = {"share_of_largest_upper@0.01": np.full(n, 0.8)}
    (open_,) = found("uniqueness", good_model(n, adversarial=lower | far))
    assert open_.answer == Answer.CANNOT_SAY
    near = {"share_of_largest_upper@0.01": np.full(n, 0.2)}
    (pinned,) = found("uniqueness", good_model(n, adversarial=lower | near))
    assert pinned.answer == Answer.YES
    exact = lower | {"epsilon_max_jsd_exact": np.ones(n)}
    assert found("uniqueness", good_model(n, adversarial=exact))[0].answer == "yes"
    free = lower | {"share_of_largest@0.01": np.full(n, 0.9)}
    assert found("uniqueness", good_model(n, adversarial=free))[0].answer == "no"


def test_many_heads_are_answered_for_together_or_not_at_all():
    n = 60
    moved = moving(n, 0.3)["permutation"]
    heads = pd.concat([good_model(n, permutation=moved), rows_of("permutation", moved, head=1)])
    assert [f.rule for f in compute_findings(heads, "np")] == ["accuracy"]
    whole = moving(n, 0.01)["permutation"]
    together = pd.concat([heads, rows_of("permutation", whole, layer=-1, head=-1)])
    (finding,) = found("effect", together)
    assert finding.answer == Answer.NO and finding.value == pytest.approx(0.01)


# --- audits -------------------------------------------------------------------------


def generated_texts(tokenizer, n, length):
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, length)) for _ in range(n)]
    return datasets.Dataset.from_list(
        [{"text": text, "label": k % 2, "example_id": k} for k, text in enumerate(texts)]
    )


# --- the reviewer's cases -----------------------------------------------------------


def test_room_says_that_it_follows_saturation_and_is_read_at_the_papers_epsilon():
    n = 100
    rows = {"share_of_largest@0.01": 0.9, "share_of_largest@0.05": 0.1}
    rows |= {"epsilon_max_jsd@0.01": 0.6, "largest_jsd": 0.69}
    rows |= {"epsilon_max_jsd_exact": 1.0}
    columns = {name: np.full(n, value) for name, value in rows.items()}
    accuracy, finding = compute_findings(good_model(n, adversarial=columns), "np")
    assert finding.answer == Answer.NO  # at .05 it would be yes
    assert "depends on how saturated the output is" in finding.sentence
    assert "mean top probability" in accuracy.sentence
    assert "calibration error" in accuracy.sentence


def test_no_sentence_of_an_audit_is_long(tokenizer):
    """One thought each: a list of numbers in brackets apart, at most 45 words."""
    model = tiny_models.classifier(
        len(tokenizer), query=5, encoder="cnn", embedding_size=64, encoder_size=64
    )
    texts = generated_texts(tokenizer, n=32, length=7)
    report = audit(model, texts, tokenizer=tokenizer, progress=False)
    assert {f.rule for f in report.findings} == {"accuracy", *CLASSIFIER_QUESTIONS}
    for finding in report.findings:
        words = re.sub(r"\[[^\]]*\]", "", finding.sentence)
        for sentence in re.split(r"(?<=[^.])\. ", words):
            assert len(sentence.split()) <= 45, sentence
