"""Sentences, maps and tables about single heads and groups of heads.

Readers look for the largest number in a map, so its intervals hold for all heads simultaneously; see
:mod:`hf_attnprobe.statistics.heads`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.progress import format_duration
from hf_attnprobe.documents.blocks import Cell, FormattedNumber, Section, Table
from hf_attnprobe.plots.chart import Grid, HeatMap
from hf_attnprobe.statistics.estimates import (
    MIN_DISPLAYED_TEXTS,
    Estimate,
)
from hf_attnprobe.statistics.grades import MIN_TEXTS, Rule
from hf_attnprobe.statistics.head_pairs import HeadPair, HeadPairs
from hf_attnprobe.statistics.heads import (
    ALL_ATTENTION_SITE,
    ALL_HEADS_INDEX,
    EFFECT_STATISTIC,
    HEAD_SET_INDEX,
    PATH_SHARE_STATISTIC,
    HeadEvaluation,
    LayerHead,
    build_head_rule,
    compute_head_intervals,
)
from hf_attnprobe.statistics.rows import STOPPING_KEY
from hf_attnprobe.statistics.summary import ALL_TEXTS_GROUP, Statistic


if TYPE_CHECKING:
    from hf_attnprobe.reports.result import AuditResult

EDIT_COLUMN_TITLES = {
    "median_tvd": "shuffled",
    "uniform_tvd": "made uniform",
    "zero_tvd": "zeroed",
    "mean_tvd": "replaced by its mean",
    "resample_tvd": "taken from another text",
}
"""Maps each statistic about an edit of a head to its column title, which describes the edit."""


def format_head(site: LayerHead) -> str:
    """Format a head as "layer.head", both counted from 0.

    >>> format_head((5, 3))
    '5.3'

    Args:
        site: layer index and head index.
    """
    return f"{site[0]}.{site[1]}"


def format_head_in_words(site: LayerHead) -> str:
    """Format a head in words, for sentences.

    >>> format_head_in_words((5, 3))
    'layer 5 head 3'

    Args:
        site: layer index and head index.
    """
    return f"layer {site[0]} head {site[1]}"


def index_by_site(statistics: Sequence[Statistic], name: str) -> dict[LayerHead, Statistic]:
    """Select one statistic over all texts, and return it for each head and group of heads.

    Args:
        statistics: the audit's statistics.
        name: the statistic's name, such as "median_tvd".

    Returns:
        Maps a site (layer and head, or the indices of a group) to the statistic.
    """
    by_site = {}
    for s in statistics:
        if s.statistic == name and s.group == ALL_TEXTS_GROUP and s.n:
            by_site[s.site] = s
    return by_site


def get_head_means(statistics: Sequence[Statistic], name: str) -> dict[LayerHead, float]:
    """Return a statistic's mean over all texts for each single head.

    Args:
        statistics: the audit's statistics.
        name: the statistic's name, such as "median_tvd".
    """
    by_site = index_by_site(statistics, name)
    return {site: s.mean for site, s in by_site.items() if s.is_single_head}


def list_heads(statistics: Iterable[Statistic]) -> set[LayerHead]:
    """Return all single heads that have a statistic, as pairs of layer and head.

    The result includes heads for which only a quick estimate was measured (test "screen").

    Args:
        statistics: the audit's statistics.
    """
    return {s.site for s in statistics if s.is_single_head}


def list_tested_heads(statistics: Iterable[Statistic]) -> set[LayerHead]:
    """Return the heads that were tested one by one, as pairs of layer and head.

    Heads for which only a quick estimate was measured (test "screen") are omitted.

    Args:
        statistics: the audit's statistics.
    """
    return list_heads(s for s in statistics if s.test != "screen")


def has_several_heads(statistics: Sequence[Statistic]) -> bool:
    """Check whether several heads were tested, one by one or as a group.

    Args:
        statistics: the audit's statistics.
    """
    # Groups of heads have negative indices.
    has_group = any(s.head < 0 and s.n for s in statistics)
    return has_group or len(list_heads(statistics)) > 1


# --- a summary in words -----------------------------------------------------------------------------

MAX_NAMED_HEADS = 5
"""Maximum number of faithful heads that a sentence in a report names.

