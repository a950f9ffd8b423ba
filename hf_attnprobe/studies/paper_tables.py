"""Results of a study's steps, read from their folders, and the tables made of them."""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd

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
    Estimate,
    draw_resample_counts,
    estimate_mean,
)
from hf_attnprobe.statistics.grades import Answer, Rule, grade
from hf_attnprobe.statistics.scores import (
    compute_metrics,
    compute_weighted_metrics,
    estimate_from_resamples,
    find_score,
    prepend_full_sample,
)
from hf_attnprobe.statistics.summary import (
    ATTENTION_BINS,
    PREDICTION_TEST,
    bin_js_by_gap,
    compute_accuracy,
    list_bin_names,
)
from hf_attnprobe.storage.provenance import SUMMARY_FILE
from hf_attnprobe.storage.rows import read_rows
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
"""A table cell."""


@dataclass(frozen=True)
class ResultTable:
    """A table of the report.

    Attributes:
        title: Question that the table answers.
        head: Names of the columns.
        rows: Cells, one for each column.
        sentences: Explanations of the table.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...] = ()
    sentences: tuple[str, ...] = ()


class AuditSummaryFields(TypedDict):
    """The part of an audit's summary that the tables need."""

    provenance: dict[str, Any]
    accuracy: dict[str, Any] | None


