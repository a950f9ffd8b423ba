"""What an audit would have seen: the limits of detection of a spike-in of the same model."""

import json
from pathlib import Path

import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.detection import Decision, by_dose, effect_at, effects_of, limit_of
from hf_attnprobe.statistics.verdicts import RULES


SPIKED, ROWS = "spike_in.json", "rows.csv"
"""Files of a spike-in: what it is of, and head, dose, text, statistic and value."""


EFFECT = "standard_tvd"
"""The statistic that the rule of effect reads."""


def notes_on_limits(
    folder: str | Path, model: str, fingerprint: str, *, n: int, n_heads: int, seed: int
) -> list[str]:
    """What an audit of n texts would have seen, a sentence for each head with a spike.

    Args:
        folder: of ``attnprobe spike``.
        model, fingerprint: of the audited model.
        n_heads: that the audit tests.

    Raises:
        AttnProbeError: no spike-in there, or one of another model.
    """
    rows = spiked_rows(folder, model, fingerprint)
    rule = Decision(RULES["effect"].yes, n_heads)
    sizes = ((head, _limit(own, n, seed, rule)) for head, own in rows.groupby("head"))
    return [
        f"Limits of detection: where head {head} of a copy of this model was made to say a known "
        f"amount, an audit of {n} texts says in 95% of draws that the head has an effect from "
        f"{size} of the probability on. Below, it may say no."
        for head, size in sizes
        if size
    ]


def spiked_rows(folder: str | Path, model: str, fingerprint: str) -> pd.DataFrame:
    """The rows of a spike-in of this very model.

    Raises:
        AttnProbeError: as :func:`notes_on_limits`.
    """
    try:
        said = json.loads((Path(folder) / SPIKED).read_text())
        rows = pd.read_csv(Path(folder) / ROWS, dtype={"head": str})
    except (OSError, ValueError) as error:
        raise AttnProbeError(
            f"expected the folder of attnprobe spike, {folder} holds none ({error})"
        ) from error
    if said.get("fingerprint") != fingerprint:
        raise AttnProbeError(
            f"expected limits of {model}, those in {folder} are of {said.get('model')} with other "
            "weights; plant a spike in the model that is audited"
        )
    return rows


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