The sentence counts the remaining faithful heads.
"""


def describe_important_heads(report: "AuditResult") -> str:
    """Describe through how many single heads the decision passes, and which of them are faithful.

    For a language model, the heads that change the output are counted instead.

    Args:
        report: the audit's result.

    Returns:
        Sentences; empty if fewer than two heads were tested. If the audit stopped at its time limit
        before the foremost heads were tested, a sentence states how long they would take.
    """
    heads = [evaluation for evaluation in report.head_evaluations if evaluation.is_head]
    if len(heads) < 2:
        return _describe_missing_heads(report).strip()
    if report.words.kind == "answer":
        effect_rule = report.rules["effect"]
        n_passing = sum(surely_reaches_threshold(head.effect, effect_rule) for head in heads)
        sentence = _describe_effective_heads(heads, n_passing, effect_rule)
    else:
        head_rule = build_head_rule(report.rules["path_share"])
        n_passing = sum(surely_reaches_threshold(head.path_share, head_rule) for head in heads)
        sentence = _describe_path_shares(heads, n_passing, head_rule)
    if n_passing:
        sentence += f"; {_describe_faithful_heads(heads, report.rules['faithfulness'])}"
    untested = _describe_untested_heads(report, len(heads))
    return f"{sentence}.{untested}{_describe_missing_heads(report)}"


def _describe_path_shares(heads: Sequence[HeadEvaluation], n_passing: int, rule: Rule) -> str:
    """Return a clause that counts the heads through which a part of the decision certainly passes.

    If there is no such head, the clause names the head with the largest path share.
    """
    measured_heads = [head for head in heads if head.path_share.n]
    if not measured_heads:
        return "The path shares of single heads were not measured (test uniform_attention)"
    share = f"a path share of {rule.yes:.2f} or more"
    meaning = "the share of the decision that passes through the attention of this head alone"
    if n_passing:
        verb = "has" if n_passing == 1 else "have"
        return f"{n_passing} of {len(measured_heads)} heads certainly {verb} {share} ({meaning})"
    if max(head.path_share.n or 0 for head in measured_heads) < MIN_DISPLAYED_TEXTS:
        return (
            f"The path shares of {len(measured_heads)} of {len(heads)} heads were measured, on fewer "
            f"than {MIN_DISPLAYED_TEXTS} texts"
        )
    foremost = max(measured_heads, key=lambda head: head.path_share.value)
    number = markdown.format_interval(foremost.path_share.value, foremost.path_share.ci95, digits=2)
    largest = f"the largest one is that of {format_head_in_words(foremost.site)}, {number}"
    if foremost.path_share.ci95 is None:
        return (
            f"The path shares of {len(measured_heads)} of {len(heads)} heads were measured, on fewer "
            f"than {MIN_TEXTS} texts; none is certainly {rule.yes:.2f} or more, {largest}"
        )
    return f"None of {len(measured_heads)} heads certainly has {share} ({meaning}); {largest}"


def _describe_effective_heads(heads: Sequence[HeadEvaluation], n_effective: int, rule: Rule) -> str:
    """Return a clause that counts the heads with an effect, or names the most effective head.

    The most effective head is named if no head certainly changes the output.
    """
    measured_heads = [head for head in heads if head.effect.n]
    if not measured_heads:
        return "The effect of single heads on the output was not measured (test permutation)"
    effect = f"the output by {rule.yes:.2f} or more when shuffled alone"
    if n_effective:
        verb = "changes" if n_effective == 1 else "change"
        return f"{n_effective} of {len(measured_heads)} heads certainly {verb} {effect}"
    most_effective = max(measured_heads, key=lambda head: head.effect.value)
    number = markdown.format_interval(
        most_effective.effect.value, most_effective.effect.ci95, digits=2
    )
    largest = f"{format_head_in_words(most_effective.site)} changes it most, by {number}"
    if most_effective.effect.ci95 is None:
        return (
            f"{len(measured_heads)} of {len(heads)} heads were shuffled, on fewer than {MIN_TEXTS} "
            f"texts; none certainly changes the output, {largest}"
        )
    return f"None of {len(measured_heads)} heads certainly changes {effect}; {largest}"


def _describe_faithful_heads(heads: Sequence[HeadEvaluation], rule: Rule) -> str:
    """Return a clause that names the faithful heads among the heads that were counted before."""
    if not any(head.faithfulness.n for head in heads):
        return "their faithfulness was not measured (test exchange or scale)"
    faithful_heads = [head for head in heads if head.is_surely_faithful]
    faithful_heads.sort(key=lambda head: -head.faithfulness.value)
    if not faithful_heads:
        return f"none of these is certainly faithful ({rule.partly:.2f} or more)"
    names = [
        f"{format_head_in_words(head.site)} ({head.faithfulness.value:.2f})"
        for head in faithful_heads[:MAX_NAMED_HEADS]
    ]
    n_unnamed = len(faithful_heads) - MAX_NAMED_HEADS
    suffix = f" and {n_unnamed} more" if n_unnamed > 0 else ""
    return f"certainly faithful ({rule.partly:.2f} or more) among these: {', '.join(names)}{suffix}"


def surely_reaches_threshold(estimate: Estimate, rule: Rule) -> bool:
    """Check whether a whole confidence interval is at or above the lowest threshold of a rule.

    Args:
        estimate: a number with its interval; without interval, the result is False.
        rule: the rule whose threshold ``partly`` is used.
    """
    return estimate.ci95 is not None and estimate.ci95[0] >= rule.partly


def is_displayed(estimate: Estimate) -> bool:
    """Check whether an estimate is based on enough texts to be displayed.

    Args:
        estimate: a number, whose n is 0 if it was not measured.
    """
    return (estimate.n or 0) >= MIN_DISPLAYED_TEXTS


def _describe_untested_heads(report: "AuditResult", n_tested: int) -> str:
    """Return a sentence that counts the tested heads.

    The sentence is empty if all heads were tested.
    """
    n_heads = len(list_heads(report.statistics))
    if n_heads <= n_tested:
        return ""
    return f" Only {n_tested} of {n_heads} heads were tested one by one."


def _describe_missing_heads(report: "AuditResult") -> str:
    """Return a sentence about the foremost heads that a time limit left out, with a space before it.

    The sentence states how long these heads would take. It is empty if none of them is missing.
    """
    progress = (report.provenance.get(STOPPING_KEY) or {}).get("heads")
    if progress is None or not progress["n_foremost_missing"]:
        return ""
    n_foremost, n_missing = progress["n_foremost"], progress["n_foremost_missing"]
    number = "effect" if report.words.kind == "answer" else "path share"
    if progress["n_screened"] < progress["n_heads"]:
        n_unscreened = progress["n_heads"] - progress["n_screened"]
        screen = f"the estimated effects of {n_unscreened} of {progress['n_heads']} heads, and "
    else:
        screen = ""
    return (
        f" Not measured within the time limit: {screen}{number} and faithfulness of {n_missing} of the "
        f"{n_foremost} heads with the largest estimated effects, on {MIN_TEXTS} texts. These heads would "
        f"take {format_duration(progress['seconds_left'])} more."
    )


UNSEEN_PAIRS_NOTE = (
    "Heads were only removed one by one, so this section cannot show whether two heads replace each "
    "other, or only work together. A head without an effect may therefore still be important."
)
"""Caution for reports without an ablation of heads in pairs."""

TOO_FEW_PAIR_TEXTS_NOTE = (
    f"Heads were removed in pairs on only {{texts}}, but {MIN_TEXTS} are needed to show whether two heads "
    "replace each other, or only work together. A head without an effect may therefore still be "
    "important."
)
"""Caution for reports in which heads were ablated in pairs on too few texts."""


def describe_head_pairs(pairs: HeadPairs | None) -> str:
    """Describe the pairs of heads that only work together, or that replace each other.

    Args:
        pairs: result of removing heads in pairs; None if it was not measured.

    Returns:
        Sentences; a caution if pairs were not measured on enough texts.
    """
    if pairs is None:
        return UNSEEN_PAIRS_NOTE
    if pairs.n_texts < MIN_TEXTS:
        return TOO_FEW_PAIR_TEXTS_NOTE.format(texts=markdown.format_count(pairs.n_texts, "text"))
    tested = (
        f"{len(pairs.heads)} heads were also set to zero in pairs, on {pairs.n_texts} texts: those "
        "with the largest effects, and those that write most"
    )
    if not pairs.pairs:
        return f"{tested}. No pair certainly works only together, or replaces each other."
    return f"{tested}. {' '.join(_describe_pair(pair) for pair in pairs.pairs)}"


def _describe_pair(pair: HeadPair) -> str:
    """Return a sentence about two heads whose effects depend on each other."""
    names = f"{format_head_in_words(pair.first)} and {format_head_in_words(pair.second)}"
    alone = " and ".join(f"{effect:.2f}" for effect in pair.effects)
    without_other = " and ".join(f"{effect:.2f}" for effect in pair.effects_without_other)
    relation = "replace each other" if pair.relation == "substitutes" else "only work together"
    return (
        f"{names[0].upper()}{names[1:]} {relation}: setting one of them to zero changes the output "
        f"by {alone}, and by {without_other} if the other one is already zero."
    )


# --- maps: layers as rows and heads as columns --------------------------------------------


FAITHFULNESS_MAP_KEY = "heads_faithfulness"
"""Key of the heat map of the heads' faithfulness, as in ``report.plot("heads_faithfulness")``."""

