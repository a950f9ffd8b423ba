"""What an audit says: every question of ``RULES`` with its answer. Pure: rows in.

An answer is about the model's attention as a whole: of a model with one head that head,
of one with many all heads at once, where they were edited together. Rules, thresholds
and their sources, and how the answers make a verdict, are in ``statistics/verdicts.py``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import (
    MIN_SHOWN,
    Estimate,
    share_interval,
)
from hf_attnprobe.statistics.evidence import Evidence, evidence_of
from hf_attnprobe.statistics.grades import (
    MIN_PROMPTS,
    MIN_TEXTS,
    Answer,
    Rule,
    either,
    grade,
    possible_answers,
)
from hf_attnprobe.statistics.questions import EVERY_QUESTION
from hf_attnprobe.statistics.rows import Rows, Texts
from hf_attnprobe.statistics.scores import (
    NumberQuality,
    Quality,
    number_quality,
    quality,
)
from hf_attnprobe.statistics.summary import (
    Statistic,
    predictions_of,
)
from hf_attnprobe.statistics.verdicts import (
    ANSWERS,
    CLASSIFIERS,
    MAY,
    RULES,
    Asked,
    Finding,
    answered,
    by_rule,
    conclude,
    finding,
    too_few,
)
from hf_attnprobe.statistics.wording import CLASSES, Words


QUESTION = "Does attention explain these predictions?"


def findings(
    rows: Rows | pd.DataFrame,
    label_names: Sequence[str],
    *,
    seed: int = 0,
    words: Words = CLASSES,
    rules: Mapping[str, Rule] = RULES,
) -> tuple[Finding, ...]:
    """The questions that the rows answer, in the order of the rules.

    Args:
        rows: of the audit.
        label_names: names of the classes.
        seed: of the resamples behind R².
        words: of the kind of prediction.
        rules: by which the questions about attention are graded.
    """
    evidence = evidence_of(rows, label_names, words=words)
    predictions = predictions_of(rows)
    return findings_from(evidence, predictions, words=words, seed=seed, rules=rules)


def findings_from(
    evidence: Evidence | None,
    predictions: Texts,
    *,
    words: Words = CLASSES,
    seed: int = 0,
    rules: Mapping[str, Rule] = RULES,
) -> tuple[Finding, ...]:
    """As :func:`findings`, of evidence at hand.

    Args:
        predictions: of :func:`~hf_attnprobe.statistics.summary.predictions_of`.
    """
    asked = ANSWERS if words.kind == "answer" else CLASSIFIERS
    if asked is ANSWERS:
        before = [own_answers(evidence), passage(evidence)]
    else:
        before = [accuracy(predictions, words, seed)]
    if evidence is None:
        return tuple(before)
    return (*before, *findings_about_attention(evidence, rules, asked))


def findings_about_attention(
    evidence: Evidence,
    rules: Mapping[str, Rule] = RULES,
    asked: Asked = CLASSIFIERS,
) -> Iterator[Finding]:
    """A finding for each question that the evidence has the numbers of.

    Args:
        evidence: of all texts.
        rules: by which they are graded.
        asked: the questions.
    """
    for key in asked.questions:
        rule = rules[key]
        measured = EVERY_QUESTION[key].measured(evidence, rule)
        if measured is not None:
            yield answered(key, rule, measured, asked.least_texts)


def conclusion(found: Sequence[Finding]) -> Answer:
    """The answer to whether attention explains the predictions.

    "cannot say" of a model that is not shown to be better than the majority: there is
    nothing worth an explanation. Accuracy is no evidence for attention otherwise.
    """
    return conclude(found).answer


def conclusion_sentence(found: Sequence[Finding], words: Words = CLASSES) -> str | None:
    """The question and its answer, with what it rests on; None without evidence."""
    if not any(f.is_about_attention for f in found):
        return None
    concluded = conclude(found)
    score = concluded.score
    number = "" if score is None else f" ({score.name.lower()} {score.number})"
    answer = str(concluded.answer).capitalize()
    return f"{QUESTION} {answer}. {answer_sentence(found, words).rstrip('.')}{number}."


def zero_ablation_only(statistics: Sequence[Statistic]) -> str | None:
    """A note for models whose heads support zero ablation only."""
    names = {s.statistic for s in statistics if s.is_of_head}
    if "zero_tvd" not in names or "mean_tvd" in names:
        return None
    return (
        "Ablation: heads could only be zero-ablated, not replaced: of this kind of "
        "model the output of a single head cannot be set to its mean or to that of "
        "another text, so the effects of zero ablation may exceed what the heads "
        "carry."
    )


# --- accuracy: without it there is nothing to explain --------------------------------

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


def accuracy(predictions: Texts, words: Words, seed: int = 0) -> Finding:
    """Whether there is anything to explain.

    Args:
        predictions: of :func:`~hf_attnprobe.statistics.summary.predictions_of`.
        words: of the kind of prediction.
        seed: of the resamples behind R².
    """
    found = quality(predictions)
    if not words.is_number:
        return graded_accuracy(found, words)
    numbers = number_quality(predictions, seed=seed)
    return no_accuracy() if numbers is None else _numbers(numbers, found)


def no_accuracy(why: str = "the texts have no labels", rest: str = "") -> Finding:
    """That there is nothing to grade, and why.

    Args:
        why: a clause.
        rest: what else is known, in sentences.
    """
    said = f"{why[0].upper()}{why[1:]}.{f' {rest}' if rest else ''}"
    nothing = Estimate(float("nan"), None, 0)
    found = _accuracy(Answer.CANNOT_SAY, said, nothing, {})
    return replace(found, open_because=why)


def _accuracy(
    answer: Answer,
    said: str,
    number: Estimate,
    yardsticks: Mapping[str, float | None],
) -> Finding:
    return finding("accuracy", RULES["accuracy"], answer, said, number, yardsticks)


NOT_MEASURED = Estimate(float("nan"), None, 0)


def own_answers(evidence: Evidence | None) -> Finding:
    """Whether the answers are the model's own: what follows is of those that are."""
    share = None if evidence is None else evidence.own_answers
    rule = RULES["own"]
    if share is None:
        said = "Whether the model says the answers itself was not measured (test sources)."
        return finding("own", rule, Answer.CANNOT_SAY, said, NOT_MEASURED, {})
    said = (
        f"The model itself says the answer in {share.said} of {share.n} prompts (greedy "
        "decoding). What follows is of these."
    )
    answer = grade(share, rule, MIN_PROMPTS)
    if share.value == 1 and (share.n or 0) >= MIN_PROMPTS:
        answer = Answer.YES  # of these prompts, and none is left out
    return finding("own", rule, answer, said, share, {})


