"""Read and replace attention weights and head outputs inside a running Transformer.

The main function is `hook_attention`. It works for all architectures and for both attention
implementations ("eager" and "sdpa"), because it intercepts the softmax and
`scaled_dot_product_attention` inside attention modules. Example:

    with hook_attention(modules, edit):
        model(**inputs)

In this example, `edit(layer, weights, scores)` is called once per attention layer. The model
continues with the weights that it returns. Gradients flow through the edit.

The attention interface of Transformers is not used, because it does not support DeBERTa, MPNet,
XLNet, Bloom, Falcon and other architectures. For the architectures that it supports, the results
are bit-identical.
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
"""Attention kernels of PyTorch that are fast for texts of varying length.

cuDNN kernels are not in the list. Each new text length costs them 50 to 120 ms of preparation on an
H200, which is as long as a whole forward pass of 2,000 tokens through a model with 7 billion
weights.
"""
HEAD_COUNT_ATTRIBUTES = ("num_heads", "num_attention_heads", "n_heads")
"""Names of the attribute for the number of heads in attention modules of different models."""


class AttentionForm(NamedTuple):
    """Attention in a standard shape, and a function that converts back to the model's own shape.

    Attributes:
        weights: Attention weights `[batch, heads, queries, keys]`.
        scores: Attention scores before the softmax, in the same shape.
        restore: Function that takes edited weights in the standard shape. It returns the weights
            that the model will apply, in the standard shape and in the model's own shape.
    """

    weights: Tensor
    scores: Tensor
    restore: Callable[[Tensor], tuple[Tensor, Tensor]]


def find_head_counts(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """Read the head counts of attention modules from their attributes.

    Args:
        modules: Modules by name.

    Returns:
        Head counts by module name. Modules without such an attribute have no entry.
    """
    head_counts: dict[str, int] = {}
    for name, module in modules.items():
        for attribute in HEAD_COUNT_ATTRIBUTES:
            n_heads = getattr(module, attribute, None)
            if isinstance(n_heads, int):
                head_counts.setdefault(name, n_heads)
    return head_counts


def is_packed(weights: Tensor, n_heads: int | None, n_keys: int | None = None) -> bool:
    """Check whether attention weights have the shape `[batch · heads, queries, keys]`.

    Some models use one axis for both the texts and the heads.

    Args:
        weights: Attention weights, or another softmax result.
        n_heads: Number of heads in the module, or None if it is unknown.
        n_keys: Number of keys, or None if there are as many keys as queries.
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
    """Convert attention weights to the shape `[batch, heads, queries, keys]`.

    A model with an explicit attention sink (an extra key that absorbs attention) has one more key
    than tokens. The token weights are then divided by their sum, so that each row sums to 1, and
    the sink is added again when the weights are restored.

    Args:
        weights: Attention weights in the model's own shape.
        scores: Attention scores before the softmax.
        n_heads: Number of heads, needed if batch and heads share one axis.
        n_keys: Number of keys that are tokens, if only some tokens are queries. An explicit sink
            then stays in the weights, as the last column.

    Returns:
        The weights and scores in the standard shape, and a function that restores edited weights.
    """
    if weights.dim() == 3:
        # `is_packed` has checked that the number of heads is known.
        assert n_heads is not None
        weights = weights.unflatten(0, (-1, n_heads))
        scores = scores.unflatten(0, (-1, n_heads))
        return AttentionForm(weights, scores, lambda edited: (edited, edited.flatten(0, 1)))
    if n_keys is not None:
        return AttentionForm(weights, scores, lambda edited: (edited[..., :n_keys], edited))
    if weights.shape[-1] != weights.shape[-2] + 1:
        return AttentionForm(weights, scores, lambda edited: (edited, edited))
    token_weights = weights[..., :-1]
    sink = weights[..., -1:]
    token_sum = token_weights.sum(-1, keepdim=True)
    normalised = token_weights / token_sum.clamp_min(torch.finfo(weights.dtype).tiny)

    def restore(edited: Tensor) -> tuple[Tensor, Tensor]:
        scaled = edited * token_sum
        sinks = sink.expand(*scaled.shape[:-1], 1)
        with_sink = torch.cat([scaled, sinks], -1)
        return scaled, with_sink

    return AttentionForm(normalised, scores[..., :-1], restore)