PATH_SHARE_MAP_KEY = f"heads_{PATH_SHARE_STATISTIC}"
"""Key of the heat map of the heads' path shares, as in ``report.plot("heads_path_share")``."""

EFFECT_MAP_KEY = f"heads_{EFFECT_STATISTIC}"
"""Key of the heat map of the heads' effects, as in ``report.plot("heads_standard_tvd")``."""


class HeadMapSpec(NamedTuple):
    """Description of one heat map of heads.

    Attributes:
        rule: key of the rule about the number; also its field in ``HeadEvaluation``.
        key: the map's key in ``report.plot``.
        title: title above the map.
        aside: caution for readers, after the finding.
        centre: value at which the colour changes; None uses shades of one colour.
    """

    rule: str
    key: str
    title: str
    aside: str
    centre: float | None = None


HEAD_MAP_SPECS = (
    HeadMapSpec(
        rule="faithfulness",
        key=FAITHFULNESS_MAP_KEY,
        title="Faithfulness of single heads",
        aside="A head through which nothing passes explains nothing, even if it is faithful.",
        centre=0.0,
    ),
    HeadMapSpec(
        rule="path_share",
        key=PATH_SHARE_MAP_KEY,
        title="Share of the decision that passes through the attention of one head",
        aside="Other heads may compensate for a head, so the shares need not add up to that of all "
        "attention.",
    ),
    HeadMapSpec(
        rule="effect",
        key=EFFECT_MAP_KEY,
        title="Effect of shuffling one head's attention",
        aside="Single heads may have little effect because other heads compensate for them.",
    ),
)
"""Descriptions of the heat maps of heads in a report, in this order."""


