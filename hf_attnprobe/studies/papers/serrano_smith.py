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
    """The share of the tokens that are erased before the decision flips, by ranking.

    All on the texts that some set flips.
    """
    table = []
    for job in results.jobs("audit"):
        name, encoder = dataset_of(job), str(job.cell.get("encoder", "bigru"))
        theirs = published.FRACTION_TO_FLIP.get(name, {}).get(encoder, {})
        for order, *values in _orders(results.rows(job.folder)):
            table.append((name, encoder, order, *values, theirs.get(order)))
    head = (
        *("data set", "encoder", "order"),
        *("median share of tokens erased", "never flips", "way to smallest set"),
        "published median",
    )
    notes = (
        "All orders on the same texts, those that some set of tokens flips; an order "
        "that never flips one counts as all of its tokens, and the share of such texts "
        "stands beside it. The way is the mean over texts of (random − it) / (random − "
        "smallest set).",
        "Published medians are read off box plots of flat models (±.02); that of none "
        "on amazon, random, is doubtful. They leave out, order by order, the texts that "
        "the order never flips, so they can be lower.",
    )
    title = "How many tokens go before the decision flips?"
    return [ResultTable(title, head, tuple(table), notes)]


def _orders(rows: pd.DataFrame) -> Iterator[tuple[str, Cell, Cell, Cell]]:
    """Order of erasure, median share erased, share never flipped, way to the best."""
    for ranking in RANKINGS:
        erased = f"fraction_to_flip@{ranking}"
        if erased in rows:
            way = rows.get(f"way_to_best@{ranking}")
            yield (
                ranking,
                median_of(rows[erased]),
                mean_of(rows[f"never_flips@{ranking}"]),
                None if way is None else mean_of(way),
            )
    if "minimal_fraction" in rows:
        yield "smallest set", median_of(rows["minimal_fraction"]), None, None
