"""Wiegreffe & Pinter 2019, "Attention is not not Explanation"."""

from collections.abc import Sequence
from dataclasses import dataclass

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
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.studies.results import (
    Results,
    ResultTable,
    dataset_of,
)


GUIDES = ("uniform", "trained", "base", "adversary")


@dataclass(frozen=True)
class _Retrained:
    """The report of the models trained for one data set."""

    dataset: str
    report: RetrainingReport

    def score(self, test: str, model: str) -> Score | None:
        """The F1 of a model."""
        return find_score(self.report.scores.get(test, ()), model)

    def f1(self, score: Score) -> Estimate:
        return Estimate(score.value, score.ci95, self.report.n)

    def f1_lost(self, score: Score) -> Estimate:
        """How far the F1 is below the reference."""
        return Estimate(score.difference, score.difference_ci95, self.report.n)


def tables(results: Results) -> list[ResultTable]:
    """Uniform attention, seeds, guides, and adversaries."""
    retrained = [
        _Retrained(dataset_of(job), results.retraining(job.folder))
        for job in results.jobs("retrained")
    ]
    by_test = [_uniform(retrained), _seeds(retrained), _guides(retrained)]
    return by_test + [_adversaries(one) for one in retrained]


def _sentences(retrained: Sequence[_Retrained], question: str) -> tuple[str, ...]:
    """What the verdicts say about one question, by data set."""
    verdicts = {one.dataset: getattr(one.report.verdict, question) for one in retrained}
    return tuple(f"{name}: {said}" for name, said in verdicts.items() if said)


def _uniform(retrained: Sequence[_Retrained]) -> ResultTable:
    table = []
    for one in retrained:
        theirs = published.UNIFORM.get(one.dataset, {})
        base = one.score("uniform", "base")
        if base is not None:
            reported = published.REPORTED.get(one.dataset)
            ours = one.f1(base)
            table.append(
                (one.dataset, "base", ours, None, theirs.get("base"), reported)
            )
        uniform = one.score("uniform", "uniform")
        if uniform is not None:
            ours = one.f1(uniform), one.f1_lost(uniform)
            table.append((one.dataset, "uniform", *ours, theirs.get("uniform"), None))
    head = ("data set", "attention", "F1", "F1 lost")
    head += ("published F1", "Jain & Wallace's F1")
    sentences = _sentences(retrained, "need")
    return ResultTable("Is attention needed? (Table 2)", head, tuple(table), sentences)


def _seeds(retrained: Sequence[_Retrained]) -> ResultTable:
    table = []
    for one in retrained:
        theirs = published.SEED_JSD.get(one.dataset)
        for weights, predicted, n, median in one.report.bins:
            ours = Estimate(median, None, n)
            table.append((one.dataset, weights, predicted, ours, theirs))
    head = ("data set", "largest weight", "predicted", "median JSD to another seed")
    head += ("published, all texts (read off a figure)",)
    title = "How much does attention vary by chance?"
    return ResultTable(title, head, tuple(table), _sentences(retrained, "chance"))


def _guides(retrained: Sequence[_Retrained]) -> ResultTable:
    table = []
    for one in retrained:
        theirs = published.DIAGNOSTIC_MLP.get(one.dataset, {})
        for guide in GUIDES:
            score = one.score("diagnostic_mlp", f"{guide} guide")
            if score is None:
                continue
            lost = None if guide == "trained" else one.f1_lost(score)
            paper = theirs.get(f"{guide} guide")
            table.append((one.dataset, guide, one.f1(score), lost, paper))
    return ResultTable(
        "Do the weights tell another model something? (Table 3)",
        ("data set", "guide", "F1", "F1 lost against trained", "published F1"),
        tuple(table),
        _sentences(retrained, "transfer"),
    )


def _adversaries(one: _Retrained) -> ResultTable:
    report = one.report
    points = curve(report.statistics, report.scores) + published_point(one.dataset)
    table = [
        (point.name, _rounded(point.jsd), _rounded(point.tvd), _rounded(point.f1))
        for point in points
    ]
    elsewhere = report.verdict.elsewhere
    sentences = [elsewhere] if elsewhere else []
    sentences += _best_adversary(report)
    return ResultTable(
        "Can a model be trained to look elsewhere? "
        f"{one.dataset} (Table 4 and Figure 5)",
        ("", "mean JSD", "mean TVD", "F1"),
        tuple(table),
        (*sentences, FRONTIER_NOTE),
    )


def _rounded(value: float | str | None) -> float | str | None:
    return round(value, 3) if isinstance(value, float) else value


def _best_adversary(report: RetrainingReport) -> list[str]:
    """The adversary of the best F1 among those that look far away; none without any."""
    far = [
        point
        for point in adversaries(report.statistics, report.scores)
        if point.jsd > FAR and point.f1 is not None
    ]
    if not far:
        return []
    best = max(far, key=lambda point: point.f1)
    return [
        f"Best F1 with a mean JSD above {FAR:g}, as in Table 4: {best.name} "
        f"(F1 {best.f1:.3f}, JSD {best.jsd:.3f}, TVD {best.tvd:.3f})."
    ]
