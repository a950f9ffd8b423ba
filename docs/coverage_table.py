"""Simulate how often the confidence intervals contain the true value, and write the table in docs/verdicts.md.

    OMP_NUM_THREADS=1 python docs/coverage_table.py   # takes a few minutes

A simulation has a type of interval, a population of texts and a number of texts. For each one, docs/coverage.json
stores the proportion of 2,000 samples (seed 0) whose interval contains the true value, and the median width of the
intervals.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.retraining.verdict import widen_by_seed_variance
from hf_attnprobe.statistics.estimates import (
    Estimate,
    compute_mean_interval,
    compute_paired_share_interval,
    compute_share_interval,
    compute_simultaneous_interval,
    draw_resample_counts,
)
from hf_attnprobe.statistics.scores import (
    compute_difference_intervals,
    compute_weighted_metrics,
    measure_number_quality,
)


N_SAMPLES, SEED = 2000, 0
SIZES = (30, 100, 500)
N_HEADS = 24
STORED = Path(__file__).with_name("coverage.json")
PAGE = Path(__file__).with_name("verdicts.md")
TABLE = re.compile("(<!-- coverage -->\n).*?(<!-- /coverage -->)", re.DOTALL)

draw_cached_resample_counts = cache(draw_resample_counts)
Simulation = Callable[[np.random.Generator, int], tuple[np.ndarray, float | np.ndarray]]
"""Function from a generator and a number of texts to intervals [2, samples] and the true value."""


# --- populations of texts: quantile function and mean --------------------------------


def build_sparse_population(share: float, b: float):
    """Return a population that is Beta(1, b) for a share of the texts and 0 for the others, like output changes."""

    def quantile(u):
        return 1 - (1 - np.clip((u - 1 + share) / share, 0, 1)) ** (1 / b)

    return quantile, share / (1 + b)


POPULATIONS = {
    "normal": (ndtri, 0.0),
    "uniform": (lambda u: u, 0.5),
    "exponential": (lambda u: -np.log1p(-u), 1.0),
    "lognormal, σ 1": (lambda u: np.exp(ndtri(u) - 0.5), 1.0),
    "60% are 0, else Beta(1, 4)": build_sparse_population(0.4, 4),
    "80% are 0, else Beta(1, 4)": build_sparse_population(0.2, 4),
    "90% are 0, else Beta(1, 4)": build_sparse_population(0.1, 4),
    "97% are 0, else Beta(1, 4)": build_sparse_population(0.03, 4),
    "Beta(.3, 3), near 0": (lambda u: betaincinv(0.3, 3, u), 0.3 / 3.3),
    "Beta(5, .3), near 1": (lambda u: betaincinv(5, 0.3, u), 5 / 5.3),
    "four values, 60% are 0": (
        lambda u: np.array([0, 0.25, 0.5, 1])[np.searchsorted([0.6, 0.85, 0.95], u)],
        0.1625,
    ),
}


def simulate_means(name: str, interval=compute_mean_interval) -> Simulation:
    """Return the simulation of intervals of the mean for a named population."""
    quantile, truth = POPULATIONS[name]
    return lambda rng, n: (interval(quantile(rng.random((n, N_SAMPLES)))), truth)


def compute_percentile_interval(values: np.ndarray) -> np.ndarray:
    """Compute intervals of means by the percentile bootstrap, for comparison."""
    means = draw_resample_counts(len(values)) @ values / len(values)
    return np.percentile(means, [2.5, 97.5], axis=0)


def simulate_near_duplicates(rng, n):
    """Compute intervals of the mean if every text occurs two to five times with the same value."""
    values = np.empty((n, N_SAMPLES))
    for k in range(N_SAMPLES):
        copies = rng.integers(2, 6, n)
        values[:, k] = np.repeat(rng.exponential(size=n), copies)[:n]
    return compute_mean_interval(values), 1.0


# --- shares and scores ----------------------------------------------------------------


def simulate_share(share: float) -> Simulation:
    """Return the simulation of intervals of a proportion of texts."""
    return lambda rng, n: (
        compute_share_interval(rng.binomial(n, share, N_SAMPLES), np.full(N_SAMPLES, n)),
        share,
    )


def simulate_share_difference(only_first: float, only_second: float) -> Simulation:
    """Return the simulation of intervals of a difference of proportions on the same texts."""
    shares = only_first, only_second, 1 - only_first - only_second

    def simulate(rng, n):
        differences = rng.choice([1.0, -1.0, 0.0], (n, N_SAMPLES), p=shares)
        return compute_paired_share_interval(differences), only_first - only_second

    return simulate


def draw_two_models(rng, n, accuracies, share_of_class_1):
    """Draw labels and the predictions of two models that mostly make errors on the same texts."""
    labels = (rng.random(n) < share_of_class_1).astype(int)
    first_difficulty = rng.random(n)
    second_difficulty = np.where(rng.random(n) < 0.7, first_difficulty, rng.random(n))
    errors = first_difficulty >= accuracies[0], second_difficulty >= accuracies[1]
    return labels, *(np.where(error, 1 - labels, labels) for error in errors)


def compute_percentile_differences(labels, first, second) -> dict[str, np.ndarray]:
    """Compute intervals of differences of scores by the percentile bootstrap, for comparison."""
    counts = draw_cached_resample_counts(len(labels))
    first_scores, second_scores = (
        compute_weighted_metrics(labels, predictions, counts) for predictions in (first, second)
    )
    return {
        metric: np.percentile(first_scores[metric] - second_scores[metric], [2.5, 97.5])
        for metric in first_scores
    }


def simulate_score_difference(
    metric: str,
    accuracies: tuple[float, float],
    share_of_class_1: float,
    compute_intervals=compute_difference_intervals,
) -> Simulation:
    """Return the simulation of intervals of the difference of two models' accuracy or F1."""

    def compute_f1(accuracy):
        hits = share_of_class_1 * accuracy
        return 2 * hits / (share_of_class_1 + hits + (1 - share_of_class_1) * (1 - accuracy))

    truth = accuracies[0] - accuracies[1]
    if metric != "accuracy":
        truth = compute_f1(accuracies[0]) - compute_f1(accuracies[1])

    def simulate(rng, n):
        intervals = []
        for _ in range(N_SAMPLES):
            labels, first, second = draw_two_models(rng, n, accuracies, share_of_class_1)
            one_hot = np.eye(2)[first], np.eye(2)[second]
            intervals.append(compute_intervals(labels, *one_hot)[metric])
        return np.array(intervals).T, truth

    return simulate


