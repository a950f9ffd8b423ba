"""Options for the built-in faithfulness tests.

The module of each test explains how it uses its options. This module does not import torch, so that
the command line can refuse a wrong option quickly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hf_attnprobe.core.options import Options, option


ENTRY_POINT_GROUP = "hf_attnprobe.tests"
"""Name of the entry point group in which other installed packages list modules with faithfulness
tests."""


@dataclass(frozen=True)
class NoOptions(Options):
    """Empty options, for tests that have none."""


@dataclass(frozen=True)
class TargetOptions(Options):
    """Options for tests that can explain a class other than the predicted class.

    With a target, the decision is binary: the target class, or any other class. The decision flips
    if it changes between these two sides, and its probability is the probability of the side that
    the model predicted for the whole text.

    Attributes:
        target: Class whose decision is explained, by name or number. None explains the predicted
            class.
    """

    target: str | int | None = option(
        None,
        "class whose decision is explained, by name or number (default: the predicted class)",
        metavar="CLASS",
    )


@dataclass(frozen=True)
class Correlation(TargetOptions):
    """Options for the test ``correlation``: explained class, and sizes of the top-k sets."""

    tops: Sequence[int] = option(
        (3,),
        "sizes k of the top-k sets of tokens that are compared",
        at_least=1,
        at_most=1_000_000,
    )


@dataclass(frozen=True)
class Scale(TargetOptions):
    """Options for the test ``scale``: explained class and search for the best removal order."""

    exact_units: int = option(
        8,
        "longest text, in units, of which all sets of units are removed (2^units passes), to find "
        "the best order and the Shapley values; 0: none",
        at_least=0,
        at_most=12,
        metavar="UNITS",
    )
    greedy_units: int = option(
        0,
        "longest text, in units, of which the most important remaining unit is removed step by "
        "step, to find a good order (about units² / 2 passes); 0: none",
        at_least=0,
        at_most=10_000,
        metavar="UNITS",
    )


@dataclass(frozen=True)
class Exchange(TargetOptions):
    """Options for the test ``exchange``: explained class and number of donors."""

    n_donors: int = option(
        4,
        "texts with another prediction whose words replace the words of a text",
        at_least=1,
        at_most=64,
    )


@dataclass(frozen=True)
class Permutation(Options):
    """Options for the test ``permutation``: number of shuffles, and threshold for early stopping."""

    n_permutations: int = option(
        100, "random shuffles of the attention per text", at_least=1, at_most=100_000
    )
    stop_threshold: float | None = option(
        None,
        "a text gets only 6 shuffles if all of them change the output by more than this "
        "threshold, or all by less (default: every text gets all shuffles; the default audit of a "
        "language model uses .05, the threshold of the effect)",
        at_least=0,
        metavar="CHANGE",
    )


@dataclass(frozen=True)
class Adversarial(Options):
    """Options for the test ``adversarial``: search method and allowed output change."""

    method: Literal["auto", "exact", "search"] = option(
        "auto",
        "exact: for binary linear read-outs; search: for all models (for linear read-outs it is "
        "the search of the paper); auto: exact if possible, else bounds, else search",
    )
    epsilons: Sequence[float] | None = option(
        None,
        "allowed output changes, as total variation distances (default: .01 and .05; with the "
        "exact method nine values from .001 to .5)",
        at_least=0,
        metavar="EPSILON",
    )
    n_starts: int = option(
        5, "random starting points of the gradient search", at_least=1, at_most=1_000
    )
    n_steps: int | None = option(
        None,
        "steps of the gradient search (default: 500 with method=search and for models of text "
        "pairs, else 0, which only tries candidates; ignored by the exact method and for groups "
        "of heads)",
        at_least=0,
        at_most=100_000,
    )


@dataclass(frozen=True)
class Erasure(TargetOptions):
    """Options for the test ``erasure``: how weights are erased and which orders are compared."""

    renormalise: bool = option(True, "divide the remaining weights by their sum after an erasure")
    draw: Literal["uniform", "released"] = option(
        "uniform",
        "how to draw the weight that is compared with the largest weight: uniformly from all "
        "other weights, or as in the paper's released code, which can draw the largest weight "
        "itself but never the first",
    )
    all_zero: bool = option(
        False,
        "also count the decision without any attention, as the paper's released code does",
    )
    n_random: int = option(
        5, "random orders in which weights are erased", at_least=1, at_most=10_000
    )
    each_random: bool = option(
        False,
        "report each random order next to their mean, so that orders can be pooled over texts as "
        "in the paper's released code",
    )
    bottom_up: bool = option(
        False,
        "also erase the smallest attention, gradient or product first (orders least_attention, "
        "least_gradient, least_product)",
    )


@dataclass(frozen=True)
class InputErasure(TargetOptions):
    """Options for the test ``input_erasure``: removal operator and optional statistics."""

    by: Literal["deletion", "mask"] = option(
        "deletion",
        "delete the tokens, or replace them with the tokenizer's mask token",
    )
    beam_width: int = option(
        0,
        "width of the beam search for normalised scores (NAOPC), which runs the model about "
        "width × T² times for a text of T tokens; 0: no normalised scores",
        at_least=0,
        at_most=10_000,
        metavar="WIDTH",
    )
    tokens_to_flip: bool = option(
        False,
        "also remove tokens in the order of each ranking until the decision flips, which runs "
        "the model up to once per ranking and step",
    )
    n_steps: int = option(
        0,
        "number of equal steps in which all tokens of a text are removed for tokens_to_flip; 0: "
        "one token per step",
        at_least=0,
        at_most=1_000_000,
        metavar="STEPS",
    )


@dataclass(frozen=True)
class Interchange(Options):
    """Options for the test ``interchange``: number of control positions."""

    n_others: int = option(
        8,
        "control positions per text, other than the most attended one, at which a state is also "
        "exchanged (linear read-outs: all positions)",
        at_least=1,
        at_most=100_000,
    )


@dataclass(frozen=True)
class Explanations(TargetOptions):
    """Options for the test ``explanations``: explained class and text length for attention flow."""

    flow_positions: int = option(
        0,
        "longest text, in positions, for which attention flow is computed; its time grows with "
        "the cube of the length; 0: none",
        at_least=0,
        at_most=100_000,
    )


@dataclass(frozen=True)
class Screen(TargetOptions):
    """Options for the test ``screen``: explained class."""


@dataclass(frozen=True)
class Plausibility(Options):
    """Options for the test ``plausibility``: additional rankings."""

    integrated_gradients: bool = option(
        False, "also compare |integrated gradients| with the rationales"
    )


@dataclass(frozen=True)
class Fragility(Options):
    """Options for the test ``fragility``: number of permutations."""

    n_draws: int = option(
        10, "random permutations of the attention per text", at_least=1, at_most=10_000
    )


@dataclass(frozen=True)
class SingleToken(TargetOptions):
    """Options for the test ``single_token``: explained class."""


@dataclass(frozen=True)
class AttributionAgreement(TargetOptions):
    """Options for the test ``attribution_agreement``: explained class and integration."""

    n_steps: int = option(
        50,
        "integration points of integrated gradients",
        at_least=1,
        at_most=10_000,
    )
    attention: Literal["free", "held"] = option(
        "free",
        "free: integrated gradients flow through the attention, so that they sum to the output "
        "change; held: they do not, as in the paper's code",
    )


@dataclass(frozen=True)
class Shapley(TargetOptions):
    """Options for the test ``shapley``: removal operator and treatment of long texts."""

    by: Literal["deletion", "mask", "attention"] = option(
        "deletion",
        "delete units, replace them with the tokenizer's mask token, or set their attention "
        "weights to 0 and divide the remaining weights by their sum",
    )
    exact_units: int = option(
        12,
        "longest text, in units, of which all sets of units are removed (2^units passes)",
        at_least=1,
        at_most=12,
        metavar="UNITS",
    )
    longer: Literal["orders", "phrases"] = option(
        "orders",
        "for longer texts: remove the units in random orders, or join neighbouring units to "
        "exact_units phrases",
    )
    n_orders: int = option(
        20,
        "random orders per longer text, with one pass per unit and order",
        at_least=2,
        at_most=100_000,
    )


@dataclass(frozen=True)
class Sources(Options):
    """Options for the test ``sources``: deletion of all unit sets and random halves."""

    exact_units: int = option(
        0,
        "longest passage, in units, of which all sets of units are deleted (2^units passes), for "
        "Shapley values and the smallest set that changes the answer; 0: none",
        at_least=0,
        at_most=12,
        metavar="UNITS",
    )
    masks: int = option(
        0,
        "number of random halves of the units that are deleted to fit the LASSO of ContextCite "
        "(64 in the paper); 0: none",
        at_least=0,
        at_most=100_000,
    )
    held_out: int = option(
        32,
        "number of further random halves that score the rankings (LDS)",
        at_least=3,
        at_most=100_000,
    )


@dataclass(frozen=True)
class Knockout(Options):
    """Options for the test ``knockout``: redistribution rules and smallest effect."""

    operators: Sequence[Literal["none", "renormalised", "sink"]] = option(
        ("renormalised",),
        "where the attention to a blocked unit goes: nowhere (none), to all other tokens in "
        "proportion (renormalised), or to the sink",
    )
    least_effect: float = option(
        0.1,
        "smallest loss by deletion, in nats, from which a unit counts as mattering",
        at_least=0,
    )


FAITHFULNESS_OPTIONS: dict[str, type[Options]] = {
    "scale": Scale,
    "exchange": Exchange,
    "correlation": Correlation,
    "permutation": Permutation,
    "adversarial": Adversarial,
    "erasure": Erasure,
    "input_erasure": InputErasure,
    "interchange": Interchange,
    "uniform_attention": NoOptions,
    "head_ablation": NoOptions,
    "explanations": Explanations,
    "screen": Screen,
    "plausibility": Plausibility,
    "conicity": NoOptions,
    "fragility": Fragility,
    "single_token": SingleToken,
    "attribution_agreement": AttributionAgreement,
    "shapley": Shapley,
    "sources": Sources,
    "knockout": Knockout,
    "head_roles": NoOptions,
}
"""Option class for each built-in test, in the order in which reports list the tests."""
TEST_NAMES = tuple(FAITHFULNESS_OPTIONS)
"""Names of the built-in faithfulness tests, such as ``permutation``, in report order. Each test has
a module with the same name."""
