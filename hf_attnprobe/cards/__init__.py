"""The README of a checkpoint: what it is, how it was trained, what an audit found.

metadata.py  what a card is made from, and its YAML in both of the Hub's formats
card.md      the words of a card; card.py fills them in
rows.md      the words of the card of a data set of rows; rows.py fills them in
readme.py    our part of a README beside the user's
names.py     names of data and models without folders of a machine, safe in Markdown

Pure: facts in, text out. Who writes it is ``checkpoints/readme.py``.
"""
