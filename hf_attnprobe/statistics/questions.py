"""The questions about attention that make the verdict of an audit. Pure.

A question is one record: what is asked, the measure and its thresholds, their source,
every word that is said of it, and the function that measures it. To add one, write it
here; verdict, sentences, number lines, comparisons of audits and ``docs/verdicts.md``
follow.

Faithfulness decides, by its thresholds; its parts stand beneath it on the same scale, see
``scale.py``. Without an effect there is nothing to explain. Uniqueness stands beside.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from hf_attnprobe.statistics.estimates import Estimate, mean_estimate
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.grades import (
    Answer,
    Measure,
    Rule,
    grade,
    of_statistic,
)
from hf_attnprobe.statistics.scale import (
    DROP,
    ERASURE,
    IMPORTANCE,
    MASS,
    MIN_CLASS,
    ORDER,
    PARTS_OF_ANSWERS,
    REMOVAL,
    SOURCE,
    WITHOUT_ATTENTION,
    Part,
    contributions,
    part_of,
    placed,
    way,
)


# --- what a question is --------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What a question measured.

    Attributes:
        graded: the number that is graded.
        said: what was measured, in sentences.
        yardsticks: the numbers it is to be seen beside, by name; NaN where one is not
            known.
        at_least: the lower of two numbers, where what is graded lies between this one
            and ``graded``.
        open_because: what keeps the answer open where more texts would not help.
        is_upper_bound: whether the number is only known not to be larger.
        is_nothing: whether what was done surely has no effect at all.
    """

    graded: Estimate
    said: str
    yardsticks: Mapping[str, float]
    at_least: Estimate | None = None
    open_because: str = ""
    is_upper_bound: bool = False
    is_nothing: bool = False


@dataclass(frozen=True, kw_only=True)
class Question(Rule):
    """A rule about attention, and how its number is measured.

    Attributes:
        measured: what the evidence says, given the rule with its thresholds; None where
            the evidence has no such numbers.
        role: in the verdict: the score that decides, a part of it, an effect without which
            there is nothing to explain, or what is only said beside these.
        test: the faithfulness test that is read.
        charts: keys of the charts that show it.
    """

    measured: Callable[[Evidence, Rule], Measured | None]
    role: Literal["score", "part", "effect", "beside"]
    test: str
    charts: tuple[str, ...] = ()


QUESTIONS: dict[str, Question] = {}
"""Of classifiers, by key, in the order in which they are reported."""
OF_ANSWERS: dict[str, Question] = {}
"""The same of language models that answer from a passage."""


Measures = Callable[[Evidence, Rule], Measured | None]


def question(
    name: str,
    asked: str,
    measure: str,
    *,
    among: Sequence[dict[str, Question]] = (QUESTIONS,),
    **record: Any,
) -> Callable[[Measures], Measures]:
    """Adds a question; its key is the name of the function that measures it.

    Args:
        name: one word, with which the sentence begins.
        asked: the question.
        measure: the number that is graded.
        among: the questions that it joins.
        record: other attributes of :class:`Question`.
    """

    def register(measured: Measures) -> Measures:
        key = measured.__name__
        _add(key, name, asked, measure, measured, among, record)
        return measured

    return register


def _add(
    key: str,
    name: str,
    asked: str,
    measure: str,
    measured: Measures,
    among: Sequence[dict[str, Question]],
    record: Mapping[str, Any],
) -> None:
    for questions in among:
        questions[key] = Question(name, asked, measure, measured=measured, **record)


BY_CALIBRATION = (
    "thresholds by calibration: what is reached where attention points at what decides in half "
    "of the texts, and in three quarters (docs/calibration.md)"
)
NOTHING_KNOWN = Estimate(0.0, (0.0, 0.0), 10**9)
"""The least that a share can be, with no text to doubt it."""
ENDS = {"random order": 0.0, "best order": 1.0}
PARTLY, YES = 0.4, 0.65
"""Of faithfulness and its parts; see :data:`BY_CALIBRATION`."""
LEAST_EFFECT = 0.05
"""Of the output at the standard temperature: what shuffles must move. Where a tenth of the
logit comes by attention they move .02, where half of it does .13."""


