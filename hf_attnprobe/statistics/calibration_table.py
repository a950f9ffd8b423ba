"""What the verdict says of models whose truth is known, and which of them a model is most like.

Kinds of models are counted, not models: the draws of one kind are nearly the same model. The
numbers are those of ``benchmarks/truth``, which writes the file read here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.statistics.estimates import share_interval


MEASURED = "calibration.json"
WRONGLY = {"yes": "no or partly", "no": "yes or partly", "partly": "yes or no"}
"""By truth, the answers that are wrong."""
TRUTHS = {"yes": "the truth yes", "no": "the truth no", "partly": "two truths"}


@dataclass(frozen=True)
class KnownKind:
    """A kind of models by formula.

    Attributes:
        name, says: what it is.
        truth: yes, no, or partly where something is said for either; of a mixture it is the
            share of texts in which attention is right.
        place: means over its models of faithfulness, its parts and the effect, by rule.
        answers: how many models were told what.
    """

    name: str
    says: str
    truth: str
    place: Mapping[str, float]
    answers: Mapping[str, int]


@dataclass(frozen=True)
class KindsOfTruth:
    """How many kinds with one truth were told something wrong.

    Attributes:
        kinds: how many there are.
        wrong: those of which any draw was told a wrong answer.
        open: those of which any draw was told "cannot say".
    """

    truth: str
    kinds: int
    wrong: Sequence[str]
    open: Sequence[str]

    @property
    def sentence(self) -> str:
        """The count in words, as in "0 of 20 kinds with the truth yes were told no or partly"."""
        of_all = f"{len(self.wrong)} of {self.kinds} kinds with {TRUTHS[self.truth]}"
        named = f" ({'; '.join(self.wrong)})" if self.wrong else ""
        return f"{of_all} were ever told {WRONGLY[self.truth]}{named}"


@dataclass(frozen=True)
class KnownTruth:
    """The data sheet: what was measured, and what the verdict said of it.

    Attributes:
        draws, texts: models of each kind, and texts of each.
        kinds: what was drawn.
        errors: by truth.
    """

    draws: int
    texts: int
    kinds: Sequence[KnownKind]
    errors: Sequence[KindsOfTruth]

    @property
    def sentence(self) -> str:
        """The counts of errors in one sentence."""
        counts = "; ".join(errors.sentence for errors in self.errors)
        return f"Of models by formula ({self.draws} draws of a kind, {self.texts} texts): {counts}."

    def nearest(self, place: Mapping[str, float], n: int = 2) -> Sequence[KnownKind]:
        """The kinds whose numbers are nearest to those of a model, the nearest first.

        Args:
            place: faithfulness, its parts and the effect, by rule; what a kind or the model
                lacks does not count.
            n: how many.
        """

        def distance(kind: KnownKind) -> float:
            both = sorted(place.keys() & kind.place.keys())
            apart = np.array([place[rule] - kind.place[rule] for rule in both])
            return float(np.sqrt((apart**2).mean())) if both else float("inf")

        return sorted(self.kinds, key=distance)[:n]


@cache
def known_truth() -> KnownTruth:
    """The data sheet that comes with this version."""
    file = files("hf_attnprobe.statistics") / MEASURED
    data = json.loads(file.read_text())
    fields = ("name", "says", "truth", "place", "answers")
    kinds = [KnownKind(*(kind[field] for field in fields)) for kind in data["kinds"]]
    errors = [KindsOfTruth(**own) for own in data["errors"]]
    return KnownTruth(data["draws"], data["texts"], kinds, errors)


def nearest_sentence(place: Mapping[str, float]) -> str:
    """The nearest kinds in words; see :meth:`KnownTruth.nearest`."""
    named = [
        f"{kind.name} ({kind.says}; truth {kind.truth})" for kind in known_truth().nearest(place)
    ]
    return f"Its numbers are nearest to those of {', and of '.join(named)}."


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
