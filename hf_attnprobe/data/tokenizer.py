r"""Word-level tokenizers for the attention classifiers, and pretrained word vectors.

The papers attend to words, so one token is one word. Jain & Wallace (2019) lower-case
spaCy tokens and turn every token with a digit into `qqq`; here one regular expression
replaces spaCy, so that the tokenizer is a plain `tokenizer.json` that needs nothing but
`transformers` to load. One token is

- a run of letters and digits, joined inside by `-`, `/` or an apostrophe
  (`high-concept`, `writer/director`, `it's`), or by `.` and `,` between digits
  (`1,000.50`);
- a clitic that was split off before (`'s`, `'ll`), an initial or acronym with its dots
  (`j.`, `u.s.`), or a title (`mr.`);
- otherwise a run of one and the same punctuation mark (`...`, `--`, `!!`), with or
  without spaces around it.

Text that is already tokenised and joined by single spaces, such as SST, therefore stays
as it is: 99.7 % of the 9,613 SST sentences give exactly `text.lower().split(" ")`,
apart from `qqq`.

For hierarchical models the same tokenizer can put a separator between sentences. One
ends at `.`, `!`, `?` or `…`, with quotes and brackets that close behind it, before
white space; not at a full stop that belongs to a word by the rules above (`mr.`, `j.
k.`, `u.s.`); and at line breaks, those of HTML too. `<sep>` may also be written in
the text.
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
from hf_attnprobe.core.options import check_at_least


# Their ids are their positions, 0 to 3, as in the code of Jain & Wallace.
PAD, UNK, BOS, EOS = SPECIAL_TOKENS = ("<pad>", "<unk>", "<sos>", "<eos>")
SEP = "<sep>"  # between sentences, where wanted; its id is 4

_LETTER = r"[^\W\d_]"
_WORD_CHAR = r"[^\W_]"
_IN_WORD = rf"(?:{_WORD_CHAR}|(?<={_WORD_CHAR})[-/'’](?={_WORD_CHAR})|(?<=\d)[.,](?=\d))"
_CLITIC = rf"['’](?:s|re|ve|ll|d|m|t|em|n['’]|tis|twas|til|cause)(?!{_IN_WORD})"
_TITLES = "mr|mrs|ms|dr|prof|st|jr|sr|vs|etc|inc|corp|co"
_DOTTED = rf"(?:(?:{_LETTER}\.)+{_LETTER}?|(?:{_TITLES})\.)(?!{_IN_WORD})"
# '70s and '53 are one token each.
_YEAR_APOSTROPHE = rf"(?<![-./'’]|{_WORD_CHAR})['’](?=\d\ds?(?!{_WORD_CHAR}))"
_TOKEN = "|".join(
    (
        rf"{_YEAR_APOSTROPHE}{_IN_WORD}+",
        _CLITIC,
        _DOTTED,
        rf"{_WORD_CHAR}{_IN_WORD}*",
        r"([^\w\s]|_)\1*",
    )
)
_BREAK = r"(?:<(?i:br)\s*/?>|[\n\v\f\r\x85\u2028\u2029])"
_LINE_END = rf"\s*{_BREAK}(?:\s|{_BREAK})*"
# A lookbehind allows no repetition, hence every abbreviation after every beginning.
_ABBREVIATIONS = [_LETTER, *(rf"(?i:{title})" for title in _TITLES.split("|"))]
_ABBREVIATED = "|".join(
    [rf"\A{word}" for word in _ABBREVIATIONS] + [rf"[^\w'’]{word}" for word in _ABBREVIATIONS]
)
_SENTENCE_END = rf"(?:[!?…]|(?<!{_ABBREVIATED})\.)[\"'”’»)\]]*\K\s+(?=\S)(?!{SEP})"
_CHINESE_END = r"(?<=[。！？])"  # no space follows those marks
_SENTENCES = pre_tokenizers.Split(Regex(f"{_SENTENCE_END}|{_LINE_END}|{_CHINESE_END}"), "removed")
_MARK = "\ufdd0"  # a noncharacter that Unicode reserves for use inside programs


def sentences(text: str) -> list[tuple[int, int]]:
    """First character, and the one behind the last, of every sentence, by the rule above.

    >>> text = "Dr. A. Berg came. She left on Monday!\\nWhy?"
    >>> [text[start:end] for start, end in sentences(text)]
    ['Dr. A. Berg came.', 'She left on Monday!', 'Why?']
    """
    pieces = _SENTENCES.pre_tokenize_str(text)
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
    """Builds a word-level tokenizer whose vocabulary is the words of `texts`.

    The most frequent words come first. The ids depend on the texts alone: neither on
    their order nor on the process. A sentence becomes `<sos> … <eos>`, a pair
    `<sos> … <eos> … <eos>`, with `pairs` `<sos> … <eos> <sos> … <eos>`. A literal `<sos>` in a text is three ordinary tokens, never
    the special one.

    Args:
        texts: the training texts.
        min_document_frequency: words in fewer texts are `<unk>`; at least 1 (in Jain &
            Wallace 2019 SST 1, AG News 5, IMDB 10).
        max_vocab_size: largest number of ids, the special tokens included; more than
            their number.
        model_max_length: largest number of tokens with `truncation=True`, the special
            ones included; None: no truncation.
        sentences: puts a separator between sentences, for hierarchical models.
        pairs: writes two texts as a model with a query encoder reads them, each with its
            own start and end, and `token_type_ids` 0 in the first and 1 in the second.

    Raises:
        AttnProbeError: an option out of range, a text that is not a string, or no word
            in any text.
    """
    specials = [*SPECIAL_TOKENS, SEP] if sentences else list(SPECIAL_TOKENS)
    _check_options(min_document_frequency, max_vocab_size, len(specials))
    counts = _document_frequencies(texts, sentences)
    words = [word for word in counts if counts[word] >= min_document_frequency]
    words.sort(key=lambda word: (-counts[word], word))
    if not words:
        raise AttnProbeError(
            f"expected a word in at least {min_document_frequency} texts, found none "
            f"among {len(counts)} different words; give more texts or lower "
            "min_document_frequency"
        )
    types = ["token_type_ids"] if pairs else []
    options: dict[str, Any] = {}
    if model_max_length is not None:
        options["model_max_length"] = model_max_length
    if sentences:
        options["sep_token"] = SEP
    return PreTrainedTokenizerFast(
        tokenizer_object=_word_level([*specials, *words][:max_vocab_size], sentences, pairs),
        pad_token=PAD,
        unk_token=UNK,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="right",
        model_input_names=["input_ids", *types, "attention_mask"],
        split_special_tokens=True,
        **options,
    )


def _check_options(
    min_document_frequency: int, max_vocab_size: int | None, n_specials: int
) -> None:
    check_at_least(1, min_document_frequency=min_document_frequency)
    if max_vocab_size is not None and max_vocab_size <= n_specials:
        raise AttnProbeError(
            f"max_vocab_size counts the {n_specials} special tokens and must be more "
            f"than {n_specials}, got {max_vocab_size}; give None for no bound"
        )


def _document_frequencies(texts: Iterable[str], sentences: bool) -> Counter[str]:
    """Number of texts that contain each word, by the tokenizer's own rules."""
    if isinstance(texts, str):
        raise AttnProbeError("expected a list of texts, got one string; put it in a list")
    normalizer = _normalizer(sentences)
    pre_tokenizer = _pre_tokenizer(sentences)
    counts: Counter[str] = Counter()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise AttnProbeError(
                f"expected strings, text {row} is {type(text).__name__}; drop or convert it"
            )
        pieces = pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))
        counts.update({word for word, _ in pieces} - {SEP})
    return counts


