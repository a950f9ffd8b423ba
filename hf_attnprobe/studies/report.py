"""The report of a study: its tables, and the document made of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hf_attnprobe.core.serialization import from_plain, plain
from hf_attnprobe.documents.blocks import (
    Block,
    Document,
    Folded,
    Number,
    Section,
    Table,
    Words,
)
from hf_attnprobe.documents.blocks import Cell as ReportCell
from hf_attnprobe.documents.formats import Documented
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.storage.provenance import read_summary
from hf_attnprobe.studies.paper_tables import (
    Cell,
    Results,
    ResultTable,
    grid_tables,
    paper_tables,
)
from hf_attnprobe.studies.published import PUBLISHED
from hf_attnprobe.studies.steps import DataUsed, Job, Steps, name_of


OVER_TEXTS = (
    "Intervals are over the texts, of one training each: another seed may move a number by more."
)


@dataclass(frozen=True)
class Made:
    """A step, or a model it trained; ``seconds`` sums all its runs."""

    name: str
    seed: int | None
    epochs: int | None
    seconds: float


@dataclass(frozen=True)
class StudyReport(Documented):
    """The report of a study. ``print(report)`` shows notes and tables."""

    study: str
    title: str
    quick: bool
    notes: tuple[str, ...]
    tables: tuple[ResultTable, ...]
    data: tuple[DataUsed, ...]
    steps: tuple[Made, ...]

    def document(self) -> Document:
        """The study as a document."""
        return document_of(self)


def report_of(
    plan: Steps,
    folder: Path,
    seconds: Mapping[str, float],
    *,
    quick: bool,
) -> StudyReport:
    """Makes the report of a study whose steps have run.

    Args:
        plan: the study.
        folder: the folder that its steps left their results in.
        seconds: how long each step took, by its folder.
        quick: whether the settings were the shorter ones.
    """
    results = Results(plan, folder)
    used = _used(results)
    made = [one for job in plan.jobs for one in _made(results, job, seconds[job.folder])]
    return StudyReport(
        study=plan.name,
        title=plan.title,
        quick=quick,
        notes=tuple(_notes(plan, results, used, quick)),
        tables=(*paper_tables(results), *grid_tables(results)),
        data=used,
        steps=tuple(made),
    )


def _notes(plan: Steps, results: Results, used: Sequence[DataUsed], quick: bool) -> Iterator[str]:
    if quick:
        yield "Quick: not the study itself, but a short run of it."
    at_chance = results.at_chance()
    if at_chance:
        yield (
            "Caution: nothing shows that these models are better than always naming the most "
            f"frequent class: {', '.join(at_chance)}. What their attention does may not hold "
            "of a model that has learned its task."
        )
    if plan.paper is not None:
        differences = "; ".join(_differences(plan, used))
        yield f"What differs from {PUBLISHED.papers[plan.paper]}: {differences}."
    yield OVER_TEXTS


def _used(results: Results) -> tuple[DataUsed, ...]:
    """Each data set that a model was trained on, by what its training recorded."""
    found = {}
    for job in results.plan.jobs:
        sizes = results.record(job.folder).get("n_texts")
        if sizes:
            name = name_of(job.arguments["dataset"])
            found[name, *sizes.items()] = DataUsed(name, sizes)
    return tuple(found.values())


def _differences(plan: Steps, used: Sequence[DataUsed]) -> Iterator[str]:
    """Lists how these numbers were made differently from the paper's."""
    trainings = [job for job in plan.jobs if job.verb == "train"]
    vectors = ", ".join(_values_of(trainings, "word_vectors"))
    yield (
        f"word vectors of {vectors}" if vectors else "no pretrained word vectors (--word-vectors)"
    )
    for limit, said in (
        ("train_limit", "only {} training texts"),
        ("test_limit", "tests on {} texts only"),
    ):
        yield from map(said.format, _values_of(plan.jobs, limit)[:1])
    if plan.options.epochs is not None:
        yield f"trainings of at most {plan.options.epochs} epochs"
    names = ", ".join(dict.fromkeys(data.name for data in used))
    yield f"the texts of {names} as they are here, with our tokenizer"
    yield "the epoch that validation texts prefer"
    if plan.quick:
        yield "shorter training"
    seeds = _values_of(plan.jobs, "seed")
    yield f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _values_of(jobs: Iterable[Job], argument: str) -> list:
    """Distinct values of an argument where it is given, ascending."""
    values = {job.arguments.get(argument) for job in jobs}
    return sorted(value for value in values if value is not None)


def _made(results: Results, job: Job, seconds: float) -> list[Made]:
    """The step, and the models of a retraining."""
    epochs = results.record(job.folder).get("n_epochs")
    made = [Made(job.folder, job.arguments.get("seed"), epochs, seconds)]
    if job.verb in ("retrain", "transfer"):
        for model in results.retraining(job.folder).models:
            name = f"{job.folder}/{model.name}"
            seed = results.record(name).get("seed")
            made.append(Made(name, seed, model.n_epochs, model.seconds))
    return made


def read_study_report(folder: str | Path) -> StudyReport:
    """Reads the report in the folder of a finished study."""
    read = partial(from_plain, StudyReport)
    return read_summary(folder, read, kind="a study", verb="attnprobe study")


# --- What it says ---------------------------------------------------------------------------------

SPLITS = ("train", "validation", "test")


def document_of(report: StudyReport) -> Document:
    """The study as a document: every table with its sentences."""
    notes: list[Words] = list(report.notes)
    tables = [_section(table, number) for number, table in enumerate(report.tables, 1)]
    sizes: list[list[ReportCell]] = [
        [used.name, *(used.sizes.get(split, 0) for split in SPLITS)] for used in report.data
    ]
    steps: list[list[ReportCell]] = [[made.name, made.seed, made.epochs] for made in report.steps]
    quick = " with --quick" if report.quick else ""
    made: list[Block] = [
        Table(["data set", *SPLITS], sizes, caption="Texts of each data set"),
        Folded(
            f"{len(steps)} steps and models that they trained",
            [Table(["step or model", "seed", "epochs"], steps)],
        ),
        f"Repeated by attnprobe study{quick}, with the same file and options.",
    ]
    return Document(
        report.title,
        [f"Study {report.study}.", notes if report.quick else None],
        [
            *tables,
            None if report.quick else Section("How to read it", [notes], id="notes", brief=True),
            Section("How it was made", made, id="steps"),
        ],
        data=plain(report),
    )


def _section(table: ResultTable, number: int) -> Section:
    """A table with its sentences."""
    rows = [[as_cell(cell) for cell in row] for row in table.rows]
    said: list[Words] = list(table.sentences)
    return Section(
        table.title,
        [said, Table(table.head, rows)],
        id=f"table-{number}",
        brief=True,
    )


def as_cell(cell: Cell) -> ReportCell:
    """An estimate with its number of texts; other values unchanged."""
    if not isinstance(cell, Estimate):
        return cell
    if cell.value != cell.value:
        return "undefined"
    return Number(cell.value, cell.ci95, after=f"(n {cell.n})")
