"""What can be set in a comparison of checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import LARGEST_SEED, option
from hf_attnprobe.retraining.options import Adversary


AUDITED = ("fragility", "single_token", "adversarial", "conicity")
TESTS = (*AUDITED, "adversary")


@dataclass(frozen=True)
class ComparisonOptions(Adversary):
    """The tests of :func:`hf_attnprobe.compare_checkpoints`, and how adversaries are trained."""

    tests: Sequence[str] = option(
        AUDITED,
        f"of {', '.join(AUDITED)}; adversary trains models besides",
        metavar="TEST",
    )
    seed: int = option(0, "seed of everything random", at_least=0, at_most=LARGEST_SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = sorted(set(self.tests) - set(TESTS))
        if unknown or not set(self.tests) & set(AUDITED):
            got = ", ".join(unknown or self.tests) or "none"
            raise AttnProbeError(
                f"expected tests of {', '.join(TESTS)}, and not adversary alone, got {got}"
            )
