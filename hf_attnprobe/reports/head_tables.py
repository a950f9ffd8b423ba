"""Single heads and groups of heads: which count, in sentences, on maps and in one table. Pure.

Whoever reads a map looks for its largest number, so its intervals hold for all heads at
once; see :mod:`hf_attnprobe.statistics.heads`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.documents.blocks import Cell, Number, Section, Table
from hf_attnprobe.plots.chart import Grid, HeatMap
from hf_attnprobe.statistics.estimates import (
    Estimate,
    share_interval,
)
from hf_attnprobe.statistics.grades import MIN_TEXTS, Rule
from hf_attnprobe.statistics.heads import (
    ALL,
    EFFECT,
    EVERYWHERE,
    SET,
    Judged,
    Place,
    simultaneous,
)
from hf_attnprobe.statistics.summary import ALL_TEXTS, Statistic
from hf_attnprobe.statistics.wording import CLASSES, Words


if TYPE_CHECKING:
    from hf_attnprobe.faithfulness.head_ablation import PruneCurve
    from hf_attnprobe.reports.result import AuditResult

EDITS = {
    "median_tvd": "shuffled",
    "uniform_tvd": "made even",
    "zero_tvd": "zeroed",
    "mean_tvd": "averaged",
    "resample_tvd": "taken from another text",
}
"""What is done to a head, by the statistic that says how far it moves the output as it is."""


def head_name(place: Place) -> str:
    """Returns a head's name in reports: layer and head, both from 0.

    >>> head_name((5, 3))
    '5.3'
    """
    return f"{place[0]}.{place[1]}"


def in_full(place: Place) -> str:
    """Returns the same in words, for a sentence.

    >>> in_full((5, 3))
    'layer 5 head 3'
    """
    return f"layer {place[0]} head {place[1]}"


def at_places(statistics: Sequence[Statistic], name: str) -> dict[Place, Statistic]:
    """A statistic over all texts by (layer, head), including groups of heads."""
    return {s.place: s for s in statistics if s.statistic == name and s.group == ALL_TEXTS and s.n}


def by_head(statistics: Sequence[Statistic], name: str) -> dict[Place, float]:
    """Mean of a statistic over all texts by (layer, head), without groups."""
    found = at_places(statistics, name)
    return {place: s.mean for place, s in found.items() if s.is_of_head}


def heads_of(statistics: Iterable[Statistic]) -> set[Place]:
    """Single heads that have a statistic, including those only screened."""
    return {s.place for s in statistics if s.is_of_head}


def tested_heads(statistics: Iterable[Statistic]) -> set[Place]:
    """Heads tested one by one, not only screened."""
    return heads_of(s for s in statistics if s.test != "screen")


def has_several(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has several heads, tested one by one or as groups."""
    has_group = any(s.head < 0 and s.n for s in statistics)
    return has_group or len(heads_of(statistics)) > 1


# --- which heads count ------------------------------------------------------------------------------

MOST_NAMED = 5


def which_heads(report: "AuditResult") -> str:
    """Returns which heads move the output, and which of these are faithful; "" without heads."""
    heads = [each for each in report.judged if each.is_head]
    if len(heads) < 2:
        return ""
    effect, faithfulness = report.rules["effect"], report.rules["faithfulness"]
    moving = [each for each in heads if is_surely(each.effect, effect)]
    said = _moving(heads, len(moving), effect)
    if moving:
        said += f"; {_faithful(heads, faithfulness)}"
    return f"{said}.{_untested(report, len(heads))}"


def _moving(heads: Sequence[Judged], n_sure: int, rule: Rule) -> str:
    """Returns how many heads surely move the output, and which moves it most where none does."""
    measured = [each for each in heads if each.effect.n]
    if not measured:
        return "How far single heads move the output was not measured (test permutation)"
    moves = f"the output surely by {rule.yes:.2f} or more when shuffled alone"
    if n_sure:
        verb = "moves" if n_sure == 1 else "move"
        return f"{n_sure} of {len(measured)} heads {verb} {moves}"
    most = max(measured, key=lambda each: each.effect.value)
    number = markdown.interval(most.effect.value, most.effect.ci95, digits=2)
    foremost = f"{in_full(most.place)} moves it most, by {number}"
    if most.effect.ci95 is None:
        return (
            f"Of {len(heads)} heads {len(measured)} were shuffled, on fewer than {MIN_TEXTS} "
            f"texts; none surely moves the output, {foremost}"
        )
    return f"None of {len(measured)} heads moves {moves}; {foremost}"


