"""Serrano & Smith 2019, "Is Attention Interpretable?"."""

from collections.abc import Iterator

import pandas as pd

from hf_attnprobe import published_results as published
from hf_attnprobe.studies.results import (
    Cell,
    Results,
    ResultTable,
    dataset_of,
    mean_of,
    median_of,
)


RANKINGS = ("random", "attention", "gradient", "product")


def tables(results: Results) -> list[ResultTable]:
    """The share of the weights that are erased before the decision flips, by ranking."""
    table = []
    for job in results.jobs("audit"):
        name, encoder = dataset_of(job), str(job.cell.get("encoder", "bigru"))
        theirs = published.FRACTION_TO_FLIP.get(name, {}).get(encoder, {})
        for order, erased, never in _orders(results.rows(job.folder)):
            table.append((name, encoder, order, erased, never, theirs.get(order)))
    head = (
        *("data set", "encoder", "order"),
        *("median share erased", "never flips", "published median"),
    )
    note = (
        "Published medians are read off box plots of flat models (±.02); that of none "
        "on amazon, random, is doubtful."
    )
    title = "How many weights go before the decision flips?"
    return [ResultTable(title, head, tuple(table), (note,))]


def _orders(rows: pd.DataFrame) -> Iterator[tuple[str, Cell, Cell]]:
    """Order of erasure, median share erased, share of texts that never flip."""
    columns = {
        ranking: (f"fraction_to_flip@{ranking}", f"never_flips@{ranking}")
        for ranking in RANKINGS
    }
    columns["smallest set"] = ("minimal_fraction", "no_set_flips")
    for order, (erased, never) in columns.items():
        if erased in rows:
            yield order, median_of(rows[erased]), mean_of(rows[never])
