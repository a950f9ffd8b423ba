"""What can be set in a comparison of checkpoints."""

from dataclasses import dataclass

from hf_attnprobe.options import LARGEST_SEED, Options, option


AUDITED = ("fragility", "single_token", "adversarial", "conicity")
TESTS = (*AUDITED, "adversary")


@dataclass(frozen=True)
class ComparisonOptions(Options):
    """Options of :func:`hf_attnprobe.compare_checkpoints`; its tests have their own."""

    seed: int = option(0, "seed of everything random", at_least=0, at_most=LARGEST_SEED)
