"""Questions about attention that determine the verdict of an audit.

Each question is a single record. It contains the graded number with its thresholds and their source, all
phrases for reports, and the function that measures the number. To add a question, register it here. The
verdict, the reports, comparisons between audits and ``docs/verdicts.md`` all use these records.

The verdict mainly depends on faithfulness, whose parts are measured on the same scale (see
:mod:`~hf_attnprobe.statistics.scale`). If attention has no effect on the output, there is nothing to
explain: a classifier's decision must pass through attention (path share), and a language model's output
must change when its weights are shuffled. Uniqueness is reported in addition and never changes the verdict.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from hf_attnprobe.statistics.estimates import Estimate, estimate_mean
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.grades import (
    Measure,
    Rule,
    make_statistic_measure,
)
from hf_attnprobe.statistics.scale import (
    ANSWER_PARTS,
    DROP,
    ERASURE,
    EXCHANGE_STATISTIC,
    IMPORTANCE,
    MASS,
    MIN_CLASS_TEXTS,
    ORDER,
    REMOVAL,
    SOURCE,
    SOURCE_BASELINES,
    Part,
    compute_contributions,
    compute_faithfulness,
    compute_scale_position,
    estimate_part,
    has_exchanges,
)


# --- Questions and measurements ------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """A measured number that answers a question, with its description.

    Attributes:
        estimate: the number to grade.
        sentences: description of the result in sentences.
        yardsticks: numbers that are printed for comparison, by name; NaN if unknown.
        lower_estimate: lower bound, if ``estimate`` is only an upper bound.
        open_reason: reason why even more texts would not settle the answer.
        is_upper_bound: whether ``estimate`` is only an upper bound.
        averaged_parts: keys of the questions whose numbers were averaged; only for faithfulness.
    """

    estimate: Estimate
    sentences: str
    yardsticks: Mapping[str, float]
    lower_estimate: Estimate | None = None
    open_reason: str = ""
    is_upper_bound: bool = False
    averaged_parts: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Question(Rule):
    """A rule about attention with the function that measures its number.

    Attributes:
        measure_function: function that measures the number from the evidence, given the rule
            with its current thresholds. It returns None if the evidence is not sufficient.
        role: role in the verdict: the deciding "score", a "part" of it, an "effect" without which
            there is nothing to explain, or "additional" information.
        test: faithfulness test that measures the required statistics.
        charts: keys of the charts that display the result.
    """

    measure_function: Callable[[Evidence, Rule], Measurement | None]
    role: Literal["score", "part", "effect", "additional"]
    test: str
    charts: tuple[str, ...] = ()


CLASSIFIER_QUESTIONS: dict[str, Question] = {}
"""Maps the keys of all questions about classifiers, such as "erasure", to the questions.

Questions are added by :func:`register_question`. Reports list them in this order.
"""
ANSWER_QUESTIONS: dict[str, Question] = {}
"""Maps the keys of all questions about language models, such as "source", to the questions.

Questions are added by :func:`register_question`. Reports list them in this order.
"""


MeasureFunction = Callable[[Evidence, Rule], Measurement | None]
"""Function that measures the number by which a question is answered.

It receives everything that was measured for a model, and the rule with the thresholds. It returns None if
required statistics are missing.
"""


def register_question(
    key: str,
    name: str,
    question: str,
    measure: str,
    *,
    groups: Sequence[dict[str, Question]] = (CLASSIFIER_QUESTIONS,),
    **attributes: Any,
) -> Callable[[MeasureFunction], MeasureFunction]:
    """Register a question by decorating the function that measures its number.

    Args:
        key: question key.
        name: one or two words with which the answer begins.
        question: the question.
        measure: description of the number that is graded.
        groups: question dictionaries to which the question is added.
        **attributes: other attributes of :class:`Question`.

    Returns:
        A decorator, which returns the function unchanged.
    """

    def register(measure_function: MeasureFunction) -> MeasureFunction:
        _add_question(key, name, question, measure, measure_function, groups, attributes)
        return measure_function

    return register


def _add_question(
    key: str,
    name: str,
    question: str,
    measure: str,
    measure_function: MeasureFunction,
    groups: Sequence[dict[str, Question]],
    attributes: Mapping[str, Any],
) -> None:
    """Create a :class:`Question` and add it to each of the question dictionaries in ``groups``."""
    for questions in groups:
        questions[key] = Question(
            name, question, measure, measure_function=measure_function, **attributes
        )


THRESHOLD_SOURCE = (
    "thresholds by calibration: models reach them if their attention points to the deciding words in "
    "two fifths or in two thirds of the texts (docs/calibration.md)"
)
"""Source of the two faithfulness thresholds, .4 (partly) and .65 (yes), as printed in reports."""
SCALE_ENDS = {"random order": 0.0, "best order": 1.0}
"""Maps the label of each end of the faithfulness scale to its position on the scale."""
PARTLY_THRESHOLD = 0.4
"""Smallest faithfulness for the answer "partly". A random order has 0, and the best order has 1."""
YES_THRESHOLD = 0.65
"""Smallest faithfulness for the answer "yes". A random order has 0, and the best order has 1."""
PATH_SHARE_THRESHOLD = 0.15
"""Smallest share of the decision that must pass through attention for the answer "yes".

