"""Reads and replaces values inside a Transformer: attention, and outputs of heads and blocks.

One mechanism reads and edits every Transformer: the softmax over keys and
``scaled_dot_product_attention`` are intercepted inside attention modules. The registered attention
interface of Transformers covers fewer families (not DeBERTa, MPNet, XLNet, Bloom, Falcon, …), asks
for the model to be switched, and gave bit-identical numbers where both apply.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode


VARIABLE_LENGTH_KERNELS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Kernels that do not plan every number of tokens anew, as texts have all. cuDNN's take 50 to 120 ms
for each (H200, PyTorch 2.11), as long as 2,000 tokens through a model of 7 billion weights."""
HEAD_COUNT_ATTRIBUTES = ("num_heads", "num_attention_heads", "n_heads")
"""What attention modules call the number of their heads."""


class AttentionForm(NamedTuple):
    """Shape of attention for the tests, and the way back to the model's own.

    Attributes:
        weights: [batch, heads, queries, keys].
        scores: the same before the softmax.
        restored: from edited weights to what the model goes on with, before and after
            they are put into the model's own form.
    """

    weights: Tensor
    scores: Tensor
    restored: Callable[[Tensor], tuple[Tensor, Tensor]]


def find_head_counts(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """Number of heads of every module that states it."""
    found: dict[str, int] = {}
    for name, module in modules.items():
        for attribute in HEAD_COUNT_ATTRIBUTES:
            number = getattr(module, attribute, None)
            if isinstance(number, int):
                found.setdefault(name, number)
    return found


def is_packed(weights: Tensor, n_heads: int | None, n_keys: int | None = None) -> bool:
    """Whether weights are [batch · heads, queries, keys].

    Args:
        n_keys: number of keys; ``None``: as many as queries.
    """
    if weights.dim() != 3 or not n_heads or len(weights) % n_heads:
        return False
    return weights.shape[2] == (n_keys or weights.shape[1])


def standardise_form(
    weights: Tensor,
    scores: Tensor,
    n_heads: int | None,
    n_keys: int | None = None,
) -> AttentionForm:
    """Returns the form of attention weights after a softmax, given the shape of its scores.

    Args:
        n_keys: number of tokens that are keys, where queries are only some of them. Then an
            explicit sink stays beside them, as the last column.
    """
    if weights.dim() == 3:
        assert n_heads is not None  # `is_packed` has said so
        weights = weights.unflatten(0, (-1, n_heads))
        scores = scores.unflatten(0, (-1, n_heads))
        return AttentionForm(weights, scores, lambda edited: (edited, edited.flatten(0, 1)))
    if n_keys is not None:
        return AttentionForm(weights, scores, lambda edited: (edited[..., :n_keys], edited))
    if weights.shape[-1] != weights.shape[-2] + 1:
        return AttentionForm(weights, scores, lambda edited: (edited, edited))
    kept = weights[..., :-1]
    sink = weights[..., -1:]
    share = kept.sum(-1, keepdim=True)
    shown = kept / share.clamp_min(torch.finfo(weights.dtype).tiny)

    def restored(edited: Tensor) -> tuple[Tensor, Tensor]:
        scaled = edited * share
        sinks = sink.expand(*scaled.shape[:-1], 1)
        whole = torch.cat([scaled, sinks], -1)
        return scaled, whole

    return AttentionForm(shown, scores[..., :-1], restored)


def unpack_heads(values: Tensor, n_heads: int) -> Tensor:
    """Restores [batch, heads, queries, ...] also where a text has one token.

    Grouped queries of a single token come packed as [batch, key heads, group, ...].
    """
    return values.reshape(len(values), n_heads, -1, values.shape[-1])


# --- Reads and edits post-softmax attention inside any model, as it runs -------------------------
# One mechanism serves every family and both attention implementations (eager, sdpa). While
# a ``with tapped(…)`` block is open, every softmax over keys and every
# ``scaled_dot_product_attention`` inside an attention module goes through one function,
# ``edit(layer, weights, scores) -> weights``. The model goes on with what it returns;
# gradients flow. Layers are numbered in the order of their calls, because ALBERT calls one
# module for all of them.

AttentionEdit = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, weights [batch, heads, queries, keys], the same before the softmax) -> weights."""


class WeightFollower(Protocol):
    """Follows attention weights through later operations, as ``OutputHook`` does."""

    def start_following(self, layer: int, weights: Tensor, *others: Tensor) -> None:
        """Starts to follow a layer's weights and other forms of them."""

    def observe_operation(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        """Called after every operation; returns the result to go on with."""

    def edit_product(self, result: Tensor, values: Tensor) -> Tensor:
        """Called with ``weights @ values``; returns the result to go on with."""


def find_attention_modules(model: nn.Module, run: Callable[[], object]) -> dict[str, nn.Module]:
    """Modules that compute attention, by qualified name.

    They are found by what they do in ``run()``, one forward pass of a single text: the
    softmax over keys of [1, heads, n, n], or ``scaled_dot_product_attention``. It belongs
    to the innermost running module whose class is named like attention or, without one,
    to the innermost of all. A module named like attention counts with any 4-D softmax, so
    that banded or pooled attention is found too, and can be refused.
    """
    everything = dict(model.named_modules())
    modules: dict[str, nn.Module] = {}

    def note(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
        running = [n for n in tap.stack if not isinstance(everything[n], nn.Softmax)]
        named = [n for n in running if _is_named_attention(everything[n])]
        name = (named or running)[-1]
        n_texts, _, n_queries, n_keys = weights.shape
        is_square = n_texts == 1 and n_queries == n_keys > 1
        if named or is_square:
            modules[name] = everything[name]
        return weights

    with hook_attention(everything, note) as tap:
        run()
    return modules


def _is_named_attention(module: nn.Module) -> bool:
    name = type(module).__name__
    return "Attention" in name or "Attn" in name


@contextmanager
def hook_attention(
    modules: Mapping[str, nn.Module],
    edit: AttentionEdit,
    *,
    first: int = 0,
    outputs: WeightFollower | None = None,
    n_keys: int | None = None,
) -> Iterator["AttentionHook"]:
    """Inserts ``edit`` between attention and the next operation, inside the context.

    Args:
        modules: where attention is computed, see :func:`find_attention_modules`.
        edit: called once per layer and forward pass; returning its ``weights`` leaves
            the model as it is.
        first: number of the first layer that will run, where lower layers are skipped.
        outputs: what to do with the heads' outputs, the product of attention and values.
        n_keys: see :func:`standardise_form`.
    """
    stack: list[str] = []
    handles = []

    def leave(*_: Any) -> None:
        # a hook that returned something would replace the module's output
        stack.pop()

    try:
        for name, module in modules.items():
            enter = partial(_enter, stack, name)
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave))
        with AttentionHook(stack, edit, first, outputs, find_head_counts(modules), n_keys) as tap:
            yield tap
    finally:
        for handle in handles:
            handle.remove()


