"""Answers from rows: the rules, the control beside them, and when nothing can be said."""

import itertools
import math
import re

import datasets
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from hf_attnprobe.auditing.control import control_of, sharpen_like
from hypothesis import given
from hypothesis import strategies as st

import zoo
from hf_attnprobe import (
    AttnProbeError,
    AuditOptions,
    audit,
    build_tokenizer,
    rationale_dataset,
    read_audit,
    wrap,
)
from hf_attnprobe.auditing.prepare import reference_batch
from hf_attnprobe.auditing.verdict import conclusion, conclusion_sentence, findings
from hf_attnprobe.demonstration import DemoOptions
from hf_attnprobe.functional.linear import epsilon_max_jsd
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import (
    GRADES,
    MIN_TEXTS,
    Answer,
    grade,
    grade_between,
    possible_answers,
)
from hf_attnprobe.statistics.questions import QUESTIONS
from hf_attnprobe.statistics.rows import Rows, Texts
from hf_attnprobe.statistics.scores import quality
from hf_attnprobe.statistics.verdicts import DECISIVE, RANKINGS, RULES, Finding, conclude, overall
from hf_attnprobe.storage.rows import read_rows
from made_up_rows import rows_of_texts


def rows_of(test, columns, *, layer=0, head=0):
    """Long rows of one site from columns of per-text values."""
    named = {(test, name): values for name, values in columns.items()}
    return rows_of_texts(named, layer=layer, head=head)


LETTERS = {  # importance, assignment, uniqueness, erasure, removal
    "yes": "yyyyy yynyy yy.yy yy?yy",  # other attention as good does not make this one false
    "mostly yes": "yyny? yyyy? yy.y? yyy?y ?yyyy yyyyn yypyp yyypp nynyy",
    "partly": "yypnp pyppp",
    "mostly no": "nnn?y ynyyy nynny nnnny ?n???",  # the weights hardly matter
    "no": "nyynn nynnn n?nnn n..nn n.?nn nnnnn",  # named no better than at random tokens
    "cannot say": ".y... y.... yyy.y y.yyy .nn.. n.... ????? .....",
}


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


def found(rule, rows, control=None, labels=("neg", "pos")):
    return [f for f in findings(rows, control, labels) if f.rule == rule]


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
    assert grade_between(sure, sure, rule) == Answer.YES
    assert grade_between(unknown, sure, rule) == Answer.CANNOT_SAY
    assert possible_answers(unknown, sure, rule) == tuple(RULES_ANSWERS)
    low = Estimate(0.1, (0.05, 0.2), 100)
    assert grade_between(unknown, low, rule) == Answer.NO


RULES_ANSWERS = (Answer.NO, Answer.PARTLY, Answer.YES)


WORDS = {"y": Answer.YES, "p": Answer.PARTLY, "n": Answer.NO, "?": Answer.CANNOT_SAY}


def answered(letters):
    """Answers by question from a letter each, in their order; a dot was not asked."""
    pairs = zip(QUESTIONS, letters, strict=True)
    return {rule: WORDS[letter] for rule, letter in pairs if letter != "."}


def test_one_answer_from_several():
    for expected, each in LETTERS.items():
        for letters in each.split():
            assert overall(answered(letters)) == expected, letters


SOMETIMES = st.fixed_dictionaries(
    {}, optional={rule: st.sampled_from(sorted(WORDS.values())) for rule in QUESTIONS}
)
FITS = {
    Answer.YES: {Answer.YES},
    Answer.NO: {Answer.NO},
    Answer.MOSTLY_YES: {Answer.YES, Answer.MOSTLY_YES},
    Answer.MOSTLY_NO: {Answer.NO, Answer.MOSTLY_NO},
    Answer.PARTLY: {Answer.PARTLY},
}
"""What the verdict may become, once it was said."""


@given(SOMETIMES, st.data())
def test_an_answer_to_an_open_question_never_contradicts_what_was_said(answers, data):
    before = overall(answers)
    open_ones = [rule for rule, said in answers.items() if said == Answer.CANNOT_SAY]
    if not open_ones or before == Answer.CANNOT_SAY:
        return
    for rule in data.draw(st.permutations(open_ones)):
        answers = {**answers, rule: data.draw(st.sampled_from(GRADES))}
        assert overall(answers) in FITS[before]


