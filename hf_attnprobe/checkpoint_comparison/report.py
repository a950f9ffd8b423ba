"""Several checkpoints beside one another: scores from their rows, and one table. Pure: data frames in, strings out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hf_attnprobe import published_results as published
from hf_attnprobe.faithfulness.fragility import N_DRAWS
from hf_attnprobe.retraining.verdict import Point
from hf_attnprobe.statistics.bootstrap import Estimate
from hf_attnprobe.statistics.scores import N_RESAMPLES
from hf_attnprobe.statistics.summary import PREDICTION, Statistic, find
from hf_attnprobe.storage.plain_data import plain


ATTENTIONS = ("trained", "uniform", "permuted")
COLUMNS = {
    "f1": "F1",
    "uniform_change": "Un",
    "permuted_change": "Pm",
    "epsilon_max_jsd@0.05": "ε-max JSD, ε .05",
    "conicity": "conicity",
    "absolute_conicity": "absolute conicity",
    "probability_range": "range of single tokens",
    "probability_std": "std of single tokens",
}
"""Columns of the table by the name of the number; scores are shown in points, as the paper does."""
IN_POINTS = ("f1", "uniform_change", "permuted_change")


@dataclass(frozen=True)
class ComparedCheckpoint:
    """One row of the table.

    name: how it was trained, see :func:`regulariser_name`. attention, encoder: of its configuration.
    found: numbers by name, those of ``COLUMNS`` and accuracies. adversaries: trained ones by λ.
    published: F1 with trained attention and its changes under uniform and permuted attention, in points.
    """

    model: str
    name: str
    encoder: str
    attention: str
    found: dict[str, Estimate]
    adversaries: tuple[Point, ...] = ()
    published: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class CheckpointComparison:
    """Checkpoints on the same texts; ``print`` gives the table."""

    dataset: str
    n: int
    seed: int
    checkpoints: tuple[ComparedCheckpoint, ...]

    def __str__(self) -> str:
        return to_text(self)


def regulariser_name(config) -> str:
    """What a configuration adds to plain training: "base", or "concat", "tying 1", "mlm 0.5", joined by " + "."""
    parts = [] if config.residual_connection == "none" else [config.residual_connection]
    weights = {
        "tying": config.tying,
        "mlm": config.mlm_weight,
        "conicity": config.conicity_weight,
    }
    parts += [f"{name} {weight:g}" for name, weight in weights.items() if weight]
    parts += ["orthogonal"] if config.encoder == "orthogonal_lstm" else []
    return " + ".join(parts) or "base"


def published_for(dataset: str, config) -> tuple[float, float, float] | None:
    """The row of Tutek & Šnajder (2020) for this data set, attention and regulariser, where there is one."""
    name = regulariser_name(config).partition(" ")
    known = published.REGULARISED.get(Path(dataset).name.lower(), {}).get(
        config.attention, {}
    )
    return (
        known.get(name[0])
        if config.encoder == "bilstm" and "+" not in name[2]
        else None
    )


def fragility_scores(
    rows: pd.DataFrame, n_classes: int, *, seed: int = 0
) -> dict[str, Estimate]:
    """F1 and accuracy with trained attention, and what uniform and permuted attention change; all of the same resamples.

    F1 is that of class 1 for two classes, else the mean over classes; of several permutations that of their counts
    together. Texts without a label are left out.

    Args:
        rows: of an audit with the test ``fragility``.
        n_classes: of the model.
        seed: of the bootstrap.
    """
    labels = (
        rows[(rows.test == PREDICTION) & (rows.statistic == "label")]
        .set_index("example_id")
        .value
    )
    labels = labels[labels >= 0].astype(int).sort_index()
    if labels.empty:
        return {}
    wide = rows[rows.test == "fragility"].pivot_table(
        index="example_id", columns="statistic", values="value"
    )
    wide = wide.loc[labels.index]
    counts = np.random.default_rng(seed).multinomial(
        len(labels), np.full(len(labels), 1 / len(labels)), N_RESAMPLES
    )
    counts = np.vstack(
        [np.ones(len(labels)), counts]
    )  # the texts as they are, then the resamples
    scores = {
        name: _scores(
            np.eye(n_classes)[labels],
            wide[[f"{name}_share@{k}" for k in range(n_classes)]].to_numpy(),
            counts,
        )
        for name in ATTENTIONS
    }
    found = {metric: _estimate(values) for metric, values in scores["trained"].items()}
    for name in ATTENTIONS[1:]:
        for metric, prefix in (("f1", ""), ("accuracy", "accuracy_")):
            found[f"{prefix}{name}_change"] = _estimate(
                scores[name][metric] - scores["trained"][metric]
            )
    return found


def _scores(
    labels: np.ndarray, shares: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Each [resamples], from one-hot labels and shares of predictions, both [texts, classes]."""
    hits, present, predicted = (
        counts @ (labels * shares),
        counts @ labels,
        counts @ shares,
    )
    by_class = 2 * hits / np.maximum(present + predicted, 1e-12)
    f1 = by_class[:, 1] if labels.shape[1] == 2 else by_class.mean(1)
    return {"f1": f1, "accuracy": hits.sum(1) / counts.sum(1)}


