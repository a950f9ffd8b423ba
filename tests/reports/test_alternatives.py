"""The ranking that a report may recommend is one that was measured in it and passes."""

import shlex
from dataclasses import replace

import pytest

from hf_attnprobe import AuditOptions, audit
from hf_attnprobe.cli.commands import build_parser
from hf_attnprobe.data.examples import get_dataset_name
from hf_attnprobe.reports.alternatives import (
    NO_ALTERNATIVE,
    find_passing_ranking,
    recommend_alternative,
    recommend_fit_map,
)
from hf_attnprobe.reports.first_screen import describe_missing_sources
from hf_attnprobe.reports.report import assemble_report
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.scale import compute_faithfulness
from hf_attnprobe.storage.provenance import OBJECT_NAME
from tests.helpers import planted_heads
from tests.statistics.test_questions import rows_of


TESTS = ["exchange", "scale", "erasure", "permutation", "uniform_attention"]


def audit_planted_head(threshold):
    """Audit the BERT with one working head, with another threshold for a yes."""
    options = AuditOptions(
        single_heads=False, prune=False, shown_texts=0, thresholds=[f"faithfulness=.4,{threshold}"]
    )
    return audit(
        planted_heads.build_planted_bert(planted_heads.WORKING),
        planted_heads.draw_rows(36),
        TESTS,
        options=options,
        tokenizer=planted_heads.build_tokenizer_for_heads(),
        progress=False,
    )


@pytest.mark.slow
def test_a_ranking_is_recommended_only_if_it_passes_and_attention_does_not():
    """The best head decides, so its attention × gradient is above the attention of the whole model."""
    report = audit_planted_head(0.93)
    assert report.answer != "yes"
    ranking = find_passing_ranking(report)
    texts = report.evidence.explained_evidence.texts
    intervals = {
        name: compute_faithfulness(texts, name).score.ci95
        for name in ("last_layer", "rollout", "product", "input_gradient")
    }
    passing = {name for name, interval in intervals.items() if interval[0] >= 0.93}
    assert ranking.name in passing
    assert ranking.faithfulness.ci95 == intervals[ranking.name]
    assert str(ranking).startswith(f"{ranking.label}: ")
    advice = (
        f"Show {ranking.label} instead: its faithfulness is {ranking.faithfulness.interval_text}."
    )
    assert recommend_alternative(report) == advice
    assert advice in " ".join(str(report).split())
    # If attention is more faithful than the ranking, it fails for another reason.
    better_findings = [
        replace(f, value=1.0) if f.rule == "faithfulness" else f for f in report.findings
    ]
    assert find_passing_ranking(replace(report, findings=tuple(better_findings))) is None
    passing_report = audit_planted_head(0.65)
    assert find_passing_ranking(passing_report) is None
    assert recommend_alternative(passing_report) is None
    open_report = audit_planted_head(0.9999)
    assert open_report.answer == "cannot say" and find_passing_ranking(open_report) is None
    assert recommend_alternative(open_report) is None
    findings = [
        replace(f, answer=Answer.PARTLY if f.rule == "faithfulness" else Answer.YES)
        for f in open_report.findings
    ]
    partly_report = replace(open_report, findings=tuple(findings))
    assert partly_report.answer == "partly"
    assert recommend_alternative(partly_report) == NO_ALTERNATIVE


def make_answer_report(settings, **statistics):
    """Report of 60 prompts whose source attention never finds."""
    tests = ["sources", "knockout", "permutation"]
    provenance = {
        "tests": tests,
        "classes": [],
        "prediction": {"kind": "answer", "name": "the tokens of the answer", "outcomes": []},
        "asked_for": settings,
        "options": {},
        "versions": {},
    }
    facts = {"model": "m", "dataset": get_dataset_name("d", "test"), "n": 60, "seed": 0}
    rows = rows_of(60, finds=0.0, **statistics)
    return assemble_report(Rows.coerce(rows), provenance=provenance, **facts)


def test_a_language_model_without_alternative_gets_a_command_that_exists():
    settings = {
        "model": "m",
        "dataset": "d.jsonl",
        "test_limit": 60,
        "max_new_tokens": 8,
        "time": "10m",
        "tests": {"sources": {}, "knockout": {"least_effect": 0.2}},
        "heads": ["all"],
        "prune": False,
    }
    report = make_answer_report(settings)
    assert report.answer == "no"
    step = recommend_fit_map(report)
    # 80 prompts instead of 60, and the attention of single heads.
    assert "With 80 prompts, this takes about 1.6 times as long as this audit" in str(step.words)
    expected = "attnprobe fit-map --model m --dataset d.jsonl --test-limit 80 --max-new-tokens 8"
    assert step.command == f"{expected} --output-dir map"
    arguments = build_parser().parse_args(shlex.split(step.command)[1:])
    assert (arguments.command, arguments.test_limit) == ("fit-map", 80)
    assert "attnprobe fit-map" in str(report)
    in_memory = make_answer_report({"model": OBJECT_NAME, "dataset": OBJECT_NAME})
    assert "or call fit_map(model, data)" in str(recommend_fit_map(in_memory).words)
    report.provenance["n_available"] = 70
    step = recommend_fit_map(report)
    assert not step.command and "about 80 prompts, but the data set contains only 70" in step.words


def test_answers_that_rest_on_no_single_unit_are_counted():
    losses = {
        "unit_loss@0": [0.1] * 20 + [2.0] * 40,
        "unit_loss@1": [0.49] * 30 + [float("nan")] * 30,
    }
    report = make_answer_report({"model": "m", "dataset": "d"}, **losses)
    sentence = (
        "In 20 of 60 prompts, the answer rests on no single word: none costs it 0.5 nats or more."
    )
    assert describe_missing_sources(report) == sentence
    plain = make_answer_report({"model": "m", "dataset": "d"})
    assert describe_missing_sources(plain) == ""
