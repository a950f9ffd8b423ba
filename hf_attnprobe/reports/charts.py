"""Charts for an audit, in the order of the questions that they illustrate.

Every chart follows a figure of a paper and states its finding in words.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import pandas as pd

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.plots.chart import Chart, Reference, Series
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS, Estimate
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.questions import ALL_QUESTIONS
from hf_attnprobe.statistics.rows import Rows, Texts
from hf_attnprobe.statistics.sampling import draw_sample
from hf_attnprobe.statistics.summary import (
    ROUNDING_TOLERANCE,
    assign_attention_bins,
    bin_js_by_gap,
    compute_quantiles,
    get_sort_key,
    list_bin_names,
    select_predictions,
    select_site_texts,
)
from hf_attnprobe.statistics.verdicts import Finding
from hf_attnprobe.statistics.wording import CLASS_WORDING, Wording


MAX_CLASS_SERIES = 4
"""Maximum number of predicted classes for which a chart draws one series per class.

With more classes, all texts form one series, because many series are hard to distinguish.
"""

EXACT_DISTANCE_LABEL = "exact"
"""Label in a chart's legend if the chart shows exact distances for all texts.

The distance is the largest change of attention that keeps the output nearly the same. If it is not
exact, it is the largest change that a search found.
"""

SEARCHED_DISTANCE_LABEL = "found by a search"
"""Label in a chart's legend if the chart shows the largest distance that a search found."""

NO_INTERVAL = (float("nan"), float("nan"))
"""Ends of the error bar of a value without a confidence interval.

Matplotlib draws no bar if the ends are NaN.
"""


def build_score_chart(findings: Sequence[Finding]) -> Chart | None:
    """Build the chart of the first screen: faithfulness and its parts on one scale.

    Args:
        findings: the audit's findings.

    Returns:
        The chart; None if faithfulness has no number or too few texts.
    """
    measured_findings = [
        finding
        for finding in findings
        if finding.role in ("score", "part") and finding.number and finding.n >= MIN_DISPLAYED_TEXTS
    ]
    scores = [finding for finding in measured_findings if finding.role == "score"]
    if not scores:
        return None
    (score,) = scores
    intervals = [finding.ci95 or NO_INTERVAL for finding in measured_findings]
    sentences = (
        f"{finding.name}: {finding.number} ({finding.answer})." for finding in measured_findings
    )
    thresholds = score.rule_with_thresholds.thresholds
    # The scale has no lower limit, because an order can be worse than a random one.
    lows = [low for low, _ in intervals if not math.isnan(low)]
    lowest = min([0.0, *lows, *(finding.value for finding in measured_findings)])
    return Chart(
        key="faithfulness",
        title="Faithfulness and its parts",
        sentences=("The scale is 0 for a random order and 1 for the best order.", *sentences),
        source="",
        kind="dots",
        x_label="",
        y_label="position between a random order, 0, and the best order, 1",
        series=(
            Series(
                "",
                tuple(finding.name.lower() for finding in measured_findings),
                tuple(finding.value for finding in measured_findings),
                tuple(low for low, _ in intervals),
                tuple(high for _, high in intervals),
                tuple(finding.n for finding in measured_findings),
            ),
        ),
        references=tuple(Reference(name, value) for name, value in thresholds.items()),
        y_range=(lowest, 1.0),
    )


class TextGroup(NamedTuple):
    """A group of texts that a chart draws as one series, such as all texts predicted positive.

    Attributes:
        name: the group's name in legends.
        number: index of the predicted class; None if the group contains all texts.
        evidence: statistics for the texts.
    """

    name: str
    number: int | None
    evidence: Evidence

    @property
    def values(self) -> Texts:
        """Statistics for the group's texts, by name."""
        return self.evidence.texts


@dataclass(frozen=True)
class SiteEvidence(Evidence):
    """Statistics of one head, or of all heads together, for all texts and by predicted class.

    Attributes:
        groups: one group per predicted class; a single group if there are too many classes.
    """

    groups: tuple[TextGroup, ...] = ()

    @property
    def values(self) -> Texts:
        """Statistics with values, by name."""
        return self.texts

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    def list_rankings(self, family: str) -> dict[str, str]:
        """List the rankings for which a statistic has values.

        Single random orders are omitted, because the ranking ``random`` is their mean.

        Args:
            family: the statistic's name without ranking, such as "regret".

        Returns:
            Full statistic names such as "regret@attention", by ranking.
        """
        names = [name for name in self.texts if name.startswith(f"{family}@")]
        names_by_ranking = {}
        for name in sorted(names, key=get_sort_key):
            # The name of the ranking follows the "@".
            _, _, ranking = name.partition("@")
            if not ranking.startswith("random_"):
                names_by_ranking[ranking] = name
        return names_by_ranking


def build_site_evidence(
    rows: Rows | pd.DataFrame,
    classes: Sequence[str],
    *,
    site: tuple[int, int],
    words: Wording,
) -> SiteEvidence:
    """Select the statistics of one head, or of all heads together, from an audit's rows.

    Copies of a text count once (:meth:`~hf_attnprobe.statistics.rows.Rows.merge_duplicates`).

    Args:
        rows: the audit's rows.
        classes: class names.
        site: layer and head, see :func:`~hf_attnprobe.statistics.summary.find_model_site`.
        words: wording for this prediction type.
    """
    rows = Rows.coerce(rows).merge_duplicates()
    texts = select_site_texts(rows, site).select_covered_statistics(MIN_DISPLAYED_TEXTS)
    all_texts = Evidence(texts, words=words)
    groups = tuple(_split_by_prediction(all_texts, select_predictions(rows), classes))
    if not groups:
        groups = (TextGroup("all texts", None, all_texts),)
    return SiteEvidence(**vars(all_texts), groups=groups)


