"""Files that runs read and write.

- ``rows``: the measured values of an audit, as one tidy Parquet table. Start reading here.
- ``folders``: locks on output folders, checks before work starts, and atomic writes.
- ``provenance``: recorded settings, versions and summaries, and the command that repeats a run.
"""
