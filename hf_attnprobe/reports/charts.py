"""Charts of an audit, in the order of the questions that they illustrate.

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
from hf_attnprobe.statistics.wording import CLASS_WORDING, Wording


MAX_CLASS_SERIES = 4
"""Maximum number of predicted classes drawn as separate series; more are not distinguishable."""

EXACT_DISTANCE = "exact"
"""Description of distances that are exact for all texts."""

NO_INTERVAL = (float("nan"), float("nan"))
"""Error bar for a value without an interval."""


class TextGroup(NamedTuple):
    """Texts that share a series in the charts.

    Attributes:
        name: name in legends.
        number: index of their predicted class; None if the group contains all texts.
        evidence: their statistics.
    """

    name: str
    number: int | None
    evidence: Evidence

    @property
    def values(self) -> Texts:
        """Statistics of the texts by name."""
        return self.evidence.texts


@dataclass(frozen=True)
class SiteEvidence(Evidence):
    """Statistics of all texts at one site, also grouped by predicted class.

    Attributes:
        groups: one group for each predicted class if there are few; else one group of all texts.
    """

    groups: tuple[TextGroup, ...] = ()

    @property
    def values(self) -> Texts:
        """Statistics of the texts by name; only those that have values."""
        return self.texts

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    def list_rankings(self, family: str) -> dict[str, str]:
        """Return the statistics ``family@ranking`` that have values, by ranking.

        Single random orders are omitted, because ``random`` is their mean.

        Args:
            family: name of the statistic, without ranking.
        """
        names = [name for name in self.texts if name.startswith(f"{family}@")]
        by_ranking = {name.partition("@")[2]: name for name in sorted(names, key=get_sort_key)}
        return {key: name for key, name in by_ranking.items() if not key.startswith("random_")}


def build_site_evidence(
    rows: Rows | pd.DataFrame,
    classes: Sequence[str],
    *,
    site: tuple[int, int],
    words: Wording,
) -> SiteEvidence:
    """Collect the statistics of one site from the rows of an audit.

    Args:
        rows: the audit's rows.
        classes: class names.
        site: layer and head, see :func:`~hf_attnprobe.statistics.summary.find_model_site`.
        words: wording for this prediction type.
    """
    texts = select_site_texts(rows, site).select_covered_statistics(MIN_DISPLAYED_TEXTS)
    all_texts = Evidence(texts, words=words)
    groups = tuple(_split_by_prediction(all_texts, select_predictions(rows), classes))
    groups = groups or (TextGroup("all texts", None, all_texts),)
    return SiteEvidence(**vars(all_texts), groups=groups)


def _split_by_prediction(
    evidence: Evidence, predictions: Texts, classes: Sequence[str]
) -> Iterator[TextGroup]:
    """Yield a group for each predicted class, if the classes are known and few."""
    predicted = predictions.align_to(evidence.texts.index).get_values("predicted_class")
    indices = sorted(int(k) for k in pd.unique(predicted) if k == k)
    if not 2 <= len(indices) <= MAX_CLASS_SERIES:
        return
    if indices[0] < 0 or indices[-1] >= len(classes):
        return
    for k in indices:
        is_member = predicted == k
        if is_member.sum() >= MIN_DISPLAYED_TEXTS:
            yield TextGroup(f"predicted {classes[k]}", k, evidence.select_texts(is_member))


def describe_distance_type(evidence: SiteEvidence) -> str:
    """Return whether the distances are exact, lower bounds that a search found, or both.

    Args:
        evidence: the site's statistics.
    """
    exact_share = evidence.estimate_mean("epsilon_max_jsd_exact")
    if not exact_share.n or exact_share.value == 0:
        return "found"
    if exact_share.value == 1:
        return EXACT_DISTANCE
    return f"exact in {exact_share.value:.0%}, else found"


def format_estimate(estimate: Estimate) -> str:
    """Return a number with its interval, for a sentence.

    Args:
        estimate: the number.
    """
    return markdown.format_interval(estimate.value, estimate.ci95, digits=2)


def build_mean_series(means: Mapping[str, Estimate]) -> Series:
    """Build a series of means over texts with their intervals.

    Args:
        means: the mean of each category.
    """
    estimates = means.values()
    intervals = [estimate.ci95 or NO_INTERVAL for estimate in estimates]
    low, high = zip(*intervals, strict=True)
    values = tuple(estimate.value for estimate in estimates)
    sizes = tuple(estimate.n or 0 for estimate in estimates)
    return Series("mean over texts", tuple(means), values, low, high, sizes)


def build_median_series(name: str, values: Iterable[tuple[str, np.ndarray]]) -> Series:
    """Build a series of medians with quartiles; NaN for categories without texts.

    Args:
        name: name of the series.
        values: pairs of a category and its values, [texts].
    """
    points = [
        (category, *compute_quantiles(texts), int((~np.isnan(texts)).sum()))
        for category, texts in values
    ]
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
"""Label of each known ranking in charts."""


def get_ranking_label(key: str) -> str:
    """Return the label of a ranking in charts.

    >>> get_ranking_label("leave_one_out"), get_ranking_label("my_ranking")
    ('leave-one-out', 'my ranking')

    Args:
        key: key of the ranking.
    """
    return RANKING_LABELS.get(key, key.replace("_", " "))


def build_audit_charts(
    rows: Rows | pd.DataFrame,
    classes: Sequence[str],
    *,
    site: tuple[int, int],
    words: Wording = CLASS_WORDING,
) -> tuple[Chart, ...]:
    """Build the charts of an audit at one site.

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
        evidence: the site's statistics.
    """
    smallest_epsilon = next(iter(select_epsilons(evidence)), "")
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
    """Return the chart with a title that begins with the name of its question."""
    title = f"{chart.title[:1].lower()}{chart.title[1:]}"
    for question in ALL_QUESTIONS.values():
        if chart.key in question.charts:
            return replace(chart, title=f"{question.name}: {title}")
    return chart


# --- rank correlation of attention with importance ------------------------------------


BIN_WIDTH = 0.1
"""Bin width in histograms of Kendall's τ."""

