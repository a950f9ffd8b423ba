"""Tags of words, such as their parts of speech: from the data, or from a tagger."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets

TAG_COLUMNS = ("word_tags", "pos_tags", "pos")
NLTK, SPACY = "nltk", "spacy"
Tagger = Callable[[Sequence[str]], Sequence[str]]
"""The words of a text -> one tag per word."""


def read_word_tags(source: "datasets.Dataset") -> list[list[str]] | None:
    """The tags of the words of every row, or None where there is no such column.

    Lists of strings, or of numbers of named classes, in one of :data:`TAG_COLUMNS`.
    """
    for name in TAG_COLUMNS:
        items = getattr(source.features.get(name), "feature", None)
        names = getattr(items, "names", None)
        if names is None and str(getattr(items, "dtype", "")) != "string":
            continue
        rows = source.with_format(None)[name][:]
        if names is None:
            return [[tag or "" for tag in row or []] for row in rows]
        return [[names[tag] for tag in row or []] for row in rows]
    return None


def tag_words(examples: "datasets.Dataset", tagger: Tagger | str = NLTK) -> "datasets.Dataset":
    """Adds a column ``word_tags``, one tag for each word that white space separates.

    Args:
        examples: rows with a column ``text``.
        tagger: "nltk" (universal tags of its perceptron tagger, as in Mohankumar et al.
            2020), "spacy" (universal tags of ``en_core_web_sm``), or a function from the
            words of a text to their tags. Nothing is downloaded.

    Raises:
        AttnProbeError: the tagger or its model is not installed.
    """
    tag = _taggers()[tagger]() if isinstance(tagger, str) else tagger
    texts = examples.with_format(None)["text"][:]
    return examples.add_column("word_tags", [list(tag(t.split())) for t in texts])


def _taggers() -> dict[str, Callable[[], Tagger]]:
    return {NLTK: _nltk, SPACY: _spacy}


def _nltk() -> Tagger:
    try:
        nltk: Any = import_module("nltk")
        nltk.pos_tag(["word"], tagset="universal")
    except (ImportError, LookupError) as error:
        raise _missing("nltk with averaged_perceptron_tagger_eng and universal_tagset") from error
    return lambda words: [tag for _, tag in nltk.pos_tag(words, tagset="universal")]


def _spacy() -> Tagger:
    try:
        pipeline: Any = import_module("spacy").load("en_core_web_sm")
        document: Any = import_module("spacy.tokens").Doc
    except (ImportError, OSError) as error:
        raise _missing("spacy with en_core_web_sm") from error
    return lambda words: [
        token.pos_ for token in pipeline(document(pipeline.vocab, words=list(words)))
    ]


def _missing(what: str) -> AttnProbeError:
    return AttnProbeError(
        f"expected {what} to tag words, it is not installed; install it, or give the "
        "data a column 'word_tags' with one tag per word"
    )
