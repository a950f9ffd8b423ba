"""Files that runs read and write.

- ``rows``: the measured values of an audit, as one tidy Parquet table. Start reading here.
- ``folders``: output folders, which are locked, continued or refused, and atomic writes.
- ``provenance``: settings, versions and summaries, and the command that repeats a run.
"""