# --- faithfulness and its parts ----------------------------------------------------------------


RANKED_BESIDE = {
    "product": "attention × gradient",
    "input_gradient": "gradient × input",
    "leave_one_out": "leaving out itself",
    "rollout": "attention rolled out",
    "last_layer": "attention of the last layer",
    "given": "the scores that were given",
}
"""Rankings whose faithfulness on the same texts stands beside attention's."""


@question(
    "Faithfulness",
    "Does attention show what the predictions rest on?",
    "mean of importance, erasure, removal and mass (of answers order, drop and source), those "
    "that were asked, two at least; each is 0 for a random order and 1 for the best one",
    partly=PARTLY,
    yes=YES,
    source=BY_CALIBRATION,
    done="Several questions ask the same of the same texts, each in its own way, on a scale from a "
    "random order of the {units}, 0, to the best possible order, 1. Faithfulness is their mean.",
    scale="place between a random order and the best one",
    if_yes="the {units} with most attention are mostly those that the model decides by",
    if_partly="attention points at the {units} that the model decides by more often than not",
    if_no="attention mostly points at other {units} than those that the model decides by",
    ends=ENDS,
    yardsticks=RANKED_BESIDE,
    role="score",
    among=(QUESTIONS, OF_ANSWERS),
    test="scale",
    compared=(
        Measure("faithfulness", contributions, is_of_explained=True),
        Measure("faithfulness", partial(contributions, parts=PARTS_OF_ANSWERS)),
    ),
)
def faithfulness(evidence: Evidence, rule: Rule) -> Measured | None:
    """The mean of the parts, of all texts but those whose class is said by default."""
    own = evidence.explained
    found = placed(own.texts, parts=own.parts)
    if not found.score.n:
        return None
    others = {name: placed(own.texts, name, own.parts).score.value for name in RANKED_BESIDE}
    parts = ", ".join(f"{name} {part.value:.2f}" for name, part in found.parts.items())
    said = (
        f"On the scale from a random order, 0, to the best one, 1, attention "
        f"stands at {found.score.said} ({rule.graded}): {parts}."
    )
    return Measured(found.score, f"{said}{_defaults(evidence)}{_classes(own)}", others)


def _defaults(evidence: Evidence) -> str:
    """Names the classes that are said by default, with their share of the texts."""
    if not evidence.by_default:
        return ""
    names = ", ".join(evidence.by_default)
    share = 1 - len(evidence.explained.texts) / len(evidence.texts)
    return (
        f" {names} is said by default: in these texts ({share:.0%}) there is nothing to "
        "highlight, and the number is of the others."
    )


def _classes(evidence: Evidence) -> str:
    """Says faithfulness by predicted class, where two intervals are apart; else nothing."""
    texts = {name: evidence.of_class(name).texts for name in evidence.classes}
    found = {name: placed(of, parts=evidence.parts).score for name, of in texts.items()}
    known = {name: score for name, score in found.items() if (score.n or 0) >= MIN_CLASS}
    ends = [score.ci95 for score in known.values() if score.ci95]
    if not ends or max(low for low, _ in ends) <= min(high for _, high in ends):
        return ""
    said = ", ".join(f"{score.said} in texts predicted {n}" for n, score in known.items())
    return f" Predicted classes differ: {said}."


def _contributions_to(part: Part) -> Measure:
    """Returns what each text adds to a part, for paired differences between audits."""
    added = partial(contributions, parts=[part], at_least=1)
    return Measure(part.key, added, is_of_explained=True)


def _of_part(part: Part, **words: Any) -> dict[str, Any]:
    """Returns what the questions about parts of faithfulness share."""
    shared = {
        "partly": PARTLY,
        "yes": YES,
        "scale": "place between a random order and the best one",
        "ends": ENDS,
        "role": "part",
        "compared": (_contributions_to(part),),
    }
    return shared | words


Beside = Mapping[str, tuple[str, str]]
"""By name: a statistic whose mean stands beside a part, and in words what it is."""


