"""How often the intervals hold: simulated from known truths, stored, and told in the documentation.

    OMP_NUM_THREADS=1 python docs/coverage_table.py   # a few minutes; writes docs/coverage.json and the page

A cell is a kind of interval, what the texts are like, and how many there are. Stored is the share of samples whose
interval holds the truth, and its median width. The numbers are those of seed 0 and 2,000 samples a cell.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.retraining.verdict import over_seeds
from hf_attnprobe.statistics.estimates import (
    Estimate,
    mean_interval,
    paired_share_interval,
    resample_counts,
    share_interval,
    simultaneous_interval,
)
from hf_attnprobe.statistics.scores import difference_intervals, number_quality, weighted_metrics


N_SAMPLES, SEED = 2000, 0
SIZES = (30, 100, 500)
N_HEADS = 24
STORED = Path(__file__).with_name("coverage.json")
PAGE = Path(__file__).with_name("verdicts.md")
PLACE = re.compile("(<!-- coverage -->\n).*?(<!-- /coverage -->)", re.DOTALL)

counts_of = cache(resample_counts)
Cell = Callable[[np.random.Generator, int], tuple[np.ndarray, float | np.ndarray]]
"""From a generator and a number of texts the intervals [2, samples], and the truth."""


# --- what texts are like: the value at a quantile, and the mean -----------------------


def rarely(share: float, b: float):
    """0 but for a share of texts, which have Beta(1, b), as total variations are."""

    def quantile(u):
        return 1 - (1 - np.clip((u - 1 + share) / share, 0, 1)) ** (1 / b)

    return quantile, share / (1 + b)


POPULATIONS = {
    "normal": (ndtri, 0.0),
    "uniform": (lambda u: u, 0.5),
    "exponential": (lambda u: -np.log1p(-u), 1.0),
    "lognormal, σ 1": (lambda u: np.exp(ndtri(u) - 0.5), 1.0),
    "60% are 0, else Beta(1, 4)": rarely(0.4, 4),
    "80% are 0, else Beta(1, 4)": rarely(0.2, 4),
    "90% are 0, else Beta(1, 4)": rarely(0.1, 4),
    "97% are 0, else Beta(1, 4)": rarely(0.03, 4),
    "Beta(.3, 3), near 0": (lambda u: betaincinv(0.3, 3, u), 0.3 / 3.3),
    "Beta(5, .3), near 1": (lambda u: betaincinv(5, 0.3, u), 5 / 5.3),
    "four values, 60% are 0": (
        lambda u: np.array([0, 0.25, 0.5, 1])[np.searchsorted([0.6, 0.85, 0.95], u)],
        0.1625,
    ),
}


def of_means(name: str, interval=mean_interval) -> Cell:
    quantile, truth = POPULATIONS[name]
    return lambda rng, n: (interval(quantile(rng.random((n, N_SAMPLES)))), truth)


def by_percentiles(values: np.ndarray) -> np.ndarray:
    """What intervals of means were before: the percentile bootstrap."""
    means = resample_counts(len(values)) @ values / len(values)
    return np.percentile(means, [2.5, 97.5], axis=0)


def near_duplicates(rng, n):
    """Every text two to five times, with the same value."""
    values = np.empty((n, N_SAMPLES))
    for k in range(N_SAMPLES):
        copies = rng.integers(2, 6, n)
        values[:, k] = np.repeat(rng.exponential(size=n), copies)[:n]
    return mean_interval(values), 1.0


# --- shares and scores ----------------------------------------------------------------


def of_share(share: float) -> Cell:
    return lambda rng, n: (
        share_interval(rng.binomial(n, share, N_SAMPLES), np.full(N_SAMPLES, n)),
        share,
    )


def of_share_difference(only_first: float, only_second: float) -> Cell:
    shares = only_first, only_second, 1 - only_first - only_second

    def cell(rng, n):
        drawn = rng.choice([1.0, -1.0, 0.0], (n, N_SAMPLES), p=shares)
        return paired_share_interval(drawn), only_first - only_second

    return cell


def two_models(rng, n, right, share_of_one):
    """Labels and predictions of two models that mostly err on the same texts."""
    labels = (rng.random(n) < share_of_one).astype(int)
    luck = rng.random(n)
    other = np.where(rng.random(n) < 0.7, luck, rng.random(n))
    wrong = luck >= right[0], other >= right[1]
    return labels, *(np.where(w, 1 - labels, labels) for w in wrong)


def by_resamples(labels, first, second) -> dict[str, np.ndarray]:
    """What intervals of differences of scores were before."""
    counts = counts_of(len(labels))
    one, other = (weighted_metrics(labels, p, counts) for p in (first, second))
    return {m: np.percentile(one[m] - other[m], [2.5, 97.5]) for m in one}


def of_score(
    metric: str,
    right: tuple[float, float],
    share_of_one: float,
    intervals=difference_intervals,
) -> Cell:
    def f1(p):
        hits = share_of_one * p
        return 2 * hits / (share_of_one + hits + (1 - share_of_one) * (1 - p))

    truth = right[0] - right[1] if metric == "accuracy" else f1(right[0]) - f1(right[1])

    def cell(rng, n):
        found = []
        for _ in range(N_SAMPLES):
            labels, first, second = two_models(rng, n, right, share_of_one)
            both = np.eye(2)[first], np.eye(2)[second]
            found.append(intervals(labels, *both)[metric])
        return np.array(found).T, truth

    return cell


def of_r_squared(rng, n):
    """Predicted numbers that explain .36 of the labels' variance."""
    import pandas as pd

    from hf_attnprobe.statistics.rows import Texts

    found = []
    for _ in range(N_SAMPLES):
        wanted = rng.standard_normal(n)
        said = 0.36 * wanted + 0.48 * rng.standard_normal(n)
        frame = pd.DataFrame({"value": said, "labelled_value": wanted})
        found.append(number_quality(Texts.of_frame(frame)).r_squared.ci95)
    return np.array(found).T, 1 - (0.64**2 + 0.48**2)


