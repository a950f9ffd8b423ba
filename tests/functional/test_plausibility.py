"""Agreement with rationales against the definitions, threshold by threshold and span by span."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_attnprobe.functional.plausibility import (
    auprc,
    average_precision,
    compute_iou_scores,
    token_f1,
)


def precision_recall_area(scores, marked):
    """Σ (R_n − R_{n−1}) P_n, from the highest threshold down."""
    area, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        taken = [m for s, m in zip(scores, marked, strict=True) if s >= threshold]
        new = sum(taken) / sum(marked)
        area += (new - recall) * sum(taken) / len(taken)
        recall = new
    return area


def eraser_auprc(scores, marked):
    """As ERASER: scikit-learn's curve, which ends at recall 0, by the trapezoidal rule."""
    precision, recall = [1.0], [0.0]
    for threshold in sorted(set(scores), reverse=True):
        taken = [m for s, m in zip(scores, marked, strict=True) if s >= threshold]
        precision.append(sum(taken) / len(taken))
        recall.append(sum(taken) / sum(marked))
    return np.trapezoid(precision, recall)


def runs(flags):
    """Spans as sets of positions."""
    groups = itertools.groupby(enumerate(flags), key=lambda item: item[1])
    return [{place for place, _ in members} for flag, members in groups if flag]


def f1(precision, recall):
    if precision == 0 or recall == 0:
        return 0.0
    return 2 * precision * recall / (precision + recall)


def span_scores(chosen, marked):
    """Precision and recall."""
    ours, theirs = runs(chosen), runs(marked)
    hits = sum(any(len(a & b) / len(a | b) >= 0.5 for b in theirs) for a in ours)
    return hits / len(ours), hits / len(theirs)


texts = st.lists(
    st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), min_size=2, max_size=12
)


@given(texts)
def test_scores_are_those_of_the_definitions(text):
    scores, marked, chosen = map(list, zip(*text, strict=True))
    if not any(chosen):
        chosen[0] = True
    # around and between the units lies what is none: padding, special tokens, later pieces of a word
    content = torch.tensor([[False, *[True, False] * len(text)]])
    spread = [torch.full(content.shape, fill) for fill in (99.0, True, True)]
    for wide, narrow in zip(spread, (scores, marked, chosen), strict=True):
        wide[content] = torch.tensor(narrow, dtype=wide.dtype)
    found = (
        average_precision(spread[0], spread[1], content),
        auprc(spread[0], spread[1], content),
        token_f1(spread[2], spread[1], content),
        *compute_iou_scores(spread[2], spread[1], content),
    )
    if len(set(marked)) == 1:
        assert all(x.isnan().all() for x in found)
        return
    both = sum(c and m for c, m in zip(chosen, marked, strict=True))
    expected = (
        precision_recall_area(scores, marked),
        eraser_auprc(scores, marked),
        2 * both / (sum(chosen) + sum(marked)),
        *span_scores(chosen, marked),
        f1(*span_scores(chosen, marked)),
    )
    assert [x.item() for x in found] == pytest.approx(expected, abs=1e-12)
