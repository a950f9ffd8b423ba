"""Evidence: faithfulness is the mean of its parts and no narrower than an exact share."""

import numpy as np
import pytest
from scipy.stats import beta

from hf_attnprobe.statistics.evidence import build_evidence
from hf_attnprobe.statistics.scale import ANSWER_PARTS, compute_faithfulness
from tests.statistics.test_questions import ANSWERS, rows_of


def test_faithfulness_is_the_mean_of_its_parts_and_no_narrower_than_an_exact_share():
    rows = rows_of(20, finds=1.0)
    evidence = build_evidence(rows, words=ANSWERS)
    found = compute_faithfulness(evidence.texts, parts=ANSWER_PARTS)
    assert [*found.parts] == ["order", "drop", "source"]
    assert found.score.value == pytest.approx(np.mean([p.value for p in found.parts.values()]))
    base = max(
        evidence.estimate_mean(f"source_found@{n}").value
        for n in ("first", "last", "chance", "place")
    )
    low = beta.ppf(0.025, 20, 1)  # 20 of 20, Clopper and Pearson
    assert found.parts["source"].ci95[0] == pytest.approx((low - base) / (1 - base))
    assert (
        found.score.ci95[0] <= found.score.value - (1 - found.parts["source"].ci95[0]) / 3 + 1e-12
    )
