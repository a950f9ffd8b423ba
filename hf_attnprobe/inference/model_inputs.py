"""Choose the columns that a model reads in addition to its texts, and align them with its tokens."""

import inspect
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.transformer.custom_model import CustomModel
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.input_names import TEXT_INPUT, TOKEN_INPUT, WORD_INPUT
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.model_inputs import TOKENIZER_COLUMNS, list_input_columns


if TYPE_CHECKING:
    import datasets


COLUMN_ALIASES = {"bbox": ("bboxes", "boxes")}
"""Maps a model input to other usual names of its column."""
TARGET_PARAMETERS = frozenset(
    [
        "labels",
        "label",
        "start_positions",
        "end_positions",
        "next_sentence_label",
        "sentence_order_label",
        "cls_index",
        "is_impossible",
    ]
)
"""Parameters of `forward` methods that only serve to compute a loss."""
UNSUPPORTED_PARAMETERS = frozenset(
    [
        "position_ids",
        "inputs_embeds",
        "head_mask",
        "decoder_input_ids",
        "decoder_attention_mask",
        "decoder_inputs_embeds",
        "encoder_outputs",
        "past_key_values",
        "perm_mask",
        "target_mapping",
    ]
)
"""Parameters of `forward` methods whose values are not valid for a text with deleted words."""
LAYOUT_PARAMETERS = (
    "bbox",
    "pixel_values",
    "image",
    "xpath_tags_seq",
    "xpath_subs_seq",
    "entity_ids",
)
"""Parameters of models of texts that carry essential information apart from the text.

If the data has no such column, a warning is logged, because the model was trained with them.
"""
SEPARATOR_BOX = [1000, 1000, 1000, 1000]
"""Box of the separator token in LayoutLM; all other special tokens have the box [0, 0, 0, 0]."""


def choose_model_inputs(
    model: Any, columns: Sequence[str], refusal_reason: str | None = None
) -> dict[str, str]:
    """Choose the columns of a data set that a model reads in addition to its texts.

    Args:
        model: The audited model, without wrappers.
        columns: Names of the columns that are neither texts nor labels.
        refusal_reason: Reason why the model's adapter accepts no further inputs; None if it does.

    Returns:
        Column names by the name of the model input.

    Raises:
        AttnProbeError: If the model reads a column that an audit cannot pass.
    """
    chosen_columns = {}
    for name in _list_parameters(model):
        candidates = (name, *COLUMN_ALIASES.get(name, ()))
        present = [column for column in candidates if column in columns]
        if present and name not in TARGET_PARAMETERS:
            chosen_columns[name] = present[0]
    unsupported = sorted(set(chosen_columns) & UNSUPPORTED_PARAMETERS)
    reason = "these values are not valid for texts with deleted words"
    if refusal_reason is not None:
        unsupported = sorted(set(chosen_columns) - {*TOKENIZER_COLUMNS})
        reason = refusal_reason
    if unsupported:
        names = ", ".join(chosen_columns[name] for name in unsupported)
        raise AttnProbeError(
            f"this model also reads {names}, but an audit cannot pass this column to the model, because "
            f"{reason}. Remove it from the data if the model does not need it."
        )
    return chosen_columns


def list_missing_inputs(model: Any, chosen_columns: dict[str, str]) -> list[str]:
    """List the essential inputs of a model of texts that the data does not contain.

    Args:
        model: The audited model, without wrappers.
        chosen_columns: Result of `choose_model_inputs`.
    """
    if getattr(model, "main_input_name", None) != "input_ids":
        return []
    parameters = _list_parameters(model)
    return [name for name in LAYOUT_PARAMETERS if name in parameters and name not in chosen_columns]


def _list_parameters(model: Any) -> list[str]:
    """List the parameter names of the `forward` method of a model, or of a user's own module."""
    module = model.module if isinstance(model, CustomModel) else model
    return list(inspect.signature(module.forward).parameters)


