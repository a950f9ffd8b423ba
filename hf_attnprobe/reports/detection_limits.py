"""Notes on the smallest effect that an audit would detect, from planted effects of known size."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import read_json
from hf_attnprobe.statistics.detection import (
    DetectionRule,
    compute_dose_effects,
    estimate_detection_limit,
    interpolate_effect,
    pivot_by_dose,
)
from hf_attnprobe.statistics.heads import EFFECT_STATISTIC
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.folders import find_differences


SPIKE_FILE = "spike_in.json"
"""File with the model and the fingerprints of an experiment with planted effects."""

ROWS_FILE = "rows.csv"
"""File with head, dose, text, statistic and value of such an experiment."""

REPEAT_ADVICE = "run attnprobe detection-limit again with another folder"
"""Advice in error messages about damaged files."""


class DetectionLimitRecord(TypedDict):
    """Contents of ``spike_in.json`` that are checked.

    Attributes:
        model: name of the model.
        fingerprints: fingerprints with the same names as in the identity of an audit.
        rows_sha256: SHA-256 of the file with the rows.
    """

    model: str
    fingerprints: dict[str, str]
    rows_sha256: str


def describe_detection_limits(rows: pd.DataFrame, *, n: int, n_heads: int, seed: int) -> list[str]:
    """Return the smallest detectable effect of each head that has a planted effect.

    Args:
        rows: result of :func:`read_planted_rows`.
        n: number of audited texts.
        n_heads: number of heads that the audit tests.
        seed: seed of the simulated audits.

    Returns:
        A sentence for each head.
    """
    rule = DetectionRule(RULES["effect"].yes, n_heads)
    limits = {
        head: _format_limit(head_rows, n, seed, rule) for head, head_rows in rows.groupby("head")
    }
    return [
        f"Detection limit: effects of known size were planted in head {head} of a copy of this model. "
        f"An audit of {n} texts finds in 95% of draws that the head has an effect if it changes "
        f"{limit} of the probability or more. It may miss smaller effects."
        for head, limit in limits.items()
        if limit
    ]


def read_planted_rows(folder: str | Path, identity: Mapping[str, Any]) -> pd.DataFrame:
    """Read the rows of an experiment with planted effects in the audited model.

    Args:
        folder: output folder of ``attnprobe detection-limit``.
        identity: the audit's identity, with the fingerprints of its model.

    Raises:
        AttnProbeError: If the folder holds no such experiment, or one with another model, or its
            rows have changed.
    """
    record = read_json(Path(folder) / SPIKE_FILE, DetectionLimitRecord, REPEAT_ADVICE)
    differences = find_differences(identity, record["fingerprints"])
    if differences:
        raise AttnProbeError(
            f"the detection limits in {folder} belong to {record['model']} with another "
            f"{' and '.join(differences).replace('_', ' ')}; measure those of the audited model"
        )
    try:
        content = (Path(folder) / ROWS_FILE).read_bytes()
    except OSError as error:
        raise AttnProbeError(
            f"cannot read the rows of the detection limits ({error}); {REPEAT_ADVICE}"
        ) from error
    if hashlib.sha256(content).hexdigest() != record["rows_sha256"]:
        raise AttnProbeError(
            f"{Path(folder) / ROWS_FILE} has changed since it was written; {REPEAT_ADVICE}"
        )
    return pd.read_csv(io.BytesIO(content), dtype={"head": str})


def _format_limit(rows: pd.DataFrame, n: int, seed: int, rule: DetectionRule) -> str:
    """Return the smallest effect of a head that is detected, in words; empty without rows."""
    values = pivot_by_dose(rows, EFFECT_STATISTIC)
    if values.shape[1] < 2:
        return ""
    effects, _ = compute_dose_effects(rows, 1)
    limit = interpolate_effect(effects, estimate_detection_limit(values, n, seed, rule))
    size = markdown.format_interval(limit.effect, limit.interval, digits=3)
    if limit.interval is None:
        return f"more than {size}, the largest planted effect,"
    return size
