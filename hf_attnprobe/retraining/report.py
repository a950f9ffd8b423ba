"""What retrainings found as text, Markdown, frames and a page.

Pure: a :class:`RetrainingReport` in, a string out.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.reports import latex
from hf_attnprobe.retraining import registry
from hf_attnprobe.retraining.pages.page import retraining_fragment
from hf_attnprobe.retraining.result import (
    CLAMP_NOTE,
    RetrainingResult,
    curve_table,
    fields_from_json,
    score_table,
)
from hf_attnprobe.retraining.terminal import short_text
from hf_attnprobe.retraining.verdict import FRONTIER_NOTE, PUBLISHED_NOTE, published_point
from hf_attnprobe.statistics.summary import Statistic, sentence
from hf_attnprobe.statistics.verdict_lines import tail
from hf_attnprobe.storage.provenance import provenance_section
from hf_attnprobe.terminal import visible


if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = {"f1": "F1", "roc_auc": "ROC-AUC"}


class RetrainingReport(RetrainingResult):
    """What retrainings say. ``print(report)`` gives the verdict.

    A notebook shows it as a page; ``to_text(verbose=True)`` and ``to_markdown()`` have
    all numbers, the frames give them as data.
    """

    def __repr__(self) -> str:
        model, data = tail(self.model, 40), tail(str(self.dataset), 40)
        answers = ", ".join(f"{f.rule}: {f.answer}" for f in self.verdict.findings())
        return f"<RetrainingReport: {model} on {data}, {self.n} texts, {answers}>"

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, *, verbose: bool = False) -> str:
        """For a terminal: the verdict, or with ``verbose`` the tables too."""
        if verbose:
            return to_text(self)
        title = f"{self.model} on {self.dataset}"
        trained = f"{self.n} test texts, {len(self.models)} trained"
        return short_text(title, trained, self.verdict, self.statistics)

    def _repr_html_(self) -> str:
        return retraining_fragment(self)

    def to_markdown(self) -> str:
        """All numbers as Markdown, as ``report.md`` has them."""
        return to_markdown(self)

    def to_latex(self, metric: str = "f1") -> str:
        """The models' scores as a LaTeX table; see :func:`to_latex`."""
        return to_latex(self, metric)

    def plot(self, kind: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draws a figure with matplotlib.

        Args:
            kind: key of a chart of ``figures.charts(report)``; by default the first.
            ax: where it is drawn; by default a figure of its own.

        Raises:
            AttnProbeError: nothing to draw, or no such figure.
        """
        from hf_attnprobe import figures  # matplotlib is slow to import

        return figures.draw_one(self, kind, ax)

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
                row: dict[str, object] = {
                    "test": test,
                    "model": s.model,
                    "metric": s.metric,
                }
                row |= {"value": s.value, "ci_low": s.ci95[0], "ci_high": s.ci95[1]}
                low, high = s.difference_ci95
                row |= {"lost": s.difference, "lost_low": low, "lost_high": high}
                table.append(row | {"reference": s.reference})
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
    rows = [
        [
            latex.escape(test),
            latex.escape(s.model),
            markdown.interval(s.value, s.ci95),
            markdown.interval(s.difference, s.difference_ci95),
            latex.escape(s.reference),
        ]
        for test, s in scores
    ]
    interval = r"95\% interval"
    name = latex.escape(METRICS.get(metric, metric))
    head = ["test", "model", f"{name}, {interval}", f"lost, {interval}", "against"]
    caption = (
        f"{report.model} on {report.dataset}: scores on {report.n} test texts, of one "
        "training each. Lost is the score of the model on the right minus a model's own."
    )
    return latex.table(head, rows, latex.escape(caption), n_texts=2)


def from_json(data: Mapping) -> RetrainingReport:
    """The inverse of ``to_json``, without the rows."""
    return RetrainingReport(**fields_from_json(data))


def to_text(report: RetrainingReport) -> str:
    """The tables and the verdict, for a terminal."""
    sentences = [f"  {line}" for line in report.verdict.sentences()]
    lines = [_title(report), *_tables(report), "", "Verdict", *sentences]
    return visible("\n".join(lines))


def to_markdown(report: RetrainingReport) -> str:
    """The report a reader opens first.

    Verdict, tables, all statistics with readings, models, provenance.
    """
    parts = [
        f"# What another training of `{report.model}` would have learned",
        "",
        _title(report),
        "",
        *markdown.bullets(report.verdict.sentences()),
        *_tables(report),
        *_statistics_section(report.statistics),
        *provenance_section(report.provenance),
    ]
    return markdown.document(parts)


def _title(report: RetrainingReport) -> str:
    n_models = len(report.models)
    models = "1 model" if n_models == 1 else f"{n_models} models"
    return (
        f"{report.model} on {report.dataset}: {report.n} test texts, {models} trained. "
        "Intervals are over the texts, of one training each: "
        "another seed may move a score by more."
    )


def _tables(report: RetrainingReport) -> list[str]:
    parts = []
    for test in report.scores:
        parts += markdown.section(test, markdown.table(*score_table(report, test)))
        if test == "seeds" and report.bins:
            parts += ["", *_bin_table(report)]
        if test == "adversary":
            parts += ["", *_curve_table(report), "", f"{FRONTIER_NOTE} {CLAMP_NOTE}"]
    rows = [(m.name, m.n_epochs) for m in report.models]
    models = markdown.table(["model", "epochs"], rows)
    return parts + markdown.section("models", models)


def _bin_table(report: RetrainingReport) -> list[str]:
    head = ["largest weight", "predicted", "n", "median JSD to another seed"]
    rows = [(name, label, n, f"{jsd:.3f}") for name, label, n, jsd in report.bins]
    return markdown.table(head, rows)


def _curve_table(report: RetrainingReport) -> list[str]:
    table = markdown.table(*curve_table(report))
    published = published_point(report.dataset.published_as)
    return [*table, "", PUBLISHED_NOTE] if published else table


def _statistics_section(statistics: Sequence[Statistic]) -> list[str]:
    head = [
        "statistic",
        "predicted",
        "mean, 95% interval",
        "median",
        "std",
        "n",
        "undefined",
    ]
    parts = []
    for test in dict.fromkeys(s.test for s in statistics):
        of_test = [s for s in statistics if s.test == test]
        table = markdown.table(head, map(_statistic_row, of_test))
        readings = [
            f"{s.statistic}: {sentence(s, registry.readings())}."
            for s in of_test
            if s.group == "all"
        ]
        lines = [*table, "", *markdown.bullets(readings)]
        parts += markdown.section(f"{test}: all statistics", lines)
    return parts


def _statistic_row(s: Statistic) -> list[object]:
    numbers = [
        markdown.interval(s.mean, s.ci95),
        markdown.number(s.median),
        markdown.number(s.std),
    ]
    return [s.statistic, s.group, *numbers, s.n, s.undefined]
