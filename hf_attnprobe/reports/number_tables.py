"""Tables of an audit's numbers: rankings, comparisons, all statistics, published values."""

from collections.abc import Sequence

from hf_attnprobe.documents.blocks import (
    Block,
    Cell,
    Figures,
    Folded,
    Note,
    Number,
    Section,
    Table,
)
from hf_attnprobe.faithfulness.adversarial import EPSILONS
from hf_attnprobe.faithfulness.input_erasure import CAUTION
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.reports.head_tables import (
    BY_PART,
    has_several,
    place_name,
)
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.reports.verdict import least_texts
from hf_attnprobe.statistics.differences import Comparison
from hf_attnprobe.statistics.estimates import MIN_SHOWN
from hf_attnprobe.statistics.heads import EVERYWHERE
from hf_attnprobe.statistics.summary import (
    ALL_TEXTS,
    Statistic,
    key_of,
    sentence,
)


# --- What erasing by one ranking or another did --------------------------------------------------
# Pure: statistics, rows and comparisons in, lines out.

SIGNIFICANT = 0.05  # after correction
COMPARED = (
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
BEYOND = {
    "erasure": (
        "Where an order flips a decision only when nearly all of the attention is gone "
        "(probability_mass_removed), the decision rests on the rest, renormalised, which the "
        "model never saw in training. With a linear read-out of two classes attention × "
        "gradient is, up to the bias, proportional to the exact margins of the tokens "
        "(product_margin_tau near 1), so nearly the best ranking by construction: that it needs "
        "fewer removals than attention, as in Serrano & Smith's experiment, restates the "
        "read-out's algebra and does not tell which tokens the encoder used."
    ),
    "input_erasure": CAUTION,
    "plausibility": (
        "Plausibility is agreement with what people marked. It says nothing about "
        "faithfulness: a ranking that pleases people need not be what the model went by, and "
        "one that does not may be."
    ),
}
"""By test, what its numbers do not say."""


def comparisons(compared: Sequence[Comparison]) -> list[Block]:
    """Rankings compared on the same texts, by test: a table, and how it was made.

    Comparisons of fewer texts than have a number are left out.
    """
    blocks: list[Block] = []
    for test in dict.fromkeys(c.test for c in compared):
        of_test = [c for c in compared if c.test == test]
        rows = [_comparison_row(c) for c in of_test if c.n >= MIN_SHOWN]
        if not rows:
            continue
        title = (
            f"{test}: rankings compared on the same texts (first − second; "
            f"clear at corrected p ≤ {SIGNIFICANT})"
        )
        notes = [COMPARED.format(n=len(of_test))]
        if test == "erasure":
            notes.append(OF_ERASURE)
        blocks.append(Folded(title, [Table(COMPARED_HEAD, rows), *notes]))
    return blocks


# --- scores that somebody gave the units, as one more ranking ------------------------------------

JUDGED = "scores_fingerprint"
"""In the provenance of an audit of given scores."""
LESS_IS_BETTER = ("sufficiency", "fraction_to_flip", "regret", "tokens_to_flip")
CHANCE = "given_moved"
OF_GIVEN = (
    "Given scores beside the same scores at other tokens of each text (chance) and beside "
    "attention, paired by text; better and worse at p ≤ .05, corrected by Holm within a test. Of "
    f"{', '.join(LESS_IS_BETTER)} less is better."
)


def judged(report: AuditResult) -> list[Block]:
    """How the given scores compare with chance and with attention, by every measure."""
    found: dict[tuple[str, str], dict[str, Comparison]] = {}
    for c in report.comparisons if JUDGED in report.provenance else ():
        if c.first == "given" and c.method == "permutation":
            found.setdefault((c.test, c.statistic), {})[c.second] = c
    if not found:
        return []
    means = {(s.test, s.statistic): s for s in reversed(report.statistics) if s.group == ALL_TEXTS}
    rows: list[list[Cell]] = []
    least = least_texts(report.words)
    for (test, statistic), beside in found.items():
        attention = beside.get("attention") or beside.get("mean_attention")
        own = means.get((test, f"{statistic}@given"))
        mean = None if own is None else Number(own.mean, own.ci95, digits=2)
        sides = [_judged_beside(c, least) for c in (beside.get(CHANCE), attention)]
        rows.append([f"{test}: {statistic}", mean, *sides])
    head = [
        "given scores by",
        "mean [95%]",
        "minus chance [95%]",
        "minus attention [95%]",
    ]
    return [Table(head, rows, sortable=False), Note(OF_GIVEN)]


def _judged_beside(c: Comparison | None, least: int) -> Cell:
    if c is None:
        return None
    is_better = (c.value < 0) == (c.statistic in LESS_IS_BETTER)
    said = "better" if is_better else "worse"
    told = c.adjusted_p_value <= SIGNIFICANT and c.n >= least
    return Number(
        c.value,
        c.ci95,
        sign="+",
        digits=2,
        after=said if told else "cannot say",
    )


COMPARED_HEAD = (
    "statistic",
    "first",
    "second",
    "mean difference",
    "texts for first : second",
    "n",
    "dropped",
    "p",
    "p corrected",
)


def _comparison_row(c: Comparison) -> list[Cell]:
    sides = None if c.n_first is None else Figures(f"{c.n_first} : {c.n_second}")
    difference = Number(c.value, c.ci95, sign="+")
    ps = [Figures("< .001" if p < 0.001 else f"{p:.3f}") for p in (c.p_value, c.adjusted_p_value)]
    return [
        c.statistic,
        c.first,
        c.second,
        difference,
        sides,
        c.n,
        c.dropped,
        *ps,
    ]


# --- all statistics ----------------------------------------------------------------------------


MOST_ROWS = 150
"""A report with more statistics leaves some of them to the files beside it."""


def numbers_section(report: AuditResult) -> Section:
    """Every statistic, and comparisons."""
    shown, left = shown_statistics(report)
    ran = dict.fromkeys(s.test for s in report.statistics)
    notes = [f"{test}: {BEYOND[test]}" for test in ran if test in BEYOND]
    return Section(
        "All numbers",
        [
            Folded("What each number says", [_in_words(report, shown)]),
            Folded(
                f"All statistics with their intervals: {len(shown):,}",
                [left, _statistics(report, shown)],
            ),
            Folded("What numbers of some tests do not say", [notes]),
            *comparisons(report.comparisons),
        ],
        id="numbers",
    )


def _statistics(report: AuditResult, shown: Sequence[Statistic]) -> Table:
    head = [
        "statistic",
        "texts predicted",
        "mean [95% interval]",
        "median",
        "std",
        "texts",
    ]
    head += ["undefined"] if any(s.undefined for s in shown) else []
    several, sets = (
        has_several(report.statistics),
        report.provenance.get("head_sets") or [],
    )
    rows = []
    for s in shown:
        where = f" ({place_name(s.place, sets)})" if several else ""
        numbers: list[Cell] = [Number(s.mean, s.ci95), s.median, s.std]
        known = numbers if s.n >= MIN_SHOWN else [None] * len(numbers)
        row: list[Cell] = [f"{s.statistic}{where}", s.group, *known, s.n]
        row += [s.undefined] if "undefined" in head else []
        rows.append(row)
    return Table(head, rows, "statistics over texts")


def shown_statistics(report: AuditResult) -> tuple[list[Statistic], str]:
    """The statistics of the table, and a sentence about those that are not in it.

    Of models with several heads the numbers of single heads and layers are in the table
    of heads, those of the parts of a prediction in one of their own.
    """
    shown = [
        s
        for s in report.statistics
        if (s.group == "all" or not is_of_ranking(s))
        and s.statistic.partition("@")[0] not in BY_PART
    ]
    several = has_several(report.statistics)
    for is_kept in (
        lambda s: s.place == EVERYWHERE or not several,
        lambda s: s.group == ALL_TEXTS or has_line(s.statistic),
        lambda s: s.group == ALL_TEXTS,
        lambda s: s.n and has_line(s.statistic),
    ):
        if len(shown) > MOST_ROWS:
            shown = [s for s in shown if is_kept(s)]
    shown = shown[:MOST_ROWS]
    n_left = len(report.statistics) - len(shown)
    if not n_left:
        return shown, ""
    return shown, (
        f"{n_left:,} of {len(report.statistics):,} statistics are not in this table: of "
        "single heads and layers, single classes or parts, or p-values. All are written "
        "by attnprobe report FOLDER --output numbers.csv, where FOLDER is the audit's "
        "output folder."
    )


def _in_words(report: AuditResult, shown: Sequence[Statistic]) -> list[str]:
    known = readings()
    return [
        f"{s.statistic}: {sentence(s, known, report.words)}."
        for s in shown
        if s.group == "all"
        and s.n >= MIN_SHOWN
        and has_line(s.statistic)
        and s.statistic.partition("@")[0] in known.get(s.test, {})
        and (not has_several(report.statistics) or s.place == (-1, -1))
    ]


# --- which statistics are told ---------------------------------------------------------------------


def is_of_ranking(s: Statistic) -> bool:
    """Whether it is of one ranking, ``name@ranking``."""
    return isinstance(key_of(s.statistic), str)


def has_line(statistic: str) -> bool:
    """Not p-values; of the frontier the papers' two ε; of the rankings attention."""
    name = statistic.partition("@")[0]
    shown = (None, "attention", *EPSILONS)
    return not name.endswith("_p_value") and key_of(statistic) in shown
