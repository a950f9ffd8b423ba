"""What erasing by one ranking or another did, as tables and in words.

Pure: statistics, rows and comparisons in, lines out.
"""

import itertools
from collections.abc import Iterator, Sequence

import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.auditing.single_weight_table import delta_table
from hf_attnprobe.faithfulness.input_erasure import CAUTION
from hf_attnprobe.statistics.differences import Comparison
from hf_attnprobe.statistics.summary import Statistic, key_of, position


SIGNIFICANT = 0.05  # after correction
PROPORTIONAL = 0.9  # τ of attention × gradient with the exact margins
BEST = "smallest set (exact)"
NEARLY_ALL = 0.9  # of the attention: what is left then is far from any training text
METHOD = (
    "Each line compares the same texts. p is two-sided: of means, a sign-flip "
    "permutation test; of flips, McNemar's exact test; of which ranking needs fewer "
    "removals, an exact sign test. Intervals are over texts. Texts where "
    "one side is undefined are dropped and counted. The last column is corrected by "
    "Holm over the {n} comparisons of this test."
)
OF_ERASURE = (
    "Rankings are compared on the texts that can be flipped, those that some set of "
    "tokens flips or, where that is not known, some of the tried orders. There a ranking "
    "that never flips the decision counts as all tokens, and in the sign test as more."
)
PLAUSIBILITY = (
    "Plausibility is agreement with what people marked. It says nothing about "
    "faithfulness: a ranking that pleases people need not be what the model went by, and "
    "one that does not may be."
)


def named(statistics: Sequence[Statistic]) -> dict[str, Statistic]:
    """The statistics over all texts that have a value, by name; of one site."""
    return {s.statistic: s for s in statistics if s.group == "all" and s.n}


def ranked_lines(statistics: Sequence[Statistic]) -> list[str]:
    """A plain table of means, rankings down and statistics across."""
    means: dict[str, dict[str, float]] = {}
    for s in statistics:
        if s.n and isinstance(key_of(s.statistic), str):
            family, _, ranking = s.statistic.partition("@")
            means.setdefault(family, {})[ranking] = s.mean
    if not means:
        return []
    rankings = set().union(*means.values())
    width = max(map(len, rankings))
    lines = [f"  {'':<{width}}  {'  '.join(means)}"]
    for ranking in sorted(rankings, key=lambda name: position(f"@{name}")):
        cells = []
        for family, by_ranking in means.items():
            cell = markdown.number(by_ranking.get(ranking))
            cells.append(f"{cell:>{len(family)}}")
        lines.append(f"  {ranking:<{width}}  {'  '.join(cells)}")
    return lines


def section_in_words(test: str, statistics: Sequence[Statistic], rows: pd.DataFrame) -> list[str]:
    """What stands before the numbers of a test, in Markdown."""
    if test == "erasure":
        singles = flip_table(statistics) + delta_table(rows)
        return singles + fraction_table(statistics, rows) + erasure_sentences(statistics)
    if test == "input_erasure":
        return ["", CAUTION]
    if test == "attention_by_tag":
        return tag_table(statistics)
    return ["", PLAUSIBILITY] if test == "plausibility" else []


def tag_table(statistics: Sequence[Statistic]) -> list[str]:
    """Where attention goes by the tags of words (Mohankumar et al. 2020, Section 5.4)."""
    known = named(statistics)
    tags = [n.partition("@")[2] for n in known if n.startswith("attention_share@")]
    table = []
    for tag in sorted(tags, key=lambda t: -known[f"attention_share@{t}"].mean):
        share, tokens = known[f"attention_share@{tag}"], known[f"token_share@{tag}"]
        above = known[f"attention_above_share@{tag}"]
        ratio = share.mean / tokens.mean if tokens.mean else None
        table.append(
            [
                tag,
                f"{share.mean:.1%}",
                f"{tokens.mean:.1%}",
                markdown.interval(above.mean, above.ci95),
                markdown.number(ratio, digits=2),
            ]
        )
    head = ["tag", "share of attention", "share of tokens", "difference", "ratio"]
    title = (
        "Mean shares over texts. Even attention would give every tag its share of the "
        "tokens: a difference of 0, a ratio of 1."
    )
    return ["", title, "", *markdown.table(head, table)]


