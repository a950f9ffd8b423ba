"""Plausibility: agreement between a ranking and human rationales, as measured by ERASER.

See DeYoung et al. 2020, Section 4. A plausible explanation is not necessarily faithful: a model can
decide for other reasons than people, and an explanation that reveals this is correct (Jacovi &
Goldberg 2020).

Common arguments:
    scores: importance per unit, [batch, keys].
    chosen: units that an explanation selects, bool [batch, keys].
    rationale: which units a person marked as the reason for the label, bool [batch, keys].
    unit_mask: which positions are units of the text, and not special tokens or padding, bool
        [batch, keys].

Every score is NaN if no unit or every unit in a text is marked. ERASER also discards such texts when
it computes the average precision.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from hf_attnprobe.functional.aopc import list_unit_positions


MIN_IOU_OF_HIT = 0.5
"""Smallest intersection over union (IOU) at which two spans of units match. The IOU is the number
of units in both spans, divided by the number of units in at least one of them."""


def auprc(scores: Tensor, rationale: Tensor, unit_mask: Tensor) -> Tensor:
    """Compute how well scores find the units of a rationale, as the AUPRC of ERASER.

    This is the area under the precision-recall curve, whose points are connected by straight
    lines: Σ (R_n − R_{n−1}) (P_n + P_{n−1}) / 2, with precision P_n and recall R_n at threshold
    n, and R_0 = 0 and P_0 = 1.

    Args:
        scores: importance per unit, [batch, keys].
        rationale: which units a person marked as the reason for the label, bool [batch, keys].
        unit_mask: which positions are units of the text, and not special tokens or padding, bool
            [batch, keys].

    Returns:
        Scores in (0, 1], float64 [batch]; NaN if no unit or every unit is marked.

    >>> scores = torch.tensor([[3.0, 2.0, 1.0]])
    >>> rationale = torch.tensor([[True, False, True]])
    >>> auprc(scores, rationale, torch.ones(1, 3).bool())
    tensor([0.7917], dtype=torch.float64)
    """
    precision, previous_precision = _compute_precisions(scores, rationale, unit_mask)
    mean_precision = (precision + previous_precision) / 2
    return _average_over_marked(mean_precision, rationale, unit_mask)


def average_precision(scores: Tensor, rationale: Tensor, unit_mask: Tensor) -> Tensor:
    """Compute the area under the precision-recall curve as a step function.

    The area Σ (R_n − R_{n−1}) P_n, with precision P_n and recall R_n at threshold n, equals a
    mean over all marked units. Each marked unit contributes the precision among the units that
    score at least as high.

    Args:
        scores: importance per unit, [batch, keys].
        rationale: which units a person marked as the reason for the label, bool [batch, keys].
        unit_mask: which positions are units of the text, and not special tokens or padding, bool
            [batch, keys].

    Returns:
        Scores in (0, 1], float64 [batch]; NaN if no unit or every unit is marked.

    >>> scores = torch.tensor([[3.0, 2.0, 1.0]])
    >>> rationale = torch.tensor([[True, False, True]])
    >>> average_precision(scores, rationale, torch.ones(1, 3).bool())
    tensor([0.8333], dtype=torch.float64)
    """
    precision, _ = _compute_precisions(scores, rationale, unit_mask)
    return _average_over_marked(precision, rationale, unit_mask)


def _compute_precisions(
    scores: Tensor, rationale: Tensor, unit_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the share of marked units among the units that score at least as high as each unit.

    Returns:
        Precision among the units that score at least as high, and among the units that score
        higher (1 if there are none), each float64 [batch, keys].
    """
    # Compare each unit's score with all scores of the same text: [batch, keys, keys].
    all_scores = scores[:, None]
    threshold = scores[..., None]
    scores_at_least = (all_scores >= threshold) & unit_mask[:, None]
    scores_higher = (all_scores > threshold) & unit_mask[:, None]

    precisions = []
    for chosen in (scores_at_least, scores_higher):
        n_hits = (chosen & rationale[:, None]).sum(-1)
        n_chosen = chosen.sum(-1).clamp_min(1).double()
        precisions.append(n_hits / n_chosen)
    precision, previous_precision = precisions
    return precision, previous_precision.masked_fill(~scores_higher.any(-1), 1)


def _average_over_marked(values: Tensor, rationale: Tensor, unit_mask: Tensor) -> Tensor:
    """Average values over the units that are marked in the rationale.

    Returns:
        Means, [batch]; NaN if no unit or every unit is marked.
    """
    rationale = rationale & unit_mask
    mean = (values * rationale).sum(-1) / rationale.sum(-1)
    return mean.masked_fill(~_has_mixed_marks(rationale, unit_mask), torch.nan)


def token_f1(chosen: Tensor, rationale: Tensor, unit_mask: Tensor) -> Tensor:
    """Compute the F1 score between the units that an explanation and a person chose.

    It is 2 · units in both / (chosen units + marked units).

    Args:
        chosen: units that an explanation selects, bool [batch, keys].
        rationale: which units a person marked as the reason for the label, bool [batch, keys].
        unit_mask: which positions are units of the text, and not special tokens or padding, bool
            [batch, keys].

    Returns:
        Scores in [0, 1], float64 [batch]; NaN if no unit or every unit is marked.
    """
    chosen = chosen & unit_mask
    rationale = rationale & unit_mask
    n_hits = (chosen & rationale).sum(-1).double()
    n_units = chosen.sum(-1) + rationale.sum(-1)
    f1 = 2 * n_hits / n_units
    is_undefined = ~_has_mixed_marks(rationale, unit_mask)
    return f1.masked_fill(is_undefined, torch.nan)


