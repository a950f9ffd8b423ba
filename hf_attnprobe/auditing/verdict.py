"""What an audit says: every question of ``RULES`` with its answer. Pure: rows in.

An answer is about the model's attention as a whole: of a model with one head that head,
of one with many all heads at once, where they were edited together. Rules, thresholds
and their sources are in ``statistics/verdicts.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.statistics.bootstrap import Estimate, mean_estimate
from hf_attnprobe.statistics.quality import (
    NumberQuality,
    Quality,
    number_quality,
    quality,
)
from hf_attnprobe.statistics.summary import PREDICTION, Statistic, one_row_per_text
from hf_attnprobe.statistics.verdicts import (
    MIN_TEXTS,
    RULES,
    Answer,
    Finding,
    Rule,
    grade,
    grade_between,
    overall,
    possible_answers,
)
from hf_attnprobe.statistics.wording import CLASSES, Words


ALL_TEXTS = "all"
AS_PEAKED = 0.8
"""Of the model's mean largest weight: from there on a control is as peaked."""
NOTHING_KNOWN = Estimate(0.0, (0.0, 0.0), 10**9)
"""The least that a share can be, with no text to doubt it."""


@dataclass(frozen=True)
class Evidence:
    """Numbers of one site, a text per row and a statistic per column.

    Attributes:
        texts: of the model.
        control: of its control, the same texts; None where there is none.
        seed: of the intervals.
        words: of the kind of prediction.
    """

    texts: pd.DataFrame
    control: pd.DataFrame | None
    seed: int
    words: Words = CLASSES

    def mean(self, name: str) -> Estimate:
        """A statistic of the model; n is 0 where there is none."""
        return mean_estimate(_column(self.texts, name), seed=self.seed)

    def control_mean(self, name: str) -> Estimate | None:
        """The control's, on the texts where both have a value; None without one."""
        if self.control is None or name not in self.control:
            return None
        both = _column(self.texts, name) * 0 + _column(self.control, name)
        return mean_estimate(both, seed=self.seed)

    def beyond_control(self, name: str) -> Estimate | None:
        """Model − control, paired by text; None without a control."""
        if self.control is None or name not in self.control:
            return None
        difference = _column(self.texts, name) - _column(self.control, name)
        return mean_estimate(difference, seed=self.seed)

    def beyond(self, name: str, other: str) -> Estimate:
        """One statistic of the model − another one, paired by text."""
        difference = _column(self.texts, name) - _column(self.texts, other)
        return mean_estimate(difference, seed=self.seed)

    def less_control(self, name: str, other: str) -> Estimate | None:
        """How far :meth:`beyond` is beyond the control's; None without a control."""
        if self.control is None or not {name, other} <= set(self.control):
            return None
        own = _column(self.texts, name) - _column(self.texts, other)
        theirs = _column(self.control, name) - _column(self.control, other)
        return mean_estimate(own - theirs, seed=self.seed)

    def of(self, texts: pd.Index) -> "Evidence":
        """The evidence of some of the texts."""
        control = None if self.control is None else self.control.reindex(texts)
        return Evidence(self.texts.loc[texts], control, self.seed, self.words)


def _column(frame: pd.DataFrame, name: str) -> np.ndarray:
    if name not in frame:
        return np.full(len(frame), np.nan)
    return frame[name].to_numpy(dtype=np.float64)


def findings(
    rows: pd.DataFrame,
    control: pd.DataFrame | None,
    label_names: Sequence[str],
    *,
    seed: int = 0,
    words: Words = CLASSES,
) -> tuple[Finding, ...]:
    """The questions that the rows answer, in the order of the rules.

    Where the texts of two predicted classes have different answers, there is one of
    each class in place of one of all: their mean is true of neither.

    Args:
        rows: of the audit.
        control: of the same tests on the control.
        label_names: names of the classes.
        seed: of the bootstrap.
        words: of the kind of prediction.
    """
    predictions = predictions_of(rows)
    found = [_quality(predictions, words, seed)]
    site = site_of_model(rows)
    if site is None:
        return tuple(found)
    texts = _at_site(rows, site)
    others = None if control is None else _at_site(control, site).reindex(texts.index)
    evidence = Evidence(texts, others, seed, words)
    predicted = predictions.predicted_class.reindex(texts.index)
    for question in (_importance, _assignment, _uniqueness, _erasure, _removal):
        found += _answered(question, evidence, predicted, label_names)
    return tuple(found)


