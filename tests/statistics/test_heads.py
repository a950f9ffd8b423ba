"""Heads by path share and faithfulness: made-up rows with a known head."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_attnprobe import Report
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.documents.markdown import render_markdown_blocks
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.reports.audit_document import build_heads_section
from hf_attnprobe.reports.first_screen import build_first_screen
from hf_attnprobe.reports.head_tables import build_head_table, describe_important_heads
from hf_attnprobe.statistics.estimates import Estimate, compute_simultaneous_interval
from hf_attnprobe.statistics.grades import ORDERED_ANSWERS, Answer
from hf_attnprobe.statistics.heads import (
    build_head_rule,
    evaluate_heads,
    list_possible_verdicts,
)
from hf_attnprobe.statistics.questions import Measurement
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import summarize
from hf_attnprobe.statistics.verdicts import apply_thresholds, conclude, grade_measurement
from tests.helpers import recompute
from tests.helpers.synthetic_rows import convert_to_exchange, make_head_rows


ASKED = ("path_share=.3", "faithfulness=.4,.7")
"""All attention needs a path share of .3 here, and a head a third of it."""
RULES = apply_thresholds(ASKED)


# --- the rule ------------------------------------------------------------------------------------


@st.composite
def estimates(draw):
    value = draw(st.floats(-0.2, 1))
    below, above = (draw(st.floats(0, 0.3)) for _ in range(2))
    ends = draw(st.sampled_from([(value - below, value + above), None]))
    return Estimate(value, ends, draw(st.sampled_from([29, 30, 500])))


@given(estimates(), estimates())
def test_a_head_is_judged_as_the_whole_model_is(path_share, score):
    asked = {"path_share": path_share, "faithfulness": score}
    findings = [
        grade_measurement(key, RULES[key], Measurement(e, "", {})) for key, e in asked.items()
    ]
    gate_rule, score_rule = RULES["path_share"], RULES["faithfulness"]
    possible = list_possible_verdicts(path_share, score, gate_rule, score_rule)
    whole = conclude(findings).answer
    assert whole == (possible[0] if len(possible) == 1 else Answer.CANNOT_SAY)
    assert list(possible) == [grade for grade in ORDERED_ANSWERS if grade in possible]


# --- the numbers ---------------------------------------------------------------------------------


def jackknifed(rows, layer, head):
    """Pseudo-values of faithfulness from means without each text, in plain pandas."""
    own = recompute.pivot_site(rows[rows.test.isin(["scale", "exchange"])], layer, head)
    whole = recompute.ScalePosition(own, [*recompute.list_measured_parts(own).values()])
    others = [whole.compute_position(own.drop(index=k)) for k in own.index]
    return [len(own) * whole.value - (len(own) - 1) * other for other in others]


def add_exchanges(rows):
    """The parts of these rows by exchange, and parts by deletion that are those of a random order."""
    random = {"importance@attention": 0.0, "mass@attention": 0.2, "removal@attention": 0.1}
    deleted = rows.assign(value=rows.statistic.map(random).fillna(rows.value))
    return pd.concat([deleted, convert_to_exchange(rows)])


@pytest.mark.parametrize("change", [lambda rows: rows, add_exchanges], ids=["deleted", "exchanged"])
def test_intervals_of_heads_are_those_of_the_jackknife_of_all_at_once(change):
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    rows = pd.concat(
        [
            change(make_head_rows(p, 0.1, s, 40))
            for p, s in zip(places, (0.2, 0.5, 0.7, 0.9), strict=True)
        ]
    )
    groups = [change(make_head_rows(p, 0.3, 0.6, 40)) for p in ((0, -1), (-1, -1))]
    found = {j.site: j for j in evaluate_heads(pd.concat([rows, *groups]), RULES)}
    expected = compute_simultaneous_interval(
        np.column_stack([jackknifed(rows, *p) for p in places])
    )
    ours = np.array([found[place].faithfulness.ci95 for place in places]).T
    np.testing.assert_allclose(ours, expected.clip(max=1), rtol=1e-9)
    assert [found[p].faithfulness.value for p in places] == pytest.approx([0.2, 0.5, 0.7, 0.9])
    low, high = found[0, -1].faithfulness.ci95  # by itself, so narrower than a head's
    assert high - low < np.diff(found[0, 1].faithfulness.ci95)
    assert found.keys() == {*places, (0, -1), (-1, -1)}


def test_faithfulness_is_of_the_texts_that_are_explained():
    rows = make_head_rows((0, 0), 0.3, 0.5)
    right = rows[(rows.statistic == "importance@attention") & (rows.value == 1)]
    (head,) = evaluate_heads(rows, RULES, explained_ids=right.example_id.to_numpy())
    assert head.faithfulness.value == pytest.approx(1) and head.faithfulness.n == 40
    assert head.effect.value == pytest.approx(0.3) and head.effect.n == 80
    shares = rows[(rows.statistic == "path_share") & rows.example_id.isin(right.example_id)].value
    assert head.path_share.value == pytest.approx(shares.mean()) and head.path_share.n == 40


def test_a_head_needs_a_third_of_the_path_share_of_all_attention():
    """The only head of a model is all of its attention, and so is the group of all heads."""
    head = make_head_rows((0, 0), 0.2, 0.9)
    many = pd.concat([head, make_head_rows((0, 1), 0.2, 0.9), make_head_rows((-1, -1), 0.05, 0.9)])
    answers = {j.site: j.answer for j in evaluate_heads(many, RULES)}
    assert answers == {(0, 0): "yes", (0, 1): "yes", (-1, -1): "no"}
    assert [j.answer for j in evaluate_heads(head, RULES)] == ["no"]
    rule = build_head_rule(RULES["path_share"])
    assert rule.partly == rule.yes == pytest.approx(0.1)


def test_a_head_that_writes_nothing_is_certainly_told_no():
    """Its path share is 0 in every text, which is one value and not a share of 30 texts."""
    rows = pd.concat([make_head_rows((0, h), 0.3, 1.0, 30) for h in range(2)])
    is_idle = (rows["head"] == 1) & (rows.statistic == "path_share")
    rows.loc[is_idle, "value"] = 0.0
    working, idle = evaluate_heads(rows, RULES)
    assert (working.answer, idle.answer) == ("yes", "no")
    assert idle.path_share.ci95 == (0, 0)


def test_without_path_shares_nothing_is_said_of_classifiers():
    rows = make_head_rows((0, 0), 0.3, 0.9)
    rows = rows[rows.test != "uniform_attention"]
    (head,) = evaluate_heads(rows, RULES)
    assert head.answer == "cannot say" and head.path_share.n == 0 and head.effect.n == 80
    (head,) = evaluate_heads(rows, RULES, gate="effect")
    assert head.answer == "yes"


# --- what is said --------------------------------------------------------------------------------


def report_of(rows, **provenance):
    asked = {"model": "m", "dataset": "d", "thresholds": ASKED}
    told = {"classes": ["a", "b"], "asked_for": asked, **provenance}
    statistics = summarize(rows, ["a", "b"], load_readings())
    return Report("m", DatasetName("d", "test"), 80, 0, statistics, told, rows=Rows.coerce(rows))


def known(n=80):
    """72 heads: 5.9 decides, 2.1 ranks well what it does not decide, 3.3 moves what it ranks badly."""
    effects, shares = dict.fromkeys(np.ndindex(6, 12), 0.02), {}
    effects |= {(5, 9): 0.4, (3, 3): 0.5}
    shares |= {(5, 9): 0.9, (2, 1): 0.9}
    rows = [make_head_rows(p, effect, shares.get(p, 0.1), n) for p, effect in effects.items()]
    return pd.concat(rows, ignore_index=True)


@pytest.fixture(scope="module", name="rows")
def rows_of_72_heads():
    return known()


def test_only_the_head_that_decides_is_named(rows):
    report = report_of(rows)
    assert [j.site for j in report.head_evaluations if j.is_surely_faithful] == [(5, 9)]
    assert describe_important_heads(report) == (
        "2 of 72 heads certainly have a path share of 0.10 or more (the share of the decision that "
        "passes through the attention of this head alone); certainly faithful (0.40 or more) among these: layer 5 head 9 (0.90)."
    )
    table = {row[0]: row for row in build_head_table(report).rows}
    assert list(table)[:2] == ["5.9", "3.3"] and len(table) == 40
    assert [table[head][1] for head in ("5.9", "3.3")] == ["yes", "no"]
    for shown in (build_first_screen(report), [build_heads_section(report)]):
        assert describe_important_heads(report) in "\n".join(render_markdown_blocks(shown))


def test_thresholds_are_those_that_the_audit_was_asked_for(rows):
    asked = {"thresholds": ["path_share=.9", "faithfulness=.95"]}
    report = report_of(rows, asked_for=asked)
    assert [j.site for j in report.head_evaluations if j.is_surely_faithful] == []
    assert describe_important_heads(report).startswith(
        "2 of 72 heads certainly have a path share of 0.30 or more"
    )


def test_few_texts_name_no_head():
    report = report_of(known(29))
    assert {j.answer for j in report.head_evaluations} == {"cannot say"}
    assert describe_important_heads(report) == (
        "The path shares of 72 of 72 heads were measured, on fewer than 30 texts; none is certainly "
        "0.10 or more, the largest one is that of layer 3 head 3, 0.50."
    )


def test_heads_that_a_time_limit_left_out_are_named_with_their_time(rows):
    heads = {"n_heads": 72, "n_screened": 72, "n_tested": 6, "n_foremost": 10}
    facts = {"seconds": 600, "runs_done": 3, "runs_of_full_audit": 9, "n_texts": 99, "seed": 0}
    missing = heads | {"n_foremost_missing": 4, "seconds_left": 180.0}
    said = (
        "Not measured within the time limit: path share and faithfulness of 4 of the 10 heads with the "
        "largest estimated effects, on 30 texts. These heads would take about 3 min more."
    )
    measured = describe_important_heads(report_of(rows, stopping=facts | {"heads": missing}))
    assert measured.startswith("2 of 72 heads certainly have") and measured.endswith(said)
    # The screen shows the sentence even if no single head has been measured.
    of_model = report_of(rows[rows["head"] < 0], stopping=facts | {"heads": missing})
    assert describe_important_heads(of_model) == said
    unscreened = facts | {"heads": missing | {"n_screened": 30}}
    told = describe_important_heads(report_of(rows[rows["head"] < 0], stopping=unscreened))
    assert "the estimated effects of 42 of 72 heads, and path share and faithfulness of 4" in told
    complete = facts | {"heads": heads | {"n_foremost_missing": 0, "seconds_left": 0.0}}
    assert "Not measured" not in describe_important_heads(report_of(rows, stopping=complete))


def test_what_was_not_measured_is_said(rows):
    only_moved = describe_important_heads(report_of(rows[rows.test == "uniform_attention"]))
    assert only_moved.endswith("; their faithfulness was not measured (test exchange or scale).")
    only_placed = describe_important_heads(report_of(rows[rows.test == "scale"]))
    assert only_placed.endswith("were not measured (test uniform_attention).")
    zeroed = rows[rows.statistic == "standard_tvd"].assign(
        test="head_ablation", statistic="zero_tvd"
    )
    assert describe_important_heads(report_of(zeroed)) == ""
