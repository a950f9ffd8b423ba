"""The top of a retraining's page: what its answers say together, and the base."""

import numpy as np

from hf_attnprobe.page import elements
from hf_attnprobe.page.html import Html, tag
from hf_attnprobe.retraining.result import (
    PUBLISHED_F1,
    RetrainingResult,
)
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.scores import find_score, metrics


LEAD = (
    "The base is a trained classifier with attention. Other models were trained beside "
    "it on the same texts: without its attention, with other seeds, and to say the same "
    "while attending elsewhere. What they do tells whether its attention was needed and "
    "whether it could have been another."
)
IN_SHORT = {
    "need": {
        Answer.YES: "attention is needed for the score",
        Answer.NO: "attention is not needed for the score",
        Answer.CANNOT_SAY: "whether attention is needed for the score",
    },
    "elsewhere": {
        Answer.YES: "a trained model classifies as well and attends elsewhere",
        Answer.NO: "no trained model both classifies as well and attends elsewhere",
        Answer.CANNOT_SAY: "whether a model that classifies as well can attend elsewhere",
    },
    "transfer": {
        Answer.YES: "its weights help a simpler model",
        Answer.NO: "its weights do not help a simpler model",
        Answer.CANNOT_SAY: "whether its weights help a simpler model",
    },
}
"""What each answer says, in a few words."""
SAID_AS = {
    Answer.YES: "answered yes",
    Answer.NO: "answered no",
    Answer.CANNOT_SAY: "left open, cannot say",
}
IN_LETTERS = ("none", "one", "two", "three")


def opening(report: RetrainingResult) -> Html:
    """What the answers say together, how good the base is, and what was done."""
    n = len(report.models)
    models = "1 model was" if n == 1 else f"{n} models were"
    made = f"Base: {report.model}. Data: {report.dataset}, {report.n} test texts. {models} trained."
    title = f"What another training of {report.model} would have learned"
    said = [_together(report), _quality(report), LEAD, made]
    return tag("header", tag("h1", title), *elements.paragraphs(filter(None, said)))


def _together(report: RetrainingResult) -> str:
    """What the answers say together; empty without any."""
    findings = report.verdict.findings()
    parts = []
    for answer, said_as in SAID_AS.items():
        own = [
            IN_SHORT[f.rule.removesuffix("_without_seeds")][answer]
            for f in findings
            if f.answer == answer
        ]
        if own:
            are = "is" if len(own) == 1 else "are"
            parts.append(f"{IN_LETTERS[len(own)]} {are} {said_as} ({'; '.join(own)})")
    if not parts:
        return ""
    n = IN_LETTERS[len(findings)]
    asked = f"{n} question" if len(findings) == 1 else f"{n} questions"
    return f"Of {asked}, {', '.join(parts)}."


def _quality(report: RetrainingResult) -> str:
    """How good the base is, beside the published one and a constant guess."""
    base = _base_score(report, "f1")
    if base is None:
        return ""
    of_class = report.provenance.get("f1")
    said = f"The base has F1 {base:.3f}" + (f" ({of_class})" if of_class else "")
    paper = PUBLISHED_F1["uniform"].get(report.dataset.published_as, {}).get("base")
    if paper is not None:
        said += f"; the published model has {paper:.3f}"
    guess, accuracy = constant_guess(report), _base_score(report, "accuracy")
    if guess is None:
        return f"{said}. What a constant guess has is not known without labels."
    f1, share = guess
    own = "" if accuracy is None else f", the base in {accuracy:.1%}"
    return (
        f"{said}; the best constant guess has {f1:.3f}. Always saying the most frequent "
        f"class is right in {share:.1%} of the texts{own}."
    )


def _base_score(report: RetrainingResult, metric: str) -> float | None:
    """A score of the base by the first test that has it."""
    for scores in report.scores.values():
        score = find_score(scores, "base", metric)
        if score is not None:
            return score.value
    return None


def constant_guess(report: RetrainingResult) -> tuple[float, float] | None:
    """(the largest F1, the largest accuracy) of always saying one and the same class.

    The two may be of different classes. None where the rows have no labels.
    """
    rows = report.rows
    if rows.empty:
        return None
    own = rows[rows.test == "prediction"]
    labels = own.value[own.statistic == "label"].dropna().to_numpy(int)
    if not len(labels):
        return None
    predicted = own.value[own.statistic == "predicted_class"].dropna().to_numpy(int)
    n_classes = max(2, labels.max() + 1, predicted.max(initial=0) + 1)
    guesses = [metrics(labels, np.tile(one, (len(labels), 1))) for one in np.eye(n_classes)]
    return max(g["f1"] for g in guesses), max(g["accuracy"] for g in guesses)
