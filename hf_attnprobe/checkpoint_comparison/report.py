"""Several checkpoints on the same texts: scores from their rows, and one table.

Pure: data frames in, strings out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe import published_results as published
from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.faithfulness.fragility import N_DRAWS
from hf_attnprobe.retraining.curve import Point
from hf_attnprobe.statistics.bootstrap import (
    Estimate,
    percentile_interval,
    resample_counts,
)
from hf_attnprobe.statistics.scores import weighted_metrics, with_all_texts
from hf_attnprobe.statistics.summary import PREDICTION, Statistic, find_statistic
from hf_attnprobe.storage.plain_data import plain


CHANGED = ("uniform", "permuted")  # attention put in place of the trained one
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
"""Columns of the table by the name of the number."""
IN_POINTS = ("f1", "uniform_change", "permuted_change")  # as the paper shows scores


@dataclass(frozen=True)
class ComparedCheckpoint:
    """One row of the table.

    Attributes:
        model: folder or Hub id.
        name: how it was trained, see :func:`regulariser_name`.
        encoder: of its configuration.
        attention: of its configuration.
        found: numbers by name, those of ``COLUMNS`` and accuracies.
        adversaries: trained ones, by λ.
        published: F1 with trained attention and its changes under uniform and permuted
            attention, in points.
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
    """Checkpoints on the same texts; ``print`` gives the table.

    Attributes:
        dataset: the texts' data set and split.
        n: texts.
        seed: of the audits.
        checkpoints: the rows of the table.
    """

    dataset: DatasetName
    n: int
    seed: int
    checkpoints: tuple[ComparedCheckpoint, ...]

    def __str__(self) -> str:
        return to_text(self)


def regulariser_name(config: AttentionClassifierConfig) -> str:
    """What a configuration adds to plain training.

    Returns:
        ``base``, or ``concat``, ``tying 1``, ``mlm 0.5``, …, joined by " + ".
    """
    parts = [] if config.residual_connection == "none" else [config.residual_connection]
    weights = {
        "tying": config.tying,
        "mlm": config.mlm_weight,
        "conicity": config.conicity_weight,
    }
    parts += [f"{name} {weight:g}" for name, weight in weights.items() if weight]
    if config.encoder == "orthogonal_lstm":
        parts.append("orthogonal")
    return " + ".join(parts) or "base"


def published_for(
    dataset: str, config: AttentionClassifierConfig
) -> tuple[float, float, float] | None:
    """The row of Tutek & Šnajder (2020) for a checkpoint, where there is one.

    Args:
        dataset: as the papers call it.
        config: of the checkpoint.
    """
    name = regulariser_name(config)
    if config.encoder != "bilstm" or "+" in name:
        return None
    known = published.REGULARISED.get(dataset, {}).get(config.attention, {})
    return known.get(name.partition(" ")[0])


def fragility_scores(
    rows: pd.DataFrame, n_classes: int, *, seed: int = 0
) -> dict[str, Estimate]:
    """F1 and accuracy with trained attention, and what other attention changes of them.

    All are of the same resamples of the texts. F1 is that of class 1 for two classes,
    else the mean over classes; of several permutations that of their counts together.

    Args:
        rows: of an audit with the test ``fragility``; texts without a label are left
            out.
        n_classes: of the model.
        seed: of the bootstrap.

    Returns:
        ``f1``, ``accuracy``, ``uniform_change``, ``accuracy_uniform_change``, ….
    """
    of_label = (rows.test == PREDICTION) & (rows.statistic == "label")
    labels = rows[of_label].set_index("example_id").value
    labels = labels[labels >= 0].astype(int).sort_index()
    if labels.empty:
        return {}
    wide = rows[rows.test == "fragility"].pivot_table(
        index="example_id", columns="statistic", values="value"
    )
    wide = wide.loc[labels.index]
    counts = with_all_texts(resample_counts(len(labels), seed=seed))
    scores = {}
    for attention in ("trained", *CHANGED):
        columns = [f"{attention}_share@{k}" for k in range(n_classes)]
        shares = wide[columns].to_numpy()
        scores[attention] = weighted_metrics(labels.to_numpy(), shares, counts)
    trained = scores["trained"]
    resampled = dict(trained)
    for attention in CHANGED:
        for metric, prefix in (("f1", ""), ("accuracy", "accuracy_")):
            change = scores[attention][metric] - trained[metric]
            resampled[f"{prefix}{attention}_change"] = change
    estimates = {}
    for name, values in resampled.items():
        interval = percentile_interval(values[1:])
        estimates[name] = Estimate(float(values[0]), interval, len(labels))
    return estimates


