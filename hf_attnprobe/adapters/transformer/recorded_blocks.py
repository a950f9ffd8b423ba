"""Resumes a forward pass above layers that need not run again.

Their recorded outputs stand in for them. Blocks are the elements of a model's layer lists
that hold attention (``encoder.layer[3]``, ``decoder.block[0]``). They are counted by
calls, not by name: ALBERT calls one block for all its layers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only


def find_attention_blocks(model: nn.Module, modules: Mapping[str, nn.Module]) -> list[nn.Module]:
    """For each attention module, the outermost ModuleList element that contains it.

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
        inside_list, module = (
            isinstance(module, nn.ModuleList),
            getattr(module, part),
        )
        if inside_list and not isinstance(module, nn.ModuleList):
            return module
    return None


@contextmanager
def hook_modules(
    modules: Iterable[nn.Module],
    hook: Callable[..., Any],
    *,
    with_kwargs: bool = False,
) -> Iterator[None]:
    """Calls ``hook(module, args, output)`` after every call of the modules.

    With their keyword arguments ``hook(module, args, kwargs, output)``.
    """
    handles = [module.register_forward_hook(hook, with_kwargs=with_kwargs) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class BlockCall(NamedTuple):
    """One call of a block with its arguments and its result."""

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    @property
    def hidden_in(self) -> Tensor:
        """The hidden states given to the block; the first argument in every family."""
        return self.args[0]

    @property
    def hidden_out(self) -> Tensor:
        """The hidden states that the block returned."""
        return get_first_tensor(self.output)

    def run(self, hidden: Tensor) -> Tensor:
        """Runs the block on other hidden states with its other arguments unchanged."""
        return get_first_tensor(self.block(hidden, *self.args[1:], **self.kwargs))

    def repeat(self, n_copies: int, n_batch: int) -> "BlockCall":
        """The same call with its other arguments repeated for ``n_copies`` of the batch."""
        others = repeat_batch((self.args[1:], self.kwargs), n_copies, n_batch)
        return self._replace(args=(self.hidden_in, *others[0]), kwargs=others[1])


def get_first_tensor(output: Any) -> Tensor:
    """The first tensor of a module's output: its hidden states."""
    return next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))


def replace_first_tensor(output: Any, new: Tensor) -> Any:
    """A module's output with other hidden states."""
    old = get_first_tensor(output)
    return tree_map_only(Tensor, lambda leaf: new if leaf is old else leaf, output)


@contextmanager
def record_calls(blocks: Iterable[nn.Module]) -> Iterator[list[BlockCall]]:
    """Records every block call in a list, in order."""
    calls: list[BlockCall] = []

    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append(BlockCall(module, args, kwargs, output))

    with hook_modules(blocks, record, with_kwargs=True):
        yield calls


@contextmanager
def record_outputs(blocks: Iterable[nn.Module]) -> Iterator[list[Any]]:
    """Records the output of every block call in a list, in order."""
    outputs: list[Any] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        outputs.append(output)

    with hook_modules(blocks, record):
        yield outputs


@contextmanager
def skip_first_calls(blocks: Sequence[nn.Module], outputs: Sequence[Any]) -> Iterator[None]:
    """Makes the first ``len(outputs)`` block calls return ``outputs`` without running."""
    waiting = iter(outputs)
    with patch_forwards({block: _Skipping(waiting, block.forward) for block in blocks}):
        yield


@contextmanager
def patch_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replaces the modules' forward by these functions inside the context."""
    # somebody else may have wrapped a module already, for offloading for one
    before = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, earlier in before.items():
            module.__dict__.pop("forward", None)
            if earlier is not None:
                module.__dict__["forward"] = earlier


class _Skipping:
    """Returns the waiting outputs in turn, then calls ``forward``."""

    def __init__(self, waiting: Iterator[Any], forward: Callable[..., Any]) -> None:
        self.waiting, self.forward = waiting, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for output in self.waiting:
            return output
        return self.forward(*args, **kwargs)


def repeat_batch(output: Any, n_copies: int, n_batch: int) -> Any:
    """Every tensor [batch, ...] in a nested output as [copies · batch, ...].

    Other tensors are shared by the batch and stay as they are.
    """

    def repeat(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or len(tensor) != n_batch:
            return tensor
        return tensor.repeat(n_copies, *[1] * (tensor.dim() - 1))

    return tree_map_only(Tensor, repeat, output)


def get_relative_tolerance(dtype: torch.dtype) -> float:
    """How far two runs of a model may differ, relative to the largest number.

    Above what another order of summation does to a deep model, far below a lost mask.
    """
    return min(1000 * torch.finfo(dtype).eps, 0.1)