BIN_EDGES = np.linspace(-1, 1, 21).round(10)
"""Bin edges in histograms of Kendall's τ."""

TAU_CHARTS = {
    "leave_one_out": Chart(
        "tau_leave_one_out",
        "Rank correlation of attention with leave-one-out",
        (),
        "Jain & Wallace 2019, Table 2 (drawn as in Figure 2)",
        "histogram",
        "Kendall τ with leave-one-out",
        "share of texts",
        (),
        x_range=(-1.0, 1.0),
        bin_width=BIN_WIDTH,
    ),
    "gradient": Chart(
        "tau_gradient",
        "Rank correlation of attention with gradients",
        (),
        "Jain & Wallace 2019, Figure 2",
        "histogram",
        "Kendall τ with gradients",
        "share of texts",
        (),
        x_range=(-1.0, 1.0),
        bin_width=BIN_WIDTH,
    ),
}
"""Template of the τ histogram for each importance measure."""


def build_tau_histogram(evidence: SiteEvidence, measure: str) -> Chart | None:
    """Build the histogram of Kendall's τ-b between attention and a measure of importance.

    Args:
        evidence: the site's statistics.
        measure: ``leave_one_out`` or ``gradient``.

    Returns:
        The chart, or None without such values.
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
    """Return the share of a group's texts in each bin of τ."""
    taus = group.values.get_defined_values(column)
    counts, _ = np.histogram(taus, BIN_EDGES)
    shares = counts / len(taus)
    lower_edges = tuple(BIN_EDGES[:-1].tolist())
    return Series(group.name, lower_edges, tuple(shares.tolist()), n=tuple(counts.tolist()))


