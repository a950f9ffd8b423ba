"""Reads and edits post-softmax attention inside any model, as it runs.

One mechanism serves every family and both attention implementations (eager, sdpa). While
a ``with tapped(…)`` block is open, every softmax over keys and every
``scaled_dot_product_attention`` inside an attention module goes through one function,
``edit(layer, weights, scores) -> weights``. The model goes on with what it returns;
gradients flow. Layers are numbered in the order of their calls, because ALBERT calls one
module for all of them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hf_attnprobe.adapters.transformer.attention_forms import (
    form_of,
    heads_of,
    is_packed,
    unpacked,
)


Edit = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, weights [batch, heads, queries, keys], the same before the softmax) -> weights."""


class FollowsWeights(Protocol):
    """What is done behind the attention weights, as by ``OutputTap``."""

    def start(self, layer: int, weights: Tensor, *others: Tensor) -> None:
        """Follows the weights of a layer, and other forms of them, from now on."""

    def see(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        """Called after every operation; returns the result to go on with."""

    def product(self, result: Tensor, values: Tensor) -> Tensor:
        """Called with ``weights @ values``; returns the result to go on with."""


def attention_modules(model: nn.Module, run: Callable[[], object]) -> dict[str, nn.Module]:
    """The modules that compute attention, by qualified name.

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
        if named or (n_texts == 1 and n_queries == n_keys > 1):
            modules[name] = everything[name]
        return weights

    with tapped(everything, note) as tap:
        run()
    return modules


def _is_named_attention(module: nn.Module) -> bool:
    name = type(module).__name__
    return "Attention" in name or "Attn" in name


@contextmanager
def tapped(
    modules: Mapping[str, nn.Module],
    edit: Edit,
    *,
    first: int = 0,
    outputs: FollowsWeights | None = None,
) -> Iterator["AttentionTap"]:
    """Puts ``edit`` between attention and what follows it, until the block is left.

    Args:
        modules: where attention is computed, see :func:`attention_modules`.
        edit: called once per layer and forward pass; returning its ``weights`` leaves
            the model as it is.
        first: number of the first layer that will run, where lower layers are skipped.
        outputs: what to do with the heads' outputs, the product of attention and values.
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
        with AttentionTap(stack, edit, first, outputs, heads_of(modules)) as tap:
            yield tap
    finally:
        for handle in handles:
            handle.remove()


def _enter(stack: list[str], name: str, *_: Any) -> None:
    stack.append(name)


class AttentionTap(TorchFunctionMode):
    """Intercepts attention while ``stack`` names the module that computes it.

    Attributes:
        names: the layers it saw, in the order of their calls.
    """

    def __init__(
        self,
        stack: list[str],
        edit: Edit,
        first: int,
        outputs: FollowsWeights | None = None,
        heads: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.stack, self.edit, self.first, self.outputs = stack, edit, first, outputs
        self.heads = heads
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
            product = None if self.outputs is None else self.outputs.product
            return attend(*args, **kwargs, edit=self._pass, product=product)
        result = func(*args, **kwargs)
        if self.stack and name in ("softmax", "special_softmax"):
            if not _is_attention(result, args, kwargs, self._n_heads):
                return result
            scores = args[0] if args else kwargs["input"]
            return self._pass(result, scores)
        if self.outputs is None:
            return result
        named = [value for value in kwargs.values() if isinstance(value, Tensor)]
        return self.outputs.see(name, (*args, *named), result)

    def _pass(self, weights: Tensor, scores: Tensor) -> Tensor:
        layer = self.first + len(self.names)
        self.names.append(self.stack[-1])
        form = form_of(weights, scores, self._n_heads)
        edited = self.edit(layer, form.weights, form.scores).to(weights.dtype)
        edited, restored = form.restored(edited)
        if self.outputs is not None:
            self.outputs.start(layer, edited, restored)
        return restored

    @property
    def _n_heads(self) -> int | None:
        """The number of heads that the innermost running module names."""
        return self.heads.get(self.stack[-1])


def _is_attention(
    weights: Tensor,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    n_heads: int | None,
) -> bool:
    """Whether a softmax is over the keys of [batch, heads, queries, keys].

    Batch and heads may be one axis where the module names its number of heads.

    ConvBERT's kernels and routers are softmaxes of another shape.
    """
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if is_packed(weights, n_heads):
        return axis in (-1, 2)
    return weights.dim() == 4 and axis in (-1, 3)


def attend(
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
    """``scaled_dot_product_attention`` in the plain steps of the eager models.

    A row without a visible key comes out uniform as in the eager models; it only ever
    belongs to padding.

    Args:
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa: as in
            PyTorch's function.
        edit: what the weights go through, ``edit(weights, scores)``.
        product: what the output goes through, ``product(output, value)``.
    """
    n_shared = query.shape[1] // key.shape[1]  # more than 1 for grouped queries
    if n_shared > 1:
        key = key.repeat_interleave(n_shared, dim=1)
        value = value.repeat_interleave(n_shared, dim=1)
    scale = scale or 1 / math.sqrt(query.shape[-1])
    scores = torch.matmul(query, key.transpose(-2, -1)) * scale
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    precise = torch.promote_types(scores.dtype, torch.float32)  # as in fused kernels
    weights = edit(scores.softmax(-1, dtype=precise), scores).to(value.dtype)
    output = torch.matmul(F.dropout(weights, dropout_p), value)
    return output if product is None else product(output, value)


# Edits


def untouched(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
    """The edit that changes nothing."""
    return weights


def detached(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
    """The edit that lets no gradient flow through the attention."""
    return weights.detach()


def replacing(attention: Mapping[int, Tensor]) -> Edit:
    """The edit that puts ``attention[layer]`` in place of the layer's own."""
    return partial(_replaced, attention)


def _replaced(
    attention: Mapping[int, Tensor], layer: int, weights: Tensor, scores: Tensor
) -> Tensor:
    if layer not in attention:
        return weights
    return attention[layer].reshape(weights.shape)


def masking(kept: Mapping[int, Tensor], n_heads: Sequence[int]) -> Edit:
    """The edit that multiplies the attention of a layer by ``kept[layer]``.

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
    edited = unpacked(weights, n_heads[layer]) * kept[layer]
    return edited.reshape(weights.shape)


# Readings


def visible_keys(scores: Tensor) -> Tensor:
    """Which keys of scores [..., keys] are not masked, bool.

    Masks subtract 10,000 or more, so that no masked key is near its row's best.
    """
    return scores > scores.amax(-1, keepdim=True) - 8000