def passage(evidence: Evidence | None) -> Finding:
    """Whether the passage matters to the answer: the gate of language models."""
    gain = NOT_MEASURED if evidence is None else evidence.mean("contextual_gain")
    rule = RULES["passage"]
    if not gain.n:
        said = "No text was measured of which the model says the answer itself (test sources)."
        return finding("passage", rule, Answer.CANNOT_SAY, said, gain, {})
    answer = grade(gain, rule, MIN_PROMPTS)
    how = _so(answer, gain, "it depends on the passage", "it does not", MIN_PROMPTS)
    said = f"With the passage the answer's log-probability is higher by {gain.said} nats, {how}."
    return finding("passage", rule, answer, said, gain, {})


def _numbers(found: NumberQuality, sides: Quality) -> Finding:
    """Numbers against saying their mean; with a threshold their sides as well."""
    beyond = found.r_squared
    if beyond.value != beyond.value:
        return no_accuracy(f"all {found.n_labelled} labels are equal, so R² is not defined")
    answer = grade(beyond, RULES["accuracy"])
    how = _so(answer, beyond, "the model is better", "the model is not better")
    said = (
        f"The predicted number is off by "
        f"{found.error.said} on average over {found.n_labelled} texts, always saying "
        f"the labels' mean is off by {found.error_of_mean.said} (mean absolute error, in the "
        f"labels' own unit). R² is {beyond.said} (saying the mean has 0), {how}."
    )
    yardsticks = {
        "mean_absolute_error": found.error.value,
        "mean_absolute_error_of_mean": found.error_of_mean.value,
    }
    if sides.accuracy is not None and sides.beyond_majority is not None:
        said += (
            f" The side of the threshold is right in {sides.accuracy.said} of "
            f"{sides.n_labelled} texts; always saying the more frequent one is right in "
            f"{sides.majority:.2f}. The difference is {sides.beyond_majority.said}."
        )
    return _accuracy(answer, said, beyond, yardsticks)


