"""Forms batches of texts within a memory budget, and pads them to tensors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.hardware import split_into_chunks
from hf_attnprobe.core.input_names import TEXT_INPUT
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.inference.model_inputs import pad_token_values
from hf_attnprobe.protocol import NON_MODEL_COLUMNS, AttentionModel, AttentionModelBase, Batch


PAD_VALUES = {
    "attention_mask": 0,
    "special_tokens_mask": 1,
    "token_type_ids": 0,
    "word_ids": -1,
    "segment_ids": -1,
    "held": 0,
    "rationale": False,
    "labelled": 0,
    "unit_ids": -1,
    "other_ids": -1,
    "tags": -1,
    "scores": 0.0,
    "items": 0,
}
"""Value that fills padding positions, by the name of the model input.

The value −1 means "no word", "no unit" and so on. The name ``input_ids`` is missing, because its
value is the tokenizer's padding token.
"""
BYTES_PER_UNIT = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
"""Maps a unit of memory to its number of bytes. A size without a unit is in bytes."""


def sort_by_length(texts: Sequence[Text]) -> list[Text]:
    """Sort texts by token count, and texts with the same count by id."""
    return sorted(texts, key=lambda text: (text.n_tokens, text.example_id))


def iterate_batches(
    adapter: AttentionModelBase, texts: Sequence[Text], pad_token_id: int, batch_size: int
) -> Iterator[Batch]:
    """Yield texts in their given order as collated batches on the model's device.

    Args:
        adapter: The model.
        texts: The texts.
        pad_token_id: Token id for padding.
        batch_size: Number of texts per batch.

    Yields:
        One batch at a time.
    """
    device = get_process_state().device
    for batch_texts in split_into_chunks(texts, batch_size):
        batch = collate(adapter, batch_texts, pad_token_id)
        tokenizer_output = {
            name: values.to(device) for name, values in batch.tokenizer_output.items()
        }
        yield replace(batch, tokenizer_output=tokenizer_output)


def form_batches(
    texts: Sequence[Text],
    bytes_per_text: Callable[[int], int],
    memory_budget: int,
    batch_size: int,
) -> Iterator[list[Text]]:
    """Form batches of similarly long texts, each within the memory budget.

    Args:
        texts: The texts, at least one.
        bytes_per_text: Function that takes a token count and returns the bytes per text in a batch.
        memory_budget: Memory that a batch may take, in bytes. A batch with a single text may exceed
            it.
        batch_size: Maximum number of texts per batch.

    Yields:
        Batches with increasing text length. The longest text in a batch determines the memory for
        all its texts, because they are padded to this length.
    """
    batch: list[Text] = []
    for text in sort_by_length(texts):
        n_bytes = (len(batch) + 1) * bytes_per_text(text.n_tokens)
        if batch and (len(batch) >= batch_size or n_bytes > memory_budget):
            yield batch
            batch = []
        batch.append(text)
    yield batch


def split_for_model(adapter: AttentionModelBase, texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """Split texts into batches of the maximum size that the model accepts.

    All texts form one batch if the model has no maximum.
    """
    return split_into_chunks(texts, adapter.max_batch_size or max(len(texts), 1))


def describe_text(text: Text) -> str:
    """Describe a text in an error message, such as "text 3 of 27 tokens"."""
    return f"text {text.example_id} of {format_count(text.n_tokens, 'token')}"


def collate(
    adapter: AttentionModel,
    texts: Sequence[Text],
    pad_token_id: int,
    *,
    n_more: int = 0,
) -> Batch:
    """Pad texts to the same length and combine them into a batch.

    Padding is on the left if the model computes its decision from the last token.

    Args:
        adapter: The model.
        texts: The texts.
        pad_token_id: Token id for padding.
        n_more: Number of padding tokens to add to the longest text.

    Returns:
        The batch.
    """
    n_keys = max(text.n_tokens for text in texts) + n_more
    pad_values = PAD_VALUES | {"input_ids": pad_token_id}

    def pad(name: str, rows: Sequence[Any]) -> Tensor:
        if isinstance(rows[0], Tensor):
            # Images, and inputs with one value per text, have the same size and need no padding.
            if name == "pixel_values" or name.startswith(TEXT_INPUT):
                return torch.stack([*rows])
            return pad_token_values(rows, n_keys, pads_left=adapter.pads_left)
        # A text with several choices has one row per choice.
        if rows and rows[0] and isinstance(rows[0][0], list):
            return torch.stack([pad(name, choices) for choices in rows])
        padded_rows = []
        for row in rows:
            padding = [pad_values[name]] * (n_keys - len(row))
            padded_rows.append([*padding, *row] if adapter.pads_left else [*row, *padding])
        dtype = torch.float64 if name == "scores" else None
        return torch.tensor(padded_rows, dtype=dtype)

    inputs = {name: pad(name, [text.inputs[name] for text in texts]) for name in texts[0].inputs}
    tokenizer_output = {
        name.removeprefix(TEXT_INPUT): values
        for name, values in inputs.items()
        if name not in NON_MODEL_COLUMNS
    }
    held = inputs.pop("held", None)
    example_ids = tuple(text.example_id for text in texts)
    batch = adapter.prepare(inputs, example_ids, _stack_labels(texts))
    device = batch.mask.device
    batch = replace(batch, tokenizer_output=tokenizer_output)
    identities = [text.identity for text in texts if text.identity is not None]
    if len(identities) == len(texts):
        batch = replace(batch, identities=torch.tensor(identities))
    segments = batch.inputs.get("segment_ids", inputs.get("segment_ids"))
    if segments is not None and segments.shape == batch.mask.shape:
        batch = replace(batch, segments=segments.to(device))
    if held is not None:
        held = held.to(device)
        # Only one of several choices is explained.
        if "chosen" in batch.inputs:
            chosen = batch.inputs["chosen"].flatten()
            held = held[torch.arange(len(held), device=device), chosen]
        batch = replace(batch, content_mask=_exclude_held_tokens(held, batch))
    if texts[0].scores is not None:
        scores = pad("scores", [text.scores or () for text in texts])
        batch = replace(batch, scores=_sum_scores_by_key(scores.to(device), batch))
    if texts[0].rationale is not None:
        rationale = pad("rationale", [text.rationale or () for text in texts])
        batch = replace(batch, rationale=_mark_units(rationale.to(device), batch))
    return batch


def _stack_labels(texts: Sequence[Text]) -> Tensor:
    """Combine the labels of several texts into one tensor.

    Returns:
        A tensor `[batch]`, or `[batch, parts]` with −1 as padding if a text has several labels.
    """
    labels = [torch.as_tensor(text.label) for text in texts]
    if labels[0].dim() == 0:
        return torch.stack(labels)
    return pad_sequence(labels, batch_first=True, padding_value=-1)


def _exclude_held_tokens(held: Tensor, batch: Batch) -> Tensor:
    """Exclude the tokens of one text in a pair, so that only the other text is explained.

    Args:
        held: 1 at tokens of the excluded text, else 0, int `[batch, keys]`.
        batch: The batch.

    Returns:
        Mask of the explained positions, bool `[batch, keys]`.
    """
    if held.shape != batch.content_mask.shape:
        raise AttnProbeError(
            "--segment cannot be used with this model, because its attention is over "
            "sentences and not over tokens. Leave out --segment."
        )
    return batch.content_mask & (held == 0)


def _mark_units(marked_tokens: Tensor, batch: Batch) -> Tensor | None:
    """Mark the units that contain a marked token.

    Args:
        marked_tokens: Mask of the marked tokens, bool `[batch, tokens]`.
        batch: The batch.

    Returns:
        Mask of the units, bool `[batch, keys]`; None if the units are sentences.
    """
    if marked_tokens.shape != batch.mask.shape:
        return None
    units = batch.inputs.get("units")
    if units is None:
        return marked_tokens & batch.content_mask
    # Count the marked tokens of each unit; a unit is stored at its first token.
    n_marked = torch.zeros_like(units).scatter_add(1, units, marked_tokens.long())
    return (n_marked > 0) & batch.content_mask


def _sum_scores_by_key(scores: Tensor, batch: Batch) -> Tensor:
    """Sum token scores for every key, which may be a unit of many tokens.

    Args:
        scores: Token scores, `[batch, tokens]`.
        batch: The batch.

    Returns:
        Key scores, `[batch, keys]`.
    """
    units = batch.inputs.get("unit_ids")
    if units is None:
        return scores
    # Tokens outside all units have the index −1. They add 0 to the first unit.
    is_outside = units < 0
    unit_indices = units.masked_fill(is_outside, 0)
    added_scores = scores.masked_fill(is_outside, 0)
    key_scores = scores.new_zeros(batch.mask.shape)
    return key_scores.scatter_add(1, unit_indices, added_scores)


def parse_bytes(size: str | int) -> int:
    """Parse a memory size such as "500MB", "2GB" or a plain number of bytes.

    Args:
        size: The memory size.

    Returns:
        The number of bytes.

    Raises:
        AttnProbeError: If the size is invalid or not positive.

    >>> parse_bytes("500MB")
    500000000
    """
    text = str(size).strip().upper()
    number = text.rstrip("KMGB")
    unit = text[len(number) :]
    try:
        n_bytes = int(float(number) * BYTES_PER_UNIT[unit])
    except (ValueError, KeyError, OverflowError):
        n_bytes = 0
    if n_bytes <= 0:
        raise AttnProbeError(f"expected a memory budget such as 500MB or 2GB, got {size!r}")
    return n_bytes
