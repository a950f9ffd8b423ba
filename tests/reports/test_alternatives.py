"""The ranking that a report may recommend is one that was measured in it and passes."""

from dataclasses import replace

import pytest

from hf_attnprobe import AuditOptions, audit
from hf_attnprobe.reports.alternatives import (
    NO_ALTERNATIVE,
    find_passing_ranking,
    recommend_alternative,
)
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.scale import compute_faithfulness
from tests.helpers import planted_heads


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
