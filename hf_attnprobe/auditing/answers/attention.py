"""The questions about attention, each a function of the evidence. Pure.

Rules, thresholds and their sources are in ``statistics/verdicts.py``. Each question
gives one finding; what keeps a "cannot say" open stands in it, where it is not texts.
"""

from dataclasses import replace

import numpy as np

from hf_attnprobe.auditing.answers.evidence import Evidence
from hf_attnprobe.auditing.answers.wording import (
    as_finding,
    begin,
    one_minus,
    said_as,
    start,
    thresholds,
)
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.verdicts import (
    Answer,
    Finding,
    Rule,
    grade,
    grade_between,
    possible_answers,
)
from hf_attnprobe.statistics.wording import Words


AS_PEAKED = 0.8
"""Of the model's mean largest weight: from there on a control is as peaked."""
NOTHING_KNOWN = Estimate(0.0, (0.0, 0.0), 10**9)
"""The least that a share can be, with no text to doubt it."""
NO_CONTROL = "no control was run"
ONE_DRAW = "one draw of such a control says nothing of the next one"
LEAD = tuple(f"fraction_to_lose_lead@{ranking}" for ranking in ("attention", "random", "best"))
FLIPS = ("fraction_to_flip@attention", "fraction_to_flip@random", "minimal_fraction")


def importance(evidence: Evidence, group: str) -> Finding | None:
    """Attention against leave-one-out, from reassigned attention on."""
    name = "attention_leave_one_out_agreement"
    own = evidence.mean(name)
    if not own.n:
        return None
    tau = evidence.mean("attention_leave_one_out_tau")
    precision = evidence.mean("attention_leave_one_out_precision")
    yardsticks = {
        "agreement": own.value,
        "tau": tau.value,
        "precision": precision.value,
        "gradient": evidence.mean("gradient_leave_one_out_tau").value,
    }
    said = (
        "Attention puts the tokens that matter when left out first with a Gini "
        f"correlation of {said_as(own)} (1 is the best order, 0 chance; over all pairs "
        f"of tokens alike, Kendall's τ is {said_as(tau)})."
    )
    control = evidence.control_mean(name)
    if not control.n:
        return _without_control(evidence, "importance", group, own, said, yardsticks)
    yardsticks["control"] = control.value
    way = evidence.share_beyond_control([name], lambda agreement: agreement)
    if not way.n:  # the control's order is the best: there is no way to go
        return None
    said += (
        f" The control reaches {said_as(control)}. From there attention goes "
        f"{said_as(way)} of the way to the best order ({thresholds(evidence.rules['importance'])})."
    )
    caution = _less_peaked(evidence)
    return _finding(
        evidence.rules["importance"],
        "importance",
        group,
        way,
        said + caution,
        yardsticks,
        caution,
    )


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
        f" The control attends less sharply (mean largest weight {control.value:.2f} "
        f"against {own.value:.2f}), which by itself lowers its agreement."
    )


def assignment(evidence: Evidence, group: str) -> Finding | None:
    """The shuffles, in probability or in log-odds, whichever shows more."""
    moved = evidence.mean("median_tvd")
    if not moved.n:
        return None
    share = evidence.mean("median_share_of_log_odds")
    in_log_odds = bool(share.n) and share.value > moved.value
    graded = share if in_log_odds else moved
    worst = evidence.mean("largest_change")
    if not worst.n:
        worst = evidence.mean("largest_drawn_change")
    yardsticks = {
        "total variation": moved.value,
        "log-odds": share.value,
        "worst shuffle": worst.value,
    }
    said = (
        "Shuffling attention (the median of the shuffles) moves the output by "
        f"{said_as(moved)} {evidence.words.unit}"
    )
    if share.n:
        said += f", and its log-odds by {said_as(share)} of their range"
    if worst.n:
        moves = "moves one of the two" if share.n else "moves it"
        said += f"; the worst shuffle {moves} by {said_as(worst)}"
    which = "log-odds are" if in_log_odds else "total variation is"
    rule = evidence.rules["assignment"]
    which = f"; the {which} graded" if share.n else ""
    said += f" ({thresholds(rule)}{which})."
    found = _finding(rule, "assignment", group, graded, said, yardsticks)
    nothing = worst.n and grade(worst, rule) == grade(graded, rule) == Answer.NO
    return replace(found, is_nothing=bool(nothing))


