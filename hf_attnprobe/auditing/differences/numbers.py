"""The number behind each question, text by text. Pure: rows in, data frames out."""

from collections.abc import Sequence

import pandas as pd

from hf_attnprobe.statistics.evidence import Evidence, evidence_of
from hf_attnprobe.statistics.grades import Measure
from hf_attnprobe.statistics.summary import predictions_of


LESS_CONTROL = ", minus the control's"
"""Ends the words of a number from which the control's is taken off."""


def texts_of(rows: pd.DataFrame, control: pd.DataFrame | None) -> Evidence:
    """What the rows of an audit say of its predictions and of its attention as a whole.

    Args:
        rows: of the audit.
        control: rows of its control, if any.
    """
    right = _right(predictions_of(rows))
    found = evidence_of(rows, None if control is None or control.empty else control)
    if found is None:
        return Evidence(right)
    texts = pd.concat([right, found.texts], axis=1)
    return Evidence(texts, tuple(draw.reindex(texts.index) for draw in found.draws))


def _right(predictions: pd.DataFrame) -> pd.DataFrame:
    """How far each prediction is right; NaN without a label."""
    if "labelled_value" in predictions:
        error = (predictions.value - predictions.labelled_value).abs()
        return pd.DataFrame({"error": error})
    if "correct" in predictions:
        return pd.DataFrame({"right": predictions.correct})
    is_right = (predictions.label == predictions.predicted_class).astype(float)
    return pd.DataFrame({"right": is_right.where(predictions.label >= 0)})


def numbers_of(measure: Measure, audits: Sequence[Evidence]) -> tuple[str, list[pd.Series | None]]:
    """A measure of every audit, in words and by text; None of an audit without it.

    The controls are subtracted where every audit that has the number has one.
    """
    own = [measure.of(audit.texts) for audit in audits]
    if not measure.beyond_control:
        return measure.words, own
    controls = [measure.of(audit.control) if audit.has_control else None for audit in audits]
    asked = [c for c, number in zip(controls, own, strict=True) if number is not None]
    if not asked or any(c is None for c in asked):
        return measure.words, own
    beyond = [
        None if number is None or c is None else number - c
        for number, c in zip(own, controls, strict=True)
    ]
    return f"{measure.words}{LESS_CONTROL}", beyond
