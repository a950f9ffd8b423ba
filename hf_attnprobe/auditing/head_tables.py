"""A model with many heads as layer × head tables, and what they say.

Pure: statistics in, lines out.
"""

from collections.abc import Mapping, Sequence

from scipy.stats import spearmanr

from hf_attnprobe import markdown
from hf_attnprobe.auditing.verdict import ELSEWHERE, zero_ablation_only
from hf_attnprobe.faithfulness import tests
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.statistics.summary import Statistic


MATTERS = 0.05  # total variation, share of texts, or probability
AGREES = 0.3  # τ
N_LISTED = 8  # heads named in a sentence

ByHead = Mapping[tuple[int, int], float]


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

    There is one for each statistic that its test has a title for. A test without titles
    has one for each of its statistics.
    """
    lines = []
    for name, title in _titles(statistics).items():
        values = by_head(statistics, name)
        if values:
            lines += markdown.section(f"{name}: {title}", _head_table(values), level=3)
    return lines + layer_table(statistics)


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


def _head_table(values: ByHead) -> list[str]:
    layers, heads = zip(*values, strict=True)
    numbers = range(max(heads) + 1)
    rows = []
    for layer in sorted(set(layers)):
        cells = [markdown.number(values.get((layer, h)), digits=2) for h in numbers]
        rows.append([layer, *cells])
    return markdown.table(["layer", *(f"head {h}" for h in numbers)], rows)


def layer_table(statistics: Sequence[Statistic]) -> list[str]:
    """A Markdown table of explanations of whole layers, layers down."""
    columns = {}
    sites: set[tuple[int, int]] = set()
    for test in tests().values():
        for name, title in test.layer_titles.items():
            values = by_head(statistics, name)
            if values:
                columns[title] = values
                sites.update(values)
    rows = []
    for site in sorted(sites):
        cells = [markdown.number(v.get(site), digits=2) for v in columns.values()]
        rows.append([site[0], *cells])
    title = "rank correlation of a layer's explanations with leave-one-out"
    table = markdown.table(["layer", *columns], rows) if rows else []
    return markdown.section(title, table, level=3)


def prune_table(curve: PruneCurve) -> list[str]:
    """A Markdown table of accuracy by the number of heads removed."""
    agreement = [f"{share:.3f}" for share in curve.agreement]
    accuracy = [f"{share:.3f}" for share in curve.accuracy]
    rows = zip(curve.n_removed, agreement, accuracy, strict=True)
    return markdown.table(["heads removed", "predictions kept", "accuracy"], rows)


def head_sentences(statistics: Sequence[Statistic]) -> list[str]:
    """What the tables say, in plain words."""
    replaced = "their pattern is replaced by uniform attention"
    sentences = (
        _assignment(by_head(statistics, "uniform_tvd"), replaced),
        _assignment(by_head(statistics, "median_tvd"), "shuffled"),
        _importance(
            by_head(statistics, "attention_leave_one_out_tau"),
            by_head(statistics, "gradient_leave_one_out_tau"),
        ),
        _uniqueness(by_head(statistics, "epsilon_max_jsd@0.05")),
        _erasure(
            by_head(statistics, "never_flips@attention"),
            by_head(statistics, "no_set_flips") | by_head(statistics, "no_order_flips"),
        ),
        _removal(
            by_head(statistics, "comprehensiveness@attention"),
            by_head(statistics, "comprehensiveness@random"),
        ),
        zero_ablation_only(statistics),
        *screen_sentences(statistics),
    )
    return [sentence for sentence in sentences if sentence]


def _assignment(values: ByHead, change: str) -> str | None:
    """Heads whose pattern matters, the most important first."""
    if not values:
        return None
    moved = sorted((v, site) for site, v in values.items() if v >= MATTERS)[::-1]
    listed = [f"{layer}.{head} ({v:.2f})" for v, (layer, head) in moved[:N_LISTED]]
    return (
        f"Assignment: {len(moved)} of {len(values)} heads move the output by {MATTERS} "
        f"of 1 or more when {change}: {', '.join(listed) or 'none'}."
    )


def _importance(values: ByHead, baseline: ByHead) -> str | None:
    """Attention against leave-one-out; gradients are the baseline of all heads."""
    if not values:
        return None
    layer, head = max(values, key=values.__getitem__)
    agreeing = sum(v >= AGREES for v in values.values())
    reached = next(iter(baseline.values()), None)
    compared = "" if reached is None else f"; gradients reach {reached:.2f}"
    return (
        f"Importance: {agreeing} of {len(values)} heads rank the tokens as leaving "
        f"them out does at τ {AGREES:.2f} or better; the best is {layer}.{head} with "
        f"{values[layer, head]:.2f}{compared}."
    )


def _uniqueness(values: ByHead) -> str | None:
    if not values:
        return None
    free = sum(v >= ELSEWHERE for v in values.values())
    return (
        f"Uniqueness: the attention of {free} of {len(values)} heads can be moved by "
        ".40 (of at most .69) or farther with the output within .05."
    )


def _erasure(never: ByHead, none: ByHead) -> str | None:
    """Over all texts: ``never`` is a share of those that some order flips."""
    if not none:
        return None
    flips = [(1 - share) * (1 - never.get(site, 1.0)) for site, share in none.items()]
    return (
        f"Erasure: in {sum(share >= MATTERS for share in flips)} of {len(none)} heads, "
        "erasing weights, the largest first, flips the decision in "
        f"{MATTERS:.0%} of the texts or more."
    )


def _removal(attention: ByHead, random: ByHead) -> str | None:
    """Without a head's tokens, beyond what random tokens cost."""
    sites = sorted(attention.keys() & random.keys())
    if not sites:
        return None
    beyond = {site: attention[site] - random[site] for site in sites}
    layer, head = max(sites, key=beyond.__getitem__)
    telling = sum(v >= MATTERS for v in beyond.values())
    return (
        f"Removal: without the tokens they attend to most, {telling} of {len(beyond)} "
        f"heads cost the predicted class {MATTERS} of probability or more beyond what "
        f"random tokens cost; the most is {layer}.{head} with "
        f"{beyond[layer, head]:+.2f}."
    )


def screen_sentences(statistics: Sequence[Statistic]) -> list[str]:
    """How well the first-order screen ranked the heads that were then tested.

    By Spearman's ρ over heads, of which there must be three.
    """
    pairs: dict[str, str] = {}
    for test in tests().values():
        pairs.update(test.estimates)
    lines = []
    for estimate, exact in pairs.items():
        estimated, measured = by_head(statistics, estimate), by_head(statistics, exact)
        both = sorted(estimated.keys() & measured.keys())
        if len(both) < 3:
            continue
        values = [(estimated[site], measured[site]) for site in both]
        rho = spearmanr(values).statistic
        lines.append(
            f"Screen: {estimate} ranked {len(both)} tested heads as {exact} did with "
            f"Spearman ρ {rho:.2f}."
        )
    return lines
