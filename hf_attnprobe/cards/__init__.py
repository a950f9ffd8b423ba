"""The README of a checkpoint: what it is, how it was trained, what an audit found.

contents.py      what a card is made from: a checkpoint, its audits
names.py         names of data and models without folders of a machine, safe in Markdown
description.py   sections: what it is, how it was trained, how it is used
findings.py      the section of faithfulness, limits and citations
metadata.py      the YAML: results in ``model-index`` and in ``.eval_results``
readme.py        our part of a README beside the user's
rows.py          the card of a data set of rows

Pure: facts in, text out. Who writes it is ``checkpoints/readme.py``.
"""
