"""Could attention have looked elsewhere? Distances beside their ceiling. Pure."""

import math

import numpy as np

from hf_attnprobe.charts.chart import Chart, Reference, Series
from hf_attnprobe.charts.evidence import EXACT, Evidence, kind_of_distance
from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.statistics.summary import key_of


LN_2 = math.log(2)
GRID = np.append(np.arange(0, 0.69, 0.02).round(2), LN_2)
ROUNDING = 1e-9  # a distance is reached up to rounding
PAPERS_EPSILONS = (0.01, 0.05)
PUBLISHED_EPSILON = 0.05  # that the authors' code evaluates at
MOST_EPSILONS = 3


def shown_epsilons(evidence: Evidence) -> list[str]:
    """The papers' ε where they were tried, else up to three that were, as keys."""
    names = [n for n in evidence.values if n.startswith("epsilon_max_jsd@")]
    keys = sorted((n.partition("@")[2] for n in names), key=float)
    papers = [key for key in keys if float(key) in PAPERS_EPSILONS]
    return papers or keys[:MOST_EPSILONS]


def adversarial_distance(evidence: Evidence) -> Chart | None:
    """The share of texts whose attention can be moved at least so far, for each ε.

    A line of each ε, a second one where what is found and what cannot be exceeded
    differ, and one of the farthest attention of all.
    """
    epsilons = shown_epsilons(evidence)
    if not epsilons:
        return None
    kind = kind_of_distance(evidence)
    series = []
    for key in epsilons:
        series.append(_line(evidence, f"epsilon_max_jsd@{key}", f"ε = {key}, {kind}"))
        upper = f"epsilon_max_jsd_upper@{key}"
        if upper in evidence:
            series.append(_line(evidence, upper, f"ε = {key}, at most"))
    if "largest_jsd" in evidence:
        series.append(_line(evidence, "largest_jsd", "any output (ceiling)"))
    return Chart(
        key="adversarial_distance",
        title="How far attention can be moved with nearly the same output",
        finding=_finding(evidence, epsilons, kind),
        source="Jain & Wallace 2019, Figure 7 (there as densities)",
        kind="curve",
        x_label="JSD from the model's attention, nats",
        y_label="share of texts moved at least so far",
        series=tuple(series),
        references=tuple(_published(evidence)),
        x_range=(0.0, LN_2),
        y_range=(0.0, 1.0),
    )


def _line(evidence: Evidence, column: str, name: str) -> Series:
    values = evidence.values[column].dropna().to_numpy()
    reached = len(values) - np.searchsorted(np.sort(values), GRID - ROUNDING)
    shares = reached / len(values)
    return Series(name, tuple(GRID.tolist()), tuple(shares.tolist()))


def _published(evidence: Evidence) -> list[Reference]:
    """The authors' medians at ε = .05, by predicted class."""
    drawn = [key_of(n) for n in evidence.values if n.startswith("epsilon_max_jsd@")]
    if evidence.published is None or PUBLISHED_EPSILON not in drawn:
        return []
    found = []
    for group in evidence.groups:
        encoder = evidence.published.encoder
        median = evidence.published.of_class(
            PUBLISHED.epsilon_max_jsd, encoder, number=group.number
        )
        if median is not None:
            name = f"published median (ε = .05), {group.name}"
            found.append(Reference(name, median, "x"))
    return found


def _finding(evidence: Evidence, epsilons: list[str], kind: str) -> str:
    parts = []
    for key in epsilons:
        column = evidence.values[f"epsilon_max_jsd@{key}"]
        least = "" if kind == EXACT else "at least "
        parts.append(f"{least}{column.median():.2f} within ε = {key}")
    n = int(evidence.values[f"epsilon_max_jsd@{epsilons[0]}"].notna().sum())
    sentence = f"Median distance over {n} texts: {', '.join(parts)} ({evidence.words.distance})"
    if "largest_jsd" in evidence:
        ceiling = evidence.values.largest_jsd.median()
        sentence += f"; with any output whatever {ceiling:.2f}"
    how = {
        EXACT: "These are exact maxima.",
        "found": "These are the farthest that were found, so lower bounds.",
    }.get(kind, f"They are {kind}, which is a lower bound.")
    return (
        f"{sentence}. A line near the ceiling says that the output hardly pins "
        f"attention down. {how}"
    )
