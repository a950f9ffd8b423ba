"""Several checkpoints on the same texts: scores from their rows, and what they say. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.charts.chart import Chart, Series
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.faithfulness.options import Fragility
from hf_attnprobe.plain_data import plain
from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.reports.document import Cell, Document, Number, Section, Table
from hf_attnprobe.reports.forms import Documented
from hf_attnprobe.retraining.verdict import Point
from hf_attnprobe.statistics.estimates import (
    Estimate,
    mean_estimates,
    resample_counts,
)
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.scores import resampled_estimate, weighted_metrics, with_all_texts


CHANGED = ("uniform", "permuted")  # attention put in place of the trained one
COLUMNS = {
    "f1": "F1",
    "uniform_change": "Un",
    "permuted_change": "Pm",
    "accuracy": "accuracy",
    "probability": "mean top probability",
    "share_of_largest@0.01": "ε-max JSD (.01) / largest JSD",
    "epsilon_max_jsd@0.01": "ε-max JSD, ε .01",
    "largest_jsd": "largest JSD",
    "conicity": "conicity",
    "absolute_conicity": "absolute conicity",
    "probability_range": "range of single tokens",
    "probability_std": "std of single tokens",
}
"""Columns of the table by the name of the number."""
NOT_COMPARED = ("epsilon_max_jsd@0.01", "largest_jsd")
"""Shown, but of no difference: the first is bounded by the second, each model's own."""
DRAWN = ("f1", "uniform_change", "permuted_change", "accuracy", "share_of_largest@0.01")
"""Numbers that have a chart."""
NOTHING = Estimate(math.nan)
IN_POINTS = ("f1", "uniform_change", "permuted_change")  # as the paper shows scores


@dataclass(frozen=True)
class ComparedCheckpoint:
    """One row of the table.

    Attributes:
        model: folder or Hub id.
        name: how it was trained, see :func:`regulariser_name`.
        encoder: of its configuration.
        attention: of its configuration.
        found: numbers by name, those of ``COLUMNS`` and changes of accuracy.
        differences: of the same numbers, but ``NOT_COMPARED``, to the first checkpoint's,
            paired by text; empty for the first.
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
    differences: dict[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointComparison(Documented):
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

    def document(self) -> Document:
        """All that it says."""
        return document_of(self)


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
    known = PUBLISHED.regularised.get(dataset, {}).get(config.attention, {})
    return known.get(name.partition(" ")[0])


@dataclass(frozen=True, eq=False)
class Numbers:
    """What one checkpoint's audit found, so that it can be paired with another's.

    Attributes:
        resampled: scores by name, over all texts and then over resamples of them,
            [1 + resamples].
        texts: means by name, as one value per text.
        labelled: ids of the texts that the scores are of.
    """

    resampled: dict[str, np.ndarray]
    texts: pd.DataFrame
    labelled: pd.Index

    def estimates(self) -> dict[str, Estimate]:
        """Every number with its interval."""
        n = len(self.labelled)
        scores = {name: resampled_estimate(values, n) for name, values in self.resampled.items()}
        means = mean_estimates(self.texts.to_numpy(dtype=np.float64))
        return scores | {name: mean for name, mean in zip(self.texts, means, strict=True) if mean.n}

    def minus(self, first: "Numbers") -> "Numbers":
        """Every difference to another's number on the same texts and resamples."""
        same = self.labelled.equals(first.labelled)
        resampled = {
            name: values - first.resampled[name]
            for name, values in self.resampled.items()
            if same and name in first.resampled
        }
        names = [n for n in self.texts if n in first.texts and n not in NOT_COMPARED]
        return Numbers(resampled, self.texts[names] - first.texts[names], self.labelled)


def numbers_of(rows: pd.DataFrame, n_classes: int, *, seed: int = 0) -> Numbers:
    """What the rows of an audit say of a checkpoint.

    Args:
        rows: of an audit of the only attention.
        n_classes: of the model.
        seed: of the bootstrap.
    """
    wide = rows.pivot_table(index="example_id", columns="statistic", values="value")
    if {"largest_jsd", "epsilon_max_jsd@0.01"} <= set(wide):
        bound = wide.largest_jsd
        wide["share_of_largest@0.01"] = wide["epsilon_max_jsd@0.01"] / bound.where(bound > 0)
    if {"label", "predicted_class"} <= set(wide):
        right = (wide.label == wide.predicted_class).astype(float)
        wide["accuracy"] = right.where(wide.label >= 0)
    labelled = wide[wide.label >= 0] if "label" in wide else wide[:0]
    resampled = resampled_scores(labelled, n_classes, seed=seed)
    names = [name for name in COLUMNS if name in wide and name not in resampled]
    return Numbers(resampled, wide[names], labelled.index)


