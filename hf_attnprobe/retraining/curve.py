"""How far adversaries and other models attend from the base, as one curve.

Pure: statistics and scores in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.summary import Statistic, find_statistic


FRONTIER_NOTE = (
    "The exact frontier is the farthest attention of each text that moves the output "
    "by at most ε, with the base's encoder. A trained adversary has an encoder of its "
    "own, so that is a baseline, not a bound; that no weights at all can be farther "
    "than the last of our lines says is checked for every text."
)
PUBLISHED_NOTE = (
    "λ and TVD of the published adversary are twice the printed ones: by our reading "
    "of the authors' code, theirs is half of the total variation of the two classes."
)

Statistics = Sequence[Statistic]
Scores = Mapping[str, Sequence[Score]]  # by test


@dataclass(frozen=True)
class Point:
    """One way to move attention, on average over the texts.

    Attributes:
        name: what moved it.
        jsd: Jensen-Shannon divergence from the base's attention.
        tvd: total variation of the output; a text such as ``≤ 0.05`` for a bound.
        f1: of the model, if it is another one.
    """

    name: str
    jsd: float
    tvd: float | str
    f1: float | None = None


def adversaries(statistics: Statistics, scores: Scores) -> list[Point]:
    """The curve of the adversaries, by λ."""
    points = []
    for key, jsd, tvd in _pairs(statistics, "adversary_jsd", "adversary_tvd"):
        f1 = find_score(scores.get("adversary", ()), f"adversary {key:g}")
        value = None if f1 is None else f1.value
        points.append(Point(f"adversary λ {key:g}", jsd, tvd, value))
    return points


def curve(statistics: Statistics, scores: Scores) -> list[Point]:
    """The adversaries, and beside them in the same units what else moves attention."""
    points = adversaries(statistics, scores)
    uniform = "trained with uniform attention"
    points += _of_models("another seed", "seeds", "seed", statistics, scores)
    points += _of_models(uniform, "uniform", "uniform_model", statistics, scores)
    for key, jsd, tvd in _pairs(statistics, "search_jsd", "search_tvd"):
        points.append(Point(f"search within {key:g}", jsd, tvd))
    for key, jsd, _ in _pairs(statistics, "frontier_jsd", "frontier_jsd"):
        points.append(Point(f"exactly, within {key:g}", jsd, f"≤ {key:g}"))
    bound = find_statistic(statistics, "largest_jsd")
    if bound is not None:
        points.append(Point("no weights at all are farther", bound.mean, "–"))
    return points


def published_point(dataset: str) -> list[Point]:
    """The adversary that Wiegreffe & Pinter (2019) report for a data set, if any.

    Args:
        dataset: as the papers call it.
    """
    known = PUBLISHED.adversary.get(dataset)
    if known is None:
        return []
    name = f"published, λ {known['lambda']:g} (in our scale)"
    return [Point(name, known["jsd"], known["tvd"], known["f1"])]


def _of_models(
    name: str, test: str, prefix: str, statistics: Statistics, scores: Scores
) -> list[Point]:
    """Models trained again, with their mean F1."""
    jsd = find_statistic(statistics, f"{prefix}_jsd")
    tvd = find_statistic(statistics, f"{prefix}_tvd")
    if jsd is None or tvd is None:
        return []
    f1 = [s.value for s in scores[test] if s.metric == "f1" and s.model != "base"]
    return [Point(name, jsd.mean, tvd.mean, sum(f1) / len(f1))]


def _pairs(statistics: Statistics, first: str, second: str) -> Iterator[tuple[float, float, float]]:
    """(key, mean of first, mean of second) for every key of ``first``."""
    means = {s.statistic: s.mean for s in statistics if s.group == "all"}
    for statistic, mean in means.items():
        name, _, key = statistic.partition("@")
        if name == first:
            yield float(key), mean, means[f"{second}@{key}"]