def _ask_part(
    key: str,
    part: Part,
    name: str,
    asked: str,
    measure: str,
    *,
    said: str,
    beside: Beside,
    among: Sequence[dict[str, Question]] = (QUESTIONS,),
    **words: Any,
) -> None:
    """Adds a question about a part of faithfulness, with what stands beside it.

    Args:
        said: what was measured, with places for ``score`` and the numbers beside it, all
            estimates, and for ``amount``.
        words: other attributes of :class:`Question`.
    """

    def measured(evidence: Evidence, rule: Rule) -> Measured | None:
        own = evidence.explained
        score = part_of(own.texts, part)
        if not score.n:
            return None
        means = {n: own.mean(statistic) for n, (statistic, _) in beside.items()}
        amount = own.words.standard_amount
        sentence = said.format(score=score, amount=amount, **means)
        numbers = {n: mean.value for n, mean in means.items()}
        return Measured(score, sentence, numbers)

    yardsticks = {n: in_words for n, (_, in_words) in beside.items()}
    record = _of_part(part, yardsticks=yardsticks, **words)
    _add(key, name, asked, measure, measured, among, record)


_ask_part(
    "importance",
    IMPORTANCE,
    "Importance",
    "Do tokens with more attention matter more when they are left out?",
    "Gini correlation of attention with what leaving each token out costs at the standard "
    "temperature, mean over texts",
    said="Attention puts first what matters most when left out with a score of {score.said} "
    "(1 is the best order, 0 a random one).",
    beside={
        "precision": (
            "attention_leave_one_out_precision",
            "precision of the tokens that hold half of the importance",
        ),
        "tau": (
            "attention_leave_one_out_tau",
            "Kendall's τ of attention with leaving out, all pairs alike",
        ),
        "gradient": (
            "gradient_leave_one_out_tau",
            "Kendall's τ of gradients with leaving out",
        ),
    },
    source="Jain & Wallace 2019, Section 4.1, weighted by importance (Schechtman & Yitzhaki "
    "1987); " + BY_CALIBRATION,
    done="Each token is left out in turn, and how far {said} then moves says how much the "
    "token matters. The score says how well attention puts the tokens that matter first.",
    if_yes="{units} with more attention matter more when they are left out",
    if_partly="{units} with more attention often matter more when they are left out",
    if_no="attention says little of which {units} matter when they are left out",
    test="scale",
    charts=("tau_leave_one_out", "tau_gradient"),
)


@question(
    "Erasure",
    "Does the decision rest on the largest weights?",
    "(random − attention) / (random − smallest set) of the mean shares of weights erased until "
    "nine tenths of the decision's lead are gone, times the share of texts in which some order "
    "gets there",
    **_of_part(
        ERASURE,
        source="Serrano & Smith 2019, Section 5; nine tenths of the lead in place of the flip, "
        "which the noise behind the deciding tokens makes; " + BY_CALIBRATION,
        done="Attention weights are set to 0 one after the other, the largest first, until nine "
        "tenths of the decision's lead are gone. The same is done with random orders and with "
        "the smallest set that does it. A text in which no order gets there counts as 0.",
        if_yes="setting the largest weights to zero undoes the decision",
        if_partly="setting the largest weights to zero undoes the decision sooner than random ones",
        if_no="setting the largest weights to zero undoes the decision {little} sooner than random ones",
        yardsticks={
            "attention": "share of tokens erased in attention's order",
            "random": "share of tokens erased in a random order",
            "smallest": "share of tokens in the smallest set",
            "reached": "share of texts in which some order takes nine tenths of the lead",
            "flip way": "attention's score until the decision flips (Serrano & Smith)",
        },
        test="erasure",
        charts=("js_against_attention", "fraction_to_flip"),
    ),
)
def erasure(evidence: Evidence, rule: Rule) -> Measured | None:
    """How much fewer weights attention's order erases than a random one."""
    own = evidence.explained
    score = part_of(own.texts, ERASURE)
    if not score.n:
        return None
    random, attention, best = map(own.mean, ERASURE.names("attention"))
    reached = own.mean("lead_is_lost")
    yardsticks = {
        "attention": attention.value,
        "random": random.value,
        "smallest": best.value,
        "reached": reached.value,
        "flip way": own.of_means(FLIPS, way).value,
    }
    said = ""
    if attention.n:
        said = (
            "Until nine tenths of the lead are gone, attention's order erases "
            f"{attention.value:.2f} of the tokens, a random order {random.value:.2f}, the smallest "
            f"set known {best.value:.2f}. "
        )
    said += f"On the scale from a random order to the smallest set attention scores {score.said}."
    if reached.value < 0.995:
        said += (
            f" In {1 - reached.value:.0%} of texts no order of weights takes the lead; they count "
            "as 0."
        )
    return Measured(score, said, yardsticks)


