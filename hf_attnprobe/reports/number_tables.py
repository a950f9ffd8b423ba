"""Tables of an audit's numbers: ranking comparisons, user-provided scores, all statistics."""

from collections.abc import Sequence

from hf_attnprobe.documents.blocks import (
    Block,
    Cell,
    Collapsible,
    FormattedNumber,
    Note,
    NumericText,
    Section,
    Table,
)
from hf_attnprobe.faithfulness.adversarial import EPSILONS
from hf_attnprobe.faithfulness.input_erasure import ERASURE_CAUTION
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.reports.head_tables import (
    PART_COLUMN_TITLES,
    format_site,
    has_several_heads,
)
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.reports.verdict import get_min_texts
from hf_attnprobe.statistics.differences import Comparison
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS
from hf_attnprobe.statistics.heads import ALL_ATTENTION_SITE
from hf_attnprobe.statistics.summary import (
    ALL_TEXTS_GROUP,
    Statistic,
    describe_statistic,
    parse_key,
)


# --- comparisons of rankings ----------------------------------------------------------------------

SIGNIFICANCE_LEVEL = 0.05
"""Largest p-value at which a report calls a difference between rankings clear.

The p-value is Holm-corrected.
"""

COMPARISON_NOTE = (
    "Each line compares two rankings on the same texts. A sign-flip permutation test compares means, "
    "McNemar's exact test compares flips, and an exact sign test compares which ranking needs fewer "
    "removals. All p-values are two-sided. The last column is Holm-corrected for the {n} comparisons "
    "of this test. The intervals cover the choice of texts. Texts without a value for one of the rankings are "
    "dropped; the column “dropped” counts them."
)
"""Explanation below a table that compares rankings. ``{n}`` is the number of comparisons."""

ERASURE_COMPARISON_NOTE = (
    "Rankings are compared only on texts whose decision flips if some set of tokens is erased. If "
    "this is unknown, they are compared on texts whose decision flips in some tested order. A ranking "
    "that never flips the decision counts as erasing all tokens. In the sign test, it counts as "
    "needing more removals."
)
"""Explanation of the texts and counts in the comparison of rankings by the test "erasure"."""

TEST_LIMITATIONS = {
    "erasure": (
        "Some orders flip a decision only after nearly all of the attention is erased "
        "(probability_mass_removed). The decision then depends on the renormalised rest, which the "
        "model never saw in training. If a linear layer chooses between two classes, attention × "
        "gradient is nearly the best ranking by construction. Up to the bias, it is proportional to "
        "the exact margins of the tokens (product_margin_tau near 1). It may therefore need fewer "
        "removals than attention, as in Serrano & Smith's experiment. This follows from the algebra "
        "of the linear layer. It does not show which tokens the encoder used."
    ),
    "input_erasure": ERASURE_CAUTION,
    "plausibility": (
        "Plausibility is the agreement with words that people marked. It is independent of "
        "faithfulness: a plausible ranking may differ from what the model used, and an implausible "
        "one may agree with it."
    ),
}
"""Maps the name of a test to a caution about its results."""


def build_comparison_blocks(comparisons: Sequence[Comparison]) -> list[Block]:
    """Build one table per test that compares rankings, such as attention and gradients.

    Comparisons with too few texts are omitted.

    Args:
        comparisons: all comparisons between two rankings in an audit.

    Returns:
        The tables, as blocks that a page hides until the reader opens them.
    """
    blocks: list[Block] = []
    for test in dict.fromkeys(c.test for c in comparisons):
        test_comparisons = [c for c in comparisons if c.test == test]
        rows = [_build_comparison_row(c) for c in test_comparisons if c.n >= MIN_DISPLAYED_TEXTS]
        if not rows:
            continue
        title = (
            f"{test}: rankings compared on the same texts (first − second; "
            f"clear if the corrected p ≤ {SIGNIFICANCE_LEVEL})"
        )
        notes = [COMPARISON_NOTE.format(n=len(test_comparisons))]
        if test == "erasure":
            notes.append(ERASURE_COMPARISON_NOTE)
        blocks.append(Collapsible(title, [Table(COMPARISON_COLUMNS, rows), *notes]))
    return blocks


# --- user-provided scores -------------------------------------------------------------------------

LOWER_IS_BETTER = ("sufficiency", "fraction_to_flip", "regret", "tokens_to_flip")
"""Names of statistics for which a lower value means a better ranking."""

CHANCE_SCORES_KEY = "given_moved"
"""Key of the chance level with which user-provided scores are compared.

``"given_moved"`` means the given scores, moved to other tokens of the same text.
"""

USER_SCORES_NOTE = (
    "The user-provided scores are compared with chance and with attention, paired by text. Chance "
    "means the same scores at other tokens of each text. Better and worse mean p ≤ .05, "
    "Holm-corrected within a test. Lower is better for "
    f"{', '.join(LOWER_IS_BETTER)}."
)
"""Explanation below the table that compares user-provided scores with chance and with attention."""


