"""Options of the faithfulness tests; each test's file says what it does with them.

Nothing is imported here that computes, so that a command line is refused at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hf_attnprobe.core.options import Options, option


GROUP = "hf_attnprobe.tests"
"""The entry points by which other packages name their tests."""


@dataclass(frozen=True)
class NoOptions(Options):
    """For a test without options."""


@dataclass(frozen=True)
class ExplainsClass(Options):
    """For a test that explains the probability of a class.

    With a target the decision is for it or not for it. It flips where that changes, and
    its probability is that of the side the text is on: of the target, or of all others.
    """

    target: str | int | None = option(
        None,
        "class, by name or number, whose decision is explained (default: the predicted one)",
        metavar="CLASS",
    )


@dataclass(frozen=True)
class Correlation(ExplainsClass):
    """Which class's probability is explained, and how many tokens count as the top."""

    tops: Sequence[int] = option(
        (3,),
        "numbers of tokens ranked first whose overlap is counted",
        at_least=1,
        at_most=1_000_000,
    )


@dataclass(frozen=True)
class Scale(ExplainsClass):
    """Of which texts the best order is looked for, beside the rankings that are tried."""

    exact_units: int = option(
        8,
        "most units of a text of which every set is left out (2^units passes), for the best "
        "order and for what each unit is worth; 0: none",
        at_least=0,
        at_most=12,
        metavar="UNITS",
    )
    greedy_units: int = option(
        16,
        "most units of a text of which the costliest is left out again and again (some "
        "units² / 2 passes)",
        at_least=0,
        at_most=10_000,
        metavar="UNITS",
    )


@dataclass(frozen=True)
class Permutation(Options):
    """How many random shuffles."""

    n_permutations: int = option(100, "random shuffles per text", at_least=1, at_most=100_000)


@dataclass(frozen=True)
class Adversarial(Options):
    """How the farthest attention is found, and how far the output may move."""

    method: Literal["auto", "exact", "search"] = option(
        "auto",
        "exact works for binary linear read-outs, search (the paper's for linear ones) for "
        "all models; auto takes exact if possible, then bounds, then search",
    )
    epsilons: Sequence[float] | None = option(
        None,
        "distances that the output may move (default: .01 and .05; exact: nine from .001 to .5)",
        at_least=0,
        metavar="EPSILON",
    )
    n_starts: int = option(5, "random starts of the gradient search", at_least=1, at_most=1_000)
    n_steps: int | None = option(
        None,
        "steps of the gradient search (default: 500 with method=search and for models "
        "of pairs; else 0, no search: the best of candidates that are checked); where the "
        "answer is exact and for groups of heads there is no search",
        at_least=0,
        at_most=100_000,
    )


@dataclass(frozen=True)
class Erasure(ExplainsClass):
    """How weights are erased, and which weight the largest one is compared with."""

    renormalise: bool = option(
        True, "divide the weights that are left by their sum after an erasure"
    )
    draw: Literal["uniform", "released"] = option(
        "uniform",
        "how the weight to compare with the largest is drawn: uniformly from the others, "
        "or as in the released code, which may draw the largest but never the first",
    )
    all_zero: bool = option(
        False,
        "count the decision without any attention too, as the released code does",
    )
    n_random: int = option(5, "random orders of erasure", at_least=1, at_most=10_000)
    each_random: bool = option(
        False,
        "report every random order beside their mean, to pool them over texts as the "
        "released code does",
    )
    bottom_up: bool = option(
        False,
        "also erase the least weight first, and the least gradient and product (orders "
        "least_attention, …)",
    )


@dataclass(frozen=True)
class InputErasure(ExplainsClass):
    """How tokens are removed from the input, and whether the result is normalised."""

    by: Literal["deletion", "mask"] = option(
        "deletion",
        "delete tokens, or replace them by the tokenizer's mask token",
    )
    beam_width: int = option(
        0,
        "width of the beam search that normalises the scores (NAOPC); it runs the model "
        "about width × T² times for a text of T tokens; 0 leaves them as they are",
        at_least=0,
        at_most=10_000,
        metavar="WIDTH",
    )
    tokens_to_flip: bool = option(
        False,
        "also take tokens out in the order of each ranking until the decision flips; "
        "runs the model up to once per ranking and step",
    )
    n_steps: int = option(
        0,
        "equal shares of a text in which its tokens leave until the decision flips; 0: one by one",
        at_least=0,
        at_most=1_000_000,
        metavar="STEPS",
    )


