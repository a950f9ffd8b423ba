"""Evidence: everything that was measured for a model at one site, used to answer the questions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import (
    Estimate,
    estimate_function_of_means,
    estimate_mean,
)
from hf_attnprobe.statistics.grades import MIN_PROMPTS, MIN_TEXTS
from hf_attnprobe.statistics.rows import PREDICTION_TEST, Rows, Texts
from hf_attnprobe.statistics.scale import (
    ANSWER_PARTS,
    CLASSIFIER_PARTS,
    DELETION_PARTS,
    MIN_FAITHFULNESS_PARTS,
    Part,
    add_commonest_position,
    find_default_classes,
)
from hf_attnprobe.statistics.summary import (
    find_model_site,
    group_by_class,
    select_predictions,
    select_site_texts,
)
from hf_attnprobe.statistics.wording import CLASS_WORDING, Wording


@dataclass(frozen=True)
class Evidence:
    """Everything that was measured for a model at one site (a head, a layer, or all attention).

    Attributes:
        texts: statistics for each text at this site.
        words: wording for the type of prediction.
        classes: masks of the texts in each predicted class, bool [texts], keyed by class name.
        greedy_share: share of texts for which a language model generates the explained answer
            itself, with greedy decoding. The other attributes are then restricted to these
            texts. None for other models.
        n_tested: number of different texts on which each test ran at this site, by test name. It
            also counts texts for which the statistics of the test are undefined.
    """

    texts: Texts
    words: Wording = CLASS_WORDING
    classes: Mapping[str, np.ndarray] = field(default_factory=dict)
    greedy_share: Estimate | None = None
    n_tested: Mapping[str, int] = field(default_factory=dict)

    def get_values(self, name: str) -> np.ndarray:
        """Get the values of a statistic.

        Args:
            name: statistic name.

        Returns:
            float64 [texts]; NaN for undefined values, or if there is no such statistic.
        """
        return self.texts.get_values(name)

    def estimate_mean(self, name: str) -> Estimate:
        """Estimate the mean of a statistic over all texts.

        Args:
            name: statistic name.

        Returns:
            The mean with its confidence interval; its n is 0 if no text has a value.
        """
        return estimate_mean(self.get_values(name))

    def estimate_difference(self, name: str, subtracted_name: str) -> Estimate:
        """Estimate the mean difference between two statistics, paired by text.

        Args:
            name: name of the first statistic.
            subtracted_name: name of the statistic that is subtracted.

        Returns:
            The mean difference with its confidence interval.
        """
        return estimate_mean(self.get_values(name) - self.get_values(subtracted_name))

    def estimate_function(
        self, names: Sequence[str], function: Callable[..., np.ndarray]
    ) -> Estimate:
        """Estimate a function of several means, such as a ratio.

        Args:
            names: statistic names; texts that lack any of these statistics are ignored.
            function: function with one argument for each mean.

        Returns:
            The function value with its confidence interval.
        """

        def call_with_separate_means(means: np.ndarray) -> np.ndarray:
            return function(*np.moveaxis(means, -1, 0))

        columns = [self.get_values(name) for name in names]
        return estimate_function_of_means(columns, call_with_separate_means)

    @property
    def min_texts(self) -> int:
        """Smallest number of texts that are needed to answer a question about this type of model."""
        return MIN_PROMPTS if self.words.kind == "answer" else MIN_TEXTS

    @property
    def parts(self) -> Sequence[Part]:
        """Faithfulness parts that are averaged.

        A part is left out if its test ran on fewer texts than an answer requires, while at least two
        other parts have enough texts.
        """
        all_parts = ANSWER_PARTS if self.words.kind == "answer" else CLASSIFIER_PARTS
        covered_parts = []
        for part in all_parts:
            n_texts = self.n_tested.get(part.resolve(self.texts).test)
            if n_texts is None or n_texts >= self.min_texts:
                covered_parts.append(part)
        return covered_parts if len(covered_parts) >= MIN_FAITHFULNESS_PARTS else all_parts

    def count_missing_runs(self, tests: Iterable[str]) -> dict[str, int]:
        """Count the texts of all tests that did not run on as many texts as an answer requires.

        Args:
            tests: names of the tests that an answer requires.

        Returns:
            Number of texts on which the test ran, by test name; 0 if the test did not run. Tests that
            ran on enough texts are left out.
        """
        n_texts_by_test = {test: self.n_tested.get(test, 0) for test in tests}
        return {test: n for test, n in n_texts_by_test.items() if n < self.min_texts}

    @cached_property
    def default_classes(self) -> list[str]:
        """Classes that the model predicts if nothing in the text points to another class."""
        # Deleting words shows that a text contains no evidence. Exchanging them would not, because
        # the new words can contain evidence for another class.
        parts = ANSWER_PARTS if self.words.kind == "answer" else DELETION_PARTS
        return find_default_classes(self.texts, self.classes, parts)

    @cached_property
    def explained_evidence(self) -> "Evidence":
        """Evidence without texts in default classes, which contain nothing to explain."""
        if not self.default_classes:
            return self
        is_default = np.any([self.classes[name] for name in self.default_classes], axis=0)
        return self.select_texts(~is_default)

    def select_texts(self, is_selected: np.ndarray) -> "Evidence":
        """Select texts with a boolean mask.

        Args:
            is_selected: bool [texts].

        Returns:
            Evidence that only contains the selected texts.
        """
        classes = {name: members[is_selected] for name, members in self.classes.items()}
        return replace(self, texts=self.texts.select(is_selected), classes=classes)

    def select_class(self, name: str) -> "Evidence":
        """Select the texts for which the model predicts a class.

        Args:
            name: class name.

        Returns:
            Evidence that only contains these texts.
        """
        return self.select_texts(self.classes[name])


def build_evidence(
    rows: Rows | pd.DataFrame,
    label_names: Sequence[str] = (),
    *,
    words: Wording = CLASS_WORDING,
) -> Evidence | None:
    """Build the evidence about a model's attention from audit rows.

    Copies of a text count once (:meth:`~hf_attnprobe.statistics.rows.Rows.merge_duplicates`).

    Args:
        rows: audit rows, or a data frame in long form.
        label_names: class names.
        words: wording for the type of prediction.

    Returns:
        The evidence; None if only single heads of a larger model were tested.
    """
    rows = Rows.coerce(rows).merge_duplicates()
    site = find_model_site(rows)
    if site is None:
        return None
    texts = select_site_texts(rows, site)
    predictions = select_predictions(rows).align_to(texts.index)
    classes = group_by_class(predictions, label_names)
    evidence = Evidence(texts, words, classes, n_tested=_count_tested_texts(rows, site))
    if GREEDY_STATISTIC not in texts:
        return evidence

    # For a language model, only texts whose explained answer is the model's own answer count.
    is_greedy = evidence.get_values(GREEDY_STATISTIC)
    greedy_evidence = evidence.select_texts(is_greedy == 1)
    greedy_share = estimate_mean(is_greedy, share=True)
    greedy_texts = add_commonest_position(greedy_evidence.texts)
    return replace(greedy_evidence, texts=greedy_texts, greedy_share=greedy_share)


def _count_tested_texts(rows: Rows, site: tuple[int, int]) -> dict[str, int]:
    """Count the texts on which each test ran at a site, including texts with undefined values."""
    masks: dict[str, np.ndarray] = {}
    for column in rows.columns:
        test, _, *column_site = column
        if tuple(column_site) != site or test == PREDICTION_TEST:
            continue
        is_tested = masks.get(test, np.zeros(len(rows), dtype=bool))
        # Usually the first column already contains all texts.
        masks[test] = is_tested if is_tested.all() else is_tested | rows.read_mask(column)
    return {test: int(is_tested.sum()) for test, is_tested in masks.items()}


GREEDY_STATISTIC = "answer_is_greedy"
"""Name of the statistic that is 1 if greedy decoding generates the explained answer, and 0 if not."""
