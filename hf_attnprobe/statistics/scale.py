"""Faithfulness on one scale: 0 is a random order of the tokens, 1 the best one. Pure.

Every part is asked within the model, on the same texts, and is a function of means over texts:

importance  the mean Gini correlation of the ranking with leaving out;
erasure     (random − own) / (random − best) of the mean fractions of weights erased until nine
            tenths of the lead are gone, times the share of texts in which some order gets
            there: a text in which none does is 0 of the way;
removal     (own − random) / (best − random) of the mean losses without a ranking's first tokens;
mass        (own − chance) / (1 − chance) of the mean overlaps with what matters.

Of language models that answer from a passage, in nats and over its units:

order       the mean Gini correlation of the ranking with what deleting each unit costs;
drop        (own − random) / (best − random) of what the answer loses without a ranking's first
            units;
source      how often the first unit is the one that the answer rests on, from the largest share
            that chance, the longest, the first, the last unit or the commonest place reaches,
            to 1.

Faithfulness is the mean of the parts that were asked of ten texts or more, two at least. All
parts are smooth functions of means, so one jackknife of the texts gives it an interval (Miller
1974). Below 0 is worse than random.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hf_attnprobe.statistics.estimates import (
    MIN_SHOWN,
    Estimate,
    function_estimate,
    mean_estimate,
    pseudo_values,
    share_interval,
)
from hf_attnprobe.statistics.rows import Texts


MIN_PARTS = 2
NOTHING = Estimate(float("nan"), None, 0)
ROOM = 1e-9
"""Between a random order and the best one; with less there is no scale."""

OfMeans = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Part:
    """A part of faithfulness.

    Attributes:
        key: its name.
        columns: the statistics it is made of, with a place for the ranking.
        of_means: from the means of these over the texts that have all, [..., columns], to the
            place on the scale, [...].
        reached: a statistic by whose mean the place is multiplied: 1 in texts in which some
            order has an effect, else 0; empty where there is none.
        is_share: whether the first column is a share of texts, whose exact interval is the
            least that the place can have.
    """

    key: str
    columns: Sequence[str]
    of_means: OfMeans
    reached: str = ""
    is_share: bool = False

    def names(self, ranking: str) -> list[str]:
        """Returns the statistics of a ranking."""
        return [column.format(ranking) for column in self.columns]


def way(start: np.ndarray, own: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Returns where a number lies between a start, 0, and an end, 1; NaN without a way."""
    room = np.abs(end - start)
    return (own - start) / np.where(room > ROOM, end - start, np.nan)


def _importance(means: np.ndarray) -> np.ndarray:
    return means[..., 0]


def _between(means: np.ndarray) -> np.ndarray:
    random, own, best = np.moveaxis(means, -1, 0)
    return way(random, own, best)


def _beyond(means: np.ndarray) -> np.ndarray:
    """Returns where the first mean lies between the largest of the others, 0, and 1."""
    own, without_attention = means[..., 0], means[..., 1:].max(-1)
    return way(without_attention, own, np.ones_like(own))


LOSING_LEAD = "fraction_to_lose_lead@"
IMPORTANCE = Part("importance", ("importance@{}",), _importance)
ERASURE = Part(
    "erasure",
    (f"{LOSING_LEAD}random", f"{LOSING_LEAD}{{}}", f"{LOSING_LEAD}best"),
    _between,
    reached="lead_is_lost",
)
REMOVAL = Part("removal", ("removal@random", "removal@{}", "removal@best"), _between)
MASS = Part("mass", ("mass@{}", "mass_by_chance@{}"), _beyond)
PARTS = (IMPORTANCE, ERASURE, REMOVAL, MASS)
"""Of classifiers, in the order in which they are reported."""


COMMONEST = "source_found@place"
WITHOUT_ATTENTION = {
    "chance": "source_found@chance",
    "longest": "source_found@length",
    "first": "source_found@first",
    "last": "source_found@last",
    "commonest place": COMMONEST,
}
"""Ways to name a unit of a passage that need no attention, each with how often it is the source."""
ORDER = Part("order", ("source_agreement@{}",), _importance)
DROP = Part("drop", ("drop@random", "drop@{}", "drop@best"), _between)
FOUND = ("source_found@{}", *WITHOUT_ATTENTION.values())
SOURCE = Part("source", FOUND, _beyond, is_share=True)
PARTS_OF_ANSWERS = (ORDER, DROP, SOURCE)
"""Of language models that answer from a passage."""


