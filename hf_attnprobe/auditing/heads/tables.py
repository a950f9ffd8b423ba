"""A model with many heads as layer × head tables. Pure: statistics and rows in, lines out."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.auditing.heads.values import (
    ELSEWHERE,
    MATTERS,
    ByHead,
    HeadKey,
    Heads,
    by_head,
    head_intervals,
    is_head,
)
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.statistics.estimates import share_interval
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.wording import CLASSES, Words


MARKED = {
    "median_tvd": MATTERS,
    "uniform_tvd": MATTERS,
    "zero_tvd": MATTERS,
    "mean_tvd": MATTERS,
    "resample_tvd": MATTERS,
    "share_of_largest@0.01": ELSEWHERE,
    "way_to_best_tried@attention": 0.0,
    "attention_leave_one_out_tau": 0.0,
    "attention_gradient_tau": 0.0,
    "attention_times_gradient_tau": 0.0,
    "effective_attention_tau": 0.0,
    "norm_based_tau": 0.0,
}
"""By statistic, from where on a head is marked in its table."""


def head_tables(
    statistics: Sequence[Statistic], rows: pd.DataFrame, words: Words = CLASSES
) -> list[str]:
    """Markdown tables, layers down and heads across; a dash where a head was not tested.

    There is one for each statistic that its test has a title for. A test without titles
    has one for each of its statistics.

    Args:
        statistics: of an audit.
        rows: of the same audit; without them no head is marked.
        words: of the kind of prediction.
    """
    lines = []
    marked = rows[rows.statistic.isin(list(MARKED))] if len(rows) else rows
    for name, title in _titles(statistics).items():
        values = by_head(statistics, name)
        if values:
            heads = Heads(values)
            if name in MARKED:
                heads = Heads(values, head_intervals(marked, name))
            sure = heads.surely(MARKED.get(name, 0.0))
            caption = f"{_texts(statistics, name)}{_mark(name, heads)}."
            table = [caption, "", *_head_table(values, sure)]
            lines += markdown.section(f"{name}: {words.fill(title)}", table, level=3)
    return lines + layer_table(statistics)


def _titles(statistics: Sequence[Statistic]) -> dict[str, str]:
    """The statistics to print, with their titles, in the order of the tests."""
    known = tests()
    unknown = {s.test for s in statistics} - known.keys()  # no longer installed
    titles: dict[str, str] = {}
    for test in (*known, *sorted(unknown)):
        of_heads = known[test].head_titles if test in known else {}
        of_layers = known[test].layer_titles if test in known else {}
        names = {s.statistic: None for s in statistics if s.test == test}
        titled = {name: title for name, title in of_heads.items() if name in names}
        titles |= titled
        for name in names:
            if not titled and name not in of_layers:
                titles[name] = name.replace("_", " ")
    return titles


def _texts(statistics: Sequence[Statistic], name: str) -> str:
    """How many texts the means of the heads are over."""
    sizes = {
        s.n for s in statistics if s.statistic == name and s.group == "all" and s.n and is_head(s)
    }
    if len(sizes) == 1:
        return f"{sizes.pop()} texts"
    return f"{min(sizes)} to {max(sizes)} texts a head"


def _mark(name: str, heads: Heads) -> str:
    """What the ``*`` in a table means; nothing where no head could have one."""
    if not heads.intervals:
        return ""
    threshold = MARKED[name]
    above = f"{threshold:.2f} or more" if threshold else "above 0"
    return (
        f"; * = surely {above}: the 95% interval, simultaneous over "
        f"{len(heads.intervals)} heads, lies there"
    )


def _head_table(values: ByHead, sure: set[HeadKey]) -> list[str]:
    layers, heads = zip(*values, strict=True)
    numbers = range(max(heads) + 1)
    rows = []
    for layer in sorted(set(layers)):
        cells = [
            markdown.number(values.get((layer, h)), digits=2) + ("*" if (layer, h) in sure else "")
            for h in numbers
        ]
        rows.append([layer, *cells])
    return markdown.table(["layer", *(f"head {h}" for h in numbers)], rows)


def layer_table(statistics: Sequence[Statistic]) -> list[str]:
    """A Markdown table of explanations of whole layers, layers down."""
    columns = {}
    layers: set[int] = set()
    for test in tests().values():
        for name, title in test.layer_titles.items():
            values = _by_layer(statistics, name)
            if values:
                columns[title] = values
                layers.update(values)
    rows = []
    for layer in sorted(layers):
        cells = [markdown.number(v.get(layer), digits=2) for v in columns.values()]
        rows.append([layer, *cells])
    title = "rank correlation of a layer's explanations with leave-one-out"
    table = markdown.table(["layer", *columns], rows) if rows else []
    return markdown.section(title, table, level=3)


def _by_layer(statistics: Sequence[Statistic], name: str) -> dict[int, float]:
    """The mean of a statistic of whole layers over all texts."""
    return {
        s.layer: s.mean
        for s in statistics
        if s.statistic == name and s.group == "all" and s.n and s.layer >= 0 and s.head < 0
    }


def prune_table(curve: PruneCurve, words: Words = CLASSES) -> list[str]:
    """A Markdown table of accuracy by the number of heads removed.

    Where a text has several labels, accuracy is a mean of shares and has no interval of
    a share of texts.
    """
    agreement = [_share(share, curve.n_texts) for share in curve.agreement]
    accuracy = [_share(share, curve.n_labelled) for share in curve.accuracy]
    share = "accuracy"
    if words.has_parts:
        share += words.aside
        accuracy = [markdown.number(mean) for mean in curve.accuracy]
    rows = zip(curve.n_removed, agreement, accuracy, strict=True)
    titles = ["heads removed", "predictions kept", share]
    return markdown.table(titles, rows)


def prune_title(curve: PruneCurve) -> str:
    """What the table of the prune curve is of."""
    title = "heads zero-ablated together, the least important (zero_tvd) first"
    if curve.crossed:
        title += f"; {curve.n_texts} texts, crossed: each half's order comes from the other half"
    return title


def _share(share: float, n_texts: int) -> str:
    """A share of texts with its interval; without, if no text counts."""
    if not n_texts:
        return markdown.number(share)
    hits = np.array(round(share * n_texts))
    low, high = share_interval(hits, np.array(n_texts)).tolist()
    return markdown.interval(share, (low, high))
