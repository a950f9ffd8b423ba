"""Scores that somebody else gave the tokens of texts, read and put at the model's units.

A unit is what the model's tests explain: a token, a word of several pieces, or of a passage a
sentence. Scores are given for every unit, for every token of the encoded text, for spans of
characters, or of a passage for words that are quoted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.audits.text_scores import strip_span
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import parse_plain
from hf_attnprobe.data.sources import FILE_FORMATS, is_data_file, read_data_file
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import AttentionModelBase


WORD_START_MARKS = "Ġ▁ "
"""What tokenizers write in front of a token that begins a word."""


@dataclass(frozen=True)
class UserScores:
    """The scores of one text.

    Attributes:
        values: in the order of the text.
        spans: start and end of what each is of, in characters; None: of units, or of tokens.
        tokens: what each is of, as its author's tokenizer writes it; None where not said.
        sources: the words of the passage that each is of; units without any have 0.

    Raises:
        AttnProbeError: other numbers of spans, tokens or sources than of scores.
    """

    values: Sequence[float]
    spans: Sequence[tuple[int, int]] | None = None
    tokens: Sequence[str] | None = None
    sources: Sequence[str] | None = None

    def __post_init__(self) -> None:
        n = len(self.values)
        for name in ("spans", "tokens", "sources"):
            given = getattr(self, name)
            if given is not None and len(given) != n:
                raise AttnProbeError(
                    f"expected as many {name} as scores of a text, {n}, got {len(given)}"
                )


# --- reading ----------------------------------------------------------------------------------


def read_scores(given: Any, ids: Sequence[int]) -> dict[int, UserScores]:
    """Scores by the id of their text.

    Args:
        given: a file (csv, tsv, json, jsonl, parquet) with a row per score, or a row per text with lists; a
            mapping by id; or one object per text in their order: numbers, or what captum
            (``VisualizationDataRecord``), SHAP (``Explanation``), inseq
            (``FeatureAttributionOutput``) or interpreto (``AttributionOutput``) return, or a
            table with the columns Score and Source, as ContextCite's.
        ids: of the texts in their order.

    Raises:
        AttnProbeError: a file that cannot be read, or another number of objects than texts.
    """
    if isinstance(given, str | Path):
        return _read_score_file(Path(given))
    if isinstance(given, Mapping):
        return {_parse_id(k): parse_scores(one, k) for k, one in given.items()}
    try:
        several = [*getattr(given, "sequence_attributions", given)]
    except TypeError as error:
        raise AttnProbeError(
            "expected scores as a file, as a mapping by id or as a list with those of each text, "
            f"got {type(given).__name__}"
        ) from error
    if len(several) != len(ids):
        raise AttnProbeError(
            f"expected scores of {len(ids)} texts, got those of {len(several)}; give them in "
            "the order of the texts, or by id"
        )
    return {k: parse_scores(one, k) for k, one in zip(ids, several, strict=True)}


@dataclass(frozen=True)
class ScoreRow:
    """A row of a file of scores: of a unit, of a span of characters, or lists of a whole text."""

    id: int
    score: float | tuple[float, ...]
    unit: int | tuple[int, ...] | None = None
    start: int | tuple[int, ...] | None = None
    end: int | tuple[int, ...] | None = None
    token: str | tuple[str, ...] | None = None
    source: str | tuple[str, ...] | None = None


SCORE_COLUMNS = [field.name for field in fields(ScoreRow)]


def _parse_id(value: Any) -> int:
    """The id of a text, a whole number or its digits."""
    if not isinstance(value, int | np.integer | str) or not str(value).isdecimal():
        raise AttnProbeError(f"expected whole numbers as id of texts with scores, got {value!r}")
    return int(value)


def _read_score_file(file: Path) -> dict[int, UserScores]:
    """The scores in a file, by the id of their text."""
    if not is_data_file(file):
        raise AttnProbeError(f"expected scores in a file {' or '.join(FILE_FORMATS)}, got {file}")
    try:
        table = read_data_file(file, string_columns=["token", "source"])
    except (OSError, ValueError) as error:
        raise AttnProbeError(f"cannot read the scores in {file} ({error}); mend them") from error
    known = [name for name in SCORE_COLUMNS if name in table.column_names]
    if not {"id", "score"} <= {*known}:
        raise AttnProbeError(
            "expected the columns id and score, and unit, or start and end of a span of "
            "characters, or source, words of the passage; token besides; "
            f"{file} has {', '.join(table.column_names)}; rename them"
        )
    of_texts: dict[int, list[ScoreRow]] = {}
    for number, values in enumerate(table.select_columns(known).to_list()):
        there = {name: value for name, value in values.items() if value is not None}
        row = parse_plain(ScoreRow, there, f"mend row {number} of {file}")
        of_texts.setdefault(row.id, []).append(row)
    return {k: _merge_rows(k, rows) for k, rows in of_texts.items()}


def _merge_rows(example_id: int, rows: Sequence[ScoreRow]) -> UserScores:
    """The scores of one text, each in a row of its own or all in the lists of one."""
    cells = {name: pd.Series([getattr(row, name) for row in rows]) for name in SCORE_COLUMNS[1:]}
    each = {n: one.explode(ignore_index=True) for n, one in cells.items()}
    table = pd.DataFrame(each, dtype=object)
    table = table.dropna(axis="columns", how="all")
    if "score" not in table:
        raise _make_score_error(example_id, "numbers", "none")
    for name in table.columns.drop("score", errors="ignore"):
        if table[name].isna().any():
            n = table[name].count()
            raise _make_score_error(example_id, f"a {name} for each score", f"{n} for {len(table)}")
    if "unit" in table:
        table = table.sort_values("unit", kind="stable")
        if [*table.unit] != [*range(len(table))]:
            raise _make_score_error(
                example_id,
                "units numbered from 0, each once (a score of 0 for one not chosen)",
                f"{[*table.unit][:5]}…",
            )
    spans = None
    if "unit" not in table and {"start", "end"} <= {*table}:
        spans = [*zip(table.start, table.end, strict=True)]
    words = ([*table[n]] if n in table else None for n in ("token", "source"))
    return UserScores([*table.score], spans, *words)


def parse_scores(one: Any, example_id: Any) -> UserScores:
    """The scores of one text in numbers, or in the object of a library.

    Raises:
        AttnProbeError: other than one number for each token.
    """
    if isinstance(one, UserScores):
        return one
    table = getattr(one, "data", one)  # of a table with colours
    if isinstance(table, pd.DataFrame) and {"Score", "Source"} <= {*table}:
        return UserScores([*table.Score], sources=[*table.Source])
    values, tokens = one, None
    for scores, words in LIBRARY_ATTRIBUTES:
        found = getattr(one, scores, None)
        if found is not None and not callable(found) and hasattr(one, words):
            values, tokens = found, getattr(one, words)
            break
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values if values.is_complex() else values.double()
    try:
        array = np.asarray(values)
    except ValueError as error:  # of lists of several lengths
        raise _make_score_error(
            example_id, "a score for each token", "lists of several lengths"
        ) from error
    if array.dtype.kind not in "fiu":
        raise _make_score_error(
            example_id,
            "a list of numbers",
            f"{type(one).__name__} of {array.dtype}",
        )
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim != 1:
        shape = " × ".join(map(str, array.shape))
        raise _make_score_error(
            example_id,
            "a score for each token",
            f"{shape}; choose one class, and one step",
        )
    if tokens is not None:
        tokens = [str(getattr(token, "token", token)) for token in tokens]
    return UserScores(array.tolist(), None, tokens)


LIBRARY_ATTRIBUTES = (
    ("word_attributions", "raw_input_ids"),  # captum
    ("attributions", "elements"),  # interpreto
    ("source_attributions", "source"),  # inseq
    ("values", "data"),  # SHAP
)
"""Where libraries keep scores and tokens of a text."""


def _make_score_error(example_id: Any, expected: str, got: str) -> AttnProbeError:
    return AttnProbeError(f"scores of text {example_id}: expected {expected}, got {got}")


# --- putting them at the units ------------------------------------------------------------------


def attach_scores(
    texts: Sequence[Text],
    given: Mapping[int, UserScores],
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase,
    strings: Mapping[int, str],
) -> list[Text]:
    """The texts with a score at the first token of each unit.

    Args:
        strings: the texts in characters, by id.

    Raises:
        AttnProbeError: a text without scores, of other length or tokens, or with a score that
            is no number.
    """
    missing = [text.example_id for text in texts if text.example_id not in given]
    if missing:
        raise AttnProbeError(
            f"expected scores of all {len(texts)} texts, {len(missing)} have none, such as "
            f"text {missing[0]}; give them, or name fewer texts by --test-limit"
        )
    aligned = []
    for text in texts:
        scores = given[text.example_id]
        for place, value in enumerate(scores.values):
            if not math.isfinite(value):
                raise _make_score_error(text.example_id, "numbers", f"{value} at place {place}")
        units = _list_unit_tokens(text, adapter, tokenizer)
        if scores.sources is not None:
            values = _sum_quoted_scores(text, scores, units, tokenizer)
        elif scores.spans is None:
            written = tokenizer.convert_ids_to_tokens(text.inputs["input_ids"])
            values = _sum_token_scores(text, scores, units, written)
        else:
            string = strings.get(text.example_id, "")
            values = _sum_span_scores(
                text,
                scores,
                _find_unit_spans(text, units, tokenizer, string),
                string,
            )
        by_token = [0.0] * text.n_tokens
        for unit, value in zip(units, values, strict=True):
            by_token[unit[0]] = value
        aligned.append(replace(text, scores=by_token))
    return aligned


def _list_unit_tokens(
    text: Text, adapter: AttentionModelBase, tokenizer: PreTrainedTokenizerBase
) -> list[list[int]]:
    """The tokens of every unit that is explained, in order."""
    batch = collate(adapter, [text], tokenizer.pad_token_id or 0)
    if "unit_ids" in text.inputs:  # of a passage: a key is a unit
        unit_of = text.inputs["unit_ids"]
    elif batch.content_mask.shape[1] != text.n_tokens:
        raise AttnProbeError(
            "expected a model that attends to the tokens of one text, to judge scores of tokens"
        )
    elif "units" in batch.inputs:
        unit_of = batch.inputs["units"][0].tolist()
    else:
        unit_of = [*range(text.n_tokens)]
    explained = batch.content_mask[0].nonzero()[:, 0].tolist()
    return [[k for k, unit in enumerate(unit_of) if unit == number] for number in explained]


def _find_unit_spans(
    text: Text,
    units: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
    string: str,
) -> list[tuple[int, int]]:
    """Where every unit starts and ends."""
    if {"segment_ids", "unit_ids"} & {*text.inputs} or not tokenizer.is_fast:
        raise AttnProbeError(
            "expected scores by unit, or of a passage by source, the words themselves: spans of "
            "characters are of single texts, whose tokens a fast tokenizer places"
        )
    offsets = tokenizer(string, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    return [strip_span(string, offsets[unit[0]][0], offsets[unit[-1]][1]) for unit in units]


def _sum_token_scores(
    text: Text,
    scores: UserScores,
    units: Sequence[Sequence[int]],
    written: Sequence[str],
) -> list[float]:
    """A score for each unit; those of the pieces of a word are added up.

    Args:
        written: every token of the text.
    """
    pieces = [[place] for unit in units for place in unit]
    known: dict[int, Sequence[Sequence[int]]]
    known = {
        text.n_tokens: [[k] for k in range(text.n_tokens)],
        len(pieces): pieces,
    }
    known[len(units)] = units
    if len(scores.values) not in known:
        lengths = " or ".join(map(str, sorted(known)))
        raise _make_score_error(text.example_id, f"{lengths} of them", f"{len(scores.values)}")
    places = known[len(scores.values)]
    named = [] if scores.tokens is None else zip(places, scores.tokens, strict=True)
    for tokens, token in named:
        own = [written[k] for k in tokens]
        special = text.inputs.get("special_tokens_mask")
        if not (special and special[tokens[0]]) and _remove_marks([token]) != _remove_marks(own):
            raise _make_score_error(
                text.example_id,
                f"those of the token {''.join(own)!r}",
                repr(token),
            )
    at = {tokens[0]: value for tokens, value in zip(places, scores.values, strict=True)}
    return [sum(at.get(token, 0.0) for token in unit) for unit in units]


def _sum_quoted_scores(
    text: Text,
    scores: UserScores,
    units: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
) -> list[float]:
    """The sum of the scores of what is quoted of each unit, or of what it is a part of."""
    ids, found = text.inputs["input_ids"], [0.0] * len(units)
    said = (tokenizer.decode([ids[k] for k in unit]) for unit in units)
    written = [str(words).strip() for words in said]
    for source, value in zip(scores.sources or (), scores.values, strict=True):
        quoted = source.strip()
        meant = [k for k, u in enumerate(written) if quoted in u or u in quoted]
        if not quoted or not meant:
            raise _make_score_error(text.example_id, "words of its passage", repr(quoted))
        for k in meant:
            found[k] += value
    return found


def _remove_marks(tokens: Iterable[str]) -> str:
    """Tokens without what their tokenizer marks them with."""
    return "".join(token.removeprefix("##").strip(WORD_START_MARKS) for token in tokens).casefold()


def _sum_span_scores(
    text: Text,
    scores: UserScores,
    units: Sequence[tuple[int, int]],
    string: str,
) -> list[float]:
    """The sum of the scores of spans inside a unit, or the score of the span around it.

    Args:
        units: where each starts and ends, in characters.
    """
    given = scores.spans or ()
    ends = [0, *chain.from_iterable(sorted(given)), len(string)]
    if ends != sorted(ends) or any(first == last for first, last in given):
        wanted = f"spans of its {len(string)} characters, none over another"
        raise _make_score_error(text.example_id, wanted, f"{[*given][:5]}…")
    spans = [strip_span(string, *span) for span in given]
    found = []
    for start, end in units:
        said = f"{string[start:end]!r}, characters {start} to {end}"
        inside = []
        for (first, last), value in zip(spans, scores.values, strict=True):
            if last <= start or end <= first:
                continue
            is_around, is_inside = (
                first <= start and end <= last,
                start <= first and last <= end,
            )
            if not (is_around or is_inside):
                raise _make_score_error(
                    text.example_id,
                    f"spans that do not cut {said}",
                    f"{first} to {last}",
                )
            inside.append(value)
        if not inside:
            raise _make_score_error(text.example_id, f"a span of {said}", "none")
        found.append(sum(inside))
    return found
