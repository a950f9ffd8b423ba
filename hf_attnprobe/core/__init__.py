"""Foundations that all other packages use; nothing here imports another package of ours.

- ``errors``: `AttnProbeError`, the error for everything that a user can fix.
- ``options``: `Options` and `option`, from which the command line and the checks of values are derived.
- ``serialization``: conversion of dataclasses to JSON, and of JSON or YAML to dataclasses.
- ``progress`` and ``terminal``: progress bars, and printing with control characters escaped.
- ``formatting``: numbers, intervals and Markdown tables.
- ``hardware``: out-of-memory errors, memory measurement and thread counts.
- ``distributed``: state of the processes in a distributed run.
- ``readings``: sentences that reports print for statistics.
- ``lazy_imports``: functions to call when another package is imported.

Start reading at ``options``.
"""
