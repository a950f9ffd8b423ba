"""The README of a checkpoint: what it is, how it was trained, what an audit found.

metadata.py  what a card is made from, its names, and its YAML in both of the Hub's formats
card.md      the words of a card, rows.md those of a data set of rows; card.py fills them in,
             beside what a user wrote

Pure: facts in, text out. Who writes it is ``checkpoints/records.py``.
"""
