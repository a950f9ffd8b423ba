"""What the tests say together about one head. Pure: statistics in, sentences out."""

from collections.abc import Sequence

from hf_attnprobe.statistics.summary import Statistic, find


def only_silenced(statistics: Sequence[Statistic]) -> list[str]:
    """Says so where heads could not be ablated by anything but zero."""
    names = {s.statistic for s in statistics}
    if "zero_tvd" not in names or "mean_tvd" in names:
        return []
    return [
        "Ablation: heads could only be silenced, not replaced: of this kind of model the output of a single head cannot "
        "be set to its mean or to that of another text, so the effects of silencing may exceed what the heads carry."
    ]


def verdict(statistics: Sequence[Statistic]) -> list[str]:
    """What the tests say together about one head, one sentence per test; the thresholds are in the sentences."""
    lines, site = [], _site(statistics)
    tau = find(statistics, "attention_leave_one_out_tau", **site)
    yardstick = find(statistics, "gradient_leave_one_out_tau", **site)
    if tau and yardstick:
        strength = (
            "agrees well"
            if tau.mean >= 0.6
            else "agrees partly"
            if tau.mean >= 0.3
            else "hardly agrees"
        )
        lines.append(
            f"Importance: attention {strength} with leaving tokens out (τ {tau.mean:.2f}; from .60 well, from .30 "
            f"partly), gradients agree with it at {yardstick.mean:.2f}."
        )
    shuffled = find(statistics, "median_tvd", **site)
    if shuffled:
        matters = "matters" if shuffled.mean >= 0.1 else "hardly matters"
        lines.append(
            f"Assignment: which token gets which weight {matters}: shuffling moves the output by {shuffled.mean:.2f} of 1 "
            "(from .10 it matters)."
        )
    return (
        lines
        + _uniqueness(statistics)
        + _erasure_verdict(statistics)
        + only_silenced(statistics)
    )


def _uniqueness(statistics: Sequence[Statistic]) -> list[str]:
    """Little room for other attention says nothing where no attention at all could be far, as over texts of one token."""
    moved, bound = (
        find(statistics, s, **_site(statistics))
        for s in ("epsilon_max_jsd@0.05", "largest_jsd")
    )
    if not moved:
        return []
    if bound and bound.mean < 0.4:
        return [
            f"Uniqueness: these texts cannot tell: no attention at all is farther from this one than {bound.mean:.2f} (of at "
            f"most .69; from .40 not the only one), others as far as {moved.mean:.2f} give the same output within .05."
        ]
    unique = (
        "is not the only one" if moved.mean >= 0.4 else "is fairly well pinned down"
    )
    return [
        f"Uniqueness: this attention {unique}: others as far as {moved.mean:.2f} (of at most .69; from .40 not the only "
        "one) give the same output within .05."
    ]


def _site(statistics: Sequence[Statistic]) -> dict[str, int]:
    """Where the one head is."""
    return (
        {"layer": statistics[0].layer, "head": statistics[0].head} if statistics else {}
    )


def _erasure_verdict(statistics: Sequence[Statistic]) -> list[str]:
    """How far attention is on the way from random order to the smallest set, by the medians over texts that flip."""
    names = (
        "fraction_to_flip@attention",
        "fraction_to_flip@random",
        "minimal_fraction",
        "never_flips@attention",
    )
    attention, random, best, never = (
        find(statistics, name, **_site(statistics)) for name in names
    )
    if not attention or not random:
        return []
    found = (
        f"in the median text that flips, attention's order needs {attention.median:.2f} of the weights erased"
        f"{f' ({never.mean:.0%} of texts never flip)' if never else ''}, a random one {random.median:.2f}"
    )
    if not best or random.median <= best.median:
        better = attention.median < random.median
        return [
            f"Erasure: attention ranks the weights {'better' if better else 'no better'} than chance: {found}."
        ]
    way = round((random.median - attention.median) / (random.median - best.median), 2)
    quality = "well" if way >= 0.75 else "partly" if way >= 0.25 else "hardly"
    return [
        f"Erasure: attention ranks the weights {quality} by what the decision rests on: {found}, the smallest set "
        f"{best.median:.2f}, so attention goes {way:.0%} of the way from chance to the best (from 75% well, from 25% partly)."
    ]
