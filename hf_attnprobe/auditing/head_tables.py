"""A model with many heads as layer × head tables, and what they say. Pure: statistics in, lines out."""

from collections.abc import Callable, Mapping, Sequence

from scipy.stats import spearmanr

from hf_attnprobe.auditing.verdict import only_silenced
from hf_attnprobe.faithfulness import tests
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.statistics.summary import Statistic


MATTERS, AGREES = 0.05, 0.3  # of 1; τ


def by_head(statistics: Sequence[Statistic], name: str) -> dict[tuple[int, int], float]:
    """The mean of a statistic over all texts, by (layer, head)."""
    return {
        (s.layer, s.head): s.mean
        for s in statistics
        if s.statistic == name and s.group == "all" and s.n
    }


def has_heads(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has more than one head."""
    return len({(s.layer, s.head) for s in statistics}) > 1


def head_tables(statistics: Sequence[Statistic]) -> list[str]:
    """Markdown tables, layers down and heads across; a dash where a head was not tested.

    One for each statistic that its test has a title for; of a test without titles, one for
    each statistic.
    """
    lines = []
    for name, title in _titles(statistics).items():
        values = by_head(statistics, name)
        if values:
            lines += ["", f"### {name}: {title}", "", *_head_table(values)]
    return lines + layer_table(statistics)


def _titles(statistics: Sequence[Statistic]) -> dict[str, str]:
    """The statistics to print, with their titles, in the order of the tests."""
    present: dict[str, list[str]] = {}
    for statistic in statistics:
        present.setdefault(statistic.test, []).append(statistic.statistic)
    known = tests()
    found = {}
    for test in sorted(present, key=_place_in(list(known))):
        names = dict.fromkeys(present[test])
        record = known.get(test)
        titles = {} if record is None else record.head_titles
        layers = {} if record is None else record.layer_titles
        titled = {name: title for name, title in titles.items() if name in names}
        generic = {name: name.replace("_", " ") for name in names if name not in layers}
        found |= titled or generic
    return found


def _place_in(order: list[str]) -> Callable[[str], tuple[int, str]]:
    return lambda name: (order.index(name) if name in order else len(order), name)


def _head_table(values: Mapping[tuple[int, int], float]) -> list[str]:
    heads = range(max(head for _, head in values) + 1)
    head = f"| layer | {' | '.join(f'head {h}' for h in heads)} |"
    rows = []
    for layer in sorted({layer for layer, _ in values}):
        cells = [_cell(values.get((layer, h))) for h in heads]
        rows.append(f"| {layer} | {' | '.join(cells)} |")
    return [head, "|---" * (len(heads) + 1) + "|", *rows]


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def layer_table(statistics: Sequence[Statistic]) -> list[str]:
    """A Markdown table of statistics of whole layers, layers down and statistics across."""
    columns = {}
    for test in tests().values():
        for name, title in test.layer_titles.items():
            values = by_head(statistics, name)
            if values:
                columns[title] = values
    if not columns:
        return []
    lines = [
        "",
        "### rank correlation of a layer's explanations with leave-one-out",
        "",
        f"| layer | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for site in sorted({site for values in columns.values() for site in values}):
        cells = [_cell(values.get(site)) for values in columns.values()]
        lines.append(f"| {site[0]} | {' | '.join(cells)} |")
    return lines


def prune_table(curve: PruneCurve) -> list[str]:
    """A Markdown table of accuracy against the number of heads removed."""
    lines = ["| heads removed | predictions kept | accuracy |", "|---|---|---|"]
    points = zip(curve.n_removed, curve.agreement, curve.accuracy, strict=True)
    return lines + [
        f"| {n} | {agreement:.3f} | {accuracy:.3f} |"
        for n, agreement, accuracy in points
    ]


def head_sentences(statistics: Sequence[Statistic]) -> list[str]:
    """What the tables say, in plain words."""
    lines = []
    for name, said in (
        ("uniform_tvd", "their pattern is replaced by uniform attention"),
        ("median_tvd", "shuffled"),
    ):
        values = by_head(statistics, name)
        moved = sorted((v, site) for site, v in values.items() if v >= MATTERS)[::-1]
        if values:
            listed = (
                ", ".join(f"{layer}.{head} ({v:.2f})" for v, (layer, head) in moved[:8])
                or "none"
            )
            lines.append(
                f"Assignment: {len(moved)} of {len(values)} heads move the output by {MATTERS} of 1 or more when {said}: {listed}."
            )
    lines += _agreement(statistics)
    moved = by_head(statistics, "epsilon_max_jsd@0.05")
    if moved:
        free = sum(v >= 0.4 for v in moved.values())
        lines.append(
            f"Uniqueness: the attention of {free} of {len(moved)} heads can be moved by .40 (of at most .69) or farther "
            "with the output within .05."
        )
    return [
        *lines,
        *_erasure(statistics),
        *_removal(statistics),
        *only_silenced(statistics),
        *screen_sentences(statistics),
    ]


def _erasure(statistics: Sequence[Statistic]) -> list[str]:
    never = by_head(statistics, "never_flips@attention")
    if not never:
        return []
    flipping = sum(v <= 1 - MATTERS for v in never.values())
    return [
        f"Erasure: in {flipping} of {len(never)} heads, erasing weights, the largest first, flips the decision in "
        f"{MATTERS:.0%} of the texts or more."
    ]


def _removal(statistics: Sequence[Statistic]) -> list[str]:
    """Against random tokens, which every head shares."""
    attention, random = (
        by_head(statistics, f"comprehensiveness@{name}")
        for name in ("attention", "random")
    )
    above = {
        site: attention[site] - random[site]
        for site in attention.keys() & random.keys()
    }
    if not above:
        return []
    best = max(sorted(above), key=above.__getitem__)
    telling = sum(v >= MATTERS for v in above.values())
    return [
        f"Removal: without the tokens they attend to most, {telling} of {len(above)} heads cost the predicted class "
        f"{MATTERS} of probability or more beyond what random tokens cost; the most is {best[0]}.{best[1]} with "
        f"{above[best]:+.2f}."
    ]


def _agreement(statistics: Sequence[Statistic]) -> list[str]:
    values, yardstick = (
        by_head(statistics, f"{name}_leave_one_out_tau")
        for name in ("attention", "gradient")
    )
    if not values:
        return []
    best = max(values, key=values.__getitem__)
    agreeing = sum(v >= AGREES for v in values.values())
    compared = (
        f"; gradients reach {next(iter(yardstick.values())):.2f}" if yardstick else ""
    )
    return [
        f"Importance: {agreeing} of {len(values)} heads rank the tokens as leaving them out does at τ {AGREES:.2f} or better; "
        f"the best is {best[0]}.{best[1]} with {values[best]:.2f}{compared}."
    ]


def screen_sentences(statistics: Sequence[Statistic]) -> list[str]:
    """How well the first-order screen ranked the heads that were then tested (Spearman's ρ over heads)."""
    lines = []
    pairs = [pair for test in tests().values() for pair in test.estimates.items()]
    for estimate, exact in pairs:
        estimated, measured = by_head(statistics, estimate), by_head(statistics, exact)
        both = sorted(estimated.keys() & measured.keys())
        if len(both) > 2:
            rho = spearmanr(
                [estimated[site] for site in both], [measured[site] for site in both]
            ).statistic
            lines.append(
                f"Screen: {estimate} ranked {len(both)} tested heads as {exact} did with "
                f"Spearman ρ {rho:.2f}."
            )
    return lines
