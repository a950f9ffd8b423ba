"""The retraining report: its document, its charts, and reading it from a folder."""

import dataclasses
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.options import public_function
from hf_attnprobe.core.readings import get_sentence
from hf_attnprobe.core.serialization import parse_fields, parse_plain
from hf_attnprobe.core.terminal import truncate_start
from hf_attnprobe.documents.blocks import (
    AnswerBlock,
    Block,
    Cell,
    CodeBlock,
    Collapsible,
    Document,
    FormattedNumber,
    InlineText,
    Note,
    NumberLine,
    Section,
    Table,
    build_glossary,
)
from hf_attnprobe.documents.formats import DocumentedResult
from hf_attnprobe.plots.chart import Chart, Reference, Series
from hf_attnprobe.retraining import get_retraining_readings, get_retraining_tests
from hf_attnprobe.retraining.verdict import (
    ADVERSARY_SERIES,
    CEILING_SERIES,
    DECEIVED_MODEL,
    FRONTIER_NOTE,
    FRONTIER_SERIES,
    SEED_SERIES,
    Point,
    RetrainingResult,
    SeedBin,
    compute_points,
    convert_retraining_to_json,
    grade_hiding_parts,
    score_constant_guess,
)
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.summary import describe_statistic, find_statistic
from hf_attnprobe.statistics.verdicts import RULES, Finding
from hf_attnprobe.storage.provenance import (
    Provenance,
    flatten_settings,
    format_repeat_command,
    read_summary,
)
from hf_attnprobe.storage.rows import read_rows


if TYPE_CHECKING:
    from matplotlib.axes import Axes

RETRAINING_FILE = "retraining.json"
"""Name of the file that marks a folder as the output of a retraining."""


