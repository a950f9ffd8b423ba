"""Where in a block the attention ends, and a block run from there on.

Behind its attention a block works on every row by itself: the output projection, residual
connections, norms and the feed-forward network. So where it is known what the attention
adds, any rows can be run alone, and the attention need not run at all.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from hf_attnprobe.adapters.transformer.attention_tap import tapped, untouched
from hf_attnprobe.adapters.transformer.output_tap import OutputTap
from hf_attnprobe.adapters.transformer.resume import (
    BlockCall,
    first_tensor,
    hooked,
    patched,
    with_first_tensor,
)


class Sublayer(NamedTuple):
    """The attention of a block.

    Attributes:
        name: qualified name of the module that computes attention.
        attention: that module.
        projection: maps the heads' outputs, side by side, to hidden states.
        joint: what returns the projected outputs to the block: ``attention`` where the
            projection is inside of it (Llama), else ``projection`` (BERT).
        slices: [heads, width, hidden], each head's part of the projection's matrix.
        returned: what ``attention`` returned once; nobody reads its tensors.
    """

    name: str
    attention: nn.Module
    projection: nn.Module
    joint: nn.Module
    slices: Tensor
    returned: Any


class Captured(NamedTuple):
    """What one run of a block leaves.

    Attributes:
        values: [batch, heads, keys, width].
        projected: the heads' outputs behind the projection, [batch, queries, hidden].
    """

    values: Tensor
    projected: Tensor


def find_sublayer(
    call: BlockCall, modules: Mapping[str, nn.Module], n_heads: int
) -> Sublayer | None:
    """The attention of a block that computes it once; None where it is of another form.

    Args:
        call: a recorded call of the block.
        modules: attention modules by qualified name.
        n_heads: of its attention.
    """
    tap = OutputTap(lambda layer, output, values: output)
    with tapped(modules, untouched, outputs=tap) as attention_tap:
        call.run(call.before)
    if len(attention_tap.names) != 1 or 0 not in tap.projections:
        return None
    (name,), slices = attention_tap.names, tap.projections[0]
    attention = modules[name]
    projection = _owner(call.block, slices)
    if projection is None or len(slices) != n_heads:
        return None
    inside = projection in set(attention.modules())
    joint = attention if inside else projection
    returned = _returned(call, {attention, projection, joint})
    if not _joins_rows(call, *returned[projection], returned[joint][1]):
        return None
    return Sublayer(name, attention, projection, joint, slices, returned[attention][1])


def _owner(block: nn.Module, slices: Tensor) -> nn.Module | None:
    """The module whose weight these are the slices of."""
    for module in block.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.data_ptr() == slices.data_ptr():
            return module
    return None


def _returned(
    call: BlockCall, modules: Collection[nn.Module]
) -> dict[nn.Module, tuple[tuple[Any, ...], Any]]:
    """What the modules were given, and what they returned, in a run of the block."""
    seen = {}

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen[module] = args, output

    with hooked(modules, note):
        call.run(call.before)
    return seen


def _joins_rows(call: BlockCall, args: tuple[Any, ...], projected: Tensor, joined: Any) -> bool:
    """Whether the projection is of [batch, queries, …] and the joint returns the same."""
    rows, given = call.before.shape[:2], args[0]
    if given.dim() != 3 or not given.shape[:2] == projected.shape[:2] == rows:
        return False
    return projected.equal(first_tensor(joined))


def capture(call: BlockCall, sublayer: Sublayer) -> Captured:
    """Runs a block as it was called and keeps what its attention computes."""
    seen: list[Tensor] = []

    def note(layer: int, output: Tensor, values: Tensor) -> Tensor:
        seen.append(values)
        return output

    modules = {sublayer.name: sublayer.attention}
    with tapped(modules, untouched, outputs=OutputTap(note)):
        returned = _returned(call, {sublayer.joint})
    (values,) = seen
    n_shared = len(sublayer.slices) // values.shape[1]  # by heads sharing their values
    projected = first_tensor(returned[sublayer.joint][1])
    return Captured(values.repeat_interleave(n_shared, dim=1), projected)


def finish(call: BlockCall, sublayer: Sublayer, hidden: Tensor, projected: Tensor) -> Tensor:
    """A block's output [rows, hidden] from what its attention adds to these rows.

    Args:
        call, sublayer: the block.
        hidden: the rows that go into the block, [any, rows, hidden].
        projected: what its attention adds to them, [any, rows, hidden].
    """
    joined: Any = projected
    if sublayer.joint is sublayer.attention:
        joined = with_first_tensor(sublayer.returned, projected)
    forwards = {sublayer.attention: partial(_instead, sublayer.returned)}
    with patched(forwards | {sublayer.joint: partial(_instead, joined)}):
        return call.run(hidden)


def _instead(output: Any, *_: Any, **__: Any) -> Any:
    return output


class _Reached(Exception):
    """The heads' outputs are known; no error."""


def head_outputs_of(call: BlockCall, sublayer: Sublayer, hidden: Tensor) -> Tensor:
    """The heads' outputs side by side [any, queries, heads · width], without the rest.

    Args:
        call, sublayer: the block, its other arguments for as many texts.
        hidden: what goes into it, [any, queries, hidden].
    """
    given: list[Tensor] = []

    def stop(module: nn.Module, args: tuple[Any, ...]) -> None:
        given.append(args[0])
        raise _Reached

    handle = sublayer.projection.register_forward_pre_hook(stop)
    try:
        call.run(hidden)
    except _Reached:
        pass
    finally:
        handle.remove()
    return given[0]


def chosen_rows(chosen: Tensor) -> Tensor | None:
    """Places of the chosen rows, bool [batch, queries] -> int [batch, most chosen].

    Texts with fewer take some of their other rows along. At least one is taken; None
    stands for all of them.
    """
    n_rows = max(1, int(chosen.sum(1).max()))
    if n_rows == chosen.shape[1]:
        return None
    return chosen.int().argsort(dim=1, descending=True, stable=True)[:, :n_rows]


def take_rows(values: Tensor, rows: Tensor | None) -> Tensor:
    """[any, batch, …, queries, width] at ``rows`` -> [any, batch, …, rows, width].

    Args:
        values: five axes, or four without heads, or three without copies too.
        rows: int [batch, rows]; None takes all.
    """
    if rows is None:
        return values
    if values.dim() == 5:  # heads stand between texts and rows
        rows = rows[:, None]
    index = rows[..., None].expand(*values.shape[:-2], rows.shape[-1], values.shape[-1])
    return values.gather(-2, index)


def put_rows(values: Tensor, rows: Tensor | None, new: Tensor) -> Tensor:
    """Copies of ``values`` with some rows replaced, [copies, batch, queries, hidden].

    Args:
        values: [batch, queries, hidden].
        rows: int [batch, rows]; None puts all.
        new: [copies, batch, rows, hidden].
    """
    if rows is None:
        return new
    copies = values.expand(len(new), *values.shape)
    return copies.scatter(2, rows[..., None].expand(new.shape), new)