def with_commonest_place(texts: Texts) -> Texts:
    """Returns texts that also say whether their source is where that of the others mostly is.

    Of equally common places it is drawn: the value is 1 divided by their number. The text itself
    does not count, so that few texts do not find a place by chance.
    """
    if "source_place" not in texts:
        return texts
    place = texts.values("source_place")
    found = np.full(len(place), np.nan)
    is_known = ~np.isnan(place)
    _, number, count = np.unique(place[is_known], return_inverse=True, return_counts=True)
    is_own = number[:, None] == np.arange(len(count))
    others = count - is_own
    is_most = others == others.max(1, initial=0, keepdims=True)
    found[is_known] = (is_most & is_own).sum(1) / is_most.sum(1)
    names = (*texts.names, COMMONEST)
    return replace(
        texts,
        names=names,
        read=lambda name: found if name == COMMONEST else texts.read(name),
    )


@dataclass(frozen=True)
class Faithfulness:
    """A ranking's place between a random order and the best one.

    Attributes:
        score: the mean of the parts; n is 0 with fewer than two of them.
        parts: each by its key, those that were asked.
    """

    score: Estimate
    parts: dict[str, Estimate]


@dataclass(frozen=True)
class _Columns:
    """The values of a part by text, ready for means over all texts.

    ``values`` [texts, columns] are 0 where ``is_there`` [texts] says that the text does not
    count; ``reached`` [texts] is 1 where there is no such statistic, and counts in the texts
    of ``is_asked`` [texts].
    """

    part: Part
    values: np.ndarray
    is_there: np.ndarray
    reached: np.ndarray
    is_asked: np.ndarray

    @property
    def n(self) -> int:
        """Returns the number of texts that the part was asked of."""
        return int(self.is_asked.sum())

    @property
    def stacked(self) -> np.ndarray:
        """Returns the columns whose means :meth:`place` takes, [texts, columns + 3]."""
        flags = np.stack([self.is_there, self.reached, self.is_asked], axis=1)
        return np.concatenate([flags, self.values], axis=1)

    def place(self, means: np.ndarray) -> np.ndarray:
        """Returns the place on the scale from the means of :attr:`stacked`, [..., columns + 3]."""
        n_there, n_reached, n_asked = np.moveaxis(means[..., :3], -1, 0)
        there = np.where(n_there > 0, n_there, np.nan)
        asked = np.where(n_asked > 0, n_asked, np.nan)
        of_there = means[..., 3:] / there[..., None]
        share = n_reached / asked
        placed = self.part.of_means(of_there) * share
        is_reached = n_reached > 0
        return np.where(is_reached, placed, share)  # 0, or NaN of no text

    @property
    def exact(self) -> np.ndarray:
        """Returns how far below and above the place the exact interval of its share ends, [2].

        0 of a part that is no share.
        """
        if not self.part.is_share:
            return np.zeros(2)
        means = self.stacked.mean(0)
        n = self.is_there.sum()
        hits = self.values[self.is_there, 0].sum()
        ends = np.stack([means, means, means])
        shares = share_interval(hits, n)
        ends[1:, 3] = shares * n / len(self.values)
        value, low, high = self.place(ends)
        return np.array([value - low, high - value])


def _columns_of(part: Part, texts: Texts, ranking: str) -> _Columns | None:
    """Returns the columns of a part; None where no text has it."""
    names = part.names(ranking)
    values = np.stack([texts.values(name) for name in names], axis=1)
    is_there = ~np.isnan(values).any(1)
    reached, is_asked = is_there.astype(float), is_there
    if part.reached:
        reached = texts.values(part.reached)
        is_asked = ~np.isnan(reached)

    is_measured = is_there.any() or is_asked.any()
    if not is_measured or not set(names) <= set(texts.names):
        return None
    kept = np.where(is_there[:, None], values, 0.0)
    shares = np.where(is_asked, reached, 0.0)
    return _Columns(part, kept, is_there, shares, is_asked)


def placed(texts: Texts, ranking: str = "attention", parts: Sequence[Part] = PARTS) -> Faithfulness:
    """Returns faithfulness of a ranking, with its parts.

    Args:
        texts: what was measured at one site.
        ranking: a key of the statistics, such as "attention" or "input_gradient".
        parts: of the kind of model.
    """
    asked = _counted(texts, ranking, parts)
    by_part = {columns.part.key: _estimate([columns]) for columns in asked}
    enough = len(asked) >= MIN_PARTS
    return Faithfulness(_estimate(asked) if enough else NOTHING, by_part)


