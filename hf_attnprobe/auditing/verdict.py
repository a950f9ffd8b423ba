"""What an audit says: every question of ``RULES`` with its answer. Pure: rows in.

An answer is about the model's attention as a whole: of a model with one head that head,
of one with many all heads at once, where they were edited together. Rules, thresholds
and their sources, and how the answers make a verdict, are in ``statistics/verdicts.py``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from hf_attnprobe.auditing.answers.accuracy import accuracy
from hf_attnprobe.auditing.answers.attention import (
    assignment,
    erasure,
    importance,
    removal,
    uniqueness,
)
from hf_attnprobe.auditing.answers.evidence import Evidence
from hf_attnprobe.statistics.differences import draws_of
from hf_attnprobe.statistics.stopping import stopping_of
from hf_attnprobe.statistics.summary import (
    ALL_TEXTS,
    Statistic,
    at_site,
    group_names,
    predictions_of,
    site_of_model,
)
from hf_attnprobe.statistics.verdicts import (
    QUESTIONS,
    RULES,
    Answer,
    Conclusion,
    Finding,
    Rule,
    conclude,
)
from hf_attnprobe.statistics.wording import CLASSES, Words


QUESTION = "Does this attention explain the predictions?"
Question = Callable[[Evidence, str], Finding | None]
ASKED: Mapping[str, Question] = {
    "importance": importance,
    "assignment": assignment,
    "uniqueness": uniqueness,
    "erasure": erasure,
    "removal": removal,
}
"""About attention, in the order of the rules."""


def findings(
    rows: pd.DataFrame,
    control: pd.DataFrame | None,
    label_names: Sequence[str],
    *,
    seed: int = 0,
    words: Words = CLASSES,
    shares_draws: bool = False,
    rules: Mapping[str, Rule] = RULES,
) -> tuple[Finding, ...]:
    """The questions that the rows answer, in the order of the rules.

    Where the texts of two predicted classes have different answers, there is one of
    each class in place of one of all: their mean is true of neither.

    Args:
        rows: of the audit.
        control: of the same tests on the control; with a column ``draw`` where it was
            drawn several times.
        label_names: names of the classes.
        seed: of the bootstrap.
        words: of the kind of prediction.
        shares_draws: whether one draw of the control is the same for all texts.
        rules: by which the questions about attention are graded.
    """
    evidence = evidence_of(rows, control, seed=seed, words=words)
    if evidence is not None:
        evidence = replace(evidence, shares_draws=shares_draws, rules=rules)
    return findings_from(evidence, predictions_of(rows), label_names, words, seed)


def evidence_of(
    rows: pd.DataFrame,
    control: pd.DataFrame | None,
    *,
    seed: int = 0,
    words: Words = CLASSES,
) -> Evidence | None:
    """What the questions are answered from; None where no attention stands for the model's."""
    site = site_of_model(rows)
    if site is None:
        return None
    texts = at_site(rows, site)
    draws = tuple(at_site(draw, site).reindex(texts.index) for draw in draws_of(control))
    return Evidence(texts, draws, seed, words, stopping_of(rows))


def findings_from(
    evidence: Evidence | None,
    predictions: pd.DataFrame,
    label_names: Sequence[str],
    words: Words = CLASSES,
    seed: int = 0,
) -> tuple[Finding, ...]:
    """As :func:`findings`, of evidence at hand.

    Args:
        predictions: of :func:`~hf_attnprobe.statistics.summary.predictions_of`.
    """
    found = [accuracy(predictions, words, seed)]
    if evidence is None:
        return tuple(found)
    predicted = predictions.predicted_class.reindex(evidence.texts.index)
    for question in ASKED.values():
        found += _answered(question, evidence, predicted, label_names)
    return tuple(found)


def _answered(
    question: Question,
    evidence: Evidence,
    predicted: pd.Series,
    label_names: Sequence[str],
) -> list[Finding]:
    """One finding, or one of each predicted class where their answers differ."""
    members = {
        name: predicted.index[predicted == k] for k, name in enumerate(group_names(label_names))
    }
    of_classes = ((name, evidence.of(m)) for name, m in members.items() if len(m))
    return pooled_or_by_class(question, evidence, of_classes)


