"""Settings of :func:`~hf_attnprobe.maps.fitting.fit_map` that the command line reads without torch."""

CHOOSING_SHARE = 0.25
"""Default share of the texts by which the map is chosen.

Ten prompts are enough to choose, but certification is better with more texts, because the interval of
faithfulness must lie above a threshold.
"""
CHOOSING_SHARE_RANGE = (0.1, 0.5)
"""Smallest and largest share of the texts by which a map may be chosen."""
PART_WEIGHTS_PER_TEXT = {"preparing": 1.0, "choosing": 2.5, "certifying": 7.5}
"""Relative duration per text of the parts of a fit, by which the progress bar estimates the time left.

With SmolLM2-135M and prompts of eight sentences, a prompt took about 1 CPU second for its answer, 2.5
for its costs and the attention of all heads, and 7.5 for its audit. For a classifier, "choosing" and
"certifying" contain an audit each, and "preparing" includes loading the model.
"""
REFUSED_OPTIONS = (
    "layers",
    "heads",
    "head_sets",
    "screen",
    "share",
    "query",
    "limits",
    "time",
    "map",
)
"""Audit options that cannot be combined with a map, which always concerns the whole model and all texts."""
