"""Figures as files: the same bytes whenever and wherever they are written."""

import logging
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from hf_attnprobe.charts.chart import Chart, HeatMap
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.figures.drawing import draw
from hf_attnprobe.figures.figure import UNDATED, written


logger = logging.getLogger(__name__)

CAPTIONS = "captions.md"


def save_charts(
    charts: Iterable[Chart | HeatMap],
    folder: str | os.PathLike,
    formats: Sequence[str] = ("svg", "pdf"),
) -> list[Path]:
    """Writes each chart in each format, and their captions.

    Args:
        charts: to draw; the files are named by their keys.
        folder: made where there is none. Files of the same names are replaced.
        formats: of ``svg``, ``pdf`` and ``png``.

    Returns:
        The files, ``captions.md`` last.

    Raises:
        AttnProbeError: an unknown format, or nothing to draw.
    """
    unknown = [kind for kind in formats if kind not in UNDATED]
    if unknown:
        raise AttnProbeError(f"expected formats of {', '.join(UNDATED)}, got {unknown[0]!r}")
    charts = list(charts)
    if not charts:
        raise AttnProbeError(
            "expected a report with numbers to draw, got one of which nothing can be drawn"
        )
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttnProbeError(
            f"expected a folder for figures, got {folder} ({error.strerror})"
        ) from error
    paths = []
    with warnings.catch_warnings(record=True, action="always") as caught:
        for chart in charts:
            figure = draw(chart).get_figure(root=True)
            assert figure is not None  # it was made for these axes
            for kind in formats:
                content = written(figure, kind)
                paths.append(_write(folder / f"{chart.key}.{kind}", content))
    _report(caught)
    paths.append(_write(folder / CAPTIONS, captions(charts).encode()))
    return paths


def _report(caught: Sequence[warnings.WarningMessage]) -> None:
    """Characters that the font lacks, in one line; other warnings as they are."""
    missing = [w for w in caught if "missing from font" in str(w.message)]
    if missing:
        logger.warning(
            "the font of the figures lacks characters of some names: SVG files keep "
            "them as text, other files show boxes in their place"
        )
    for one in caught:
        if one not in missing:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def captions(charts: Iterable[Chart | HeatMap]) -> str:
    """What belongs below each figure, as Markdown."""
    parts = ["# Captions"]
    for chart in charts:
        bars = ""
        if isinstance(chart, Chart) and any(s.low for s in chart.series):
            bars = f" Bars: {chart.bars}."
        parts.append(
            f"## {chart.key}\n\n**{chart.title}.** {chart.finding}{bars} (After {chart.source}.)"
        )
    return "\n\n".join(parts) + "\n"


def _write(path: Path, content: bytes) -> Path:
    """A reader never sees half of a file."""
    hidden = path.with_name(f".{path.name}")
    try:
        hidden.write_bytes(content)
        os.replace(hidden, path)
    except OSError as error:
        raise AttnProbeError(f"cannot write {path}: {error.strerror}") from error
    return path
