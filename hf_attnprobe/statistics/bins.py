"""Bins of the largest attention weight, as in the papers' plots."""

import itertools


ATTENTION_BINS = (
    0.0,
    0.25,
    0.5,
    0.75,
    1.0,
)  # of the largest weight, as in the papers' plots


def bin_names() -> list[str]:
    """Of the intervals of the largest weight; the last one holds a weight of exactly 1."""
    names = [f"[{a:.2f}, {b:.2f})" for a, b in itertools.pairwise(ATTENTION_BINS)]
    return [*names[:-1], f"{names[-1][:-1]}]"]