def resampled_scores(
    texts: pd.DataFrame, n_classes: int, *, seed: int = 0
) -> dict[str, np.ndarray]:
    """F1 and accuracy with trained attention, and what other attention changes of them.

    All are of the same resamples of the texts, [1 + resamples], behind the value over all
    texts. F1 is that of class 1 for two classes, else the mean over classes; of several
    permutations that of their counts together.

    Args:
        texts: labelled ones, a statistic per column.
        n_classes: of the model.
        seed: of the bootstrap.

    Returns:
        ``f1``, ``accuracy``, ``uniform_change``, ``accuracy_uniform_change``, …; empty
        without labels or without the test ``fragility``.
    """
    if texts.empty or "trained_share@0" not in texts:
        return {}
    labels = texts.label.to_numpy(dtype=int)
    counts = with_all_texts(resample_counts(len(labels), seed=seed))

    def scores(attention: str) -> dict[str, np.ndarray]:
        shares = texts[[f"{attention}_share@{k}" for k in range(n_classes)]]
        return weighted_metrics(labels, shares.to_numpy(), counts)

    trained = scores("trained")
    resampled = dict(trained)
    for attention in CHANGED:
        for metric, values in scores(attention).items():
            of_metric = "" if metric == "f1" else f"{metric}_"
            resampled[f"{of_metric}{attention}_change"] = values - trained[metric]
    return resampled


LEAD = (
    "The same tests on several trained checkpoints, on the same texts: how good each is, "
    "how much its score changes under other attention, and how far its attention can be "
    "moved with nearly the same output."
)
ADVERSARY_NOTE = (
    "Adversaries are trained with the penalties of their checkpoint, and scored on all test texts."
)


def document_of(comparison: CheckpointComparison) -> Document:
    """All that a comparison says."""
    checkpoints = comparison.checkpoints
    n = len(checkpoints)
    numbers, adversaries = number_table(checkpoints), adversary_table(checkpoints)
    differences = difference_table(checkpoints)
    return Document(
        f"{n} checkpoint{'s' if n > 1 else ''} on {comparison.dataset}",
        [LEAD, f"{comparison.n} texts, seed {comparison.seed}."],
        [
            Section(
                "What differs from the first checkpoint",
                [
                    list(_told(comparison)),
                    differences,
                    difference_note(checkpoints) if differences else None,
                ],
                id="differences",
                brief=True,
            ),
            Section(
                "Every checkpoint", [numbers, *notes(checkpoints)], id="checkpoints", brief=True
            ),
            Section("The numbers as charts", list(charts(comparison)), id="charts"),
            Section(
                "Trained adversaries",
                [adversaries, ADVERSARY_NOTE if adversaries else None],
                id="curve",
                brief=True,
            ),
        ],
        data=to_json(comparison),
    )


def number_table(checkpoints: Sequence[ComparedCheckpoint]) -> Table:
    """A checkpoint per row, a number per column."""
    head, rows = _rows_of(checkpoints, [c.found for c in checkpoints])
    if any(c.published for c in checkpoints):
        head.append("published F1, Un, Pm")
        for c, row in zip(checkpoints, rows, strict=True):
            row.append(
                None if c.published is None else "{:.1f}, {:+.1f}, {:+.1f}".format(*c.published)
            )
    return Table(["checkpoint", *head], rows, caption="Every checkpoint")


def difference_table(checkpoints: Sequence[ComparedCheckpoint]) -> Table:
    """What can be told of the differences to the first checkpoint."""
    compared = [c for c in checkpoints if c.differences]
    head, rows = _rows_of(compared, [c.differences for c in compared], doubted=True)
    return Table(["difference to the first", *head], rows, caption="Differences")


def _rows_of(
    checkpoints: Sequence[ComparedCheckpoint],
    numbers: Sequence[Mapping[str, Estimate]],
    *,
    doubted: bool = False,
) -> tuple[list[str], list[list[Cell]]]:
    """The head behind a checkpoint's name, and its row of numbers.

    Args:
        doubted: whether a number whose sign cannot be told is marked.
    """
    names = [name for name in COLUMNS if any(name in found for found in numbers)]
    rows: list[list[Cell]] = []
    for c, found in zip(checkpoints, numbers, strict=True):
        row: list[Cell] = [_title(c), c.attention]
        for name in names:
            estimate, cell = found.get(name), None
            if estimate is not None:
                digits, scale = (1, 100) if name in IN_POINTS else (3, 1)
                mark = "(?)" if doubted and not can_be_told(estimate) else ""
                cell = Number(estimate.value, estimate.ci95, digits=digits, scale=scale, after=mark)
            row.append(cell)
        rows.append(row)
    return ["attention", *(COLUMNS[name] for name in names)], rows


