"""The tables of papers: our numbers, and the published ones where the data set is theirs.

The tables are made of the steps with the names that the study files of the package use.
"""

from hf_attnprobe.studies.papers import (
    jain_wallace,
    serrano_smith,
    tutek_snajder,
    wiegreffe_pinter,
)
from hf_attnprobe.studies.results import Results, ResultTable


PAPER_TABLES = {
    "jain-wallace": jain_wallace.tables,
    "serrano-smith": serrano_smith.tables,
    "wiegreffe-pinter": wiegreffe_pinter.tables,
    "tutek-snajder": tutek_snajder.tables,
}


def paper_tables(results: Results) -> list[ResultTable]:
    """The tables of the study's paper; none of a paper whose numbers could not be had."""
    tables = PAPER_TABLES.get(results.plan.paper or "")
    return tables(results) if tables else []
