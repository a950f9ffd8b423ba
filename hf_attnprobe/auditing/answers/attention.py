"""The questions about attention, each a function of the evidence. Pure.

Rules, thresholds and their sources are in ``statistics/verdicts.py``.
"""

from dataclasses import replace

from hf_attnprobe.auditing.answers.evidence import Evidence
from hf_attnprobe.auditing.answers.wording import (
    as_finding,
    begin,
    one_minus,
    said_as,
    start,
    thresholds,
)
from hf_attnprobe.statistics.bootstrap import Estimate
from hf_attnprobe.statistics.verdicts import (
    RULES,
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


def importance(evidence: Evidence, group: str) -> Finding | None:
    """Attention against leave-one-out, beyond the control."""
    name, rule = "attention_leave_one_out_tau", RULES["importance"]
    tau = evidence.mean(name)
    if not tau.n:
        return None
    gradient = evidence.mean("gradient_leave_one_out_tau")
    beyond, control = evidence.beyond_control(name), evidence.control_mean(name)
    ranks = (
        "Attention and leaving tokens out rank the tokens with τ "
        f"{said_as(tau)} (0 is chance, 1 the same order)"
    )
    if gradient.n:
        ranks += f"; gradients reach {said_as(gradient)}"
    yardsticks = {"chance": 0.0, "gradient": gradient.value}
    if beyond is None or control is None or not beyond.n:
        answer = Answer.NO if _surely_chance(tau) else Answer.CANNOT_SAY
        sentence = (
            f"{start('importance', group, answer)} {ranks}. No control was run, and "
            "without training the same model may reach as much."
        )
        return as_finding("importance", group, answer, sentence, tau, yardsticks)
    answer, caution = grade(beyond, rule), _less_peaked(evidence)
    if caution and answer != Answer.NO:
        answer = Answer.CANNOT_SAY
    sentence = (
        f"{start('importance', group, answer, beyond)} {ranks}. The control reaches "
        f"{said_as(control)}. Attention's difference to it is {said_as(beyond)} "
        f"({thresholds('importance')}).{caution}"
    )
    yardsticks["control"] = control.value
    return as_finding("importance", group, answer, sentence, beyond, yardsticks)


def _less_peaked(evidence: Evidence) -> str:
    """A caution where the control attends less sharply; empty where it does not.

    Peaked attention agrees with leave-one-out by itself: randomised classifiers without
    context reach a τ of .75 with attention as sharp as a trained one's.
    """
    own = evidence.mean("max_attention")
    control = evidence.control_mean("max_attention")
    if control is None or not control.n or control.value >= AS_PEAKED * own.value:
        return ""
    return (
        f" The control attends less sharply (mean largest weight {control.value:.2f} "
        f"against {own.value:.2f}), which by itself lowers its τ."
    )


def _surely_chance(tau: Estimate) -> bool:
    """Whether τ itself stays below what would have to be reached beyond a control."""
    return grade(tau, RULES["importance"]) == Answer.NO


def assignment(evidence: Evidence, group: str) -> Finding | None:
    """The shuffles, beyond the control's where there is one."""
    name, rule = "median_tvd", RULES["assignment"]
    moved = evidence.mean(name)
    if not moved.n:
        return None
    worst = evidence.mean("max_tvd")
    ceiling = f", the worst of all shuffles by {said_as(worst)}" if worst.n else ""
    yardsticks = {"nothing": 0.0, "worst shuffle": worst.value}
    beyond, control = evidence.beyond_control(name), evidence.control_mean(name)
    said = (
        f"Shuffling attention (the median of the shuffles) moves the output by "
        f"{said_as(moved)} {evidence.words.unit}{ceiling}"
    )
    if beyond is None or control is None or not beyond.n:
        beyond = moved
        said += f" ({thresholds('assignment')}; no control was run)"
    else:
        yardsticks["control"] = control.value
        said += (
            f". The control moves by {said_as(control)}. The difference to it is "
            f"{said_as(beyond)} ({thresholds('assignment')})"
        )
    answer = grade(beyond, rule)
    sentence = f"{start('assignment', group, answer, beyond)} {said}."
    return as_finding("assignment", group, answer, sentence, beyond, yardsticks)


def uniqueness(evidence: Evidence, group: str) -> Finding | None:
    """How much of the way to the farthest attention of all keeps the output."""
    share = evidence.mean("share_of_largest@0.01")
    if not share.n:
        return None
    rule = RULES["uniqueness"]
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
        f"the output within {evidence.words.within} lies {least}{said_as(share)} of the way to the farthest "
        f"attention of all, on average over texts (JSD {moved.value:.2f} of "
        f"{largest.value:.2f}; {bound}). {_room(rule)} Room also depends on "
        f"{_room_depends(evidence.words)}, whatever attention means."
    )
    yardsticks = {"largest_jsd": largest.value, "epsilon_max_jsd": moved.value}
    if upper.n:
        yardsticks["upper_bound"] = upper.value
    control = evidence.control_mean("share_of_largest@0.01")
    if control is not None and control.n:
        yardsticks["control"] = control.value
        sentence += f" In the control others lie {said_as(control)} of the way."
    found = as_finding(
        "uniqueness", group, answer, sentence, pinned_at_most, yardsticks
    )
    return replace(found, is_upper_bound=not exact)


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
    """How far attention's order is on the way from a random one to the smallest set."""
    name, best, flips = "way_to_best@attention", "the smallest set", "some set"
    if not evidence.mean(name).n:
        name, best = "way_to_best_tried@attention", "the best order tried"
        flips = "some tried order"
    way = evidence.mean(name)
    if not way.n:
        return None
    beyond = evidence.beyond_control(name)
    answer = _unless_control_does(grade(way, RULES["erasure"]), beyond)
    attention, random, smallest = (
        evidence.mean(column)
        for column in (
            "fraction_to_flip@attention",
            "fraction_to_flip@random",
            "minimal_fraction",
        )
    )
    failing = evidence.mean("never_flips@attention")
    needs = f"{attention.value:.2f} of the tokens, a random one {random.value:.2f}"
    if smallest.n:
        needs += f", {best} {smallest.value:.2f}"
    sentence = (
        f"{start('erasure', group, answer, way)} Attention's order goes {said_as(way)} "
        f"of the way from a random order to {best} ({thresholds('erasure')}). To flip "
        f"{evidence.words.decision} it needs {needs} (means over the {way.n} texts that {flips} "
        f"flips). In {failing.value:.0%} of them it never does, which counts as all "
        "tokens. The attention that is left is divided by its sum, which the model "
        "never saw in training."
    )
    yardsticks = {
        "random": random.value,
        "smallest": smallest.value,
        "attention": attention.value,
        "never_flips": failing.value,
    }
    control = evidence.control_mean(name)
    if control is not None and beyond is not None and control.n:
        yardsticks["control"] = control.value
        sentence += f" The control goes {said_as(control)} of the way, {_how_much_less(beyond)}."
    return as_finding("erasure", group, answer, sentence, way, yardsticks)


