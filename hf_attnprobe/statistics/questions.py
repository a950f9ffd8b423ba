"""The questions about attention that make the verdict of an audit. Pure.

A question is one record: what is asked, the measure and its thresholds, their source,
every word that is said of it, and the function that measures it. To add one, write it
here; verdict, sentences, number lines, comparisons of audits and ``docs/verdicts.md``
follow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hf_attnprobe import markdown
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.grades import Answer, Measure, Rule, grade
from hf_attnprobe.statistics.wording import Words


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
        lacks_control: whether no control was run that would be taken off; the number
            can then only say no, since a control makes no number larger.
        caution: why a large number may not be taken for more than no; empty where
            nothing is against it.
        open_because: what keeps the answer open where more texts would not help.
        is_upper_bound: whether the number is only known not to be larger.
        is_nothing: whether what was done surely has no effect at all.
    """

    graded: Estimate
    said: str
    yardsticks: Mapping[str, float]
    at_least: Estimate | None = None
    lacks_control: bool = False
    caution: str = ""
    open_because: str = ""
    is_upper_bound: bool = False
    is_nothing: bool = False


@dataclass(frozen=True, kw_only=True)
class Question(Rule):
    """A rule about attention, and how its number is measured.

    Attributes:
        measured: what the evidence says, given the rule with its thresholds; None where
            the evidence has no such numbers.
        part: in the verdict: whether attention has an effect, whether its order names
            what matters, or what is only said beside these.
        beside_yes: what stands beside a verdict of yes where this question says no.
        test: the faithfulness test that is read.
        charts: keys of the charts that show it.
        by_class: a statistic, and words for its means by predicted class.
    """

    measured: Callable[[Evidence, Rule], Measured | None]
    part: Literal["effect", "ranking", "beside"]
    beside_yes: str = ""
    test: str
    charts: tuple[str, ...] = ()
    by_class: tuple[str, str] | None = None


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
        record["measured"] = measured
        for questions in among:
            questions[measured.__name__] = Question(name, asked, measure, **record)
        return measured

    return register


BY_CALIBRATION = (
    "the first threshold is the least multiple of .05 that at most 1 in 20 models of any "
    "kind exceed of which the truth is no (constructed models, 500 texts)"
)
"""The constructed models are those of ``docs/calibration.md``; a yes of two grades begins
half, which none of these models exceeds."""
SCORE = "score: from the control, 0, to the best, 1"
RAW = "raw: not compared with the control"
AS_PEAKED = 0.8
"""Of the model's mean largest weight: from there on a control is as peaked."""
NOTHING_KNOWN = Estimate(0.0, (0.0, 0.0), 10**9)
"""The least that a share can be, with no text to doubt it."""
LEAD = tuple(f"fraction_to_lose_lead@{ranking}" for ranking in ("attention", "random", "best"))
LEAD_GONE = "nine tenths of the lead are gone"
FLIPS = ("fraction_to_flip@attention", "fraction_to_flip@random", "minimal_fraction")
OF_ATTENTION = ("attention", "mean_attention")


def said_as(estimate: Estimate) -> str:
    """A number with its interval, two digits."""
    return markdown.interval(estimate.value, estimate.ci95, digits=2)