@dataclass(frozen=True)
class Interchange(Options):
    """At how many other places a state is exchanged."""

    n_others: int = option(
        8,
        "places without most attention at which a state is exchanged too (all of them where the "
        "read-out is linear)",
        at_least=1,
        at_most=100_000,
    )


@dataclass(frozen=True)
class Explanations(ExplainsClass):
    """Which class gradients and leave-one-out explain, and for how many texts flow is computed."""

    flow_positions: int = option(
        0,
        "longest text, in positions, that attention flow is computed for (0: none; one "
        "maximum flow per token, so its time grows with the cube of the length)",
        at_least=0,
        at_most=100_000,
    )


@dataclass(frozen=True)
class Screen(ExplainsClass):
    """Which class's probability is followed."""


@dataclass(frozen=True)
class Plausibility(Options):
    """Which rankings are compared with the rationales."""

    integrated_gradients: bool = option(
        False, "compare |integrated gradients| with the rationales too"
    )


@dataclass(frozen=True)
class Fragility(Options):
    """How many permutations."""

    n_draws: int = option(10, "permutations of the attention per text", at_least=1, at_most=10_000)


@dataclass(frozen=True)
class SingleToken(ExplainsClass):
    """Which class is explained."""


@dataclass(frozen=True)
class AttributionAgreement(ExplainsClass):
    """Which class is explained, and how the integral is taken."""

    n_steps: int = option(
        50,
        "points of the integral of integrated gradients",
        at_least=1,
        at_most=10_000,
    )
    attention: Literal["free", "held"] = option(
        "free",
        "whether integrated gradients go through the attention (free: they add up to "
        "the change of the output) or not (held, as the paper's code)",
    )


@dataclass(frozen=True)
class Shapley(ExplainsClass):
    """How units are taken out, and of how many units every set is."""

    by: Literal["deletion", "mask", "attention"] = option(
        "deletion",
        "delete units, replace them by the tokenizer's mask token, or set their attention "
        "weights to 0 at the head or the group of heads, the rest divided by its sum",
    )
    exact_units: int = option(
        12,
        "most units of a text of which every set is taken out (2^units passes)",
        at_least=1,
        at_most=12,
        metavar="UNITS",
    )
    longer: Literal["orders", "phrases"] = option(
        "orders",
        "texts with more units: take them out in random orders, or cut them into as many phrases",
    )
    n_orders: int = option(
        20,
        "random orders of a longer text, each with a pass per unit",
        at_least=2,
        at_most=100_000,
    )


@dataclass(frozen=True)
class Sources(Options):
    """Of how many units every set is deleted, and whether random halves are."""

    exact_units: int = option(
        0,
        "most units of a text of which all sets are deleted (2^units passes), for Shapley values "
        "and the smallest set that changes the answer; 0: none",
        at_least=0,
        at_most=12,
        metavar="UNITS",
    )
    masks: int = option(
        0,
        "random halves of the units that are deleted to fit ContextCite's LASSO (64 in the "
        "paper); 0: none",
        at_least=0,
        at_most=100_000,
    )
    held_out: int = option(
        32,
        "other halves on which rankings are scored (LDS)",
        at_least=3,
        at_most=100_000,
    )


@dataclass(frozen=True)
class Knockout(Options):
    """Where the weights go, and from which effect on a unit matters."""

    operators: Sequence[Literal["none", "renormalised", "sink"]] = option(
        ("renormalised",),
        "where the weights of a unit go: to all that the row still looks at in proportion, "
        "nowhere, or to the sink",
    )

    least_effect: float = option(
        0.1,
        "nats that deleting a unit must cost for its mediated share to be read",
        at_least=0,
    )


OPTIONS: dict[str, type[Options]] = {
    "scale": Scale,
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
"""The built-in tests, in the order of reports. A test, its function and its file have one name."""
TESTS = tuple(OPTIONS)
