"""What a change of output means for the decision."""

from torch import Tensor


def decision_flip(before: Tensor, after: Tensor) -> Tensor:
    """Whether the most probable class changed, bool [...], from probabilities [..., classes]."""
    return before.argmax(-1) != after.argmax(-1)
