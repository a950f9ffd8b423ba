"""Wiegreffe & Pinter 2019, "Attention is not not Explanation"."""

from hf_attnprobe import published_results as published
from hf_attnprobe.retraining.report import RetrainingReport
from hf_attnprobe.retraining.verdict import (
    FAR,
    FRONTIER_NOTE,
    adversaries,
    curve,
    published_point,
)
from hf_attnprobe.statistics.bootstrap import Estimate
from hf_attnprobe.statistics.scores import find_score
from hf_attnprobe.studies.results import Results, ResultTable, dataset_of


GUIDES = ("uniform", "trained", "base", "adversary")
Reports = list[tuple[str, RetrainingReport]]


def tables(results: Results) -> list[ResultTable]:
    """Uniform attention, seeds, guides, and adversaries beside what they are compared with."""
    found = [
        (dataset_of(job), results.retraining(job.folder))
        for job in results.jobs("retrained")
    ]
    return [
        _uniform(found),
        _seeds(found),
        _guides(found),
        *(_adversaries(name, report) for name, report in found),
    ]


def _uniform(found: Reports) -> ResultTable:
    table = []
    for name, report in found:
        theirs = published.UNIFORM.get(name, {}) | {
            "reported": published.REPORTED.get(name)
        }
        for model, paper, other in (
            ("base", "base", "reported"),
            ("uniform", "uniform", ""),
        ):
            own = find_score(report.scores.get("uniform", ()), model)
            if own is not None:
                lost = (
                    None
                    if model == "base"
                    else Estimate(own.difference, own.difference_ci95, report.n)
                )
                table.append(
                    (
                        name,
                        model,
                        Estimate(own.value, own.ci95, report.n),
                        lost,
                        theirs.get(paper),
                        theirs.get(other),
                    )
                )
    head = (
        "data set",
        "attention",
        "F1",
        "F1 lost",
        "published F1",
        "Jain & Wallace's F1",
    )
    return ResultTable(
        "Is attention needed? (Table 2)",
        head,
        tuple(table),
        _said(found, "need"),
    )


def _seeds(found: Reports) -> ResultTable:
    table = [
        (name, bin_, predicted, Estimate(median, None, n), published.SEED_JSD.get(name))
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
    said = _said(found, "chance")
    return ResultTable(
        "How much does attention vary by chance?", head, tuple(table), said
    )


def _guides(found: Reports) -> ResultTable:
    table = []
    for name, report in found:
        theirs = published.DIAGNOSTIC_MLP.get(name, {})
        for guide in GUIDES:
            own = find_score(report.scores.get("diagnostic_mlp", ()), f"{guide} guide")
            if own is not None:
                lost = (
                    None
                    if guide == "trained"
                    else Estimate(own.difference, own.difference_ci95, report.n)
                )
                f1 = Estimate(own.value, own.ci95, report.n)
                table.append((name, guide, f1, lost, theirs.get(f"{guide} guide")))
    said = _said(found, "transfer")
    return ResultTable(
        "Do the weights tell another model something? (Table 3)",
        ("data set", "guide", "F1", "F1 lost against trained", "published F1"),
        tuple(table),
        said,
    )


def _adversaries(name: str, report: RetrainingReport) -> ResultTable:
    points = curve(report.statistics, report.scores)
    points += published_point(name)
    table = [(p.name, *map(_rounded, (p.jsd, p.tvd, p.f1))) for p in points]
    said = [report.verdict.elsewhere] if report.verdict.elsewhere else []
    far = [
        p
        for p in adversaries(report.statistics, report.scores)
        if p.jsd > FAR and p.f1 is not None
    ]
    if far:
        best = max(far, key=lambda p: p.f1)
        said.append(
            f"Best F1 with a mean JSD above {FAR:g}, as in Table 4: {best.name} (F1 {best.f1:.3f}, JSD {best.jsd:.3f}, TVD {best.tvd:.3f})."
        )
    said.append(FRONTIER_NOTE)
    return ResultTable(
        f"Can a model be trained to look elsewhere? {name} (Table 4 and Figure 5)",
        ("", "mean JSD", "mean TVD", "F1"),
        tuple(table),
        tuple(said),
    )


def _rounded(value: float | str | None) -> float | str | None:
    return round(value, 3) if isinstance(value, float) else value


def _said(found: Reports, test: str) -> tuple[str, ...]:
    """One sentence of the verdict, for every data set."""
    sentences = [(name, getattr(report.verdict, test)) for name, report in found]
    return tuple(f"{name}: {sentence}" for name, sentence in sentences if sentence)
