"""The numbers of a model at one site, from which answers are computed. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import (
    Estimate,
    function_estimate,
    mean_estimate,
)
from hf_attnprobe.statistics.rows import Rows, Texts
from hf_attnprobe.statistics.scale import (
    PARTS,
    PARTS_OF_ANSWERS,
    Part,
    said_by_default,
    with_commonest_place,
)
from hf_attnprobe.statistics.summary import (
    at_site,
    groups_by_class,
    predictions_of,
    site_of_model,
)
from hf_attnprobe.statistics.wording import CLASSES, Words


@dataclass(frozen=True)
class Evidence:
    """The numbers of one site, read a statistic at a time.

    Attributes:
        texts: of the model.
        words: of the kind of prediction.
        classes: the texts of each class that is predicted, by its name, bool [texts].
        own_answers: of a language model the share of all texts whose answer it says itself; the
            numbers are of these. None of other models.
    """

    texts: Texts
    words: Words = CLASSES
    classes: Mapping[str, np.ndarray] = field(default_factory=dict)
    own_answers: Estimate | None = None

    def column(self, name: str) -> np.ndarray:
        """A statistic by text; NaN where there is none."""
        return self.texts.values(name)

    def mean(self, name: str) -> Estimate:
        """The mean of a statistic; n is 0 where there is none."""
        return mean_estimate(self.column(name))

    def beyond(self, name: str, other: str) -> Estimate:
        """The paired difference of two statistics."""
        return mean_estimate(self.column(name) - self.column(other))

    def of_means(self, names: Sequence[str], function: Callable[..., np.ndarray]) -> Estimate:
        """A function of the means of some statistics, of the texts that have all of them."""
        columns = [*map(self.column, names)]
        return function_estimate(columns, lambda means: function(*np.moveaxis(means, -1, 0)))

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of faithfulness of this kind of model."""
        return PARTS_OF_ANSWERS if self.words.kind == "answer" else PARTS

    @cached_property
    def by_default(self) -> list[str]:
        """The classes that the model says unless something speaks for another one."""
        return said_by_default(self.texts, self.classes, self.parts)

    @cached_property
    def explained(self) -> "Evidence":
        """This evidence without the texts whose class is said by default."""
        if not self.by_default:
            return self
        left_out = np.any([self.classes[name] for name in self.by_default], axis=0)
        return self.where(~left_out)

    def where(self, wanted: np.ndarray) -> "Evidence":
        """This evidence on the texts that are wanted, bool [texts]."""
        classes = {name: members[wanted] for name, members in self.classes.items()}
        return replace(self, texts=self.texts.where(wanted), classes=classes)

    def of_class(self, name: str) -> "Evidence":
        """This evidence on the texts that are predicted so."""
        return self.where(self.classes[name])


def evidence_of(
    rows: Rows | pd.DataFrame,
    label_names: Sequence[str] = (),
    *,
    words: Words = CLASSES,
) -> Evidence | None:
    """The evidence in rows about the model's attention; None where no site stands for it.

    Args:
        rows: of an audit.
        label_names: names of the classes.
        words: see :class:`Evidence`.
    """
    rows = Rows.of(rows)
    site = site_of_model(rows)
    if site is None:
        return None
    texts = at_site(rows, site)
    predictions = predictions_of(rows).of(texts.index)
    evidence = Evidence(texts, words, groups_by_class(predictions, label_names))
    if IS_OWN not in texts:
        return evidence

    # Of language models: only the texts whose answer the model says itself.
    is_own = evidence.column(IS_OWN)
    own = evidence.where(is_own == 1)
    share = mean_estimate(is_own, share=True)
    return replace(own, texts=with_commonest_place(own.texts), own_answers=share)


IS_OWN = "answer_is_greedy"