class RetrainingReport(DocumentedResult, RetrainingResult):
    """The report of a retraining. ``print(report)`` displays the verdict.

    ``to_text(verbose=True)``, ``to_markdown()`` and ``to_html()`` contain all numbers.
    ``to_pandas()``, ``wide_frame()`` and ``summary_frame()`` return them as data frames.
    """

    def __repr__(self) -> str:
        model, data = truncate_start(self.model, 40), truncate_start(str(self.dataset), 40)
        answers = ", ".join(f"{f.rule}: {f.answer}" for f in self.verdict.findings())
        return f"<RetrainingReport: {model} on {data}, {self.n} texts, {answers}>"

    def build_document(self) -> Document:
        """Return the report as a document."""
        return build_document(self)

    def charts(self) -> tuple[Chart, ...]:
        """Return the charts as data: output change against attention distance."""
        curve = make_penalty_curve(compute_points(self.statistics, self.scores))
        return () if curve is None else (curve,)

    def plot(self, kind: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw a chart with matplotlib. A notebook displays it if this is the last line of a cell.

        Args:
            kind: Key of a chart in :meth:`charts`; None draws the first chart.
            ax: Axes to draw on; None creates a new figure.

        Returns:
            The axes. The figure is ``plot().figure``.

        Raises:
            AttnProbeError: If the report has no chart, or no chart with this key.
        """
        # Matplotlib is slow to import.
        from hf_attnprobe.plots.matplotlib_backend import draw_by_key

        return draw_by_key(self.charts(), kind, ax)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per stored value: test, statistic, example_id, layer, head and value."""
        return self.rows

    def wide_frame(self) -> pd.DataFrame:
        """Return one row per text and one column per statistic; NaN if a text has no value."""
        rows = self.rows.drop_duplicates(["example_id", "statistic"])
        return rows.pivot(index="example_id", columns="statistic", values="value")

    def summary_frame(self) -> pd.DataFrame:
        """Return one row per statistic and group, with its confidence interval."""
        return pd.DataFrame([s.build_table_row() for s in self.statistics])


# --- The folder ----------------------------------------------------------------------------------


def parse_retraining(data: Mapping) -> RetrainingReport:
    """Build a retraining report from the data in ``summary.json``.

    The statistics of single texts (the rows) are in other files, so the report does not have them.

    Args:
        data: Content of ``summary.json``.

    Raises:
        LookupError: If a score or a statistic is missing or unknown.
        AttnProbeError: If a value has the wrong type.
    """
    parse_plain(Provenance, data["provenance"], "provenance")
    report = RetrainingReport(**parse_fields(RetrainingResult, data, "rows"))
    readings = get_retraining_readings()
    # Looking up the sentence about a statistic raises an error if the statistic is unknown.
    for statistic in report.statistics:
        get_sentence(statistic.test, statistic.statistic, readings)
    for test, scores in report.scores.items():
        scored_pairs = {(score.model, score.metric) for score in scores}
        models = {score.model for score in scores}
        metrics = {score.metric for score in scores}
        if not scores or len(scored_pairs) < len(models) * len(metrics):
            raise LookupError(
                f"scores of the test {test} are missing: expected one for every model and metric"
            )
    return report


@public_function
def read_retraining(folder: str | Path) -> RetrainingReport:
    """Read a retraining report and its rows from the output folder.

    Args:
        folder: Output folder from :func:`hf_attnprobe.retrain` or :func:`hf_attnprobe.transfer`.

    Example:
        Print the mean of every statistic::

            report = read_retraining("retrained")
            print(report.summary_frame())
    """
    report = read_summary(
        folder, parse_retraining, run_name="a retraining", verb="attnprobe retrain"
    )
    return dataclasses.replace(report, rows=read_rows(Path(folder) / "rows"))


# --- The document --------------------------------------------------------------------------------


def build_document(report: RetrainingResult) -> Document:
    """Return the document that the report displays as text, Markdown or HTML.

    Args:
        report: Results of a retraining.
    """
    lead: list[Block] = [
        _make_overview_table(report),
        _describe_base_quality(report),
        f"Base model: {report.model}. Data: {report.dataset}, {report.n} test texts. "
        f"Trained models: {len(report.models)}.",
    ]
    audit = ["attnprobe", "audit", "--model", report.model]
    audit += ["--dataset", report.dataset.name, "--output-dir", "DIR"]
    introductions = _list_introductions(report)
    answers = [*introductions, *_make_answer_blocks(report), MEASURES_NOTE]
    sections = [
        Section("The answers", answers, id="verdict"),
        Section(
            "May this attention be shown to users as the reason?",
            [RETRAINING_IS_NOT_ENOUGH_NOTE, AUDIT_NOTE, CodeBlock(shlex.join(audit))],
            id="reason",
        ),
        Section("What this cannot say", [_list_limits(report)], id="limits"),
        Section("How good every model is", list(_make_score_blocks(report)), id="scores"),
        Section("How far attention moves", _make_curve_blocks(report), id="curve"),
        Section("The effect of another seed", _make_bin_blocks(report.bins), id="seeds"),
        Section(
            "Before and after the penalty on attention",
            _make_deception_blocks(report),
            id="words",
            in_short_report=True,
        ),
        Section("Does the attention hide something?", _make_hiding_blocks(report), id="hiding"),
        Section("All statistics", list(_make_statistic_blocks(report)), id="statistics"),
        Section("How it was made", _make_provenance_blocks(report), id="provenance"),
    ]
    return Document(
        f"What other trainings of {report.model} learn",
        lead,
        [*sections, build_glossary([lead, sections], GLOSSARY)],
        data=convert_retraining_to_json(report),
    )


# --- The overview --------------------------------------------------------------------------------


def _make_overview_table(report: RetrainingResult) -> Table:
    """Return a table with one row per question: its answer and the number that determines it."""
    rows: list[list[Cell]] = [
        [
            _get_question(finding),
            finding.answer,
            FormattedNumber(finding.value, finding.ci95) if finding.n else None,
            FormattedNumber(RULES[finding.rule].yes, digits=2),
        ]
        for finding in report.verdict.findings()
    ]
    return Table(
        ["question", "answer", "number, 95% interval", "yes above"],
        rows,
        sortable=False,
    )


def _describe_base_quality(report: RetrainingResult) -> str:
    """Describe how good the base model is, compared with always predicting the same class."""
    base_scores = [find_score(scores, "base") for scores in report.scores.values()]
    available_scores = [score for score in base_scores if score is not None]
    if not available_scores:
        return ""
    base = available_scores[0]
    averaging = report.provenance.get("f1")
    description = f"The base model has F1 {base.value:.3f}"
    if averaging:
        description += f" ({averaging})"
    guess_scores = score_constant_guess(report)
    if guess_scores is None:
        return f"{description}. F1 of a constant guess is unknown, since the texts have no labels."
    guess_f1, guess_accuracy = guess_scores
    return (
        f"{description}; the best constant guess has {guess_f1:.3f}. Always predicting the most "
        f"frequent class is correct for {guess_accuracy:.1%} of the texts."
    )


# --- The answers ---------------------------------------------------------------------------------

INTRODUCTION = (
    "The base model is a trained classifier with attention. Other models were trained on the same "
    "texts: without its attention, with other seeds, and to make the same predictions with "
    "different attention. They show whether the attention was needed, and whether different "
    "attention would have been possible."
)
"""Introduction to a retraining report, if it contains tests that train models from scratch."""
DECEPTION_INTRODUCTION = (
    "The base model was trained further with a penalty on its attention to some words, which are "
    "called impermissible. Its attention hides these words if three conditions are met: the model "
    "no longer attends to them, it still uses them, and it classifies as well as before. A model "
    "uses a word if deleting it changes the output more than deleting other words does. The change "
    "is measured as total variation distance, from 0 to 1."
)
"""Introduction to a retraining report, if it contains the test ``deception``."""
MEASURES_NOTE = (
    "The distance between two attentions is their Jensen-Shannon divergence (JSD). It is 0 for "
    "equal weights and at most .69 = ln 2. The distance between two outputs is their total "
    "variation distance (TVD), from 0 to 1. F1 is the score of a model on the test texts, from 0 "
    "to 1."
)
"""Note in a retraining report that defines the measures JSD, TVD and F1."""
HIDING_QUESTION = "Can the model's attention hide the words that the model uses?"
"""Question about the test ``deception`` in a retraining report."""


def _list_introductions(report: RetrainingResult) -> list[Block]:
    """Return the paragraphs that introduce the tests that were run."""
    introductions: list[Block] = []
    if set(report.scores) - {"deception"}:
        introductions.append(INTRODUCTION)
    if "deception" in report.scores:
        introductions.append(DECEPTION_INTRODUCTION)
    return introductions


def _get_question(finding: Finding) -> str:
    """Return the question that a finding answers."""
    return HIDING_QUESTION if finding.rule == "hiding" else RULES[finding.rule].question


def _make_answer_blocks(report: RetrainingResult) -> Iterator[Block]:
    """Yield a report block for each question that the retraining answers."""
    for finding in report.verdict.findings():
        yield make_answer_block(_get_question(finding), finding)
    if report.verdict.chance:
        yield Section("How much does attention vary by chance?", [report.verdict.chance])


def make_answer_block(question: str, finding: Finding) -> AnswerBlock:
    """Return a report block with a question, its answer, and the number that led to the answer.

    The number is compared with a threshold and displayed on a number line.

    Args:
        question: The question to display.
        finding: The answer, with the number from which it was derived.
    """
    rule = RULES[finding.rule]
    details: list[Block] = [Note(f"The graded number: {rule.measure}.")]
    if finding.n:
        number = FormattedNumber(finding.value, finding.ci95)
        details.insert(0, NumberLine(number, {"yes above": rule.yes}))
    return AnswerBlock(question, finding.answer, finding.sentence, details)


# --- Limits --------------------------------------------------------------------------------------

ONE_TRAINING_LIMITATION = (
    "Intervals in the tables are over the test texts, for one training each. Another seed may "
    "change a score by more than the interval. The interval of an answer covers another seed only "
    "if the answer states this."
)
"""Limitation in every retraining report: the tables do not show the effect of another seed."""
ADVERSARY_LIMITATION = (
    "If no adversary was found, one may still exist: another λ or a longer training might find it."
)
"""Limitation in a retraining report that contains the test ``adversary``."""
DECEPTION_LIMITATION = (
    'A "yes" for hiding shows that attention can be trained to hide the use of words. It does not '
    'show that other models hide this use. A "no" does not show that hiding is impossible, because '
    "another weight of the penalty might succeed."
)
"""Limitation in a retraining report that contains the test ``deception``."""
RETRAINING_IS_NOT_ENOUGH_NOTE = (
    "Retraining the model does not answer this question. It shows whether the model needs attention, "
    "whether a model with different attention can make the same predictions, and whether the "
    "attention weights are useful to a simpler model."
)
"""Answer to the last question in a retraining report.

The question is: "May this attention be shown to users as the reason?"
"""
AUDIT_NOTE = (
    "An audit tests whether the output of this particular model depends on its attention, on these "
    "texts:"
)
"""Introduction to the command for an audit, in a retraining report."""


def _list_limits(report: RetrainingResult) -> list[InlineText]:
    """Return sentences about what limits the results, such as tests that were not run."""
    tests = report.provenance.get("tests", list(report.scores))
    skipped_tests = [
        f"{name} ({test.title})"
        for name, test in get_retraining_tests().items()
        if name not in tests
    ]
    limits: list[InlineText] = [ONE_TRAINING_LIMITATION]
    n_seeds = len({score.model for score in report.scores.get("seeds", ())})
    if n_seeds > 1:
        limits.append(
            f"The effect of a seed on F1 is estimated from {n_seeds} trainings. More trainings "
            "(--set seeds.n_seeds) make the intervals that cover seeds narrower."
        )
    elif set(report.scores) - {"deception"}:
        limits.append(
            "No other seeds were trained (test seeds), so the effect of chance on F1 and attention "
            "is unknown."
        )
    if any(finding.rule.startswith("elsewhere") for finding in report.verdict.findings()):
        limits.append(ADVERSARY_LIMITATION)
    if "deception" in report.scores:
        limits.append(DECEPTION_LIMITATION)
    if skipped_tests:
        limits.append(f"Not tested: {'; '.join(skipped_tests)}.")
    return limits + report.provenance.get("notes", [])


# --- The numbers ---------------------------------------------------------------------------------

TABLE_CAPTIONS = {
    "uniform": "Is attention needed? Training with and without it.",
    "seeds": "How much does another seed change?",
    "adversary": "Can a model attend elsewhere? Trained adversaries.",
    "diagnostic_mlp": "Are the weights useful to a model without context?",
    "deception": "Is accuracy kept when attention to words is penalised?",
}
"""Maps retraining tests to the captions of their score tables."""
METRIC_NAMES = {"f1": "F1", "roc_auc": "area under the ROC curve"}
"""Maps metrics to their names in score tables. All other metrics are shown under their own
names."""
LOSS_NOTE = (
    "The loss is the score of the reference model minus the score of the model in the row, on the "
    "same texts. The column head names the reference model. If the loss is positive, the model is "
    "worse than the reference model. If the interval contains 0, the two models cannot be "
    "distinguished."
)
"""Explanation of the loss columns in the score tables of a retraining report."""
CONNECTED_SERIES = (ADVERSARY_SERIES, FRONTIER_SERIES)
"""Chart series whose points are connected by a line."""
SEED_TABLE_NOTE = (
    "The table follows Figure 4 in Wiegreffe & Pinter 2019. The JSD is at most .69, and the "
    "medians have no intervals. An adversary with a smaller JSD changes attention no more than "
    "another seed does."
)
"""Note below the table that shows how much attention changes with another seed."""
CLAMP_NOTE = (
    "The loss of the adversaries contains the logarithm of the base model's attention weights. It "
    "is clamped at ln 1e-10, so that it is finite for weights of 0."
)
"""Note below the chart of adversaries, about the clamped logarithm in their loss."""


def _make_score_blocks(report: RetrainingResult) -> Iterator[Block]:
    """Yield a table of scores, such as F1, for each test.

    Scores after the first one are in a second table, which is collapsed.
    """
    for test, scores in report.scores.items():
        # The distinct metrics, in the order of the scores.
        first_metric, *other_metrics = dict.fromkeys(score.metric for score in scores)
        caption = f"{TABLE_CAPTIONS.get(test, test)} Scores with 95% intervals over texts."
        yield _make_score_table(scores, [first_metric], caption)
        if other_metrics:
            yield Collapsible("By other metrics", [_make_score_table(scores, other_metrics)])
    yield LOSS_NOTE


def _make_score_table(
    scores: Sequence[Score],
    metrics: Sequence[str],
    caption: str = "",
) -> Table:
    """Return a table with one row per model, and two columns per metric, such as F1.

    The columns contain the model's score and its loss relative to the reference model.
    """
    scores_by_name = {(score.model, score.metric): score for score in scores}
    loss_heading = f"lost against {scores[0].reference} (negative: gained)"
    head = ["model"]
    for metric in metrics:
        head += [METRIC_NAMES.get(metric, metric), loss_heading]
    rows: list[list[Cell]] = []
    # `dict.fromkeys` removes repetitions, but keeps the order.
    for model in dict.fromkeys(score.model for score in scores):
        row: list[Cell] = [model]
        for metric in metrics:
            score = scores_by_name[model, metric]
            is_reference = model == score.reference
            row += [score, None if is_reference else score.lost]
        rows.append(row)
    return Table(head, rows, caption)


def _make_curve_blocks(report: RetrainingResult) -> list[Block]:
    """Return the chart of attention change and output change of the adversaries, with its notes.

    The result is empty if the test ``adversary`` was not run.
    """
    if "adversary" not in report.scores:
        return []
    points = compute_points(report.statistics, report.scores)
    notes = [FRONTIER_NOTE, CLAMP_NOTE]
    return [make_penalty_curve(points), Collapsible("About these numbers", notes)]


def make_penalty_curve(points: Sequence[Point]) -> Chart | None:
    """Draw output change against attention distance, with one series per source of attention.

    Args:
        points: Points from :func:`~hf_attnprobe.retraining.verdict.compute_points`.

    Returns:
        The chart as data, or None if no point has an output change.
    """
    visible_points = [point for point in points if point.series != CEILING_SERIES]
    if any(point.series == SEED_SERIES and point.label for point in visible_points):
        # The seeds are drawn one by one, so their median is omitted.
        visible_points = [
            point for point in visible_points if point.series != SEED_SERIES or point.label
        ]
    if not visible_points:
        return None
    series = [
        _make_series(name, visible_points)
        for name in dict.fromkeys(point.series for point in visible_points)
    ]
    largest_jsd = [point.jsd.value for point in points if point.series == CEILING_SERIES]
    return Chart(
        key="penalty_curve",
        title="Distance of the attention and change of the output",
        sentences=tuple(_describe_curve(visible_points, largest_jsd)),
        source="Wiegreffe & Pinter 2019, Figure 5",
        kind="points",
        x_label="JSD from the base model's attention, nats (mean)",
        y_label="output change, total variation distance (mean over texts)",
        series=tuple(series),
        references=tuple(Reference(CEILING_SERIES, jsd, "x") for jsd in largest_jsd),
        x_range=(0.0, 0.7),
    )


def _make_series(name: str, points: Sequence[Point]) -> Series:
    """Build one series of a chart, from all points with this series name.

    The displayed name also contains the labels of the first and last point, as in "trained
    adversaries (λ 0.001 to 0.004)".
    """
    series_points = [point for point in points if point.series == name]
    labels = [point.label for point in series_points if point.label]
    key_range = f" ({labels[0]})" if labels else ""
    if len(labels) > 1:
        # The last label without its symbol, such as 0.004 for "λ 0.004".
        last = labels[-1].split()[-1]
        key_range = f" ({labels[0]} to {last})"
    undefined = math.nan, math.nan
    intervals = [point.tvd.ci95 or undefined for point in series_points]
    low, high = zip(*intervals, strict=True)
    return Series(
        name + key_range,
        tuple(point.jsd.value for point in series_points),
        tuple(point.tvd.value for point in series_points),
        low,
        high,
        tuple(point.jsd.n for point in series_points if point.jsd.n),
        is_connected=name in CONNECTED_SERIES and len(series_points) > 1,
    )


def _describe_curve(visible_points: Sequence[Point], largest_jsd: Sequence[float]) -> Iterator[str]:
    """Yield sentences about the largest attention distance in each series of the chart."""
    parts = []
    # `dict.fromkeys` removes repetitions, but keeps the order.
    for name in dict.fromkeys(point.series for point in visible_points):
        series_points = [point for point in visible_points if point.series == name]
        farthest = max(series_points, key=lambda point: point.jsd.value)
        label = f" ({farthest.label})" if farthest.label else ""
        jsd = markdown.format_interval(farthest.jsd.value, farthest.jsd.ci95, digits=2)
        tvd = markdown.format_interval(farthest.tvd.value, farthest.tvd.ci95, digits=2)
        qualifier = "at most " if name == FRONTIER_SERIES else ""
        parts.append(f"{name}{label} {jsd}, with an output change of {qualifier}{tvd}")
    n = max(point.jsd.n or 0 for point in visible_points)
    limit = "".join(f"; {CEILING_SERIES} {jsd:.2f}" for jsd in largest_jsd)
    yield (
        f"Largest JSD from the base model's attention (means over {n} texts): "
        f"{'; '.join(parts)}{limit}."
    )
    if FRONTIER_SERIES in {point.series for point in visible_points}:
        yield (
            "Search and exact frontier change the attention over the base model's states, without "
            "training. Adversaries and other seeds learn their own states. The distance to other "
            "seeds is the effect of training alone."
        )


def _make_bin_blocks(bins: Sequence[SeedBin]) -> list[Block]:
    """Return a table about how much attention changes if the model is trained with another seed.

    The result is empty if no other seeds were trained.
    """
    if not bins:
        return []
    head = ["largest weight", "predicted", "n", "median JSD to another seed"]
    return [Table(head, bins), SEED_TABLE_NOTE]


def _make_statistic_blocks(report: RetrainingResult) -> Iterator[Block]:
    """Yield one collapsed block per test, with its statistics and a sentence about each of them."""
    readings = get_retraining_readings()
    # `dict.fromkeys` removes repetitions, but keeps the order.
    for test in dict.fromkeys(statistic.test for statistic in report.statistics):
        test_statistics = [statistic for statistic in report.statistics if statistic.test == test]
        overall_statistics = [
            statistic for statistic in test_statistics if statistic.group == "all" and statistic.n
        ]
        sentences: list[InlineText] = [
            f"{statistic.statistic}: {describe_statistic(statistic, readings)}."
            for statistic in overall_statistics
        ]
        rows = []
        for statistic in test_statistics:
            cells_by_field = statistic.build_table_row()
            rows.append([cells_by_field[field] for field in STATISTIC_COLUMNS.values()])
        table = Table(list(STATISTIC_COLUMNS), rows, caption=f"Statistics of {test}")
        title = f"{test}: {len(test_statistics)} numbers and their meaning"
        yield Collapsible(title, [sentences, table])


STATISTIC_COLUMNS = {
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
"""Maps column titles in a table of statistics to the fields that the columns show."""


# --- The test deception --------------------------------------------------------------------------

DECEPTION_ROWS = (
    ("attention mass on the impermissible words, mean over heads", "mass"),
    ("attention mass of the head with the most", "largest_mass"),
    ("output change when the words are deleted", "word_tvd"),
    ("output change when as many other words are deleted", "control_tvd"),
    ("difference of the two, paired by text", "use"),
)
"""Rows of the table about the test ``deception``: row title, and name of the statistic.

Each row shows a statistic before and after the training, such as ``before_mass`` and
``after_mass``.
"""
DECEPTION_QUESTIONS = (
    "Did the model use the words before?",
    "Does it use them after the training?",
    "Has attention to them gone?",
    "Is accuracy lost?",
)
"""Questions about the test ``deception``, in the order of the answers from
:func:`~hf_attnprobe.retraining.verdict.grade_hiding_parts`."""


def _make_deception_blocks(report: RetrainingResult) -> list[Block]:
    """Return a table of the model before and after it was trained to hide some words.

    The result is empty if the test ``deception`` was not run.
    """
    if "deception" not in report.scores:
        return []
    scores = report.scores["deception"]
    # The first rows contain scores such as accuracy, one row per distinct metric.
    rows: list[list[Cell]] = [
        [
            METRIC_NAMES.get(metric, metric),
            find_score(scores, "base", metric),
            find_score(scores, DECEIVED_MODEL, metric),
        ]
        for metric in dict.fromkeys(score.metric for score in scores)
    ]
    for name, suffix in DECEPTION_ROWS:
        before = find_statistic(report.statistics, f"before_{suffix}")
        after = find_statistic(report.statistics, f"after_{suffix}")
        rows.append([name, before, after])
    table = Table(
        ["", "before", "after"],
        rows,
        caption="Means with 95% intervals over texts",
        sortable=False,
    )
    return [table, _describe_measured_texts(report), _describe_penalty(report)]


def _make_hiding_blocks(report: RetrainingResult) -> list[Block]:
    """Return blocks with four answers, such as whether the model still uses the hidden words.

    The result is empty if the test ``deception`` was not run.
    """
    if "deception" not in report.scores:
        return []
    if find_statistic(report.statistics, "after_use") is None:
        return []
    findings = grade_hiding_parts(report.statistics, report.scores)
    questions = zip(DECEPTION_QUESTIONS, findings.values(), strict=True)
    return [make_answer_block(question, finding) for question, finding in questions]


def _describe_measured_texts(report: RetrainingResult) -> str:
    """Describe on how many texts the attention to impermissible words was measured."""
    word_share = find_statistic(report.statistics, "word_share")
    use = find_statistic(report.statistics, "after_use")
    if word_share is None:
        return "None of the test texts contains an impermissible word."
    return (
        f"The attention mass is a mean over the {word_share.n} texts with an impermissible word. "
        f"{word_share.mean:.1%} of their words are impermissible. Output changes are means over "
        f"the {use.n if use else 0} of these texts that have at least as many other words. "
        "Intervals are over texts, for one training."
    )


def _describe_penalty(report: RetrainingResult) -> str:
    """Describe the impermissible words and the penalty on attention to them."""
    penalty = report.provenance.get("deception", {})
    layers = "the last layer" if penalty.get("layers") == "last" else "all layers"
    return (
        f"{report.model} was trained further with weight λ = {penalty.get('weight', math.nan):g} "
        f"on attention to {', '.join(penalty.get('words', ()))} "
        f"({penalty.get('over_heads', '')} over the heads of {layers})."
    )


# --- Provenance ----------------------------------------------------------------------------------

RAW_DATA_NOTE = (
    "The folder rows/ contains one value per test, statistic and text (Parquet). The file "
    "summary.json contains their means with intervals. To export the means as a table, replace "
    "FOLDER with the output folder in this command:"
)
"""Introduction to the command that exports the numbers, in a retraining report."""


def _make_provenance_blocks(report: RetrainingResult) -> list[Block]:
    """Return the end of a report: trained models, the command to repeat the run, and settings."""
    models: list[list[Cell]] = [[model.name, model.n_epochs] for model in report.models]
    settings = [*flatten_settings(report.provenance)]
    command_blocks: list[Block] = []
    # There is no command for a transfer, which is always a step of a study.
    if "asked_for" in report.provenance:
        command_blocks = ["Command to repeat it:", CodeBlock(format_command(report))]
    return [
        Table(
            ["model", "epochs"],
            models,
            "Trained models, by their folders below the output folder",
        ),
        *command_blocks,
        RAW_DATA_NOTE,
        CodeBlock("attnprobe report FOLDER --output numbers.csv"),
        Collapsible(
            "All settings, fingerprints and versions",
            [Table(["setting", "value"], settings, sortable=False)],
        ),
    ]


def format_command(report: RetrainingResult) -> str:
    """Return the shell command that repeats a retraining.

    Args:
        report: Results of the retraining.
    """
    return f"{format_repeat_command('retrain', report.provenance)} --output-dir DIR"


# --- Glossary ------------------------------------------------------------------------------------

GLOSSARY = {
    "attention": "weights that a model computes over the tokens of a text; they sum to 1",
    "base model": "the model that all other models of this report are compared with",
    "seed": "number that determines the random starting weights and the order of the texts; "
    "models with different seeds differ in nothing else",
    "adversary": "a model trained to make the same predictions as the base model with different "
    "attention",
    "chosen adversary": "for each text, the adversary that the other half of the texts chose: the "
    "one with the largest JSD among those that kept F1 there",
    "λ": "weight of different attention in the loss of an adversary, or of attention to the "
    "impermissible words in the loss of a deceived model; a larger λ has more effect on the "
    "attention and may cost accuracy",
    "uniform": "uniform attention gives all tokens the same weight",
    "frontier": "for every ε, the largest JSD of any attention over the base model's states that "
    "changes the output by at most ε; it is computed, not trained",
    "ε": "largest allowed change of the output",
    "search": "approximation of the frontier in small steps, which may not reach it",
    "model without context": "a simpler model that reads each token by itself; the test "
    "diagnostic_mlp imposes attention weights on it",
    "guide": "source of the weights of the model without context: the base model, an adversary, "
    "equal weights, or its own training (trained guide)",
    "impermissible": "impermissible words are the words that the deceived model learned to put no "
    "attention on",
    "deceived": "the base model after further training with a penalty on attention to words",
    "F1": "harmonic mean of precision and recall, from 0 to 1",
    "ROC": "the area under the ROC curve is the probability that a text of the positive class is "
    "ranked above one of the other class; .5 is chance",
    "JSD": "Jensen-Shannon divergence of two attentions, from 0 (equal) to .69 = ln 2 (no token in "
    "common)",
    "TVD": "total variation distance of two outputs: the probability that moves from one class to "
    "others, from 0 to 1",
    "constant guess": "prediction of the same class for every text",
    "95% interval": "range that contains the number for all texts of this type with 95% "
    "confidence, if the measured texts are a random sample of them; it covers another seed only "
    "if the text states this",
}
"""Definitions by term. The glossary of a page lists the terms that occur on the page."""
