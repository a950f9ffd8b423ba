"""Length of a text in tokens and sentences, and whether a recipe's bounds admit it."""

import math
import re

from hf_attnprobe.data.recipes import Recipe


# White space after . ! ? … and a closing quote or bracket, or a line's end.
_END = re.compile(r"""(?<=[.!?…])\s+|(?<=[.!?…]["'”’)\]])\s+|\s*\n\s*""")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text in order, without the white space between them.

    A rule, not a model: abbreviations such as "Dr. No" end a sentence too.

    >>> split_sentences('He asked "why?" Nobody knew... It was 3.5 metres\\nby two .')
    ['He asked "why?"', 'Nobody knew...', 'It was 3.5 metres', 'by two .']
    """
    return [sentence for sentence in _END.split(text.strip()) if sentence]


def fits(text: str, recipe: Recipe, *, training: bool) -> bool:
    """Whether a text is within the recipe's bounds.

    The bounds on sentences hold for texts of ``training`` and validation only.
    """
    length = len(text.split())
    if recipe.longer_than is not None and length <= recipe.longer_than:
        return False
    if recipe.shorter_than is not None and length >= recipe.shorter_than:
        return False
    return not (training and _is_outlier(text, recipe))


def _is_outlier(text: str, recipe: Recipe) -> bool:
    if recipe.max_sentences is None and recipe.max_sentence_tokens is None:
        return False
    lengths = [len(sentence.split()) for sentence in split_sentences(text)]
    most_sentences = recipe.max_sentences or math.inf
    most_tokens = recipe.max_sentence_tokens or math.inf
    return len(lengths) > most_sentences or max(lengths, default=0) > most_tokens
