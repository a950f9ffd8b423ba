"""Serrano & Smith 2019, "Is Attention Interpretable?"."""

from collections.abc import Iterator, Sequence

import pandas as pd

from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.statistics.summary import js_by_gap
from hf_attnprobe.studies.plan import Job
from hf_attnprobe.studies.results import (
    Cell,
    Results,
    ResultTable,
    dataset_of,
    mean_of,
    median_of,
    rounded,
)


RANKINGS = ("random", "attention", "gradient", "product", "least_attention")
POOLED = ", pooled"


def tables(results: Results) -> list[ResultTable]:
    """Weights erased before the decision flips, by ranking, and single ones by size."""
    jobs = results.jobs("audit")
    return [_fractions(results, jobs), _single_weights(results, jobs)]


def _labels(job: Job) -> tuple[str, str, str]:
    """Data set, the paper's name for the architecture, and encoder."""
    model = "HAN" if job.cell.get("hierarchical") else "FLAN"
    return dataset_of(job), model, str(job.cell.get("encoder", "bigru"))


def _fractions(results: Results, jobs: Sequence[Job]) -> ResultTable:
    """The share of the weights that go, on the texts that some set of them flips."""
    table = []
    for job in jobs:
        name, model, encoder = _labels(job)
        flat = PUBLISHED.fraction_to_flip if model == "FLAN" else {}
        theirs = flat.get(PUBLISHED.nearest.get(name, name), {}).get(encoder, {})
        for order, *values in _orders(results.rows(job.folder)):
            paper = theirs.get(order.removesuffix(POOLED))
            table.append((name, model, encoder, order, *values, paper))
    head = (
        *("data set", "model", "encoder", "order"),
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
        "the order never flips, so they can be lower. Those of HANs, whose attention "
        "weighs sentences, are not known to us. Beside imdb, which has two classes, they "
        "are those of imdb10: other reviews, whose ten ratings have nearer rivals.",
        "Random is the mean of a text's random orders, and the median one over texts; "
        "pooled, the median is over the orders of all texts. The paper's box plots "
        "show the first of five. In the order "
        "least_attention the smallest weight goes first.",
    )
    title = "How many tokens (HAN: sentences) go before the decision flips?"
    return ResultTable(title, head, tuple(table), notes)


def _single_weights(results: Results, jobs: Sequence[Job]) -> ResultTable:
    table = []
    for job in jobs:
        rows = results.rows(job.folder)
        if "delta_js" not in rows:
            continue
        for texts in js_by_gap(rows.delta_attention, rows.delta_js):
            # Medians lie between 1e-5 and .4: two digits, not two places.
            numbers = texts.n, float(f"{texts.median:.2g}"), rounded(texts.negative)
            table.append((*_labels(job), texts.name, *numbers))
    head = (
        *("data set", "model", "encoder", "Δα"),
        *("texts", "median ΔJS", "ΔJS below 0"),
    )
    notes = (
        "ΔJS is how much farther the output moves (nats) without the largest weight than "
        "without another, drawn one; Δα by how much the largest is larger. The paper's "
        "figure has no numbers that could stand beside: ΔJS is almost never below 0 and "
        "near 0 unless Δα is large; of HANs with a BiGRU .2 to .4 near Δα 1.",
    )
    title = "Does a larger weight move the output more?"
    return ResultTable(title, head, tuple(table), notes)


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
        draws = [name for name in rows if name.startswith(f"{erased}_")]
        if draws:
            yield ranking + POOLED, *_pooled(rows, draws), None
    if "minimal_fraction" in rows:
        yield "smallest set", median_of(rows["minimal_fraction"]), None, None


def _pooled(rows: pd.DataFrame, draws: Sequence[str]) -> tuple[Cell, Cell]:
    """Median share erased and share never flipped over the random orders of all texts."""
    shares = pd.Series(rows[draws].to_numpy().ravel())
    never = rows[[name.replace("fraction_to_flip", "never_flips") for name in draws]]
    means = never.mean(axis=1)  # of each text, so that the interval is over texts
    return median_of(shares), mean_of(means)
