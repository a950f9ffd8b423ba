r"""Word-level tokenizers for attention classifiers, sentence splitting, and word vectors.

The papers compute attention over words, so each token is one word. Jain & Wallace (2019) lower-case
spaCy's tokens and replace every token that contains a digit with `qqq`. This module uses one
regular expression instead of spaCy. The tokenizer is therefore a plain `tokenizer.json`, which
`transformers` can load without any other package. A token is one of these:

- a sequence of letters and digits, joined by `-`, `/` or an apostrophe (`high-concept`,
  `writer/director`, `it's`), or by `.` and `,` between digits (`1,000.50`);
- a clitic that is already separated by a space (`'s`, `'ll`), an initial or an acronym with its
  dots (`j.`, `u.s.`), or a title (`mr.`);
- one punctuation mark, possibly repeated (`...`, `--`, `!!`), with or without spaces around it.

A text that is already tokenised and joined by single spaces usually stays unchanged: apart from
`qqq`, 99.7% of SST's 9,613 sentences give exactly `text.lower().split(" ")`.

For hierarchical models, the same tokenizer can insert the separator `<sep>` between sentences. A
sentence ends at `.`, `!`, `?` or `…` before white space, including closing quotes and brackets, and
at line breaks, including HTML's `<br>`. It does not end at a full stop that belongs to a word
(`mr.`, `j. k.`, `u.s.`). A text may also contain `<sep>` itself.
"""

