"""Rows to means, intervals and plain words. Pure: a data frame in, frozen statistics out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_attnprobe.faithfulness import READINGS


N_BOOTSTRAP = 1000
KEY = ["example_id", "test", "statistic", "layer", "head"]
PREDICTION = "prediction"  # the rows every audit writes besides its tests
RANKINGS = (
    "random", "attention", "gradient", "product", "leave_one_out", "input_gradient", "margin",
    "effective_attention", "norm_based",
)  # fmt: skip
"""What may stand behind the @ of a statistic instead of a number, in the order of tables; others follow by name."""


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


def summarize(rows: pd.DataFrame, label_names: Sequence[str], *, seed: int = 0) -> tuple[Statistic, ...]:
    """All statistics of a run, in the order of the tests, for all texts and for each predicted class.

    Args:
        rows: as :func:`hf_attnprobe.records.read` gives them.
        label_names: names of the model's classes.
        seed: of the bootstrap (1,000 resamples of the texts, percentile interval).
    """
    prediction = rows[(rows.test == PREDICTION) & (rows.statistic == "predicted_class")]
    predicted = prediction.set_index("example_id").value.astype(int)
    tested = rows[rows.test != PREDICTION]
    order = {(t, s): k for k, (t, s) in enumerate((t, s) for t in READINGS for s in READINGS[t])}
    wide = tested.drop_duplicates(KEY).set_index(KEY).value.unstack(KEY[1:])
    columns = list(wide.columns)
    columns.sort(key=lambda c: (order.get((c[0], c[1].split("@")[0]), len(order)), c[2:], position(c[1])))
    groups = [("all", wide)] + [
        (str(name), wide[predicted.reindex(wide.index) == k]) for k, name in enumerate(label_names)
    ]
    found = {
        (name, column): statistic
        for name, frame in groups
        if len(frame)
        for column, statistic in zip(columns, _describe(frame[columns], name, seed), strict=True)
    }
    return tuple(found[name, c] for c in columns for name, _ in groups if (name, c) in found)


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
        mean, median, std = (float(f(real)) if len(real) else float("nan") for f in (np.mean, np.median, np.std))
        ci95 = (float(low[k]), float(high[k]))
        counts = len(real), len(values) - len(real)
        described.append(Statistic(test, statistic, int(layer), int(head), group, mean, median, std, ci95, *counts))
    return described


def bootstrap_interval(values: np.ndarray, *, seed: int = 0, n_resamples: int = N_BOOTSTRAP) -> np.ndarray:
    """95% percentile interval of the mean of every column, [2, columns]; NaNs are texts without a value.

    Resampling texts is drawing how often each counts: one matrix of counts serves all columns (Efron 1979).
    """
    real = ~np.isnan(values)
    n = len(values)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=n_resamples).astype(np.float64)
    totals, sizes = counts @ np.where(real, values, 0), counts @ real.astype(np.float64)
    means = np.divide(totals, sizes, out=np.full_like(totals, np.nan), where=sizes > 0)
    interval = np.full((2, values.shape[1]), np.nan)
    defined = real.any(0)
    if defined.any():
        interval[:, defined] = np.nanpercentile(means[:, defined], [2.5, 97.5], axis=0)
    return interval


def reading(statistic: Statistic) -> str:
    """The statistic as one sentence in plain words."""
    name, _, key = statistic.statistic.partition("@")
    if statistic.n == 0:
        return f"undefined for all {statistic.undefined} texts"
    return READINGS[statistic.test][name].format(mean=statistic.mean, median=statistic.median, key=key)


def find(statistics: Sequence[Statistic], statistic: str, *, group: str = "all", layer: int = 0, head: int = 0):
    """The named statistic, or None where the audit has none (a test that was not run, a class never predicted)."""
    for s in statistics:
        if (s.statistic, s.group, s.layer, s.head) == (statistic, group, layer, head) and s.n:
            return s
    return None


def only_silenced(statistics: Sequence[Statistic]) -> list[str]:
    """Says so where heads could not be ablated by anything but zero."""
    names = {s.statistic for s in statistics}
    if "zero_tvd" not in names or "mean_tvd" in names:
        return []
    return [
        "Ablation: heads could only be silenced, not replaced: of this kind of model the output of a single head cannot "
        "be set to its mean or to that of another text, so the effects of silencing may exceed what the heads carry."
    ]


def verdict(statistics: Sequence[Statistic]) -> list[str]:
    """What the tests say together about one head, one sentence per test; the thresholds are in the sentences."""
    lines, site = [], _site(statistics)
    tau = find(statistics, "attention_leave_one_out_tau", **site)
    yardstick = find(statistics, "gradient_leave_one_out_tau", **site)
    if tau and yardstick:
        strength = "agrees well" if tau.mean >= 0.6 else "agrees partly" if tau.mean >= 0.3 else "hardly agrees"
        lines.append(
            f"Importance: attention {strength} with leaving tokens out (τ {tau.mean:.2f}; from .60 well, from .30 "
            f"partly), gradients agree with it at {yardstick.mean:.2f}."
        )
    shuffled = find(statistics, "median_tvd", **site)
    if shuffled:
        matters = "matters" if shuffled.mean >= 0.1 else "hardly matters"
        lines.append(
            f"Assignment: which token gets which weight {matters}: shuffling moves the output by {shuffled.mean:.2f} of 1 "
            "(from .10 it matters)."
        )
    return lines + _uniqueness(statistics) + _erasure_verdict(statistics) + only_silenced(statistics)


def _uniqueness(statistics: Sequence[Statistic]) -> list[str]:
    """Little room for other attention says nothing where no attention at all could be far, as over texts of one token."""
    moved, bound = (find(statistics, s, **_site(statistics)) for s in ("epsilon_max_jsd@0.05", "largest_jsd"))
    if not moved:
        return []
    if bound and bound.mean < 0.4:
        return [
            f"Uniqueness: these texts cannot tell: no attention at all is farther from this one than {bound.mean:.2f} (of at "
            f"most .69; from .40 not the only one), others as far as {moved.mean:.2f} give the same output within .05."
        ]
    unique = "is not the only one" if moved.mean >= 0.4 else "is fairly well pinned down"
    return [
        f"Uniqueness: this attention {unique}: others as far as {moved.mean:.2f} (of at most .69; from .40 not the only "
        "one) give the same output within .05."
    ]


def _site(statistics: Sequence[Statistic]) -> dict[str, int]:
    """Where the one head is."""
    return {"layer": statistics[0].layer, "head": statistics[0].head} if statistics else {}


def _erasure_verdict(statistics: Sequence[Statistic]) -> list[str]:
    """How far attention is on the way from random order to the smallest set, by the medians over texts that flip."""
    names = ("fraction_to_flip@attention", "fraction_to_flip@random", "minimal_fraction", "never_flips@attention")
    attention, random, best, never = (find(statistics, name, **_site(statistics)) for name in names)
    if not attention or not random:
        return []
    found = (
        f"in the median text that flips, attention's order needs {attention.median:.2f} of the weights erased"
        f"{f' ({never.mean:.0%} of texts never flip)' if never else ''}, a random one {random.median:.2f}"
    )
    if not best or random.median <= best.median:
        better = attention.median < random.median
        return [f"Erasure: attention ranks the weights {'better' if better else 'no better'} than chance: {found}."]
    way = round((random.median - attention.median) / (random.median - best.median), 2)
    quality = "well" if way >= 0.75 else "partly" if way >= 0.25 else "hardly"
    return [
        f"Erasure: attention ranks the weights {quality} by what the decision rests on: {found}, the smallest set "
        f"{best.median:.2f}, so attention goes {way:.0%} of the way from chance to the best (from 75% well, from 25% partly)."
    ]
