"""The papers' figures of a report, drawn with matplotlib for notebooks and papers.

>>> from hf_attnprobe import figures  # doctest: +SKIP
>>> figures.tau_histograms(report).figure  # doctest: +SKIP
>>> figures.save(report, "figures")  # doctest: +SKIP
"""

from hf_attnprobe.figures.drawing import draw
from hf_attnprobe.figures.files import captions, save_charts
from hf_attnprobe.figures.reports import (
    adversarial_distance,
    charts,
    comprehensiveness,
    draw_one,
    fraction_to_flip,
    head_map,
    js_against_attention,
    penalty_curve,
    permutation_by_max_attention,
    plausibility,
    save,
    tau_histograms,
)


__all__ = [
    "adversarial_distance",
    "captions",
    "charts",
    "comprehensiveness",
    "draw",
    "draw_one",
    "fraction_to_flip",
    "head_map",
    "js_against_attention",
    "penalty_curve",
    "permutation_by_max_attention",
    "plausibility",
    "save",
    "save_charts",
    "tau_histograms",
]
