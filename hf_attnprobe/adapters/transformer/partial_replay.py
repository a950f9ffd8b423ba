"""Fast replays of a model with edited attention, which compute only what the edit changes.

If the attention in one layer is edited, a partial replay does the following:

1. Blocks below the edited layer do not run.
2. In the edited block, only the change in the edited heads' outputs is computed. It is multiplied
   by these heads' slices of the output projection, and added to the recorded attention output.
3. Blocks above the edited layer run on hidden states. If the prediction is read from one row, such
   as [CLS], the last block runs for this row only.

If tokens are erased from all attention, their rows do not affect any other row. These rows are left
out in all layers, and no queries and keys are computed, see `PartialReplay.compute_readout_states`.

The results are exact. With MiniLM, replays are faster than a loop of full forward passes by these
factors:

                          partial replays   vectorised full passes
    edit the top layer                116                      8
    edit all layers                   2.4                    1.9

Partial replays require a stack of blocks that pass hidden states from one to the next. This is
checked three times: for a model on an example (`find_sublayers`), for every batch
(`PartialReplay.is_exact`), and by the self-check of an audit. Other models (ALBERT, Bloom,
DeBERTa-v2, XLNet, encoder-decoders) are replayed by full forward passes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hf_attnprobe.adapters.transformer.attention_hooks import (
    AttentionEdit,
    OutputHook,
    hook_attention,
    keep_attention,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import (
    BlockCall,
    get_first_tensor,
    hook_modules,
    patch_forwards,
    replace_first_tensor,
)
from hf_attnprobe.functional.intervention import normalise


class Sublayer(NamedTuple):
    """The attention sublayer of a block.

    Attributes:
        name: Qualified name of the attention module.
        attention: The module that computes attention.
        projection: The module that maps the concatenated head outputs to hidden states.
        output_module: The module that returns the projected outputs to the block. It is `attention` if
            `attention` contains the projection (Llama), otherwise `projection` (BERT).
        slices: Each head's slice of the projection matrix, `[heads, width, hidden]`.
        attention_output: A recorded output of `attention`, used as a template for other outputs.
        value_projection: The linear module that maps the input of `attention` to the value vectors
            of all heads, or None if there is no such module.
    """

    name: str
    attention: nn.Module
    projection: nn.Module
    output_module: nn.Module
    slices: Tensor
    attention_output: Any
    value_projection: nn.Linear | None


class SublayerResults(NamedTuple):
    """Intermediate results of an attention sublayer.

    Attributes:
        values: Value vectors, `[batch, heads, keys, width]`.
        projected: Head outputs after the projection, `[batch, queries, hidden]`.
    """

    values: Tensor
    projected: Tensor


def find_sublayer(
    call: BlockCall, modules: Mapping[str, nn.Module], n_heads: int
) -> Sublayer | None:
    """Find the attention module and the output projection inside a Transformer block.

    The block is run again with hooks. Partial replays run only a part of a block, for which they
    need these modules.

    Args:
        call: A recorded block call.
        modules: Attention modules by qualified name.
        n_heads: Expected number of heads.

    Returns:
        The modules (attention sublayer), or None if the block has another structure.
    """
    layer_values: list[Tensor] = []

    def record_values(layer: int, output: Tensor, values: Tensor) -> Tensor:
        layer_values.append(values)
        return output

    output_hook = OutputHook(record_values)
    with hook_attention(modules, keep_attention, output_hook=output_hook) as attention_hook:
        call.run(call.hidden_in)
    if len(attention_hook.names) != 1 or 0 not in output_hook.projections:
        return None
    name = attention_hook.names[0]
    attention = modules[name]
    slices = output_hook.projections[0]
    projection = _find_weight_owner(call.block, slices)
    if projection is None or len(slices) != n_heads:
        return None
    is_inside = projection in set(attention.modules())
    output_module = attention if is_inside else projection
    calls = _record_module_calls(call, {attention, projection, output_module})
    projection_args, projected = calls[projection]
    _, sublayer_output = calls[output_module]
    if not _returns_projected_rows(call, projection_args, projected, sublayer_output):
        return None
    _, attention_output = calls[attention]
    value_projection = _find_value_projection(call, attention, layer_values[0])
    return Sublayer(
        name, attention, projection, output_module, slices, attention_output, value_projection
    )


def _find_weight_owner(block: nn.Module, slices: Tensor) -> nn.Module | None:
    """Find the module in a block to which a weight matrix belongs.

    Args:
        block: The block.
        slices: A view of the weight matrix.

    Returns:
        The module, or None if no module has this matrix.
    """
    for module in block.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.data_ptr() == slices.data_ptr():
            return module
    return None


def _find_value_projection(
    call: BlockCall, attention: nn.Module, values: Tensor
) -> nn.Linear | None:
    """Find the linear module that computes the value vectors of an attention module.

    Args:
        call: The block call.
        attention: The attention module.
        values: Value vectors in this call, `[batch, heads, keys, width]`.

    Returns:
        The module, or None if no linear module maps the attention's input to these values.
    """
    attention_input = compute_attention_input(call, attention, call.hidden_in)
    expected = values.transpose(1, 2).flatten(2)
    n_features = attention_input.shape[-1]
    for module in attention.modules():
        if not isinstance(module, nn.Linear) or module.in_features != n_features:
            continue
        if module(attention_input).equal(expected):
            return module
    return None


def _record_module_calls(
    call: BlockCall, modules: Collection[nn.Module]
) -> dict[nn.Module, tuple[tuple[Any, ...], Any]]:
    """Run a block again, and record the arguments and the output of some modules in it."""
    calls = {}

    def record_call(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls[module] = args, output

    with hook_modules(modules, record_call):
        call.run(call.hidden_in)
    return calls


def _returns_projected_rows(
    call: BlockCall, args: tuple[Any, ...], projected: Tensor, sublayer_output: Any
) -> bool:
    """Check whether the output projection is the last operation of an attention module.

    Its output must then be the output of the attention module, with the shape `[batch, queries,
    hidden]`.

    Args:
        call: The block call.
        args: Arguments of the projection module.
        projected: Output of the projection module.
        sublayer_output: Output of the attention module.
    """
    head_outputs = args[0]
    expected_shape = call.hidden_in.shape[:2]
    if head_outputs.dim() != 3 or head_outputs.shape[:2] != expected_shape:
        return False
    if projected.shape[:2] != expected_shape:
        return False
    return projected.equal(get_first_tensor(sublayer_output))


def run_sublayer(call: BlockCall, sublayer: Sublayer) -> SublayerResults:
    """Run a block again to record the value vectors and head outputs inside its attention.

    Args:
        call: The recorded block call.
        sublayer: The block's attention sublayer.

    Returns:
        Values and projected head outputs.
    """
    layer_values: list[Tensor] = []

    def record_values(layer: int, output: Tensor, values: Tensor) -> Tensor:
        layer_values.append(values)
        return output

    modules = {sublayer.name: sublayer.attention}
    with hook_attention(modules, keep_attention, output_hook=OutputHook(record_values)):
        calls = _record_module_calls(call, {sublayer.output_module})
    (values,) = layer_values
    # Several heads may share their values.
    n_sharing_heads = len(sublayer.slices) // values.shape[1]
    projected = get_first_tensor(calls[sublayer.output_module][1])
    return SublayerResults(values.repeat_interleave(n_sharing_heads, dim=1), projected)


def finish_block(call: BlockCall, sublayer: Sublayer, hidden: Tensor, projected: Tensor) -> Tensor:
    """Run only the part of a block that follows its attention.

    After the attention, each token (row) is computed independently, so any subset of the tokens can
    be passed.

    Args:
        call: The recorded block call.
        sublayer: The block's attention sublayer.
        hidden: Rows from the block's input, `[texts, rows, hidden]`.
        projected: Projected head outputs for the same rows, `[texts, rows, hidden]`.

    Returns:
        The same rows from the block's output, `[texts, rows, hidden]`.
    """
    sublayer_output: Any = projected
    if sublayer.output_module is sublayer.attention:
        sublayer_output = replace_first_tensor(sublayer.attention_output, projected)
    # The attention and its projection return fixed outputs instead of running.
    forwards = {sublayer.attention: partial(_return_output, sublayer.attention_output)}
    forwards[sublayer.output_module] = partial(_return_output, sublayer_output)
    with patch_forwards(forwards):
        return call.run(hidden)


def _return_output(output: Any, *_: Any, **__: Any) -> Any:
    """Return a fixed output, whatever the arguments are."""
    return output


class _AttentionReachedError(Exception):
    """Signal that ends a forward pass before the attention of a block; not a failure."""


def compute_attention_input(call: BlockCall, attention: nn.Module, hidden: Tensor) -> Tensor:
    """Run only the part of a block before its attention, which may be a layer norm.

    Args:
        call: The recorded block call.
        attention: The block's attention module.
        hidden: Rows from the block's input, `[texts, rows, hidden]`.

    Returns:
        The attention's input for the same rows, `[texts, rows, hidden]`.
    """
    inputs: list[Tensor] = []

    def stop(*args: Any, **kwargs: Any) -> None:
        inputs.append(get_first_tensor((args, kwargs)))
        raise _AttentionReachedError

    with patch_forwards({attention: stop}), suppress(_AttentionReachedError):
        call.run(hidden)
    return inputs[0]


class _HeadOutputsReachedError(Exception):
    """Signal that ends a forward pass as soon as the head outputs are known; not a failure."""


def compute_head_outputs(call: BlockCall, sublayer: Sublayer, hidden: Tensor) -> Tensor:
    """Run only the first part of a block, up to the outputs of its attention heads.

    The outputs of all heads are concatenated. The output projection does not run.

    Args:
        call: A block call; all its arguments must be for the same number of texts as `hidden`.
        sublayer: The block's attention sublayer.
        hidden: Block input, `[texts, queries, hidden]`.

    Returns:
        Head outputs `[texts, queries, heads · width]`.
    """
    head_outputs: list[Tensor] = []

    def stop(module: nn.Module, args: tuple[Any, ...]) -> None:
        head_outputs.append(args[0])
        raise _HeadOutputsReachedError

    handle = sublayer.projection.register_forward_pre_hook(stop)
    try:
        call.run(hidden)
    except _HeadOutputsReachedError:
        pass
    finally:
        handle.remove()
    return head_outputs[0]


def index_rows(is_chosen: Tensor) -> Tensor | None:
    """Convert a mask over tokens to token positions, with equally many positions per text.

    For example, the masks [1, 0, 1] and [0, 1, 0] become the positions [0, 2] and [1, 0]. The
    second text has only one chosen token, so the position of another token is added.

    Args:
        is_chosen: Which tokens are chosen, bool `[batch, queries]`.

    Returns:
        Positions, int `[batch, rows]`, at least one per text; None for all tokens.
    """
    n_rows = max(1, int(is_chosen.sum(1).max()))
    if n_rows == is_chosen.shape[1]:
        return None
    # A stable sort moves the chosen rows to the front and keeps their order.
    order = is_chosen.int().argsort(dim=1, descending=True, stable=True)
    return order[:, :n_rows]


def take_rows(values: Tensor, rows: Tensor | None) -> Tensor:
    """Select the values of some tokens of each text.

    The selected tokens are called rows. They are the same for all copies and heads.

    Args:
        values: Values for all tokens, `[batch, tokens, width]`, `[copies, batch, tokens, width]`
            or `[copies, batch, heads, tokens, width]`. The copies are versions of the same text
            with different attention.
        rows: Positions of the tokens to select, int `[batch, rows]`, or None for all tokens.

    Returns:
        The values of the selected tokens. The axis `tokens` becomes the axis `rows`.
    """
    if rows is None:
        return values
    has_head_axis = values.dim() == 5
    if has_head_axis:
        rows = rows[:, None]
    index = rows[..., None].expand(*values.shape[:-2], rows.shape[-1], values.shape[-1])
    return values.gather(-2, index)


def put_rows(values: Tensor, rows: Tensor | None, new: Tensor) -> Tensor:
    """Copy the values of all tokens, and replace the values of some tokens (rows) in each copy.

    Args:
        values: Values for all tokens, `[batch, tokens, hidden]`.
        rows: Positions of the tokens to replace, int `[batch, rows]`, or None for all tokens.
        new: New values for each copy, `[copies, batch, rows, hidden]`.

    Returns:
        Values `[copies, batch, tokens, hidden]`.
    """
    if rows is None:
        return new
    copies = values.expand(len(new), *values.shape)
    return copies.scatter(2, rows[..., None].expand(new.shape), new)


# --- Partial replays of one batch ----------------------------------------------------------------

RunHead = Callable[[Tensor], Tensor]
"""Type of a function that runs the rest of the model after the last block.