def mean_estimates(statistics: Sequence[Statistic], layer: int) -> dict[str, Estimate]:
    """Means over the texts of the statistics that have a column."""
    estimates = {}
    for name in COLUMNS:
        s = find_statistic(statistics, name, layer=layer)
        if s is not None:
            estimates[name] = Estimate(s.mean, s.ci95, s.n)
    return estimates


def to_text(comparison: CheckpointComparison) -> str:
    """The tables in Markdown, with a note on what their numbers are."""
    title = (
        f"{len(comparison.checkpoints)} checkpoints on {comparison.dataset}: "
        f"{comparison.n} texts, seed {comparison.seed}"
    )
    lines = [
        title,
        "",
        *_table(comparison.checkpoints),
        *_adversaries(comparison.checkpoints),
        "",
        *_notes(comparison.checkpoints),
    ]
    return "\n".join(lines)


def _table(checkpoints: Sequence[ComparedCheckpoint]) -> list[str]:
    names = [name for name in COLUMNS if any(name in c.found for c in checkpoints)]
    has_published = any(c.published for c in checkpoints)
    head = ["checkpoint", "attention", *(COLUMNS[name] for name in names)]
    if has_published:
        head.append("published F1, Un, Pm")
    rows = []
    for c in checkpoints:
        row = [f"{c.name} ({c.model})", c.attention]
        row += [_cell(name, c.found.get(name)) for name in names]
        if has_published:
            row.append(_published_cell(c.published))
        rows.append(row)
    return markdown.table(head, rows)


def _cell(name: str, estimate: Estimate | None) -> str:
    if estimate is None:
        return markdown.MISSING
    if name in IN_POINTS:
        return markdown.interval(estimate.value, estimate.ci95, digits=1, scale=100)
    return markdown.interval(estimate.value, estimate.ci95)


def _published_cell(published: tuple[float, float, float] | None) -> str:
    if published is None:
        return markdown.MISSING
    f1, uniform, permuted = published
    return f"{f1:.1f}, {uniform:+.1f}, {permuted:+.1f}"


def _adversaries(checkpoints: Sequence[ComparedCheckpoint]) -> list[str]:
    rows = []
    for c in checkpoints:
        for point in c.adversaries:
            f1 = None if point.f1 is None else 100 * point.f1
            numbers = [
                markdown.number(point.jsd),
                markdown.number(point.tvd, digits=4),
                markdown.number(f1, digits=1),
            ]
            rows.append([f"{c.name} ({c.model})", c.attention, point.name, *numbers])
    if not rows:
        return []
    head = [
        "checkpoint",
        "attention",
        "trained adversary",
        "mean JSD",
        "mean TVD",
        "F1",
    ]
    note = (
        "Adversaries are trained with the penalties of their checkpoint, and scored "
        "on all test texts."
    )
    return ["", *markdown.table(head, rows), "", note]


def _notes(checkpoints: Sequence[ComparedCheckpoint]) -> list[str]:
    names = {name for c in checkpoints for name in c.found}
    notes = ["95% percentile intervals over resamples of the texts are in brackets."]
    if "f1" in names:
        notes.append(
            "Un, Pm: change of F1, in points, under uniform attention and under "
            f"permutations ({N_DRAWS} draws per text)."
        )
    if "epsilon_max_jsd@0.05" in names:
        notes.append(
            "ε-max JSD: how far attention can be moved with the output within ε, "
            "exact for two classes."
        )
    return notes


def to_json(comparison: CheckpointComparison) -> dict:
    """Plain data; NaN becomes None."""
    return plain(comparison) | {"dataset": str(comparison.dataset)}
