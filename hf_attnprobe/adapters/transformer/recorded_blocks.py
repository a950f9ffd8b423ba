"""Record the block calls of a forward pass, and skip them in a later one.

A replay with edited attention does not have to run the layers below the edit. Their recorded
outputs are returned instead.

A block is an element of a model's layer lists that contains attention, such as `encoder.layer[3]`
or `decoder.block[0]`. Blocks are counted by calls and not by name, because ALBERT calls the same
block for all its layers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only


def find_attention_blocks(model: nn.Module, modules: Mapping[str, nn.Module]) -> list[nn.Module]:
    """Find the outermost `ModuleList` element that contains each attention module.

    Args:
        model: The model.
        modules: Attention modules by qualified name.

    Returns:
        The blocks without duplicates.
    """
    blocks: dict[int, nn.Module] = {}
    for name in modules:
        block = _find_outermost_element(model, name)
        if block is not None:
            blocks[id(block)] = block
    return list(blocks.values())


def _find_outermost_element(model: nn.Module, name: str) -> nn.Module | None:
    """Find the outermost `ModuleList` element on the path to a module, or None."""
    module = model
    # The name of the model itself is an empty string.
    for part in filter(None, name.split(".")):
        is_in_list, module = (
            isinstance(module, nn.ModuleList),
            getattr(module, part),
        )
        if is_in_list and not isinstance(module, nn.ModuleList):
            return module
    return None


@contextmanager
def hook_modules(
    modules: Iterable[nn.Module],
    hook: Callable[..., Any],
    *,
    with_kwargs: bool = False,
) -> Iterator[None]:
    """Call a hook after every forward call of some modules, inside the context.

    Args:
        modules: The modules.
        hook: Function `hook(module, args, output)`. A result other than None replaces the output.
        with_kwargs: Whether to call `hook(module, args, kwargs, output)` instead.
    """
    handles = [module.register_forward_hook(hook, with_kwargs=with_kwargs) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class BlockCall(NamedTuple):
    """One call of a block.

    Attributes:
        block: The block.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        output: Its result.
    """

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    @property
    def hidden_in(self) -> Tensor:
        """Hidden states passed to the block, which are the first argument in every family."""
        return self.args[0]

    @property
    def hidden_out(self) -> Tensor:
        """Hidden states returned by the block."""
        return get_first_tensor(self.output)

    def run(self, hidden: Tensor) -> Tensor:
        """Run the block on other hidden states, with its other arguments unchanged.

        Args:
            hidden: Hidden states `[batch, queries, hidden]`.

        Returns:
            Hidden states of the same shape.
        """
        return get_first_tensor(self.block(hidden, *self.args[1:], **self.kwargs))

    def repeat(self, n_copies: int, n_batch: int) -> "BlockCall":
        """Return this call with all arguments but the hidden states repeated.

        Args:
            n_copies: Number of batch copies.
            n_batch: Batch size.
        """
        arguments = repeat_batch((self.args[1:], self.kwargs), n_copies, n_batch)
        return self._replace(args=(self.hidden_in, *arguments[0]), kwargs=arguments[1])


def get_first_tensor(output: Any) -> Tensor:
    """Return the first tensor of a module's output, which contains its hidden states.

    Args:
        output: A tensor, or nested tuples, lists and dictionaries of tensors.
    """
    return next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))


def replace_first_tensor(output: Any, new: Tensor) -> Any:
    """Return a module's output with other hidden states.

    Args:
        output: A tensor, or nested tuples, lists and dictionaries of tensors.
        new: The hidden states that replace the first tensor.
    """
    old = get_first_tensor(output)
    return tree_map_only(Tensor, lambda leaf: new if leaf is old else leaf, output)


@contextmanager
def record_calls(blocks: Iterable[nn.Module]) -> Iterator[list[BlockCall]]:
    """Record every block call inside the context, and yield the growing list of calls.

    Args:
        blocks: The blocks to record.
    """
    calls: list[BlockCall] = []

    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append(BlockCall(module, args, kwargs, output))

    with hook_modules(blocks, record, with_kwargs=True):
        yield calls


@contextmanager
def record_outputs(blocks: Iterable[nn.Module]) -> Iterator[list[Any]]:
    """Record the output of every block call inside the context, and yield the growing list.

    Args:
        blocks: The blocks to record.
    """
    outputs: list[Any] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        outputs.append(output)

    with hook_modules(blocks, record):
        yield outputs


@contextmanager
def skip_first_calls(blocks: Sequence[nn.Module], outputs: Sequence[Any]) -> Iterator[None]:
    """Make the first block calls inside the context return recorded outputs without running.

    Args:
        blocks: All blocks of the model.
        outputs: Outputs of the calls to skip, in the order of the calls.
    """
    remaining_outputs = iter(outputs)
    with patch_forwards(
        {block: _SkippingForward(remaining_outputs, block.forward) for block in blocks}
    ):
        yield


@contextmanager
def patch_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the forward methods of modules inside the context.

    Args:
        forwards: New forward function of each module.
    """
    # Other libraries, for example for offloading, may have replaced forward already.
    previous_forwards = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, previous_forward in previous_forwards.items():
            module.__dict__.pop("forward", None)
            if previous_forward is not None:
                module.__dict__["forward"] = previous_forward


class _SkippingForward:
    """Function that returns recorded outputs as long as there are any, then calls `forward`."""

    def __init__(self, remaining_outputs: Iterator[Any], forward: Callable[..., Any]) -> None:
        self.remaining_outputs, self.forward = remaining_outputs, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for output in self.remaining_outputs:
            return output
        return self.forward(*args, **kwargs)


def repeat_batch(output: Any, n_copies: int, n_batch: int) -> Any:
    """Repeat every tensor `[batch, ...]` in a nested output to `[copies · batch, ...]`.

    Tensors without a batch axis are returned unchanged.

    Args:
        output: A tensor, or nested tuples, lists and dictionaries of tensors.
        n_copies: Number of batch copies.
        n_batch: Batch size.
    """

    def repeat(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or len(tensor) != n_batch:
            return tensor
        return tensor.repeat(n_copies, *[1] * (tensor.dim() - 1))

    return tree_map_only(Tensor, repeat, output)


def get_relative_tolerance(dtype: torch.dtype) -> float:
    """Return how far two runs of a model may differ, relative to the largest number.

    The tolerance exceeds the effect of another order of summation in a deep model, and is far
    below the effect of a missing mask.

    Args:
        dtype: Data type of the computation.
    """
    return min(1000 * torch.finfo(dtype).eps, 0.1)
