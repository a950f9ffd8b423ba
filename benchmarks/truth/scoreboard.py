"""Scoreboard of published faithfulness metrics on models with known truth.

Each metric in :data:`METRICS` reduces the attention of a model to one number. All of them are
computed for the same constructed models and texts, and the scoreboard shows how well they separate
the truths, which properties move them that should not, and how they respond to the share of texts
in which attention is right.

    python -m benchmarks.truth scoreboard       # measures models, then writes the tables and a figure

Each measured model is saved as a JSON file and not measured again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.truth import aggregations, field, run, thresholds
from benchmarks.truth.aggregations import AGGREGATIONS
from benchmarks.truth.kinds import EVERY_KIND, Kind
from benchmarks.truth.measure import rows_of, texts_of
from benchmarks.truth.model import ConstructedModel
from benchmarks.truth.nuisances import NUISANCES, SHARES_RIGHT
from benchmarks.truth.perturbation_metrics import (
    N_SOFT_DRAWS,
    measure_road,
    measure_saco,
    measure_soft_metrics,
)
from hf_attnprobe.core.formatting import format_table
from hf_attnprobe.plots.matplotlib_backend import COLOURS, PAGE_WIDTH, STYLE, render_figure
from hf_attnprobe.protocol import Batch
from hf_attnprobe.statistics.estimates import Estimate, estimate_mean
from hf_attnprobe.statistics.questions import (
    PARTLY_THRESHOLD,
    PATH_SHARE_THRESHOLD,
    YES_THRESHOLD,
)
from hf_attnprobe.statistics.rows import Texts
from hf_attnprobe.statistics.scale import (
    DELETION_PARTS,
    compute_faithfulness,
    find_default_classes,
)


@dataclass(frozen=True)
class Metric:
    """A number that is meant to measure how faithful attention is.

    Attributes:
        source: Paper and section, or "this package".
        formula: Definition for one text. The metric is the mean over texts.
        sign: 1 if a larger value is more faithful, -1 if a smaller value is.
    """

    source: str
    formula: str
    sign: int = 1


METRICS: Mapping[str, Metric] = {
    "τ, leave-one-out": Metric(
        "Jain & Wallace 2019, Section 4.1",
        "Kendall's τ-b between attention and the output change without each word",
    ),
    "τ, gradients": Metric(
        "Jain & Wallace 2019, Section 4.1",
        "Kendall's τ-b between attention and |gradient × input| with fixed attention",
    ),
    "median Δŷ": Metric(
        "Jain & Wallace 2019, Section 4.2.1",
        "median total variation distance of the output over 100 shuffles of the weights",
    ),
    "ε-max JSD": Metric(
        "Jain & Wallace 2019, Section 4.2.2",
        "largest Jensen-Shannon divergence from attention to weights with the same output (ε = .01)",
        sign=-1,
    ),
    "fraction to flip": Metric(
        "Serrano & Smith 2019, Section 4.3",
        "share of the weights that are set to 0, largest first, until the decision flips",
        sign=-1,
    ),
    "comprehensiveness": Metric(
        "DeYoung et al. 2020, Section 4",
        "mean of p(text) − p(text without the top k) for k = 1, 5, 10, 20 and 50% of the words",
    ),
    "sufficiency": Metric(
        "DeYoung et al. 2020, Section 4",
        "mean of p(text) − p(top k only) for k = 1, 5, 10, 20 and 50% of the words",
        sign=-1,
    ),
    "AOPC": Metric(
        "Samek et al. 2017, Section III",
        "mean of p(text) − p(text without the top k) for k = 1, 2, …, all words",
    ),
    "normalised AOPC": Metric(
        "Edin et al. 2025, Section 4",
        "(AOPC − smallest AOPC) / (largest − smallest AOPC of any order)",
    ),
    "soft comprehensiveness": Metric(
        "Zhao & Aletras 2023, Section 3",
        "(p(text) − p(softly masked text)) / (p(text) − p(empty text)); "
        "each element of a word vector is kept with probability 1 − attention",
    ),
    "soft sufficiency": Metric(
        "Zhao & Aletras 2023, Section 3",
        "1 − the same ratio; each element of a word vector is kept with probability attention",
    ),
    "ROAD": Metric(
        "Rong et al. 2022, Section 4",
        "mean accuracy if the top 10, 20, …, 90% of the words become the mean ordinary word",
        sign=-1,
    ),
    "SaCo": Metric(
        "Wu et al. 2024, Section 3, Algorithm 1",
        "Σ ±(s_i − s_j) / Σ |s_i − s_j| over pairs of word groups with the attention s; "
        "minus if the group with more attention matters less",
    ),
    "state interchange": Metric(
        "this package, test `interchange`",
        "share of texts that follow the donor of the most attended state − of another state",
    ),
    "path share": Metric(
        "this package, test `uniform_attention`",
        "1 − margin with even weights / margin, clipped to [0, 1]",
    ),
    "F before": Metric("this package", "faithfulness with words deleted"),
    "m1": Metric("this package", "faithfulness with words exchanged for removal only"),
    "F now": Metric("this package", "faithfulness with words exchanged"),
}
"""Maps the name of each metric to its definition, by year of publication."""
MAX_CLASSES_FOR_ALL_TEXTS = 99
"""Models with more classes get :data:`N_TEXTS_MANY_CLASSES` texts, because they are expensive."""
N_TEXTS_MANY_CLASSES = 60
"""Number of texts for models with many classes."""


# --- Measurement -------------------------------------------------------------------------------


def run_scoreboard(folder: Path, seeds: Sequence[int], n_texts: int) -> None:
    """Measure all metrics for all kinds, mixtures and nuisances, except for models that are saved.

    Args:
        folder: Results are saved in its subfolders ``kinds`` and ``nuisances``.
        seeds: Seeds for models and texts of each kind. Nuisances get only the first one.
        n_texts: Number of texts for each kind; nuisances get half as many.
    """
    for seed in seeds:
        for name, kind in EVERY_KIND.items():
            about = {"kind": name, "truth": kind.truth, "right": kind.right, "seed": seed}
            measure = partial(measure_kind, kind, name, seed, n_texts, about)
            run.kept(folder / "kinds" / name / f"{seed}.json", measure)
    seed = seeds[0]
    for name, nuisance in NUISANCES.items():
        for level in nuisance.levels:
            for p in SHARES_RIGHT:
                about = {"nuisance": name, "level": level, "right": p, "seed": seed}
                kind = nuisance.kind(p, level)
                measure = partial(measure_kind, kind, name, seed, n_texts // 2, about)
                run.kept(folder / "nuisances" / name / f"{level}, {p}, {seed}.json", measure)


def measure_kind(
    kind: Kind, name: str, seed: int, n_texts: int, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Draw a model with its texts and measure all metrics.

    Args:
        kind: Kind of models.
        name: Name of the kind, which seeds the draw.
        seed: Seed for the draw and for the metrics.
        n_texts: Number of texts, unless the model has many classes.
        about: Entries that are added to the result.
    """
    if kind.n_classes > MAX_CLASSES_FOR_ALL_TEXTS:
        n_texts = min(n_texts, N_TEXTS_MANY_CLASSES)
    model, batch = kind.draw(name, seed=seed, n_texts=n_texts)
    return {**about, "n": n_texts, **measure_metrics(model, batch, seed=seed)}