def _word_level(vocabulary: list[str], sentences: bool, pairs: bool) -> Tokenizer:
    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNK))
    tokenizer.normalizer = _normalizer(sentences)
    tokenizer.pre_tokenizer = _pre_tokenizer(sentences)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}",
        pair=f"{BOS} $A {EOS} {f'{BOS}:1 ' if pairs else ''}$B:1 {EOS}:1",
        special_tokens=[
            (BOS, SPECIAL_TOKENS.index(BOS)),
            (EOS, SPECIAL_TOKENS.index(EOS)),
        ],
    )
    return tokenizer


def _pre_tokenizer(sentences: bool) -> pre_tokenizers.PreTokenizer:
    token = f"{SEP}|{_TOKEN}" if sentences else _TOKEN
    return pre_tokenizers.Split(Regex(token), behavior="removed", invert=True)


def _normalizer(sentences: bool) -> normalizers.Normalizer:
    r"""Lower-cases, and writes `qqq` for every token with a digit.

    A replacement is aligned with the last character that it replaces, so folding `21st`
    in one step would leave it the offsets of its `t`, and a heat map would colour one
    letter. Hence in pieces: the tail becomes a mark, the character before a mark `qq`,
    the mark `q`; a digit that is still there stood alone. `\K` keeps what is before it.
    """
    # From the first character of a word on: from each, a long one takes for ever.
    begins = rf"(?<!{_WORD_CHAR})(?<!{_WORD_CHAR}[-/'’])"
    after_digit = rf"(?:{_YEAR_APOSTROPHE}|\d)\K{_IN_WORD}+"
    before_digit = rf"{begins}{_WORD_CHAR}\K{_IN_WORD}*\d{_IN_WORD}*"
    digit_tail = f"{after_digit}|{before_digit}"
    ends = []
    if sentences:
        for end in (_LINE_END, _SENTENCE_END):
            ends.append(normalizers.Replace(Regex(end), f" {SEP} "))
    return normalizers.Sequence(
        [
            *ends,
            normalizers.Lowercase(),
            normalizers.Replace(Regex(digit_tail), _MARK),
            normalizers.Replace(Regex(rf"\S(?={_MARK})"), "qq"),
            normalizers.Replace(_MARK, "q"),
            normalizers.Replace(Regex(r"\d"), "qqq"),
        ]
    )


