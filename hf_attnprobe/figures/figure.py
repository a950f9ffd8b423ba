"""A figure of matplotlib without a window, and its bytes: the same every time."""

import io
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hf_attnprobe.figures.style import LOOK, REPRODUCIBLE


UNDATED: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
"""By format, the metadata that leaves the time out."""


class PaperFigure(Figure):
    """A figure that a notebook shows as SVG."""

    def _repr_svg_(self) -> str:
        return written(self, "svg").decode()


class PaperAxes(Axes):
    """The axes of such a figure, which a notebook shows as the figure."""

    def _repr_svg_(self) -> str:
        figure = self.get_figure(root=True)
        assert figure is not None  # they were made for it
        return written(figure, "svg").decode()


def written(figure: Figure, kind: str, *, salt: str = "attnprobe") -> bytes:
    """A figure as the bytes of a file.

    Args:
        figure: any figure of matplotlib.
        kind: ``svg``, ``pdf`` or ``png``.
        salt: of the ids in an SVG, so that those of two on one page differ.
    """
    stream = io.BytesIO()
    FigureCanvasAgg(figure)
    with mpl.rc_context(LOOK | REPRODUCIBLE | {"svg.hashsalt": salt}):
        figure.savefig(stream, format=kind, metadata=UNDATED[kind], dpi=300)
    return stream.getvalue()
