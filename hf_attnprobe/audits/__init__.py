"""Audits: runs the tests of a trained model on every text, texts in, rows out."""
