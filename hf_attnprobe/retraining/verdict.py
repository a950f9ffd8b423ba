"""What retrainings say together, in words.

Pure: statistics and scores in. Rules and thresholds are those of
:data:`hf_attnprobe.statistics.verdicts.RULES`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from hf_attnprobe import markdown
from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS, Answer, grade
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.summary import Statistic, find_statistic, key_of
from hf_attnprobe.statistics.verdicts import RULES, Finding


Statistics = Sequence[Statistic]
Scores = Mapping[str, Sequence[Score]]  # by test

CHOSEN = "chosen adversary"
"""The model of the scores that is, per text, the adversary its other half chose."""
CHOICE_NOTE = (
    "λ, how much training rewards attending elsewhere, was chosen on one half of the "
    "texts and reported on the other, crosswise"
)
ONE_TRAINING = (
    "another seed moves F1 too, and how much was not measured (test seeds), so this "
    "says nothing beyond these two models"
)


@dataclass(frozen=True)
class Verdict:
    """What each test says; None for a test that was not run.

    Attributes:
        need: whether attention is needed, by ``uniform`` and ``seeds``.
        chance: how far another seed moves attention, by ``seeds``, in words.
        elsewhere: whether a model can attend elsewhere, by ``adversary`` and ``seeds``.
        transfer: whether the weights tell another model something, by
            ``diagnostic_mlp`` and ``seeds``.
    """

    need: Finding | None = None
    chance: str | None = None
    elsewhere: Finding | None = None
    transfer: Finding | None = None

    def sentences(self) -> list[str]:
        """Those there are, in the order of the tests."""
        return list(filter(None, map(self.sentence, vars(self))))

    def sentence(self, question: str) -> str | None:
        """What is said to one question, with its name and answer; None if nothing is."""
        said = getattr(self, question)
        if isinstance(said, Finding):
            return f"{RULES[said.rule].name}: {said.answer}. {said.sentence}"
        return said and f"Chance: {said}"

    def findings(self) -> list[Finding]:
        """The questions that have an answer."""
        return [said for said in vars(self).values() if isinstance(said, Finding)]


def verdict(
    statistics: Statistics,
    scores: Scores,
    *,
    n: int,
    beyond_seed: Estimate | None = None,
) -> Verdict:
    """What the tests say.

    Args:
        n: test texts.
        beyond_seed: how much farther the chosen adversary attends from the base than
            the farthest other seed, paired by text.
    """
    seeds = _f1_of_seeds(scores)
    return Verdict(
        need=_need(scores.get("uniform", ()), seeds, n),
        chance=_chance(statistics, seeds),
        elsewhere=_elsewhere(statistics, scores, n, beyond_seed),
        transfer=_transfer(scores.get("diagnostic_mlp", ()), seeds, n),
    )


def _f1_of_seeds(scores: Scores) -> list[float]:
    """F1 of the base and of every other seed; empty where none was trained."""
    return [s.value for s in scores.get("seeds", ()) if s.metric == "f1"]


def over_seeds(over_texts: Estimate, f1_of_seeds: Sequence[float], n_averaged: int) -> Estimate:
    """A difference of F1 whose interval covers the texts and another seed.

    The half-width for seeds is Student's t times the standard deviation of one training
    minus a mean of ``n_averaged``; it is added to that for texts as variances add.

    Args:
        over_texts: the difference, with the interval over texts.
        f1_of_seeds: of at least two trainings that differ in their seed.
        n_averaged: trainings in the mean that one more is compared with.
    """
    n_seeds = len(f1_of_seeds)
    spread = np.std(f1_of_seeds, ddof=1) * math.sqrt(1 + 1 / n_averaged)
    half_width = float(stdtrit(n_seeds - 1, 0.975) * spread)
    value = over_texts.value
    low, high = over_texts.ci95 or (value, value)
    low = value - math.hypot(value - low, half_width)
    high = value + math.hypot(high - value, half_width)
    return Estimate(value, (low, high), over_texts.n)


def _need(scores: Sequence[Score], seeds: Sequence[float], n: int) -> Finding | None:
    base, uniform = find_score(scores, "base"), find_score(scores, "uniform")
    if base is None or uniform is None:
        return None
    worth = uniform.lost(n)
    enough = RULES["need"].yes
    if len(seeds) < 2:
        sentence = (
            "The model with attention has F1 "
            f"{base.value:.3f}, one without {uniform.value:.3f}: difference {_shown(worth)} "
            f"over these texts; from {enough} on attention is needed. That is one training "
            f"each: {ONE_TRAINING}."
        )
        return _finding("need", Answer.CANNOT_SAY, sentence, worth)
    low, high = worth.ci95 or (worth.value, worth.value)
    shift = float(np.mean(seeds)) - base.value
    worth = Estimate(worth.value + shift, (low + shift, high + shift), n)
    worth = over_seeds(worth, seeds, len(seeds))
    answer = grade(worth, RULES["need"])
    said = {
        Answer.YES: f"Attention is worth {enough} of F1 or more here",
        Answer.NO: f"Attention is worth less than {enough} of F1 here",
    }
    sentence = (
        f"{said.get(answer, _undecided(n, f'{enough} of F1'))}: "
        f"{_shown(worth)}, the mean of {len(seeds)} trainings with it "
        f"({min(seeds):.3f} to {max(seeds):.3f}) minus one without "
        f"({uniform.value:.3f}); the interval covers the texts and another seed."
    )
    return _finding("need", answer, sentence, worth)


def _chance(statistics: Statistics, seeds: Sequence[float]) -> str | None:
    jsd = find_statistic(statistics, "seed_jsd")
    tvd = find_statistic(statistics, "seed_tvd")
    if jsd is None or tvd is None:
        return None
    spread = ""
    if seeds:
        spread = f"; F1 runs from {min(seeds):.3f} to {max(seeds):.3f} over {len(seeds)} trainings"
    return (
        f"Another seed moves attention by a JSD of {jsd.mean:.2f} (of at most "
        f".69) and the output by {tvd.mean:.2f}; what is no farther is no "
        f"counter-example{spread}, which no interval over texts shows."
        f"{_flatness(statistics, jsd.mean)}"
    )


def _flatness(statistics: Statistics, of_seed: float) -> str:
    """How far the base's attention is from equal weights, beside another seed."""
    uniform = find_statistic(statistics, "uniform_model_jsd")
    if uniform is None:
        return ""
    said = f" Equal weights for all tokens are {uniform.mean:.2f} from the base's"
    if uniform.mean < of_seed:
        return f"{said}, nearer than another seed: its attention is nearly flat."
    return f"{said}, no nearer than another seed."


