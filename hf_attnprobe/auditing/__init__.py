"""Audits: runs the tests of a trained model on every text and reports the results."""
