"""Other forms in which models compute attention, shown as [batch, heads, queries, keys].

Batch and heads as one axis (MVP), and a sink: one column more than there are keys, that
is no token and is dropped after the softmax (GPT-OSS). What goes to the sink is held as
it is. The rest of the row is shown, and edited, as its share: rows that sum to 1.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn


HEADS = ("num_heads", "num_attention_heads", "n_heads")
"""What attention modules call the number of their heads."""


class Form(NamedTuple):
    """Attention as the tests see it, and the way back.

    Attributes:
        weights: [batch, heads, queries, keys].
        scores: the same before the softmax.
        restored: from edited weights to what the model goes on with, before and after
            they are put into the model's own form.
    """

    weights: Tensor
    scores: Tensor
    restored: Callable[[Tensor], tuple[Tensor, Tensor]]


def heads_of(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """The number of heads of every module that names it."""
    found: dict[str, int] = {}
    for name, module in modules.items():
        for attribute in HEADS:
            number = getattr(module, attribute, None)
            if isinstance(number, int):
                found.setdefault(name, number)
    return found


def is_packed(weights: Tensor, n_heads: int | None) -> bool:
    """Whether weights are [batch · heads, queries, keys] of as many keys as queries."""
    if weights.dim() != 3 or not n_heads or len(weights) % n_heads:
        return False
    return weights.shape[1] == weights.shape[2]


def form_of(weights: Tensor, scores: Tensor, n_heads: int | None) -> Form:
    """The form that weights after a softmax, of the same shape as its scores, are in."""
    if weights.dim() == 3:
        assert n_heads is not None  # `is_packed` has said so
        shown, seen = (v.unflatten(0, (-1, n_heads)) for v in (weights, scores))
        return Form(shown, seen, lambda edited: (edited, edited.flatten(0, 1)))
    if weights.shape[-1] != weights.shape[-2] + 1:
        return Form(weights, scores, lambda edited: (edited, edited))
    kept, sink = weights[..., :-1], weights[..., -1:]
    share = kept.sum(-1, keepdim=True)
    smallest = torch.finfo(weights.dtype).tiny

    def restored(edited: Tensor) -> tuple[Tensor, Tensor]:
        scaled = edited * share
        return scaled, torch.cat([scaled, sink.expand(*scaled.shape[:-1], 1)], -1)

    return Form(kept / share.clamp_min(smallest), scores[..., :-1], restored)


def unpacked(values: Tensor, n_heads: int) -> Tensor:
    """[batch, heads, queries, ...] also where a text has one token.

    Grouped queries of a single token come packed as [batch, key heads, group, ...].
    """
    return values.reshape(len(values), n_heads, -1, values.shape[-1])