def _faithful(heads: Sequence[Judged], rule: Rule) -> str:
    """Returns how many of the heads that move the output are surely faithful, and which."""
    if not any(each.faithfulness.n for each in heads):
        return "their faithfulness was not measured (test scale)"
    named = sorted((h for h in heads if h.is_named), key=lambda h: -h.faithfulness.value)
    if not named:
        return f"none of these is surely faithful ({rule.partly:.2f} or more)"
    told = [f"{in_full(h.place)} ({h.faithfulness.value:.2f})" for h in named[:MOST_NAMED]]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    faithful = f"of these surely faithful ({rule.partly:.2f} or more)"
    return f"{faithful}: {', '.join(told)}{more}"


def is_surely(estimate: Estimate, rule: Rule) -> bool:
    """Returns whether the whole interval reaches the lowest threshold."""
    return estimate.ci95 is not None and estimate.ci95[0] >= rule.partly


def _untested(report: "AuditResult", n_tested: int) -> str:
    """Returns that only some heads were tested."""
    n = len(heads_of(report.statistics))
    if n <= n_tested:
        return ""
    return f" Only {n_tested} of {n} heads were tested one by one."


# --- maps: faithfulness and effect, layers down and heads across ---------------------------


FAITHFULNESS_MAP, EFFECT_MAP = "heads_faithfulness", f"heads_{EFFECT}"
EFFECT_TITLE = "Effect of shuffling one head's attention"


class MapOfHeads(NamedTuple):
    """What a map of heads is of.

    Attributes:
        rule: of the number, and the name of the number among those of a head.
        key, title: of the map.
        aside: what the number does not say by itself.
        centre: the value in the middle of two colours; None for one colour.
    """

    rule: str
    key: str
    title: str
    aside: str
    centre: float | None = None


MAPS = (
    MapOfHeads(
        "faithfulness",
        FAITHFULNESS_MAP,
        "Faithfulness of single heads",
        "A head that moves nothing explains nothing, however faithful.",
        centre=0.0,
    ),
    MapOfHeads(
        "effect",
        EFFECT_MAP,
        EFFECT_TITLE,
        "Single heads may move little because others make up for them.",
    ),
)


def head_maps(judged: Sequence[Judged], rules: Mapping[str, Rule]) -> tuple[HeatMap, ...]:
    """Returns a map of faithfulness and one of the effect, each where two heads have it.

    Args:
        judged: heads and groups of an audit.
        rules: of effect and faithfulness.
    """
    heads = [each for each in judged if each.is_head]
    maps = []
    for of in MAPS:
        rule = rules[of.rule]
        numbers = {each.place: getattr(each, of.rule) for each in heads}
        found = {place: number for place, number in numbers.items() if number.n}
        if len(found) > 1:
            drawn = head_map(
                of.key,
                of.title,
                numbers,
                f"{_finding(found)} {of.aside}",
                rule.scale_of,
                of.centre,
                rule.partly,
            )
            maps.append(drawn)
    return tuple(maps)


def head_map(
    key: str,
    title: str,
    found: Mapping[Place, Estimate],
    finding: str,
    value_label: str,
    centre: float | None = None,
    threshold: float | None = None,
) -> HeatMap:
    """Returns the map of one number; heads without it are empty cells."""
    layers, heads = (range(1 + max(side)) for side in zip(*found, strict=True))
    nothing = math.nan, math.nan
    unknown = Estimate(math.nan, nothing)
    cells = [[found.get((k, h), unknown) for h in heads] for k in layers]

    def grid(part_of: Callable[[Estimate], float]) -> Grid:
        return tuple(tuple(map(part_of, row)) for row in cells)

    has_ends = any(estimate.ci95 for estimate in found.values())
    low = grid(lambda estimate: (estimate.ci95 or nothing)[0])
    high = grid(lambda estimate: (estimate.ci95 or nothing)[1])
    return HeatMap(
        key=key,
        title=title,
        finding=finding,
        source="",
        values=grid(lambda estimate: estimate.value),
        low=low if has_ends else (),
        high=high if has_ends else (),
        value_label=value_label,
        layers=tuple(layers),
        heads=tuple(heads),
        centre=centre,
        threshold=threshold,
    )