It lies in the middle between the constructed models whose attention does nothing, which have at most .05,
and those whose attention decides, which have at least .27 (docs/calibration.md).
"""
SEED_DEVIATION = 0.04
"""Standard deviation of faithfulness between training seeds, measured on SST (docs/results.md)."""
CLEAR_DIFFERENCE = 0.2
"""Difference between faithfulness by exchange and by deletion from which a report explains it."""
DELETION_NOTE = " If no word can be exchanged, the words are deleted instead."
"""End of the descriptions of all parts that are measured by exchanging words."""
EFFECT_THRESHOLD = 0.05
"""Smallest effect of attention for the answer "yes".

The effect is the output change when the attention weights are shuffled, from 0 to 1. For comparison, it
is .02 if a tenth of the logit depends on attention, and .13 if half of the logit depends on attention.
"""


# --- Faithfulness and its parts ----------------------------------------------------------------


COMPARED_RANKINGS = {
    "product": "attention × gradient",
    "input_gradient": "gradient × input",
    "leave_one_out": "leave-one-out itself",
    "rollout": "attention rollout",
    "last_layer": "attention of the last layer",
    "map": "the fitted map",
    "given": "the user-provided scores",
}
"""Maps each ranking that is compared with attention to its label in reports."""


@register_question(
    "faithfulness",
    "Faithfulness",
    "Does attention show what the predictions are based on?",
    "mean of the measured parts, at least two of importance, erasure, removal and mass (for language "
    "models: order, drop and source); each part is 0 for a random order and 1 for the best order",
    partly=PARTLY_THRESHOLD,
    yes=YES_THRESHOLD,
    source=THRESHOLD_SOURCE,
    procedure="Several tests answer this question for the same texts in different ways. Each result "
    "is a position on a scale from a random order of the {units}, 0, to the best possible order, 1. "
    "Faithfulness is the mean of these positions.",
    scale="position between a random order and the best order",
    if_yes="the {units} with most attention are mostly those that decide the prediction",
    if_partly="attention points to the {units} that decide the prediction more often than not",
    if_no="attention is only {value:.0%} of the way from a random order of the {units} to the best "
    "one, so many of the highlighted {units} do not decide the prediction",
    scale_ends=SCALE_ENDS,
    yardsticks=COMPARED_RANKINGS,
    role="score",
    groups=(CLASSIFIER_QUESTIONS, ANSWER_QUESTIONS),
    test="scale",
    compared_measures=(
        Measure("faithfulness", compute_contributions, excludes_default_classes=True),
        Measure("faithfulness", partial(compute_contributions, parts=ANSWER_PARTS)),
    ),
)
def measure_faithfulness(evidence: Evidence, rule: Rule) -> Measurement | None:
    """Measure the faithfulness of attention, and of other rankings for comparison.

    Texts in default classes are left out, because they contain nothing to explain.
    """
    explained = evidence.explained_evidence
    faithfulness = compute_faithfulness(explained.texts, parts=explained.parts)
    if not faithfulness.score.n:
        return None
    yardsticks = {
        ranking: compute_faithfulness(explained.texts, ranking, explained.parts).score.value
        for ranking in COMPARED_RANKINGS
    }
    part_values = ", ".join(f"{name} {part.value:.2f}" for name, part in faithfulness.parts.items())
    sentence = (
        "On the scale from a random order, 0, to the best order, 1, attention is at "
        f"{faithfulness.score.interval_text} ({rule.threshold_text}): {part_values}."
    )
    notes = [
        _describe_seed_spread(faithfulness.score, rule),
        _describe_deletion(explained, faithfulness.score),
        _describe_default_classes(evidence),
        _describe_class_differences(explained),
    ]
    return Measurement(
        faithfulness.score,
        "".join([sentence, *notes]),
        yardsticks,
        averaged_parts=tuple(faithfulness.parts),
    )


def _describe_seed_spread(score: Estimate, rule: Rule) -> str:
    """Warn that another training seed may get another answer, if a threshold is near.

    Returns:
        A sentence; empty if both thresholds are farther away than two standard deviations.
    """
    distance = min(abs(score.value - threshold) for threshold in rule.thresholds.values())
    if not distance < 2 * SEED_DEVIATION:
        return ""
    return (
        f" A threshold is only {distance:.2f} away, so the same model trained with another seed may "
        f"get another answer (standard deviation between seeds: {SEED_DEVIATION:.2f})."
    )


def _describe_deletion(evidence: Evidence, score: Estimate) -> str:
    """Compare faithfulness by exchange with faithfulness by deletion.

    Returns:
        A sentence; empty if words could not be compared in both ways, or if both ways agree.
    """
    if evidence.words.kind == "answer":
        return ""
    deletion_parts = [part.fallback or part for part in evidence.parts]
    deletion = compute_faithfulness(evidence.texts, parts=deletion_parts).score
    if not deletion.n:
        return ""
    if not has_exchanges(evidence.texts):
        # The statistics exist, but have no values, if the test found no words to insert.
        if EXCHANGE_STATISTIC not in evidence.texts:
            return " Words were deleted, because the test exchange was not run."
        return (
            f" Words were deleted, because they could not be exchanged: no {evidence.words.texts} "
            "with another prediction were available."
        )
    if deletion.ci95 is None or score.ci95 is None:
        return ""
    low, high = deletion.ci95
    is_clearly_higher = low > score.ci95[1] and deletion.value - score.value > CLEAR_DIFFERENCE
    is_clearly_lower = high < score.ci95[0] and score.value - deletion.value > CLEAR_DIFFERENCE
    if not is_clearly_higher and not is_clearly_lower:
        return ""
    reason = (
        "the model reads through some of the attended {units}, but which {units} they are hardly matters"
        if is_clearly_higher
        else "deletion also shifts positions and removes {units} that have copies elsewhere"
    )
    return (
        f" If {evidence.words.units} are deleted instead of exchanged, attention is at "
        f"{deletion.interval_text}: {evidence.words.fill(reason)}."
    )


def _describe_default_classes(evidence: Evidence) -> str:
    """Describe the default classes, which the model predicts unless a text points to another class.

    Returns:
        A sentence with the class names and their share of the texts; empty if there are none.
    """
    if not evidence.default_classes:
        return ""
    names = ", ".join(evidence.default_classes)
    n_explained = len(evidence.explained_evidence.texts)
    share = 1 - n_explained / len(evidence.texts)
    return (
        f" The model predicts {names} by default, so these texts ({share:.0%}) have nothing to "
        "highlight. The number is computed from the other texts."
    )


def _describe_class_differences(evidence: Evidence) -> str:
    """Describe how faithfulness differs between predicted classes.

    Returns:
        A sentence with the faithfulness for each class. It is empty if all confidence intervals
        overlap, because the differences may then be random.
    """
    scores = {}
    for name in evidence.classes:
        class_texts = evidence.select_class(name).texts
        score = compute_faithfulness(class_texts, parts=evidence.parts).score
        if (score.n or 0) >= MIN_CLASS_TEXTS:
            scores[name] = score
    intervals = [score.ci95 for score in scores.values() if score.ci95]
    if not intervals:
        return ""
    # All intervals overlap if the largest lower end is not above the smallest upper end.
    largest_lower_end = max(low for low, _ in intervals)
    smallest_upper_end = min(high for _, high in intervals)
    if largest_lower_end <= smallest_upper_end:
        return ""
    class_scores = ", ".join(
        f"{score.interval_text} in texts predicted {name}" for name, score in scores.items()
    )
    return f" Predicted classes differ: {class_scores}."


def _make_part_measure(part: Part) -> Measure:
    """Create a measure that compares two audits by each text's contribution to a faithfulness part."""
    compute_values = partial(compute_contributions, parts=[part], min_parts=1)
    return Measure(part.key, compute_values, excludes_default_classes=True)