def _split_by_prediction(
    evidence: Evidence, predictions: Texts, classes: Sequence[str]
) -> Iterator[TextGroup]:
    """Yield the statistics of a group of texts for each predicted class.

    Nothing is yielded if there is only one predicted class, or if there are too many.

    Args:
        evidence: statistics for all texts.
        predictions: the model's prediction for each text.
        classes: class names.
    """
    predicted_classes = predictions.align_to(evidence.texts.index).get_values("predicted_class")
    indices = sorted(int(k) for k in pd.unique(predicted_classes) if not np.isnan(k))
    if not 2 <= len(indices) <= MAX_CLASS_SERIES:
        return
    # Without a name, a class cannot be printed in the legend.
    if indices[0] < 0 or indices[-1] >= len(classes):
        return
    for k in indices:
        is_member = predicted_classes == k
        if is_member.sum() >= MIN_DISPLAYED_TEXTS:
            yield TextGroup(f"predicted {classes[k]}", k, evidence.select_texts(is_member))


def describe_distance_type(evidence: SiteEvidence) -> str:
    """Return a legend text that states whether the distances in a chart are exact.

    A distance shows how much attention can change while the output stays nearly the same. It is
    either the exact maximum, or the largest distance that a search found.

    Args:
        evidence: statistics of one head, or of all heads together.

    Returns:
        "exact", "found by a search", or for example "exact in 60%, else found by a search".
    """
    exact_share = evidence.estimate_mean("epsilon_max_jsd_exact")
    if not exact_share.n or exact_share.value == 0:
        return SEARCHED_DISTANCE_LABEL
    if exact_share.value == 1:
        return EXACT_DISTANCE_LABEL
    return f"exact in {exact_share.value:.0%}, else {SEARCHED_DISTANCE_LABEL}"


def format_estimate(estimate: Estimate) -> str:
    """Format a number and its interval with two digits, for a sentence.

    Args:
        estimate: the number with its interval.
    """
    return markdown.format_interval(estimate.value, estimate.ci95, digits=2)


def build_mean_series(means: Mapping[str, Estimate]) -> Series:
    """Build a series of means with confidence intervals.

    Args:
        means: mean over texts for each category, such as a ranking.
    """
    estimates = means.values()
    intervals = [estimate.ci95 or NO_INTERVAL for estimate in estimates]
    # Unzip the pairs (low, high) into two tuples.
    low, high = zip(*intervals, strict=True)
    values = tuple(estimate.value for estimate in estimates)
    sizes = tuple(estimate.n or 0 for estimate in estimates)
    return Series("mean over texts", tuple(means), values, low, high, sizes)


def build_median_series(name: str, values: Iterable[tuple[str, np.ndarray]]) -> Series:
    """Build a series of medians with quartiles as error bars.

    Categories without values get NaN.

    Args:
        name: the series' name in the legend.
        values: pairs of a category name and its values, [texts].
    """
    points = []
    for category, category_values in values:
        n_texts = int((~np.isnan(category_values)).sum())
        points.append((category, *compute_quantiles(category_values), n_texts))
    # Unzip the points into one tuple for each coordinate.
    x, low, medians, high, sizes = zip(*points, strict=True)
    return Series(name, x, medians, low, high, sizes)


RANKING_LABELS = {
    "random": "random order",
    "attention": "attention",
    "gradient": "gradient of attention",
    "product": "attention × gradient",
    "leave_one_out": "leave-one-out",
    "input_gradient": "gradient × input",
    "margin": "margins",
    "effective_attention": "effective attention",
    "norm_based": "norm-based",
    "integrated_gradient": "integrated gradients",
    "mean_attention": "mean attention",
    "last_layer_attention": "last layer's attention",
    "last_layer": "last layer's attention",
    "rollout": "attention rollout",
}
"""Maps the key of a ranking, as in "regret@leave_one_out", to its label in charts."""


def get_ranking_label(key: str) -> str:
    """Return the label of a ranking in charts.

    A ranking without a label gets its key, with spaces instead of underscores.

    >>> get_ranking_label("leave_one_out"), get_ranking_label("my_ranking")
    ('leave-one-out', 'my ranking')

    Args:
        key: the ranking's key, as in statistic names after "@".
    """
    return RANKING_LABELS.get(key, key.replace("_", " "))


def build_audit_charts(
    rows: Rows | pd.DataFrame,
    classes: Sequence[str],
    *,
    site: tuple[int, int],
    words: Wording = CLASS_WORDING,
) -> tuple[Chart, ...]:
    """Build the charts of an audit for one head, or for all heads together.

    Args:
        rows: the audit's rows.
        classes: class names.
        site: layer and head, see :func:`~hf_attnprobe.statistics.summary.find_model_site`.
        words: wording for this prediction type.
    """
    if not len(rows):
        return ()
    return build_charts(build_site_evidence(rows, classes, site=site, words=words))


