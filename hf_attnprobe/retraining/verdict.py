"""Results of retrainings as data, and the verdict on them in words.

Pure: rows, statistics and scores in. The rules stand with all others, in ``statistics/verdicts.py``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.serialization import plain, plain_fields
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.statistics.estimates import Estimate, mean_estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS, Answer, grade
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.summary import (
    Statistic,
    attention_bin,
    find_statistic,
    key_of,
    position,
)
from hf_attnprobe.statistics.verdicts import RULES, Finding


# --- The verdict ---------------------------------------------------------------------------------

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
    """The answers of each test; None for a test that was not run.

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
        """The sentence about one question, with its name and answer; None if there is none."""
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
    beyond_seed: Estimate | None = None,
) -> Verdict:
    """What the tests say.

    Args:
        beyond_seed: how much farther the chosen adversary attends from the base than
            the farthest other seed, paired by text.
    """
    seeds = [s.value for s in scores.get("seeds", ()) if s.metric == "f1"]
    return Verdict(
        need=_need(scores.get("uniform", ()), seeds),
        chance=_chance(statistics, seeds),
        elsewhere=_elsewhere(statistics, scores, beyond_seed),
        transfer=_transfer(scores.get("diagnostic_mlp", ()), seeds),
    )


def over_seeds(over_texts: Estimate, f1_of_seeds: Sequence[float], n_averaged: int) -> Estimate:
    """Returns a difference of F1 whose interval covers the texts and another seed.

    The half-width for seeds is Student's t times the standard deviation of one training
    minus a mean of ``n_averaged``; it is added to that for texts as variances add.

    Args:
        over_texts: the difference, with the interval over texts.
        f1_of_seeds: of at least two trainings that differ in their seed.
        n_averaged: trainings in the mean that one more is compared with.
    """
    n_seeds = len(f1_of_seeds)
    of_one_more = math.sqrt(1 + 1 / n_averaged)
    spread = np.std(f1_of_seeds, ddof=1) * of_one_more
    critical = stdtrit(n_seeds - 1, 0.975)
    half_width = float(critical * spread)
    value = over_texts.value
    low, high = over_texts.ci95 or (value, value)
    low = value - math.hypot(value - low, half_width)
    high = value + math.hypot(high - value, half_width)
    return Estimate(value, (low, high), over_texts.n)


def _need(scores: Sequence[Score], seeds: Sequence[float]) -> Finding | None:
    base, uniform = find_score(scores, "base"), find_score(scores, "uniform")
    if base is None or uniform is None:
        return None
    worth: Estimate = uniform.lost
    if len(seeds) > 1:
        shift = float(np.mean(seeds)) - base.value
        low, high = worth.ci95 or (worth.value, worth.value)
        worth = Estimate(worth.value + shift, (low + shift, high + shift), worth.n)
    models = (
        f"F1 is {base.value:.3f} with attention, {uniform.value:.3f} without; with it minus "
        "without it"
    )
    return _of_trainings("need", worth, seeds, len(seeds), models)


def _of_trainings(
    rule: str,
    over_texts: Estimate,
    seeds: Sequence[float],
    n_averaged: int,
    models: str,
) -> Finding:
    """Returns the finding about a difference of F1; without other seeds it cannot say.

    Args:
        over_texts: the difference, with the interval over texts.
        seeds: F1 of the trainings that differ in their seed.
        n_averaged: how many of them one training is compared with.
        models: what was compared, in words that the difference follows.
    """
    if len(seeds) < 2:
        said = f"{models} {_shown(over_texts)} over these texts, of one training each"
        return _finding(rule, Answer.CANNOT_SAY, f"{said}: {ONE_TRAINING}.", over_texts)
    difference = over_seeds(over_texts, seeds, n_averaged)
    answer = grade(difference, RULES[rule])
    said = (
        f"{_begun(rule, answer, difference)}: {models} {_shown(difference)}, which "
        f"covers the texts and another seed ({len(seeds)} trainings with attention have F1 "
        f"{min(seeds):.3f} to {max(seeds):.3f})."
    )
    return _finding(rule, answer, said, difference)


