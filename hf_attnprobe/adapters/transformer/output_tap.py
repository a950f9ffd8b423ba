"""Finds, in a running model, the heads' outputs and the output projection.

The attention weights are followed, by identity, through casts, dropout, masks and
reshapes to the product with the values that consumes them. The product is the heads'
output, before the output projection that mixes the heads; it goes through
``edit(layer, output, values) -> output``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.adapters.transformer.attention_forms import unpacked


EditOutput = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, output [batch, heads, queries, width], values) -> output.

The values are [batch, heads or 1, keys, width].
"""

PRODUCTS = ("matmul", "__matmul__", "bmm")
REARRANGED = (
    "transpose",
    "permute",
    "contiguous",
    "reshape",
    "view",
    "flatten",
    "to",
    "dropout",
    "swapaxes",
    "clone",
)
"""What may stand between a head's output and the output projection.

Anything else is computation of its own.
"""


class OutputTap:
    """Edits the heads' outputs during one forward pass.

    Attributes:
        edit: what every head output goes through.
        projections: by layer [heads, width, hidden], where the output projection is a
            plain linear map of the head outputs.
    """

    def __init__(self, edit: EditOutput) -> None:
        self.edit = edit
        self.projections: dict[int, Tensor] = {}
        self._layer, self._shape = -1, torch.Size()
        self._weights: list[Tensor] = []
        self._output: list[Tensor] = []

    def start(self, layer: int, weights: Tensor, *others: Tensor) -> None:
        """Follow these weights [batch, heads, queries, keys] from now on.

        Args:
            layer: their number.
            weights: after all edits.
            others: the same in the model's own form.
        """
        self._layer, self._shape = layer, weights.shape
        self._weights, self._output = [weights, *others], []

    def see(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        """Called after every operation; returns the result to go on with."""
        if not isinstance(result, Tensor):
            return result
        position = _position(args, self._weights)
        if position is not None:
            if name == "einsum" and position == 1 and len(args) == 3:
                return self._einsum(args[0], args[2], result)
            if name in PRODUCTS and position == 0:
                return self.product(result, args[1])
            if result.numel() == self._weights[0].numel():
                self._weights.append(result)
            return result
        position = _position(args, self._output)
        if position is not None and name in REARRANGED:
            self._output.append(result)
        elif position is not None:
            self._note_projection(_projection(name, position, args))
        return result

    def product(self, result: Tensor, values: Tensor) -> Tensor:
        """Edits ``weights @ values``; batch and heads may be one axis."""
        if values.dim() == 3:
            values = values.unflatten(0, self._shape[:2])
        output = result.reshape(*self._shape[:3], -1)
        return self._follow(self._edit(output, values).reshape(result.shape))

    def _einsum(self, equation: str, values: Tensor, result: Tensor) -> Tensor:
        """XLNet's ``bnij,jbnd->ibnd`` and its like."""
        operands, out = equation.split("->")
        weights, other = operands.split(",")
        (width,) = set(out) - set(weights)
        order, keys = weights[:3] + width, weights[:2] + weights[3] + width
        output = torch.einsum(f"{out}->{order}", result)
        edited = self._edit(output, torch.einsum(f"{other}->{keys}", values))
        return self._follow(torch.einsum(f"{order}->{out}", edited))

    def _edit(self, output: Tensor, values: Tensor) -> Tensor:
        self._weights = []
        return self.edit(self._layer, output, values).to(output.dtype)

    def _follow(self, output: Tensor) -> Tensor:
        self._output = [output]
        return output

    def _note_projection(self, weight: Tensor | None) -> None:
        """Keeps the heads' slices of a matrix [heads · width, hidden]."""
        n_heads = self._shape[1]
        if weight is not None and weight.dim() == 2 and len(weight) % n_heads == 0:
            self.projections[self._layer] = weight.unflatten(0, (n_heads, -1))
        self._output = []


def _position(args: tuple[Any, ...], followed: list[Tensor]) -> int | None:
    """Which argument is one of the followed tensors."""
    for position, arg in enumerate(args):
        if any(arg is tensor for tensor in followed):
            return position
    return None


def _projection(name: str, position: int, args: tuple[Any, ...]) -> Tensor | None:
    """The matrix of a linear map of the argument at ``position``; None for others."""
    if name == "linear" and position == 0:
        return args[1].t()
    if (name == "addmm" and position == 1) or (name in PRODUCTS and position == 0):
        return args[-1]
    if name == "einsum" and args[0] == "ibnd,hnd->ibh":
        return args[2].permute(1, 2, 0).flatten(0, 1)
    return None


def replacing_output(
    layer: int, head: int, query: int | None, n_heads: int, new: Tensor
) -> EditOutput:
    """The edit that replaces one head's output, or that of one query.

    Args:
        layer, head, query: the site.
        n_heads: number of heads of the layer.
        new: [batch, queries, width].
    """

    return partial(_replaced, layer, head, query, n_heads, new)


def _replaced(
    layer: int,
    head: int,
    query: int | None,
    n_heads: int,
    new: Tensor,
    number: int,
    output: Tensor,
    values: Tensor,
) -> Tensor:
    if number != layer:
        return output
    heads = unpacked(output, n_heads)
    chosen = torch.arange(n_heads, device=output.device)[:, None, None] == head
    if query is not None:
        queries = torch.arange(heads.shape[2], device=output.device)
        chosen = chosen & (queries[:, None] == query)
    # no edit in place, which vmap refuses
    edited = torch.where(chosen, new[:, None].to(output.dtype), heads)
    return edited.reshape(output.shape)
