"""What erasing by one ranking or another did, as tables and in words. Pure: statistics, rows and comparisons in, lines out."""

import itertools
from collections.abc import Iterator, Sequence

import pandas as pd

from hf_attnprobe.statistics.comparisons import Comparison
from hf_attnprobe.statistics.summary import Statistic, key_of, position


SIGNIFICANT = 0.05  # after correction
PROPORTIONAL = 0.9  # τ of attention × gradient with the exact margins
BEST = "smallest set (exact)"
METHOD = (
    "Each line compares the same texts. p is two-sided: of means, a sign-flip permutation test; of flips, McNemar's exact "
    "test; of which ranking needs fewer removals, an exact sign test in which never is more than all. Intervals are "
    "bootstrapped over texts. Texts where one side is undefined are dropped and counted; of mean fractions these are all "
    "that one of the two rankings never flips (of random orders, all draws). The last column is corrected by Holm over the {n} comparisons of this test."
)
IN_WORDS = {
    "plausibility": "Plausibility is agreement with what people marked. It says nothing about faithfulness: a ranking that "
    "pleases people need not be what the model went by, and one that does not may be.",
}


def named(statistics: Sequence[Statistic]) -> dict[str, Statistic]:
    """The statistics over all texts that have a value, by name; of one site."""
    return {s.statistic: s for s in statistics if s.group == "all" and s.n}


def ranked_lines(statistics: Sequence[Statistic]) -> list[str]:
    """A plain table of means, rankings down and statistics across, of those with a ranking behind the @."""
    means = {
        tuple(s.statistic.split("@")): s.mean
        for s in statistics
        if s.n and isinstance(key_of(s.statistic), str)
    }
    families = list(dict.fromkeys(family for family, _ in means))
    rankings = sorted(
        {ranking for _, ranking in means}, key=lambda ranking: position(f"@{ranking}")
    )
    if not means:
        return []
    first = max(map(len, rankings))
    lines = [f"  {'':<{first}}  {'  '.join(families)}"]
    for ranking in rankings:
        cells = (
            f"{means[f, ranking]:.3f}" if (f, ranking) in means else "–"
            for f in families
        )
        columns = (
            f"{cell:>{len(family)}}"
            for cell, family in zip(cells, families, strict=True)
        )
        lines.append(f"  {ranking:<{first}}  {'  '.join(columns)}")
    return lines


def section_in_words(
    test: str, statistics: Sequence[Statistic], rows: pd.DataFrame
) -> list[str]:
    """What stands before the numbers of a test, in Markdown."""
    if test == "erasure":
        return (
            flip_table(statistics)
            + fraction_table(statistics, rows)
            + erasure_sentences(statistics)
        )
    return ["", IN_WORDS[test]] if test in IN_WORDS else []


def flip_table(statistics: Sequence[Statistic]) -> list[str]:
    """How often erasing the top weight and erasing a random one flip the decision; Serrano & Smith 2019, Table 2."""
    found = named(statistics)
    cells = [
        found.get(name)
        for name in (
            "both_flip",
            "only_top_flips",
            "only_random_flips",
            "neither_flips",
        )
    ]
    if None in cells:
        return []
    both, top, random, neither = (
        f"{s.mean:.1%} ({round(s.mean * s.n)})" for s in cells
    )
    return [
        "",
        f"Share (number) of {cells[0].n} texts whose decision flips when one weight is erased:",
        "",
        "| | a random one flips | a random one does not |",
        "|---|---|---|",
        f"| **the largest flips** | {both} | {top} |",
        f"| **the largest does not** | {random} | {neither} |",
    ]


def fraction_table(statistics: Sequence[Statistic], rows: pd.DataFrame) -> list[str]:
    """How many weights go before the decision flips, over texts that flip, as in Serrano & Smith's box plots."""
    found = named(statistics)
    ours = rows[rows.test == "erasure"] if len(rows) else rows
    values = (
        {name: group.dropna() for name, group in ours.groupby("statistic").value}
        if len(rows)
        else {}
    )
    lines = []
    for name in sorted(values, key=position):
        family, _, ranking = name.partition("@")
        if family not in ("fraction_to_flip", "minimal_fraction") or not len(
            values[name]
        ):
            continue
        low, median, high = values[name].quantile([0.25, 0.5, 0.75])
        never = found.get(f"never_flips@{ranking}" if ranking else "no_set_flips")
        regret = found.get(f"regret@{ranking}")
        lines.append(
            f"| {ranking or BEST} | {median:.2f} [{low:.2f}, {high:.2f}] | {len(values[name])} "
            f"| {f'{never.mean:.1%}' if never else '–'} | {f'{regret.mean:.2f}' if regret else '–'} |"
        )
    head = [
        "| ranking | fraction erased, median [quartiles] | texts that flip | never flips | mean regret |"
    ]
    title = (
        "Weights erased in the order of each ranking until the decision flips (random: the mean of the draws that flip it; "
        "regret: weights erased beyond the smallest set):"
    )
    return ["", title, "", *head, "|---|---|---|---|---|", *lines] if lines else []


