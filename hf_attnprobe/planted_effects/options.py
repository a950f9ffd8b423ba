"""Options of :func:`hf_attnprobe.find_detection_limit`."""

from collections.abc import Sequence
from dataclasses import dataclass

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import MAX_SEED, Options, option


@dataclass(frozen=True)
class DetectionLimitOptions(Options):
    """The heads in which effects are planted, and the effect sizes."""

    spiked_heads: Sequence[str] | None = option(
        None,
        "heads in which an effect is planted, as layer.head (default: heads drawn at random)",
        metavar="HEAD",
    )
    n_spiked: int = option(1, "number of heads to draw at random", at_least=1)
    doses: Sequence[float] = option(
        (0.05, 0.1, 0.25, 0.5, 1.0),
        "changes of the log-odds that the head causes, to first order, in ascending order",
        at_least=0.0,
        at_most=100.0,
    )
    seed: int = option(
        0, "seed of the token, its positions and the heads", at_least=0, at_most=MAX_SEED
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.doses) != sorted(set(self.doses) - {0.0}) or not self.doses:
            raise AttnProbeError(
                f"doses must be greater than 0 and in ascending order, got {list(self.doses)}. The "
                "dose 0 is added automatically."
            )
