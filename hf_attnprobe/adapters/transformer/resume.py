"""Resumes a forward pass above layers that need not run again.

Their recorded outputs stand in for them. Blocks are the elements of a model's layer lists
that hold attention (``encoder.layer[3]``, ``decoder.block[0]``). They are counted by
calls, not by name: ALBERT calls one block for all its layers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


def attention_blocks(
    model: nn.Module, modules: Mapping[str, nn.Module]
) -> list[nn.Module]:
    """For each attention module the outermost element of a ModuleList that holds it.

    Each block is listed once.
    """
    blocks: dict[int, nn.Module] = {}
    for name in modules:
        block = _outermost_element(model, name)
        if block is not None:
            blocks[id(block)] = block
    return list(blocks.values())


def _outermost_element(model: nn.Module, name: str) -> nn.Module | None:
    module = model
    for part in filter(None, name.split(".")):  # the model itself has no name
        inside_list, module = isinstance(module, nn.ModuleList), getattr(module, part)
        if inside_list and not isinstance(module, nn.ModuleList):
            return module
    return None


@contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    """Calls ``hook(module, args, output)`` after every call of the modules."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def recorded(blocks: Iterable[nn.Module]) -> Iterator[list[Any]]:
    """A list that receives the output of every block call, in order."""
    outputs: list[Any] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        outputs.append(output)

    with hooked(blocks, record):
        yield outputs


@contextmanager
def resumed(blocks: Sequence[nn.Module], outputs: Sequence[Any]) -> Iterator[None]:
    """The first ``len(outputs)`` block calls return ``outputs`` without running."""
    waiting = iter(outputs)
    # somebody else may have wrapped a block already, for offloading for one
    before = [block.__dict__.get("forward") for block in blocks]
    try:
        for block in blocks:
            block.__dict__["forward"] = _Skipping(waiting, block.forward)
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            block.__dict__.pop("forward", None)
            if forward is not None:
                block.__dict__["forward"] = forward


class _Skipping:
    """Returns what waits, and calls ``forward`` when nothing waits any more."""

    def __init__(self, waiting: Iterator[Any], forward: Callable[..., Any]) -> None:
        self.waiting, self.forward = waiting, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for output in self.waiting:
            return output
        return self.forward(*args, **kwargs)


def repeated(output: Any, n_copies: int, n_batch: int) -> Any:
    """Every tensor [batch, ...] in a nested output as [copies · batch, ...].

    Other tensors are shared by the batch and stay as they are.
    """

    def repeat(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or len(tensor) != n_batch:
            return tensor
        return tensor.repeat(n_copies, *[1] * (tensor.dim() - 1))

    return tree_map_only(Tensor, repeat, output)
