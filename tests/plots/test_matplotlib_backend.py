"""Figures are drawn from charts as they are, and files are the same every time."""

import hashlib
import itertools
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hf_attnprobe import render
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.plots import matplotlib_backend as figures
from hf_attnprobe.plots.chart import Chart, HeatMap, Reference, Series
from hf_attnprobe.plots.highlighted_text import HighlightedText
from hf_attnprobe.reports.charts import build_audit_charts
from hf_attnprobe.reports.head_tables import build_head_maps
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.heads import evaluate_heads
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import summarize
from hf_attnprobe.statistics.verdicts import RULES, Finding
from tests.helpers.error_messages import refused
from tests.helpers.synthetic_rows import make_audit_rows, make_many_head_rows, make_test_rows


ROOT = Path(__file__).parents[2]
PDF_START = b"%PDF-"
PNG_START = b"\x89PNG"


def a_report(rows):
    from hf_attnprobe import Report  # another process draws without them
    from hf_attnprobe.data.examples import DatasetName
    from hf_attnprobe.faithfulness.registry import load_readings

    provenance = {"classes": ["neg", "pos"]}
    told = summarize(rows, ["neg", "pos"], load_readings()) if len(rows) else ()
    return Report("m", DatasetName("d", "test"), 60, 0, told, provenance, rows=Rows.coerce(rows))


def named(report, key):
    (chart,) = [chart for chart in report.charts() if chart.key == key]
    return chart


@pytest.fixture(scope="module")
def report():
    return a_report(make_audit_rows(60))


@pytest.fixture(scope="module")
def report_of_heads():
    return a_report(make_many_head_rows(40))


def a_chart(**changes):
    series = Series("group", (0.0, 1.0), (0.5, 1.5), (0.4, 1.2), (0.6, 1.7), (3, 4))
    chart = Chart("key", "Title", ("It is so.",), "Us 2024", "points", "x", "y", (series,))
    return replace(chart, **changes)


def texts_of(svg):
    return [t.text for t in ElementTree.fromstring(svg).iter() if t.tag.endswith("text")]


# --- what is drawn ------------------------------------------------------------------


def test_each_figure_of_an_audit(report):
    keys = "tau_leave_one_out tau_gradient permutation_by_max_attention adversarial_distance "
    keys += "js_against_attention fraction_to_flip comprehensiveness plausibility"
    for key in keys.split():
        ax = figures.draw(named(report, key))
        assert ax.get_figure().get_size_inches()[0] == 3.25
        assert ax.get_title() == ""
        assert ax.has_data()
        own = Figure().subplots()
        assert report.plot(key, own) is own
        assert own.has_data()


def test_a_map_with_holes_and_one_of_many_heads():
    nan = float("nan")
    small = HeatMap("k", "t", "f", "s", ((0.1, nan), (-0.2, nan)), (), (), "τ", (0, 1), (0, 1), 0)
    assert [t.get_text() for t in figures.draw(small).texts] == [".10", "–", "−.20", "–"]
    row = tuple(float(x) for x in np.linspace(0, 1, 32))
    many = replace(small, values=(row, row), heads=tuple(range(32)), centre=None)
    assert len(figures.draw(many).texts) == 0
    assert figures.draw(many).get_figure().get_size_inches()[0] == 6.75
    faint = figures.draw(replace(small, values=((1e-5, 4e-5),) * 2, centre=None))
    assert faint.images[0].norm.vmax == 0.1  # hardly anything has hardly a colour
    nothing = replace(small, values=((nan, nan), (nan, nan)))
    assert {t.get_text() for t in figures.draw(nothing).texts} == {"–"}


