"""Resuming a forward pass: the layers below an edit are not run, their recorded outputs stand in for them.

Blocks are the elements of a model's layer lists that hold attention (``encoder.layer[3]``, ``decoder.block[0]``).
They are counted by calls, not by name: ALBERT calls one block for all its layers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


def attention_blocks(
    model: nn.Module, modules: Mapping[str, nn.Module]
) -> list[nn.Module]:
    """For each attention module the outermost element of a ModuleList that holds it, each once."""
    blocks = (_outermost_element(model, name) for name in modules)
    return list({id(block): block for block in blocks if block is not None}.values())


def _outermost_element(model: nn.Module, name: str) -> nn.Module | None:
    module = model
    for part in filter(None, name.split(".")):  # the model itself has no name
        inside_list, module = isinstance(module, nn.ModuleList), getattr(module, part)
        if inside_list and not isinstance(module, nn.ModuleList):
            return module
    return None


@contextmanager
def recorded(blocks: Sequence[nn.Module]) -> Iterator[list[Any]]:
    """A list that receives the output of every block call, in order."""
    outputs: list[Any] = []
    handles = [
        block.register_forward_hook(lambda module, args, output: outputs.append(output))
        for block in blocks
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def resumed(blocks: Sequence[nn.Module], outputs: Sequence[Any]) -> Iterator[None]:
    """The first ``len(outputs)`` block calls return ``outputs`` without running; later calls run."""
    waiting = iter(outputs)

    def stand_in(forward):
        def maybe_skip(*args, **kwargs):
            for output in waiting:
                return output
            return forward(*args, **kwargs)

        return maybe_skip

    found = [(block, block.__dict__.get("forward")) for block in blocks]
    try:
        for block in blocks:
            block.forward = stand_in(block.forward)
        yield
    finally:
        for block, forward in found:
            block.__dict__.pop("forward", None)
            if (
                forward is not None
            ):  # somebody else's wrapper, an offloading hook for one
                block.forward = forward


def repeated(output: Any, n_copies: int, n_batch: int) -> Any:
    """Every tensor [batch, ...] in a nested output as [copies · batch, ...]; others, shared by the batch, as they are."""

    def repeat(tensor: Tensor) -> Tensor:
        has_batch = tensor.dim() > 0 and tensor.shape[0] == n_batch
        return (
            tensor.repeat(n_copies, *[1] * (tensor.dim() - 1)) if has_batch else tensor
        )

    return tree_map_only(Tensor, repeat, output)
