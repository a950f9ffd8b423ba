"""Adapters for this package's attention classifiers.

Their attention is one layer with one head and one query, so no hooks are needed: the adapters run
the encoder once and recompute only the read-out. Start reading with `adapter`.

- `adapter`: `ClassifierAdapter`, and the base class for all adapters in this package.
- `hierarchical`: `HierarchicalAdapter`, for attention over a text's sentences.
- `pair`: `PairAdapter`, for classifiers that read two texts.
- `leave_one_out`: leave-one-out without encoding each shortened text again.
"""