def test_names_are_no_formulas_and_may_lack_a_glyph(tmp_path, caplog):
    """Class names come from users; matplotlib would typeset what is between dollars."""
    series = (Series("predicted $x^2 <b> & é", ("$a_1$", "b"), (1, 2)),)
    chart = a_chart(kind="dots", series=series, references=(Reference("$r$", 1),))
    figures.save_charts([replace(chart, title="$")], tmp_path, ["svg"])
    shown = texts_of((tmp_path / "key.svg").read_bytes())
    assert {"predicted $x^2 <b> & é", "$a_1$", "$r$"} <= set(shown)
    series = Series("predicted 日本", (1.0,), (2.0,)), Series("another", (1.0,), (3.0,))
    (drawn, caption) = figures.save_charts(
        [a_chart(series=series)], tmp_path / "new" / "folder", ["svg"]
    )
    assert "predicted 日本" in texts_of(drawn.read_bytes()) and caption.name == "captions.md"
    assert len(caplog.records) == 1 and "lacks some characters" in caplog.records[0].message
    (drawn, _) = figures.save_charts([a_chart()], tmp_path / "png", ["png"])
    assert drawn.read_bytes().startswith(PNG_START)


def test_axes_of_the_user_keep_their_look(report):
    before = dict(mpl.rcParams)
    figure = Figure(figsize=(9, 4))
    left, right = figure.subplots(1, 2)
    report.plot("tau_gradient", left)
    report.plot("fraction_to_flip", right)
    assert tuple(figure.get_size_inches()) == (9, 4)
    assert dict(mpl.rcParams) == before


def test_a_notebook_shows_the_figure(report):
    """Of a figure, and of what plot() gives as the last line of a cell, with the title, and nothing before it."""
    svg = figures.draw(named(report, "tau_leave_one_out")).get_figure()._repr_svg_()
    assert "Kendall τ with leave-one-out" in texts_of(svg)
    ax = report.plot()
    shown = texts_of(ax._repr_svg_())
    assert "Importance: rank correlation of attention" in shown
    assert "Kendall τ with leave-one-out" in shown
    assert texts_of(ax.get_figure()._repr_svg_()) == shown


def test_the_title_stands_above_the_legend(report):
    own = Figure(layout="constrained").subplots()
    for ax in (report.plot("tau_gradient"), report.plot(ax=own)):
        figure = ax.get_figure(root=True)
        FigureCanvasAgg(figure).draw()
        (legend,) = [*figure.legends, *filter(None, [ax.get_legend()])]
        title = legend.get_title().get_window_extent()
        assert "rank correlation" in legend.get_title().get_text()
        for text in legend.get_texts():
            assert text.get_window_extent().y1 <= title.y0
        assert ax.get_window_extent().y1 <= legend.get_window_extent().y0 + 1


# --- what is refused ----------------------------------------------------------------


