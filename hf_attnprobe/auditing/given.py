"""Scores that somebody else gave the tokens of texts, read and put at the model's units.

A unit is what the model's tests explain: a token, a word of several pieces, or of a passage a
sentence. Scores are given for every unit, for every token of the encoded text, or for spans of characters.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import AttentionModelBase
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text


COLUMNS = "id and score, and unit, or start and end of a span of characters; token besides"
MARKS = "Ġ▁ "
"""What tokenizers write in front of a token that begins a word."""


@dataclass(frozen=True)
class GivenScores:
    """The scores of one text.

    Attributes:
        values: in the order of the text.
        spans: start and end of what each is of, in characters; None: of units, or of tokens.
        tokens: what each is of, as its author's tokenizer writes it; None where not said.
    """

    values: Sequence[float]
    spans: Sequence[tuple[int, int]] | None = None
    tokens: Sequence[str] | None = None


# --- reading ----------------------------------------------------------------------------------


def read_scores(given: Any, ids: Sequence[int]) -> dict[int, GivenScores]:
    """Scores by the id of their text.

    Args:
        given: a file (.parquet, .jsonl) with a row per score, or a row per text with lists; a
            mapping by id; or one object per text in their order: numbers, or what captum
            (``VisualizationDataRecord``), SHAP (``Explanation``), inseq
            (``FeatureAttributionOutput``) or interpreto (``AttributionOutput``) return.
        ids: of the texts in their order.

    Raises:
        AttnProbeError: a file that cannot be read, or another number of objects than texts.
    """
    if isinstance(given, str | Path):
        return _of_file(Path(given))
    if isinstance(given, Mapping):
        return {int(k): scores_of(one, k) for k, one in given.items()}
    several = [*getattr(given, "sequence_attributions", given)]
    if len(several) != len(ids):
        raise AttnProbeError(
            f"expected scores of {len(ids)} texts, got those of {len(several)}; give them in "
            "the order of the texts, or by id"
        )
    return {k: scores_of(one, k) for k, one in zip(ids, several, strict=True)}


def _of_file(file: Path) -> dict[int, GivenScores]:
    readers = {".parquet": pd.read_parquet, ".jsonl": lambda f: pd.read_json(f, lines=True)}
    if file.suffix not in readers:
        raise AttnProbeError(f"expected scores in a file .parquet or .jsonl, got {file}")
    try:
        rows = readers[file.suffix](file)
    except (OSError, ValueError) as error:
        raise AttnProbeError(f"cannot read the scores in {file}: {error}") from error
    if not {"id", "score"} <= {*rows.columns}:
        raise AttnProbeError(
            f"expected the columns {COLUMNS}; {file} has {', '.join(map(str, rows.columns))}"
        )
    for value in rows.id:
        if not isinstance(value, int | np.integer):
            raise AttnProbeError(f"expected whole numbers as id in {file}, got {value!r}")
    lists = [name for name in rows.columns if rows[name].map(type).isin([list, np.ndarray]).all()]
    rows = rows.explode(lists) if "score" in lists else rows
    return {int(k): _of_rows(k, of_text) for k, of_text in rows.groupby("id", sort=False)}


def _of_rows(example_id: Any, rows: pd.DataFrame) -> GivenScores:
    spans = None
    if "unit" in rows:
        rows = rows.sort_values("unit", kind="stable")
        if [*rows.unit] != [*range(len(rows))]:
            raise _wrong(example_id, "units numbered from 0, each once", f"{[*rows.unit][:5]}…")
    elif {"start", "end"} <= {*rows.columns}:
        spans = [(int(a), int(b)) for a, b in zip(rows.start, rows.end, strict=True)]
    tokens = [str(token) for token in rows.token] if "token" in rows else None
    return GivenScores([*pd.to_numeric(rows.score, errors="coerce")], spans, tokens)


def scores_of(one: Any, example_id: Any) -> GivenScores:
    """The scores of one text in numbers, or in the object of a library.

    Raises:
        AttnProbeError: other than one number for each token.
    """
    if isinstance(one, GivenScores):
        return one
    values, tokens = one, None
    for scores, words in OF_LIBRARIES:
        found = getattr(one, scores, None)
        if found is not None and not callable(found) and hasattr(one, words):
            values, tokens = found, getattr(one, words)
            break
    values = values.detach().cpu().float() if hasattr(values, "detach") else values
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim != 1:
        shape = " × ".join(map(str, array.shape))
        raise _wrong(
            example_id, "a score for each token", f"{shape}; choose one class, and one step"
        )
    if tokens is not None:
        tokens = [str(getattr(token, "token", token)) for token in tokens]
    return GivenScores(array.tolist(), None, tokens)


OF_LIBRARIES = (
    ("word_attributions", "raw_input_ids"),  # captum
    ("attributions", "elements"),  # interpreto
    ("source_attributions", "source"),  # inseq
    ("values", "data"),  # SHAP
)
"""Where libraries keep scores and tokens of a text."""


def _wrong(example_id: Any, expected: str, got: str) -> AttnProbeError:
    return AttnProbeError(f"scores of text {example_id}: expected {expected}, got {got}")


# --- putting them at the units ------------------------------------------------------------------


def with_scores(
    texts: Sequence[Text],
    given: Mapping[int, GivenScores],
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
                raise _wrong(text.example_id, "numbers", f"{value} at place {place}")
        units = _units(text, adapter, tokenizer)
        if scores.spans is None:
            written = tokenizer.convert_ids_to_tokens(text.inputs["input_ids"])
            values = _at_places(text, scores, units, written)
        else:
            string = strings.get(text.example_id, "")
            values = _at_spans(text, scores, _in_characters(text, units, tokenizer, string), string)
        by_token = [0.0] * text.n_tokens
        for unit, value in zip(units, values, strict=True):
            by_token[unit[0]] = value
        aligned.append(replace(text, scores=by_token))
    return aligned


def _units(
    text: Text, adapter: AttentionModelBase, tokenizer: PreTrainedTokenizerBase
) -> list[list[int]]:
    """The tokens of every unit that is explained, in order."""
    batch = collate(adapter, [text], tokenizer.pad_token_id or 0)
    if "unit_ids" in text.inputs:  # of a passage: a key is a unit
        unit_of = text.inputs["unit_ids"]
        numbers = batch.content_mask[0].nonzero()[:, 0].tolist()
        return [[k for k, unit in enumerate(unit_of) if unit == number] for number in numbers]
    if batch.content_mask.shape[1] != text.n_tokens:
        raise AttnProbeError(
            "expected a model that attends to the tokens of one text, to judge scores of tokens"
        )
    firsts = batch.content_mask[0].nonzero()[:, 0].tolist()
    if "units" not in batch.inputs:
        return [[place] for place in firsts]
    unit_of = batch.inputs["units"][0].tolist()
    return [[k for k, unit in enumerate(unit_of) if unit == first] for first in firsts]


def _in_characters(
    text: Text, units: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase, string: str
) -> list[tuple[int, int]]:
    """Where every unit starts and ends."""
    if {"segment_ids", "unit_ids"} & {*text.inputs} or not tokenizer.is_fast:
        raise AttnProbeError(
            "expected scores by unit: spans of characters are of single texts, whose tokens a "
            "fast tokenizer places"
        )
    offsets = tokenizer(string, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    return [_stripped(string, offsets[unit[0]][0], offsets[unit[-1]][1]) for unit in units]


def _at_places(
    text: Text, scores: GivenScores, units: Sequence[Sequence[int]], written: Sequence[str]
) -> list[float]:
    """A score for each unit; those of the pieces of a word are added up.

    Args:
        written: every token of the text.
    """
    pieces = [[place] for unit in units for place in unit]
    known: dict[int, Sequence[Sequence[int]]]
    known = {text.n_tokens: [[k] for k in range(text.n_tokens)], len(pieces): pieces}
    known[len(units)] = units
    if len(scores.values) not in known:
        lengths = " or ".join(map(str, sorted(known)))
        raise _wrong(text.example_id, f"{lengths} of them", f"{len(scores.values)}")
    places = known[len(scores.values)]
    for tokens, token in zip(places, scores.tokens or (), strict=False):
        own = [written[k] for k in tokens]
        special = text.inputs.get("special_tokens_mask")
        if not (special and special[tokens[0]]) and _plain([token]) != _plain(own):
            raise _wrong(text.example_id, f"those of the token {''.join(own)!r}", repr(token))
    at = {tokens[0]: value for tokens, value in zip(places, scores.values, strict=True)}
    return [sum(at.get(token, 0.0) for token in unit) for unit in units]


def _plain(tokens: Iterable[str]) -> str:
    """Tokens without what their tokenizer marks them with."""
    return "".join(token.removeprefix("##").strip(MARKS) for token in tokens).casefold()


def _at_spans(
    text: Text, scores: GivenScores, units: Sequence[tuple[int, int]], string: str
) -> list[float]:
    """The sum of the scores of spans inside a unit, or the score of the span around it.

    Args:
        units: where each starts and ends, in characters.
    """
    spans = [_stripped(string, *span) for span in scores.spans or ()]
    found = []
    for start, end in units:
        said = f"{string[start:end]!r}, characters {start} to {end}"
        inside = []
        for (first, last), value in zip(spans, scores.values, strict=True):
            if last <= start or end <= first:
                continue
            is_around, is_inside = first <= start and end <= last, start <= first and last <= end
            if not (is_around or is_inside):
                raise _wrong(text.example_id, f"spans that do not cut {said}", f"{first} to {last}")
            inside.append(value)
        if not inside:
            raise _wrong(text.example_id, f"a span of {said}", "none")
        found.append(sum(inside))
    return found


def _stripped(string: str, start: int, end: int) -> tuple[int, int]:
    """A span without the white space around it."""
    own = string[start:end]
    return start + len(own) - len(own.lstrip()), start + len(own.rstrip())
