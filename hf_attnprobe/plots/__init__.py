"""Charts and example texts as data, and the matplotlib code that draws charts.

:class:`hf_attnprobe.plots.chart.Chart` and :class:`~hf_attnprobe.plots.chart.HeatMap` describe
charts independently of how they are drawn; start reading there.
:mod:`hf_attnprobe.plots.matplotlib_backend` draws them for notebooks, papers and pages.
:class:`hf_attnprobe.plots.highlighted_text.HighlightedText` is a text with scores of its tokens.
"""
