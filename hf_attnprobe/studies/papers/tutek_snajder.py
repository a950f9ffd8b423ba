"""Tutek & Šnajder 2020, "Staying True to Your Word: (How) Can Attention Become Explanation?"."""

from collections.abc import Iterator

from hf_attnprobe import published_results as published
from hf_attnprobe.studies.plan import Job
from hf_attnprobe.studies.results import Results, ResultTable, dataset_of, estimate


def tables(results: Results) -> list[ResultTable]:
    """Change of F1 under uniform and permuted attention, then what else regularising does."""
    rows = [
        row for job in results.jobs("compared") for row in _checkpoints(results, job)
    ]
    return [_changes(rows), _left(rows), _harder(rows)]


def _checkpoints(results: Results, job: Job) -> Iterator[tuple[tuple, dict, int]]:
    """(data set, attention, name), what was found of a checkpoint, over so many texts."""
    found = results.read_json(job, "comparison.json")
    for checkpoint in found["checkpoints"]:
        yield (
            (dataset_of(job), checkpoint["attention"], checkpoint["name"]),
            checkpoint,
            found["n"],
        )


def _changes(rows) -> ResultTable:
    table = []
    for labels, checkpoint, n in rows:
        name, attention, regulariser = labels
        own = [
            estimate(checkpoint["found"].get(k), n, scale=100)
            for k in ("f1", "uniform_change", "permuted_change")
        ]
        theirs = (
            published.REGULARISED.get(name, {})
            .get(attention, {})
            .get(regulariser.split(" ")[0], (None, None, None))
        )
        table.append((*labels, *own, *theirs))
    head = (
        "data set",
        "attention",
        "model",
        "F1 trained",
        "change, uniform",
        "change, permuted",
    )
    head += tuple(f"published {name}" for name in ("trained", "uniform", "permuted"))
    note = "In points of F1 (100 is all). Published values of the residual model are not known."
    return ResultTable("How much hangs on attention?", head, tuple(table), (note,))


def _left(rows) -> ResultTable:
    columns = {
        "epsilon_max_jsd@0.05": "exact ε-max JSD (.05)",
        "conicity": "conicity",
        "probability_range": "range over single tokens",
    }
    table = [
        (*labels, *(estimate(checkpoint["found"].get(name), n) for name in columns))
        for labels, checkpoint, n in rows
    ]
    return ResultTable(
        "What else does regularising change?",
        ("data set", "attention", "model", *columns.values()),
        tuple(table),
    )


def _harder(rows) -> ResultTable:
    table = [
        (
            *labels,
            p["name"],
            *(None if p[k] is None else round(p[k], 3) for k in ("jsd", "tvd", "f1")),
        )
        for labels, checkpoint, _ in rows
        for p in checkpoint["adversaries"]
    ]
    head = ("data set", "attention", "model", "", "mean JSD", "mean TVD", "F1")
    note = (
        "Harder is: more TVD for the same JSD. Adversaries are trained with the penalties of their model, for at most the epochs "
        "that the study gives them (Wiegreffe & Pinter have 80), and scored on all test texts."
    )
    return ResultTable(
        "Is an adversary harder to train?", head, tuple(table), (note,) if table else ()
    )
