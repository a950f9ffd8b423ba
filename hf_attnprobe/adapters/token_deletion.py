"""Texts with units removed.

Token ids are deleted, never masked, and never decoded and tokenised again. A unit is a
token, or a word with all its pieces; it is represented at its first token. ``units``
[batch, keys] gives for every token the position of its unit.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


def units_of_words(word_ids: Tensor) -> Tensor:
    """The position of the first piece of each token's word, [batch, keys].

    A token whose word is -1 is a unit by itself.

    >>> units_of_words(torch.tensor([[-1, 0, 0, 1, -1]]))
    tensor([[0, 1, 1, 3, 4]])
    """
    is_first = torch.ones_like(word_ids, dtype=torch.bool)
    is_first[:, 1:] = (word_ids.diff() != 0) | (word_ids[:, 1:] < 0)
    positions = torch.arange(word_ids.shape[1], device=word_ids.device)
    return positions.where(is_first, 0).cummax(dim=1).values


def sum_pieces(values: Tensor, units: Tensor) -> Tensor:
    """Values of all pieces of a unit added up at its first one, 0 at the others.

    Shape: [batch, keys] both, and the result.
    """
    return torch.zeros_like(values).scatter_add(1, units, values)


def shortened(
    inputs: Mapping[str, Tensor],
    example: Tensor,
    kept: Tensor,
    *,
    pad_id: int,
    tokens_per_pass: int,
    left: bool = False,
    ids: Tensor | None = None,
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Model inputs of shorter texts, those of like length together.

    A text that would be empty is left out.

    Args:
        inputs: model inputs; those of shape [batch, keys] are shortened.
        example: the text that each shorter one comes from, int [rows].
        kept: what it keeps of it, bool [rows, keys].
        pad_id: the token to pad with.
        tokens_per_pass: how many tokens, padding included, to yield at once.
        left: pad on the left.
        ids: token ids to use in place of the texts' own, [rows, keys].

    Yields:
        Which rows, int [n], and the inputs of these n texts.
    """
    lengths, order = kept.sum(1).sort(stable=True)
    for rows in _passes(lengths.tolist(), tokens_per_pass):
        chosen = order[rows]
        texts = {name: value[example[chosen]] for name, value in inputs.items()}
        if ids is not None:
            texts["input_ids"] = ids[chosen]
        yield chosen, _compact(texts, kept[chosen], pad_id, left)


def _passes(lengths: list[int], tokens_per_pass: int) -> Iterator[slice]:
    """Cuts ascending ``lengths``: rows × longest within the limit, or a single row."""
    start = lengths.count(0)
    for end in range(start + 1, len(lengths) + 1):
        if end == len(lengths) or (end + 1 - start) * lengths[end] > tokens_per_pass:
            yield slice(start, end)
            start = end


def _compact(
    texts: Mapping[str, Tensor], kept: Tensor, pad_id: int, left: bool
) -> dict[str, Tensor]:
    """Moves the kept tokens of every [n, keys] input together, away from the padding.

    The texts are cut to the longest.
    """
    longest = int(kept.sum(1).max())
    order = (kept if left else ~kept).sort(dim=1, stable=True).indices
    positions = order[:, -longest:] if left else order[:, :longest]
    alive = kept.gather(1, positions)
    short = dict(texts)
    for name, values in texts.items():
        if values.shape == kept.shape:
            short[name] = values.gather(1, positions)
    short["attention_mask"] = alive.to(texts["attention_mask"].dtype)
    short["input_ids"] = short["input_ids"].masked_fill(~alive, pad_id)
    if "reads" in short:  # nothing is read from what is padding now
        short["reads"] = short["reads"].masked_fill(~alive, -1)
    return short
