"""Model cards: a checkpoint's README with its architecture, training and audit results.

This package computes texts only; `checkpoints/records.py` writes the README file. Start reading in
`card.py`, whose main function is :func:`update_readme`.

metadata.py  a card's content, publishable names, and the YAML front matter
card.py      fills in the templates, and inserts the result into an existing README
card.md      template for a model card
rows.md      template for the README that accompanies published rows
"""