def _describe_taus(
    evidence: SiteEvidence, groups: list[TextGroup], measure: str
) -> tuple[str, ...]:
    """Return sentences on the mean τ of each group, chance, and texts without τ."""
    column = f"attention_{measure}_tau"
    clauses = []
    for group in groups:
        tau = group.evidence.estimate_mean(column)
        significant = group.evidence.estimate_mean(f"attention_{measure}_significant")
        significance = f", {significant.value:.0%} of them significant" if significant.n else ""
        clauses.append(f"{format_estimate(tau)} for {group.name} ({tau.n} texts{significance})")
    n_undefined = len(evidence.values) - len(evidence.values.get_defined_values(column))
    undefined: tuple[str, ...] = ()
    if n_undefined:
        texts = "text has" if n_undefined == 1 else "texts have"
        undefined = (f"{n_undefined} {texts} no τ: not reached yet, or nothing to rank.",)
    explanation = "0 is chance and 1 the same order"
    chance_rate = evidence.estimate_mean("significant_by_chance")
    if chance_rate.n:
        explanation += f"; unrelated orders agree significantly in {chance_rate.value:.1%} of texts"
    return f"Mean τ is {', '.join(clauses)}.", f"{explanation}.", *undefined


# --- change of the output, or of attention, by the largest attention weight -----------


ERROR_BARS = "middle half of the texts"
"""Meaning of error bars around medians."""

MAX_WEIGHT_LABEL = "largest attention weight of the text"
"""Label of the axis with the largest attention weight."""

PERMUTATION_CHART = Chart(
    "permutation_by_max_attention",
    "Output change when the weights are shuffled over the tokens",
    (),
    "Jain & Wallace 2019, Figure 6",
    "dots",
    MAX_WEIGHT_LABEL,
    "output change, median over shuffles",
    (),
    bars=ERROR_BARS,
    y_range=(0.0, 1.0),
)
"""Template of the chart for the effect of shuffling."""

DISTANCE_BY_WEIGHT_CHART = Chart(
    "adversarial_by_max_attention",
    "How far attention can be changed while the output stays within",
    (),
    "Jain & Wallace 2019, Figure 8",
    "dots",
    MAX_WEIGHT_LABEL,
    "ε-max JSD",
    (),
    bars=ERROR_BARS,
    y_range=(0.0, 0.7),
)
"""Template of the chart for the largest distance by the largest attention weight."""


def build_permutation_chart(evidence: SiteEvidence) -> Chart | None:
    """Build the chart of the median output change under shuffles, in bins of the largest weight.

    Args:
        evidence: the site's statistics.

    Returns:
        The chart, or None without such values.
    """
    if not {"median_tvd", "max_attention"} <= set(evidence.values):
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
    """Build the chart of the largest distance of attention within ε, in bins of the largest weight.

    Args:
        evidence: the site's statistics.
        epsilon: the allowed change of the output, as in the names of statistics.

    Returns:
        The chart, or None without such values.
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
            f"The closer to {ceiling:.2f}, the median for the most distant attention of all, the "
            "less the output determines the weights."
        )
    bound = "" if describe_distance_type(evidence) == EXACT_DISTANCE else "at least "
    return replace(
        DISTANCE_BY_WEIGHT_CHART,
        title=f"{DISTANCE_BY_WEIGHT_CHART.title} {epsilon}",
        sentences=_describe_bins(
            evidence,
            column,
            f"With the output within {epsilon}, attention can be changed by a JSD of",
            explanation,
            bound=bound,
        ),
        y_label=f"{DISTANCE_BY_WEIGHT_CHART.y_label} (ε = {epsilon}), nats",
        series=tuple(_build_bin_series(evidence, column)),
        references=references,
    )


def _group_by_max_weight(texts: Texts, column: str) -> dict[str, np.ndarray]:
    """Return a column's values for each bin of the largest attention weight."""
    bins = assign_attention_bins(texts.get_values("max_attention"))
    values = texts.get_values(column)
    is_known = ~np.isnan(values)
    return {name: values[is_known & (bins == name)] for name in list_bin_names()}


def _build_bin_series(evidence: SiteEvidence, column: str) -> list[Series]:
    """Return a series of medians by bin for each group of texts."""
    return [
        build_median_series(group.name, _group_by_max_weight(group.values, column).items())
        for group in evidence.groups
        if len(group.values)
    ]


