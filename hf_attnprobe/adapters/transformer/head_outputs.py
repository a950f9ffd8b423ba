"""The outputs and values of a Transformer's heads: attention · values, before the projection.

Some families compute something else than a product of attention and values: there is
nothing to capture or to replace. :func:`examine_heads` finds out on the example.
"""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from hf_attnprobe.adapters.transformer.layout import example_inputs
from hf_attnprobe.adapters.transformer.replay import TappedTransformer
from hf_attnprobe.adapters.transformer.taps import (
    OutputTap,
    replacing,
    replacing_output,
    unpacked,
)
from hf_attnprobe.attention_model import Batch, Reference


class Heads(NamedTuple):
    """Which heads' outputs and values can be read.

    Attributes:
        projections: per layer [heads, width, hidden]: a head adds ``output @ slice`` to
            the hidden states. None where a layer has no linear output projection.
        no_values, no_projections, no_outputs: why not, or None where they can be read.
    """

    projections: tuple[Tensor, ...] | None
    no_values: str | None
    no_projections: str | None
    no_outputs: str | None


@torch.no_grad()
def examine_heads(transformer: TappedTransformer) -> Heads:
    """Compares zero-ablated outputs with zero-ablated attention on an example."""
    inputs, layers = (
        example_inputs(transformer.model),
        range(len(transformer.layers)),
    )
    attention: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}

    def note_attention(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
        attention[layer] = weights
        return weights

    def note_output(layer: int, output: Tensor, values: Tensor) -> Tensor:
        outputs[layer] = output
        return output

    tap = OutputTap(note_output)
    logits = transformer.logits(inputs, note_attention, tap=tap)
    no_values = _missing(
        transformer, outputs, "the product of attention and values"
    )
    no_projections = _missing(
        transformer,
        tap.projections,
        "a linear output projection of head outputs",
    )
    projections = None
    if no_projections is None:
        projections = tuple(tap.projections[layer] for layer in layers)
    if no_values is not None:
        return Heads(projections, no_values, no_projections, no_values)
    tolerance = 1e-3 * float(logits.abs().max())
    no_outputs = None
    for layer in reversed(layers):
        weights, output = attention[layer], outputs[layer]
        error = _ablation_error(transformer, inputs, layer, weights, output)
        if not error <= tolerance:
            no_outputs = (
                "expected a head's output to be attention times values, "
                f"{transformer.layer_names[layer]} of "
                f"{type(transformer.model).__name__} computes something else; "
                "its heads can only be zero-ablated"
            )
    return Heads(projections, no_values, no_projections, no_outputs)


def _missing(
    transformer: TappedTransformer, seen: Collection[int], what: str
) -> str | None:
    """Names the layers that were not seen to compute ``what``; None if there are none."""
    for layer, name in enumerate(transformer.layer_names):
        if layer not in seen:
            return (
                f"expected {what} in {name}, found none in "
                f"{type(transformer.model).__name__}; its heads can only be zero-ablated"
            )
    return None


def _ablation_error(
    transformer: TappedTransformer,
    inputs: dict[str, Tensor],
    layer: int,
    attention: Tensor,
    output: Tensor,
) -> float:
    """Difference between the logits when the first head's output, or its attention, is set to
    0.

    They agree where the output is attention times values; a gate or a norm of its own in
    between would make a difference.
    """
    n_heads = transformer.n_heads[layer]
    zero_attention = attention.clone()
    zero_attention[:, 0] = 0
    zeros = torch.zeros_like(unpacked(output, n_heads)[:, 0])
    replaced = replacing_output(layer, 0, None, n_heads, zeros)
    expected = transformer.logits(inputs, replacing({layer: zero_attention}))
    ablated = transformer.logits(inputs, tap=OutputTap(replaced))
    return float((ablated - expected).abs().max())


@torch.no_grad()
def head_outputs(
    transformer: TappedTransformer, batch: Batch
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Outputs and values of every layer's heads, from one forward pass.

    Returns:
        Per layer [batch, heads, queries, width], and [batch, heads, keys, width].
    """
    outputs, values = {}, {}

    def capture(layer: int, output: Tensor, value: Tensor) -> Tensor:
        n_heads = transformer.n_heads[layer]
        n_shared = n_heads // value.shape[1]  # by heads that share their values
        outputs[layer] = unpacked(output, n_heads)
        values[layer] = value.repeat_interleave(n_shared, dim=1)
        return output

    transformer.logits(batch.inputs, tap=OutputTap(capture))
    layers = range(len(transformer.layers))
    return tuple(outputs[n] for n in layers), tuple(values[n] for n in layers)


def reference_of(transformer: TappedTransformer, batch: Batch) -> Reference:
    """Returns head outputs for a sample of texts, padded on the right."""
    mask = batch.mask
    order = (~mask).sort(dim=1, stable=True).indices
    is_real = mask.gather(1, order)[:, None, :, None]
    rows = order[:, None, :, None]
    together = []
    for output in head_outputs(transformer, batch)[0]:
        sorted_rows = output.gather(2, rows.expand(output.shape))
        together.append(sorted_rows * is_real)
    return Reference(batch.example_ids, mask.sum(1), tuple(together))