@given(SOMETIMES)
def test_what_cannot_be_said_could_come_out_both_ways(answers):
    """The verdict stays open only where some answers differ, or questions are missing."""
    if overall(answers) != Answer.CANNOT_SAY:
        return
    open_ones = [rule for rule, said in answers.items() if said == Answer.CANNOT_SAY]
    given_ = itertools.product(GRADES, repeat=len(open_ones))
    ends = {overall(answers | dict(zip(open_ones, g, strict=True))) for g in given_}
    assert len(ends) > 1 or not {*DECISIVE} <= {*answers}


@given(SOMETIMES)
def test_yes_needs_the_four_deciding_questions_and_nothing_else(answers):
    all_four = all(answers.get(rule) == Answer.YES for rule in DECISIVE)
    assert (overall(answers) == Answer.YES) == all_four
    if not {*DECISIVE} <= {*answers}:
        assert overall(answers) in (Answer.NO, Answer.CANNOT_SAY)


@given(SOMETIMES)
def test_more_agreement_never_makes_the_verdict_worse(answers):
    order = ["no", "mostly no", "partly", "mostly yes", "yes"]
    if Answer.CANNOT_SAY in answers.values() or not {*DECISIVE} <= {*answers}:
        return
    before = order.index(overall(answers))
    for rule, said in answers.items():
        for better in GRADES[GRADES.index(said) + 1 :]:
            assert order.index(overall(answers | {rule: better})) >= before


def finding_of(rule, answer, group="all", **more):
    return Finding(rule, group, answer, "", 0.5, (0.4, 0.6), 100, **more)


def test_three_of_the_four_questions_are_no_verdict():
    for missing in DECISIVE:
        answers = [finding_of(r, Answer.YES) for r in QUESTIONS if r != missing]
        concluded = conclude(answers)
        assert concluded.answer == Answer.CANNOT_SAY and concluded.missing == [missing]
        said = conclusion_sentence(answers)
        assert f"(a verdict also needs {missing}; 4 of 5 questions asked: 4 yes: " in said


def test_what_surely_does_nothing_explains_nothing():
    """Removal says yes of any ranking that happens to be right."""
    by_letter = answered("ynyyy")
    rest = [finding_of(r, a) for r, a in by_letter.items() if r != "assignment"]
    nothing = finding_of("assignment", Answer.NO, is_nothing=True)
    assert conclude([*rest, nothing]).answer == Answer.NO
    assert "no effect" in conclusion_sentence([*rest, nothing])
    little = finding_of("assignment", Answer.NO)
    assert conclude([*rest, little]).answer == Answer.MOSTLY_NO
    # of one class only the model's attention may well do something elsewhere
    by_class = [
        finding_of("assignment", Answer.NO, "neg", is_nothing=True),
        finding_of("assignment", Answer.YES, "pos"),
    ]
    assert conclude([*rest, *by_class]).answer == Answer.MOSTLY_YES


def test_at_chance_nothing_is_concluded():
    answers = [finding_of(rule, Answer.YES) for rule in QUESTIONS]
    nothing = [finding_of(rule, Answer.NO, is_nothing=True) for rule in QUESTIONS]
    assert conclude(answers).answer == Answer.YES
    assert conclude([finding_of("accuracy", Answer.YES), *answers]).answer == "yes"
    for answer in (Answer.NO, Answer.CANNOT_SAY):
        at_chance = conclude([finding_of("accuracy", answer), *answers])
        assert at_chance.answer == Answer.CANNOT_SAY and at_chance.at_chance
        assert conclude([finding_of("accuracy", answer), *nothing]).answer == "cannot say"
    no_labels = Finding("accuracy", "all", Answer.CANNOT_SAY, "", math.nan, None, 0)
    assert conclude([no_labels, *answers]).answer == Answer.YES


