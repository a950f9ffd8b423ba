"""The number behind each question, text by text. Pure: rows in, data frames out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from hf_attnprobe.statistics.summary import at_site, predictions_of, site_of_model


@dataclass(frozen=True)
class Measure:
    """A number per text as a sum of statistics.

    Attributes:
        rule: key of the question.
        words: what the number is.
        terms: factors by statistic.
        constant: what is added.
        beyond_control: whether the control's is subtracted, where all audits have one.
        larger_than: a statistic whose mean is smaller, else this is not what is graded.
    """

    rule: str
    words: str
    terms: Mapping[str, float]
    constant: float = 0.0
    beyond_control: bool = False
    larger_than: str = ""

    def of(self, texts: pd.DataFrame) -> pd.Series | None:
        """The number of every text; None where a statistic is missing."""
        if not set(self.terms) <= set(texts):
            return None
        if self.larger_than in texts:
            own, other = (
                texts[[*self.terms]].mean().sum(),
                texts[self.larger_than].mean(),
            )
            if own <= other:
                return None
        parts = [factor * texts[name] for name, factor in self.terms.items()]
        return sum(parts[1:], parts[0]) + self.constant


LESS_CONTROL = ", minus the control's"
"""Ends the words of a number from which the control's is taken off."""
SHUFFLED = "under shuffled attention"
SOONER = "share of tokens that attention's order erases less than a random one, until"
REMOVAL = "what is lost without the tokens of most attention, minus without random ones"
MEASURES = (
    Measure("accuracy", "share of a text's labels that are right", {"right": 1}),
    Measure("accuracy", "error of the predicted number (less is better)", {"error": 1}),
    Measure(
        "importance",
        "Gini correlation of attention with leave-one-out",
        {"attention_leave_one_out_agreement": 1},
    ),
    Measure(
        "assignment",
        f"change of the log-odds {SHUFFLED}, as a share of their range",
        {"median_share_of_log_odds": 1},
        larger_than="median_tvd",
    ),
    Measure("assignment", f"change of the output {SHUFFLED}", {"median_tvd": 1}),
    Measure(
        "uniqueness",
        "1 − the farthest attention found within ε, as a share of the farthest of all",
        {"share_of_largest@0.01": -1},
        constant=1,
    ),
    Measure(
        "erasure",
        f"{SOONER} nine tenths of the lead are gone",
        {"fraction_to_lose_lead@random": 1, "fraction_to_lose_lead@attention": -1},
    ),
    Measure(
        "erasure",
        f"{SOONER} the decision flips",
        {"fraction_to_flip@random": 1, "fraction_to_flip@attention": -1},
    ),
    *(
        Measure(
            "removal",
            REMOVAL,
            {f"comprehensiveness@{ranking}": 1, "comprehensiveness@random": -1},
            beyond_control=True,
        )
        for ranking in ("attention", "mean_attention")
    ),
)
"""In the order of the rules; of two for one rule the first that most audits have."""


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of one audit, with what was measured of its attention as a whole.

    Attributes:
        values: [texts, statistics].
        control: the same of the control; None without one.
    """

    values: pd.DataFrame
    control: pd.DataFrame | None = field(default=None)


def texts_of(rows: pd.DataFrame, control: pd.DataFrame | None) -> Texts:
    """What the rows of an audit say of the model's attention as a whole.

    Args:
        rows: of the audit.
        control: rows of its control, if any.
    """
    right = _right(predictions_of(rows))
    site = site_of_model(rows)
    if site is None:
        return Texts(right)
    values = pd.concat([right, at_site(rows, site)], axis=1)
    if control is None or control.empty:
        return Texts(values)
    return Texts(values, at_site(control, site).reindex(values.index))


def _right(predictions: pd.DataFrame) -> pd.DataFrame:
    """How far each prediction is right; NaN without a label."""
    if "labelled_value" in predictions:
        error = (predictions.value - predictions.labelled_value).abs()
        return pd.DataFrame({"error": error})
    if "correct" in predictions:
        return pd.DataFrame({"right": predictions.correct})
    is_right = (predictions.label == predictions.predicted_class).astype(float)
    return pd.DataFrame({"right": is_right.where(predictions.label >= 0)})


def numbers_of(measure: Measure, audits: Sequence[Texts]) -> tuple[str, list[pd.Series | None]]:
    """A measure of every audit, in words and by text; None of an audit without it.

    The controls are subtracted where every audit that has the number has one.
    """
    own = [measure.of(audit.values) for audit in audits]
    if not measure.beyond_control:
        return measure.words, own
    controls = [None if audit.control is None else measure.of(audit.control) for audit in audits]
    asked = [c for c, number in zip(controls, own, strict=True) if number is not None]
    if not asked or any(c is None for c in asked):
        return measure.words, own
    beyond = [
        None if number is None or c is None else number - c
        for number, c in zip(own, controls, strict=True)
    ]
    return f"{measure.words}{LESS_CONTROL}", beyond
