"""Calibration of the verdict: its answers for models whose correct answer is known.

The models are constructed by formula, in many kinds, so that it is known whether their attention
explains their predictions. Errors are counted per kind and not per model, because the random draws
of one kind are nearly the same model. ``benchmarks/truth`` measures the numbers and writes the file
that is read here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.statistics.estimates import compute_share_interval


CALIBRATION_FILE = "calibration.json"
"""Name of the file with the measured calibration, in this package."""
WRONG_ANSWERS = {"yes": "no or partly", "no": "yes or partly", "partly": "yes or no"}
"""Answers that are wrong, by the correct answer."""
TRUTH_LABELS = {
    "yes": "whose correct answer is yes",
    "no": "whose correct answer is no",
    "partly": "for which yes and no are both defensible",
}
"""Relative clauses that describe a kind of models, by the correct answer."""


@dataclass(frozen=True)
class ModelKind:
    """A kind of models that are constructed by formula.

    Attributes:
        name: name of the kind.
        description: short description of its formula.
        truth: correct answer, "yes" or "no", or "partly" if there are reasons for both. For a
            mixture it follows from the share of texts in which the attention is right.
        scores: mean of faithfulness, of its parts and of the effect over the models of this
            kind, by rule.
        answers: number of models that received each answer.
    """

    name: str
    description: str
    truth: str
    scores: Mapping[str, float]
    answers: Mapping[str, int]


@dataclass(frozen=True)
class ErrorCount:
    """Errors of the verdict for all kinds with the same correct answer.

    Attributes:
        truth: correct answer of these kinds.
        kinds: number of kinds.
        wrong: names of the kinds of which at least one model received a wrong answer.
        open: names of the kinds of which at least one model received "cannot say".
    """

    truth: str
    kinds: int
    wrong: Sequence[str]
    open: Sequence[str]

    @property
    def sentence(self) -> str:
        """The count in words.

        Example: "0 of 20 kinds whose correct answer is yes received no or partly".
        """
        names = f" ({'; '.join(self.wrong)})" if self.wrong else ""
        return (
            f"{len(self.wrong)} of {self.kinds} kinds {TRUTH_LABELS[self.truth]} received "
            f"{WRONG_ANSWERS[self.truth]}{names}"
        )


@dataclass(frozen=True)
class CalibrationTable:
    """The calibration that comes with this version of the package.

    Attributes:
        draws: number of models of each kind.
        texts: number of texts per model.
        kinds: the kinds of models.
        errors: errors of the verdict by correct answer.
    """

    draws: int
    texts: int
    kinds: Sequence[ModelKind]
    errors: Sequence[ErrorCount]

    @property
    def sentence(self) -> str:
        """Errors of the verdict in one sentence."""
        counts = "; ".join(errors.sentence for errors in self.errors)
        return (
            "Calibration on constructed models with a known correct answer "
            f"({self.draws} models of each kind, {self.texts} texts each): {counts}."
        )

    def find_nearest(self, scores: Mapping[str, float], n: int = 2) -> Sequence[ModelKind]:
        """Find the kinds whose scores are nearest to those of a model, nearest first.

        Args:
            scores: faithfulness, its parts and the effect of the model, by rule. Rules that only
                the model or only a kind has are ignored.
            n: number of kinds.

        Returns:
            The nearest kinds by root mean square difference.
        """

        def compute_distance(kind: ModelKind) -> float:
            shared_rules = sorted(scores.keys() & kind.scores.keys())
            differences = np.array([scores[rule] - kind.scores[rule] for rule in shared_rules])
            return float(np.sqrt((differences**2).mean())) if shared_rules else float("inf")

        return sorted(self.kinds, key=compute_distance)[:n]


@cache
def load_calibration_table() -> CalibrationTable:
    """Load the calibration that comes with this version of the package.

    Returns:
        The table; it is read from disk only once.
    """
    file = files("hf_attnprobe.statistics") / CALIBRATION_FILE
    data = json.loads(file.read_text())
    kinds = [
        ModelKind(
            name=kind["name"],
            description=kind["says"],
            truth=kind["truth"],
            scores=kind["place"],
            answers=kind["answers"],
        )
        for kind in data["kinds"]
    ]
    errors = [ErrorCount(**error_count) for error_count in data["errors"]]
    return CalibrationTable(data["draws"], data["texts"], kinds, errors)


def describe_nearest_kinds(scores: Mapping[str, float]) -> str:
    """Describe the kinds of models whose scores are nearest to those of a model.

    Args:
        scores: faithfulness, its parts and the effect of the model, by rule.

    Returns:
        A sentence; see :meth:`CalibrationTable.find_nearest`.
    """
    descriptions = [
        f'"{kind.name}" ({kind.description}; correct answer: {kind.truth})'
        for kind in load_calibration_table().find_nearest(scores)
    ]
    return f"The scores of this model are most similar to those of {' and '.join(descriptions)}."


def format_share(hits: int, n: int) -> str:
    """Format a count with the exact interval of its share.

    Args:
        hits: number of hits.
        n: total number.

    Returns:
        Count and interval; a dash if ``n`` is 0.

    >>> format_share(0, 40)
    '0 of 40 [.00, .09]'
    """
    if not n:
        return markdown.MISSING
    ends = compute_share_interval(np.array(hits), np.array(n))
    low, high = (f"{end:.2f}".removeprefix("0") for end in ends)
    return f"{hits} of {n} [{low}, {high}]"