def test_classes_that_differ_are_counted_as_one_question():
    yes = [finding_of(r, Answer.YES) for r in QUESTIONS if r != "importance"]
    halves = [
        finding_of("importance", Answer.NO, "neg"),
        finding_of("importance", Answer.YES, "pos"),
    ]
    concluded = conclude([*yes, *halves])
    assert concluded.answers["importance"] == Answer.PARTLY
    assert concluded.answer == Answer.MOSTLY_YES
    open_half = [halves[1], finding_of("importance", Answer.CANNOT_SAY, "neg")]
    assert conclude([*yes, *open_half]).answer == Answer.YES


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
    got = quality(Texts.of_frame(frame))
    assert got.accuracy.value == pytest.approx(is_right.mean())
    assert got.majority == np.bincount(labels).max() / n
    assert got.beyond_majority.value == pytest.approx(got.accuracy.value - got.majority)
    assert got.top_probability.value == pytest.approx(probability.mean())
    assert got.calibration_error == pytest.approx(expected)
    unlabelled = quality(Texts.of_frame(frame.assign(label=-1)))
    assert unlabelled.accuracy is None and unlabelled.n_labelled == 0
    # one text without a label counts in the certainty alone
    frame.loc[0, "label"] = -1
    but_one = quality(Texts.of_frame(frame))
    assert but_one.n_labelled == n - 1 and but_one.n == n


def evidence(n, way, moved=0.3, nothing=None, noise=0.02):
    """Rows and control of a model that goes so far beyond its control, of 1.

    The statistics of the four deciding questions; the control's way is 0.
    """
    draw = np.random.default_rng(5)
    random, best = 0.6, 0.2

    def columns(way):
        ways = way + draw.normal(0, noise, n)
        return {
            "correlation": {"attention_leave_one_out_agreement": ways},
            "erasure": {
                "fraction_to_lose_lead@attention": random - ways * (random - best),
                "fraction_to_lose_lead@random": np.full(n, random),
                "fraction_to_lose_lead@best": np.full(n, best),
            },
            "input_erasure": {
                "comprehensiveness@attention": 0.1 + 0.5 * ways,
                "comprehensiveness@random": np.full(n, 0.1),
            },
        }

    worst = moved * 2 if nothing is None else nothing
    moves = {"median_tvd": np.full(n, moved), "largest_change": np.full(n, worst)}
    rows = good_model(n, permutation=moves, **columns(way))
    control = pd.concat([rows_of(t, c) for t, c in columns(0.0).items()])
    return rows, control


def test_the_verdict_of_rows():
    for way, moved, nothing, expected in (
        (0.9, 0.3, None, "yes"),
        (0.4, 0.3, None, "partly"),  # removal and assignment only
        (0.0, 0.3, None, "no"),
        (0.9, 0.01, 0.5, "mostly no"),
        (0.9, 0.01, 0.02, "no"),
        (-0.5, 0.3, None, "no"),  # worse than at random tokens
    ):
        rows, control = evidence(200, way, moved, nothing)
        assert conclusion(findings(rows, control, ["neg", "pos"])) == expected
    few = good_model(2, permutation={"median_tvd": [0.9, 0.9]})
    assert found("assignment", few)[0].answer == Answer.CANNOT_SAY
    assert conclusion(findings(few, None, ["neg", "pos"])) == Answer.CANNOT_SAY


def test_a_model_at_chance_gets_no_conclusion():
    n = 200
    labels = np.arange(n) % 2.0
    rows, control = evidence(n, 0.9)
    rest = rows[rows.test != "prediction"]
    at_chance = pd.concat([predictions(np.zeros(n), labels), rest])
    found_at_chance = findings(at_chance, control, ["neg", "pos"])
    assert found_at_chance[0].rule == "accuracy"
    assert found_at_chance[0].answer != Answer.YES
    assert found_at_chance[1].answer == Answer.YES  # attention follows the predictions
    assert conclusion(found_at_chance) == Answer.CANNOT_SAY
    assert "not shown to be better" in conclusion_sentence(found_at_chance)
    assert conclusion(findings(rows, control, "np")) == "yes"


# --- the questions ------------------------------------------------------------------