def measure_metrics(model: ConstructedModel, batch: Batch, *, seed: int) -> dict[str, Any]:
    """Measure all metrics for a model.

    Args:
        model: Model that reads the texts.
        batch: Texts.
        seed: Seed for shuffles, donors and masks.

    Returns:
        "metrics": value of each published metric, multiplied by its sign, so that larger is more
        faithful; None if it is undefined for all texts. "estimates": value, both ends of the
        interval and number of texts for each aggregation and for the path share.
    """
    texts = texts_of(rows_of(model, batch, seed=seed))
    soft = measure_soft_metrics(model, batch, seed=seed)
    values = field.single_numbers(model, batch, texts)
    follows, control = (texts.get_values(f"follows@{name}") for name in ("attention", "other"))
    values_by_text = {
        "soft comprehensiveness": soft["comprehensiveness"].numpy(),
        "soft sufficiency": soft["sufficiency"].numpy(),
        "ROAD": measure_road(model, batch).numpy(),
        "SaCo": measure_saco(model, batch).numpy(),
        "state interchange": follows - control,
    }
    for name, by_text in values_by_text.items():
        values[name] = _drop_nan(METRICS[name].sign * field.mean(by_text))
    estimates = estimate_aggregations(model, batch, texts, seed=seed)
    return {"metrics": values, "estimates": estimates}


