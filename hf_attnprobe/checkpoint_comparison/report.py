"""Several checkpoints on the same texts: scores from their rows, and what they say. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    mean_estimate,
    percentile_interval,
    resample_counts,
)
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.scores import weighted_metrics, with_all_texts
from hf_attnprobe.statistics.summary import PREDICTION


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
        return self._with_intervals(self.resampled, self.texts)

    def minus(self, first: "Numbers") -> dict[str, Estimate]:
        """Every difference to another's number on the same texts and resamples."""
        resampled = {
            name: values - first.resampled[name]
            for name, values in self.resampled.items()
            if name in first.resampled and self.labelled.equals(first.labelled)
        }
        names = [name for name in self.texts if name in first.texts]
        names = [name for name in names if name not in NOT_COMPARED]
        texts = self.texts[names] - first.texts[names]
        return self._with_intervals(resampled, texts)

    def _with_intervals(
        self, resampled: Mapping[str, np.ndarray], texts: pd.DataFrame
    ) -> dict[str, Estimate]:
        estimates = {}
        for name, values in resampled.items():
            interval = percentile_interval(values[1:])
            estimates[name] = Estimate(float(values[0]), interval, len(self.labelled))
        for name in texts:
            values = texts[name].to_numpy(dtype=np.float64)
            if not np.isnan(values).all():
                estimates[name] = mean_estimate(values)
        return estimates


def numbers_of(rows: pd.DataFrame, n_classes: int, *, seed: int = 0) -> Numbers:
    """What the rows of an audit say of a checkpoint.

    Args:
        rows: of an audit of the only attention.
        n_classes: of the model.
        seed: of the bootstrap.
    """
    resampled = resampled_scores(rows, n_classes, seed=seed)
    wide = rows.pivot_table(index="example_id", columns="statistic", values="value")
    bound, room = wide.get("largest_jsd"), wide.get("epsilon_max_jsd@0.01")
    if bound is not None and room is not None:
        wide["share_of_largest@0.01"] = room / bound.where(bound > 0)
    if {"label", "predicted_class"} <= set(wide):
        right = (wide.label == wide.predicted_class).astype(float)
        wide["accuracy"] = right.where(wide.label >= 0)
    names = [name for name in COLUMNS if name in wide and name not in resampled]
    labelled = wide.index[wide["label"] >= 0] if "label" in wide else wide.index[:0]
    return Numbers(resampled, wide[names], labelled)


def resampled_scores(rows: pd.DataFrame, n_classes: int, *, seed: int = 0) -> dict[str, np.ndarray]:
    """F1 and accuracy with trained attention, and what other attention changes of them.

    All are of the same resamples of the texts, [1 + resamples], behind the value over all
    texts. F1 is that of class 1 for two classes, else the mean over classes; of several
    permutations that of their counts together.

    Args:
        rows: of an audit; texts without a label are left out.
        n_classes: of the model.
        seed: of the bootstrap.

    Returns:
        ``f1``, ``accuracy``, ``uniform_change``, ``accuracy_uniform_change``, …; empty
        without labels or without the test ``fragility``.
    """
    of_label = (rows.test == PREDICTION) & (rows.statistic == "label")
    labels = rows[of_label].set_index("example_id").value
    labels = labels[labels >= 0].astype(int).sort_index()
    of_test = rows[rows.test == "fragility"]
    if labels.empty or of_test.empty:
        return {}
    wide = of_test.pivot_table(index="example_id", columns="statistic", values="value")
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
    names = [name for name in COLUMNS if any(name in c.found for c in checkpoints)]
    has_published = any(c.published for c in checkpoints)
    head = ["checkpoint", "attention", *(COLUMNS[name] for name in names)]
    if has_published:
        head.append("published F1, Un, Pm")
    rows: list[list[Cell]] = []
    for c in checkpoints:
        row: list[Cell] = [f"{c.name} ({c.model})", c.attention]
        row += [_cell(name, c.found.get(name)) for name in names]
        if has_published:
            row.append(_published_cell(c.published))
        rows.append(row)
    return Table(head, rows, caption="Every checkpoint")


