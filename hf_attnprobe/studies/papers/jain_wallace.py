"""Jain & Wallace 2019, "Attention is not Explanation"."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hf_attnprobe.published import PUBLISHED, Published
from hf_attnprobe.statistics.summary import ATTENTION_BINS, bin_names
from hf_attnprobe.studies.plan import Job
from hf_attnprobe.studies.results import (
    Cell,
    Results,
    ResultTable,
    dataset_of,
    mean_of,
    median_of,
)


LABELS = ("data set", "encoder", "attention")
FIGURES = {
    "τ(g, loo) − τ(α, loo)": "leave_one_out_tau_difference",
    "τ(g, loo) − τ(α, g)": "gradient_tau_difference",
}
PAIRS = (
    ("attention_gradient", "τ(α, g)"),
    ("attention_leave_one_out", "τ(α, loo)"),
    ("gradient_leave_one_out", "τ(g, loo)"),
)
BETWEEN = "τ(α, loo) of the average − of the BiLSTM"


@dataclass(frozen=True)
class _Group:
    """The texts of an audit for which one class was predicted; all where it is None."""

    job: Job
    predicted: int | None
    rows: pd.DataFrame

    @property
    def encoder(self) -> str:
        return str(self.job.cell.get("encoder", "bilstm"))

    @property
    def labels(self) -> tuple[str, str, str]:
        """Data set, encoder and attention."""
        attention = str(self.job.cell.get("attention", "additive"))
        return dataset_of(self.job), self.encoder, attention

    def published(self, table: Mapping[str, Mapping[str, Any]], *keys: str) -> Any:
        """The published value for the class; None where the paper has none."""
        return Published(*self.labels).of_class(table, *keys, number=self.predicted)

    @property
    def shown(self) -> Cell:
        """The predicted class in a table."""
        return "all" if self.predicted is None else self.predicted


def tables(results: Results) -> list[ResultTable]:
    """τ with gradients and leave-one-out, adversaries, and shuffling, by predicted class."""
    groups = list(_groups(results))
    return [
        _correlation(groups),
        _overall(results),
        _differences(results),
        _adversarial(results, groups),
        _permutation(groups),
    ]


def _groups(results: Results) -> Iterator[_Group]:
    for job in results.jobs("audit"):
        rows = results.rows(job.folder)
        if dataset_of(job) in PUBLISHED.pooled:
            yield _Group(job, None, rows)
            continue
        for predicted in sorted(rows.predicted_class.dropna().unique().astype(int)):
            yield _Group(job, int(predicted), rows[rows.predicted_class == predicted])


def _correlation(groups: Sequence[_Group]) -> ResultTable:
    table = []
    for group, measure in itertools.product(groups, ("gradient", "leave_one_out")):
        tau = group.rows.get(f"attention_{measure}_tau")
        if tau is None:
            continue
        # The paper counts both signs; our ``significant`` is agreement only.
        share = _share(group.rows[f"attention_{measure}_p_value"] <= 0.05)
        ours = mean_of(tau), round(tau.std(ddof=0), 3), share
        paper = group.published(PUBLISHED.tau, measure, group.encoder)
        paper = paper or (None, None, None)
        table.append((*group.labels, measure, group.shown, *ours, *paper))
    return ResultTable(
        "Does attention rank tokens as importance does? (Table 2)",
        (
            *(*LABELS, "τ with", "predicted"),
            *("τ", "std", "significant"),
            *("published τ", "published std", "published significant"),
        ),
        tuple(table),
        (
            "Significant is p ≤ .05 with either sign of τ, as the paper counts it. Texts "
            "of question answering are not divided by predicted class, as in the paper.",
        ),
    )


def _overall(results: Results) -> ResultTable:
    """All texts of an audit, which the authors' released reruns do not divide either."""
    table: list[tuple[Cell, ...]] = []
    for job in results.jobs("audit"):
        group = _Group(job, None, results.rows(job.folder))
        dataset, encoder, attention = group.labels
        reruns = PUBLISHED.reruns.get(dataset, {}).get(encoder, {})
        *theirs, score = reruns.get(attention, (None,) * 4)
        measure, ours = _performance(group.rows)
        table.append((*group.labels, measure, ours, None, score, None))
        for (name, measure), paper in zip(PAIRS, theirs, strict=True):
            tau, p = group.rows.get(f"{name}_tau"), group.rows.get(f"{name}_p_value")
            if tau is not None and p is not None:
                numbers = mean_of(tau), _share(p <= 0.05), *(paper or (None, None))
                table.append((*group.labels, measure, *numbers))
    return ResultTable(
        "All predicted classes together, beside the authors' released reruns",
        (
            *(*LABELS, "measure", "ours", "significant"),
            *("published", "published significant"),
        ),
        tuple(table),
        (
            "α is attention, g the gradient, loo leave-one-out. F1 is that of class 1. "
            "Significant is p ≤ .05 with either sign of τ.",
        ),
    )


def _share(is_so: pd.Series) -> Cell:
    """The share of the texts, in three digits."""
    return round(float(is_so.mean()), 3)


