"""Studies: functions that plan all experiments of a paper, or your own experiments, as steps.

A study trains models, audits them, retrains them, and puts the results into tables. If a study
repeats a paper, its tables also contain the published numbers.

- :func:`hf_attnprobe.study` runs a study and returns its report.
- :class:`~hf_attnprobe.studies.steps.Steps` is the argument of a study function. Its docstring has
  an example; start reading there.
- :mod:`~hf_attnprobe.studies.builtin` contains the studies of this package.
"""