def build_charts(evidence: SiteEvidence) -> tuple[Chart, ...]:
    """Build all charts for which there are statistics.

    Args:
        evidence: statistics of one head, or of all heads together.
    """
    epsilons = select_epsilons(evidence)
    smallest_epsilon = epsilons[0] if epsilons else ""
    comprehensiveness, sufficiency, plausibility = (
        build_ranking_chart(evidence, spec) for spec in RANKING_CHARTS
    )
    charts = (
        build_tau_histogram(evidence, "leave_one_out"),
        build_tau_histogram(evidence, "gradient"),
        build_erasure_chart(evidence),
        build_flip_chart(evidence),
        comprehensiveness,
        sufficiency,
        build_permutation_chart(evidence),
        build_distance_chart(evidence),
        build_distance_by_weight_chart(evidence, smallest_epsilon),
        plausibility,
    )
    return tuple(_prefix_question_name(chart) for chart in charts if chart)


def _prefix_question_name(chart: Chart) -> Chart:
    """Put the name of the question that a chart answers in front of the chart's title."""
    title_in_lower_case = f"{chart.title[:1].lower()}{chart.title[1:]}"
    for question in ALL_QUESTIONS.values():
        if chart.key in question.charts:
            return replace(chart, title=f"{question.name}: {title_in_lower_case}")
    return chart


# --- rank correlation of attention with importance ------------------------------------


TAU_BIN_WIDTH = 0.1
"""Width of the bins in histograms of Kendall's τ."""

TAU_BIN_EDGES = np.linspace(-1, 1, 21).round(10)
"""Edges of the bins in histograms of Kendall's τ: -1, -0.9, …, 1."""

TAU_CHARTS = {
    "leave_one_out": Chart(
        key="tau_leave_one_out",
        title="Rank correlation of attention with leave-one-out",
        sentences=(),
        source="Jain & Wallace 2019, Table 2 (drawn as in Figure 2)",
        kind="histogram",
        x_label="Kendall τ with leave-one-out",
        y_label="share of texts",
        series=(),
        x_range=(-1.0, 1.0),
        bin_width=TAU_BIN_WIDTH,
    ),
    "gradient": Chart(
        key="tau_gradient",
        title="Rank correlation of attention with gradients",
        sentences=(),
        source="Jain & Wallace 2019, Figure 2",
        kind="histogram",
        x_label="Kendall τ with gradients",
        y_label="share of texts",
        series=(),
        x_range=(-1.0, 1.0),
        bin_width=TAU_BIN_WIDTH,
    ),
}
"""Maps each measure of importance to a histogram of Kendall's τ without values.

Each audit adds its sentences and values.
"""


def build_tau_histogram(evidence: SiteEvidence, measure: str) -> Chart | None:
    """Build a histogram of rank correlations (Kendall's τ-b) between attention and importance.

    Args:
        evidence: statistics of one head, or of all heads together.
        measure: importance measure, ``leave_one_out`` or ``gradient``.

    Returns:
        The chart; None if the correlations were not measured.
    """
    column = f"attention_{measure}_tau"
    if column not in evidence:
        return None
    groups = [group for group in evidence.groups if len(group.values.get_defined_values(column))]
    return replace(
        TAU_CHARTS[measure],
        sentences=_describe_taus(evidence, groups, measure),
        series=tuple(_build_histogram_series(group, column) for group in groups),
        references=(Reference("chance", 0.0, "x"),),
    )


def _build_histogram_series(group: TextGroup, column: str) -> Series:
    """Build a histogram of rank correlations: the proportion of a group's texts in each bin."""
    taus = group.values.get_defined_values(column)
    counts, _ = np.histogram(taus, TAU_BIN_EDGES)
    shares = counts / len(taus)
    lower_edges = tuple(TAU_BIN_EDGES[:-1].tolist())
    return Series(group.name, lower_edges, tuple(shares.tolist()), n=tuple(counts.tolist()))


def _describe_taus(
    evidence: SiteEvidence, groups: list[TextGroup], measure: str
) -> tuple[str, ...]:
    """Describe a histogram of rank correlations τ in sentences.

    The sentences contain the mean τ of each group, the value of τ by chance, and the number of texts without
    τ.

    Args:
        evidence: statistics of one head, or of all heads together.
        groups: groups of texts that have values.
        measure: importance measure, ``leave_one_out`` or ``gradient``.
    """
    column = f"attention_{measure}_tau"
    clauses = []
    for group in groups:
        tau = group.evidence.estimate_mean(column)
        significant_share = group.evidence.estimate_mean(f"attention_{measure}_significant")
        significance = ""
        if significant_share.n:
            significance = f", {significant_share.value:.0%} of them significant"
        clauses.append(
            f"{format_estimate(tau)} for {group.name} ({format_count(tau.n or 0, 'text')}{significance})"
        )
    n_undefined = len(evidence.values) - len(evidence.values.get_defined_values(column))
    notes: tuple[str, ...] = ()
    if n_undefined:
        texts = "text has" if n_undefined == 1 else "texts have"
        notes = (
            f"{n_undefined} {texts} no τ, because the test has not reached the text, or because there "
            "is nothing to rank.",
        )
    explanation = "0 is chance and 1 the same order"
    chance_rate = evidence.estimate_mean("significant_by_chance")
    if chance_rate.n:
        explanation += f"; unrelated orders agree significantly in {chance_rate.value:.1%} of texts"
    return f"Mean τ is {', '.join(clauses)}.", f"{explanation}.", *notes


# --- change of the output, or of attention, by the largest attention weight -----------