def check_needs_no_boxes(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise AttnProbeError if a tokenizer reads words and boxes instead of texts.

    Examples are the tokenizers of LayoutLMv2 and LayoutLMv3.

    Args:
        tokenizer: The model's tokenizer.
    """
    if "boxes" in inspect.signature(type(tokenizer).__call__).parameters:
        raise AttnProbeError(
            f"the tokenizer {type(tokenizer).__name__} reads words together with their boxes, but an "
            "audit needs a tokenizer of texts. Load its file tokenizer.json with "
            "PreTrainedTokenizerFast, and add a column 'bbox' with one box per token to the data."
        )


def align_model_inputs(
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    inputs: dict[str, list[Any]],
    offsets: Sequence[Sequence[tuple[int, int]]] | None,
) -> None:
    """Add the further columns that a model reads to the inputs of encoded texts.

    Values per word are repeated for all tokens of the word. Special tokens get 0, except that the
    boxes of LayoutLM have their usual values.

    Args:
        tokenizer: The model's tokenizer.
        examples: The examples.
        inputs: The texts' inputs by name, to which tensors `[tokens, ...]` are added, or tensors
            `[...]` under a name with the prefix `TEXT_INPUT`.
        offsets: Start and end of every token in characters; None for a slow tokenizer.

    Raises:
        AttnProbeError: If a column does not have one value per word or token, or if token ids in
            the data differ from those of the tokenizer.
    """
    columns = {name: read_column(examples, name) for name in list_input_columns(examples)}
    ids = read_column(examples, "example_id")
    padding_masks = columns.pop(f"{TOKEN_INPUT}attention_mask", None)
    for column, values in columns.items():
        name = column.partition(":")[2]
        if column.startswith(TEXT_INPUT):
            inputs[column] = [torch.tensor(value) for value in values]
            continue
        word_indices = None
        if column.startswith(WORD_INPUT):
            word_indices = _find_word_indices(tokenizer, examples, inputs, offsets, name)
        rows: list[Any] = []
        for row, token_ids in enumerate(inputs["input_ids"]):
            value = values[row]
            if padding_masks is not None and word_indices is None:
                value = _remove_padding(value, padding_masks[row])
            if word_indices is None and len(value) != len(token_ids):
                raise AttnProbeError(
                    f"the model reads the column {name!r}, which has "
                    f"{format_count(len(value), 'value')} for text {ids[row]}, but this text has "
                    f"{format_count(len(token_ids), 'token')}. Provide one value per word or per token "
                    "(including special tokens), or remove the column."
                )
            if word_indices is not None:
                special_values = _make_special_values(tokenizer, name, value, token_ids)
                value = [
                    special_values[position] if index < 0 else value[index]
                    for position, index in enumerate(word_indices[row])
                ]
            if name == "input_ids" and value != token_ids:
                raise AttnProbeError(
                    f"the column 'input_ids' of text {ids[row]} differs from the tokens of its text, "
                    "perhaps because it was cut to another length. Remove the columns of the "
                    "tokenizer from the data, or the column of the texts must match them."
                )
            rows.append(value if name in TOKENIZER_COLUMNS else torch.tensor(value))
        if name != "input_ids":
            inputs[name] = rows


def _remove_padding(values: list[Any], padding_mask: Sequence[int]) -> list[Any]:
    """Remove the values of padding tokens, at which the mask is 0, if there is one mask per value."""
    if len(values) != len(padding_mask):
        return values
    return [value for value, is_token in zip(values, padding_mask, strict=True) if is_token]


def _find_word_indices(
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    inputs: dict[str, list[Any]],
    offsets: Sequence[Sequence[tuple[int, int]]] | None,
    name: str,
) -> list[list[int]]:
    """Find the word of each token, where words are separated by white space.

    The words of the second text in a pair are numbered after those of the first text.

    Returns:
        For each text, one index per token, and -1 for special tokens.
    """
    if offsets is None:
        raise AttnProbeError(
            f"the column {name!r} has one value per word, which needs a fast tokenizer, got "
            f"{type(tokenizer).__name__}. Load the fast tokenizer of the model."
        )
    texts = read_column(examples, "text")
    second_texts: list[str] = [""] * len(texts)
    if "text_pair" in examples.column_names:
        second_texts = read_column(examples, "text_pair")
    segment_rows = inputs.get("segment_ids") or [
        [0] * len(token_ids) for token_ids in inputs["input_ids"]
    ]
    all_indices = []
    for row, token_spans in enumerate(offsets):
        index_by_character = [_index_characters(text) for text in (texts[row], second_texts[row])]
        n_first_words = len(texts[row].split())
        row_indices = []
        for position, (start, end) in enumerate(token_spans):
            is_special = inputs["special_tokens_mask"][row][position]
            segment = max(segment_rows[row][position], 0)
            # A token may begin with the white space in front of its word.
            indices = [index for index in index_by_character[segment][start:end] if index >= 0]
            index = -1 if is_special or not indices else indices[0] + segment * n_first_words
            row_indices.append(index)
        all_indices.append(row_indices)
    return all_indices


def _index_characters(text: str) -> list[int]:
    """Return the index of the word that each character belongs to; -1 for white space.

    >>> _index_characters("a big")
    [0, -1, 1, 1, 1]
    """
    indices, n_words = [], 0
    for position, character in enumerate(text):
        is_space = character.isspace()
        if not is_space and (position == 0 or text[position - 1].isspace()):
            n_words += 1
        indices.append(-1 if is_space else n_words - 1)
    return indices


def _make_special_values(
    tokenizer: PreTrainedTokenizerBase, name: str, values: Sequence[Any], token_ids: Sequence[int]
) -> list[Any]:
    """Return a value for each position of a text, which is used there for a special token."""
    zero = torch.zeros_like(torch.tensor(values[0])).tolist() if values else 0
    special_values = [zero] * len(token_ids)
    if name == "bbox":
        separator_box = getattr(tokenizer, "sep_token_box", SEPARATOR_BOX)
        special_values = [
            separator_box if token_id == tokenizer.sep_token_id else zero for token_id in token_ids
        ]
    return special_values


def pad_token_values(rows: Sequence[Tensor], n_keys: int, *, pads_left: bool) -> Tensor:
    """Pad tensors with one value per token to the same length with 0, and stack them.

    Args:
        rows: One tensor `[tokens, ...]` per text.
        n_keys: Number of positions after padding.
        pads_left: Whether padding is added on the left.

    Returns:
        Values `[batch, keys, ...]`.
    """
    # Bags may have different precision.
    dtype = reduce(torch.promote_types, [values.dtype for values in rows])
    padded = rows[0].new_zeros(len(rows), n_keys, *rows[0].shape[1:], dtype=dtype)
    for row, values in enumerate(rows):
        start = n_keys - len(values) if pads_left else 0
        padded[row, start : start + len(values)] = values
    return padded
