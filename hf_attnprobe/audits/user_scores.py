"""Reads scores from another explainer, and assigns them to the units of the audited texts.

A unit is a part of the text that the tests explain: a token, a word, or a sentence in a passage.
The user can provide one score per unit, per token, per character span, or per quotation from a
passage.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.audits.identity import hash_json
from hf_attnprobe.audits.text_scores import strip_span
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.serialization import parse_plain
from hf_attnprobe.data.sources import FILE_FORMATS, is_data_file, read_data_file
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import InputReader, Text
from hf_attnprobe.protocol import AttentionModelBase
from hf_attnprobe.statistics.wording import form_plural


WORD_START_MARKS = "Ġ▁ "
"""Characters that mark the start of a word in tokens, such as "Ġ" in "Ġgood"."""
LIBRARY_ATTRIBUTES = (
    ("word_attributions", "raw_input_ids"),  # captum
    ("attributions", "elements"),  # interpreto
    ("source_attributions", "source"),  # inseq
    ("values", "data"),  # SHAP
)
"""Names of the attributes that hold the scores and the tokens in results from other libraries.

For example, an ``Explanation`` from SHAP holds the scores in ``values`` and the tokens in ``data``.
"""


@dataclass(frozen=True)
class UserScores:
    """User-provided scores for one text.

    Attributes:
        values: The scores in text order.
        spans: Start and end of each score's text span, in characters; None for scores per unit or
            per token.
        tokens: Each score's token, as the explainer's tokenizer writes it; None if unknown.
        sources: Each score's quotation from the passage; None for other scores. Units that are not
            quoted have the score 0.

    Raises:
        AttnProbeError: If there are not as many spans, tokens or sources as scores.
    """

    values: Sequence[float]
    spans: Sequence[tuple[int, int]] | None = None
    tokens: Sequence[str] | None = None
    sources: Sequence[str] | None = None

    def __post_init__(self) -> None:
        n_scores = len(self.values)
        for name in ("spans", "tokens", "sources"):
            items = getattr(self, name)
            if items is not None and len(items) != n_scores:
                raise AttnProbeError(
                    f"expected {n_scores} {name}, one for each score, got {len(items)}"
                )


# --- Reading scores ------------------------------------------------------------------------------


def read_scores(scores: Any, ids: Sequence[int]) -> dict[int, UserScores]:
    """Read user-provided scores from a file, a mapping or a list.

    Args:
        scores: One of:

            - a file (csv, tsv, json, jsonl, parquet) with one row per score, or with one row per
              text that contains lists;
            - a mapping from text ids to scores;
            - a list with one entry per text, in the order of ``ids``.

            The scores for one text are a sequence of numbers, or a result object from captum
            (``VisualizationDataRecord``), SHAP (``Explanation``), inseq
            (``FeatureAttributionOutput``) or interpreto (``AttributionOutput``), or a table with
            the columns Score and Source, as ContextCite returns it.
        ids: Text ids, in the order of a list of scores.

    Returns:
        The scores by text id.

    Raises:
        AttnProbeError: If a file cannot be read, or if a list does not have one entry per text.
    """
    if isinstance(scores, str | Path):
        return _read_score_file(Path(scores))
    if isinstance(scores, Mapping):
        return {
            _parse_id(example_id): parse_scores(text_scores, example_id)
            for example_id, text_scores in scores.items()
        }
    all_scores = list_score_entries(scores)
    if len(all_scores) != len(ids):
        raise AttnProbeError(
            f"expected scores for {format_count(len(ids), 'text')}, but got scores for "
            f"{len(all_scores)}. Pass one entry per text, or a mapping from text ids to scores."
        )
    return {
        example_id: parse_scores(text_scores, example_id)
        for example_id, text_scores in zip(ids, all_scores, strict=True)
    }


def list_score_entries(scores: Any) -> list[Any]:
    """List the entries of user-provided scores that have no text ids, one entry per text.

    Args:
        scores: A list of scores or another iterable, see :func:`read_scores`.

    Raises:
        AttnProbeError: If the scores are not iterable.
    """
    try:
        # An inseq result holds one object per text in an attribute.
        return [*getattr(scores, "sequence_attributions", scores)]
    except TypeError as error:
        raise AttnProbeError(
            "expected a score file, a mapping from text ids to scores, or a list with one entry per "
            f"text, got {type(scores).__name__}"
        ) from error


def compute_score_fingerprint(scores: Mapping[int, UserScores] | Sequence[Any]) -> str:
    """Compute a fingerprint of all user-provided scores, also those of texts that are not audited.

    All shares of an audit therefore have the same fingerprint if they evaluate the same scores.

    Args:
        scores: The scores by text id, or a list with one entry per text, in text order.

    Returns:
        16 hexadecimal digits.
    """
    if not isinstance(scores, Mapping):
        # Without ids, the texts are numbered in the order of the list.
        scores = read_scores(scores, range(len(scores)))
    return hash_json({example_id: asdict(scores[example_id]) for example_id in scores})


@dataclass(frozen=True)
class ScoreRow:
    """A row in a score file, which holds a single score or all scores for one text as lists.

    Attributes:
        id: Text id.
        score: Score, or list of scores.
        unit: Unit index for each score.
        start: Start of each score's span, in characters.
        end: End of each score's span, in characters, exclusive.
        token: Token for each score.
        source: Quotation for each score.
    """

    id: int
    score: float | tuple[float, ...]
    unit: int | tuple[int, ...] | None = None
    start: int | tuple[int, ...] | None = None
    end: int | tuple[int, ...] | None = None
    token: str | tuple[str, ...] | None = None
    source: str | tuple[str, ...] | None = None


SCORE_COLUMNS = [field.name for field in fields(ScoreRow)]
"""Names of the columns in a score file: id, score, unit, start, end, token and source."""


def _parse_id(value: Any) -> int:
    """Parse a text id, which is a whole number or a string of digits."""
    if not isinstance(value, int | np.integer | str) or not str(value).isdecimal():
        raise AttnProbeError(f"expected a whole number as the text id of scores, got {value!r}")
    return int(value)


def _read_score_file(file: Path) -> dict[int, UserScores]:
    """Read a file with the scores that an explainer gave to words, and return them by text id."""
    if not is_data_file(file):
        raise AttnProbeError(f"expected a score file ({' or '.join(FILE_FORMATS)}), got {file}")
    try:
        table = read_data_file(file, string_columns=["token", "source"])
    except (OSError, ValueError) as error:
        raise AttnProbeError(f"cannot read the scores in {file} ({error})") from error
    columns = [name for name in SCORE_COLUMNS if name in table.column_names]
    if not {"id", "score"} <= set(columns):
        raise AttnProbeError(
            f"expected the columns 'id' and 'score' in {file}, got {', '.join(table.column_names)}. Rename "
            "the columns. The columns 'unit', 'start', 'end', 'token' and 'source' are optional."
        )
    rows_by_id: dict[int, list[ScoreRow]] = {}
    for row_index, cells in enumerate(table.select_columns(columns).to_list()):
        values = {name: value for name, value in cells.items() if value is not None}
        row = parse_plain(ScoreRow, values, f"correct row {row_index} of {file}")
        rows_by_id.setdefault(row.id, []).append(row)
    return {example_id: _merge_rows(example_id, rows) for example_id, rows in rows_by_id.items()}


def _merge_rows(example_id: int, rows: Sequence[ScoreRow]) -> UserScores:
    """Merge all rows of a score file that belong to one text.

    Args:
        example_id: Text id.
        rows: The rows; each holds a single score, or a list of scores.

    Returns:
        The scores in text order.

    Raises:
        AttnProbeError: If scores are missing, if another column does not have a value for each
            score, or if the units are not numbered from 0.
    """
    columns = {}
    for name in SCORE_COLUMNS[1:]:
        cells = pd.Series([getattr(row, name) for row in rows])
        columns[name] = cells.explode(ignore_index=True)
    table = pd.DataFrame(columns, dtype=object).dropna(axis="columns", how="all")
    if "score" not in table:
        raise _make_score_error(example_id, "expected numbers, got none")
    for name in table.columns.drop("score", errors="ignore"):
        if table[name].isna().any():
            n_values = table[name].count()
            raise _make_score_error(
                example_id,
                f"expected {len(table)} values in the column {name!r}, one for each score, got {n_values}",
            )
    if "unit" in table:
        table = table.sort_values("unit", kind="stable")
        if list(table.unit) != [*range(len(table))]:
            raise _make_score_error(
                example_id,
                "expected the numbers 0, 1, 2, … in the column 'unit', got "
                f"{list(table.unit)[:5]}…. Use the score 0 for units without a score.",
            )
    spans = None
    if "unit" not in table and {"start", "end"} <= set(table):
        spans = [*zip(table.start, table.end, strict=True)]
    tokens = list(table.token) if "token" in table else None
    sources = list(table.source) if "source" in table else None
    return UserScores(list(table.score), spans, tokens, sources)


def parse_scores(scores: Any, example_id: Any) -> UserScores:
    """Parse the scores for one text.

    Args:
        scores: A sequence of numbers, or a result object from another library; see
            :func:`read_scores`.
        example_id: Text id, for error messages.

    Returns:
        The scores.

    Raises:
        AttnProbeError: If the scores are not a one-dimensional sequence of numbers.
    """
    if isinstance(scores, UserScores):
        return scores
    # A coloured pandas table (Styler) holds the plain table in an attribute.
    table = getattr(scores, "data", scores)
    if isinstance(table, pd.DataFrame) and {"Score", "Source"} <= set(table):
        return UserScores(list(table.Score), sources=list(table.Source))
    values, tokens = scores, None
    for score_attribute, token_attribute in LIBRARY_ATTRIBUTES:
        library_scores = getattr(scores, score_attribute, None)
        is_value = library_scores is not None and not callable(library_scores)
        if is_value and hasattr(scores, token_attribute):
            values, tokens = library_scores, getattr(scores, token_attribute)
            break
    array = _convert_to_vector(values, type(scores).__name__, example_id)
    if tokens is not None:
        tokens = [str(getattr(token, "token", token)) for token in tokens]
    return UserScores(array.tolist(), None, tokens)


def _convert_to_vector(values: Any, type_name: str, example_id: Any) -> np.ndarray:
    """Convert numbers, or a tensor with a single dimension larger than 1, to a vector.

    Args:
        values: The numbers.
        type_name: Name of the type that contains them, for error messages.
        example_id: Text id, for error messages.

    Returns:
        The numbers, `[n]`.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        # NumPy has no bfloat16, and complex numbers are refused below.
        values = values if values.is_complex() else values.double()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise _make_score_error(
            example_id, "expected one score per token, got nested lists of different lengths"
        ) from error
    if array.dtype.kind not in "fiu":
        raise _make_score_error(
            example_id, f"expected a list of numbers, got {type_name} of {array.dtype}"
        )
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim != 1:
        shape = " × ".join(map(str, array.shape))
        raise _make_score_error(
            example_id,
            f"expected one score per token, got an array of {shape} scores. Select the scores for "
            "one class and one generation step.",
        )
    return array


