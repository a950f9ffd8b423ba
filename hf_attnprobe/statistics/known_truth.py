"""Measured error rates of each question on models of known truth.

The numbers are those of ``hf_attnprobe.calibration``, which writes the file read here.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from hf_attnprobe import markdown
from hf_attnprobe.statistics.estimates import share_interval


MEASURED = "calibration.json"
OF_DECODERS = "decoders.json"
"""The same of language models that answer from a passage."""


@dataclass(frozen=True)
class RuleRow:
    """Error counts of one question over all constructed models, at one number of texts.

    Attributes:
        false_yes, no: wrong answers, and models, where the truth is no.
        false_no, yes: the same where the truth is yes.
        undecided_no, undecided_yes: models that neither yes nor no is said of.
        auroc: how often the graded number of a model with the truth yes is above that
            of one with no; .5 is chance; None where there is no number or one truth only.
    """

    rule: str
    n: int
    false_yes: int
    no: int
    false_no: int
    yes: int
    undecided_no: int
    undecided_yes: int
    auroc: float | None

    @property
    def sentence(self) -> str:
        """The error counts in one sentence."""
        parts = []
        if self.no:
            parts.append(f"{share(self.false_yes, self.no)} with the truth no got a yes or partly")
        if self.yes:
            parts.append(f"{share(self.false_no, self.yes)} with the truth yes got a no")
        n_open = self.undecided_no + self.undecided_yes
        return (
            f"Of models whose truth is known ({self.n} texts each), {', '.join(parts)}; "
            f"{n_open} of {self.no + self.yes} were undecided."
        )


def row_of(rule: str, n_texts: int | None = None, *, decoders: bool = False) -> RuleRow | None:
    """The measured error counts of a question.

    Args:
        rule: a key of ``RULES`` about attention, "accuracy" or "whole".
        n_texts: of the audit; the row is that of the most texts that are no more, or
            the fewest measured. None: the most.
        decoders: whether it is of a language model.

    Returns:
        None of a rule that was not calibrated.
    """
    rows = sorted(
        (r for r in _measured_rows(OF_DECODERS if decoders else MEASURED) if r.rule == rule),
        key=lambda r: r.n,
    )
    if not rows:
        return None
    fitting = [row for row in rows if n_texts is None or row.n <= n_texts]
    return (fitting or rows[:1])[-1]


@cache
def _measured_rows(name: str) -> tuple[RuleRow, ...]:
    file = files("hf_attnprobe") / "calibration" / name
    return tuple(RuleRow(**row) for row in json.loads(file.read_text())["rules"])


def share(hits: int, n: int) -> str:
    """A count with the exact interval of its share.

    >>> share(0, 40)
    '0 of 40 [.00, .09]'
    """
    if not n:
        return markdown.MISSING
    low, high = (
        f"{end:.2f}".removeprefix("0") for end in share_interval(np.array(hits), np.array(n))
    )
    return f"{hits} of {n} [{low}, {high}]"
