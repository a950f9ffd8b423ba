"""Rows to means, intervals and plain words. Pure: a data frame in, frozen statistics out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.bootstrap import bootstrap_interval


KEY = ["example_id", "test", "statistic", "layer", "head"]
PREDICTION = "prediction"  # the rows every audit writes besides its tests
RANKINGS = (
    "random",
    "attention",
    "gradient",
    "product",
    "leave_one_out",
    "input_gradient",
    "margin",
    "effective_attention",
    "norm_based",
)
"""What may stand behind the @ of a statistic instead of a number, in the order of tables; others follow by name."""

Readings = Mapping[
    str, Mapping[str, str]
]  # by test and statistic, a sentence with places for mean, median and key


@dataclass(frozen=True)
class Statistic:
    """One number of an audit over the texts of one group (``all`` or a predicted class).

    mean, median, std (over texts, ddof 0) and ci95, the bootstrap interval of the mean, are NaN where no text has a
    value; ``n`` texts have one, ``undefined`` have none and count in nothing.
    """

    test: str
    statistic: str
    layer: int
    head: int
    group: str
    mean: float
    median: float
    std: float
    ci95: tuple[float, float]
    n: int
    undefined: int


def summarize(
    rows: pd.DataFrame, label_names: Sequence[str], readings: Readings, *, seed: int = 0
) -> tuple[Statistic, ...]:
    """All statistics of a run, in the order of the tests, for all texts and for each predicted class.

    Args:
        rows: as :func:`hf_attnprobe.read_rows` gives them.
        label_names: names of the model's classes.
        readings: of the tests; their order is that of the result.
        seed: of the bootstrap (1,000 resamples of the texts, percentile interval).
    """
    prediction = rows[(rows.test == PREDICTION) & (rows.statistic == "predicted_class")]
    predicted = prediction.set_index("example_id").value.astype(int)
    tested = rows[rows.test != PREDICTION]
    order = {
        (t, s): k
        for k, (t, s) in enumerate((t, s) for t in readings for s in readings[t])
    }
    wide = tested.drop_duplicates(KEY).set_index(KEY).value.unstack(KEY[1:])
    columns = list(wide.columns)
    columns.sort(
        key=lambda c: (
            order.get((c[0], c[1].split("@")[0]), len(order)),
            c[2:],
            position(c[1]),
        )
    )
    groups = [("all", wide)] + [
        (str(name), wide[predicted.reindex(wide.index) == k])
        for k, name in enumerate(label_names)
    ]
    found = {
        (name, column): statistic
        for name, frame in groups
        if len(frame)
        for column, statistic in zip(
            columns, _describe(frame[columns], name, seed), strict=True
        )
    }
    return tuple(
        found[name, c] for c in columns for name, _ in groups if (name, c) in found
    )


def key_of(statistic: str) -> float | str | None:
    """What is behind the @ of a statistic: a number, the name of a ranking, or None without an @."""
    _, at, key = statistic.partition("@")
    try:
        return float(key) if at else None
    except ValueError:
        return key


def position(statistic: str) -> tuple[int, float, str]:
    """Where a statistic stands among its family, for sorting: numbers by value, then rankings in their order."""
    key = key_of(statistic)
    if isinstance(key, str):
        return 1, RANKINGS.index(key) if key in RANKINGS else len(RANKINGS), key
    return 0, key or 0.0, ""


def _describe(frame: pd.DataFrame, group: str, seed: int) -> list[Statistic]:
    """One statistic per column."""
    values = frame.to_numpy(dtype=np.float64)
    low, high = bootstrap_interval(values, seed=seed)
    described = []
    for k, (test, statistic, layer, head) in enumerate(frame.columns):
        real = values[~np.isnan(values[:, k]), k]
        mean, median, std = (
            float(f(real)) if len(real) else float("nan")
            for f in (np.mean, np.median, np.std)
        )
        ci95 = (float(low[k]), float(high[k]))
        counts = len(real), len(values) - len(real)
        described.append(
            Statistic(
                test,
                statistic,
                int(layer),
                int(head),
                group,
                mean,
                median,
                std,
                ci95,
                *counts,
            )
        )
    return described


def reading(statistic: Statistic, readings: Readings) -> str:
    """The statistic as one sentence in plain words."""
    name, _, key = statistic.statistic.partition("@")
    if statistic.n == 0:
        return f"undefined for all {statistic.undefined} texts"
    return readings[statistic.test][name].format(
        mean=statistic.mean, median=statistic.median, key=key
    )


def find(
    statistics: Sequence[Statistic],
    statistic: str,
    *,
    group: str = "all",
    layer: int = 0,
    head: int = 0,
):
    """The named statistic, or None where the audit has none (a test that was not run, a class never predicted)."""
    for s in statistics:
        if (s.statistic, s.group, s.layer, s.head) == (
            statistic,
            group,
            layer,
            head,
        ) and s.n:
            return s
    return None