ERROR_BAR_LABEL = "middle half of the texts"
"""Label of the error bars in a chart's legend.

The bars extend from the first to the third quartile, so half of the texts lie between their ends.
"""

MAX_WEIGHT_LABEL = "largest attention weight of the text"
"""Axis label in charts that group texts by their largest attention weight."""

PERMUTATION_CHART = Chart(
    key="permutation_by_max_attention",
    title="Output change when the weights are shuffled over the tokens",
    sentences=(),
    source="Jain & Wallace 2019, Figure 6",
    kind="dots",
    x_label=MAX_WEIGHT_LABEL,
    y_label="output change, median over shuffles",
    series=(),
    bars=ERROR_BAR_LABEL,
    y_range=(0.0, 1.0),
)
"""Chart of the output change when attention is shuffled, without sentences and values.

Each audit adds its sentences and values.
"""

DISTANCE_BY_WEIGHT_CHART = Chart(
    key="adversarial_by_max_attention",
    title="How far attention can be changed while the output changes by at most",
    sentences=(),
    source="Jain & Wallace 2019, Figure 8",
    kind="dots",
    x_label=MAX_WEIGHT_LABEL,
    y_label="ε-max JSD",
    series=(),
    bars=ERROR_BAR_LABEL,
    y_range=(0.0, 0.7),
)
"""Chart of how far attention can be changed, for texts grouped by their largest attention weight.

Each audit adds its sentences and values.
"""


def build_permutation_chart(evidence: SiteEvidence) -> Chart | None:
    """Build a chart of the output change when attention is shuffled.

    The texts are grouped into bins by their largest attention weight.

    Args:
        evidence: statistics of one head, or of all heads together.

    Returns:
        The chart; None if shuffling was not tested.
    """
    if "median_tvd" not in evidence or "max_attention" not in evidence:
        return None
    words = evidence.words
    return replace(
        PERMUTATION_CHART,
        sentences=_describe_bins(
            evidence,
            "median_tvd",
            "Shuffling the weights changes the output by",
            "0 means that it does not matter which token has which weight.",
        ),
        y_label=f"{PERMUTATION_CHART.y_label} ({words.changed_quantity})",
        series=tuple(_build_bin_series(evidence, "median_tvd")),
        y_range=None if words.is_number else PERMUTATION_CHART.y_range,
    )


def build_distance_by_weight_chart(evidence: SiteEvidence, epsilon: str) -> Chart | None:
    """Build a chart of how far attention can be changed while the output changes by at most ε.

    The texts are grouped into bins by their largest attention weight.

    Args:
        evidence: statistics of one head, or of all heads together.
        epsilon: allowed output change ε, written as in statistic names, such as "0.01".

    Returns:
        The chart; None if the distances were not measured for this ε.
    """
    column = f"epsilon_max_jsd@{epsilon}"
    if column not in evidence or "max_attention" not in evidence:
        return None
    references: tuple[Reference, ...] = ()
    explanation = ""
    if "largest_jsd" in evidence:
        ceiling = _compute_median(evidence, "largest_jsd")
        references = (Reference("median of the most distant attention", ceiling),)
        explanation = (
            f"The median for the most distant attention is {ceiling:.2f}. The closer the distance is "
            "to it, the less the output determines the weights."
        )
    bound = "" if describe_distance_type(evidence) == EXACT_DISTANCE_LABEL else "at least "
    return replace(
        DISTANCE_BY_WEIGHT_CHART,
        title=f"{DISTANCE_BY_WEIGHT_CHART.title} {epsilon}",
        sentences=_describe_bins(
            evidence,
            column,
            f"If the output may change by {epsilon}, attention can be changed by a JSD of",
            explanation,
            bound=bound,
        ),
        y_label=f"{DISTANCE_BY_WEIGHT_CHART.y_label} (ε = {epsilon}), nats",
        series=tuple(_build_bin_series(evidence, column)),
        references=references,
    )


def _group_by_max_weight(texts: Texts, column: str) -> dict[str, np.ndarray]:
    """Group the values of a statistic by the largest attention weight in each text.

    Returns:
        Values by the name of the bin for the largest weight.
    """
    bins = assign_attention_bins(texts.get_values("max_attention"))
    values = texts.get_values(column)
    is_known = ~np.isnan(values)
    return {name: values[is_known & (bins == name)] for name in list_bin_names()}


def _build_bin_series(evidence: SiteEvidence, column: str) -> list[Series]:
    """Build the data series of a chart: a statistic plotted against the largest attention weight.

    There is one series for each group of texts, such as each predicted class. The texts are divided
    into ranges (bins) of their largest weight, and each point is the median in one bin.

    Args:
        evidence: statistics of one head, or of all heads together.
        column: name of the plotted statistic.
    """
    series = []
    for group in evidence.groups:
        if len(group.values):
            bins = _group_by_max_weight(group.values, column)
            series.append(build_median_series(group.name, bins.items()))
    return series


