"""The results of the steps of a study, read from their folders."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hf_attnprobe.checkpoints.records import read_record
from hf_attnprobe.deception.run import SUMMARY as DECEPTION
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.retraining.report import RetrainingReport
from hf_attnprobe.retraining.stored import read_retraining
from hf_attnprobe.statistics.estimates import Estimate, mean_estimate
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.storage.provenance import from_plain
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.studies.plan import Column, Job, Scalar, Study, name_of


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
    rows: tuple[tuple[Cell, ...], ...]
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
        scores: Sequence[Score]
        if job.verb == "deceive":
            deception = self.read_json(job, DECEPTION)
            if metric == "mass":
                return estimate(deception["masses"].get(model), deception["n_named"])
            if metric in ("moved", "control", "beyond"):
                return estimate(deception[metric][model], deception["n_controlled"])
            scores = [from_plain(Score, score) for score in deception["scores"]]
            n = deception["n"]
        else:
            report = self.retraining(job.folder)
            scores, n = report.scores.get(test, ()), report.n
        score = find_score(scores, model, metric)
        if score is None:
            return None
        return difference_of(score, n) if difference else score_of(score, n)


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


def difference_of(score: Score, n: int) -> Estimate:
    """How far a score of n texts is below that of the reference."""
    return Estimate(score.difference, score.difference_ci95, n)


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
