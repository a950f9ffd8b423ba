"""How far attention can be moved: what every way of looking for it returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


ROUNDING = 1e-6  # of a JSD in float32


@dataclass(frozen=True)
class AdversarialResult:
    """How far attention can be moved, in nats; all [batch] or, by ε, each [batch].

    Attributes:
        epsilon_max_jsd: by ε, what an attention within ε attains, in [0, ln 2].
        largest_jsd: of any attention, whatever the output.
        epsilon_max_jsd_exact: 1 where ``epsilon_max_jsd`` is the farthest of all within
            ε, 0 where it is a lower bound.
        epsilon_max_jsd_upper: by ε, what none within ε exceeds; only where it is known
            and is another number: linear read-outs of more than two classes.
        share_of_largest, share_of_largest_upper: both as a share of ``largest_jsd``;
            NaN where that is 0.
        attention: by ε, the adversary that was found, to be shown beside the original,
            each [batch, queries, keys]; none for groups of heads.
    """

    epsilon_max_jsd: dict[float, Tensor]
    largest_jsd: Tensor
    epsilon_max_jsd_exact: Tensor
    epsilon_max_jsd_upper: dict[float, Tensor] = field(default_factory=dict)
    share_of_largest: dict[float, Tensor] = field(init=False)
    share_of_largest_upper: dict[float, Tensor] = field(init=False)
    attention: dict[float, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("", "_upper"):
            known = getattr(self, "epsilon_max_jsd" + name)
            shares = {e: _share(values, self.largest_jsd) for e, values in known.items()}
            object.__setattr__(self, "share_of_largest" + name, shares)


def _share(values: Tensor, largest: Tensor) -> Tensor:
    return (values / largest).masked_fill(largest == 0, torch.nan)


def lower_bound(
    epsilons: Sequence[float], best: list[tuple[Tensor, Tensor]], largest: Tensor
) -> AdversarialResult:
    """From the divergence and the attention of the best candidate, for each ε."""
    by_epsilon = dict(zip(epsilons, best, strict=True))
    return AdversarialResult(
        {epsilon: divergence for epsilon, (divergence, _) in by_epsilon.items()},
        largest,
        torch.zeros_like(largest),
        attention={epsilon: found for epsilon, (_, found) in by_epsilon.items()},
    )
