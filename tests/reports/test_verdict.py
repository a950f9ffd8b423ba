"""Answers from rows: the rules, what decides, and when nothing can be said."""

import itertools
import re

import datasets
import numpy as np
import pandas as pd
import pytest

from hf_attnprobe import audit
from hf_attnprobe.reports.verdict import compute_answer, compute_findings, format_conclusion
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.questions import CLASSIFIER_QUESTIONS
from hf_attnprobe.statistics.rows import Texts
from hf_attnprobe.statistics.scores import measure_quality
from hf_attnprobe.statistics.verdicts import Finding, apply_thresholds
from tests.helpers import tiny_models
from tests.helpers.verdict_rows import exchanging, found, good_model, moving, rows_of, way_of


# --- the verdict ----------------------------------------------------------------------


def finding_of(rule, answer, **more):
    return Finding(rule, answer, "", 0.5, (0.4, 0.6), 100, **more)


def findings_by(**answers):
    return [finding_of(rule, answer) for rule, answer in answers.items()]


def test_what_a_verdict_still_needs_is_named():
    lacking = format_conclusion(findings_by(faithfulness=Answer.YES))
    assert "A verdict also needs path share" in lacking
    lacking = format_conclusion(findings_by(path_share=Answer.YES))
    assert "A verdict also needs faithfulness" in lacking
    lacking = format_conclusion(findings_by(effect=Answer.YES))
    assert "A verdict also needs faithfulness, path share" in lacking
    open_path = findings_by(path_share=Answer.CANNOT_SAY, faithfulness=Answer.YES)
    assert "answer to path share is open" in format_conclusion(open_path)
    open_effect = findings_by(
        effect=Answer.CANNOT_SAY, path_share=Answer.YES, faithfulness=Answer.YES
    )
    assert "open" not in format_conclusion(open_effect)


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


def evidence(n, way, moved=0.3, worst=None, noise=0.02, *, exchanged=None):
    """Rows of a model that is right, whose attention goes so far.

    Args:
        n: number of texts.
        way: mean way from random to best if words are deleted, and of the erasure of weights.
        moved: change of the output by shuffles.
        worst: change of the output by the worst shuffle.
        noise: standard deviation of the way between texts.
        exchanged: mean way if words are exchanged; None if they are not.
    """
    noises = np.random.default_rng(5).normal(0, noise, n)
    by_exchange = {} if exchanged is None else exchanging(exchanged + noises)
    return good_model(n, **way_of(way + noises), **by_exchange, **moving(n, moved, worst))


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
    findings = compute_findings(rows, ["neg", "pos"], unsupported_tests=["exchange"])
    assert compute_answer(findings) == expected
    # Exchanged words could give another answer, so they are needed if the model allows them.
    assert compute_answer(compute_findings(rows, ["neg", "pos"])) == Answer.CANNOT_SAY
    (score,) = found("faithfulness", rows)
    own = rows[rows.statistic == "importance@attention"].value.mean()
    assert score.value == pytest.approx(own) and score.n == 200
    for part in ("importance", "erasure", "removal", "mass"):
        assert found(part, rows)[0].value == pytest.approx(own)


@pytest.mark.parametrize(("exchanged", "expected"), [(0.9, "yes"), (0.5, "partly"), (0.1, "no")])
def test_the_verdict_is_that_of_exchanged_words_if_there_are_any(exchanged, expected):
    """Three of four parts; attention is perfect by erasure, and bad if words are deleted."""
    rows = evidence(200, 0.1, exchanged=exchanged)
    best = {"attention": 0.2, "random": 0.6, "best": 0.2}
    for name, value in best.items():
        rows.loc[rows.statistic == f"fraction_to_lose_lead@{name}", "value"] = value
    own = rows[rows.statistic == "exchange_importance@attention"].value.mean()
    words = {"importance": "exchanged", "removal": "Exchanging", "mass": "output changes"}
    for part, word in words.items():
        (finding,) = found(part, rows)
        assert finding.value == pytest.approx(own) and word in finding.sentence
    (score,) = found("faithfulness", rows)
    assert score.value == pytest.approx((3 * own + 1) / 4)
    rows = rows[rows.statistic != "lead_is_lost"]  # as if erasure had not been measured
    assert found("faithfulness", rows)[0].value == pytest.approx(own)
    (score,) = found("faithfulness", rows)
    assert score.averaged_parts == ("importance", "removal", "mass")
    findings = compute_findings(rows, ["neg", "pos"], unsupported_tests=["erasure"])
    assert compute_answer(findings) == expected


# --- the sentences about exchange and deletion ----------------------------------------


DELETED = "Words were deleted, because"
DISAGREE = "If words are deleted instead of exchanged, attention is at"