def _describe_bins(
    evidence: SiteEvidence,
    column: str,
    beginning: str,
    explanation: str,
    *,
    bound: str = "",
) -> tuple[str, ...]:
    """Describe the median of a statistic in the first and the last bin of the largest weight.

    The texts are grouped into bins by their largest attention weight.

    Args:
        evidence: statistics of one head, or of all heads together.
        column: name of the statistic whose medians are compared.
        beginning: words before the numbers.
        explanation: sentence on how to interpret the numbers; empty if there is none.
        bound: words before each number, such as "at least ".
    """
    bins = _group_by_max_weight(evidence.values, column)
    filled_bins = [name for name, values in bins.items() if len(values)]
    # If only one bin contains texts, it is described once.
    described_bins = dict.fromkeys([*filled_bins[:1], *filled_bins[-1:]])
    clauses = []
    for name in described_bins:
        median, n_texts = np.median(bins[name]), len(bins[name])
        clauses.append(
            f"{bound}{median:.2f} in the {_format_text_count(n_texts)} whose largest weight is in "
            f"{name}"
        )
    sentences = [f"{beginning} {' and '.join(clauses)} (medians over texts)."]
    if explanation:
        sentences.append(explanation)
    return tuple(sentences)


def _format_text_count(n_texts: int) -> str:
    """Format a text count, such as "one text" or "12 texts"."""
    return "one text" if n_texts == 1 else f"{n_texts} texts"


# --- distances of other attention with the same output --------------------------------


MAX_JS_DIVERGENCE = math.log(2)
"""Largest possible Jensen-Shannon divergence: ln 2 nats."""

DISTANCE_AXIS = np.append(np.arange(0, 0.69, 0.02).round(2), MAX_JS_DIVERGENCE)
"""Positions on the x axis of the chart of attention distances: 0, 0.02, …, ln 2 nats.

At each position, the chart shows how many texts have at least this distance.
"""

DISTANCE_TOLERANCE = 1e-9
"""Largest difference, in nats, between two attention distances that count as equal.

Such a difference may be a rounding error.
"""

PAPER_EPSILONS = (0.01, 0.05)
"""Values of ε in the papers that introduced adversarial attention.

ε is the largest change of the output that a test allows. Charts draw these values if they were
tested.
"""

MAX_EPSILONS = 3
"""Maximum number of values of ε in a chart, if none of them is in ``PAPER_EPSILONS``.

ε is the largest change of the output that a test allows.
"""

DISTANCE_CHART = Chart(
    key="adversarial_distance",
    title="How far attention can be changed with nearly the same output",
    sentences=(),
    source="Jain & Wallace 2019, Figure 7 (there as densities)",
    kind="curve",
    x_label="JSD from the model's attention, nats",
    y_label="share of texts with at least this distance",
    series=(),
    x_range=(0.0, MAX_JS_DIVERGENCE),
    y_range=(0.0, 1.0),
)
"""Chart of how far attention can be changed, without sentences and values.

Each audit adds its sentences and values.
"""


def select_epsilons(evidence: SiteEvidence) -> list[str]:
    """Select the values of ε for which charts are drawn.

    ε is the largest change of the output that a test of adversarial attention allows. Values from
    the papers are preferred. If none of them was tested, the three smallest values are selected.

    Args:
        evidence: statistics of one head, or of all heads together.

    Returns:
        The values written as in statistic names, such as "0.01".
    """
    names = [name for name in evidence.values if name.startswith("epsilon_max_jsd@")]
    # The value of ε follows the "@" in a name such as "epsilon_max_jsd@0.01".
    epsilons = sorted((name.partition("@")[2] for name in names), key=float)
    paper_epsilons = [epsilon for epsilon in epsilons if float(epsilon) in PAPER_EPSILONS]
    return paper_epsilons or epsilons[:MAX_EPSILONS]


def build_distance_chart(evidence: SiteEvidence) -> Chart | None:
    """Build a chart of how far attention can be changed while the output stays nearly the same.

    For each distance, a line shows the proportion of texts whose attention can be changed at least
    this far. There is one line for each ε, the largest allowed change of the output. If the largest
    distance is not known exactly, a second line shows an upper bound. The last line shows the
    largest distance if the output may change by any amount.

    Args:
        evidence: statistics of one head, or of all heads together.

    Returns:
        The chart; None if the distances were not measured.
    """
    epsilons = select_epsilons(evidence)
    if not epsilons:
        return None
    distance_type = describe_distance_type(evidence)
    series = []
    for epsilon in epsilons:
        name = f"ε = {epsilon}, {distance_type}"
        series.append(_build_distance_curve(evidence, f"epsilon_max_jsd@{epsilon}", name))
        upper_bound = f"epsilon_max_jsd_upper@{epsilon}"
        if upper_bound in evidence:
            name = f"ε = {epsilon}, at most"
            series.append(_build_distance_curve(evidence, upper_bound, name))
    if "largest_jsd" in evidence:
        series.append(_build_distance_curve(evidence, "largest_jsd", "any output (ceiling)"))
    return replace(
        DISTANCE_CHART,
        sentences=_describe_distances(evidence, epsilons, distance_type),
        series=tuple(series),
    )


def _build_distance_curve(evidence: SiteEvidence, column: str, name: str) -> Series:
    """Build a line that shows, for each distance, the proportion of texts that reach it."""
    values = np.sort(evidence.values.get_defined_values(column))
    # For each distance on the axis, searchsorted counts the texts with a smaller distance.
    n_reaching = len(values) - np.searchsorted(values, DISTANCE_AXIS - DISTANCE_TOLERANCE)
    shares = n_reaching / len(values)
    return Series(name, tuple(DISTANCE_AXIS.tolist()), tuple(shares.tolist()))


