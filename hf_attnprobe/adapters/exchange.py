"""Replace units of texts by units from other texts and run a model, for token-based adapters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.adapters.deletion import (
    ErasureSettings,
    RunTexts,
    gather_tokens,
    has_token_axis,
    iterate_shortened_texts,
)
from hf_attnprobe.protocol import Observation


def read_unit_token_ids(observation: Observation, units: Tensor | None = None) -> list[dict]:
    """Read the token ids of every explained unit.

    Args:
        observation: The observed batch.
        units: Position at which each token's unit starts, int `[batch, keys]`. With None, each
            token is a unit.

    Returns:
        For each text, the token ids `[pieces]` by the unit's position.
    """
    batch = observation.batch
    ids, content = batch.inputs["input_ids"].cpu(), batch.content_mask.cpu()
    unit_starts = None if units is None else units.cpu()
    contents = []
    for text, is_unit in enumerate(content):
        text_contents = {}
        for position in is_unit.nonzero()[:, 0].tolist():
            if unit_starts is None:
                text_contents[position] = ids[text, position : position + 1]
            else:
                text_contents[position] = ids[text, unit_starts[text] == position]
        contents.append(text_contents)
    return contents


def compute_exchanged_probs(
    observation: Observation,
    exchanged: Tensor,
    replacements: Sequence[Mapping[int, Tensor]],
    run: RunTexts,
    settings: ErasureSettings,
    *,
    inputs: Mapping[str, Tensor] | None = None,
    units: Tensor | None = None,
    max_tokens: int | None = None,
) -> Tensor:
    """Compute the probabilities after replacing units by units from other texts.

    Every text is extended by its replacements, each next to the unit that it replaces. An exchange
    then deletes the original tokens of the exchanged units, and the replacements of all others.

    Args:
        observation: The observed texts.
        exchanged: Units to replace, bool `[copies, batch, keys]`, marked at their first token.
        replacements: For each text, the new token ids `[pieces]` by the unit's position.
        run: Function that runs the model.
        settings: Properties of the model and its tokenizer.
        inputs: Model inputs, or None for the batch's inputs.
        units: Position at which each token's unit starts, int `[batch, keys]`. With None, each
            token is a unit.
        max_tokens: Largest number of tokens that the model can read, or None for no limit. If
            replacements could exceed it, they are shortened to the pieces of the replaced unit.

    Returns:
        Probabilities `[copies, batch, classes]`.
    """
    n_copies, n_texts, _ = exchanged.shape
    model_inputs = dict(inputs or observation.batch.inputs)
    model_inputs.pop("units", None)
    extended = _insert_replacements(model_inputs, replacements, units, max_tokens)
    text = torch.arange(n_texts, device=exchanged.device).repeat(n_copies)
    is_exchanged = exchanged.flatten(0, 1).gather(1, extended.unit[text])
    remaining = extended.is_token[text] & (extended.is_replacement[text] == is_exchanged)
    # The output of a text without an exchanged unit is known.
    remaining &= is_exchanged.any(1, keepdim=True)
    probs = observation.probs[text].clone()
    batches = iterate_shortened_texts(
        extended.inputs,
        text,
        remaining,
        pad_id=settings.pad_id,
        tokens_per_pass=settings.tokens_per_pass,
        pads_left=settings.pads_left,
    )
    for rows, edited_texts in batches:
        probs[rows] = run(edited_texts).to(probs.dtype)
    return probs.unflatten(0, (n_copies, n_texts))


@dataclass(frozen=True)
class _ExtendedTexts:
    """Texts that contain every unit twice: with its original and with its new tokens.

    Attributes:
        inputs: Model inputs, those of shape `[batch, keys]` extended to `[batch, slots]`.
        is_token: Whether a slot contains a token and not padding, bool `[batch, slots]`.
        is_replacement: Whether a slot contains a new token, bool `[batch, slots]`.
        unit: Position of the slot's unit in the original text, int `[batch, slots]`.
    """

    inputs: dict[str, Tensor]
    is_token: Tensor
    is_replacement: Tensor
    unit: Tensor


def _insert_replacements(
    inputs: Mapping[str, Tensor],
    replacements: Sequence[Mapping[int, Tensor]],
    units: Tensor | None,
    max_tokens: int | None,
) -> _ExtendedTexts:
    """Insert the new tokens of every unit in front of the unit's first token."""
    mask = inputs["attention_mask"].bool()
    n_texts, n_keys = mask.shape
    positions = torch.arange(n_keys).expand(n_texts, -1)
    unit_starts = positions if units is None else units.cpu()
    # For each slot: the original position, whether the token is new, and the new token id.
    slots = []
    for text, is_token in enumerate(mask.cpu()):
        text_units = unit_starts[text].tolist()
        new_ids = _limit_length(replacements[text], text_units, int(is_token.sum()), max_tokens)
        text_slots = []
        for position in is_token.nonzero()[:, 0].tolist():
            for token_id in new_ids.get(position, ()):
                text_slots.append((position, True, token_id))
            text_slots.append((position, False, 0))
        slots.append(text_slots)

    n_slots = max(map(len, slots))
    source = torch.zeros(n_texts, n_slots, dtype=torch.long)
    is_slot, is_new = (torch.zeros(n_texts, n_slots, dtype=torch.bool) for _ in range(2))
    token_ids = torch.zeros(n_texts, n_slots, dtype=torch.long)
    for text, text_slots in enumerate(slots):
        columns = torch.tensor(text_slots, dtype=torch.long).reshape(-1, 3)
        n_text_slots = len(columns)
        source[text, :n_text_slots] = columns[:, 0]
        is_new[text, :n_text_slots] = columns[:, 1].bool()
        token_ids[text, :n_text_slots] = columns[:, 2]
        is_slot[text, :n_text_slots] = True

    device = mask.device
    source, is_new, token_ids = source.to(device), is_new.to(device), token_ids.to(device)
    extended = {
        name: gather_tokens(value, source) if has_token_axis(name, value, mask.shape) else value
        for name, value in inputs.items()
    }
    extended["input_ids"] = torch.where(is_new, token_ids, extended["input_ids"])
    if "reads" in extended:
        # A prediction that is read from a unit's first token is read from its first new token.
        is_first_new = is_new.clone()
        is_first_new[:, 1:] &= ~(is_new[:, :-1] & (source[:, 1:] == source[:, :-1]))
        extended["reads"] = extended["reads"].masked_fill(is_new & ~is_first_new, -1)
    unit = unit_starts.to(device).gather(1, source)
    return _ExtendedTexts(extended, is_slot.to(device), is_new, unit)


def _limit_length(
    replacements: Mapping[int, Tensor],
    unit_starts: Sequence[int],
    n_tokens: int,
    max_tokens: int | None,
) -> dict[int, list[int]]:
    """Return the new token ids by position, shortened if a text could become too long.

    Args:
        replacements: New token ids by the unit's position.
        unit_starts: Position at which each token's unit starts.
        n_tokens: Number of tokens in the original text.
        max_tokens: Largest number of tokens that the model can read, or None.
    """
    new_ids = {position: ids.tolist() for position, ids in replacements.items()}
    n_pieces = {position: unit_starts.count(position) for position in new_ids}
    growth = sum(max(0, len(ids) - n_pieces[position]) for position, ids in new_ids.items())
    if max_tokens is None or n_tokens + growth <= max_tokens:
        return new_ids
    return {position: ids[: n_pieces[position]] for position, ids in new_ids.items()}