def _describe_bins(
    evidence: SiteEvidence,
    column: str,
    beginning: str,
    explanation: str,
    *,
    bound: str = "",
) -> tuple[str, ...]:
    """Return sentences on the medians of the lowest and of the highest bin with texts."""
    bins = _group_by_max_weight(evidence.values, column)
    filled_bins = [name for name, values in bins.items() if len(values)]
    clauses = [
        f"{bound}{np.median(bins[name]):.2f} in the {_format_text_count(len(bins[name]))} whose "
        f"largest weight is in {name}"
        for name in dict.fromkeys([*filled_bins[:1], *filled_bins[-1:]])
    ]
    sentences = [f"{beginning} {' and '.join(clauses)} (medians over texts)."]
    if explanation:
        sentences.append(explanation)
    return tuple(sentences)


def _format_text_count(n_texts: int) -> str:
    """Return a number of texts in words, such as "one text" or "12 texts"."""
    return "one text" if n_texts == 1 else f"{n_texts} texts"


# --- distances of other attention with the same output --------------------------------


LN_2 = math.log(2)
"""Largest Jensen-Shannon divergence, in nats."""

DISTANCE_GRID = np.append(np.arange(0, 0.69, 0.02).round(2), LN_2)
"""Distances at which the chart shows the share of texts, in nats."""

DISTANCE_TOLERANCE = 1e-9
"""Tolerance for rounding errors when distances are compared."""

PAPER_EPSILONS = (0.01, 0.05)
"""Values of ε that the papers use."""

MAX_EPSILONS = 3
"""Maximum number of ε values in a chart."""

DISTANCE_CHART = Chart(
    "adversarial_distance",
    "How far attention can be changed with nearly the same output",
    (),
    "Jain & Wallace 2019, Figure 7 (there as densities)",
    "curve",
    "JSD from the model's attention, nats",
    "share of texts with at least this distance",
    (),
    x_range=(0.0, LN_2),
    y_range=(0.0, 1.0),
)
"""Template of the chart for the largest attention distances."""


def select_epsilons(evidence: SiteEvidence) -> list[str]:
    """Return the papers' values of ε if they were tested, else up to three others.

    Args:
        evidence: the site's statistics.

    Returns:
        The values as in the names of statistics.
    """
    names = [name for name in evidence.values if name.startswith("epsilon_max_jsd@")]
    epsilons = sorted((name.partition("@")[2] for name in names), key=float)
    paper_epsilons = [epsilon for epsilon in epsilons if float(epsilon) in PAPER_EPSILONS]
    return paper_epsilons or epsilons[:MAX_EPSILONS]


def build_distance_chart(evidence: SiteEvidence) -> Chart | None:
    """Build the chart of the share of texts whose attention can be changed by each distance.

    Each ε has a line for the distances that were found, and another one for upper bounds if these
    differ. One line shows the most distant attention of all, whatever its output.

    Args:
        evidence: the site's statistics.

    Returns:
        The chart, or None without such values.
    """
    epsilons = select_epsilons(evidence)
    if not epsilons:
        return None
    distance_type = describe_distance_type(evidence)
    series = []
    for epsilon in epsilons:
        name = f"ε = {epsilon}, {distance_type}"
        series.append(_build_survival_curve(evidence, f"epsilon_max_jsd@{epsilon}", name))
        upper_bound = f"epsilon_max_jsd_upper@{epsilon}"
        if upper_bound in evidence:
            name = f"ε = {epsilon}, at most"
            series.append(_build_survival_curve(evidence, upper_bound, name))
    if "largest_jsd" in evidence:
        series.append(_build_survival_curve(evidence, "largest_jsd", "any output (ceiling)"))
    return replace(
        DISTANCE_CHART,
        sentences=_describe_distances(evidence, epsilons, distance_type),
        series=tuple(series),
    )