def _build_part_attributes(part: Part, **attributes: Any) -> dict[str, Any]:
    """Build the attributes of a question about a faithfulness part.

    All parts have the same thresholds and the same scale. Keyword arguments are added, and replace
    shared attributes with the same name.
    """
    shared_attributes = {
        "partly": PARTLY_THRESHOLD,
        "yes": YES_THRESHOLD,
        "scale": "position between a random order and the best order",
        "scale_ends": SCALE_ENDS,
        "role": "part",
        "compared_measures": (_make_part_measure(part),),
    }
    return shared_attributes | attributes


SupportingMeans = Mapping[str, tuple[str, str]]
"""Means that reports print next to the score of a faithfulness part.

Maps the short name of each mean, such as "random", to a statistic and its description, such as
``("removal@random", "loss without random tokens")``.
"""


@dataclass(frozen=True)
class PartDescription:
    """Description of the result of a faithfulness part.

    Attributes:
        template: result in sentences. Its placeholders are ``score`` (the estimate), ``amount``
            (the unit of a loss), ``unit`` (the unit of an output change, empty unless the
            output is a number) and the names in ``supporting_means`` (further estimates).
        supporting_means: statistics whose means are printed next to the part.
    """

    template: str
    supporting_means: SupportingMeans


def _register_part_question(
    key: str,
    part: Part,
    name: str,
    question: str,
    measure: str,
    *,
    description: PartDescription,
    deletion_description: PartDescription | None = None,
    groups: Sequence[dict[str, Question]] = (CLASSIFIER_QUESTIONS,),
    **attributes: Any,
) -> None:
    """Register a question about a faithfulness part, with a generated measuring function.

    Args:
        key: question key.
        part: faithfulness part that is graded.
        name: one or two words with which the answer begins.
        question: the question.
        measure: description of the number that is graded.
        description: description of the result.
        deletion_description: description of the result if words were deleted instead of exchanged.
        groups: question dictionaries to which the question is added.
        **attributes: other attributes of :class:`Question`.
    """

    def measure_part(evidence: Evidence, rule: Rule) -> Measurement | None:
        explained = evidence.explained_evidence
        score = estimate_part(explained.texts, part)
        if not score.n:
            return None
        used = description
        if deletion_description is not None and not has_exchanges(explained.texts):
            used = deletion_description
        means = {
            name: explained.estimate_mean(statistic)
            for name, (statistic, _) in used.supporting_means.items()
        }
        amount = explained.words.standard_amount
        unit = f" {amount}" if explained.words.is_number else ""
        sentences = used.template.format(score=score, amount=amount, unit=unit, **means)
        yardsticks = {name: mean.value for name, mean in means.items()}
        return Measurement(score, sentences, yardsticks)

    supporting_means = dict(description.supporting_means)
    if deletion_description is not None:
        supporting_means |= deletion_description.supporting_means
    labels = {name: label for name, (_, label) in supporting_means.items()}
    part_attributes = _build_part_attributes(part, yardsticks=labels, **attributes)
    _add_question(key, name, question, measure, measure_part, groups, part_attributes)


LEAVE_ONE_OUT_MEANS: SupportingMeans = {
    "precision": (
        "attention_leave_one_out_precision",
        "precision for the tokens that make up half of the leave-one-out importance",
    ),
    "tau": (
        "attention_leave_one_out_tau",
        "Kendall's τ of attention and leave-one-out, which weights all pairs equally",
    ),
    "gradient": (
        "gradient_leave_one_out_tau",
        "Kendall's τ of gradients and leave-one-out",
    ),
}
"""Published statistics about leave-one-out that are printed next to importance."""