def _enter(stack: list[str], name: str, *_: Any) -> None:
    stack.append(name)


class AttentionHook(TorchFunctionMode):
    """Intercepts attention; ``stack`` names the module that computes it.

    Attributes:
        names: the layers it saw, in the order of their calls.
    """

    def __init__(
        self,
        stack: list[str],
        edit: AttentionEdit,
        first: int,
        outputs: WeightFollower | None = None,
        heads: Mapping[str, int] = MappingProxyType({}),
        n_keys: int | None = None,
    ) -> None:
        super().__init__()
        self.stack, self.edit, self.first, self.outputs = (
            stack,
            edit,
            first,
            outputs,
        )
        self.heads, self.n_keys = heads, n_keys
        self.names: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.stack and name == "scaled_dot_product_attention":
            product = None if self.outputs is None else self.outputs.edit_product
            return compute_eager_attention(*args, **kwargs, edit=self._pass, product=product)
        result = func(*args, **kwargs)
        if self.stack and name in ("softmax", "special_softmax"):
            if not _is_attention(result, args, kwargs, self._n_heads, self.n_keys):
                return result
            scores = args[0] if args else kwargs["input"]
            return self._pass(result, scores)
        if self.outputs is None:
            return result
        named = [value for value in kwargs.values() if isinstance(value, Tensor)]
        return self.outputs.observe_operation(name, (*args, *named), result)

    def _pass(self, weights: Tensor, scores: Tensor) -> Tensor:
        layer = self.first + len(self.names)
        self.names.append(self.stack[-1])
        form = standardise_form(weights, scores, self._n_heads, self.n_keys)
        edited = self.edit(layer, form.weights, form.scores).to(weights.dtype)
        edited, restored = form.restored(edited)
        if self.outputs is not None:
            self.outputs.start_following(layer, edited, restored)
        return restored

    @property
    def _n_heads(self) -> int | None:
        """Number of heads of the innermost running module that states it."""
        return self.heads.get(self.stack[-1])


