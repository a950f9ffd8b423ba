"""Plausibility: agreement between a ranking and human rationales, as measured by ERASER.

See DeYoung et al. 2020, Section 4. A plausible explanation is not necessarily faithful: a model can
decide for other reasons than people, and an explanation that reveals this is correct (Jacovi &
Goldberg 2020).

Common arguments:
    scores: importance per unit, [batch, keys].
    chosen: units that an explanation selects, bool [batch, keys].
    marked: units in the human rationale, bool [batch, keys].
    content: units in the text, bool [batch, keys].

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


def auprc(scores: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Compute the area under the precision-recall curve, with linear interpolation.

    ERASER calls this AUPRC: Σ (R_n − R_{n−1}) (P_n + P_{n−1}) / 2 over all thresholds n, starting
    from recall R_0 = 0 and precision P_0 = 1.

    Args:
        scores: importance per unit, [batch, keys].
        marked: units in the human rationale, bool [batch, keys].
        content: units in the text, bool [batch, keys].

    Returns:
        Scores in (0, 1], float64 [batch]; NaN if no unit or every unit is marked.

    >>> scores = torch.tensor([[3.0, 2.0, 1.0]])
    >>> marked = torch.tensor([[True, False, True]])
    >>> auprc(scores, marked, torch.ones(1, 3).bool())
    tensor([0.7917], dtype=torch.float64)
    """
    precision, previous_precision = _compute_precisions(scores, marked, content)
    mean_precision = (precision + previous_precision) / 2
    return _average_over_marked(mean_precision, marked, content)


def average_precision(scores: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Compute the area under the precision-recall curve as a step function.

    The average precision Σ (R_n − R_{n−1}) P_n equals a mean over all marked units: each
    contributes the precision among the units that score at least as high.

    Args:
        scores: importance per unit, [batch, keys].
        marked: units in the human rationale, bool [batch, keys].
        content: units in the text, bool [batch, keys].

    Returns:
        Scores in (0, 1], float64 [batch]; NaN if no unit or every unit is marked.

    >>> scores = torch.tensor([[3.0, 2.0, 1.0]])
    >>> marked = torch.tensor([[True, False, True]])
    >>> average_precision(scores, marked, torch.ones(1, 3).bool())
    tensor([0.8333], dtype=torch.float64)
    """
    precision, _ = _compute_precisions(scores, marked, content)
    return _average_over_marked(precision, marked, content)


def _compute_precisions(scores: Tensor, marked: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the precision at each unit's score, and at the next higher score.

    Returns:
        Precision among the units that score at least as high, and among the units that score
        higher (1 if there are none), each float64 [batch, keys].
    """
    all_scores = scores[:, None]
    threshold = scores[..., None]
    scores_at_least = (all_scores >= threshold) & content[:, None]
    scores_higher = (all_scores > threshold) & content[:, None]

    precisions = []
    for chosen in (scores_at_least, scores_higher):
        n_hits = (chosen & marked[:, None]).sum(-1)
        n_chosen = chosen.sum(-1).clamp_min(1).double()
        precisions.append(n_hits / n_chosen)
    precision, previous_precision = precisions
    return precision, previous_precision.masked_fill(~scores_higher.any(-1), 1)


def _average_over_marked(values: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Average values over the marked units of each text.

    Returns:
        Means, [batch]; NaN if no unit or every unit is marked.
    """
    marked = marked & content
    mean = (values * marked).sum(-1) / marked.sum(-1)
    return mean.masked_fill(~_has_mixed_marks(marked, content), torch.nan)


def token_f1(chosen: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Compute the token F1 between chosen and marked units.

    Args:
        chosen: units that an explanation selects, bool [batch, keys].
        marked: units in the human rationale, bool [batch, keys].
        content: units in the text, bool [batch, keys].

    Returns:
        Scores in [0, 1], float64 [batch]; NaN if no unit or every unit is marked.
    """
    chosen = chosen & content
    marked = marked & content
    n_hits = (chosen & marked).sum(-1).double()
    n_units = chosen.sum(-1) + marked.sum(-1)
    f1 = 2 * n_hits / n_units
    is_undefined = ~_has_mixed_marks(marked, content)
    return f1.masked_fill(is_undefined, torch.nan)


def compute_marked_share(weights: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Compute the share of the total weight that lies on marked units.

    Args:
        weights: attention weights, [batch, keys], at least 0.
        marked: units in the human rationale, bool [batch, keys].
        content: units in the text, bool [batch, keys].

    Returns:
        Shares in [0, 1], float64 [batch]; NaN if no unit or every unit is marked, or if no unit
        has weight.

    >>> weights = torch.tensor([[0.5, 0.2, 0.1, 0.2]])
    >>> content = torch.tensor([[False, True, True, True]])
    >>> compute_marked_share(weights, torch.tensor([[True, True, False, False]]), content)
    tensor([0.4000], dtype=torch.float64)
    """
    weights = weights.double() * content
    share = (weights * marked).sum(-1) / weights.sum(-1)
    return share.masked_fill(~_has_mixed_marks(marked, content), torch.nan)


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


def compute_iou_scores(chosen: Tensor, marked: Tensor, content: Tensor) -> SpanScores:
    """Compute the agreement between chosen and marked spans by intersection over union (IOU).

    A span is a run of adjacent units. A chosen span matches a marked span if their intersection
    over union is at least :data:`MIN_IOU_OF_HIT`.

    Args:
        chosen: units that an explanation selects, bool [batch, keys].
        marked: units in the human rationale, bool [batch, keys].
        content: units in the text, bool [batch, keys].

    Returns:
        Precision, recall and F1.
    """
    # Positions that are not units are moved to the end, so that they do not split a span.
    positions = list_unit_positions(content)
    chosen_spans = number_spans((chosen & content).gather(1, positions))
    marked_spans = number_spans((marked & content).gather(1, positions))
    n_numbers = int(max(chosen_spans.max(), marked_spans.max())) + 1

    # The number of units in both spans is counted for each pair of a chosen and a marked span.
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
    is_undefined = ~_has_mixed_marks(marked, content)
    return SpanScores(
        precision.masked_fill(is_undefined, torch.nan),
        recall.masked_fill(is_undefined, torch.nan),
        f1.masked_fill(is_undefined, torch.nan),
    )


def iou_f1(chosen: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Compute the span F1 for each text; see :func:`compute_iou_scores`.

    Args:
        chosen: units that an explanation selects, bool [batch, keys].
        marked: units in the human rationale, bool [batch, keys].
        content: units in the text, bool [batch, keys].

    Returns:
        Scores, float64 [batch], at least 0; NaN if no unit or every unit is marked.
    """
    return compute_iou_scores(chosen, marked, content).f1


def number_spans(chosen: Tensor) -> Tensor:
    """Number the spans (runs of adjacent True values) from left to right.

    Args:
        chosen: bool [batch, keys].

    Returns:
        Span number at each position, int64 [batch, keys], from 1; 0 outside of spans.

    >>> number_spans(torch.tensor([[True, True, False, True]]))
    tensor([[1, 1, 0, 2]])
    """
    starts = chosen.clone()
    starts[:, 1:] &= ~chosen[:, :-1]
    return starts.cumsum(1) * chosen


def _has_mixed_marks(marked: Tensor, content: Tensor) -> Tensor:
    """Check for each text whether some but not all units are marked, bool [batch]."""
    n_marked = (marked & content).sum(-1)
    return (n_marked > 0) & (n_marked < content.sum(-1))