import gzip
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import (
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import check_minimum


PAD, UNK, BOS, EOS = SPECIAL_TOKENS = ("<pad>", "<unk>", "<sos>", "<eos>")
"""Special tokens of every tokenizer. Their ids are 0 to 3, as in the code of Jain & Wallace (2019)."""
SEP = "<sep>"
"""Token that separates two sentences in the input of a hierarchical model. Its id is 4."""

# Matches a letter of any alphabet.
_LETTER = r"[^\W\d_]"
# Matches a letter of any alphabet, or a digit.
_WORD_CHAR = r"[^\W_]"
# Matches a character inside a word: a letter, a digit, a mark between letters as in "it's", or a
# mark between digits as in "3.14".
_INNER_CHAR = rf"(?:{_WORD_CHAR}|(?<={_WORD_CHAR})[-/'’](?={_WORD_CHAR})|(?<=\d)[.,](?=\d))"
# Matches a contracted word that is separated by a space, such as 's in "it 's".
_CONTRACTION = rf"['’](?:s|re|ve|ll|d|m|t|em|n['’]|tis|twas|til|cause)(?!{_INNER_CHAR})"
# Matches titles and other abbreviations that are written with a full stop, as in "Dr.".
_TITLES = "mr|mrs|ms|dr|prof|st|jr|sr|vs|etc|inc|corp|co"
# Matches words with full stops: an initial ("j."), an acronym ("u.s.") or a title ("mr.").
_DOTTED_WORD = rf"(?:(?:{_LETTER}\.)+{_LETTER}?|(?:{_TITLES})\.)(?!{_INNER_CHAR})"
# Matches the apostrophe before an abbreviated year, such as '53 or '70s.
_YEAR_APOSTROPHE = rf"(?<![-./'’]|{_WORD_CHAR})['’](?=\d\ds?(?!{_WORD_CHAR}))"
# Matches any token. The alternatives are tried in this order: a year, a contraction, a word with full
# stops, any other word, and a punctuation mark that may be repeated.
_TOKEN = "|".join(
    (
        rf"{_YEAR_APOSTROPHE}{_INNER_CHAR}+",
        _CONTRACTION,
        _DOTTED_WORD,
        rf"{_WORD_CHAR}{_INNER_CHAR}*",
        r"([^\w\s]|_)\1*",
    )
)
# Matches a line break. <br> from HTML counts too.
_LINE_BREAK = r"(?:<(?i:br)\s*/?>|[\n\v\f\r\x85\u2028\u2029])"
# Matches one or several line breaks, and the white space around them. White space is searched only
# from its first character: otherwise, the time would grow quadratically with its length.
_LINE_BREAKS = rf"(?:(?<!\s)\s+)?{_LINE_BREAK}(?:\s|{_LINE_BREAK})*"
# Patterns for abbreviations: a single letter, or a title such as "dr". A full stop after them does
# not end a sentence.
_ABBREVIATIONS = [_LETTER, *(rf"(?i:{title})" for title in _TITLES.split("|"))]
# Matches a position after an abbreviation that is a whole word. It is used in a lookbehind, which
# must not contain repetitions, so all combinations are listed.
_AFTER_ABBREVIATION = "|".join(
    [rf"\A{word}" for word in _ABBREVIATIONS] + [rf"[^\w'’]{word}" for word in _ABBREVIATIONS]
)
# Matches the white space after a sentence.
_SENTENCE_END = rf"(?:[!?…]|(?<!{_AFTER_ABBREVIATION})\.)[\"'”’»)\]]*\K\s+(?=\S)(?!{SEP})"
# Abbreviations in names of companies. A sentence can end after them, unlike after titles.
_COMPANIES = ["inc", "corp", "co", "ltd"]
# Matches a position after such an abbreviation. A lookbehind must not contain repetitions.
_AFTER_COMPANY = "|".join(rf"[^\w'’](?i:{word})" for word in _COMPANIES)
# Matches words with which a sentence often starts. A name or a title, such as the word after "Inc." in
# "Acme Inc. Chairman Bill Smith", is not among them.
_SENTENCE_STARTERS = (
    "(?:A|All|An|Any|At|But|Each|For|He|Her|His|If|In|It|Its|No|On|She|That|The|Their|There|These|They"
    "|This|Those|We|When)"
)
# Matches the white space after a sentence in a text with capital letters. No sentence starts with a
# lower-case letter, so "Norvik Ltd. and the Supplier" and "Norvik Ltd. (the Supplier)" are not split.
_CAPITALISED_SENTENCE_END = (
    rf"(?:[!?…]|(?<!{_AFTER_ABBREVIATION}|{_AFTER_COMPANY})\.)[\"'”’»)\]]*"
    rf"\K\s+(?=\S)(?!{SEP})(?![\"'“‘«(\[]*\p{{Ll}})"
    rf"|(?<={_AFTER_COMPANY})\.[\"'”’»)\]]*\K\s+(?={_SENTENCE_STARTERS}(?!\w))"
)
# Matches the position after a Chinese sentence, which no space follows.
_CHINESE_SENTENCE_END = r"(?<=[。！？])"


def _build_sentence_splitter(sentence_end: str) -> pre_tokenizers.Split:
    """Build the rule that splits a text into sentences, by a pattern for the space after a sentence."""
    pattern = f"{sentence_end}|{_LINE_BREAKS}|{_CHINESE_SENTENCE_END}"
    return pre_tokenizers.Split(Regex(pattern), "removed")


_SENTENCES = _build_sentence_splitter(_SENTENCE_END)
_CAPITALISED_SENTENCES = _build_sentence_splitter(_CAPITALISED_SENTENCE_END)
_TEMPORARY_MARK = "\ufdd0"
"""Temporary mark in a text while it is normalized. Real texts do not contain this character."""


def locate_sentences(text: str) -> list[tuple[int, int]]:
    r"""Locate a text's sentences by their start and end positions, in characters.

    A sentence ends at a line break, or at ".", "!", "?" or "…" before white space. It does not end
    after a title, an initial or an acronym, such as "Mr.", "J." or "U.S.". In a text with capital
    letters, no sentence starts with a lower-case letter, and the abbreviation of a company, such as
    "Ltd.", ends a sentence only before a word with which sentences often start, such as "The".

    Args:
        text: the text.

    Returns:
        One (start, end) per sentence; the end is exclusive.

    >>> text = "Dr. A. Berg came. She left on Monday!\nWhy?"
    >>> [text[start:end] for start, end in locate_sentences(text)]
    ['Dr. A. Berg came.', 'She left on Monday!', 'Why?']
    """
    has_capitals = any(map(str.isupper, text))
    splitter = _CAPITALISED_SENTENCES if has_capitals else _SENTENCES
    pieces = splitter.pre_tokenize_str(text)
    return [(start, end) for piece, (start, end) in pieces if piece.strip()]


def build_tokenizer(
    texts: Iterable[str],
    *,
    min_document_frequency: int = 1,
    max_vocab_size: int | None = None,
    model_max_length: int | None = None,
    sentences: bool = False,
    pairs: bool = False,
) -> PreTrainedTokenizerFast:
    """Build a word-level tokenizer whose vocabulary comes from a list of texts.

    Words that occur in more texts have smaller ids; the order of the texts does not matter. A
    single text becomes `<sos> … <eos>`, and a pair becomes `<sos> … <eos> … <eos>`, or with `pairs`
    `<sos> … <eos> <sos> … <eos>`. If a text contains the characters `<sos>`, they become three
    ordinary tokens.

    Args:
        texts: the training texts.
        min_document_frequency: words that occur in fewer texts become `<unk>`; at least 1. Jain &
            Wallace (2019) use 1 for SST, 5 for AG News and 10 for IMDB.
        max_vocab_size: maximum vocabulary size, including the special tokens (at least one word
            must fit); None for no limit.
        model_max_length: maximum length with `truncation=True`, in tokens including the special
            ones; None for no truncation.
        sentences: whether to insert a separator between sentences, for hierarchical models.
        pairs: whether second texts get their own start token and `token_type_ids` equal to 1, for
            models with a query encoder.

    Returns:
        The tokenizer.

    Raises:
        AttnProbeError: if an option is out of range, a text is not a string, or no word is frequent
            enough.

    Example::

        from hf_attnprobe import build_tokenizer

        tokenizer = build_tokenizer(["a fine film", "a dull film"])
        tokenizer.tokenize("A FINE plot")  # ['a', 'fine', '<unk>']
    """
    special_tokens = [*SPECIAL_TOKENS, SEP] if sentences else list(SPECIAL_TOKENS)
    _check_vocabulary_options(min_document_frequency, max_vocab_size, len(special_tokens))
    counts = _count_document_frequencies(texts, sentences)
    words = [word for word in counts if counts[word] >= min_document_frequency]
    words.sort(key=lambda word: (-counts[word], word))
    if not words:
        raise AttnProbeError(
            f"none of the {len(counts)} different words occurs in {min_document_frequency} or more "
            "texts. Use more texts, or decrease min_document_frequency."
        )
    pair_inputs = ["token_type_ids"] if pairs else []
    options: dict[str, Any] = {}
    if model_max_length is not None:
        options["model_max_length"] = model_max_length
    if sentences:
        options["sep_token"] = SEP
    return PreTrainedTokenizerFast(
        tokenizer_object=_build_word_level(
            [*special_tokens, *words][:max_vocab_size], sentences, pairs
        ),
        pad_token=PAD,
        unk_token=UNK,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="right",
        model_input_names=["input_ids", *pair_inputs, "attention_mask"],
        split_special_tokens=True,
        **options,
    )


def _check_vocabulary_options(
    min_document_frequency: int, max_vocab_size: int | None, n_special_tokens: int
) -> None:
    """Raise AttnProbeError if an argument to :func:`build_tokenizer` is out of range."""
    check_minimum(1, min_document_frequency=min_document_frequency)
    if max_vocab_size is not None and max_vocab_size <= n_special_tokens:
        raise AttnProbeError(
            f"max_vocab_size must be greater than the number of special tokens ({n_special_tokens}), "
            f"got {max_vocab_size}. For no limit, use None."
        )


def _count_document_frequencies(texts: Iterable[str], sentences: bool) -> Counter[str]:
    """Count how many texts contain each word.

    Texts are normalized and split into words as in the tokenizer.

    Args:
        texts: The texts.
        sentences: Whether the tokenizer inserts a token between sentences. It is not counted.

    Returns:
        The number of texts by word.
    """
    if isinstance(texts, str):
        raise AttnProbeError("texts must be a list of strings, got a single string")
    normalizer = _build_normalizer(sentences)
    pre_tokenizer = _build_pre_tokenizer(sentences)
    counts: Counter[str] = Counter()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise AttnProbeError(
                f"texts must be strings, but texts[{row}] is of type {type(text).__name__}"
            )
        pieces = pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))
        counts.update({word for word, _ in pieces} - {SEP})
    return counts