def _is_attention(
    weights: Tensor,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    n_heads: int | None,
    n_keys: int | None,
) -> bool:
    """Whether a softmax runs over the keys of [batch, heads, queries, keys].

    Batch and heads may be one axis where the module names its number of heads.

    ConvBERT's kernels and routers are softmaxes of another shape.
    """
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if is_packed(weights, n_heads, n_keys):
        return axis in (-1, 2)
    return weights.dim() == 4 and axis in (-1, 3)


def compute_eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    edit: Callable[[Tensor, Tensor], Tensor],
    product: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """``scaled_dot_product_attention`` in the separate steps of the eager models.

    A row without a visible key comes out uniform as in the eager models; it only ever
    belongs to padding.

    Args:
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa: as in
            PyTorch's function.
        edit: what the weights go through, ``edit(weights, scores)``.
        product: what the output goes through, ``product(output, value)``.
    """
    scale = scale or 1 / math.sqrt(query.shape[-1])
    scores = _of_groups(query, key.transpose(-2, -1))
    scores = scores * scale
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    precise = torch.promote_types(scores.dtype, torch.float32)  # as in fused kernels
    weights = scores.softmax(-1, dtype=precise)
    weights = edit(weights, scores).to(value.dtype)
    weights = F.dropout(weights, dropout_p)
    output = _of_groups(weights, value)
    return output if product is None else product(output, value)


def _of_groups(by_query: Tensor, by_key: Tensor) -> Tensor:
    """Returns ``by_query @ by_key``, whose heads several queries may share; they are not copied.

    Shape: [batch, heads, queries, a], [batch, key heads, a, b] -> [batch, heads, queries, b].
    """
    n_key_heads = by_key.shape[1]
    n_shared = by_query.shape[1] // n_key_heads
    if n_shared == 1:
        return torch.matmul(by_query, by_key)
    grouped = by_query.unflatten(1, (n_key_heads, n_shared))
    product = torch.matmul(grouped.flatten(2, 3), by_key)
    product = product.unflatten(2, (n_shared, -1))
    return product.flatten(1, 2)


# Edits