_register_part_question(
    "importance",
    IMPORTANCE,
    "Importance",
    "Do words with more attention matter more?",
    "Gini correlation of attention with the output change when each word is exchanged for a word of a "
    "text with another prediction, at the standard temperature, mean over texts; if no word can be "
    "exchanged, with the loss when each word is left out",
    description=PartDescription(
        "Attention scores {score.interval_text} in ranking the words by how much the output changes "
        "when they are exchanged (1 is the best order, 0 a random one).",
        LEAVE_ONE_OUT_MEANS,
    ),
    deletion_description=PartDescription(
        "Attention scores {score.interval_text} in ranking the words by how much they matter when "
        "left out (1 is the best order, 0 a random one).",
        LEAVE_ONE_OUT_MEANS,
    ),
    source="like the comparison with leave-one-out in Jain & Wallace 2019, Section 4.1, but weighted by "
    "importance (Schechtman & Yitzhaki 1987) and with exchanged instead of deleted words; "
    + THRESHOLD_SOURCE,
    procedure="Each word is exchanged for a word of another text that the model predicts otherwise. The "
    "new word has the same rank by attention in its text. The change of {prediction} shows how much "
    "the word matters. The score shows how well attention ranks the words that matter first."
    + DELETION_NOTE,
    # The clauses hold for exchanged and for deleted words.
    if_yes="{units} with more attention matter more for the prediction",
    if_partly="{units} with more attention often matter more for the prediction",
    if_no="attention hardly shows which {units} matter for the prediction",
    test="exchange",
    charts=("tau_leave_one_out", "tau_gradient"),
)


@register_question(
    "erasure",
    "Erasure",
    "Does the decision depend on the largest weights?",
    "(random − attention) / (random − smallest set), computed from the mean share of the weights that "
    "must be erased before the decision loses nine tenths of its margin; multiplied by the share of "
    "texts in which any order achieves this",
    **_build_part_attributes(
        ERASURE,
        source="Serrano & Smith 2019, Section 5; nine tenths of the margin replace the flip, which "
        "noise in the unimportant tokens can cause; " + THRESHOLD_SOURCE,
        procedure="Attention weights are set to 0 one after the other, the largest first, until "
        "nine tenths of the decision's margin are lost. This is repeated with random orders and "
        "with the smallest set of weights that is sufficient. A text in which no order is "
        "sufficient counts as 0.",
        if_yes="setting the largest weights to zero undermines the decision",
        if_partly="setting the largest weights to zero undermines the decision sooner than setting "
        "random ones to zero",
        if_no="setting the largest weights to zero undermines the decision {little} sooner than "
        "setting random ones to zero",
        yardsticks={
            "attention": "share of tokens erased in the order of attention",
            "random": "share of tokens erased in a random order",
            "smallest": "share of tokens in the smallest set",
            "reached": "share of texts in which some order removes nine tenths of the margin",
            "flip way": "the same score for erasing until the decision flips (Serrano & Smith)",
        },
        test="erasure",
        charts=("js_against_attention", "fraction_to_flip"),
    ),
)
def measure_erasure(evidence: Evidence, rule: Rule) -> Measurement | None:
    """Measure how many of the largest weights must be erased to undermine the decision.

    The number is compared with random orders, and with the smallest set of weights.
    """
    explained = evidence.explained_evidence
    score = estimate_part(explained.texts, ERASURE)
    if not score.n:
        return None
    names = ERASURE.format_statistic_names("attention")
    random, attention, smallest = map(explained.estimate_mean, names)
    reached = explained.estimate_mean("lead_is_lost")
    flip_score = explained.estimate_function(FLIP_STATISTICS, compute_scale_position)
    yardsticks = {
        "attention": attention.value,
        "random": random.value,
        "smallest": smallest.value,
        "reached": reached.value,
        "flip way": flip_score.value,
    }
    sentences = ""
    if attention.n:
        sentences = (
            "Until nine tenths of the margin are lost, erasing in the order of attention removes "
            f"{attention.value:.2f} of the tokens, a random order {random.value:.2f}, and the "
            f"smallest known set {smallest.value:.2f}. "
        )
    sentences += (
        "On the scale from a random order to the smallest set, attention scores "
        f"{score.interval_text}."
    )
    if reached.value < 0.995:
        sentences += (
            f" In {1 - reached.value:.0%} of the texts no order of the weights removes the margin; "
            "these texts count as 0."
        )
    return Measurement(score, sentences, yardsticks)


FLIP_STATISTICS = (
    "fraction_to_flip@random",
    "fraction_to_flip@attention",
    "minimal_fraction",
)
"""Statistics that measure how many attention weights must be erased until the decision flips.

They are the shares of weights in a random order, in the order of attention, and in the smallest set of
weights that flips the decision.
"""


