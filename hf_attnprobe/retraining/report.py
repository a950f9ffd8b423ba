"""What retrainings found as text, JSON or Markdown. Pure: a :class:`RetrainingReport` in, a string out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from hf_attnprobe import published_results as published
from hf_attnprobe.retraining.registry import READINGS
from hf_attnprobe.retraining.verdict import curve, verdict
from hf_attnprobe.statistics.bins import ATTENTION_BINS, bin_names
from hf_attnprobe.statistics.scores import Score
from hf_attnprobe.statistics.summary import Statistic, reading
from hf_attnprobe.storage.plain_data import in_words, plain, read, real


@dataclass(frozen=True)
class TrainedModel:
    """A model that was trained, in ``name`` below the output folder; seconds over all runs that it took."""

    name: str
    seconds: float
    n_epochs: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class RetrainingReport:
    """What retrainings found. ``scores`` by test; ``print(report)`` gives the tables, ``to_pandas()`` the rows."""

    model: str
    dataset: str
    n: int
    seed: int
    statistics: tuple[Statistic, ...]
    scores: dict[str, tuple[Score, ...]]
    models: tuple[TrainedModel, ...]
    provenance: dict
    bins: tuple[tuple, ...] = ()
    rows: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    def __str__(self) -> str:
        return to_text(self)

    def to_pandas(self) -> pd.DataFrame:
        """The rows: test, statistic, example_id, layer, head, value."""
        return self.rows


def to_json(report: RetrainingReport) -> dict:
    """Plain data, as ``retrain --json`` prints it and ``summary.json`` holds it; NaN becomes None."""
    head = {
        "model": report.model,
        "dataset": report.dataset,
        "n": report.n,
        "seed": report.seed,
    }
    return head | {
        "statistics": plain(report.statistics),
        "scores": plain(report.scores),
        "models": plain(report.models),
        "bins": plain(report.bins),
        "verdict": verdict(report.statistics, report.scores),
        "provenance": report.provenance,
    }


def from_json(data: Mapping) -> RetrainingReport:
    """The inverse of :func:`to_json`, without the rows."""
    head = {k: data[k] for k in ("model", "dataset", "n", "seed", "provenance")}
    return RetrainingReport(
        **head,
        statistics=tuple(read(Statistic, s) for s in data["statistics"]),
        scores={
            test: tuple(read(Score, s) for s in scores)
            for test, scores in data["scores"].items()
        },
        models=tuple(read(TrainedModel, m) for m in data["models"]),
        bins=real(data["bins"]),
    )


def attention_bins(rows: pd.DataFrame, labels: Sequence[str]) -> tuple[tuple, ...]:
    """(largest weight of the base, predicted class, texts, median of ``seed_jsd``), as the papers plot it."""
    wide = rows[rows.test.isin(("seeds", "prediction"))].pivot_table(
        index="example_id", columns="statistic", values="value"
    )
    if not {"max_attention", "seed_jsd"} <= set(wide):
        return ()
    names = bin_names()
    bins = pd.cut(wide.max_attention, ATTENTION_BINS, right=False, labels=names).fillna(
        names[-1]
    )  # exactly 1
    groups = wide.groupby(
        [bins, wide.predicted_class.astype(int)], observed=True
    ).seed_jsd
    return tuple(
        (name, labels[k], len(part), float(part.median())) for (name, k), part in groups
    )


def to_text(report: RetrainingReport) -> str:
    """The verdict and the tables, for a terminal."""
    return "\n".join(
        [
            _title(report),
            *_tables(report),
            "",
            "Verdict",
            *(f"  {line}" for line in verdict(report.statistics, report.scores)),
        ]
    )


def to_markdown(report: RetrainingReport) -> str:
    """The report a reader opens first: verdict, tables, all statistics with readings, models, provenance."""
    parts = [
        f"# What another training of `{report.model}` would have learned",
        "",
        _title(report),
        "",
    ]
    parts += [f"- {line}" for line in verdict(report.statistics, report.scores)]
    parts += [*_tables(report), *_statistics_section(report.statistics)]
    parts += [
        "",
        "## provenance",
        "",
        *(f"- {name}: {in_words(value)}" for name, value in report.provenance.items()),
    ]
    return "\n".join(parts) + "\n"


def _title(report: RetrainingReport) -> str:
    seconds, trained = sum(m.seconds for m in report.models), len(report.models)
    models = f"{trained} model{'' if trained == 1 else 's'}"
    said = f"{report.model} on {report.dataset}: {report.n} test texts, {models} trained in {seconds:.0f} s."
    return f"{said} Intervals are over the texts, of one training each: another seed may move a score by more."


def _tables(report: RetrainingReport) -> list[str]:
    parts = []
    for test in report.scores:
        parts += ["", f"## {test}", "", *_score_table(report, test)]
        if test == "seeds" and report.bins:
            head = ["largest weight", "predicted", "n", "median JSD to another seed"]
            parts += [
                "",
                *_table(head, [(a, b, n, f"{m:.3f}") for a, b, n, m in report.bins]),
            ]
        if test == "adversary":
            parts += ["", *_curve_table(report), "", *_yardstick_note()]
    rows = [(m.name, m.n_epochs, f"{m.seconds:.1f}") for m in report.models]
    return [*parts, "", "## models", "", *_table(["model", "epochs", "seconds"], rows)]


def _score_table(report: RetrainingReport, test: str) -> list[str]:
    scores = report.scores[test]
    metrics = list(dict.fromkeys(s.metric for s in scores))
    theirs = _published(report, test)
    lost = f"lost against {scores[0].reference}"
    head = (
        ["model"]
        + [cell for m in metrics for cell in (m, lost)]
        + (["published F1"] if theirs else [])
    )
    rows = []
    for model in dict.fromkeys(s.model for s in scores):
        own = {s.metric: s for s in scores if s.model == model}
        cells = [
            c
            for m in metrics
            for c in (_with(own[m].value, own[m].ci95), _lost(own[m]))
        ]
        rows.append(
            [model, *cells]
            + ([f"{theirs[model]:.3f}" if model in theirs else "–"] if theirs else [])
        )
    return _table(head, rows)


def _published(report: RetrainingReport, test: str) -> Mapping[str, float]:
    """F1 by model where the paper has the data set."""
    name = Path(report.dataset.split(" (")[0]).name.lower()
    tables = {"uniform": published.UNIFORM, "diagnostic_mlp": published.DIAGNOSTIC_MLP}
    return tables.get(test, {}).get(name, {})


def _lost(score: Score) -> str:
    return (
        "–"
        if score.model == score.reference
        else _with(score.difference, score.difference_ci95)
    )


def _with(value: float, ci95: tuple[float, float]) -> str:
    return "–" if value != value else f"{value:.3f} [{ci95[0]:.3f}, {ci95[1]:.3f}]"


def _curve_table(report: RetrainingReport) -> list[str]:
    points = curve(report.statistics, report.scores)
    rows = [
        (p.name, f"{p.jsd:.3f}", _number(p.tvd), "–" if p.f1 is None else f"{p.f1:.3f}")
        for p in points
    ]
    theirs = published.ADVERSARY.get(Path(report.dataset.split(" (")[0]).name.lower())
    if theirs:
        name = f"published, λ {theirs['lambda']:g} (in our scale)"
        rows.append(
            (
                name,
                f"{theirs['jsd']:.3f}",
                f"{theirs['tvd']:.3f}",
                f"{theirs['f1']:.3f}",
            )
        )
    return _table(["", "mean JSD", "mean TVD", "F1"], rows)


def _number(value: float | str) -> str:
    return (
        value if isinstance(value, str) else "–" if value != value else f"{value:.3f}"
    )


def _yardstick_note() -> list[str]:
    return [
        "The exact frontier is the farthest attention of each text that moves the output by at most ε, with the base's encoder. A",
        "trained adversary has an encoder of its own, so that is a yardstick, not a bound; that no weights at all can be farther than",
        "the last of our lines says is checked for every text. The loss clamps ln of the base's weights at ln 1e-10.",
    ]


def _statistics_section(statistics: Sequence[Statistic]) -> list[str]:
    parts = []
    for test in dict.fromkeys(s.test for s in statistics):
        own = [s for s in statistics if s.test == test]
        rows = [
            (
                s.statistic,
                s.group,
                _with(s.mean, s.ci95),
                _number(s.median),
                _number(s.std),
                s.n,
                s.undefined,
            )
            for s in own
        ]
        head = [
            "statistic",
            "predicted",
            "mean, 95% interval",
            "median",
            "std",
            "n",
            "undefined",
        ]
        parts += ["", f"## {test}: all statistics", "", *_table(head, rows), ""]
        parts += [
            f"- {s.statistic}: {reading(s, READINGS)}." for s in own if s.group == "all"
        ]
    return parts


def _table(head: Sequence[str], rows: Sequence[Sequence]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, cells))} |" for cells in lines]
