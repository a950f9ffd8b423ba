"""Finds, in a running model, what attention does next: the product with the values, and the output projection.

The attention weights are followed, by identity, through casts, dropout, masks and reshapes to the product with the
values that consumes them. What comes out of it is a head's output, before the output projection that mixes the heads;
it goes through ``edit(layer, output, values) -> output``.
"""

from collections.abc import Callable

import torch
from torch import Tensor


EditOutput = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, output [batch, heads, queries, width], values [batch, heads or 1, keys, width]) -> output."""

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
"""What may stand between a head's output and the output projection; anything else is computation of its own."""


class OutputTap:
    """Edits the heads' outputs during one forward pass.

    Attributes:
        edit: what every head output goes through.
        projections: by layer [heads, width, hidden], where the output projection is a
            plain linear map of the head outputs.
    """

    def __init__(self, edit: EditOutput):
        self.edit = edit
        self.projections: dict[int, Tensor] = {}
        self._layer, self._shape = -1, torch.Size()
        self._weights: list[Tensor] = []
        self._output: list[Tensor] = []

    def start(self, layer: int, weights: Tensor) -> None:
        """Follow these weights [batch, heads, queries, keys] from now on."""
        self._layer, self._shape, self._weights, self._output = (
            layer,
            weights.shape,
            [weights],
            [],
        )

    def see(self, name: str, args: tuple, result):
        """Of every operation: its name, arguments and result; returns the result to go on with."""
        if not isinstance(result, Tensor):
            return result
        place = _place(args, self._weights)
        if place is not None:
            if name == "einsum" and place == 1 and len(args) == 3:
                return self._einsum(args[0], args[2], result)
            if name in PRODUCTS and place == 0:
                return self.product(result, args[1])
            if result.numel() == self._weights[0].numel():
                self._weights.append(result)
        elif (place := _place(args, self._output)) is not None:
            self._towards_projection(name, place, args, result)
        return result

    def product(self, result: Tensor, values: Tensor) -> Tensor:
        """Edits ``weights @ values``; batch and heads may be one axis."""
        batch, heads = self._shape[:2]
        if values.dim() == 3:
            values = values.reshape(batch, heads, *values.shape[1:])
        edited = self._edit(result.reshape(*self._shape[:3], -1), values)
        self._output = [edited.reshape(result.shape)]
        return self._output[0]

    def _einsum(self, equation: str, values: Tensor, result: Tensor) -> Tensor:
        """XLNet's ``bnij,jbnd->ibnd`` and its like."""
        (weights, other), out = (
            equation.split("->")[0].split(","),
            equation.split("->")[1],
        )
        (width,) = set(out) - set(weights)
        order, keys = weights[:3] + width, weights[:2] + weights[3] + width
        edited = self._edit(
            result.permute([out.index(c) for c in order]),
            values.permute([other.index(c) for c in keys]),
        )
        self._output = [edited.permute([order.index(c) for c in out])]
        return self._output[0]

    def _edit(self, output: Tensor, values: Tensor) -> Tensor:
        self._weights = []
        return self.edit(self._layer, output, values).to(output.dtype)

    def _towards_projection(
        self, name: str, place: int, args: tuple, result: Tensor
    ) -> None:
        if name in REARRANGED:
            self._output.append(result)
            return
        weight = None
        if name == "linear" and place == 0:
            weight = args[1].t()
        elif (name == "addmm" and place == 1) or (name in PRODUCTS and place == 0):
            weight = args[-1]
        elif name == "einsum" and args[0] == "ibnd,hnd->ibh":
            weight = args[2].permute(1, 2, 0).flatten(0, 1)
        if (
            weight is not None
            and weight.dim() == 2
            and weight.shape[0] % self._shape[1] == 0
        ):
            self.projections[self._layer] = weight.unflatten(0, (self._shape[1], -1))
        self._output = []


def _place(args: tuple, followed: list[Tensor]) -> int | None:
    """Which argument is one of the followed tensors."""
    return next(
        (n for n, arg in enumerate(args) if any(arg is tensor for tensor in followed)),
        None,
    )