_register_part_question(
    "removal",
    REMOVAL,
    "Removal",
    "Does the prediction depend on the words with most attention?",
    "(attention − random) / (best − random), from the mean output changes when the first 1, 5, 10, 20 "
    "and 50% of the words of an order are exchanged, at the standard temperature; if no word can be "
    "exchanged, from the losses without these words",
    description=PartDescription(
        "Exchanging the words with most attention changes the output by {attention.value:.2f}{unit}, "
        "exchanging as many random words by {random.value:.2f}, and those of the best known order by "
        "{best.value:.2f}. On the scale from random to best, attention scores {score.interval_text}.",
        {
            "attention": (
                "exchange_removal@attention",
                "output change without the words with most attention",
            ),
            "random": ("exchange_removal@random", "output change without random words"),
            "best": (
                "exchange_removal@best",
                "output change without the first words of the best known order",
            ),
        },
    ),
    deletion_description=PartDescription(
        "Without the words with most attention the prediction loses {attention.value:.2f} {amount}, "
        "without as many random words {random.value:.2f}, and without those of the best known order "
        "{best.value:.2f}. On the scale from random to best, attention scores {score.interval_text}.",
        {
            "attention": ("removal@attention", "loss without the words with most attention"),
            "random": ("removal@random", "loss without random words"),
            "best": ("removal@best", "loss without the first words of the best known order"),
        },
    ),
    source="like the comprehensiveness of DeYoung et al. 2020, normalised as in Edin et al. 2025, but "
    "with exchanged instead of deleted words; " + THRESHOLD_SOURCE,
    procedure="The words with most attention are exchanged together for words of a text that the model "
    "predicts otherwise. The change of the output is compared with that for as many random words, and "
    "with the largest change that any known order causes." + DELETION_NOTE,
    if_yes="the prediction depends on the most attended {units}",
    if_partly="the prediction depends more on the most attended {units} than on random ones",
    if_no="the prediction depends {little} more on the most attended {units} than on random ones",
    test="exchange",
    charts=("comprehensiveness", "sufficiency"),
)


_register_part_question(
    "mass",
    MASS,
    "Mass",
    "Is attention distributed over the words in proportion to their importance?",
    "(overlap − chance) / (1 − chance), from the mean overlaps of the attention weights with the output "
    "changes when each word is exchanged; if no word can be exchanged, with the losses when each word "
    "is left out",
    description=PartDescription(
        "The distribution of attention over the words overlaps with that of the output changes by "
        "{overlap.value:.0%}; the same weights on random words would overlap by {chance.value:.0%}. "
        "On the scale from this chance level, 0, to a complete overlap, 1, attention scores "
        "{score.interval_text}.",
        {
            "overlap": (
                "exchange_mass@attention",
                "overlap of attention with the importance of the words",
            ),
            "chance": (
                "exchange_mass_by_chance@attention",
                "overlap of the same weights on random words",
            ),
        },
    ),
    deletion_description=PartDescription(
        "The distribution of attention over the words overlaps with that of their importance by "
        "{overlap.value:.0%}; the same weights on random words would overlap by {chance.value:.0%}. "
        "On the scale from this chance level, 0, to a complete overlap, 1, attention scores "
        "{score.interval_text}.",
        {
            "overlap": ("mass@attention", "overlap of attention with the importance of the words"),
            "chance": ("mass_by_chance@attention", "overlap of the same weights on random words"),
        },
    ),
    source="overlap is 1 − total variation; " + THRESHOLD_SOURCE,
    procedure="A map of a text should show how much each word matters, as a share of the total. The "
    "overlap of attention with these shares is compared with the overlap of the same weights on random "
    "words. A word matters as much as the output changes if it is exchanged." + DELETION_NOTE,
    if_yes="attention is distributed over the {units} in proportion to their importance",
    if_partly="some of the attention is on {units} that matter, and some on others",
    if_no="much of the attention is on {units} that do not matter",
    test="exchange",
)


# --- Path share -----------------------------------------------------------------------------------


@register_question(
    "path_share",
    "Path share",
    "How much of the decision passes through the attention pattern?",
    "1 − margin of the decision with even weights / margin with the model's weights, between 0 and 1, "
    "mean over texts (predicted numbers: change with even weights in standard deviations of the "
    "predictions, at most 1)",
    partly=PATH_SHARE_THRESHOLD,
    yes=PATH_SHARE_THRESHOLD,
    source="in constructed models, the number equals the known share; .15 is the middle between attention "
    "that does nothing (at most .05) and attention that decides (at least .27) (docs/calibration.md)",
    procedure="All {units} of a text get the same attention weight. The margin is the log-probability "
    "of the predicted class minus that of the best other class. If the decision is read through "
    "attention, the margin shrinks. If it bypasses attention, the margin stays, and attention explains "
    "nothing, however well it ranks the {units}.",
    scale="share of the decision that passes through attention",
    if_yes="a substantial part of the decision passes through attention",
    if_no="hardly any of the decision passes through attention",
    scale_ends={"bypasses attention": 0.0, "passes through attention": 1.0},
    yardsticks={"output": "change of the output with even weights (total variation)"},
    role="effect",
    groups=(CLASSIFIER_QUESTIONS,),
    test="uniform_attention",
    compared_measures=(
        make_statistic_measure(
            "share of the decision that passes through attention",
            "path_share",
            excludes_default_classes=True,
        ),
    ),
)
def measure_path_share(evidence: Evidence, rule: Rule) -> Measurement | None:
    """Measure the share of the decision that passes through the attention pattern."""
    explained = evidence.explained_evidence
    share = explained.estimate_mean("path_share")
    if not share.n:
        return None
    sentences = (
        f"{share.value:.0%} of the decision passes through attention ({share.interval_text}, "
        f"{rule.threshold_text})."
    )
    # The output change is known for every text that the test has reached.
    is_reached = ~np.isnan(explained.get_values("uniform_tvd"))
    n_single = int((is_reached & np.isnan(explained.get_values("path_share"))).sum())
    if n_single:
        sentences += (
            f" {explained.words.format_text_count(n_single)} with a single word left out, because "
            "weights on one word have no pattern."
        )
    output_change = explained.estimate_mean("uniform_tvd")
    return Measurement(share, sentences, {"output": output_change.value})


