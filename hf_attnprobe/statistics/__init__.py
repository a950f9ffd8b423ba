"""Numbers about rows: bootstrap, summaries, scores, comparisons. No torch here."""