def graded(rule: str, number: Estimate) -> Finding:
    """Grades a number by a rule; the sentence is what the answer says, with the number."""
    answer = grade(number, RULES[rule])
    sentence = (
        f"{RULES[rule].in_short(answer).capitalize()}: {_shown(number)} ({RULES[rule].measure}; the threshold "
        f"is {RULES[rule].yes:g})."
    )
    return _finding(rule, answer, sentence, number)


def _begun(rule: str, answer: Answer, number: Estimate) -> str:
    """How a sentence begins: with the answer as a clause, or with why there is none."""
    if answer != Answer.CANNOT_SAY:
        return RULES[rule].in_short(answer).capitalize()
    if (number.n or 0) < MIN_TEXTS:
        return f"Fewer than {MIN_TEXTS} texts tell nothing"
    return f"The threshold {RULES[rule].yes:g} lies in the interval"


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
    statistics: Statistics, scores: Scores, beyond_seed: Estimate | None
) -> Finding | None:
    """The adversary that each half of the texts chose for the other half."""
    score = find_score(scores.get("adversary", ()), CHOSEN)
    jsd = find_statistic(statistics, "chosen_jsd")
    if score is None or jsd is None:
        return None
    seed = farthest_seed(statistics)
    rule, distance = "elsewhere_without_seeds", jsd.bare
    than = (
        f"far from it (JSD {_shown(distance, 2)} of at most .69; far is {RULES[rule].yes:g}, as in "
        "the paper's Table 4, for how far another seed goes was not measured: test seeds)"
    )
    yardsticks = {}
    if seed is not None and beyond_seed is not None:
        rule, distance = "elsewhere", beyond_seed
        than = (
            f"farther than the farthest other seed (seed {key_of(seed.statistic):g}, JSD "
            f"{jsd.mean:.2f} against {seed.mean:.2f} of at most .69, difference per text "
            f"{_shown(distance, 2)})"
        )
        yardsticks["farthest other seed"] = seed.mean
    worse, far = grade(score.lost, RULES["loss"]), grade(distance, RULES[rule])
    quality = worse.words(
        "classifies worse than",
        "classifies as well as",
        "may or may not classify worse than",
    )
    attends = far.words("attends", "does not attend", "may or may not attend")
    sentence = (
        f"The adversary {quality} the base (F1 lost {_shown(score.lost)}, negative: gained; below "
        f"{RULES['loss'].yes} is as well) and {attends} {than}. {CHOICE_NOTE}."
    )
    if score.n < MIN_TEXTS:
        sentence += f" Fewer than {MIN_TEXTS} texts tell nothing."
    largest = find_statistic(statistics, "largest_jsd")
    if largest is not None:
        yardsticks["largest of any weights"] = largest.mean
    return _finding(rule, all_of(worse.opposite, far), sentence, distance, yardsticks)


def farthest_seed(statistics: Statistics) -> Statistic | None:
    """The seed whose attention is farthest from the base's on average; None without."""
    seeds = []
    for s in statistics:
        if s.statistic.startswith("one_seed_jsd@") and s.group == "all" and s.n:
            seeds.append(s)
    return max(seeds, key=lambda s: s.mean, default=None)


def _transfer(scores: Sequence[Score], seeds: Sequence[float]) -> Finding | None:
    """The base's weights against those that the context-free model learns itself."""
    base = find_score(scores, "base guide")
    if base is None:
        return None
    low, high = base.lost.ci95 or (math.nan, math.nan)
    gain = Estimate(-base.lost.value, (-high, -low), base.n)
    guides = [f"{s.model} {s.value:.3f}" for s in scores if s.metric == "f1" and s.model != "base"]
    models = (
        f"F1 of a model without context, which reads each token by itself, is {', '.join(guides)}; "
        "base guide minus trained guide"
    )
    return _of_trainings("transfer", gain, seeds, 1, models)


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
    number = estimate.value, estimate.ci95, estimate.n or 0
    return Finding(rule, answer, sentence, *number, yardsticks or {})


# --- The result ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedModel:
    """A model that was trained.

    Attributes:
        name: its folder below the output folder.
        seconds: of training and evaluation, over all runs that it took.
        n_epochs: it was trained for.
        metrics: its scores.
    """

    name: str
    seconds: float
    n_epochs: int
    metrics: dict[str, float]