def simulate_r_squared(rng, n):
    """Compute intervals of R² for predictions that explain .36 of the variance of the labels."""
    import pandas as pd

    from hf_attnprobe.statistics.rows import Texts

    intervals = []
    for _ in range(N_SAMPLES):
        labels = rng.standard_normal(n)
        predictions = 0.36 * labels + 0.48 * rng.standard_normal(n)
        frame = pd.DataFrame({"value": predictions, "labelled_value": labels})
        intervals.append(measure_number_quality(Texts.from_frame(frame)).r_squared.ci95)
    return np.array(intervals).T, 1 - (0.64**2 + 0.48**2)


def simulate_trainings(n_seeds: int) -> Simulation:
    """Return the simulation of a difference between trainings, whose spread is twice that of the texts."""

    def simulate(rng, n):
        # Standard error of the difference over the texts.
        error = 0.4 / np.sqrt(n)
        intervals = []
        for _ in range(N_SAMPLES):
            seeds = 0.8 + 2 * error * rng.standard_normal(n_seeds)
            other_training = 0.78 + 2 * error * rng.standard_normal()
            value = seeds.mean() - other_training + error * rng.standard_normal()
            texts = Estimate(value, (value - 1.96 * error, value + 1.96 * error), n)
            intervals.append(widen_by_seed_variance(texts, list(seeds), n_seeds).ci95)
        return np.array(intervals).T, 0.02

    return simulate


# --- many heads at once ---------------------------------------------------------------


def simulate_heads(name: str, selection: str) -> Simulation:
    """Return the simulation of simultaneous intervals for 24 equal heads (correlation .36).

    Args:
        name: Population of the texts.
        selection: "largest" for the interval of the largest head, "all" for the intersection of all intervals.
    """
    quantile, truth = POPULATIONS[name]

    def simulate(rng, n):
        intervals = np.empty((2, N_SAMPLES))
        for k in range(N_SAMPLES):
            common = 0.6 * rng.standard_normal((n, 1))
            values = quantile(ndtr(common + 0.8 * rng.standard_normal((n, N_HEADS))))
            low, high = compute_simultaneous_interval(values, seed=k, n_draws=250)
            largest = values.mean(0).argmax()
            intervals[:, k] = low[largest], high[largest]
            if selection == "all":
                intervals[:, k] = low.max(), high.min()
        return intervals, truth

    return simulate


