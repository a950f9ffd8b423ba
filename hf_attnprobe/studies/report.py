"""The report of a study, as text, JSON or Markdown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_attnprobe import markdown
from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.storage.provenance import from_plain, plain
from hf_attnprobe.studies.papers import paper_tables
from hf_attnprobe.studies.plan import DataUsed, Job, Study
from hf_attnprobe.studies.results import Cell, Results, ResultTable, grid_tables
from hf_attnprobe.terminal import visible


OVER_TEXTS = (
    "Intervals are over the texts, of one training each: another seed may move a number "
    "by more. The lowest and the highest cell of a column are named, not tested against "
    "each other."
)


@dataclass(frozen=True)
class Made:
    """A step, or a model that it trained; ``seconds`` are those of all its runs."""

    name: str
    seed: int | None
    epochs: int | None
    seconds: float


@dataclass(frozen=True)
class StudyReport:
    """What a study found. ``print(report)`` shows notes and tables."""

    study: str
    title: str
    quick: bool
    notes: tuple[str, ...]
    tables: tuple[ResultTable, ...]
    data: tuple[DataUsed, ...]
    made: tuple[Made, ...]

    def __str__(self) -> str:
        return visible("\n".join(_lines(self)))


def report_of(
    plan: Study,
    folder: Path,
    data: Mapping[str, DataUsed],
    seconds: Mapping[str, float],
    *,
    quick: bool,
) -> StudyReport:
    """Makes the report of a study whose steps are done.

    Args:
        plan: the study.
        folder: the folder that its steps left their results in.
        data: the data sets that models were trained on.
        seconds: how long each step took, by its folder.
        quick: whether the settings were the shorter ones.
    """
    results = Results(plan, folder)
    used = _without_repetition(data.values())
    tables, notes = grid_tables(results), []
    if quick:
        shortened = "; ".join(plan.shortened) or "nothing is shorter"
        notes.append(f"Quick: not the study itself, but a short run of it ({shortened}).")
    if plan.settings:
        notes.append(f"Settings by data set: {'; '.join(plan.settings)}.")
    if plan.paper is not None:
        tables = paper_tables(results) + tables
        differences = "; ".join(_differences(plan, used))
        notes.append(f"What differs from {PUBLISHED.papers[plan.paper]}: {differences}.")
    notes.append(OVER_TEXTS)
    made = []
    for job in plan.jobs:
        made += _made(results, job, seconds[job.folder])
    return StudyReport(
        study=plan.name,
        title=plan.title,
        quick=quick,
        notes=tuple(notes),
        tables=tuple(tables),
        data=used,
        made=tuple(made),
    )


def _without_repetition(data: Iterable[DataUsed]) -> tuple[DataUsed, ...]:
    """Data sets of one name and size once: seeds do not show in the report."""
    different = {}
    for used in data:
        different[used.name, *used.sizes.items()] = used
    return tuple(different.values())


def _differences(plan: Study, used: Sequence[DataUsed]) -> Iterator[str]:
    """How these numbers were made otherwise than the paper's."""
    trainings = [job for job in plan.jobs if job.verb == "train"]
    vectors = ", ".join(_values_of(trainings, "word_vectors"))
    if vectors:
        yield f"word vectors of {vectors}"
    else:
        yield "no pretrained word vectors (--word-vectors)"
    for limit in _values_of(plan.jobs, "train_limit")[:1]:
        yield f"only {limit} training texts"
    for limit in _values_of(plan.jobs, "test_limit")[:1]:
        yield f"tests on {limit} texts only"
    if plan.epochs is not None:
        yield f"trainings of at most {plan.epochs} epochs"
    names = ", ".join(dict.fromkeys(data.name for data in used))
    yield f"the texts of {names} as they are here, with our tokenizer"
    yield "the epoch that validation texts prefer"
    if plan.shortened:
        yield "shorter training"
    seeds = _values_of(plan.jobs, "seed")
    word = "seeds" if len(seeds) > 1 else "seed"
    yield f"{word} {', '.join(map(str, seeds))}"


def _values_of(jobs: Iterable[Job], argument: str) -> list:
    """The different values of an argument, where it is given, in ascending order."""
    values = {job.arguments.get(argument) for job in jobs}
    return sorted(value for value in values if value is not None)


def _made(results: Results, job: Job, seconds: float) -> list[Made]:
    """The step, and the models that a retraining left in it."""
    epochs = results.record(job.folder).get("n_epochs")
    made = [Made(job.folder, job.arguments.get("seed"), epochs, seconds)]
    for folder in results.retrainings(job):
        for model in results.retraining(folder).models:
            name = f"{folder}/{model.name}"
            seed = results.record(name).get("seed")
            made.append(Made(name, seed, model.n_epochs, model.seconds))
    return made


def to_json(report: StudyReport) -> dict[str, Any]:
    """Plain data, as ``study --json`` prints and ``summary.json`` holds it.

    NaN becomes None.
    """
    content = plain(report)
    content["steps"] = content.pop("made")
    return content


def from_json(data: Mapping) -> StudyReport:
    """The inverse of :func:`to_json`."""
    tables = [
        ResultTable(
            table["title"],
            tuple(table["head"]),
            tuple(tuple(map(_cell, row)) for row in table["rows"]),
            tuple(table.get("sentences", ())),
        )
        for table in data["tables"]
    ]
    return StudyReport(
        study=data["study"],
        title=data["title"],
        quick=data["quick"],
        notes=tuple(data["notes"]),
        tables=tuple(tables),
        data=tuple(DataUsed(**used) for used in data["data"]),
        made=tuple(Made(**made) for made in data["steps"]),
    )


def _cell(value: Any) -> Cell:
    return from_plain(Estimate, value) if isinstance(value, Mapping) else value


def to_markdown(report: StudyReport) -> str:
    """The tables first, then data, steps and their times."""
    splits = ("train", "validation", "test")
    sizes = []
    for data in report.data:
        sizes.append([data.name, *(data.sizes.get(split, 0) for split in splits)])
    steps = []
    for made in report.made:
        steps.append((made.name, shown(made.seed), shown(made.epochs)))
    lines = _lines(report)
    lines += markdown.section("data", markdown.table(("data set", *splits), sizes))
    head = ("step or model", "seed", "epochs")
    lines += markdown.section("steps", markdown.table(head, steps))
    return markdown.document(lines)


def _lines(report: StudyReport) -> list[str]:
    lines = [f"# {report.title}", "", *report.notes]
    for table in report.tables:
        rows = [[shown(cell) for cell in row] for row in table.rows]
        lines += markdown.section(table.title, markdown.table(table.head, rows))
        if table.sentences:
            lines += ["", *markdown.bullets(table.sentences)]
    return lines


def shown(cell: Cell) -> str:
    """A cell as text."""
    if isinstance(cell, Estimate):
        if cell.value != cell.value:
            return "undefined"
        return f"{markdown.interval(cell.value, cell.ci95)} (n {cell.n})"
    if cell is None or cell != cell:
        return markdown.MISSING
    return f"{cell:g}" if isinstance(cell, float) else str(cell)
