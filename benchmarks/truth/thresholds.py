"""Thresholds from even seeds and half of the kinds, errors on the rest; all by kinds.

Forty draws of a kind are nearly one model, so a kind counts once: it is wrong where any draw is.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.grades import MIN_TEXTS, Answer
from hf_attnprobe.statistics.questions import (
    PARTLY_THRESHOLD,
    PATH_SHARE_THRESHOLD,
    YES_THRESHOLD,
)


WRONG = {"yes": ("no", "partly"), "no": ("yes", "partly"), "partly": ("yes", "no")}
"""By truth, the answers that are wrong; "cannot say" is open."""
STEP = 0.05
"""Thresholds are rounded to it."""


def curve(models: pd.DataFrame) -> pd.Series:
    """Mean faithfulness by the share of texts in which attention is right."""
    mixed = models[models.kind.str.startswith("right in")]
    return mixed.groupby("right").faithfulness.mean()


def share_at(response: pd.Series, value: float) -> float:
    """The share of right texts at which faithfulness has a value, by linear interpolation."""
    return float(np.interp(value, response.to_numpy(), response.index.to_numpy(float)))


def constructed(models: pd.DataFrame) -> pd.DataFrame:
    """The kinds without the mixtures, whose truth is a share and no answer."""
    return models[~models.kind.str.startswith("right in")]


def halves(models: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The kinds in two halves, taken in turn within each truth."""
    own = constructed(models)[["kind", "truth"]].drop_duplicates()
    first = [k for _, kinds in own.groupby("truth", sort=False).kind for k in kinds[::2]]
    return first, [kind for kind in own.kind if kind not in first]


GRID = [
    (partly, yes)
    for partly in np.arange(0.30, 0.56, STEP).round(2)
    for yes in np.arange(0.55, 0.86, STEP).round(2)
    if partly < yes
]
"""Pairs of thresholds that are tried."""


def costs_by_kind(models: pd.DataFrame) -> pd.DataFrame:
    """The cost of every kind for each pair of thresholds, [kinds, pairs].

    A kind with a wrong answer costs 1, and a kind with an open answer one half.
    """
    own = constructed(models)
    wrong = own.truth.map(WRONG)
    costs = {}
    for number, (partly, yes) in enumerate(GRID):
        told = answers(own, partly, yes)
        is_wrong = pd.Series([a in w for a, w in zip(told, wrong, strict=True)], index=own.index)
        is_open = told == str(Answer.CANNOT_SAY)
        costs[number] = is_wrong.groupby(own.kind).any() + is_open.groupby(own.kind).any() / 2
    return pd.DataFrame(costs)


def cheapest(costs: pd.Series) -> tuple[float, float]:
    """The pair of thresholds with the lowest cost; of equally good ones, the middle one."""
    best = np.array([GRID[number] for number in costs.index[np.isclose(costs, costs.min())]])
    # Rounding makes equal distances equal, so that the lower pair is chosen.
    distances = np.abs(best - np.median(best, 0)).sum(1).round(6)
    partly, yes = best[distances.argmin()].tolist()
    return partly, yes


def chosen(models: pd.DataFrame) -> tuple[float, float]:
    """The pair of thresholds with the fewest errors in these models."""
    return cheapest(costs_by_kind(models).sum())


def answers(
    models: pd.DataFrame, partly: float = PARTLY_THRESHOLD, yes: float = YES_THRESHOLD
) -> pd.Series:
    """What each model would be told by these thresholds, where its accuracy passes."""
    moved = graded(models, "path_share", PATH_SHARE_THRESHOLD, PATH_SHARE_THRESHOLD)
    placed = graded(models, "faithfulness", partly, yes)
    is_open = moved == str(Answer.CANNOT_SAY)
    told = np.where(is_open, str(Answer.CANNOT_SAY), placed)
    is_no = (moved == str(Answer.NO)) | (placed == str(Answer.NO))
    return pd.Series(np.where(is_no, str(Answer.NO), told), index=models.index)


def graded(models: pd.DataFrame, name: str, partly: float, yes: float) -> np.ndarray:
    """A stored number of each model, graded by its interval as the package does."""
    grades = np.array([str(Answer.NO), str(Answer.PARTLY), str(Answer.YES)])
    low, high = models[f"{name} low"].to_numpy(float), models[f"{name} high"].to_numpy(float)
    at_low, at_high = ((end >= partly).astype(int) + (end >= yes) for end in (low, high))
    is_settled = (at_low == at_high) & (models[f"{name} n"].to_numpy(float) >= MIN_TEXTS)
    is_settled &= ~np.isnan(low) & ~np.isnan(high)
    return np.where(is_settled, grades[at_low], str(Answer.CANNOT_SAY))


def wrong_kinds(models: pd.DataFrame, told: pd.Series, truth: str) -> tuple[list[str], int]:
    """The kinds of a truth of which any draw is told a wrong answer, and how many there are."""
    own = constructed(models)
    own = own[own.truth == truth]
    is_wrong = told[own.index].isin(WRONG[truth])
    return sorted(set(own.kind[is_wrong])), own.kind.nunique()


def errors(models: pd.DataFrame, told: pd.Series) -> pd.DataFrame:
    """Wrong and open kinds by truth, a row per truth."""
    rows = []
    for truth in WRONG:
        wrong, n = wrong_kinds(models, told, truth)
        own = constructed(models)
        own = own[own.truth == truth]
        is_open = told[own.index] == str(Answer.CANNOT_SAY)
        rows.append(
            {
                "truth": truth,
                "kinds": n,
                "wrong": wrong,
                "open": sorted(set(own.kind[is_open])),
                "draws": int(own.groupby("kind").size().max()) if n else 0,
            }
        )
    return pd.DataFrame(rows)


def out_of_sample(models: pd.DataFrame) -> dict[str, object]:
    """Thresholds of even seeds and half of the kinds, and their errors on the rest."""
    first, others = halves(models)
    even = models.seed % 2 == 0
    partly, yes = chosen(models[even & models.kind.isin(first)])
    rest = models[~even & models.kind.isin(others)]
    found = errors(rest, answers(rest, partly, yes))
    return {"partly": partly, "yes": yes, "errors": found.to_dict("records")}


def leaving_one_out(models: pd.DataFrame) -> dict[str, object]:
    """Each kind judged by the thresholds of all others: their range, and who is told wrong."""
    kinds: Iterable[str] = constructed(models).kind.unique()
    thresholds: list[Sequence[float]] = []
    wrong: list[str] = []
    costs = costs_by_kind(models)
    total = costs.sum()
    for kind in kinds:
        own = models[models.kind == kind]
        partly, yes = cheapest(total - costs.loc[kind])
        thresholds.append((partly, yes))
        told = answers(own, partly, yes)
        wrong += wrong_kinds(own, told, own.truth.iloc[0])[0]
    low, high = np.min(thresholds, axis=0).tolist(), np.max(thresholds, axis=0).tolist()
    return {"partly": [low[0], high[0]], "yes": [low[1], high[1]], "wrong": wrong}
