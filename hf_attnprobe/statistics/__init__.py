"""Numbers about rows: bootstrap, summaries, scores, comparisons. numpy and pandas only."""
