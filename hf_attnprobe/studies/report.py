"""The report of a study: its tables, and the document that contains them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.serialization import convert_to_plain, parse_plain
from hf_attnprobe.documents.blocks import (
    Block,
    Collapsible,
    Document,
    FormattedNumber,
    InlineText,
    Section,
    Table,
)
from hf_attnprobe.documents.blocks import Cell as ReportCell
from hf_attnprobe.documents.formats import DocumentedResult
from hf_attnprobe.retraining.base_model import SPLIT_NAMES
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS, Estimate
from hf_attnprobe.storage.provenance import read_summary
from hf_attnprobe.studies.paper_tables import (
    Results,
    ResultTable,
    TableCell,
    make_grid_tables,
    make_paper_tables,
)
from hf_attnprobe.studies.published import PUBLISHED
from hf_attnprobe.studies.reproduction import arrange_for_display, describe_reproduction
from hf_attnprobe.studies.steps import DatasetSizes, Job, Steps, name_dataset


INTERVAL_NOTE = (
    "Confidence intervals cover the choice of texts, but not the training, which ran once for each seed. "
    "Another seed may change a number by more than the width of its interval."
)
"""Note about the confidence intervals in a study's report."""


@dataclass(frozen=True)
class StepRecord:
    """A step, or a model that a retraining step trained.

    Attributes:
        name: Folder below the study folder.
        seed: Training seed, if any.
        epochs: Number of training epochs, if any.
        seconds: Duration, including earlier runs that were interrupted.
    """

    name: str
    seed: int | None
    epochs: int | None
    seconds: float


@dataclass(frozen=True)
class StudyReport(DocumentedResult):
    """The report of a study. ``print(report)`` displays its notes and tables.

    Attributes:
        study: Study name.
        title: Study title, which may be a question.
        quick: Whether the quick version was run.
        notes: Warnings, and sentences about differences from the paper.
        tables: Tables of results.
        data: Data sets used for training.
        steps: All steps, and the models that retraining steps trained.
    """

    study: str
    title: str
    quick: bool
    notes: tuple[str, ...]
    tables: tuple[ResultTable, ...]
    data: tuple[DatasetSizes, ...]
    steps: tuple[StepRecord, ...]

    @classmethod
    def load(cls, folder: str | Path) -> "StudyReport":
        """Read the report of a finished study from its folder.

        Example::

            report = StudyReport.load("table")

        Args:
            folder: Output folder of ``attnprobe study`` or :func:`hf_attnprobe.study`.

        Raises:
            AttnProbeError: If the folder contains no finished study.
        """
        return read_study_report(folder)

    def build_document(self) -> Document:
        """Return the study as a document."""
        return build_study_document(self)

    def frame(self, table: str | int) -> pd.DataFrame:
        """Return a table of results as a data frame, for example for a paper.

        Example::

            report.frame("Table 2").to_latex("table2.tex", index=False, escape=True)

        Args:
            table: number of the table from 1, or words from its title, such as "Table 2".

        Returns:
            A data frame with the columns of the table. A column of estimates is followed by three
            columns: the ends of the 95% interval ("low", "high") and the number of texts ("n"). A
            column of published numbers is followed by a column "reproduced" (or, in a table with
            several of them, for example "reproduced, F1 trained"), which contains "yes", "no" or "not
            compared".

        Raises:
            AttnProbeError: If no table or several tables have this number or these words.
        """
        return _build_frame(arrange_for_display(self._find_table(table)))

    def _find_table(self, table: str | int) -> ResultTable:
        """Find a table by its number or by words from its title."""
        numbered_tables = enumerate(self.tables, 1)
        matching_tables = [
            candidate
            for number, candidate in numbered_tables
            if table == number
            or (isinstance(table, str) and table.lower() in candidate.title.lower())
        ]
        if len(matching_tables) != 1:
            titles = [
                f"{number}: {candidate.title}" for number, candidate in enumerate(self.tables, 1)
            ]
            raise AttnProbeError(
                f"{len(matching_tables)} tables match {table!r}, expected one. Pass a number or words "
                f"from one title. The tables are {'; '.join(titles) or 'none'}."
            )
        return matching_tables[0]


