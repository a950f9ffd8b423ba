"""All charts that the rows of one audit permit, in the order of the questions. Pure."""

from collections.abc import Sequence

import pandas as pd

from hf_attnprobe.charts.by_largest_weight import (
    distance_by_max_attention,
    permutation_by_max_attention,
)
from hf_attnprobe.charts.chart import Chart
from hf_attnprobe.charts.distances import adversarial_distance, shown_epsilons
from hf_attnprobe.charts.evidence import Evidence, evidence_at
from hf_attnprobe.charts.orders_of_erasure import fraction_to_flip
from hf_attnprobe.charts.rank_agreement import tau_histogram
from hf_attnprobe.charts.rankings import comprehensiveness, plausibility, sufficiency
from hf_attnprobe.charts.single_weights import js_against_attention
from hf_attnprobe.published import Published
from hf_attnprobe.statistics.wording import CLASSES, Words


def audit_charts(
    rows: pd.DataFrame,
    classes: Sequence[str],
    *,
    site: tuple[int, int],
    words: Words = CLASSES,
    published: Published | None = None,
    seed: int = 0,
) -> tuple[Chart, ...]:
    """The charts of one audit at one site.

    Args:
        rows: of the audit.
        classes: names of the classes.
        site: layer and head, see :func:`~hf_attnprobe.statistics.summary.site_of_model`.
        words: of the kind of prediction.
        published: what the papers call data and model, for their numbers.
        seed: of the intervals.
    """
    if not len(rows):
        return ()
    evidence = evidence_at(rows, classes, site=site, words=words, published=published)
    return charts_of(evidence)


def charts_of(evidence: Evidence) -> tuple[Chart, ...]:
    """The same of evidence at hand."""
    smallest = next(iter(shown_epsilons(evidence)), "")
    found = (
        tau_histogram(evidence, "leave_one_out"),
        tau_histogram(evidence, "gradient"),
        permutation_by_max_attention(evidence),
        adversarial_distance(evidence),
        distance_by_max_attention(evidence, smallest),
        js_against_attention(evidence),
        fraction_to_flip(evidence),
        comprehensiveness(evidence),
        sufficiency(evidence),
        plausibility(evidence),
    )
    return tuple(chart for chart in found if chart is not None)
