"""Texts on their way through a model: encoded, batched, run over a whole split."""
