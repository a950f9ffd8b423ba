"""Studies: the experiments of a paper, or of your own, as one function that plans all steps.

A study trains models, audits them, retrains them, and puts the results into tables. The tables of
papers contain the published numbers for comparison.

- :func:`hf_attnprobe.study` runs a study and returns its report.
- :class:`~hf_attnprobe.studies.steps.Steps` is the argument of a study function. Its docstring has
  an example; start reading there.
- :mod:`~hf_attnprobe.studies.builtin` contains the studies of this package.
"""
