"""Agreement of a ranking with human rationales: the scores of ERASER.

DeYoung et al. 2020, Section 4. Plausible is not faithful: a model may decide for other
reasons than people, and an explanation that shows this is right (Jacovi & Goldberg
2020).

Common arguments:
    scores: [batch, keys], the importance of each unit.
    chosen: bool [batch, keys], the units that an explanation selects.
    marked: bool [batch, keys], the units of the human rationale.
    content: bool [batch, keys], the units of the text.

Every score is NaN where no unit or every unit is marked, as in ERASER's average
precision, which discards such texts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from hf_attnprobe.functional.aopc import units_first


IOU_HIT = 0.5


def auprc(scores: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Area under the precision-recall curve, with straight lines between its points.

    Σ (R_n − R_{n−1}) (P_n + P_{n−1}) / 2 over thresholds, from R = 0 and P = 1 on. That
    is ERASER's AUPRC.

    Returns:
        float64 [batch] in (0, 1] or NaN.

    >>> scores = torch.tensor([[3.0, 2.0, 1.0]])
    >>> marked = torch.tensor([[True, False, True]])
    >>> auprc(scores, marked, torch.ones(1, 3).bool())
    tensor([0.7917], dtype=torch.float64)
    """
    precision, before = _precisions(scores, marked, content)
    return _mean_of_marked((precision + before) / 2, marked, content)


def average_precision(scores: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Area under the precision-recall curve in steps: Σ (R_n − R_{n−1}) P_n.

    That is the mean, over marked units, of the precision among all units that score at
    least as much.

    Returns:
        float64 [batch] in (0, 1] or NaN.

    >>> scores = torch.tensor([[3.0, 2.0, 1.0]])
    >>> marked = torch.tensor([[True, False, True]])
    >>> average_precision(scores, marked, torch.ones(1, 3).bool())
    tensor([0.8333], dtype=torch.float64)
    """
    precision, _ = _precisions(scores, marked, content)
    return _mean_of_marked(precision, marked, content)


def _precisions(scores: Tensor, marked: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the precision of the units that score at least as much as each, and of those above.

    Each float64 [batch, keys]; 1 where none is above.
    """
    others = scores[:, None]
    threshold = scores[..., None]
    at_least = (others >= threshold) & content[:, None]
    above = (others > threshold) & content[:, None]

    precisions = []
    for chosen in (at_least, above):
        n_hits = (chosen & marked[:, None]).sum(-1)
        n_chosen = chosen.sum(-1).clamp_min(1).double()
        precisions.append(n_hits / n_chosen)
    own, before = precisions
    return own, before.masked_fill(~above.any(-1), 1)


def _mean_of_marked(values: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    marked = marked & content
    mean = (values * marked).sum(-1) / marked.sum(-1)
    return mean.masked_fill(~_is_defined(marked, content), torch.nan)


def token_f1(chosen: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Returns the F1 of the chosen units as a prediction of the marked ones.

    Returns:
        float64 [batch] in [0, 1] or NaN.
    """
    chosen = chosen & content
    marked = marked & content
    n_hits = (chosen & marked).sum(-1).double()
    n_units = chosen.sum(-1) + marked.sum(-1)
    f1 = 2 * n_hits / n_units
    unknown = ~_is_defined(marked, content)
    return f1.masked_fill(unknown, torch.nan)


def share_of_marked(weights: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Share of the total weight that lies on marked units.

    Args:
        weights: [batch, keys], at least 0.

    Returns:
        float64 [batch] in [0, 1] or NaN; NaN too where no unit has weight.

    >>> weights = torch.tensor([[0.5, 0.2, 0.1, 0.2]])
    >>> content = torch.tensor([[False, True, True, True]])
    >>> share_of_marked(weights, torch.tensor([[True, True, False, False]]), content)
    tensor([0.4000], dtype=torch.float64)
    """
    weights = weights.double() * content
    share = (weights * marked).sum(-1) / weights.sum(-1)
    return share.masked_fill(~_is_defined(marked, content), torch.nan)


class SpanScores(NamedTuple):
    """Agreement of spans, each float64 [batch], at least 0, or NaN.

    Attributes:
        precision: share of the chosen spans that are hits.
        recall: hits per marked span; beyond 1 where several hit the same one.
        f1: of the two, for each text. ERASER's IOU F1 of a data set is 2PR / (P + R) of
            their means P and R over its texts.
    """

    precision: Tensor
    recall: Tensor
    f1: Tensor


def iou_scores(chosen: Tensor, marked: Tensor, content: Tensor) -> SpanScores:
    """Returns the agreement of spans, which are runs of neighbouring units.

    A chosen span is a hit where it shares at least half of its union with a marked
    span.
    """
    # Units first: positions that are no units must not separate neighbours.
    order = units_first(content)
    chosen_spans = spans((chosen & content).gather(1, order))
    marked_spans = spans((marked & content).gather(1, order))
    width = int(max(chosen_spans.max(), marked_spans.max())) + 1

    pair = chosen_spans * width + marked_spans
    shared = torch.zeros(len(pair), width**2, dtype=torch.float64, device=pair.device)
    shared.scatter_add_(1, pair, shared.new_ones(pair.shape))
    shared = shared.unflatten(1, (width, width))
    union = shared.sum(2, keepdim=True) + shared.sum(1, keepdim=True) - shared
    iou = shared / union.clamp_min(1)
    is_hit = iou[:, 1:, 1:] >= IOU_HIT  # number 0 is no span
    n_hits = is_hit.any(-1).sum(-1).double()

    n_chosen = chosen_spans.amax(1)
    n_marked = marked_spans.amax(1)
    precision = n_hits / n_chosen.clamp_min(1)
    recall = n_hits / n_marked
    f1 = 2 * n_hits / (n_chosen + n_marked)
    unknown = ~_is_defined(marked, content)
    return SpanScores(
        precision.masked_fill(unknown, torch.nan),
        recall.masked_fill(unknown, torch.nan),
        f1.masked_fill(unknown, torch.nan),
    )


def iou_f1(chosen: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """F1 of spans in each text, see :func:`iou_scores`.

    Returns:
        float64 [batch], at least 0, or NaN.
    """
    return iou_scores(chosen, marked, content).f1


def spans(chosen: Tensor) -> Tensor:
    """The number of the run of True that each position belongs to.

    Args:
        chosen: bool [batch, keys].

    Returns:
        int64 [batch, keys], from 1; 0 outside of runs.

    >>> spans(torch.tensor([[True, True, False, True]]))
    tensor([[1, 1, 0, 2]])
    """
    starts = chosen.clone()
    starts[:, 1:] &= ~chosen[:, :-1]
    return starts.cumsum(1) * chosen


def _is_defined(marked: Tensor, content: Tensor) -> Tensor:
    n_marked = (marked & content).sum(-1)
    return (n_marked > 0) & (n_marked < content.sum(-1))
