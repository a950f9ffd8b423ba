"""Data sets from anywhere as rows of id, text and label; splits, vocabularies, word vectors, generated texts."""