def _describe_distances(
    evidence: SiteEvidence, epsilons: list[str], distance_type: str
) -> tuple[str, ...]:
    """Return sentences about the median distances, and whether they are exact or lower bounds."""
    bound = "" if distance_type == EXACT_DISTANCE_LABEL else "at least "
    clauses = []
    for epsilon in epsilons:
        median = _compute_median(evidence, f"epsilon_max_jsd@{epsilon}")
        clauses.append(f"{bound}{median:.2f} if the output may change by {epsilon}")
    n_texts = len(evidence.values.get_defined_values(f"epsilon_max_jsd@{epsilons[0]}"))
    sentence = (
        f"Median distance (JSD) over {format_count(n_texts, 'text')}: {', '.join(clauses)} "
        f"({evidence.words.distance})"
    )
    if "largest_jsd" in evidence:
        ceiling = _compute_median(evidence, "largest_jsd")
        sentence += f"; {ceiling:.2f} if the output may change by any amount"
    if distance_type == EXACT_DISTANCE_LABEL:
        exactness = "These are exact maxima."
    elif distance_type == SEARCHED_DISTANCE_LABEL:
        exactness = "These are the largest distances that a search found, so lower bounds."
    else:
        exactness = (
            f"These distances are {distance_type}. A distance that a search found is a lower bound."
        )
    return (
        f"{sentence}.",
        "A line near the ceiling means that the output hardly determines attention.",
        exactness,
    )


def _compute_median(evidence: SiteEvidence, column: str) -> float:
    """Compute the median of a statistic over all texts."""
    return compute_quantiles(evidence.values.get_values(column), [0.5])[0]


# --- erasure of the largest weight ----------------------------------------------------


MAX_TEXT_POINTS = 300
"""Maximum number of texts that a chart draws as points.

If an audit has more texts, the chart draws a random sample of them.
"""

ERASURE_CHART = Chart(
    key="js_against_attention",
    title="Erasing the largest weight compared with another one",
    sentences=(),
    source="Serrano & Smith 2019, Figure 3",
    kind="points",
    x_label="Δα: largest weight minus the other one",
    y_label="ΔJS of the output, nats",
    series=(),
    references=(Reference("no difference", 0.0),),
    bars=ERROR_BAR_LABEL,
    x_range=(0.0, 1.0),
)
"""Chart that compares the largest attention weight with another one, without values.

Each audit adds its sentences and values.
"""


def build_erasure_chart(evidence: SiteEvidence) -> Chart | None:
    """Build a chart that compares erasing the largest attention weight with erasing another one.

    The x axis is Δα, the difference between the two weights. The y axis is ΔJS, the difference
    between the two output changes (Jensen-Shannon divergences). The chart shows a point for each
    text, and medians over texts with a similar Δα.

    Args:
        evidence: statistics of one head, or of all heads together.

    Returns:
        The chart; None if erasure was not tested.
    """
    if "delta_attention" not in evidence or "delta_js" not in evidence:
        return None
    delta_attention = evidence.values.get_values("delta_attention")
    delta_js = evidence.values.get_values("delta_js")
    # The sum is NaN if one of the two values is missing.
    is_known = ~np.isnan(delta_attention + delta_js)
    if not is_known.any():
        return None
    delta_attention, delta_js = delta_attention[is_known], delta_js[is_known]
    points = _build_point_series(evidence.values.ids()[is_known], delta_attention, delta_js)
    return replace(
        ERASURE_CHART,
        sentences=_describe_erasure(delta_attention, delta_js),
        series=(points, _build_binned_medians(delta_attention, delta_js)),
    )


def _build_point_series(
    ids: np.ndarray, delta_attention: np.ndarray, delta_js: np.ndarray
) -> Series:
    """Build a series with a point for each text, or for a random sample if there are many texts."""
    selection = draw_sample(range(len(ids)), ids, MAX_TEXT_POINTS)
    name = "texts"
    if len(selection) < len(ids):
        name = f"texts ({len(selection)} of {len(ids)}, drawn at random)"
    return Series(
        name, tuple(delta_attention[selection].tolist()), tuple(delta_js[selection].tolist())
    )


def _build_binned_medians(delta_attention: np.ndarray, delta_js: np.ndarray) -> Series:
    """Build a series with the median of ΔJS for each tenth of Δα.

    Δα is the difference between two erased weights, and ΔJS the difference between the output
    changes.
    """
    bins = list(bin_js_by_gap(delta_attention, delta_js))
    low, high = zip(*(b.quartiles for b in bins), strict=True)
    return Series(
        f"median of {format_count(len(delta_js), 'text')}, by tenths of Δα",
        tuple(b.center for b in bins),
        tuple(b.median for b in bins),
        low,
        high,
        tuple(b.n for b in bins),
        is_connected=True,
    )


def _describe_erasure(delta_attention: np.ndarray, delta_js: np.ndarray) -> tuple[str, ...]:
    """Describe how the effect of the largest attention weight differs from that of another weight.

    Args:
        delta_attention: difference between the two weights, [texts].
        delta_js: difference between the two output changes, [texts].
    """
    negative_share = (delta_js < -ROUNDING_TOLERANCE).mean()
    sentences = [
        "Without the largest weight, the output changes by a median of "
        f"{np.median(delta_js):.3f} nats more than without another weight drawn at random "
        f"({format_count(len(delta_js), 'text')}; 0 is no difference, ln 2 = .69 the maximum). In "
        f"{negative_share:.0%} of these texts, the other weight changes the output more."
    ]
    selected_delta_js = delta_js[delta_attention >= 0.5]
    if len(selected_delta_js):
        sentences.append(
            "If the largest weight is larger by at least .5 "
            f"({format_count(len(selected_delta_js), 'text')}), the median is "
            f"{np.median(selected_delta_js):.3f}."
        )
    return tuple(sentences)


