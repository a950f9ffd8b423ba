"""What retrainings say together, in words and as one curve. Pure: statistics and scores in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hf_attnprobe.statistics.scores import Score
from hf_attnprobe.statistics.summary import Statistic, find, key_of


NEEDED = 0.02  # F1 that attention must be worth
FAR = 0.4  # JSD from which an adversary looks elsewhere, as in the paper's Table 4

Statistics = Sequence[Statistic]
Scores = Mapping[str, Sequence[Score]]  # by test


def verdict(statistics: Statistics, scores: Scores) -> list[str]:
    """What the tests say, one sentence each; the thresholds are in the sentences."""
    sentences = (
        _need(scores),
        _chance(statistics, scores),
        _elsewhere(statistics, scores),
        _transfer(scores),
    )
    return [sentence for sentence in sentences if sentence]


def score_of(scores: Scores, test: str, model: str, metric: str = "f1") -> Score | None:
    """The named score, or None where it was not taken."""
    return next(
        (s for s in scores.get(test, ()) if (s.model, s.metric) == (model, metric)),
        None,
    )


def _need(scores: Scores) -> str | None:
    base, uniform = (
        score_of(scores, "uniform", model) for model in ("base", "uniform")
    )
    if uniform is None:
        return None
    low, high = uniform.difference_ci95
    found = f"F1 {base.value:.3f} with it, {uniform.value:.3f} without, difference {uniform.difference:.3f} [{low:.3f}, {high:.3f}]"
    if high < NEEDED:
        said = f"attention is not needed here, it is worth less than {NEEDED} of F1"
    elif low >= NEEDED:
        said = f"attention is needed here, it is worth {NEEDED} of F1 or more"
    else:
        said = f"these texts do not tell whether attention is worth {NEEDED} of F1"
    return f"Need: {said} ({found})."


def _chance(statistics: Statistics, scores: Scores) -> str | None:
    jsd, tvd = (find(statistics, name) for name in ("seed_jsd", "seed_tvd"))
    if jsd is None:
        return None
    f1 = [score.value for score in scores.get("seeds", ()) if score.metric == "f1"]
    spread = (
        f"; F1 runs from {min(f1):.3f} to {max(f1):.3f} over {len(f1)} seeds"
        if f1
        else ""
    )
    return (
        f"Chance: another seed moves attention by a JSD of {jsd.mean:.2f} (of at most .69) and the output by {tvd.mean:.2f}; "
        f"what is no farther is no counter-example{spread}, which no interval over texts shows."
    )


def _elsewhere(statistics: Statistics, scores: Scores) -> str | None:
    """The farthest adversary among those that classify as well as the base."""
    base, points = (
        score_of(scores, "adversary", "base"),
        adversaries(statistics, scores),
    )
    if base is None or not points:
        return None
    good = [p for p in points if p.f1 is not None and p.f1 >= base.value - NEEDED]
    if not good:
        return f"Elsewhere: no adversary keeps F1 within {NEEDED} of the base's {base.value:.3f}."
    best = max(good, key=lambda p: p.jsd)
    can = "can" if best.jsd >= FAR else "could not"
    return (
        f"Elsewhere: a model {can} be trained to classify as well (F1 within {NEEDED}) and attend elsewhere (JSD from {FAR}): the "
        f"farthest has JSD {best.jsd:.2f}, TVD {best.tvd:.3f} and F1 {best.f1:.3f} against {base.value:.3f} ({best.name})."
    )


def _transfer(scores: Scores) -> str | None:
    """The base's weights against those that the context-free model finds itself, paired."""
    found = {
        name: score_of(scores, "diagnostic_mlp", f"{name} guide")
        for name in ("trained", "base")
    }
    if not all(found.values()):
        return None
    low, high = found["base"].difference_ci95
    how = (
        "better with"
        if high < 0
        else "worse with"
        if low > 0
        else "no differently, as far as these texts tell, with"
    )
    others = {
        name: score_of(scores, "diagnostic_mlp", f"{name} guide")
        for name in ("uniform", "adversary")
    }
    listed = "".join(
        f"; {name} guide {score.value:.3f}"
        for name, score in others.items()
        if score is not None
    )
    return (
        f"Transfer: a model without context classifies {how} the base's weights than with attention of its own (F1 "
        f"{found['base'].value:.3f} against {found['trained'].value:.3f}, difference {found['base'].difference:.3f} "
        f"[{low:.3f}, {high:.3f}]{listed})."
    )


@dataclass(frozen=True)
class Point:
    """One way to move attention, on average over the texts; ``tvd`` is a number, or "≤ ε"."""

    name: str
    jsd: float
    tvd: float | str
    f1: float | None = None


def adversaries(statistics: Statistics, scores: Scores) -> list[Point]:
    """The curve of the adversaries, by λ."""
    points = []
    for k, jsd, tvd in _pairs(statistics, "adversary_jsd", "adversary_tvd"):
        f1 = score_of(scores, "adversary", f"adversary {k:g}")
        points.append(Point(f"adversary λ {k:g}", jsd, tvd, f1 and f1.value))
    return points


def curve(statistics: Statistics, scores: Scores) -> list[Point]:
    """The adversaries, and beside them in the same units what else moves attention."""
    points = adversaries(statistics, scores)
    for name, test, jsd, tvd in (
        ("another seed", "seeds", "seed_jsd", "seed_tvd"),
        (
            "trained with uniform attention",
            "uniform",
            "uniform_model_jsd",
            "uniform_model_tvd",
        ),
    ):
        found = find(statistics, jsd), find(statistics, tvd)
        if all(found):
            points.append(
                Point(name, found[0].mean, found[1].mean, _mean_f1(scores, test))
            )
    points += [
        Point(f"search within {k:g}", jsd, tvd)
        for k, jsd, tvd in _pairs(statistics, "search_jsd", "search_tvd")
    ]
    frontier = [
        s
        for s in statistics
        if s.group == "all" and s.statistic.startswith("frontier_jsd@")
    ]
    points += [
        Point(
            f"exactly, within {key_of(s.statistic):g}",
            s.mean,
            f"≤ {key_of(s.statistic):g}",
        )
        for s in frontier
    ]
    bound = find(statistics, "largest_jsd")
    return points + (
        [Point("no weights at all are farther", bound.mean, "–")] if bound else []
    )


def _pairs(statistics: Statistics, first: str, second: str):
    """(key, mean of first, mean of second) for every key that both have."""
    means = {s.statistic: s.mean for s in statistics if s.group == "all"}
    keys = [name.split("@")[1] for name in means if name.startswith(f"{first}@")]
    return [(float(k), means[f"{first}@{k}"], means[f"{second}@{k}"]) for k in keys]


def _mean_f1(scores: Scores, test: str) -> float:
    values = [s.value for s in scores[test] if s.metric == "f1" and s.model != "base"]
    return sum(values) / len(values)