def build_head_maps(
    evaluations: Sequence[HeadEvaluation], rules: Mapping[str, Rule]
) -> tuple[HeatMap, ...]:
    """Build heat maps of all heads' faithfulness, path shares and effects.

    A map is omitted if fewer than two heads have the number, on at least ten texts.

    Args:
        evaluations: evaluations of all heads and groups.
        rules: the audit's rules, by key.
    """
    heads = [evaluation for evaluation in evaluations if evaluation.is_head]
    maps = []
    for spec in HEAD_MAP_SPECS:
        rule = rules[spec.rule]
        if spec.rule == "path_share":
            rule = build_head_rule(rule)
        numbers = {head.site: getattr(head, spec.rule) for head in heads}
        measured_numbers = {site: n for site, n in numbers.items() if is_displayed(n)}
        if len(measured_numbers) > 1:
            heat_map = build_head_map(
                spec.key,
                spec.title,
                numbers,
                f"{_describe_largest_head(measured_numbers)} {spec.aside}",
                rule.scale_label,
                spec.centre,
                rule.partly,
            )
            maps.append(heat_map)
    return tuple(maps)


def build_head_map(
    key: str,
    title: str,
    numbers: Mapping[LayerHead, Estimate],
    finding: str,
    value_label: str,
    centre: float | None = None,
    threshold: float | None = None,
) -> HeatMap:
    """Build a heat map with one number per head.

    Heads without a number get empty cells.

    Args:
        key: the map's key in ``report.plot``.
        title: title above the map.
        numbers: number of each head, by layer and head.
        finding: description of the result, in sentences.
        value_label: meaning and unit of the numbers, for the colour scale.
        centre: value at which the colour changes; None uses shades of one colour.
        threshold: heads whose interval lies at or above this value are marked.
    """
    layers, heads = (range(1 + max(indices)) for indices in zip(*numbers, strict=True))
    no_interval = math.nan, math.nan
    missing = Estimate(math.nan, no_interval)
    # One row per layer, one column per head.
    cells = [[numbers.get((layer, head), missing) for head in heads] for layer in layers]

    def build_grid(get_value: Callable[[Estimate], float]) -> Grid:
        """Return one number for each cell."""
        return tuple(tuple(map(get_value, row)) for row in cells)

    has_intervals = any(estimate.ci95 for estimate in numbers.values())
    low = build_grid(lambda estimate: (estimate.ci95 or no_interval)[0])
    high = build_grid(lambda estimate: (estimate.ci95 or no_interval)[1])
    return HeatMap(
        key=key,
        title=title,
        finding=finding,
        source="",
        values=build_grid(lambda estimate: estimate.value),
        low=low if has_intervals else (),
        high=high if has_intervals else (),
        value_label=value_label,
        layers=tuple(layers),
        heads=tuple(heads),
        centre=centre,
        threshold=threshold,
    )