class Bin(NamedTuple):
    """How far another seed moves attention in a bin of the largest weight.

    Attributes:
        largest_weight: the range of the base's largest weight, such as "[0.25, 0.50)".
        predicted: name of the predicted class.
        n: texts.
        median_jsd: of the mean JSD to another seed, nats.
    """

    largest_weight: str
    predicted: str
    n: int
    median_jsd: float


@dataclass(frozen=True)
class RetrainingResult:
    """Results of retrainings. ``print(report)`` gives the verdict.

    Attributes:
        model: the base.
        dataset: the test texts' data set and split.
        n: test texts.
        seed: of bootstrap and search.
        statistics: over all texts and by predicted class.
        scores: by test.
        models: that were trained.
        provenance: settings, versions and fingerprints.
        bins: how far another seed moves attention, by its peakedness.
        beyond_seed: see :func:`farther_than_a_seed`.
        rows: one value per test, statistic and text.
    """

    model: str
    dataset: DatasetName
    n: int
    seed: int
    statistics: tuple[Statistic, ...]
    scores: dict[str, tuple[Score, ...]]
    models: tuple[TrainedModel, ...]
    provenance: dict
    bins: tuple[Bin, ...] = ()
    beyond_seed: Estimate | None = None
    rows: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    @cached_property
    def verdict(self) -> Verdict:
        """What the tests say, one sentence each."""
        return verdict(self.statistics, self.scores, beyond_seed=self.beyond_seed)


def to_json(report: RetrainingResult) -> dict:
    """Plain data, as ``retrain --json`` prints and ``summary.json`` holds it.

    NaN becomes None.
    """
    return plain_fields(report, "rows") | {
        "verdict": report.verdict.sentences(),
        "findings": plain(report.verdict.findings()),
    }


def farther_than_a_seed(rows: pd.DataFrame, statistics: Sequence[Statistic]) -> Estimate | None:
    """JSD of the chosen adversary minus that of the farthest other seed, per text.

    Args:
        rows: of the tests ``adversary`` and ``seeds``.
        statistics: of the same rows; they tell which seed is the farthest on average.

    Returns:
        The mean with its interval; None where one of the tests was not run.
    """
    other = farthest_seed(statistics)
    if other is None:
        return None
    values = rows.set_index("example_id").value
    chosen = values[(rows.statistic == "chosen_jsd").to_numpy()]
    if chosen.empty:
        return None
    of_seed = values[(rows.statistic == other.statistic).to_numpy()]
    return mean_estimate((chosen - of_seed).to_numpy())


def attention_bins(rows: pd.DataFrame, labels: Sequence[str]) -> tuple[Bin, ...]:
    """How far another seed moves attention, by how peaked it is, as the papers plot it.

    Args:
        rows: of the test ``seeds`` and of the predictions.
        labels: names of the classes.
    """
    wide = rows[rows.test.isin(("seeds", "prediction"))].pivot_table(
        index="example_id", columns="statistic", values="value"
    )
    if not {"max_attention", "seed_jsd"} <= set(wide):
        return ()
    by = [attention_bin(wide.max_attention), wide.predicted_class.astype(int)]
    groups = wide.groupby(by, observed=True).seed_jsd
    bins = []
    for (name, predicted), jsd in groups:
        bins.append(Bin(name, labels[predicted], len(jsd), float(jsd.median())))
    return tuple(bins)


def constant_guess(report: RetrainingResult) -> tuple[float, float] | None:
    """(the largest F1, the largest accuracy) of always saying one and the same class.

    The two may be of different classes. None where the rows have no labels.
    """
    rows = report.rows
    if rows.empty:
        return None
    own = rows[rows.test == "prediction"]
    labels = own.value[own.statistic == "label"].dropna()
    if labels.empty:
        return None
    every = own.value[own.statistic.isin(("label", "predicted_class"))]
    n_classes = max(2, int(every.max()) + 1)
    share = labels.value_counts(normalize=True).reindex(range(n_classes), fill_value=0.0)
    f1 = 2 * share / (1 + share)  # of the class that is always said; that of others is 0
    largest = f1[1] if n_classes == 2 else f1.max() / n_classes
    return float(largest), float(share.max())