def erasure_sentences(statistics: Sequence[Statistic]) -> list[str]:
    """What the smallest set says, and what follows from the algebra of the read-out alone."""
    found = named(statistics)
    lines = []
    fraction, size, none = (
        found.get(name) for name in ("minimal_fraction", "minimal_size", "no_set_flips")
    )
    if fraction and size:
        lines.append(
            f"- The smallest set of weights that flips the decision is known exactly: {size.median:g} of a text's weights "
            f"in the median, a fraction of {fraction.median:.2f}"
            + (f"; in {none.mean:.1%} of the texts no set flips it." if none else ".")
        )
    bound = found.get("greedy_bound_size")
    if bound:
        lines.append(
            "- The smallest set that flips the decision is out of reach here: no more than "
            f"{bound.median:g} weights in the median, which the best of the rankings needed."
        )
    agreement = found.get("product_margin_tau")
    if agreement:
        lines.append(f"- {_of_the_product(agreement.mean)}")
    return ["", *lines] if lines else []


def _of_the_product(tau: float) -> str:
    if tau >= PROPORTIONAL:
        return (
            f"Attention × gradient orders the weights as their exact margins do (τ {tau:.2f}, from {PROPORTIONAL:.2f} on): "
            "with a linear read-out of two classes it is, up to the bias, proportional to them, so it is nearly the best ranking by "
            "construction. That it flips decisions with fewer removals than attention, as in Serrano & Smith's experiment, "
            "restates the read-out's algebra; it does not tell which tokens the encoder used."
        )
    return (
        f"Attention × gradient agrees with the exact margins of the weights at τ {tau:.2f} (below {PROPORTIONAL:.2f}), so "
        "here its removals are not settled by the algebra of the read-out alone."
    )


def comparison_sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """One line per statistic: where the first differs from which others, after correction."""
    lines = []
    for (_, statistic, first), group in _grouped(comparisons):
        more, less = (
            ("higher", "lower")
            if group[0].n_first is None
            else ("more often", "less often")
        )
        said = {f"{more} than": [], f"{less} than": [], "not told from": []}
        for c in group:
            sign = f"{more if c.difference > 0 else less} than"
            clear = c.adjusted_p_value <= SIGNIFICANT
            said[sign if clear else "not told from"].append(
                f"{c.second} ({c.difference:+.3f})" if clear else c.second
            )
        parts = [
            f"{words} {', '.join(others)}" for words, others in said.items() if others
        ]
        lines.append(f"{statistic}: {first} {'; '.join(parts)}")
    return lines


def _grouped(
    comparisons: Sequence[Comparison],
) -> Iterator[tuple[tuple, list[Comparison]]]:
    def kind(c: Comparison) -> tuple[str, str, str]:
        return c.test, c.statistic, c.first

    return ((key, list(group)) for key, group in itertools.groupby(comparisons, kind))


def comparison_section(test: str, comparisons: Sequence[Comparison]) -> list[str]:
    """The comparisons of one test as a Markdown table, with what they say and how they were made."""
    ours = [c for c in comparisons if c.test == test]
    if not ours:
        return []
    head = "| statistic | first | second | mean difference | 95% interval | texts for first : second | n | dropped | p | p corrected |"
    table = [
        f"| {c.statistic} | {c.first} | {c.second} | {c.difference:+.3f} | [{c.ci95[0]:+.3f}, {c.ci95[1]:+.3f}] "
        f"| {'–' if c.n_first is None else f'{c.n_first} : {c.n_second}'} | {c.n} | {c.dropped} "
        f"| {_p(c.p_value)} | {_p(c.adjusted_p_value)} |"
        for c in ours
    ]
    said = [f"- {line}." for line in comparison_sentences(ours)]
    title = f"### {test}: rankings compared (first − second; clear at corrected p ≤ {SIGNIFICANT})"
    return [
        "",
        title,
        "",
        *said,
        "",
        head,
        "|---" * 10 + "|",
        *table,
        "",
        METHOD.format(n=len(ours)),
    ]


def _p(value: float) -> str:
    return "< .001" if value < 0.001 else f"{value:.3f}"