def site_of_model(rows: pd.DataFrame) -> tuple[int, int] | None:
    """Layer and head that stand for the model's attention.

    All heads at once where they were tested so, else the only head; None where several
    heads were tested one by one.
    """
    tested = rows[rows.test != PREDICTION]
    sites = set(zip(tested.layer.tolist(), tested["head"].tolist(), strict=True))
    if (-1, -1) in sites:
        return -1, -1
    heads = [site for site in sites if min(site) >= 0]
    return heads[0] if len(heads) == 1 else None


def predictions_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows about predictions, a text per row."""
    own = rows[rows.test == PREDICTION].drop_duplicates(["example_id", "statistic"])
    return own.pivot(index="example_id", columns="statistic", values="value")


def _at_site(rows: pd.DataFrame, site: tuple[int, int]) -> pd.DataFrame:
    """Texts by statistics at one site."""
    layer, head = site
    wide = one_row_per_text(rows[(rows.layer == layer) & (rows["head"] == head)])
    names = wide.columns.get_level_values("statistic")
    return wide.set_axis(names, axis=1).loc[:, ~names.duplicated()]


Question = Callable[[Evidence, str], Finding | None]


def _answered(
    question: Question,
    evidence: Evidence,
    predicted: pd.Series,
    label_names: Sequence[str],
) -> list[Finding]:
    """One finding, or one of each predicted class where their answers differ."""
    pooled = question(evidence, ALL_TEXTS)
    if pooled is None:
        return []
    by_class = []
    for k, name in enumerate(label_names):
        members = predicted.index[predicted == k]
        of_class = question(evidence.of(members), str(name)) if len(members) else None
        if of_class is not None:
            by_class.append(of_class)
    said = {f.answer for f in by_class} - {Answer.CANNOT_SAY}
    return by_class if len(said) > 1 else [pooled]


# --- the questions ------------------------------------------------------------------


def _quality(predictions: pd.DataFrame, words: Words, seed: int) -> Finding:
    """Whether there is anything to explain."""
    found = quality(predictions, seed=seed)
    if not words.is_number:
        return _accuracy(found, words)
    numbers = number_quality(predictions, seed=seed)
    return _no_labels("") if numbers is None else _numbers(numbers, found)


def _no_labels(rest: str, why: str = "The texts have no labels.") -> Finding:
    sentence = f"Accuracy: cannot say. {why}{rest}"
    return Finding(
        "accuracy", ALL_TEXTS, Answer.CANNOT_SAY, sentence, float("nan"), None, 0
    )


def _numbers(found: NumberQuality, sides: Quality) -> Finding:
    """Numbers against saying their mean; with a threshold their sides as well."""
    beyond = found.r_squared
    if beyond.value != beyond.value:
        equal = f"All {found.n_labelled} labels are equal, so R² is not defined."
        return _no_labels("", equal)
    answer = grade(beyond, RULES["accuracy"])
    how = {
        Answer.YES: "which is better than that",
        Answer.NO: "which is not better than that",
        Answer.CANNOT_SAY: f"{_too_few(beyond)}cannot be told from that",
    }[answer]
    sentence = (
        f"{_start('accuracy', ALL_TEXTS, answer)} The predicted number is off by "
        f"{_said(found.error)} on average over {found.n_labelled} texts, always saying "
        f"the labels' mean by {_said(found.error_of_mean)} (mean absolute error, in the "
        f"labels' own unit). R² is {_said(beyond)}, where saying the mean has 0, {how}."
    )
    yardsticks = {
        "mean_absolute_error": found.error.value,
        "mean_absolute_error_of_mean": found.error_of_mean.value,
    }
    if sides.accuracy is not None and sides.beyond_majority is not None:
        sentence += (
            f" The side of the threshold is right in {_said(sides.accuracy)} of "
            f"{sides.n_labelled} texts, always saying the more frequent one in "
            f"{sides.majority:.2f}: {_said(sides.beyond_majority)} more."
        )
    return _finding("accuracy", ALL_TEXTS, answer, sentence, beyond, yardsticks)


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


def _accuracy(found: Quality, words: Words) -> Finding:
    """Of decisions against the most frequent one."""
    rule, sure = RULES["accuracy"], found.top_probability
    certainty = f"Its mean {words.likely} is {_said(sure)}"
    why = "The nearer that is to 1, the less the output shows of small changes."
    if found.accuracy is None:
        return _no_labels(f" {certainty}. {why}")
    if found.beyond_majority is None:
        no_baseline = "Nothing is known here that it could be compared with."
        return _no_labels(
            f" {no_baseline} {certainty}. {why}", f"{_right(found, words)}."
        )
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
        f"{_start('accuracy', ALL_TEXTS, answer)} {_right(found, words)}, {usual} in "
        f"{found.majority:.2f}: {_said(beyond)} {how}.{calibration} {certainty}. {why}"
    )
    yardsticks = {
        "majority": found.majority,
        "top_probability": sure.value,
        "calibration_error": found.calibration_error,
    }
    return _finding("accuracy", ALL_TEXTS, answer, sentence, beyond, yardsticks)


def _too_few(estimate: Estimate) -> str:
    few = (estimate.n or 0) < MIN_TEXTS
    return f"which with fewer than {MIN_TEXTS} texts " if few else "which "


def _right(found: Quality, words: Words) -> str:
    """How often the model is right, without a full stop."""
    assert found.accuracy is not None  # there are labels
    n = found.n_labelled
    if not found.has_parts:
        return f"The model is right in {_said(found.accuracy)} of {n} texts"
    pattern = RIGHT_SHARE.get(words.kind, "The model is right in {share} of its parts")
    said = pattern.format(share=_said(found.accuracy))
    if found.all_met is not None and words.kind in ALL_RIGHT:
        said += f", {ALL_RIGHT[words.kind].format(share=_said(found.all_met))}"
    return f"{said} (mean over {n} texts)"


def _importance(evidence: Evidence, group: str) -> Finding | None:
    """Attention against leave-one-out, beyond the control."""
    name, rule = "attention_leave_one_out_tau", RULES["importance"]
    tau = evidence.mean(name)
    if not tau.n:
        return None
    gradient = evidence.mean("gradient_leave_one_out_tau")
    beyond, control = evidence.beyond_control(name), evidence.control_mean(name)
    ranks = (
        "Attention and leaving tokens out rank the tokens with τ "
        f"{_said(tau)} (0 is chance, 1 the same order)"
    )
    if gradient.n:
        ranks += f"; gradients reach {_said(gradient)}"
    yardsticks = {"chance": 0.0, "gradient": gradient.value}
    if beyond is None or control is None or not beyond.n:
        answer = Answer.NO if _surely_chance(tau) else Answer.CANNOT_SAY
        sentence = (
            f"{_start('importance', group, answer)} {ranks}. No control was run, and "
            "without training the same model may reach as much."
        )
        return _finding("importance", group, answer, sentence, tau, yardsticks)
    answer, caution = grade(beyond, rule), _less_peaked(evidence)
    if caution and answer != Answer.NO:
        answer = Answer.CANNOT_SAY
    sentence = (
        f"{_start('importance', group, answer, beyond)} {ranks}. The control reaches "
        f"{_said(control)}. Attention's difference to it is {_said(beyond)} "
        f"({_thresholds('importance')}).{caution}"
    )
    yardsticks["control"] = control.value
    return _finding("importance", group, answer, sentence, beyond, yardsticks)


def _less_peaked(evidence: Evidence) -> str:
    """A caution where the control attends less sharply; empty where it does not.

    Peaked attention agrees with leave-one-out by itself: randomised classifiers without
    context reach a τ of .75 with attention as sharp as a trained one's.
    """
    own = evidence.mean("max_attention")
    control = evidence.control_mean("max_attention")
    if control is None or not control.n or control.value >= AS_PEAKED * own.value:
        return ""
    return (
        f" The control attends less sharply (mean largest weight {control.value:.2f} "
        f"against {own.value:.2f}), which by itself lowers its τ."
    )


def _surely_chance(tau: Estimate) -> bool:
    """Whether τ itself stays below what would have to be reached beyond a control."""
    return grade(tau, RULES["importance"]) == Answer.NO


def _assignment(evidence: Evidence, group: str) -> Finding | None:
    """The shuffles, beyond the control's where there is one."""
    name, rule = "median_tvd", RULES["assignment"]
    moved = evidence.mean(name)
    if not moved.n:
        return None
    worst = evidence.mean("max_tvd")
    ceiling = f", the worst of all shuffles by {_said(worst)}" if worst.n else ""
    yardsticks = {"nothing": 0.0, "worst shuffle": worst.value}
    beyond, control = evidence.beyond_control(name), evidence.control_mean(name)
    said = (
        f"Shuffling attention (the median of the shuffles) moves the output by "
        f"{_said(moved)} {evidence.words.unit}{ceiling}"
    )
    if beyond is None or control is None or not beyond.n:
        beyond = moved
        said += f" ({_thresholds('assignment')}; no control was run)"
    else:
        yardsticks["control"] = control.value
        said += (
            f". The control moves by {_said(control)}. The difference to it is "
            f"{_said(beyond)} ({_thresholds('assignment')})"
        )
    answer = grade(beyond, rule)
    sentence = f"{_start('assignment', group, answer, beyond)} {said}."
    return _finding("assignment", group, answer, sentence, beyond, yardsticks)