def _finding(found: Mapping[Place, Estimate]) -> str:
    """Returns which head is foremost, and of what the intervals hold."""
    most = max(found, key=lambda place: found[place].value)
    value, ends = found[most].value, found[most].ci95
    number = markdown.interval(value, ends, digits=2)
    said = f"The foremost is {head_name(most)} (layer.head, from 0) with {number}."
    if ends is None:
        return f"{said} Too few texts for intervals, so nothing is sure."
    return f"{said} 95% intervals hold for all heads at once."


# --- parts of a prediction, and names of places -------------------------------------------


BY_PART = {
    "median_tvd_of": "shuffled: moves by",
    "uniform_tvd_of": "uniform: moves by",
}
MOST_PARTS = 20


def part_section(statistics: Sequence[Statistic]) -> Section:
    """How each part of a prediction moves with all attention; of 20 parts at most."""
    several = has_several(statistics)
    of_all = [s for s in statistics if s.n and (s.place == EVERYWHERE or not several)]
    columns: dict[str, dict[str, Statistic]] = {}
    for s in of_all:
        family, _, part = s.statistic.partition("@")
        if family in BY_PART and s.group == ALL_TEXTS:
            columns.setdefault(family, {})[part] = s
    parts = list(dict.fromkeys(chain.from_iterable(columns.values())))
    parts.sort(key=lambda part: -max(v[part].mean for v in columns.values()))
    rows = [[part, *(v.get(part) for v in columns.values())] for part in parts[:MOST_PARTS]]
    n_left = len(parts) - len(rows)
    left = f" {n_left} more are in summary.json." if n_left else ""
    note = f"Total variation distance of each alone, 0 to 1; the most first.{left}"
    title = "All attention edited: what is said of each part"
    table = Table(["of", *(BY_PART[family] for family in columns)], rows)
    return Section(title, [table, note] if rows else [])


def place_name(place: Place, head_sets: Sequence[str]) -> str:
    """``layer.head``, or the name of a group of heads.

    >>> place_name((3, 9), []), place_name((3, -1), []), place_name((-1, -1), [])
    ('3.9', 'layer 3', 'all attention')
    >>> place_name((-2, 0), ["5.0+5.3"])
    'heads 5.0+5.3'
    """
    layer, head = place
    if min(place) >= 0:
        return head_name(place)
    if place == EVERYWHERE:
        return "all attention"
    if layer == SET:
        return f"heads {head_sets[head]}" if head < len(head_sets) else f"set {head}"
    return f"layer {layer}"


def order_of(place: Place) -> tuple[int, Place]:
    """All attention first, then layers, sets."""
    layer, _ = place
    return (0 if layer == ALL else 1 if layer >= 0 else 2), place


# --- heads and groups by effect and faithfulness --------------------------------------------


HOW_TO_READ = (
    "A head is named layer.head, both from 0. Effect: how far shuffling its weights moves the "
    "output, the median shuffle and the worst; faithfulness: its order's place between a random "
    "one (0) and the best (1), the mean of its parts. The answer is as of all attention, by both "
    "numbers. Intervals of single heads hold for all heads at once (simultaneous, 95%), so the "
    "foremost may be looked for; those of groups hold for each group by itself. The heads of a "
    "group are shuffled together. The more heads are edited, the less is the model inside what "
    "it was trained on. Roles (previous token, induction, …) are attention, 0 to 1: where a head "
    "looks says nothing of what it causes."
)
MOST_HEADS = 40
"""Rows of single heads in a table; the maps have all."""


