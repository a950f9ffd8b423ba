"""Whether the model is any good: without that there is nothing to explain. Pure."""

import pandas as pd

from hf_attnprobe.auditing.answers.wording import as_finding, said_as, start
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.scores import (
    NumberQuality,
    Quality,
    number_quality,
    quality,
)
from hf_attnprobe.statistics.summary import ALL_TEXTS
from hf_attnprobe.statistics.verdicts import (
    MIN_TEXTS,
    RULES,
    Answer,
    Finding,
    grade,
)
from hf_attnprobe.statistics.wording import Words


ALWAYS_SAYING = {
    "labels": "always saying each label's more frequent side",
    "tags": "always saying the most frequent tag",
    "choice": "always choosing the most frequent place",
}
RIGHT_SHARE = {
    "labels": "The model decides {share} of the labels of a text rightly",
    "tags": "The model gives {share} of the labelled words of a text their tag",
    "span": "The model finds {share} of the starts and ends of the answers",
    "words": "The model's likeliest word is the masked one in {share} of the masks",
}
ALL_RIGHT = {
    "labels": "all of them in {share} of the texts",
    "tags": "all of them in {share} of the texts",
    "span": "both in {share} of the texts (exact match)",
}


def accuracy(predictions: pd.DataFrame, words: Words, seed: int) -> Finding:
    """Whether there is anything to explain."""
    found = quality(predictions, seed=seed)
    if not words.is_number:
        return graded_accuracy(found, words)
    numbers = number_quality(predictions, seed=seed)
    return no_accuracy("") if numbers is None else _numbers(numbers, found)


def no_accuracy(rest: str, why: str = "The texts have no labels.") -> Finding:
    """That there is nothing to grade, and why."""
    sentence = f"Accuracy: cannot say. {why}{rest}"
    return Finding("accuracy", ALL_TEXTS, Answer.CANNOT_SAY, sentence, float("nan"), None, 0)


def _numbers(found: NumberQuality, sides: Quality) -> Finding:
    """Numbers against saying their mean; with a threshold their sides as well."""
    beyond = found.r_squared
    if beyond.value != beyond.value:
        equal = f"All {found.n_labelled} labels are equal, so R² is not defined."
        return no_accuracy("", equal)
    answer = grade(beyond, RULES["accuracy"])
    how = {
        Answer.YES: "which is better than that",
        Answer.NO: "which is not better than that",
        Answer.CANNOT_SAY: f"{_too_few(beyond)}cannot be told from that",
    }[answer]
    sentence = (
        f"{start('accuracy', ALL_TEXTS, answer)} The predicted number is off by "
        f"{said_as(found.error)} on average over {found.n_labelled} texts, always saying "
        f"the labels' mean by {said_as(found.error_of_mean)} (mean absolute error, in the "
        f"labels' own unit). R² is {said_as(beyond)}, where saying the mean has 0, {how}."
    )
    yardsticks = {
        "mean_absolute_error": found.error.value,
        "mean_absolute_error_of_mean": found.error_of_mean.value,
    }
    if sides.accuracy is not None and sides.beyond_majority is not None:
        sentence += (
            f" The side of the threshold is right in {said_as(sides.accuracy)} of "
            f"{sides.n_labelled} texts, always saying the more frequent one in "
            f"{sides.majority:.2f}: {said_as(sides.beyond_majority)} more."
        )
    return as_finding("accuracy", ALL_TEXTS, answer, sentence, beyond, yardsticks)


def graded_accuracy(found: Quality, words: Words) -> Finding:
    """Of decisions against the most frequent one."""
    rule, sure = RULES["accuracy"], found.top_probability
    certainty = f"Its mean {words.likely} is {said_as(sure)}"
    why = "The nearer that is to 1, the less the output shows of small changes."
    if found.accuracy is None:
        return no_accuracy(f" {certainty}. {why}")
    if found.beyond_majority is None:
        no_baseline = "Nothing is known here that it could be compared with."
        return no_accuracy(f" {no_baseline} {certainty}. {why}", f"{_right(found, words)}.")
    beyond = found.beyond_majority
    answer = grade(beyond, rule)
    how = {
        Answer.YES: "more",
        Answer.NO: "more, so not better",
        Answer.CANNOT_SAY: f"more, {_too_few(beyond)}cannot be told from nothing",
    }[answer]
    usual = ALWAYS_SAYING.get(words.kind, "always saying the most frequent class")
    calibration = ""
    if found.calibration_error is not None:
        calibration = f" Its calibration error is {found.calibration_error:.2f}."
    sentence = (
        f"{start('accuracy', ALL_TEXTS, answer)} {_right(found, words)}, {usual} in "
        f"{found.majority:.2f}: {said_as(beyond)} {how}.{calibration} {certainty}. {why}"
    )
    yardsticks = {
        "accuracy": found.accuracy.value,
        "majority": found.majority,
        "top_probability": sure.value,
        "calibration_error": found.calibration_error,
    }
    return as_finding("accuracy", ALL_TEXTS, answer, sentence, beyond, yardsticks)


def _too_few(estimate: Estimate) -> str:
    few = (estimate.n or 0) < MIN_TEXTS
    return f"which with fewer than {MIN_TEXTS} texts " if few else "which "


def _right(found: Quality, words: Words) -> str:
    """How often the model is right, without a full stop."""
    assert found.accuracy is not None  # there are labels
    n = found.n_labelled
    if not found.has_parts:
        return f"The model is right in {said_as(found.accuracy)} of {n} texts"
    pattern = RIGHT_SHARE.get(words.kind, "The model is right in {share} of its parts")
    said = pattern.format(share=said_as(found.accuracy))
    if found.all_met is not None and words.kind in ALL_RIGHT:
        said += f", {ALL_RIGHT[words.kind].format(share=said_as(found.all_met))}"
    return f"{said} (mean over {n} texts)"