def test_faithfulness_says_why_words_were_deleted():
    rows = evidence(200, 0.7)
    (score,) = found("faithfulness", rows)
    assert f"{DELETED} the test exchange was not run." in score.sentence
    empty = {name: np.full(200, np.nan) for name in exchanging(np.ones(1))["exchange"]}
    nothing = pd.concat([rows, rows_of("exchange", empty)])
    (same,) = found("faithfulness", nothing)
    assert (
        f"{DELETED} they could not be exchanged: no texts with another prediction" in same.sentence
    )
    assert (same.value, same.ci95, same.n) == (score.value, score.ci95, score.n)
    for part in ("importance", "removal", "mass"):
        (one,), (other,) = found(part, rows), found(part, nothing)
        assert one == other and one.n == 200
    assert "when left out" in found("importance", nothing)[0].sentence
    assert "prediction loses" in found("removal", nothing)[0].sentence
    assert "output changes" not in found("mass", nothing)[0].sentence
    (exchanged,) = found("faithfulness", evidence(200, 0.7, exchanged=0.7))
    assert DELETED not in exchanged.sentence


@pytest.mark.parametrize(
    ("deleted", "exchanged", "reason"),
    [
        (0.9, 0.3, "which words they are hardly matters"),
        (0.3, 0.9, "deletion also shifts positions and removes words that have copies elsewhere"),
        (0.6, 0.5, ""),  # fewer than .2 apart
        (0.5, 0.6, ""),
        (0.5, 0.5, ""),
    ],
)
def test_faithfulness_says_if_exchange_and_deletion_disagree(deleted, exchanged, reason):
    rows = evidence(200, deleted, exchanged=exchanged)
    (score,) = found("faithfulness", rows)
    deletion = found("faithfulness", evidence(200, deleted))[0]
    low, high = deletion.ci95
    interval = f"{deletion.value:.2f} [{low:.2f}, {high:.2f}]"
    assert (f"{DISAGREE} {interval}: " in score.sentence) == bool(reason)
    assert (DISAGREE in score.sentence) == bool(reason)
    assert reason in score.sentence
    assert not reason or len(re.findall("hardly matters|shifts positions", score.sentence)) == 1


def test_a_difference_that_is_not_certain_is_no_disagreement():
    """The same difference of means, by so many texts and so much noise that it may be none."""
    few = evidence(12, 0.9, noise=1.5, exchanged=0.2)
    assert DISAGREE not in found("faithfulness", few)[0].sentence
    many = evidence(400, 0.9, noise=0.1, exchanged=0.2)
    assert DISAGREE in found("faithfulness", many)[0].sentence


@pytest.mark.parametrize("way", [0.25, 0.31, 0.33, 0.47, 0.49, 0.56, 0.58, 0.64, 0.72, 0.74, 0.95])
def test_faithfulness_says_if_another_seed_may_get_another_answer(way):
    """Within two standard deviations of .04, on either side of either threshold."""
    (score,) = found("faithfulness", evidence(100, way, noise=0.001, exchanged=way))
    distance = min(abs(score.value - limit) for limit in (0.4, 0.65))
    assert score.value == pytest.approx(way, abs=0.002)
    note = (
        f"A threshold is only {distance:.2f} away, so the same model trained with another seed may "
        "get another answer (standard deviation between seeds: 0.04)."
    )
    assert (note in score.sentence) == (distance < 0.08) == ("another seed" in score.sentence)


def test_thresholds_of_ones_own_are_those_that_another_seed_may_cross():
    rows = evidence(100, 0.9, noise=0.001)
    own = apply_thresholds(["faithfulness=.5,.85"])
    (score,) = [
        f for f in compute_findings(rows, ["neg", "pos"], rules=own) if f.rule == "faithfulness"
    ]
    assert "A threshold is only 0.05 away" in score.sentence
    assert "another seed" not in found("faithfulness", rows)[0].sentence


# --- the questions ------------------------------------------------------------------


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
    if length == 1:  # copies of a text would count once
        texts = [str(word) for word in generator.choice(words, n, replace=False)]
    return datasets.Dataset.from_list(
        [{"text": text, "label": k % 2, "example_id": k} for k, text in enumerate(texts)]
    )


def test_an_audit_of_texts_of_one_word_cannot_say_anything(tokenizer):
    """One weight is 1 whatever the model reads, so nothing can be ranked, shuffled or evened out."""
    model = tiny_models.classifier(len(tokenizer), query=5, read_out=9)
    # Without labels, no accuracy stands in the way of another answer.
    single = generated_texts(tokenizer, n=40, length=1).remove_columns("label")
    report = audit(model, single, tokenizer=tokenizer, progress=False)
    rows = report.to_pandas()
    shares = rows[rows.statistic == "path_share"].value
    assert len(shares) == 40 and shares.isna().all()
    assert report.answer == Answer.CANNOT_SAY
    assert not {"faithfulness", "path_share"} & {f.rule for f in report.findings}
    said = " ".join(str(report).split())
    assert "Cannot say. A verdict also needs faithfulness, path share." in said
    # Neither the same tests nor --level token would help, because every word is one token.
    assert "Audit texts with several words." in said and "Run the audit" not in said
    assert {f.answer for f in report.findings if f.is_about_attention} <= {"cannot say", "no"}

    several = generated_texts(tokenizer, n=40, length=6).remove_columns("label")
    mixed = [{**row, "example_id": k} for k, row in enumerate([*single, *several])]
    report = audit(model, datasets.Dataset.from_list(mixed), tokenizer=tokenizer, progress=False)
    (share,) = [f for f in report.findings if f.rule == "path_share"]
    assert share.n == 40
    assert " 40 texts with a single word left out" in share.sentence


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
    assert all(finding.sentence for finding in report.findings)
