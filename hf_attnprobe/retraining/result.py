"""What retrainings found, as data. Pure: rows and scores in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.plain_data import from_plain, plain, plain_fields, stored_fields
from hf_attnprobe.retraining.verdict import (
    Verdict,
    farthest_seed,
    verdict,
)
from hf_attnprobe.statistics.estimates import Estimate, mean_estimate
from hf_attnprobe.statistics.scores import Score, metrics
from hf_attnprobe.statistics.summary import Statistic, attention_bin
from hf_attnprobe.storage.provenance import Provenance


@dataclass(frozen=True)
class TrainedModel:
    """A model that was trained.

    Attributes:
        name: its folder below the output folder.
        seconds: of training and evaluation, over all runs that it took.
        n_epochs: it was trained for.
        metrics: its scores.
    """

    name: str
    seconds: float
    n_epochs: int
    metrics: dict[str, float]


class Bin(NamedTuple):
    """How far another seed moves attention that is as peaked.

    Attributes:
        largest_weight: the range of the base's largest weight, such as "[0.25, 0.50)".
        predicted: name of the predicted class.
        n: texts.
        median_jsd: of the mean JSD to another seed, nats.
    """

    largest_weight: str
    predicted: str
    n: int
    median_jsd: float


@dataclass(frozen=True)
class RetrainingResult:
    """What retrainings say. ``print(report)`` gives the verdict.

    Attributes:
        model: the base.
        dataset: the test texts' data set and split.
        n: test texts.
        seed: of bootstrap and search.
        statistics: over all texts and by predicted class.
        scores: by test.
        models: that were trained.
        provenance: settings, versions and fingerprints.
        bins: how far another seed moves attention, by its peakedness.
        beyond_seed: see :func:`farther_than_a_seed`.
        rows: one value per test, statistic and text.
    """

    model: str
    dataset: DatasetName
    n: int
    seed: int
    statistics: tuple[Statistic, ...]
    scores: dict[str, tuple[Score, ...]]
    models: tuple[TrainedModel, ...]
    provenance: dict
    bins: tuple[Bin, ...] = ()
    beyond_seed: Estimate | None = None
    rows: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    @cached_property
    def verdict(self) -> Verdict:
        """What the tests say, one sentence each."""
        return verdict(self.statistics, self.scores, n=self.n, beyond_seed=self.beyond_seed)


def to_json(report: RetrainingResult) -> dict:
    """Plain data, as ``retrain --json`` prints and ``summary.json`` holds it.

    NaN becomes None.
    """
    return plain_fields(report, "rows") | {
        "verdict": report.verdict.sentences(),
        "findings": plain(report.verdict.findings()),
    }


def fields_from_json(data: Mapping) -> dict[str, Any]:
    """The fields of a result, from what :func:`to_json` made of it; not the rows."""
    from_plain(Provenance, data["provenance"], "provenance")
    return stored_fields(RetrainingResult, data, "rows")


def farther_than_a_seed(rows: pd.DataFrame, statistics: Sequence[Statistic]) -> Estimate | None:
    """JSD of the chosen adversary minus that of the farthest other seed, per text.

    Args:
        rows: of the tests ``adversary`` and ``seeds``.
        statistics: of the same rows; they tell which seed is the farthest on average.

    Returns:
        The mean with its interval; None where one of the tests was not run.
    """
    other = farthest_seed(statistics)
    if other is None:
        return None
    values = rows.set_index("example_id").value
    chosen = values[(rows.statistic == "chosen_jsd").to_numpy()]
    if chosen.empty:
        return None
    of_seed = values[(rows.statistic == other.statistic).to_numpy()]
    return mean_estimate((chosen - of_seed).to_numpy())


def attention_bins(rows: pd.DataFrame, labels: Sequence[str]) -> tuple[Bin, ...]:
    """How far another seed moves attention, by how peaked it is, as the papers plot it.

    Args:
        rows: of the test ``seeds`` and of the predictions.
        labels: names of the classes.
    """
    wide = rows[rows.test.isin(("seeds", "prediction"))].pivot_table(
        index="example_id", columns="statistic", values="value"
    )
    if not {"max_attention", "seed_jsd"} <= set(wide):
        return ()
    by = [attention_bin(wide.max_attention), wide.predicted_class.astype(int)]
    groups = wide.groupby(by, observed=True).seed_jsd
    bins = []
    for (name, predicted), jsd in groups:
        bins.append(Bin(name, labels[predicted], len(jsd), float(jsd.median())))
    return tuple(bins)


def constant_guess(report: RetrainingResult) -> tuple[float, float] | None:
    """(the largest F1, the largest accuracy) of always saying one and the same class.

    The two may be of different classes. None where the rows have no labels.
    """
    rows = report.rows
    if rows.empty:
        return None
    own = rows[rows.test == "prediction"]
    labels = own.value[own.statistic == "label"].dropna().to_numpy(int)
    if not len(labels):
        return None
    predicted = own.value[own.statistic == "predicted_class"].dropna().to_numpy(int)
    n_classes = max(2, labels.max() + 1, predicted.max(initial=0) + 1)
    guesses = [metrics(labels, np.tile(one, (len(labels), 1))) for one in np.eye(n_classes)]
    return max(g["f1"] for g in guesses), max(g["accuracy"] for g in guesses)
