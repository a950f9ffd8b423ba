"""Statistics of audits: from rows of values to estimates, answers and the verdict.

This package only needs NumPy, pandas and SciPy. Its modules build on each other in this order:

- :mod:`~hf_attnprobe.statistics.rows`: :class:`Rows` (all values of an audit) and :class:`Texts` (the
  statistics of one site).
- :mod:`~hf_attnprobe.statistics.estimates`: :class:`Estimate`, means and shares with their confidence
  intervals.
- :mod:`~hf_attnprobe.statistics.summary`: :func:`summarize`, all statistics of an audit by group of texts.
- :mod:`~hf_attnprobe.statistics.scale`: faithfulness, the position of a ranking between a random order and
  the best order.
- :mod:`~hf_attnprobe.statistics.questions`: the questions about attention, each with its measure and
  thresholds.
- :mod:`~hf_attnprobe.statistics.verdicts`: :func:`conclude`, from the answers to the verdict.

Further modules compare rankings and models (:mod:`~hf_attnprobe.statistics.differences`), evaluate single
heads (:mod:`~hf_attnprobe.statistics.heads`), measure the quality of predictions
(:mod:`~hf_attnprobe.statistics.scores`), and find impossible values
(:mod:`~hf_attnprobe.statistics.checks`).

Start reading in :mod:`~hf_attnprobe.statistics.questions`.
"""
