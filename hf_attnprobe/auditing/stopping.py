"""When an audit may stop, and what its report says of it."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import as_text
from hf_attnprobe.progress import in_words
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.stopping import Stopping, stopping_of, widened
from hf_attnprobe.statistics.summary import (
    ALL_TEXTS,
    Statistic,
    groups_of_texts,
)


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NARROWEST = 1e-6


@dataclass(frozen=True)
class Limits:
    """When to stop; None where nothing is said.

    Attributes:
        width: every interval of what the verdict rests on is at most so wide.
        n_first: so many heads are singled out, and only they are tested further.
        seconds: wall-clock time from the start to the report.
    """

    width: float | None = None
    n_first: int | None = None
    seconds: float | None = None

    @property
    def given(self) -> bool:
        """Whether the audit may stop before all is done."""
        return self != Limits()


def limits_of(options: AuditOptions) -> Limits:
    """The limits that the options set.

    Raises:
        AttnProbeError: another form, or options that contradict each other.
    """
    width = None if options.until is None else width_of(options.until)
    seconds = None if options.time is None else seconds_of(options.time)
    limits = Limits(width, options.top, seconds)
    if limits.given and options.screen is not None:
        raise AttnProbeError(
            "expected --screen or one of --until, --top and --time, got both; leave "
            "--screen out: --top races the heads, --time screens them by itself"
        )
    if options.top is not None and not options.single_heads:
        raise AttnProbeError(
            "expected single heads for --top to choose from; leave it or --no-single-heads out"
        )
    return limits


def width_of(text: str) -> float:
    """The width in "width=.02".

    Raises:
        AttnProbeError: another form, or no width from 0.000001 to 1.

    >>> width_of("width=.02")
    0.02
    """
    name, _, value = text.replace(" ", "").partition("=")
    try:
        width = float(value)
    except ValueError:
        width = math.nan
    if name != "width" or not NARROWEST <= width <= 1:
        raise AttnProbeError(
            f"expected --until width= and a width up to 1, such as width=.02, got {text!r}"
        )
    return width


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
    """The options of a report in haste: without what runs the model once more."""
    return replace(options, prune=False, shown_texts=0)


# --- what a report says -----------------------------------------------------------------------


N_NAMED = 12


def stopping_notes(facts: Mapping[str, Any] | None, statistics: Sequence[Statistic]) -> list[str]:
    """The sentences; none of an ordinary audit.

    Args:
        facts: "stopping" of the report's provenance.
        statistics: of the report.
    """
    if facts is None:
        return []
    stopping = Stopping(**facts["order"])
    race = facts.get("race")
    notes = [_work(facts, statistics, stopping)]
    notes += _race(race) if race else []
    notes += _intervals(statistics, stopping)
    notes += _in_haste(facts.get("in_haste", {}))
    left_out = facts.get("left_out", [])
    if left_out:
        notes.append(f"Left out for want of time: {', '.join(left_out)}.")
    return notes


def _work(facts: Mapping[str, Any], statistics: Sequence[Statistic], stopping: Stopping) -> str:
    done, full = facts["runs_done"], facts["runs_of_full_audit"]
    share = done / full if full else 1.0
    sizes = [s.n + s.undefined for s in statistics if s.group == "all"]
    texts = f"{min(sizes)} to {max(sizes)}" if sizes else "0"
    how = (
        f"{done:,} of the {full:,} runs of a full audit are done, {share:.1%} (a run is "
        "one test at one head, or group of heads, on one text; runs of different tests "
        "do not cost the same)"
    )
    if done >= full:
        return f"Stopping ({_limits(facts)}): {how}, so nothing was left out."
    return (
        f"Stopping ({_limits(facts)}): {how}. Each test saw {texts} of the {stopping.n_texts} "
        "texts, the first in a fixed random order. The same command goes on; without the "
        "option it runs to the end."
    )


def _in_haste(options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What tests do less of, and how to go on."""
    if not options:
        return []
    said = [
        f"{test}.{name}={as_text(value)}"
        for test, of_test in options.items()
        for name, value in of_test.items()
    ]
    return [
        f"With --time, tests do less for each text. To continue in this folder without --time, "
        f"add --set {' '.join(said)}."
    ]


def _limits(facts: Mapping[str, Any]) -> str:
    given = facts["limits"]
    said = []
    if "n_first" in given:
        said.append(f"--top {given['n_first']}")
    if "width" in given:
        said.append(f"--until width={given['width']:g}")
    if "seconds" in given:
        said.append(f"--time, {in_words(given['seconds'])}")
    return ", ".join(said)