def build_study_report(
    plan: Steps,
    folder: Path,
    seconds: Mapping[str, float],
    *,
    quick: bool,
) -> StudyReport:
    """Build the report of a study after all its steps have run.

    Args:
        plan: The study's steps and tables.
        folder: Study folder.
        seconds: Duration of each step, by its folder.
        quick: Whether the quick version was run.
    """
    results = Results(plan, folder)
    dataset_sizes = _list_dataset_sizes(results)
    step_records = [
        record
        for job in plan.jobs
        for record in _make_step_records(results, job, seconds[job.folder])
    ]
    return StudyReport(
        study=plan.name,
        title=plan.title,
        quick=quick,
        notes=tuple(_list_notes(plan, results, dataset_sizes, quick)),
        tables=(*make_paper_tables(results), *make_grid_tables(results)),
        data=dataset_sizes,
        steps=tuple(step_records),
    )


def _list_notes(
    plan: Steps, results: Results, dataset_sizes: Sequence[DatasetSizes], quick: bool
) -> Iterator[str]:
    """Yield the notes of a report: warnings, and differences from the repeated paper's settings."""
    if quick:
        yield "This is the quick version of the study, with shorter settings."
    models_at_chance = results.list_models_at_chance()
    if models_at_chance:
        yield (
            "Caution: these models may not be better than always predicting the most frequent "
            f"class: {', '.join(models_at_chance)}. Results about their attention may not apply to "
            "a model that has learned its task."
        )
    if plan.paper is not None:
        differences = "; ".join(_describe_differences(plan, dataset_sizes))
        yield f"Differences from {PUBLISHED.papers[plan.paper]}: {differences}."
    yield INTERVAL_NOTE


def _list_dataset_sizes(results: Results) -> tuple[DatasetSizes, ...]:
    """Return how many texts each data set has in each split, as recorded by the trainings."""
    # Models that were trained on the same texts have the same key, so their data is listed once.
    sizes_by_key = {}
    for job in results.plan.jobs:
        sizes = results.read_training_record(job.folder).get("n_texts")
        if sizes:
            name = name_dataset(job.arguments["dataset"])
            sizes_by_key[name, *sizes.items()] = DatasetSizes(name, sizes)
    return tuple(sizes_by_key.values())


def _describe_differences(plan: Steps, dataset_sizes: Sequence[DatasetSizes]) -> Iterator[str]:
    """Yield phrases about how a study's settings differ from the settings in the paper.

    A sentence in the report lists them, for example "Differences from the paper: only 500 training
    texts; shorter training; seed 0."
    """
    trainings = [job for job in plan.jobs if job.verb == "train"]
    vectors = ", ".join(_list_values(trainings, "word_vectors"))
    if vectors:
        yield f"word vectors from {vectors}"
    else:
        yield "no pretrained word vectors (--word-vectors)"
    for limit, noun in (("train_limit", "training text"), ("test_limit", "test text")):
        values = _list_values(plan.jobs, limit)
        if values:
            yield f"only {format_count(values[0], noun)}"
    if plan.options.epochs is not None:
        yield f"at most {format_count(plan.options.epochs, 'epoch')} of training"
    # `dict.fromkeys` removes repetitions, but keeps the order.
    names = ", ".join(dict.fromkeys(data.name for data in dataset_sizes))
    yield f"public versions of {names}, with our tokenizer"
    yield "evaluation of the epoch with the best validation score"
    if plan.quick:
        yield "shorter training"
    seeds = _list_values(plan.jobs, "seed")
    label = "seeds" if len(seeds) > 1 else "seed"
    yield f"{label} {', '.join(map(str, seeds))}"


def _list_values(jobs: Iterable[Job], argument: str) -> list:
    """Return the distinct values of an argument over all jobs, in ascending order, without None."""
    values = {job.arguments.get(argument) for job in jobs}
    return sorted(value for value in values if value is not None)


