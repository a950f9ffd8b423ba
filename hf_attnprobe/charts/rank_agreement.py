"""Does attention rank the tokens as importance does? Histograms of τ. Pure."""

import numpy as np

from hf_attnprobe.charts.chart import Chart, Reference, Series
from hf_attnprobe.charts.evidence import NOTHING, Evidence, Group, said
from hf_attnprobe.published import PUBLISHED


WIDTH = 0.1
EDGES = np.linspace(-1, 1, 21).round(10)
MEASURES = {
    "leave_one_out": (
        "leaving tokens out",
        "Jain & Wallace 2019, Table 2 (drawn as in Figure 2)",
    ),
    "gradient": ("gradients", "Jain & Wallace 2019, Figure 2"),
}


def tau_histogram(evidence: Evidence, measure: str) -> Chart | None:
    """Kendall τ-b of attention with a measure of importance, by predicted class.

    Args:
        evidence: of one site.
        measure: ``leave_one_out`` or ``gradient``.

    Returns:
        None without such values.
    """
    column = f"attention_{measure}_tau"
    if column not in evidence:
        return None
    name, source = MEASURES[measure]
    groups = [g for g in evidence.groups if g.values[column].notna().any()]
    return Chart(
        key=f"tau_{measure}",
        title=f"Rank correlation of attention with {name}",
        finding=_finding(evidence, groups, measure),
        source=source,
        kind="histogram",
        x_label=f"Kendall τ with {name}",
        y_label="share of texts",
        series=tuple(_histogram(group, column) for group in groups),
        references=(Reference("chance", 0.0, "x"), *_published(evidence, measure)),
        x_range=(-1.0, 1.0),
        bin_width=WIDTH,
    )


def _histogram(group: Group, column: str) -> Series:
    taus = group.values[column].dropna().to_numpy()
    counts, _ = np.histogram(taus, EDGES)
    shares = counts / len(taus)
    places = tuple(EDGES[:-1].tolist())
    return Series(group.name, places, tuple(shares.tolist()), n=tuple(counts.tolist()))


def _published(evidence: Evidence, measure: str) -> list[Reference]:
    """The paper's mean of each class that is drawn."""
    if evidence.published is None:
        return []
    encoder, found = evidence.published.encoder, []
    for group in evidence.groups:
        numbers = evidence.published.of_class(PUBLISHED.tau, measure, encoder, number=group.number)
        if numbers is not None:
            found.append(Reference(f"published, {group.name}", numbers[0], "x"))
    return found


def _finding(evidence: Evidence, groups: list[Group], measure: str) -> str:
    column, significant = (
        f"attention_{measure}_tau",
        f"attention_{measure}_significant",
    )
    parts = []
    for group in groups:
        tau = group.means[column]
        share = group.means.get(significant, NOTHING)
        sure = f", {share.value:.0%} of them significant" if share.n else ""
        parts.append(f"{said(tau)} for {group.name} ({tau.n} texts{sure})")
    n_undefined = int(evidence.values[column].isna().sum())
    left_out = ""
    if n_undefined:
        are = "text without a τ is" if n_undefined == 1 else "texts without a τ are"
        left_out = f" {n_undefined} {are} left out."
    by_chance = evidence.mean("significant_by_chance")
    chance = "0 is chance and 1 the same order"
    if by_chance.n:
        chance += (
            "; orders that have nothing to do with each other agree significantly in "
            f"{by_chance.value:.1%} of texts"
        )
    return f"Mean τ is {', '.join(parts)}. {chance}.{left_out}"
