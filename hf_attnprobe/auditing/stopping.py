"""An audit with a time: when it ends, and what its report says of it."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.progress import in_words
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import Statistic


LEFT_OUT = "accuracy as heads are removed together, all shown texts but three"
"""Of a report in haste, because it takes the model once more."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def limit_of(options: AuditOptions) -> float | None:
    """Seconds from the start to the report; None: as many as it takes.

    Raises:
        AttnProbeError: another form, or a screen beside it.
    """
    if options.time is None:
        return None
    if options.screen is not None:
        raise AttnProbeError(
            "expected --screen or --time, got both; leave --screen out, --time screens by itself"
        )
    return seconds_of(options.time)


def seconds_of(text: str) -> float:
    """The seconds of "90s", "10m", "2h", "1d" or a plain number of seconds.

    Raises:
        AttnProbeError: anything else, and less than a second.

    >>> seconds_of("10m"), seconds_of("1.5h"), seconds_of("90")
    (600.0, 5400.0, 90.0)
    """
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([smhd]?)", text.strip().lower())
    seconds = float(found[1]) * UNITS[found[2] or "s"] if found else 0.0
    if not 1 <= seconds < math.inf:
        raise AttnProbeError(
            f"expected a time of a second or more, such as 90s, 10m or 2h, got {text!r}"
        )
    return seconds


def without_extras(options: AuditOptions) -> AuditOptions:
    """Returns the options of a report in haste: three texts are all that runs the model again."""
    return replace(options, prune=False, shown_texts=min(options.shown_texts, 3))


def without_those_not_run(statistics: Sequence[Statistic], rows: Rows) -> tuple[Statistic, ...]:
    """The same; texts that a head was not run on are not counted as undefined."""
    tested = rows.of_tests()
    n = {c: int(np.isnan(tested.read(c)[tested.is_there(c)]).sum()) for c in tested.columns}
    return tuple(replace(s, undefined=min(s.undefined, n.get(s.column, 0))) for s in statistics)


def stopping_notes(facts: Mapping[str, Any] | None, statistics: Sequence[Statistic]) -> list[str]:
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