@question(
    "Importance",
    "Do tokens with more attention matter more when they are left out?",
    "Gini correlation of attention with leave-one-out importance, on the scale from the "
    "control's to 1: (own − control) / (1 − control), of the means over texts",
    partly=0.35,
    yes=0.5,
    source="Jain & Wallace 2019, Section 4.1, weighted by importance (Schechtman & "
    "Yitzhaki 1987) and corrected for chance as Cohen's κ is; " + BY_CALIBRATION,
    done="Each token is left out in turn, and how far {said} then falls says how "
    "much the token matters (leave-one-out). The Gini correlation says how well "
    "attention puts the tokens that matter first: 1 is the best order, 0 chance. "
    "Sharp attention agrees with leave-one-out wherever it lies, so the same weights are "
    "given to random other tokens of the text (the control); the scale begins at what "
    "these reach.",
    scale="score between the same weights at random tokens and the best order",
    if_yes="the tokens with most attention are those that matter when left out",
    if_no="the same weights at random other tokens would name what matters about as well",
    ends={"the control": 0.0, "the best order": 1.0},
    yardsticks={
        "agreement": "Gini correlation of attention with leave-one-out",
        "control": "Gini correlation of the control's attention",
        "precision": "precision of the tokens that hold half of the importance",
        "tau": "Kendall's τ of attention with leave-one-out, all pairs alike",
        "gradient": "Kendall's τ of gradients with leave-one-out",
    },
    asks="Do weights name what matters?",
    word="score",
    labels={"agreement": "raw", "control": "control", "tau": "τ"},
    part="ranking",
    test="correlation",
    charts=("tau_leave_one_out", "tau_gradient"),
    by_class=(
        "attention_leave_one_out_agreement",
        "the Gini correlation with leave-one-out is",
    ),
    legend=(SCORE, RAW),
    is_ratio=True,
    compared=(
        Measure(
            "Gini correlation of attention with leave-one-out",
            {"attention_leave_one_out_agreement": 1},
        ),
    ),
)
def importance(evidence: Evidence, rule: Rule) -> Measured | None:
    """Scores attention against leave-one-out on the scale from the control to the best order."""
    name = "attention_leave_one_out_agreement"
    own = evidence.mean(name)
    if not own.n:
        return None
    tau = evidence.mean("attention_leave_one_out_tau")
    yardsticks = {
        "agreement": own.value,
        "tau": tau.value,
        "precision": evidence.mean("attention_leave_one_out_precision").value,
        "gradient": evidence.mean("gradient_leave_one_out_tau").value,
    }
    said = (
        "Attention orders the tokens as leaving them out does with a Gini correlation of "
        f"{said_as(own)} (1 is the best order, 0 chance; with all pairs of tokens alike, "
        f"Kendall's τ is {said_as(tau)})."
    )
    control = evidence.control_mean(name)
    if not control.n:
        return Measured(own, said, yardsticks, lacks_control=True)
    yardsticks["control"] = control.value
    way = evidence.share_beyond_control([name], lambda agreement: agreement)
    if not way.n:  # the control's order is the best: there is no way to go
        return None
    said += (
        f" The control reaches {said_as(control)}. On the scale from the control to the "
        f"best order, attention scores {said_as(way)} ({rule.graded})."
    )
    caution = _less_peaked(evidence)
    if caution:
        said += f" {caution}"
    return Measured(way, said, yardsticks, caution=caution)


def _less_peaked(evidence: Evidence) -> str:
    """A caution where the control attends less sharply; empty where it does not.

    Peaked attention agrees with leave-one-out by itself: randomised classifiers without
    context reach a τ of .75 with attention as sharp as a trained one's. Reassigned
    attention is as sharp by construction.
    """
    own = evidence.mean("max_attention")
    control = evidence.control_mean("max_attention")
    if not control.n or control.value >= AS_PEAKED * own.value:
        return ""
    return (
        f"The control attends less sharply (mean largest weight {control.value:.2f} "
        f"against {own.value:.2f}), which by itself lowers its agreement."
    )


