"""The questions about answers from a passage, by made-up rows against loops and known truths."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from hf_attnprobe.data.examples import get_dataset_name
from hf_attnprobe.plots.highlighted_text import HighlightedText
from hf_attnprobe.reports.first_screen import (
    describe_source_hits,
    explain_verdict,
    recommend_next_step,
)
from hf_attnprobe.reports.report import Report
from hf_attnprobe.reports.verdict import compute_findings, describe_finding
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.rows import Texts
from hf_attnprobe.statistics.scale import add_commonest_position
from hf_attnprobe.statistics.verdicts import conclude
from hf_attnprobe.statistics.wording import build_wording


N_UNITS = 8
ANSWERS = build_wording({"kind": "answer", "name": "the tokens of the answer"})


def rows_of(n, *, finds=1.0, places=None, own=1.0, path=0.9, moved=0.4, seed=0, **others):
    """Rows of n prompts of a model whose attention finds the source in a share of them."""
    draw = np.random.default_rng(seed)
    place = draw.integers(0, N_UNITS, n) if places is None else np.asarray(places)
    hit = (np.arange(n) < round(finds * n)).astype(float)
    deleted = draw.uniform(2, 6, n)
    of_sources = {
        "contextual_gain": deleted + 1,
        "answer_is_greedy": (np.arange(n)[::-1] < round(own * n)).astype(float),
        "source_place": place.astype(float),
        "source_found@attention": hit,
        "source_found@length": draw.integers(0, 2, n) * 0.2,
        "source_found@first": (place == 0).astype(float),
        "source_found@last": (place == N_UNITS - 1).astype(float),
        "source_found@chance": np.full(n, 1 / N_UNITS),
        "source_agreement@attention": np.where(
            hit, draw.uniform(0.9, 1, n), draw.uniform(-1, 1, n)
        ),
        "source_tau@attention": hit,
        "drop@random": deleted * 0.3,
        "drop@attention": np.where(hit, deleted, deleted * 0.3),
        "drop@best": deleted,
    }
    of_knockout = {
        "lost_by_deletion": deleted,
        "lost_by_knockout": path * deleted,
        "units_that_matter": np.ones(n),
    }
    of_permutation = {
        "standard_tvd": draw.uniform(0.9, 1.1, n) * moved,
        "largest_standard_tvd": np.full(n, 2 * moved),
        "flips_drawn": np.full(n, 0.3),
    }
    tests = {"sources": of_sources | others, "knockout": of_knockout, "permutation": of_permutation}
    long = [
        pd.DataFrame(
            {"test": test, "statistic": name, "example_id": np.arange(n), "layer": -1, "head": -1}
        ).assign(value=np.asarray(values, dtype=float))
        for test, statistics in tests.items()
        for name, values in statistics.items()
    ]
    return pd.concat(long, ignore_index=True)


def found_in(rows):
    return {f.rule: f for f in compute_findings(rows, (), words=ANSWERS)}


def test_attention_that_always_finds_the_source_is_told_so_from_ten_prompts_on():
    for n, answer in ((9, Answer.CANNOT_SAY), (12, Answer.YES), (40, Answer.YES)):
        found = found_in(rows_of(n))
        assert conclude([*found.values()]).answer == answer, n
        score = found["faithfulness"].value
        assert math.isnan(score) if n < 10 else score > 0.9
    said = describe_finding(found_in(rows_of(9))["faithfulness"], ANSWERS)
    assert said == "there are only 9 of the 10 required prompts"


def test_attention_that_finds_the_source_by_chance_alone_is_not_told_yes():
    found = found_in(rows_of(60, finds=1 / N_UNITS))
    assert conclude([*found.values()]).answer == Answer.NO


def test_attention_on_the_first_unit_finds_nothing_where_sources_come_first():
    """.9 of the sources are first, and attention is: that needs no attention."""
    places = [0] * 36 + [1, 2, 3, 4]
    first = (np.array(places) == 0).astype(float)
    found = found_in(rows_of(40, places=places, **{"source_found@attention": first}))
    assert found["source"].value == pytest.approx(0, abs=1e-12)
    assert found["source"].yardsticks["first"] == pytest.approx(0.9)


def test_what_follows_is_of_the_prompts_that_the_model_answers_so_itself():
    """In the others attention finds nothing, and that does not count."""
    rows = rows_of(40, finds=0.5, own=0.5)
    found = found_in(rows)
    hits = rows[rows.statistic == "source_found@attention"].value.to_numpy()
    own = rows[rows.statistic == "answer_is_greedy"].value.to_numpy()
    assert found["own"].value == 0.5 and found["own"].n == 40
    assert found["source"].n == 20
    assert found["source"].yardsticks["found"] == hits[own == 1].mean()
    assert found["passage"].n == 20


def test_the_headline_counts_prompts_beside_chance_length_and_the_best_place():
    """Counted in the rows, of the prompts whose answer is the model's own."""
    places = [7] * 17 + [2] * 7
    rows = rows_of(24, finds=0.5, own=0.75, places=places)
    own = rows[rows.statistic == "answer_is_greedy"].value.to_numpy() == 1

    def hits(name):
        return rows[rows.statistic == f"source_found@{name}"].value.to_numpy()[own].sum()

    found = SimpleNamespace(findings=compute_findings(rows, (), words=ANSWERS), words=ANSWERS)
    assert hits("last") > max(hits("chance"), hits("length"), hits("first"))
    assert describe_source_hits(found) == (
        f"In {hits('attention'):.0f} of {own.sum()} prompts, attention is highest on the word that "
        f"the answer depends on. Guessing would find about {hits('chance'):.0f}, the longest word "
        f"{hits('length'):.0f}, the last one {hits('last'):.0f}."
    )
    assert describe_source_hits(SimpleNamespace(findings=[], words=ANSWERS)) is None


