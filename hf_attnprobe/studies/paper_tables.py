"""Tables of a study's report, and the results of its steps from which the tables are made."""

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd
from scipy.stats import quantile_test

from hf_attnprobe.checkpoints.records import read_record
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import read_json, read_package_yaml
from hf_attnprobe.retraining.report import RetrainingReport, read_retraining
from hf_attnprobe.retraining.verdict import (
    ADVERSARY_SERIES,
    FRONTIER_NOTE,
    compute_points,
)
from hf_attnprobe.statistics.estimates import (
    CONFIDENCE_LEVEL,
    Estimate,
    draw_resample_counts,
    estimate_mean,
)
from hf_attnprobe.statistics.grades import Answer, Rule, grade
from hf_attnprobe.statistics.scores import (
    compute_weighted_metrics,
    estimate_from_resamples,
    find_score,
    prepend_full_sample,
)
from hf_attnprobe.statistics.summary import (
    ATTENTION_BIN_EDGES,
    PREDICTION_TEST,
    bin_js_by_gap,
    compute_accuracy,
    list_bin_names,
)
from hf_attnprobe.storage.provenance import SUMMARY_FILE
from hf_attnprobe.storage.rows import load_rows
from hf_attnprobe.studies.published import PUBLISHED, PublishedLookup
from hf_attnprobe.studies.steps import (
    Job,
    Scalar,
    Steps,
    StudyColumn,
    StudyTable,
    find_row_jobs,
    name_dataset,
)


TableCell = str | int | float | Estimate | None
"""Content of a table cell; None for an empty cell."""


@dataclass(frozen=True)
class ResultTable:
    """A table of the report.

    Attributes:
        title: Question that the table answers.
        head: Column names.
        rows: Rows with one cell per column.
        sentences: Explanations of the numbers.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...] = ()
    sentences: tuple[str, ...] = ()


class AuditSummaryFields(TypedDict):
    """The part of an audit's ``summary.json`` that the tables need."""

    provenance: dict[str, Any]
    accuracy: dict[str, Any] | None


