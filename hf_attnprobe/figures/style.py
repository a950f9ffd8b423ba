"""How figures look: a paper's column, colours that all can tell apart, and marks."""

from typing import Any


COLUMN, PAGE = 3.25, 6.75  # inches, a column of most proceedings, and two
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
"""Okabe & Ito 2008: told apart with every kind of colour blindness."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
HATCHES = ("////", "\\\\\\\\", "....", "xxxx", "||||", "----", "++++")
REFERENCE_LINES = ("--", ":", "-.", (0, (5, 1)), (0, (1, 1)))
REFERENCE_COLOURS = ("#555555", "#222222", "#777777")
GRID = "#DDDDDD"

LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same everywhere
    "font.size": 7,  # and all texts alike, as on a page
    "axes.labelsize": 7,
    "axes.titlesize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.7,
    "axes.unicode_minus": True,
    "text.usetex": False,
}
PLAIN_TEXT: dict[Any, Any] = {"text.parse_math": False}
"""Names of classes may hold dollar signs."""
REPRODUCIBLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
