"""The tables of the papers with our numbers, and the published ones beside them where the data set is one of theirs.

A table is made of the steps of a study that have the names which the ready study files give them.
"""

from collections.abc import Callable, Mapping

from hf_attnprobe.studies.papers import (
    jain_wallace,
    serrano_smith,
    tutek_snajder,
    wiegreffe_pinter,
)
from hf_attnprobe.studies.results import Results, ResultTable


def _mohankumar(results: Results) -> list[ResultTable]:
    """The study file's own tables say it all: numbers of this paper's tables could not be had."""
    return []


PAPER_TABLES: Mapping[str, Callable[[Results], list[ResultTable]]] = {
    "jain-wallace": jain_wallace.tables,
    "serrano-smith": serrano_smith.tables,
    "wiegreffe-pinter": wiegreffe_pinter.tables,
    "tutek-snajder": tutek_snajder.tables,
    "mohankumar": _mohankumar,
}