def test_agreement_counts_beyond_the_control_alone():
    generator = np.random.default_rng(0)
    n, name = 200, "attention_leave_one_out_agreement"
    noise = generator.normal(0, 0.1, n)
    own, near = 0.75 + noise, 0.74 + noise
    rows = good_model(n, correlation={name: own})
    (same,) = found("importance", rows, rows_of("correlation", {name: near}))
    share = (own.mean() - near.mean()) / (1 - near.mean())
    assert same.answer == Answer.NO and same.value == pytest.approx(share)
    (more,) = found("importance", rows, rows_of("correlation", {name: noise}))
    assert more.answer == Answer.YES
    assert more.value == pytest.approx(0.75 / (1 - noise.mean()))
    (alone,) = found("importance", rows)
    assert alone.answer == Answer.CANNOT_SAY and "No control" in alone.sentence
    assert alone.open_because
    low = good_model(n, correlation={name: noise})
    assert found("importance", low)[0].answer == Answer.NO  # whatever a control reaches


def test_agreement_is_compared_on_the_texts_of_both():
    """A control of "0.95" was printed that nobody had measured."""
    n, name = 100, "attention_leave_one_out_agreement"
    own = np.where(np.arange(n) < 60, 0.9, 0.1)
    theirs = np.where(np.arange(n) < 60, 0.2, np.nan)
    rows = good_model(n, correlation={name: own})
    for k, finding in enumerate(
        [
            *found("importance", rows, rows_of("correlation", {name: theirs})),
            *found("importance", rows, rows_of("correlation", {name: theirs[:60]})),
        ]
    ):
        assert finding.n == 60, k
        assert finding.value == pytest.approx((0.9 - 0.2) / (1 - 0.2))
        assert finding.yardsticks["control"] == pytest.approx(0.2)


def test_a_saturated_output_is_graded_by_its_log_odds():
    n = 100
    hardly = {"median_tvd": np.full(n, 0.01), "largest_drawn_change": np.full(n, 0.6)}
    in_log_odds = hardly | {"median_share_of_log_odds": np.full(n, 0.45)}
    (moved,) = found("assignment", good_model(n, permutation=in_log_odds))
    assert (moved.answer, moved.value) == (Answer.YES, pytest.approx(0.45))
    assert "log-odds are graded" in moved.sentence
    (alone,) = found("assignment", good_model(n, permutation=hardly))
    assert alone.answer == Answer.NO and not alone.is_nothing
    less = hardly | {"median_share_of_log_odds": np.full(n, 0.005)}
    (larger,) = found("assignment", good_model(n, permutation=less))
    assert larger.value == pytest.approx(0.01)
    assert "total variation is graded" in larger.sentence
    least = less | {"largest_drawn_change": np.full(n, 0.03)}
    assert found("assignment", good_model(n, permutation=least))[0].is_nothing
    # of all permutations where they are known, not of those that were drawn
    worst = least | {"largest_change": np.full(n, 0.3)}
    assert not found("assignment", good_model(n, permutation=worst))[0].is_nothing


def test_two_modes_are_two_verdicts():
    n = 200
    moved = np.where(np.arange(n) % 2, 0.69, 0.02)
    first, second = found("assignment", good_model(n, permutation={"median_tvd": moved}))
    assert (first.group, first.answer) == ("neg", "no")
    assert (second.group, second.answer) == ("pos", "yes")
    assert second.value == pytest.approx(0.69) and "predicted pos" in second.sentence
    same = good_model(n, permutation={"median_tvd": np.full(n, 0.4)})
    (pooled,) = found("assignment", same)
    assert pooled.group == "all"


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


def test_an_interval_across_a_threshold_cannot_say_between_which():
    rows, control = evidence(200, 0.5, noise=0.3)
    (finding,) = found("erasure", rows, control)
    assert finding.answer == Answer.CANNOT_SAY
    assert "cannot say (partly or yes)" in finding.sentence


def test_where_there_is_no_way_to_go_nothing_is_said():
    """As of texts in which the first token to go loses the lead, whichever it is."""
    rows, control = evidence(60, 0.9)
    same = rows.statistic.str.startswith("fraction_to_lose_lead")
    rows = rows.assign(value=rows.value.mask(same, 0.5))
    assert found("erasure", rows, control) == [] == found("erasure", rows)
    best = control.assign(value=control.value.mask(control.test == "correlation", 1.0))
    assert found("importance", rows, best) == []
    for finding in findings(rows, best, ["neg", "pos"]):
        assert "nan" not in finding.sentence
    found_without = findings(rows, control, ["neg", "pos"])
    assert "also needs erasure" in conclusion_sentence(found_without)