def flip_table(statistics: Sequence[Statistic]) -> list[str]:
    """How often erasing the top weight and erasing a random one flip the decision.

    As Serrano & Smith 2019, Table 2.
    """
    known = named(statistics)
    names = ("both_flip", "only_top_flips", "only_random_flips", "neither_flips")
    cells = [known[name] for name in names if name in known]
    if len(cells) < len(names):
        return []
    both, top, random, neither = (f"{s.mean:.1%} ({round(s.mean * s.n)})" for s in cells)
    table = markdown.table(
        ["", "a random one flips", "a random one does not"],
        [
            ["**the largest flips**", both, top],
            ["**the largest does not**", random, neither],
        ],
    )
    title = f"Share (number) of {cells[0].n} texts whose decision flips when one weight is erased:"
    return ["", title, "", *table]


def fraction_table(statistics: Sequence[Statistic], rows: pd.DataFrame) -> list[str]:
    """How many tokens are erased before the decision flips, on the same texts.

    As the box plots of Serrano & Smith (2019), but for all rankings on the texts that
    can be flipped, with never as all.
    """
    if not len(rows):
        return []
    known = named(statistics)
    fractions = rows[rows.test == "erasure"].groupby("statistic").value
    values = {name: group.dropna() for name, group in fractions}
    names = [
        name
        for name in sorted(values, key=position)
        if name.partition("@")[0] in ("fraction_to_flip", "minimal_fraction") and len(values[name])
    ]
    if not names:
        return []
    is_exact = "minimal_fraction" in names
    way = "way_to_best" if is_exact else "way_to_best_tried"
    table = [_fraction_row(name.partition("@")[2], values[name], known, way) for name in names]
    head = [
        "ranking",
        "share of tokens erased, mean",
        "median [quartiles]",
        "never flips",
        "mean regret (tokens)",
        "way from random to " + ("smallest set" if is_exact else "best tried"),
    ]
    title = _fraction_title(len(values[names[0]]), is_exact)
    return ["", title, "", *markdown.table(head, table)]


def _fraction_title(n: int, is_exact: bool) -> str:
    """Which texts these are, and what the columns mean."""
    flipped = "some set of tokens" if is_exact else "some of the tried orders"
    best = "the smallest set" if is_exact else "the best of the tried orders"
    return (
        f"Tokens erased in the order of each ranking until the decision flips, over the "
        f"{n} texts that {flipped} flips. A ranking that never flips a text counts as "
        "all of its tokens, and the share of such texts stands beside it (random: of "
        "its draws). The way is the mean over texts of (random − it) / (random − "
        f"{best}): 0 is no better than random, 1 the best, below 0 worse than random."
    )


def _fraction_row(
    ranking: str, values: pd.Series, known: dict[str, Statistic], way: str
) -> list[object]:
    """One ranking; without a name the smallest set, which flips every one of them."""

    def mean_of(family: str) -> str:
        s = known.get(f"{family}@{ranking}")
        return markdown.number(s.mean if s else None, digits=2)

    never = known.get(f"never_flips@{ranking}")
    low, median, high = values.quantile([0.25, 0.5, 0.75])
    return [
        ranking or BEST,
        markdown.number(values.mean(), digits=2),
        markdown.interval(median, (low, high), digits=2),
        f"{never.mean:.1%}" if never else markdown.MISSING,
        mean_of("regret"),
        mean_of(way),
    ]


def erasure_sentences(statistics: Sequence[Statistic]) -> list[str]:
    """What the smallest set says, how far from the data, and what is mere algebra."""
    known = named(statistics)
    sentences = (
        _smallest_set(known),
        _smallest_set_bound(known.get("greedy_bound_size")),
        _far_from_data(known.get("probability_mass_removed@attention")),
        _proportional(known.get("product_margin_tau")),
    )
    lines = markdown.bullets(sentence for sentence in sentences if sentence)
    return ["", *lines] if lines else []


def _smallest_set(known: dict[str, Statistic]) -> str | None:
    fraction, size = known.get("minimal_fraction"), known.get("minimal_size")
    if fraction is None or size is None:
        return None
    none = known.get("no_set_flips")
    aside = f"; in {none.mean:.1%} of the texts no set flips it" if none else ""
    mass = known.get("probability_mass_removed@margin")
    held = f", which hold {mass.median:.1%} of the attention" if mass else ""
    return (
        "The smallest set of tokens that flips the decision is known exactly: "
        f"{size.median:g} of a text's tokens in the median, {fraction.median:.2f} of "
        f"their number{held}{aside}."
    )


