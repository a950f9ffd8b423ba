"""The figures of a report: what is drawn is computed from its rows alone."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from matplotlib.axes import Axes

from hf_attnprobe.charts import (
    by_largest_weight,
    curves,
    distances,
    orders_of_erasure,
    rank_agreement,
    rankings,
    single_weights,
)
from hf_attnprobe.charts.audit_charts import audit_charts
from hf_attnprobe.charts.chart import Chart, HeatMap
from hf_attnprobe.charts.evidence import Evidence, evidence_at
from hf_attnprobe.charts.head_groups import group_charts
from hf_attnprobe.charts.head_maps import head_maps
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.figures.drawing import draw
from hf_attnprobe.figures.files import save_charts
from hf_attnprobe.published import Published
from hf_attnprobe.statistics.summary import Statistic, site_of_model
from hf_attnprobe.statistics.wording import Words, words_of


Place = tuple[int, int]


class Drawable(Protocol):
    """A report: of an audit, or of retrained models."""

    @property
    def rows(self) -> pd.DataFrame: ...

    @property
    def provenance(self) -> dict[str, Any]: ...

    @property
    def statistics(self) -> tuple[Statistic, ...]: ...


def tau_histograms(
    report: Drawable,
    ax: Axes | None = None,
    *,
    measure: str = "leave_one_out",
    site: Place | None = None,
) -> Axes:
    """Rank correlation of attention with importance, by predicted class.

    Args:
        report: of an audit.
        ax: where it is drawn; by default a figure of its own.
        measure: ``leave_one_out`` or ``gradient``.
        site: layer and head; by default what stands for the model's attention.
    """
    if measure not in rank_agreement.MEASURES:
        raise AttnProbeError(
            f"expected measure {' or '.join(rank_agreement.MEASURES)}, got {measure!r}"
        )
    return _drawn(
        report,
        lambda e: rank_agreement.tau_histogram(e, measure),
        "correlation",
        ax,
        site,
    )


def permutation_by_max_attention(
    report: Drawable, ax: Axes | None = None, *, site: Place | None = None
) -> Axes:
    """Output change under shuffles against the largest weight; see `tau_histograms`."""
    chart = by_largest_weight.permutation_by_max_attention
    return _drawn(report, chart, "permutation", ax, site)


def adversarial_distance(
    report: Drawable, ax: Axes | None = None, *, site: Place | None = None
) -> Axes:
    """How far attention can be moved within ε, beside its ceiling."""
    return _drawn(report, distances.adversarial_distance, "adversarial", ax, site)


def js_against_attention(
    report: Drawable, ax: Axes | None = None, *, site: Place | None = None
) -> Axes:
    """What erasing the largest weight does, against how much larger it is."""
    return _drawn(report, single_weights.js_against_attention, "erasure", ax, site)


def fraction_to_flip(
    report: Drawable, ax: Axes | None = None, *, site: Place | None = None
) -> Axes:
    """Tokens erased before the decision flips, by ranking, beside the least possible."""
    return _drawn(report, orders_of_erasure.fraction_to_flip, "erasure", ax, site)


def comprehensiveness(
    report: Drawable, ax: Axes | None = None, *, site: Place | None = None
) -> Axes:
    """What is lost without the first tokens of each ranking, beside random ones."""
    return _drawn(report, rankings.comprehensiveness, "input_erasure", ax, site)


def plausibility(report: Drawable, ax: Axes | None = None, *, site: Place | None = None) -> Axes:
    """How well each ranking finds the words that people marked."""
    return _drawn(report, rankings.plausibility, "plausibility", ax, site)


def head_map(report: Drawable, ax: Axes | None = None, *, statistic: str = "median_tvd") -> Axes:
    """A number of every head, layers down and heads across.

    Args:
        report: of an audit of single heads.
        ax: where it is drawn.
        statistic: such as ``median_tvd``, ``zero_tvd`` or
            ``attention_leave_one_out_tau``.
    """
    rows = report.rows
    if len(rows):
        rows = rows[rows.statistic == statistic]
    maps = head_maps(rows, seed=_seed(report), words=_words(report))
    if not maps:
        raise AttnProbeError(
            f"expected {statistic!r} of several heads, got none; audit with single heads"
        )
    return draw(maps[0], ax)


def penalty_curve(
    report: Drawable,
    ax: Axes | None = None,
    *,
    published: tuple[float, float] | None = None,
) -> Axes:
    """How far adversaries, seeds, uniform attention and searches move attention.

    Args:
        report: of retrained models.
        ax: where it is drawn.
        published: JSD and TVD of a published adversary.
    """
    points = curves.curve_points(report.statistics)
    chart = curves.penalty_curve(points, published=published)
    return draw(_found(chart, "adversary, seeds or uniform"), ax)


def charts(
    report: Drawable, *, site: Place | None = None, published: Published | None = None
) -> tuple[Chart | HeatMap, ...]:
    """Everything that can be drawn of a report, in the order of the questions.

    Args:
        report: of an audit, or of retrained models.
        site: layer and head; by default what stands for the model's attention.
        published: what the papers call data and model, for their numbers.
    """
    rows, seed, words = report.rows, _seed(report), _words(report)
    found: list[Chart | HeatMap] = []
    site = site or (site_of_model(rows) if len(rows) else None)
    if site is not None:
        found += audit_charts(
            rows,
            _classes(report),
            site=site,
            words=words,
            published=published,
            seed=seed,
        )
    found += head_maps(rows, seed=seed, words=words)
    found += group_charts(rows, seed=seed, words=words)
    curve = curves.penalty_curve(curves.curve_points(report.statistics))
    return (*found, curve) if curve is not None else tuple(found)


def draw_one(report: Drawable, kind: str | None = None, ax: Axes | None = None) -> Axes:
    """Draws a chart of a report, by its key; by default the first.

    Raises:
        AttnProbeError: nothing to draw, or no such chart.
    """
    known = {chart.key: chart for chart in charts(report)}
    if kind not in known and (kind is not None or not known):
        raise AttnProbeError(
            f"expected a figure of this report, got {kind}; there are "
            f"{', '.join(known) or 'none, read the report with its rows'}"
        )
    return draw(known[kind or next(iter(known))], ax, title=True)


def save(
    report: Drawable,
    folder: str | os.PathLike,
    formats: Sequence[str] = ("svg", "pdf"),
    *,
    site: Place | None = None,
    published: Published | None = None,
) -> list[Path]:
    """Writes all figures of a report, and ``captions.md``; the same bytes every time.

    Args:
        report: of an audit, or of retrained models.
        folder: made where there is none.
        formats: of ``svg``, ``pdf`` and ``png``.
        site: layer and head; by default what stands for the model's attention.
        published: what the papers call data and model, for their numbers.

    Returns:
        The files.
    """
    return save_charts(charts(report, site=site, published=published), folder, formats)


def _drawn(
    report: Drawable,
    chart: Callable[[Evidence], Chart | None],
    test: str,
    ax: Axes | None,
    site: Place | None,
) -> Axes:
    return draw(_found(chart(_evidence(report, site)), test), ax)


def _evidence(report: Drawable, site: Place | None) -> Evidence:
    rows = report.rows
    if not len(rows):
        raise AttnProbeError("expected a report with rows, got one without")
    site = site or site_of_model(rows)
    if site is None:
        raise AttnProbeError(
            "expected rows of one head or of all attention, got several heads; pass "
            "site=(layer, head)"
        )
    return evidence_at(rows, _classes(report), site=site, words=_words(report))


def _found(chart: Chart | None, test: str) -> Chart:
    if chart is None:
        raise AttnProbeError(f"expected rows of the test {test} at this site, got none; run it")
    return chart


def _classes(report: Drawable) -> Sequence[str]:
    return report.provenance.get("classes", ())


def _words(report: Drawable) -> Words:
    unit = report.provenance.get("unit_of_number", "")
    return words_of(report.provenance.get("prediction"), unit=unit)


def _seed(report: Drawable) -> int:
    return int(report.provenance.get("seed", 0))
