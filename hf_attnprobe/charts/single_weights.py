"""Does the size of a weight say how much the output rests on it? Pure."""

import pandas as pd

from hf_attnprobe.charts.chart import Chart, Reference, Series
from hf_attnprobe.charts.evidence import Evidence
from hf_attnprobe.statistics.samples import sample
from hf_attnprobe.statistics.summary import BY_ROUNDING, js_by_gap


MOST_POINTS = 300
NEEDED = ("delta_attention", "delta_js")


def js_against_attention(evidence: Evidence) -> Chart | None:
    """ΔJS against Δα: single texts, and the median of all; None without values."""
    if not set(NEEDED) <= set(evidence.values):
        return None
    both = evidence.values[list(NEEDED)].dropna()
    if both.empty:
        return None
    return Chart(
        key="js_against_attention",
        title="The largest weight erased, against another one",
        finding=_finding(both),
        source="Serrano & Smith 2019, Figure 3",
        kind="points",
        x_label="Δα: largest weight minus the other one",
        y_label="ΔJS of the output, nats",
        series=(_points(both), _medians(both)),
        references=(Reference("no difference", 0.0),),
        bars="middle half of the texts",
        x_range=(0.0, 1.0),
    )


def _points(both: pd.DataFrame) -> Series:
    ids = both.index.tolist()
    shown = both.iloc[sample(range(len(ids)), ids, MOST_POINTS)]
    name = "texts"
    if len(shown) < len(both):
        name = f"texts ({len(shown)} of {len(both)}, drawn at random)"
    return Series(name, tuple(shown.delta_attention), tuple(shown.delta_js))


def _medians(both: pd.DataFrame) -> Series:
    """In the middle of each tenth of Δα that some text is in."""
    bins = list(js_by_gap(both.delta_attention, both.delta_js))
    low, high = zip(*(b.quartiles for b in bins), strict=True)
    return Series(
        f"median of all {len(both)} texts, by tenths of Δα",
        tuple(b.middle for b in bins),
        tuple(b.median for b in bins),
        low,
        high,
        tuple(b.n for b in bins),
        joined=True,
    )


def _finding(both: pd.DataFrame) -> str:
    js, gap = both.delta_js, both.delta_attention
    negative = (js < -BY_ROUNDING).mean()
    sentence = (
        "Without the largest weight the output moves by a median of "
        f"{js.median():.3f} nats more than without another one drawn at random "
        f"({len(both)} texts; 0 is no difference, ln 2 = .69 the most there is); in "
        f"{negative:.0%} of them the other one moves it more."
    )
    wide = js[gap >= 0.5]
    if len(wide):
        sentence += (
            f" Where the largest weight is at least .5 larger ({len(wide)} texts) the "
            f"median is {wide.median():.3f}."
        )
    return sentence
