"""Results of a study's steps, read from their folders, and tables made of them."""

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
from hf_attnprobe.core.serialization import from_plain, read_json, read_packaged
from hf_attnprobe.retraining.deception import SUMMARY as DECEPTION
from hf_attnprobe.retraining.report import RetrainingReport, read_retraining
from hf_attnprobe.retraining.verdict import (
    ADVERSARY,
    FRONTIER_NOTE,
    points_of,
)
from hf_attnprobe.statistics.estimates import (
    Estimate,
    mean_estimate,
    resample_counts,
)
from hf_attnprobe.statistics.grades import Answer, Rule, grade
from hf_attnprobe.statistics.scores import (
    Score,
    find_score,
    metrics,
    resampled_estimate,
    weighted_metrics,
    with_all_texts,
)
from hf_attnprobe.statistics.summary import (
    ATTENTION_BINS,
    PREDICTION,
    bin_names,
    is_right,
    js_by_gap,
)
from hf_attnprobe.storage.provenance import SUMMARY
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.studies.published import PUBLISHED, Published
from hf_attnprobe.studies.steps import (
    Column,
    Job,
    Scalar,
    Steps,
    Table,
    jobs_of_rows,
    name_of,
)


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
    rows: tuple[tuple[Cell, ...], ...] = ()
    sentences: tuple[str, ...] = ()


OF_DECEPTION = {
    "mass": "masses",
    "moved": "moved",
    "control": "control",
    "beyond": "beyond",
}
"""By metric the numbers of a deception that are no scores."""


class AuditSummary(TypedDict):
    """What tables read of an audit's summary; there is more."""

    provenance: dict[str, Any]
    accuracy: dict[str, Any] | None


