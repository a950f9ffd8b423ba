"""What groups of heads do together: all attention, whole layers, sets of heads.

Pure: statistics in, lines out.
"""

from collections.abc import Mapping, Sequence

from hf_attnprobe import markdown
from hf_attnprobe.attention_model import ALL, SET
from hf_attnprobe.faithfulness.input_erasure import CAUTION
from hf_attnprobe.faithfulness.rankings import OF_TEXT
from hf_attnprobe.statistics.summary import Statistic, position
from hf_attnprobe.statistics.wording import CLASSES, Words


Place = tuple[int, int]
"""Layer and head, see :class:`~hf_attnprobe.attention_model.Site`."""

EVERYWHERE: Place = (ALL, ALL)
NOWHERE: Place = (ALL, SET)
"""Where rankings stand that take no attention; no site is called so."""
COLUMNS = {
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
EDITS = {
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
) -> list[str]:
    """Markdown about all attention, each layer and each set; nothing without groups.

    Args:
        statistics: of an audit.
        head_sets: the names of the sets, such as "5.0+5.3", in their order.
        words: of the kind of prediction.
    """
    edits = _edit_table(statistics, head_sets, words)
    removals = _removal_table(statistics, head_sets, words)
    order = "input erased in the order that groups of heads give"
    return [
        *markdown.section("groups of heads", edits, level=3),
        *part_section(statistics),
        *markdown.section(order, removals, level=3),
    ]


def part_section(statistics: Sequence[Statistic]) -> list[str]:
    """How each part of a prediction moves with all attention; of 20 parts at most."""
    found = {name: _by_part(statistics, name) for name in BY_PART}
    columns = {BY_PART[name]: values for name, values in found.items() if values}
    parts = list(dict.fromkeys(part for values in columns.values() for part in values))
    if not parts:
        return []
    parts.sort(key=lambda part: -max(v[part].mean for v in columns.values()))
    rows = [[part, *(_cell(v.get(part)) for v in columns.values())] for part in parts[:MOST_PARTS]]
    n_left = len(parts) - len(rows)
    left = f" {n_left} more are in summary.json." if n_left else ""
    note = f"Total variation distance of each alone, 0 to 1; the most first.{left}"
    table = markdown.table(["of", *columns], rows)
    title = "all attention edited: what is said of each part"
    return markdown.section(title, [*table, "", note], level=3)


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
) -> list[str]:
    """Groups down, what is done to them across."""
    columns = {words.fill(title): of_groups(statistics, name) for name, title in COLUMNS.items()}
    columns = {title: values for title, values in columns.items() if values}
    places = sorted(set().union(*columns.values()), key=_order)
    if not places:
        return []
    rows = [
        [group_name(place, head_sets), *(_cell(v.get(place)) for v in columns.values())]
        for place in places
    ]
    method = words.fill(METHOD)
    return [*markdown.table(["group", *columns], rows), "", method]


def _removal_table(
    statistics: Sequence[Statistic], head_sets: Sequence[str], words: Words
) -> list[str]:
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
    if not rows:
        return []
    return [*markdown.table(["group", "ranking", *titles], rows), "", CAUTION]


def _cell(s: Statistic | None) -> str:
    return markdown.MISSING if s is None else markdown.interval(s.mean, s.ci95)


def group_sentences(statistics: Sequence[Statistic], words: Words = CLASSES) -> list[str]:
    """All attention beside the layer and the head of most effect, one line per edit."""
    lines = []
    for name, edit in EDITS.items():
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
