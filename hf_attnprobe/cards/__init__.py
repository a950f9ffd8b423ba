"""The README of a checkpoint: architecture, training, and the results of audits.

The functions of this package compute texts and read or write no files; `checkpoints/records.py`
writes the README of a checkpoint. Start reading in `card.py`, whose main function is
:func:`update_readme`.

metadata.py  content of a card, publishable names, and the YAML front matter
card.py      fills in the templates, and inserts the result into an existing README
card.md      template of a model card
rows.md      template of the README of a published data set of rows
"""
