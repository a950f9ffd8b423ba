"""What an audit would have seen: the limits of detection of a spike-in of the same model."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.auditing.heads import MEASURES
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.detection import by_dose, effect_at, effects_of, limit_of


SPIKED, ROWS = "spike_in.json", "rows.csv"
"""Files of a spike-in: what it is of, and head, dose, text, statistic and value."""


def notes_on_limits(
    folder: str | Path, model: str, fingerprint: str, *, n: int, seed: int
) -> list[str]:
    """What an audit of n texts would have seen, a sentence for each head with a spike.

    Args:
        folder: of ``attnprobe calibrate --spike-in``.
        model, fingerprint: of the audited model.

    Raises:
        AttnProbeError: no spike-in there, or one of another model.
    """
    rows = spiked_rows(folder, model, fingerprint)
    found = ((head, "; ".join(_limits(own, n, seed))) for head, own in rows.groupby("head"))
    return [
        f"Limits of detection: where head {head} of a copy of this model was made to say a known "
        f"amount, {n} texts show the effect in 95% of draws from this size on: {limits}. What "
        "is smaller may be there and not be seen."
        for head, limits in found
        if limits
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
            f"expected the folder of attnprobe calibrate --spike-in, {folder} holds none ({error})"
        ) from error
    if said.get("fingerprint") != fingerprint:
        raise AttnProbeError(
            f"expected limits of {model}, those in {folder} are of {said.get('model')} with other "
            "weights; plant a spike in the model that is audited"
        )
    return rows


def _limits(rows: pd.DataFrame, n: int, seed: int) -> Iterator[str]:
    """The limit of each change of the output that a head can make, from its rows."""
    moved, _ = effects_of(rows, 1)
    for statistic, measure in MEASURES.items():
        values = by_dose(rows, statistic)
        if not measure.done or values.shape[1] < 2:
            continue
        limit = effect_at(moved, limit_of(values, n, seed))
        size = markdown.interval(limit.effect, limit.interval, digits=3)
        if limit.interval is None:
            size = f"more than {size}, the largest planted"
        yield f"{size} of the probability when the head is {measure.done}"
