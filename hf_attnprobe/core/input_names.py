"""Names of columns that a model reads in addition to its texts, such as boxes of words.

The prefix of a name states what one value belongs to: a word (`word_input:bbox`), a token
(`token_input:token_type_ids`) or a whole text (`text_input:features`).
"""

WORD_INPUT, TOKEN_INPUT, TEXT_INPUT = "word_input:", "token_input:", "text_input:"
INPUT_PREFIXES = (WORD_INPUT, TOKEN_INPUT, TEXT_INPUT)
"""Prefixes of column names in a loaded split: one value per word, per token, or per text."""