def _build_survival_curve(evidence: SiteEvidence, column: str, name: str) -> Series:
    """Return the share of texts with at least each distance of the grid."""
    values = np.sort(evidence.values.get_defined_values(column))
    n_reaching = len(values) - np.searchsorted(values, DISTANCE_GRID - DISTANCE_TOLERANCE)
    shares = n_reaching / len(values)
    return Series(name, tuple(DISTANCE_GRID.tolist()), tuple(shares.tolist()))


def _describe_distances(
    evidence: SiteEvidence, epsilons: list[str], distance_type: str
) -> tuple[str, ...]:
    """Return sentences on the median distances and on how exact they are."""
    bound = "" if distance_type == EXACT_DISTANCE else "at least "
    clauses = []
    for epsilon in epsilons:
        median = _compute_median(evidence, f"epsilon_max_jsd@{epsilon}")
        clauses.append(f"{bound}{median:.2f} if the output may change by {epsilon}")
    n_texts = len(evidence.values.get_defined_values(f"epsilon_max_jsd@{epsilons[0]}"))
    sentence = (
        f"Median distance (JSD) over {n_texts} texts: {', '.join(clauses)} "
        f"({evidence.words.distance})"
    )
    if "largest_jsd" in evidence:
        ceiling = _compute_median(evidence, "largest_jsd")
        sentence += f"; {ceiling:.2f} if the output may change by any amount"
    exactness = {
        EXACT_DISTANCE: "These are exact maxima.",
        "found": "These are the largest distances that a search found, so lower bounds.",
    }.get(distance_type, f"They are {distance_type}, which is a lower bound.")
    return (
        f"{sentence}.",
        "A line near the ceiling means that the output hardly determines attention.",
        exactness,
    )


def _compute_median(evidence: SiteEvidence, column: str) -> float:
    """Return the median of a statistic over texts."""
    return compute_quantiles(evidence.values.get_values(column), [0.5])[0]


# --- erasure of the largest weight ----------------------------------------------------


MAX_POINTS = 300
"""Maximum number of single texts in a chart."""

ERASURE_STATISTICS = ("delta_attention", "delta_js")
"""Statistics needed for the chart of erased weights."""

ERASURE_CHART = Chart(
    "js_against_attention",
    "Erasing the largest weight compared with another one",
    (),
    "Serrano & Smith 2019, Figure 3",
    "points",
    "Δα: largest weight minus the other one",
    "ΔJS of the output, nats",
    (),
    (Reference("no difference", 0.0),),
    bars="middle half of the texts",
    x_range=(0.0, 1.0),
)
"""Template of the chart for erased weights."""


def build_erasure_chart(evidence: SiteEvidence) -> Chart | None:
    """Build the chart of ΔJS against Δα, with single texts and the median of all texts.

    Args:
        evidence: the site's statistics.

    Returns:
        The chart, or None without such values.
    """
    if not set(ERASURE_STATISTICS) <= set(evidence.values):
        return None
    gap, js = (evidence.values.get_values(name) for name in ERASURE_STATISTICS)
    is_known = ~np.isnan(gap + js)
    if not is_known.any():
        return None
    gap, js = gap[is_known], js[is_known]
    points = _build_point_series(evidence.values.ids()[is_known], gap, js)
    return replace(
        ERASURE_CHART,
        sentences=_describe_erasure(gap, js),
        series=(points, _build_binned_medians(gap, js)),
    )


def _build_point_series(ids: np.ndarray, gap: np.ndarray, js: np.ndarray) -> Series:
    """Return the values of single texts, a random sample if there are many."""
    selection = draw_sample(range(len(ids)), ids, MAX_POINTS)
    name = "texts"
    if len(selection) < len(ids):
        name = f"texts ({len(selection)} of {len(ids)}, drawn at random)"
    return Series(name, tuple(gap[selection].tolist()), tuple(js[selection].tolist()))


def _build_binned_medians(gap: np.ndarray, js: np.ndarray) -> Series:
    """Return the median for each tenth of Δα that contains texts."""
    bins = list(bin_js_by_gap(gap, js))
    low, high = zip(*(b.quartiles for b in bins), strict=True)
    return Series(
        f"median of all {len(js)} texts, by tenths of Δα",
        tuple(b.center for b in bins),
        tuple(b.median for b in bins),
        low,
        high,
        tuple(b.n for b in bins),
        is_connected=True,
    )


