"""Texts without spaces between words are explained by tokens."""

import pytest

from hf_attnprobe.inference.word_boundaries import count_words
from tests.helpers.chinese_texts import build_chinese_model
from tests.helpers.tiny_models import word_pieces


@pytest.fixture(scope="module")
def chinese_tokenizer():
    return build_chinese_model()[1]


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        # Two sentences, of 3 and 2 tokens.
        ("电影精彩导演 音乐失望", (2, 5, 1.0)),
        ("电影精彩导演 音乐失望 故事失望 今天精彩", (4, 9, 1.0)),
    ],
)
def test_chinese_words_end_at_spaces(chinese_tokenizer, text, counts):
    found = count_words(chinese_tokenizer, [text, "  "])
    assert (
        found.words_per_text,
        found.tokens_per_text - text.count(" "),
        found.unspaced_share,
    ) == (counts)
    assert not found.has_word_boundaries


def test_texts_with_spaces_keep_their_words():
    tokenizer = word_pieces(["a", "fine", "film", "act", "##ing"])
    assert count_words(tokenizer, ["a fine film", "fine acting film"]).has_word_boundaries
    # The two words are tokens too, so nothing would change.
    assert count_words(tokenizer, ["fine film"]).has_word_boundaries
    assert not count_words(tokenizer, ["acting"]).has_word_boundaries
    assert count_words(tokenizer, [" "]) is None