def spread(rows, by):
    """The same rows, every number of the four questions so much larger."""
    return rows.assign(value=rows.value + by * (rows.test == "correlation"))


def test_draws_of_reassigned_attention_are_averaged():
    """A draw for every text: their spread is the texts'."""
    rows, control = evidence(200, 0.9)
    several = pd.concat(spread(control, by).assign(draw=k) for k, by in enumerate([-0.2, 0.0, 0.5]))
    (mean,) = found("importance", rows, several)
    name = "attention_leave_one_out_agreement"
    own = rows[rows.statistic == name].value.mean()
    theirs = control[control.statistic == name].value.mean() + 0.1
    assert mean.value == pytest.approx((own - theirs) / (1 - theirs))
    by_draw = [(own - c) / (1 - c) for c in (theirs - 0.3, theirs - 0.1, theirs + 0.4)]
    assert [way >= 0.5 for way in by_draw] == [True] * 3
    assert mean.other_draws == 0
    closer = evidence(200, 0.7)[0]
    own = closer[closer.statistic == name].value.mean()
    by_draw = [(own - c) / (1 - c) for c in (theirs - 0.3, theirs - 0.1, theirs + 0.4)]
    assert [way >= 0.5 for way in by_draw] == [True, True, False]
    (mean,) = found("importance", closer, several)
    assert mean.answer == Answer.YES and mean.other_draws == pytest.approx(1 / 3)
    assert found("importance", closer, control)[0].other_draws is None
    assert found("assignment", closer, several)[0].other_draws is None


def test_draws_of_other_weights_widen_the_interval():
    """One model for all texts: another one may be elsewhere, by Student's t."""
    rows, control = evidence(200, 0.9)
    shifts = [-0.2, 0.0, 0.5]
    several = pd.concat(spread(control, by).assign(draw=k) for k, by in enumerate(shifts))

    def importance(control, **options):
        (one,) = [f for f in findings(rows, control, "np", **options) if f.rule == "importance"]
        return one

    by_texts, by_both = importance(several), importance(several, shares_draws=True)
    name = "attention_leave_one_out_agreement"
    own = rows[rows.statistic == name].value.mean()
    chance = control[control.statistic == name].value.mean() + np.array(shifts)
    half = scipy.stats.t.ppf(0.975, 2) * scipy.stats.sem((own - chance) / (1 - chance))
    assert by_both.value == by_texts.value
    below, above = (math.hypot(end - by_both.value, half) for end in by_texts.ci95)
    expected = by_both.value - below, min(by_both.value + above, 1.0)
    assert by_both.ci95 == pytest.approx(expected)
    one = importance(several[several.draw == 0], shares_draws=True)
    assert one.ci95 is None and one.answer == Answer.CANNOT_SAY
    assert "next one" in one.open_because


def test_many_heads_are_answered_for_together_or_not_at_all():
    n = 60
    moved = {"median_tvd": np.full(n, 0.3)}
    heads = pd.concat([good_model(n, permutation=moved), rows_of("permutation", moved, head=1)])
    assert [f.rule for f in findings(heads, None, "np")] == ["accuracy"]
    whole = {"median_tvd": np.full(n, 0.01)}
    together = pd.concat([heads, rows_of("permutation", whole, layer=-1, head=-1)])
    (finding,) = found("assignment", together)
    assert finding.answer == Answer.NO and finding.value == pytest.approx(0.01)


# --- audits -------------------------------------------------------------------------


def generated_texts(tokenizer, n=60, length=20, n_labels=2):
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, length)) for _ in range(n)]
    return datasets.Dataset.from_list(
        [{"text": text, "label": k % n_labels, "example_id": k} for k, text in enumerate(texts)]
    )


def untrained(encoder, sharpness, vocabulary, seed=0):
    sizes = {"embedding_size": 64, "encoder_size": 64, "encoder": encoder}
    return zoo.classifier(vocabulary, query=sharpness, seed=seed, **sizes)


