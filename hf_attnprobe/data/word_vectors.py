"""Pre-trained word vectors for the words of a vocabulary."""

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from hf_attnprobe.errors import AttnProbeError


def read_vectors(path: str | os.PathLike, vocab: Mapping[str, int]) -> tuple[Tensor, Tensor]:
    """The vectors of the words in `vocab` that a file holds, and their ids.

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
    """Line number, word and the fields of its vector, all of the same number."""
    dim = None
    for line_number, line in _lines(path):
        fields = line.split(" ")
        if dim is None:
            if _is_header(fields):
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


def _is_header(fields: list[str]) -> bool:
    """Whether these are the two numbers of `count dim`."""
    if len(fields) != 2:
        return False
    return all(field.isdecimal() for field in fields)


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