@pytest.mark.parametrize("known", [None, True])
def test_right_answers_are_counted_where_they_are_known(known):
    found = compute_findings(rows_of(20), (), words=ANSWERS)
    assert found[0].rule == "own" and found[0].answer == Answer.YES  # of 20 none is left out
    shown = HighlightedText(0, ("a",), "A", None, None, known, {"attention": (1.0,)})
    asked = {"asked_for": {"model": "m", "dataset": "qa"}, "tests": []}
    facts = {"prediction": {"kind": "answer", "name": "it"}, **asked}
    data = get_dataset_name("qa", "test")
    told = str(Report("m", data, 20, 0, (), facts, examples=(shown,), findings=found))
    of_right = "it is not known which are right" if known is None else "1 of 1 right"
    assert f"he answers are its own{', but ' if known is None else ', '}{of_right}" in " ".join(
        told.split()
    )


@pytest.mark.parametrize("n_own", [0, 4])
def test_too_few_answers_of_its_own_say_nothing(n_own):
    found = compute_findings(rows_of(40, own=n_own / 40), (), words=ANSWERS)
    assert conclude(found).answer == Answer.CANNOT_SAY
    assert next(f for f in found if f.rule == "own").answer == Answer.NO
    asked = {"asked_for": {"model": "m", "dataset": "qa"}, "tests": []}
    facts = {"prediction": {"kind": "answer", "name": "it"}, **asked}
    report = Report("m", get_dataset_name("qa", "test"), 40, 0, (), facts, findings=found)
    says_none = explain_verdict(report).startswith(
        "The model itself generates none of the 40 provided answers"
    )
    assert says_none == (n_own == 0)
    assert says_none == (recommend_next_step(report) is None)  # leaving answers out is said there


def test_the_mediated_share_is_a_ratio_of_sums():
    deletion = np.array([10.0] * 15 + [0.1] * 15)
    knockout = np.array([9.0] * 15 + [0.5] * 15)
    rows = rows_of(30)
    rows.loc[rows.statistic == "lost_by_deletion", "value"] = deletion
    rows.loc[rows.statistic == "lost_by_knockout", "value"] = knockout
    found = found_in(rows)["path"]
    assert found.value == pytest.approx(knockout.sum() / deletion.sum())
    assert np.mean(knockout / deletion) > 2.9  # what a mean of ratios would have said


def test_a_path_that_is_not_looked_at_and_shuffles_without_effect_say_no():
    assert conclude([*found_in(rows_of(40, path=0.05)).values()]).answer == Answer.NO
    assert conclude([*found_in(rows_of(40, moved=0.002)).values()]).answer == Answer.NO


def test_the_commonest_place_is_that_of_the_other_texts():
    draw = np.random.default_rng(3)
    places = draw.integers(0, 4, 25).astype(float)
    places[[2, 9]] = np.nan
    texts = Texts.from_frame(pd.DataFrame({"source_place": places}))
    found = add_commonest_position(texts).get_values("source_found@place")
    for k, place in enumerate(places):
        others = [p for i, p in enumerate(places) if i != k and p == p]
        counts = {p: others.count(p) for p in others}
        most = [p for p, count in counts.items() if count == max(counts.values())]
        if place != place:
            assert np.isnan(found[k])
        else:
            assert found[k] == ((place in most) / len(most))
