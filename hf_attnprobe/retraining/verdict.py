"""What retrainings say together, in words and as one curve.

Pure: statistics and scores in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

from hf_attnprobe import published_results as published
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.summary import Statistic, find_statistic


NEEDED = 0.02  # F1 that attention must be worth
FAR = 0.4  # JSD from which an adversary looks elsewhere, as in the paper's Table 4
FRONTIER_NOTE = (
    "The exact frontier is the farthest attention of each text that moves the output "
    "by at most ε, with the base's encoder. A trained adversary has an encoder of its "
    "own, so that is a baseline, not a bound; that no weights at all can be farther "
    "than the last of our lines says is checked for every text."
)

Statistics = Sequence[Statistic]
Scores = Mapping[str, Sequence[Score]]  # by test


@dataclass(frozen=True)
class Verdict:
    """What each test says in one sentence; None for a test that was not run.

    Attributes:
        need: whether attention is needed, by ``uniform``.
        chance: how far another seed moves attention, by ``seeds``.
        elsewhere: whether a model can attend elsewhere, by ``adversary``.
        transfer: whether the weights tell another model something, by
            ``diagnostic_mlp``.
    """

    need: str | None = None
    chance: str | None = None
    elsewhere: str | None = None
    transfer: str | None = None

    def sentences(self) -> list[str]:
        """Those there are, in the order of the tests."""
        return [sentence for sentence in astuple(self) if sentence]


def verdict(statistics: Statistics, scores: Scores) -> Verdict:
    """What the tests say; the thresholds are in the sentences."""
    return Verdict(
        need=_need(scores.get("uniform", ())),
        chance=_chance(statistics, scores.get("seeds", ())),
        elsewhere=_elsewhere(statistics, scores),
        transfer=_transfer(scores.get("diagnostic_mlp", ())),
    )


def _need(scores: Sequence[Score]) -> str | None:
    base, uniform = find_score(scores, "base"), find_score(scores, "uniform")
    if base is None or uniform is None:
        return None
    low, high = uniform.difference_ci95
    worth = f"these texts do not tell whether attention is worth {NEEDED} of F1"
    if high < NEEDED:
        worth = f"attention is not needed here, it is worth less than {NEEDED} of F1"
    elif low >= NEEDED:
        worth = f"attention is needed here, it is worth {NEEDED} of F1 or more"
    return (
        f"Need: {worth} (F1 {base.value:.3f} with it, {uniform.value:.3f} without, "
        f"difference {uniform.difference:.3f} [{low:.3f}, {high:.3f}])."
    )


def _chance(statistics: Statistics, scores: Sequence[Score]) -> str | None:
    jsd = find_statistic(statistics, "seed_jsd")
    tvd = find_statistic(statistics, "seed_tvd")
    if jsd is None or tvd is None:
        return None
    f1 = [score.value for score in scores if score.metric == "f1"]
    spread = ""
    if f1:
        spread = f"; F1 runs from {min(f1):.3f} to {max(f1):.3f} over {len(f1)} seeds"
    return (
        f"Chance: another seed moves attention by a JSD of {jsd.mean:.2f} (of at most "
        f".69) and the output by {tvd.mean:.2f}; what is no farther is no "
        f"counter-example{spread}, which no interval over texts shows."
    )


def _elsewhere(statistics: Statistics, scores: Scores) -> str | None:
    """The farthest adversary among those that classify as well as the base."""
    base = find_score(scores.get("adversary", ()), "base")
    points = adversaries(statistics, scores)
    if base is None or not points:
        return None
    good = [p for p in points if p.f1 is not None and p.f1 >= base.value - NEEDED]
    if not good:
        return (
            f"Elsewhere: no adversary keeps F1 within {NEEDED} of the base's "
            f"{base.value:.3f}."
        )
    best = max(good, key=lambda p: p.jsd)
    can = "can" if best.jsd >= FAR else "could not"
    return (
        f"Elsewhere: a model {can} be trained to classify as well (F1 within {NEEDED}) "
        f"and attend elsewhere (JSD from {FAR}): the farthest has JSD {best.jsd:.2f}, "
        f"TVD {best.tvd:.3f} and F1 {best.f1:.3f} against {base.value:.3f} "
        f"({best.name})."
    )


def _transfer(scores: Sequence[Score]) -> str | None:
    """The base's weights against those that the context-free model learns itself."""
    trained = find_score(scores, "trained guide")
    base = find_score(scores, "base guide")
    if trained is None or base is None:
        return None
    low, high = base.difference_ci95
    how = "no differently, as far as these texts tell, with"
    if high < 0:
        how = "better with"
    elif low > 0:
        how = "worse with"
    others = ""
    for name in ("uniform", "adversary"):
        score = find_score(scores, f"{name} guide")
        if score is not None:
            others += f"; {name} guide {score.value:.3f}"
    return (
        f"Transfer: a model without context classifies {how} the base's weights than "
        f"with attention of its own (F1 {base.value:.3f} against {trained.value:.3f}, "
        f"difference {base.difference:.3f} [{low:.3f}, {high:.3f}]{others})."
    )


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
    known = published.ADVERSARY.get(dataset)
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


def _pairs(
    statistics: Statistics, first: str, second: str
) -> Iterator[tuple[float, float, float]]:
    """(key, mean of first, mean of second) for every key of ``first``."""
    means = {s.statistic: s.mean for s in statistics if s.group == "all"}
    for statistic, mean in means.items():
        name, _, key = statistic.partition("@")
        if name == first:
            yield float(key), mean, means[f"{second}@{key}"]
