"""The words that depend on the kind of prediction, in one place.

Readings, findings and tables have places such as ``{unit}``, which are filled from here.
A sentence about a number speaks of standard deviations, not of probability; one about
several labels says that a change is the mean over labels.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


OF_PROBABILITY = "of probability"


@dataclass(frozen=True)
class Words:
    """The words for one kind of prediction.

    Attributes:
        kind: of prediction, as ``functional/predictions.py`` names it.
        predicts: what is predicted, after "Predicts"; empty where it is not known.
        meaning: what a change, a flip and a loss are here; empty where it is plain.
        said: what the model says of a text, as a subject.
        decision: what may flip.
        unit: behind the number of a change of the output.
        distance: what such a change is, in brackets.
        measured: the same with its range or unit.
        moves: what a shuffle moves, with its range or unit.
        within: the ε of uniqueness, with its unit.
        amount: behind a number of what is explained.
        aside: what that is a mean of, or where it points.
        lost: a title for how much of it is lost.
        likely: what the top probability is of.
        units: what attention weighs.
        texts: what is audited.
    """

    kind: str = "classes"
    predicts: str = ""
    meaning: str = ""
    said: str = "the predicted class"
    decision: str = "the decision"
    unit: str = "of 1"
    distance: str = "total variation"
    measured: str = "total variation distance, 0 to 1"
    moves: str = "output or log-odds, 0 to 1"
    within: str = ".01"
    amount: str = OF_PROBABILITY
    aside: str = ""
    lost: str = "probability lost"
    likely: str = "top probability"
    units: str = "words"
    texts: str = "texts"

    def fill(self, text: str, **more: Any) -> str:
        """A text with its places filled."""
        return text.format(**asdict(self), **more)

    def counted(self, n: int) -> str:
        """A number of texts: "1 text", "1,200 texts"."""
        return f"{n:,} {self.texts.removesuffix('s') if n == 1 else self.texts}"

    @property
    def is_number(self) -> bool:
        return self.kind == "number"

    @property
    def standard_amount(self) -> str:
        """Behind a number of what is explained at the standard temperature."""
        if self.is_number:
            return "standard deviations of the predictions"
        return f"{self.amount} at the standard temperature"

    @property
    def has_parts(self) -> bool:
        """Whether a text's accuracy is a mean over parts, and no 0 or 1."""
        return self.kind in PARTS


CLASSES = Words()
PARTS = {
    "labels": (
        "labels",
        "the decision on a label",
        "the decision on some label",
    ),
    "tags": (
        "words that are read",
        "the predicted tag",
        "the tag of some word",
    ),
    "span": (
        "start and end",
        "the predicted answer",
        "the start or the end of the answer",
    ),
    "words": (
        "masked words",
        "the predicted word",
        "the likeliest masked word",
    ),
    "answer": (
        "the answer's tokens",
        "the answer",
        "a token of the answer",
    ),
}
"""By kind: what the parts are, what is said of one, what may flip."""


LOWER_BOUND = "; a lower bound, since unlikely tokens are counted together"


def words_of(prediction: Mapping[str, Any] | None, *, unit: str = "") -> Words:
    """The words of a prediction.

    Args:
        prediction: the fields of a ``Prediction``; None where it is not known.
        unit: of a number's changes, in words; by default by its size.
    """
    if prediction is None:
        return CLASSES
    kind, name = prediction["kind"], prediction["name"]
    if kind == "number":
        return _of_number(prediction, unit)
    if kind == "choice":
        return Words(
            kind,
            name,
            "The chosen text is explained, the others are held.",
            said="the chosen text",
            decision="the choice",
            moves="the output, 0 to 1",
        )
    if kind not in PARTS:
        return Words(kind, name)
    parts, said, decision = PARTS[kind]
    aside = f" (mean over {parts})"
    is_answer = kind == "answer"
    bound = LOWER_BOUND if is_answer else ""
    return Words(
        kind,
        name,
        f"Changes, losses and probabilities are means over {parts}; a text flips where "
        f"{decision} does.",
        said=said,
        decision=decision,
        distance=f"total variation, averaged over {parts}{bound}",
        measured=f"total variation distance, 0 to 1, averaged over {parts}{bound}",
        moves=Words.moves if is_answer else "the output, 0 to 1",
        aside=aside,
        likely=f"top probability{aside}",
        texts="prompts" if is_answer else Words.texts,
    )


def _of_number(prediction: Mapping[str, Any], unit: str) -> Words:
    scale, origin = prediction["scale"], prediction["origin"]
    one = f" (one is {scale:.3g})" if unit else ""
    unit = unit or f"units of {scale:.3g}"
    several = " (mean over the numbers)" if prediction["n_parts"] != 1 else ""
    flips = "No threshold was given, so nothing can flip."
    decision = "the decision"
    if prediction["decides"]:
        decision = f"the decision (above {origin:g} or not)"
        flips = f"A text flips where {decision} does."
    return Words(
        "number",
        prediction["name"],
        f"Changes of it are in {unit}{one}{several}, with no upper limit. "
        f"{flips} What is explained is how far the number is from {origin:g}, on its own "
        f"side; a loss is a move towards {origin:g} or past it.",
        said="the predicted number",
        decision=decision,
        unit=unit,
        distance=f"change of the number{several}",
        measured=f"change of the number in {unit}{several}",
        moves=f"the output, {unit}",
        within=f".01 {unit}",
        amount=unit,
        aside=f", towards {origin:g} or past it{several}",
        lost=f"number's move towards {origin:g}, in {unit},",
    )