@question(
    "Assignment",
    "Does it matter which token got which weight?",
    "median change of the output over shuffles of the weights, the larger of total "
    "variation (0 to 1; of numbers in standard deviations of the labels) and share "
    "of the log-odds' range",
    partly=0.1,
    yes=0.1,
    source="Jain & Wallace 2019, Section 4.2.1; " + BY_CALIBRATION,
    done="The weights of a text are shuffled among its tokens again and again. If it "
    "matters which token has which weight, the output moves ({measured}). The log-odds "
    "are measured too, since the probability of a model that is very sure hardly moves.",
    scale="how far the median shuffle moves the output",
    if_yes="the output depends on which token has which weight",
    if_no="giving the same weights to other tokens hardly changes the output",
    ends={"nothing moves": 0.0},
    yardsticks={
        "total variation": "the median shuffle moves the output by",
        "log-odds": "and the log-odds by this share of their range",
        "worst shuffle": "the worst of the shuffles moves one of the two by",
    },
    asks="Do shuffled weights matter?",
    word="moves",
    labels={
        "total variation": "output",
        "log-odds": "log-odds",
        "worst shuffle": "worst",
    },
    part="effect",
    test="permutation",
    charts=("permutation_by_max_attention",),
    by_class=("median_tvd", "shuffling moves the output by"),
    legend=("moves: {moves}",),
    compared=(
        Measure(
            "change of the log-odds under shuffled attention, as a share of their range",
            {"median_share_of_log_odds": 1},
            larger_than="median_tvd",
        ),
        Measure("change of the output under shuffled attention", {"median_tvd": 1}),
    ),
)
def assignment(evidence: Evidence, rule: Rule) -> Measured | None:
    """The effect of shuffling, in probability or log-odds, whichever is larger."""
    moved = evidence.mean("median_tvd")
    if not moved.n:
        return None
    share = evidence.mean("median_share_of_log_odds")
    in_log_odds = bool(share.n) and share.value > moved.value
    graded = share if in_log_odds else moved
    worst = evidence.mean("largest_change")
    if not worst.n:
        worst = evidence.mean("largest_drawn_change")
    said = (
        "Shuffling attention (the median of the shuffles) moves the output by "
        f"{said_as(moved)} {evidence.words.unit}"
    )
    if share.n:
        said += f", and its log-odds by {said_as(share)} of their range"
    if worst.n:
        moves = "moves one of the two" if share.n else "moves it"
        said += f"; the worst shuffle {moves} by {said_as(worst)}"
    which = ""
    if share.n:
        which = f"; the {'log-odds are' if in_log_odds else 'total variation is'} graded"
    nothing = worst.n and grade(worst, rule) == grade(graded, rule) == Answer.NO
    return Measured(
        graded,
        f"{said} ({rule.graded}{which}).",
        {
            "total variation": moved.value,
            "log-odds": share.value,
            "worst shuffle": worst.value,
        },
        is_nothing=bool(nothing),
    )


