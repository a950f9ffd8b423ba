"""Summaries of parts of the texts that merge into the summary of all of them."""
