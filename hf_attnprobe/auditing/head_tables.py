"""Tables of the effects of single heads and groups. Pure: statistics and rows in."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hf_attnprobe.attention_model import ALL, SET
from hf_attnprobe.auditing.heads import (
    EVERYWHERE,
    MEASURES,
    Place,
    at_places,
    head_intervals,
    head_name,
)
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.faithfulness.adversarial import EPSILONS
from hf_attnprobe.faithfulness.head_roles import ROLES
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.reports.document import Block, Cell, Number, Section, Table
from hf_attnprobe.statistics.estimates import share_interval
from hf_attnprobe.statistics.summary import ALL_TEXTS, Statistic, key_of
from hf_attnprobe.statistics.wording import CLASSES, Words


BY_PART = {
    "median_tvd_of": "shuffled: moves by",
    "uniform_tvd_of": "uniform: moves by",
}
MOST_PARTS = 20
METHOD = (
    "The heads of a group are edited at once, in the trained model, with a 95% interval "
    "over texts. Output moves by: {measured}. In a layer with a "
    "head of a set the other heads keep the attention that they had; layers without one "
    "compute theirs anew. The more heads are edited, the less is the model inside "
    "what it was trained on: a large number says that this attention is needed by this "
    "model, not that it explains the prediction."
)


# --- groups ---------------------------------------------------------------------------


def part_section(statistics: Sequence[Statistic]) -> Section:
    """How each part of a prediction moves with all attention; of 20 parts at most."""
    columns: dict[str, dict[str, Statistic]] = {}
    for s in statistics:
        family, _, part = s.statistic.partition("@")
        if family in BY_PART and s.n and s.group == ALL_TEXTS and (s.layer, s.head) == EVERYWHERE:
            columns.setdefault(family, {})[part] = s
    parts = list(dict.fromkeys(part for values in columns.values() for part in values))
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
    """All attention first, then layers, sets, single heads."""
    layer, _ = place
    if min(place) >= 0:
        return 3, place
    return (0 if layer == ALL else 1 if layer >= 0 else 2), place


# --- every site, and every head ---------------------------------------------------------


HOW_TO_READ = (
    "A head is named layer.head, both from 0. Intervals of single heads hold for all "
    "heads at once (simultaneous, 95%), so the largest may be looked for; those of "
    "groups hold for each group by itself."
)
COLUMNS = (
    *(name for name, measure in MEASURES.items() if not measure.less),
    "attention_times_gradient_tau",
    "effective_attention_tau",
    "norm_based_tau",
    "mean_attention_tau",
    "rollout_tau",
    "flow_tau",
    "gradient_leave_one_out_tau",
    "uniform_flip",
    "zero_flip",
    "erased_share",
    "max_attention",
)
"""Statistics of the table of sites; of all of them nobody reads a row."""


MOST_HEADS = 40
"""Rows of single heads in the table of sites; the maps have all."""


def site_table(report: AuditResult) -> Table:
    """Sites in rows, statistics over all texts in columns, with intervals."""
    found = {name: at_places(report.statistics, name) for name in COLUMNS}
    found = {name: values for name, values in found.items() if values}
    ends = {name: head_intervals(report.rows, name) for name in found}
    sets = report.provenance.get("head_sets") or []

    def cell(name: str, place: Place) -> Number | None:
        s = found[name].get(place)
        if s is None:
            return None
        return Number(s.mean, s.ci95 if min(place) < 0 else ends[name].get(place), digits=2)

    places = sorted(set().union(*found.values()), key=order_of)
    heads = [place for place in places if min(place) >= 0]
    if len(heads) > MOST_HEADS:
        first = next(values for values in found.values() if values.keys() & set(heads))
        heads = sorted(first.keys() & set(heads), key=lambda p: -first[p].mean)[:MOST_HEADS]
    told = [place for place in places if min(place) < 0 or place in heads]
    rows = [[place_name(p, sets), *(cell(name, p) for name in found)] for p in told]
    head = ["site", *(name.replace("_", " ") for name in found)]
    left = f"the foremost {len(heads)} heads; " if len(told) < len(places) else ""
    caption = (
        f"{left}mean over texts [95% interval]; all other statistics are written by attnprobe "
        "report FOLDER --output numbers.csv, where FOLDER is the audit's output folder"
    )
    return Table(head, rows, caption)


ROLE_NAMES = {
    "previous_token": "the token before",
    "duplicate_token": "earlier copies",
    "induction": "what followed earlier copies (induction heads)",
    "first_token": "the first token",
}
ROLES_TEST = "head_roles"
MOST_OF_IT = 0.5
"""Attention, averaged over rows and texts, from where on a head has the name of a role."""
N_NAMED = 3
ROLES_AND_EFFECTS = (
    "Scores are attention, 0 to 1; named is what a head gives half of it or more. The effect is "
    "the change of the output with the head zero-ablated in the rows behind the passage, its interval holding for all heads at once. "
    "Where a head looks says nothing of what it causes."
)


def named_heads(statistics: Sequence[Statistic]) -> dict[str, dict[Place, float]]:
    """By role the heads that give it half of their attention or more, the most first."""
    named = {}
    for role in ROLE_NAMES:
        means = {place: s.mean for place, s in at_places(statistics, role).items()}
        foremost = sorted(means, key=lambda place: -means[place])
        named[role] = {place: means[place] for place in foremost if means[place] >= MOST_OF_IT}
    return named


def head_roles(statistics: Sequence[Statistic]) -> list[str]:
    """What heads look at most of the time, with the foremost of them."""
    said = []
    for role, heads in named_heads(statistics).items():
        foremost = [f"{head_name(place)} {mean:.2f}" for place, mean in heads.items()][:N_NAMED]
        more = f" and {len(heads) - N_NAMED} more" if len(heads) > N_NAMED else ""
        if heads:
            said.append(f"{ROLE_NAMES[role]}: {', '.join(foremost)}{more}")
    return said


def role_table(report: AuditResult) -> list[Block]:
    """Where heads look beside what they cause, the largest effects first."""
    found = {name: at_places(report.statistics, name) for name in (*ROLES, "zero_tvd")}
    effects, ends = found["zero_tvd"], head_intervals(report.rows, "zero_tvd")
    heads = [place for place in found["first_token"] if min(place) >= 0]
    heads.sort(key=lambda place: -effects[place].mean if place in effects else 0.0)

    named = {
        place: role for role, places in named_heads(report.statistics).items() for place in places
    }

    def effect(place: Place) -> Number | None:
        s = effects.get(place)
        return None if s is None else Number(s.mean, ends.get(place), digits=2)

    rows: list[list[Cell]] = [
        [
            place_name(place, []),
            ROLE_NAMES.get(named.get(place, ""), "–"),
            *(found[role].get(place) for role in ROLES),
            effect(place),
        ]
        for place in heads[:MOST_HEADS]
    ]
    head = ["head", "looks most at", *(role.replace("_", " ") for role in ROLES), "effect"]
    return [Table(head, rows), ROLES_AND_EFFECTS] if rows else []


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
            Number(right) if words.has_parts else _share(right, curve.n_labelled),
        ]
        for n, kept, right in zip(curve.n_removed, curve.agreement, curve.accuracy, strict=True)
    ]
    accuracy = f"accuracy{words.aside if words.has_parts else ''}"
    return Table(["heads removed", "predictions kept", accuracy], rows, sortable=False)


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