def _elsewhere(
    statistics: Statistics, scores: Scores, n: int, beyond_seed: Estimate | None
) -> Finding | None:
    """The adversary that each half of the texts chose for the other half."""
    score = find_score(scores.get("adversary", ()), CHOSEN)
    jsd = find_statistic(statistics, "chosen_jsd")
    if score is None or jsd is None:
        return None
    lost = score.lost(n)
    worse = grade(lost, RULES["loss"])
    seed = farthest_seed(statistics)
    key = "elsewhere_without_seeds"
    distance: Estimate = jsd
    if seed is not None and beyond_seed is not None:
        key, distance = "elsewhere", beyond_seed
    far = grade(distance, RULES[key])
    answer = all_of(opposite(worse), far)
    quality = {Answer.YES: "classifies worse than", Answer.NO: "classifies as well as"}
    sentence = (
        "The adversary "
        f"{quality.get(worse, 'cannot be told to classify as well as or worse than')} "
        f"the base (F1 lost {_shown(lost)}, negative: gained; below "
        f"{RULES['loss'].yes} is as well) and "
        f"{_where(far, distance, jsd, seed)}. {CHOICE_NOTE}."
    )
    if answer == Answer.NO:
        sentence += " Another λ or a longer training might."
    if n < MIN_TEXTS:
        sentence += f" {_undecided(n, '')}."
    yardsticks = {} if seed is None else {"farthest other seed": seed.mean}
    largest = find_statistic(statistics, "largest_jsd")
    if largest is not None:
        yardsticks["largest of any weights"] = largest.mean
    return _finding(key, answer, sentence, distance, yardsticks)