def _build_word_level(vocabulary: list[str], sentences: bool, pairs: bool) -> Tokenizer:
    """Build a `tokenizers.Tokenizer` that splits texts into the words of a vocabulary.

    Args:
        vocabulary: The tokens in the order of their ids, including the special tokens.
        sentences: Whether to insert a token between sentences.
        pairs: Whether the second text of a pair starts with its own start token.
    """
    ids = {token: token_id for token_id, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNK))
    tokenizer.normalizer = _build_normalizer(sentences)
    tokenizer.pre_tokenizer = _build_pre_tokenizer(sentences)
    # $A and $B are the two texts. The suffix :1 sets the token type of the second text to 1.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}",
        pair=f"{BOS} $A {EOS} {f'{BOS}:1 ' if pairs else ''}$B:1 {EOS}:1",
        special_tokens=[
            (BOS, SPECIAL_TOKENS.index(BOS)),
            (EOS, SPECIAL_TOKENS.index(EOS)),
        ],
    )
    return tokenizer


def _build_pre_tokenizer(sentences: bool) -> pre_tokenizers.PreTokenizer:
    """Build the rule that splits a normalized text into tokens."""
    token = f"{SEP}|{_TOKEN}" if sentences else _TOKEN
    return pre_tokenizers.Split(Regex(token), behavior="removed", invert=True)