def _describe_largest_head(numbers: Mapping[LayerHead, Estimate]) -> str:
    """Return sentences about the head with the largest number and the map's intervals."""
    site = max(numbers, key=lambda site: numbers[site].value)
    value, interval = numbers[site].value, numbers[site].ci95
    number = markdown.format_interval(value, interval, digits=2)
    sentence = f"The largest value is {number}, for head {format_head(site)} (layer.head, from 0)."
    if interval is None:
        return f"{sentence} There are too few texts for intervals, so nothing is certain."
    return f"{sentence} 95% intervals hold for all heads simultaneously."


# --- labels and tags, and names of sites --------------------------------------------


PART_COLUMN_TITLES = {
    "median_tvd_of": "change when shuffled",
    "uniform_tvd_of": "change when made uniform",
}
"""Maps statistics to their column titles in a table with one row for each label or tag.

The table appears if a prediction consists of several labels or tags. The statistics measure how much
the probability of a label changes when attention is edited: ``median_tvd_of@joy`` belongs to "joy".
"""

MAX_LISTED_PARTS = 20
"""Maximum number of rows in the table that shows the change of each label or tag."""


def build_parts_section(statistics: Sequence[Statistic]) -> Section:
    """Build a table of how much an edit of attention changes each label or tag of a prediction.

    For example, a prediction can consist of the labels "joy" and "fear". They are called parts.

    Args:
        statistics: the audit's statistics.

    Returns:
        The section, with the largest changes first; empty if predictions have no parts.
    """
    has_many_heads = has_several_heads(statistics)
    columns: dict[str, dict[str, Statistic]] = {}
    for s in statistics:
        is_all_attention = s.site == ALL_ATTENTION_SITE or not has_many_heads
        is_over_all_texts = s.group == ALL_TEXTS_GROUP and s.n
        family, _, part = s.statistic.partition("@")
        if is_over_all_texts and is_all_attention and family in PART_COLUMN_TITLES:
            columns.setdefault(family, {})[part] = s
    parts = list(dict.fromkeys(chain.from_iterable(columns.values())))
    # The parts that change most come first.
    parts.sort(key=lambda part: -max(column[part].mean for column in columns.values()))
    rows = []
    for part in parts[:MAX_LISTED_PARTS]:
        changes = [column.get(part) for column in columns.values()]
        rows.append([part, *changes])
    n_omitted = len(parts) - len(rows)
    omission = f" summary.json has {n_omitted} more." if n_omitted else ""
    note = (
        "Total variation distance of each part, from 0 to 1. The parts that change most come "
        f"first.{omission}"
    )
    title = "Change of each part of the prediction when all attention is edited"
    table = Table(["part", *(PART_COLUMN_TITLES[family] for family in columns)], rows)
    return Section(title, [table, note] if rows else [])


