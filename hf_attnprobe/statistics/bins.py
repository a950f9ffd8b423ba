"""Bins of the largest attention weight, as in the plots of Jain & Wallace (2019)."""

import itertools

import pandas as pd


ATTENTION_BINS = (0.0, 0.25, 0.5, 0.75, 1.0)


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
