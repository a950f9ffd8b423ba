"""Single heads and groups of heads, judged as all attention is: by effect and faithfulness. Pure.

Whoever reads many heads looks for the foremost, so the intervals of single heads hold for all
heads at once, by each of the two numbers; those of groups hold for each group by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import (
    Estimate,
    mean_estimate,
    simultaneous_interval,
)
from hf_attnprobe.statistics.grades import (
    GRADES,
    MIN_TEXTS,
    Answer,
    Rule,
    possible_answers,
)
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.scale import PARTS, Part, contributions, placed
from hf_attnprobe.statistics.summary import at_site


Place = tuple[int, int]
"""Layer and head, see :class:`~hf_attnprobe.protocol.Site`."""
ALL = -1  # as a head: all of its layer; as a layer: all of them
SET = -2  # as a layer: a set of heads, by its number
EVERYWHERE: Place = (ALL, ALL)
Interval = tuple[float, float]

EFFECT = "standard_tvd"
WORST = "largest_standard_tvd"


@dataclass(frozen=True)
class Judged:
    """A head, or a group of heads, by the two numbers of the verdict.

    Attributes:
        place: layer and head; negative numbers make a group.
        effect: how far the median shuffle of its weights moves the output, at the standard
            temperature; n is 0 where it was not measured.
        worst: the same of the worst shuffle.
        faithfulness: its order's place between a random one and the best; n is 0 where fewer
            than two parts were measured.
        parts: of faithfulness, each by its key, with an interval of its own.
        possible: the verdicts that the intervals leave open, the lowest first.
    """

    place: Place
    effect: Estimate
    worst: Estimate
    faithfulness: Estimate
    parts: Mapping[str, Estimate]
    possible: tuple[Answer, ...] = GRADES

    @property
    def is_head(self) -> bool:
        """Returns whether it is a single head."""
        return min(self.place) >= 0

    @property
    def n(self) -> int:
        """Returns the texts of the number that has more of them."""
        return max(self.effect.n or 0, self.faithfulness.n or 0)

    @property
    def is_named(self) -> bool:
        """Returns whether it surely has an effect, and is surely faithful at least in part."""
        return Answer.NO not in self.possible

    @property
    def answer(self) -> str:
        """Returns the verdict, as in "yes", "partly or yes", "cannot say"."""
        if len(self.possible) > 1 and not self.is_named:
            return str(Answer.CANNOT_SAY)
        return " or ".join(self.possible)


def judged(
    rows: Rows | pd.DataFrame,
    rules: Mapping[str, Rule],
    *,
    parts: Sequence[Part] = PARTS,
    explained: np.ndarray | None = None,
) -> list[Judged]:
    """Judges every head and group of heads of an audit that has one of the two numbers.

    Args:
        rows: of the audit; may be empty.
        rules: of effect and faithfulness, with their thresholds.
        parts: of faithfulness, of the kind of model.
        explained: ids of the texts that faithfulness is of, int [texts]; all by default. In texts
            whose class is said by default there is nothing that a head could point at.
    """
    rows = Rows.of(rows)
    told = rows if explained is None else rows.of_texts(explained)
    found = [_measured(rows, told, place, parts) for place in sorted(rows.sites)]
    known = [each for each in found if each.effect.n or each.parts]

    effects = simultaneous(rows.of_heads(EFFECT))
    added = {}
    for each in known:
        if each.is_head:
            of_texts = _contributions(told, each.place, parts)
            if of_texts is not None:
                added[each.place] = of_texts
    places = simultaneous(pd.DataFrame(added))
    return [_graded(each, effects, places, rules) for each in known]


def _measured(rows: Rows, told: Rows, place: Place, parts: Sequence[Part]) -> Judged:
    """Returns the numbers of one place, each with an interval of its own."""
    texts = at_site(rows, place)
    effect, worst = (mean_estimate(texts.values(name)) for name in (EFFECT, WORST))
    found = placed(at_site(told, place), parts=parts)
    return Judged(place, effect, worst, found.score, found.parts)


def _contributions(rows: Rows, place: Place, parts: Sequence[Part]) -> pd.Series | None:
    """Returns what each text adds to a head's faithfulness; None where that is not defined."""
    texts = at_site(rows, place)
    added = contributions(texts, parts=parts)
    if added is None or not np.isfinite(added).all():
        return None
    return pd.Series(added, index=texts.index)


def _graded(
    own: Judged,
    effects: Mapping[Place, Interval],
    places: Mapping[Place, Interval],
    rules: Mapping[str, Rule],
) -> Judged:
    """Returns a place with its verdicts, a head with its simultaneous intervals."""
    effect, score = own.effect, own.faithfulness
    if own.is_head:
        effect = replace(effect, ci95=effects.get(own.place))
        score = replace(score, ci95=_around(score.value, places.get(own.place)))
        worst = replace(own.worst, ci95=None)
        own = replace(own, effect=effect, worst=worst, faithfulness=score)
    return replace(own, possible=possible_verdicts(effect, score, rules))


def _around(value: float, ends: Interval | None) -> Interval | None:
    """Returns an interval of the jackknife so that it holds the value, and ends at 1 at most."""
    if ends is None:
        return None
    low, high = ends
    return min(low, value), min(max(high, value), 1.0)


def possible_verdicts(
    effect: Estimate, score: Estimate, rules: Mapping[str, Rule]
) -> tuple[Answer, ...]:
    """Returns the verdicts that two numbers leave open: the lower of the two answers.

    A number that was not measured leaves every answer open, as fewer than ``MIN_TEXTS`` texts do.
    """
    moves = possible_answers(effect, effect, rules["effect"])
    shows = possible_answers(score, score, rules["faithfulness"])
    lowest = {min(map(GRADES.index, both)) for both in product(moves, shows)}
    return tuple(GRADES[k] for k in sorted(lowest))


def simultaneous(values: pd.DataFrame) -> dict[Place, Interval]:
    """Returns 95% intervals of the means of heads that hold for all heads at once.

    Heads with a value for fewer than ``MIN_TEXTS`` texts have none.

    Args:
        values: [texts × (layer, head)]; NaN where a text has none.
    """
    enough = values.loc[:, values.notna().sum() >= MIN_TEXTS]
    if enough.empty:
        return {}
    ends = simultaneous_interval(enough.to_numpy(dtype=np.float64)).T.tolist()
    return {
        (int(layer), int(head)): (low, high)
        for (layer, head), (low, high) in zip(enough.columns, ends, strict=True)
    }