def _build_normalizer(sentences: bool) -> normalizers.Normalizer:
    r"""Build the rule that lower-cases a text and replaces tokens that contain a digit with `qqq`.

    The library aligns a replacement with the last replaced character. If `21st` were replaced in
    one step, `qqq` would have the offsets of `t`, and a heat map would colour only this letter. The
    replacement therefore has several steps. First, all characters after the first one become a
    temporary mark. Then the first character becomes `qq`, and the mark becomes `q`. Finally, digits
    that are tokens on their own become `qqq`. In the patterns, `\K` excludes the text before it
    from the match.
    """
    # The search may start only at the first character of a word. If it started at every character,
    # its time would grow quadratically with the word length.
    word_start = rf"(?<!{_WORD_CHAR})(?<!{_WORD_CHAR}[-/'’])"
    after_digit = rf"(?:{_YEAR_APOSTROPHE}|\d)\K{_INNER_CHAR}+"
    before_digit = rf"{word_start}{_WORD_CHAR}\K{_INNER_CHAR}*\d{_INNER_CHAR}*"
    digit_tail = f"{after_digit}|{before_digit}"
    separators = []
    if sentences:
        for pattern in (_LINE_BREAKS, _SENTENCE_END):
            separators.append(normalizers.Replace(Regex(pattern), f" {SEP} "))
    return normalizers.Sequence(
        [
            *separators,
            normalizers.Lowercase(),
            normalizers.Replace(Regex(digit_tail), _TEMPORARY_MARK),
            normalizers.Replace(Regex(rf"\S(?={_TEMPORARY_MARK})"), "qq"),
            normalizers.Replace(_TEMPORARY_MARK, "q"),
            normalizers.Replace(Regex(r"\d"), "qqq"),
        ]
    )


def read_vectors(path: str | os.PathLike, vocab: Mapping[str, int]) -> tuple[Tensor, Tensor]:
    """Read pretrained vectors for the words in a vocabulary.

    Two text formats are supported: that of word2vec and fastText, whose first line is `count dim`,
    and that of GloVe, without such a line. Words must match exactly and may contain spaces, since
    the last `dim` fields on a line are the numbers. If a word occurs several times, its first
    vector is used.

    Args:
        path: a text file, or a text file compressed as .gz.
        vocab: word ids by word.

    Returns:
        vectors: float32, [words, dim].
        ids: int64, [words], ascending; `embeddings[ids] = vectors` fills an embedding matrix.

    Raises:
        AttnProbeError: if the file is empty or cannot be read, or a line is malformed. Numbers are
            only checked for the words of the vocabulary.
    """
    rows: dict[int, list[float]] = {}
    dim = 0
    for line_number, word, fields in _parse_vector_lines(Path(path)):
        dim = len(fields)
        if word in vocab and vocab[word] not in rows:
            rows[vocab[word]] = _parse_numbers(fields, path, line_number)
    ids = sorted(rows)
    vectors = torch.tensor([rows[i] for i in ids], dtype=torch.float32)
    return vectors.reshape(len(ids), dim), torch.tensor(ids, dtype=torch.int64)


def _parse_vector_lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the line number, the word, and the fields of its vector for each line of a file.

    All vectors have the same length. If the first line consists of two numbers, it is the header
    `count dim` and is skipped.
    """
    dim = None
    for line_number, line in _read_lines(path):
        fields = line.split(" ")
        if dim is None:
            if len(fields) == 2 and all(map(str.isdecimal, fields)):
                dim = int(fields[1])
                continue
            dim = len(fields) - 1
        if len(fields) <= dim or dim < 1:
            n_numbers = f"{dim} numbers" if dim else "its vector"
            raise AttnProbeError(
                f"line {line_number} of {path} must contain a word and {n_numbers}, separated by "
                f"spaces, but has {len(fields)} fields. Use a file with word vectors in text format "
                "(word2vec, fastText or GloVe), and check that it was downloaded completely."
            )
        yield line_number, " ".join(fields[:-dim]), fields[-dim:]
    if dim is None:
        raise AttnProbeError(f"the file of word vectors {path} is empty; download it again")


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line in a text file with its number, counted from 1.

    Only a line feed ends a line, since some words in GloVe contain other line separators.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", errors="replace", newline="\n") as file:
            for line_number, line in enumerate(file, start=1):
                yield line_number, line.rstrip(" \r\n")
    except (OSError, EOFError, zlib.error) as error:
        raise AttnProbeError(
            f"cannot read the word vectors in {path} ({error}). Use a text file, or a text file that "
            "is compressed as .gz."
        ) from error


def _parse_numbers(fields: list[str], path: str | os.PathLike, line_number: int) -> list[float]:
    """Convert a line's fields to numbers, or raise AttnProbeError with the line number."""
    try:
        return [float(field) for field in fields]
    except ValueError as error:
        raise AttnProbeError(
            f"line {line_number} of {path} must contain {len(fields)} numbers after the word "
            f"({error}); download the file again"
        ) from error