HEAD_POPULATIONS = ("normal", "exponential", "60% are 0, else Beta(1, 4)")
MODEL_PAIRS = {"85% and 80% are right": ((0.85, 0.8), 0.5), "95% and 94%": ((0.95, 0.94), 0.5)}
MODEL_PAIRS["90% and 88%, 15% are of class 1"] = ((0.9, 0.88), 0.15)
SIMULATIONS: dict[tuple[str, str], Simulation] = {
    **{("mean", name): simulate_means(name) for name in POPULATIONS},
    ("mean", "exponential, every text 2 to 5 times"): simulate_near_duplicates,
    **{("share of texts", f"{p:.1%}"): simulate_share(p) for p in (0.004, 0.1, 0.5)},
    **{
        ("difference of shares", f"{a:.1%} only the first, {b:.1%} only the second"): (
            simulate_share_difference(a, b)
        )
        for a, b in ((0.004, 0.0), (0.1, 0.02), (0.3, 0.2))
    },
    **{
        (f"difference of {metric}", name): simulate_score_difference(metric.lower(), *models)
        for metric in ("F1", "accuracy")
        for name, models in MODEL_PAIRS.items()
    },
    ("R²", "predictions that explain .36"): simulate_r_squared,
    **{
        ("F1 over texts and seeds", f"{k} trainings with it"): simulate_trainings(k)
        for k in (2, 3, 5, 8)
    },
    **{("largest of 24 heads", name): simulate_heads(name, "largest") for name in HEAD_POPULATIONS},
    **{("all of 24 heads", name): simulate_heads(name, "all") for name in HEAD_POPULATIONS},
}
PERCENTILE_SIMULATIONS: dict[tuple[str, str], Simulation] = {
    **{("mean", name): simulate_means(name, compute_percentile_interval) for name in POPULATIONS},
    **{
        (f"difference of {metric}", name): simulate_score_difference(
            metric.lower(), *models, compute_percentile_differences
        )
        for metric in ("F1", "accuracy")
        for name, models in MODEL_PAIRS.items()
    },
}
"""Simulations of percentile bootstrap intervals on the same samples."""


def measure_coverage(simulation: Simulation, n: int) -> list[float]:
    """Return the proportion of intervals that contain the true value, and their median width."""
    (low, high), truth = simulation(np.random.default_rng(SEED), n)
    coverage = ((low <= truth) & (truth <= high)).mean()
    return [round(float(coverage), 4), float(f"{np.median(high - low):.3g}")]


def run_simulations() -> list[dict]:
    """Run all simulations and return one row for each, with percentile intervals for comparison."""
    rows = []
    for (kind, texts), simulation in SIMULATIONS.items():
        row = {"kind": kind, "texts": texts}
        row["found"] = {str(n): measure_coverage(simulation, n) for n in SIZES}
        if percentile_simulation := PERCENTILE_SIMULATIONS.get((kind, texts)):
            row["percentiles"] = {str(n): measure_coverage(percentile_simulation, n) for n in SIZES}
        rows.append(row)
        print(row, flush=True)
    return rows


def render_page() -> str:
    """Return the page with its table replaced by the stored results."""
    rows = []
    for row in json.loads(STORED.read_text()):
        # The intersection of the intervals of all heads has no meaningful width.
        cells = [
            f"{coverage:.1%}" + (f" ({width:.3g})" if not row["kind"].startswith("all") else "")
            for coverage, width in row["found"].values()
        ]
        percentiles = row.get("percentiles", {}).values()
        cells += [f"{coverage:.1%} ({width:.3g})" for coverage, width in percentiles] or [""] * 3
        rows.append([row["kind"], row["texts"], *cells])
    columns = [f"{n} texts" for n in SIZES] + [f"percentiles, {n}" for n in SIZES]
    table = markdown.format_table(["interval", "texts", *columns], rows)
    lines = "\n".join(["", *table, "", ""])
    return TABLE.sub(lambda match: match[1] + lines + match[2], PAGE.read_text())


if __name__ == "__main__":
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in run_simulations())
    STORED.write_text(f"[\n{rows}\n]\n")
    PAGE.write_text(render_page())