def _make_step_records(results: Results, job: Job, seconds: float) -> list[StepRecord]:
    """Return the seed, epochs and duration of a step.

    A retraining trains several models. Its record is followed by one record for each of them.
    """
    epochs = results.read_training_record(job.folder).get("n_epochs")
    step_records = [StepRecord(job.folder, job.arguments.get("seed"), epochs, seconds)]
    if job.verb in ("retrain", "transfer"):
        for model in results.retraining(job.folder).models:
            name = f"{job.folder}/{model.name}"
            seed = results.read_training_record(name).get("seed")
            step_records.append(StepRecord(name, seed, model.n_epochs, model.seconds))
    return step_records


def read_study_report(folder: str | Path) -> StudyReport:
    """Read the report of a finished study from its folder.

    Args:
        folder: Output folder from :func:`hf_attnprobe.study`.
    """
    parse_report = partial(parse_plain, StudyReport)
    return read_summary(folder, parse_report, run_name="a study", verb="attnprobe study")


# --- The document --------------------------------------------------------------------------------


def build_study_document(report: StudyReport) -> Document:
    """Return the document that a study's report displays, with a section for every table.

    Args:
        report: Report of a study.
    """
    notes: list[InlineText] = list(report.notes)
    tables = [_make_section(table, number) for number, table in enumerate(report.tables, 1)]
    sizes: list[list[ReportCell]] = [
        [data.name, *(data.sizes.get(split, 0) for split in SPLIT_NAMES)] for data in report.data
    ]
    steps: list[list[ReportCell]] = [[step.name, step.seed, step.epochs] for step in report.steps]
    quick_flag = " with --quick" if report.quick else ""
    provenance_blocks: list[Block] = [
        Table(["data set", *SPLIT_NAMES], sizes, caption="Texts of each data set"),
        Collapsible(
            f"All steps and trained models: {len(steps)}",
            [Table(["step or model", "seed", "epochs"], steps)],
        ),
        f"To repeat the study, run attnprobe study{quick_flag} with the same file and options.",
    ]
    # The notes of a quick study contain a warning, so they come first.
    notes_at_top = notes if report.quick else None
    notes_section = None
    if not report.quick:
        notes_section = Section("How to read it", [notes], id="notes", in_short_report=True)
    return Document(
        report.title,
        [f"Study {report.study}.", *describe_reproduction(report.tables), notes_at_top],
        [*tables, notes_section, Section("How it was made", provenance_blocks, id="steps")],
        data=convert_to_plain(report),
    )


def _make_section(table: ResultTable, number: int) -> Section:
    """Return a report section with a table of results and the sentences about it.

    Each published number is displayed next to ours.
    """
    table = arrange_for_display(table)
    rows = [[make_report_cell(cell) for cell in row] for row in table.rows]
    sentences: list[InlineText] = list(table.sentences)
    return Section(
        table.title,
        [sentences, Table(list(table.head), rows)],
        id=f"table-{number}",
        in_short_report=True,
    )


def make_report_cell(cell: TableCell) -> ReportCell:
    """Convert a cell of a result table to a cell of the report.

    An estimate is displayed with its interval and its number of texts. If it was computed from too
    few texts, only their number is displayed.

    Args:
        cell: A cell of a result table.
    """
    if not isinstance(cell, Estimate):
        return cell
    if math.isnan(cell.value):
        return "undefined"
    if cell.n is not None and cell.n < MIN_DISPLAYED_TEXTS:
        return f"too few texts (n {cell.n})"
    return FormattedNumber(cell.value, cell.ci95, suffix=f"(n {cell.n})")


def _build_frame(table: ResultTable) -> pd.DataFrame:
    """Return a table as a data frame, with the intervals of estimates in columns of their own."""
    columns: dict[str, list] = {}
    for index, title in enumerate(table.head):
        cells = [row[index] for row in table.rows]
        estimates = [cell if isinstance(cell, Estimate) else None for cell in cells]
        columns[title] = [cell.value if isinstance(cell, Estimate) else cell for cell in cells]
        if any(estimate is not None for estimate in estimates):
            intervals = [(e.ci95 if e is not None else None) or (None, None) for e in estimates]
            columns[f"{title} low"] = [low for low, _ in intervals]
            columns[f"{title} high"] = [high for _, high in intervals]
            columns[f"{title} n"] = [None if e is None else e.n for e in estimates]
    return pd.DataFrame(columns)