FLIPS = (
    "fraction_to_flip@random",
    "fraction_to_flip@attention",
    "minimal_fraction",
)


_ask_part(
    "removal",
    REMOVAL,
    "Removal",
    "Does the prediction fall without the tokens with most attention?",
    "(attention − random) / (best − random) of the mean losses without the first 1, 5, 10, 20 "
    "and 50% of an order, at the standard temperature",
    said="Without the tokens with most attention the prediction loses {attention.value:.2f} {amount}, "
    "without as many random ones {random.value:.2f}, without the best known {best.value:.2f}. On "
    "the scale from random to best attention scores {score.said}.",
    beside={
        "attention": (
            "removal@attention",
            "loss without the tokens with most attention",
        ),
        "random": ("removal@random", "loss without random tokens"),
        "best": (
            "removal@best",
            "loss without the tokens that the best order known puts first",
        ),
    },
    source="DeYoung et al. 2020, normalised as in Edin et al. 2025; " + BY_CALIBRATION,
    done="The tokens with most attention are taken out of the text itself. The loss is "
    "compared with that of as many random tokens, and with the largest that any order "
    "known reaches.",
    if_yes="taking the most attended {units} out undoes the prediction",
    if_partly="taking the most attended {units} out costs more than random ones would",
    if_no="taking the most attended {units} out costs {little} more than random ones",
    test="scale",
    charts=("comprehensiveness", "sufficiency"),
)


_ask_part(
    "mass",
    MASS,
    "Mass",
    "Does attention lie on tokens that matter, in proportion?",
    "(overlap − chance) / (1 − chance) of the mean overlaps of the weights with what leaving "
    "each token out costs",
    said="{overlap.value:.0%} of the attention lies on tokens in proportion to what they cost when "
    "left out; the same weights at random tokens would reach {chance.value:.0%}. On the scale "
    "from there to 100% attention scores {score.said}.",
    beside={
        "overlap": (
            "mass@attention",
            "share of attention on tokens that matter, in proportion",
        ),
        "chance": (
            "mass_by_chance@attention",
            "the same of these weights at random tokens",
        ),
    },
    source="overlap is 1 − total variation; Shapley values in short texts; " + BY_CALIBRATION,
    done="What each token costs when it is left out, as shares of the sum, is what a map of "
    "the text should show. The overlap of attention with it is compared with that of the "
    "same weights at other tokens.",
    if_yes="attention lies on the {units} that matter, in proportion",
    if_partly="part of the attention lies on {units} that matter, part on others",
    if_no="much of the attention lies on {units} that do not matter",
    test="scale",
)


# --- effect and uniqueness -----------------------------------------------------------------------