# --- tokens to erase before the decision flips ----------------------------------------


SMALLEST_SET_STATISTIC = "minimal_fraction"
"""Name of the statistic for the smallest set of tokens whose erasure flips the decision.

Its value is the proportion of tokens in this set.
"""

RANKING_SERIES_LABEL = "in the order of a ranking"
"""Legend label for the tokens that are erased in a ranking's order to flip the decision."""

SMALLEST_SET_LABEL = "smallest set"
"""Axis label for the smallest set of tokens whose erasure flips the decision."""

BEST_RANKING_LABEL = "best ranking of each text"
"""Axis label for the ranking that flips the decision of a text with the fewest erased tokens.

It is used if the smallest set of tokens is unknown.
"""

MINIMUM_SERIES_LABELS = {
    SMALLEST_SET_LABEL: "exact minimum",
    BEST_RANKING_LABEL: "minimum of the tested rankings",
}
"""Maps the axis label of the smallest number of erased tokens to its legend label."""

ERASURE_ORDER_NAMES = {"attention": "attention's order", "random": "a random order"}
"""Maps the ranking by which tokens are erased to its name in the caption of a chart."""

OPTIMAL_RANKING = "margin"
"""Key of the ranking by margin, which flips the decision with the fewest erased tokens.

The chart omits this ranking, because its number is also drawn as "smallest set".
"""

FLIP_CHART = Chart(
    key="fraction_to_flip",
    title="Tokens to erase before the decision flips",
    sentences=(),
    source="Serrano & Smith 2019, Figure 5",
    kind="dots",
    x_label="tokens erased in the order of",
    y_label="share of tokens erased at the flip",
    series=(),
    bars=ERROR_BAR_LABEL,
    y_range=(0.0, 1.0),
)
"""Chart of how many tokens are erased before the decision flips, without values.

Each audit adds its sentences and values.
"""


def build_flip_chart(evidence: SiteEvidence) -> Chart | None:
    """Build a chart of how many tokens each ranking erases before the decision flips.

    All rankings are compared on the same texts: those in which erasing some set of tokens flips the
    decision. If this is unknown, at least one tested ranking must flip it. A ranking that never
    flips the decision counts as erasing all tokens.

    Args:
        evidence: statistics of one head, or of all heads together.

    Returns:
        The chart; None if erasure was not tested.
    """
    statistics_by_ranking = evidence.list_rankings("fraction_to_flip")
    if not statistics_by_ranking:
        return None
    minimum_name, minimum = _compute_minimum(evidence, statistics_by_ranking)
    # The best order is drawn as the minimum instead.
    statistics_by_ranking.pop(OPTIMAL_RANKING, None)
    ranking_values = (
        (get_ranking_label(key), evidence.values.get_values(name))
        for key, name in statistics_by_ranking.items()
    )
    series = [
        build_median_series(RANKING_SERIES_LABEL, ranking_values),
        build_median_series(MINIMUM_SERIES_LABELS[minimum_name], [(minimum_name, minimum)]),
    ]
    return replace(
        FLIP_CHART,
        sentences=_describe_flips(evidence, minimum_name, minimum),
        series=tuple(series),
    )


def _compute_minimum(
    evidence: SiteEvidence, statistics_by_ranking: dict[str, str]
) -> tuple[str, np.ndarray]:
    """Find the smallest proportion of tokens whose erasure flips the decision, for each text.

    If the exact minimum is unknown, the minimum over the tested rankings is used. Random orders do
    not count.

    Args:
        evidence: statistics of one head, or of all heads together.
        statistics_by_ranking: names of the statistics "fraction_to_flip", by ranking.

    Returns:
        name: axis label of the minimum, ``SMALLEST_SET_LABEL`` or ``BEST_RANKING_LABEL``.
        minimum: proportion of tokens for each text, [texts].
    """
    if SMALLEST_SET_STATISTIC in evidence:
        return SMALLEST_SET_LABEL, evidence.values.get_values(SMALLEST_SET_STATISTIC)
    names = [name for key, name in statistics_by_ranking.items() if key != "random"]
    if not names:
        names = list(statistics_by_ranking.values())
    values = [evidence.values.get_values(name) for name in names]
    # Element-wise minimum over all rankings. The function fmin ignores NaN.
    return BEST_RANKING_LABEL, reduce(np.fmin, values)


def _describe_flips(
    evidence: SiteEvidence, minimum_name: str, minimum: np.ndarray
) -> tuple[str, ...]:
    """Return sentences on how many tokens are erased before the decision flips.

    The sentences compare the order by attention, a random order, and the smallest number of tokens.
    """
    clauses = []
    for key, order in ERASURE_ORDER_NAMES.items():
        mean = evidence.estimate_mean(f"fraction_to_flip@{key}")
        if mean.n:
            clauses.append(f"{format_estimate(mean)} of the tokens in {order}")
    n_flipped = int((~np.isnan(minimum)).sum())
    n_with_tested_sets = evidence.estimate_mean("no_set_flips").n or 0
    n_with_tested_orders = evidence.estimate_mean("no_order_flips").n or 0
    n_texts = max(n_with_tested_sets, n_with_tested_orders) or len(evidence.values)
    cause = "some set" if minimum_name == SMALLEST_SET_LABEL else "some tested order"
    sentences = [
        f"{evidence.words.decision.capitalize()} flips after {', '.join(clauses)}. The "
        f"{minimum_name} needs {np.nanmean(minimum):.2f} (means over the {n_flipped} of {n_texts} "
        f"texts that {cause} flips; the chart shows medians)."
    ]
    never_flips = evidence.estimate_mean("never_flips@attention")
    if never_flips.n:
        sentences.append(
            f"In {never_flips.value:.0%} of these texts, attention's order never flips "
            f"{evidence.words.decision}, which counts as all tokens."
        )
    return tuple(sentences)