def removal(evidence: Evidence, group: str) -> Finding | None:
    """Without the tokens of most attention, beyond what random ones cost."""
    family = "comprehensiveness"
    names = [f"{family}@{ranking}" for ranking in ("attention", "mean_attention")]
    known = [name for name in names if evidence.mean(name).n]
    if not known or not evidence.mean(f"{family}@random").n:
        return None
    beyond = evidence.beyond(known[0], f"{family}@random")
    less = evidence.less_control(known[0], f"{family}@random")
    answer = _unless_control_does(grade(beyond, RULES["removal"]), less)
    attention, random = evidence.mean(known[0]), evidence.mean(f"{family}@random")
    words = evidence.words
    sentence = (
        f"{start('removal', group, answer, beyond)} Without the tokens of most "
        f"attention {words.said} loses {said_as(attention)} {words.amount}{words.aside}, "
        f"without random ones {said_as(random)}. The difference is {said_as(beyond)} "
        f"({thresholds('removal')}). Texts with tokens erased are unlike those of the "
        "training."
    )
    yardsticks = {"random": random.value}
    if less is not None and less.n:
        yardsticks["control"] = beyond.value - less.value
        sentence += (
            f" The control's difference is {beyond.value - less.value:.2f}, "
            f"{_how_much_less(less)}."
        )
    return as_finding("removal", group, answer, sentence, beyond, yardsticks)


def _unless_control_does(answer: Answer, beyond: Estimate | None) -> Answer:
    """What a control does as well says nothing about what the model learned."""
    if answer == Answer.NO or beyond is None or beyond.ci95 is None:
        return answer
    return answer if beyond.ci95[0] > 0 else Answer.CANNOT_SAY


def _how_much_less(beyond: Estimate) -> str:
    """How far a control falls behind, in words with its interval."""
    if beyond.ci95 is None or beyond.ci95[0] > 0:
        return f"which is {said_as(beyond)} less"
    if beyond.ci95[1] < 0:
        low, high = beyond.ci95
        more = Estimate(-beyond.value, (-high, -low), beyond.n)
        return f"which is {said_as(more)} more, without having learned anything"
    return f"which is not shown to be less (difference {said_as(beyond)})"
