"""Texts in rounds: after each, the heads and tests that are sure enough drop out."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from hf_attnprobe.attention_model import Site
from hf_attnprobe.auditing.stopping.known import Known
from hf_attnprobe.auditing.stopping.limits import Deadline
from hf_attnprobe.inference.batching import Where
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.statistics.estimates import mean_interval, simultaneous_interval
from hf_attnprobe.statistics.stopping import Standing, standing, widened
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.statistics.verdicts import MIN_TEXTS
from hf_attnprobe.storage.rows import NO_SITE


FIRST_ROUND = 32
GROWTH = 0.5  # a round has half as many texts as all before it


def in_rounds(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """The texts cut into rounds that grow.

    >>> [len(texts) for texts in in_rounds(range(200))]
    [32, 32, 32, 48, 56]
    """
    start = 0
    while start < len(texts):
        size = max(FIRST_ROUND, int(start * GROWTH))
        yield texts[start : start + size]
        start += size


def predict_all(known: Known) -> None:
    """What the model says of every text: accuracy and classes are then of all texts."""
    known.run(known.texts, {PREDICTION: [NO_SITE]})


def run_until_narrow(known: Known, where: Where, width: float | None) -> None:
    """Runs the tests round by round, each at its sites until the intervals are narrow.

    Args:
        width: how wide an interval may be; None: until all texts are done.
    """
    left = still_wide(known, where, width)
    for texts in in_rounds(known.texts):
        if not left:
            return
        known.run(texts, left)
        left = still_wide(known, left, width)


def still_wide(known: Known, where: Where, width: float | None) -> dict[str, Sequence[Site]]:
    """The tests and sites with an interval that is wider, or not known yet."""
    left: dict[str, Sequence[Site]] = {}
    for test, sites in where.items():
        open_sites = [site for site in sites if not known.is_done(test, site)]
        if width is not None and open_sites:
            narrow = _narrow(known, test, width)
            open_sites = [site for site in open_sites if site[:2] not in narrow]
        if open_sites:
            left[test] = open_sites
    return left


def _narrow(known: Known, test: str, width: float) -> set[tuple[int, int]]:
    """Where all intervals of a test are narrow enough: layers and heads."""
    rows = known.rows(test)
    if not len(rows) or test == "screen":
        return set()
    widest: dict[tuple[int, int], float] = {}
    for name, of_statistic in rows.groupby("statistic"):
        for place, found in interval_widths(of_statistic, str(name), known).items():
            widest[place] = max(widest.get(place, 0.0), found)
    return {place for place, found in widest.items() if found <= width}


def interval_widths(
    rows: pd.DataFrame, statistic: str, known: Known
) -> dict[tuple[int, int], float]:
    """How wide the intervals of a statistic are as a report gives them, by site.

    Those of single heads are simultaneous. Infinite below ``MIN_TEXTS`` texts.
    """
    wide = rows.pivot(index="example_id", columns=["layer", "head"], values="value")
    single = np.array([min(place) >= 0 for place in wide.columns])
    found: dict[tuple[int, int], float] = {}
    for these, is_single in ((single, True), (~single, False)):
        values = wide.loc[:, these]
        if not values.shape[1]:
            continue
        table = values.to_numpy(dtype=np.float64)
        made = simultaneous_interval if is_single else mean_interval
        ends = widened(
            made(table),
            values,
            [known.stopping.bounds(statistic)] * values.shape[1],
            known.stopping,
            together=known.stopping.n_heads if is_single else 1,
        )
        enough = (~np.isnan(table)).sum(0) >= MIN_TEXTS
        sizes = np.where(enough, ends[1] - ends[0], np.inf)
        found |= dict(zip(map(tuple, values.columns), sizes.tolist(), strict=True))
    return found


def race(
    known: Known,
    runner: tuple[str, str],
    sites: Sequence[Site],
    n_first: int,
    deadline: Deadline,
) -> Standing:
    """Runs one test at the heads until the first ones are singled out.

    Args:
        runner: the test, and its statistic by which heads are ranked.
        sites: the heads.
        n_first: how many are looked for.
        deadline: asked before each round.
    """
    test, _ = runner
    found = _standing(known, runner, sites, n_first)
    for texts in in_rounds(known.texts):
        left = [s for s, is_open in zip(sites, found.undecided, strict=True) if is_open]
        if not left or known.agreed(deadline.left <= 0):
            break
        known.run(texts, {test: left})
        found = _standing(known, runner, sites, n_first)
    return found


def _standing(
    known: Known, runner: tuple[str, str], sites: Sequence[Site], n_first: int
) -> Standing:
    values = drawn_values(known.rows(runner[0]), runner[1], known, sites)
    bounds = known.stopping.bounds(runner[1])
    assert bounds is not None  # who starts a race has asked
    return standing(values, n_first, known.stopping.n_texts, bounds=bounds)


def drawn_values(
    rows: pd.DataFrame, statistic: str, known: Known, sites: Sequence[Site]
) -> np.ndarray:
    """The values of a statistic in the random order, [texts, sites]; NaN without one."""
    order = [text.example_id for text in known.texts]
    places = pd.MultiIndex.from_tuples([site[:2] for site in sites])
    if not len(rows):
        return np.full((0, len(sites)), np.nan)
    own = rows[rows.statistic == statistic]
    wide = own.pivot(index="example_id", columns=["layer", "head"], values="value")
    return wide.reindex(index=order, columns=places).to_numpy(dtype=np.float64)


def texts_done(known: Known, where: Mapping[str, Sequence[Site]]) -> list[Text]:
    """The texts that some test was run on, in their order."""
    ids: set[int] = set()
    for test, sites in where.items():
        for site in sites:
            ids |= known.done.get((test, site.layer, site.head), set())
    return [text for text in known.texts if text.example_id in ids]