@question(
    "Effect",
    "Does it matter which token got which weight?",
    "median change of the output over shuffles of the weights, at the standard temperature "
    "(total variation, 0 to 1; of numbers in standard deviations of the predictions)",
    partly=LEAST_EFFECT,
    yes=LEAST_EFFECT,
    source="Jain & Wallace 2019, Section 4.2.1; no constructed model moves less in which "
    "attention decides, and more in which it does nothing (docs/calibration.md)",
    done="The weights of a text are shuffled among its tokens again and again. If it matters "
    "which token has which weight, the output moves. What has no effect explains nothing, "
    "however well it ranks the tokens.",
    scale="how far the median shuffle moves the output",
    if_yes="what the model says depends on which of the {units} has which weight",
    if_no="shuffling the weights hardly changes what the model says",
    ends={"nothing moves": 0.0},
    yardsticks={
        "worst": "the worst shuffle moves the output by",
        "flips": "share of shuffles that flip the decision",
        "published": "the median change of the output as it is (Jain & Wallace)",
    },
    role="effect",
    among=(QUESTIONS, OF_ANSWERS),
    test="permutation",
    charts=("permutation_by_max_attention",),
    compared=(
        of_statistic(
            "change of the output under shuffled attention",
            "standard_tvd",
            is_of_explained=True,
        ),
    ),
)
def effect(evidence: Evidence, rule: Rule) -> Measured | None:
    """How far the median shuffle moves the output at the standard temperature."""
    own = evidence.explained
    moved, worst = own.mean("standard_tvd"), own.mean("largest_standard_tvd")
    if not moved.n:
        return None
    flips = own.mean("flips_drawn")
    yardsticks = {
        "worst": worst.value,
        "flips": flips.value,
        "published": own.mean("median_tvd").value,
    }
    said = (
        f"Shuffling the weights (the median of the shuffles) moves what the model says by "
        f"{moved.said} at the standard temperature, the worst shuffle by {worst.said} "
        f"({rule.graded})."
    )
    if flips.n:
        said += f" {flips.value:.0%} of the shuffles flip {evidence.words.decision}."
    nothing = grade(worst, rule) == grade(moved, rule) == Answer.NO
    return Measured(moved, said, yardsticks, is_nothing=nothing)


@question(
    "Uniqueness",
    "Is this attention the only one that gives this output?",
    "1 − the distance of the farthest attention within ε = .01 as a share of the largest "
    "there is, per text; a yes needs an upper bound of that distance",
    partly=0.42,
    yes=0.75,
    source="Jain & Wallace 2019, Section 4.2.2 (ε); .42 = 1 − .40 / ln 2, the "
    "distance of trained adversaries (Wiegreffe & Pinter 2019, Table 4); .75 is our "
    "choice. It does not decide the answer: another attention with the same output "
    "does not make this one false (Wiegreffe & Pinter 2019, Section 2)",
    done="Among all attention that moves the output by at most ε = {within}, the one that is "
    "farthest from the model's is looked for. The distance is the Jensen-Shannon divergence "
    "(JSD: 0 is the same attention, .69 = ln 2 attention to other tokens only). Graded is how tightly the output pins the "
    "weights down: 0 not at all, 1 completely.",
    scale="how tightly the output pins the weights down",
    if_yes="very different weights would give another output",
    if_partly="fairly different weights would give nearly the same output",
    if_no="very different weights would give nearly the same output",
    ends={"any attention does": 0.0, "only this one does": 1.0},
    yardsticks={
        "largest_jsd": "JSD of the farthest attention of all",
        "epsilon_max_jsd": "JSD of the farthest that keeps the output",
        "upper_bound": "share of the largest distance that none can exceed",
    },
    role="beside",
    among=(QUESTIONS, OF_ANSWERS),
    test="adversarial",
    charts=("adversarial_distance", "adversarial_by_max_attention"),
    compared=(
        of_statistic(
            "1 − the distance of the farthest attention found within ε, as a share of the largest",
            "share_of_largest@0.01",
            lambda share: 1 - share,
        ),
    ),
)
def uniqueness(evidence: Evidence, rule: Rule) -> Measured | None:
    """1 − the distance of the farthest attention that keeps the output, as a share of the largest."""
    share = evidence.mean("share_of_largest@0.01")
    if not share.n:
        return None
    upper = evidence.mean("share_of_largest_upper@0.01")
    exact = evidence.mean("epsilon_max_jsd_exact").value == 1
    pinned_at_most = one_minus(share)
    pinned_at_least, bound = NOTHING_KNOWN, "no upper bound is known"
    if exact:
        pinned_at_least, bound = pinned_at_most, "exact"
    elif upper.n:
        pinned_at_least = one_minus(upper)
        bound = f"certainly at most {upper.said} of it"
    moved, largest = (
        evidence.mean("epsilon_max_jsd@0.01"),
        evidence.mean("largest_jsd"),
    )
    least = "" if exact else "at least "
    depends = "how saturated the output is"
    if evidence.words.is_number:
        depends = "how little the number varies with attention at all"
    said = (
        f"The farthest attention that keeps the output within {evidence.words.within} has "
        f"{least}{share.said} of the largest distance there is, on average over texts "
        f"(JSD {moved.value:.2f} of {largest.value:.2f}; {bound}). "
        f"The share also depends on {depends}."
    )
    unbounded = not exact and not upper.n and pinned_at_most.value >= rule.partly
    return Measured(
        pinned_at_most,
        said,
        {
            "largest_jsd": largest.value,
            "epsilon_max_jsd": moved.value,
            "upper_bound": upper.value,
        },
        at_least=pinned_at_least,
        open_because="whether other weights would do as well is not known" if unbounded else "",
        is_upper_bound=not exact,
    )