def estimate_aggregations(
    model: ConstructedModel, batch: Batch, texts: Texts, *, seed: int
) -> dict[str, list[float | None]]:
    """Estimate the path share and each aggregation, with confidence intervals.

    As in an audit, texts in default classes are left out. The model predicts such a class if
    nothing in a text points to another one, so there is nothing to explain.

    Args:
        model: Model with donors and standard temperature.
        batch: Texts.
        texts: Statistics of these texts.
        seed: Seed for donors and ties.

    Returns:
        Value, lower end, upper end and number of texts by name.
    """
    best = aggregations.measure_cross_fitted_best(model, batch, seed=seed)
    texts = aggregations.add_cross_fitted_best(texts, best.numpy())
    predictions = model.observe(batch).probs.argmax(-1).numpy()
    classes = {str(label): predictions == label for label in np.unique(predictions)}
    default_classes = find_default_classes(texts, classes, DELETION_PARTS)
    if default_classes:
        texts = texts.select(~np.any([classes[name] for name in default_classes], axis=0))
    estimates = {"path share": estimate_mean(texts.get_values("path_share"))}
    for name, aggregation in AGGREGATIONS.items():
        estimates[name] = compute_faithfulness(texts, parts=aggregation.parts).score
    return {name: _list_numbers(estimate) for name, estimate in estimates.items()}


def _list_numbers(estimate: Estimate) -> list[float | None]:
    """List value, lower end, upper end and number of texts; None instead of NaN."""
    low, high = estimate.ci95 or (math.nan, math.nan)
    return [*(_drop_nan(number) for number in (estimate.value, low, high)), estimate.n]


def _drop_nan(value: float) -> float | None:
    """Replace NaN with None, for JSON."""
    return None if math.isnan(value) else float(value)


# --- Evaluation --------------------------------------------------------------------------------

N_BOOTSTRAP_DRAWS = 2000
"""Number of bootstrap draws for the intervals of AUROC."""


def read_models(folder: Path) -> pd.DataFrame:
    """Read the saved results of kinds or nuisances.

    Args:
        folder: Subfolder ``kinds`` or ``nuisances`` of the scoreboard's folder.

    Returns:
        One row per model, with a column for each metric. The columns of aggregations and of
        ``path share`` are followed by the columns ``low``, ``high`` and ``n``, such as
        ``F now low``.
    """
    rows = []
    for record in run.read(folder):
        estimates = record.pop("estimates")
        row = {**record, **record.pop("metrics")}
        for name, (value, low, high, n) in estimates.items():
            row |= {name: value, f"{name} low": low, f"{name} high": high, f"{name} n": n}
        rows.append(row)
    models = pd.DataFrame(rows)
    numeric = [name for name in models if name in METRICS or name.endswith((" low", " high"))]
    return models.astype(dict.fromkeys(numeric, float))


def average_kinds(models: pd.DataFrame, *, gate: bool = False) -> pd.DataFrame:
    """Average the metrics over the models of each kind, without mixtures.

    Args:
        models: Result of :func:`read_models` for kinds.
        gate: Whether kinds with a path share below :data:`PATH_SHARE_THRESHOLD` rank last.

    Returns:
        One row per kind, indexed by truth and kind, with one column per metric and aggregation.
    """
    names = list(dict.fromkeys([*METRICS, *AGGREGATIONS]))
    means = thresholds.constructed(models).groupby(["truth", "kind"])[names].mean()
    if gate:
        # All gated kinds get the same value, even if the metric is undefined for them.
        means[means["path share"] < PATH_SHARE_THRESHOLD] = means.min() - 1
    return means