class Results:
    """Results of a study whose steps have run. Each folder is read at most once.

    Attributes:
        plan: The study's steps and tables.
        folder: Study folder.
        jobs_by_step: Jobs by step name.
        rows: Function that takes an audit's folder and returns its statistics.
        retraining: Function that takes a retraining's folder and returns its report.
    """

    def __init__(self, plan: Steps, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.jobs_by_step = plan.jobs_by_step
        self.rows = cache(self._read_statistics)
        self.retraining = cache(lambda name: read_retraining(folder / name))

    def get_jobs(self, step: str) -> list[Job]:
        """Return all jobs of a step, or an empty list if the study has no such step.

        Args:
            step: Step name.
        """
        return self.jobs_by_step.get(step, [])

    def get_job(self, step: str, cell: Mapping[str, Scalar]) -> Job:
        """Return the job of a step that belongs to a combination of grid values.

        Args:
            step: Step name.
            cell: The combination, such as {"dataset": "sst", "encoder": "cnn"}. It may contain
                values that the step does not depend on.
        """
        return next(job for job in self.jobs_by_step[step] if job.is_in_cell(cell))

    def _read_statistics(self, folder: str) -> pd.DataFrame:
        """Read the statistics of an audit with a single head, [texts, statistics].

        The accuracy of each text is added as another column. Copies of a text count once, as in
        the audit's own report.
        """
        distinct_rows = load_rows(self.folder / folder / "rows").merge_duplicates()
        rows = distinct_rows.build_long_frame()
        # Rows for several heads together, or for predictions, have a negative layer or head.
        is_head_row = (rows.layer >= 0) & (rows["head"] >= 0)
        heads = rows.loc[is_head_row, ["layer", "head"]].drop_duplicates()
        if len(heads) > 1:
            raise AttnProbeError(
                f"a table column needs an audit with a single head, but {folder} has {len(heads)} "
                "heads. Choose one head with the arguments layers and heads of this step."
            )
        rows = rows[is_head_row | (rows.test == PREDICTION_TEST)]
        rows = rows.drop_duplicates(["example_id", "statistic"])
        wide = rows.pivot(index="example_id", columns="statistic", values="value")
        if {"label", "predicted_class"} <= set(wide):
            wide["accuracy"] = compute_accuracy(wide)
        return wide

    def read_json(self, job: Job, name: str, kind: Any = dict[str, Any]) -> Any:
        """Read a JSON file in a job's folder.

        Args:
            job: The step that wrote the file.
            name: File name.
            kind: Expected type of the content.

        Raises:
            AttnProbeError: If the file cannot be read.
        """
        file = self.folder / job.folder / name
        advice = f"Delete {file.parent} and run attnprobe study again."
        return read_json(file, kind, advice)

    def read_training_record(self, folder: str) -> dict[str, Any]:
        """Return a training record, or an empty dict if the step trained nothing.

        Args:
            folder: Output folder of the step or the model, below the study folder.
        """
        return read_record(self.folder / folder)

    def compute_value(
        self, column: StudyColumn, job: Job, lengths: range | None
    ) -> Estimate | None:
        """Compute the value of a table column for a job.

        Args:
            column: A column with a statistic or a score.
            job: One run of the step, for example for one data set.
            lengths: Range of text lengths in tokens. Only texts in this range are used; None uses
                all texts.

        Returns:
            The value, or None if the job did not run the test that computes it.
        """
        if column.score is not None:
            return self._find_score(column.score, column.difference, job)
        # `Steps.add_table` checks that a column has either a score or a statistic.
        assert column.statistic is not None
        rows = self.rows(job.folder)
        values = compute_ratio(rows, column.statistic)
        if values is None:
            return None
        if lengths is not None:
            # "left" includes the lower limit, but not the upper limit.
            values = values[rows.n_tokens.between(lengths.start, lengths.stop, "left")]
        return compute_mean(values)

    def _find_score(self, name: str, difference: bool, job: Job) -> Estimate | None:
        """Return a model's score from a retraining.

        Args:
            name: The test, the model and the score, such as "uniform/base/f1".
            difference: Whether to return the loss relative to the test's reference model instead.
            job: The retraining.
        """
        test, model, metric = name.split("/")
        scores = self.retraining(job.folder).scores.get(test, ())
        score = find_score(scores, model, metric)
        if score is None:
            return None
        return score.lost if difference else score.plain_estimate

    def _read_summary(self, job: Job) -> AuditSummaryFields:
        """Read an audit's summary."""
        return self.read_json(job, SUMMARY_FILE, AuditSummaryFields)

    def get_class_names(self, job: Job) -> list[str]:
        """Return the class names of an audited model, or an empty list if it has no classes.

        Args:
            job: The step that audits the model.
        """
        prediction = self._read_summary(job)["provenance"].get("prediction") or {}
        return prediction["outcomes"] if prediction.get("kind") == "classes" else []

    def list_models_at_chance(self) -> list[str]:
        """Return the audits whose model may be no better than always predicting the same class.

        An audit is named by its folder.
        """
        folders = []
        for job in self.plan.jobs:
            if job.verb == "audit":
                accuracy = self._read_summary(job)["accuracy"]
                if accuracy and accuracy["answer"] in ("no", "cannot say"):
                    folders.append(job.folder)
        return folders


def compute_ratio(rows: pd.DataFrame, statistic: str) -> pd.Series | None:
    """Return a statistic's value for every text, or the ratio of two statistics.

    Args:
        rows: Statistics from an audit, [texts, statistics].
        statistic: Name of a statistic, or two names as ``a/b`` for their ratio.

    Returns:
        One value for each text, NaN if b is 0; None if a test was not run.
    """
    # Without a slash, the denominator is an empty string.
    numerator, _, denominator = statistic.partition("/")
    if not denominator:
        return rows.get(numerator)
    if numerator not in rows or denominator not in rows:
        return None
    # `where` replaces 0 by NaN, so that the ratio is NaN too.
    return rows[numerator] / rows[denominator].where(rows[denominator] > 0)


def round_number(value: float | str | None) -> float | str | None:
    """Round a number to three digits; return text and None unchanged.

    Args:
        value: A cell's value.
    """
    return round(value, 3) if isinstance(value, float) else value


def compute_mean(values: pd.Series) -> Estimate:
    """Return the mean over all texts that have a value, with its 95% confidence interval.

    Args:
        values: One value per text.
    """
    return estimate_mean(values.to_numpy(dtype=np.float64))


def compute_median(values: pd.Series) -> Estimate:
    """Return the median over all texts that have a value, with its 95% confidence interval.

    The ends of the interval are two of the values, so it makes no assumption about their distribution
    (Conover 1999, "Practical Nonparametric Statistics", section 3.2). With five or fewer
    values, there is no interval.

    Args:
        values: One value per text.
    """
    defined_values = values.dropna()
    interval = None
    if len(defined_values) > 0:
        bounds = quantile_test(defined_values, p=0.5).confidence_interval(CONFIDENCE_LEVEL)
        if not math.isnan(bounds.low) and not math.isnan(bounds.high):
            interval = float(bounds.low), float(bounds.high)
    return Estimate(float(values.median()), interval, len(defined_values))


def get_dataset(job: Job) -> str:
    """Return the short name of a job's data set.

    Args:
        job: A step of a study, with its arguments.
    """
    return str(job.cell.get("dataset") or name_dataset(job.arguments["dataset"]))


# --- Tables of a grid ----------------------------------------------------------------------------

SELF_EXPLANATORY_LISTS = (
    "dataset",
    "encoder",
    "attention",
)
"""Lists of values that a table row shows without the name of the list.

For example, a row is named "bilstm" and not "encoder bilstm", but it is named "encoder_size 8" and
not "8".
"""


def make_grid_tables(results: Results) -> list[ResultTable]:
    """Return the tables that a study itself defines, with :meth:`Steps.add_table`.

    A table has one row for each combination of values in the study's grid, such as a data set and
    an encoder.

    Args:
        results: The results of all steps of a study.
    """
    return [_make_grid_table(results, table) for table in results.plan.tables]


def _make_grid_table(results: Results, table: StudyTable) -> ResultTable:
    """Return a table with one row per combination of grid values, and one sentence per column."""
    jobs = find_row_jobs(table, results.jobs_by_step)
    ranges = _make_ranges(table.lengths) if table.lengths else {"": None}
    rows: list[Row] = []
    values_by_column: list[dict[str, Estimate | None]] = [{} for _ in table.columns]
    for job, (range_name, lengths) in itertools.product(jobs, ranges.items()):
        values = [
            results.compute_value(column, results.get_job(column.step, job.cell), lengths)
            for column in table.columns
        ]
        labels: list[TableCell] = [*job.cell.values()]
        row_name = _name_cell(job.cell)
        if range_name:
            # A range of text lengths without any texts gets no row.
            if not any(value and value.n for value in values):
                continue
            labels.append(range_name)
            row_name += f" {range_name} tokens"
        rows.append((*labels, *values))
        for column_values, value in zip(values_by_column, values, strict=True):
            column_values[row_name] = value
    sentences = map(_describe_column, table.columns, values_by_column)
    head = [*jobs[0].cell]
    if table.lengths:
        head.append("tokens")
    return ResultTable(
        title=table.title,
        head=(*head, *(column.name for column in table.columns)),
        rows=tuple(rows),
        sentences=tuple(filter(None, sentences)),
    )


def _make_ranges(bounds: Sequence[int]) -> dict[str, range]:
    """Divide all text lengths into ranges at the bounds, and name the ranges.

    >>> _make_ranges([10, 20])
    {'1–9': range(1, 10), '10–19': range(10, 20), 'from 20': range(20, 9223372036854775807)}
    """
    bound_pairs = itertools.pairwise([1, *bounds])
    ranges = {f"{low}–{high - 1}": range(low, high) for low, high in bound_pairs if high > low}
    return {**ranges, f"from {bounds[-1]}": range(bounds[-1], sys.maxsize)}


def _name_cell(cell: Mapping[str, Scalar]) -> str:
    """Name one combination of grid values, such as a data set and an encoder size.

    The list's name precedes the value, unless the value explains itself.

    >>> _name_cell({"dataset": "sst", "encoder_size": 8})
    'sst encoder_size 8'
    """
    words = []
    for list_name, value in cell.items():
        if list_name not in SELF_EXPLANATORY_LISTS:
            words.append(list_name)
        words.append(str(value))
    return " ".join(words)


def _describe_column(column: StudyColumn, values: Mapping[str, Estimate | None]) -> str | None:
    """Return a sentence that compares a column's values with the column's threshold.

    The result is None if the column has no threshold or no values.
    """
    defined_values = {}
    for name, value in values.items():
        if value is not None and not math.isnan(value.value):
            defined_values[name] = value
    if not defined_values or column.threshold is None or column.means is None:
        return None
    statement = _compare_with_threshold(column.threshold, column.means, defined_values)
    return f"{column.name}: {statement}"


def _compare_with_threshold(threshold: float, means: str, values: Mapping[str, Estimate]) -> str:
    """Describe which values are above a threshold, which are below it, and which are unclear.

    A value is above or below if its whole confidence interval is. A value without an interval, or
    from too few texts, is unclear.

    Args:
        threshold: The threshold.
        means: Statement that is true for values above the threshold, such as "attention is needed".
        values: Values by row name.
    """
    # A rule has a threshold for "partly" and one for "yes". Here both are equal, so that "partly"
    # cannot occur.
    rule = Rule("", "", "", partly=threshold, yes=threshold, source="")
    answers = {name: grade(value, rule) for name, value in values.items()}
    n_above = list(answers.values()).count(Answer.YES)
    statement = means[:1].upper() + means[1:]
    parts = [
        f"{statement} (whole interval from {threshold:g} upwards) in {n_above} of {len(values)}"
    ]
    answer_labels = {
        Answer.YES: "yes",
        Answer.NO: "no",
        Answer.CANNOT_SAY: "cannot say",
    }
    for answer, label in answer_labels.items():
        names = [name for name in answers if answers[name] == answer]
        if names:
            parts.append(f"{label}: {', '.join(names)}")
    return f"{'; '.join(parts)}."


# --- Tables of papers ----------------------------------------------------------------------------
# Each table contains our numbers and, for the paper's data sets, the published numbers. The step
# names are those in the built-in studies. The texts of all tables are in ``papers.yaml``; the
# functions below return the rows.

Row = tuple[TableCell, ...]
"""A table row with one cell per column."""
TABLES_WITHOUT_ROWS = read_package_yaml(
    Path(__file__).with_name("papers.yaml"), Mapping[str, ResultTable]
)
"""Maps table names to tables with a title, column titles and explanations, but without rows."""


def _make_table(name: str, rows: Iterable[Row], *sentences_of_results: str | None) -> ResultTable:
    """Make a table from rows of results, with the title and explanations from ``papers.yaml``.

    Args:
        name: Key of the table in ``papers.yaml``.
        rows: Rows of results.
        *sentences_of_results: Sentences about the results, which come before the explanations. None
            is ignored.
    """
    texts: ResultTable = TABLES_WITHOUT_ROWS[name]
    sentences = (*filter(None, sentences_of_results), *texts.sentences)
    return replace(texts, rows=tuple(rows), sentences=sentences)


# --- Jain & Wallace 2019, "Attention is not Explanation" -----------------------------------------

DIFFERENCE_STATISTICS = {
    "τ(g, loo) − τ(α, loo)": "leave_one_out_tau_difference",
    "τ(g, loo) − τ(α, g)": "gradient_tau_difference",
}
"""Maps row titles to statistics, each of which is the difference of two rank agreements.

τ(α, g) is the rank agreement (Kendall τ) of attention α and gradients g; loo is leave-one-out.
"""
RANKING_PAIRS = {
    "τ(α, g)": "attention_gradient",
    "τ(α, loo)": "attention_leave_one_out",
    "τ(g, loo)": "gradient_leave_one_out",
}
"""Maps rank agreements, as they are displayed, to prefixes of the names of their statistics.

For example, τ(α, g) is the Kendall τ of attention α and gradients g; loo is leave-one-out.
"""
ENCODER_DIFFERENCE = "τ(α, loo), average − BiLSTM"
"""Title of table rows about the rank agreement τ(α, loo) of attention and leave-one-out.

The rows show τ with the encoder that the paper calls "average", minus τ with the BiLSTM encoder.
"""


@dataclass(frozen=True)
class _TextGroup:
    """All texts of an audit, or those for which its model predicts one class.

    Attributes:
        job: The audit.
        class_index: Index of the predicted class; None for all texts.
        rows: Statistics of the texts, [texts, statistics].
        classes: Class names.
    """

    job: Job
    class_index: int | None
    rows: pd.DataFrame
    classes: Sequence[str] = ()

    @property
    def encoder(self) -> str:
        """The encoder of the audited model."""
        return str(self.job.cell.get("encoder", "bilstm"))

    @property
    def table_labels(self) -> tuple[str, str, str]:
        """Labels of the model in a table: data set, encoder and attention."""
        attention = str(self.job.cell.get("attention", "additive"))
        return get_dataset(self.job), self.encoder, attention

    def get_published(self, table: Mapping[str, Mapping[str, Any]], *keys: str) -> Any:
        """Return the paper's value for this class, or None if there is none."""
        return PublishedLookup(*self.table_labels).get_value(
            table, *keys, class_index=self.class_index
        )

    @property
    def displayed_class(self) -> TableCell:
        """The predicted class for a table: its name, its index if it has no name, or "all"."""
        if self.class_index is None:
            return "all"
        has_name = self.class_index < len(self.classes)
        return self.classes[self.class_index] if has_name else self.class_index

    def get_tau(self, pair: str) -> pd.Series | None:
        """Return τ between two rankings for each text, or None if they were not compared."""
        return self.rows.get(f"{pair}_tau")

    def compute_significant_share(self, pair: str) -> TableCell:
        """Return the fraction of texts with p ≤ .05, for either sign of τ as in the paper."""
        return round(float((self.rows[f"{pair}_p_value"] <= 0.05).mean()), 3)


def make_jain_wallace_tables(results: Results) -> list[ResultTable]:
    """Return Jain & Wallace's tables: rank correlations, adversaries and shuffled weights.

    Args:
        results: The results of all steps of a study.
    """
    all_texts = [
        _TextGroup(job, None, results.rows(job.folder)) for job in results.get_jobs("audit")
    ]
    groups = []
    for group in all_texts:
        groups += _divide_by_class(results, group)
    return [
        _make_table("correlation", _make_correlation_rows(groups)),
        _make_table("overall", _make_overall_rows(all_texts)),
        _make_table("differences", _make_difference_rows(all_texts)),
        _make_table("adversarial", _make_adversarial_rows(results, groups)),
        _make_table("permutation", _make_permutation_rows(groups)),
    ]


def _divide_by_class(results: Results, all_texts: _TextGroup) -> list[_TextGroup]:
    """Divide an audit's texts by predicted class, as in the paper.

    For some data sets, the paper only reports numbers for all texts together. Their texts are not
    divided.
    """
    if get_dataset(all_texts.job) in PUBLISHED.pooled:
        return [all_texts]
    classes = results.get_class_names(all_texts.job)
    by_class = all_texts.rows.dropna(subset="predicted_class").groupby("predicted_class")
    return [_TextGroup(all_texts.job, int(number), rows, classes) for number, rows in by_class]


def _make_correlation_rows(groups: Sequence[_TextGroup]) -> Iterator[Row]:
    """Yield rows about τ of attention with gradients and with leave-one-out, by predicted class."""
    for group, measure in itertools.product(groups, ("gradient", "leave_one_out")):
        pair = f"attention_{measure}"
        tau = group.get_tau(pair)
        if tau is not None:
            published_values = (
                group.get_published(PUBLISHED.tau, measure, group.encoder) or (None,) * 3
            )
            yield (
                *group.table_labels,
                measure.replace("leave_one_out", "leave-one-out"),
                group.displayed_class,
                compute_mean(tau),
                round(tau.std(ddof=0), 3),
                group.compute_significant_share(pair),
                *published_values,
            )


def _make_overall_rows(all_texts: Sequence[_TextGroup]) -> Iterator[Row]:
    """Yield one row with each audit's F1 or accuracy, and then rows with its rank agreements τ.

    Each row also contains the published number, if the authors released one.
    """
    for group in all_texts:
        dataset, encoder, attention = group.table_labels
        dataset_reruns = PUBLISHED.reruns.get(dataset, {})
        encoder_reruns = dataset_reruns.get(encoder, {})
        # The published numbers are three rank agreements and a score.
        *published_agreements, published_score = encoder_reruns.get(attention, (None,) * 4)
        metric, score = _compute_performance(group.rows)
        yield *group.table_labels, metric, score, None, published_score, None
        named_pairs = RANKING_PAIRS.items()
        for (name, pair), agreement in zip(named_pairs, published_agreements, strict=True):
            tau = group.get_tau(pair)
            if tau is not None and f"{pair}_p_value" in group.rows:
                mean = compute_mean(tau)
                significant_share = group.compute_significant_share(pair)
                published_values = agreement or (None, None)
                yield *group.table_labels, name, mean, significant_share, *published_values


def _compute_performance(rows: pd.DataFrame) -> tuple[str, TableCell]:
    """Return the name and the value of a score on the labelled texts, with its interval.

    The score is F1 for class 1 if there are two classes, and accuracy otherwise. Its value is None if
    no text has a label.
    """
    # Texts without a label have the label −1.
    labelled_rows = rows[rows.label >= 0]
    if labelled_rows.empty:
        return "accuracy", None
    predicted_classes = labelled_rows.predicted_class.to_numpy(dtype=int)
    if not {*labelled_rows.label, *predicted_classes} <= {0, 1}:
        return "accuracy", compute_mean(labelled_rows.accuracy)
    counts = prepend_full_sample(draw_resample_counts(len(labelled_rows)))
    # A predicted class becomes a row of probabilities: [1, 0] for class 0, [0, 1] for class 1.
    scores = compute_weighted_metrics(
        labelled_rows.label.to_numpy(dtype=int), np.eye(2)[predicted_classes], counts
    )
    return "F1", estimate_from_resamples(scores["f1"], len(labelled_rows))


def _make_difference_rows(all_texts: Sequence[_TextGroup]) -> Iterator[Row]:
    """Yield table rows that compare Kendall's τ in two situations, as in the paper's Figures 3 to 5.

    τ measures how well two rankings of the words agree, such as attention and gradients. For each
    text, one τ is subtracted from another. Either both belong to the same model but to different
    rankings, or they belong to an MLP and a BiLSTM and to the same rankings.
    """
    for group in all_texts:
        for difference, statistic in DIFFERENCE_STATISTICS.items():
            if statistic in group.rows:
                name = f"{difference}, {group.encoder}"
                yield _make_difference_row(group, name, statistic, group.rows[statistic])
    for mlp, bilstm in _pair_mlp_with_bilstm(all_texts):
        mlp_tau = mlp.get_tau("attention_leave_one_out")
        bilstm_tau = bilstm.get_tau("attention_leave_one_out")
        if mlp_tau is not None and bilstm_tau is not None:
            # The subtraction aligns the texts by their example ids.
            differences = mlp_tau - bilstm_tau
            yield _make_difference_row(
                bilstm, ENCODER_DIFFERENCE, "encoder_difference", differences
            )


def _pair_mlp_with_bilstm(
    all_texts: Sequence[_TextGroup],
) -> Iterator[tuple[_TextGroup, _TextGroup]]:
    """Yield each model with an MLP encoder, and the model that only differs in its BiLSTM encoder.

    The paper calls the MLP encoder "average".
    """
    for mlp, bilstm in itertools.product(all_texts, all_texts):
        bilstm_cell = {**mlp.job.cell, "encoder": "bilstm"}
        if mlp.encoder == "mlp" and bilstm.job.cell == bilstm_cell:
            yield mlp, bilstm


def _make_difference_row(
    group: _TextGroup, name: str, statistic: str, differences: pd.Series
) -> Row:
    """Return a table row about the differences between two values of Kendall's τ for each text.

    The row contains the mean, the median, the share of texts with a positive difference, and the
    mean that the paper published.
    """
    dataset, encoder, attention = group.table_labels
    is_published_model = (attention, encoder) == ("additive", "bilstm")
    published_mean = PUBLISHED.tau_differences[statistic] if is_published_model else None
    differences = differences.dropna()
    positive_share = compute_mean((differences > 0).astype(float))
    return (
        dataset,
        attention,
        name,
        compute_mean(differences),
        compute_median(differences),
        positive_share,
        published_mean,
    )


def _make_adversarial_rows(results: Results, groups: Sequence[_TextGroup]) -> Iterator[Row]:
    """Yield table rows about how different attention can be while the output stays nearly the same.

    The output may change by at most .05. The difference of the attention is measured as
    Jensen-Shannon divergence (JSD). A row contains three medians of the largest difference: from a
    gradient search as in the paper, from an exact computation, and as published in the paper.
    """
    statistic = "epsilon_max_jsd@0.05"
    for group in groups:
        # The study runs two audits of each model. The step "search" uses the gradient search.
        search_job = results.get_job("search", group.job.cell)
        search_rows = results.rows(search_job.folder)
        search_values = search_rows.reindex(group.rows.index)[statistic]
        yield (
            *group.table_labels,
            group.displayed_class,
            compute_median(search_values),
            _compute_exact_median(group.rows, statistic),
            group.get_published(PUBLISHED.epsilon_max_jsd, group.encoder),
        )


def _compute_exact_median(rows: pd.DataFrame, column: str) -> TableCell:
    """Return the median of a statistic if its exact value is known for every text, else None."""
    exact_flags = rows.get("epsilon_max_jsd_exact")
    if column not in rows or exact_flags is None or not (exact_flags == 1).all():
        return None
    return compute_median(rows[column])


def _make_permutation_rows(groups: Sequence[_TextGroup]) -> Iterator[Row]:
    """Yield rows about how much the output changes if attention weights are shuffled.

    Texts are grouped by their largest attention weight, in bins such as [0.25, 0.5).
    """
    bin_edges = itertools.pairwise(ATTENTION_BIN_EDGES)
    bins = list(zip(list_bin_names(), bin_edges, strict=True))
    for group in groups:
        largest_weight = group.rows.max_attention
        for bin_name, (low, high) in bins:
            # Only the last bin contains its upper edge, 1.
            is_last_bin = high == 1.0
            is_in_bin = (largest_weight >= low) & ((largest_weight < high) | is_last_bin)
            if not is_in_bin.any():
                continue
            bracket = "]" if is_last_bin else ")"
            weight_range = f"[{low:g}, {high:g}{bracket}"
            median = compute_median(group.rows[is_in_bin].median_tvd)
            published_median = group.get_published(PUBLISHED.permutation, group.encoder, bin_name)
            yield *group.table_labels, group.displayed_class, weight_range, median, published_median


# --- Serrano & Smith 2019, "Is Attention Interpretable?" -----------------------------------------

ERASURE_ORDERS = ("random", "attention", "gradient", "product", "least_attention")
"""Orders in which the erasure test removes attention weights, from the first to the last weight."""
POOLED_SUFFIX = ", pooled"
"""Suffix in the titles of table rows that combine all random orders of all texts."""


def make_serrano_smith_tables(results: Results) -> list[ResultTable]:
    """Return the two tables of Serrano & Smith.

    The first table contains how many attention weights must be erased to change a decision. The
    second table is about erasing a single weight.

    Args:
        results: The results of all steps of a study.
    """
    audits = [(_get_labels(job), results.rows(job.folder)) for job in results.get_jobs("audit")]
    return [
        _make_table("fractions", _make_fraction_rows(audits)),
        _make_table("single_weights", _make_single_weight_rows(audits)),
    ]


Audits = Sequence[tuple[tuple[str, str, str], pd.DataFrame]]
"""Audits as pairs: (data set, architecture, encoder), and statistics with one row per text."""


def _get_labels(job: Job) -> tuple[str, str, str]:
    """Return a job's data set, architecture (by its name in the paper) and encoder."""
    architecture = "HAN" if job.cell.get("hierarchical") else "FLAN"
    return get_dataset(job), architecture, str(job.cell.get("encoder", "bigru"))


def _make_fraction_rows(audits: Audits) -> Iterator[Row]:
    """Yield rows about the share of the attention weights that must be erased to change a decision.

    The share is a median over texts. It depends on the order in which the weights are erased, such
    as by attention or at random.
    """
    for (dataset, architecture, encoder), rows in audits:
        published_datasets = PUBLISHED.fraction_to_flip if architecture == "FLAN" else {}
        # A data set that the paper does not use is compared with the most similar one.
        nearest_dataset = PUBLISHED.nearest.get(dataset, dataset)
        published_medians = published_datasets.get(nearest_dataset, {}).get(encoder, {})
        for order, *values in _make_order_cells(rows):
            # Rows for all random orders together have a suffix in their names.
            published_median = published_medians.get(order.removesuffix(POOLED_SUFFIX))
            yield dataset, architecture, encoder, order, *values, published_median


def _make_single_weight_rows(audits: Audits) -> Iterator[Row]:
    """Yield rows that compare erasing the largest attention weight with erasing a random weight.

    ΔJS is the output change from erasing the largest weight minus the change from erasing the
    random weight. Texts are grouped by Δα, the difference between these two weights.
    """
    for labels, rows in audits:
        if "delta_js" in rows:
            for gap_bin in bin_js_by_gap(rows.delta_attention, rows.delta_js):
                # Medians range from 1e-5 to .4, so they are rounded to two significant digits.
                median = float(f"{gap_bin.median:.2g}")
                yield (
                    *labels,
                    gap_bin.name,
                    gap_bin.n,
                    median,
                    round_number(gap_bin.negative_share),
                )


def _make_order_cells(rows: pd.DataFrame) -> Iterator[tuple[str, TableCell, TableCell, TableCell]]:
    """Yield four cells for each erasure order.

    1. Name of the order, such as "attention".
    2. Median fraction of weights that must be erased to flip the decision.
    3. Fraction of texts whose decision never flips.
    4. Position of the order on the scale from a random order (0) to the best order (1).
    """
    for order in ERASURE_ORDERS:
        fraction_name, never_name = f"fraction_to_flip@{order}", f"never_flips@{order}"
        if fraction_name in rows:
            positions = rows.get(f"way_to_best@{order}")
            mean_position = None if positions is None else compute_mean(positions)
            yield (
                order,
                compute_median(rows[fraction_name]),
                compute_mean(rows[never_name]),
                mean_position,
            )
        # The columns above contain means over several random orders. The columns below contain
        # one random order each.
        fractions_by_draw = rows.filter(regex=f"^{fraction_name}_")
        if len(fractions_by_draw.columns):
            pooled_fractions = pd.Series(fractions_by_draw.to_numpy().ravel())
            never_share = rows.filter(regex=f"^{never_name}_").mean(axis=1)
            # Several values of one text are not independent, so that their median has no interval.
            pooled_median = replace(compute_median(pooled_fractions), ci95=None)
            yield (
                order + POOLED_SUFFIX,
                pooled_median,
                compute_mean(never_share),
                None,
            )
    if "minimal_fraction" in rows:
        yield "smallest set", compute_median(rows["minimal_fraction"]), None, None


# --- Tutek & Šnajder 2020, "Staying True to Your Word" -------------------------------------------


def make_tutek_snajder_tables(results: Results) -> list[ResultTable]:
    """Return the two tables of Tutek & Šnajder.

    The first table is about F1 with uniform and permuted attention, the second one about models that
    were trained to have other attention (adversaries).

    Args:
        results: The results of all steps of a study.
    """
    change_rows = [_make_change_row(results, job) for job in results.get_jobs("audit")]
    adversary_table = _make_table("harder", _make_adversary_rows(results))
    if not adversary_table.rows:
        adversary_table = replace(adversary_table, sentences=())
    return [_make_table("changes", change_rows), adversary_table]


def _get_model_labels(job: Job) -> tuple[str, str, str]:
    """Return a model's data set, attention and regulariser."""
    return get_dataset(job), str(job.cell["attention"]), str(job.cell["model"])


def _make_change_row(results: Results, job: Job) -> Row:
    """Return a row with a model's F1, its changes with other attention, and published numbers."""
    dataset, attention, regulariser = _get_model_labels(job)
    published_models = PUBLISHED.regularised.get(dataset, {}).get(attention, {})
    published_values = published_models.get(regulariser, (None, None, None))
    changes = compute_f1_changes(results.rows(job.folder), seed=job.arguments["seed"])
    return dataset, attention, regulariser, *changes, *published_values


def compute_f1_changes(texts: pd.DataFrame, *, seed: int = 0) -> list[Estimate]:
    """Compute F1 with trained attention, and its changes with uniform and permuted attention.

    All three are in points, so that 100 is the maximum, and have intervals from the same bootstrap
    resamples of the labelled texts. With two classes, F1 is the score for class 1. With more
    classes, it is the mean over the classes. If the weights are permuted several times, each
    permutation counts as a fraction of a text.

    Args:
        texts: Statistics from an audit with the test ``fragility``, one per column.
        seed: Seed for the bootstrap.

    Returns:
        F1 with trained attention, its change with uniform attention, and its change with permuted
        attention.
    """
    labelled_texts = texts[texts.label >= 0]
    labels = labelled_texts.label.to_numpy(dtype=int)
    counts = prepend_full_sample(draw_resample_counts(len(labels), seed=seed))
    n_classes = len(labelled_texts.filter(like="trained_share@").columns)

    def compute_f1(attention: str) -> np.ndarray:
        # For each class, the share of the permutations with which the model predicts this class.
        shares = labelled_texts[[f"{attention}_share@{k}" for k in range(n_classes)]].to_numpy()
        return 100 * compute_weighted_metrics(labels, shares, counts)["f1"]

    trained_f1 = compute_f1("trained")
    changes = [compute_f1(attention) - trained_f1 for attention in ("uniform", "permuted")]
    return [estimate_from_resamples(values, len(labels)) for values in (trained_f1, *changes)]


def _make_adversary_rows(results: Results) -> Iterator[Row]:
    """Yield a row for every adversary: change of the attention (JSD), of the output (TVD), and F1.

    An adversary is trained to make the same predictions as the base model with other attention.
    """
    for job in results.get_jobs("adversaries"):
        report = results.retraining(job.folder)
        for point in compute_points(report.statistics, report.scores):
            if point.series == ADVERSARY_SERIES:
                values = point.jsd.value, point.tvd.value, point.f1
                yield *_get_model_labels(job), point.name, *map(round_number, values)


# --- Wiegreffe & Pinter 2019, "Attention is not not Explanation" ---------------------------------

PUBLISHED_NOTE = (
    "The table shows twice the λ and TVD that the paper prints for its adversary, because the "
    "authors' code uses half of the total variation distance."
)
"""Note about the published adversary in a table of results from Wiegreffe & Pinter 2019."""
GUIDED_MODELS = ("uniform guide", "trained guide", "base guide", "adversary guide")
"""Models in the table about guided models. Each is named after the source of its attention (the
guide)."""


def make_wiegreffe_pinter_tables(results: Results) -> list[ResultTable]:
    """Return the tables of Wiegreffe & Pinter.

    The tables are about models with uniform attention, with another seed, with another model's
    attention (a guide), and about models that were trained to attend elsewhere (adversaries).

    Args:
        results: The results of all steps of a study.
    """
    jobs = results.get_jobs("retrained")
    reports = [(get_dataset(job), results.retraining(job.folder)) for job in jobs]
    return [
        _make_table_with_answers("uniform", "need", reports, _make_uniform_rows),
        _make_table_with_answers("seeds", "chance", reports, _make_seed_rows),
        _make_table_with_answers("guides", "transfer", reports, _make_guide_rows),
        *(_make_adversary_table(dataset, report) for dataset, report in reports),
    ]


def _make_table_with_answers(
    name: str,
    question: str,
    reports: Sequence[tuple[str, RetrainingReport]],
    make_rows: Callable[[str, RetrainingReport], Iterable[Row]],
) -> ResultTable:
    """Return a table about all data sets, preceded by each data set's answer to a question.

    Args:
        name: Key of the table in ``papers.yaml``.
        question: Field of :class:`~hf_attnprobe.retraining.verdict.Verdict`, such as ``need`` for
            "Is attention needed?".
        reports: Pairs of a data set name and its retraining report.
        make_rows: Function that returns the rows for a data set and its report.
    """
    sentences: list[str] = []
    rows: list[Row] = []
    for dataset, report in reports:
        rows += make_rows(dataset, report)
        answer = report.verdict.sentence(question)
        if answer:
            sentences.append(f"{dataset}: {answer}")
    return _make_table(name, rows, *sentences)


def _list_f1_cells(
    report: RetrainingReport,
    test: str,
    models: Sequence[str],
    published_f1_by_model: Mapping[str, float],
) -> Iterator[tuple[str, Estimate, Estimate | None, float | None]]:
    """Yield four table cells per model: name, F1, loss of F1, and published F1.

    The loss is relative to the reference model of the test, whose own loss is None.
    """
    for model in models:
        score = find_score(report.scores.get(test, ()), model)
        if score is not None:
            loss = None if model == score.reference else score.lost
            yield model, score.plain_estimate, loss, published_f1_by_model.get(model)


def _make_uniform_rows(dataset: str, report: RetrainingReport) -> Iterator[Row]:
    """Yield rows with F1 of the base model and of the model with uniform attention."""
    published_f1_by_model = PUBLISHED.uniform.get(dataset, {})
    for model, *cells in _list_f1_cells(
        report, "uniform", ("base", "uniform"), published_f1_by_model
    ):
        # Wiegreffe & Pinter also list the F1 that Jain & Wallace reported for the base model.
        reported_f1 = PUBLISHED.reported.get(dataset) if model == "base" else None
        yield dataset, model, *cells, reported_f1


def _make_seed_rows(dataset: str, report: RetrainingReport) -> Iterator[Row]:
    """Yield rows about how much attention changes (JSD) if a model is trained with another seed.

    Texts are grouped by their largest attention weight and their predicted class.
    """
    for seed_bin in report.bins:
        median = Estimate(seed_bin.median_jsd, None, seed_bin.n)
        published_median = PUBLISHED.seed_jsd.get(dataset)
        yield dataset, seed_bin.largest_weight, seed_bin.predicted, median, published_median


def _make_guide_rows(dataset: str, report: RetrainingReport) -> Iterator[Row]:
    """Yield F1 for the model without context, one row per guide."""
    published_f1_by_model = PUBLISHED.diagnostic_mlp.get(dataset, {})
    for model, *cells in _list_f1_cells(
        report, "diagnostic_mlp", GUIDED_MODELS, published_f1_by_model
    ):
        yield dataset, model.removesuffix(" guide"), *cells


def _make_adversary_table(dataset: str, report: RetrainingReport) -> ResultTable:
    """Return a table about all adversaries of a data set and the models that they are compared with.

    An adversary is trained to make similar predictions with other attention. The columns are the
    change of the attention (JSD), the change of the output, and F1.
    """
    published_numbers = PUBLISHED.adversary.get(dataset)
    rows: list[Row] = []
    for point in compute_points(report.statistics, report.scores):
        if point.name:
            numbers = (point.jsd.value, point.displayed_change, point.f1)
            rows.append((point.name, *map(round_number, numbers)))
    if published_numbers is not None:
        name = f"published, λ {published_numbers['lambda']:g} (on our scale)"
        rows.append(
            (name, published_numbers["jsd"], published_numbers["tvd"], published_numbers["f1"])
        )
    table = _make_table(
        "adversaries",
        rows,
        report.verdict.sentence("elsewhere"),
        ADVERSARY_SERIES,
        FRONTIER_NOTE,
        PUBLISHED_NOTE if published_numbers else None,
    )
    return replace(table, title=table.title.format(dataset=dataset))


# --- All papers ----------------------------------------------------------------------------------

TABLE_MAKERS = {
    "jain-wallace": make_jain_wallace_tables,
    "serrano-smith": make_serrano_smith_tables,
    "wiegreffe-pinter": make_wiegreffe_pinter_tables,
    "tutek-snajder": make_tutek_snajder_tables,
}
"""Maps studies that repeat a paper to the functions that make the paper's tables."""


def make_paper_tables(results: Results) -> list[ResultTable]:
    """Return the tables of the paper that a study repeats; empty if it repeats no paper.

    Args:
        results: The results of all steps of a study.
    """
    tables = TABLE_MAKERS.get(results.plan.paper or "")
    return tables(results) if tables else []