# --- values of rankings compared with a random order ----------------------------------


class RankingChartSpec(NamedTuple):
    """Description of a chart that compares rankings by one statistic.

    Attributes:
        family: the statistic's name without ranking, such as "comprehensiveness".
        chart: the template for the chart, without sentences and values.
        sentence: template for the sentence about one ranking. Its placeholders are the ranking's
            ``name``, its mean ``value``, and ``words`` (a ``Wording``).
        explanation: sentences on how to interpret the numbers.
    """

    family: str
    chart: Chart
    sentence: str
    explanation: str


RANKING_CHARTS = (
    RankingChartSpec(
        family="comprehensiveness",
        chart=Chart(
            key="comprehensiveness",
            title="Loss without a ranking's top tokens",
            sentences=(),
            source="DeYoung et al. 2020, comprehensiveness",
            kind="dots",
            x_label="ranking",
            y_label="{words.loss_title} without them",
            series=(),
        ),
        sentence="Without the top tokens by {name}, {words.prediction} loses {value} "
        "{words.amount}{words.aside}",
        explanation="A ranking that is no better than random does not explain the prediction. Texts with "
        "erased tokens differ from the training texts.",
    ),
    RankingChartSpec(
        family="sufficiency",
        chart=Chart(
            key="sufficiency",
            title="Loss with only a ranking's top tokens",
            sentences=(),
            source="DeYoung et al. 2020, sufficiency",
            kind="dots",
            x_label="ranking",
            y_label="{words.loss_title} with only these tokens",
            series=(),
        ),
        sentence="With only the top tokens by {name}, {words.prediction} loses {value} "
        "{words.amount}{words.aside}",
        explanation="Here, lower is better. Texts with erased tokens differ from the training texts.",
    ),
    RankingChartSpec(
        family="auprc",
        chart=Chart(
            key="plausibility",
            title="Agreement of rankings with the words that people marked",
            sentences=(),
            source="DeYoung et al. 2020, Section 4 (AUPRC)",
            kind="dots",
            x_label="ranking",
            y_label="area under the precision-recall curve",
            series=(),
            y_range=(0.0, 1.0),
        ),
        sentence="For the words that people marked, the ranking by {name} has an area of {value} under the "
        "precision-recall curve (1 if all marked words come first)",
        explanation="Agreement with people does not make a ranking faithful.",
    ),
)
"""Descriptions of the charts that compare rankings by the mean of one statistic."""


def build_ranking_chart(evidence: SiteEvidence, spec: RankingChartSpec) -> Chart | None:
    """Build a chart that compares rankings with each other and with a random order.

    Args:
        evidence: statistics of one head, or of all heads together.
        spec: chart description.

    Returns:
        The chart; None if the statistic was not measured.
    """
    statistics_by_ranking = evidence.list_rankings(spec.family)
    if not statistics_by_ranking:
        return None
    means = {
        get_ranking_label(key): evidence.estimate_mean(name)
        for key, name in statistics_by_ranking.items()
    }
    references: tuple[Reference, ...] = ()
    if "random" in statistics_by_ranking:
        random_mean = evidence.estimate_mean(statistics_by_ranking["random"])
        references = (Reference("random order", random_mean.value),)
    return replace(
        spec.chart,
        sentences=_describe_ranking(evidence, statistics_by_ranking, spec),
        y_label=spec.chart.y_label.format(words=evidence.words),
        series=(build_mean_series(means),),
        references=references,
    )


def _describe_ranking(
    evidence: SiteEvidence, statistics_by_ranking: dict[str, str], spec: RankingChartSpec
) -> tuple[str, ...]:
    """Return sentences that compare the ranking by attention with a random order.

    If there is no ranking by attention, the first other ranking is described.

    Args:
        evidence: statistics of one head, or of all heads together.
        statistics_by_ranking: statistic names by ranking.
        spec: chart description, with a template for the sentence.
    """
    preferred_keys = ["attention", "mean_attention", *statistics_by_ranking]
    key = next(key for key in preferred_keys if key in statistics_by_ranking)
    mean = evidence.estimate_mean(statistics_by_ranking[key])
    sentence = spec.sentence.format(
        name=get_ranking_label(key), value=format_estimate(mean), words=evidence.words
    )
    if "random" in statistics_by_ranking and key != "random":
        random_statistic = statistics_by_ranking["random"]
        random_mean = evidence.estimate_mean(random_statistic)
        difference = evidence.estimate_difference(statistics_by_ranking[key], random_statistic)
        sentence += (
            f"; random has {format_estimate(random_mean)}, a difference of "
            f"{format_estimate(difference)}"
        )
    return f"{sentence} ({format_count(mean.n or 0, 'text')}).", spec.explanation