# --- Effect and uniqueness -----------------------------------------------------------------------


@register_question(
    "effect",
    "Effect",
    "Does it matter which token has which weight?",
    "median change of the output over shuffles of the weights, at the standard temperature "
    "(total variation, 0 to 1; for numbers in standard deviations of the predictions)",
    partly=EFFECT_THRESHOLD,
    yes=EFFECT_THRESHOLD,
    source="Jain & Wallace 2019, Section 4.2.1; all constructed models in which attention decides "
    "change more, and all in which it does nothing change less (docs/calibration.md)",
    procedure="The weights of a text are shuffled among its tokens many times. If it matters which "
    "token has which weight, the output changes. Attention without an effect explains nothing, "
    "however well it ranks the tokens.",
    scale="change of the output by the median shuffle",
    if_yes="the output depends on which of the {units} has which weight",
    if_no="shuffling the weights hardly changes the output",
    scale_ends={"no change": 0.0},
    yardsticks={
        "worst": "change of the output by the worst shuffle",
        "flips": "share of shuffles that flip the decision",
        "published": "median change of the output at the model's own temperature (Jain & Wallace)",
    },
    role="effect",
    groups=(CLASSIFIER_QUESTIONS, ANSWER_QUESTIONS),
    test="permutation",
    charts=("permutation_by_max_attention",),
    compared_measures=(
        make_statistic_measure(
            "change of the output under shuffled attention",
            "standard_tvd",
            excludes_default_classes=True,
        ),
    ),
)
def measure_effect(evidence: Evidence, rule: Rule) -> Measurement | None:
    """Measure the effect of attention: the output change if its weights are shuffled.

    The graded number is the median change over many shuffles, averaged over texts.
    """
    explained = evidence.explained_evidence
    change = explained.estimate_mean("standard_tvd")
    worst_change = explained.estimate_mean("largest_standard_tvd")
    if not change.n:
        return None
    flips = explained.estimate_mean("flips_drawn")
    yardsticks = {
        "worst": worst_change.value,
        "flips": flips.value,
        "published": explained.estimate_mean("median_tvd").value,
    }
    sentences = (
        f"The median shuffle of the weights changes the output by {change.interval_text} at the "
        f"standard temperature, and the worst shuffle by {worst_change.interval_text} "
        f"({rule.threshold_text})."
    )
    if flips.n:
        sentences += f" {flips.value:.0%} of the shuffles flip {evidence.words.decision}."
    return Measurement(change, sentences, yardsticks)


@register_question(
    "uniqueness",
    "Uniqueness",
    "Is this attention the only one that gives this output?",
    "1 − the distance of the farthest attention within ε = .01 as a share of the largest possible "
    "distance, mean over texts; a yes needs an upper bound of this distance",
    partly=0.42,
    yes=0.75,
    source="Jain & Wallace 2019, Section 4.2.2 (ε); .42 = 1 − .40 / ln 2, from the distance of "
    "trained adversaries (Wiegreffe & Pinter 2019, Table 4); .75 is our choice. This question does "
    "not decide the verdict: another attention with the same output does not make the model's "
    "attention wrong (Wiegreffe & Pinter 2019, Section 2)",
    procedure="Among all attention that changes the output by at most ε = {epsilon_text}, the one "
    "that is farthest from the model's attention is searched. The distance is the Jensen-Shannon "
    "divergence (JSD): 0 means the same attention, and .69 = ln 2 means attention to entirely "
    "different tokens. The graded number shows how strictly the output determines the weights: 0 "
    "not at all, 1 completely.",
    scale="how strictly the output determines the weights",
    if_yes="very different weights would change the output",
    if_partly="quite different weights would give nearly the same output",
    if_no="very different weights would give nearly the same output",
    scale_ends={"any attention works": 0.0, "only this attention works": 1.0},
    yardsticks={
        "largest_jsd": "largest possible JSD",
        "epsilon_max_jsd": "JSD of the farthest attention with nearly the same output",
        "upper_bound": "upper bound of this JSD, as a share of the largest possible one",
    },
    role="additional",
    groups=(CLASSIFIER_QUESTIONS, ANSWER_QUESTIONS),
    test="adversarial",
    charts=("adversarial_distance", "adversarial_by_max_attention"),
    compared_measures=(
        make_statistic_measure(
            "1 − the distance of the farthest attention that was found within ε, as a share of the "
            "largest possible distance",
            "share_of_largest@0.01",
            lambda share: 1 - share,
        ),
    ),
)
def measure_uniqueness(evidence: Evidence, rule: Rule) -> Measurement | None:
    """Measure uniqueness: 1 minus the distance to the farthest attention with nearly the same output."""
    share = evidence.estimate_mean("share_of_largest@0.01")
    if not share.n:
        return None
    upper_share = evidence.estimate_mean("share_of_largest_upper@0.01")
    is_exact = evidence.estimate_mean("epsilon_max_jsd_exact").value == 1
    highest = subtract_from_one(share)
    if is_exact:
        lowest, bound_note = highest, "exact"
    elif upper_share.n:
        lowest = subtract_from_one(upper_share)
        bound_note = f"certainly at most {upper_share.interval_text} of it"
    else:
        # Uniqueness is never below 0. This bound needs no texts, so its n exceeds any minimum.
        lowest = Estimate(0.0, (0.0, 0.0), n=10**9)
        bound_note = "no upper bound is known"
    farthest_jsd = evidence.estimate_mean("epsilon_max_jsd@0.01")
    largest_jsd = evidence.estimate_mean("largest_jsd")
    at_least = "" if is_exact else "at least "
    other_influence = "how saturated the output is"
    if evidence.words.is_number:
        other_influence = "how little the number varies with attention at all"
    sentences = (
        "The farthest attention that changes the output by at most "
        f"{evidence.words.epsilon_text} reaches {at_least}{share.interval_text} of the largest "
        f"possible distance, on average over texts (JSD {farthest_jsd.value:.2f} of "
        f"{largest_jsd.value:.2f}; {bound_note}). The share also depends on {other_influence}."
    )
    has_no_bound = not is_exact and not upper_share.n and highest.value >= rule.partly
    return Measurement(
        highest,
        sentences,
        {
            "largest_jsd": largest_jsd.value,
            "epsilon_max_jsd": farthest_jsd.value,
            "upper_bound": upper_share.value,
        },
        lower_estimate=lowest,
        open_reason=(
            "the search found no very different weights with nearly the same output, but it may have "
            "missed some"
            if has_no_bound
            else ""
        ),
        is_upper_bound=not is_exact,
    )