def _describe_erasure(gap: np.ndarray, js: np.ndarray) -> tuple[str, ...]:
    """Return sentences on the median ΔJS of all texts, and of those with a large gap."""
    negative_share = (js < -ROUNDING_TOLERANCE).mean()
    sentences = [
        "Without the largest weight, the output changes by a median of "
        f"{np.median(js):.3f} nats more than without another weight drawn at random "
        f"({len(js)} texts; 0 is no difference, ln 2 = .69 the maximum). In {negative_share:.0%} of "
        "them, the other weight changes it more."
    ]
    js_with_large_gap = js[gap >= 0.5]
    if len(js_with_large_gap):
        sentences.append(
            "If the largest weight is larger by at least .5 "
            f"({len(js_with_large_gap)} texts), the median is {np.median(js_with_large_gap):.3f}."
        )
    return tuple(sentences)


# --- tokens to erase before the decision flips ----------------------------------------


SMALLEST_SET_STATISTIC = "minimal_fraction"
"""Statistic with the size of the smallest set that flips the decision."""

RANKING_SERIES_NAME = "in the order of a ranking"
"""Legend entry for rankings."""

SMALLEST_SET = "smallest set"
"""Name of the exact minimum."""

BEST_TRIED_RANKING = "best ranking of each text"
"""Name of the smallest number that any tested ranking needs."""

MINIMUM_SERIES_NAMES = {
    SMALLEST_SET: "exact minimum",
    BEST_TRIED_RANKING: "minimum of the tested rankings",
}
"""Legend entry for each type of minimum."""

DESCRIBED_ORDERS = {"attention": "attention's order", "random": "a random order"}
"""Rankings that the description of the chart mentions."""

OPTIMAL_RANKING = "margin"
"""Ranking that gives the smallest set, which is not drawn a second time."""

FLIP_CHART = Chart(
    "fraction_to_flip",
    "Tokens to erase before the decision flips",
    (),
    "Serrano & Smith 2019, Figure 5",
    "dots",
    "tokens erased in the order of",
    "share of tokens erased at the flip",
    (),
    bars="middle half of the texts",
    y_range=(0.0, 1.0),
)
"""Template of the chart for tokens erased before a flip."""


def build_flip_chart(evidence: SiteEvidence) -> Chart | None:
    """Build the chart of the share of tokens erased when the decision flips, by ranking.

    All rankings are compared on the same texts: those that some set of tokens flips or, if that is
    unknown, those that some tested ranking flips. A ranking that never flips a text counts as
    needing all tokens.

    Args:
        evidence: the site's statistics.

    Returns:
        The chart, or None without such values.
    """
    statistics_by_ranking = evidence.list_rankings("fraction_to_flip")
    if not statistics_by_ranking:
        return None
    minimum_name, minimum = _compute_minimum(evidence, statistics_by_ranking)
    statistics_by_ranking.pop(OPTIMAL_RANKING, None)
    ranking_values = (
        (get_ranking_label(key), evidence.values.get_values(name))
        for key, name in statistics_by_ranking.items()
    )
    series = [
        build_median_series(RANKING_SERIES_NAME, ranking_values),
        build_median_series(MINIMUM_SERIES_NAMES[minimum_name], [(minimum_name, minimum)]),
    ]
    return replace(
        FLIP_CHART,
        sentences=_describe_flips(evidence, minimum_name, minimum),
        series=tuple(series),
    )


def _compute_minimum(
    evidence: SiteEvidence, statistics_by_ranking: dict[str, str]
) -> tuple[str, np.ndarray]:
    """Return the exact minimum of each text, or else that of the tested rankings, with its name."""
    if SMALLEST_SET_STATISTIC in evidence:
        return SMALLEST_SET, evidence.values.get_values(SMALLEST_SET_STATISTIC)
    names = [name for key, name in statistics_by_ranking.items() if key != "random"]
    names = names or list(statistics_by_ranking.values())
    return BEST_TRIED_RANKING, reduce(np.fmin, map(evidence.values.get_values, names))


