"""Wording of reports, which depends on the type of prediction.

Sentences in reports are templates with placeholders such as ``{unit}``, which are filled from a
:class:`Wording`. For example, a report about predicted numbers mentions standard deviations instead of
probabilities.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


TOKEN_UNITS = "tokens"
"""Entry "units" in the provenance of an audit whose units are the tokens of the model's tokenizer.

Without this entry, the units are words, or the instances that the entry "instance" names.
"""

PROBABILITY_UNIT = "of probability"
"""Words that reports print after a change of a probability, as in ".20 of probability"."""


def format_distinct_count(n: int, n_distinct: int | None = None, *, noun: str = "") -> str:
    """Format a number of texts and, if some texts are copies, the number of different texts.

    Args:
        n: number of texts.
        n_distinct: number of different texts; None if it is unknown.
        noun: text between the two numbers, such as " prompts".

    >>> format_distinct_count(1200, 800, noun=" texts"), format_distinct_count(800, 800)
    ('1,200 texts (800 different)', '800')
    """
    count = f"{n:,}{noun}"
    if n_distinct is None or n_distinct == n:
        return count
    return f"{count} ({n_distinct:,} different)"


@dataclass(frozen=True)
class Wording:
    """Words and phrases for one type of prediction, which fill the placeholders in templates.

    Attributes:
        kind: prediction type, as in :class:`~hf_attnprobe.functional.predictions.Prediction`.
        predicts: predicted quantity, as the object of "predicts"; empty if unknown.
        meaning: sentences that define changes, flips and losses; empty if no explanation is
            needed.
        prediction: the explained prediction, as the subject of a sentence.
        decision: the decision that can flip.
        unit: phrase that follows an output change, as in "0.20 of 1".
        distance: name of the distance between two outputs.
        distance_with_range: the same name with the range or the unit.
        changed_quantity: quantity that a shuffle changes, with its range or unit.
        epsilon_text: the ε in the uniqueness question, with its unit.
        amount: phrase that follows a change in the explained quantity.
        aside: remark that follows such a change, for example that it is a mean over labels.
        loss_title: axis title for losses.
        top_probability_name: name for the probability of the predicted outcome.
        units: plural noun for the units to which the model attends, formed with "s".
        texts: plural noun for the audited inputs, formed with "s".
    """

    kind: str = "classes"
    predicts: str = ""
    meaning: str = ""
    prediction: str = "the predicted class"
    decision: str = "the decision"
    unit: str = "of 1"
    distance: str = "total variation"
    distance_with_range: str = "total variation distance, 0 to 1"
    changed_quantity: str = "output or log-odds, 0 to 1"
    epsilon_text: str = ".01"
    amount: str = PROBABILITY_UNIT
    aside: str = ""
    loss_title: str = "probability lost"
    top_probability_name: str = "top probability"
    units: str = "words"
    texts: str = "texts"

    def fill(self, template: str, **values: Any) -> str:
        """Fill the placeholders in a template.

        Args:
            template: text with placeholders, such as ``{unit}``. Each placeholder is an attribute
                of this class or a key in ``values``.
            values: values for additional placeholders.

        Returns:
            The text without placeholders.
        """
        return template.format(**asdict(self), **values)

    def format_text_count(self, n: int, n_distinct: int | None = None) -> str:
        """Format a number of texts, such as "1 text" or "1,200 texts (800 different)".

        Args:
            n: number of texts.
            n_distinct: number of different texts. It is omitted if all texts are different; None
                also omits it.

        Returns:
            Number and noun.
        """
        noun = self.text_noun if n == 1 else self.texts
        return format_distinct_count(n, n_distinct, noun=f" {noun}")

    @property
    def unit_noun(self) -> str:
        """Noun for one unit, such as "word" or "passage"."""
        return self.units.removesuffix("s")

    @property
    def text_noun(self) -> str:
        """Noun for one audited input: "text" or "prompt"."""
        return self.texts.removesuffix("s")

    @property
    def is_number(self) -> bool:
        """Whether a number is predicted."""
        return self.kind == "number"

    @property
    def standard_amount(self) -> str:
        """Unit of an output change, as a phrase that follows the number.

        Changes of probabilities are measured at the standard temperature. This makes models
        comparable whose probabilities are more or less extreme.
        """
        if self.is_number:
            return "standard deviations of the predictions"
        return f"{self.amount} at the standard temperature"

    @property
    def has_parts(self) -> bool:
        """Whether a text has several parts, such as labels, over which accuracy is averaged."""
        return self.kind in PART_WORDINGS


CLASS_WORDING = Wording()
"""Default wording of reports, for models that predict one of several classes."""
PART_WORDINGS = {
    "labels": (
        "labels",
        "the decision on a label",
        "the decision on any label",
    ),
    "tags": (
        "the tagged words",
        "the predicted tag",
        "the tag of any word",
    ),
    "span": (
        "start and end",
        "the predicted answer",
        "the start or the end of the answer",
    ),
    "words": (
        "masked words",
        "the predicted word",
        "the most probable word at any mask",
    ),
    "answer": (
        "the answer's tokens",
        "the answer",
        "any token of the answer",
    ),
}
"""Maps each prediction type with several parts to three phrases for :func:`build_wording`.

