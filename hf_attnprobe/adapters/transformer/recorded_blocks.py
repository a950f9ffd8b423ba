"""Record the block calls in a forward pass, and skip them in later forward passes.

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
    """Find the Transformer blocks that contain attention modules.

    A block is the outermost `ModuleList` element that contains the attention module, such as
    `encoder.layer[3]`.

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
    """Find the outermost `ModuleList` element on the path to a module, or return None."""
    module = model
    # The model itself has an empty name.
    for part in filter(None, name.split(".")):
        is_in_list = isinstance(module, nn.ModuleList)
        module = getattr(module, part)
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
    """Call a function after every forward call of some modules, inside a ``with`` block.

    Args:
        modules: Modules to hook.
        hook: Function that is called as `hook(module, args, output)`. If its result is not None,
            it replaces the module's output.
        with_kwargs: Whether to call `hook(module, args, kwargs, output)` instead.
    """
    handles = [module.register_forward_hook(hook, with_kwargs=with_kwargs) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class BlockCall(NamedTuple):
    """A recorded call of a Transformer block.

    Attributes:
        block: The block.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        output: Result of the call.
    """

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    @property
    def hidden_in(self) -> Tensor:
        """Hidden states that the block received; they are the first argument in every model."""
        return self.args[0]

    @property
    def hidden_out(self) -> Tensor:
        """Hidden states that the block returned."""
        return get_first_tensor(self.output)

    def run(self, hidden: Tensor) -> Tensor:
        """Run the block on new hidden states, with its other arguments unchanged.

        Args:
            hidden: Hidden states `[batch, queries, hidden]`.

        Returns:
            Hidden states of the same shape.
        """
        return get_first_tensor(self.block(hidden, *self.args[1:], **self.kwargs))

    def repeat(self, n_copies: int, n_batch: int) -> "BlockCall":
        """Return a call whose arguments, except the hidden states, are repeated.

        Args:
            n_copies: Number of batch copies.
            n_batch: Batch size.
        """
        other_args, kwargs = repeat_batch((self.args[1:], self.kwargs), n_copies, n_batch)
        return self._replace(args=(self.hidden_in, *other_args), kwargs=kwargs)


def get_first_tensor(output: Any) -> Tensor:
    """Return the first tensor of a module's output, which contains its hidden states.

    Args:
        output: A tensor, or nested tuples, lists and dictionaries of tensors.
    """
    return next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))


def replace_first_tensor(output: Any, new: Tensor) -> Any:
    """Replace the first tensor in a module's output, which contains its hidden states.

    Args:
        output: A tensor, or nested tuples, lists and dictionaries of tensors.
        new: The new hidden states.

    Returns:
        An output with the same structure.
    """
    old = get_first_tensor(output)
    return tree_map_only(Tensor, lambda leaf: new if leaf is old else leaf, output)


@contextmanager
def record_calls(blocks: Iterable[nn.Module]) -> Iterator[list[BlockCall]]:
    """Record the arguments and outputs of all block calls inside a ``with`` block.

    Args:
        blocks: The blocks to record.

    Yields:
        The list of calls, which grows while the model runs.
    """
    calls: list[BlockCall] = []

    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append(BlockCall(module, args, kwargs, output))

    with hook_modules(blocks, record, with_kwargs=True):
        yield calls


@contextmanager
def record_outputs(blocks: Iterable[nn.Module]) -> Iterator[list[Any]]:
    """Record the outputs of all block calls inside a ``with`` block.

    Args:
        blocks: The blocks to record.

    Yields:
        The list of outputs, which grows while the model runs.
    """
    outputs: list[Any] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        outputs.append(output)

    with hook_modules(blocks, record):
        yield outputs


@contextmanager
def skip_first_calls(blocks: Sequence[nn.Module], outputs: Sequence[Any]) -> Iterator[None]:
    """Replace the first block calls inside a ``with`` block by their recorded outputs.

    The blocks do not run. The calls after them run as usual.

    Args:
        blocks: All blocks of the model.
        outputs: Recorded outputs for the calls to skip, in call order.
    """
    remaining_outputs = iter(outputs)
    forwards = {block: _SkippingForward(remaining_outputs, block.forward) for block in blocks}
    with patch_forwards(forwards):
        yield


@contextmanager
def patch_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the forward methods of modules inside a ``with`` block.

    Args:
        forwards: New forward functions by module.
    """
    # Another library, such as accelerate with offloading, may have replaced `forward` already.
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
    """Callable that returns recorded outputs until none remain, and then calls `forward`."""

    def __init__(self, remaining_outputs: Iterator[Any], forward: Callable[..., Any]) -> None:
        self.remaining_outputs, self.forward = remaining_outputs, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The loop body runs at most once; it is skipped if no recorded output remains.
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
        has_batch_axis = tensor.dim() > 0 and len(tensor) == n_batch
        if not has_batch_axis:
            return tensor
        # Repeat the first axis only.
        return tensor.repeat(n_copies, *[1] * (tensor.dim() - 1))

    return tree_map_only(Tensor, repeat, output)


def get_relative_tolerance(dtype: torch.dtype) -> float:
    """Return how much two runs of a model may differ because of rounding errors.

    The tolerance is larger than rounding errors in a deep model, and much smaller than the effect
    of a missing attention mask.

    Args:
        dtype: Data type of the computation.

    Returns:
        The tolerance as a fraction of the largest output, at most 0.1.
    """
    return min(1000 * torch.finfo(dtype).eps, 0.1)