def uniqueness(evidence: Evidence, group: str) -> Finding | None:
    """How much of the way to the farthest attention of all keeps the output."""
    share = evidence.mean("share_of_largest@0.01")
    if not share.n:
        return None
    rule = evidence.rules["uniqueness"]
    upper = evidence.mean("share_of_largest_upper@0.01")
    exact = evidence.mean("epsilon_max_jsd_exact").value == 1
    pinned_at_most = one_minus(share)
    pinned_at_least, bound = NOTHING_KNOWN, "no upper bound is known"
    if exact:
        pinned_at_least, bound = pinned_at_most, "exact"
    elif upper.n:
        pinned_at_least = one_minus(upper)
        bound = f"certainly at most {said_as(upper)} of the way"
    answer = grade_between(pinned_at_least, pinned_at_most, rule)
    moved, largest = evidence.mean("epsilon_max_jsd@0.01"), evidence.mean("largest_jsd")
    least = "" if exact else "at least "
    possible = possible_answers(pinned_at_least, pinned_at_most, rule)
    sentence = (
        f"{begin('uniqueness', group, answer, possible)} Other attention that keeps "
        f"the output within {evidence.words.within} lies {least}{said_as(share)} of the "
        "way to the farthest attention of all, on average over texts (JSD "
        f"{moved.value:.2f} of {largest.value:.2f}; {bound}). {_room(rule)} Room also "
        f"depends on {_room_depends(evidence.words)}, whatever attention means."
    )
    yardsticks = {"largest_jsd": largest.value, "epsilon_max_jsd": moved.value}
    if upper.n:
        yardsticks["upper_bound"] = upper.value
    control = evidence.control_mean("share_of_largest@0.01")
    if control.n:
        yardsticks["control"] = control.value
        sentence += f" In the control others lie {said_as(control)} of the way."
    found = as_finding("uniqueness", group, answer, sentence, pinned_at_most, yardsticks, rule)
    is_open = answer == Answer.CANNOT_SAY and pinned_at_most.value >= rule.partly
    unbounded = is_open and not exact and not upper.n
    why = "how far other attention can go is only known from below"
    return replace(found, is_upper_bound=not exact, open_because=why if unbounded else "")


def _room(rule: Rule) -> str:
    """The thresholds of uniqueness, in shares of the way that others may go."""
    return (
        f"The answer is yes up to {1 - rule.yes:.2f} of the way, partly up to "
        f"{1 - rule.partly:.2f}, and no beyond."
    )


def _room_depends(words: Words) -> str:
    if words.is_number:
        return "how little the number varies with attention at all"
    return "how saturated the output is"


def erasure(evidence: Evidence, group: str) -> Finding | None:
    """How few tokens attention's order wastes, from reassigned attention on."""
    names, until = LEAD, "nine tenths of the lead are gone"
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
        f"random one {random.value:.2f}, the smallest set known {best.value:.2f} (means "
        f"over {own.n} texts in which some order gets there). That is {said_as(own)} of "
        "the way from a random order to the smallest set."
    )
    after = (
        " The attention that is left is divided by its sum, which the model never saw in training."
    )
    control = evidence.share_of_means(names, _way, control=True)
    if not control.n:
        return _without_control(evidence, "erasure", group, own, said + after, yardsticks)
    yardsticks["control"] = control.value
    way = evidence.share_beyond_control(names, _way)
    if not way.n:
        return None
    said += (
        f" The control goes {said_as(control)} of its way. From there attention goes "
        f"{said_as(way)} of the rest ({thresholds(evidence.rules['erasure'])})."
    )
    return _finding(evidence.rules["erasure"], "erasure", group, way, said + after, yardsticks)


def _way(attention: np.ndarray, random: np.ndarray, best: np.ndarray) -> np.ndarray:
    """From a random order, 0, to the best, 1: by the tokens that each erases."""
    room = random - best
    return 1 - (attention - best) / np.where(room > 0, room, np.nan)


def removal(evidence: Evidence, group: str) -> Finding | None:
    """Without the tokens of most attention, beyond what random ones cost."""
    family = "comprehensiveness"
    names = [f"{family}@{ranking}" for ranking in ("attention", "mean_attention")]
    known = [name for name in names if evidence.mean(name).n]
    chance = f"{family}@random"
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
        f"Without the tokens of most attention {words.said} loses {said_as(attention)} "
        f"{words.amount}{words.aside}, without random ones {said_as(random)}: "
        f"{said_as(beyond)} more."
    )
    after = " Texts with tokens erased are unlike those of the training."
    control = evidence.control_beyond(known[0], chance)
    if not control.n:
        return _without_control(evidence, "removal", group, beyond, said + after, yardsticks)
    yardsticks["control"] = control.value
    less = evidence.less_control(known[0], chance)
    said += (
        f" In the control it is {said_as(control)}, which leaves {said_as(less)} "
        f"({thresholds(evidence.rules['removal'])})."
    )
    return _finding(evidence.rules["removal"], "removal", group, less, said + after, yardsticks)


def _finding(
    rule: Rule,
    key: str,
    group: str,
    graded: Estimate,
    said: str,
    yardsticks: dict[str, float],
    caution: str = "",
) -> Finding:
    """A finding graded by its number.

    Args:
        caution: why a number that is large may not be taken for more than no; empty
            where nothing is against it.
    """
    answer, why = grade(graded, rule), ""
    if graded.n and graded.ci95 is None:
        why = ONE_DRAW
    if caution and answer != Answer.NO:
        answer, why = Answer.CANNOT_SAY, caution.strip()
    sentence = f"{start(key, group, answer, graded, rule)} {said}"
    found = as_finding(key, group, answer, sentence, graded, yardsticks, rule)
    return replace(found, open_because=why)


def _without_control(
    evidence: Evidence,
    key: str,
    group: str,
    own: Estimate,
    said: str,
    yardsticks: dict[str, float],
) -> Finding:
    """A finding without a control: its own number can only say no.

    A control takes off what sharp attention has by itself, so a number that is too small
    already stays so.
    """
    rule = evidence.rules[key]
    answer = grade(own, rule)
    if answer != Answer.NO:
        answer = Answer.CANNOT_SAY
    sentence = (
        f"{start(key, group, answer)} {said} No control was run, and the same weights "
        "at other tokens may reach as much."
    )
    found = as_finding(key, group, answer, sentence, own, yardsticks, rule)
    return replace(found, open_because=NO_CONTROL)
