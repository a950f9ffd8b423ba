"""Data sets as rows of id, text, label; splits, tokenizers, word vectors, made-up texts."""