def one_minus(estimate: Estimate) -> Estimate:
    """1 − the estimate, with its interval."""
    if estimate.ci95 is None:
        return estimate
    low, high = estimate.ci95
    return Estimate(1 - estimate.value, (1 - high, 1 - low), estimate.n)


# --- of language models that answer from a passage -----------------------------------------------


UNITS = "Units are those of the passage, such as its sentences; all else is held. "


NAMED_WITHOUT = {
    "chance": "any unit",
    "longest": "the longest unit",
    "first": "the first unit",
    "last": "the last unit",
    "commonest place": "the place where most sources are",
}
"""In words, what names a unit without attention."""
LOST_ON_PATH = ("lost_by_knockout", "lost_by_deletion")


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return part / np.where(whole > 0, whole, np.nan)


def _mediated_share(means: np.ndarray) -> np.ndarray:
    return _ratio(*np.moveaxis(means, -1, 0))


_ask_part(
    "order",
    ORDER,
    "Order",
    "Do units with more attention cost the answer more when they are deleted?",
    "Gini correlation of attention with the nats that the answer loses without each unit, mean "
    "over texts of more than 4 units",
    said="Attention puts the units that cost the answer most first with a score of {score.said} (1 is "
    "the best order, 0 chance); by length it would be {length.value:.2f}.",
    beside={
        "tau": (
            "source_tau@attention",
            "Kendall's τ of attention with deletion, all pairs alike",
        ),
        "length": (
            "source_agreement@length",
            "the same score of the units' lengths",
        ),
    },
    source="as importance of a classifier, in nats; " + BY_CALIBRATION,
    done=UNITS + "Each unit is deleted in turn, and what the answer's log-probability then "
    "loses says how much rests on it. The score says how well attention puts the units that "
    "cost most first.",
    if_yes="{units} with more attention cost the answer more when they are deleted",
    if_partly="{units} with more attention often cost the answer more when they are deleted",
    if_no="attention says little of which {units} cost the answer when they are deleted",
    among=(OF_ANSWERS,),
    test="sources",
)


_ask_part(
    "drop",
    DROP,
    "Drop",
    "Does the answer lose more without the units with most attention than without others?",
    "nats that the answer loses without the 1, 3 and 5 units with most attention (top-k drop), "
    "from those of random units, 0, to the most that any order tried costs, 1; of the means over "
    "texts with twice as many units",
    said="Without the units with most attention the answer loses {attention.said} nats, without as "
    "many random ones {random.said}, at most {best.said}: attention stands at {score.said} of "
    "the way.",
    beside={
        "attention": (
            "drop@attention",
            "nats lost without the first units by attention",
        ),
        "random": ("drop@random", "without as many random ones"),
        "best": ("drop@best", "without the best"),
    },
    source="ContextCite (Cohen-Wang et al. 2024), between random units and the best; "
    + BY_CALIBRATION,
    done=UNITS + "The first units by attention are deleted together, as many random ones, and "
    "the first by what each costs by itself.",
    if_yes="deleting the most attended {units} undoes the answer",
    if_partly="deleting the most attended {units} costs more than random ones would",
    if_no="deleting the most attended {units} costs {little} more than random ones",
    among=(OF_ANSWERS,),
    test="sources",
)


