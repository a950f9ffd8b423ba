"""Wiegreffe & Pinter 2019, "Attention is not not Explanation"."""

from hf_attnprobe import published_results as published
from hf_attnprobe.retraining.report import RetrainingReport
from hf_attnprobe.retraining.verdict import FAR, adversaries, curve, verdict
from hf_attnprobe.studies.results import (
    Results,
    ResultTable,
    Value,
    dataset_of,
    find_score,
)


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
                    else Value(own.difference, own.difference_ci95, report.n)
                )
                table.append(
                    (
                        name,
                        model,
                        Value(own.value, own.ci95, report.n),
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
        tuple(
            f"{name}: {line}"
            for name, report in found
            for line in _verdicts(report, "Need")
        ),
    )


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
    said = tuple(
        f"{name}: {line}"
        for name, report in found
        for line in _verdicts(report, "Chance")
    )
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
                    else Value(own.difference, own.difference_ci95, report.n)
                )
                f1 = Value(own.value, own.ci95, report.n)
                table.append((name, guide, f1, lost, theirs.get(f"{guide} guide")))
    said = tuple(
        f"{name}: {line}"
        for name, report in found
        for line in _verdicts(report, "Transfer")
    )
    return ResultTable(
        "Do the weights tell another model something? (Table 3)",
        ("data set", "guide", "F1", "F1 lost against trained", "published F1"),
        tuple(table),
        said,
    )


def _adversaries(name: str, report: RetrainingReport) -> ResultTable:
    points = curve(report.statistics, report.scores)
    table = [
        (
            p.name,
            round(p.jsd, 3),
            p.tvd if isinstance(p.tvd, str) else round(p.tvd, 3),
            p.f1 and round(p.f1, 3),
        )
        for p in points
    ]
    theirs = published.ADVERSARY.get(name)
    if theirs:
        table.append(
            (
                f"published, λ {theirs['lambda']:g} (in our scale)",
                theirs["jsd"],
                theirs["tvd"],
                theirs["f1"],
            )
        )
    said = _verdicts(report, "Elsewhere")
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
    return [
        line
        for line in verdict(report.statistics, report.scores)
        if line.startswith(f"{begins}:")
    ]