def test_errors_say_what_to_do(report, report_of_heads, tmp_path):
    refused("Audit more texts, or read the report from its folder", a_report(pd.DataFrame()).plot)
    refused("no figure 'x'. Choose one of tau_leave_one_out, tau_gradient", report.plot, "x")
    with pytest.raises(AttnProbeError, match=r"pass site=\(layer, head\)"):
        single = report_of_heads.to_pandas()
        a_report(single[single["head"] >= 0]).plot("tau_leave_one_out")
    refused("no figure 'fraction_to_flip'. Choose one of", report_of_heads.plot, "fraction_to_flip")
    refused("'gif'", figures.save_charts, report.charts(), tmp_path, ("gif",))
    refused(
        "this report has no figures to save",
        figures.save_charts,
        a_report(pd.DataFrame()).charts(),
        tmp_path,
    )
    (tmp_path / "file").write_text("mine")
    refused("cannot create the folder", figures.save_charts, [a_chart()], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_head_is_drawn_where_it_is_named(report_of_heads):
    single = a_report(report_of_heads.to_pandas()[report_of_heads.to_pandas()["head"] >= 0])
    assert single.plot("tau_leave_one_out", site=(1, 2)).has_data()


# --- files --------------------------------------------------------------------------


# The package's own __init__ registers models with Transformers; drawing does without.
SAVES = f"""
import sys, types
package = types.ModuleType("hf_attnprobe")
package.__path__ = [{str(ROOT / "hf_attnprobe")!r}]
sys.modules["hf_attnprobe"] = package
sys.path.insert(0, {str(ROOT)!r})
from tests.plots.test_matplotlib_backend import save_all
save_all(sys.argv[1])
print({{"matplotlib.pyplot", "torch", "transformers"}} & set(sys.modules))
"""


def save_all(folder):
    """Erasure, in points and dots; a histogram, a curve and maps of heads."""
    rows = make_audit_rows(60)
    some = rows[rows.test.isin(["prediction", "erasure", "adversarial", "correlation"])]
    figures.save_charts(build_audit_charts(some, ["neg", "pos"], site=(0, 0)), folder, ["svg"])
    heads = make_many_head_rows(40)
    figures.save_charts(
        build_head_maps(evaluate_heads(heads, RULES), RULES), Path(folder) / "heads"
    )


def digests(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    save_all(folder)
    return folder


@pytest.mark.slow
def test_files_are_the_same_in_another_process(saved, run_python, tmp_path):
    """One that hashes strings differently, and lives in another time zone."""
    elsewhere = {"PYTHONHASHSEED": "5", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": None}
    done = run_python("-c", SAVES, tmp_path, env=elsewhere)
    assert done.out.strip() == "set()", done.err  # pyplot has global state
    files = digests(saved)
    assert digests(tmp_path) == files
    assert {"tau_gradient.svg", "captions.md"} <= set(files)
    assert {f"heads/heads_faithfulness.{kind}" for kind in ("svg", "pdf")} <= set(files)
    assert len(files) == 5 + 1 + 2 * 2 + 1  # τ, τ, distance, ΔJS, flips; two maps


def test_files_are_what_their_names_say(saved):
    for path in saved.rglob("*.*"):
        content = path.read_bytes()
        if path.suffix == ".pdf":
            assert content.startswith(PDF_START)
            assert b"CreationDate" not in content
        if path.suffix == ".svg":
            assert ElementTree.fromstring(content).tag.endswith("svg")
            assert b"<dc:date>" not in content
            assert texts_of(content)  # text stays text: searchable, and read aloud


def test_captions_say_what_is_to_be_seen(saved, report):
    captions = (saved / "captions.md").read_text()
    drawn = [c for c in report.charts() if f"## {c.key}\n" in captions]
    assert len(drawn) == 5
    for chart in drawn:
        (said,) = re.findall(rf"## {chart.key}\n\n(.*)", captions)
        assert chart.finding in said
        assert chart.source in said
        assert (chart.bars in said) == any(bool(s.low) for s in chart.series)


def test_no_text_lies_on_another(report, report_of_heads):
    """Tick labels, axis labels and legends, measured as they are drawn."""
    from hf_attnprobe.retraining.report import make_penalty_curve
    from hf_attnprobe.retraining.verdict import compute_points
    from tests.retraining.test_report import STATISTICS

    curve = make_penalty_curve(compute_points(STATISTICS, {}))
    for chart in (*report.charts(), *report_of_heads.charts(), curve):
        ax = figures.draw(chart, title=True)
        figure = ax.get_figure(root=True)
        FigureCanvasAgg(figure).draw()
        shown = [ax.title, ax.xaxis.label, ax.yaxis.label]
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            places = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
            shown += [label for place, label in places if low <= place <= high]
        for legend in figure.legends:
            shown += [legend.get_title(), *legend.get_texts()]
        boxes = [t.get_window_extent() for t in shown if t.get_text()]
        for k, box in enumerate(boxes):
            assert figure.bbox.x0 - 1 <= box.x0, chart.key
            assert box.x1 <= figure.bbox.x1 + 1, chart.key
            for other in boxes[k + 1 :]:
                assert not box.padded(-1).overlaps(other.padded(-1)), chart.key


def test_one_class_is_drawn_from_the_fewest_texts_that_are_shown():
    taus = np.linspace(-0.5, 0.5, MIN_DISPLAYED_TEXTS).tolist()
    rows = make_test_rows({"attention_gradient_tau": taus}, "correlation")
    assert a_report(rows).plot("tau_gradient").has_data()
    too_few = make_test_rows({"attention_gradient_tau": taus[1:]}, "correlation")
    assert a_report(too_few).charts() == ()


# --- texts, the first screen, and PNG --------------------------------------------------------------


def a_text(tokens, **scores):
    return HighlightedText(18, tuple(tokens), "positive", 0.9, None, None, scores, glued=(2,))


def test_a_text_is_drawn_word_by_word_with_shades_in_proportion():
    tokens = [f"word{k}" for k in range(60)] + ["$x$", "é"]
    weights = tuple(np.linspace(0, 0.5, len(tokens)))
    effects = tuple(np.linspace(-2, 1, len(tokens)))
    text = a_text(tokens, attention=weights, leave_one_out=effects)
    titles = {"attention": "weights", "knockout": "none", "leave_one_out": "effects"}
    figure = figures.draw_text(text, titles)
    drawn = [artist.get_text() for artist in figure.texts]
    assert drawn == ["Text 18: positive", "weights", *tokens, "effects", *tokens]
    shades = [artist.get_bbox_patch() for artist in figure.texts[2 : 2 + len(tokens)]]
    opacities = [0 if shade is None else shade.get_alpha() for shade in shades]
    assert np.allclose(opacities, np.array(weights) / 0.5 * figures.MAX_SHADE_OPACITY)
    signs = [artist.get_bbox_patch().get_facecolor()[:3] for artist in figure.texts[-62:]]
    assert len(set(signs[:41])) == 1 and len(set(signs)) == 2
    # No word leaves the figure, and none covers its neighbour.
    renderer = FigureCanvasAgg(figure).get_renderer()
    bounds = [artist.get_window_extent(renderer) for artist in figure.texts]
    assert all(b.x0 >= 0 and b.x1 <= figure.bbox.width and b.y0 >= 0 for b in bounds)
    assert not any(a.overlaps(b) and a.x1 > b.x0 + 1 for a, b in itertools.pairwise(bounds))


def with_scores(report, **scores):
    findings = [
        Finding(key, Answer.YES, "s. t.", value, (value - 0.2, value + 0.1), 60)
        for key, value in scores.items()
    ]
    return replace(report, findings=tuple(findings))


def test_the_first_screen_is_a_figure_with_its_numbers_and_thresholds(report):
    report = with_scores(report, faithfulness=0.5, importance=0.9, erasure=-0.1, path_share=0.3)
    found = {finding.name.lower(): finding for finding in report.findings}
    chart = named(report, "faithfulness")
    (series,) = chart.series
    assert series.x == ("faithfulness", "importance", "erasure")
    assert chart.y_range == (pytest.approx(-0.3), 1.0)
    for name, value, low, high in zip(series.x, series.y, series.low, series.high, strict=True):
        assert value == found[name].value and (low, high) == found[name].ci95
    thresholds = RULES["faithfulness"].thresholds
    assert {r.name: r.value for r in chart.references} == thresholds


def test_a_plot_is_saved_by_its_axes(report, tmp_path):
    report.plot("tau_gradient").savefig(tmp_path / "tau.png")
    assert (tmp_path / "tau.png").read_bytes().startswith(PNG_START)


def test_saved_figures_have_the_first_screen_the_texts_and_png(report, tmp_path, monkeypatch):
    texts = [
        replace(a_text("abc", attention=(0.1, 0.2, 0.3)), example_id=k, why=why)
        for k, why in enumerate(["drawn by chance", "", "a wrong prediction"])
    ]
    stored = replace(with_scores(report, faithfulness=0.5), examples=tuple(texts))
    result_type = replace(render.AUDIT_RESULT, read=lambda folder: stored)
    monkeypatch.setattr(render, "AUDIT_RESULT", result_type)
    monkeypatch.setattr(render, "TYPES_WITH_FIGURES", (result_type,))
    monkeypatch.setattr(render, "RESULT_TYPES", (result_type,))
    render.save_figures(tmp_path / "audit", tmp_path / "figures")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    expected = {"faithfulness", "tau_gradient", "text_0", "text_2"}
    assert {f"{name}.{kind}" for name in expected for kind in ("svg", "pdf", "png")} <= names
    assert "text_1.svg" not in names  # a page does not display it
