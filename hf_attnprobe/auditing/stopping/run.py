"""The work of an audit that may stop: races, rounds and stages, and what came of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pandas as pd

from hf_attnprobe.attention_model import ALL, SET, AttentionModelBase, Site
from hf_attnprobe.auditing.selection import Choice, sites_by_test
from hf_attnprobe.auditing.stopping.known import ESTIMATES, Known
from hf_attnprobe.auditing.stopping.limits import Deadline, Limits
from hf_attnprobe.auditing.stopping.rounds import (
    predict_all,
    race,
    run_until_narrow,
    texts_done,
)
from hf_attnprobe.auditing.stopping.schedule import Stage, Timetable
from hf_attnprobe.auditing.sweep import (
    Part,
    Sweep,
    beside,
    claimed_control,
    of_verdict,
    run,
    run_missing,
    run_parts,
)
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness import InputErasure, tests
from hf_attnprobe.inference.batching import Where
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.options import Options
from hf_attnprobe.progress import in_words
from hf_attnprobe.statistics.samples import random_order
from hf_attnprobe.statistics.stopping import Standing, Stopping
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.statistics.verdicts import MIN_TEXTS
from hf_attnprobe.storage.rows import NO_SITE, Done


RUNNERS = (("head_ablation", "zero_tvd"), ("uniform_attention", "uniform_tvd"))
"""By which heads are raced: the first test that runs, with its statistic."""
AT_ONCE = 10  # heads that are looked at together when time is short
LEFT_OUT = (
    "accuracy as heads are removed together",
    "texts shown with their scores",
    "the distance of erased texts from the data",
)
"""Of a report in haste, because it takes the model once more."""

# Shares of the time that is left when it is their turn.
FOR_PREDICTIONS = 0.15  # of all texts
FOR_ALL = 0.4  # all attention at first, later every group
FOR_MORE = 0.15  # more texts there, so that what is cheap is sure
FOR_SCREEN = 0.25
FOR_LAYERS = 0.6
FOR_FOREMOST = 0.6  # ten heads


@dataclass(frozen=True)
class Outcome:
    """What was done, and what a report says of it.

    Attributes:
        parts: the heads that were tested, by texts, as a control repeats them.
        groups: groups of heads that were tested.
        facts: plain data for the report's provenance.
    """

    parts: list[Part]
    groups: Sequence[Site]
    facts: dict[str, Any] = field(default_factory=dict)


def knowledge(sweep: Sweep, n_heads: int) -> Known:
    """What is on disk already, at the start.

    Args:
        n_heads: single heads that the audit may look at.
    """
    stopping = Stopping(
        n_texts=len(sweep.texts),
        seed=sweep.seed,
        n_heads=n_heads,
        is_number=sweep.adapter.prediction.is_number,
    )
    by_id = {text.example_id: text for text in sweep.texts}
    order = random_order(by_id, sweep.seed)

    def work(texts: Sequence[Text], where: Where, done: Done) -> None:
        # Rounds are small, and to measure memory in each would cost more than it saves.
        run_missing(replace(sweep, texts=texts, measures_memory=False), where, done)

    known = Known(sweep.folder, [by_id[k] for k in order], stopping, work)
    known.look()
    return known


def runner_of(sweep: Sweep) -> tuple[str, str]:
    """The test, and its statistic, by which heads are raced.

    Raises:
        AttnProbeError: no such test runs, or changes of the output have no bound.
    """
    if sweep.adapter.prediction.is_number:
        raise AttnProbeError(
            "expected a model of classes for --top, changes of a predicted number have "
            "no bound to race by; use --screen"
        )
    for test, statistic in RUNNERS:
        if test in sweep.options:
            return test, statistic
    raise AttnProbeError(
        f"expected {' or '.join(test for test, _ in RUNNERS)} among the tests to race "
        f"the heads by, got {', '.join(sweep.options)}; add one with --tests"
    )


def run_until_sure(
    sweep: Sweep,
    choice: Choice,
    heads: Sequence[Site],
    limits: Limits,
    deadline: Deadline,
) -> Outcome:
    """Runs the tests of an audit until the limits let it stop.

    Args:
        heads: that are tested by themselves.
        limits: at least one.
        deadline: of the tests.
    """
    sweep.pace.estimate = deadline.left  # what it would say is of a full audit
    if limits.seconds is not None:
        sweep.pace.deadline = lambda: deadline.left
    known = knowledge(sweep, max(len(choice.sites), 1))
    names = list(sweep.options)
    everything = sites_by_test(names, sweep.adapter, heads, choice.groups)
    groups, facts = list(choice.groups), {}
    is_race = limits.n_first is not None and limits.n_first < len(heads)
    runner = runner_of(sweep) if is_race else None
    if limits.seconds is None:
        predict_all(known)
    if runner is not None and limits.n_first is not None:
        found = race(known, runner, heads, limits.n_first, deadline)
        facts["race"] = race_facts(found, heads, runner, known)
        groups = [g for g in groups if g.layer in (ALL, SET)]
        heads = [heads[k] for k in sorted(found.first())]
    where = sites_by_test(names, sweep.adapter, heads, groups)
    if limits.seconds is None:
        run_until_narrow(known, where, limits.width)
    else:
        timetable = Timetable(known, deadline, sweep.batch_size, limits.width)
        timetable.run(_stages(sweep, known, heads, groups))
        _check_begun(known, limits.seconds)
    hasty = {} if limits.seconds is None else _as_in_haste(sweep.options)
    facts |= work_facts(known, limits, everything, hasty)
    parts: list[Part] = [(texts_done(known, where), heads)]
    return Outcome(parts, groups, facts)


def _check_begun(known: Known, seconds: float) -> None:
    """Raises AttnProbeError where there is nothing to report on."""
    if not any(test != PREDICTION for test, _, _ in known.done):
        raise AttnProbeError(
            f"expected a time in which some test can begin, {in_words(seconds)} were up "
            "before; give more with --time"
        )


def _stages(
    sweep: Sweep, known: Known, heads: Sequence[Site], groups: Sequence[Site]
) -> Iterator[Stage]:
    """What answers come of first: of few texts, at the places that matter most.

    Predictions; then all attention, the layers and the foremost ten heads, each with as
    many texts as an answer needs; then more texts there, the other heads, and the rest.
    """
    names = [name for name in sweep.options if name != "screen"]

    def where(sites: Sequence[Site], groups: Sequence[Site]) -> Where:
        return sites_by_test(names, sweep.adapter, sites, groups)

    yield Stage({PREDICTION: [NO_SITE]}, FOR_PREDICTIONS)
    whole = [g for g in groups if g.layer in (ALL, SET)]
    layers = [g for g in groups if g not in whole]
    if whole:
        yield Stage(where([], whole), FOR_ALL, first=MIN_TEXTS)
        yield Stage(where([], whole), FOR_MORE)
    if heads and "screen" in sweep.options:
        yield Stage(sites_by_test(["screen"], sweep.adapter, heads), FOR_SCREEN)
    ranked = by_promise(known.rows("screen"), heads)
    foremost = ranked[:AT_ONCE]
    if layers:
        yield Stage(where([], layers), FOR_LAYERS, first=MIN_TEXTS)
    if foremost:
        yield Stage(where(foremost, []), FOR_FOREMOST, first=MIN_TEXTS)
    if groups:
        yield Stage(where([], groups), FOR_ALL)
    for start in range(0, len(ranked), AT_ONCE):
        yield Stage(where(ranked[start : start + AT_ONCE], []), FOR_FOREMOST)
    every = sites_by_test(list(sweep.options), sweep.adapter, heads, groups)
    yield Stage(every, 1.0)


def by_promise(estimates: pd.DataFrame, heads: Sequence[Site]) -> list[Site]:
    """The heads, those with the largest first-order effects first.

    Args:
        estimates: rows of the screen; without any the heads stay in their order.
    """
    if not len(estimates):
        return list(heads)
    own = estimates[estimates.statistic.isin(ESTIMATES)]
    effects = own.groupby(["layer", "head"]).value.mean().to_dict()
    return sorted(heads, key=lambda site: (-effects.get(site[:2], 0.0), site))


def _as_in_haste(chosen: Mapping[str, Options]) -> dict[str, dict[str, Any]]:
    """By test the options that it has in haste, where they are not the default ones."""
    found = {}
    for name, options in chosen.items():
        test = tests()[name]
        if options == test.in_haste:
            usual, here = asdict(test.options()), asdict(options)
            found[name] = {k: v for k, v in here.items() if v != usual[k]}
    return found


def work_facts(
    known: Known,
    limits: Limits,
    everything: Where,
    in_haste: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """How much was done of what a full audit does, and what was to stop it.

    Args:
        in_haste: by test the options that it has in haste.
    """
    n_full = sum(len(sites) for sites in everything.values()) * len(known.texts)
    return {
        "limits": {k: v for k, v in asdict(limits).items() if v is not None},
        "runs_done": known.n_done(everything),
        "runs_of_full_audit": n_full,
        "left_out": list(LEFT_OUT) if limits.seconds is not None else [],
        "in_haste": in_haste,
        "order": asdict(known.stopping),
    }


def race_facts(
    found: Standing, heads: Sequence[Site], runner: tuple[str, str], known: Known
) -> dict[str, Any]:
    """Who came in first, who is decided, and on how many texts."""
    test, statistic = runner
    sizes = [len(known.done.get((test, *site[:2]), ())) for site in heads]
    first = found.first()
    low, high = found.bands

    def names(which: Sequence[int]) -> list[str]:
        return [f"{heads[k].layer}.{heads[k].head}" for k in which]

    return {
        "statistic": statistic,
        "n_heads": len(heads),
        "first": names(first),
        "surely_first": names([k for k in first if found.inside[k]]),
        "undecided": names([k for k in range(len(heads)) if found.undecided[k]]),
        "means": [float(found.means[k]) for k in first],
        "intervals": [[float(low[k]), float(high[k])] for k in first],
        "texts": [min(sizes, default=0), max(sizes, default=0)],
    }


def repeat_on_control(
    sweep: Sweep,
    controls: Sequence[AttentionModelBase],
    outcome: Outcome,
    limits: Limits,
    deadline: Deadline,
    kind: str,
) -> None:
    """Runs on every draw of the control what a verdict reads, as far as the time goes.

    The first draw of a model with other weights runs all that the audit ran: what it
    says of every head stands beside the model's numbers.

    Args:
        sweep: of the audit.
        controls: the draws.
        kind: of control, in words.
    """
    texts = [text for part, _ in outcome.parts for text in part]
    for draw, control in enumerate(controls):
        other = replace(beside(sweep, control, draw), texts=texts)
        other = replace(other, options=_read_by_verdict(other.options))
        where = of_verdict(other, outcome.groups)
        is_model = control.reassignment is None
        if limits.seconds is None and is_model and draw == 0:
            with claimed_control(other, kind):
                other = replace(other, options=sweep.options)
                run_parts(other, outcome.parts, outcome.groups, done="screen")
        elif where and texts:
            with claimed_control(other, kind):
                _run_controlled(other, where, limits, deadline)


def _read_by_verdict(chosen: Mapping[str, Options]) -> dict[str, Options]:
    """The same options, without what no verdict reads."""
    options = dict(chosen)
    erased = options.get("input_erasure")
    if isinstance(erased, InputErasure):
        options["input_erasure"] = replace(erased, comprehensiveness_only=True)
    return options


def _run_controlled(sweep: Sweep, where: Where, limits: Limits, deadline: Deadline) -> None:
    if limits.seconds is None:
        run(sweep, where)
        return
    known = knowledge(sweep, 1)
    Timetable(known, deadline, sweep.batch_size).run([Stage(where, 1.0)])
