"""Serrano & Smith 2019, "Is Attention Interpretable?"."""

from hf_attnprobe import published_results as published
from hf_attnprobe.studies.results import (
    Results,
    ResultTable,
    dataset_of,
    mean_of,
    median_of,
)


RANKINGS = ("random", "attention", "gradient", "product")


def tables(results: Results) -> list[ResultTable]:
    """Share of the weights that are erased before the decision flips, by ranking."""
    table = []
    for job in results.jobs("audit"):
        rows, encoder = results.rows(job.folder), job.cell.get("encoder", "bigru")
        theirs = published.FRACTION_TO_FLIP.get(dataset_of(job), {}).get(encoder, {})
        for ranking in RANKINGS:
            if f"fraction_to_flip@{ranking}" in rows:
                found, never = (
                    rows[f"fraction_to_flip@{ranking}"],
                    mean_of(rows[f"never_flips@{ranking}"]),
                )
                table.append(
                    (
                        dataset_of(job),
                        encoder,
                        ranking,
                        median_of(found),
                        never,
                        theirs.get(ranking),
                    )
                )
        if "minimal_fraction" in rows:
            none = mean_of(rows["no_set_flips"])
            table.append(
                (
                    dataset_of(job),
                    encoder,
                    "smallest set",
                    median_of(rows["minimal_fraction"]),
                    none,
                    None,
                )
            )
    head = (
        "data set",
        "encoder",
        "order",
        "median share erased",
        "never flips",
        "published median",
    )
    note = "Published medians are read off box plots of flat models (±.02); that of none on amazon, random, is doubtful."
    return [
        ResultTable(
            "How many weights go before the decision flips?",
            head,
            tuple(table),
            (note,),
        )
    ]
