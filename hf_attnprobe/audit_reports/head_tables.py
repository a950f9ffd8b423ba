"""Tables of the effects of single heads and groups. Pure: statistics and rows in."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from hf_attnprobe.attention_model import SET
from hf_attnprobe.audit_reports.heads import (
    EDITS,
    at_places,
    head_name,
    values_by_head,
)
from hf_attnprobe.audit_reports.result import AuditResult
from hf_attnprobe.faithfulness.adversarial import EPSILONS
from hf_attnprobe.faithfulness.head_roles import ROLES
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.reports.document import Cell, Number, Section, Table
from hf_attnprobe.statistics.estimates import Estimate, share_interval
from hf_attnprobe.statistics.heads import (
    ALL,
    EVERYWHERE,
    Judged,
    Place,
    simultaneous,
)
from hf_attnprobe.statistics.summary import ALL_TEXTS, Statistic, key_of
from hf_attnprobe.statistics.wording import CLASSES, Words


BY_PART = {
    "median_tvd_of": "shuffled: moves by",
    "uniform_tvd_of": "uniform: moves by",
}
MOST_PARTS = 20


# --- parts of a prediction, and names of places -------------------------------------------


def part_section(statistics: Sequence[Statistic]) -> Section:
    """How each part of a prediction moves with all attention; of 20 parts at most."""
    columns: dict[str, dict[str, Statistic]] = {}
    for s in statistics:
        family, _, part = s.statistic.partition("@")
        if (
            family in BY_PART
            and s.n
            and s.group == ALL_TEXTS
            and (s.layer, s.head) == EVERYWHERE
        ):
            columns.setdefault(family, {})[part] = s
    parts = list(
        dict.fromkeys(part for values in columns.values() for part in values)
    )
    parts.sort(key=lambda part: -max(v[part].mean for v in columns.values()))
    rows = [
        [part, *(v.get(part) for v in columns.values())]
        for part in parts[:MOST_PARTS]
    ]
    n_left = len(parts) - len(rows)
    left = f" {n_left} more are in summary.json." if n_left else ""
    note = (
        f"Total variation distance of each alone, 0 to 1; the most first.{left}"
    )
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
        return (
            f"heads {head_sets[head]}"
            if head < len(head_sets)
            else f"set {head}"
        )
    return f"layer {layer}"


def order_of(place: Place) -> tuple[int, Place]:
    """All attention first, then layers, sets, single heads."""
    layer, _ = place
    if min(place) >= 0:
        return 3, place
    return (0 if layer == ALL else 1 if layer >= 0 else 2), place


# --- heads and groups by effect and faithfulness --------------------------------------------


HOW_TO_READ = (
    "A head is named layer.head, both from 0. Effect: how far shuffling its weights moves the "
    "output, the median shuffle and the worst; faithfulness: its order's place between a random "
    "one (0) and the best (1), the mean of its parts. The answer is that of the verdict, by both "
    "numbers. Intervals of single heads hold for all heads at once (simultaneous, 95%), so the "
    "foremost may be looked for; those of groups hold for each group by itself. The heads of a "
    "group are shuffled together. The more heads are edited, the less is the model inside what "
    "it was trained on. Roles (previous token, induction, …) are attention, 0 to 1: where a head "
    "looks says nothing of what it causes."
)
MOST_HEADS = 40
"""Rows of single heads in a table; the maps have all."""


def head_table(report: AuditResult) -> Table:
    """Returns heads and groups in rows: effect, faithfulness, its parts, other edits, roles.

    Groups come first, then the named heads, then those that move the output most.
    """
    judged = {each.place: each for each in report.judged}
    looks = {
        role.replace("_", " "): at_places(report.statistics, role)
        for role in ROLES
    }
    zeroed = at_places(report.statistics, "zero_tvd")
    every: dict[str, Mapping[Place, Cell]] = {
        **_judged_columns(judged),
        **_edited_columns(report),
        **looks,
    }
    columns = {name: cells for name, cells in every.items() if cells}
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
    left_out = (
        f"{MOST_HEADS} of {len(heads)} heads; "
        if len(heads) > MOST_HEADS
        else ""
    )
    caption = f"{left_out}means over texts [95% interval]; all numbers: attnprobe report FOLDER --output numbers.csv"
    return Table(["head", *columns], rows, caption)


def _judged_columns(
    judged: Mapping[Place, Judged],
) -> dict[str, dict[Place, Cell]]:
    """Returns the cells of what is judged, by column and place."""
    measured = {place: each for place, each in judged.items() if each.effect.n}
    placed = {
        place: each for place, each in judged.items() if each.faithfulness.n
    }
    columns: dict[str, dict[Place, Cell]] = {
        "answer": {
            place: each.answer for place, each in judged.items() if placed
        },
        "effect": {
            place: _two_digits(each.effect) for place, each in measured.items()
        },
        "worst shuffle": {
            place: _two_digits(each.worst) for place, each in measured.items()
        },
        "faithfulness": {
            place: _two_digits(each.faithfulness)
            for place, each in placed.items()
        },
    }
    for place, each in judged.items():
        for key, part in each.parts.items():
            columns.setdefault(key, {})[place] = Number(part.value, digits=2)
    columns["texts"] = {place: each.n for place, each in judged.items()}
    return columns


def _edited_columns(report: AuditResult) -> dict[str, dict[Place, Cell]]:
    """Returns how far other edits move the output as it is, by what is done and place.

    Heads that are zeroed have intervals that hold for all of them at once.
    """
    ends = simultaneous(values_by_head(report.rows, "zero_tvd"))
    columns: dict[str, dict[Place, Cell]] = {}
    for name, done in EDITS.items():
        if name != "median_tvd":
            found = at_places(report.statistics, name)
            known = ends if name == "zero_tvd" else {}
            columns[done] = {
                p: Number(s.mean, known.get(p), digits=2)
                for p, s in found.items()
            }
    return columns


def _two_digits(estimate: Estimate) -> Number:
    return Number(estimate.value, estimate.ci95, digits=2)


def _rank(head: Judged | None, zeroed: Statistic | None) -> tuple[bool, float]:
    """Returns a sort key: named heads first, then those that move the output most."""
    if head is not None and head.effect.n:
        return not head.is_named, -head.effect.value
    return True, 0.0 if zeroed is None else -zeroed.mean


# --- heads removed one after the other --------------------------------------------------


def prune_table(curve: PruneCurve, words: Words = CLASSES) -> Table:
    """Accuracy by the number of heads removed.

    Where a text has several labels, accuracy is a mean of shares and has no interval of
    a share of texts.
    """
    rows: list[list[Cell]] = [
        [
            n,
            _share(kept, curve.n_texts),
            Number(right)
            if words.has_parts
            else _share(right, curve.n_labelled),
        ]
        for n, kept, right in zip(
            curve.n_removed, curve.agreement, curve.accuracy, strict=True
        )
    ]
    accuracy = f"accuracy{words.aside if words.has_parts else ''}"
    return Table(
        ["heads removed", "predictions kept", accuracy], rows, sortable=False
    )


def prune_title(curve: PruneCurve) -> str:
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


# --- which statistics are told ---------------------------------------------------------------------


def few_parts(statistics: Sequence[Statistic]) -> list[Statistic]:
    """Keeps statistics of the first parts only, for predictions with many parts."""
    seen: Counter[str] = Counter()
    kept = []
    for s in statistics:
        family = s.statistic.partition("@")[0]
        if family in BY_PART and s.group == ALL_TEXTS:
            seen[family] += 1
        if seen[family] <= MOST_PARTS:
            kept.append(s)
    return kept


def is_of_ranking(s: Statistic) -> bool:
    """Whether it is of one ranking, ``name@ranking``."""
    return isinstance(key_of(s.statistic), str)


def has_line(statistic: str) -> bool:
    """Not p-values; of the frontier the papers' two ε; of the rankings attention."""
    name = statistic.partition("@")[0]
    shown = (None, "attention", *EPSILONS)
    return not name.endswith("_p_value") and key_of(statistic) in shown