def of_trainings(n_seeds: int) -> Cell:
    """F1 of seeds minus that of another training: the spread of seeds twice the texts'."""

    def cell(rng, n):
        error = 0.4 / np.sqrt(n)  # of the difference over these texts
        found = []
        for _ in range(N_SAMPLES):
            seeds = 0.8 + 2 * error * rng.standard_normal(n_seeds)
            one = 0.78 + 2 * error * rng.standard_normal()
            value = seeds.mean() - one + error * rng.standard_normal()
            texts = Estimate(value, (value - 1.96 * error, value + 1.96 * error), n)
            found.append(over_seeds(texts, list(seeds), n_seeds).ci95)
        return np.array(found).T, 0.02

    return cell


# --- many heads at once ---------------------------------------------------------------


def of_heads(name: str, which: str) -> Cell:
    """Of 24 heads that are alike (correlation .36 of normals): the largest, or all."""
    quantile, truth = POPULATIONS[name]

    def cell(rng, n):
        found = np.empty((2, N_SAMPLES))
        for k in range(N_SAMPLES):
            mixed = 0.6 * rng.standard_normal((n, 1))
            values = quantile(ndtr(mixed + 0.8 * rng.standard_normal((n, N_HEADS))))
            low, high = simultaneous_interval(values, seed=k, n_draws=250)
            best = values.mean(0).argmax()
            found[:, k] = low[best], high[best]
            if which == "all":
                found[:, k] = low.max(), high.min()
        return found, truth

    return cell


HEADS = ("normal", "exponential", "60% are 0, else Beta(1, 4)")
TWO = {"85% and 80% are right": ((0.85, 0.8), 0.5), "95% and 94%": ((0.95, 0.94), 0.5)}
TWO["90% and 88%, 15% are of class 1"] = ((0.9, 0.88), 0.15)
CELLS: dict[tuple[str, str], Cell] = {
    **{("mean", name): of_means(name) for name in POPULATIONS},
    ("mean", "exponential, every text 2 to 5 times"): near_duplicates,
    **{("share of texts", f"{p:.1%}"): of_share(p) for p in (0.004, 0.1, 0.5)},
    **{
        ("difference of shares", f"{a:.1%} only the first, {b:.1%} only the second"): (
            of_share_difference(a, b)
        )
        for a, b in ((0.004, 0.0), (0.1, 0.02), (0.3, 0.2))
    },
    **{
        (f"difference of {metric}", name): of_score(metric.lower(), *models)
        for metric in ("F1", "accuracy")
        for name, models in TWO.items()
    },
    ("R²", "predictions that explain .36"): of_r_squared,
    **{
        ("F1 over texts and seeds", f"{k} trainings with it"): of_trainings(k) for k in (2, 3, 5, 8)
    },
    **{("largest of 24 heads", name): of_heads(name, "largest") for name in HEADS},
    **{("all of 24 heads", name): of_heads(name, "all") for name in HEADS},
}
BEFORE: dict[tuple[str, str], Cell] = {
    **{("mean", name): of_means(name, by_percentiles) for name in POPULATIONS},
    **{
        (f"difference of {metric}", name): of_score(metric.lower(), *models, by_resamples)
        for metric in ("F1", "accuracy")
        for name, models in TWO.items()
    },
}
"""The percentile bootstrap, for the same samples."""


def measured(cell: Cell, n: int) -> list[float]:
    """Coverage and median width."""
    (low, high), truth = cell(np.random.default_rng(SEED), n)
    held = ((low <= truth) & (truth <= high)).mean()
    return [round(float(held), 4), float(f"{np.median(high - low):.3g}")]


def all_measured() -> list[dict]:
    """Of every cell, with what the percentile bootstrap gave of it."""
    found = []
    for (kind, texts), cell in CELLS.items():
        row = {"kind": kind, "texts": texts}
        row["found"] = {str(n): measured(cell, n) for n in SIZES}
        if before := BEFORE.get((kind, texts)):
            row["percentiles"] = {str(n): measured(before, n) for n in SIZES}
        found.append(row)
        print(row, flush=True)
    return found


def expected() -> str:
    """The page with the table as it has to be."""
    rows = []
    for row in json.loads(STORED.read_text()):
        # The widths of what must hold for all heads at once are no interval's.
        shown = [
            f"{held:.1%}" + (f" ({width:.3g})" if not row["kind"].startswith("all") else "")
            for held, width in row["found"].values()
        ]
        before = row.get("percentiles", {}).values()
        shown += [f"{held:.1%} ({width:.3g})" for held, width in before] or [""] * 3
        rows.append([row["kind"], row["texts"], *shown])
    heads = [f"{n} texts" for n in SIZES] + [f"percentiles, {n}" for n in SIZES]
    table = markdown.table(["interval", "texts", *heads], rows)
    lines = "\n".join(["", *table, "", ""])
    return PLACE.sub(lambda m: m[1] + lines + m[2], PAGE.read_text())


if __name__ == "__main__":
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in all_measured())
    STORED.write_text(f"[\n{rows}\n]\n")
    PAGE.write_text(expected())
