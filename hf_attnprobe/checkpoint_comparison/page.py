"""Several checkpoints on one page. Pure: a comparison in, a string out."""

from collections.abc import Iterator

from hf_attnprobe.charts.chart import Chart, Series
from hf_attnprobe.checkpoint_comparison.report import (
    ADVERSARY_NOTE,
    COLUMNS,
    IN_POINTS,
    CheckpointComparison,
    adversary_table,
    can_be_told,
    difference_note,
    difference_table,
    notes,
    number_table,
    to_json,
)
from hf_attnprobe.page import elements
from hf_attnprobe.page.document import document
from hf_attnprobe.page.html import Html, tag
from hf_attnprobe.statistics.estimates import Estimate


LEAD = (
    "The same tests on several trained checkpoints, on the same texts: how good each is, "
    "how much other attention changes of it, and how far its attention can be moved with "
    "nearly the same output."
)
DRAWN = ("f1", "uniform_change", "permuted_change", "accuracy", "share_of_largest@0.01")
"""Numbers that have a chart."""


def checkpoint_page(comparison: CheckpointComparison) -> str:
    """The page of a comparison of checkpoints: one self-contained HTML file."""
    checkpoints = comparison.checkpoints
    n = len(checkpoints)
    title = f"{n} checkpoints" if n > 1 else "1 checkpoint"
    title += f" on {comparison.dataset}"
    texts = f"{comparison.n} texts, seed {comparison.seed}."
    own = elements.table(*number_table(checkpoints), caption="Every checkpoint")
    head, rows = difference_table(checkpoints)
    adversaries = adversary_table(checkpoints)
    return document(
        title,
        tag("header", tag("h1", title), *elements.paragraphs([LEAD, texts])),
        elements.section(
            "What differs from the first checkpoint",
            elements.bullets(_told(comparison)),
            elements.table(head, rows, caption="Differences") if rows else None,
            tag("p", difference_note(checkpoints)) if rows else None,
            id="differences",
        ),
        elements.section(
            "Every checkpoint",
            own,
            *elements.paragraphs(notes(checkpoints)),
            id="checkpoints",
        ),
        elements.section(
            "The numbers as charts",
            *(elements.figure(chart) for chart in charts(comparison)),
            id="charts",
        ),
        elements.section("Trained adversaries", *_adversaries(adversaries), id="curve"),
        data=to_json(comparison),
    )


def _adversaries(table: tuple[list[str], list[list[str]]]) -> list[Html]:
    """How far each attends; nothing without any."""
    if not table[1]:
        return []
    caption = "Distance of attention and output from the checkpoint's own"
    return [elements.table(*table, caption=caption), tag("p", ADVERSARY_NOTE)]


def _told(comparison: CheckpointComparison) -> Iterator[str]:
    """Of every checkpoint behind the first, what is surely higher or lower."""
    first = comparison.checkpoints[0].name
    for c in comparison.checkpoints[1:]:
        higher: list[str] = []
        lower: list[str] = []
        for name, difference in c.differences.items():
            if name in COLUMNS and can_be_told(difference):
                side = higher if difference.value > 0 else lower
                side.append(COLUMNS[name])
        said = [f"higher in {', '.join(higher)}"] if higher else []
        said += [f"lower in {', '.join(lower)}"] if lower else []
        told = "; ".join(said) or "cannot be told apart in any number"
        yield f"{c.name} ({c.model}) against {first}: {told}."


def charts(comparison: CheckpointComparison) -> Iterator[Chart]:
    """A chart per number, with the checkpoints side by side."""
    checkpoints = comparison.checkpoints
    if len(checkpoints) < 2:
        return
    places = tuple(f"{k}. {c.name}" for k, c in enumerate(checkpoints, 1))
    for name in DRAWN:
        found = [c.found.get(name) for c in checkpoints]
        if all(e is None for e in found):
            continue
        scale = 100 if name in IN_POINTS else 1
        ends = [_ends(e, scale) for e in found]
        values, low, high = (tuple(e[k] for e in ends) for k in range(3))
        finding = ", ".join(
            f"{place} {value:.3g}" for place, value in zip(places, values, strict=True)
        )
        yield Chart(
            key=f"checkpoints_{name.partition('@')[0]}",
            title=COLUMNS[name],
            finding=f"{finding}. Bars are 95% intervals of each over texts; whether two "
            "differ is told by the paired differences above.",
            source="Tutek & Šnajder 2020",
            kind="dots",
            x_label="checkpoint",
            y_label=f"{COLUMNS[name]}{', points' if scale == 100 else ''}",
            series=(Series("checkpoints", places, values, low, high),),
        )


def _ends(estimate: Estimate | None, scale: int) -> tuple[float, float, float]:
    nan = float("nan")
    if estimate is None:
        return nan, nan, nan
    low, high = estimate.ci95 or (nan, nan)
    return scale * estimate.value, scale * low, scale * high
