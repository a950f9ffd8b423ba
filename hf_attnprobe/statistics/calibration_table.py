"""Calibration table: how often the verdict is right for models whose correct answer is known.

These models are constructed so that it is known whether their attention explains their predictions. All
models that are constructed by the same formula are one kind of model. Errors are counted per kind, because
models of the same kind are nearly equal.

The benchmark ``benchmarks/truth`` measures the numbers and writes the JSON file that this module reads.
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
"""Name of the JSON file in this package that contains the calibration results."""
WRONG_ANSWERS = {"yes": "no or partly", "no": "yes or partly", "partly": "yes or no"}
"""Maps each correct answer to the answers that are wrong, as a phrase for reports.

The answer "cannot say" is never wrong.
"""
TRUTH_CLAUSES = {
    "yes": "whose correct answer is yes",
    "no": "whose correct answer is no",
    "partly": "for which yes and no are both defensible",
}
"""Maps each correct answer to a clause for reports, as in "20 kinds whose correct answer is yes"."""


@dataclass(frozen=True)
class ModelKind:
    """Calibration result for one kind of model, that is, for all models with the same formula.

    Attributes:
        name: name that identifies the formula.
        description: short description of the formula.
        truth: correct answer: "yes", "no", or "partly" if there are good reasons for both. If
            the attention is right in only some of the texts, their share determines the answer.
        scores: faithfulness, its parts and the effect, each averaged over these models and keyed
            by rule.
        answers: model counts, keyed by the answer that the models received.
    """

    name: str
    description: str
    truth: str
    scores: Mapping[str, float]
    answers: Mapping[str, int]


@dataclass(frozen=True)
class ErrorCount:
    """Verdict errors for all model kinds that have the same correct answer.

    Attributes:
        truth: the correct answer.
        kinds: number of model kinds with this answer.
        wrong: names of the kinds with at least one model that received a wrong answer.
        open: names of the kinds with at least one model that received "cannot say".
    """

    truth: str
    kinds: int
    wrong: Sequence[str]
    open: Sequence[str]

    @property
    def sentence(self) -> str:
        """Number of errors, as in "0 of 20 kinds whose correct answer is yes received no or partly"."""
        sentence = (
            f"{len(self.wrong)} of {self.kinds} kinds {TRUTH_CLAUSES[self.truth]} received "
            f"{WRONG_ANSWERS[self.truth]}"
        )
        if self.wrong:
            sentence += f" ({'; '.join(self.wrong)})"
        return sentence


@dataclass(frozen=True)
class CalibrationTable:
    """Calibration results that are shipped with this version of the package.

    Attributes:
        draws: number of models per kind.
        texts: number of texts per model.
        kinds: results for each model kind.
        errors: verdict errors, one entry for each correct answer.
    """

    draws: int
    texts: int
    kinds: Sequence[ModelKind]
    errors: Sequence[ErrorCount]

    @property
    def sentence(self) -> str:
        """Summary of all verdict errors in one sentence."""
        counts = "; ".join(errors.sentence for errors in self.errors)
        return (
            "Calibration on constructed models with a known correct answer "
            f"({self.draws} models of each kind, {self.texts} texts each): {counts}."
        )

    def find_nearest(self, scores: Mapping[str, float], n: int = 2) -> Sequence[ModelKind]:
        """Find the model kinds whose scores are most similar to a model's scores.

        Args:
            scores: the model's scores by name, such as its faithfulness and its effect. Scores that
                only the model or only a kind has are ignored.
            n: number of kinds to return.

        Returns:
            The kinds with the smallest root mean square difference, nearest first.
        """

        def compute_distance(kind: ModelKind) -> float:
            shared_rules = sorted(scores.keys() & kind.scores.keys())
            if not shared_rules:
                return float("inf")
            differences = np.array([scores[rule] - kind.scores[rule] for rule in shared_rules])
            return float(np.sqrt((differences**2).mean()))

        return sorted(self.kinds, key=compute_distance)[:n]


@cache
def load_calibration_table() -> CalibrationTable:
    """Load the calibration table: how often reports gave a wrong answer in simulations.

    The models in the simulations were constructed, so that the correct answer is known. The table
    is a file in this package.

    Returns:
        The table. It is cached, so the file is read only once.
    """
    file = files("hf_attnprobe.statistics") / CALIBRATION_FILE
    data = json.loads(file.read_text())
    # Some keys of the file differ from the names of the fields.
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
    """Describe the two kinds of constructed models whose scores are most similar to a model's.

    Args:
        scores: the model's scores by name, such as its faithfulness and its effect.

    Returns:
        A sentence with the names and the correct answers of the two kinds.
    """
    descriptions = [
        f'"{kind.name}" ({kind.description}; correct answer: {kind.truth})'
        for kind in load_calibration_table().find_nearest(scores)
    ]
    return f"The scores of this model are most similar to those of {' and '.join(descriptions)}."


def format_share(hits: int, n_trials: int) -> str:
    """Format a count together with the exact 95% confidence interval for the share.

    Args:
        hits: number of hits.
        n_trials: number of trials.

    Returns:
        Count and interval; a dash if ``n_trials`` is 0.

    >>> format_share(0, 40)
    '0 of 40 [.00, .09]'
    """
    if not n_trials:
        return markdown.MISSING_NUMBER
    ends = compute_share_interval(np.array(hits), np.array(n_trials))
    low, high = (f"{end:.2f}".removeprefix("0") for end in ends)
    return f"{hits} of {n_trials} [{low}, {high}]"