def format_site(site: LayerHead, head_sets: Sequence[str]) -> str:
    """Format a head or a group of heads.

    >>> format_site((3, 9), []), format_site((3, -1), []), format_site((-1, -1), [])
    ('3.9', 'layer 3', 'all attention')
    >>> format_site((-2, 0), ["5.0+5.3"])
    'heads 5.0+5.3'

    Args:
        site: layer and head, or the indices of a group.
        head_sets: names of the tested head sets.
    """
    layer, head = site
    if min(site) >= 0:
        return format_head(site)
    if site == ALL_ATTENTION_SITE:
        return "all attention"
    if layer == HEAD_SET_INDEX:
        has_name = head < len(head_sets)
        return f"heads {head_sets[head]}" if has_name else f"set {head}"
    return f"layer {layer}"


def get_site_order(site: LayerHead) -> tuple[int, LayerHead]:
    """Return a sort key that puts all attention first, then layers, then sets of heads.

    Args:
        site: layer and head, or the indices of a group.
    """
    layer, _ = site
    if layer == ALL_HEADS_INDEX:
        return 0, site
    if layer >= 0:
        return 1, site
    return 2, site


# --- table of heads and groups ----------------------------------------------------------------


HEAD_TABLE_NOTE = (
    "Heads are named layer.head, both counted from 0. Path share: how much of the margin of the "
    "decision is lost if the head attends evenly to all tokens. Faithfulness: the head's position "
    "on the scale from a random order of the tokens (0) to the best order (1), the mean of its parts. "
    "The answer follows from these two numbers, as for all attention, but a head, a layer or a set of "
    "heads needs only a third of the path share that all attention needs. Effect: how far shuffling "
    "the head's weights changes the output, for the median and for the worst shuffle. Intervals of "
    "single heads hold for all heads simultaneously (95%), so you may look for the largest one; the "
    "interval of a group holds for this group only. The heads of a group are edited together. The "
    "more heads are edited, the further the model is from the conditions of its training. Roles (previous token, "
    "induction, …) are shares of attention, from 0 to 1. They show which tokens a head attends to, "
    "not its influence on the prediction."
)
"""Explanation for the table of heads in a report."""

MAX_LISTED_HEADS = 40
"""Maximum number of single heads in a report's table. Its heat maps display all heads."""


