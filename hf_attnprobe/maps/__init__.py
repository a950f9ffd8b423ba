"""Attention maps that are chosen for a model and certified on texts that the choice did not see.

:func:`fit_map` chooses a map and certifies it. The result is an
:class:`~hf_attnprobe.attention_map.AttentionMap`, which can be saved next to the model. Start reading
in ``fitting.py``.

fitting.py    fits and certifies a map: :func:`fit_map`
selection.py  splits the texts, compares the candidates, and repeats the choice with shuffled costs
options.py    the share of the texts that choose, and the audit options that are refused
"""