def compute_auroc(values: pd.Series, negative_truths: Sequence[str], *, seed: int = 0) -> Estimate:
    """Compute AUROC: how often a kind with the truth yes has a larger value than another kind.

    The interval is a percentile bootstrap. Kinds are drawn with replacement within each truth.

    Args:
        values: Metric by truth and kind. Kinds without a value are ignored.
        negative_truths: Truths of the other kinds, such as ("no", "partly").
        seed: Seed for the bootstrap.

    Returns:
        AUROC with its 95% interval. Its n is the number of kinds with a value.
    """
    values = values.dropna()
    positive = values["yes"].to_numpy()
    negatives = [values[truth].to_numpy() for truth in negative_truths]
    comparisons = field.compare_pairs(positive, np.concatenate(negatives))
    generator = np.random.default_rng(seed)
    positive_counts = _draw_counts(generator, len(positive))
    negative_counts = np.hstack([_draw_counts(generator, len(values)) for values in negatives])
    sums = ((positive_counts @ comparisons) * negative_counts).sum(-1)
    low, high = np.quantile(sums / comparisons.size, [0.025, 0.975]).tolist()
    return Estimate(float(comparisons.mean()), (low, high), sum(comparisons.shape))


def _draw_counts(generator: np.random.Generator, n: int) -> np.ndarray:
    """Draw how often each of n kinds occurs in each bootstrap sample, [draws, n]."""
    return generator.multinomial(n, np.full(n, 1 / n), size=N_BOOTSTRAP_DRAWS)


@dataclass(frozen=True)
class WorstKind:
    """The kind that a metric places most wrongly among the kinds with the opposite truth.

    Attributes:
        name: Name of the kind.
        truth: Its truth, yes or no.
        share: Share of the kinds with the opposite truth that are on the right side of it.
    """

    name: str
    truth: str
    share: float


def find_worst_kind(values: pd.Series) -> WorstKind:
    """Find the kind with the truth yes or no that a metric places most wrongly.

    A kind with the truth yes should have a larger value than all kinds with the truth no. If
    several kinds are equally wrong, the one with the most wrong value is chosen: it is farthest on
    the wrong side of the middle between the means of both truths.

    Args:
        values: Metric by truth and kind.
    """
    values = values.dropna()
    comparisons = field.compare_pairs(values["yes"].to_numpy(), values["no"].to_numpy())
    middle = (values["yes"].mean() + values["no"].mean()) / 2
    candidates = []
    for truth, shares in (("yes", comparisons.mean(1)), ("no", comparisons.mean(0))):
        for (name, value), share in zip(values[truth].items(), shares.tolist(), strict=True):
            # Negative if the kind is on the wrong side of the middle.
            distance = value - middle if truth == "yes" else middle - value
            candidates.append((share, distance, WorstKind(name, truth, share)))
    return min(candidates, key=lambda candidate: candidate[:2])[2]


@dataclass(frozen=True)
class Response:
    """How a metric responds to the share p of texts in which attention is right.

    Attributes:
        r_squared: R² of a line through the mixtures from p = 0 to p = 1.
        half: Position of the value at p = .5 between the values at p = 0 (0) and at p = 1 (1).
    """

    r_squared: float
    half: float


def compute_response(models: pd.DataFrame, metric: str) -> Response:
    """Compute how linearly a metric responds to the share of texts in which attention is right.

    Args:
        models: Result of :func:`read_models` for kinds and mixtures.
        metric: Metric or aggregation.
    """
    mixtures = models[models.kind.str.startswith("right in")]
    curve = mixtures.groupby("right")[metric].mean()
    r_squared = np.corrcoef(curve.index.to_numpy(float), curve.to_numpy())[0, 1] ** 2
    half = (curve[0.5] - curve[0.0]) / (curve[1.0] - curve[0.0])
    return Response(float(r_squared), float(half))


def compute_cross_sensitivities(models: pd.DataFrame, metric: str) -> dict[str, float]:
    """Compute how far a metric moves if a property varies that should not matter.

    Args:
        models: Result of :func:`read_models` for nuisances.
        metric: Metric or aggregation.

    Returns:
        Largest change at equal p by nuisance, relative to the change from p = 0 to p = 1 without a
        nuisance. 0 is best.
    """
    plain = models[(models.nuisance == "label noise") & (models.level.map(str) == "0.0")]
    ends = plain.groupby("right")[metric].mean()
    full_change = abs(ends[1.0] - ends[0.0])
    sensitivities = {}
    for name in NUISANCES:
        levels = models[models.nuisance == name]
        means = levels.groupby(["right", levels.level.map(str)])[metric].mean().dropna()
        sensitivities[name] = field.cross_sensitivity(dict(means.items())) / full_change
    return sensitivities


