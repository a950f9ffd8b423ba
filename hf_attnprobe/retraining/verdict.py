"""Retraining results as data, and the verdict, which answers questions in words.

The functions only take rows, statistics and scores. The rules that grade them are defined in
``statistics/verdicts.py``, next to the rules for audits.
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
from hf_attnprobe.core.serialization import convert_fields, convert_to_plain
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.statistics.estimates import Estimate, estimate_mean
from hf_attnprobe.statistics.grades import MIN_TEXTS, Answer, grade
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.summary import (
    Statistic,
    assign_attention_bins,
    find_statistic,
    get_sort_key,
    parse_key,
)
from hf_attnprobe.statistics.verdicts import RULES, Finding


# --- The verdict ---------------------------------------------------------------------------------

StatisticList = Sequence[Statistic]
"""Statistics of a retraining."""
ScoresByTest = Mapping[str, Sequence[Score]]
"""Scores of all models, by test name."""

CHOSEN_ADVERSARY = "chosen adversary"
"""Name of the adversary that a report describes.

Several adversaries are trained with different weights λ. One half of the texts is used to choose an
adversary, whose predictions are scored on the other half (cross-fitting).
"""
DECEIVED_MODEL = "deceived"
"""Name of the model from the test ``deception`` in score tables.

It is the base model, trained further so that it attends less to certain words.
"""
LAMBDA_CHOICE_NOTE = (
    "The adversary's loss rewards attention that differs from the base model's; λ is the weight of "
    "this term. It was chosen on one half of the texts, and the numbers are from the other half. "
    "This was repeated with the halves exchanged."
)
"""Note in a retraining report about how the weight λ of the reported adversary was chosen."""
ONE_TRAINING_NOTE = (
    "Another seed would also change F1. This effect was not measured (test seeds), so the result "
    "only holds for these two models."
)
"""Reason why a report cannot conclude anything from the F1 of two models with one seed."""


@dataclass(frozen=True)
class Verdict:
    """The answers of all tests. An answer is None if its test was not run.

    Attributes:
        need: Is attention needed? From ``uniform`` and ``seeds``.
        chance: How much does attention change with another seed? A sentence, from ``seeds``.
        elsewhere: Can a model attend elsewhere? From ``adversary`` and ``seeds``.
        transfer: Are the weights useful to another model? From ``diagnostic_mlp`` and ``seeds``.
        hiding: Can the model hide that it uses certain words? From ``deception``.
    """

    need: Finding | None = None
    chance: str | None = None
    elsewhere: Finding | None = None
    transfer: Finding | None = None
    hiding: Finding | None = None

    def sentences(self) -> list[str]:
        """Return one sentence for each answer, in test order."""
        sentences = [self.sentence(question) for question in vars(self)]
        return [sentence for sentence in sentences if sentence]

    def sentence(self, question: str) -> str | None:
        """Return the sentence that answers a question, or None if its test was not run.

        Args:
            question: Field name, such as ``need``.
        """
        answer = getattr(self, question)
        if isinstance(answer, Finding):
            return f"{RULES[answer.rule].name}: {answer.answer}. {answer.sentence}"
        if answer is None:
            return None
        return f"Chance: {answer}"

    def findings(self) -> list[Finding]:
        """Return all graded answers, in test order."""
        return [answer for answer in vars(self).values() if isinstance(answer, Finding)]


def grade_retraining(
    statistics: StatisticList,
    scores: ScoresByTest,
    *,
    beyond_seed: Estimate | None = None,
) -> Verdict:
    """Answer the questions of all retraining tests that were run, such as "Is attention needed?".

    Args:
        statistics: Statistics from all tests, such as distances between two models.
        scores: Scores of all models, such as F1, by test.
        beyond_seed: How much farther the adversary's attention is from the base model's than the
            attention with any other seed, see :func:`measure_distance_beyond_seed`.
    """
    seed_scores = [score.value for score in scores.get("seeds", ()) if score.metric == "f1"]
    return Verdict(
        need=_grade_need(scores.get("uniform", ()), seed_scores),
        chance=_describe_seed_effects(statistics, seed_scores),
        elsewhere=_grade_adversary(statistics, scores, beyond_seed),
        transfer=_grade_transfer(scores.get("diagnostic_mlp", ()), seed_scores),
        hiding=_grade_hiding(statistics, scores),
    )


def widen_by_seed_variance(
    over_texts: Estimate, f1_of_seeds: Sequence[float], n_averaged: int
) -> Estimate:
    """Widen the interval of an F1 difference so that it also covers other random seeds.

    Without this step, the interval only covers the choice of texts. The half-width a for texts
    becomes sqrt(a² + b²), where b is the half-width for seeds: the standard deviation of the
    difference over seeds, times the 97.5% quantile of Student's t. For example, a = 0.03 and
    b = 0.04 give 0.05.

    Args:
        over_texts: F1 of one training minus the mean F1 of ``n_averaged`` other trainings, with its
            interval over texts.
        f1_of_seeds: F1 of at least two trainings that differ only in their seed.
        n_averaged: Number of trainings in the mean.
    """
    n_seeds = len(f1_of_seeds)
    # The variance of one training minus a mean of n trainings is (1 + 1/n) times that of one.
    standard_deviation = np.std(f1_of_seeds, ddof=1) * math.sqrt(1 + 1 / n_averaged)
    t_quantile = stdtrit(n_seeds - 1, 0.975)
    half_width = float(t_quantile * standard_deviation)
    value = over_texts.value
    low, high = over_texts.ci95 or (value, value)
    low = value - math.hypot(value - low, half_width)
    high = value + math.hypot(high - value, half_width)
    return Estimate(value, (low, high), over_texts.n)


def _grade_need(scores: Sequence[Score], seed_scores: Sequence[float]) -> Finding | None:
    """Answer whether attention is needed: how much lower is F1 with uniform attention?

    If several seeds were trained, the model with uniform attention is compared with their mean F1,
    otherwise with the base model's F1.
    """
    base, uniform = find_score(scores, "base"), find_score(scores, "uniform")
    if base is None or uniform is None:
        return None
    difference: Estimate = uniform.lost
    if len(seed_scores) > 1:
        # The mean over the seeds, including the base model's seed, replaces the base model's F1.
        shift = float(np.mean(seed_scores)) - base.value
        low, high = difference.ci95 or (difference.value, difference.value)
        difference = Estimate(difference.value + shift, (low + shift, high + shift), difference.n)
    comparison = (
        f"F1 is {base.value:.3f} with attention and {uniform.value:.3f} without; the difference is"
    )
    return _grade_f1_difference("need", difference, seed_scores, len(seed_scores), comparison)


def _grade_f1_difference(
    rule: str,
    over_texts: Estimate,
    seed_scores: Sequence[float],
    n_averaged: int,
    comparison: str,
) -> Finding:
    """Answer yes or no by comparing a difference in F1 with a threshold.

    If no other seeds were trained, the answer is "cannot say".

    Args:
        rule: Key of the threshold in ``RULES``.
        over_texts: The difference, with its interval over texts.
        seed_scores: F1 of the trainings that differ only in their seed.
        n_averaged: Number of trainings in the mean with which one training is compared.
        comparison: Sentence about the compared models, without its end, which is the difference.
    """
    if len(seed_scores) < 2:
        sentence = (
            f"{comparison} {_format_estimate(over_texts)} over these texts, for one training each. "
            f"{ONE_TRAINING_NOTE}"
        )
        return _make_finding(rule, Answer.CANNOT_SAY, sentence, over_texts)
    difference = widen_by_seed_variance(over_texts, seed_scores, n_averaged)
    answer = grade(difference, RULES[rule])
    sentence = (
        f"{_format_opening(rule, answer, difference)}: {comparison} "
        f"{_format_estimate(difference)}. The interval covers other texts and another seed "
        f"({len(seed_scores)} trainings with attention have F1 {min(seed_scores):.3f} to "
        f"{max(seed_scores):.3f})."
    )
    return _make_finding(rule, answer, sentence, difference)


def grade_by_rule(rule: str, number: Estimate) -> Finding:
    """Answer a question by comparing a number with a threshold, and explain the answer.

    Args:
        rule: Key of the question and its threshold in ``RULES``, such as ``"hiding"``.
        number: The number that is compared, with its confidence interval.
    """
    answer = grade(number, RULES[rule])
    sentence = (
        f"{RULES[rule].get_clause(answer).capitalize()}: {_format_estimate(number)} "
        f"({RULES[rule].measure}; the threshold is {RULES[rule].yes:g})."
    )
    return _make_finding(rule, answer, sentence, number)


def _format_opening(rule: str, answer: Answer, number: Estimate) -> str:
    """Return the start of a sentence: the answer, or the reason why there is no answer."""
    if answer != Answer.CANNOT_SAY:
        return RULES[rule].get_clause(answer).capitalize()
    if (number.n or 0) < MIN_TEXTS:
        return f"Fewer than {MIN_TEXTS} texts are too few for an answer"
    return f"The threshold {RULES[rule].yes:g} lies in the interval"


def _describe_seed_effects(statistics: StatisticList, seed_scores: Sequence[float]) -> str | None:
    """Describe how attention, output and F1 change if the model is trained with another seed."""
    jsd = find_statistic(statistics, "seed_jsd")
    tvd = find_statistic(statistics, "seed_tvd")
    if jsd is None or tvd is None:
        return None
    f1_range = ""
    if seed_scores:
        f1_range = (
            f" F1 is between {min(seed_scores):.3f} and {max(seed_scores):.3f} over "
            f"{len(seed_scores)} trainings. Intervals over texts do not include this spread."
        )
    return (
        f"With another seed, attention has a JSD of {jsd.mean:.2f} from the base model's (at most "
        f".69), and the output changes by {tvd.mean:.2f}. An adversary that is no farther from the "
        f"base model is no counter-example.{f1_range}{_describe_flatness(statistics, jsd.mean)}"
    )


def _describe_flatness(statistics: StatisticList, seed_jsd: float) -> str:
    """Describe whether the base model's attention is nearly uniform.

    This is the case if equal weights are closer to it than the attention of a model that is trained
    with another seed. ``seed_jsd`` is the distance to that model.
    """
    uniform = find_statistic(statistics, "uniform_model_jsd")
    if uniform is None:
        return ""
    distance = (
        f" Equal weights for all tokens have a JSD of {uniform.mean:.2f} from the base model's"
    )
    if uniform.mean < seed_jsd:
        return f"{distance}, less than another seed, so its attention is nearly uniform."
    return f"{distance}, no less than another seed."


def _grade_adversary(
    statistics: StatisticList, scores: ScoresByTest, beyond_seed: Estimate | None
) -> Finding | None:
    """Grade the adversary that was chosen by cross-fitting."""
    score = find_score(scores.get("adversary", ()), CHOSEN_ADVERSARY)
    jsd = find_statistic(statistics, "chosen_jsd")
    if score is None or jsd is None:
        return None
    farthest_seed = find_farthest_seed(statistics)
    rule, distance = "elsewhere_without_seeds", jsd.plain_estimate
    comparison = (
        f"far from it (JSD {_format_estimate(distance, 2)} of at most .69; far means "
        f"{RULES[rule].yes:g} or more, as in the paper's Table 4, because no other seeds were "
        "measured: test seeds)"
    )
    yardsticks = {}
    if farthest_seed is not None and beyond_seed is not None:
        rule, distance = "elsewhere", beyond_seed
        comparison = (
            f"farther from it than the most divergent other seed (seed "
            f"{parse_key(farthest_seed.statistic):g}; JSD {jsd.mean:.2f} compared with "
            f"{farthest_seed.mean:.2f} of at most .69, difference per text "
            f"{_format_estimate(distance, 2)})"
        )
        yardsticks["farthest other seed"] = farthest_seed.mean
    is_worse, is_far = grade(score.lost, RULES["loss"]), grade(distance, RULES[rule])
    quality = is_worse.choose(
        "classifies worse than",
        "classifies as well as",
        "may or may not classify worse than",
    )
    attends = is_far.choose("attends", "does not attend", "may or may not attend")
    sentence = (
        f"The adversary {quality} the base model (F1 lost {_format_estimate(score.lost)}, negative "
        f"if gained; a loss below {RULES['loss'].yes} counts as equally good) and {attends} "
        f"{comparison}. {LAMBDA_CHOICE_NOTE}"
    )
    if score.n < MIN_TEXTS:
        sentence += f" Fewer than {MIN_TEXTS} texts are too few for an answer."
    largest = find_statistic(statistics, "largest_jsd")
    if largest is not None:
        yardsticks["largest of any weights"] = largest.mean
    answer = combine_answers(is_worse.opposite, is_far)
    return _make_finding(rule, answer, sentence, distance, yardsticks)


def find_farthest_seed(statistics: StatisticList) -> Statistic | None:
    """Find the seed whose attention differs most from the base model's, and return its statistic.

    Args:
        statistics: Statistics of the test ``seeds``.

    Returns:
        The statistic with the largest mean JSD, such as ``one_seed_jsd@2``; None if no other seeds
        were trained.
    """
    seed_statistics = []
    for statistic in statistics:
        if (
            statistic.statistic.startswith("one_seed_jsd@")
            and statistic.group == "all"
            and statistic.n
        ):
            seed_statistics.append(statistic)
    return max(seed_statistics, key=lambda statistic: statistic.mean, default=None)


def _grade_transfer(scores: Sequence[Score], seed_scores: Sequence[float]) -> Finding | None:
    """Answer whether the base model's attention weights are useful to another model.

    The other model reads each token without its context. The weights are useful if they increase
    its F1.
    """
    base = find_score(scores, "base guide")
    if base is None:
        return None
    # A gain is a negative loss, so the sign and the order of the limits are reversed.
    low, high = base.lost.ci95 or (math.nan, math.nan)
    gain = Estimate(-base.lost.value, (-high, -low), base.n)
    guides = [
        f"{score.model} {score.value:.3f}"
        for score in scores
        if score.metric == "f1" and score.model != "base"
    ]
    comparison = (
        "F1 of a model without context, which reads each token by itself, is "
        f"{', '.join(guides)}; the difference between base guide and trained guide is"
    )
    return _grade_f1_difference("transfer", gain, seed_scores, 1, comparison)


def grade_hiding_parts(statistics: StatisticList, scores: ScoresByTest) -> dict[str, Finding]:
    """Answer four questions about a model that was trained to hide its use of some words.

    The four answers together determine whether the model can hide this use (``hiding``).

    Args:
        statistics: Statistics from the test ``deception``.
        scores: Scores of all models, such as F1, by test.

    Returns:
        Findings by name: ``used_before`` and ``used_after`` (does the model use the words before
        and after the training?), ``hidden`` (is at least half of the attention to them gone?) and
        ``lost`` (is accuracy lost?).
    """
    accuracy = find_score(scores["deception"], DECEIVED_MODEL, "accuracy")
    # Every model is scored by accuracy.
    assert accuracy is not None
    return {
        "used_before": grade_by_rule("use", _get_estimate(statistics, "before_use")),
        "used_after": grade_by_rule("use", _get_estimate(statistics, "after_use")),
        "hidden": grade_by_rule("hiding", _get_estimate(statistics, "hidden_mass")),
        "lost": grade_by_rule("loss", accuracy.lost),
    }


def _get_estimate(statistics: StatisticList, name: str) -> Estimate:
    """Return the mean of a statistic with its interval, or NaN if no text has a value."""
    statistic = find_statistic(statistics, name)
    return Estimate(math.nan, None, 0) if statistic is None else statistic.plain_estimate


def _grade_hiding(statistics: StatisticList, scores: ScoresByTest) -> Finding | None:
    """Grade whether the trained model uses the words but hides this, without losing accuracy."""
    if "deception" not in scores:
        return None
    hidden_mass = _get_estimate(statistics, "hidden_mass")
    use = _get_estimate(statistics, "after_use")
    if not hidden_mass.n:
        sentence = (
            "None of the test texts contains an impermissible word, so the attention to these "
            "words cannot be measured."
        )
        return _make_finding("hiding", Answer.CANNOT_SAY, sentence, hidden_mass)
    if not use.n:
        sentence = (
            "No test text contains at least as many other words as impermissible ones, so there "
            "is no control to compare with."
        )
        return _make_finding("hiding", Answer.CANNOT_SAY, sentence, hidden_mass)
    parts = grade_hiding_parts(statistics, scores)
    if parts["used_before"].answer == Answer.NO:
        answer = Answer.NO
        sentences = [
            f"There was nothing to hide. Before the training: {parts['used_before'].sentence}",
            parts["lost"].sentence,
        ]
    else:
        answer = combine_answers(
            parts["used_after"].answer, parts["hidden"].answer, parts["lost"].answer.opposite
        )
        sentences = [parts[name].sentence for name in ("used_after", "hidden", "lost")]
    if min(use.n, hidden_mass.n) < MIN_TEXTS:
        sentences.append(f"Fewer than {MIN_TEXTS} texts are too few for an answer.")
    return _make_finding("hiding", answer, " ".join(sentences), hidden_mass)


def combine_answers(*answers: Answer) -> Answer:
    """Combine several answers: no if any answer is no, yes if all are yes, else "cannot say".

    Args:
        *answers: The answers to combine.
    """
    if Answer.NO in answers:
        return Answer.NO
    if set(answers) == {Answer.YES}:
        return Answer.YES
    return Answer.CANNOT_SAY


def _format_estimate(estimate: Estimate, digits: int = 3) -> str:
    """Format an estimate with its interval, such as ".120 [.080, .160]"."""
    return markdown.format_interval(estimate.value, estimate.ci95, digits=digits)


def _make_finding(
    rule: str,
    answer: Answer,
    sentence: str,
    estimate: Estimate,
    yardsticks: dict[str, float] | None = None,
) -> Finding:
    """Build the answer to a question, with the number from which it was derived."""
    return Finding(
        rule, answer, sentence, estimate.value, estimate.ci95, estimate.n or 0, yardsticks or {}
    )


# --- The result ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedModel:
    """A trained model in a report.

    Attributes:
        name: Checkpoint folder below the output folder.
        seconds: Duration of training and evaluation, including earlier runs that were interrupted.
        n_epochs: Number of epochs.
        metrics: Scores in [0, 1] by name.
    """

    name: str
    seconds: float
    n_epochs: int
    metrics: dict[str, float]


class SeedBin(NamedTuple):
    """Attention change with another seed, for texts with a similar largest weight.

    Attributes:
        largest_weight: Range of the base model's largest weight, such as "[0.25, 0.50)".
        predicted: Predicted class, by name.
        n: Number of texts.
        median_jsd: Median JSD between the attention for the two seeds, nats.
    """

    largest_weight: str
    predicted: str
    n: int
    median_jsd: float


@dataclass(frozen=True)
class RetrainingResult:
    """Results of a retraining. ``print(report)`` displays the verdict.

    Attributes:
        model: Name of the base model.
        dataset: Data set and split of the test texts.
        n: Number of test texts.
        seed: Seed for bootstrap and search.
        statistics: Statistics over all texts and by predicted class.
        scores: Scores of all models, by test.
        models: The trained models.
        provenance: Settings, versions and fingerprints.
        bins: Attention change with another seed, by largest weight and predicted class.
        beyond_seed: See :func:`measure_distance_beyond_seed`.
        rows: One value per test, statistic and text.
    """

    model: str
    dataset: DatasetName
    n: int
    seed: int
    statistics: tuple[Statistic, ...]
    scores: dict[str, tuple[Score, ...]]
    models: tuple[TrainedModel, ...]
    provenance: dict
    bins: tuple[SeedBin, ...] = ()
    beyond_seed: Estimate | None = None
    rows: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    @cached_property
    def verdict(self) -> Verdict:
        """Answers to the questions of all tests."""
        return grade_retraining(self.statistics, self.scores, beyond_seed=self.beyond_seed)


def convert_retraining_to_json(report: RetrainingResult) -> dict:
    """Convert a retraining report to the data that ``retrain --json`` and ``summary.json`` contain.

    NaN becomes None.

    Args:
        report: Results of a retraining.
    """
    return convert_fields(report, "rows") | {
        "verdict": report.verdict.sentences(),
        "findings": convert_to_plain(report.verdict.findings()),
    }


def measure_distance_beyond_seed(
    rows: pd.DataFrame, statistics: Sequence[Statistic]
) -> Estimate | None:
    """Measure how much farther an adversary is from the base model than any other seed.

    Distances are between attention weights (JSD). For each text, the distance of the farthest seed
    is subtracted from the adversary's distance.

    Args:
        rows: Rows from the tests ``adversary`` and ``seeds``.
        statistics: Statistics of the same rows, which determine the farthest seed.

    Returns:
        The mean difference in nats with its interval, or None if one of the tests was not run.
    """
    farthest_seed = find_farthest_seed(statistics)
    if farthest_seed is None:
        return None
    # The example ids align the values of the two models, so that they are subtracted text by text.
    values = rows.set_index("example_id").value
    chosen_values = values[(rows.statistic == "chosen_jsd").to_numpy()]
    if chosen_values.empty:
        return None
    seed_values = values[(rows.statistic == farthest_seed.statistic).to_numpy()]
    return estimate_mean((chosen_values - seed_values).to_numpy())


def compute_seed_bins(rows: pd.DataFrame, labels: Sequence[str]) -> tuple[SeedBin, ...]:
    """Summarize how much attention changes if the model is trained with another seed.

    Texts are grouped by their largest attention weight, in the same bins as in the papers' figures,
    and by their predicted class.

    Args:
        rows: Rows from the test ``seeds``, and the predictions.
        labels: Class names.

    Returns:
        One element per group of texts; empty if the test ``seeds`` was not run.
    """
    texts = rows[rows.test.isin(("seeds", "prediction"))].pivot_table(
        index="example_id", columns="statistic", values="value"
    )
    if not {"max_attention", "seed_jsd"} <= set(texts):
        return ()
    group_keys = [assign_attention_bins(texts.max_attention), texts.predicted_class.astype(int)]
    jsd_groups = texts.groupby(group_keys, observed=True).seed_jsd
    bins = []
    for (weight_range, predicted), jsd in jsd_groups:
        bins.append(SeedBin(weight_range, labels[predicted], len(jsd), float(jsd.median())))
    return tuple(bins)


def score_constant_guess(report: RetrainingResult) -> tuple[float, float] | None:
    """Return the best F1 and accuracy of a classifier that predicts the same class for every text.

    The best F1 and the best accuracy may belong to different classes.

    Args:
        report: Results of a retraining, with rows.

    Returns:
        F1 and accuracy, or None if the rows have no labels.
    """
    rows = report.rows
    if rows.empty:
        return None
    predictions = rows[rows.test == "prediction"]
    labels = predictions.value[predictions.statistic == "label"].dropna()
    if labels.empty:
        return None
    class_labels = predictions.value[predictions.statistic.isin(("label", "predicted_class"))]
    n_classes = max(2, int(class_labels.max()) + 1)
    shares = labels.value_counts(normalize=True).reindex(range(n_classes), fill_value=0.0)
    # The predicted class has recall 1 and a precision equal to its share, so that its F1 is
    # 2 · share / (1 + share). Every other class has F1 0.
    f1_by_class = 2 * shares / (1 + shares)
    largest_f1 = f1_by_class[1] if n_classes == 2 else f1_by_class.max() / n_classes
    return float(largest_f1), float(shares.max())


# --- Distances between other models and the base model, as points on a curve ---------------------

FRONTIER_NOTE = (
    "The exact frontier is the largest JSD of any attention that changes the output by at most ε, "
    "with the base model's encoder. Each adversary has its own encoder, so the frontier is a "
    "baseline and not a bound for adversaries. The last row is a bound: no attention weights can "
    "have a larger JSD. Every text was checked against this bound."
)
"""Explanation of the exact frontier in the chart of adversaries."""


@dataclass(frozen=True)
class AttentionSource:
    """A procedure that yields attention different from the base model's, such as another seed.

    The attributes state which statistics and scores belong to its points on the curve. In ``name``,
    ``label`` and ``model``, ``{key}`` is replaced by the key of a statistic, such as λ.

    Attributes:
        series: Series name in a chart.
        statistic: Statistic prefix. For example, ``one_seed`` selects ``one_seed_jsd``.
        name: Point name in a table; empty if tables omit the points.
        label: Point label in a chart.
        test: Test whose scores contain F1; empty if F1 does not apply.
        model: Model whose F1 belongs to a point; empty for the mean F1 over all models except the
            base model.
    """

    series: str
    statistic: str
    name: str
    label: str = ""
    test: str = ""
    model: str = ""


# Names of the series in the chart of output change against attention distance. "Same states" means
# that the base model's encoder is kept and only its attention is changed.
ADVERSARY_SERIES, SEED_SERIES = "trained adversaries", "other seeds"
UNIFORM_SERIES = "trained with uniform attention"
SEARCH_SERIES, FRONTIER_SERIES = "search, same states", "exact frontier, same states"
CEILING_SERIES = "largest possible JSD"
ATTENTION_SOURCES = (
    AttentionSource(
        ADVERSARY_SERIES,
        "adversary",
        "adversary λ {key:g}",
        "λ {key:g}",
        test="adversary",
        model="adversary {key:g}",
    ),
    AttentionSource(SEED_SERIES, "one_seed", "", "seed {key:g}"),
    AttentionSource(SEED_SERIES, "seed", "another seed", test="seeds"),
    AttentionSource(UNIFORM_SERIES, "uniform_model", UNIFORM_SERIES, test="uniform"),
    AttentionSource(SEARCH_SERIES, "search", "search, ε {key:g}", "ε {key:g}"),
    AttentionSource(FRONTIER_SERIES, "frontier", "exact frontier, ε {key:g}", "ε {key:g}"),
    AttentionSource(CEILING_SERIES, "largest", "largest possible JSD"),
)
"""Procedures that yield attention different from the base model's, in the order in which tables and
chart legends list them."""


@dataclass(frozen=True)
class Point:
    """A point on the curve: attention distance and output change, as means over texts.

    Attributes:
        series: Series name, see :class:`AttentionSource`.
        name: Name in a table; empty for a single seed.
        label: Label in a chart, such as "λ 0.001".
        jsd: Jensen-Shannon divergence from the base model's attention, nats.
        tvd: Output change, as a total variation distance. For the frontier, it is the largest
            change that is allowed. For the largest possible JSD it is NaN, because every change is
            allowed.
        f1: The model's F1; None for points without a trained model.
    """

    series: str
    name: str
    label: str
    jsd: Estimate
    tvd: Estimate
    f1: float | None = None

    @property
    def displayed_change(self) -> float | str:
        """Output change for a table: a number, "≤ ε" for a limit, or "–" if there is no limit."""
        if math.isnan(self.tvd.value):
            return "–"
        return f"≤ {self.tvd.value:g}" if self.series == FRONTIER_SERIES else self.tvd.value


def compute_points(statistics: StatisticList, scores: ScoresByTest) -> list[Point]:
    """Compute the points of a chart that compares changes of the attention with output changes.

    Each point belongs to a model, or to attention weights that were found without training.

    Args:
        statistics: Statistics of a retraining, such as distances between two models.
        scores: Scores of all models, such as F1, by test.

    Returns:
        All points whose statistics exist, in the order of :data:`ATTENTION_SOURCES`, and then by the
        number after the "@", such as λ.
    """
    means = {
        statistic.statistic: statistic
        for statistic in statistics
        if statistic.group == "all" and statistic.n
    }
    points = []
    for source in ATTENTION_SOURCES:
        # A name such as "adversary_jsd@0.001" consists of the statistic and its key, here λ.
        matching_names = [
            name for name in means if name.partition("@")[0] == f"{source.statistic}_jsd"
        ]
        for name in sorted(matching_names, key=get_sort_key):
            key = parse_key(name)
            allowed_change = Estimate(key if isinstance(key, float) else math.nan)
            measured_change = means.get(name.replace("_jsd", "_tvd"))
            point = Point(
                source.series,
                source.name.format(key=key),
                source.label.format(key=key),
                means[name].plain_estimate,
                allowed_change if measured_change is None else measured_change.plain_estimate,
                _find_f1(scores.get(source.test, ()), source.model.format(key=key)),
            )
            points.append(point)
    return points


def _find_f1(scores: Sequence[Score], model: str) -> float | None:
    """Return a model's F1. If ``model`` is empty, return the mean F1 of all models except "base"."""
    f1_scores = [score for score in scores if score.metric == "f1"]
    if model:
        values = [score.value for score in f1_scores if score.model == model]
    else:
        values = [score.value for score in f1_scores if score.model != "base"]
    return sum(values) / len(values) if values else None