def graded_accuracy(found: Quality, words: Words) -> Finding:
    """Of decisions against the most frequent one."""
    rule, sure = RULES["accuracy"], found.top_probability
    certainty = f"Its mean {words.likely} is {sure.said}"
    why = "The nearer this is to 1, the less a small change shows in the output."
    if found.accuracy is None:
        return no_accuracy(rest=f"{certainty}. {why}")
    if found.beyond_majority is None:
        right = _right(found, words)
        nothing = "and nothing is known here that it could be compared with"
        return no_accuracy(f"{right[0].lower()}{right[1:]}, {nothing}", f"{certainty}. {why}")
    beyond = found.beyond_majority
    answer = grade(beyond, rule)
    how = _so(answer, beyond, "the model is better", "the model is not better")
    usual = ALWAYS_SAYING.get(words.kind, "always saying the most frequent class")
    calibration = ""
    if found.calibration_error is not None:
        calibration = f" Its calibration error is {found.calibration_error:.2f}."
    said = (
        f"{_right(found, words)}; {usual} is right in {found.majority:.2f}. The difference is "
        f"{beyond.said}, {how}.{calibration} {certainty}. {why}"
    )
    yardsticks = {
        "accuracy": found.accuracy.value,
        "majority": found.majority,
        "top_probability": sure.value,
        "calibration_error": found.calibration_error,
    }
    return _accuracy(answer, said, beyond, yardsticks)


def _so(answer: Answer, number: Estimate, yes: str, no: str, least: int = MIN_TEXTS) -> str:
    """What follows from a number that is above 0, is not, or cannot be told from it."""
    if answer == Answer.CANNOT_SAY:
        if (number.n or 0) < least:
            return f"too few texts to say ({least} are needed)"
        return "which cannot be told from 0"
    return f"so {yes if answer == Answer.YES else no}"


def _right(found: Quality, words: Words) -> str:
    """How often the model is right, without a full stop."""
    assert found.accuracy is not None  # there are labels
    n = found.n_labelled
    if not found.has_parts:
        return f"The model is right in {found.accuracy.said} of {n} texts"
    pattern = RIGHT_SHARE.get(words.kind, "The model is right in {share} of its parts")
    said = pattern.format(share=found.accuracy.said)
    if found.all_met is not None and words.kind in ALL_RIGHT:
        said += f", {ALL_RIGHT[words.kind].format(share=found.all_met.said)}"
    return f"{said} (mean over {n} texts)"


# --- what the numbers mean, in words -------------------------------------------------------------


WORSE = "worse than a random order of the {units}"


def meaning(finding: Finding, words: Words = CLASSES, *, counted: bool = False) -> str:
    """Returns what a number means, as a clause.

    Words have the thresholds of ``RULES``, whatever thresholds graded the finding.

    Args:
        counted: see :func:`what_is_missing`; the answer alone says it.
    """
    ends = finding.ci95
    finding = _graded_as_usual(finding, least_texts(words))
    if finding.answer == Answer.CANNOT_SAY:
        return what_is_missing(finding, words, counted=counted)
    rule = RULES[finding.rule]
    if "random order" in rule.ends and ends is not None and ends[1] < 0:
        return words.fill(WORSE)
    little = "little" if finding.value > 0 else "no"
    return words.fill(rule.in_short(finding.answer), little=little)


