"""Several checkpoints beside one another in one table, and what can be set."""

from dataclasses import dataclass

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.options import OPTIONS
from hf_attnprobe.options import LARGEST_SEED, Asked, Options, option, options_with_default
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


def asked_comparison(asked: Asked | None) -> dict[str, Options]:
    """The options of the tests that are asked for, by name.

    Raises:
        AttnProbeError: an unknown test or option, or the test ``adversary`` alone.
    """
    chosen = options_with_default(asked, KINDS, AUDITED)
    if chosen.keys() == {"adversary"}:
        raise AttnProbeError(
            f"expected one of {', '.join(AUDITED)} besides, got adversary alone; "
            "attnprobe retrain trains adversaries of one model"
        )
    return chosen