def build_user_scores_blocks(report: AuditResult) -> list[Block]:
    """Build a table that compares user-provided scores with chance and with attention.

    Args:
        report: the audit's result.

    Returns:
        The table with its explanation; empty if the audit evaluates no user-provided scores.
    """
    if not report.evaluates_scores:
        return []
    comparisons: dict[tuple[str, str], dict[str, Comparison]] = {}
    for c in report.comparisons:
        # The scores of the user have the key "given".
        if c.first == "given" and c.method == "permutation":
            comparisons.setdefault((c.test, c.statistic), {})[c.second] = c
    if not comparisons:
        return []
    # Later entries overwrite earlier ones, so the reversed order keeps the first of each name.
    statistics = {
        (s.test, s.statistic): s for s in reversed(report.statistics) if s.group == ALL_TEXTS_GROUP
    }
    rows: list[list[Cell]] = []
    min_texts = get_min_texts(report.words)
    for (test, statistic), by_ranking in comparisons.items():
        user_scores = statistics.get((test, f"{statistic}@given"))
        mean = None
        if user_scores is not None:
            mean = FormattedNumber(user_scores.mean, user_scores.ci95, digits=2)
        attention = by_ranking.get("attention") or by_ranking.get("mean_attention")
        rows.append(
            [
                f"{test}: {statistic}",
                mean,
                _format_comparison(by_ranking.get(CHANCE_SCORES_KEY), min_texts),
                _format_comparison(attention, min_texts),
            ]
        )
    head = [
        "measure",
        "mean [95%]",
        "minus chance [95%]",
        "minus attention [95%]",
    ]
    return [Table(head, rows, sortable=False), Note(USER_SCORES_NOTE)]


def _format_comparison(comparison: Comparison | None, min_texts: int) -> Cell:
    """Format the difference between two rankings, followed by "better", "worse" or "cannot say".

    Args:
        comparison: comparison of two rankings. If it is None, the cell is empty.
        min_texts: smallest number of texts for an answer.
    """
    if comparison is None:
        return None
    # For some statistics, lower values are better. The ranking is better if both are true or both
    # are false.
    is_lower = comparison.value < 0
    is_lower_better = comparison.statistic in LOWER_IS_BETTER
    is_better = is_lower == is_lower_better
    is_clear = comparison.adjusted_p_value <= SIGNIFICANCE_LEVEL and comparison.n >= min_texts
    answer = "cannot say"
    if is_clear:
        answer = "better" if is_better else "worse"
    return FormattedNumber(comparison.value, comparison.ci95, sign="+", digits=2, suffix=answer)


