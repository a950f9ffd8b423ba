"""Foundations that all other packages use; nothing here imports another package of ours.

- ``errors``: `AttnProbeError`, the error for everything that a user can fix.
- ``options``: `Options` and `option`, from which the command line and the checks of values are derived.
- ``serialization``: dataclasses to JSON, and JSON or YAML to dataclasses.
- ``progress`` and ``terminal``: progress bars, and printing with control characters escaped.
- ``formatting``: numbers, intervals and Markdown tables.
- ``hardware``: out-of-memory errors, measured memory, and the number of threads.
- ``distributed``: the processes of a distributed run.
- ``readings``: the sentences that reports print for statistics.
- ``lazy_imports``: functions to call when another package is imported.

Start reading at ``options``.
"""
