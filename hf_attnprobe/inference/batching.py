"""Batches of tokenized texts: cut within a memory budget, padded and collated."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hf_attnprobe.core.distributed import process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import in_portions
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import (
    NON_MODEL_COLUMNS,
    AttentionModel,
    AttentionModelBase,
    Batch,
)


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
}


def sort_by_length(texts: Sequence[Text]) -> list[Text]:
    """The texts in ascending order of their length, equal ones by id."""
    return sorted(texts, key=lambda text: (text.n_tokens, text.example_id))


def iterate_batches(
    adapter: AttentionModelBase, texts: Sequence[Text], pad_id: int, n: int
) -> Iterator[Batch]:
    """Batches of n texts in their order, all tensors where the model is."""
    device = process_state().device
    for some in in_portions(texts, n):
        batch = collate(adapter, some, pad_id)
        yield replace(batch, tokenizer_output={name: x.to(device) for name, x in batch.tokenizer_output.items()})


def form_batches(
    texts: Sequence[Text],
    bytes_per_text: Callable[[int], int],
    budget: int,
    batch_size: int,
) -> Iterator[list[Text]]:
    """Batches of texts by length, each within the memory budget.

    Args:
        bytes_per_text: memory needed by a text of so many tokens.
        budget: bytes that a batch may need; one text alone may exceed it.
        batch_size: largest number of texts in a batch.
    """
    batch: list[Text] = []
    for text in sort_by_length(texts):
        n_bytes = (len(batch) + 1) * bytes_per_text(text.n_tokens)
        if batch and (len(batch) >= batch_size or n_bytes > budget):
            yield batch
            batch = []
        batch.append(text)
    yield batch


def split_for_model(adapter: AttentionModelBase, texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """The texts as batches as large as the model reads: all at once, or few."""
    return in_portions(texts, adapter.max_batch_size or max(len(texts), 1))


def describe_text(text: Text) -> str:
    """How an error message names a text."""
    return f"text {text.example_id} of {text.n_tokens} tokens"


def collate(
    adapter: AttentionModel,
    texts: Sequence[Text],
    pad_token_id: int,
    *,
    n_more: int = 0,
) -> Batch:
    """Pads texts to the longest one, plus ``n_more`` tokens.

    Padding is on the left if the model reads its decision at the last token.
    """
    n_keys = max(text.n_tokens for text in texts) + n_more
    pad_values = PAD_VALUES | {"input_ids": pad_token_id}

    def padded(name: str, rows: Sequence[Any]) -> Tensor:
        if isinstance(rows[0], Tensor):  # images are of one size
            return torch.stack([*rows])
        if rows and rows[0] and isinstance(rows[0][0], list):  # several choices
            return torch.stack([padded(name, choices) for choices in rows])
        filled = []
        for row in rows:
            padding = [pad_values[name]] * (n_keys - len(row))
            if adapter.pads_left:
                filled.append([*padding, *row])
            else:
                filled.append([*row, *padding])
        dtype = torch.float64 if name == "scores" else None
        return torch.tensor(filled, dtype=dtype)

    inputs = {name: padded(name, [text.inputs[name] for text in texts]) for name in texts[0].inputs}
    own = {name: value for name, value in inputs.items() if name not in NON_MODEL_COLUMNS}
    held = inputs.pop("held", None)
    ids = tuple(text.example_id for text in texts)
    batch = adapter.prepare(inputs, ids, _stack_labels(texts))
    device = batch.mask.device
    besides: dict[str, Any] = {"own": own}
    known = [text.identity for text in texts if text.identity is not None]
    if known:
        besides["identities"] = torch.tensor(known)
    segments = batch.inputs.get("segment_ids", inputs.get("segment_ids"))
    if segments is not None and segments.shape == batch.mask.shape:
        besides["segments"] = segments.to(device)
    if held is not None:
        held = held.to(device)
        if "chosen" in batch.inputs:  # of several choices one is explained
            chosen = batch.inputs["chosen"].flatten()
            held = held[torch.arange(len(held), device=device), chosen]
        besides["content_mask"] = _exclude_held_tokens(held, batch)
    if texts[0].scores is not None:
        scores = padded("scores", [text.scores or () for text in texts])
        besides["scores"] = _sum_scores_by_key(scores.to(device), batch)
    batch = replace(batch, **besides)
    if texts[0].rationale is None:
        return batch
    rationale = padded("rationale", [text.rationale or () for text in texts])
    return replace(batch, rationale=_mark_units(rationale.to(device), batch))


def _stack_labels(texts: Sequence[Text]) -> Tensor:
    """Labels [batch], or [batch, parts] padded with −1."""
    labels = [torch.as_tensor(text.label) for text in texts]
    if labels[0].dim() == 0:
        return torch.stack(labels)
    return pad_sequence(labels, batch_first=True, padding_value=-1)


def _exclude_held_tokens(held: Tensor, batch: Batch) -> Tensor:
    """The explained tokens without the held ones, int [batch, keys]."""
    if held.shape != batch.content_mask.shape:
        raise AttnProbeError(
            "expected a model that attends to tokens to explain one text of a pair, "
            "this one attends to sentences; leave --segment out"
        )
    return batch.content_mask & (held == 0)


def _mark_units(marked: Tensor, batch: Batch) -> Tensor | None:
    """Marks units that contain a marked token, bool [batch, keys]; None if units are sentences."""
    if marked.shape != batch.mask.shape:
        return None
    units = batch.inputs.get("units")
    if units is not None:
        n_marked = torch.zeros_like(units).scatter_add(1, units, marked.long())
        marked = n_marked > 0
    return marked & batch.content_mask


def _sum_scores_by_key(scores: Tensor, batch: Batch) -> Tensor:
    """Scores at tokens as scores of keys, [batch, keys], which may be units of many tokens."""
    units = batch.inputs.get("unit_ids")
    if units is None:
        return scores
    at_keys = scores.new_zeros(batch.mask.shape)
    return at_keys.scatter_add(1, units.clamp_min(0), scores.masked_fill(units < 0, 0))


BYTES_PER_UNIT = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
"""Bytes, by how they are written."""


def parse_bytes(size: str | int) -> int:
    """Number of bytes in "500MB", "2GB" or a plain number.

    Raises:
        AttnProbeError: anything else, and sizes that are not positive.

    >>> parse_bytes("500MB")
    500000000
    """
    said = str(size).strip().upper()
    number = said.rstrip("KMGB")
    unit = said[len(number) :]
    try:
        n_bytes = int(float(number) * BYTES_PER_UNIT[unit])
    except (ValueError, KeyError, OverflowError):
        n_bytes = 0
    if n_bytes <= 0:
        raise AttnProbeError(f"expected a memory budget such as 500MB or 2GB, got {size!r}")
    return n_bytes