def _make_score_error(example_id: Any, problem: str) -> AttnProbeError:
    """Make the error for scores that do not suit their text."""
    return AttnProbeError(f"scores of text {example_id}: {problem}")


# --- Assigning scores to units -------------------------------------------------------------------


def attach_scores(
    texts: Sequence[Text],
    scores_by_id: Mapping[int, UserScores],
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | InputReader,
    string_by_id: Mapping[int, str],
) -> list[Text]:
    """Attach a score to the first token of every unit, in all texts, bags or images.

    Args:
        texts: The texts as tokens.
        scores_by_id: User-provided scores, by text id.
        adapter: The audited model.
        tokenizer: The model's tokenizer, or the reader of bags or images.
        string_by_id: The original texts by id.

    Returns:
        The texts with their scores.

    Raises:
        AttnProbeError: If a text has no scores, if a score is not finite, or if scores do not fit
            the units.
    """
    missing_ids = [text.example_id for text in texts if text.example_id not in scores_by_id]
    if missing_ids:
        raise AttnProbeError(
            f"{len(missing_ids)} of {format_count(len(texts), 'text')} have no scores, such as text "
            f"{missing_ids[0]}. Provide scores for all texts, or audit fewer texts with --test-limit."
        )
    texts_with_scores = []
    for text in texts:
        scores = scores_by_id[text.example_id]
        for index, value in enumerate(scores.values):
            if not math.isfinite(value):
                raise _make_score_error(
                    text.example_id, f"expected finite numbers, got {value} at position {index}"
                )
        units = _list_unit_tokens(text, adapter, tokenizer.pad_token_id or 0)
        if isinstance(tokenizer, InputReader):
            unit_scores = _select_instance_scores(text, scores, len(units), adapter.unit)
        elif scores.sources is not None:
            unit_scores = _sum_quoted_scores(text, scores, units, tokenizer)
        elif scores.spans is None:
            model_tokens = tokenizer.convert_ids_to_tokens(text.inputs["input_ids"])
            unit_scores = _sum_token_scores(text, scores, units, model_tokens)
        else:
            string = string_by_id.get(text.example_id, "")
            unit_spans = _find_unit_spans(text, units, tokenizer, string)
            unit_scores = _sum_span_scores(text, scores, unit_spans, string)
        token_scores = [0.0] * text.n_tokens
        for unit, unit_score in zip(units, unit_scores, strict=True):
            token_scores[unit[0]] = unit_score
        texts_with_scores.append(replace(text, scores=token_scores))
    return texts_with_scores


