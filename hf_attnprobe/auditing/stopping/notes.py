"""What a report says of an audit that stopped: how sure, on how many texts, what it saved."""

from collections.abc import Mapping, Sequence
from typing import Any

from hf_attnprobe.auditing.stopping.intervals import without_bounds
from hf_attnprobe.progress import in_words
from hf_attnprobe.statistics.stopping import Stopping
from hf_attnprobe.statistics.summary import Statistic


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
        f"Stopping ({_limits(facts)}): {how}. Numbers rest on {texts} of "
        f"{stopping.n_texts} texts, the first of a fixed random order; the same command "
        "goes on, without the option to the end."
    )


def _in_haste(options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What tests do less of, and how to go on."""
    if not options:
        return []
    flags = [
        f"--{name.replace('_', '-')} {value}"
        for of_test in options.values()
        for name, value in of_test.items()
    ]
    return [
        f"With --time tests do less for each text: as with {' '.join(flags)}, unless "
        "something else is said. To go on in this folder without --time, say that."
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
        return f"Ordinary intervals, which do not allow for stopping, have {others}."
    named = ", ".join(unbounded[:N_NAMED])
    more = len(unbounded) - N_NAMED
    rest = f" and {more} more" if more > 0 else ""
    return (
        "Ordinary intervals, which do not allow for stopping, have the statistics without "
        f"known bounds: {named}{rest}; so have {others}."
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
