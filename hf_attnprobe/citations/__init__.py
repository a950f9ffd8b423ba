"""Check whether the passages that an answer cites are the ones on which it depends.

:func:`~hf_attnprobe.citations.api.cite` is the public function; start reading there. The steps are:

- :mod:`~hf_attnprobe.citations.statements` splits an answer into statements with their markers.
- :mod:`~hf_attnprobe.citations.rows` reads the rows: passages, a question, and an answer.
- :mod:`~hf_attnprobe.citations.measurements` measures how likely the model writes each statement with all
  passages, without one of them, with one alone, and without any.
- :mod:`~hf_attnprobe.citations.rule` decides from these numbers whether a passage was used.
- :mod:`~hf_attnprobe.citations.report` prints the results.
"""