def _select_instance_scores(
    text: Text, scores: UserScores, n_instances: int, instance: str
) -> Sequence[float]:
    """Return the scores of a bag or an image.

    Args:
        text: The bag or image.
        scores: The scores.
        n_instances: Number of its instances, such as patches.
        instance: Name of an instance.

    Raises:
        AttnProbeError: If there is not one score for each instance.
    """
    if scores.sources is not None or scores.spans is not None or scores.tokens is not None:
        raise _make_score_error(
            text.example_id,
            "bags and images have no characters, tokens or sources. Provide one score per "
            f"{instance}, with the columns id, unit and score",
        )
    if len(scores.values) != n_instances:
        raise _make_score_error(
            text.example_id,
            f"expected one score for each of {n_instances} {form_plural(instance)}, got "
            f"{len(scores.values)}",
        )
    return scores.values


def _list_unit_tokens(
    text: Text, adapter: AttentionModelBase, pad_token_id: int
) -> list[list[int]]:
    """List the token positions that belong to each explained unit, in text order."""
    batch = collate(adapter, [text], pad_token_id)
    # For a passage, the encoding already states the unit of every token.
    if "unit_ids" in text.inputs:
        unit_of_token = text.inputs["unit_ids"]
    elif batch.content_mask.shape[1] != text.n_tokens:
        raise AttnProbeError(
            "scores for words or tokens cannot be used with this model, because its attention is "
            "not over the tokens of the text"
        )
    elif "units" in batch.inputs:
        unit_of_token = batch.inputs["units"][0].tolist()
    else:
        # Every token is a unit.
        return [[position] for position in batch.content_mask[0].nonzero()[:, 0].tolist()]
    # The mask is True at the explained units, and False at special tokens.
    explained_units = batch.content_mask[0].nonzero()[:, 0].tolist()
    return [
        [position for position, unit in enumerate(unit_of_token) if unit == explained_unit]
        for explained_unit in explained_units
    ]