def _performance(rows: pd.DataFrame) -> tuple[str, Cell]:
    """F1 of class 1 where there are two classes, else accuracy."""
    known = rows[rows.label >= 0]
    classes = set(known.label) | set(known.predicted_class)
    if not classes <= {0, 1}:
        return "accuracy", mean_of(known.accuracy)
    both = ((known.label == 1) & (known.predicted_class == 1)).sum()
    either = (known.label == 1).sum() + (known.predicted_class == 1).sum()
    return "F1", round(float(2 * both / either), 3) if either else None


def _differences(results: Results) -> ResultTable:
    """Their Figures 3, 4 and 5: differences of τ in the same texts."""
    table: list[tuple[Cell, ...]] = []
    for job in results.jobs("audit"):
        rows = results.rows(job.folder)
        for figure, statistic in FIGURES.items():
            if statistic in rows:
                name = f"{figure}, {job.cell.get('encoder', 'bilstm')}"
                table.append(_difference_row(job, name, statistic, rows[statistic]))
    for average, bilstm in _encoder_pairs(results):
        tau = [
            results.rows(job.folder).get("attention_leave_one_out_tau") for job in (average, bilstm)
        ]
        if tau[0] is not None and tau[1] is not None:
            texts = tau[0] - tau[1]  # by example id
            row = _difference_row(bilstm, BETWEEN, "encoder_difference", texts)
            table.append(row)
    return ResultTable(
        "By how much do τ differ in the same text? (Figures 3 to 5)",
        (
            *("data set", "attention", "difference of τ"),
            *("mean", "median", "above 0", "published mean"),
        ),
        tuple(table),
        (
            "g is the gradient, α attention, loo leave-one-out; a positive difference "
            "speaks against attention, or between encoders for the average's. Above 0 is "
            "the share of texts.",
            "Published are averages over the paper's data sets of BiLSTMs with additive "
            "attention, read off its figures; on SNLI the first two are −.07 and −.05.",
        ),
    )


def _difference_row(job: Job, name: str, statistic: str, texts: pd.Series) -> tuple[Cell, ...]:
    """Published averages stand beside BiLSTMs with additive attention."""
    attention = str(job.cell.get("attention", "additive"))
    is_theirs = (attention, job.cell.get("encoder", "bilstm")) == ("additive", "bilstm")
    paper = PUBLISHED.tau_differences[statistic] if is_theirs else None
    texts = texts.dropna()
    above = mean_of((texts > 0).astype(float))
    numbers = mean_of(texts), median_of(texts), above
    return dataset_of(job), attention, name, *numbers, paper


def _encoder_pairs(results: Results) -> Iterator[tuple[Job, Job]]:
    """Audits of the average encoder and of the BiLSTM that differ in nothing else."""
    audits = results.jobs("audit")
    for average in audits:
        if average.cell.get("encoder") != "mlp":
            continue
        wanted = {**average.cell, "encoder": "bilstm"}
        yield from ((average, other) for other in audits if other.cell == wanted)


def _adversarial(results: Results, groups: Sequence[_Group]) -> ResultTable:
    column = "epsilon_max_jsd@0.05"
    table = []
    for group in groups:
        search = results.rows(results.at("search", group.job.cell).folder)
        searched = median_of(search.reindex(group.rows.index)[column])
        exact = _exactly(group.rows, column)
        paper = group.published(PUBLISHED.epsilon_max_jsd, group.encoder)
        table.append((*group.labels, group.shown, searched, exact, paper))
    return ResultTable(
        "Could attention have looked elsewhere? Median ε-max JSD (ε = .05)",
        (
            *(*LABELS, "predicted"),
            *("searched", "exactly", "published (searched)"),
        ),
        tuple(table),
        (
            "Published are medians of the authors' released reruns, ±.01. ε-max JSD "
            "follows saturation and peakedness, and its ceiling is each model's own: rows "
            "are not to be compared with each other by it.",
            "Exactly is known of models of single texts with two classes; of others the "
            "search gives a lower bound. Where the read-out is not linear (pairs), ours also "
            "starts from one and two tokens and may find more than the authors'.",
        ),
    )


def _exactly(rows: pd.DataFrame, column: str) -> Cell:
    """The median where the audit knows the farthest attention of every text."""
    exact = rows.get("epsilon_max_jsd_exact")
    if column not in rows or exact is None or not (exact == 1).all():
        return None
    return median_of(rows[column])


def _permutation(groups: Sequence[_Group]) -> ResultTable:
    table = []
    for group in groups:
        largest = group.rows.max_attention
        for name, (low, high) in zip(bin_names(), itertools.pairwise(ATTENTION_BINS), strict=True):
            last = high == 1.0
            inside = (largest >= low) & ((largest < high) | last)
            if not inside.any():
                continue
            end = "]" if last else ")"
            weights = f"[{low:g}, {high:g}{end}"
            median = median_of(group.rows[inside].median_tvd)
            paper = group.published(PUBLISHED.permutation, group.encoder, name)
            table.append((*group.labels, group.shown, weights, median, paper))
    return ResultTable(
        "Does it matter which token got which weight?",
        (*LABELS, "predicted", "largest weight", "median Δŷ", "published"),
        tuple(table),
        ("Published are medians of the authors' released reruns, ±.005.",),
    )