def compute_marked_share(weights: Tensor, rationale: Tensor, unit_mask: Tensor) -> Tensor:
    """Compute the share of the attention that lies on the units of a human rationale.

    Args:
        weights: attention weights, [batch, keys], at least 0.
        rationale: which units a person marked as the reason for the label, bool [batch, keys].
        unit_mask: which positions are units of the text, and not special tokens or padding, bool
            [batch, keys].

    Returns:
        Shares in [0, 1], float64 [batch]; NaN if no unit or every unit is marked, or if no unit
        has weight.

    >>> weights = torch.tensor([[0.5, 0.2, 0.1, 0.2]])
    >>> unit_mask = torch.tensor([[False, True, True, True]])
    >>> compute_marked_share(weights, torch.tensor([[True, True, False, False]]), unit_mask)
    tensor([0.4000], dtype=torch.float64)
    """
    weights = weights.double() * unit_mask
    share = (weights * rationale).sum(-1) / weights.sum(-1)
    return share.masked_fill(~_has_mixed_marks(rationale, unit_mask), torch.nan)


class SpanScores(NamedTuple):
    """Agreement between chosen and marked spans, each score float64 [batch] or NaN.

    Attributes:
        precision: share of chosen spans that match a marked span.
        recall: number of matching chosen spans divided by the number of marked spans; above 1 if
            several chosen spans match the same marked span.
        f1: F1 for each text. For a whole data set, ERASER reports 2PR / (P + R) instead, with the
            mean precision P and the mean recall R over all texts.
    """

    precision: Tensor
    recall: Tensor
    f1: Tensor


def compute_iou_scores(chosen: Tensor, rationale: Tensor, unit_mask: Tensor) -> SpanScores:
    """Compute the agreement between chosen and marked spans by intersection over union (IOU).

    A span is a run of adjacent units. A chosen span matches a marked span if their intersection
    over union is at least :data:`MIN_IOU_OF_HIT`.

    Args:
        chosen: units that an explanation selects, bool [batch, keys].
        rationale: which units a person marked as the reason for the label, bool [batch, keys].
        unit_mask: which positions are units of the text, and not special tokens or padding, bool
            [batch, keys].

    Returns:
        Precision, recall and F1.
    """
    # Positions that are not units are moved to the end, so that they do not split a span.
    positions = list_unit_positions(unit_mask)
    chosen_spans = number_spans((chosen & unit_mask).gather(1, positions))
    marked_spans = number_spans((rationale & unit_mask).gather(1, positions))
    n_numbers = int(max(chosen_spans.max(), marked_spans.max())) + 1

    # The number of units in both spans is counted for each pair of a chosen and a rationale span.
    pair_number = chosen_spans * n_numbers + marked_spans
    intersections = torch.zeros(
        len(pair_number), n_numbers**2, dtype=torch.float64, device=pair_number.device
    )
    intersections.scatter_add_(1, pair_number, intersections.new_ones(pair_number.shape))
    intersections = intersections.unflatten(1, (n_numbers, n_numbers))
    chosen_sizes = intersections.sum(2, keepdim=True)
    marked_sizes = intersections.sum(1, keepdim=True)
    unions = chosen_sizes + marked_sizes - intersections
    iou = intersections / unions.clamp_min(1)
    # Number 0 belongs to units outside of all spans.
    is_hit = iou[:, 1:, 1:] >= MIN_IOU_OF_HIT
    n_hits = is_hit.any(-1).sum(-1).double()

    n_chosen = chosen_spans.amax(1)
    n_marked = marked_spans.amax(1)
    precision = n_hits / n_chosen.clamp_min(1)
    recall = n_hits / n_marked
    f1 = 2 * n_hits / (n_chosen + n_marked)
    is_undefined = ~_has_mixed_marks(rationale, unit_mask)
    return SpanScores(
        precision.masked_fill(is_undefined, torch.nan),
        recall.masked_fill(is_undefined, torch.nan),
        f1.masked_fill(is_undefined, torch.nan),
    )


def iou_f1(chosen: Tensor, rationale: Tensor, unit_mask: Tensor) -> Tensor:
    """Compute the F1 score between the spans that an explanation and a person chose.

    See :func:`compute_iou_scores` for the definition of a match between two spans.

    Args:
        chosen: units that an explanation selects, bool [batch, keys].
        rationale: which units a person marked as the reason for the label, bool [batch, keys].
        unit_mask: which positions are units of the text, and not special tokens or padding, bool
            [batch, keys].

    Returns:
        Scores, float64 [batch], at least 0; NaN if no unit or every unit is marked.
    """
    return compute_iou_scores(chosen, rationale, unit_mask).f1


def number_spans(chosen: Tensor) -> Tensor:
    """Number the spans (runs of adjacent True values) from left to right.

    Args:
        chosen: bool [batch, keys].

    Returns:
        Span number at each position, int64 [batch, keys], from 1; 0 outside of spans.

    >>> number_spans(torch.tensor([[True, True, False, True]]))
    tensor([[1, 1, 0, 2]])
    """
    # A span starts at each True whose left neighbour is not True. Counting the starts numbers
    # the spans.
    starts = chosen.clone()
    starts[:, 1:] &= ~chosen[:, :-1]
    return starts.cumsum(1) * chosen


def _has_mixed_marks(rationale: Tensor, unit_mask: Tensor) -> Tensor:
    """Check for each text whether some but not all units are marked, bool [batch]."""
    n_marked = (rationale & unit_mask).sum(-1)
    return (n_marked > 0) & (n_marked < unit_mask.sum(-1))