def test_an_untrained_network_is_not_said_to_agree(tokenizer):
    """Their τ with leave-one-out was .72 and .79, and "agrees well" was printed."""
    texts = generated_texts(tokenizer)
    for encoder, sharpness in (("none", 8), ("mlp", 20)):
        model = untrained(encoder, sharpness, len(tokenizer))
        report = audit(model, texts, ["correlation"], tokenizer=tokenizer, progress=False)
        (finding,) = [f for f in report.findings if f.rule == "importance"]
        assert finding.yardsticks["control"] > 0.5  # as much as the model itself
        assert finding.answer in (Answer.NO, Answer.CANNOT_SAY)
        assert "agrees" not in finding.sentence
        assert report.answer == Answer.CANNOT_SAY  # its labels are tosses of a coin


def test_the_control_is_the_same_tests_on_the_shuffled_weights(tokenizer, tmp_path):

    model = untrained("cnn", 5, len(tokenizer))
    texts = generated_texts(tokenizer, n=12, length=7)
    run = {"tokenizer": tokenizer, "progress": False}
    options = AuditOptions(control="randomised", control_draws=1)
    report = audit(model, texts, ["permutation"], options=options, output_dir=tmp_path / "a", **run)
    other = wrap(control_of(model, "randomised", n_layers=None, seed=0))
    batch = reference_batch(wrap(model), tokenizer, texts)
    assert sharpen_like(other, wrap(model), batch)
    other.given.load_state_dict(other.model.state_dict())  # an audit compares the two
    alone = audit(other, texts, ["permutation"], options=AuditOptions(), **run)
    assert alone.contrasts == () and "control" not in alone.provenance
    held = read_rows(tmp_path / "a" / "control" / "draw-0" / "rows")
    key = ["test", "statistic", "example_id"]
    both = held.merge(alone.to_pandas(), on=key)
    assert len(both) == len(held) == len(alone.to_pandas())
    np.testing.assert_allclose(both.value_x, both.value_y, atol=1e-12)
    means = held[held.statistic == "median_tvd"].value.mean()
    (beside,) = [c for c in report.contrasts if (c.statistic, c.group) == ("median_tvd", "all")]
    assert beside.control_mean == pytest.approx(means)
    assert beside.value == pytest.approx(beside.mean - means)
    (line,) = [s for s in report.to_markdown().splitlines() if s.startswith("| median_tvd | all")]
    assert line.split(" | ")[-2] == f"{means:.3f}"  # in the column of the control
    again = read_audit(tmp_path / "a")
    assert again.findings == report.findings and again.contrasts == report.contrasts
    assert again.to_text(verbose=True) == report.to_text(verbose=True)


def test_what_a_control_keeps_and_what_it_loses(tokenizer):

    model = untrained("bilstm", 3, 50)
    other = control_of(model, "randomised", n_layers=None, seed=1)
    for name, weights in model.named_parameters():
        changed = dict(other.named_parameters())[name]
        torch.testing.assert_close(weights.flatten().sort().values, changed.flatten().sort().values)
        if weights.numel() > 8:
            assert not torch.equal(weights, changed)
    again = control_of(model, "randomised", n_layers=None, seed=1)
    for first, second in zip(other.parameters(), again.parameters(), strict=True):
        assert torch.equal(first, second)
    fresh = control_of(model, "untrained", n_layers=None, seed=1)
    ratio = (
        model.attention_classifier.attention.query.weight.std()
        / fresh.attention_classifier.attention.query.weight.std()
    )
    assert math.isclose(ratio.item(), 3, rel_tol=0.5)  # its sharpness is gone