def difference_note(checkpoints: Sequence[ComparedCheckpoint]) -> str:
    """What the differences are."""
    first = checkpoints[0]
    return (
        f"Differences to {first.name} ({first.model}) are paired by text. (?): the sign "
        f"cannot be told, as the interval holds 0 or there are fewer than {MIN_TEXTS} "
        "texts. Intervals are over texts, of one training each: another seed may move a "
        "number by more."
    )


def difference_table(checkpoints: Sequence[ComparedCheckpoint]) -> Table:
    """What can be told of the differences to the first checkpoint."""
    compared = [c for c in checkpoints if c.differences]
    names = [name for name in COLUMNS if any(name in c.differences for c in compared)]
    head = ["difference to the first", "attention", *(COLUMNS[name] for name in names)]
    rows: list[list[Cell]] = []
    for c in compared:
        cells = [_difference_cell(name, c.differences.get(name)) for name in names]
        rows.append([f"{c.name} ({c.model})", c.attention, *cells])
    return Table(head, rows, caption="Differences")


def _difference_cell(name: str, estimate: Estimate | None) -> Number | None:
    cell = _cell(name, estimate)
    if cell is None or estimate is None or can_be_told(estimate):
        return cell
    return replace(cell, after="(?)")


def can_be_told(difference: Estimate) -> bool:
    """Whether the sign of a difference can be told from these texts."""
    if difference.ci95 is None or (difference.n or 0) < MIN_TEXTS:
        return False
    low, high = difference.ci95
    return low > 0 or high < 0


def _cell(name: str, estimate: Estimate | None) -> Number | None:
    if estimate is None:
        return None
    if name in IN_POINTS:
        return Number(estimate.value, estimate.ci95, digits=1, scale=100)
    return Number(estimate.value, estimate.ci95)


def _published_cell(published: tuple[float, float, float] | None) -> str | None:
    if published is None:
        return None
    f1, uniform, permuted = published
    return f"{f1:.1f}, {uniform:+.1f}, {permuted:+.1f}"


def adversary_table(checkpoints: Sequence[ComparedCheckpoint]) -> Table:
    """How far trained adversaries attend, by checkpoint and λ."""
    rows: list[list[Cell]] = []
    for c in checkpoints:
        for point in c.adversaries:
            f1 = None if point.f1 is None else Number(point.f1, digits=1, scale=100)
            tvd = point.tvd if isinstance(point.tvd, str) else Number(point.tvd, digits=4)
            own = [f"{c.name} ({c.model})", c.attention, point.name]
            rows.append([*own, Number(point.jsd), tvd, f1])
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
        higher: list[str] = []
        lower: list[str] = []
        for name, difference in c.differences.items():
            if name in COLUMNS and can_be_told(difference):
                side = higher if difference.value > 0 else lower
                side.append(COLUMNS[name])
        said = [f"higher in {', '.join(higher)}"] if higher else []
        said += [f"lower in {', '.join(lower)}"] if lower else []
        told = "; ".join(said) or "cannot be told apart in any number"
        yield f"{c.name} ({c.model}) against {first}: {told}."


def charts(comparison: CheckpointComparison) -> Iterator[Chart]:
    """A chart per number, with the checkpoints side by side."""
    checkpoints = comparison.checkpoints
    if len(checkpoints) < 2:
        return
    places = tuple(f"{k}. {c.name}" for k, c in enumerate(checkpoints, 1))
    for name in DRAWN:
        found = [c.found.get(name) for c in checkpoints]
        if all(e is None for e in found):
            continue
        scale = 100 if name in IN_POINTS else 1
        ends = [_ends(e, scale) for e in found]
        values, low, high = (tuple(e[k] for e in ends) for k in range(3))
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


def _ends(estimate: Estimate | None, scale: int) -> tuple[float, float, float]:
    nan = float("nan")
    if estimate is None:
        return nan, nan, nan
    low, high = estimate.ci95 or (nan, nan)
    return scale * estimate.value, scale * low, scale * high


def to_json(comparison: CheckpointComparison) -> dict:
    """Plain data; NaN becomes None."""
    return plain(comparison) | {"dataset": str(comparison.dataset)}
