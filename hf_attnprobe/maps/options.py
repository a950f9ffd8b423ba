"""Settings of :func:`~hf_attnprobe.maps.fitting.fit_map` that the command line reads without torch."""

CHOOSING_SHARE = 0.25
"""Default share of the texts by which the map is chosen.

Ten prompts are enough to choose, but certification is better with more texts, because the interval of
faithfulness must lie above a threshold.
"""
CHOOSING_SHARE_RANGE = (0.1, 0.5)
"""Smallest and largest share of the texts by which a map may be chosen."""
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
