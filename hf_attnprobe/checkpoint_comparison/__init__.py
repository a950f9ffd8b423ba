"""Several checkpoints beside one another in one table, and what can be set."""

from dataclasses import dataclass

from hf_attnprobe.faithfulness.options import OPTIONS
from hf_attnprobe.options import LARGEST_SEED, Options, option
from hf_attnprobe.retraining.options import Adversary


AUDITED = ("fragility", "single_token", "adversarial", "conicity")
KINDS: dict[str, type[Options]] = {
    **{name: OPTIONS[name] for name in AUDITED},
    "adversary": Adversary,
}
"""The classes of the options of a comparison's tests."""


@dataclass(frozen=True)
class ComparisonOptions(Options):
    """Options of :func:`hf_attnprobe.compare_checkpoints`; its tests have their own."""

    seed: int = option(0, "seed of everything random", at_least=0, at_most=LARGEST_SEED)