@pytest.mark.parametrize("attention", ["additive", "dot_product"])
def test_a_control_attends_as_sharply_as_the_model(tokenizer, attention):
    """Peaked attention agrees with leave-one-out by algebra, whatever it learned."""
    sizes = {"embedding_size": 16, "encoder": "none", "attention": attention}
    model = zoo.classifier(tokenizer, query=6, **sizes)
    direction = torch.randn(16)
    with torch.no_grad():  # what training does: some words along the query
        model.attention_classifier.embeddings.weight[5:15] += 3 * direction
        if attention == "dot_product":
            model.attention_classifier.attention.query.weight.add_(direction)
    own = wrap(model)
    other = wrap(control_of(model, "randomised", n_layers=None, seed=0))
    batch = reference_batch(own, tokenizer, generated_texts(tokenizer))

    def peak(adapter):
        return adapter.observe(batch).read(adapter.sites()[0]).amax(-1).mean().item()

    assert abs(peak(other) - peak(own)) > 0.05
    assert sharpen_like(other, own, batch)
    assert peak(other) == pytest.approx(peak(own), abs=1e-3)


def test_from_the_top_down_lower_layers_stay():
    model = zoo.bert(40, layers=3, spread=0.02)
    own = dict(model.named_parameters())

    def changed(n_layers):
        other = control_of(model, "randomised", n_layers=n_layers, seed=0)
        return {n for n, p in other.named_parameters() if not torch.equal(p, own[n])}

    head = changed(0)
    assert head == {"bert.pooler.dense.weight", "classifier.weight"}
    top = changed(1)
    assert any(name.startswith("bert.encoder.layer.2.") for name in top)
    assert not any("layer.1." in name or "embeddings" in name for name in top)
    assert top > head and changed(3) > changed(2) > top
    assert not any("embeddings" in name for name in changed(3))
    assert any("embeddings" in name for name in changed(None))
    with pytest.raises(AttnProbeError, match="at most 3"):
        changed(4)


# --- one report, one truth ----------------------------------------------------------


def test_medians_by_weight_keep_predicted_classes_apart():
    """.187 and .690 were printed as one median of .313 that no text has."""

    from hf_attnprobe.auditing.report import Report
    from hf_attnprobe.data.examples import DatasetName

    n = 40
    moved = {
        "median_tvd": np.where(np.arange(n) % 2, 0.690, 0.187),
        "max_attention": np.full(n, 0.9),
    }
    told = {"classes": ["neg", "pos"], "asked_for": {"model": "m", "dataset": "d"}}
    rows = good_model(n, permutation=moved)
    data = DatasetName("d", "test")
    text = Report("m", data, n, 0, (), told, rows=Rows.of(rows)).to_markdown()
    assert "| neg | [0.75, 1.00] | 20 | 0.187 |" in text
    assert "| pos | [0.75, 1.00] | 20 | 0.690 |" in text


# --- the reviewer's cases -----------------------------------------------------------


def test_three_classes_get_bounds_and_no_word_of_pinned_down():
    """REVIEW A3: a search found .35 and the report said "fairly well pinned down"; a
    grid over attentions to three tokens finds .546 on average within .05."""
    texts = rationale_dataset(DemoOptions().n_examples, seed=0)["train"]["text"]
    tokenizer = build_tokenizer(texts)
    data = generated_texts(tokenizer, n=40, length=12, n_labels=3)
    sizes = {"embedding_size": 16, "encoder": "mlp", "encoder_size": 16, "num_labels": 3}
    model = zoo.classifier(tokenizer, read_out=8, query=6, seed=1, **sizes)
    report = audit(model, data, ["adversarial"], tokenizer=tokenizer, progress=False)
    mean = {s.statistic: s.mean for s in report.statistics if s.group == "all"}
    # The order of the vocabulary differs between processes, so the words are sorted.
    assert mean["epsilon_max_jsd@0.05"] > 0.546
    assert 0.03 > mean["epsilon_max_jsd_upper@0.05"] - mean["epsilon_max_jsd@0.05"] > 0
    (finding,) = [f for f in report.findings if f.rule == "uniqueness"]
    assert finding.answer != Answer.YES
    assert "at least" in finding.sentence and "certainly at most" in finding.sentence
    assert "pinned" not in finding.sentence


