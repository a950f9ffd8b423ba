"""The ranking that a report may recommend is one that was measured in it and passes."""

import pytest

from hf_attnprobe import AuditOptions, audit
from hf_attnprobe.reports.alternatives import find_passing_ranking
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
    assert find_passing_ranking(audit_planted_head(0.65)) is None
    assert find_passing_ranking(audit_planted_head(0.9999)) is None