def _intervals(statistics: Sequence[Statistic], stopping: Stopping) -> list[str]:
    """What the intervals are of, and which are not valid."""
    unfinished = [s for s in statistics if s.n + s.undefined < stopping.n_texts]
    if not unfinished:
        return []
    if not stopping.looked:
        return [
            "Intervals are ordinary ones: what a text costs decided how many each test saw, and "
            "nothing that was found. If the same command goes on in this folder, they will allow "
            "for having looked, and be wider."
        ]
    return [
        "Intervals of what has not seen all texts are at least as wide as confidence "
        f"sequences of the mean over these {stopping.n_texts} texts (Waudby-Smith & "
        "Ramdas 2024): 95% at every look, whatever made the audit stop; those of single "
        f"heads in tables of heads hold for all {stopping.n_heads} heads at once.",
        _ordinary(without_bounds(statistics, stopping)),
    ]


def _ordinary(unbounded: Sequence[str]) -> str:
    """Which intervals do not allow for stopping."""
    others = (
        "comparisons of rankings, differences from the control in its table, accuracy if "
        "not all texts were predicted, and the pictures of single groups of texts"
    )
    if not unbounded:
        return f"Some intervals do not allow for stopping early and may be too narrow: those of {others}."
    named = ", ".join(unbounded[:N_NAMED])
    more = len(unbounded) - N_NAMED
    rest = f" and {more} more" if more > 0 else ""
    return (
        "Some intervals do not allow for stopping early and may be too narrow: those of "
        f"statistics without known bounds ({named}{rest}), {others}."
    )


def _race(race: Mapping[str, Any]) -> list[str]:
    first, surely, undecided = race["first"], race["surely_first"], race["undecided"]
    n = len(first)
    least, most = race["texts"]
    named = [
        f"{name} ({mean:.3f} [{low:.3f}, {high:.3f}])"
        for name, mean, (low, high) in zip(first, race["means"], race["intervals"], strict=True)
    ]
    sure = f"{len(surely)} of them are decided" if undecided else "all are decided"
    rest = ""
    if undecided:
        rest = f" Not decided, so that others could stand there: {', '.join(undecided)}."
    return [
        f"Top {n} of {race['n_heads']} heads by {race['statistic']}: {', '.join(named)}. "
        f"{sure[0].upper()}{sure[1:]}: with 95% probability for all decisions together, "
        "at every look, a full audit of these texts has them among its first "
        f"{n}.{rest} The race took {least} to {most} texts a head."
    ]


# --- intervals of an audit that stopped -------------------------------------------------------


def valid_statistics(
    statistics: Sequence[Statistic], rows: Rows, label_names: Sequence[str]
) -> tuple[Statistic, ...]:
    """The same with intervals made valid in spite of stopping, where there is a bound.

    Texts that a head was not run on are not counted as undefined.

    Args:
        statistics: as they are summarised from the rows.
        rows: with the mark; without one the statistics stay as they are.
        label_names: names of the model's classes.
    """
    stopping = stopping_of(rows)
    if stopping is None or not statistics:
        return tuple(statistics)
    tested = rows.of_tests()
    wide = tested.wide()
    undefined = {c: int(np.isnan(tested.read(c)[tested.is_there(c)]).sum()) for c in tested.columns}
    found: dict[tuple, Statistic] = {}
    for group, members in groups_of_texts(rows, wide.index, label_names).items():
        own, texts = [s for s in statistics if s.group == group], wide[members]
        ordinary = np.array([s.ci95 for s in own], dtype=np.float64).T
        bounds = [stopping.bounds(s.statistic) for s in own]
        ends = widened(ordinary, texts[[s.column for s in own]], bounds, stopping)
        for s, (low, high) in zip(own, ends.T.tolist(), strict=True):
            n_undefined = min(s.undefined, undefined.get(s.column, 0))
            valid = replace(s, ci95=(low, high), undefined=n_undefined)
            found[(*s.column, group)] = valid
    return tuple(found.get((*s.column, s.group), s) for s in statistics)


def without_bounds(statistics: Iterable[Statistic], stopping: Stopping) -> list[str]:
    """Names of statistics that stopped early and have no valid interval, sorted."""
    return sorted(
        {
            s.statistic.partition("@")[0]
            for s in statistics
            if s.group == ALL_TEXTS
            and s.n + s.undefined < stopping.n_texts
            and stopping.bounds(s.statistic) is None
        }
    )
