"""The one report of a study, as text, JSON or Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_attnprobe import markdown
from hf_attnprobe.published_results import PAPERS
from hf_attnprobe.statistics.bootstrap import Estimate
from hf_attnprobe.storage.plain_data import plain
from hf_attnprobe.studies.grid import grid_tables
from hf_attnprobe.studies.papers import PAPER_TABLES
from hf_attnprobe.studies.plan import Job, Study
from hf_attnprobe.studies.results import Cell, Results, ResultTable
from hf_attnprobe.studies.verbs import VERBS


@dataclass(frozen=True)
class DataUsed:
    """Texts that models were trained on: as what they were given, how many are in each split, and their fingerprints."""

    name: str
    sizes: Mapping[str, int]
    fingerprints: Mapping[str, str]


@dataclass(frozen=True)
class Made:
    """A step, or a model that it trained: with which seed, how many epochs, and how long it took in all."""

    name: str
    seed: int | None
    epochs: int | None
    seconds: float


@dataclass(frozen=True)
class StudyReport:
    """What a study found. ``print(report)`` gives notes and tables."""

    study: str
    title: str
    quick: bool
    notes: tuple[str, ...]
    tables: tuple[ResultTable, ...]
    data: tuple[DataUsed, ...]
    made: tuple[Made, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def report_of(
    plan: Study,
    folder: Path,
    data: Mapping[str, DataUsed],
    seconds: Mapping[str, float],
    *,
    quick: bool,
) -> StudyReport:
    """Reads what the steps left behind. seconds: by step."""
    results = Results(plan, folder)
    tables = [
        *(PAPER_TABLES[plan.paper](results) if plan.paper else []),
        *grid_tables(results),
    ]
    used = tuple({(d.name, tuple(d.sizes.items())): d for d in data.values()}.values())
    made = [m for job in plan.jobs for m in _made(results, job, seconds[job.folder])]
    notes = [
        *_quick(plan, quick),
        *(_differences(plan, results, used) if plan.paper else []),
    ]
    return StudyReport(
        plan.name, plan.title, quick, tuple(notes), tuple(tables), used, tuple(made)
    )


def _quick(plan: Study, quick: bool) -> list[str]:
    if not quick:
        return []
    return [
        f"Quick: not the study itself, but a short run of it ({'; '.join(plan.shortened) or 'nothing is shorter'})."
    ]


def _differences(plan: Study, results: Results, used: Sequence[DataUsed]) -> list[str]:
    """What stands between these numbers and the paper's."""
    vectors = {
        job.arguments.get("vectors") for job in plan.jobs if job.verb == "train"
    } - {None}
    said = [
        f"word vectors of {', '.join(sorted(vectors))}"
        if vectors
        else "no pretrained word vectors (--vectors)"
    ]
    limits = {
        job.arguments.get(VERBS[job.verb].training_limit) for job in plan.jobs
    } - {None}
    said += [f"only {min(limits)} training texts"] if limits else []
    said += [
        f"the texts of {', '.join(dict.fromkeys(d.name for d in used))} as they are here, with our tokenizer"
    ]
    said += ["the epoch that validation texts prefer"] + (
        ["shorter training"] if plan.shortened else []
    )
    seeds = sorted({job.arguments.get("seed", 0) for job in plan.jobs})
    said += [f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"]
    return [f"What differs from {PAPERS[plan.paper]}: {'; '.join(said)}."]


def _made(results: Results, job: Job, seconds: float) -> list[Made]:
    """The step, and the models that a retraining left in it."""
    record = results.record(job.folder)
    found = [
        Made(job.folder, job.arguments.get("seed"), record.get("n_epochs"), seconds)
    ]
    return found + [
        Made(
            f"{folder}/{m.name}",
            results.record(f"{folder}/{m.name}").get("seed"),
            m.n_epochs,
            m.seconds,
        )
        for folder in results.retrainings(job)
        for m in results.retraining(folder).models
    ]


def to_json(report: StudyReport) -> dict:
    """Plain data, as ``study --json`` prints it and ``summary.json`` holds it; NaN becomes None."""
    head = {
        "study": report.study,
        "title": report.title,
        "quick": report.quick,
        "notes": list(report.notes),
    }
    return head | {
        "tables": plain(report.tables),
        "data": plain(report.data),
        "steps": plain(report.made),
    }


def to_markdown(report: StudyReport) -> str:
    """The tables first, then data, steps and their times."""
    sizes = [
        (d.name, *(d.sizes.get(name, 0) for name in ("train", "validation", "test")))
        for d in report.data
    ]
    steps = [
        (m.name, _shown(m.seed), _shown(m.epochs), f"{m.seconds:.1f}")
        for m in report.made
    ]
    return "\n".join(
        [
            *_lines(report),
            "",
            "## data",
            "",
            *markdown.table(("data set", "train", "validation", "test"), sizes),
            "",
            "## steps",
            "",
            *markdown.table(("step or model", "seed", "epochs", "seconds"), steps),
            "",
        ]
    )


def _lines(report: StudyReport) -> list[str]:
    parts = [f"# {report.title}", "", *report.notes]
    for table in report.tables:
        rows = [[_shown(cell) for cell in row] for row in table.rows]
        parts += ["", f"## {table.title}", "", *markdown.table(table.head, rows)]
        parts += (
            ["", *(f"- {sentence}" for sentence in table.sentences)]
            if table.sentences
            else []
        )
    return parts


def _shown(cell: Cell) -> str:
    if isinstance(cell, Estimate):
        if cell.value != cell.value:
            return "undefined"
        return f"{markdown.interval(cell.value, cell.ci95)} (n {cell.n})"
    if isinstance(cell, float) and cell == cell:
        return f"{cell:g}"
    is_missing = cell is None or cell != cell
    return markdown.MISSING if is_missing else str(cell)
