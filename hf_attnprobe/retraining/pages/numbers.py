"""The scores, figures and statistics of a retraining's page."""

from collections.abc import Iterator, Sequence

from hf_attnprobe.charts.chart import Chart, Series
from hf_attnprobe.charts.curves import curve_points, penalty_curve
from hf_attnprobe.page import elements
from hf_attnprobe.page.html import Child, Html, tag
from hf_attnprobe.retraining import registry
from hf_attnprobe.retraining.result import (
    CLAMP_NOTE,
    RetrainingResult,
    curve_table,
    score_table,
)
from hf_attnprobe.retraining.verdict import FRONTIER_NOTE, PUBLISHED_NOTE, published_point
from hf_attnprobe.statistics.summary import Statistic, sentence


TABLES = {
    "uniform": "Is attention needed? Trained with and without it.",
    "seeds": "What does another seed change?",
    "adversary": "Can a model attend elsewhere? Trained adversaries.",
    "diagnostic_mlp": "Do the weights serve a model without context?",
    "rationale": "A rationale selected by reward.",
}
"""What the scores of a test are about."""
METRICS = {"f1": "F1", "roc_auc": "area under the ROC curve"}
LOST = (
    "What is lost is the score of the model named there minus a model's own on the same "
    "texts: above 0 the model is worse, below 0 better, and where the interval holds 0 "
    "the two cannot be told apart."
)
CURVE = "adversary"
"""The test that has the curve."""


def score_tables(report: RetrainingResult) -> Iterator[Html]:
    """The scores of every test, and what each model loses or gains."""
    for test in report.scores:
        head, rows = score_table(report, test)
        caption = f"{TABLES.get(test, test)} Scores with 95% intervals over texts."
        named = [_column(name) for name in head]
        first = [k for k, name in enumerate(head) if k < 3 or name == "published F1"]
        rest = [0, *(k for k in range(1, len(head)) if k not in first)]
        yield elements.table(
            [named[k] for k in first],
            [[row[k] for k in first] for row in rows],
            caption=caption,
        )
        if len(rest) > 1:
            table = elements.table(
                [named[k] for k in rest], [[row[k] for k in rest] for row in rows]
            )
            yield elements.details("By other metrics", table)
    yield tag("p", LOST)


def _column(name: str) -> str:
    """The head of a column of scores, in words."""
    if name.startswith("lost"):
        return f"{name} (negative: gained)"
    return METRICS.get(name, name)


def curve_figure(report: RetrainingResult) -> Iterator[Html]:
    """The λ curve, with what stands beside the adversaries."""
    if CURVE not in report.scores:
        return
    published = published_point(report.dataset.published_as)
    at = None
    if published and not isinstance(published[0].tvd, str):
        at = published[0].jsd, published[0].tvd
    chart = penalty_curve(curve_points(report.statistics), published=at)
    if chart is not None:
        yield elements.figure(chart)
    head, rows = curve_table(report)
    caption = "Every way of moving attention; TVD and F1 where it has them"
    yield elements.table(["moved by", *head[1:]], rows, caption=caption)
    notes = [FRONTIER_NOTE, CLAMP_NOTE, *([PUBLISHED_NOTE] if published else [])]
    yield elements.details("About these numbers", *elements.paragraphs(notes))


def seed_figure(report: RetrainingResult) -> Iterator[Html]:
    """What another seed changes, by the largest weight; nothing without seeds."""
    if report.bins:
        yield elements.figure(_bins(report.bins))


def _bins(bins: Sequence[tuple]) -> Chart:
    """Medians by the base's largest weight and predicted class."""
    places = tuple(dict.fromkeys(name for name, *_ in bins))
    by_class: dict[str, dict[str, tuple[int, float]]] = {}
    for name, label, n, jsd in bins:
        by_class.setdefault(label, {})[name] = n, jsd
    nothing = 0, float("nan")
    series = tuple(
        Series(
            f"predicted {label}",
            places,
            tuple(found.get(place, nothing)[1] for place in places),
            n=tuple(found.get(place, nothing)[0] for place in places),
        )
        for label, found in by_class.items()
    )
    lowest = min(bins, key=lambda row: row[3])
    highest = max(bins, key=lambda row: row[3])
    finding = (
        f"The median distance runs from {lowest[3]:.2f} (predicted {lowest[1]}, largest "
        f"weight in {lowest[0]}, {lowest[2]} texts) to {highest[3]:.2f} (predicted "
        f"{highest[1]}, {highest[0]}, {highest[2]} texts), of at most .69. An adversary "
        "that is no farther is no more than another seed. Without intervals."
    )
    return Chart(
        key="seed_jsd_by_max_attention",
        title="How far another seed moves attention, by the base's largest weight",
        finding=finding,
        source="Wiegreffe & Pinter 2019, Figure 4",
        kind="dots",
        x_label="largest weight of the base",
        y_label="median JSD to another seed, nats",
        series=series,
        y_range=(0.0, 0.7),
    )


def all_statistics(report: RetrainingResult) -> Iterator[Html]:
    """Every statistic of the texts, with its sentences."""
    head = [
        "statistic",
        "predicted",
        "mean",
        "95% from",
        "to",
        "median",
        "std",
        "texts",
    ]
    for test in dict.fromkeys(s.test for s in report.statistics):
        own = [s for s in report.statistics if s.test == test]
        table = elements.table(head, map(_row, own), caption=f"Statistics of {test}")
        said = [
            f"{s.statistic}: {sentence(s, registry.readings())}." for s in own if s.group == "all"
        ]
        yield elements.details(
            f"{test}: {len(own)} numbers and what they say",
            elements.bullets(said),
            table,
        )


def _row(s: Statistic) -> list[Child]:
    return [s.statistic, s.group, s.mean, *s.ci95, s.median, s.std, s.n]