COMPARISON_COLUMNS = (
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
"""Column titles in tables that compare two rankings by a statistic."""


def _build_comparison_row(comparison: Comparison) -> list[Cell]:
    """Build the table row for a comparison, with the columns ``COMPARISON_COLUMNS``."""
    counts = None
    if comparison.n_first is not None:
        counts = NumericText(f"{comparison.n_first} : {comparison.n_second}")
    p_values = []
    for p_value in (comparison.p_value, comparison.adjusted_p_value):
        printed_p_value = "< .001" if p_value < 0.001 else f"{p_value:.3f}"
        p_values.append(NumericText(printed_p_value))
    return [
        comparison.statistic,
        comparison.first,
        comparison.second,
        FormattedNumber(comparison.value, comparison.ci95, sign="+"),
        counts,
        comparison.n,
        comparison.dropped,
        *p_values,
    ]


# --- all statistics ----------------------------------------------------------------------------


MAX_LISTED_STATISTICS = 150
"""Maximum number of statistics in a report's table. Exported files contain all of them."""


def build_numbers_section(report: AuditResult) -> Section:
    """Build the report section with all statistics and comparisons.

    Args:
        report: the audit's result.
    """
    listed_statistics, omission_note = select_listed_statistics(report)
    tests = dict.fromkeys(s.test for s in report.statistics)
    limitations = [
        f"{test}: {TEST_LIMITATIONS[test]}" for test in tests if test in TEST_LIMITATIONS
    ]
    return Section(
        "All numbers",
        [
            Collapsible(
                "Meaning of each number", [_describe_statistics(report, listed_statistics)]
            ),
            Collapsible(
                f"All statistics with their intervals: {len(listed_statistics):,}",
                [omission_note, _build_statistics_table(report, listed_statistics)],
            ),
            Collapsible("Limitations of some tests", [limitations]),
            *build_comparison_blocks(report.comparisons),
        ],
        id="numbers",
    )


def _build_statistics_table(report: AuditResult, statistics: Sequence[Statistic]) -> Table:
    """Build a table with one row per statistic."""
    head = [
        "statistic",
        "texts predicted",
        "mean [95% interval]",
        "median",
        "std",
        "texts",
    ]
    has_undefined = any(s.undefined for s in statistics)
    if has_undefined:
        head.append("undefined")
    has_heads = has_several_heads(report.statistics)
    head_sets = report.provenance.get("head_sets") or []
    rows = []
    for s in statistics:
        site = f" ({format_site(s.site, head_sets)})" if has_heads else ""
        numbers: list[Cell] = [FormattedNumber(s.mean, s.ci95), s.median, s.std]
        if s.n < MIN_DISPLAYED_TEXTS:
            numbers = [None] * len(numbers)
        row: list[Cell] = [f"{s.statistic}{site}", s.group, *numbers, s.n]
        if has_undefined:
            row.append(s.undefined)
        rows.append(row)
    return Table(head, rows, "statistics over texts")


def select_listed_statistics(report: AuditResult) -> tuple[list[Statistic], str]:
    """Select the statistics for the report's long table.

    If there are too many, the table first omits single heads, then single classes, then p-values.
    Separate tables list single heads and prediction parts.

    Args:
        report: the audit's result.

    Returns:
        statistics: the selected statistics.
        note: a sentence about omitted statistics; empty if there are none.
    """
    statistics = []
    for s in report.statistics:
        is_single_class_of_ranking = s.group != ALL_TEXTS_GROUP and is_ranking_statistic(s)
        is_part = s.statistic.partition("@")[0] in PART_COLUMN_TITLES
        if not is_single_class_of_ranking and not is_part:
            statistics.append(s)
    has_many_heads = has_several_heads(report.statistics)
    # Each filter is applied only if the list is still too long.
    for is_selected in (
        lambda s: s.site == ALL_ATTENTION_SITE or not has_many_heads,
        lambda s: s.group == ALL_TEXTS_GROUP or is_described(s.statistic),
        lambda s: s.group == ALL_TEXTS_GROUP,
        lambda s: s.n and is_described(s.statistic),
    ):
        if len(statistics) > MAX_LISTED_STATISTICS:
            statistics = [s for s in statistics if is_selected(s)]
    statistics = statistics[:MAX_LISTED_STATISTICS]
    n_omitted = len(report.statistics) - len(statistics)
    if not n_omitted:
        return statistics, ""
    return statistics, (
        f"This table omits {n_omitted:,} of {len(report.statistics):,} statistics: those of single "
        "heads and layers, of single classes or parts, and p-values. To get all of them, run "
        "attnprobe report FOLDER --output numbers.csv with the audit's output folder."
    )


def _describe_statistics(report: AuditResult, statistics: Sequence[Statistic]) -> list[str]:
    """Explain statistics in words, such as "regret@attention: …".

    Statistics for single heads or single classes are skipped, because there would be too many
    sentences. Statistics without a description are skipped too.

    Args:
        report: the audit's result.
        statistics: statistics that are listed in the report.

    Returns:
        One sentence per explained statistic.
    """
    # Maps each test and each statistic name to a template for a sentence.
    descriptions = load_readings()
    has_heads = has_several_heads(report.statistics)
    sentences = []
    for s in statistics:
        is_over_all_texts = s.group == ALL_TEXTS_GROUP
        has_enough_texts = s.n >= MIN_DISPLAYED_TEXTS
        is_over_all_heads = not has_heads or s.site == ALL_ATTENTION_SITE
        if not (is_over_all_texts and has_enough_texts and is_over_all_heads):
            continue
        # In a name such as "regret@attention", the part after "@" is a ranking or a number.
        name_without_key, _, _ = s.statistic.partition("@")
        has_description = name_without_key in descriptions.get(s.test, {})
        if has_description and is_described(s.statistic):
            sentence = describe_statistic(s, descriptions, report.words)
            sentences.append(f"{s.statistic}: {sentence}.")
    return sentences


# --- selection of statistics ----------------------------------------------------------------------


def is_ranking_statistic(s: Statistic) -> bool:
    """Check whether a statistic belongs to one ranking, such as "regret@attention".

    Args:
        s: the statistic.
    """
    # The key after "@" is a string for rankings, a number for other statistics, or None.
    return isinstance(parse_key(s.statistic), str)


def is_described(statistic: str) -> bool:
    """Check whether reports describe a statistic in words.

    P-values have no description. For statistics of several rankings, only those of attention are
    described. For statistics at several values of ε, only those at the papers' values are described.

    Args:
        statistic: the statistic's name, such as "regret@attention".
    """
    name_without_key, _, _ = statistic.partition("@")
    is_p_value = name_without_key.endswith("_p_value")
    has_described_key = parse_key(statistic) in (None, "attention", *EPSILONS)
    return has_described_key and not is_p_value
