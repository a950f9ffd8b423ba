"""How well a ranking of a text's units finds those that people marked: the agreement scores of ERASER.

DeYoung et al. 2020, Section 4 ("agreement with human rationales"). Plausible is not faithful: a model may decide for
other reasons than people, and an explanation that says so is right (Jacovi & Goldberg 2020).
"""

import torch
from torch import Tensor


IOU_HIT = 0.5


def average_precision(scores: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """Area under the precision-recall curve in steps: Σ (R_n − R_{n−1}) P_n over the different scores as thresholds.

    That is the mean over marked units of the precision among all units that score at least as much. NaN where no unit
    or every unit is marked, texts that ERASER discards.

    Shape: scores, marked, content [batch, keys] -> [batch], float64.

    >>> average_precision(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[True, False, True]]), torch.ones(1, 3).bool())
    tensor([0.8333], dtype=torch.float64)
    """
    marked = marked & content
    at_least = (scores[:, None] >= scores[..., None]) & content[:, None]
    precision = (at_least & marked[:, None]).sum(-1) / at_least.sum(-1).clamp_min(
        1
    ).double()
    mean = (precision * marked).sum(-1) / marked.sum(-1)
    return mean.masked_fill(~_defined(marked, content), torch.nan)


def token_f1(chosen: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """F1 of the chosen units as a guess of the marked ones; NaN where no unit or every unit is marked.

    Shape: chosen, marked, content bool [batch, keys] -> [batch], float64.
    """
    chosen, marked = chosen & content, marked & content
    f1 = 2 * (chosen & marked).sum(-1).double() / (chosen.sum(-1) + marked.sum(-1))
    return f1.masked_fill(~_defined(marked, content), torch.nan)


def iou_f1(chosen: Tensor, marked: Tensor, content: Tensor) -> Tensor:
    """F1 of spans: a chosen span counts as found where it shares at least half of its union with a marked span.

    A span is a run of neighbouring units. Precision is the share of chosen spans that count, recall their number over
    that of marked spans, as in ERASER. NaN where no unit or every unit is marked.

    Shape: chosen, marked, content bool [batch, keys] -> [batch], float64.
    """
    order = (
        (~content).sort(dim=1, stable=True).indices
    )  # what is no unit must not part neighbours
    ours, theirs = (spans((x & content).gather(1, order)) for x in (chosen, marked))
    width = int(max(ours.max(), theirs.max())) + 1
    shared = torch.zeros(len(ours), width**2, dtype=torch.float64, device=ours.device)
    shared.scatter_add_(
        1, ours * width + theirs, torch.ones_like(shared[:, :1]).expand(ours.shape)
    )
    shared = shared.unflatten(1, (width, width))
    union = shared.sum(2, keepdim=True) + shared.sum(1, keepdim=True) - shared
    hits = ((shared / union.clamp_min(1))[:, 1:, 1:] >= IOU_HIT).any(-1).sum(-1)
    f1 = 2 * hits.double() / (ours.amax(1) + theirs.amax(1))
    return f1.masked_fill(~_defined(marked, content), torch.nan)


def spans(chosen: Tensor) -> Tensor:
    """The number of the run of True that each position is in, from 1; 0 for none. Bool [batch, keys] -> int [batch, keys].

    >>> spans(torch.tensor([[True, True, False, True]]))
    tensor([[1, 1, 0, 2]])
    """
    starts = chosen.clone()
    starts[:, 1:] &= ~chosen[:, :-1]
    return starts.cumsum(1) * chosen


def _defined(marked: Tensor, content: Tensor) -> Tensor:
    n_marked = (marked & content).sum(-1)
    return (n_marked > 0) & (n_marked < content.sum(-1))
