"""Data sets as rows, splits, tokenizers, word vectors, synthetic texts."""
