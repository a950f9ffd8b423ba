"""The report of retrainings: its formats, its data frames and its folder."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hf_attnprobe.charts.chart import Chart
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.plain_data import from_plain, stored_fields
from hf_attnprobe.readings import sentence_of
from hf_attnprobe.reports import latex
from hf_attnprobe.reports.document import Cell, Document, Table
from hf_attnprobe.reports.forms import Documented
from hf_attnprobe.retraining import readings
from hf_attnprobe.retraining.document import document_of, penalty_curve
from hf_attnprobe.retraining.verdict import (
    RetrainingResult,
    points_of,
    published_point,
    to_json,
)
from hf_attnprobe.storage.folders import write_atomically, write_json
from hf_attnprobe.storage.provenance import SUMMARY, Provenance, read_summary
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.terminal import tail


if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = {"f1": "F1", "roc_auc": "ROC-AUC"}
KIND = "retraining"  # of run, in the name of the file that marks its folder


class RetrainingReport(Documented, RetrainingResult):
    """The report of retrainings. ``print(report)`` gives the verdict.

    ``to_text(verbose=True)``, ``to_markdown()`` and ``to_html()`` have all numbers, the
    frames give them as data.
    """

    def __repr__(self) -> str:
        model, data = tail(self.model, 40), tail(str(self.dataset), 40)
        answers = ", ".join(f"{f.rule}: {f.answer}" for f in self.verdict.findings())
        return f"<RetrainingReport: {model} on {data}, {self.n} texts, {answers}>"

    def document(self) -> Document:
        """The report as a document."""
        return document_of(self)

    def to_latex(self, metric: str = "f1") -> str:
        """The models' scores as a LaTeX table; see :func:`to_latex`."""
        return to_latex(self, metric)

    def charts(self) -> tuple[Chart, ...]:
        """Charts as data: how far the models move attention, and at what cost."""
        points = points_of(self.statistics, self.scores)
        curve = penalty_curve([*points, *published_point(self.dataset.published_as)])
        return () if curve is None else (curve,)

    def plot(self, kind: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draws a figure with matplotlib, which a notebook shows as the last line of a cell.

        Args:
            kind: key of one of :meth:`charts`; by default the first.
            ax: where it is drawn; by default a figure of its own, which is ``plot().figure``.

        Raises:
            AttnProbeError: nothing to draw, or no such figure.
        """
        from hf_attnprobe.figures import draw_one  # matplotlib is slow to import

        return draw_one(self.charts(), kind, ax)

    def to_pandas(self) -> pd.DataFrame:
        """The rows: test, statistic, example_id, layer, head, value."""
        return self.rows

    def wide_frame(self) -> pd.DataFrame:
        """A text per row, a statistic per column; NaN where a text has no value."""
        rows = self.rows.drop_duplicates(["example_id", "statistic"])
        return rows.pivot(index="example_id", columns="statistic", values="value")

    def summary_frame(self) -> pd.DataFrame:
        """A statistic and group per row, with its interval."""
        return pd.DataFrame([s.row() for s in self.statistics])

    def score_frame(self) -> pd.DataFrame:
        """A model and metric per row; ``lost`` is the reference's score minus its own."""
        table = []
        for test, scores in self.scores.items():
            for s in scores:
                numbers = {"value": s.value, "ci_low": s.ci95[0], "ci_high": s.ci95[1]}
                low, high = s.lost.ci95 or (math.nan, math.nan)
                numbers |= {"lost": s.lost.value, "lost_low": low, "lost_high": high}
                key = {"test": test, "model": s.model, "metric": s.metric}
                table.append({**key, **numbers, "reference": s.reference})
        return pd.DataFrame(table)


def to_latex(report: RetrainingResult, metric: str = "f1") -> str:
    """A table with booktabs' rules: a model per row, its score and what it lost.

    Args:
        report: of the retrainings.
        metric: ``f1``, ``accuracy`` or ``roc_auc``.

    Raises:
        AttnProbeError: a metric that no model was scored by.
    """
    scores = [(test, s) for test, of in report.scores.items() for s in of if s.metric == metric]
    if not scores:
        known = sorted({s.metric for of in report.scores.values() for s in of})
        raise AttnProbeError(f"expected {' or '.join(known)}, got the metric {metric!r}")
    rows: list[list[Cell]] = [[test, s.model, s, s.lost, s.reference] for test, s in scores]
    name = METRICS.get(metric, metric)
    head = ["test", "model", f"{name}, 95% interval", "lost, 95% interval", "against"]
    caption = (
        f"{report.model} on {report.dataset}: scores on {report.n} test texts, of one "
        "training each. Lost is the score of the model on the right minus a model's own."
    )
    return latex.to_latex(Table(head, rows, caption))


# --- The folder ----------------------------------------------------------------------------------


def from_json(data: Mapping) -> RetrainingReport:
    """The inverse of ``to_json``, without the rows.

    Raises:
        LookupError, AttnProbeError: it is not what that wrote.
    """
    from_plain(Provenance, data["provenance"], "provenance")
    report = RetrainingReport(**stored_fields(RetrainingResult, data, "rows"))
    known = readings()
    for statistic in report.statistics:
        sentence_of(statistic.test, statistic.statistic, known)
    for test, scores in report.scores.items():
        taken = {(score.model, score.metric) for score in scores}
        models, metrics = map(set, zip(*taken, strict=True))
        if len(taken) < len(models) * len(metrics):
            raise LookupError(f"{test}: expected every metric of every model")
    return report


def write_report(report: RetrainingReport, folder: Path) -> None:
    """Writes the report as JSON, Markdown and a page."""
    write_json(folder / SUMMARY, to_json(report))
    write_atomically(folder / "report.md", report.to_markdown())
    write_atomically(folder / "report.html", report.to_html())


def read_retraining(folder: str | Path) -> RetrainingReport:
    """Reads the report in a retraining's folder, with its rows."""
    report = read_summary(folder, from_json, kind="a retraining", verb="attnprobe retrain")
    return dataclasses.replace(report, rows=read_rows(Path(folder) / "rows"))
