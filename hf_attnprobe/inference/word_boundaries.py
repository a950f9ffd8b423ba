"""Decide whether texts are explained by words or by tokens.

A tokenizer reports which tokens form a word, and for most tokenizers, a word ends at a space. Texts
in Chinese, Japanese, Thai, Lao, Khmer or Burmese have no spaces between words, and neither do
proteins and DNA. Such a text counts as a single word, in which nothing could be ranked or left out.
These texts are explained by tokens. The pieces of the model's own tokenizer are used instead of a
word segmenter, because the model reads exactly these pieces, and because no segmenter covers all of
these scripts.
"""

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.data.columns import read_column
from hf_attnprobe.statistics.sampling import draw_sample


if TYPE_CHECKING:
    import datasets


MIN_WORDS_PER_TEXT = 3
"""Smallest mean number of words per text with which words are explained.

The order of fewer words says nothing about attention.
"""
MIN_TOKENS_PER_WORD = 2
"""Mean number of tokens per word from which texts in :data:`UNSPACED_SCRIPTS` are explained by tokens."""
UNSPACED_SCRIPTS = frozenset(
    {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}
)
"""First words of the Unicode names of characters in scripts without spaces between words."""
N_SAMPLED_TEXTS = 200
"""Number of texts in which words and tokens are counted. They are drawn from the whole split."""


class WordCounts(NamedTuple):
    """Sizes of texts, from :func:`count_words`.

    Attributes:
        words_per_text: Mean number of words, as the tokenizer reports them.
        tokens_per_text: Mean number of tokens, without special tokens.
        unspaced_share: Fraction of the letters that belong to :data:`UNSPACED_SCRIPTS`.
    """

    words_per_text: float
    tokens_per_text: float
    unspaced_share: float

    @property
    def has_word_boundaries(self) -> bool:
        """Whether the words that the tokenizer reports are units of the language."""
        tokens_per_word = self.tokens_per_text / self.words_per_text
        if self.words_per_text < MIN_WORDS_PER_TEXT:
            # Words that consist of one token each are the smallest units that there are.
            return tokens_per_word <= 1
        return self.unspaced_share < 0.5 or tokens_per_word < MIN_TOKENS_PER_WORD


def count_words(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> WordCounts | None:
    """Count the words, the tokens and the letters of texts.

    Args:
        tokenizer: The model's tokenizer.
        texts: The texts, of which blank ones are ignored.

    Returns:
        The means over the texts; None if all texts are blank, or if the tokenizer does not report
        words.
    """
    texts = [text for text in texts if text.strip()]
    if not tokenizer.is_fast or not texts:
        return None
    encoded = tokenizer(list(texts), add_special_tokens=False)
    n_words = sum(len(set(encoded.word_ids(row)) - {None}) for row in range(len(texts)))
    if not n_words:
        return None
    n_tokens = sum(map(len, encoded["input_ids"]))
    letters = [character for text in texts for character in text if character.isalpha()]
    n_unspaced = sum(map(_is_unspaced, letters))
    return WordCounts(
        n_words / len(texts), n_tokens / len(texts), n_unspaced / max(len(letters), 1)
    )


def explain_token_level(
    tokenizer: PreTrainedTokenizerBase, examples: "datasets.Dataset"
) -> str | None:
    """Explain why the texts of a split must be explained by tokens.

    Args:
        tokenizer: The model's tokenizer.
        examples: All examples in the split. In pairs, the words of both texts count.

    Returns:
        A sentence for the user; None if the texts have enough words.
    """
    ids = read_column(examples, "example_id")
    rows = draw_sample(range(len(ids)), ids, N_SAMPLED_TEXTS)
    sample = examples.select(rows)
    names = [name for name in ("text", "text_pair") if name in examples.column_names]
    columns = [read_column(sample, name) for name in names]
    counts = count_words(tokenizer, [" ".join(parts) for parts in zip(*columns, strict=True)])
    if counts is None or counts.has_word_boundaries:
        return None
    return (
        f"spaces do not separate the words of these texts: the tokenizer finds "
        f"{counts.words_per_text:.1f} words and {counts.tokens_per_text:.1f} tokens per text, so "
        "tokens are explained (--level word explains words)"
    )


def choose_level(
    tokenizer: PreTrainedTokenizerBase, examples: "datasets.Dataset"
) -> Literal["token"] | None:
    """Return the level at which the texts of a split are explained, or None for words.

    Args:
        tokenizer: The model's tokenizer.
        examples: All examples in the split.
    """
    return None if explain_token_level(tokenizer, examples) is None else "token"


def _is_unspaced(character: str) -> bool:
    """Return whether a letter belongs to a script without spaces between words."""
    return unicodedata.name(character, "").partition(" ")[0] in UNSPACED_SCRIPTS