def _describe_flips(
    evidence: SiteEvidence, minimum_name: str, minimum: np.ndarray
) -> tuple[str, ...]:
    """Return sentences on the means for attention, a random order, and the minimum."""
    clauses = []
    for key, order in DESCRIBED_ORDERS.items():
        mean = evidence.estimate_mean(f"fraction_to_flip@{key}")
        if mean.n:
            clauses.append(f"{format_estimate(mean)} of the tokens in {order}")
    n_flipped = int((~np.isnan(minimum)).sum())
    n_tested = [evidence.estimate_mean(name).n for name in ("no_set_flips", "no_order_flips")]
    n_texts = max(filter(None, n_tested), default=len(evidence.values))
    cause = "some set" if minimum_name == SMALLEST_SET else "some tested order"
    sentences = [
        f"{evidence.words.decision.capitalize()} flips after {', '.join(clauses)}; the "
        f"{minimum_name} needs {np.nanmean(minimum):.2f} (means over the {n_flipped} of {n_texts} "
        f"texts that {cause} flips; the chart shows medians)."
    ]
    never_flips = evidence.estimate_mean("never_flips@attention")
    if never_flips.n:
        sentences.append(
            f"Attention's order never flips {never_flips.value:.0%} of them, which counts as all "
            "tokens."
        )
    return tuple(sentences)


# --- values of rankings compared with a random order ----------------------------------


class RankingChartSpec(NamedTuple):
    """Description of a chart that compares rankings by one statistic.

    Attributes:
        family: name of the statistics ``family@ranking``.
        chart: the chart, without its values.
        sentence: template of the sentence about one ranking; ``words`` is a ``Wording``.
        explanation: how to read the numbers.
    """

    family: str
    chart: Chart
    sentence: str
    explanation: str


RANKING_CHARTS = (
    RankingChartSpec(
        "comprehensiveness",
        Chart(
            "comprehensiveness",
            "Loss without the top tokens of a ranking",
            (),
            "DeYoung et al. 2020, comprehensiveness",
            "dots",
            "ranking",
            "{words.loss_title} without them",
            (),
        ),
        "Without the top tokens by {name}, {words.prediction} loses {value} "
        "{words.amount}{words.aside}",
        "A ranking that is no better than random does not explain the prediction. Texts with "
        "erased tokens differ from those of the training.",
    ),
    RankingChartSpec(
        "sufficiency",
        Chart(
            "sufficiency",
            "Loss on the top tokens of a ranking alone",
            (),
            "DeYoung et al. 2020, sufficiency",
            "dots",
            "ranking",
            "{words.loss_title} on them alone",
            (),
        ),
        "On the top tokens by {name} alone, {words.prediction} loses {value} "
        "{words.amount}{words.aside}",
        "Here, lower is better. Texts with erased tokens differ from those of the training.",
    ),
    RankingChartSpec(
        "auprc",
        Chart(
            "plausibility",
            "Agreement of rankings with the words that people marked",
            (),
            "DeYoung et al. 2020, Section 4 (AUPRC)",
            "dots",
            "ranking",
            "area under the precision-recall curve",
            (),
            y_range=(0.0, 1.0),
        ),
        "Compared with the words that people marked, the ranking by {name} has area {value} (1 if "
        "all of them come first)",
        "Agreement with people does not make a ranking faithful.",
    ),
)
"""Charts that compare rankings."""


def build_ranking_chart(evidence: SiteEvidence, spec: RankingChartSpec) -> Chart | None:
    """Build a chart of the mean of each ranking, with random as a reference line.

    Args:
        evidence: the site's statistics.
        spec: chart description.

    Returns:
        The chart, or None without such values.
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
    """Return sentences on the ranking by attention and its difference from a random order."""
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
    return f"{sentence} ({mean.n} texts).", spec.explanation
