"""Thresholds from even seeds and half of the kinds, errors on the rest; all by kinds.

Forty draws of a kind are nearly one model, so a kind counts once: it is wrong where any draw is.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import Answer, Rule, grade
from hf_attnprobe.statistics.questions import EFFECT_THRESHOLD, PARTLY_THRESHOLD, YES_THRESHOLD


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


def middle(models: pd.DataFrame) -> float:
    """The middle between the lowest kind with truth yes and the highest with two truths."""
    means = constructed(models).groupby(["truth", "kind"]).faithfulness.mean()
    return float((means["yes"].min() + means["partly"].max()) / 2)


def halves(models: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The kinds in two halves, taken in turn within each truth."""
    own = constructed(models)[["kind", "truth"]].drop_duplicates()
    first = [k for _, kinds in own.groupby("truth", sort=False).kind for k in kinds[::2]]
    return first, [kind for kind in own.kind if kind not in first]


def chosen(models: pd.DataFrame) -> tuple[float, float]:
    """Where "partly" and "yes" begin: half of the texts right, and the middle of the gap."""
    partly, yes = float(np.interp(0.5, *_axes(curve(models)))), middle(models)
    return _rounded(partly), _rounded(yes)


def _rounded(value: float) -> float:
    return round(round(value / STEP) * STEP, 2)


def _axes(response: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    return response.index.to_numpy(float), response.to_numpy()


def answers(
    models: pd.DataFrame, partly: float = PARTLY_THRESHOLD, yes: float = YES_THRESHOLD
) -> pd.Series:
    """What each model would be told by these thresholds, where its accuracy passes."""
    score = Rule("", "", "", partly=partly, yes=yes, source="")
    effect = Rule("", "", "", partly=EFFECT_THRESHOLD, yes=EFFECT_THRESHOLD, source="")

    def told(row: pd.Series) -> Answer:
        moved, placed = graded(row, "effect", effect), graded(row, "faithfulness", score)
        if Answer.NO in (moved, placed):
            return Answer.NO
        return Answer.CANNOT_SAY if moved == Answer.CANNOT_SAY else placed

    return models.apply(told, axis=1).astype(str)


def graded(row: pd.Series, name: str, rule: Rule) -> Answer:
    """A stored number of a model, graded."""
    low, high = row[f"{name} low"], row[f"{name} high"]
    ends = None if pd.isna(low) or pd.isna(high) else (low, high)
    return grade(Estimate(row[name], ends, int(row[f"{name} n"])), rule)


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
        is_open = told[own.index] == Answer.CANNOT_SAY
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
    is_mixed = models.kind.str.startswith("right in")
    even = models.seed % 2 == 0
    partly, yes = chosen(models[even & (models.kind.isin(first) | is_mixed)])
    rest = models[~even & models.kind.isin(others)]
    found = errors(rest, answers(rest, partly, yes))
    return {"partly": partly, "yes": yes, "errors": found.to_dict("records")}


def leaving_one_out(models: pd.DataFrame) -> dict[str, object]:
    """Each kind judged by the thresholds of all others: their range, and who is told wrong."""
    kinds: Iterable[str] = constructed(models).kind.unique()
    thresholds: list[Sequence[float]] = []
    wrong: list[str] = []
    for kind in kinds:
        others, own = models[models.kind != kind], models[models.kind == kind]
        partly, yes = chosen(others)
        thresholds.append((partly, yes))
        told = answers(own, partly, yes)
        wrong += wrong_kinds(own, told, own.truth.iloc[0])[0]
    low, high = np.min(thresholds, axis=0).tolist(), np.max(thresholds, axis=0).tolist()
    return {"partly": [low[0], high[0]], "yes": [low[1], high[1]], "wrong": wrong}
