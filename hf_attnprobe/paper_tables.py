"""The tables of the papers with our numbers, and the published ones beside them where the data set is one of theirs.

A table is made of the steps of a study that have the names which the ready study files give them.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping

import pandas as pd

from hf_attnprobe import published
from hf_attnprobe.report import ATTENTION_BINS
from hf_attnprobe.retraining_report import RetrainingReport
from hf_attnprobe.retraining_verdict import FAR, adversaries, curve, verdict
from hf_attnprobe.study_plan import Job
from hf_attnprobe.study_results import (
    Results,
    ResultTable,
    Value,
    dataset_of,
    estimate,
    find_score,
    mean_of,
    median_of,
)


RANKINGS = ("random", "attention", "gradient", "product")
GUIDES = ("uniform", "trained", "base", "adversary")


# --- Jain & Wallace -----------------------------------------------------------------------------------------------


def jain_wallace(results: Results) -> list[ResultTable]:
    """τ of attention with gradients and leave-one-out, room for adversaries, and shuffling, by predicted class."""
    return [_tau(results), _room(results), _shuffled(results)]


def _by_class(results: Results, step: str) -> Iterator[tuple[Job, tuple, int, pd.DataFrame]]:
    """(job, its labels, predicted class, its texts), for every job of a step."""
    for job in results.jobs(step):
        rows = results.rows(job.folder)
        labels = (dataset_of(job), job.cell.get("encoder", "bilstm"), job.cell.get("attention", "additive"))
        for k in sorted(rows.predicted_class.dropna().unique().astype(int).tolist()):
            yield job, labels, k, rows[rows.predicted_class == k]


def _of_class(found, k: int):
    """What was published of the predicted class; None for one that they do not have."""
    return found[k] if found is not None and k < len(found) else None


def _tau(results: Results) -> ResultTable:
    table = []
    for _, labels, k, rows in _by_class(results, "audit"):
        name, encoder, attention = labels
        theirs = published.TAU.get(name, {}) if attention == "additive" else {}
        for measure in ("gradient", "leave_one_out"):
            tau, significant = (rows.get(f"attention_{measure}_{s}") for s in ("tau", "significant"))
            if tau is not None:
                paper = _of_class(theirs.get((encoder, measure)), k) or (None, None, None)
                table.append(
                    (*labels, measure, k, mean_of(tau), round(tau.std(ddof=0), 3), mean_of(significant).value, *paper)
                )
    head = ("data set", "encoder", "attention", "τ with", "predicted", "τ", "std", "significant")
    head += ("published τ", "published std", "published significant")
    return ResultTable("Does attention rank tokens as importance does? (Table 2)", head, tuple(table))


def _room(results: Results) -> ResultTable:
    table = []
    for job, labels, k, rows in _by_class(results, "audit"):
        name, encoder, attention = labels
        searched = results.rows(results.at("search", job.cell).folder).reindex(rows.index)
        theirs = published.EPSILON_MAX_JSD.get(name, {}).get(encoder) if attention == "additive" else None
        column = "epsilon_max_jsd@0.05"
        exact = median_of(rows[column]) if column in rows else None
        table.append((*labels, k, median_of(searched[column]), exact, _of_class(theirs, k)))
    head = ("data set", "encoder", "attention", "predicted", "searched", "exactly", "published (searched)")
    return ResultTable("Could attention have looked elsewhere? Median ε-max JSD (ε = .05)", head, tuple(table), (
        "Published are medians of the authors' released reruns, ±.01.",
    ))  # fmt: skip


def _shuffled(results: Results) -> ResultTable:
    table = []
    for _, labels, k, rows in _by_class(results, "audit"):
        theirs = published.PERMUTATION.get(labels[0]) if labels[1:] == ("bilstm", "additive") else None
        for part, (low, high) in enumerate(itertools.pairwise(ATTENTION_BINS)):
            chosen = rows[(rows.max_attention >= low) & ((rows.max_attention < high) | (high == 1.0))]
            if len(chosen):
                paper = _of_class(theirs[part], k) if theirs else None
                table.append(
                    (*labels, k, f"[{low:g}, {high:g}{']' if high == 1 else ')'}", median_of(chosen.median_tvd), paper)
                )
    head = ("data set", "encoder", "attention", "predicted", "largest weight", "median Δŷ", "published")
    return ResultTable("Does it matter which token got which weight?", head, tuple(table), (
        "Published are medians of the authors' released reruns, ±.005.",
    ))  # fmt: skip


# --- Serrano & Smith ----------------------------------------------------------------------------------------------


def serrano_smith(results: Results) -> list[ResultTable]:
    """Share of the weights that are erased before the decision flips, by ranking."""
    table = []
    for job in results.jobs("audit"):
        rows, encoder = results.rows(job.folder), job.cell.get("encoder", "bigru")
        theirs = published.FRACTION_TO_FLIP.get(dataset_of(job), {}).get(encoder, {})
        for ranking in RANKINGS:
            if f"fraction_to_flip@{ranking}" in rows:
                found, never = rows[f"fraction_to_flip@{ranking}"], mean_of(rows[f"never_flips@{ranking}"])
                table.append((dataset_of(job), encoder, ranking, median_of(found), never, theirs.get(ranking)))
        if "minimal_fraction" in rows:
            none = mean_of(rows["no_set_flips"])
            table.append((dataset_of(job), encoder, "smallest set", median_of(rows["minimal_fraction"]), none, None))
    head = ("data set", "encoder", "order", "median share erased", "never flips", "published median")
    note = (
        "Published medians are read off box plots of flat models (±.02); that of none on amazon, random, is doubtful."
    )
    return [ResultTable("How many weights go before the decision flips?", head, tuple(table), (note,))]


# --- Wiegreffe & Pinter -------------------------------------------------------------------------------------------


def wiegreffe_pinter(results: Results) -> list[ResultTable]:
    """Uniform attention, seeds, guides, and adversaries beside what they are compared with."""
    found = [(dataset_of(job), results.retraining(job.folder)) for job in results.jobs("retrained")]
    return [_uniform(found), _seeds(found), _guides(found), *(_adversaries(name, report) for name, report in found)]


Reports = list[tuple[str, RetrainingReport]]


def _uniform(found: Reports) -> ResultTable:
    table = []
    for name, report in found:
        theirs = published.UNIFORM.get(name, {}) | {"reported": published.REPORTED.get(name)}
        for model, paper, other in (("base", "base", "reported"), ("uniform", "uniform", "")):
            own = find_score(report.scores.get("uniform", ()), model)
            if own is not None:
                lost = None if model == "base" else Value(own.difference, own.difference_ci95, report.n)
                table.append(
                    (name, model, Value(own.value, own.ci95, report.n), lost, theirs.get(paper), theirs.get(other))
                )
    head = ("data set", "attention", "F1", "F1 lost", "published F1", "Jain & Wallace's F1")
    return ResultTable("Is attention needed? (Table 2)", head, tuple(table), tuple(
        f"{name}: {line}" for name, report in found for line in _verdicts(report, "Need")
    ))  # fmt: skip


def _seeds(found: Reports) -> ResultTable:
    table = [
        (name, bin_, predicted, Value(median, None, n), published.SEED_JSD.get(name))
        for name, report in found
        for bin_, predicted, n, median in report.bins
    ]
    head = (
        "data set",
        "largest weight",
        "predicted",
        "median JSD to another seed",
        "published, all texts (read off a figure)",
    )
    said = tuple(f"{name}: {line}" for name, report in found for line in _verdicts(report, "Chance"))
    return ResultTable("How much does attention vary by chance?", head, tuple(table), said)


def _guides(found: Reports) -> ResultTable:
    table = []
    for name, report in found:
        theirs = published.DIAGNOSTIC_MLP.get(name, {})
        for guide in GUIDES:
            own = find_score(report.scores.get("diagnostic_mlp", ()), f"{guide} guide")
            if own is not None:
                table.append((name, guide, Value(own.value, own.ci95, report.n), theirs.get(f"{guide} guide")))
    said = tuple(f"{name}: {line}" for name, report in found for line in _verdicts(report, "Transfer"))
    return ResultTable(
        "Do the weights tell another model something? (Table 3)",
        ("data set", "guide", "F1", "published F1"),
        tuple(table),
        said,
    )


def _adversaries(name: str, report: RetrainingReport) -> ResultTable:
    points = curve(report.statistics, report.scores)
    table = [
        (p.name, round(p.jsd, 3), p.tvd if isinstance(p.tvd, str) else round(p.tvd, 3), p.f1 and round(p.f1, 3))
        for p in points
    ]
    theirs = published.ADVERSARY.get(name)
    if theirs:
        table.append((f"published, λ {theirs['lambda']:g} (in our scale)", theirs["jsd"], theirs["tvd"], theirs["f1"]))
    said = _verdicts(report, "Elsewhere")
    far = [p for p in adversaries(report.statistics, report.scores) if p.jsd > FAR and p.f1 is not None]
    if far:
        best = max(far, key=lambda p: p.f1)
        said.append(
            f"Best F1 with a mean JSD above {FAR:g}, as in Table 4: {best.name} (F1 {best.f1:.3f}, JSD {best.jsd:.3f}, TVD {best.tvd:.3f})."
        )
    said.append(
        "The exact frontier keeps the base's encoder and a trained adversary has its own: a yardstick, not a bound; the bound is the last of our lines, checked on every text."
    )
    return ResultTable(
        f"Can a model be trained to look elsewhere? {name} (Table 4 and Figure 5)",
        ("", "mean JSD", "mean TVD", "F1"),
        tuple(table),
        tuple(said),
    )


def _verdicts(report: RetrainingReport, begins: str) -> list[str]:
    return [line for line in verdict(report.statistics, report.scores) if line.startswith(f"{begins}:")]


# --- Tutek & Šnajder ----------------------------------------------------------------------------------------------


def tutek_snajder(results: Results) -> list[ResultTable]:
    """Change of F1 under uniform and permuted attention, then what else regularising does."""
    rows = [row for job in results.jobs("compared") for row in _checkpoints(results, job)]
    return [_changes(rows), _left(rows), _harder(rows)]


def _checkpoints(results: Results, job: Job) -> Iterator[tuple[tuple, dict, int]]:
    """(data set, attention, name), what was found of a checkpoint, over so many texts."""
    found = results.written(job, "comparison.json")
    for checkpoint in found["checkpoints"]:
        yield (dataset_of(job), checkpoint["attention"], checkpoint["name"]), checkpoint, found["n"]


def _changes(rows) -> ResultTable:
    table = []
    for labels, checkpoint, n in rows:
        name, attention, regulariser = labels
        own = [estimate(checkpoint["found"].get(k), n, scale=100) for k in ("f1", "uniform_change", "permuted_change")]
        theirs = (
            published.REGULARISED.get(name, {}).get(attention, {}).get(regulariser.split(" ")[0], (None, None, None))
        )
        table.append((*labels, *own, *theirs))
    head = ("data set", "attention", "model", "F1 trained", "change, uniform", "change, permuted")
    head += tuple(f"published {name}" for name in ("trained", "uniform", "permuted"))
    note = "In points of F1 (100 is all). Published values of the residual model are not known."
    return ResultTable("How much hangs on attention?", head, tuple(table), (note,))


def _left(rows) -> ResultTable:
    columns = {
        "epsilon_max_jsd@0.05": "exact ε-max JSD (.05)", "conicity": "conicity", "probability_range": "range over single tokens",
    }  # fmt: skip
    table = [
        (*labels, *(estimate(checkpoint["found"].get(name), n) for name in columns)) for labels, checkpoint, n in rows
    ]
    return ResultTable(
        "What else does regularising change?", ("data set", "attention", "model", *columns.values()), tuple(table)
    )


def _harder(rows) -> ResultTable:
    table = [
        (*labels, p["name"], *(None if p[k] is None else round(p[k], 3) for k in ("jsd", "tvd", "f1")))
        for labels, checkpoint, _ in rows
        for p in checkpoint["adversaries"]
    ]
    head = ("data set", "attention", "model", "", "mean JSD", "mean TVD", "F1")
    note = "Harder is: more TVD for the same JSD."
    return ResultTable("Is an adversary harder to train?", head, tuple(table), (note,) if table else ())


# --- Mohankumar et al. --------------------------------------------------------------------------------------------


def mohankumar(results: Results) -> list[ResultTable]:
    """The study file's own tables say it all: numbers of this paper's tables could not be had."""
    return []


PAPER_TABLES: Mapping[str, Callable[[Results], list[ResultTable]]] = {
    "jain-wallace": jain_wallace,
    "serrano-smith": serrano_smith,
    "wiegreffe-pinter": wiegreffe_pinter,
    "tutek-snajder": tutek_snajder,
    "mohankumar": mohankumar,
}
