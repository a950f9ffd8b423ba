"""The questions answered from a merged summary, where no rows are at hand. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.auditing.verdict import (
    findings_about_attention,
    graded_accuracy,
    no_accuracy,
)
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.merging import (
    EVERY,
    Partial,
    columns_of,
    difference_of,
    estimate_of,
    merged_quality,
    of_cell,
)
from hf_attnprobe.statistics.questions import said_as
from hf_attnprobe.statistics.summary import PREDICTION, group_names, site_of_model
from hf_attnprobe.statistics.verdicts import Finding
from hf_attnprobe.statistics.wording import CLASSES, Words


def merged_findings(
    partial: Partial, label_names: Sequence[str], *, words: Words = CLASSES
) -> tuple[Finding, ...]:
    """As :func:`findings`, from the merged summary of all texts in place of their rows.

    Args:
        partial: with derived columns, as ``storage/wide_rows.py`` makes it.
        label_names: names of the classes.
        words: of the kind of prediction.
    """
    found = merged_accuracy(partial, words)
    evidence = merged_evidence(partial, EVERY, words)
    if evidence is None:
        return (found,)
    of_classes = {
        name: of_class
        for k, name in enumerate(group_names(label_names))
        if partial.texts.get(k) and (of_class := merged_evidence(partial, k, words)) is not None
    }
    return (found, *findings_about_attention(evidence, of_classes))


@dataclass(frozen=True)
class MergedEvidence(Evidence):
    """The evidence at one site from a merged summary; there is no control.

    Attributes:
        summary: of one group of texts.
        site: layer and head.
    """

    summary: Partial | None = None
    site: tuple[int, int] = (-1, -1)

    def mean(self, name: str) -> Estimate:
        """A statistic of the model; n is 0 where there is none."""
        assert self.summary is not None
        for test, statistic, *place in columns_of(self.summary, derived=True):
            if statistic == name and tuple(place) == self.site:
                return estimate_of(self.summary, (test, statistic, *place))
        return Estimate(float("nan"), None, 0)

    def beyond(self, name: str, other: str) -> Estimate:
        """One statistic of the model − another one, paired by text."""
        return self.mean(difference_of(name, other))

    def share_of_means(
        self, names: Sequence[str], share: Callable[..., np.ndarray], *, control: bool
    ) -> Estimate:
        """As of rows, without an interval: how the means vary together is not kept."""
        means = [self.mean(name) for name in names]
        if control or not all(mean.n for mean in means):
            return Estimate(float("nan"), None, 0)
        value = float(share(*(np.array(mean.value) for mean in means)))
        return Estimate(value, None, min(mean.n or 0 for mean in means))


def merged_evidence(partial: Partial, cell: int, words: Words) -> MergedEvidence | None:
    """What the questions need; None where several heads were tested one by one.

    Args:
        partial: of all texts.
        cell: a predicted class, or all with ``EVERY``.
        words: of the kind of prediction.
    """
    summary = of_cell(partial, cell)
    columns = columns_of(of_cell(partial, EVERY))
    frame = pd.DataFrame(columns, columns=["test", "statistic", "layer", "head"])
    site = site_of_model(frame)
    if site is None:
        return None
    return MergedEvidence(pd.DataFrame(), (), words, summary=summary, site=site)


def merged_accuracy(partial: Partial, words: Words) -> Finding:
    """Whether there is anything to explain; graded of a class per text only.

    The mean of all numbers, and what is most frequent of several labels, is known only
    when all texts are: what is graded against these would need the rows.
    """
    if words.is_number:
        return no_accuracy("R² is not kept in summaries of parts")
    met = estimate_of(of_cell(partial, EVERY), (PREDICTION, "correct", -1, -1))
    if met.n:
        why = (
            f"the model is right in {said_as(met)} of the labels of a text (mean over "
            f"{met.n} texts); what saying the most frequent would reach is not kept in "
            "summaries of parts"
        )
        return no_accuracy(why)
    return graded_accuracy(merged_quality(partial), words)