@dataclass(frozen=True)
class Separation:
    """How well a metric separates models with the true answer yes from other models.

    Attributes:
        yes_no: AUROC for kinds with the truth yes against those with no.
        yes_not_yes: AUROC for kinds with the truth yes against those with no or partly.
        worst: Kind with the truth yes or no that is placed most wrongly.
    """

    yes_no: Estimate
    yes_not_yes: Estimate
    worst: WorstKind


@dataclass(frozen=True)
class Score:
    """How well a metric measures faithfulness.

    Attributes:
        plain: Separation by the metric alone.
        gated: Separation by the metric if kinds with a small path share rank last.
        sensitivities: Cross-sensitivity by nuisance.
        response: Response to the share of texts in which attention is right.
    """

    plain: Separation
    gated: Separation
    sensitivities: Mapping[str, float]
    response: Response

    @property
    def mean_sensitivity(self) -> float:
        """Mean cross-sensitivity over all nuisances."""
        return float(np.mean(list(self.sensitivities.values())))


def measure_separation(values: pd.Series) -> Separation:
    """Measure how well a metric separates kinds with different truths.

    Args:
        values: Metric by truth and kind.
    """
    return Separation(
        yes_no=compute_auroc(values, ["no"]),
        yes_not_yes=compute_auroc(values, ["no", "partly"]),
        worst=find_worst_kind(values),
    )


def score_metrics(kinds: pd.DataFrame, nuisances: pd.DataFrame) -> dict[str, Score]:
    """Score all metrics, the best one first.

    Args:
        kinds: Result of :func:`read_models` for kinds and mixtures.
        nuisances: Result of :func:`read_models` for nuisances.

    Returns:
        Scores by metric, sorted by the AUROC for yes against not yes without the gate.
    """
    means, gated_means = average_kinds(kinds), average_kinds(kinds, gate=True)
    scores = {}
    for metric in METRICS:
        scores[metric] = Score(
            plain=measure_separation(means[metric]),
            gated=measure_separation(gated_means[metric]),
            sensitivities=compute_cross_sensitivities(nuisances, metric),
            response=compute_response(kinds, metric),
        )
    return dict(sorted(scores.items(), key=lambda item: -item[1].plain.yes_not_yes.value))


# --- Tables ------------------------------------------------------------------------------------