def subtract_from_one(estimate: Estimate) -> Estimate:
    """Compute 1 − estimate, including the confidence interval.

    Args:
        estimate: the estimate to subtract.

    Returns:
        The difference; the same estimate if it has no interval.
    """
    if estimate.ci95 is None:
        return estimate
    low, high = estimate.ci95
    return Estimate(1 - estimate.value, (1 - high, 1 - low), estimate.n)


# --- Language models that answer from a passage --------------------------------------------------


UNIT_DEFINITION = (
    "The units are the parts of the passage, such as its sentences. Everything else stays fixed. "
)
"""Definition of "unit" that begins the description of each test for language models."""


BASELINE_LABELS = {
    "chance": "a random unit",
    "longest": "the longest unit",
    "first": "the first unit",
    "last": "the last unit",
    "commonest place": "the unit at the most common position",
}
"""Maps each baseline to the unit of a passage that it guesses to be the source of an answer."""
ANSWER_LOSS_STATISTICS = ("lost_by_knockout", "lost_by_deletion")
"""Statistics that measure the loss of an answer's log-probability without its important units.

These units are either hidden by blocking attention to them (knockout), or deleted from the text.
"""


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide two arrays elementwise; the result is NaN for denominators that are not positive."""
    return numerator / np.where(denominator > 0, denominator, np.nan)


def _compute_mediated_share(means: np.ndarray) -> np.ndarray:
    """Compute the share of a unit's influence that reaches the answer through attention to the unit.

    This mediated share is the answer's loss if attention to the unit is blocked (knockout), divided
    by its loss if the unit is deleted.

    Args:
        means: mean loss by knockout and mean loss by deletion, [..., 2].

    Returns:
        Shares, [...].
    """
    knockout_loss, deletion_loss = np.moveaxis(means, -1, 0)
    return _divide(knockout_loss, deletion_loss)


_register_part_question(
    "order",
    ORDER,
    "Order",
    "Do units with more attention cost the answer more when they are deleted?",
    "Gini correlation of attention with the nats that the answer loses without each unit, mean "
    "over texts with more than 4 units",
    description=PartDescription(
        "Attention scores {score.interval_text} in ranking the units by how much their deletion "
        "costs the answer (1 is the best order, 0 chance); a ranking by length would score "
        "{length.value:.2f}.",
        {
            "tau": (
                "source_tau@attention",
                "Kendall's τ of attention and deletion, which weights all pairs equally",
            ),
            "length": (
                "source_agreement@length",
                "score of a ranking by the length of the units",
            ),
        },
    ),
    source="like the importance of a classifier, in nats; " + THRESHOLD_SOURCE,
    procedure=UNIT_DEFINITION
    + "Each unit is deleted in turn. The fall of the answer's log-probability "
    "shows how much the answer depends on the unit. The score shows how well attention ranks the "
    "most important units first.",
    if_yes="{units} with more attention cost the answer more when they are deleted",
    if_partly="{units} with more attention often cost the answer more when they are deleted",
    if_no="attention hardly shows which {units} cost the answer most when they are deleted",
    groups=(ANSWER_QUESTIONS,),
    test="sources",
)


_register_part_question(
    "drop",
    DROP,
    "Drop",
    "Does the answer lose more without the units with most attention than without other units?",
    "nats that the answer loses without the 1, 3 and 5 units with most attention (top-k drop), on a "
    "scale from the loss without random units, 0, to the largest loss of any order that was tried, "
    "1; computed from means over texts with at least twice as many units",
    description=PartDescription(
        "Without the units with most attention the answer loses {attention.interval_text} nats, "
        "without as many random units {random.interval_text}, and at most {best.interval_text}. On the "
        "scale from random to best, attention is at {score.interval_text}.",
        {
            "attention": (
                "drop@attention",
                "nats lost without the units with most attention",
            ),
            "random": ("drop@random", "nats lost without as many random units"),
            "best": ("drop@best", "nats lost without the best units"),
        },
    ),
    source="ContextCite (Cohen-Wang et al. 2024), between random units and the best units; "
    + THRESHOLD_SOURCE,
    procedure=UNIT_DEFINITION
    + "The units with most attention are deleted together. The loss is compared "
    "with the loss without as many random units, and without the units whose single deletion costs "
    "most.",
    if_yes="deleting the most attended {units} undermines the answer",
    if_partly="deleting the most attended {units} costs more than deleting random ones",
    if_no="deleting the most attended {units} costs {little} more than deleting random ones",
    groups=(ANSWER_QUESTIONS,),
    test="sources",
)


@register_question(
    "source",
    "Source",
    "Does attention find the unit on which the answer is based?",
    "share of texts in which the unit with most attention is the unit whose deletion costs the "
    "answer most (precision@1), on a scale from the largest share of a baseline (chance, the longest, "
    "the first or the last unit, or the most common position), 0, to always, 1; computed from means "
    "over texts",
    **_build_part_attributes(
        SOURCE,
        source="leave-one-out as the reference: ContextCite (Cohen-Wang et al. 2024), AttriBoT "
        "(Liu et al. 2024); " + THRESHOLD_SOURCE,
        procedure=UNIT_DEFINITION + "Each unit is deleted in turn. The fall of the answer's "
        "log-probability shows how much the answer depends on the unit. Attention finds the source "
        "if its largest weight is on the unit that costs most. Long units collect weight because of "
        "their length, and first units because of their position. Therefore the best baseline "
        "without attention counts as 0.",
        if_yes="the most attended of the {units} is the one on which the answer is based",
        if_partly="attention finds the source more often than a simple rule",
        if_no="attention finds the source {little} more often than a simple rule",
        scale_ends={"best baseline": 0.0, "always": 1.0},
        yardsticks={
            "found": "share of texts in which attention finds the source",
            **{name: f"the same share for {label}" for name, label in BASELINE_LABELS.items()},
        },
        groups=(ANSWER_QUESTIONS,),
        test="sources",
    ),
)
def measure_source(evidence: Evidence, rule: Rule) -> Measurement | None:
    """Measure how often the most attended unit is the one on which the answer is based.

    The graded number is 0 if attention is as good as the best baseline, and 1 if it is always right.
    """
    score = estimate_part(evidence.texts, SOURCE)
    if not score.n:
        return None
    hit_share = estimate_mean(evidence.get_values("source_found@attention"), share=True)
    baselines = {
        name: evidence.estimate_mean(statistic).value
        for name, statistic in SOURCE_BASELINES.items()
    }
    best_baseline = max(baselines, key=lambda name: baselines[name])
    sentences = (
        "The unit with most attention is the unit on which the answer is based in "
        f"{hit_share.interval_text} of {hit_share.n} texts. The best baseline without attention, "
        f"{BASELINE_LABELS[best_baseline]}, finds it in {baselines[best_baseline]:.2f} of the texts. "
        f"On the scale from this baseline to always, attention is at {score.interval_text}."
    )
    return Measurement(score, sentences, {"found": hit_share.value, **baselines})


@register_question(
    "path",
    "Path",
    "Do the important units act through attention to them?",
    "loss of the answer if attention to the important units is blocked, divided by its loss without "
    "these units (mediated share), not clipped; computed from sums over texts",
    partly=0.3,
    yes=0.5,
    source="attention knockout: Geva et al. 2023, Section 5; " + THRESHOLD_SOURCE,
    procedure=UNIT_DEFINITION
    + "A unit is important if its deletion costs the answer more than noise. "
    "The attention weights of the unit are set to 0 in all later rows and all layers, and the rest "
    "of each row is divided by its sum. The loss of the answer is compared with its loss without the "
    "unit. The difference has reached the answer through other tokens.",
    scale="loss by blocking attention to the units, as a share of the loss by deleting them",
    if_yes="blocking attention to {units} costs most of what deleting them costs",
    if_partly="blocking attention to {units} costs some of what deleting them costs",
    if_no="blocking attention to {units} costs little of what deleting them costs",
    scale_ends={"no loss": 0.0, "same loss as deletion": 1.0},
    yardsticks={
        "knockout": "largest loss by blocking attention to a single unit, in nats",
        "units": "number of important units per text",
    },
    role="effect",
    groups=(ANSWER_QUESTIONS,),
    test="knockout",
    compared_measures=(
        _make_part_measure(Part("mediated share", ANSWER_LOSS_STATISTICS, _compute_mediated_share)),
    ),
)
def measure_path(evidence: Evidence, rule: Rule) -> Measurement | None:
    """Measure how much of an important unit's influence reaches the answer through attention to it.

    This is the loss of the answer if attention to the unit is blocked, divided by its loss if the
    unit is deleted.
    """
    share = evidence.estimate_function(ANSWER_LOSS_STATISTICS, _divide)
    if not share.n:
        return None
    n_units = evidence.estimate_mean("units_that_matter")
    largest_loss = evidence.estimate_mean("largest_knockout@renormalised")
    sentences = (
        f"Deleting {n_units.value:.1f} units per prompt costs the answer more than noise. Blocking "
        f"attention to these units costs {share.interval_text} of that ({rule.threshold_text})."
    )
    return Measurement(share, sentences, {"knockout": largest_loss.value, "units": n_units.value})


# A classifier's effect is reported, but its path share decides: the effect of a shuffle also depends on
# the number of classes, and a joint shuffle of several heads can repair itself.
CLASSIFIER_QUESTIONS["effect"] = replace(CLASSIFIER_QUESTIONS["effect"], role="additional")

ALL_QUESTIONS = {**CLASSIFIER_QUESTIONS, **ANSWER_QUESTIONS}
"""All questions about attention, for classifiers and for language models, keyed by a short name."""
