"""Evaluation of single heads and of groups of heads, by their effect and their faithfulness.

Each head is graded by the same two numbers as the model's whole attention. People who read a table of
heads look for the most striking ones. The confidence intervals for single heads are therefore
simultaneous: with 95% probability, they cover the true effects of all heads at once. The same holds for
the faithfulness of all heads. The interval for a group of heads is valid for this group alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

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
from hf_attnprobe.statistics.summary import select_site_texts


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

EFFECT_STATISTIC = "standard_tvd"
"""Name of the statistic that measures the effect of attention on the output.

The effect is the median output change over many shuffles of the attention weights.
"""
LARGEST_EFFECT_STATISTIC = "largest_standard_tvd"
"""Name of the statistic that measures the largest effect over all shuffles of the attention weights."""


@dataclass(frozen=True)
class HeadEvaluation:
    """Effect and faithfulness of a head or a head group.

    Attributes:
        site: layer and head; negative numbers stand for groups.
        effect: output change that the median shuffle of the attention weights causes, at the
            standard temperature; its n is 0 if it was not measured.
        worst_effect: output change that the worst shuffle causes.
        faithfulness: position on the scale from a random order, 0, to the best order, 1; its n
            is 0 if fewer than two parts were measured.
        parts: faithfulness parts by key, each with its own interval.
        possible_answers: answers that the intervals do not exclude, lowest first.
    """

    site: LayerHead
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
        """Number of texts for the effect or for faithfulness, whichever is larger."""
        return max(self.effect.n or 0, self.faithfulness.n or 0)

    @property
    def is_surely_faithful(self) -> bool:
        """Whether the verdict "no" is excluded: neither effect nor faithfulness can be "no"."""
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
    explained_ids: np.ndarray | None = None,
) -> list[HeadEvaluation]:
    """Evaluate every head and head group for which effect or faithfulness was measured.

    Copies of a text count once (:meth:`~hf_attnprobe.statistics.rows.Rows.merge_duplicates`).

    Args:
        rows: audit rows, or a data frame in long form.
        rules: rules with the keys "effect" and "faithfulness".
        parts: faithfulness parts for this type of model.
        explained_ids: ids of the texts from which faithfulness is computed, int [texts]; by
            default all texts. Pass the texts outside of default classes, because texts in
            default classes contain nothing that a head could point to.

    Returns:
        The evaluations, sorted by site.
    """
    rows = Rows.coerce(rows).merge_duplicates()
    explained_rows = rows if explained_ids is None else rows.select_ids(explained_ids)
    evaluations = []
    for site in sorted(rows.sites):
        evaluation = _measure_site(rows, explained_rows, site, parts)
        if evaluation.effect.n or evaluation.parts:
            evaluations.append(evaluation)

    effect_intervals = compute_head_intervals(rows.build_head_frame(EFFECT_STATISTIC))
    contributions = {}
    for evaluation in evaluations:
        if evaluation.is_head:
            head_contributions = _compute_contributions(explained_rows, evaluation.site, parts)
            if head_contributions is not None:
                contributions[evaluation.site] = head_contributions
    faithfulness_intervals = compute_head_intervals(pd.DataFrame(contributions))
    return [
        _grade_site(evaluation, effect_intervals, faithfulness_intervals, rules)
        for evaluation in evaluations
    ]


def _measure_site(
    rows: Rows, explained_rows: Rows, site: LayerHead, parts: Sequence[Part]
) -> HeadEvaluation:
    """Estimate effect and faithfulness at one site, each with its own confidence interval.

    Args:
        rows: audit rows, from which the effect is estimated.
        explained_rows: rows without texts in default classes, from which faithfulness is computed.
        site: layer and head.
        parts: faithfulness parts for this type of model.

    Returns:
        An evaluation that is not graded yet.
    """
    texts = select_site_texts(rows, site)
    effect = estimate_mean(texts.get_values(EFFECT_STATISTIC))
    worst_effect = estimate_mean(texts.get_values(LARGEST_EFFECT_STATISTIC))
    faithfulness = compute_faithfulness(select_site_texts(explained_rows, site), parts=parts)
    return HeadEvaluation(site, effect, worst_effect, faithfulness.score, faithfulness.parts)


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


def _grade_site(
    evaluation: HeadEvaluation,
    effect_intervals: Mapping[LayerHead, Interval],
    faithfulness_intervals: Mapping[LayerHead, Interval],
    rules: Mapping[str, Rule],
) -> HeadEvaluation:
    """Grade a head or a head group by adding all answers that its confidence intervals allow.

    For a single head, the intervals are first replaced by simultaneous intervals over all heads.

    Args:
        evaluation: effect and faithfulness, with separate intervals.
        effect_intervals: simultaneous intervals for the effect, by head.
        faithfulness_intervals: simultaneous intervals for faithfulness, by head.
        rules: rules with the keys "effect" and "faithfulness".

    Returns:
        The graded evaluation.
    """
    effect, score = evaluation.effect, evaluation.faithfulness
    if evaluation.is_head:
        effect = replace(effect, ci95=effect_intervals.get(evaluation.site))
        interval = faithfulness_intervals.get(evaluation.site)
        score = replace(score, ci95=_extend_interval(score.value, interval))
        # There are no simultaneous intervals for the worst shuffle.
        worst_effect = replace(evaluation.worst_effect, ci95=None)
        evaluation = replace(
            evaluation, effect=effect, worst_effect=worst_effect, faithfulness=score
        )
    possible_answers = list_possible_verdicts(effect, score, rules)
    return replace(evaluation, possible_answers=possible_answers)


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
    effect: Estimate, score: Estimate, rules: Mapping[str, Rule]
) -> tuple[Answer, ...]:
    """List the possible verdicts about a head, from its effect and its faithfulness.

    Both numbers are graded with no, partly or yes, and the verdict is the lower grade. For example,
    a head with the effect "yes" and the faithfulness "no" gets the verdict "no". If a number was
    measured for fewer than 30 texts, all grades are possible.

    Args:
        effect: output change that the median shuffle causes.
        score: faithfulness.
        rules: rules with the keys "effect" and "faithfulness".

    Returns:
        The possible answers, lowest first.
    """
    effect_answers = list_possible_answers(effect, effect, rules["effect"])
    score_answers = list_possible_answers(score, score, rules["faithfulness"])
    possible_indices = set()
    for effect_answer, score_answer in product(effect_answers, score_answers):
        effect_index = ORDERED_ANSWERS.index(effect_answer)
        score_index = ORDERED_ANSWERS.index(score_answer)
        possible_indices.add(min(effect_index, score_index))
    return tuple(ORDERED_ANSWERS[index] for index in sorted(possible_indices))


def compute_head_intervals(values: pd.DataFrame) -> dict[LayerHead, Interval]:
    """Compute simultaneous 95% confidence intervals for the mean value of each head.

    Args:
        values: one row per text and one column per (layer, head); NaN for a text without a value.

    Returns:
        Intervals by (layer, head), for heads with values for at least ``MIN_TEXTS`` texts.
    """
    covered_values = values.loc[:, values.notna().sum() >= MIN_TEXTS]
    if covered_values.empty:
        return {}
    ends = compute_simultaneous_interval(covered_values.to_numpy(dtype=np.float64)).T.tolist()
    return {
        (int(layer), int(head)): (low, high)
        for (layer, head), (low, high) in zip(covered_values.columns, ends, strict=True)
    }