def _uniqueness(evidence: Evidence, group: str) -> Finding | None:
    """How much of the way to the farthest attention of all keeps the output."""
    share = evidence.mean("share_of_largest@0.01")
    if not share.n:
        return None
    rule = RULES["uniqueness"]
    upper = evidence.mean("share_of_largest_upper@0.01")
    exact = evidence.mean("epsilon_max_jsd_exact").value == 1
    pinned_at_most = _one_minus(share)
    pinned_at_least, bound = NOTHING_KNOWN, "no upper bound is known"
    if exact:
        pinned_at_least, bound = pinned_at_most, "exact"
    elif upper.n:
        pinned_at_least = _one_minus(upper)
        bound = f"certainly at most {_said(upper)} of the way"
    answer = grade_between(pinned_at_least, pinned_at_most, rule)
    moved, largest = evidence.mean("epsilon_max_jsd@0.01"), evidence.mean("largest_jsd")
    least = "" if exact else "at least "
    possible = possible_answers(pinned_at_least, pinned_at_most, rule)
    sentence = (
        f"{_begin('uniqueness', group, answer, possible)} Other attention that keeps "
        f"the output within {evidence.words.within} lies {least}{_said(share)} of the way to the farthest "
        f"attention of all, on average over texts (JSD {moved.value:.2f} of "
        f"{largest.value:.2f}; {bound}). {_room(rule)} Room also depends on "
        f"{_room_depends(evidence.words)}, whatever attention means."
    )
    yardsticks = {"largest_jsd": largest.value, "epsilon_max_jsd": moved.value}
    if upper.n:
        yardsticks["upper_bound"] = upper.value
    control = evidence.control_mean("share_of_largest@0.01")
    if control is not None and control.n:
        yardsticks["control"] = control.value
        sentence += f" In the control others lie {_said(control)} of the way."
    return _finding("uniqueness", group, answer, sentence, pinned_at_most, yardsticks)