def read_vectors(path: str | os.PathLike, vocab: Mapping[str, int]) -> tuple[Tensor, Tensor]:
    """Vectors in a file for the words in `vocab`, and their ids.

    Reads the text formats of word2vec and fastText (first line `count dim`) and of
    GloVe (no such line), also gzipped. Words must match exactly. A word may contain
    spaces: the last `dim` fields are the numbers. Of a repeated word the first vector
    counts.

    Args:
        path: a text file or a .gz of one.
        vocab: id of each word.

    Returns:
        vectors: float32 [words, dim].
        ids: int64 [words], ascending: `embeddings[ids] = vectors` fills the rows.

    Raises:
        AttnProbeError: the file cannot be read, is empty, or has a malformed line,
            which is named by its number. Numbers are parsed for the words of `vocab`
            only.
    """
    rows: dict[int, list[float]] = {}
    dim = 0
    for line_number, word, fields in _entries(Path(path)):
        dim = len(fields)
        if word in vocab and vocab[word] not in rows:
            rows[vocab[word]] = _numbers(fields, path, line_number)
    ids = sorted(rows)
    vectors = torch.tensor([rows[i] for i in ids], dtype=torch.float32)
    return vectors.reshape(len(ids), dim), torch.tensor(ids, dtype=torch.int64)


def _entries(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Line number, word and the fields of its vector; every vector has as many.

    A first line of two numbers is the header `count dim`.
    """
    dim = None
    for line_number, line in _lines(path):
        fields = line.split(" ")
        if dim is None:
            if len(fields) == 2 and all(map(str.isdecimal, fields)):
                dim = int(fields[1])
                continue
            dim = len(fields) - 1
        if len(fields) <= dim or dim < 1:
            raise AttnProbeError(
                f"{path}, line {line_number}: expected a word and {dim or 'some'} "
                f"numbers, got {len(fields)} fields; is the file complete, and a text "
                "file of word2vec, fastText or GloVe?"
            )
        yield line_number, " ".join(fields[:-dim]), fields[-dim:]
    if dim is None:
        raise AttnProbeError(
            f"{path}: expected a word and its numbers on each line, got an empty file; "
            "download it again"
        )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines, counted from 1.

    Only a line feed ends one: some words in GloVe contain other line separators.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", errors="replace", newline="\n") as file:
            for line_number, line in enumerate(file, start=1):
                yield line_number, line.rstrip(" \r\n")
    except (OSError, EOFError, zlib.error) as reason:
        raise AttnProbeError(
            f"cannot read the word vectors in {path}: {reason}; give a text file or a .gz of one"
        ) from reason


def _numbers(fields: list[str], path: str | os.PathLike, line_number: int) -> list[float]:
    try:
        return [float(field) for field in fields]
    except ValueError as reason:
        raise AttnProbeError(
            f"{path}, line {line_number}: expected {len(fields)} numbers after the "
            f"word, got one that is none ({reason}); download the file again"
        ) from reason