def test_room_says_that_it_follows_saturation_and_is_read_at_the_papers_epsilon():
    """REVIEW A7: the same attention is "pinned down" or not by scaling one logit."""
    attention = torch.full((1, 20), 0.05 / 19, dtype=torch.float64)
    attention[0, 0] = 0.95
    real = torch.ones(1, 20, dtype=torch.bool)
    room = {}
    for logit in (4, 8, 12, 16, 24):
        logits = torch.zeros(1, 20, dtype=torch.float64)
        logits[0, 0] = logit / 0.95
        room[logit] = epsilon_max_jsd(attention, logits, real, [0.05]).jsd.item()
    expected = {4: 0.158, 8: 0.307, 12: 0.391, 16: 0.441, 24: 0.500}
    assert room == pytest.approx(expected, abs=5e-4)
    n = 100
    rows = {"share_of_largest@0.01": 0.9, "share_of_largest@0.05": 0.1}
    rows |= {"epsilon_max_jsd@0.01": 0.6, "largest_jsd": 0.69}
    rows |= {"epsilon_max_jsd_exact": 1.0}
    columns = {name: np.full(n, value) for name, value in rows.items()}
    accuracy, finding = findings(good_model(n, adversarial=columns), None, "np")
    assert finding.answer == Answer.NO  # at .05 it would be yes
    assert "depends on how saturated the output is" in finding.sentence
    assert "mean top probability" in accuracy.sentence
    assert "calibration error" in accuracy.sentence


def test_no_sentence_of_an_audit_is_long(tokenizer):
    """One thought each: a list of numbers in brackets apart, at most 45 words."""
    model = untrained("cnn", 5, len(tokenizer))
    texts = generated_texts(tokenizer, n=32, length=7)
    report = audit(model, texts, tokenizer=tokenizer, progress=False)
    assert {f.rule for f in report.findings} == {*BY_AUDIT}
    for finding in report.findings:
        words = re.sub(r"\[[^\]]*\]", "", finding.sentence)
        for sentence in re.split(r"(?<=[^.])\. ", words):
            assert len(sentence.split()) <= 45, sentence


BY_AUDIT = ["accuracy", "importance", "assignment", "uniqueness", "erasure", "removal"]


def test_what_a_control_does_as_well_is_no_finding():
    rows, control = evidence(200, 0.6)
    alone = {f.rule: f for f in findings(rows, None, ["neg", "pos"])}
    for rule in RANKINGS:  # it could all be the control's
        assert alone[rule].answer == Answer.CANNOT_SAY
        assert "no control" in alone[rule].open_because
    beside = {f.rule: f.answer for f in findings(rows, rows, ["neg", "pos"])}
    assert [beside[rule] for rule in RANKINGS] == [Answer.NO] * 3
    beyond = {f.rule: f.answer for f in findings(rows, control, ["neg", "pos"])}
    assert [beyond[rule] for rule in RANKINGS] == [Answer.YES] * 3
    weak, _ = evidence(200, 0.0)
    without = {f.rule: f.answer for f in findings(weak, None, ["neg", "pos"])}
    assert [without[rule] for rule in RANKINGS] == [Answer.NO] * 3


def test_a_control_that_attends_less_sharply_is_a_weak_yardstick():
    n = 100
    name = "attention_leave_one_out_agreement"
    own = {name: np.full(n, 0.6)}
    rows = good_model(n, correlation=own, permutation={"max_attention": np.full(n, 0.7)})
    agreement = rows_of("correlation", {name: np.full(n, 0.1)})
    for sharpness, answer in ((0.6, Answer.YES), (0.1, Answer.CANNOT_SAY)):
        weights = {"max_attention": np.full(n, sharpness)}
        control = pd.concat([agreement, rows_of("permutation", weights)])
        (finding,) = found("importance", rows, control)
        assert finding.answer == answer
        assert ("less sharply" in finding.sentence) == (sharpness == 0.1)


def test_a_model_that_cannot_be_copied_is_reassigned_all_the_same(tokenizer):
    from threading import Lock

    adapter = wrap(untrained("cnn", 5, len(tokenizer)))
    adapter.lock = Lock()
    texts = generated_texts(tokenizer, n=4, length=7)
    run = {"tokenizer": tokenizer, "progress": False}
    report = audit(adapter, texts, ["correlation"], **run)
    assert "its weights at other tokens" in report.provenance["control"]
    asked = AuditOptions(control="randomised")
    with pytest.raises(AttnProbeError, match="cannot copy the model for a control"):
        audit(adapter, texts, ["permutation"], options=asked, **run)