def _erasure(evidence: Evidence, group: str) -> Finding | None:
    """How far attention's order is on the way from a random one to the smallest set."""
    name, best, flips = "way_to_best@attention", "the smallest set", "some set"
    if not evidence.mean(name).n:
        name, best = "way_to_best_tried@attention", "the best order tried"
        flips = "some tried order"
    way = evidence.mean(name)
    if not way.n:
        return None
    beyond = evidence.beyond_control(name)
    answer = _unless_control_does(grade(way, RULES["erasure"]), beyond)
    attention, random, smallest = (
        evidence.mean(column)
        for column in (
            "fraction_to_flip@attention",
            "fraction_to_flip@random",
            "minimal_fraction",
        )
    )
    failing = evidence.mean("never_flips@attention")
    needs = f"{attention.value:.2f} of the tokens, a random one {random.value:.2f}"
    if smallest.n:
        needs += f", {best} {smallest.value:.2f}"
    sentence = (
        f"{_start('erasure', group, answer, way)} Attention's order goes {_said(way)} "
        f"of the way from a random order to {best} ({_thresholds('erasure')}). To flip "
        f"{evidence.words.decision} it needs {needs} (means over the {way.n} texts that {flips} "
        f"flips). In {failing.value:.0%} of them it never does, which counts as all "
        "tokens. The attention that is left is divided by its sum, which the model "
        "never saw in training."
    )
    yardsticks = {
        "random": random.value,
        "smallest": smallest.value,
        "attention": attention.value,
        "never_flips": failing.value,
    }
    control = evidence.control_mean(name)
    if control is not None and beyond is not None and control.n:
        yardsticks["control"] = control.value
        sentence += (
            f" The control goes {_said(control)} of the way, {_how_much_less(beyond)}."
        )
    return _finding("erasure", group, answer, sentence, way, yardsticks)