@question(
    "Uniqueness",
    "Is this attention the only one that gives this output?",
    "1 − the distance of the farthest attention within ε = .01 as a share of the largest "
    "there is, per text; a yes needs an upper bound of that distance",
    partly=0.42,
    yes=0.75,
    source="Jain & Wallace 2019, Section 4.2.2 (ε); .42 = 1 − .40 / ln 2, the "
    "distance of trained adversaries (Wiegreffe & Pinter 2019, Table 4); .75 is our "
    "choice. It does not decide the verdict: another attention with the same output "
    "does not make this one false (Wiegreffe & Pinter 2019, Section 2)",
    done="Among all attention that moves the output by at most ε = {within}, the one that is "
    "farthest from the model's is looked for. The distance is the Jensen-Shannon divergence "
    "(JSD: 0 is the same attention, .69 = ln 2 attention to other tokens only). Graded is how tightly the output pins the "
    "weights down: 0 not at all, 1 completely.",
    scale="how tightly the output pins the weights down",
    if_yes="very different attention gives another output",
    if_no="the attention can be replaced by very different attention with almost the same output",
    ends={"any attention does": 0.0, "only this one does": 1.0},
    yardsticks={
        "largest_jsd": "JSD of the farthest attention of all",
        "epsilon_max_jsd": "JSD of the farthest that keeps the output",
        "upper_bound": "share of the largest distance that none can exceed",
        "control": "share of the largest distance in the control",
    },
    asks="Are these the only weights?",
    word="pinned",
    labels={"epsilon_max_jsd": "others at JSD", "largest_jsd": "of at most"},
    part="beside",
    among=(QUESTIONS, OF_ANSWERS),
    beside_yes="other attention would do as well",
    test="adversarial",
    charts=("adversarial_distance", "adversarial_by_max_attention"),
    compared=(
        Measure(
            "1 − the distance of the farthest attention found within ε, as a share of the largest",
            {"share_of_largest@0.01": -1},
            constant=1,
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
        bound = f"certainly at most {said_as(upper)} of it"
    moved, largest = evidence.mean("epsilon_max_jsd@0.01"), evidence.mean("largest_jsd")
    least = "" if exact else "at least "
    said = (
        f"The farthest attention that keeps the output within {evidence.words.within} has "
        f"{least}{said_as(share)} of the largest distance there is, on average over texts "
        f"(JSD {moved.value:.2f} of {largest.value:.2f}; {bound}). "
        f"{_room(rule)} The share also depends on {_room_depends(evidence.words)}."
    )
    control = evidence.control_mean("share_of_largest@0.01")
    if control.n:
        said += f" In the control it has {said_as(control)}."
    unbounded = not exact and not upper.n and pinned_at_most.value >= rule.partly
    return Measured(
        pinned_at_most,
        said,
        {
            "largest_jsd": largest.value,
            "epsilon_max_jsd": moved.value,
            "upper_bound": upper.value,
            "control": control.value,
        },
        at_least=pinned_at_least,
        open_because="how far other attention can go is only known from below" if unbounded else "",
        is_upper_bound=not exact,
    )


def one_minus(estimate: Estimate) -> Estimate:
    """1 − the estimate, with its interval."""
    if estimate.ci95 is None:
        return estimate
    low, high = estimate.ci95
    return Estimate(1 - estimate.value, (1 - high, 1 - low), estimate.n)


def _room(rule: Rule) -> str:
    """The thresholds of uniqueness, in shares of the largest distance."""
    return (
        f"The answer is yes up to {1 - rule.yes:.2f}, partly up to {1 - rule.partly:.2f}, and no "
        "beyond."
    )


def _room_depends(words: Words) -> str:
    if words.is_number:
        return "how little the number varies with attention at all"
    return "how saturated the output is"


@question(
    "Erasure",
    "Does the decision rest on the largest weights?",
    "1 − (tokens erased in attention's order beyond the smallest set) / (those of a "
    "random order), until nine tenths of the decision's lead are gone, on the scale from "
    "the control's to 1; of the means over texts in which some order gets there",
    partly=0.35,
    yes=0.5,
    source="Serrano & Smith 2019, Section 5; nine tenths of the lead in place of the "
    "flip, which the noise behind the deciding tokens makes; " + BY_CALIBRATION,
    done="Attention weights are set to 0 one after the other, the largest first, "
    "until nine tenths of the decision's lead are gone. The same is done with the "
    "smallest set that does it, with random orders, and with the same weights at "
    "other tokens (the control).",
    scale="score between the same weights at random tokens and the smallest set",
    if_yes="the largest weights are what the decision rests on",
    if_no="the decision rests on the largest weights no more than it would if they "
    "were at other tokens",
    ends={"the control": 0.0, "the smallest set": 1.0},
    yardsticks={
        "attention": "share of tokens erased in attention's order",
        "smallest": "share of tokens in the smallest set",
        "random": "share of tokens erased in a random order",
        "way": "attention's score between a random order and the smallest set",
        "control": "the control's score on that scale",
        "flip way": "attention's score until the decision flips (Serrano & Smith)",
    },
    asks="Do the top weights decide?",
    word="score",
    labels={"way": "raw", "control": "control", "attention": "erased"},
    part="ranking",
    test="erasure",
    charts=("js_against_attention", "fraction_to_flip"),
    by_class=(
        "fraction_to_lose_lead@attention",
        "the share of tokens erased in attention's order is",
    ),
    legend=(SCORE, RAW),
    is_ratio=True,
    compared=tuple(
        Measure(
            f"share of tokens that attention's order erases less than a random one, until {until}",
            {f"{family}@random": 1, f"{family}@attention": -1},
        )
        for family, until in (
            ("fraction_to_lose_lead", LEAD_GONE),
            ("fraction_to_flip", "the decision flips"),
        )
    ),
)
def erasure(evidence: Evidence, rule: Rule) -> Measured | None:
    """Scores attention's order of erasure on the scale from the control to the smallest set."""
    names, until = LEAD, LEAD_GONE
    if not evidence.mean(LEAD[0]).n:
        names, until = FLIPS, f"{evidence.words.decision} flips"
    own = evidence.share_of_means(names, _way, control=False)
    if not own.n:
        return None
    attention, random, best = map(evidence.mean, names)
    yardsticks = {
        "attention": attention.value,
        "random": random.value,
        "smallest": best.value,
        "way": own.value,
        "flip way": evidence.share_of_means(FLIPS, _way, control=False).value,
    }
    said = (
        f"Until {until}, attention's order erases {attention.value:.2f} of the tokens, a "
        f"random order {random.value:.2f}, the smallest set known {best.value:.2f} (means "
        f"over {own.n} texts in which some order gets there). On the scale from a random "
        f"order to the smallest set, attention scores {said_as(own)}."
    )
    after = (
        " The attention left is divided by its sum, and the model never saw such attention in "
        "training."
    )
    control = evidence.share_of_means(names, _way, control=True)
    if not control.n:
        return Measured(own, said + after, yardsticks, lacks_control=True)
    yardsticks["control"] = control.value
    way = evidence.share_beyond_control(names, _way)
    if not way.n:
        return None
    said += (
        f" The control scores {said_as(control)}. On the scale from the control to the "
        f"smallest set, attention scores {said_as(way)} ({rule.graded})."
    )
    return Measured(way, said + after, yardsticks)


def _way(attention: np.ndarray, random: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Normalises the number of erased tokens: 0 for a random order, 1 for the best."""
    room = random - best
    return 1 - (attention - best) / np.where(room > 0, room, np.nan)


@question(
    "Removal",
    "Does the prediction fall without the tokens with most attention?",
    "comprehensiveness of attention's ranking minus a random one's, minus the same "
    "of the control, per text",
    partly=0.1,
    yes=0.1,
    source="DeYoung et al. 2020; " + BY_CALIBRATION,
    done="The tokens with most attention are taken out of the text itself. The loss is "
    "compared with that of as many random tokens, and with that of the same weights at "
    "other tokens (the control).",
    scale="loss beyond that of random tokens, minus the control's",
    if_yes="the prediction loses more without the tokens with most attention than "
    "without random ones",
    if_no="the prediction loses no more without the tokens with most attention than "
    "it does without others",
    ends={"the control": 0.0},
    yardsticks={
        "attention": "loss without the tokens with most attention",
        "random": "loss without random tokens",
        "beyond random": "the difference of the two",
        "control": "the control's difference",
    },
    asks="Do the top tokens decide?",
    word="loses",
    labels={"attention": "raw", "random": "random", "control": "control's"},
    part="ranking",
    test="input_erasure",
    charts=("comprehensiveness", "sufficiency"),
    by_class=(
        "comprehensiveness@attention",
        "without the tokens with most attention the loss is",
    ),
    legend=(RAW,),
    compared=tuple(
        Measure(
            "loss without the tokens with most attention, minus loss without random ones",
            {f"comprehensiveness@{ranking}": 1, "comprehensiveness@random": -1},
            beyond_control=True,
        )
        for ranking in OF_ATTENTION
    ),
)
def removal(evidence: Evidence, rule: Rule) -> Measured | None:
    """Comprehensiveness of attention minus that of random tokens, minus the control's."""
    names = [f"comprehensiveness@{ranking}" for ranking in OF_ATTENTION]
    known = [name for name in names if evidence.mean(name).n]
    chance = "comprehensiveness@random"
    if not known or not evidence.mean(chance).n:
        return None
    beyond = evidence.beyond(known[0], chance)
    attention, random = evidence.mean(known[0]), evidence.mean(chance)
    yardsticks = {
        "attention": attention.value,
        "random": random.value,
        "beyond random": beyond.value,
    }
    words = evidence.words
    said = (
        f"Without the tokens with most attention {words.said} loses {said_as(attention)} "
        f"{words.amount}{words.aside}, without as many random ones "
        f"{said_as(random)}. The difference is {said_as(beyond)}."
    )
    after = " Texts with tokens erased are unlike those of the training."
    control = evidence.control_beyond(known[0], chance)
    if not control.n:
        return Measured(beyond, said + after, yardsticks, lacks_control=True)
    yardsticks["control"] = control.value
    less = evidence.less_control(known[0], chance)
    said += (
        f" The control's difference is {said_as(control)}; attention's minus the control's is "
        f"{said_as(less)} ({rule.graded})."
    )
    return Measured(less, said + after, yardsticks)


# --- of language models that answer from a passage -----------------------------------------------


UNITS = "Units are those of the passage, such as its sentences; all else is held. "
FOUND = tuple(f"source_found@{ranking}" for ranking in ("attention", "length", "chance"))


@question(
    "Source",
    "Does attention find the unit that the answer rests on?",
    "share of texts in which the unit with most attention is the one whose deletion costs the "
    "answer most (precision@1), on the scale from the larger of chance and the longest unit's "
    "to 1; of the means over texts",
    partly=0.05,
    yes=0.5,
    source="leave-one-out as the yardstick: ContextCite (Cohen-Wang et al. 2024), AttriBoT (Liu et "
    "al. 2024); " + BY_CALIBRATION,
    done=UNITS + "Each unit is deleted in turn, and what the answer's log-probability then loses "
    "says how much rests on it. Attention finds the source where its largest weight is on the unit "
    "that costs most. Long units collect weight by their length, so the longest unit's share is "
    "taken off, or chance where that is more.",
    scale="score between the longest unit or chance and always",
    if_yes="the unit with most attention is the one that the answer rests on",
    if_no="the unit with most attention is the one that the answer rests on hardly more often than "
    "the longest one or any is",
    ends={"length or chance": 0.0, "always": 1.0},
    yardsticks={
        "found": "share of texts in which attention finds the source",
        "length": "share in which the longest unit is the source",
        "chance": "the same of a unit drawn at random",
    },
    asks="Does it find the source?",
    word="score",
    labels={"found": "found", "length": "length", "chance": "chance"},
    part="ranking",
    among=(OF_ANSWERS,),
    test="sources",
    is_ratio=True,
    compared=(
        Measure(
            "whether attention finds the source, minus whether the longest unit is it",
            {FOUND[0]: 1, FOUND[1]: -1},
        ),
    ),
)
def source(evidence: Evidence, rule: Rule) -> Measured | None:
    """Precision@1 on the scale from what length or chance reach to 1."""
    attention, length, chance = map(evidence.mean, FOUND)
    if not attention.n:
        return None
    way = evidence.of_means(FOUND, _beyond_length)
    said = (
        f"The unit with most attention is the one whose deletion costs the answer most in "
        f"{said_as(attention)} of {attention.n} texts, the longest unit in {said_as(length)}, a "
        f"unit drawn at random in {chance.value:.2f}. On the scale from the larger of these two to "
        f"1, attention scores {said_as(way)} ({rule.graded})."
    )
    yardsticks = {"found": attention.value, "length": length.value, "chance": chance.value}
    return Measured(way, said, yardsticks)


def _beyond_length(found: np.ndarray, length: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """(found − base) / (1 − base), the base what length or chance reach."""
    base = np.maximum(length, chance)
    return (found - base) / np.where(base < 1, 1 - base, np.nan)


@question(
    "Order",
    "Do units with more attention cost the answer more when they are deleted?",
    "Gini correlation of attention with what the answer loses without each unit, on the scale from "
    "the control's, at least 0, to 1: (own − control) / (1 − control), of the means over texts of "
    "more than 4 units",
    partly=0.05,
    yes=0.5,
    source="as importance of a classifier, in nats and against another passage; " + BY_CALIBRATION,
    done=UNITS
    + "Each unit is deleted in turn, and what the answer's log-probability then loses is "
    "compared with attention by a Gini correlation: 1 is the best order, 0 chance. The control is "
    "the same question and answer over another text's passage: what agrees there too does not come "
    "from what the passage says.",
    scale="score between the same question over another passage and the best order",
    if_yes="attention orders the units as they cost the answer",
    if_no="attention orders the units no better than it does where the passage has no answer",
    ends={"the control": 0.0, "the best order": 1.0},
    yardsticks={
        "agreement": "Gini correlation of attention with deletion",
        "control": "the same over another text's passage",
        "tau": "Kendall's τ of attention with deletion, all pairs alike",
        "shapley": "Gini correlation of attention with Shapley values",
        "length": "Gini correlation of the units' lengths with deletion",
    },
    asks="Does it order the sources?",
    word="score",
    labels={"agreement": "raw", "control": "control", "tau": "τ"},
    part="ranking",
    among=(OF_ANSWERS,),
    test="sources",
    legend=(SCORE, RAW),
    is_ratio=True,
    compared=(
        Measure("Gini correlation of attention with deletion", {"source_agreement@attention": 1}),
    ),
)
def order(evidence: Evidence, rule: Rule) -> Measured | None:
    """Scores attention against deletion on the scale from the foreign passage to the best order."""
    name = "source_agreement@attention"
    own, tau = evidence.mean(name), evidence.mean("source_tau@attention")
    if not own.n:
        return None
    yardsticks = {
        "agreement": own.value,
        "tau": tau.value,
        "shapley": evidence.mean("shapley_agreement@attention").value,
        "length": evidence.mean("source_agreement@length").value,
    }
    said = (
        "Attention orders the units as deleting them does with a Gini correlation of "
        f"{said_as(own)} (1 is the best order, 0 chance; Kendall's τ is {said_as(tau)})."
    )
    control = evidence.control_mean(name)
    if not control.n:
        return Measured(own, said, yardsticks, lacks_control=True)
    yardsticks["control"] = control.value
    way = evidence.share_beyond_control([name], lambda agreement: agreement, at_least=0.0)
    if not way.n:
        return None
    said += (
        f" Over another text's passage it is {said_as(control)}. On the scale from there, or from "
        f"0 where that is less, to the best order, attention scores {said_as(way)} ({rule.graded})."
    )
    return Measured(way, said, yardsticks)


@question(
    "Exchange",
    "Does it matter which unit got which weight?",
    "median change of the output over shuffles of the weights among the units, the larger of total "
    "variation (0 to 1, a lower bound) and share of the answer's log-odds' range",
    partly=0.15,
    yes=0.15,
    source="Jain & Wallace 2019, Section 4.2.1; " + BY_CALIBRATION,
    done=UNITS + "The weights that the rows behind the passage give its units are shuffled among "
    "them again and again. If it matters which unit has which weight, the answer moves "
    "({measured}). Its log-odds are measured too, since a probability next to 1 hardly moves.",
    scale="how far the median shuffle moves the answer",
    if_yes="the answer depends on which unit has which weight",
    if_no="giving the same weights to other units hardly changes the answer",
    ends={"nothing moves": 0.0},
    yardsticks={
        "total variation": "the median shuffle moves the output by",
        "log-odds": "and the answer's log-odds by this share of their range",
        "worst shuffle": "the worst of the shuffles moves one of the two by",
    },
    asks="Do shuffled weights matter?",
    word="moves",
    labels={"total variation": "output", "log-odds": "log-odds", "worst shuffle": "worst"},
    part="effect",
    among=(OF_ANSWERS,),
    test="permutation",
    legend=("moves: {moves}",),
    compared=QUESTIONS["assignment"].compared,
)
def exchange(evidence: Evidence, rule: Rule) -> Measured | None:
    """As assignment, of the units of a passage."""
    return assignment(evidence, rule)


@question(
    "Path",
    "Does what matters act by being looked at?",
    "what the answer loses without the cells of the units that matter, over what it loses without "
    "these units (mediated share), not clipped; mean over texts",
    partly=0.3,
    yes=0.5,
    source="attention knockout: Geva et al. 2023, Section 5; " + BY_CALIBRATION,
    done=UNITS
    + "A unit whose deletion costs the answer more than noise matters. Its cells are set "
    "to 0 in all rows behind the passage and all layers, the rest of each row divided by its sum, "
    "and what the answer then loses is compared with what it loses without the unit. What is "
    "missing has reached the answer through other tokens.",
    scale="share of what deletion costs that knocking out the unit's cells costs",
    if_yes="what the answer takes from a unit it takes by looking at it",
    if_no="the answer keeps what it takes from a unit without looking at it, so no attention map "
    "of the answer can show it",
    ends={"nothing": 0.0, "as deletion": 1.0},
    yardsticks={
        "knockout": "nats that the unit whose cells matter most costs",
        "units": "units per text that matter",
    },
    asks="Does it act by being looked at?",
    word="share",
    labels={"knockout": "nats", "units": "units"},
    part="effect",
    among=(OF_ANSWERS,),
    test="knockout",
    compared=(Measure("mediated share", {"mediated_share": 1}),),
)
def mediated(evidence: Evidence, rule: Rule) -> Measured | None:
    """The mediated share of the units that matter."""
    share = evidence.mean("mediated_share")
    if not share.n:
        return None
    units = evidence.mean("units_that_matter")
    knocked = evidence.mean("largest_knockout@renormalised")
    said = (
        f"In {share.n} texts some unit costs the answer more than noise when it is deleted "
        f"({units.value:.1f} units a text over all texts). Taking their cells away costs "
        f"{said_as(share)} of that ({rule.graded})."
    )
    return Measured(share, said, {"knockout": knocked.value, "units": units.value})


EVERY_QUESTION = {**QUESTIONS, **OF_ANSWERS}
"""By key."""