def head_table(report: "AuditResult") -> Table:
    """Returns heads and groups in rows: effect, faithfulness, its parts, other edits, roles.

    Groups come first, then the named heads, then those that move the output most.
    """
    # with torch, which charts alone do not need
    from hf_attnprobe.faithfulness.head_roles import ROLES

    judged = {each.place: each for each in report.judged}
    looks = {role.replace("_", " "): at_places(report.statistics, role) for role in ROLES}
    zeroed = at_places(report.statistics, "zero_tvd")
    every: dict[str, Mapping[Place, Cell]] = {
        **_judged_columns(report.judged),
        **_edited_columns(report),
        **looks,
    }
    columns = {name: cells for name, cells in every.items() if any(cells.values())}
    places = {place for cells in columns.values() for place in cells}
    groups = sorted((place for place in places if min(place) < 0), key=order_of)
    heads = sorted(place for place in places if min(place) >= 0)
    heads.sort(key=lambda place: _rank(judged.get(place), zeroed.get(place)))
    sets = report.provenance.get("head_sets") or []
    rows = [
        [
            place_name(place, sets),
            *(cells.get(place) for cells in columns.values()),
        ]
        for place in [*groups, *heads[:MOST_HEADS]]
    ]
    left_out = f"{MOST_HEADS} of {len(heads)} heads; " if len(heads) > MOST_HEADS else ""
    caption = f"{left_out}means over texts [95% interval]; all numbers: attnprobe report FOLDER --output numbers.csv"
    return Table(["head", *columns], rows, caption)


def _judged_columns(
    judged: Sequence[Judged],
) -> dict[str, dict[Place, Cell]]:
    """Returns the cells of what is judged, by column and place."""
    is_placed = any(each.faithfulness.n for each in judged)
    columns: dict[str, dict[Place, Cell]] = {}
    for each in judged:
        numbers = {
            "effect": each.effect,
            "worst shuffle": each.worst,
            "faithfulness": each.faithfulness,
        }
        parts = {key: Number(part.value, digits=2) for key, part in each.parts.items()}
        cells = {
            "answer": each.answer if is_placed else None,
            **{name: _two_digits(number) for name, number in numbers.items()},
            **parts,
        }
        for name, cell in cells.items():
            columns.setdefault(name, {})[each.place] = cell
    columns["texts"] = {each.place: each.n for each in judged}
    return columns


def _edited_columns(report: "AuditResult") -> dict[str, dict[Place, Cell]]:
    """Returns how far other edits move the output as it is, by what is done and place.

    Heads that are zeroed have intervals that hold for all of them at once.
    """
    ends = simultaneous(report.rows.of_heads("zero_tvd"))
    columns: dict[str, dict[Place, Cell]] = {}
    for name, done in EDITS.items():
        if name != "median_tvd":
            found = at_places(report.statistics, name)
            known = ends if name == "zero_tvd" else {}
            columns[done] = {p: Number(s.mean, known.get(p), digits=2) for p, s in found.items()}
    return columns


def _two_digits(estimate: Estimate) -> Number | None:
    if not estimate.n:
        return None
    return Number(estimate.value, estimate.ci95, digits=2)


def _rank(head: Judged | None, zeroed: Statistic | None) -> tuple[bool, float]:
    """Returns a sort key: named heads first, then those that move the output most."""
    if head is not None and head.effect.n:
        return not head.is_named, -head.effect.value
    return True, 0.0 if zeroed is None else -zeroed.mean


# --- heads removed one after the other --------------------------------------------------


def prune_table(curve: "PruneCurve", words: Words = CLASSES) -> Table:
    """Accuracy by the number of heads removed.

    Where a text has several labels, accuracy is a mean of shares and has no interval of
    a share of texts.
    """
    rows: list[list[Cell]] = [
        [
            n,
            _share(kept, curve.n_texts),
            Number(right) if words.has_parts else _share(right, curve.n_labelled),
        ]
        for n, kept, right in zip(curve.n_removed, curve.agreement, curve.accuracy, strict=True)
    ]
    accuracy = f"accuracy{words.aside if words.has_parts else ''}"
    return Table(["heads removed", "predictions kept", accuracy], rows, sortable=False)


def prune_title(curve: "PruneCurve") -> str:
    """What the table of the prune curve is of."""
    title = "heads zero-ablated together, the least important (zero_tvd) first"
    if curve.crossed:
        title += f"; {curve.n_texts} texts, crossed: each half's order comes from the other half"
    return title


def _share(share: float, n_texts: int) -> Number:
    """A share of texts with its interval; without, if no text counts."""
    if not n_texts:
        return Number(share)
    hits = np.array(round(share * n_texts))
    low, high = share_interval(hits, np.array(n_texts)).tolist()
    return Number(share, (low, high))
