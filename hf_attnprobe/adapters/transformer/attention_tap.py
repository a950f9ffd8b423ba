"""Reads and edits post-softmax attention inside any model, as it runs.

One mechanism for every family and both attention implementations (eager, sdpa): while a ``with tapped(…)`` block is
open, every softmax over keys and every ``scaled_dot_product_attention`` inside an attention module goes through one
function, ``edit(layer, weights, scores) -> weights``. What it returns is what the model goes on with; gradients flow.
Layers are numbered in the order of their calls, because ALBERT calls one module for all of them.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hf_attnprobe.adapters.transformer.output_tap import OutputTap


Edit = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, weights [batch, heads, queries, keys], the same before the softmax) -> weights."""


def attention_modules(
    model: nn.Module, run: Callable[[], object]
) -> dict[str, nn.Module]:
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
        named = [name for name in running if _is_named_attention(everything[name])]
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
    outputs: OutputTap | None = None,
) -> Iterator["AttentionTap"]:
    """Puts ``edit`` between attention and what follows it; everything is removed at the end, whatever happens.

    Args:
        modules: where attention is computed, see :func:`attention_modules`.
        edit: called once per layer and forward pass; returning its ``weights`` leaves the model as it is.
        first: number of the first layer that will run, where lower layers are skipped.
        outputs: what to do with the heads' outputs, the product of attention and values.
    """
    stack: list[str] = []
    handles = []

    def leave(
        *_,
    ) -> None:  # a hook that returned something would replace the module's output
        stack.pop()

    try:
        for name, module in modules.items():
            handles.append(
                module.register_forward_pre_hook(
                    lambda *_, name=name: stack.append(name)
                )
            )
            handles.append(module.register_forward_hook(leave))
        with AttentionTap(stack, edit, first, outputs) as tap:
            yield tap
    finally:
        for handle in handles:
            handle.remove()


class AttentionTap(TorchFunctionMode):
    """Intercepts attention while ``stack`` names the module that computes it; ``names`` lists the layers it saw."""

    def __init__(
        self, stack: list[str], edit: Edit, first: int, outputs: OutputTap | None = None
    ):
        super().__init__()
        self.stack, self.edit, self.first, self.outputs = stack, edit, first, outputs
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "") if self.stack else ""
        if name in ("softmax", "special_softmax"):
            scores = args[0] if args else kwargs["input"]
            weights = func(*args, **kwargs)
            return (
                self._pass(weights, scores)
                if _is_attention(weights, args, kwargs)
                else weights
            )
        if name == "scaled_dot_product_attention":
            product = None if self.outputs is None else self.outputs.product
            return attend(*args, **kwargs, edit=self._pass, product=product)
        result = func(*args, **kwargs)
        return (
            result
            if self.outputs is None
            else self.outputs.see(getattr(func, "__name__", ""), args, result)
        )

    def _pass(self, weights: Tensor, scores: Tensor) -> Tensor:
        self.names.append(self.stack[-1])
        layer = self.first + len(self.names) - 1
        edited = self.edit(layer, weights, scores).to(weights.dtype)
        if self.outputs is not None:
            self.outputs.start(layer, edited)
        return edited


def replacing(attention: Mapping[int, Tensor]) -> Edit:
    """The edit that puts ``attention[layer]`` in place of the layer's own."""
    return lambda layer, weights, scores: (
        attention[layer].reshape(weights.shape) if layer in attention else weights
    )


def untouched(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
    """The edit that changes nothing."""
    return weights


def visible_keys(scores: Tensor) -> Tensor:
    """Bool, from scores [..., keys]: masks subtract 10,000 or more, so no masked key is near its row's best."""
    return scores > scores.amax(-1, keepdim=True) - 8000


def _is_attention(weights: Tensor, args: tuple, kwargs: Mapping) -> bool:
    """[batch, heads, queries, keys], normalised over keys; ConvBERT's kernels and routers are softmaxes of other shape."""
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
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
    """``scaled_dot_product_attention`` in plain steps, the ones of the eager models, with ``edit(weights, scores)``
    and ``product(output, value)``.

    A row without a visible key comes out uniform as in the eager models; it only ever belongs to padding.
    """
    if key.shape[1] != query.shape[1]:  # grouped queries
        key, value = (
            x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)
            for x in (key, value)
        )
    scores = torch.matmul(query, key.transpose(-2, -1)) * (
        scale or 1 / math.sqrt(query.shape[-1])
    )
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(
        -1, dtype=torch.promote_types(scores.dtype, torch.float32)
    )  # as the fused kernels do
    output = torch.matmul(
        F.dropout(edit(weights, scores).to(value.dtype), dropout_p), value
    )
    return output if product is None else product(output, value)
