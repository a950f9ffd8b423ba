"""Two maps of single heads, faithfulness and effect, layers down and heads across. Pure.

Whoever reads a map looks for its largest number, so its intervals hold for all heads at
once; see :mod:`hf_attnprobe.statistics.heads`.
"""

from collections.abc import Mapping, Sequence

from hf_attnprobe import markdown
from hf_attnprobe.audit_reports.heads import head_name, is_surely
from hf_attnprobe.charts.chart import HeatMap
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import Rule
from hf_attnprobe.statistics.heads import EFFECT, Judged, Place


FAITHFULNESS_MAP, EFFECT_MAP = "heads_faithfulness", f"heads_{EFFECT}"


def head_maps(
    judged: Sequence[Judged], rules: Mapping[str, Rule]
) -> tuple[HeatMap, ...]:
    """Returns a map of faithfulness and one of the effect, each where two heads have it.

    Args:
        judged: heads and groups of an audit.
        rules: of effect and faithfulness.
    """
    heads = [each for each in judged if each.is_head]
    effect = {each.place: each.effect for each in heads if each.effect.n}
    faithful = {
        each.place: each.faithfulness for each in heads if each.faithfulness.n
    }
    maps = []
    if len(faithful) > 1:
        maps.append(
            _map(
                FAITHFULNESS_MAP,
                "Faithfulness of single heads",
                faithful,
                rules["faithfulness"],
                "A head that moves nothing explains nothing, however faithful.",
                centre=0.0,
            )
        )
    if len(effect) > 1:
        aside = "Single heads may move little because others make up for them."
        title = "Effect of shuffling one head's attention"
        maps.append(_map(EFFECT_MAP, title, effect, rules["effect"], aside))
    return tuple(maps)


def _map(
    key: str,
    title: str,
    found: Mapping[Place, Estimate],
    rule: Rule,
    aside: str,
    centre: float | None = None,
) -> HeatMap:
    """Returns the map of one number; heads without it are empty cells."""
    layers, numbers = (
        range(1 + max(sides)) for sides in zip(*found, strict=True)
    )
    nothing = float("nan")

    def grid(value_of: Mapping[Place, float]) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(value_of.get((k, h), nothing) for h in numbers)
            for k in layers
        )

    values = {place: estimate.value for place, estimate in found.items()}
    ends = {place: e.ci95 for place, e in found.items() if e.ci95 is not None}
    low = {place: interval[0] for place, interval in ends.items()}
    high = {place: interval[1] for place, interval in ends.items()}
    return HeatMap(
        key=key,
        title=title,
        finding=f"{_finding(found, rule)} {aside}",
        source="",
        values=grid(values),
        low=grid(low) if ends else (),
        high=grid(high) if ends else (),
        value_label=rule.scale_of,
        layers=tuple(layers),
        heads=tuple(numbers),
        centre=centre,
        threshold=rule.partly,
    )


def _finding(found: Mapping[Place, Estimate], rule: Rule) -> str:
    """Returns how many heads surely reach the lowest threshold, and which is foremost."""
    most = max(found, key=lambda place: found[place].value)
    number = markdown.interval(found[most].value, found[most].ci95, digits=2)
    foremost = (
        f"the foremost is {head_name(most)} (layer.head, from 0) with {number}"
    )
    if all(estimate.ci95 is None for estimate in found.values()):
        return f"Too few texts for intervals, so nothing is sure; {foremost}."
    n_sure = sum(is_surely(estimate, rule) for estimate in found.values())
    return (
        f"Surely at {rule.partly:.2f} or more: {n_sure} of {len(found)} heads (95% intervals that "
        f"hold for all heads at once); {foremost}."
    )
