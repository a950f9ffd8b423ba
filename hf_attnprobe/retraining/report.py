"""What retrainings found as text, JSON or Markdown.

Pure: a :class:`RetrainingReport` in, a string out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe import published_results as published
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.retraining.curve import (
    FRONTIER_NOTE,
    PUBLISHED_NOTE,
    curve,
    published_point,
)
from hf_attnprobe.retraining.registry import READINGS
from hf_attnprobe.retraining.verdict import Verdict, farthest_seed, verdict
from hf_attnprobe.statistics.bins import attention_bin
from hf_attnprobe.statistics.bootstrap import Estimate, mean_estimate
from hf_attnprobe.statistics.scores import Score
from hf_attnprobe.statistics.summary import Statistic, sentence
from hf_attnprobe.storage.plain_data import from_plain, plain, values_from_plain
from hf_attnprobe.storage.provenance import provenance_section


PUBLISHED_F1 = {
    "uniform": published.UNIFORM,
    "diagnostic_mlp": published.DIAGNOSTIC_MLP,
}
"""Published F1 by test, data set and model."""
CLAMP_NOTE = "The loss clamps ln of the base's weights at ln 1e-10."


@dataclass(frozen=True)
class TrainedModel:
    """A model that was trained.

    Attributes:
        name: its folder below the output folder.
        seconds: of training and evaluation, over all runs that it took.
        n_epochs: it was trained for.
        metrics: its scores.
    """

    name: str
    seconds: float
    n_epochs: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class RetrainingReport:
    """What retrainings say. ``print(report)`` gives the tables.

    Attributes:
        model: the base.
        dataset: the test texts' data set and split.
        n: test texts.
        seed: of bootstrap and search.
        statistics: over all texts and by predicted class.
        scores: by test.
        models: that were trained.
        provenance: settings, versions and fingerprints.
        bins: see :func:`attention_bins`.
        beyond_seed: see :func:`farther_than_a_seed`.
        rows: one value per test, statistic and text.
    """

    model: str
    dataset: DatasetName
    n: int
    seed: int
    statistics: tuple[Statistic, ...]
    scores: dict[str, tuple[Score, ...]]
    models: tuple[TrainedModel, ...]
    provenance: dict
    bins: tuple[tuple, ...] = ()
    beyond_seed: Estimate | None = None
    rows: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    def __str__(self) -> str:
        return to_text(self)

    @cached_property
    def verdict(self) -> Verdict:
        """What the tests say, one sentence each."""
        return verdict(
            self.statistics, self.scores, n=self.n, beyond_seed=self.beyond_seed
        )

    def to_pandas(self) -> pd.DataFrame:
        """The rows: test, statistic, example_id, layer, head, value."""
        return self.rows


def to_json(report: RetrainingReport) -> dict:
    """Plain data, as ``retrain --json`` prints and ``summary.json`` holds it.

    NaN becomes None.
    """
    return {
        "model": report.model,
        "dataset": str(report.dataset),
        "n": report.n,
        "seed": report.seed,
        "statistics": plain(report.statistics),
        "scores": plain(report.scores),
        "models": plain(report.models),
        "bins": plain(report.bins),
        "beyond_seed": plain(report.beyond_seed),
        "verdict": report.verdict.sentences(),
        "findings": plain(report.verdict.findings()),
        "provenance": report.provenance,
    }


def from_json(data: Mapping) -> RetrainingReport:
    """The inverse of :func:`to_json`, without the rows."""
    scores = {
        test: tuple(from_plain(Score, score) for score in of_test)
        for test, of_test in data["scores"].items()
    }
    return RetrainingReport(
        model=data["model"],
        dataset=DatasetName.parse(data["dataset"]),
        n=data["n"],
        seed=data["seed"],
        statistics=tuple(from_plain(Statistic, s) for s in data["statistics"]),
        scores=scores,
        models=tuple(from_plain(TrainedModel, m) for m in data["models"]),
        provenance=data["provenance"],
        bins=values_from_plain(data["bins"]),
        beyond_seed=_estimate(data.get("beyond_seed")),
    )


def _estimate(fields: Mapping | None) -> Estimate | None:
    return None if fields is None else from_plain(Estimate, fields)


def farther_than_a_seed(
    rows: pd.DataFrame, statistics: Sequence[Statistic], *, seed: int = 0
) -> Estimate | None:
    """JSD of the chosen adversary minus that of the farthest other seed, per text.

    Args:
        rows: of the tests ``adversary`` and ``seeds``.
        statistics: of the same rows; they tell which seed is the farthest on average.
        seed: of the bootstrap.

    Returns:
        The mean with its interval; None where one of the tests was not run.
    """
    other = farthest_seed(statistics)
    if other is None:
        return None
    values = rows.set_index("example_id").value
    chosen = values[(rows.statistic == "chosen_jsd").to_numpy()]
    if chosen.empty:
        return None
    of_seed = values[(rows.statistic == other.statistic).to_numpy()]
    return mean_estimate((chosen - of_seed).to_numpy(), seed=seed)


def attention_bins(rows: pd.DataFrame, labels: Sequence[str]) -> tuple[tuple, ...]:
    """How far another seed moves attention, by how peaked it is, as the papers plot it.

    Args:
        rows: of the test ``seeds`` and of the predictions.
        labels: names of the classes.

    Returns:
        (bin of the base's largest weight, predicted class, number of texts, median of
        ``seed_jsd``).
    """
    wide = rows[rows.test.isin(("seeds", "prediction"))].pivot_table(
        index="example_id", columns="statistic", values="value"
    )
    if not {"max_attention", "seed_jsd"} <= set(wide):
        return ()
    by = [attention_bin(wide.max_attention), wide.predicted_class.astype(int)]
    groups = wide.groupby(by, observed=True).seed_jsd
    bins = []
    for (name, predicted), jsd in groups:
        bins.append((name, labels[predicted], len(jsd), float(jsd.median())))
    return tuple(bins)


def to_text(report: RetrainingReport) -> str:
    """The tables and the verdict, for a terminal."""
    sentences = [f"  {line}" for line in report.verdict.sentences()]
    lines = [_title(report), *_tables(report), "", "Verdict", *sentences]
    return "\n".join(lines)


def to_markdown(report: RetrainingReport) -> str:
    """The report a reader opens first.

    Verdict, tables, all statistics with readings, models, provenance.
    """
    parts = [
        f"# What another training of `{report.model}` would have learned",
        "",
        _title(report),
        "",
        *markdown.bullets(report.verdict.sentences()),
        *_tables(report),
        *_statistics_section(report.statistics),
        *provenance_section(report.provenance),
    ]
    return "\n".join(parts) + "\n"


def _title(report: RetrainingReport) -> str:
    seconds = sum(m.seconds for m in report.models)
    n_models = len(report.models)
    models = "1 model" if n_models == 1 else f"{n_models} models"
    return (
        f"{report.model} on {report.dataset}: {report.n} test texts, {models} trained "
        f"in {seconds:.0f} s. Intervals are over the texts, of one training each: "
        "another seed may move a score by more."
    )


def _tables(report: RetrainingReport) -> list[str]:
    parts = []
    for test in report.scores:
        parts += markdown.section(test, _score_table(report, test))
        if test == "seeds" and report.bins:
            parts += ["", *_bin_table(report)]
        if test == "adversary":
            parts += ["", *_curve_table(report), "", f"{FRONTIER_NOTE} {CLAMP_NOTE}"]
    rows = [(m.name, m.n_epochs, f"{m.seconds:.1f}") for m in report.models]
    models = markdown.table(["model", "epochs", "seconds"], rows)
    return parts + markdown.section("models", models)


def _score_table(report: RetrainingReport, test: str) -> list[str]:
    """Models down; each metric, and how much of the reference's is lost, across."""
    scores = report.scores[test]
    by_name = {(s.model, s.metric): s for s in scores}
    models = dict.fromkeys(model for model, _ in by_name)
    metrics = dict.fromkeys(metric for _, metric in by_name)
    paper = PUBLISHED_F1.get(test, {}).get(report.dataset.published_as, {})
    head = ["model"]
    for metric in metrics:
        head += [metric, f"lost against {scores[0].reference}"]
    if paper:
        head.append("published F1")
    rows = []
    for model in models:
        row = [model]
        for metric in metrics:
            row += _score_cells(by_name[model, metric])
        if paper:
            row.append(markdown.number(paper.get(model)))
        rows.append(row)
    return markdown.table(head, rows)