def farthest_seed(statistics: Statistics) -> Statistic | None:
    """The seed whose attention is farthest from the base's on average; None without."""
    seeds = []
    for s in statistics:
        if s.statistic.startswith("one_seed_jsd@") and s.group == "all" and s.n:
            seeds.append(s)
    return max(seeds, key=lambda s: s.mean, default=None)


def _where(far: Answer, distance: Estimate, jsd: Statistic, seed: Statistic | None) -> str:
    """How far the adversary attends, beside its yardstick."""
    if seed is None:
        said = {Answer.YES: "attends far from it", Answer.NO: "does not attend far"}
        threshold = RULES["elsewhere_without_seeds"].yes
        return (
            f"{said.get(far, 'cannot be told to attend far from it or not')} (JSD "
            f"{_shown(distance, 2)} of at most .69; far is {threshold:g}, as in the "
            "paper's Table 4, for how far another seed goes was not measured: test "
            "seeds)"
        )
    said = {Answer.YES: "attends farther from it", Answer.NO: "does not attend farther"}
    name = f"{key_of(seed.statistic):g}"
    return (
        f"{said.get(far, 'cannot be told to attend farther or not')} than the farthest "
        f"other seed (seed {name}, JSD {jsd.mean:.2f} "
        f"against {seed.mean:.2f} of at most .69, difference per text {_shown(distance, 2)})"
    )


def _transfer(scores: Sequence[Score], seeds: Sequence[float], n: int) -> Finding | None:
    """The base's weights against those that the context-free model learns itself."""
    trained = find_score(scores, "trained guide")
    base = find_score(scores, "base guide")
    if trained is None or base is None:
        return None
    low, high = base.difference_ci95
    gain = Estimate(-base.difference, (-high, -low), n)
    others = ""
    for name in ("uniform", "adversary"):
        score = find_score(scores, f"{name} guide")
        if score is not None:
            others += f"; {name} guide {score.value:.3f}"
    models = (
        "a model without context, which reads each token by itself, has F1 "
        f"{base.value:.3f} with the base's weights as guide and "
        f"{trained.value:.3f} with attention of its own{others}"
    )
    if len(seeds) < 2:
        sentence = (
            f"Of one training each, {models}: "
            f"difference {_shown(gain)} over these texts; {ONE_TRAINING}."
        )
        return _finding("transfer", Answer.CANNOT_SAY, sentence, gain)
    gain = over_seeds(gain, seeds, 1)
    answer = grade(gain, RULES["transfer"])
    said = {
        Answer.YES: "The base's weights serve better than its own",
        Answer.NO: "The base's weights serve no better than its own",
    }
    sentence = (
        f"{said.get(answer, _undecided(n, '0'))}: {models}; "
        f"difference {_shown(gain)}, where the interval covers the texts and another "
        f"seed, as if it moved this model as it moves the base ({len(seeds)} trainings)."
    )
    return _finding("transfer", answer, sentence, gain)


def _undecided(n: int, threshold: str) -> str:
    """Why there is no answer."""
    if n < MIN_TEXTS:
        return f"Fewer than {MIN_TEXTS} texts tell nothing"
    return f"The interval holds {threshold}"


def opposite(answer: Answer) -> Answer:
    """No for yes, yes for no."""
    turned = {Answer.YES: Answer.NO, Answer.NO: Answer.YES}
    return turned.get(answer, answer)


def all_of(*answers: Answer) -> Answer:
    """Yes if all say yes, no if one says no, else it cannot be said."""
    if Answer.NO in answers:
        return Answer.NO
    return Answer.YES if set(answers) == {Answer.YES} else Answer.CANNOT_SAY


def _shown(estimate: Estimate, digits: int = 3) -> str:
    return markdown.interval(estimate.value, estimate.ci95, digits=digits)


def _finding(
    rule: str,
    answer: Answer,
    sentence: str,
    estimate: Estimate,
    yardsticks: dict[str, float] | None = None,
) -> Finding:
    """A finding over all texts."""
    return Finding(
        rule,
        "all",
        answer,
        sentence,
        estimate.value,
        estimate.ci95,
        estimate.n or 0,
        yardsticks or {},
    )


# --- How far adversaries and other models attend from the base, as one curve ---------------------
# Pure: statistics and scores in.

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