The phrases name the parts, the explained prediction, and the decision that can flip. For example, an
extracted answer ("span") has two parts, its start and its end.
"""


LOWER_BOUND_NOTE = "; a lower bound, because unlikely tokens are combined into one"
"""Note in reports: the output distance of a language model is only a lower bound.

A language model predicts so many different tokens that all unlikely ones are counted as a single token.
The true distance can therefore be larger than the measured one.
"""


def build_wording(prediction: Mapping[str, Any] | None, *, unit: str = "") -> Wording:
    """Build the wording for a type of prediction.

    Args:
        prediction: fields of a :class:`~hf_attnprobe.functional.predictions.Prediction`; None if
            unknown.
        unit: unit for changes in a predicted number, such as "standard deviations". By default,
            reports print the numerical size of the unit.

    Returns:
        The wording.
    """
    if prediction is None:
        return CLASS_WORDING
    kind, name = prediction["kind"], prediction["name"]
    if kind == "number":
        return _build_number_wording(prediction, unit)
    if kind == "choice":
        return Wording(
            kind=kind,
            predicts=name,
            meaning="The chosen text is explained, and the other candidates stay fixed.",
            prediction="the chosen text",
            decision="the choice",
            changed_quantity="the output, 0 to 1",
        )
    if kind not in PART_WORDINGS:
        return Wording(kind=kind, predicts=name)
    parts, prediction_name, decision = PART_WORDINGS[kind]
    aside = f" (mean over {parts})"
    is_answer = kind == "answer"
    bound = LOWER_BOUND_NOTE if is_answer else ""
    return Wording(
        kind=kind,
        predicts=name,
        meaning=f"Changes, losses and probabilities are means over {parts}. A text flips if "
        f"{decision} changes.",
        prediction=prediction_name,
        decision=decision,
        distance=f"total variation, averaged over {parts}{bound}",
        distance_with_range=f"total variation distance, 0 to 1, averaged over {parts}{bound}",
        changed_quantity=Wording.changed_quantity if is_answer else "the output, 0 to 1",
        aside=aside,
        top_probability_name=f"top probability{aside}",
        texts="prompts" if is_answer else Wording.texts,
    )


RENAMED_NOUNS = re.compile(
    r"(?<![\w/.=-])(?<!special )(?<!class )(?<!--level )(?P<article>[Aa] )?(?P<noun>(?:[Ww]ord|[Tt]oken|[Tt]ext)s?)(?![\w/=]|[.-]\w)"
)
"""Matches the nouns for units and inputs, with an indefinite article in front of a singular.

