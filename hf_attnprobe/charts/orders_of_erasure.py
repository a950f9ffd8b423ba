"""How much must go before the decision flips, by ranking? Pure."""

import pandas as pd

from hf_attnprobe.charts.chart import Chart, Series
from hf_attnprobe.charts.evidence import (
    Evidence,
    ranking_name,
    said,
    series_of_medians,
)
from hf_attnprobe.published import PUBLISHED


SMALLEST = "minimal_fraction"
RANKING = "in the order of a ranking"
EXACT, TRIED = "smallest set", "best ranking of each text"
LEAST = {EXACT: "the least there is", TRIED: "the least that was tried"}
OPTIMAL = "margin"  # the order that the smallest set is read from
THEIRS = "Serrano & Smith (medians)"


def fraction_to_flip(evidence: Evidence) -> Chart | None:
    """The share of the tokens erased when the decision flips, beside the least possible.

    All orders are on the same texts, those that some set (or some order that was tried)
    flips; an order that never does counts as all tokens.
    """
    orders = evidence.rankings("fraction_to_flip")
    if not orders:
        return None
    best_name, best = _least(evidence, orders)
    orders.pop(OPTIMAL, None)
    shown = {ranking_name(key): evidence.values[name] for key, name in orders.items()}
    series = [
        series_of_medians(RANKING, shown),
        series_of_medians(LEAST[best_name], {best_name: best}),
    ]
    return Chart(
        key="fraction_to_flip",
        title="Tokens to erase before the decision flips",
        finding=_finding(evidence, best_name, best),
        source="Serrano & Smith 2019, Figure 5",
        kind="dots",
        x_label="tokens erased in the order of",
        y_label="share of tokens erased at the flip",
        series=(*series, *_published(evidence, list(orders))),
        bars="middle half of the texts",
        y_range=(0.0, 1.0),
    )


def _least(evidence: Evidence, orders: dict[str, str]) -> tuple[str, pd.Series]:
    """The exact minimum, or of each text the best of the rankings."""
    if SMALLEST in evidence:
        return EXACT, evidence.values[SMALLEST]
    tried = [name for key, name in orders.items() if key != "random"]
    return TRIED, evidence.values[tried or list(orders.values())].min(axis=1)


def _published(evidence: Evidence, keys: list[str]) -> list[Series]:
    if evidence.published is None:
        return []
    dataset, encoder, _ = evidence.published
    by_encoder = PUBLISHED.fraction_to_flip.get(PUBLISHED.nearest.get(dataset, dataset), {})
    theirs = by_encoder.get(encoder, {})
    known = [key for key in keys if key in theirs]
    if not known:
        return []
    places = tuple(map(ranking_name, known))
    return [Series(THEIRS, places, tuple(theirs[key] for key in known))]


def _finding(evidence: Evidence, best_name: str, best: pd.Series) -> str:
    parts = []
    for key in ("attention", "random"):
        mean = evidence.mean(f"fraction_to_flip@{key}")
        if mean.n:
            parts.append(f"{said(mean)} of the tokens in {_order(key)}")
    n, n_texts = int(best.notna().sum()), len(evidence.values)
    what = "some set" if best_name == EXACT else "some tried order"
    never = evidence.mean("never_flips@attention")
    failing = ""
    if never.n:
        failing = (
            f" Attention's order never flips {never.value:.0%} of them, which counts as all tokens."
        )
    return (
        f"{evidence.words.decision.capitalize()} flips after {', '.join(parts)}, where "
        f"the {best_name} has {best.mean():.2f} (means over the {n} of {n_texts} texts "
        f"that {what} flips; drawn are medians).{failing}"
    )


def _order(key: str) -> str:
    return "attention's order" if key == "attention" else "a random order"