def part_of(texts: Texts, part: Part, ranking: str = "attention") -> Estimate:
    """Returns a ranking's place by one part; n is 0 where it was not asked, or has no scale."""
    columns = _asked(texts, ranking, [part])
    return _estimate(columns) if columns else NOTHING


def contributions(
    texts: Texts,
    ranking: str = "attention",
    parts: Sequence[Part] = PARTS,
    *,
    at_least: int = MIN_PARTS,
) -> np.ndarray | None:
    """Returns what each text adds to faithfulness, [texts], for paired differences.

    Jackknife pseudo-values; None where fewer than ``at_least`` parts were asked.
    """
    asked = _counted(texts, ranking, parts)
    if len(asked) < at_least:
        return None
    return pseudo_values(*_mean_of_places(asked))[1]


def _asked(texts: Texts, ranking: str, parts: Sequence[Part]) -> list[_Columns]:
    """Returns the parts that the texts have, and that have a scale."""
    found = [_columns_of(part, texts, ranking) for part in parts]
    return [c for c in found if c is not None and np.isfinite(_estimate([c]).value)]


def _counted(texts: Texts, ranking: str, parts: Sequence[Part]) -> list[_Columns]:
    """Returns the parts that make the mean: not those of few texts beside others of many."""
    asked = _asked(texts, ranking, parts)
    enough = [c for c in asked if c.n >= MIN_SHOWN]
    return enough if len(enough) >= MIN_PARTS else asked


def _estimate(asked: Sequence[_Columns]) -> Estimate:
    """Returns the mean of some parts' places with its interval, at most 1.

    It is no narrower than the exact intervals of shares among the parts make it.
    """
    columns, of_means = _mean_of_places(asked)
    is_asked = np.any([c.is_asked for c in asked], axis=0)
    n = int(is_asked.sum())
    found = replace(function_estimate(columns, of_means), n=n)
    if found.ci95 is None:
        return found
    low, high = found.ci95
    exact = np.mean([c.exact for c in asked], axis=0)
    below, above = exact.tolist()
    low = min(low, found.value - below)
    high = max(high, found.value + above)
    return replace(found, ci95=(low, min(high, 1.0)))


def _mean_of_places(
    asked: Sequence[_Columns],
) -> tuple[list[np.ndarray], OfMeans]:
    """Returns the columns of some parts, and the mean of their places as a function of means."""
    stacked = [columns.stacked for columns in asked]
    widths = [columns.shape[1] for columns in stacked]
    ends = np.cumsum(widths)[:-1]

    def of_means(means: np.ndarray) -> np.ndarray:
        split = np.split(means, ends, axis=-1)
        places = [c.place(own) for c, own in zip(asked, split, strict=True)]
        return np.mean(places, axis=0)

    every = np.concatenate(stacked, axis=1)
    return list(every.T), of_means


# --- a class that is said by default ------------------------------------------------------------

NOTHING_TO_SHOW = 0.1
"""Of probability at the standard temperature: a class in whose texts the token that matters
most surely costs less has nothing to highlight."""
LARGEST_LOSS = "largest_loss"


def said_by_default(
    texts: Texts,
    classes: Mapping[str, np.ndarray],
    parts: Sequence[Part] = PARTS,
) -> list[str]:
    """Returns the classes that are said unless something speaks for another one.

    In their texts no token matters, and faithfulness surely is below that of the others (or
    is not defined, for want of anything that matters).

    Args:
        texts: what was measured at one site.
        classes: the texts of each predicted class by its name, bool [texts].
    """
    found = []
    for name, members in classes.items():
        if members.sum() < MIN_CLASS or members.all():
            continue
        within = texts.where(members)
        lost = mean_estimate(within.values(LARGEST_LOSS))
        is_nothing = lost.ci95 is not None and lost.ci95[1] < NOTHING_TO_SHOW
        if is_nothing:
            own = placed(within, parts=parts).score.ci95
            rest = texts.where(~members)
            others = placed(rest, parts=parts).score.ci95
            if others is not None and (own is None or own[1] < others[0]):
                found.append(name)
    return found if len(found) < len(classes) else []


MIN_CLASS = 10
"""Texts of a class of which this may be said."""
