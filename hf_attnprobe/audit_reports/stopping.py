"""What a report says of an audit with a time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hf_attnprobe.progress import in_words
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import Statistic


LEFT_OUT = "accuracy as heads are removed together, all shown texts but three"
"""Of a report in haste, because it takes the model once more."""


def without_those_not_run(
    statistics: Sequence[Statistic], rows: Rows
) -> tuple[Statistic, ...]:
    """The same; texts that a head was not run on are not counted as undefined."""
    tested = rows.of_tests()
    n = {
        c: int(np.isnan(tested.read(c)[tested.is_there(c)]).sum())
        for c in tested.columns
    }
    return tuple(
        replace(s, undefined=min(s.undefined, n.get(s.column, 0)))
        for s in statistics
    )


def stopping_notes(
    facts: Mapping[str, Any] | None, statistics: Sequence[Statistic]
) -> list[str]:
    """What a report says of an audit with a time.

    Args:
        facts: "stopping" of the report's provenance; None of an ordinary audit.
        statistics: of the report.
    """
    if facts is None:
        return []
    done, full = facts["runs_done"], facts["runs_of_full_audit"]
    sizes = [s.n + s.undefined for s in statistics if s.group == "all"]
    texts = f"{min(sizes)} to {max(sizes)}" if sizes else "0"
    said = (
        f"Stopping (--time, {in_words(facts['seconds'])}): {done:,} of the {full:,} runs of a full "
        f"audit are done, {done / max(full, 1):.1%} (a run is one test at one head, or group of "
        "heads, on one text; runs of different tests do not cost the same)"
    )
    if done >= full:
        return [f"{said}, so nothing was left out."]
    return [
        f"{said}. Each test saw {texts} of the {facts['n_texts']} texts, the first in a fixed "
        "random order. The same command goes on; without the option it runs to the end.",
        "Intervals are those of as many texts chosen beforehand: who goes on until an answer "
        "pleases errs more often than they say.",
        f"Left out for want of time: {LEFT_OUT}.",
    ]