def keep_attention(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
    """The edit that changes nothing."""
    return weights


def detach_attention(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
    """The edit that stops gradients at the attention."""
    return weights.detach()


def create_replacing_edit(attention: Mapping[int, Tensor]) -> AttentionEdit:
    """The edit that replaces a layer's attention by ``attention[layer]``."""
    return partial(_replaced, attention)


def _replaced(
    attention: Mapping[int, Tensor], layer: int, weights: Tensor, scores: Tensor
) -> Tensor:
    if layer not in attention:
        return weights
    return attention[layer].reshape(weights.shape)


def create_masking_edit(kept: Mapping[int, Tensor], n_heads: Sequence[int]) -> AttentionEdit:
    """The edit that multiplies a layer's attention by ``kept[layer]``.

    It broadcasts to [batch, heads, queries, keys].

    Args:
        kept: by layer.
        n_heads: the number of heads of every layer.
    """
    return partial(_masked, kept, n_heads)


def _masked(
    kept: Mapping[int, Tensor],
    n_heads: Sequence[int],
    layer: int,
    weights: Tensor,
    scores: Tensor,
) -> Tensor:
    if layer not in kept:
        return weights
    edited = unpack_heads(weights, n_heads[layer]) * kept[layer]
    return edited.reshape(weights.shape)


# Readings


def find_visible_keys(scores: Tensor) -> Tensor:
    """Which keys of scores [..., keys] are unmasked, bool.

    Masks subtract 10,000 or more, so that no masked key is near its row's best.
    """
    return scores > scores.amax(-1, keepdim=True) - 8000


# --- Finds, in a running model, the heads' outputs and the output projection ---------------------
# The attention weights are followed, by identity, through casts, dropout, masks and
# reshapes to the product with the values that consumes them. The product is the heads'
# output, before the output projection that mixes the heads; it goes through
# ``edit(layer, output, values) -> output``.

OutputEdit = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, output [batch, heads, queries, width], values) -> output.

The values are [batch, heads or 1, keys, width].
"""

MATRIX_PRODUCTS = ("matmul", "__matmul__", "bmm")
REARRANGING_OPERATIONS = (
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


class OutputHook:
    """Edits the heads' outputs during one forward pass.

    Attributes:
        edit: what every head output goes through.
        projections: by layer [heads, width, hidden], where the output projection is a
            plain linear map of the head outputs.
    """

    def __init__(self, edit: OutputEdit) -> None:
        self.edit = edit
        self.projections: dict[int, Tensor] = {}
        self._layer, self._shape = -1, torch.Size()
        self._weights: list[Tensor] = []
        self._output: list[Tensor] = []

    def start_following(self, layer: int, weights: Tensor, *others: Tensor) -> None:
        """Starts to follow the weights [batch, heads, queries, keys].

        Args:
            layer: their number.
            weights: after all edits.
            others: the same in the model's own form.
        """
        self._layer, self._shape = layer, weights.shape
        self._weights, self._output = [weights, *others], []

    def observe_operation(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        """Called after every operation; returns the result to go on with."""
        if not isinstance(result, Tensor):
            return result
        position = _position(args, self._weights)
        if position is not None:
            if name == "einsum" and position == 1 and len(args) == 3:
                return self._einsum(args[0], args[2], result)
            if name in MATRIX_PRODUCTS and position == 0:
                return self.edit_product(result, args[1])
            if result.numel() == self._weights[0].numel():
                self._weights.append(result)
            return result
        position = _position(args, self._output)
        if position is not None and name in REARRANGING_OPERATIONS:
            self._output.append(result)
        elif position is not None:
            self._note_projection(_projection(name, position, args))
        return result

    def edit_product(self, result: Tensor, values: Tensor) -> Tensor:
        """Edits ``weights @ values``; batch and heads may be one axis."""
        if values.dim() == 3:
            values = values.unflatten(0, self._shape[:2])
        output = result.reshape(*self._shape[:3], -1)
        return self._follow(self._edit(output, values).reshape(result.shape))

    def _einsum(self, equation: str, values: Tensor, result: Tensor) -> Tensor:
        """Handles ``bnij,jbnd->ibnd`` of XLNet and similar products."""
        operands, out = equation.split("->")
        weights, other = operands.split(",")
        (width,) = set(out) - set(weights)
        batch_head, query, key = weights[:2], weights[2], weights[3]
        order = batch_head + query + width
        keys = batch_head + key + width
        output = torch.einsum(f"{out}->{order}", result)
        values = torch.einsum(f"{other}->{keys}", values)
        edited = self._edit(output, values)
        edited = torch.einsum(f"{order}->{out}", edited)
        return self._follow(edited)

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


class SubstituteValues(NamedTuple):
    """Values that heads of a layer read in place of their own.

    Attributes:
        values: [batch, heads, width].
        reads: which heads and rows read them, bool [heads, queries, 1].
    """

    values: Tensor
    reads: Tensor

    @classmethod
    def create(
        cls,
        heads: Sequence[int],
        query: int | None,
        states: Tensor,
        like: Tensor,
    ) -> Self:
        """Returns the reading of other states by some heads, at all queries or one.

        Args:
            states: [batch, these heads, width].
            like: attention of the layer, [batch, heads, queries, keys].
        """
        values = states.new_zeros(len(states), like.shape[1], states.shape[-1])
        values[:, heads] = states
        reads = torch.zeros_like(like[0, ..., :1], dtype=torch.bool)
        if query is None:
            reads[heads] = True
        else:
            reads[heads, query] = True
        return cls(values, reads)


class InterchangeHook(OutputHook):
    """Lets heads read other values at some keys, with the weights that they have.

    Args:
        places: of the keys, by layer bool [copies · batch, keys]; other layers are left alone.
        instead: what is read there, by layer.
        n_heads: of every layer.
    """

    def __init__(
        self,
        places: Mapping[int, Tensor],
        instead: Mapping[int, SubstituteValues],
        n_heads: Sequence[int],
    ) -> None:
        super().__init__(self._exchanged)
        self._places, self._instead, self._n_heads = places, instead, n_heads

    def start_following(self, layer: int, weights: Tensor, *others: Tensor) -> None:
        super().start_following(layer, weights, *others)
        self._given = weights

    def _exchanged(self, layer: int, output: Tensor, values: Tensor) -> Tensor:
        if layer not in self._places:
            return output
        n_heads, places, (new, reads) = (
            self._n_heads[layer],
            self._places[layer],
            self._instead[layer],
        )
        own = values.repeat_interleave(n_heads // values.shape[1], dim=1)
        weights = unpack_heads(self._given, n_heads).to(own.dtype) * places[:, None, None] * reads
        of_copies = new.repeat(len(places) // len(new), 1, 1)[:, :, None].to(own.dtype)
        change = weights.sum(-1, keepdim=True) * of_copies - weights @ own
        return output + change.reshape(output.shape)


def _position(args: tuple[Any, ...], followed: list[Tensor]) -> int | None:
    """Index of the argument that is a followed tensor."""
    for position, arg in enumerate(args):
        if any(arg is tensor for tensor in followed):
            return position
    return None


def _projection(name: str, position: int, args: tuple[Any, ...]) -> Tensor | None:
    """Returns the matrix that the argument at ``position`` is multiplied by; None for others."""
    if name == "linear" and position == 0:
        return args[1].t()
    if name == "addmm" and position == 1:
        return args[-1]
    if name in MATRIX_PRODUCTS and position == 0:
        return args[-1]
    if name == "einsum" and args[0] == "ibnd,hnd->ibh":
        return args[2].permute(1, 2, 0).flatten(0, 1)
    return None


def create_output_edit(
    layer: int, head: int, query: int | None, n_heads: int, new: Tensor
) -> OutputEdit:
    """The edit that replaces one head's output, at all queries or one.

    Args:
        layer, head, query: the site.
        n_heads: number of heads of the layer.
        new: [batch, queries, width].
    """

    return partial(_output_replaced, layer, head, query, n_heads, new)


def _output_replaced(
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
    heads = unpack_heads(output, n_heads)
    chosen = torch.arange(n_heads, device=output.device)[:, None, None] == head
    if query is not None:
        queries = torch.arange(heads.shape[2], device=output.device)
        chosen = chosen & (queries[:, None] == query)
    # no edit in place, which vmap refuses
    edited = torch.where(chosen, new[:, None].to(output.dtype), heads)
    return edited.reshape(output.shape)
