"""Options of a calibration."""

from collections.abc import Sequence
from dataclasses import dataclass

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import LARGEST_SEED, Options, option


@dataclass(frozen=True)
class SpikeOptions(Options):
    """What is planted in a user's model."""

    spiked_heads: Sequence[str] | None = option(
        None,
        "heads that look at the planted token, as layer.head (default: some drawn by the seed)",
        metavar="HEAD",
    )
    n_spiked: int = option(1, "number of heads that are drawn", at_least=1)
    doses: Sequence[float] = option(
        (0.05, 0.1, 0.25, 0.5, 1.0),
        "what the head adds to the log-odds, to first order, from less to more",
        at_least=0.0,
        at_most=100.0,
    )
    seed: int = option(0, "seed of token, places and draws", at_least=0, at_most=LARGEST_SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.doses) != sorted({*self.doses} - {0.0}) or not self.doses:
            raise AttnProbeError(
                f"expected doses above 0 from less to more, got {[*self.doses]}; 0 is always there"
            )
