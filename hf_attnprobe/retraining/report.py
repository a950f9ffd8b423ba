"""The report of retrainings: its formats, its data frames and its folder."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hf_attnprobe.charts.chart import Chart
from hf_attnprobe.options import public_function
from hf_attnprobe.plain_data import from_plain, stored_fields
from hf_attnprobe.readings import sentence_of
from hf_attnprobe.reports.document import Document
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

KIND = "retraining"  # of run, in the name of the file that marks its folder


class RetrainingReport(Documented, RetrainingResult):
    """The report of retrainings. ``print(report)`` gives the verdict.

    ``to_text(verbose=True)``, ``to_markdown()`` and ``to_html()`` have all numbers, the
    frames give them as data.
    """

    def __repr__(self) -> str:
        model, data = tail(self.model, 40), tail(str(self.dataset), 40)
        answers = ", ".join(
            f"{f.rule}: {f.answer}" for f in self.verdict.findings()
        )
        return (
            f"<RetrainingReport: {model} on {data}, {self.n} texts, {answers}>"
        )

    def document(self) -> Document:
        """The report as a document."""
        return document_of(self)

    def charts(self) -> tuple[Chart, ...]:
        """Charts as data: how far the models move attention, and at what cost."""
        points = points_of(self.statistics, self.scores)
        curve = penalty_curve(
            [*points, *published_point(self.dataset.published_as)]
        )
        return () if curve is None else (curve,)

    def plot(self, kind: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draws a figure with matplotlib, which a notebook shows as the last line of a cell.

        Args:
            kind: key of one of :meth:`charts`; by default the first.
            ax: where it is drawn; by default a figure of its own, which is ``plot().figure``.

        Raises:
            AttnProbeError: nothing to draw, or no such figure.
        """
        from hf_attnprobe.figures import (
            draw_one,
        )  # matplotlib is slow to import

        return draw_one(self.charts(), kind, ax)

    def to_pandas(self) -> pd.DataFrame:
        """The rows: test, statistic, example_id, layer, head, value."""
        return self.rows

    def wide_frame(self) -> pd.DataFrame:
        """A text per row, a statistic per column; NaN where a text has no value."""
        rows = self.rows.drop_duplicates(["example_id", "statistic"])
        return rows.pivot(
            index="example_id", columns="statistic", values="value"
        )

    def summary_frame(self) -> pd.DataFrame:
        """A statistic and group per row, with its interval."""
        return pd.DataFrame([s.row() for s in self.statistics])


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


@public_function
def read_retraining(folder: str | Path) -> RetrainingReport:
    """Reads the report in a retraining's folder, with its rows."""
    report = read_summary(
        folder, from_json, kind="a retraining", verb="attnprobe retrain"
    )
    return dataclasses.replace(report, rows=read_rows(Path(folder) / "rows"))