def _smallest_set_bound(bound: Statistic | None) -> str | None:
    if bound is None:
        return None
    return (
        "The smallest set that flips the decision is out of reach here: no more than "
        f"{bound.median:g} tokens in the median, which the best of the tried orders "
        "needed."
    )


def _far_from_data(mass: Statistic | None) -> str | None:
    """Whether the decision flips on a rest of attention that no training text had."""
    if mass is None or mass.median <= NEARLY_ALL:
        return None
    rest = 1 - mass.median
    last = f"the last {rest:.2%}" if rest >= 0.0001 else "less than the last 0.01%"
    return (
        f"Caution: in attention's order all but {last} of the attention is gone when the "
        "decision flips (median; never counts as all). The decision then rests on that "
        "rest, renormalised, which the model never saw in training."
    )


def _proportional(agreement: Statistic | None) -> str | None:
    """Whether attention × gradient is nearly the best ranking by construction."""
    if agreement is None:
        return None
    tau = agreement.mean
    if tau < PROPORTIONAL:
        return (
            "Attention × gradient agrees with the exact margins of the tokens at τ "
            f"{tau:.2f} (below {PROPORTIONAL:.2f}), so here its removals are not "
            "settled by the algebra of the read-out alone."
        )
    return (
        "Attention × gradient orders the tokens as their exact margins do (τ "
        f"{tau:.2f}, from {PROPORTIONAL:.2f} on): with a linear read-out of two "
        "classes it is, up to the bias, proportional to them, so it is nearly the "
        "best ranking by construction. That it flips decisions with fewer removals "
        "than attention, as in Serrano & Smith's experiment, restates the read-out's "
        "algebra; it does not tell which tokens the encoder used."
    )


def comparison_sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """One line per statistic: from which others the first differs, after correction."""
    return [
        f"{statistic}: {first} {'; '.join(_differences(group))}"
        for (_, statistic, first), group in _grouped(comparisons)
    ]


def _grouped(
    comparisons: Sequence[Comparison],
) -> Iterator[tuple[tuple[str, str, str], list[Comparison]]]:
    def kind(c: Comparison) -> tuple[str, str, str]:
        return c.test, c.statistic, c.first

    for key, group in itertools.groupby(comparisons, kind):
        yield key, list(group)


def _differences(group: Sequence[Comparison]) -> list[str]:
    """Than which others the first is higher or lower, and which it is not told from."""
    of_means = group[0].n_first is None
    more = "higher than" if of_means else "more often than"
    less = "lower than" if of_means else "less often than"
    others: dict[str, list[str]] = {more: [], less: [], "not told from": []}
    for c in group:
        if c.adjusted_p_value > SIGNIFICANT:
            others["not told from"].append(c.second)
            continue
        side = more if c.value > 0 else less
        others[side].append(f"{c.second} ({c.value:+.3f})")
    return [f"{words} {', '.join(names)}" for words, names in others.items() if names]


def comparison_section(test: str, comparisons: Sequence[Comparison]) -> list[str]:
    """The comparisons of one test: in words, as a table, and how they were made."""
    of_test = [c for c in comparisons if c.test == test]
    if not of_test:
        return []
    head = [
        "statistic",
        "first",
        "second",
        "mean difference",
        "95% interval",
        "texts for first : second",
        "n",
        "dropped",
        "p",
        "p corrected",
    ]
    clear = f"clear at corrected p ≤ {SIGNIFICANT}"
    title = f"{test}: rankings compared (first − second; {clear})"
    sentences = [f"{line}." for line in comparison_sentences(of_test)]
    lines = [
        *markdown.bullets(sentences),
        "",
        *markdown.table(head, map(_comparison_row, of_test)),
        "",
        METHOD.format(n=len(of_test)),
        *(["", OF_ERASURE] if test == "erasure" else []),
    ]
    return markdown.section(title, lines, level=3)


def _comparison_row(c: Comparison) -> list[object]:
    sides = markdown.MISSING if c.n_first is None else f"{c.n_first} : {c.n_second}"
    return [
        c.statistic,
        c.first,
        c.second,
        markdown.number(c.value, sign="+"),
        markdown.bounds(c.ci95, sign="+"),
        sides,
        c.n,
        c.dropped,
        _p(c.p_value),
        _p(c.adjusted_p_value),
    ]


def _p(value: float) -> str:
    return "< .001" if value < 0.001 else f"{value:.3f}"