@question(
    "Source",
    "Does attention find the unit that the answer rests on?",
    "share of texts in which the unit with most attention is the one whose deletion costs the "
    "answer most (precision@1), from the largest share that chance, the longest, the first, the "
    "last unit or the commonest place reaches, 0, to always, 1; of the means over texts",
    **_of_part(
        SOURCE,
        source="leaving out as the yardstick: ContextCite (Cohen-Wang et al. 2024), AttriBoT "
        "(Liu et al. 2024); " + BY_CALIBRATION,
        done=UNITS + "Each unit is deleted in turn, and what the answer's log-probability then "
        "loses says how much rests on it. Attention finds the source where its largest weight is "
        "on the unit that costs most. Long units collect weight by their length, first ones by "
        "their place, so what needs no attention at all counts as 0.",
        if_yes="the most attended of the {units} is the one that the answer rests on",
        if_partly="attention finds what matters more often than a simple rule",
        if_no="attention finds what matters {little} more often than a simple rule",
        ends={"without attention": 0.0, "always": 1.0},
        yardsticks={
            "found": "share of texts in which attention finds the source",
            **{name: f"the same of {said}" for name, said in NAMED_WITHOUT.items()},
        },
        among=(OF_ANSWERS,),
        test="sources",
    ),
)
def source(evidence: Evidence, rule: Rule) -> Measured | None:
    """Precision@1 on the scale from the best that needs no attention to 1."""
    score = part_of(evidence.texts, SOURCE)
    if not score.n:
        return None
    found = mean_estimate(evidence.column("source_found@attention"), share=True)
    without = {name: evidence.mean(of).value for name, of in WITHOUT_ATTENTION.items()}
    best = max(without, key=lambda name: without[name])
    said = (
        f"The unit with most attention is the one that the answer rests on in {found.said} of "
        f"{found.n} texts. What needs no attention finds it in up to {without[best]:.2f} "
        f"({NAMED_WITHOUT[best]}). From there to always, attention stands at {score.said}."
    )
    return Measured(score, said, {"found": found.value, **without})


@question(
    "Path",
    "Does what matters act by being looked at?",
    "what the answer loses without the cells of the units that matter, over what it loses without "
    "these units (mediated share), not clipped; of the sums over texts",
    partly=0.3,
    yes=0.5,
    source="attention knockout: Geva et al. 2023, Section 5; " + BY_CALIBRATION,
    done=UNITS
    + "A unit whose deletion costs the answer more than noise matters. Its cells are set "
    "to 0 in all rows behind the passage and all layers, the rest of each row divided by its sum, "
    "and what the answer then loses is compared with what it loses without the unit. What is "
    "missing has reached the answer through other tokens.",
    scale="share of what deletion costs that knocking out the unit's cells costs",
    if_yes="hiding {units} from attention costs most of what deleting them costs",
    if_partly="hiding {units} from attention costs part of what deleting them costs",
    if_no="hiding {units} from attention costs little of what deleting them costs",
    ends={"nothing": 0.0, "as deletion": 1.0},
    yardsticks={
        "knockout": "nats that the unit whose cells matter most costs",
        "units": "units per text that matter",
    },
    role="effect",
    among=(OF_ANSWERS,),
    test="knockout",
    compared=(_contributions_to(Part("mediated share", LOST_ON_PATH, _mediated_share)),),
)
def path(evidence: Evidence, rule: Rule) -> Measured | None:
    """The mediated share of the units that matter, a ratio of sums."""
    share = evidence.of_means(LOST_ON_PATH, _ratio)
    if not share.n:
        return None
    units = evidence.mean("units_that_matter")
    knocked = evidence.mean("largest_knockout@renormalised")
    said = (
        f"{units.value:.1f} units a prompt cost the answer more than noise when they are deleted. "
        f"Taking the attention to them away costs {share.said} of that ({rule.graded})."
    )
    return Measured(share, said, {"knockout": knocked.value, "units": units.value})


EVERY_QUESTION = {**QUESTIONS, **OF_ANSWERS}
"""By key."""