def least_texts(words: Words) -> int:
    """Returns how many texts an answer needs of this kind of prediction."""
    return (ANSWERS if words.kind == "answer" else CLASSIFIERS).least_texts


def _graded_as_usual(finding: Finding, least: int) -> Finding:
    """Returns a finding by the thresholds of ``RULES``."""
    if finding.partly is None:
        return finding
    answer = grade(finding.estimate, RULES[finding.rule], least)
    is_known = answer == Answer.NO or not finding.is_upper_bound
    usual = answer if is_known else Answer.CANNOT_SAY
    return replace(finding, answer=usual, partly=None, yes=None)


TOO_CLOSE = "too close to guessing to tell: more {texts} are needed"


def _is_close(gate: Finding | None) -> bool:
    """Whether an accuracy is above guessing, and more texts would tell it from that."""
    return (
        gate is not None
        and gate.rule == "accuracy"
        and gate.answer == Answer.CANNOT_SAY
        and gate.value > 0
    )


def answer_sentence(found: Sequence[Finding], words: Words = CLASSES) -> str:
    """Returns what the verdict rests on, in one sentence."""
    concluded = conclude(found)
    score, gate = concluded.score, concluded.gate
    if concluded.is_closed and _is_close(gate):
        return sentence(words.fill(TOO_CLOSE))
    if concluded.why or score is None:
        return sentence(words.fill(concluded.why))
    if score.partly is not None and score.answer != Answer.CANNOT_SAY:
        return f"By thresholds of your own: {score.graded_by.graded}."
    return sentence(meaning(score, words, counted=True))


def sentence(clause: str) -> str:
    """Returns a clause with a capital and a full stop; nothing of nothing.

    >>> sentence("it is so")
    'It is so.'
    """
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}." if clause else ""


# --- may it be shown? ----------------------------------------------------------------------------


CAUTIONS = {
    Answer.YES: "This holds on average over texts like these and for this one training.",
    Answer.PARTLY: "In some texts none of the highlighted {units} decides.",
    Answer.NO: "A heat map of it would tell users something about the prediction that is not so.",
    Answer.CANNOT_SAY: "An open answer does not mean that attention is wrong.",
}


def may_be_shown(found: Sequence[Finding], words: Words = CLASSES) -> list[str]:
    """Returns whether the attention may be shown to users, in at most four sentences."""
    answer = conclude(found).answer
    importance = by_rule(found).get("importance")
    hits = [] if importance is None else _hits(importance)
    said = [MAY[answer], _answers_in_words(found), *hits, CAUTIONS[answer]]
    return [words.fill(one) for one in said if one]


def _answers_in_words(found: Sequence[Finding]) -> str:
    """Returns which questions that decide say yes, partly, no, and cannot say."""
    said = []
    for answer in (Answer.YES, Answer.PARTLY, Answer.NO, Answer.CANNOT_SAY):
        own = [f for f in found if f.role in ("part", "effect") and f.answer == answer]
        if own:
            said.append(f"{_listed([f.name.lower() for f in own])}: {answer}")
    return sentence("; ".join(said))


