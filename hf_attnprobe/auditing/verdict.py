"""What an audit says: every question of ``RULES`` with its answer. Pure: rows in.

An answer is about the model's attention as a whole: of a model with one head that head,
of one with many all heads at once, where they were edited together. Rules, thresholds
and their sources are in ``statistics/verdicts.py``.
"""

from collections.abc import Callable, Iterable, Sequence

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
from hf_attnprobe.statistics.sites import at_site, predictions_of, site_of_model
from hf_attnprobe.statistics.stopped import stopping_of
from hf_attnprobe.statistics.summary import ALL_TEXTS, Statistic, group_names
from hf_attnprobe.statistics.verdicts import (
    RULES,
    Answer,
    Finding,
    overall,
)
from hf_attnprobe.statistics.wording import CLASSES, Words


QUESTION = "Does this attention explain the predictions?"
Question = Callable[[Evidence, str], Finding | None]
QUESTIONS: tuple[Question, ...] = (importance, assignment, uniqueness, erasure, removal)
"""About attention, in the order of the rules."""


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
    found = [accuracy(predictions, words, seed)]
    site = site_of_model(rows)
    if site is None:
        return tuple(found)
    texts = at_site(rows, site)
    others = None if control is None else at_site(control, site).reindex(texts.index)
    evidence = Evidence(texts, others, seed, words, stopping_of(rows))
    predicted = predictions.predicted_class.reindex(texts.index)
    for question in QUESTIONS:
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
        name: predicted.index[predicted == k]
        for k, name in enumerate(group_names(label_names))
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
    return by_class if len(said) > 1 else [pooled]


def conclusion(found: Sequence[Finding]) -> Answer:
    """The answer to whether attention explains the predictions.

    "cannot say" of a model that is not shown to be better than the majority: there is
    nothing worth an explanation. Accuracy is no evidence for attention otherwise.
    """
    if is_at_chance(found):
        return Answer.CANNOT_SAY
    return overall(f.answer for f in found if f.rule != "accuracy")


def is_at_chance(found: Sequence[Finding]) -> bool:
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
    if is_at_chance(found):
        why = "the model is not shown to be better than always saying the same; "
    return f"{QUESTION} {str(answer).capitalize()} ({why}{', '.join(parts)})."


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