def _title(checkpoint: ComparedCheckpoint) -> str:
    return f"{checkpoint.name} ({checkpoint.model})"


def difference_note(checkpoints: Sequence[ComparedCheckpoint]) -> str:
    """What the differences are."""
    first = checkpoints[0]
    return (
        f"Differences to {_title(first)} are paired by text. (?): the sign "
        f"cannot be told, as the interval holds 0 or there are fewer than {MIN_TEXTS} "
        "texts. Intervals are over texts, of one training each: another seed may move a "
        "number by more."
    )


def can_be_told(difference: Estimate) -> bool:
    """Whether the sign of a difference can be told from these texts."""
    if difference.ci95 is None or (difference.n or 0) < MIN_TEXTS:
        return False
    low, high = difference.ci95
    return low > 0 or high < 0


def adversary_table(checkpoints: Sequence[ComparedCheckpoint]) -> Table:
    """How far trained adversaries attend, by checkpoint and λ."""
    rows: list[list[Cell]] = []
    for c in checkpoints:
        for point in c.adversaries:
            f1 = None if point.f1 is None else Number(point.f1, digits=1, scale=100)
            moved = point.jsd.value, Number(point.tvd.value, digits=4)
            rows.append([_title(c), c.attention, point.name, *moved, f1])
    head = ["checkpoint", "attention", "trained adversary", "mean JSD", "mean TVD", "F1"]
    return Table(head, rows, "Distance of attention and output from the checkpoint's own")


def notes(checkpoints: Sequence[ComparedCheckpoint]) -> list[str]:
    """What the numbers are."""
    names = {name for c in checkpoints for name in c.found}
    said = ["95% percentile intervals over resamples of the texts are in brackets."]
    if "f1" in names:
        said.append(
            "Un, Pm: change of F1, in points, under uniform attention and under "
            f"permutations ({Fragility().n_draws} draws per text)."
        )
    if "share_of_largest@0.01" in names:
        said.append(
            "ε-max JSD: how far attention can be moved with the output within .01 (the "
            "paper's ε for classification), exact for two classes, else a lower bound. "
            "It cannot exceed the largest JSD there is, which is lower for even "
            "attention, so that models are compared by the share per text. It also depends on "
            "saturation and peakedness: confident outputs hardly move under any weights. "
            "So a larger share alone does not mean that attention explains less."
        )
    return said


def _told(comparison: CheckpointComparison) -> Iterator[str]:
    """Of every checkpoint behind the first, what is surely higher or lower."""
    first = comparison.checkpoints[0].name
    for c in comparison.checkpoints[1:]:
        told = {n: d.value for n, d in c.differences.items() if n in COLUMNS and can_be_told(d)}
        higher = [COLUMNS[name] for name, value in told.items() if value > 0]
        lower = [COLUMNS[name] for name, value in told.items() if value <= 0]
        said = [f"higher in {', '.join(higher)}"] if higher else []
        said += [f"lower in {', '.join(lower)}"] if lower else []
        differs = "; ".join(said) or "cannot be told apart in any number"
        yield f"{_title(c)} against {first}: {differs}."


def charts(comparison: CheckpointComparison) -> Iterator[Chart]:
    """A chart per number, with the checkpoints side by side."""
    checkpoints = comparison.checkpoints
    if len(checkpoints) < 2:
        return
    places = tuple(f"{k}. {c.name}" for k, c in enumerate(checkpoints, 1))
    for name in DRAWN:
        found = [c.found.get(name, NOTHING) for c in checkpoints]
        if all(e is NOTHING for e in found):
            continue
        scale = 100 if name in IN_POINTS else 1
        ends = [(e.value, *(e.ci95 or (math.nan, math.nan))) for e in found]
        values, low, high = (tuple(scale * e[k] for e in ends) for k in range(3))
        finding = ", ".join(
            f"{place} {value:.3g}" for place, value in zip(places, values, strict=True)
        )
        yield Chart(
            key=f"checkpoints_{name.partition('@')[0]}",
            title=COLUMNS[name],
            sentences=(
                f"{finding}.",
                "Bars are 95% intervals of each over texts; whether two differ is told by the "
                "paired differences above.",
            ),
            source="Tutek & Šnajder 2020",
            kind="dots",
            x_label="checkpoint",
            y_label=f"{COLUMNS[name]}{', points' if scale == 100 else ''}",
            series=(Series("checkpoints", places, values, low, high),),
        )


def to_json(comparison: CheckpointComparison) -> dict:
    """Plain data; NaN becomes None."""
    return plain(comparison) | {"dataset": str(comparison.dataset)}