def _listed(names: Sequence[str]) -> str:
    """Returns names in a sentence.

    >>> _listed(["erasure", "removal", "mass"])
    'erasure, removal and mass'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _hits(importance: Finding) -> list[str]:
    """Returns how many of the units that matter attention names; nothing where unknown."""
    share = importance.yardsticks.get("precision")
    if share is None or importance.n < MIN_SHOWN:
        return []
    return [
        f"Of the {{units}} that hold half of what matters in a text, {share:.0%} are among the "
        "most attended."
    ]


# --- what would change the verdict ---------------------------------------------------------------


MOST_TEXTS = 10_000
"""Where it would take more, the mean is too near to the threshold to tell."""


def texts_needed(value: float, ci95: tuple[float, float], n: int, threshold: float) -> float:
    """Returns how many texts would make an interval end at a threshold, if the mean stayed.

    n · (half width / distance)², since an interval narrows with √n; the half is the one
    on the side of the threshold. Infinite where the mean is the threshold.

    >>> texts_needed(0.5, (0.3, 0.7), 100, 0.4)
    400.0
    """
    distance = abs(value - threshold)
    half = value - ci95[0] if threshold < value else ci95[1] - value
    return round(n * (half / distance) ** 2, 6) if distance else math.inf


def texts_in_all(finding: Finding, least: int = MIN_TEXTS) -> int | None:
    """Returns how many texts would give an answer; None where no number of them would.

    Args:
        least: texts below which nothing is said.
    """
    if finding.open_because or not finding.n:
        return None
    more = more_texts(finding) if finding.n >= MIN_SHOWN else None
    if more is None or more > MOST_TEXTS:
        return least if finding.n < least else None
    return max(least, finding.n + _rounded(more))


def what_is_missing(finding: Finding, words: Words = CLASSES, *, counted: bool = True) -> str:
    """Returns what an open question needs for an answer, as a clause.

    Args:
        counted: whether it says how many more texts should tell.
    """
    least, texts = least_texts(words), words.texts
    if 0 < finding.n < least:
        return words.fill(too_few(finding.n, least))
    if finding.open_because:
        return f"more {texts} will not settle it: {finding.open_because.rstrip('.')}"
    enough = texts_in_all(finding, least)
    if finding.ci95 is None:
        return "labels, or something to compare with, are missing"
    possible = possible_answers(finding.estimate, finding.estimate, finding.graded_by, least)
    if len(possible) < 2:
        return "the bounds that are known leave it open"
    between = f"either {either(possible)}"
    if len(possible) > 2:
        between = "anything from no to yes"
    if not counted:
        return between
    if enough is None:
        return f"{between}: too near to a threshold for more {texts} to tell"
    return f"{between}: about {enough - finding.n:,} more {texts} should tell which"


def more_texts(finding: Finding) -> float | None:
    """Returns how many more texts would take every threshold out of the interval.

    If the mean stayed, since an interval narrows with √n; infinite where the mean is a
    threshold, None where no threshold is in the interval.
    """
    if finding.ci95 is None:
        return None
    low, high = finding.ci95
    crossed = [t for t in set(finding.graded_by.thresholds.values()) if low <= t <= high]
    if not crossed:
        return None
    needed = max(texts_needed(finding.value, finding.ci95, finding.n, t) for t in crossed)
    if math.isinf(needed):
        return needed
    return max(math.floor(needed) + 1 - finding.n, 1)  # at exactly so many an end is the threshold


def foreseen(n: int, are_prompts: bool) -> str:
    """Says what so many texts can answer, before they run; nothing of enough texts.

    Args:
        are_prompts: whether a language model answers them; of these a share is told less exactly.
    """
    if not are_prompts:
        few = too_few(n, MIN_TEXTS) if n < MIN_TEXTS else ""
        return CLASSES.fill(few)
    if n < MIN_PROMPTS:
        return (
            f"fewer than {MIN_PROMPTS} prompts answer no question; page and report.examples show "
            "what each answer rests on"
        )
    low, high = share_interval(np.array(n / 2), np.array(n))
    return (
        f"{n} prompts tell a share to ±{(high - low) / 2:.2f} or better: of what lies nearer to a "
        "threshold they cannot say (±0.10 takes about 100 prompts)"
    )


def _rounded(count: float) -> int:
    """Returns two digits, rounded up: an estimate has no more."""
    step = 10 ** max(len(str(math.ceil(count))) - 2, 0)
    return math.ceil(count / step) * step
