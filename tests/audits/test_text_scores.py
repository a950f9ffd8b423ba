"""Scores of texts: tokens and pieces of words stand as in the text."""

import pytest

from hf_attnprobe.audits.text_scores import render_units
from tests.reports.test_head_sentences import pair_tokenizer


@pytest.fixture(scope="module")
def pairs():
    return pair_tokenizer()


def test_tokens_stand_as_in_the_text(tokenizer):
    text = "A wonderful PLOT,a dull  cast."
    ids = tokenizer(text)["input_ids"]
    special = tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
    units = [[k] for k, s in enumerate(special) if not s]
    tokens, glued = render_units(tokenizer, ids, units, (text, None))
    joined = "".join(t if k in glued else f" {t}" for k, t in enumerate(tokens))
    known = {"A", "wonderful", "PLOT", ",", "a", "dull", "cast", "."}
    assert set(tokens) <= known
    if set(tokens) == known:  # the tokenizer drops what it does not know
        assert joined.split() == text.split()


def test_pieces_of_words_are_joined_as_the_text_has_them(pairs):
    text = "unheardof acting, ben!"
    encoded = pairs(text)
    ids, words = encoded["input_ids"], encoded.word_ids(0)
    pieces = [[k] for k, word in enumerate(words) if word is not None]
    tokens, glued = render_units(pairs, ids, pieces, (text, None))
    joined = "".join(t if k in glued else f" {t}" for k, t in enumerate(tokens))
    assert joined.strip() == text
    assert len(tokens) == len(pieces)
