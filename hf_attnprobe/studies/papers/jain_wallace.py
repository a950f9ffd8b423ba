"""Jain & Wallace 2019, "Attention is not Explanation"."""

import itertools
from collections.abc import Iterator

import pandas as pd

from hf_attnprobe import published_results as published
from hf_attnprobe.statistics.bins import ATTENTION_BINS
from hf_attnprobe.studies.plan import Job
from hf_attnprobe.studies.results import (
    Results,
    ResultTable,
    dataset_of,
    mean_of,
    median_of,
)


def tables(results: Results) -> list[ResultTable]:
    """τ of attention with gradients and leave-one-out, room for adversaries, and shuffling, by predicted class."""
    return [_tau(results), _room(results), _shuffled(results)]


def _by_class(
    results: Results, step: str
) -> Iterator[tuple[Job, tuple, int, pd.DataFrame]]:
    """(job, its labels, predicted class, its texts), for every job of a step."""
    for job in results.jobs(step):
        rows = results.rows(job.folder)
        labels = (
            dataset_of(job),
            job.cell.get("encoder", "bilstm"),
            job.cell.get("attention", "additive"),
        )
        for k in sorted(rows.predicted_class.dropna().unique().astype(int).tolist()):
            yield job, labels, k, rows[rows.predicted_class == k]


def _of_class(found, k: int):
    """What was published of the predicted class; None for one that they do not have."""
    return found[k] if found is not None and k < len(found) else None


def _tau(results: Results) -> ResultTable:
    table = []
    for _, labels, k, rows in _by_class(results, "audit"):
        name, encoder, attention = labels
        theirs = published.TAU.get(name, {}) if attention == "additive" else {}
        for measure in ("gradient", "leave_one_out"):
            tau, significant = (
                rows.get(f"attention_{measure}_{s}") for s in ("tau", "significant")
            )
            if tau is not None:
                paper = _of_class(theirs.get((encoder, measure)), k) or (
                    None,
                    None,
                    None,
                )
                table.append(
                    (
                        *labels,
                        measure,
                        k,
                        mean_of(tau),
                        round(tau.std(ddof=0), 3),
                        mean_of(significant).value,
                        *paper,
                    )
                )
    head = (
        "data set",
        "encoder",
        "attention",
        "τ with",
        "predicted",
        "τ",
        "std",
        "significant",
    )
    head += ("published τ", "published std", "published significant")
    return ResultTable(
        "Does attention rank tokens as importance does? (Table 2)", head, tuple(table)
    )


def _room(results: Results) -> ResultTable:
    table = []
    for job, labels, k, rows in _by_class(results, "audit"):
        name, encoder, attention = labels
        searched = results.rows(results.at("search", job.cell).folder).reindex(
            rows.index
        )
        theirs = (
            published.EPSILON_MAX_JSD.get(name, {}).get(encoder)
            if attention == "additive"
            else None
        )
        column = "epsilon_max_jsd@0.05"
        exact = median_of(rows[column]) if column in rows else None
        table.append(
            (*labels, k, median_of(searched[column]), exact, _of_class(theirs, k))
        )
    head = (
        "data set",
        "encoder",
        "attention",
        "predicted",
        "searched",
        "exactly",
        "published (searched)",
    )
    return ResultTable(
        "Could attention have looked elsewhere? Median ε-max JSD (ε = .05)",
        head,
        tuple(table),
        ("Published are medians of the authors' released reruns, ±.01.",),
    )


def _shuffled(results: Results) -> ResultTable:
    table = []
    for _, labels, k, rows in _by_class(results, "audit"):
        theirs = (
            published.PERMUTATION.get(labels[0])
            if labels[1:] == ("bilstm", "additive")
            else None
        )
        for part, (low, high) in enumerate(itertools.pairwise(ATTENTION_BINS)):
            chosen = rows[
                (rows.max_attention >= low)
                & ((rows.max_attention < high) | (high == 1.0))
            ]
            if len(chosen):
                paper = _of_class(theirs[part], k) if theirs else None
                table.append(
                    (
                        *labels,
                        k,
                        f"[{low:g}, {high:g}{']' if high == 1 else ')'}",
                        median_of(chosen.median_tvd),
                        paper,
                    )
                )
    head = (
        "data set",
        "encoder",
        "attention",
        "predicted",
        "largest weight",
        "median Δŷ",
        "published",
    )
    return ResultTable(
        "Does it matter which token got which weight?",
        head,
        tuple(table),
        ("Published are medians of the authors' released reruns, ±.005.",),
    )
