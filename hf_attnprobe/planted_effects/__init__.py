"""Planted effects: how small an effect can the tests detect in a given model?

- :func:`hf_attnprobe.find_detection_limit` plants effects in copies of a model, audits the copies
  and reports the smallest effect that the tests detect.
- :mod:`~hf_attnprobe.planted_effects.planting` modifies the copies. Its docstring explains how;
  start reading there.
- :mod:`~hf_attnprobe.planted_effects.options` defines which heads are modified, and by how much.
"""
