"""What single heads and groups of heads do, in tables: groups, layer × head, every site."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.attention_model import ALL, SET
from hf_attnprobe.auditing.heads import (
    ELSEWHERE,
    MATTERS,
    HeadKey,
    Heads,
    by_head,
    head_intervals,
    is_head,
)
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.faithfulness.adversarial import EPSILONS
from hf_attnprobe.faithfulness.input_erasure import CAUTION
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.faithfulness.rankings import OF_TEXT
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.reports.document import Block, Cell, Figures, Number, Section, Table
from hf_attnprobe.statistics.differences import Contrast
from hf_attnprobe.statistics.estimates import share_interval
from hf_attnprobe.statistics.summary import (
    Statistic,
    key_of,
    position,
)
from hf_attnprobe.statistics.wording import CLASSES, Words


Place = tuple[int, int]
"""Layer and head, see :class:`~hf_attnprobe.attention_model.Site`."""

EVERYWHERE: Place = (ALL, ALL)
NOWHERE: Place = (ALL, SET)
"""Where rankings stand that take no attention; no site is called so."""
GROUP_COLUMNS = {
    "median_tvd": "shuffled: output moves by",
    "uniform_tvd": "uniform: output moves by",
    "uniform_flip": "uniform: share of texts that flip",
    "zero_tvd": "zeroed: output moves by",
    "zero_flip": "zeroed: share of texts that flip",
    "share_of_largest@0.01": (
        "how far attention can at least go within ε = {within}, as a share of the farthest"
    ),
    "way_to_best_tried@attention": (
        "erasure: attention's way from a random order to the best order tried"
    ),
}
EDITS_OF_ALL = {
    "median_tvd": (
        "Shuffling all attention at once (median of the shuffles)",
        "shuffling a single head",
    ),
    "uniform_tvd": (
        "Uniform attention in all heads at once",
        "making a single head so",
    ),
    "zero_tvd": ("Zeroing the output of all heads at once", "zeroing a single head"),
}
BY_PART = {
    "median_tvd_of": "shuffled: moves by",
    "uniform_tvd_of": "uniform: moves by",
}
MOST_PARTS = 20
REMOVALS = {
    "comprehensiveness": "without what the ranking puts first",
    "sufficiency": "on what the ranking puts first alone",
}
METHOD = (
    "The heads of a group are edited at once, in the trained model, with a 95% interval "
    "over texts. Output moves by: {measured}. In a layer with a "
    "head of a set the other heads keep the attention that they had; layers without one "
    "compute theirs anew. The more heads are edited, the less is the model inside "
    "what it was trained on: a large number says that this attention is needed by this "
    "model, not that it explains the prediction."
)


def group_section(
    statistics: Sequence[Statistic], head_sets: Sequence[str], words: Words = CLASSES
) -> list[Block]:
    """All attention, each layer and each set in tables; nothing without groups.

    Args:
        statistics: of an audit.
        head_sets: the names of the sets, such as "5.0+5.3", in their order.
        words: of the kind of prediction.
    """
    sections = (
        Section("Groups of heads", _edit_table(statistics, head_sets, words)),
        part_section(statistics),
        Section(
            "Input erased in the order that groups of heads give",
            _removal_table(statistics, head_sets, words),
        ),
    )
    return [section for section in sections if section]


def part_section(statistics: Sequence[Statistic]) -> Section:
    """How each part of a prediction moves with all attention; of 20 parts at most."""
    found = {name: _by_part(statistics, name) for name in BY_PART}
    columns = {BY_PART[name]: values for name, values in found.items() if values}
    parts = list(dict.fromkeys(part for values in columns.values() for part in values))
    parts.sort(key=lambda part: -max(v[part].mean for v in columns.values()))
    rows = [[part, *(_cell(v.get(part)) for v in columns.values())] for part in parts[:MOST_PARTS]]
    n_left = len(parts) - len(rows)
    left = f" {n_left} more are in summary.json." if n_left else ""
    note = f"Total variation distance of each alone, 0 to 1; the most first.{left}"
    title = "All attention edited: what is said of each part"
    return Section(title, [Table(["of", *columns], rows), note] if rows else [])


def _by_part(statistics: Sequence[Statistic], family: str) -> dict[str, Statistic]:
    """A statistic of all attention over all texts, by part of the prediction."""
    return {
        s.statistic.partition("@")[2]: s
        for s in statistics
        if s.statistic.startswith(f"{family}@")
        and (s.layer, s.head) == EVERYWHERE
        and s.group == "all"
        and s.n
    }


def group_name(place: Place, head_sets: Sequence[str]) -> str:
    """What a group is called in reports.

    >>> group_name((-1, -1), []), group_name((3, -1), []), group_name((-2, 0), ["5.0+5.3"])
    ('all attention', 'layer 3', 'heads 5.0+5.3')
    """
    layer, head = place
    if place == EVERYWHERE:
        return "all attention"
    if place == NOWHERE:
        return "the text alone"
    if layer == SET:
        return f"heads {head_sets[head]}" if head < len(head_sets) else f"set {head}"
    return f"layer {layer}"


def place_name(place: Place, head_sets: Sequence[str]) -> str:
    """``layer.head``, or what a group is called.

    >>> place_name((3, 9), []), place_name((3, -1), [])
    ('3.9', 'layer 3')
    """
    if min(place) < 0:
        return group_name(place, head_sets)
    return f"{place[0]}.{place[1]}"


def _order(place: Place) -> tuple[int, Place]:
    """All attention first, then layers, then sets."""
    layer, _ = place
    return (0 if layer == ALL else 1 if layer >= 0 else 2), place


def of_groups(statistics: Sequence[Statistic], name: str) -> dict[Place, Statistic]:
    """A statistic over all texts, by group of heads."""
    return {place: s for place, s in _by_place(statistics, name).items() if min(place) < 0}


def _by_place(statistics: Sequence[Statistic], name: str) -> dict[Place, Statistic]:
    return {
        (s.layer, s.head): s for s in statistics if s.statistic == name and s.group == "all" and s.n
    }


def _edit_table(
    statistics: Sequence[Statistic], head_sets: Sequence[str], words: Words
) -> list[Block]:
    """Groups down, what is done to them across."""
    columns = {
        words.fill(title): of_groups(statistics, name) for name, title in GROUP_COLUMNS.items()
    }
    columns = {title: values for title, values in columns.items() if values}
    places = sorted(set().union(*columns.values()), key=_order)
    if not places:
        return []
    rows = [
        [group_name(place, head_sets), *(_cell(v.get(place)) for v in columns.values())]
        for place in places
    ]
    return [Table(["group", *columns], rows), words.fill(METHOD)]


def _removal_table(
    statistics: Sequence[Statistic], head_sets: Sequence[str], words: Words
) -> list[Block]:
    """Groups and their rankings down, comprehensiveness and sufficiency across.

    A ranking that takes no attention is of the whole text, and stands there once.
    """
    values: dict[tuple[Place, str], dict[str, Statistic]] = {}
    for s in statistics:
        family, _, ranking = s.statistic.partition("@")
        place = NOWHERE if ranking in OF_TEXT else (s.layer, s.head)
        if family in REMOVALS and s.group == "all" and s.n and min(s.layer, s.head) < 0:
            values.setdefault((place, ranking), {})[family] = s

    def order(key: tuple[Place, str]) -> tuple:
        return _order(key[0]), position(f"@{key[1]}")

    rows = []
    for place, ranking in sorted(values, key=order):
        found = values[place, ranking]
        cells = [_cell(found.get(family)) for family in REMOVALS]
        rows.append([group_name(place, head_sets), ranking, *cells])
    titles = [f"{family}: {words.lost} {what}" for family, what in REMOVALS.items()]
    return [Table(["group", "ranking", *titles], rows), CAUTION] if rows else []


def _cell(s: Statistic | None) -> Number | None:
    return None if s is None else Number(s.mean, s.ci95)


def group_sentences(statistics: Sequence[Statistic], words: Words = CLASSES) -> list[str]:
    """All attention beside the layer and the head of most effect, one line per edit."""
    lines = []
    for name, edit in EDITS_OF_ALL.items():
        values = _by_place(statistics, name)
        if EVERYWHERE in values:
            lines.append(_whole_model(values, *edit, words))
    return lines


def _whole_model(values: Mapping[Place, Statistic], edit: str, of_one: str, words: Words) -> str:
    """
    Args:
        values: of all attention, layers and heads.
        edit: what was done to all attention.
        of_one: the same done to one head.
    """
    whole = values[EVERYWHERE]
    shown = markdown.interval(whole.mean, whole.ci95, digits=2)
    layers = {p: s for p, s in values.items() if p[0] >= 0 and p[1] == ALL}
    heads = {p: s for p, s in values.items() if min(p) >= 0}
    asides = []
    if layers:
        (layer, _), s = _largest(layers)
        asides.append(
            f"the most that it does in one layer is {s.mean:.2f} (layer {layer}, the "
            f"largest mean of {len(layers)} tested)"
        )
    if heads:
        (layer, head), s = _largest(heads)
        asides.append(
            f"the most that {of_one} does is {s.mean:.2f} ({layer}.{head}, the "
            f"largest mean of {len(heads)} tested)"
        )
    compared = "".join(f"; {aside}" for aside in asides)
    return (
        f"{edit} moves the output by {shown} {words.unit} ({words.distance}, mean over "
        f"{whole.n} texts){compared}."
    )


def _largest(values: Mapping[Place, Statistic]) -> tuple[Place, Statistic]:
    place = max(values, key=lambda place: values[place].mean)
    return place, values[place]


# --- A model with many heads as layer × head tables. Pure: statistics and rows in, lines out -----

MARKED = {
    "median_tvd": MATTERS,
    "uniform_tvd": MATTERS,
    "zero_tvd": MATTERS,
    "mean_tvd": MATTERS,
    "resample_tvd": MATTERS,
    "share_of_largest@0.01": ELSEWHERE,
    "way_to_best_tried@attention": 0.0,
    "attention_leave_one_out_tau": 0.0,
    "attention_gradient_tau": 0.0,
    "attention_times_gradient_tau": 0.0,
    "effective_attention_tau": 0.0,
    "norm_based_tau": 0.0,
}
"""By statistic, from where on a head is marked in its table."""


def head_tables(
    statistics: Sequence[Statistic], rows: pd.DataFrame, words: Words = CLASSES
) -> list[Block]:
    """Tables, layers down and heads across; a dash where a head was not tested.

    There is one for each statistic that its test has a title for. A test without titles
    has one for each of its statistics.

    Args:
        statistics: of an audit.
        rows: of the same audit; without them no head is marked.
        words: of the kind of prediction.
    """
    tables: list[Block] = []
    marked = rows[rows.statistic.isin(list(MARKED))] if len(rows) else rows
    for name, title in _titles(statistics).items():
        values = by_head(statistics, name)
        if values:
            heads = Heads(values)
            if name in MARKED:
                heads = Heads(values, head_intervals(marked, name))
            caption = f"{name}: {words.fill(title)}; {_n_texts(statistics, name)}"
            tables.append(_head_table(heads, f"{caption}{_mark(name, heads)}", name))
    return [*tables, layer_table(statistics)]


def _titles(statistics: Sequence[Statistic]) -> dict[str, str]:
    """The statistics to print, with their titles, in the order of the tests."""
    known = tests()
    unknown = {s.test for s in statistics} - known.keys()  # no longer installed
    titles: dict[str, str] = {}
    for test in (*known, *sorted(unknown)):
        of_heads = known[test].head_titles if test in known else {}
        of_layers = known[test].layer_titles if test in known else {}
        names = {s.statistic: None for s in statistics if s.test == test}
        titled = {name: title for name, title in of_heads.items() if name in names}
        titles |= titled
        for name in names:
            if not titled and name not in of_layers:
                titles[name] = name.replace("_", " ")
    return titles


def _n_texts(statistics: Sequence[Statistic], name: str) -> str:
    """How many texts the means of the heads are over."""
    sizes = {
        s.n for s in statistics if s.statistic == name and s.group == "all" and s.n and is_head(s)
    }
    if len(sizes) == 1:
        return f"{sizes.pop()} texts"
    return f"{min(sizes)} to {max(sizes)} texts a head"


def _mark(name: str, heads: Heads) -> str:
    """What the ``*`` in a table means; nothing where no head could have one."""
    if not heads.intervals:
        return ""
    threshold = MARKED[name]
    above = f"{threshold:.2f} or more" if threshold else "above 0"
    return (
        f"; * = surely {above}: the 95% interval, simultaneous over "
        f"{len(heads.intervals)} heads, lies there"
    )


def _head_table(heads: Heads, caption: str, name: str) -> Table:
    sure = heads.surely(MARKED.get(name, 0.0))
    layers, numbers = zip(*heads.means, strict=True)
    across = range(max(numbers) + 1)

    def cell(site: HeadKey) -> Cell:
        if site not in heads.means:
            return None
        shown = markdown.number(heads.means[site], digits=2)
        return Figures(f"{shown}*" if site in sure else shown)

    rows = [[str(k), *(cell((k, head)) for head in across)] for k in sorted(set(layers))]
    return Table(["layer", *(f"head {h}" for h in across)], rows, caption, sortable=False)


def layer_table(statistics: Sequence[Statistic]) -> Table:
    """Explanations of whole layers, layers down."""
    columns = {}
    layers: set[int] = set()
    for test in tests().values():
        for name, title in test.layer_titles.items():
            values = _by_layer(statistics, name)
            if values:
                columns[title] = values
                layers.update(values)
    rows: list[list[Cell]] = [
        [str(layer), *(Number(v.get(layer, math.nan), digits=2) for v in columns.values())]
        for layer in sorted(layers)
    ]
    caption = "rank correlation of a layer's explanations with leave-one-out"
    return Table(["layer", *columns], rows, caption, sortable=False)


def _by_layer(statistics: Sequence[Statistic], name: str) -> dict[int, float]:
    """The mean of a statistic of whole layers over all texts."""
    return {
        s.layer: s.mean
        for s in statistics
        if s.statistic == name and s.group == "all" and s.n and s.layer >= 0 and s.head < 0
    }


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


# --- every site in one table -------------------------------------------------------------------


Intervals = Mapping[Place, tuple[float, float]]
HOW_TO_READ = (
    "A head is named layer.head, both from 0. Intervals of single heads hold for all "
    "heads at once (simultaneous, 95%), so the largest may be looked for; those of "
    "groups hold for each group by itself."
)
COLUMNS = (
    *MARKED,
    "gradient_leave_one_out_tau",
    "uniform_flip",
    "zero_flip",
    "erased_share",
    "max_attention",
)
"""Statistics of the table of sites; of all of them nobody reads a row."""


def site_table(report: AuditResult) -> Table:
    """Sites down, statistics over all texts across, each with its interval."""
    shown = [s for s in report.statistics if s.group == "all" and _in_table(s)]
    known = {s.statistic for s in shown}
    names = [name for name in COLUMNS if name in known]
    by_place: dict[Place, dict[str, Statistic]] = {}
    for s in shown:
        by_place.setdefault((s.layer, s.head), {})[s.statistic] = s
    sets = report.provenance.get("head_sets") or []
    simultaneous = _intervals_of_heads(report.rows, names)
    rows = [
        [
            place_name(place, sets),
            *(_of_site(found.get(name), simultaneous.get(name, {})) for name in names),
        ]
        for place, found in sorted(by_place.items(), key=_groups_first)
    ]
    head = ["site", *(name.replace("_", " ") for name in names)]
    caption = (
        "mean over texts [95% interval]; all other statistics are written by attnprobe "
        "report FOLDER --output numbers.csv, where FOLDER is the audit's output folder"
    )
    return Table(head, rows, caption)


def _in_table(s: Statistic) -> bool:
    return bool(s.n) and has_line(s.statistic) and not isinstance(key_of(s.statistic), str)


def _groups_first(item: tuple[Place, object]) -> tuple[int, Place]:
    """All attention, layers, sets, then heads."""
    (layer, head), _ = item
    kind = 3 if min(layer, head) >= 0 else 0 if layer == -1 else 1 if layer >= 0 else 2
    return kind, (layer, head)


def _intervals_of_heads(rows: pd.DataFrame, names: Sequence[str]) -> dict[str, Intervals]:
    """Simultaneous intervals by statistic; nothing without rows."""
    if not len(rows):
        return {}
    wanted = rows[rows.statistic.isin(names) & (rows["head"] >= 0) & (rows.layer >= 0)]
    return {
        str(name): head_intervals(own, str(name))
        for name, own in wanted.groupby("statistic", observed=True)
    }


def _of_site(s: Statistic | None, intervals: Intervals) -> Number | None:
    if s is None:
        return None
    bounds = s.ci95 if min(s.layer, s.head) < 0 else intervals.get((s.layer, s.head))
    return Number(s.mean, bounds, digits=2)


# --- which statistics are told ---------------------------------------------------------------------


def few_parts(statistics: Sequence[Statistic]) -> list[Statistic]:
    """Of what is said of each part of a prediction only the first parts."""
    seen: Counter[str] = Counter()
    kept = []
    for s in statistics:
        family = s.statistic.partition("@")[0]
        if family in BY_PART and s.group == "all":
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


Key = tuple[str, str, int, int, str]
"""Test, statistic, layer, head and group."""


def place_of(s: Statistic | Contrast) -> Key:
    """What a number is of, whether the model's or beside the control's."""
    return s.test, s.statistic, s.layer, s.head, s.group


def controls_of(report: AuditResult) -> dict[Key, Contrast]:
    """What the control says, by what it is said of."""
    return {place_of(c): c for c in report.contrasts if c.n}