def _estimate(values: np.ndarray) -> Estimate:
    """The first value, and the interval of the others."""
    low, high = np.percentile(values[1:], [2.5, 97.5])
    return Estimate(float(values[0]), (float(low), float(high)))


def mean_estimates(statistics: Sequence[Statistic], layer: int) -> dict[str, Estimate]:
    """Means over the texts of the statistics that have a column."""
    found = {name: find(statistics, name, layer=layer) for name in COLUMNS}
    return {
        name: Estimate(s.mean, s.ci95) for name, s in found.items() if s is not None
    }


def to_text(comparison: CheckpointComparison) -> str:
    """The tables in Markdown, with a note on what their numbers are."""
    title = f"{len(comparison.checkpoints)} checkpoints on {comparison.dataset}: {comparison.n} texts, seed {comparison.seed}"
    return "\n".join(
        [
            title,
            "",
            *_table(comparison),
            *_adversaries(comparison),
            "",
            *_notes(comparison),
        ]
    )


def _table(comparison: CheckpointComparison) -> list[str]:
    checkpoints = comparison.checkpoints
    names = [name for name in COLUMNS if any(name in c.found for c in checkpoints)]
    theirs = any(c.published for c in checkpoints)
    head = ["checkpoint", "attention", *(COLUMNS[name] for name in names)] + (
        ["published F1, Un, Pm"] if theirs else []
    )
    rows = []
    for c in checkpoints:
        cells = [_cell(c.found.get(name), name in IN_POINTS) for name in names]
        known = (
            [
                "–"
                if c.published is None
                else "{:.1f}, {:+.1f}, {:+.1f}".format(*c.published)
            ]
            if theirs
            else []
        )
        rows.append([f"{c.name} ({c.model})", c.attention, *cells, *known])
    return _lines(head, rows)


def _cell(estimate: Estimate | None, in_points: bool) -> str:
    if estimate is None:
        return "–"
    scale, digits = (100, 1) if in_points else (1, 3)
    value, low, high = (
        f"{scale * x:.{digits}f}" for x in (estimate.value, *estimate.ci95)
    )
    return f"{value} [{low}, {high}]"


def _adversaries(comparison: CheckpointComparison) -> list[str]:
    rows = [
        [
            f"{c.name} ({c.model})",
            c.attention,
            p.name,
            f"{p.jsd:.3f}",
            f"{p.tvd:.4f}",
            "–" if p.f1 is None else f"{100 * p.f1:.1f}",
        ]
        for c in comparison.checkpoints
        for p in c.adversaries
    ]
    head = [
        "checkpoint",
        "attention",
        "trained adversary",
        "mean JSD",
        "mean TVD",
        "F1",
    ]
    note = "Adversaries are trained with the penalties of their checkpoint, and scored on all test texts."
    return ["", *_lines(head, rows), "", note] if rows else []


def _notes(comparison: CheckpointComparison) -> list[str]:
    found: Mapping = {name: 1 for c in comparison.checkpoints for name in c.found}
    notes = ["95% percentile intervals over resamples of the texts are in brackets."]
    if "f1" in found:
        notes.append(
            f"Un, Pm: change of F1, in points, under uniform attention and under permutations ({N_DRAWS} draws per text)."
        )
    if "epsilon_max_jsd@0.05" in found:
        notes.append(
            "ε-max JSD: how far attention can be moved with the output within ε, exact for two classes."
        )
    return notes


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def to_json(comparison: CheckpointComparison) -> dict:
    """Plain data; NaN becomes None."""
    return plain(comparison)
