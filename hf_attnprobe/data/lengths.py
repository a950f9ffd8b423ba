"""How long a text is, in tokens and in sentences, and whether a recipe has room for it."""

import math
import re

from hf_attnprobe.data.recipes import Recipe


# White space after . ! ? … and a closing quote or bracket, or a line's end.
_END = re.compile(r"""(?<=[.!?…])\s+|(?<=[.!?…]["'”’)\]])\s+|\s*\n\s*""")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text in order, without the white space between them; none is empty.

    A rule, not a model: abbreviations such as "Dr. No" end a sentence too.

    >>> split_sentences('He asked "why?" Nobody knew... It was 3.5 metres\\nby two .')
    ['He asked "why?"', 'Nobody knew...', 'It was 3.5 metres', 'by two .']
    """
    return [sentence for sentence in _END.split(text.strip()) if sentence]


def fits(text: str, recipe: Recipe, *, training: bool) -> bool:
    """Whether a text is within the recipe's bounds, of which those on sentences hold for ``training`` alone."""
    length = len(text.split())
    return (
        (recipe.longer_than is None or length > recipe.longer_than)
        and (recipe.shorter_than is None or length < recipe.shorter_than)
        and not (training and _is_outlier(text, recipe))
    )


def _is_outlier(text: str, recipe: Recipe) -> bool:
    if recipe.max_sentences is None and recipe.max_sentence_tokens is None:
        return False
    lengths = [len(sentence.split()) for sentence in split_sentences(text)]
    most, longest = (
        recipe.max_sentences or math.inf,
        recipe.max_sentence_tokens or math.inf,
    )
    return len(lengths) > most or max(lengths, default=0) > longest