class Results:
    """Reads the folders of a study whose steps have run, each once."""

    def __init__(self, plan: Steps, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.by_step = plan.by_step
        self.rows = cache(self._rows)
        self.retraining = cache(lambda name: read_retraining(folder / name))

    def jobs(self, step: str) -> list[Job]:
        """Jobs of a step; none if the study has no such step."""
        return self.by_step.get(step, [])

    def at(self, step: str, cell: Mapping[str, Scalar]) -> Job:
        """The job of a step at a cell of the grid."""
        return next(job for job in self.by_step[step] if job.is_at(cell))

    def _rows(self, folder: str) -> pd.DataFrame:
        """Returns the statistics of an audit of one head, [texts, statistics], with accuracy."""
        rows = read_rows(self.folder / folder / "rows")
        of_heads = (rows.layer >= 0) & (rows["head"] >= 0)
        heads = rows.loc[of_heads, ["layer", "head"]].drop_duplicates()
        if len(heads) > 1:
            raise AttnProbeError(
                f"expected the audit of one head for a column of a table, {folder} has "
                f"{len(heads)}; choose one by layers and heads in the step"
            )
        rows = rows[of_heads | (rows.test == PREDICTION)]  # no groups of heads
        rows = rows.drop_duplicates(["example_id", "statistic"])
        wide = rows.pivot(index="example_id", columns="statistic", values="value")
        if {"label", "predicted_class"} <= set(wide):
            wide["accuracy"] = is_right(wide)
        return wide

    def read_json(self, job: Job, name: str, kind: Any = dict[str, Any]) -> Any:
        """Reads a JSON file in a job's folder, as a value of a type.

        Raises:
            AttnProbeError: it cannot be read.
        """
        file = self.folder / job.folder / name
        again = f"delete {file.parent} and run attnprobe study again"
        return read_json(file, kind, again)

    def record(self, folder: str) -> dict[str, Any]:
        """The record of a training; empty where nothing was trained."""
        return read_record(self.folder / folder)

    def value(self, column: Column, job: Job, lengths: range | None) -> Estimate | None:
        """A column's value for a job.

        Args:
            column: a statistic of texts or a score.
            job: a job of the column's step.
            lengths: numbers of tokens, to take the mean of a statistic over such texts only.

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
        if lengths is not None:
            values = values[rows.n_tokens.between(lengths.start, lengths.stop, "left")]
        return mean_of(values)

    def _score(self, name: str, difference: bool, job: Job) -> Estimate | None:
        test, model, metric = name.split("/")
        if job.verb == "deceive":
            found = self.read_json(job, DECEPTION)
            if metric in OF_DECEPTION:
                number = found[OF_DECEPTION[metric]].get(model)
                return from_plain(Estimate | None, number)
            scores = from_plain(tuple[Score, ...], found["scores"])
        else:
            scores = self.retraining(job.folder).scores.get(test, ())
        score = find_score(scores, model, metric)
        if score is None:
            return None
        return score.lost if difference else score.bare

    def _summary(self, job: Job) -> AuditSummary:
        return self.read_json(job, SUMMARY, AuditSummary)

    def classes(self, job: Job) -> list[str]:
        """Names of an audited model's classes; none for other models."""
        prediction = self._summary(job)["provenance"].get("prediction") or {}
        return prediction["outcomes"] if prediction.get("kind") == "classes" else []

    def at_chance(self) -> list[str]:
        """Audited models not shown to be better than always predicting the most frequent class."""
        audits = [job for job in self.plan.jobs if job.verb == "audit"]
        found = {job.folder: self._summary(job)["accuracy"] for job in audits}
        unsure = ("no", "cannot say")
        return [name for name, found in found.items() if found and found["answer"] in unsure]


def ratio(rows: pd.DataFrame, statistic: str) -> pd.Series | None:
    """Values of a statistic, or of a ratio of two, written ``a/b``.

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
    """Mean over the texts with a value, with its interval."""
    return mean_estimate(values.to_numpy(dtype=np.float64))


def median_of(values: pd.Series) -> Estimate:
    """Median over the texts with a value."""
    return Estimate(float(values.median()), None, int(values.notna().sum()))


def dataset_of(job: Job) -> str:
    """The name by which the study knows a job's data set."""
    return str(job.cell.get("dataset") or name_of(job.arguments["dataset"]))


# --- The tables of a grid: a row for each cell, a sentence for each column -----------------------

SPEAKING = (
    "dataset",
    "encoder",
    "attention",
)  # lists whose values need no name beside


def grid_tables(results: Results) -> list[ResultTable]:
    """All tables that the study adds, with a row for each cell of the grid."""
    return [_grid_table(results, table) for table in results.plan.tables]


def _grid_table(results: Results, table: Table) -> ResultTable:
    jobs = jobs_of_rows(table, results.by_step)
    ranges = _ranges(table.lengths) if table.lengths else {"": None}
    rows, names, found = [], [], []
    for job, (tokens, lengths) in itertools.product(jobs, ranges.items()):
        values = [results.value(c, results.at(c.step, job.cell), lengths) for c in table.columns]
        if not tokens or any(value and value.n for value in values):
            labels = [*job.cell.values(), *filter(None, [tokens])]
            rows.append((*labels, *values))
            names.append(_cell_name(job.cell) + (f" {tokens} tokens" if tokens else ""))
            found.append(values)
    said = [
        _sentence(column, dict(zip(names, of_column, strict=True)))
        for column, of_column in zip(table.columns, zip(*found, strict=True), strict=False)
    ]
    head = [*jobs[0].cell, *(["tokens"] if table.lengths else [])]
    return ResultTable(
        title=table.title,
        head=(*head, *(column.name for column in table.columns)),
        rows=tuple(rows),
        sentences=tuple(filter(None, said)),
    )


def _ranges(bounds: Sequence[int]) -> dict[str, range]:
    """Ranges of numbers of tokens between the bounds, by name.

    >>> _ranges([10, 20])
    {'1–9': range(1, 10), '10–19': range(10, 20), 'from 20': range(20, 9223372036854775807)}
    """
    between = itertools.pairwise([1, *bounds])
    named = {f"{low}–{high - 1}": range(low, high) for low, high in between if high > low}
    return {**named, f"from {bounds[-1]}": range(bounds[-1], sys.maxsize)}


def _cell_name(cell: Mapping[str, Scalar]) -> str:
    """A cell of the grid in words.

    >>> _cell_name({"dataset": "sst", "encoder_size": 8})
    'sst encoder_size 8'
    """
    words = [str(v) if name in SPEAKING else f"{name} {v}" for name, v in cell.items()]
    return " ".join(words)


def _sentence(column: Column, values: Mapping[str, Estimate | None]) -> str | None:
    """What a column means by its threshold; None without one, or without a value."""
    defined = {name: v for name, v in values.items() if v is not None and v.value == v.value}
    if not defined or column.threshold is None or column.means is None:
        return None
    said = _against_threshold(column.threshold, column.means, defined)
    return f"{column.name}: {said}"


def _against_threshold(threshold: float, means: str, values: Mapping[str, Estimate]) -> str:
    """Says where the whole interval is above the threshold, where below, where neither.

    Without an interval, or of too few texts, nothing can be said.
    """
    rule = Rule("", "", "", partly=threshold, yes=threshold, source="")
    answers = {name: grade(value, rule) for name, value in values.items()}
    parts = [
        f"{means[:1].upper()}{means[1:]} (from {threshold:g}, the whole interval) "
        f"in {[*answers.values()].count(Answer.YES)} of {len(values)}"
    ]
    groups = {
        Answer.YES: "there",
        Answer.NO: "not",
        Answer.CANNOT_SAY: "cannot say",
    }
    for answer, group in groups.items():
        names = [name for name in answers if answers[name] == answer]
        if names:
            parts.append(f"{group}: {', '.join(names)}")
    return f"{'; '.join(parts)}."


# --- The tables of papers: our numbers, and the published ones where the data set is theirs ------
# The tables are made of the steps with the names that the studies of the package use. Their
# words stand in ``papers.yaml``; a function here gives the rows of one table.

Row = tuple[Cell, ...]
WORDED = read_packaged(Path(__file__).with_name("papers.yaml"), Mapping[str, ResultTable])
"""The tables without rows, by the name of the function that gives these."""


def _table(name: str, rows: Iterable[Row], *said: str | None) -> ResultTable:
    """A table of rows, with further sentences before those that it always has."""
    words: ResultTable = WORDED[name]
    sentences = (*filter(None, said), *words.sentences)
    return replace(words, rows=tuple(rows), sentences=sentences)


# --- Jain & Wallace 2019, "Attention is not Explanation" -----------------------------------------

FIGURES = {
    "τ(g, loo) − τ(α, loo)": "leave_one_out_tau_difference",
    "τ(g, loo) − τ(α, g)": "gradient_tau_difference",
}
PAIRS = {
    "τ(α, g)": "attention_gradient",
    "τ(α, loo)": "attention_leave_one_out",
    "τ(g, loo)": "gradient_leave_one_out",
}
BETWEEN = "τ(α, loo) of the average − of the BiLSTM"


@dataclass(frozen=True)
class _Group:
    """The texts of an audit with one predicted class; all texts if it is None."""

    job: Job
    predicted: int | None
    rows: pd.DataFrame
    classes: Sequence[str] = ()

    @property
    def encoder(self) -> str:
        return str(self.job.cell.get("encoder", "bilstm"))

    @property
    def labels(self) -> tuple[str, str, str]:
        """Data set, encoder and attention."""
        attention = str(self.job.cell.get("attention", "additive"))
        return dataset_of(self.job), self.encoder, attention

    def published(self, table: Mapping[str, Mapping[str, Any]], *keys: str) -> Any:
        """The published value for the class; None where the paper has none."""
        return Published(*self.labels).of_class(table, *keys, number=self.predicted)

    @property
    def shown(self) -> Cell:
        """The predicted class in a table, by its name where it has one."""
        if self.predicted is None:
            return "all"
        is_named = self.predicted < len(self.classes)
        return self.classes[self.predicted] if is_named else self.predicted

    def tau(self, pair: str) -> pd.Series | None:
        """τ of two rankings in each text; None where they were not compared."""
        return self.rows.get(f"{pair}_tau")

    def significant(self, pair: str) -> Cell:
        """The share of texts with p ≤ .05, of either sign; ours counts agreement only."""
        return round(float((self.rows[f"{pair}_p_value"] <= 0.05).mean()), 3)


def jain_wallace_tables(results: Results) -> list[ResultTable]:
    """τ with gradients and leave-one-out, adversaries, and shuffling, by predicted class."""
    whole = [_Group(job, None, results.rows(job.folder)) for job in results.jobs("audit")]
    groups = [part for group in whole for part in _by_class(results, group)]
    return [
        _table("correlation", _correlations(groups)),
        _table("overall", _overall(whole)),
        _table("differences", _differences(whole)),
        _table("adversarial", _adversarial(results, groups)),
        _table("permutation", _permutation(groups)),
    ]


def _by_class(results: Results, whole: _Group) -> list[_Group]:
    if dataset_of(whole.job) in PUBLISHED.pooled:
        return [whole]
    classes = results.classes(whole.job)
    by_class = whole.rows.dropna(subset="predicted_class").groupby("predicted_class")
    return [_Group(whole.job, int(number), rows, classes) for number, rows in by_class]


def _correlations(groups: Sequence[_Group]) -> Iterator[Row]:
    for group, measure in itertools.product(groups, ("gradient", "leave_one_out")):
        pair = f"attention_{measure}"
        tau = group.tau(pair)
        if tau is not None:
            mean = mean_of(tau)
            spread = round(tau.std(ddof=0), 3)
            significant = group.significant(pair)
            paper = group.published(PUBLISHED.tau, measure, group.encoder) or (None,) * 3
            yield (
                *group.labels,
                measure,
                group.shown,
                mean,
                spread,
                significant,
                *paper,
            )


def _overall(whole: Sequence[_Group]) -> Iterator[Row]:
    """All texts of an audit; the authors' released reruns do not divide them either."""
    for group in whole:
        dataset, encoder, attention = group.labels
        of_dataset = PUBLISHED.reruns.get(dataset, {})
        reruns = of_dataset.get(encoder, {})
        *theirs, score = reruns.get(attention, (None,) * 4)
        measure, ours = _performance(group.rows)
        yield *group.labels, measure, ours, None, score, None
        for (measure, pair), paper in zip(PAIRS.items(), theirs, strict=True):
            tau = group.tau(pair)
            if tau is not None and f"{pair}_p_value" in group.rows:
                mean = mean_of(tau)
                significant = group.significant(pair)
                published = paper or (None, None)
                yield *group.labels, measure, mean, significant, *published


def _performance(rows: pd.DataFrame) -> tuple[str, Cell]:
    """Returns F1 of class 1 where there are two classes, else accuracy."""
    known = rows[rows.label >= 0]
    predicted = known.predicted_class.to_numpy(dtype=int)
    if not {*known.label, *predicted} <= {0, 1}:
        return "accuracy", mean_of(known.accuracy)
    found = metrics(known.label.to_numpy(dtype=int), np.eye(2)[predicted])
    return "F1", rounded(found["f1"])


def _differences(whole: Sequence[_Group]) -> Iterator[Row]:
    """Figures 3, 4 and 5 of the paper: differences of τ within texts."""
    for group in whole:
        for figure, statistic in FIGURES.items():
            if statistic in group.rows:
                name = f"{figure}, {group.encoder}"
                yield _difference(group, name, statistic, group.rows[statistic])
    for average, bilstm in itertools.product(whole, whole):
        if average.encoder == "mlp" and bilstm.job.cell == {
            **average.job.cell,
            "encoder": "bilstm",
        }:
            taus = [one.tau("attention_leave_one_out") for one in (average, bilstm)]
            if taus[0] is not None and taus[1] is not None:
                texts = taus[0] - taus[1]  # by example id
                yield _difference(bilstm, BETWEEN, "encoder_difference", texts)


def _difference(group: _Group, name: str, statistic: str, texts: pd.Series) -> Row:
    """Published averages stand beside BiLSTMs with additive attention."""
    dataset, encoder, attention = group.labels
    is_theirs = (attention, encoder) == ("additive", "bilstm")
    paper = PUBLISHED.tau_differences[statistic] if is_theirs else None
    texts = texts.dropna()
    above = mean_of((texts > 0).astype(float))
    return (
        dataset,
        attention,
        name,
        mean_of(texts),
        median_of(texts),
        above,
        paper,
    )


def _adversarial(results: Results, groups: Sequence[_Group]) -> Iterator[Row]:
    column = "epsilon_max_jsd@0.05"
    for group in groups:
        search = results.rows(results.at("search", group.job.cell).folder)
        searched = median_of(search.reindex(group.rows.index)[column])
        paper = group.published(PUBLISHED.epsilon_max_jsd, group.encoder)
        yield (
            *group.labels,
            group.shown,
            searched,
            _exactly(group.rows, column),
            paper,
        )


def _exactly(rows: pd.DataFrame, column: str) -> Cell:
    """The median, if the farthest attention is known for every text of the audit."""
    exact = rows.get("epsilon_max_jsd_exact")
    if column not in rows or exact is None or not (exact == 1).all():
        return None
    return median_of(rows[column])


def _permutation(groups: Sequence[_Group]) -> Iterator[Row]:
    bins = list(zip(bin_names(), itertools.pairwise(ATTENTION_BINS), strict=True))
    for group, (name, (low, high)) in itertools.product(groups, bins):
        largest = group.rows.max_attention
        is_last = high == 1.0
        inside = (largest >= low) & ((largest < high) | is_last)
        if inside.any():
            bracket = "]" if is_last else ")"
            weights = f"[{low:g}, {high:g}{bracket}"
            own = group.rows[inside]
            median = median_of(own.median_tvd)
            paper = group.published(PUBLISHED.permutation, group.encoder, name)
            yield *group.labels, group.shown, weights, median, paper


# --- Serrano & Smith 2019, "Is Attention Interpretable?" -----------------------------------------

RANKINGS = ("random", "attention", "gradient", "product", "least_attention")
POOLED = ", pooled"


def serrano_smith_tables(results: Results) -> list[ResultTable]:
    """Weights erased before the decision flips, by ranking, and single ones by size."""
    audits = [(_labels(job), results.rows(job.folder)) for job in results.jobs("audit")]
    return [
        _table("fractions", _fractions(audits)),
        _table("single_weights", _single_weights(audits)),
    ]


Audits = Sequence[tuple[tuple[str, str, str], pd.DataFrame]]
"""Of each audit data set, architecture and encoder, and its rows."""


def _labels(job: Job) -> tuple[str, str, str]:
    """Data set, the paper's name for the architecture, and encoder."""
    model = "HAN" if job.cell.get("hierarchical") else "FLAN"
    return dataset_of(job), model, str(job.cell.get("encoder", "bigru"))


def _fractions(audits: Audits) -> Iterator[Row]:
    """Yields the share of the weights erased, on the texts that some set of weights flips."""
    for (name, model, encoder), rows in audits:
        flat = PUBLISHED.fraction_to_flip if model == "FLAN" else {}
        nearest = PUBLISHED.nearest.get(name, name)
        theirs = flat.get(nearest, {}).get(encoder, {})
        for order, *values in _orders(rows):
            paper = theirs.get(order.removesuffix(POOLED))
            yield name, model, encoder, order, *values, paper


def _single_weights(audits: Audits) -> Iterator[Row]:
    for labels, rows in audits:
        if "delta_js" in rows:
            for texts in js_by_gap(rows.delta_attention, rows.delta_js):
                # Medians lie between 1e-5 and .4: two digits, not two places.
                median = float(f"{texts.median:.2g}")
                yield (
                    *labels,
                    texts.name,
                    texts.n,
                    median,
                    rounded(texts.negative),
                )


def _orders(rows: pd.DataFrame) -> Iterator[tuple[str, Cell, Cell, Cell]]:
    """Order of erasure, median share erased, share never flipped, score up to the best."""
    for ranking in RANKINGS:
        erased, never = f"fraction_to_flip@{ranking}", f"never_flips@{ranking}"
        if erased in rows:
            way = rows.get(f"way_to_best@{ranking}")
            mean_way = None if way is None else mean_of(way)
            yield (
                ranking,
                median_of(rows[erased]),
                mean_of(rows[never]),
                mean_way,
            )
        draws = rows.filter(regex=f"^{erased}_")
        if len(draws.columns):  # over the random orders of all texts
            shares = pd.Series(draws.to_numpy().ravel())
            of_texts = rows.filter(regex=f"^{never}_").mean(axis=1)
            yield ranking + POOLED, median_of(shares), mean_of(of_texts), None
    if "minimal_fraction" in rows:
        yield "smallest set", median_of(rows["minimal_fraction"]), None, None


# --- Tutek & Šnajder 2020, "Staying True to Your Word" -------------------------------------------


def tutek_snajder_tables(results: Results) -> list[ResultTable]:
    """Change of F1 under other attention, and how far adversaries go."""
    harder = _table("harder", _harder(results))
    return [
        _table("changes", map(partial(_change, results), results.jobs("audit"))),
        harder if harder.rows else replace(harder, sentences=()),
    ]


def _regularised(job: Job) -> tuple[str, str, str]:
    """Data set, attention and how a model is regularised."""
    return dataset_of(job), str(job.cell["attention"]), str(job.cell["model"])


def _change(results: Results, job: Job) -> Row:
    dataset, attention, name = _regularised(job)
    regularised = PUBLISHED.regularised.get(dataset, {}).get(attention, {})
    theirs = regularised.get(name, (None, None, None))
    ours = f1_by_attention(results.rows(job.folder), seed=job.arguments["seed"])
    return dataset, attention, name, *ours, *theirs


def f1_by_attention(texts: pd.DataFrame, *, seed: int = 0) -> list[Estimate]:
    """Returns F1 with trained attention, and its changes under uniform and permuted attention.

    All in points and of the same resamples of the labelled texts. F1 is that of class 1 for two
    classes, else the mean over classes; of several permutations that of their counts together.

    Args:
        texts: of an audit with the test ``fragility``, a statistic per column.
        seed: of the bootstrap.
    """
    labelled = texts[texts.label >= 0]
    labels = labelled.label.to_numpy(dtype=int)
    counts = with_all_texts(resample_counts(len(labels), seed=seed))
    n_classes = len(labelled.filter(like="trained_share@").columns)

    def f1(attention: str) -> np.ndarray:
        shares = labelled[[f"{attention}_share@{k}" for k in range(n_classes)]].to_numpy()
        return 100 * weighted_metrics(labels, shares, counts)["f1"]

    trained = f1("trained")
    changes = [f1(attention) - trained for attention in ("uniform", "permuted")]
    return [resampled_estimate(values, len(labels)) for values in (trained, *changes)]


def _harder(results: Results) -> Iterator[Row]:
    for job in results.jobs("adversaries"):
        report = results.retraining(job.folder)
        for point in points_of(report.statistics, report.scores):
            if point.series == ADVERSARY:
                values = point.jsd.value, point.tvd.value, point.f1
                yield *_regularised(job), point.name, *map(rounded, values)


# --- Wiegreffe & Pinter 2019, "Attention is not not Explanation" ---------------------------------

PUBLISHED_NOTE = (
    "λ and TVD of the published adversary are twice the printed ones: by our reading "
    "of the authors' code, theirs is half of the total variation of the two classes."
)
GUIDES = ("uniform guide", "trained guide", "base guide", "adversary guide")


def wiegreffe_pinter_tables(results: Results) -> list[ResultTable]:
    """Uniform attention, seeds, guides, and adversaries."""
    jobs = results.jobs("retrained")
    retrained = [(dataset_of(job), results.retraining(job.folder)) for job in jobs]
    return [
        _answered("uniform", "need", retrained, _uniform),
        _answered("seeds", "chance", retrained, _seeds),
        _answered("guides", "transfer", retrained, _guides),
        *(_adversaries(dataset, report) for dataset, report in retrained),
    ]


def _answered(
    name: str,
    question: str,
    retrained: Sequence[tuple[str, RetrainingReport]],
    rows_of: Callable[[str, RetrainingReport], Iterable[Row]],
) -> ResultTable:
    """The verdicts' answers to one question, for all data sets."""
    answers = [(dataset, report.verdict.sentence(question)) for dataset, report in retrained]
    said = [f"{dataset}: {answer}" for dataset, answer in answers if answer]
    rows = [row for dataset, report in retrained for row in rows_of(dataset, report)]
    return _table(name, rows, *said)


def _f1(
    report: RetrainingReport,
    test: str,
    models: Sequence[str],
    theirs: Mapping[str, float],
) -> Iterator[tuple[str, Estimate, Estimate | None, float | None]]:
    """Name of a model, its F1, F1 lost against the reference, published F1."""
    for model in models:
        score = find_score(report.scores.get(test, ()), model)
        if score is not None:
            lost = None if model == score.reference else score.lost
            yield model, score.bare, lost, theirs.get(model)


def _uniform(dataset: str, report: RetrainingReport) -> Iterator[Row]:
    theirs = PUBLISHED.uniform.get(dataset, {})
    for model, *cells in _f1(report, "uniform", ("base", "uniform"), theirs):
        reported = PUBLISHED.reported.get(dataset) if model == "base" else None
        yield dataset, model, *cells, reported


def _seeds(dataset: str, report: RetrainingReport) -> Iterator[Row]:
    for weights, predicted, n, median in report.bins:
        theirs = PUBLISHED.seed_jsd.get(dataset)
        yield dataset, weights, predicted, Estimate(median, None, n), theirs


def _guides(dataset: str, report: RetrainingReport) -> Iterator[Row]:
    theirs = PUBLISHED.diagnostic_mlp.get(dataset, {})
    for model, *cells in _f1(report, "diagnostic_mlp", GUIDES, theirs):
        yield dataset, model.removesuffix(" guide"), *cells


def _adversaries(dataset: str, report: RetrainingReport) -> ResultTable:
    theirs = PUBLISHED.adversary.get(dataset)
    rows: list[Row] = [
        (p.name, *map(rounded, (p.jsd.value, p.moved, p.f1)))
        for p in points_of(report.statistics, report.scores)
        if p.name
    ]
    if theirs is not None:
        name = f"published, λ {theirs['lambda']:g} (in our scale)"
        rows.append((name, theirs["jsd"], theirs["tvd"], theirs["f1"]))
    table = _table(
        "adversaries",
        rows,
        report.verdict.sentence("elsewhere"),
        ADVERSARY,
        FRONTIER_NOTE,
        PUBLISHED_NOTE if theirs else None,
    )
    return replace(table, title=table.title.format(dataset=dataset))


# --- All of them ---------------------------------------------------------------------------------

PAPER_TABLES = {
    "jain-wallace": jain_wallace_tables,
    "serrano-smith": serrano_smith_tables,
    "wiegreffe-pinter": wiegreffe_pinter_tables,
    "tutek-snajder": tutek_snajder_tables,
}


def paper_tables(results: Results) -> list[ResultTable]:
    """Tables of the study's paper; none where the paper's numbers are not available."""
    tables = PAPER_TABLES.get(results.plan.paper or "")
    return tables(results) if tables else []
