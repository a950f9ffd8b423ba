"""The results of the steps of a study, read from their folders."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hf_attnprobe.checkpoints.records import read_record
from hf_attnprobe.deception.run import SUMMARY as DECEPTION
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.plain_data import from_plain
from hf_attnprobe.retraining.report import RetrainingReport, read_retraining
from hf_attnprobe.statistics.estimates import Estimate, mean_estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.storage.provenance import SUMMARY
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.studies.plan import Column, Job, Scalar, Study, Table, name_of


Cell = str | int | float | Estimate | None


@dataclass(frozen=True)
class ResultTable:
    """A table of the report.

    Args:
        title: what the table answers.
        head: names of the columns.
        rows: cells, one for each column.
        sentences: what the table shows, in words.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()
    sentences: tuple[str, ...] = ()


class Results:
    """Reads the folders of a study whose steps are done; each is read once."""

    def __init__(self, plan: Study, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.rows = cache(self._rows)
        self.retraining = cache(self._retraining)

    @cached_property
    def by_step(self) -> dict[str, list[Job]]:
        """The jobs of each step, in the order of the file."""
        jobs: dict[str, list[Job]] = {}
        for job in self.plan.jobs:
            jobs.setdefault(job.step, []).append(job)
        return jobs

    def jobs(self, step: str) -> list[Job]:
        """The jobs of a step; none where the study has no such step."""
        return self.by_step.get(step, [])

    def at(self, step: str, cell: Mapping[str, Scalar]) -> Job:
        """The job of a step for a cell of the grid."""
        return next(job for job in self.by_step[step] if job.is_at(cell))

    def _rows(self, folder: str) -> pd.DataFrame:
        """The statistics of an audit of one head, [texts, statistics], with accuracy."""
        rows = read_rows(self.folder / folder / "rows")
        of_heads = (rows.layer >= 0) & (rows["head"] >= 0)
        n_heads = len(rows.loc[of_heads, ["layer", "head"]].drop_duplicates())
        if n_heads > 1:
            raise AttnProbeError(
                f"expected the audit of one head for a column of a table, {folder} has "
                f"{n_heads}; choose one by layers and heads in the step"
            )
        rows = rows[of_heads | (rows.test == PREDICTION)]  # no groups of heads
        rows = rows.drop_duplicates(["example_id", "statistic"])
        wide = rows.pivot(index="example_id", columns="statistic", values="value")
        if {"label", "predicted_class"} <= set(wide):
            right = (wide.label == wide.predicted_class).astype(float)
            wide["accuracy"] = right.where(wide.label >= 0)
        return wide

    def _retraining(self, folder: str) -> RetrainingReport:
        return read_retraining(self.folder / folder)

    def retrainings(self, job: Job) -> list[str]:
        """The folders in which a step trained models beside others."""
        if job.verb in ("retrain", "transfer"):
            return [job.folder]
        if job.verb != "compare":
            return []
        inside = sorted((self.folder / job.folder).glob("*/retrained"))
        return [str(path.relative_to(self.folder)) for path in inside]

    def read_json(self, job: Job, name: str) -> dict[str, Any]:
        """A JSON file in the folder of a job."""
        return json.loads((self.folder / job.folder / name).read_text())

    def record(self, folder: str) -> dict[str, Any]:
        """What a training recorded of itself; empty where nothing was trained."""
        return read_record(self.folder / folder)

    def value(
        self, column: Column, job: Job, texts: Sequence[int] | None = None
    ) -> Estimate | None:
        """A column's value for a job.

        Args:
            column: a statistic of texts or a score.
            job: a job of the column's step.
            texts: example ids, to take the mean of a statistic over these only.

        Returns:
            None where the job did not run the test that the column is about.
        """
        if column.score is not None:
            return self._score(column.score, column.difference, job)
        assert column.statistic is not None  # the reader checks that it has one of both
        rows = self.rows(job.folder)
        values = ratio(rows, column.statistic)
        if values is None:
            return None
        return mean_of(values if texts is None else values[rows.index.isin(texts)])

    def _score(self, name: str, difference: bool, job: Job) -> Estimate | None:
        test, model, metric = name.split("/")
        if job.verb == "deceive":
            found = self.read_json(job, DECEPTION)
            if metric == "mass":
                return estimate(found["masses"].get(model), found["n_named"])
            if metric in ("moved", "control", "beyond"):
                return estimate(found[metric][model], found["n_controlled"])
            scores, n = from_plain(tuple[Score, ...], found["scores"]), found["n"]
        else:
            report = self.retraining(job.folder)
            scores, n = report.scores.get(test, ()), report.n
        score = find_score(scores, model, metric)
        if score is None:
            return None
        return score.lost(n) if difference else score_of(score, n)

    def _summary(self, job: Job) -> dict[str, Any]:
        return self.read_json(job, SUMMARY)

    def classes(self, job: Job) -> list[str]:
        """Names of the classes that an audited model predicts; none of other models."""
        prediction = self._summary(job)["provenance"].get("prediction") or {}
        return prediction["outcomes"] if prediction.get("kind") == "classes" else []

    def at_chance(self) -> list[str]:
        """The audited models that are not surely better than the most frequent class alone."""
        audits = [job for job in self.plan.jobs if job.verb == "audit"]
        found = {job.folder: self._summary(job)["accuracy"] for job in audits}
        unsure = ("no", "cannot say")
        return [name for name, found in found.items() if found and found["answer"] in unsure]


def estimate(entry: Mapping | None, n: int, *, scale: float = 1.0) -> Estimate | None:
    """A value of a summary file, where ``{value, ci95}`` are plain data.

    Args:
        entry: None where the summary has no such value.
        n: number of texts.
        scale: factor of value and interval; 100 makes percentage points.
    """
    if entry is None or entry["value"] is None:
        return None
    low, high = entry["ci95"]
    return Estimate(scale * entry["value"], (scale * low, scale * high), n)


def score_of(score: Score, n: int) -> Estimate:
    """A score of n texts."""
    return Estimate(score.value, score.ci95, n)


def ratio(rows: pd.DataFrame, statistic: str) -> pd.Series | None:
    """The values of a statistic, or of the ratio of two that is written ``a/b``.

    Returns:
        One value for each text, NaN where b is 0; None where a test was not run.
    """
    first, _, second = statistic.partition("/")
    if not second:
        return rows.get(first)
    if first not in rows or second not in rows:
        return None
    return rows[first] / rows[second].where(rows[second] > 0)


def rounded(value: float | str | None) -> float | str | None:
    """A number to three digits; a text or None as it is."""
    return round(value, 3) if isinstance(value, float) else value


def mean_of(values: pd.Series) -> Estimate:
    """The mean over the texts that have a value, with its interval."""
    return mean_estimate(values.to_numpy(dtype=np.float64))


def median_of(values: pd.Series) -> Estimate:
    """The median over the texts that have a value."""
    return Estimate(float(values.median()), None, int(values.notna().sum()))


def dataset_of(job: Job) -> str:
    """The name by which the study knows a job's data set."""
    return str(job.cell.get("dataset") or name_of(job.arguments["dataset"]))


# --- The tables of a grid: a row for each cell, a sentence for each column -----------------------

SPEAKING = ("dataset", "encoder", "attention")  # lists whose values need no name beside


class _Lengths(NamedTuple):
    """A range of numbers of tokens, ``low`` included and ``high`` not."""

    name: str
    low: float
    high: float


class _Row(NamedTuple):
    name: str  # in the sentences
    labels: tuple[Cell, ...]
    values: list[Estimate | None]


def grid_tables(results: Results) -> list[ResultTable]:
    """Every table that the study file asks for: a row for each cell of the grid."""
    return [_grid_table(results, table) for table in results.plan.tables]


def _grid_table(results: Results, table: Table) -> ResultTable:
    jobs = _jobs_of_rows(results, table)
    labels = list(jobs[0].cell)
    rows = [_row(results, table, job.cell) for job in jobs]
    if table.lengths:
        labels.append("tokens")
        parts = itertools.product(jobs, _ranges(table.lengths))
        rows = [_row(results, table, job.cell, lengths) for job, lengths in parts]
        rows = [row for row in rows if any(value and value.n for value in row.values)]
    values = zip(*(row.values for row in rows), strict=True)
    said = [
        _sentence(column, dict(zip([row.name for row in rows], of_column, strict=True)))
        for column, of_column in zip(table.columns, values, strict=False)
    ]
    return ResultTable(
        title=table.title,
        head=(*labels, *(column.name for column in table.columns)),
        rows=tuple((*row.labels, *row.values) for row in rows),
        sentences=tuple(filter(None, said)),
    )


def _jobs_of_rows(results: Results, table: Table) -> list[Job]:
    """The jobs of the step that uses most of the grid's lists: each is a row.

    Raises:
        AttnProbeError: another step of the table uses a list that this one does not.
    """
    by_step = {column.step: results.jobs(column.step) for column in table.columns}
    rows = max(by_step.values(), key=lambda jobs: len(jobs[0].cell))
    for step, jobs in by_step.items():
        if not jobs[0].cell.keys() <= rows[0].cell.keys():
            raise AttnProbeError(
                f"table {table.title!r}: no step is done for every cell that {step} "
                "and the others are; split it"
            )
    return rows


def _row(
    results: Results,
    table: Table,
    cell: Mapping[str, Scalar],
    lengths: _Lengths | None = None,
) -> _Row:
    """The row of a cell, for all of its texts or those within a range of lengths."""
    jobs = [results.at(column.step, cell) for column in table.columns]
    name, labels = _cell_name(cell), tuple(cell.values())
    texts: list[Any] = [None] * len(jobs)
    if lengths is not None:
        name, labels = f"{name} {lengths.name} tokens", (*labels, lengths.name)
        sizes = [results.rows(job.folder)["n_tokens"] for job in jobs]
        texts = [n.index[(n >= lengths.low) & (n < lengths.high)] for n in sizes]
    pairs = zip(table.columns, jobs, texts, strict=True)
    return _Row(name, labels, [results.value(column, job, some) for column, job, some in pairs])


def _ranges(bounds: Sequence[int]) -> list[_Lengths]:
    """The ranges between bounds.

    >>> [lengths.name for lengths in _ranges([10, 20])]
    ['1–9', '10–19', 'from 20']
    """
    between = [
        _Lengths(f"{low}–{high - 1}", low, high)
        for low, high in itertools.pairwise([1, *bounds])
        if high > low
    ]
    return [*between, _Lengths(f"from {bounds[-1]}", bounds[-1], np.inf)]


def _cell_name(cell: Mapping[str, Scalar]) -> str:
    """A cell of the grid in words.

    >>> _cell_name({"dataset": "sst", "encoder_size": 8})
    'sst encoder_size 8'
    """
    words = [str(v) if name in SPEAKING else f"{name} {v}" for name, v in cell.items()]
    return " ".join(words)


def _sentence(column: Column, values: Mapping[str, Estimate | None]) -> str | None:
    """Lowest and highest cell, and what the threshold says; None without a value."""
    defined = {name: v for name, v in values.items() if v is not None and v.value == v.value}
    if not defined:
        return None
    value_of = {name: value.value for name, value in defined.items()}
    low, high = min(value_of, key=value_of.__getitem__), max(value_of, key=value_of.__getitem__)
    sentence = f"{column.name}: {value_of[low]:.3f} ({low})."
    if len(defined) > 1:
        ends = f"from {value_of[low]:.3f} ({low}) to {value_of[high]:.3f} ({high})"
        sentence = f"{column.name}: {ends}."
    if column.threshold is None or column.means is None:
        return sentence
    return f"{sentence} {_against_threshold(column.threshold, column.means, defined)}"


def _against_threshold(threshold: float, means: str, values: Mapping[str, Estimate]) -> str:
    """Where the whole interval is above the threshold, where below, where neither.

    Without an interval, or of too few texts, nothing can be said.
    """
    groups: dict[str, list[str]] = {"there": [], "not": [], "cannot say": []}
    for name, value in values.items():
        known = value.ci95 is not None and (value.n or 0) >= MIN_TEXTS
        low, high = (value.ci95 if known else None) or (-math.inf, math.inf)
        group = "there" if low >= threshold else "not" if high < threshold else "cannot say"
        groups[group].append(name)
    parts = [
        f"{means[:1].upper()}{means[1:]} (from {threshold:g}, the whole interval) "
        f"in {len(groups['there'])} of {len(values)}"
    ]
    parts += [f"{group}: {', '.join(names)}" for group, names in groups.items() if names]
    return f"{'; '.join(parts)}."