def format_table_lines(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format a Markdown table."""
    return "\n".join(format_table(head, rows))


def format_scores(scores: Mapping[str, Score]) -> str:
    """Format a Markdown table that shows how well each metric separates the truths.

    Args:
        scores: Result of :func:`score_metrics`.
    """
    rows = []
    for metric, score in scores.items():
        cells: list[object] = [metric, score.plain.yes_no.n]
        for separation in (score.plain, score.gated):
            cells += [
                separation.yes_no.interval_text,
                separation.yes_not_yes.interval_text,
                _format_worst_kind(separation.worst),
            ]
        rows.append(cells)
    plain_head = ["yes / no", "yes / not yes", "worst kind"]
    gated_head = [f"{name}, with gate" for name in plain_head]
    return format_table_lines(["metric", "kinds", *plain_head, *gated_head], rows)


def _format_worst_kind(worst: WorstKind) -> str:
    """Format a kind with its truth and share, or "none" if it is placed correctly."""
    if worst.share == 1:
        return "none"
    return f"{worst.name} ({worst.truth}, {worst.share:.0%})"


def format_sensitivities(scores: Mapping[str, Score]) -> str:
    """Format a Markdown table of cross-sensitivity and of the response to right texts.

    Args:
        scores: Result of :func:`score_metrics`.
    """
    rows = []
    for metric, score in scores.items():
        largest = max(score.sensitivities, key=lambda name: score.sensitivities[name])
        rows.append(
            [
                metric,
                f"{score.mean_sensitivity:.2f}",
                f"{score.sensitivities[largest]:.2f} ({largest})",
                f"{score.response.r_squared:.2f}",
                f"{score.response.half:.2f}",
            ]
        )
    head = ["metric", "mean sensitivity", "largest sensitivity", "R²", "at p = .5"]
    return format_table_lines(head, rows)


def format_definitions() -> str:
    """Format a Markdown table with the definition of each metric."""
    rows = []
    for name, metric in METRICS.items():
        direction = "larger" if metric.sign > 0 else "smaller"
        # A vertical bar would end the table cell.
        rows.append([name, metric.formula.replace("|", "\\|"), direction, metric.source])
    return format_table_lines(["metric", "definition", "more faithful", "source"], rows)


def format_aggregations(kinds: pd.DataFrame) -> str:
    """Format the comparison of aggregations as a Markdown table and a list of wrong kinds.

    Args:
        kinds: Result of :func:`read_models` for kinds and mixtures.
    """
    gated_means = average_kinds(kinds, gate=True)
    rows, error_lines = [], []
    for name, aggregation in AGGREGATIONS.items():
        models = aggregations.select_aggregation(kinds, name)
        errors = aggregations.find_errors(models, aggregations.answer_models(models))
        (partly, yes), other_half = aggregations.evaluate_on_other_half(models)
        left_out = aggregations.evaluate_leaving_one_out(models)
        response = compute_response(kinds, name)
        rows.append(
            [
                name,
                aggregation.description,
                _format_errors(errors),
                _format_errors(other_half),
                f"{partly:.2f}, {yes:.2f}",
                _format_errors(left_out),
                compute_auroc(gated_means[name], ["no"]).interval_text,
                compute_auroc(gated_means[name], ["no", "partly"]).interval_text,
                f"{response.r_squared:.2f}",
                f"{response.half:.2f}",
            ]
        )
        wrong, opposite = (_join_names(names) for names in (errors.wrong, errors.opposite))
        error_lines.append(f"- {name}. Wrong: {wrong}. Opposite: {opposite}.")
    head = [
        "aggregation",
        "mean of",
        "all kinds",
        "other half",
        "its thresholds",
        "one kind left out",
        "yes / no",
        "yes / not yes",
        "R²",
        "at p = .5",
    ]
    return format_table_lines(head, rows) + "\n\n" + "\n".join(error_lines)


def _format_errors(errors: aggregations.Errors) -> str:
    """Format the numbers of kinds with errors, such as "3 / 1 / 4"."""
    return f"{len(errors.wrong)} / {len(errors.opposite)} / {len(errors.open)}"


def _join_names(names: Sequence[str]) -> str:
    """Join names of kinds, which can contain commas."""
    return "; ".join(names) or "none"


# --- Figure ------------------------------------------------------------------------------------

FIGURE_HEIGHT = 3.6
"""Height of the figure in inches."""


def draw_figure(scores: Mapping[str, Score]) -> bytes:
    """Draw AUROC and cross-sensitivity of each metric.

    Args:
        scores: Result of :func:`score_metrics`.

    Returns:
        Content of an SVG file.
    """
    rows = list(scores.values())
    heights = np.arange(len(rows))[::-1]
    with mpl.rc_context(STYLE):
        figure = Figure((PAGE_WIDTH, FIGURE_HEIGHT), layout="constrained")
        no_axes, not_yes_axes, sensitivity_axes = figure.subplots(1, 3, sharey=True)
        _draw_aurocs(no_axes, heights, [(row.plain.yes_no, row.gated.yes_no) for row in rows])
        _draw_aurocs(
            not_yes_axes,
            heights,
            [(row.plain.yes_not_yes, row.gated.yes_not_yes) for row in rows],
        )
        no_axes.set_xlabel("AUROC, yes / no")
        not_yes_axes.set_xlabel("AUROC, yes / not yes")
        _draw_sensitivities(sensitivity_axes, heights, rows)
        no_axes.set_yticks(heights, list(scores))
        for axes in (no_axes, not_yes_axes, sensitivity_axes):
            axes.grid(axis="y", linewidth=0.3, alpha=0.5)
        figure.legend(
            *no_axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False
        )
        figure.legend(
            *sensitivity_axes.get_legend_handles_labels(),
            loc="outside upper right",
            ncols=2,
            frameon=False,
        )
    return render_figure(figure, "svg", salt="scoreboard")


def _draw_aurocs(
    axes: Axes, heights: np.ndarray, aurocs: Sequence[tuple[Estimate, Estimate]]
) -> None:
    """Draw the AUROC of each metric without and with the gate, with intervals.

    Args:
        axes: Axes to draw on.
        heights: Vertical position of each metric.
        aurocs: AUROC without and with the gate of each metric.
    """
    labels = ("metric alone", "with the gate")
    for number, (label, series) in enumerate(zip(labels, zip(*aurocs, strict=True), strict=True)):
        values = np.array([auroc.value for auroc in series])
        ends = np.array([auroc.ci95 for auroc in series]).T
        # Intervals of the bootstrap contain their values up to rounding.
        bars = np.maximum([values - ends[0], ends[1] - values], 0)
        axes.errorbar(
            values,
            heights + 0.17 - 0.34 * number,
            xerr=bars,
            fmt="os"[number],
            color=COLOURS[number],
            markersize=3,
            elinewidth=0.8,
            label=label,
        )
    axes.set_xlim(0.5, 1.02)


def _draw_sensitivities(axes: Axes, heights: np.ndarray, scores: Sequence[Score]) -> None:
    """Draw the mean and the largest cross-sensitivity of each metric."""
    means = [score.mean_sensitivity for score in scores]
    largest = [max(score.sensitivities.values()) for score in scores]
    axes.plot(means, heights, "D", color=COLOURS[2], markersize=3, label="mean")
    axes.plot(largest, heights, ">", color=COLOURS[3], markersize=3, label="largest")
    axes.set_xlim(left=0)
    axes.set_xlabel("cross-sensitivity (0 is best)")


# --- Page --------------------------------------------------------------------------------------

N_BEST_METRICS = 4
"""Number of metrics that the discussion names as the best ones."""


def format_sections(folder: Path) -> dict[str, Any]:
    """Format the parts of ``page.md`` that the scoreboard fills.

    Args:
        folder: Folder of the scoreboard.

    Returns:
        Text or number by placeholder.
    """
    kinds, nuisances = read_models(folder / "kinds"), read_models(folder / "nuisances")
    scores = score_metrics(kinds, nuisances)
    flip = scores["fraction to flip"].plain
    means = average_kinds(kinds)
    gated_areas = [(name, score.gated.yes_not_yes.value) for name, score in scores.items()]
    best = sorted(gated_areas, key=lambda item: -item[1])[:N_BEST_METRICS]
    n_yes_or_no = int(kinds[kinds.truth != "partly"].pipe(thresholds.constructed).kind.nunique())
    return {
        "scoreboard": format_scores(scores),
        "sensitivities": format_sensitivities(scores),
        "definitions": format_definitions(),
        "aggregations": format_aggregations(kinds),
        "n_scored_kinds": thresholds.constructed(kinds).kind.nunique(),
        "n_soft_draws": N_SOFT_DRAWS,
        "gate": PATH_SHARE_THRESHOLD,
        "partly_threshold": PARTLY_THRESHOLD,
        "yes_threshold": YES_THRESHOLD,
        "n_undefined_flip": n_yes_or_no - (flip.yes_no.n or 0),
        "perfect_alone": _list_perfect({name: score.plain for name, score in scores.items()}),
        "perfect_with_gate": _list_perfect({name: score.gated for name, score in scores.items()}),
        "best_not_yes": ", ".join(f"{name} ({area:.2f})" for name, area in best),
        "idle_faithfulness": means["F now"][means["path share"] < PATH_SHARE_THRESHOLD].max(),
    }


def _list_perfect(separations: Mapping[str, Separation]) -> str:
    """List the metrics for which every kind with the truth yes has a larger value than any with no."""
    return ", ".join(name for name, own in separations.items() if own.yes_no.value == 1) or "none"


def write_tables(folder: Path) -> None:
    """Write the tables of the scoreboard to ``scoreboard.md`` in its folder.

    Args:
        folder: Folder of the scoreboard.
    """
    sections = format_sections(folder)
    tables = [
        sections[name] for name in ("scoreboard", "sensitivities", "definitions", "aggregations")
    ]
    (folder / "scoreboard.md").write_text("\n\n".join(tables) + "\n")


def write_figure(folder: Path, file: Path) -> None:
    """Write the figure of the scoreboard.

    Args:
        folder: Folder of the scoreboard.
        file: SVG file.
    """
    kinds, nuisances = read_models(folder / "kinds"), read_models(folder / "nuisances")
    file.write_bytes(draw_figure(score_metrics(kinds, nuisances)))