def _removal(evidence: Evidence, group: str) -> Finding | None:
    """Without the tokens of most attention, beyond what random ones cost."""
    family = "comprehensiveness"
    names = [f"{family}@{ranking}" for ranking in ("attention", "mean_attention")]
    known = [name for name in names if evidence.mean(name).n]
    if not known or not evidence.mean(f"{family}@random").n:
        return None
    beyond = evidence.beyond(known[0], f"{family}@random")
    less = evidence.less_control(known[0], f"{family}@random")
    answer = _unless_control_does(grade(beyond, RULES["removal"]), less)
    attention, random = evidence.mean(known[0]), evidence.mean(f"{family}@random")
    words = evidence.words
    sentence = (
        f"{_start('removal', group, answer, beyond)} Without the tokens of most "
        f"attention {words.said} loses {_said(attention)} {words.amount}{words.aside}, "
        f"without random ones {_said(random)}. The difference is {_said(beyond)} "
        f"({_thresholds('removal')}). Texts with tokens erased are unlike those of the "
        "training."
    )
    yardsticks = {"random": random.value}
    if less is not None and less.n:
        yardsticks["control"] = beyond.value - less.value
        sentence += (
            f" The control's difference is {beyond.value - less.value:.2f}, "
            f"{_how_much_less(less)}."
        )
    return _finding("removal", group, answer, sentence, beyond, yardsticks)


def _unless_control_does(answer: Answer, beyond: Estimate | None) -> Answer:
    """What a control does as well says nothing about what the model learned."""
    if answer == Answer.NO or beyond is None or beyond.ci95 is None:
        return answer
    return answer if beyond.ci95[0] > 0 else Answer.CANNOT_SAY


def _how_much_less(beyond: Estimate) -> str:
    """How far a control falls behind, in words with its interval."""
    if beyond.ci95 is None or beyond.ci95[0] > 0:
        return f"which is {_said(beyond)} less"
    return f"which is not shown to be less (difference {_said(beyond)})"


# --- words --------------------------------------------------------------------------