def build_head_table(report: "AuditResult") -> Table:
    """Build the table of heads and groups of heads, with all their numbers.

    Groups come first, then certainly faithful heads, then the other heads. Within both kinds of
    heads, the heads with the largest effects of ablation come first. Heads that were not ablated
    follow, the largest path shares first, and those of language models by the effect of shuffling.

    Args:
        report: the audit's result.
    """
    # This import loads torch, which drawing charts alone does not need.
    from hf_attnprobe.faithfulness.head_roles import ATTENTION_PATTERNS

    evaluations = {evaluation.site: evaluation for evaluation in report.head_evaluations}
    role_columns = {
        role.replace("_", " "): index_by_site(report.statistics, role)
        for role in ATTENTION_PATTERNS
    }
    ablated = index_by_site(report.statistics, "zero_tvd")
    ablated |= index_by_site(report.statistics, "mean_tvd")
    all_columns: dict[str, Mapping[LayerHead, Cell]] = {
        **_build_evaluation_columns(report.head_evaluations),
        **_build_edit_columns(report),
        **role_columns,
    }
    columns = {name: cells for name, cells in all_columns.items() if any(cells.values())}
    sites = {site for cells in columns.values() for site in cells}
    groups = sorted((site for site in sites if min(site) < 0), key=get_site_order)
    heads = sorted(site for site in sites if min(site) >= 0)
    heads.sort(key=lambda site: _get_head_order(evaluations.get(site), ablated.get(site)))
    head_sets = report.provenance.get("head_sets") or []
    rows = []
    for site in [*groups, *heads[:MAX_LISTED_HEADS]]:
        row = [cells.get(site) for cells in columns.values()]
        rows.append([format_site(site, head_sets), *row])
    selection = ""
    if len(heads) > MAX_LISTED_HEADS:
        selection = f"{MAX_LISTED_HEADS} of {len(heads)} heads; "
    caption = (
        f"{selection}means over texts [95% interval]; for all numbers, run "
        "attnprobe report FOLDER --output numbers.csv"
    )
    return Table(["head", *columns], rows, caption)


def _build_evaluation_columns(
    evaluations: Sequence[HeadEvaluation],
) -> dict[str, dict[LayerHead, Cell]]:
    """Return the columns of a table of heads with answer, path share, faithfulness and effect.

    Returns:
        Cells by column title and site.
    """
    has_faithfulness = any(evaluation.faithfulness.n for evaluation in evaluations)
    columns: dict[str, dict[LayerHead, Cell]] = {}
    for evaluation in evaluations:
        cells: dict[str, Cell] = {
            "answer": evaluation.answer if has_faithfulness else None,
            "path share": _format_estimate(evaluation.path_share),
            "faithfulness": _format_estimate(evaluation.faithfulness),
        }
        for key, part in evaluation.parts.items():
            cells[key] = FormattedNumber(part.value, digits=2)
        cells["effect"] = _format_estimate(evaluation.effect)
        cells["worst shuffle"] = _format_estimate(evaluation.worst_effect)
        for name, cell in cells.items():
            columns.setdefault(name, {})[evaluation.site] = cell
    columns["texts"] = {evaluation.site: evaluation.n for evaluation in evaluations}
    return columns


def _build_edit_columns(report: "AuditResult") -> dict[str, dict[LayerHead, Cell]]:
    """Return the columns of a table of heads with the effects of all edits except shuffling.

    Only the effects of zeroed heads have intervals, which hold for all heads simultaneously.

    Returns:
        Cells by column title and site.
    """
    zeroing_intervals = compute_head_intervals(report.distinct_rows.build_head_frame("zero_tvd"))
    columns: dict[str, dict[LayerHead, Cell]] = {}
    for statistic_name, title in EDIT_COLUMN_TITLES.items():
        if statistic_name == "median_tvd":
            continue
        intervals = zeroing_intervals if statistic_name == "zero_tvd" else {}
        columns[title] = {
            site: FormattedNumber(s.mean, intervals.get(site), digits=2)
            for site, s in index_by_site(report.statistics, statistic_name).items()
        }
    return columns


def _format_estimate(estimate: Estimate) -> FormattedNumber | None:
    """Format an estimate with two digits.

    The result is None if it was not measured on at least ten texts.
    """
    if not is_displayed(estimate):
        return None
    return FormattedNumber(estimate.value, estimate.ci95, digits=2)


def _get_head_order(
    head: HeadEvaluation | None, ablated: Statistic | None
) -> tuple[int, int, float]:
    """Return a sort key for heads.

    Certainly faithful heads come first. Within each of the two groups, heads with an ablation come
    first, then heads with a path share, then heads with an effect, each with large values first.
    """
    is_named = head is not None and head.n > 0 and head.is_surely_faithful
    group = 0 if is_named else 1
    if ablated is not None:
        return group, 0, -ablated.mean
    if head is not None and head.path_share.n:
        return group, 1, -head.path_share.value
    if head is not None and head.effect.n:
        return group, 2, -head.effect.value
    return group, 3, 0.0
