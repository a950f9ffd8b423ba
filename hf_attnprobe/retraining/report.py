"""The report of retrainings: its formats, its folder, and what it says."""

import dataclasses
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.options import public_function
from hf_attnprobe.core.readings import sentence_of
from hf_attnprobe.core.serialization import from_plain, stored_fields
from hf_attnprobe.core.terminal import tail
from hf_attnprobe.documents.blocks import (
    Answered,
    Block,
    Cell,
    Document,
    Folded,
    Listing,
    Note,
    Number,
    NumberLine,
    Section,
    Table,
    Words,
    glossary,
)
from hf_attnprobe.documents.formats import Documented
from hf_attnprobe.plots.chart import Chart, Reference, Series
from hf_attnprobe.retraining import readings, retrainings
from hf_attnprobe.retraining.verdict import (
    ADVERSARY,
    CEILING,
    FRONTIER,
    FRONTIER_NOTE,
    SEEDS,
    Bin,
    Point,
    RetrainingResult,
    constant_guess,
    points_of,
    to_json,
)
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.summary import sentence
from hf_attnprobe.statistics.verdicts import RULES, Finding
from hf_attnprobe.storage.provenance import (
    Provenance,
    flat,
    read_summary,
    repeating,
)
from hf_attnprobe.storage.rows import read_rows


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
        answers = ", ".join(f"{f.rule}: {f.answer}" for f in self.verdict.findings())
        return f"<RetrainingReport: {model} on {data}, {self.n} texts, {answers}>"

    def document(self) -> Document:
        """The report as a document."""
        return document_of(self)

    def charts(self) -> tuple[Chart, ...]:
        """Charts as data: how far the models move attention, and at what cost."""
        curve = penalty_curve(points_of(self.statistics, self.scores))
        return () if curve is None else (curve,)

    def plot(self, kind: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draws a figure with matplotlib, which a notebook shows as the last line of a cell.

        Args:
            kind: key of one of :meth:`charts`; by default the first.
            ax: where it is drawn; by default a figure of its own, which is ``plot().figure``.

        Raises:
            AttnProbeError: nothing to draw, or no such figure.
        """
        from hf_attnprobe.plots.matplotlib_backend import (
            draw_one,
        )  # matplotlib is slow to import

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


@public_function
def read_retraining(folder: str | Path) -> RetrainingReport:
    """Reads the report in a retraining's folder, with its rows."""
    report = read_summary(folder, from_json, kind="a retraining", verb="attnprobe retrain")
    return dataclasses.replace(report, rows=read_rows(Path(folder) / "rows"))


# --- what it says, from top to bottom -----------------------------------------


def document_of(report: RetrainingResult) -> Document:
    """The retrainings as a document."""
    lead: list[Block] = [
        _at_a_glance(report),
        _quality(report),
        f"Base: {report.model}. Data: {report.dataset}, {report.n} test texts. "
        f"Models trained: {len(report.models)}.",
    ]
    audit = ["attnprobe", "audit", "--model", report.model]
    audit += ["--dataset", report.dataset.name, "--output-dir", "DIR"]
    sections = [
        Section("The answers", [LEAD, *_answers(report), MEASURED], id="verdict"),
        Section(
            "May this attention be shown to users as the reason?",
            [AS_REASON, AUDIT, Listing(shlex.join(audit))],
            id="reason",
        ),
        Section("What this cannot say", [_limits(report)], id="limits"),
        Section("How good every model is", list(_scores(report)), id="scores"),
        Section("How far attention moves", _curve(report), id="curve"),
        Section("What another seed changes", _bins(report.bins), id="seeds"),
        Section("All statistics", list(_statistics(report)), id="statistics"),
        Section("How it was made", _origin(report), id="provenance"),
    ]
    return Document(
        f"What another training of {report.model} would have learned",
        lead,
        [*sections, glossary([lead, sections], GLOSSARY)],
        data=to_json(report),
    )


# --- The answers in short, and how good the base is -----------------------------------------------


def _at_a_glance(report: RetrainingResult) -> Table:
    """A question, its answer and the graded number."""
    rows: list[list[Cell]] = [
        [
            RULES[f.rule].question,
            f.answer,
            Number(f.value, f.ci95),
            Number(RULES[f.rule].yes, digits=2),
        ]
        for f in report.verdict.findings()
    ]
    return Table(
        ["question", "answer", "number, 95% interval", "yes above"],
        rows,
        sortable=False,
    )


def _quality(report: RetrainingResult) -> str:
    """The base's score, beside a constant guess."""
    found = [find_score(scores, "base") for scores in report.scores.values()]
    base = next(filter(None, found), None)
    if base is None:
        return ""
    of_class = report.provenance.get("f1")
    said = f"The base has F1 {base.value:.3f}" + (f" ({of_class})" if of_class else "")
    guess = constant_guess(report)
    if guess is None:
        return f"{said}. The F1 of a constant guess is not known without labels."
    f1, share = guess
    return (
        f"{said}; the best constant guess has {f1:.3f}. Always saying the most frequent "
        f"class is right in {share:.1%} of the texts."
    )


# --- The answers ---------------------------------------------------------------------------------

LEAD = (
    "The base is a trained classifier with attention. Other models were trained on the same "
    "texts: without its attention, with other seeds, and to predict the same while "
    "attending elsewhere. They show whether its attention was needed, and whether different "
    "attention could have served."
)
MEASURED = (
    "The distance of two attentions is their Jensen-Shannon divergence (JSD): 0 for "
    "the same weights, at most .69 = ln 2. The distance of two outputs is their total variation "
    "(TVD), 0 to 1. F1 is the score of a model on the test texts, 0 to 1."
)


def _answers(report: RetrainingResult) -> Iterator[Block]:
    for found in report.verdict.findings():
        yield in_full(RULES[found.rule].question, found)
    if report.verdict.chance:
        yield Section("How far does attention move by chance?", [report.verdict.chance])


def in_full(question: str, found: Finding) -> Answered:
    """Returns a question with its answer, and the graded number on a line."""
    rule = RULES[found.rule]
    line = NumberLine(Number(found.value, found.ci95), {"yes above": rule.yes})
    measure = Note(f"What is graded: {rule.measure}.")
    return Answered(question, found.answer, found.sentence, [line, measure])


# --- What they do not answer ----------------------------------------------------------------------

ONE_TRAINING = (
    "Intervals in the tables are over the test texts, of one training each: another seed "
    "may move a score by more. Only where an answer says so does its interval cover "
    "another seed."
)
AS_REASON = (
    "Retrainings alone do not answer this. They say whether attention is needed, whether "
    "other attention can be trained, and whether its weights help a simpler model."
)
AUDIT = (
    "An audit tests whether this model's own output follows its attention, on these texts "
    "and for this model alone:"
)


def _limits(report: RetrainingResult) -> list[Words]:
    """Lists what was not tested, how sure the rest is, and what would change an answer."""
    tests = report.provenance.get("tests", list(report.scores))
    left = [f"{name} ({t.title})" for name, t in retrainings().items() if name not in tests]
    said: list[Words] = [ONE_TRAINING]
    n_seeds = len({s.model for s in report.scores.get("seeds", ())})
    if n_seeds > 1:
        said.append(
            f"How much a seed moves F1 is estimated from {n_seeds} trainings; more "
            "(--set seeds.n_seeds) make the intervals that cover seeds narrower."
        )
    else:
        said.append(
            "No other seeds were trained (test seeds), so it is not known how far "
            "chance alone moves F1 and attention."
        )
    if any(f.rule.startswith("elsewhere") for f in report.verdict.findings()):
        said.append(
            "That no adversary was found does not show that there is none: another λ or "
            "a longer training might find one."
        )
    if left:
        said.append(f"Not tested: {'; '.join(left)}.")
    return said + report.provenance.get("notes", [])


# --- The numbers ---------------------------------------------------------------------------------

TABLES = {
    "uniform": "Is attention needed? Trained with and without it.",
    "seeds": "What does another seed change?",
    "adversary": "Can a model attend elsewhere? Trained adversaries.",
    "diagnostic_mlp": "Do the weights serve a model without context?",
}
"""What the scores of a test are about."""
METRICS = {"f1": "F1", "roc_auc": "area under the ROC curve"}
LOST = (
    "The loss is the score of the model named there minus a model's own on the same texts: "
    "above 0 the model is worse, below 0 it is better; where the interval holds 0, the two "
    "cannot be told apart."
)
JOINED = (ADVERSARY, FRONTIER)
BINS_NOTE = (
    "Of at most .69, without intervals (Wiegreffe & Pinter 2019, Figure 4). An adversary that is "
    "no farther moves attention no more than another seed does."
)
CLAMP_NOTE = "The loss clamps ln of the base's weights at ln 1e-10."


def _scores(report: RetrainingResult) -> Iterator[Block]:
    """Scores in every test, and each model's loss or gain."""
    for test, scores in report.scores.items():
        first, *others = dict.fromkeys(s.metric for s in scores)
        caption = f"{TABLES.get(test, test)} Scores with 95% intervals over texts."
        yield _score_table(scores, [first], caption)
        if others:
            yield Folded("By other metrics", [_score_table(scores, others)])
    yield LOST


def _score_table(
    scores: Sequence[Score],
    metrics: Sequence[str],
    caption: str = "",
) -> Table:
    """Returns models in rows; in columns each metric and its loss against the reference."""
    by_name = {(s.model, s.metric): s for s in scores}
    lost = f"lost against {scores[0].reference} (negative: gained)"
    head = ["model"]
    for metric in metrics:
        head += [METRICS.get(metric, metric), lost]
    rows: list[list[Cell]] = []
    for model in dict.fromkeys(s.model for s in scores):
        row: list[Cell] = [model]
        for metric in metrics:
            score = by_name[model, metric]
            is_own = model == score.reference
            row += [score, None if is_own else score.lost]
        rows.append(row)
    return Table(head, rows, caption)


def _curve(report: RetrainingResult) -> list[Block]:
    """The λ curve and its context; nothing without that test."""
    if "adversary" not in report.scores:
        return []
    points = points_of(report.statistics, report.scores)
    notes = [FRONTIER_NOTE, CLAMP_NOTE]
    return [penalty_curve(points), Folded("About these numbers", notes)]


def penalty_curve(points: Sequence[Point]) -> Chart | None:
    """Plots the output change against the distance of attention.

    Args:
        points: as :func:`~hf_attnprobe.retraining.verdict.points_of` gives them.

    Returns:
        None without a point of a model or a search that moves the output.
    """
    drawn = [p for p in points if p.series != CEILING]
    if any(p.series == SEEDS and p.label for p in drawn):  # one by one, not their median too
        drawn = [p for p in drawn if p.series != SEEDS or p.label]
    if not drawn:
        return None
    series = [_series(name, drawn) for name in dict.fromkeys(p.series for p in drawn)]
    ceiling = [p.jsd.value for p in points if p.series == CEILING]
    return Chart(
        key="penalty_curve",
        title="How far attention moves, and what that does to the output",
        sentences=tuple(_sentences(drawn, ceiling)),
        source="Wiegreffe & Pinter 2019, Figure 5",
        kind="points",
        x_label="JSD from the base's attention, nats (mean)",
        y_label="output change, total variation (mean over texts)",
        series=tuple(series),
        references=tuple(Reference(CEILING, jsd, "x") for jsd in ceiling),
        x_range=(0.0, 0.7),
    )


def _series(name: str, points: Sequence[Point]) -> Series:
    own = [p for p in points if p.series == name]
    labels = [p.label for p in own if p.label]
    span = f" ({labels[0]})" if labels else ""
    if len(labels) > 1:
        last = labels[-1].split()[-1]
        span = f" ({labels[0]} to {last})"
    undefined = math.nan, math.nan
    low, high = zip(*(p.tvd.ci95 or undefined for p in own), strict=True)
    return Series(
        name + span,
        tuple(p.jsd.value for p in own),
        tuple(p.tvd.value for p in own),
        low,
        high,
        tuple(p.jsd.n for p in own if p.jsd.n),
        joined=name in JOINED and len(own) > 1,
    )


def _sentences(drawn: Sequence[Point], ceiling: Sequence[float]) -> Iterator[str]:
    """States how far each way moves attention at most, and what that does to the output."""
    parts = []
    for name in dict.fromkeys(p.series for p in drawn):
        p = max((p for p in drawn if p.series == name), key=lambda p: p.jsd.value)
        which = f" ({p.label})" if p.label else ""
        jsd, tvd = (markdown.interval(e.value, e.ci95, digits=2) for e in (p.jsd, p.tvd))
        at_most = "at most " if name == FRONTIER else ""
        parts.append(f"{name}{which} {jsd}, moving the output by {at_most}{tvd}")
    n = max(p.jsd.n or 0 for p in drawn)
    limit = "".join(f"; {CEILING} than {jsd:.2f}" for jsd in ceiling)
    yield (
        f"Farthest from the base's attention by JSD (means over {n} texts): "
        f"{'; '.join(parts)}{limit}."
    )
    if FRONTIER in {p.series for p in drawn}:
        yield (
            "Search and exact frontier move attention within the base's own states, without "
            "training; adversaries and other seeds learn states of their own, and the distance to "
            "other seeds is what training alone changes."
        )


def _bins(bins: Sequence[Bin]) -> list[Block]:
    """Changes by another seed, in bins of the largest weight; nothing without seeds."""
    if not bins:
        return []
    head = ["largest weight", "predicted", "n", "median JSD to another seed"]
    return [Table(head, bins), BINS_NOTE]


def _statistics(report: RetrainingResult) -> Iterator[Block]:
    """Yields every statistic of the texts, with its sentences."""
    known = readings()
    for test in dict.fromkeys(s.test for s in report.statistics):
        own = [s for s in report.statistics if s.test == test]
        whole = [s for s in own if s.group == "all" and s.n]
        said: list[Words] = [f"{s.statistic}: {sentence(s, known)}." for s in whole]
        cells = [s.row() for s in own]
        rows = [[row[name] for name in COLUMNS.values()] for row in cells]
        table = Table([*COLUMNS], rows, caption=f"Statistics of {test}")
        title = f"{test}: {len(own)} numbers and what they say"
        yield Folded(title, [said, table])


COLUMNS = {
    "statistic": "statistic",
    "predicted": "group",
    "mean": "mean",
    "95% from": "ci_low",
    "to": "ci_high",
    "median": "median",
    "std": "std",
    "n": "n",
    "undefined": "undefined",
}
"""Of the table of statistics, by their heads: fields of a row."""


# --- How it was made ------------------------------------------------------------------------------

RAW = (
    "The raw numbers, one value per test, statistic and text, lie in rows/ of the output "
    "folder (Parquet); summary.json there holds what they sum up to. The means with their "
    "intervals as one table, of that folder:"
)


def _origin(report: RetrainingResult) -> list[Block]:
    """Models, command and settings."""
    models: list[list[Cell]] = [[m.name, m.n_epochs] for m in report.models]
    settings = [*flat(report.provenance)]
    repeat: list[Block] = []
    if "asked_for" in report.provenance:  # a transfer is a step of a study, no command
        repeat = ["To repeat it:", Listing(command(report))]
    return [
        Table(
            ["model", "epochs"],
            models,
            "Models trained, folders below the output folder",
        ),
        *repeat,
        RAW,
        Listing("attnprobe report FOLDER --output numbers.csv"),
        Folded(
            "All settings, fingerprints and versions",
            [Table(["setting", "value"], settings, sortable=False)],
        ),
    ]


def command(report: RetrainingResult) -> str:
    """The shell command that trains all of it again."""
    return f"{repeating('retrain', report.provenance)} --output-dir DIR"


# --- Words ----------------------------------------------------------------------------------------

GLOSSARY = {
    "attention": "weights that a model computes over the tokens of a text; they sum to 1",
    "seed": "the number that random starting weights and the order of the texts come "
    "from; nothing else differs between the seeds",
    "adversary": "a model trained to say what the base says while attending elsewhere",
    "chosen adversary": "for each text, the adversary that the other half of the texts "
    "chose: the farthest of those that kept the base's F1 there",
    "λ": "how much the training of an adversary rewards attending elsewhere; a larger one "
    "moves attention farther and may cost output",
    "uniform": "of attention: equal weights for all tokens, so none is preferred",
    "frontier": "for every ε, the farthest attention over the base's own states that moves "
    "the output by at most ε; computed, not trained",
    "ε": "by how much the output may move",
    "search": "the frontier approached by small steps, which may stop short of it",
    "model without context": "a simpler model that reads each token by itself; test "
    "diagnostic_mlp gives it weights from outside",
    "guide": "where that model's weights come from: the base, an adversary, equal weights, "
    "or itself (trained guide)",
    "F1": "harmonic mean of precision and recall, 0 to 1",
    "ROC": "its area is how often a text of the positive class is ranked above one of the "
    "other; .5 is chance",
    "JSD": "Jensen-Shannon divergence of two attentions, 0 (the same) to .69 = ln 2 (no "
    "token in common)",
    "TVD": "total variation of two outputs: how much probability moves, 0 to 1",
    "constant guess": "always the same class, whatever the text",
    "95% interval": "where the number over all such texts lies, if these were drawn from "
    "them at random; it covers another seed only where that is said",
}
"""Terms with what they mean; the page lists those that occur in it."""
