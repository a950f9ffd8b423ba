"""Audits: run faithfulness tests on a trained model's attention, and report the results.

Main names:

- :func:`~hf_attnprobe.audits.api.audit` runs the tests on one model.
- :func:`~hf_attnprobe.audits.api.evaluate_scores` evaluates the scores from another explainer.
- :func:`~hf_attnprobe.audits.compare.compare` audits several versions of a model and compares them.
- :class:`~hf_attnprobe.audits.options.AuditOptions` holds the options for all three.

Start reading at :mod:`~hf_attnprobe.audits.pipeline`, which runs an audit from its texts to its
report. :mod:`~hf_attnprobe.audits.setup` prepares it, :mod:`~hf_attnprobe.audits.scheduler` decides
the test order, and :mod:`~hf_attnprobe.audits.runner` runs them and writes the rows.
"""