def conclusion(found: Sequence[Finding]) -> Answer:
    """The answer to whether attention explains the predictions.

    "cannot say" of a model that is not shown to be better than the majority: there is
    nothing worth an explanation. Accuracy is no evidence for attention otherwise.
    """
    if _at_chance(found):
        return Answer.CANNOT_SAY
    return overall(f.answer for f in found if f.rule != "accuracy")


def _at_chance(found: Sequence[Finding]) -> bool:
    """Whether labels are there and do not show the model to be better than chance."""
    accuracy = [f for f in found if f.rule == "accuracy" and f.n]
    return any(f.answer != Answer.YES for f in accuracy)


def conclusion_sentence(found: Sequence[Finding]) -> str | None:
    """The question and its answer, with what it rests on; None without evidence."""
    parts = [
        f"{RULES[f.rule].name.lower()}{_of_group(f.group)} {f.answer}"
        for f in found
        if f.rule != "accuracy"
    ]
    if not parts:
        return None
    answer = conclusion(found)
    why = ""
    if _at_chance(found):
        why = "the model is not shown to be better than always saying the same; "
    return (
        f"Does this attention explain the predictions? {str(answer).capitalize()} "
        f"({why}{', '.join(parts)})."
    )


def _of_group(group: str) -> str:
    return "" if group == ALL_TEXTS else f" of {group}"


def _start(
    key: str, group: str, answer: Answer, estimate: Estimate | None = None
) -> str:
    possible = (
        () if estimate is None else possible_answers(estimate, estimate, RULES[key])
    )
    return _begin(key, group, answer, possible)


def _begin(key: str, group: str, answer: Answer, possible: Sequence[Answer]) -> str:
    """``Erasure: cannot say (partly or yes).``"""
    where = "" if group == ALL_TEXTS else f" (texts predicted {group})"
    between = ""
    if answer == Answer.CANNOT_SAY and len(possible) > 1:
        between = f" ({' or '.join(possible)})"
    return f"{RULES[key].name}{where}: {answer}{between}."


def _thresholds(key: str) -> str:
    rule = RULES[key]
    if rule.partly == rule.yes:
        return f"yes from {rule.yes:.2f}"
    return f"partly from {rule.partly:.2f}, yes from {rule.yes:.2f}"


def _room(rule: Rule) -> str:
    """The thresholds of uniqueness, in shares of the way that others may go."""
    return (
        f"The answer is yes up to {1 - rule.yes:.2f} of the way, partly up to "
        f"{1 - rule.partly:.2f}, and no beyond."
    )


def _room_depends(words: Words) -> str:
    if words.is_number:
        return "how little the number varies with attention at all"
    return "how saturated the output is"


def _said(estimate: Estimate) -> str:
    return markdown.interval(estimate.value, estimate.ci95, digits=2)


def _one_minus(estimate: Estimate) -> Estimate:
    if estimate.ci95 is None:
        return estimate
    low, high = estimate.ci95
    return Estimate(1 - estimate.value, (1 - high, 1 - low), estimate.n)


def _finding(
    key: str,
    group: str,
    answer: Answer,
    sentence: str,
    graded: Estimate,
    yardsticks: Mapping[str, float | None],
) -> Finding:
    known = {n: v for n, v in yardsticks.items() if v is not None and v == v}
    return Finding(
        rule=key,
        group=group,
        answer=answer,
        sentence=sentence,
        value=graded.value,
        ci95=graded.ci95,
        n=graded.n or 0,
        yardsticks=known,
    )


def zero_ablation_only(statistics: Sequence[Statistic]) -> str | None:
    """A note for models whose heads support zero ablation only."""
    names = {s.statistic for s in statistics if min(s.layer, s.head) >= 0}
    if "zero_tvd" not in names or "mean_tvd" in names:
        return None
    return (
        "Ablation: heads could only be zero-ablated, not replaced: of this kind of "
        "model the output of a single head cannot be set to its mean or to that of "
        "another text, so the effects of zero ablation may exceed what the heads "
        "carry."
    )
