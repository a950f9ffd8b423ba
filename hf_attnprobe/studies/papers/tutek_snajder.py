"""Tutek & Šnajder 2020, "Staying True to Your Word"."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.studies.results import (
    Results,
    ResultTable,
    dataset_of,
    estimate,
    rounded,
)


LABELS = ("data set", "attention", "model")


@dataclass(frozen=True)
class _Checkpoint:
    """A model of a comparison: its entry in the summary file, and the number of texts."""

    dataset: str
    entry: dict[str, Any]
    n: int

    @property
    def labels(self) -> tuple[str, str, str]:
        return self.dataset, self.entry["attention"], self.entry["name"]

    def value(self, name: str, *, scale: float = 1.0) -> Estimate | None:
        return estimate(self.entry["found"].get(name), self.n, scale=scale)


def tables(results: Results) -> list[ResultTable]:
    """Change of F1 under other attention, and what else regularising changes."""
    checkpoints = list(_checkpoints(results))
    return [_changes(checkpoints), _others(checkpoints), _adversaries(checkpoints)]


def _checkpoints(results: Results) -> Iterator[_Checkpoint]:
    for job in results.jobs("compared"):
        comparison = results.read_json(job, "comparison.json")
        for entry in comparison["checkpoints"]:
            yield _Checkpoint(dataset_of(job), entry, comparison["n"])


def _changes(checkpoints: Sequence[_Checkpoint]) -> ResultTable:
    table = []
    for checkpoint in checkpoints:
        dataset, attention, name = checkpoint.labels
        names = ("f1", "uniform_change", "permuted_change")
        ours = [checkpoint.value(statistic, scale=100) for statistic in names]
        regularised = PUBLISHED.regularised.get(dataset, {}).get(attention, {})
        theirs = regularised.get(name.split(" ")[0], (None, None, None))
        table.append((*checkpoint.labels, *ours, *theirs))
    head = (
        *(*LABELS, "F1 trained", "change, uniform", "change, permuted"),
        *("published trained", "published uniform", "published permuted"),
    )
    note = (
        "In points of F1 (100 is all); intervals are over texts, of one training each. "
        "Published values of the residual model are not known."
    )
    return ResultTable("How much hangs on attention?", head, tuple(table), (note,))


def _others(checkpoints: Sequence[_Checkpoint]) -> ResultTable:
    columns = {
        "probability": "mean top probability",
        "share_of_largest@0.01": "exact ε-max JSD (.01) / largest JSD",
        "largest_jsd": "largest JSD",
        "conicity": "conicity",
        "probability_range": "range over single tokens",
    }
    table = []
    for checkpoint in checkpoints:
        values = [checkpoint.value(statistic) for statistic in columns]
        table.append((*checkpoint.labels, *values))
    head = (*LABELS, *columns.values())
    note = (
        "ε-max JSD follows saturation and peakedness: a larger share alone does not mean "
        "that attention explains less. Intervals are over texts, of one training each."
    )
    title = "What else does regularising change?"
    return ResultTable(title, head, tuple(table), (note,))


def _adversaries(checkpoints: Sequence[_Checkpoint]) -> ResultTable:
    table = []
    for checkpoint in checkpoints:
        for adversary in checkpoint.entry["adversaries"]:
            values = [rounded(adversary[name]) for name in ("jsd", "tvd", "f1")]
            table.append((*checkpoint.labels, adversary["name"], *values))
    note = (
        "Harder is: more TVD for the same JSD, which one λ each cannot tell. "
        "Adversaries are trained with the penalties of their model, for at most the epochs that the study gives them "
        "(Wiegreffe & Pinter have 80), and scored on all test texts."
    )
    head = (*LABELS, "", "mean JSD", "mean TVD", "F1")
    notes = (note,) if table else ()
    return ResultTable("Is an adversary harder to train?", head, tuple(table), notes)
