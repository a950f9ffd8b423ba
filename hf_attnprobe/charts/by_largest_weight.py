"""How far the output, or attention, moves, by the largest attention weight. Pure."""

import pandas as pd

from hf_attnprobe.charts.chart import Chart, Reference, Series
from hf_attnprobe.charts.evidence import (
    EXACT,
    Evidence,
    kind_of_distance,
    series_of_medians,
)
from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.statistics.summary import attention_bin, bin_names


BARS = "middle half of the texts"
X_LABEL = "largest attention weight of the text"


def permutation_by_max_attention(evidence: Evidence) -> Chart | None:
    """Median change of the output under shuffles, in four bins; None without values."""
    if not {"median_tvd", "max_attention"} <= set(evidence.values):
        return None
    measured = evidence.words.measured
    return Chart(
        key="permutation_by_max_attention",
        title="Output change when the weights are shuffled over the tokens",
        finding=_finding(
            evidence,
            "median_tvd",
            "Shuffling which token gets which weight moves the output by",
            "0 says that it does not matter which token got which weight.",
        ),
        source="Jain & Wallace 2019, Figure 6",
        kind="dots",
        x_label=X_LABEL,
        y_label=f"output change, median over shuffles ({measured})",
        series=(*_by_bin(evidence, "median_tvd"), *_published(evidence)),
        bars=BARS,
        y_range=None if evidence.words.is_number else (0.0, 1.0),
    )


def distance_by_max_attention(evidence: Evidence, epsilon: str) -> Chart | None:
    """How far attention can be moved within ε, in four bins; None without values."""
    column = f"epsilon_max_jsd@{epsilon}"
    if column not in evidence or "max_attention" not in evidence:
        return None
    references: tuple[Reference, ...] = ()
    yardstick = ""
    if "largest_jsd" in evidence:
        ceiling = float(evidence.values.largest_jsd.median())
        references = (Reference("median of the farthest attention of all", ceiling),)
        yardstick = (
            f"The nearer to {ceiling:.2f}, the median of the farthest attention of all, "
            "the less the output pins the weights down."
        )
    return Chart(
        key="adversarial_by_max_attention",
        title=f"How far attention can be moved with the output within {epsilon}",
        finding=_finding(
            evidence,
            column,
            f"With the output within {epsilon} attention can be moved by a JSD of",
            yardstick,
            least="" if kind_of_distance(evidence) == EXACT else "at least ",
        ),
        source="Jain & Wallace 2019, Figure 8",
        kind="dots",
        x_label=X_LABEL,
        y_label=f"ε-max JSD (ε = {epsilon}), nats",
        series=tuple(_by_bin(evidence, column)),
        references=references,
        bars=BARS,
        y_range=(0.0, 0.7),
    )


def _in_bins(texts: pd.DataFrame, column: str) -> dict[str, pd.Series]:
    """A column's values by the bin of the largest weight, in the order of the bins."""
    both = texts[[column, "max_attention"]].dropna()
    bins = attention_bin(both.max_attention).astype(str)
    return {name: both[column][bins == name] for name in bin_names()}


def _by_bin(evidence: Evidence, column: str) -> list[Series]:
    return [
        series_of_medians(group.name, _in_bins(group.values, column))
        for group in evidence.groups
        if len(group.values)
    ]


def _published(evidence: Evidence) -> list[Series]:
    """The authors' reruns, by class, in the bins where they have texts."""
    if evidence.published is None:
        return []
    encoder, found = evidence.published.encoder, []
    for group in evidence.groups:
        medians = [
            evidence.published.of_class(PUBLISHED.permutation, encoder, name, number=group.number)
            for name in bin_names()
        ]
        if any(m is not None for m in medians):
            y = tuple(float("nan") if m is None else m for m in medians)
            found.append(Series(f"published, {group.name}", tuple(bin_names()), y))
    return found


def _finding(
    evidence: Evidence, column: str, begin: str, yardstick: str, *, least: str = ""
) -> str:
    """The median of the lowest and of the highest bin that has texts."""
    bins = _in_bins(evidence.values, column)
    held = [name for name, texts in bins.items() if len(texts)]
    said = " and ".join(
        f"{least}{bins[name].median():.2f} in the {_texts(len(bins[name]))} whose "
        f"largest weight is in {name}"
        for name in dict.fromkeys([*held[:1], *held[-1:]])
    )
    return f"{begin} {said} (medians over texts). {yardstick}".rstrip()


def _texts(n: int) -> str:
    return "one text" if n == 1 else f"{n} texts"
