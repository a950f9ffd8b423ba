"""Texts with units removed: token ids are deleted, never masked, and never decoded and tokenised again.

A unit is a token, or a word with all its pieces; it is represented at its first token. ``units`` [batch, keys] gives
for every token the position of its unit.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


def units_of_words(word_ids: Tensor) -> Tensor:
    """[batch, keys]: the position of the first piece of each token's word; -1 in ``word_ids`` is a unit by itself.

    >>> units_of_words(torch.tensor([[-1, 0, 0, 1, -1]]))
    tensor([[0, 1, 1, 3, 4]])
    """
    starts = torch.ones_like(word_ids, dtype=torch.bool)
    starts[:, 1:] = (word_ids[:, 1:] != word_ids[:, :-1]) | (word_ids[:, 1:] < 0)
    places = torch.arange(word_ids.shape[1], device=word_ids.device)
    return torch.where(starts, places, 0).cummax(dim=1).values


def sum_pieces(values: Tensor, units: Tensor) -> Tensor:
    """[batch, keys] with the values of all pieces of a unit added up at its first one, 0 at the others."""
    return torch.zeros_like(values).scatter_add(1, units, values)


def deletions(
    inputs: Mapping[str, Tensor],
    units: Tensor,
    content_mask: Tensor,
    *,
    pad_id: int,
    tokens_per_pass: int,
    left: bool = False,
) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """Yields (example [n], place [n], model inputs of the n shorter texts), texts of like length together.

    A text that would be empty is left out.

    Args:
        inputs: model inputs; those of shape [batch, keys] are shortened.
        units, content_mask: [batch, keys]; one shorter text per True.
        pad_id, tokens_per_pass, left: see :func:`shortened`.
    """
    example, place = content_mask.nonzero(as_tuple=True)
    kept = inputs["attention_mask"].bool()[example] & (units[example] != place[:, None])
    options = {"pad_id": pad_id, "tokens_per_pass": tokens_per_pass, "left": left}
    for rows, texts in shortened(inputs, example, kept, **options):
        yield example[rows], place[rows], texts


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
    """Yields (rows [n] of ``kept``, model inputs of those shorter texts), texts of like length together.

    A text that would be empty is left out.

    Args:
        inputs: model inputs; those of shape [batch, keys] are shortened.
        example, kept: [rows] and bool [rows, keys]: the text that each shorter one comes from, and what it keeps of it.
        tokens_per_pass: how many tokens, padding included, to yield at once.
        left: pad on the left.
        ids: [rows, keys], token ids to use in place of the texts' own.
    """
    lengths, order = kept.sum(1).sort(stable=True)
    for rows in _passes(lengths.tolist(), tokens_per_pass):
        chosen = order[rows]
        texts = {name: value[example[chosen]] for name, value in inputs.items()}
        if ids is not None:
            texts["input_ids"] = ids[chosen]
        yield chosen, _compact(texts, kept[chosen], pad_id, left)


def _passes(lengths: list[int], tokens_per_pass: int) -> Iterator[slice]:
    """Cuts ascending ``lengths`` so that rows × longest stays within the limit, at least one row each."""
    start = sum(length == 0 for length in lengths)
    for end in range(start + 1, len(lengths) + 1):
        if end == len(lengths) or (end + 1 - start) * lengths[end] > tokens_per_pass:
            yield slice(start, end)
            start = end


def _compact(
    texts: Mapping[str, Tensor], kept: Tensor, pad_id: int, left: bool
) -> dict[str, Tensor]:
    """Moves the kept tokens of every [n, keys] input together, away from the padding, and cuts to the longest text."""
    longest = int(kept.sum(1).max())
    order = (kept if left else ~kept).sort(dim=1, stable=True).indices
    places = order[:, -longest:] if left else order[:, :longest]
    alive = kept.gather(1, places)
    short = {
        name: x.gather(1, places) if x.shape == kept.shape else x
        for name, x in texts.items()
    }
    short["attention_mask"] = alive.to(texts["attention_mask"].dtype)
    short["input_ids"] = short["input_ids"].masked_fill(~alive, pad_id)
    return short
