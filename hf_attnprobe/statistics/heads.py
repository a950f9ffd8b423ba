"""Evaluation of single heads and of groups of heads, by their path share and their faithfulness.

Each head is graded by the same two numbers as the model's whole attention. The path share of a head is the
share of the decision that passes through the attention of this head alone. People who read a table of
heads look for the most striking ones. The confidence intervals for single heads are therefore
simultaneous: with 95% probability, they cover the true path shares of all heads at once. The same holds
for the faithfulness of all heads. The interval for a group of heads is valid for this group alone.

Language models have no path share. Their heads are graded by the effect of shuffling the weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import (
    Estimate,
    compute_simultaneous_interval,
    estimate_mean,
)
from hf_attnprobe.statistics.grades import (
    MIN_TEXTS,
    ORDERED_ANSWERS,
    Answer,
    Rule,
    list_possible_answers,
)
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.scale import (
    CLASSIFIER_PARTS,
    Part,
    compute_contributions,
    compute_faithfulness,
)
from hf_attnprobe.statistics.summary import find_model_site, select_site_texts


LayerHead = tuple[int, int]
"""Layer and head index of an attention head, both from 0. Negative indices mean groups of heads."""
ALL_HEADS_INDEX = -1
"""Layer or head index that means "all".

For example, layer 3 with head −1 means all heads of layer 3. Layer −1 with head −1 means all attention.
"""
HEAD_SET_INDEX = -2
"""Layer index of a set of heads that the user has defined.

The head index is the number of the set. For example, layer −2 with head 0 is the first set.
"""
ALL_ATTENTION_SITE: LayerHead = (ALL_HEADS_INDEX, ALL_HEADS_INDEX)
"""Site (layer and head) that means all attention of the model."""
Interval = tuple[float, float]
"""Low and high end of a confidence interval."""

GateNumber = Literal["path_share", "effect"]
"""Number that a head must reach before its faithfulness counts, and key of the rule that grades it."""
HEAD_THRESHOLD_FACTOR = 1 / 3
"""Factor on the threshold of the path share for a part of the attention, such as a head or a layer.

All attention needs a path share of .15, so a head needs .05. In models with planted heads, each of ten heads
that share a decision equally has at least .075, and heads that the decision does not use have at most .002
(docs/transformers.md).
"""
PATH_SHARE_STATISTIC = "path_share"
"""Name of the statistic that measures the share of the decision that passes through attention."""
EFFECT_STATISTIC = "standard_tvd"
"""Name of the statistic that measures the effect of attention on the output.