class Results:
    """Reader of the folders of a study whose steps have run. Each folder is read once.

    Attributes:
        plan: The study.
        folder: Its folder.
        jobs_by_step: Jobs of each step.
        rows: Function that returns the statistics of an audit, by its folder.
        retraining: Function that returns the report of a retraining, by its folder.
    """

    def __init__(self, plan: Steps, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.jobs_by_step = plan.jobs_by_step
        self.rows = cache(self._rows)
        self.retraining = cache(lambda name: read_retraining(folder / name))

    def get_jobs(self, step: str) -> list[Job]:
        """Return the jobs of a step, or an empty list if the study has no such step.

        Args:
            step: Step name.
        """
        return self.jobs_by_step.get(step, [])

    def get_job(self, step: str, cell: Mapping[str, Scalar]) -> Job:
        """Return the job of a step at a grid cell.

        Args:
            step: Step name.
            cell: A grid cell.
        """
        return next(job for job in self.jobs_by_step[step] if job.is_in_cell(cell))

    def _rows(self, folder: str) -> pd.DataFrame:
        """Return the statistics of an audit of a single head, with accuracy, [texts, statistics]."""
        rows = read_rows(self.folder / folder / "rows")
        of_heads = (rows.layer >= 0) & (rows["head"] >= 0)
        heads = rows.loc[of_heads, ["layer", "head"]].drop_duplicates()
        if len(heads) > 1:
            raise AttnProbeError(
                f"a column of a table needs an audit of a single head, but {folder} has "
                f"{len(heads)} heads; choose one with layers and heads in the step"
            )
        # Rows of groups of heads are dropped.
        rows = rows[of_heads | (rows.test == PREDICTION_TEST)]
        rows = rows.drop_duplicates(["example_id", "statistic"])
        wide = rows.pivot(index="example_id", columns="statistic", values="value")
        if {"label", "predicted_class"} <= set(wide):
            wide["accuracy"] = compute_accuracy(wide)
        return wide

    def read_json(self, job: Job, name: str, kind: Any = dict[str, Any]) -> Any:
        """Read a JSON file in a job's folder.

        Args:
            job: The job.
            name: Name of the file.
            kind: Type of the value.

        Raises:
            AttnProbeError: If the file cannot be read.
        """
        file = self.folder / job.folder / name
        again = f"delete {file.parent} and run attnprobe study again"
        return read_json(file, kind, again)

    def read_training_record(self, folder: str) -> dict[str, Any]:
        """Return the record of a training, or an empty dict if the step trained nothing.

        Args:
            folder: Folder of the step.
        """
        return read_record(self.folder / folder)

    def compute_value(
        self, column: StudyColumn, job: Job, lengths: range | None
    ) -> Estimate | None:
        """Return the value of a column for a job.

        Args:
            column: A column with a statistic or a score.
            job: A job of the column's step.
            lengths: Range of numbers of tokens, to average a statistic over these texts only.

        Returns:
            The value, or None if the job did not run the test of the column.
        """
        if column.score is not None:
            return self._score(column.score, column.difference, job)
        # `Steps.add_table` checks that a column has either a score or a statistic.
        assert column.statistic is not None
        rows = self.rows(job.folder)
        values = compute_ratio(rows, column.statistic)
        if values is None:
            return None
        if lengths is not None:
            values = values[rows.n_tokens.between(lengths.start, lengths.stop, "left")]
        return compute_mean(values)

    def _score(self, name: str, difference: bool, job: Job) -> Estimate | None:
        """Return a score of a retraining, or its loss."""
        test, model, metric = name.split("/")
        scores = self.retraining(job.folder).scores.get(test, ())
        score = find_score(scores, model, metric)
        if score is None:
            return None
        return score.lost if difference else score.plain_estimate

    def _summary(self, job: Job) -> AuditSummaryFields:
        """Read the summary of an audit."""
        return self.read_json(job, SUMMARY_FILE, AuditSummaryFields)

    def get_class_names(self, job: Job) -> list[str]:
        """Return the names of an audited model's classes, if it has classes.

        Args:
            job: A job that audits a model.
        """
        prediction = self._summary(job)["provenance"].get("prediction") or {}
        return prediction["outcomes"] if prediction.get("kind") == "classes" else []

    def list_models_at_chance(self) -> list[str]:
        """Return the audited models that may not be better than predicting the most frequent class."""
        audits = [job for job in self.plan.jobs if job.verb == "audit"]
        accuracies = {job.folder: self._summary(job)["accuracy"] for job in audits}
        unsure = ("no", "cannot say")
        return [
            name
            for name, accuracies in accuracies.items()
            if accuracies and accuracies["answer"] in unsure
        ]


def compute_ratio(rows: pd.DataFrame, statistic: str) -> pd.Series | None:
    """Return the values of a statistic, or of a ratio of two statistics.

    Args:
        rows: Statistics of an audit, [texts, statistics].
        statistic: Statistic name, or ``a/b``.

    Returns:
        One value for each text, NaN if b is 0; None if a test was not run.
    """
    first, _, second = statistic.partition("/")
    if not second:
        return rows.get(first)
    if first not in rows or second not in rows:
        return None
    return rows[first] / rows[second].where(rows[second] > 0)


def round_number(value: float | str | None) -> float | str | None:
    """Round a number to three digits; return text and None unchanged.

    Args:
        value: The value of a cell.
    """
    return round(value, 3) if isinstance(value, float) else value


def compute_mean(values: pd.Series) -> Estimate:
    """Return the mean over the texts that have a value, with its interval.

    Args:
        values: One value per text.
    """
    return estimate_mean(values.to_numpy(dtype=np.float64))


def compute_median(values: pd.Series) -> Estimate:
    """Return the median over the texts that have a value.

    Args:
        values: One value per text.
    """
    return Estimate(float(values.median()), None, int(values.notna().sum()))


def get_dataset(job: Job) -> str:
    """Return the name of a job's data set in the study.

    Args:
        job: The job.
    """
    return str(job.cell.get("dataset") or name_dataset(job.arguments["dataset"]))


# --- Tables of a grid ----------------------------------------------------------------------------

SELF_EXPLANATORY_LISTS = (
    "dataset",
    "encoder",
    "attention",
)
"""Grid lists whose values are displayed without the name of the list."""


def make_grid_tables(results: Results) -> list[ResultTable]:
    """Return all tables that the study defines, with a row for each grid cell.

    Args:
        results: Study results.
    """
    return [_make_grid_table(results, table) for table in results.plan.tables]


def _make_grid_table(results: Results, table: StudyTable) -> ResultTable:
    """Return a table with a row for each grid cell, and a sentence for each column."""
    jobs = find_row_jobs(table, results.jobs_by_step)
    ranges = _make_ranges(table.lengths) if table.lengths else {"": None}
    rows, names, values_by_row = [], [], []
    for job, (tokens, lengths) in itertools.product(jobs, ranges.items()):
        values = [
            results.compute_value(c, results.get_job(c.step, job.cell), lengths)
            for c in table.columns
        ]
        if not tokens or any(value and value.n for value in values):
            labels = [*job.cell.values(), *filter(None, [tokens])]
            rows.append((*labels, *values))
            names.append(_name_cell(job.cell) + (f" {tokens} tokens" if tokens else ""))
            values_by_row.append(values)
    sentences = []
    for k, column in enumerate(table.columns):
        values_by_name = {
            name: values[k] for name, values in zip(names, values_by_row, strict=True)
        }
        sentences.append(_describe_column(column, values_by_name))
    head = [*jobs[0].cell, *(["tokens"] if table.lengths else [])]
    return ResultTable(
        title=table.title,
        head=(*head, *(column.name for column in table.columns)),
        rows=tuple(rows),
        sentences=tuple(filter(None, sentences)),
    )


def _make_ranges(bounds: Sequence[int]) -> dict[str, range]:
    """Return the ranges of numbers of tokens between the bounds, by name.

    >>> _make_ranges([10, 20])
    {'1–9': range(1, 10), '10–19': range(10, 20), 'from 20': range(20, 9223372036854775807)}
    """
    bound_pairs = itertools.pairwise([1, *bounds])
    ranges = {f"{low}–{high - 1}": range(low, high) for low, high in bound_pairs if high > low}
    return {**ranges, f"from {bounds[-1]}": range(bounds[-1], sys.maxsize)}


def _name_cell(cell: Mapping[str, Scalar]) -> str:
    """Return a description of a grid cell.

    >>> _name_cell({"dataset": "sst", "encoder_size": 8})
    'sst encoder_size 8'
    """
    words = [
        str(v) if name in SELF_EXPLANATORY_LISTS else f"{name} {v}" for name, v in cell.items()
    ]
    return " ".join(words)


def _describe_column(column: StudyColumn, values: Mapping[str, Estimate | None]) -> str | None:
    """Return the statement of a column by its threshold, if it has a threshold and a value."""
    defined = {name: v for name, v in values.items() if v is not None and v.value == v.value}
    if not defined or column.threshold is None or column.means is None:
        return None
    statement = _compare_with_threshold(column.threshold, column.means, defined)
    return f"{column.name}: {statement}"


def _compare_with_threshold(threshold: float, means: str, values: Mapping[str, Estimate]) -> str:
    """List the cells whose whole interval lies above the threshold, below it, or neither.

    A value without an interval, or of too few texts, counts as neither.
    """
    rule = Rule("", "", "", partly=threshold, yes=threshold, source="")
    answers = {name: grade(value, rule) for name, value in values.items()}
    parts = [
        f"{means[:1].upper()}{means[1:]} (whole interval from {threshold:g} upwards) in "
        f"{[*answers.values()].count(Answer.YES)} of {len(values)}"
    ]
    groups = {
        Answer.YES: "yes",
        Answer.NO: "no",
        Answer.CANNOT_SAY: "cannot say",
    }
    for answer, group in groups.items():
        names = [name for name in answers if answers[name] == answer]
        if names:
            parts.append(f"{group}: {', '.join(names)}")
    return f"{'; '.join(parts)}."


# --- Tables of papers ----------------------------------------------------------------------------
# Each table contains our numbers and, for data sets of the paper, the published ones. It is made
# from the steps with the names that the studies of this package use. The texts of all tables are in
# ``papers.yaml``; the functions below return their rows.

Row = tuple[TableCell, ...]
"""A table row."""
TABLE_TEXTS = read_package_yaml(Path(__file__).with_name("papers.yaml"), Mapping[str, ResultTable])
"""Titles, heads and sentences of all tables, without rows."""


def _make_table(name: str, rows: Iterable[Row], *sentences_of_results: str | None) -> ResultTable:
    """Return a table with its texts from ``papers.yaml``.

    The sentences of the results come before those of the table.
    """
    words: ResultTable = TABLE_TEXTS[name]
    sentences = (*filter(None, sentences_of_results), *words.sentences)
    return replace(words, rows=tuple(rows), sentences=sentences)


# --- Jain & Wallace 2019, "Attention is not Explanation" -----------------------------------------

DIFFERENCE_STATISTICS = {
    "τ(g, loo) − τ(α, loo)": "leave_one_out_tau_difference",
    "τ(g, loo) − τ(α, g)": "gradient_tau_difference",
}
"""Statistics of the differences of τ, by their name in the table."""
RANKING_PAIRS = {
    "τ(α, g)": "attention_gradient",
    "τ(α, loo)": "attention_leave_one_out",
    "τ(g, loo)": "gradient_leave_one_out",
}
"""Prefixes of the statistics of a rank correlation, by its name in the table."""
ENCODER_DIFFERENCE = "τ(α, loo) of the average − of the BiLSTM"
"""Name of the difference of τ between two encoders."""


@dataclass(frozen=True)
class _TextGroup:
    """The texts of an audit with one predicted class, or all texts if the class is None."""

    job: Job
    predicted: int | None
    rows: pd.DataFrame
    classes: Sequence[str] = ()

    @property
    def encoder(self) -> str:
        """The encoder of the audited model."""
        return str(self.job.cell.get("encoder", "bilstm"))

    @property
    def table_labels(self) -> tuple[str, str, str]:
        """Data set, encoder and attention."""
        attention = str(self.job.cell.get("attention", "additive"))
        return get_dataset(self.job), self.encoder, attention

    def get_published(self, table: Mapping[str, Mapping[str, Any]], *keys: str) -> Any:
        """Return the published value for the class, or None if the paper has none."""
        return PublishedLookup(*self.table_labels).get_value(table, *keys, number=self.predicted)

    @property
    def displayed_class(self) -> TableCell:
        """The predicted class in a table, by its name if it has one."""
        if self.predicted is None:
            return "all"
        is_named = self.predicted < len(self.classes)
        return self.classes[self.predicted] if is_named else self.predicted

    def get_tau(self, pair: str) -> pd.Series | None:
        """Return τ of two rankings for each text, or None if they were not compared."""
        return self.rows.get(f"{pair}_tau")

    def compute_significant_share(self, pair: str) -> TableCell:
        """Return the share of texts with p ≤ .05 and τ of either sign, as the paper counts it."""
        return round(float((self.rows[f"{pair}_p_value"] <= 0.05).mean()), 3)


def make_jain_wallace_tables(results: Results) -> list[ResultTable]:
    """Return the tables about τ, adversaries and shuffling, by predicted class.

    Args:
        results: Study results.
    """
    all_texts = [
        _TextGroup(job, None, results.rows(job.folder)) for job in results.get_jobs("audit")
    ]
    groups = [part for group in all_texts for part in _divide_by_class(results, group)]
    return [
        _make_table("correlation", _make_correlation_rows(groups)),
        _make_table("overall", _make_overall_rows(all_texts)),
        _make_table("differences", _make_difference_rows(all_texts)),
        _make_table("adversarial", _make_adversarial_rows(results, groups)),
        _make_table("permutation", _make_permutation_rows(groups)),
    ]


def _divide_by_class(results: Results, all_texts: _TextGroup) -> list[_TextGroup]:
    """Divide the texts of an audit by predicted class, unless the paper does not do so."""
    if get_dataset(all_texts.job) in PUBLISHED.pooled:
        return [all_texts]
    classes = results.get_class_names(all_texts.job)
    by_class = all_texts.rows.dropna(subset="predicted_class").groupby("predicted_class")
    return [_TextGroup(all_texts.job, int(number), rows, classes) for number, rows in by_class]


def _make_correlation_rows(groups: Sequence[_TextGroup]) -> Iterator[Row]:
    """Yield τ with gradients and with leave-one-out, by predicted class."""
    for group, measure in itertools.product(groups, ("gradient", "leave_one_out")):
        pair = f"attention_{measure}"
        tau = group.get_tau(pair)
        if tau is not None:
            mean = compute_mean(tau)
            spread = round(tau.std(ddof=0), 3)
            significant = group.compute_significant_share(pair)
            paper = group.get_published(PUBLISHED.tau, measure, group.encoder) or (None,) * 3
            yield (
                *group.table_labels,
                measure,
                group.displayed_class,
                mean,
                spread,
                significant,
                *paper,
            )


def _make_overall_rows(all_texts: Sequence[_TextGroup]) -> Iterator[Row]:
    """Yield τ and the score over all texts of each audit, next to the authors' released reruns."""
    for group in all_texts:
        dataset, encoder, attention = group.table_labels
        dataset_reruns = PUBLISHED.reruns.get(dataset, {})
        reruns = dataset_reruns.get(encoder, {})
        *published_agreements, score = reruns.get(attention, (None,) * 4)
        measure, performance = _compute_performance(group.rows)
        yield *group.table_labels, measure, performance, None, score, None
        for (measure, pair), paper in zip(RANKING_PAIRS.items(), published_agreements, strict=True):
            tau = group.get_tau(pair)
            if tau is not None and f"{pair}_p_value" in group.rows:
                mean = compute_mean(tau)
                significant = group.compute_significant_share(pair)
                published = paper or (None, None)
                yield *group.table_labels, measure, mean, significant, *published


def _compute_performance(rows: pd.DataFrame) -> tuple[str, TableCell]:
    """Return F1 of class 1 if there are two classes, else accuracy."""
    labelled = rows[rows.label >= 0]
    predicted = labelled.predicted_class.to_numpy(dtype=int)
    if not {*labelled.label, *predicted} <= {0, 1}:
        return "accuracy", compute_mean(labelled.accuracy)
    scores = compute_metrics(labelled.label.to_numpy(dtype=int), np.eye(2)[predicted])
    return "F1", round_number(scores["f1"])


def _make_difference_rows(all_texts: Sequence[_TextGroup]) -> Iterator[Row]:
    """Yield the differences of τ within texts (Figures 3, 4 and 5 of the paper)."""
    for group in all_texts:
        for figure, statistic in DIFFERENCE_STATISTICS.items():
            if statistic in group.rows:
                name = f"{figure}, {group.encoder}"
                yield _make_difference_row(group, name, statistic, group.rows[statistic])
    for average, bilstm in itertools.product(all_texts, all_texts):
        bilstm_cell = {**average.job.cell, "encoder": "bilstm"}
        if average.encoder == "mlp" and bilstm.job.cell == bilstm_cell:
            average_tau = average.get_tau("attention_leave_one_out")
            bilstm_tau = bilstm.get_tau("attention_leave_one_out")
            if average_tau is not None and bilstm_tau is not None:
                # The subtraction aligns the texts by their example ids.
                differences = average_tau - bilstm_tau
                yield _make_difference_row(
                    bilstm, ENCODER_DIFFERENCE, "encoder_difference", differences
                )


def _make_difference_row(
    group: _TextGroup, name: str, statistic: str, differences: pd.Series
) -> Row:
    """Return a difference of τ, with the published average for BiLSTMs with additive attention."""
    dataset, encoder, attention = group.table_labels
    is_published_model = (attention, encoder) == ("additive", "bilstm")
    paper = PUBLISHED.tau_differences[statistic] if is_published_model else None
    differences = differences.dropna()
    is_positive = compute_mean((differences > 0).astype(float))
    return (
        dataset,
        attention,
        name,
        compute_mean(differences),
        compute_median(differences),
        is_positive,
        paper,
    )


def _make_adversarial_rows(results: Results, groups: Sequence[_TextGroup]) -> Iterator[Row]:
    """Yield the largest JSD within ε, by search and exactly."""
    column = "epsilon_max_jsd@0.05"
    for group in groups:
        search = results.rows(results.get_job("search", group.job.cell).folder)
        searched = compute_median(search.reindex(group.rows.index)[column])
        paper = group.get_published(PUBLISHED.epsilon_max_jsd, group.encoder)
        yield (
            *group.table_labels,
            group.displayed_class,
            searched,
            _compute_exact_median(group.rows, column),
            paper,
        )


def _compute_exact_median(rows: pd.DataFrame, column: str) -> TableCell:
    """Return the median, or None unless the exact value is known for every text of the audit."""
    exact = rows.get("epsilon_max_jsd_exact")
    if column not in rows or exact is None or not (exact == 1).all():
        return None
    return compute_median(rows[column])


def _make_permutation_rows(groups: Sequence[_TextGroup]) -> Iterator[Row]:
    """Yield the output change by shuffled weights, in bins of the largest weight."""
    bins = list(zip(list_bin_names(), itertools.pairwise(ATTENTION_BINS), strict=True))
    for group, (name, (low, high)) in itertools.product(groups, bins):
        largest = group.rows.max_attention
        is_last = high == 1.0
        is_in_bin = (largest >= low) & ((largest < high) | is_last)
        if is_in_bin.any():
            bracket = "]" if is_last else ")"
            weights = f"[{low:g}, {high:g}{bracket}"
            bin_rows = group.rows[is_in_bin]
            median = compute_median(bin_rows.median_tvd)
            paper = group.get_published(PUBLISHED.permutation, group.encoder, name)
            yield *group.table_labels, group.displayed_class, weights, median, paper


# --- Serrano & Smith 2019, "Is Attention Interpretable?" -----------------------------------------

ERASURE_ORDERS = ("random", "attention", "gradient", "product", "least_attention")
"""Orders in which weights are erased."""
POOLED_SUFFIX = ", pooled"
"""Suffix for statistics over all random orders of all texts."""


def make_serrano_smith_tables(results: Results) -> list[ResultTable]:
    """Return the tables about the number of erased weights and about single weights.

    Args:
        results: Study results.
    """
    audits = [(_get_labels(job), results.rows(job.folder)) for job in results.get_jobs("audit")]
    return [
        _make_table("fractions", _make_fraction_rows(audits)),
        _make_table("single_weights", _make_single_weight_rows(audits)),
    ]


Audits = Sequence[tuple[tuple[str, str, str], pd.DataFrame]]
"""Labels (data set, architecture, encoder) and statistics of each audit."""


def _get_labels(job: Job) -> tuple[str, str, str]:
    """Return data set, the paper's name for the architecture, and encoder."""
    model = "HAN" if job.cell.get("hierarchical") else "FLAN"
    return get_dataset(job), model, str(job.cell.get("encoder", "bigru"))


def _make_fraction_rows(audits: Audits) -> Iterator[Row]:
    """Yield the share of erased weights, on the texts that some set of weights flips."""
    for (name, model, encoder), rows in audits:
        published = PUBLISHED.fraction_to_flip if model == "FLAN" else {}
        nearest = PUBLISHED.nearest.get(name, name)
        published_medians = published.get(nearest, {}).get(encoder, {})
        for order, *values in _make_order_cells(rows):
            paper = published_medians.get(order.removesuffix(POOLED_SUFFIX))
            yield name, model, encoder, order, *values, paper


def _make_single_weight_rows(audits: Audits) -> Iterator[Row]:
    """Yield the effect of a single weight, by the size of the weight."""
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
    """Yield the order, the median share of erased tokens, and further numbers of each order.

    The further numbers are the share of texts that the order never flips, and its score between the
    random and the best order.
    """
    for ranking in ERASURE_ORDERS:
        erased, never = f"fraction_to_flip@{ranking}", f"never_flips@{ranking}"
        if erased in rows:
            position = rows.get(f"way_to_best@{ranking}")
            mean_position = None if position is None else compute_mean(position)
            yield (
                ranking,
                compute_median(rows[erased]),
                compute_mean(rows[never]),
                mean_position,
            )
        draws = rows.filter(regex=f"^{erased}_")
        if len(draws.columns):
            # The pooled statistics are over the random orders of all texts.
            shares = pd.Series(draws.to_numpy().ravel())
            never_by_text = rows.filter(regex=f"^{never}_").mean(axis=1)
            yield ranking + POOLED_SUFFIX, compute_median(shares), compute_mean(never_by_text), None
    if "minimal_fraction" in rows:
        yield "smallest set", compute_median(rows["minimal_fraction"]), None, None


# --- Tutek & Šnajder 2020, "Staying True to Your Word" -------------------------------------------


def make_tutek_snajder_tables(results: Results) -> list[ResultTable]:
    """Return the tables about the change of F1 under other attention, and about adversaries.

    Args:
        results: Study results.
    """
    adversary_table = _make_table("harder", _make_adversary_rows(results))
    return [
        _make_table("changes", map(partial(_make_change_row, results), results.get_jobs("audit"))),
        adversary_table if adversary_table.rows else replace(adversary_table, sentences=()),
    ]


def _get_model_labels(job: Job) -> tuple[str, str, str]:
    """Return data set, attention and regulariser of a model."""
    return get_dataset(job), str(job.cell["attention"]), str(job.cell["model"])


def _make_change_row(results: Results, job: Job) -> Row:
    """Return F1 of a model and its changes under other attention."""
    dataset, attention, name = _get_model_labels(job)
    regularised = PUBLISHED.regularised.get(dataset, {}).get(attention, {})
    published = regularised.get(name, (None, None, None))
    changes = compute_f1_changes(results.rows(job.folder), seed=job.arguments["seed"])
    return dataset, attention, name, *changes, *published


def compute_f1_changes(texts: pd.DataFrame, *, seed: int = 0) -> list[Estimate]:
    """Compute F1 with trained attention, and its changes under uniform and permuted attention.

    All three are in points (100 is the maximum) and use the same resamples of the labelled texts.
    F1 is that of class 1 for two classes, else the mean over classes. For several permutations, it
    is computed from the sum of their counts.

    Args:
        texts: Statistics of an audit with the test ``fragility``, one per column.
        seed: Seed for the bootstrap.
    """
    labelled = texts[texts.label >= 0]
    labels = labelled.label.to_numpy(dtype=int)
    counts = prepend_full_sample(draw_resample_counts(len(labels), seed=seed))
    n_classes = len(labelled.filter(like="trained_share@").columns)

    def f1(attention: str) -> np.ndarray:
        shares = labelled[[f"{attention}_share@{k}" for k in range(n_classes)]].to_numpy()
        return 100 * compute_weighted_metrics(labels, shares, counts)["f1"]

    trained = f1("trained")
    changes = [f1(attention) - trained for attention in ("uniform", "permuted")]
    return [estimate_from_resamples(values, len(labels)) for values in (trained, *changes)]


def _make_adversary_rows(results: Results) -> Iterator[Row]:
    """Yield JSD, TVD and F1 of every adversary."""
    for job in results.get_jobs("adversaries"):
        report = results.retraining(job.folder)
        for point in compute_points(report.statistics, report.scores):
            if point.series == ADVERSARY_SERIES:
                values = point.jsd.value, point.tvd.value, point.f1
                yield *_get_model_labels(job), point.name, *map(round_number, values)


# --- Wiegreffe & Pinter 2019, "Attention is not not Explanation" ---------------------------------

PUBLISHED_NOTE = (
    "λ and TVD of the published adversary are twice the printed values, because the authors' code "
    "uses half of the total variation distance."
)
"""Note about the scale of the published adversary."""
GUIDES = ("uniform guide", "trained guide", "base guide", "adversary guide")
"""Models of the test ``diagnostic_mlp``, in the order of the table."""


def make_wiegreffe_pinter_tables(results: Results) -> list[ResultTable]:
    """Return the tables about uniform attention, seeds, guides and adversaries.

    Args:
        results: Study results.
    """
    jobs = results.get_jobs("retrained")
    retrained = [(get_dataset(job), results.retraining(job.folder)) for job in jobs]
    return [
        _make_answered_table("uniform", "need", retrained, _make_uniform_rows),
        _make_answered_table("seeds", "chance", retrained, _make_seed_rows),
        _make_answered_table("guides", "transfer", retrained, _make_guide_rows),
        *(_make_adversary_table(dataset, report) for dataset, report in retrained),
    ]


def _make_answered_table(
    name: str,
    question: str,
    retrained: Sequence[tuple[str, RetrainingReport]],
    rows_of: Callable[[str, RetrainingReport], Iterable[Row]],
) -> ResultTable:
    """Return a table for all data sets, with the answers of the verdicts to one question."""
    answers = [(dataset, report.verdict.sentence(question)) for dataset, report in retrained]
    sentences = [f"{dataset}: {answer}" for dataset, answer in answers if answer]
    rows = [row for dataset, report in retrained for row in rows_of(dataset, report)]
    return _make_table(name, rows, *sentences)


def _list_f1_cells(
    report: RetrainingReport,
    test: str,
    models: Sequence[str],
    published: Mapping[str, float],
) -> Iterator[tuple[str, Estimate, Estimate | None, float | None]]:
    """Yield the name, F1, loss of F1 and published F1 of every model."""
    for model in models:
        score = find_score(report.scores.get(test, ()), model)
        if score is not None:
            loss = None if model == score.reference else score.lost
            yield model, score.plain_estimate, loss, published.get(model)


def _make_uniform_rows(dataset: str, report: RetrainingReport) -> Iterator[Row]:
    """Yield F1 of the base model and of the model with uniform attention."""
    published = PUBLISHED.uniform.get(dataset, {})
    for model, *cells in _list_f1_cells(report, "uniform", ("base", "uniform"), published):
        reported = PUBLISHED.reported.get(dataset) if model == "base" else None
        yield dataset, model, *cells, reported


def _make_seed_rows(dataset: str, report: RetrainingReport) -> Iterator[Row]:
    """Yield the change of the attention with another seed, in bins of the largest weight."""
    for weights, predicted, n, median in report.bins:
        published = PUBLISHED.seed_jsd.get(dataset)
        yield dataset, weights, predicted, Estimate(median, None, n), published


def _make_guide_rows(dataset: str, report: RetrainingReport) -> Iterator[Row]:
    """Yield F1 of the model without context, for each guide."""
    published = PUBLISHED.diagnostic_mlp.get(dataset, {})
    for model, *cells in _list_f1_cells(report, "diagnostic_mlp", GUIDES, published):
        yield dataset, model.removesuffix(" guide"), *cells


def _make_adversary_table(dataset: str, report: RetrainingReport) -> ResultTable:
    """Return the curve of all values of λ as a table."""
    published = PUBLISHED.adversary.get(dataset)
    rows: list[Row] = [
        (p.name, *map(round_number, (p.jsd.value, p.displayed_change, p.f1)))
        for p in compute_points(report.statistics, report.scores)
        if p.name
    ]
    if published is not None:
        name = f"published, λ {published['lambda']:g} (in our scale)"
        rows.append((name, published["jsd"], published["tvd"], published["f1"]))
    table = _make_table(
        "adversaries",
        rows,
        report.verdict.sentence("elsewhere"),
        ADVERSARY_SERIES,
        FRONTIER_NOTE,
        PUBLISHED_NOTE if published else None,
    )
    return replace(table, title=table.title.format(dataset=dataset))


# --- All papers ----------------------------------------------------------------------------------

TABLE_MAKERS = {
    "jain-wallace": make_jain_wallace_tables,
    "serrano-smith": make_serrano_smith_tables,
    "wiegreffe-pinter": make_wiegreffe_pinter_tables,
    "tutek-snajder": make_tutek_snajder_tables,
}
"""Functions that return the tables of a paper, by its key."""


def make_paper_tables(results: Results) -> list[ResultTable]:
    """Return the tables of the study's paper, or an empty list if its numbers are not available.

    Args:
        results: Study results.
    """
    tables = TABLE_MAKERS.get(results.plan.paper or "")
    return tables(results) if tables else []