def unpack_heads(values: Tensor, n_heads: int) -> Tensor:
    """Reshape attention weights or head outputs to `[batch, heads, queries, keys or width]`.

    Models in which several heads share keys (grouped-query attention) use the shape `[batch, key
    heads, heads per key head, ...]` for a single token.

    Args:
        values: Attention weights or head outputs.
        n_heads: Number of heads.
    """
    return values.reshape(len(values), n_heads, -1, values.shape[-1])


# --- Intercepting attention in a running model ---------------------------------------------------

AttentionEdit = Callable[[int, Tensor, Tensor], Tensor]
"""Type of a function `edit(layer, weights, scores)` that edits a layer's attention weights.

It receives the layer number, the weights `[batch, heads, queries, keys]`, and the scores before the
softmax in the same shape. It returns the new weights.
"""


class WeightFollower(Protocol):
    """Interface for objects that follow attention weights through later PyTorch operations.

    `OutputHook` implements it.
    """

    def start_following(self, layer: int, weights: Tensor, *other_forms: Tensor) -> None:
        """Start to follow a layer's weights, and the same weights in other shapes."""

    def observe_operation(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        """Process an operation's result, and return the result that the model will use."""

    def edit_product(self, result: Tensor, values: Tensor) -> Tensor:
        """Edit the product `weights @ values`, and return the product that the model will use."""


def find_attention_modules(model: nn.Module, run: Callable[[], object]) -> dict[str, nn.Module]:
    """Run a model once to find its modules that compute attention.

    A module computes attention if `scaled_dot_product_attention`, or a softmax over the last axis
    of `[1, heads, n, n]`, runs inside it. If several nested modules qualify, the innermost module
    with "Attention" or "Attn" in its class name is chosen. If no class has such a name, the
    innermost module is chosen.

    In a module with such a class name, any softmax with four axes counts. This way, unsupported
    types of attention are found as well, so that the model can be rejected with an error.

    Args:
        model: The model.
        run: Function that runs one forward pass with a single text.

    Returns:
        Modules by qualified name.
    """
    all_modules = dict(model.named_modules())
    modules: dict[str, nn.Module] = {}

    def record_module(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
        running = [name for name in hook.stack if not isinstance(all_modules[name], nn.Softmax)]
        named = [name for name in running if _is_named_attention(all_modules[name])]
        name = (named or running)[-1]
        n_texts, _, n_queries, n_keys = weights.shape
        is_square = n_texts == 1 and n_queries == n_keys > 1
        if named or is_square:
            modules[name] = all_modules[name]
        return weights

    with hook_attention(all_modules, record_module) as hook:
        run()
    return modules


def _is_named_attention(module: nn.Module) -> bool:
    """Check whether a module's class name contains "Attention" or "Attn"."""
    name = type(module).__name__
    return "Attention" in name or "Attn" in name


@contextmanager
def hook_attention(
    modules: Mapping[str, nn.Module],
    edit: AttentionEdit,
    *,
    first_layer: int = 0,
    output_hook: WeightFollower | None = None,
    n_keys: int | None = None,
) -> Iterator["AttentionHook"]:
    """Edit all attention weights that a model computes inside the context.

    Layers are numbered in call order, because ALBERT calls one module for all layers.

    Args:
        modules: Attention modules by name, see `find_attention_modules`.
        edit: Function that is called once per layer and forward pass. If it returns its `weights`
            argument, the model is not affected.
        first_layer: Number of the first layer that runs, if lower layers are skipped.
        output_hook: Hook that edits the head outputs (attention times values).
        n_keys: Number of keys that are tokens, see `standardise_form`.

    Yields:
        The hook, whose attribute `names` lists the modules that have been called.
    """
    stack: list[str] = []
    handles = []

    def leave_module(*_: Any) -> None:
        # Return None, because another result would replace the module's output.
        stack.pop()

    try:
        for name, module in modules.items():
            enter_module = partial(_enter_module, stack, name)
            handles.append(module.register_forward_pre_hook(enter_module))
            handles.append(module.register_forward_hook(leave_module))
        head_counts = find_head_counts(modules)
        with AttentionHook(stack, edit, first_layer, output_hook, head_counts, n_keys) as hook:
            yield hook
    finally:
        for handle in handles:
            handle.remove()


def _enter_module(stack: list[str], name: str, *_: Any) -> None:
    """Push the name of a module that starts to run onto the stack."""
    stack.append(name)


class AttentionHook(TorchFunctionMode):
    """Context manager that intercepts PyTorch functions and edits attention weights.

    Attributes:
        stack: Names of the attention modules that are running, innermost last.
        edit: Function that edits the attention weights.
        first_layer: Number of the first layer that runs.
        output_hook: Hook that edits the head outputs, or None.
        head_counts: Number of heads by module name.
        n_keys: Number of keys that are tokens, see `standardise_form`.
        names: Names of the modules that have computed attention, in call order.
    """

    def __init__(
        self,
        stack: list[str],
        edit: AttentionEdit,
        first_layer: int,
        output_hook: WeightFollower | None = None,
        head_counts: Mapping[str, int] = MappingProxyType({}),
        n_keys: int | None = None,
    ) -> None:
        super().__init__()
        self.stack = stack
        self.edit = edit
        self.first_layer = first_layer
        self.output_hook = output_hook
        self.head_counts = head_counts
        self.n_keys = n_keys
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
            edit_product = None if self.output_hook is None else self.output_hook.edit_product
            return compute_eager_attention(
                *args, **kwargs, edit=self._edit_weights, edit_product=edit_product
            )
        result = func(*args, **kwargs)
        if self.stack and name in ("softmax", "special_softmax"):
            if not _is_attention(result, args, kwargs, self._n_heads, self.n_keys):
                return result
            scores = args[0] if args else kwargs["input"]
            return self._edit_weights(result, scores)
        if self.output_hook is None:
            return result
        named_tensors = [value for value in kwargs.values() if isinstance(value, Tensor)]
        return self.output_hook.observe_operation(name, (*args, *named_tensors), result)

    def _edit_weights(self, weights: Tensor, scores: Tensor) -> Tensor:
        """Edit the attention weights of the layer that the model has just computed.

        Args:
            weights: Attention weights, in the shape that the model uses.
            scores: Scores before the softmax, in the same shape.

        Returns:
            Edited weights in the same shape.
        """
        layer = self.first_layer + len(self.names)
        # The last name on the stack is that of the innermost running module.
        self.names.append(self.stack[-1])
        standard_form = standardise_form(weights, scores, self._n_heads, self.n_keys)
        edited = self.edit(layer, standard_form.weights, standard_form.scores).to(weights.dtype)
        # The result contains the same weights in the standard shape and in the model's own shape.
        edited, own_form = standard_form.restore(edited)
        if self.output_hook is not None:
            self.output_hook.start_following(layer, edited, own_form)
        return own_form

    @property
    def _n_heads(self) -> int | None:
        """Head count of the innermost running module, or None if it is unknown."""
        return self.head_counts.get(self.stack[-1])


def _is_attention(
    weights: Tensor,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    n_heads: int | None,
    n_keys: int | None,
) -> bool:
    """Check whether the result of a softmax is a tensor of attention weights.

    Attention weights have the shape `[batch, heads, queries, keys]`, or
    `[batch · heads, queries, keys]` if the head count is known, and sum to 1 over the keys. A softmax
    for another purpose, such as the choice between experts, has another shape.

    Args:
        weights: The softmax result.
        args: Positional arguments of the softmax.
        kwargs: Keyword arguments of the softmax.
        n_heads: Number of heads in the running module, or None if it is unknown.
        n_keys: Number of keys, or None if there are as many keys as queries.
    """
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if is_packed(weights, n_heads, n_keys):
        return axis in (-1, 2)
    return weights.dim() == 4 and axis in (-1, 3)


def compute_eager_attention(  # noqa: PLR0913 (the arguments of PyTorch's function)
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
    edit_product: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Compute PyTorch's `scaled_dot_product_attention` step by step, with edited weights.

    A row without any visible key gets uniform weights, as in eager models. This only happens for
    padding.

    Args:
        query: As in PyTorch's function, like all arguments before `edit`.
        key: Keys.
        value: Values.
        attn_mask: Mask of visible keys, or terms that are added to the scores.
        dropout_p: Dropout probability.
        is_causal: Whether queries see only earlier keys.
        scale: Factor on the scores.
        enable_gqa: Whether several query heads may share a key head.
        edit: Function that takes weights and scores, and returns edited weights.
        edit_product: Function that takes the output and the values, and returns an edited output.

    Returns:
        The output `[batch, heads, queries, width]`.
    """
    scale = scale or 1 / math.sqrt(query.shape[-1])
    scores = _multiply_grouped_heads(query, key.transpose(-2, -1))
    scores = scores * scale
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    # Fused kernels compute the softmax in float32 or more, too.
    precise = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=precise)
    weights = edit(weights, scores).to(value.dtype)
    weights = F.dropout(weights, dropout_p)
    output = _multiply_grouped_heads(weights, value)
    return output if edit_product is None else edit_product(output, value)


def _multiply_grouped_heads(query_matrix: Tensor, key_matrix: Tensor) -> Tensor:
    """Multiply two matrices for each head, if several heads share the second matrix.

    In grouped-query attention, groups of query heads share one key head. The shared matrices are
    not copied.

    Args:
        query_matrix: One matrix per query head, `[batch, heads, queries, a]`.
        key_matrix: One matrix per key head, `[batch, key heads, a, b]`.

    Returns:
        The products `[batch, heads, queries, b]`.
    """
    n_key_heads = key_matrix.shape[1]
    group_size = query_matrix.shape[1] // n_key_heads
    if group_size == 1:
        return torch.matmul(query_matrix, key_matrix)
    grouped = query_matrix.unflatten(1, (n_key_heads, group_size))
    product = torch.matmul(grouped.flatten(2, 3), key_matrix)
    product = product.unflatten(2, (group_size, -1))
    return product.flatten(1, 2)


# Edits of attention weights


def keep_attention(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
    """Return the weights unchanged; an `AttentionEdit`."""
    return weights


def detach_attention(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
    """Return the weights without their gradient graph; an `AttentionEdit`."""
    return weights.detach()


def create_replacing_edit(attention: Mapping[int, Tensor]) -> AttentionEdit:
    """Create an edit that replaces the attention weights in some layers.

    Args:
        attention: New weights by layer number, `[batch, heads, queries, keys]`.

    Returns:
        The edit, a function of layer number, weights and scores.
    """
    return partial(_replace_weights, attention)


def _replace_weights(
    attention: Mapping[int, Tensor], layer: int, weights: Tensor, scores: Tensor
) -> Tensor:
    """Return the new attention weights of a layer, or its current weights if it has no new ones."""
    if layer not in attention:
        return weights
    return attention[layer].reshape(weights.shape)


def create_masking_edit(factors: Mapping[int, Tensor], n_heads: Sequence[int]) -> AttentionEdit:
    """Create an edit that multiplies the attention weights in some layers by factors.

    Args:
        factors: Factors by layer number, which broadcast to `[batch, heads, queries, keys]`.
        n_heads: Number of heads per layer.

    Returns:
        The edit, a function of layer number, weights and scores.
    """
    return partial(_multiply_weights, factors, n_heads)


def _multiply_weights(
    factors: Mapping[int, Tensor],
    n_heads: Sequence[int],
    layer: int,
    weights: Tensor,
    scores: Tensor,
) -> Tensor:
    """Multiply the attention weights of a layer by factors, if there are factors for this layer."""
    if layer not in factors:
        return weights
    edited = unpack_heads(weights, n_heads[layer]) * factors[layer]
    return edited.reshape(weights.shape)


# Masks


def find_visible_keys(scores: Tensor) -> Tensor:
    """Find the keys to which each query may attend, from the attention scores.

    An attention mask subtracts 10,000 or more from the scores of hidden keys. A key therefore
    counts as visible if its score is less than 8,000 below the largest score of the query.

    Args:
        scores: Scores before the softmax, `[..., keys]`.

    Returns:
        Whether each key is visible, bool `[..., keys]`.
    """
    largest_score = scores.amax(-1, keepdim=True)
    return scores > largest_score - 8000


# --- Finding head outputs and the output projection in a running model ---------------------------
# Attention weights are followed, by tensor identity, through casts, dropout, masks and reshapes to
# the product with the values. This product is the output of the heads before the output projection
# mixes them. It is passed through an edit function.

OutputEdit = Callable[[int, Tensor, Tensor], Tensor]
"""Type of a function `edit(layer, outputs, values)` that edits a layer's head outputs.

It receives the layer number, the head outputs `[batch, heads, queries, width]`, and the values
`[batch, heads or 1, keys, width]`. It returns the new head outputs.
"""

MATRIX_PRODUCTS = ("matmul", "__matmul__", "bmm")
"""Names of the PyTorch functions that multiply matrices."""
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
"""Names of PyTorch functions that models may apply to head outputs before the output projection.

These functions change the order, the shape or the data type of the outputs, or drop some of them.
"""


class OutputHook:
    """Hook that passes head outputs through an edit, and finds the output projections.

    Attributes:
        edit: Function that edits every layer's head outputs.
        projections: Each layer's output projection, one slice per head,
            `[heads, width, hidden]`. Only layers with a plain linear projection are included.
    """

    def __init__(self, edit: OutputEdit) -> None:
        self.edit = edit
        self.projections: dict[int, Tensor] = {}
        self._layer = -1
        self._shape = torch.Size()
        # The current layer's weights and head outputs. Each list has one tensor per shape or cast.
        self._weights: list[Tensor] = []
        self._outputs: list[Tensor] = []

    def start_following(self, layer: int, weights: Tensor, *other_forms: Tensor) -> None:
        """Remember the attention weights of a layer, to find the operation that uses them.

        A later operation multiplies the weights by the values. It is recognised because these
        tensors are among its arguments.

        Args:
            layer: Number of the layer.
            weights: Edited weights, `[batch, heads, queries, keys]`.
            *other_forms: The same weights in the model's own shape.
        """
        self._layer = layer
        self._shape = weights.shape
        self._weights = [weights, *other_forms]
        self._outputs = []

    def observe_operation(self, name: str, args: tuple[Any, ...], result: Any) -> Any:
        """Look for attention weights in the arguments of a PyTorch function, and edit its result.

        Args:
            name: Name of the function that has just run.
            args: The function's arguments.
            result: The function's result.

        Returns:
            The result that the model will use. It is edited only if the function has multiplied
            attention weights and values.
        """
        if not isinstance(result, Tensor):
            return result
        position = _find_position(args, self._weights)
        if position is not None:
            if name == "einsum" and position == 1 and len(args) == 3:
                return self._edit_einsum(args[0], args[2], result)
            if name in MATRIX_PRODUCTS and position == 0:
                return self.edit_product(result, args[1])
            # A cast, dropout or reshape of the weights is followed as well.
            if result.numel() == self._weights[0].numel():
                self._weights.append(result)
            return result
        position = _find_position(args, self._outputs)
        if position is not None and name in REARRANGING_OPERATIONS:
            self._outputs.append(result)
        elif position is not None:
            self._store_projection(_find_projection_matrix(name, position, args))
        return result

    def edit_product(self, result: Tensor, values: Tensor) -> Tensor:
        """Edit the outputs of all heads, which are the products of attention weights and values.

        Args:
            result: The product. Texts and heads may share one axis.
            values: The value vectors.

        Returns:
            The edited product, in the shape of `result`.
        """
        if values.dim() == 3:
            values = values.unflatten(0, self._shape[:2])
        output = result.reshape(*self._shape[:3], -1)
        edited = self._edit_output(output, values)
        return self._follow_output(edited.reshape(result.shape))

    def _edit_einsum(self, equation: str, values: Tensor, result: Tensor) -> Tensor:
        """Edit the outputs of all heads in a model that computes them with `torch.einsum`.

        The axes are put into a standard order before the edit, and into the original order after
        it.

        Args:
            equation: The equation of the einsum, such as XLNet's `bnij,jbnd->ibnd`.
            values: The values.
            result: The product.
        """
        operands, result_axes = equation.split("->")
        weight_axes, value_axes = operands.split(",")
        batch, head, query, key = list(weight_axes)
        (width,) = set(result_axes) - set(weight_axes)
        # Edits expect the axes in these orders.
        output_order = batch + head + query + width
        value_order = batch + head + key + width
        output = torch.einsum(f"{result_axes}->{output_order}", result)
        values = torch.einsum(f"{value_axes}->{value_order}", values)
        edited = self._edit_output(output, values)
        edited = torch.einsum(f"{output_order}->{result_axes}", edited)
        return self._follow_output(edited)

    def _edit_output(self, output: Tensor, values: Tensor) -> Tensor:
        """Edit head outputs `[batch, heads, queries, width]`, and stop following the weights."""
        self._weights = []
        return self.edit(self._layer, output, values).to(output.dtype)

    def _follow_output(self, output: Tensor) -> Tensor:
        """Start to follow head outputs up to the output projection, and return them."""
        self._outputs = [output]
        return output

    def _store_projection(self, weight: Tensor | None) -> None:
        """Store an output projection `[heads · width, hidden]` as one slice per head.

        A matrix with another shape is ignored.
        """
        n_heads = self._shape[1]
        if weight is not None and weight.dim() == 2 and len(weight) % n_heads == 0:
            self.projections[self._layer] = weight.unflatten(0, (n_heads, -1))
        self._outputs = []


class SubstituteValues(NamedTuple):
    """Values that some heads in a layer read in place of their own values.

    Attributes:
        values: Values `[batch, heads, width]`.
        reads: Whether each head and query reads them, bool `[heads, queries, 1]`.
    """

    values: Tensor
    reads: Tensor

    @classmethod
    def create(
        cls,
        heads: Sequence[int],
        query: int | None,
        states: Tensor,
        attention: Tensor,
    ) -> Self:
        """Create value vectors that some heads use instead of their own ones.

        Args:
            heads: Indices of the heads that use substitute values.
            query: The only query that uses them, or None for all queries.
            states: One substitute value per text and listed head, `[batch, listed heads, width]`.
            attention: The layer's attention weights, `[batch, heads, queries, keys]`.

        Returns:
            The substitute values, with zeros for heads that do not use them.
        """
        values = states.new_zeros(len(states), attention.shape[1], states.shape[-1])
        values[:, heads] = states
        reads = torch.zeros_like(attention[0, ..., :1], dtype=torch.bool)
        if query is None:
            reads[heads] = True
        else:
            reads[heads, query] = True
        return cls(values, reads)


class InterchangeHook(OutputHook):
    """Hook that substitutes the values at some keys and leaves the attention weights unchanged.

    Args:
        positions: Whether each key's value is substituted, by layer number, bool
            `[copies · batch, keys]`. Layers without an entry are not changed.
        substitutes: Substitute values by layer number.
        n_heads: Number of heads per layer.
    """

    def __init__(
        self,
        positions: Mapping[int, Tensor],
        substitutes: Mapping[int, SubstituteValues],
        n_heads: Sequence[int],
    ) -> None:
        super().__init__(self._exchange_values)
        self._positions = positions
        self._substitutes = substitutes
        self._n_heads = n_heads

    def start_following(self, layer: int, weights: Tensor, *other_forms: Tensor) -> None:
        """Start to follow a layer's weights, and store them for the exchange."""
        super().start_following(layer, weights, *other_forms)
        self._layer_weights = weights

    def _exchange_values(self, layer: int, output: Tensor, values: Tensor) -> Tensor:
        """Replace the value vectors of some keys in the outputs of a layer's heads.

        A key with the attention weight a and the value v contributes a · v to the output. For the
        chosen keys, this becomes a · v' with the substitute value v'. All arguments are as in
        `OutputEdit`.
        """
        if layer not in self._positions:
            return output
        n_heads = self._n_heads[layer]
        positions = self._positions[layer]
        new_values, reads = self._substitutes[layer]
        # Several heads may share their values.
        n_sharing_heads = n_heads // values.shape[1]
        old_values = values.repeat_interleave(n_sharing_heads, dim=1)
        # All weights are 0 except the weights of the exchanged keys in the heads that read them.
        weights = unpack_heads(self._layer_weights, n_heads).to(old_values.dtype)
        weights = weights * positions[:, None, None] * reads
        n_copies = len(positions) // len(new_values)
        repeated_values = new_values.repeat(n_copies, 1, 1)[:, :, None].to(old_values.dtype)
        new_contribution = weights.sum(-1, keepdim=True) * repeated_values
        old_contribution = weights @ old_values
        change = new_contribution - old_contribution
        return output + change.reshape(output.shape)


def _find_position(args: tuple[Any, ...], tensors: list[Tensor]) -> int | None:
    """Return the index of the first argument that is one of the tensors, or None."""
    for position, arg in enumerate(args):
        if any(arg is tensor for tensor in tensors):
            return position
    return None


def _find_projection_matrix(name: str, position: int, args: tuple[Any, ...]) -> Tensor | None:
    """Find the matrix by which a PyTorch function multiplies the head outputs.

    Args:
        name: Name of the function, such as "linear".
        position: Index of the head outputs among the arguments.
        args: All arguments of the function.

    Returns:
        The matrix `[heads · width, hidden]`; None if the function is not a matrix product.
    """
    if name == "linear" and position == 0:
        return args[1].t()
    if name == "addmm" and position == 1:
        return args[-1]
    if name in MATRIX_PRODUCTS and position == 0:
        return args[-1]
    # XLNet's output projection.
    if name == "einsum" and args[0] == "ibnd,hnd->ibh":
        return args[2].permute(1, 2, 0).flatten(0, 1)
    return None


def create_output_edit(
    layer: int, head: int, query: int | None, n_heads: int, new: Tensor
) -> OutputEdit:
    """Create an edit that replaces one head's output.

    Args:
        layer: Number of the head's layer.
        head: Head index.
        query: The only query whose output is replaced, or None for all queries.
        n_heads: Number of heads in the layer.
        new: New outputs, `[batch, queries, width]`.

    Returns:
        The edit, a function of layer number, head outputs and values.
    """
    return partial(_replace_head_output, layer, head, query, n_heads, new)


def _replace_head_output(
    edited_layer: int,
    head: int,
    query: int | None,
    n_heads: int,
    new: Tensor,
    layer: int,
    output: Tensor,
    values: Tensor,
) -> Tensor:
    """Replace the output of one head in one layer.

    This function is called for all layers. It returns the outputs of other layers unchanged.
    """
    if layer != edited_layer:
        return output
    head_outputs = unpack_heads(output, n_heads)
    is_replaced = torch.arange(n_heads, device=output.device)[:, None, None] == head
    if query is not None:
        queries = torch.arange(head_outputs.shape[2], device=output.device)
        is_replaced = is_replaced & (queries[:, None] == query)
    # `torch.where` is used because vmap does not support edits in place.
    edited = torch.where(is_replaced, new[:, None].to(output.dtype), head_outputs)
    return edited.reshape(output.shape)
