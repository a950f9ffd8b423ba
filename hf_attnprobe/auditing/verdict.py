"""What the tests say together about one head. Pure: statistics in, sentences out.

Every threshold stands in the sentence that it decides.
"""

from collections.abc import Sequence
from functools import partial

from hf_attnprobe.statistics.summary import Statistic, find_statistic


AGREES_WELL, AGREES_PARTLY = 0.6, 0.3  # τ
MATTERS = 0.1  # total variation of the output
ELSEWHERE = 0.4  # JSD, of at most ln 2 ≈ .69
NEAR_BEST, ON_THE_WAY = 0.75, 0.25  # of the way from chance to the smallest set


def verdict(statistics: Sequence[Statistic]) -> list[str]:
    """What the tests say about one head, one sentence per test."""
    if not statistics:
        return []
    first = statistics[0]
    find = partial(find_statistic, statistics, layer=first.layer, head=first.head)
    sentences = (
        _importance(
            find("attention_leave_one_out_tau"), find("gradient_leave_one_out_tau")
        ),
        _assignment(find("median_tvd")),
        _uniqueness(find("epsilon_max_jsd@0.05"), find("largest_jsd")),
        _erasure(
            find("fraction_to_flip@attention"),
            find("fraction_to_flip@random"),
            find("minimal_fraction"),
            find("never_flips@attention"),
        ),
        zero_ablation_only(statistics),
    )
    return [sentence for sentence in sentences if sentence]


def _importance(tau: Statistic | None, baseline: Statistic | None) -> str | None:
    """Attention against leave-one-out; gradients are the baseline."""
    if tau is None or baseline is None:
        return None
    strength = "hardly agrees"
    if tau.mean >= AGREES_PARTLY:
        strength = "agrees partly"
    if tau.mean >= AGREES_WELL:
        strength = "agrees well"
    return (
        f"Importance: attention {strength} with leaving tokens out (τ {tau.mean:.2f}; "
        "from .60 well, from .30 partly), gradients agree with it at "
        f"{baseline.mean:.2f}."
    )


def _assignment(shuffled: Statistic | None) -> str | None:
    if shuffled is None:
        return None
    matters = "matters" if shuffled.mean >= MATTERS else "hardly matters"
    return (
        f"Assignment: which token gets which weight {matters}: shuffling moves the "
        f"output by {shuffled.mean:.2f} of 1 (from .10 it matters)."
    )


def _uniqueness(moved: Statistic | None, bound: Statistic | None) -> str | None:
    """How far other attention with the same output is.

    That none is far says nothing where no attention at all is, as over texts of one
    token.
    """
    if moved is None:
        return None
    if bound is not None and bound.mean < ELSEWHERE:
        return (
            "Uniqueness: these texts cannot tell: no attention at all is farther from "
            f"this one than {bound.mean:.2f} (of at most .69; from .40 not the only "
            f"one), others as far as {moved.mean:.2f} give the same output within .05."
        )
    unique = "is fairly well pinned down"
    if moved.mean >= ELSEWHERE:
        unique = "is not the only one"
    return (
        f"Uniqueness: this attention {unique}: others as far as {moved.mean:.2f} (of "
        "at most .69; from .40 not the only one) give the same output within .05."
    )


def _erasure(
    attention: Statistic | None,
    random: Statistic | None,
    best: Statistic | None,
    never: Statistic | None,
) -> str | None:
    """How far attention is on the way from a random order to the smallest set.

    Compared are the medians over the texts that flip.
    """
    if attention is None or random is None:
        return None
    aside = f" ({never.mean:.0%} of texts never flip)" if never else ""
    needs = (
        "in the median text that flips, attention's order needs "
        f"{attention.median:.2f} of the weights erased{aside}, a random one "
        f"{random.median:.2f}"
    )
    if best is None or random.median <= best.median:
        better = "better" if attention.median < random.median else "no better"
        return f"Erasure: attention ranks the weights {better} than chance: {needs}."
    gained = random.median - attention.median
    way = round(gained / (random.median - best.median), 2)
    quality = "hardly"
    if way >= ON_THE_WAY:
        quality = "partly"
    if way >= NEAR_BEST:
        quality = "well"
    return (
        f"Erasure: attention ranks the weights {quality} by what the decision rests "
        f"on: {needs}, the smallest set {best.median:.2f}, so attention goes {way:.0%} "
        "of the way from chance to the best (from 75% well, from 25% partly)."
    )


def zero_ablation_only(statistics: Sequence[Statistic]) -> str | None:
    """A note for models whose heads support zero ablation only."""
    names = {s.statistic for s in statistics}
    if "zero_tvd" not in names or "mean_tvd" in names:
        return None
    return (
        "Ablation: heads could only be zero-ablated, not replaced: of this kind of "
        "model the output of a single head cannot be set to its mean or to that of "
        "another text, so the effects of zero ablation may exceed what the heads "
        "carry."
    )