def _find_unit_spans(
    text: Text,
    units: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
    string: str,
) -> list[tuple[int, int]]:
    """Find each unit's start and end in the text, in characters."""
    has_several_parts = bool({"segment_ids", "unit_ids"} & set(text.inputs))
    if has_several_parts or not tokenizer.is_fast:
        raise AttnProbeError(
            "scores for character spans need a single text and a fast tokenizer. Provide one score "
            "per unit instead. For the sources in a passage, use the column 'source'."
        )
    offsets = tokenizer(string, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    # A unit extends from the start of its first token to the end of its last token.
    return [strip_span(string, offsets[unit[0]][0], offsets[unit[-1]][1]) for unit in units]


def _sum_token_scores(
    text: Text,
    scores: UserScores,
    units: Sequence[Sequence[int]],
    model_tokens: Sequence[str],
) -> list[float]:
    """Sum the token scores within each unit.

    The score count shows whether there is one score per token of the text, per token inside a unit,
    or per unit.

    Args:
        text: The text as tokens.
        scores: The scores.
        units: Token positions for every unit.
        model_tokens: The text's tokens, as the model's tokenizer writes them.

    Returns:
        One score per unit.
    """
    unit_tokens = [[position] for unit in units for position in unit]
    all_tokens = [[position] for position in range(text.n_tokens)]
    # If two lengths are equal, the later entry replaces the earlier one.
    scored_parts_by_length: dict[int, Sequence[Sequence[int]]] = {
        text.n_tokens: all_tokens,
        len(unit_tokens): unit_tokens,
    }
    scored_parts_by_length[len(units)] = units
    if len(scores.values) not in scored_parts_by_length:
        lengths = " or ".join(map(str, sorted(scored_parts_by_length)))
        raise _make_score_error(
            text.example_id,
            f"expected {lengths} scores (one per unit or one per token), got {len(scores.values)}",
        )
    scored_parts = scored_parts_by_length[len(scores.values)]
    if scores.tokens is not None:
        _check_tokens(text, scored_parts, scores.tokens, model_tokens)
    score_by_first_token = {
        positions[0]: value for positions, value in zip(scored_parts, scores.values, strict=True)
    }
    return [sum(score_by_first_token.get(token, 0.0) for token in unit) for unit in units]


def _check_tokens(
    text: Text,
    scored_parts: Sequence[Sequence[int]],
    user_tokens: Sequence[str],
    model_tokens: Sequence[str],
) -> None:
    """Raise AttnProbeError if scores were computed for other tokens than the model's tokens.

    Letter case, tokenizer marks such as "##", and special tokens are ignored.
    """
    special_mask = text.inputs.get("special_tokens_mask")
    for positions, user_token in zip(scored_parts, user_tokens, strict=True):
        if special_mask and special_mask[positions[0]]:
            continue
        part_tokens = [model_tokens[position] for position in positions]
        if _remove_marks([user_token]) != _remove_marks(part_tokens):
            raise _make_score_error(
                text.example_id,
                f"expected the token {''.join(part_tokens)!r}, got {user_token!r}",
            )


def _remove_marks(tokens: Iterable[str]) -> str:
    """Join tokens in lower case, without tokenizer marks such as "##" or "Ġ"."""
    return "".join(token.removeprefix("##").strip(WORD_START_MARKS) for token in tokens).casefold()


def _sum_quoted_scores(
    text: Text,
    scores: UserScores,
    units: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
) -> list[float]:
    """Compute each unit's score as the sum over all quotations that overlap the unit.

    A quotation overlaps a unit if one of the two strings contains the other.

    Args:
        text: The text as tokens.
        scores: The scores with their quotations.
        units: Token positions for every unit.
        tokenizer: The model's tokenizer.

    Returns:
        One score per unit.
    """
    ids = text.inputs["input_ids"]
    unit_strings = [
        str(tokenizer.decode([ids[position] for position in unit])).strip() for unit in units
    ]
    unit_scores = [0.0] * len(units)
    for source, value in zip(scores.sources or (), scores.values, strict=True):
        quotation = source.strip()
        quoted_units = [
            index
            for index, unit_string in enumerate(unit_strings)
            if quotation in unit_string or unit_string in quotation
        ]
        if not quotation or not quoted_units:
            raise _make_score_error(
                text.example_id, f"the quotation {quotation!r} does not occur in the passage"
            )
        for index in quoted_units:
            unit_scores[index] += value
    return unit_scores


def _sum_span_scores(
    text: Text,
    scores: UserScores,
    unit_spans: Sequence[tuple[int, int]],
    string: str,
) -> list[float]:
    """Compute each unit's score from the spans that overlap the unit.

    The score is the sum over all spans inside the unit, or else the score of the span that contains
    the unit.

    Args:
        text: The text as tokens.
        scores: The scores with their spans.
        unit_spans: Start and end for every unit in characters.
        string: The original text.

    Returns:
        One score per unit.
    """
    raw_spans = scores.spans or ()
    boundaries = [0, *chain.from_iterable(sorted(raw_spans)), len(string)]
    if boundaries != sorted(boundaries) or any(start == end for start, end in raw_spans):
        raise _make_score_error(
            text.example_id,
            f"expected nonempty spans from 0 to {len(string)} that do not overlap, got "
            f"{list(raw_spans)[:5]}…",
        )
    spans = [strip_span(string, *span) for span in raw_spans]
    unit_scores = []
    for unit_start, unit_end in unit_spans:
        unit_name = f"{string[unit_start:unit_end]!r} (characters {unit_start} to {unit_end})"
        overlapping_scores = []
        for (start, end), value in zip(spans, scores.values, strict=True):
            if end <= unit_start or unit_end <= start:
                continue
            contains_unit = start <= unit_start and unit_end <= end
            is_inside_unit = unit_start <= start and end <= unit_end
            if not (contains_unit or is_inside_unit):
                raise _make_score_error(
                    text.example_id,
                    f"the span from {start} to {end} covers only a part of the unit {unit_name}. "
                    "Extend the span to the whole unit.",
                )
            overlapping_scores.append(value)
        if not overlapping_scores:
            raise _make_score_error(
                text.example_id, f"expected a span for every unit, got none for {unit_name}"
            )
        unit_scores.append(sum(overlapping_scores))
    return unit_scores
