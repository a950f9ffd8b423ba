"""The public class ``Report``: what an audit found, and how it is shown."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hf_attnprobe.auditing.charts import audit_charts
from hf_attnprobe.auditing.document import document_of, published_as
from hf_attnprobe.auditing.frames import csv_of, summary_frame, wide_frame
from hf_attnprobe.auditing.head_maps import head_maps
from hf_attnprobe.auditing.numbers import JUDGED
from hf_attnprobe.auditing.result import AuditResult, check_schema, fields_from_json, to_json
from hf_attnprobe.auditing.stopping import without_those_not_run
from hf_attnprobe.auditing.trackers import Tracker, log_to, numbers_by_name
from hf_attnprobe.auditing.verdict import findings
from hf_attnprobe.charts.chart import Chart, HeatMap
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.options import public_function
from hf_attnprobe.reports.document import Document
from hf_attnprobe.reports.forms import Documented, as_json
from hf_attnprobe.statistics.checks import contradictions
from hf_attnprobe.statistics.differences import Comparison, compare_rankings
from hf_attnprobe.statistics.estimates import MANY_TEXTS
from hf_attnprobe.statistics.grades import Rule
from hf_attnprobe.statistics.rows import PREDICTION, Rows
from hf_attnprobe.statistics.stopping import MARK, rows_that_count
from hf_attnprobe.statistics.summary import site_of_model, summarize
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.statistics.wording import words_of
from hf_attnprobe.storage.folders import write_atomically
from hf_attnprobe.storage.provenance import read_summary
from hf_attnprobe.storage.rows import rows_in
from hf_attnprobe.storage.texts import read_texts
from hf_attnprobe.terminal import tail


if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Report(AuditResult, Documented):
    """The report of an audit. ``print(report)`` gives the verdict and a line per question.

    A notebook shows it as a page; ``to_text(verbose=True)`` and ``to_markdown()`` have
    all numbers, ``summary_frame()``, ``wide_frame()`` and ``to_pandas()`` give them as
    data frames.
    """

    def __repr__(self) -> str:
        model, data = tail(self.model, 40), tail(str(self.dataset), 40)
        return f"<Report: {model} on {data}, {self.n} texts, answer: {self.answer}>"

    @classmethod
    def load(cls, folder: str | Path) -> "Report":
        """The report of an audit's folder, with its rows.

        Raises:
            AttnProbeError: no finished audit there, or one of another version.
        """
        return read_audit(folder)

    def document(self) -> Document:
        """The report as a document."""
        return document_of(self)

    def charts(self, *, site: tuple[int, int] | None = None) -> tuple[Chart | HeatMap, ...]:
        """All charts as data, in the order of the questions.

        Args:
            site: layer and head; by default what stands for the model's attention.
        """
        rows, words = self.rows, self.words
        if not len(rows):
            return ()
        place = site or site_of_model(rows)
        own: tuple[Chart, ...] = ()
        if place is not None:
            classes, published = self.provenance.get("classes", ()), published_as(self)
            own = audit_charts(rows, classes, site=place, words=words, published=published)
        return (*own, *head_maps(self.judged, self.rules))

    def plot(
        self,
        kind: str | None = None,
        ax: "Axes | None" = None,
        *,
        site: tuple[int, int] | None = None,
    ) -> "Axes":
        """Draws a figure with matplotlib, which a notebook shows as the last line of a cell.

        Args:
            kind: key of one of :meth:`charts`; by default the first.
            ax: where it is drawn; by default a figure of its own, which is ``plot().figure``.
            site: layer and head; by default what stands for the model's attention.

        Raises:
            AttnProbeError: nothing to draw, or no such figure.
        """
        from hf_attnprobe.figures import draw_one  # matplotlib is slow to import

        return draw_one(self.charts(site=site), kind, ax)

    def to_pandas(self) -> pd.DataFrame:
        """The rows: test, statistic, example_id, layer, head, value."""
        return self.rows.long()

    def wide_frame(self) -> pd.DataFrame:
        """A text per row, a statistic per column.

        See :func:`hf_attnprobe.auditing.frames.wide_frame`.
        """
        return wide_frame(self.rows)

    def sentences(self) -> pd.DataFrame:
        """Of a language model: a unit of a passage per row.

        Returns:
            ``example_id``, ``unit`` (its number, from 1), ``text``; ``attention``,
            ``knockout`` and ``leave_one_out`` (nats that the answer loses without it), and
            ``matters``, whether that is more than noise. Of up to 1,000 prompts.
        """
        rows = [
            {"example_id": one.example_id, "unit": k + 1, **unit}
            | {"matters": None if one.matters is None else k in one.matters}
            for one in self.examples
            for k, unit in enumerate(one.units)
        ]
        return pd.DataFrame(rows)

    def summary_frame(self, statistics: Collection[str] | None = None) -> pd.DataFrame:
        """A statistic per row: mean, interval and n.

        See :func:`hf_attnprobe.auditing.frames.summary_frame`.
        """
        return summary_frame(self, statistics)

    def to_csv(self, path: str | Path) -> None:
        """Writes :meth:`summary_frame` to a file."""
        write_atomically(Path(path), csv_of(self.summary_frame()))

    def to_json(self) -> str:
        """All of it for machines; a page is too small for that."""
        return as_json(to_json(self))

    def log_to(self, tracker: Tracker, *, step: int | None = None) -> None:
        """Logs every question's number with its interval, and the page, to a tracker.

            report.log_to("wandb")
            report.log_to(trainer.log)

        Args:
            tracker: "tensorboard", "wandb" or "mlflow", whose open run is used, else one of its
                own; or any function of a dict of numbers, which gets no page.
            step: of the training, where the model was then.

        Raises:
            AttnProbeError: a name that is not known, or a package that is not installed.
        """
        log_to(tracker, numbers_by_name(self.findings), self, step)


MANY = (
    f"Many texts: with more than {MANY_TEXTS:,} nothing is resampled. P-values of paired tests, "
    "the interval of R² and intervals that hold for many heads at once are those of normal means."
)


def notes_on_size(n_texts: int) -> list[str]:
    """Notes on what is computed differently for many texts."""
    return [MANY] if n_texts > MANY_TEXTS else []


def found_in(
    rows: Rows,
    provenance: Mapping[str, Any],
    *,
    seed: int,
    rules: Mapping[str, Rule] = RULES,
) -> dict[str, Any]:
    """Fields of a result from rows, wherever they are stored.

    Args:
        rows: of the audit.
        provenance: of the report; says classes and what is predicted.
        seed: of the resamples.
        rules: by which the questions are graded.
    """
    classes = provenance["classes"]
    words = words_of(provenance["prediction"], unit=provenance.get("unit_of_number", ""))
    statistics = summarize(rows, classes, readings())
    return {
        "rows": rows,
        "statistics": without_those_not_run(statistics, rows) if MARK in provenance else statistics,
        "comparisons": _compared(rows, JUDGED in provenance, seed),
        "findings": findings(rows, classes, seed=seed, words=words, rules=rules),
        "contradictions": tuple(contradictions(rows, readings(), of_number=words.is_number)),
    }


def _compared(rows: Rows, is_judged: bool, seed: int) -> tuple[Comparison, ...]:
    """Paired tests of rankings against attention, or against scores that somebody gave."""
    if not is_judged:
        return compare_rankings(rows, seed=seed)
    return compare_rankings(rows, against="given", site=site_of_model(rows), seed=seed)


@public_function
def read_audit(folder: str | Path) -> Report:
    """The report of an audit's folder, with its rows."""
    report, tests = read_summary(
        folder, _parsed, kind="an audit", verb="the audit", check=_check_audit
    )
    shown = read_texts(Path(folder))
    # The folder may hold texts and tests that no summary has been made of yet.
    if shown is not None and report.example_ids:
        shown = tuple(text for text in shown if text.example_id in report.example_ids)
    held = rows_in(Path(folder) / "rows")
    rows = rows_that_count(held, report.provenance.get(MARK), report.example_ids)
    if report.example_ids and tests:
        told = {*tests, PREDICTION}
        rows = rows.select(lambda test, *_: test in told).of_texts(report.example_ids)
    return dataclasses.replace(
        report,
        rows=rows,
        examples=report.examples if shown is None else shown,
    )


def _check_audit(data: Mapping, source: str) -> None:
    """Raises AttnProbeError for a summary of another version or verb."""
    if "scores" in data:
        raise AttnProbeError(
            f"expected the summary of an audit, {source} is a retraining's, whose mark is "
            "gone; run attnprobe retrain again"
        )
    check_schema(data, source)


def _parsed(data: Mapping) -> tuple[Report, list[str]]:
    """The report without its rows, and the tests that it tells of."""
    report = from_json(data)
    _ = report.words  # else first asked for where it is shown
    return report, [*report.provenance.get("tests", ())]


def from_json(data: Mapping) -> Report:
    """The inverse of ``to_json`` and ``extras_to_json``, without the rows."""
    return Report(**fields_from_json(data))


def place_line(folder: str | Path | None) -> str:
    """Names the page of an audit, or says how to keep one."""
    if folder is None:
        return "  page          nothing was kept; --output-dir DIR keeps page and rows"
    return f"  page          {Path(folder) / 'report.html'}    more: --verbose"