Parts of paths, options, assignments and compound words do not match, and neither do special tokens.
"""


def form_plural(noun: str) -> str:
    """Return the plural of an English noun.

    >>> form_plural("patch"), form_plural("visit"), form_plural("category"), form_plural("day")
    ('patches', 'visits', 'categories', 'days')
    """
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def rename_units(sentences: str, unit: str, input_name: str = "bag") -> str:
    """Replace words and texts in sentences by instances and bags, patches and images, or tokens.

    All sentences of reports are written for texts whose units are words. For other units, their name
    replaces "word" and "token", and the name of the input replaces "text".

    Args:
        sentences: prose of a report.
        unit: name of one unit, such as "patch" or "token".
        input_name: name of one input: "bag", "image" or "text".

    >>> rename_units("A text has words. Each word is a token of --text-column.", "item")
    'A bag has items. Each item is an item of --text-column.'
    >>> rename_units("A text has words and special tokens.", "patch", "image")
    'An image has patches and special tokens.'
    """

    def replace_noun(match: re.Match[str]) -> str:
        article, noun = match["article"] or "", match["noun"]
        new_noun = input_name if noun.lower().startswith("text") else unit
        if article:
            starts_with_vowel = new_noun[0] in "aeiou"
            article = f"{article[0]}n " if starts_with_vowel else article
        if noun.endswith("s"):
            new_noun = form_plural(new_noun)
        if noun[0].isupper():
            new_noun = new_noun.capitalize()
        return article + new_noun

    return RENAMED_NOUNS.sub(replace_noun, sentences)


def find_unit_names(provenance: Mapping[str, Any]) -> tuple[str, str] | None:
    """Find the names of one unit and of one input of an audit, such as "patch" and "image".

    Args:
        provenance: the audit's record of its model, data and options.

    Returns:
        Both names; None if the units are words, so that no sentence needs to be changed.
    """
    instance = provenance.get("instance")
    if instance is not None:
        return instance, provenance.get("input", "bag")
    return ("token", "text") if provenance.get("units") == TOKEN_UNITS else None


def rename_audited_units(sentences: str, provenance: Mapping[str, Any]) -> str:
    """Replace words and texts in sentences about an audit by the names of its units and inputs.

    Args:
        sentences: prose about the audit.
        provenance: the audit's record of its model, data and options.

    >>> rename_audited_units("Words matter.", {"instance": "patch", "input": "image"})
    'Patches matter.'
    """
    names = find_unit_names(provenance)
    return sentences if names is None else rename_units(sentences, *names)


def _build_number_wording(prediction: Mapping[str, Any], unit: str) -> Wording:
    """Build the wording for a model that predicts one or several numbers.

    Args:
        prediction: fields of a :class:`~hf_attnprobe.functional.predictions.Prediction`.
        unit: unit for changes of the number, such as "standard deviations"; if empty, the size of
            the unit is printed, such as "units of 0.25".

    Returns:
        The wording.
    """
    scale, origin = prediction["scale"], prediction["origin"]
    unit_size = f" (one is {scale:.3g})" if unit else ""
    unit = unit or f"units of {scale:.3g}"
    mean_note = " (mean over the numbers)" if prediction["n_parts"] != 1 else ""
    flips = "There is no threshold, so nothing can flip."
    decision = "the decision"
    if prediction["decides"]:
        decision = f"the decision (above {origin:g} or not)"
        flips = f"A text flips if {decision} changes."
    return Wording(
        kind="number",
        predicts=prediction["name"],
        meaning=f"Changes of the number are in {unit}{unit_size}{mean_note} and have no upper limit. "
        f"{flips} The explained quantity is the distance of the number from {origin:g}. A loss is "
        f"a change towards {origin:g}, or beyond it.",
        prediction="the predicted number",
        decision=decision,
        unit=unit,
        distance=f"change of the number{mean_note}",
        distance_with_range=f"change of the number in {unit}{mean_note}",
        changed_quantity=f"the output, {unit}",
        epsilon_text=f".01 {unit}",
        amount=unit,
        aside=f", towards {origin:g} or beyond it{mean_note}",
        loss_title=f"change of the number towards {origin:g}, in {unit},",
    )
