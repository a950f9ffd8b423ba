"""Reports of audits: findings from rows, sentences, tables and charts.

:class:`hf_attnprobe.reports.report.Report` is the public result of an audit;
:func:`~hf_attnprobe.reports.report.read_audit` reads one from its folder. Start reading at
:func:`hf_attnprobe.reports.audit_document.build_audit_document`, which arranges the contents:
``verdict.py`` computes the findings, ``first_screen.py`` writes the summary, ``head_tables.py``,
``number_tables.py`` and ``charts.py`` write the details.
:func:`hf_attnprobe.reports.comparison.compare_audits` compares several audits.
"""
