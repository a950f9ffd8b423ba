"""What the steps of a study left behind, and the tables that are made of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from hf_attnprobe.checkpoints import read_record
from hf_attnprobe.deception.run import SUMMARY as DECEPTION
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.retraining.report import RetrainingReport
from hf_attnprobe.retraining.run import read_retraining
from hf_attnprobe.statistics.bootstrap import Estimate, mean_estimate
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.storage.plain_data import from_plain
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.studies.plan import Column, Job, Study, name_of


Cell = str | int | float | Estimate | None


@dataclass(frozen=True)
class ResultTable:
    """``rows`` have a cell for each of ``head``, ``sentences`` say what they show."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sentences: tuple[str, ...] = ()


class Results:
    """The folders of a study whose steps are done."""

    def __init__(self, plan: Study, folder: Path):
        self.plan, self.folder = plan, folder
        self.rows, self.retraining = cache(self._rows), cache(self._retraining)

    @cached_property
    def by_step(self) -> dict[str, list[Job]]:
        """The jobs of every step, in the order of the file."""
        found: dict[str, list[Job]] = {}
        for job in self.plan.jobs:
            found.setdefault(job.step, []).append(job)
        return found

    def jobs(self, step: str) -> list[Job]:
        """Those of a step; none where the study has no such step."""
        return self.by_step.get(step, [])

    def at(self, step: str, cell: Mapping) -> Job:
        """The one that a cell of the grid is about."""
        return next(
            job
            for job in self.by_step[step]
            if all(cell[k] == v for k, v in job.cell.items())
        )

    def _rows(self, folder: str) -> pd.DataFrame:
        rows = read_rows(self.folder / folder / "rows")
        heads = rows.loc[
            (rows.test != PREDICTION) & (rows["head"] >= 0), ["layer", "head"]
        ].drop_duplicates()
        if len(heads) > 1:
            raise AttnProbeError(
                f"expected the audit of one head for a column of a table, {folder} has {len(heads)}; choose one by layers "
                "and heads in the step"
            )
        rows = rows.drop_duplicates(["example_id", "statistic"])
        wide = rows.pivot(index="example_id", columns="statistic", values="value")
        if {"label", "predicted_class"} <= set(wide):
            wide["accuracy"] = (
                (wide.label == wide.predicted_class)
                .astype(float)
                .where(wide.label >= 0)
            )
        return wide

    def _retraining(self, folder: str) -> RetrainingReport:
        return read_retraining(self.folder / folder)

    def retrainings(self, job: Job) -> list[str]:
        """Folders in which a step trained models beside others."""
        if job.verb in ("retrain", "transfer"):
            return [job.folder]
        inside = (
            sorted((self.folder / job.folder).glob("*/retrained"))
            if job.verb == "compare"
            else []
        )
        return [str(place.relative_to(self.folder)) for place in inside]

    def written(self, job: Job, name: str) -> dict:
        """A JSON file that a step left."""
        return json.loads((self.folder / job.folder / name).read_text())

    def record(self, folder: str) -> dict:
        """What a training wrote down of itself."""
        return read_record(self.folder / folder)

    def value(
        self, column: Column, job: Job, texts: Sequence[int] | None = None
    ) -> Estimate | None:
        """What a column says of a job, of some ``texts`` only; None where it does not say it."""
        if column.score is not None:
            return self._score(column, job)
        rows = self.rows(job.folder)
        values = ratio(rows, column.statistic)
        return (
            None
            if values is None
            else mean_of(values if texts is None else values[rows.index.isin(texts)])
        )

    def _score(self, column: Column, job: Job) -> Estimate | None:
        test, model, metric = column.score.split("/")
        if job.verb == "deceive":
            data = self.written(job, DECEPTION)
            if metric == "mass":
                return estimate(data["masses"].get(model), data["n_named"])
            scores, n = [from_plain(Score, s) for s in data["scores"]], data["n"]
        else:
            report = self.retraining(job.folder)
            scores, n = report.scores.get(test, ()), report.n
        found = find_score(scores, model, metric)
        if found is None:
            return None
        if column.difference:
            return Estimate(found.difference, found.difference_ci95, n)
        return Estimate(found.value, found.ci95, n)


def estimate(found: Mapping | None, n: int, *, scale: float = 1.0) -> Estimate | None:
    """A number with its interval as a JSON file of ours holds them."""
    if found is None or found["value"] is None:
        return None
    low, high = found["ci95"]
    return Estimate(scale * found["value"], (scale * low, scale * high), n)


def ratio(rows: pd.DataFrame, statistic: str) -> pd.Series | None:
    """The texts' values of a statistic, or with a / of the ratio of two; None where a test was not run."""
    first, slash, second = statistic.partition("/")
    if not {first, second or first} <= set(rows):
        return None
    return rows[first] / rows[second].where(rows[second] > 0) if slash else rows[first]


def mean_of(values: pd.Series) -> Estimate:
    """Over the texts that have a value, with its bootstrap interval."""
    return mean_estimate(values.to_numpy(dtype=np.float64))


def median_of(values: pd.Series) -> Estimate:
    """Over the texts that have a value."""
    return Estimate(float(values.median()), None, int(values.notna().sum()))


def dataset_of(job: Job) -> str:
    """The name by which the study knows a job's data set."""
    return str(job.cell.get("dataset") or name_of(job.arguments["dataset"]))
