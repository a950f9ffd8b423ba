"""What an audit would have seen: the limits of detection of a spike-in of the same model."""

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
    Decision,
    by_dose,
    effect_at,
    effects_of,
    limit_of,
)
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.folders import differing


SPIKED, ROWS = "spike_in.json", "rows.csv"
"""Files of a spike-in: what it is of, and head, dose, text, statistic and value."""
AGAIN = "run attnprobe spike again, in another folder"


class Spiked(TypedDict):
    """What a spike-in says of its model and of its rows.

    Attributes:
        fingerprints: by the name that they have in the identity of an audit.
        rows_sha256: of the file of the rows.
    """

    model: str
    fingerprints: dict[str, str]
    rows_sha256: str


EFFECT = "standard_tvd"
"""The statistic that the rule of effect reads."""


def notes_on_limits(rows: pd.DataFrame, *, n: int, n_heads: int, seed: int) -> list[str]:
    """What an audit of n texts would have seen, a sentence for each head with a spike.

    Args:
        rows: of :func:`spiked_rows`.
        n_heads: that the audit tests.
    """
    rule = Decision(RULES["effect"].yes, n_heads)
    sizes = ((head, _limit(own, n, seed, rule)) for head, own in rows.groupby("head"))
    return [
        f"Limits of detection: where head {head} of a copy of this model was made to say a known "
        f"amount, an audit of {n} texts says in 95% of draws that the head has an effect from "
        f"{size} of the probability on. Below, it may say no."
        for head, size in sizes
        if size
    ]


def spiked_rows(folder: str | Path, identity: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of a spike-in of this very model.

    Args:
        folder: of ``attnprobe spike``.
        identity: of an audit, with the fingerprints of its model.

    Raises:
        AttnProbeError: no spike-in there, one of another model, or other rows than it wrote.
    """
    said = read_json(Path(folder) / SPIKED, Spiked, AGAIN)
    other = differing(identity, said["fingerprints"])
    if other:
        raise AttnProbeError(
            f"expected limits of the audited model, those in {folder} are of {said['model']} with "
            f"another {' and '.join(other).replace('_', ' ')}; plant a spike in the model that is "
            "audited"
        )
    try:
        content = (Path(folder) / ROWS).read_bytes()
    except OSError as error:
        raise AttnProbeError(f"cannot read the rows of the spike-in ({error}); {AGAIN}") from error
    if hashlib.sha256(content).hexdigest() != said["rows_sha256"]:
        raise AttnProbeError(f"{Path(folder) / ROWS} was changed since it was written; {AGAIN}")
    return pd.read_csv(io.BytesIO(content), dtype={"head": str})


def _limit(rows: pd.DataFrame, n: int, seed: int, rule: Decision) -> str:
    """The smallest effect of a head of which the rule says yes, in words; empty without rows."""
    values = by_dose(rows, EFFECT)
    if values.shape[1] < 2:
        return ""
    moved, _ = effects_of(rows, 1)
    limit = effect_at(moved, limit_of(values, n, seed, rule))
    size = markdown.interval(limit.effect, limit.interval, digits=3)
    if limit.interval is None:
        return f"more than {size}, the largest planted,"
    return size