The effect is the median output change over many shuffles of the attention weights.
"""
LARGEST_EFFECT_STATISTIC = "largest_standard_tvd"
"""Name of the statistic that measures the largest effect over all shuffles of the attention weights."""


@dataclass(frozen=True)
class HeadEvaluation:
    """Path share, effect and faithfulness of a head or a head group.

    Attributes:
        site: layer and head; negative numbers stand for groups.
        path_share: share of the decision that passes through the attention of this site alone, from
            0 to 1; its n is 0 if it was not measured.
        effect: output change that the median shuffle of the attention weights causes, at the
            standard temperature; its n is 0 if it was not measured.
        worst_effect: output change that the worst shuffle causes.
        faithfulness: position on the scale from a random order, 0, to the best order, 1; its n
            is 0 if fewer than two parts were measured.
        parts: faithfulness parts by key, each with its own interval.
        possible_answers: answers that the intervals do not exclude, lowest first.
    """

    site: LayerHead
    path_share: Estimate
    effect: Estimate
    worst_effect: Estimate
    faithfulness: Estimate
    parts: Mapping[str, Estimate]
    possible_answers: tuple[Answer, ...] = ORDERED_ANSWERS

    @property
    def is_head(self) -> bool:
        """Whether this is a single head."""
        return min(self.site) >= 0

    @property
    def n(self) -> int:
        """Largest number of texts for the path share, the effect or the faithfulness."""
        return max(self.path_share.n or 0, self.effect.n or 0, self.faithfulness.n or 0)

    @property
    def is_surely_faithful(self) -> bool:
        """Whether the verdict "no" is excluded: neither path share nor faithfulness can be "no"."""
        return Answer.NO not in self.possible_answers

    @property
    def answer(self) -> str:
        """Answer for reports. If "no" is only one of several possible answers, it is "cannot say".

        Otherwise, all possible answers are joined, as in "partly or yes".
        """
        if len(self.possible_answers) > 1 and not self.is_surely_faithful:
            return str(Answer.CANNOT_SAY)
        return " or ".join(self.possible_answers)


def evaluate_heads(
    rows: Rows | pd.DataFrame,
    rules: Mapping[str, Rule],
    *,
    parts: Sequence[Part] = CLASSIFIER_PARTS,
    gate: GateNumber = "path_share",
    explained_ids: np.ndarray | None = None,
) -> list[HeadEvaluation]:
    """Evaluate every head and head group for which path share, effect or faithfulness was measured.

    Copies of a text count once (:meth:`~hf_attnprobe.statistics.rows.Rows.merge_duplicates`).

    Args:
        rows: audit rows, or a data frame in long form.
        rules: rules with the keys "path_share", "effect" and "faithfulness".
        parts: faithfulness parts for this type of model.
        gate: number that a head must reach before its faithfulness counts. Language models have no
            path share, so their gate is the effect.
        explained_ids: ids of the texts from which path share and faithfulness are computed, int
            [texts]; by default all texts. Pass the texts outside of default classes, because texts in
            default classes contain nothing that a head could point to.

    Returns:
        The evaluations, sorted by site.
    """
    rows = Rows.coerce(rows).merge_duplicates()
    explained_rows = rows if explained_ids is None else rows.select_ids(explained_ids)
    evaluations = []
    for site in sorted(rows.sites):
        evaluation = _measure_site(rows, explained_rows, site, parts)
        if evaluation.path_share.n or evaluation.effect.n or evaluation.parts:
            evaluations.append(evaluation)

    contributions = {}
    for evaluation in evaluations:
        if evaluation.is_head:
            head_contributions = _compute_contributions(explained_rows, evaluation.site, parts)
            if head_contributions is not None:
                contributions[evaluation.site] = head_contributions
    path_share_frame = explained_rows.build_head_frame(PATH_SHARE_STATISTIC)
    intervals = SimultaneousIntervals(
        # A head that writes nothing has a path share of exactly 0 in all texts, which is no share of
        # texts. As for all attention, its interval is then this single value.
        path_share=compute_head_intervals(path_share_frame, detect_shares=False),
        effect=compute_head_intervals(rows.build_head_frame(EFFECT_STATISTIC)),
        faithfulness=compute_head_intervals(pd.DataFrame(contributions)),
    )
    model_site = find_model_site(rows)
    graded_evaluations = []
    for evaluation in evaluations:
        if evaluation.is_head:
            evaluation = _insert_intervals(evaluation, intervals)
        gate_rule = rules[gate]
        if gate == "path_share" and evaluation.site != model_site:
            gate_rule = build_head_rule(gate_rule)
        possible_answers = list_possible_verdicts(
            getattr(evaluation, gate), evaluation.faithfulness, gate_rule, rules["faithfulness"]
        )
        graded_evaluations.append(replace(evaluation, possible_answers=possible_answers))
    return graded_evaluations


def build_head_rule(rule: Rule) -> Rule:
    """Build the rule for the path share of a head, a layer or a set of heads.

    A part of the attention carries only a part of the decision. Its threshold is therefore the
    threshold of all attention, multiplied by :data:`HEAD_THRESHOLD_FACTOR`.

    Args:
        rule: rule for the path share of all attention, possibly with a user-defined threshold.

    Returns:
        The rule with the lower threshold.
    """
    threshold = rule.yes * HEAD_THRESHOLD_FACTOR
    return replace(rule, partly=threshold, yes=threshold)


def _measure_site(
    rows: Rows, explained_rows: Rows, site: LayerHead, parts: Sequence[Part]
) -> HeadEvaluation:
    """Estimate path share, effect and faithfulness at one site, with separate intervals.

    Args:
        rows: audit rows, from which the effect is estimated.
        explained_rows: rows without texts in default classes, from which path share and faithfulness
            are computed.
        site: layer and head.
        parts: faithfulness parts for this type of model.

    Returns:
        An evaluation that is not graded yet.
    """
    texts = select_site_texts(rows, site)
    effect = estimate_mean(texts.get_values(EFFECT_STATISTIC))
    worst_effect = estimate_mean(texts.get_values(LARGEST_EFFECT_STATISTIC))
    explained_texts = select_site_texts(explained_rows, site)
    path_share = estimate_mean(explained_texts.get_values(PATH_SHARE_STATISTIC))
    faithfulness = compute_faithfulness(explained_texts, parts=parts)
    return HeadEvaluation(
        site, path_share, effect, worst_effect, faithfulness.score, faithfulness.parts
    )


def _compute_contributions(rows: Rows, site: LayerHead, parts: Sequence[Part]) -> pd.Series | None:
    """Compute how much each text contributes to a head's faithfulness.

    The mean of these contributions is the faithfulness, with a correction for bias.

    Returns:
        Contributions, indexed by text id; None if faithfulness is undefined.
    """
    texts = select_site_texts(rows, site)
    contributions = compute_contributions(texts, parts=parts)
    if contributions is None or not np.isfinite(contributions).all():
        return None
    return pd.Series(contributions, index=texts.index)


@dataclass(frozen=True)
class SimultaneousIntervals:
    """Simultaneous 95% confidence intervals of all heads.

    Attributes:
        path_share: intervals for the path share, by head.
        effect: intervals for the effect, by head.
        faithfulness: intervals for faithfulness, by head.
    """

    path_share: Mapping[LayerHead, Interval]
    effect: Mapping[LayerHead, Interval]
    faithfulness: Mapping[LayerHead, Interval]


def _insert_intervals(
    evaluation: HeadEvaluation, intervals: SimultaneousIntervals
) -> HeadEvaluation:
    """Replace the separate intervals of a single head by simultaneous intervals over all heads.

    Args:
        evaluation: path share, effect and faithfulness of a head, with separate intervals.
        intervals: simultaneous intervals.

    Returns:
        The evaluation with simultaneous intervals.
    """
    site, score = evaluation.site, evaluation.faithfulness
    faithfulness_interval = _extend_interval(score.value, intervals.faithfulness.get(site))
    return replace(
        evaluation,
        path_share=replace(evaluation.path_share, ci95=intervals.path_share.get(site)),
        effect=replace(evaluation.effect, ci95=intervals.effect.get(site)),
        # There are no simultaneous intervals for the worst shuffle.
        worst_effect=replace(evaluation.worst_effect, ci95=None),
        faithfulness=replace(score, ci95=faithfulness_interval),
    )


def _extend_interval(value: float, interval: Interval | None) -> Interval | None:
    """Extend a confidence interval for faithfulness so that it contains the estimate.

    The interval is centred on a bias-corrected value, so it may not contain the estimate. Its upper
    end is limited to 1, the largest possible faithfulness.
    """
    if interval is None:
        return None
    low, high = interval
    return min(low, value), min(max(high, value), 1.0)


def list_possible_verdicts(
    gate: Estimate, score: Estimate, gate_rule: Rule, score_rule: Rule
) -> tuple[Answer, ...]:
    """List the possible verdicts about a head, from its path share and its faithfulness.

    Both numbers are graded with no, partly or yes, and the verdict is the lower grade. For example,
    a head with the path share "yes" and the faithfulness "no" gets the verdict "no". If a number was
    measured for fewer than 30 texts, all grades are possible.

    Args:
        gate: path share, or the effect of shuffling for a language model.
        score: faithfulness.
        gate_rule: rule that grades ``gate``.
        score_rule: rule that grades ``score``.

    Returns:
        The possible answers, lowest first.
    """
    gate_answers = list_possible_answers(gate, gate, gate_rule)
    score_answers = list_possible_answers(score, score, score_rule)
    possible_indices = set()
    for gate_answer, score_answer in product(gate_answers, score_answers):
        gate_index = ORDERED_ANSWERS.index(gate_answer)
        score_index = ORDERED_ANSWERS.index(score_answer)
        possible_indices.add(min(gate_index, score_index))
    return tuple(ORDERED_ANSWERS[index] for index in sorted(possible_indices))


def compute_head_intervals(
    values: pd.DataFrame, *, detect_shares: bool = True
) -> dict[LayerHead, Interval]:
    """Compute simultaneous 95% confidence intervals for the mean value of each head.

    Args:
        values: one row per text and one column per (layer, head); NaN for a text without a value.
        detect_shares: whether values that are all 0 or 1 are treated as a share of texts, which gets
            an exact interval.

    Returns:
        Intervals by (layer, head), for heads with values for at least ``MIN_TEXTS`` texts.
    """
    covered_values = values.loc[:, values.notna().sum() >= MIN_TEXTS]
    if covered_values.empty:
        return {}
    ends = compute_simultaneous_interval(
        covered_values.to_numpy(dtype=np.float64), detect_shares=detect_shares
    ).T.tolist()
    return {
        (int(layer), int(head)): (low, high)
        for (layer, head), (low, high) in zip(covered_values.columns, ends, strict=True)
    }