It receives the last hidden states `[copies, batch, queries, hidden]` and returns prediction scores,
such as logits, `[copies, batch, ...]`. Copies are versions of a text with different attention.
"""


def are_blocks_chained(calls: Sequence[BlockCall]) -> bool:
    """Check whether the output of each block is the input of the next block.

    Args:
        calls: Recorded block calls. Inputs and outputs must have the shape `[batch, keys, hidden]`.
    """
    hidden_below: Tensor | None = None
    for call in calls:
        hidden = call.args[0] if call.args else None
        if not isinstance(hidden, Tensor) or hidden.dim() != 3:
            return False
        if hidden_below is not None and hidden is not hidden_below:
            return False
        hidden_below = call.hidden_out
    return True


def find_sublayers(
    calls: Sequence[BlockCall],
    modules: Mapping[str, nn.Module],
    n_heads: Sequence[int],
) -> list[Sublayer] | None:
    """Find the attention module and the output projection inside every Transformer block.

    Args:
        calls: Recorded block calls.
        modules: Attention modules by qualified name.
        n_heads: Number of heads per layer.

    Returns:
        The modules of each block (attention sublayer), or None if the model has a structure that
        partial replays do not support.
    """
    if len(calls) != len(n_heads) or not are_blocks_chained(calls):
        return None
    sublayers = []
    for call, n_layer_heads in zip(calls, n_heads, strict=True):
        sublayer = find_sublayer(call, modules, n_layer_heads)
        if sublayer is None:
            return None
        sublayers.append(sublayer)
    return sublayers


def find_readout_rows(hidden: Tensor, mask: Tensor, head: RunHead) -> Tensor | None:
    """Find the token of each text whose last hidden state determines the prediction.

    The first and the last token of the text are tried. The hidden states of all other tokens are
    set to NaN. If the model uses any of them, the scores become NaN.

    Args:
        hidden: Last hidden states, `[batch, queries, hidden]`.
        mask: Real tokens, bool `[batch, queries]`.
        head: Function that runs the rest of the model on hidden states.

    Returns:
        Positions, int `[batch, 1]`, or None if the prediction depends on several tokens.
    """
    expected = head(hidden[None])
    positions = torch.arange(hidden.shape[1], device=hidden.device)
    if mask.shape[1] != len(positions) or expected.isnan().any():
        return None
    last_token = (positions * mask).argmax(1, keepdim=True)
    first_token = torch.zeros_like(last_token)
    for rows in (first_token, last_token):
        is_other = positions != rows
        scores = head(hidden.masked_fill(is_other[..., None], torch.nan)[None])
        if torch.allclose(scores, expected):
            return rows
    return None


def _identify_arguments(call: BlockCall) -> tuple[object, ...]:
    """Create a dictionary key from the class of a block and the arguments of a call.

    Two keys are equal if the arguments are the same objects, except the first argument, the hidden
    states.
    """
    arguments = tree_leaves((call.args[1:], call.kwargs))
    return type(call.block), *map(id, arguments)


class PartialReplay:
    """An observed batch that is prepared for partial replays.

    Args:
        calls: Recorded block calls for this batch.
        sublayers: Attention sublayers per block, see `find_sublayers`.
        attention: Attention per layer, `[batch, heads, queries, keys]`.
        mask: Real tokens, bool `[batch, keys]`.
        head: Function that runs the rest of the model after the last block.

    Attributes:
        top_layer: Index of the last layer.
        readout_rows: Rows that the prediction is read from, int `[batch, rows]`; None for all.
    """

    def __init__(
        self,
        calls: Sequence[BlockCall],
        sublayers: Sequence[Sublayer],
        attention: Sequence[Tensor],
        mask: Tensor,
        head: RunHead,
    ) -> None:
        self.calls = calls
        self.sublayers = sublayers
        self.attention = attention
        self.mask = mask
        self.head = head
        self.top_layer = len(calls) - 1
        with torch.no_grad():
            self.readout_rows = find_readout_rows(calls[-1].hidden_out, mask, head)
        self._results: dict[int, SublayerResults] = {}

    @torch.no_grad()
    def is_exact(self, tolerance: float) -> bool:
        """Check that recomputing only a part of the model gives the same results as the whole model.

        The output of a block for a token must not change if the batch is larger, or if the block
        is run on fewer tokens.

        Args:
            tolerance: Largest allowed difference for real tokens, relative to the block's largest
                output.
        """
        if not are_blocks_chained(self.calls):
            return False
        # Blocks of the same class with the same arguments behave alike, so one of them is checked.
        # The later layer replaces the earlier one.
        layers_to_check = {}
        for layer, call in enumerate(self.calls):
            layers_to_check[_identify_arguments(call)] = layer
        try:
            return all(self._is_block_exact(layer, tolerance) for layer in layers_to_check.values())
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError):
            # The block has a structure that partial replays do not support.
            return False

    def _is_block_exact(self, layer: int, tolerance: float) -> bool:
        """Check that a block computes the same outputs for a larger batch and for fewer rows.

        Its outputs are compared on two copies of the batch, and on the first two rows alone.
        """
        call = self.calls[layer]
        sublayer = self.sublayers[layer]
        hidden_in = call.hidden_in
        expected = call.hidden_out
        largest = expected[self.mask].abs().max()

        # Padding is not compared, because its outputs do not affect the prediction.
        repeated_call = call.repeat(2, len(self.mask))
        repeated_output = repeated_call.run(hidden_in.repeat(2, 1, 1))
        difference = repeated_output - expected.repeat(2, 1, 1)
        batch_error = difference[self.mask.repeat(2, 1)].abs().max()

        first_rows = slice(0, 2)
        projected = run_sublayer(call, sublayer).projected[:, first_rows]
        rows = finish_block(call, sublayer, hidden_in[:, first_rows], projected)
        difference = rows - expected[:, first_rows]
        row_error = difference[self.mask[:, first_rows]].abs().max()

        error = torch.maximum(batch_error, row_error)
        return bool(error <= tolerance * largest)

    def count_rows(self, layer: int) -> int:
        """Return how many tokens (rows) per text are computed at most if a layer is edited.

        In the last layer, these may be only the tokens that determine the prediction.

        Args:
            layer: Layer index.
        """
        if layer == self.top_layer and self.readout_rows is not None:
            return self.readout_rows.shape[1]
        return self.mask.shape[1]

    def replay(self, layer: int, edited: Tensor, edit_above: AttentionEdit | None = None) -> Tensor:
        """Compute the model's prediction scores with new attention weights in a layer.

        Several versions (copies) of the attention weights are computed at once.

        Args:
            layer: Number of the lowest edited layer.
            edited: New attention weights in this layer, `[copies, batch, heads, queries, keys]`.
            edit_above: Function that edits the attention in the layers above, for `copies · batch`
                texts; None for no edit.

        Returns:
            Prediction scores, such as logits, `[copies, batch, ...]`.
        """
        rows = self.readout_rows if layer == self.top_layer else None
        edited = take_rows(edited, rows)
        attention = take_rows(self.attention[layer][None], rows)
        # Only the heads and rows whose weights change are computed.
        differs = (edited != attention).any(-1)
        if edited.requires_grad:
            # Unchanged weights have gradients too, so no row may be skipped.
            differs = torch.ones_like(differs)
        head_differs = differs.flatten(0, 1).any(-1).any(0)
        # If no weight changes, the first head is computed, because at least one is needed.
        heads = head_differs.nonzero()[:, 0].tolist() or [0]
        weight_change = edited[:, :, heads] - attention[:, :, heads]
        if rows is None:
            rows = index_rows(differs.any(2).any(0))
            weight_change = take_rows(weight_change, rows)
        values = self.get_sublayer_results(layer).values[:, heads]
        output_change = weight_change.to(values.dtype) @ values
        return self.run_from_change(layer, heads, rows, output_change, edit_above)

    @property
    def can_leave_out_rows(self) -> bool:
        """Whether `compute_readout_states` can be called.

        The prediction must be read from certain rows, and every layer needs a value projection.
        """
        return self.readout_rows is not None and all(
            sublayer.value_projection is not None for sublayer in self.sublayers
        )

    def compute_scores(self, states: Tensor) -> Tensor:
        """Compute the model's prediction scores from new last hidden states.

        Args:
            states: Last hidden states of the rows that the prediction is read from, `[copies,
                batch, rows, hidden]`.

        Returns:
            Prediction scores, such as logits, `[copies, batch, ...]`.
        """
        return self.head(put_rows(self.calls[-1].hidden_out, self.readout_rows, states))

    def find_remaining_rows(self, texts: Tensor, is_erased: Tensor) -> Tensor:
        """Find the rows that affect the prediction if some keys are erased from all attention.

        These are the rows of all other tokens, and the rows that the prediction is read from.

        Args:
            texts: Index of the text for each set of erased keys, int `[sets]`.
            is_erased: Erased keys, bool `[sets, keys]`.

        Returns:
            Whether each row affects the prediction, bool `[sets, queries]`.
        """
        assert self.readout_rows is not None
        return (self.mask[texts] & ~is_erased).scatter(1, self.readout_rows[texts], True)

    @torch.no_grad()
    def compute_readout_states(
        self, texts: Tensor, is_erased: Tensor, *, renormalise: bool
    ) -> Tensor:
        """Compute the last hidden states after erasing some keys from all attention.

        The weights of these keys are set to 0 in all layers, heads and rows. All other weights
        keep their recorded values, or are scaled up. No row reads an erased token, so the rows of
        erased tokens are left out.

        Args:
            texts: Index of the text for each set of erased keys, int `[sets]`.
            is_erased: Erased keys, bool `[sets, keys]`.
            renormalise: Whether the remaining weights of a row are scaled up to their previous sum.

        Returns:
            Hidden states of the rows that the prediction is read from, `[sets, rows, hidden]`.
        """
        assert self.readout_rows is not None
        readout_rows = self.readout_rows[texts]
        rows = index_rows(self.find_remaining_rows(texts, is_erased))
        if rows is None:
            rows = torch.arange(is_erased.shape[1], device=texts.device).expand(is_erased.shape)
        # A set with fewer remaining rows is padded with other rows, which no row may read.
        is_key = (self.mask[texts] & ~is_erased).gather(1, rows)
        hidden = take_rows(self.calls[0].hidden_in[texts], rows)
        for layer, (call, sublayer) in enumerate(zip(self.calls, self.sublayers, strict=True)):
            # Without this line, the type checker assumes that there may be no value projection.
            assert sublayer.value_projection is not None
            values = sublayer.value_projection(
                compute_attention_input(call, sublayer.attention, hidden)
            )
            queries = rows
            if layer == self.top_layer:
                queries = readout_rows
                indices = (rows[..., None] == readout_rows[:, None]).int().argmax(1)
                hidden = take_rows(hidden, indices)
            weights = self._read_remaining_weights(
                layer, texts, queries, rows, is_key, renormalise=renormalise
            )
            n_heads, width, _ = sublayer.slices.shape
            values = values.unflatten(-1, (-1, width)).transpose(1, 2)
            # Several heads may share their values.
            values = values.repeat_interleave(n_heads // values.shape[1], dim=1)
            head_outputs = (weights.to(values.dtype) @ values).transpose(1, 2).flatten(2)
            hidden = finish_block(call, sublayer, hidden, sublayer.projection(head_outputs))
        return hidden

    def _read_remaining_weights(
        self,
        layer: int,
        texts: Tensor,
        queries: Tensor,
        keys: Tensor,
        is_key: Tensor,
        *,
        renormalise: bool,
    ) -> Tensor:
        """Read the attention weights of some queries and keys, without the erased keys.

        Args:
            layer: Layer index.
            texts: Index of the text for each set of erased keys, int `[sets]`.
            queries: Positions of the queries, int `[sets, queries]`.
            keys: Positions of the keys, int `[sets, keys]`. They include all keys that remain.
            is_key: Whether each of these keys remains, bool `[sets, keys]`.
            renormalise: Whether the remaining weights of a row are scaled up to their previous sum.

        Returns:
            Weights `[sets, heads, queries, keys]`.
        """
        attention = self.attention[layer]
        heads = torch.arange(attention.shape[1], device=texts.device)[:, None, None]
        texts = texts[:, None, None, None]
        queries = queries[:, None, :, None]
        weights = attention[texts, heads, queries, keys[:, None, None]] * is_key[:, None, None]
        if not renormalise:
            return weights
        # The weights of keys that a query cannot see are 0, so they do not change the sums.
        sums = attention.sum(-1, keepdim=True)[texts, heads, queries, 0]
        return normalise(weights) * sums

    def replay_output(self, layer: int, head: int, query: int | None, output: Tensor) -> Tensor:
        """Compute the model's prediction scores after replacing the output of one attention head.

        Several replacements (copies) are computed at once.

        Args:
            layer: Layer of the attention head.
            head: Index of the attention head in its layer.
            query: The only query whose output is replaced, or None for all queries.
            output: New outputs of the attention head, `[copies, batch, queries, width]`.

        Returns:
            Prediction scores, such as logits, `[copies, batch, ...]`.
        """
        values = self.get_sublayer_results(layer).values[:, head]
        weights = self.attention[layer][:, head]
        old_output = weights.to(values.dtype) @ values
        change = output.to(values.dtype) - old_output
        if query is not None:
            is_replaced = torch.arange(change.shape[2], device=change.device) == query
            change = change * is_replaced[:, None]
        # In the last layer, only the tokens from which the prediction is read are needed.
        rows = self.readout_rows if layer == self.top_layer else None
        change = take_rows(change, rows)
        # Add the change to the recorded output, and run the rest of the model.
        return self.run_from_change(layer, [head], rows, change.unsqueeze(2))

    def get_sublayer_results(self, layer: int) -> SublayerResults:
        """Return the value vectors and head outputs inside the attention of a layer.

        The results for the last requested layer are cached.

        Args:
            layer: Layer index.
        """
        if layer not in self._results:
            self._results.clear()
            with torch.no_grad():
                results = run_sublayer(self.calls[layer], self.sublayers[layer])
            self._results[layer] = results
        return self._results[layer]

    def run_from_change(
        self,
        layer: int,
        heads: Sequence[int],
        rows: Tensor | None,
        change: Tensor,
        edit_above: AttentionEdit | None = None,
    ) -> Tensor:
        """Compute the model's prediction scores after adding a change to attention heads' outputs.

        Several versions (copies) of the change are computed at once.

        Args:
            layer: Layer of the attention heads.
            heads: Indices of the changed attention heads.
            rows: Rows that change, int `[batch, rows]`, or None for all rows.
            change: Tensor that is added to the head outputs, `[copies, batch, heads, rows, width]`.
            edit_above: Edit for the layers above, see `replay`.

        Returns:
            Prediction scores, such as logits, `[copies, batch, ...]`.
        """
        new_rows = self._run_edited_block(layer, heads, rows, change)
        if layer < self.top_layer:
            hidden = put_rows(self.calls[layer].hidden_out, rows, new_rows).flatten(0, 1)
            new_rows = self._run_blocks_above(layer + 1, hidden, edit_above)
            new_rows = new_rows.unflatten(0, change.shape[:2])
            rows = self.readout_rows
        return self.head(put_rows(self.calls[-1].hidden_out, rows, new_rows))

    def _run_edited_block(
        self,
        layer: int,
        heads: Sequence[int],
        rows: Tensor | None,
        change: Tensor,
    ) -> Tensor:
        """Compute the output of a block after adding a change to some attention heads' outputs.

        Several versions (copies) of the change are computed at once.

        Args:
            layer: Layer index.
            heads: Indices of the changed heads.
            rows: Tokens that change, int `[batch, rows]`, or None for all tokens.
            change: Tensor that is added to the head outputs, `[copies, batch, heads, rows, width]`.

        Returns:
            Output for the changed tokens, `[copies, batch, rows, hidden]`.
        """
        call, sublayer = self.calls[layer], self.sublayers[layer]
        # Concatenate the heads: `[copies, batch, rows, heads · width]`.
        change_by_row = change.transpose(2, 3).flatten(3)
        projected_change = change_by_row @ sublayer.slices[heads].flatten(0, 1)
        projected = take_rows(self.get_sublayer_results(layer).projected, rows)
        projected = projected + projected_change
        hidden = take_rows(call.hidden_in, rows)
        hidden = hidden.expand(projected.shape).flatten(0, 1)
        projected = projected.flatten(0, 1)
        new_rows = finish_block(call, sublayer, hidden, projected)
        return new_rows.unflatten(0, change.shape[:2])

    def _run_blocks_above(
        self, first_layer: int, hidden: Tensor, edit_above: AttentionEdit | None
    ) -> Tensor:
        """Run all blocks from a given layer to the last one.

        Args:
            first_layer: Index of the first block to run.
            hidden: Input of this block, `[copies · batch, queries, hidden]`.
            edit_above: Function that edits the attention in these blocks, or None.

        Returns:
            Output of the last block, only for the tokens that determine the prediction.
        """
        n_batch = len(self.mask)
        n_copies = len(hidden) // n_batch
        last_sublayer = self.sublayers[-1]
        modules = {sublayer.name: sublayer.attention for sublayer in self.sublayers}
        edit_context: AbstractContextManager[Any] = nullcontext()
        if edit_above is not None:
            edit_context = hook_attention(modules, edit_above, first_layer=first_layer)
        with edit_context:
            for call in self.calls[first_layer:-1]:
                hidden = call.repeat(n_copies, n_batch).run(hidden)
            last_call = self.calls[-1].repeat(n_copies, n_batch)
            if self.readout_rows is None:
                return last_call.run(hidden)
            outputs = compute_head_outputs(last_call, last_sublayer, hidden)
        rows = self.readout_rows.repeat(n_copies, 1)
        projected = last_sublayer.projection(take_rows(outputs, rows))
        return finish_block(last_call, last_sublayer, take_rows(hidden, rows), projected)