def _score_cells(score: Score) -> list[str]:
    """The score, and what is lost against the reference."""
    lost = markdown.interval(score.difference, score.difference_ci95)
    if score.model == score.reference:
        lost = markdown.MISSING
    return [markdown.interval(score.value, score.ci95), lost]


def _bin_table(report: RetrainingReport) -> list[str]:
    head = ["largest weight", "predicted", "n", "median JSD to another seed"]
    rows = [(name, label, n, f"{jsd:.3f}") for name, label, n, jsd in report.bins]
    return markdown.table(head, rows)


def _curve_table(report: RetrainingReport) -> list[str]:
    points = curve(report.statistics, report.scores)
    published_points = published_point(report.dataset.published_as)
    points += published_points
    rows = [(p.name, *map(markdown.number, (p.jsd, p.tvd, p.f1))) for p in points]
    table = markdown.table(["", "mean JSD", "mean TVD", "F1"], rows)
    return [*table, "", PUBLISHED_NOTE] if published_points else table


def _statistics_section(statistics: Sequence[Statistic]) -> list[str]:
    head = [
        "statistic",
        "predicted",
        "mean, 95% interval",
        "median",
        "std",
        "n",
        "undefined",
    ]
    parts = []
    for test in dict.fromkeys(s.test for s in statistics):
        of_test = [s for s in statistics if s.test == test]
        table = markdown.table(head, map(_statistic_row, of_test))
        readings = [
            f"{s.statistic}: {sentence(s, READINGS)}."
            for s in of_test
            if s.group == "all"
        ]
        lines = [*table, "", *markdown.bullets(readings)]
        parts += markdown.section(f"{test}: all statistics", lines)
    return parts


def _statistic_row(s: Statistic) -> list[object]:
    numbers = [
        markdown.interval(s.mean, s.ci95),
        markdown.number(s.median),
        markdown.number(s.std),
    ]
    return [s.statistic, s.group, *numbers, s.n, s.undefined]
