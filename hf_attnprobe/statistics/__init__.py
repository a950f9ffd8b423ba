"""Statistics: turns the values that an audit measured into estimates, answers and a verdict.

This package only needs NumPy, pandas and SciPy. Its modules build on each other in this order:

- :mod:`~hf_attnprobe.statistics.rows`: :class:`Rows` (all values that an audit stored) and
  :class:`Texts` (the statistics at one site, which is a layer and a head).
- :mod:`~hf_attnprobe.statistics.estimates`: :class:`Estimate`, means and shares with their confidence
  intervals.
- :mod:`~hf_attnprobe.statistics.summary`: :func:`summarize`, which averages all statistics over all
  texts and over each predicted class.
- :mod:`~hf_attnprobe.statistics.scale`: faithfulness, which is a ranking's position between a random
  order and the best order.
- :mod:`~hf_attnprobe.statistics.questions`: the questions about attention, each with its measure and
  thresholds.
- :mod:`~hf_attnprobe.statistics.verdicts`: :func:`conclude`, which combines the answers into the
  verdict.

Further modules compare rankings and models (:mod:`~hf_attnprobe.statistics.differences`), evaluate single
heads (:mod:`~hf_attnprobe.statistics.heads`), measure the quality of predictions
(:mod:`~hf_attnprobe.statistics.scores`), and find impossible values
(:mod:`~hf_attnprobe.statistics.checks`).

Start reading in :mod:`~hf_attnprobe.statistics.questions`.
"""