def pooled_or_by_class(
    question: Question,
    evidence: Evidence,
    of_classes: Iterable[tuple[str, Evidence]],
) -> list[Finding]:
    """One finding, or one of each predicted class where their answers differ.

    Args:
        question: of ``auditing/answers/attention.py``.
        evidence: of all texts.
        of_classes: names of the classes that are predicted, with their texts' evidence.
    """
    pooled = question(evidence, ALL_TEXTS)
    if pooled is None:
        return []
    answered = [question(of_class, name) for name, of_class in of_classes]
    by_class = [found for found in answered if found is not None]
    said = {f.answer for f in by_class} - {Answer.CANNOT_SAY}
    if len(said) > 1:
        return by_class
    return [replace(pooled, other_draws=_other_draws(question, evidence, pooled))]


def _other_draws(question: Question, evidence: Evidence, pooled: Finding) -> float | None:
    """The share of single draws of the control with which the answer is another one.

    None where no control is counted, or there is only one draw.
    """
    if len(evidence.draws) < 2 or "control" not in pooled.yardsticks:
        return None
    single = replace(evidence, shares_draws=False)
    answers = [question(single.of_draw(draw), ALL_TEXTS) for draw in evidence.draws]
    differing = [f for f in answers if f is None or f.answer != pooled.answer]
    return len(differing) / len(answers)


def conclusion(found: Sequence[Finding]) -> Answer:
    """The answer to whether attention explains the predictions.

    "cannot say" of a model that is not shown to be better than the majority: there is
    nothing worth an explanation. Accuracy is no evidence for attention otherwise.
    """
    return conclude(found).answer


def conclusion_sentence(found: Sequence[Finding]) -> str | None:
    """The question and its answer, with what it rests on; None without evidence."""
    concluded = conclude(found)
    if not concluded.answers:
        return None
    answer = str(concluded.answer).capitalize()
    parts = [
        f"{RULES[f.rule].name.lower()}{_of_group(f.group)} {f.answer}"
        for f in found
        if f.rule != "accuracy"
    ]
    return f"{QUESTION} {answer} ({grounds(concluded)}: {', '.join(parts)})."


COUNTED = {
    Answer.YES: "yes",
    Answer.PARTLY: "partly",
    Answer.NO: "no",
    Answer.CANNOT_SAY: "undecided",
}


def grounds(concluded: Conclusion) -> str:
    """What a verdict rests on: its reason, and how many questions say what.

    "of 5 questions 1 yes, 3 no, 1 undecided"
    """
    why, asked, n = reason(concluded), len(concluded.answers), len(QUESTIONS)
    counts = {word: len(concluded.saying(a)) for a, word in COUNTED.items()}
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    start = f"of {n} questions" if asked == n else f"{asked} of {n} questions asked:"
    if why.startswith(f"{asked} of {n}"):
        return why
    return f"{why}; {start} {said}" if why else f"{start} {said}"


def reason(concluded: Conclusion) -> str:
    """Why the verdict is what it is, where counting does not tell; else empty."""
    if concluded.at_chance:
        return "the model is not shown to be better than guessing"
    if concluded.is_nothing:
        return "attention has no effect on the output"
    if concluded.missing and concluded.answer == Answer.CANNOT_SAY:
        asked, missing = len(concluded.answers), _names(concluded.missing)
        return f"{asked} of {len(QUESTIONS)} questions asked, without {missing}"
    if concluded.answer == Answer.YES and concluded.answers.get("uniqueness") in (
        Answer.NO,
        Answer.PARTLY,
    ):
        return "other attention would do as well"
    return ""


def _names(rules: Sequence[str]) -> str:
    return ", ".join(RULES[rule].name.lower() for rule in rules)


def _of_group(group: str) -> str:
    return "" if group == ALL_TEXTS else f" of {group}"


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
