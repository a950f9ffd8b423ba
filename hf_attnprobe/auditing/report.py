"""An audit as text, JSON or Markdown. Pure: a :class:`Report` in, a string out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from hf_attnprobe.auditing.head_tables import (
    has_heads,
    head_sentences,
    head_tables,
    prune_table,
)
from hf_attnprobe.auditing.ranking_tables import (
    comparison_section,
    comparison_sentences,
    ranked_lines,
    section_in_words,
)
from hf_attnprobe.auditing.verdict import verdict
from hf_attnprobe.faithfulness import readings
from hf_attnprobe.faithfulness.adversarial import EPSILONS
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.statistics.bins import ATTENTION_BINS, bin_names
from hf_attnprobe.statistics.comparisons import Comparison
from hf_attnprobe.statistics.summary import Statistic, key_of, reading
from hf_attnprobe.storage.plain_data import in_words, plain, read


@dataclass(frozen=True)
class Example:
    """One text with its attention and the adversary found for it, all over the same tokens."""

    example_id: int
    tokens: tuple[str, ...]
    label: str | None
    predicted: str
    prob: float
    attention: tuple[float, ...]
    adversary: tuple[float, ...] = ()
    adversary_prob: float | None = None
    adversary_jsd: float | None = None


@dataclass(frozen=True)
class Report:
    """What an audit found. ``print(report)`` gives one line per statistic, ``to_pandas()`` the rows behind them."""

    model: str
    dataset: str
    n: int
    seed: int
    statistics: tuple[Statistic, ...]
    provenance: dict
    examples: tuple[Example, ...] = ()
    prune: PruneCurve | None = None
    comparisons: tuple[Comparison, ...] = ()
    rows: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    def __str__(self) -> str:
        return to_text(self)

    def to_pandas(self) -> pd.DataFrame:
        """The rows: test, statistic, example_id, layer, head, value."""
        return self.rows


def to_json(report: Report) -> dict:
    """Plain data, as ``audit --json`` prints it; NaN becomes None."""
    head = {
        "model": report.model,
        "dataset": report.dataset,
        "n": report.n,
        "seed": report.seed,
    }
    statistics, comparisons = plain(report.statistics), plain(report.comparisons)
    return head | {
        "statistics": statistics,
        "comparisons": comparisons,
        "provenance": report.provenance,
    }


def extras_to_json(report: Report) -> dict:
    """The texts that a report shows and the prune curve; kept beside :func:`to_json` in ``summary.json``."""
    return {"examples": plain(report.examples), "prune": plain(report.prune)}


def from_json(data: dict) -> Report:
    """The inverse of :func:`to_json` and, where they are there, of :func:`extras_to_json`; without the rows."""
    curve = data.get("prune")
    return Report(
        **{k: data[k] for k in ("model", "dataset", "n", "seed", "provenance")},
        statistics=tuple(read(Statistic, s) for s in data["statistics"]),
        examples=tuple(read(Example, e) for e in data.get("examples", [])),
        prune=curve and read(PruneCurve, curve),
        comparisons=tuple(read(Comparison, c) for c in data.get("comparisons", [])),
    )


def to_text(report: Report) -> str:
    """One line per statistic over all texts, a table of rankings, then what was compared and the verdict.

    p-values and most of the frontier are in the tables of :func:`to_markdown`.
    """
    lines = [
        f"{report.model} on {report.dataset}: {report.n} texts, seed {report.seed}",
        *_units_note(report),
        "",
    ]
    if has_heads(report.statistics):
        return "\n".join(
            [*lines, *head_tables(report.statistics), "", *_verdict_lines(report)]
        )
    overall = [s for s in report.statistics if s.group == "all"]
    shown = [
        s
        for s in overall
        if _worth_a_line(s.statistic) and not isinstance(key_of(s.statistic), str)
    ]
    width = max((len(s.statistic) for s in shown), default=0)
    for test in dict.fromkeys(s.test for s in overall):
        lines.append(test)
        own = [
            f"  {s.statistic:<{width}}  {_interval(s):<24} n {s.n:<6} {_undefined(s)}{reading(s, readings())}"
            for s in shown
            if s.test == test
        ]
        own += ranked_lines([s for s in overall if s.test == test])
        lines += own or [f"  undefined for all {report.n} texts"]
    return "\n".join([*lines, "", *_comparison_lines(report), *_verdict_lines(report)])


def _units_note(report: Report) -> list[str]:
    if report.provenance.get("units") != "sentences":
        return []
    return [
        "This model's attention weighs sentences: what is called a token here is a sentence."
    ]


def _worth_a_line(statistic: str) -> bool:
    """Not the p-values; of the frontier the two ε that the papers use, and of the rankings attention."""
    key = key_of(statistic)
    return not statistic.partition("@")[0].endswith("_p_value") and key in (
        None,
        "attention",
        *EPSILONS,
    )


def _comparison_lines(report: Report) -> list[str]:
    said = [f"  {line}" for line in comparison_sentences(report.comparisons)]
    title = "Comparisons on the same texts (p ≤ .05 after Holm's correction over those of a test; never is more than all)"
    return [title, *said, ""] if said else []


def _interval(s: Statistic) -> str:
    return f"{s.mean:.3f} [{s.ci95[0]:.3f}, {s.ci95[1]:.3f}]" if s.n else "undefined"


def _undefined(s: Statistic) -> str:
    return f"({s.undefined} undefined) " if s.undefined and s.n else ""


def _verdict_lines(report: Report) -> list[str]:
    lines = _verdict(report)
    return ["Verdict", *(f"  {line}" for line in lines)] if lines else []


def _verdict(report: Report) -> list[str]:
    return (
        head_sentences(report.statistics)
        if has_heads(report.statistics)
        else verdict(report.statistics)
    )


def to_markdown(report: Report) -> str:
    """The report a reader opens first: verdict, tables with readings, texts shown beside their adversaries, provenance."""
    parts = [f"# Does attention explain `{report.model}`?", ""]
    parts += [
        f"{report.n} texts of `{report.dataset}`, seed {report.seed}.",
        *_units_note(report),
        "",
    ]
    parts += [f"- {line}" for line in _verdict(report)]
    if has_heads(report.statistics):  # all the numbers are in summary.json and the rows
        parts += head_tables(report.statistics)
        if report.prune is not None:
            parts += [
                "",
                "### heads silenced together, the least important (zero_tvd) first",
                "",
                *prune_table(report.prune),
            ]
    else:
        for test in dict.fromkeys(s.test for s in report.statistics):
            of_test = [s for s in report.statistics if s.test == test]
            parts += _test_section(
                test, of_test, section_in_words(test, of_test, report.rows)
            )
            parts += comparison_section(test, report.comparisons)
        parts += _bins_section(report.rows)
    parts += _examples_section(report.examples)
    return "\n".join(parts + _provenance_section(report.provenance)) + "\n"


def _test_section(
    test: str, statistics: Sequence[Statistic], in_words: Sequence[str]
) -> list[str]:
    """Of single rankings only the numbers over all texts."""
    if not statistics:
        return []
    rows = [
        f"| {s.statistic} | {s.group} | {_numbers(s)} | {s.n} | {s.undefined} |"
        for s in statistics
        if s.group == "all" or not isinstance(key_of(s.statistic), str)
    ]
    sentences = [
        f"- {s.statistic}: {reading(s, readings())}."
        for s in statistics
        if s.group == "all" and _worth_a_line(s.statistic)
    ]
    head = [
        "| statistic | predicted | mean | 95% interval | median | std | n | undefined |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return ["", f"## {test}", *in_words, "", *head, *rows, "", *sentences]


def _numbers(s: Statistic) -> str:
    if not s.n:
        return "– | – | – | –"
    return f"{s.mean:.3f} | [{s.ci95[0]:.3f}, {s.ci95[1]:.3f}] | {s.median:.3f} | {s.std:.3f}"


def _bins_section(rows: pd.DataFrame) -> list[str]:
    """Output change and room for adversaries by the largest weight of the one head, as in the papers' violin plots."""
    shown = {
        "median_tvd": "median Δŷ under shuffling",
        "epsilon_max_jsd@0.05": "ε-max JSD (ε = .05)",
    }
    if not len(rows):
        return []
    wanted = rows[rows.statistic.isin(["max_attention", *shown])]
    wide = wanted.pivot_table(index="example_id", columns="statistic", values="value")
    shown = {k: v for k, v in shown.items() if k in wide}
    if "max_attention" not in wide or not shown:
        return []
    names = bin_names()
    bins = pd.cut(wide.max_attention, ATTENTION_BINS, right=False, labels=names).fillna(
        names[-1]
    )  # exactly 1
    medians, counts = (
        wide.groupby(bins, observed=True)[list(shown)].median(),
        bins.value_counts(),
    )
    lines = [
        "",
        "## by largest attention weight",
        "",
        f"| largest weight | n | {' | '.join(shown.values())} |",
    ]
    lines.append("|" + "---|" * (len(shown) + 2))
    lines += [
        f"| {b} | {counts[b]} | {' | '.join(f'{v:.3f}' for v in medians.loc[b])} |"
        for b in medians.index
    ]
    return lines


def _examples_section(examples: Sequence[Example]) -> list[str]:
    parts = ["", "## texts"] if examples else []
    for e in examples:
        truth = "" if e.label is None else f", labelled {e.label}"
        parts += [
            "",
            f"Text {e.example_id}{truth}: predicted {e.predicted} with probability {e.prob:.3f}.",
            "",
        ]
        parts += [f"- attention: {_weights(e.tokens, e.attention)}"]
        if e.adversary:
            parts += [
                f"- adversary (JSD {e.adversary_jsd:.2f}, probability {e.adversary_prob:.3f}): {_weights(e.tokens, e.adversary)}"
            ]
    return parts


def _weights(
    tokens: Sequence[str], weights: Sequence[float], *, shown: float = 0.05
) -> str:
    """The text with the weights that are worth a look."""
    return " ".join(
        f"**{t}** ({w:.2f})" if w >= shown else t
        for t, w in zip(tokens, weights, strict=True)
    )


def _provenance_section(provenance: dict) -> list[str]:
    return [
        "",
        "## provenance",
        "",
        *(f"- {name}: {in_words(value)}" for name, value in provenance.items()),
    ]