# --- How far adversaries and other models attend from the base, as one curve ---------------------
# Pure: statistics and scores in.

FRONTIER_NOTE = (
    "The exact frontier is the farthest attention of each text that moves the output "
    "by at most ε, with the base's encoder. A trained adversary has an encoder of its "
    "own, so that is a yardstick, not a bound; that no weights at all can be farther "
    "than the last of our lines says is checked for every text."
)


@dataclass(frozen=True)
class Way:
    """A kind of way to move attention: how its points are called, and where their numbers stand.

    Attributes:
        series: its line in a chart.
        statistic: of the JSD, the beginning of its name.
        name: of a point in a table, with the place of a key; empty where it is in none.
        label: of a point in a chart, with the same.
        test: whose scores have the F1 of its models.
        model: whose F1 that is, with the place of a key; without one the mean of all but the
            base's.
    """

    series: str
    statistic: str
    name: str
    label: str = ""
    test: str = ""
    model: str = ""


ADVERSARY, SEEDS = "trained adversaries", "other seeds"
UNIFORM = "trained with uniform attention"
SEARCH, FRONTIER = "search, same states", "exact frontier, same states"
CEILING = "no attention whatever can be farther"
WAYS = (
    Way(
        ADVERSARY,
        "adversary",
        "adversary λ {key:g}",
        "λ {key:g}",
        test="adversary",
        model="adversary {key:g}",
    ),
    Way(SEEDS, "one_seed", "", "seed {key:g}"),
    Way(SEEDS, "seed", "another seed", test="seeds"),
    Way(UNIFORM, "uniform_model", UNIFORM, test="uniform"),
    Way(SEARCH, "search", "search within {key:g}", "ε {key:g}"),
    Way(FRONTIER, "frontier", "exactly, within {key:g}", "ε {key:g}"),
    Way(CEILING, "largest", "no weights at all are farther"),
)
"""In the order of tables and legends."""


@dataclass(frozen=True)
class Point:
    """One way to move attention, on average over the texts.

    Attributes:
        series: the kind of way, see :class:`Way`.
        name: what moved it; empty for a single seed.
        label: which one of its kind, such as "λ 0.001".
        jsd: Jensen-Shannon divergence from the base's attention, nats.
        tvd: change of the output, total variation: of the frontier the largest that is allowed,
            of the ceiling NaN, since any is.
        f1: of the model, if it is another one.
    """

    series: str
    name: str
    label: str
    jsd: Estimate
    tvd: Estimate
    f1: float | None = None

    @property
    def moved(self) -> float | str:
        """The change of the output as a table has it."""
        if math.isnan(self.tvd.value):
            return "–"
        return f"≤ {self.tvd.value:g}" if self.series == FRONTIER else self.tvd.value


def points_of(statistics: Statistics, scores: Scores) -> list[Point]:
    """All ways of moving attention that a retraining has numbers of, by kind and key."""
    means = {s.statistic: s for s in statistics if s.group == "all" and s.n}
    points = []
    for way in WAYS:
        own = [name for name in means if name.partition("@")[0] == f"{way.statistic}_jsd"]
        for name in sorted(own, key=position):
            key = key_of(name)
            allowed = Estimate(key if isinstance(key, float) else math.nan)
            moved = means.get(name.replace("_jsd", "_tvd"))
            point = Point(
                way.series,
                way.name.format(key=key),
                way.label.format(key=key),
                means[name].bare,
                allowed if moved is None else moved.bare,
                _f1(scores.get(way.test, ()), way.model.format(key=key)),
            )
            points.append(point)
    return points


def _f1(scores: Sequence[Score], model: str) -> float | None:
    """F1 of a model; without a name the mean of all but the base, None without any."""
    chosen = [s.value for s in scores if s.metric == "f1" and s.model != "base"]
    if model:
        chosen = [s.value for s in scores if (s.metric, s.model) == ("f1", model)]
    return sum(chosen) / len(chosen) if chosen else None
