"""Wiegreffe & Pinter 2019, "Attention is not not Explanation"."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.retraining.curve import (
    FRONTIER_NOTE,
    PUBLISHED_NOTE,
    adversaries,
    curve,
    published_point,
)
from hf_attnprobe.retraining.report import RetrainingReport
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.scores import find_score
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.studies.results import (
    Results,
    ResultTable,
    dataset_of,
    difference_of,
    rounded,
    score_of,
)


FAR = RULES["elsewhere_without_seeds"].yes
GUIDES = ("uniform guide", "trained guide", "base guide", "adversary guide")


@dataclass(frozen=True)
class _Retrained:
    """The report of the models trained for one data set."""

    dataset: str
    report: RetrainingReport

    def f1(
        self, test: str, models: Sequence[str], theirs: Mapping[str, float]
    ) -> Iterator[tuple[str, Estimate, Estimate | None, float | None]]:
        """Name of a model, its F1, F1 lost against the reference, published F1."""
        n = self.report.n
        for model in models:
            score = find_score(self.report.scores.get(test, ()), model)
            if score is None:
                continue
            is_reference = model == score.reference
            lost = None if is_reference else difference_of(score, n)
            yield model, score_of(score, n), lost, theirs.get(model)


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
    sentences = []
    for one in retrained:
        answer = one.report.verdict.sentence(question)
        if answer:
            sentences.append(f"{one.dataset}: {answer}")
    return tuple(sentences)


def _uniform(retrained: Sequence[_Retrained]) -> ResultTable:
    table = []
    for one in retrained:
        theirs = PUBLISHED.uniform.get(one.dataset, {})
        for model, *cells in one.f1("uniform", ("base", "uniform"), theirs):
            reported = PUBLISHED.reported.get(one.dataset) if model == "base" else None
            table.append((one.dataset, model, *cells, reported))
    head = (
        *("data set", "attention", "F1", "F1 lost"),
        *("published F1", "Jain & Wallace's F1"),
    )
    sentences = _sentences(retrained, "need")
    return ResultTable("Is attention needed? (Table 2)", head, tuple(table), sentences)


def _seeds(retrained: Sequence[_Retrained]) -> ResultTable:
    table = []
    for one in retrained:
        theirs = PUBLISHED.seed_jsd.get(one.dataset)
        for weights, predicted, n, median in one.report.bins:
            ours = Estimate(median, None, n)
            table.append((one.dataset, weights, predicted, ours, theirs))
    head = (
        *("data set", "largest weight", "predicted", "median JSD to another seed"),
        "published, all texts (read off a figure)",
    )
    title = "How much does attention vary by chance?"
    return ResultTable(title, head, tuple(table), _sentences(retrained, "chance"))


def _guides(retrained: Sequence[_Retrained]) -> ResultTable:
    table = []
    for one in retrained:
        theirs = PUBLISHED.diagnostic_mlp.get(one.dataset, {})
        for model, *cells in one.f1("diagnostic_mlp", GUIDES, theirs):
            table.append((one.dataset, model.removesuffix(" guide"), *cells))
    return ResultTable(
        "Do the weights tell another model something? (Table 3)",
        ("data set", "guide", "F1", "F1 lost against trained", "published F1"),
        tuple(table),
        _sentences(retrained, "transfer"),
    )


def _adversaries(one: _Retrained) -> ResultTable:
    report = one.report
    theirs = published_point(one.dataset)
    points = curve(report.statistics, report.scores) + theirs
    table = []
    for point in points:
        values = [rounded(value) for value in (point.jsd, point.tvd, point.f1)]
        table.append((point.name, *values))
    sentences = [report.verdict.sentence("elsewhere"), _best_adversary(report)]
    sentences += [FRONTIER_NOTE, PUBLISHED_NOTE if theirs else None]
    return ResultTable(
        f"Can a model be trained to look elsewhere? {one.dataset} (Table 4 and Figure 5)",
        ("", "mean JSD", "mean TVD", "F1"),
        tuple(table),
        tuple(filter(None, sentences)),
    )


def _best_adversary(report: RetrainingReport) -> str | None:
    """The adversary of the best F1 among those that look far away, if there is any."""
    points = adversaries(report.statistics, report.scores)
    far = [point for point in points if point.jsd > FAR and point.f1 is not None]
    if not far:
        return None
    best = max(far, key=lambda point: point.f1 or 0.0)
    return (
        f"Best F1 with a mean JSD above {FAR:g}, as in Table 4: {best.name} "
        f"(F1 {best.f1:.3f}, JSD {best.jsd:.3f}, TVD {best.tvd:.3f}). Chosen on the "
        "texts it is reported on, so that its F1 is a best case."
    )
