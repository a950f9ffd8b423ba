"""Bins of attention weights, as in the plots of the papers."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd


ATTENTION_BINS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the largest weight, as Jain & Wallace 2019, Figure 6."""
N_GAP_BINS = 10
BY_ROUNDING = 1e-9
"""Differences of outputs up to this one may come from rounding."""


def bin_names() -> list[str]:
    """Names of the bins as intervals; the last one includes a weight of exactly 1."""
    pairs = itertools.pairwise(ATTENTION_BINS)
    names = [f"[{low:.2f}, {high:.2f})" for low, high in pairs]
    names[-1] = f"{names[-1][:-1]}]"
    return names


def attention_bin(max_attention: pd.Series) -> pd.Series:
    """The name of the bin of every text's largest weight."""
    names = bin_names()
    bins = pd.cut(max_attention, ATTENTION_BINS, right=False, labels=names)
    return bins.fillna(names[-1])  # a weight of exactly 1


@dataclass(frozen=True)
class GapBin:
    """Texts whose largest weight exceeds the other erased one by about as much.

    Attributes:
        name: the interval of Δα.
        middle: of it.
        n: texts.
        median, quartiles: of ΔJS, in nats.
        negative: the share of texts in which the smaller weight moved the output more.
    """

    name: str
    middle: float
    n: int
    median: float
    quartiles: tuple[float, float]
    negative: float


def js_by_gap(delta_attention: pd.Series, delta_js: pd.Series) -> Iterator[GapBin]:
    """ΔJS in tenths of Δα that some text is in (Serrano & Smith 2019, Section 4.2).

    Args:
        delta_attention: how much larger the largest weight is than the other one.
        delta_js: how much farther the output moves without it. Texts without a value of
            either are left out.
    """
    both = pd.DataFrame({"gap": delta_attention, "js": delta_js}).dropna()
    number = (both.gap * N_GAP_BINS + BY_ROUNDING).astype(int)
    for k, texts in both.js.groupby(number.clip(0, N_GAP_BINS - 1)):
        low, high = k / N_GAP_BINS, (k + 1) / N_GAP_BINS
        end = "]" if k == N_GAP_BINS - 1 else ")"
        first, median, third = texts.quantile([0.25, 0.5, 0.75])
        yield GapBin(
            f"[{low:.1f}, {high:.1f}{end}",
            (k + 0.5) / N_GAP_BINS,
            len(texts),
            float(median),
            (float(first), float(third)),
            float((texts < -BY_ROUNDING).mean()),
        )
