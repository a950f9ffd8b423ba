"""The outputs and values of a Transformer's heads: attention · values, before the output projection.

Functions of a :class:`~hf_attnprobe.adapters.transformer.adapter.TransformerAdapter`. They raise AttnProbeError where a family
computes something else than a product of attention and values, so that there is nothing to capture or to replace.
"""

import torch
from torch import Tensor

from hf_attnprobe.adapters.transformer.layout import example_inputs
from hf_attnprobe.adapters.transformer.output_tap import OutputTap
from hf_attnprobe.attention_model import Batch, Reference, Site
from hf_attnprobe.errors import AttnProbeError


@torch.no_grad()
def head_outputs(
    adapter, batch: Batch
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Outputs [batch, heads, queries, width] and values [batch, heads, keys, width] of every layer, one forward pass."""
    outputs, values = {}, {}

    def capture(layer: int, output: Tensor, value: Tensor) -> Tensor:
        n_heads = adapter.layers[layer].n_heads
        outputs[layer] = output.reshape(len(output), n_heads, -1, output.shape[-1])
        values[layer] = value.repeat_interleave(
            n_heads // value.shape[1], dim=1
        )  # one for all heads, or for a group
        return output

    adapter.logits(batch.inputs, tap=OutputTap(capture))
    _check_found(adapter, outputs.keys(), "the product of attention and values")
    layers = range(len(adapter.layers))
    return tuple(outputs[n] for n in layers), tuple(values[n] for n in layers)


@torch.no_grad()
def output_projections(adapter) -> tuple[Tensor, ...]:
    """Per layer the slices of the output projection, [heads, width, hidden]: a head adds ``output @ slice``."""
    tap = OutputTap(lambda layer, output, values: output)
    adapter.logits(example_inputs(adapter.model), tap=tap)
    _check_found(adapter, tap.projections.keys(), "a linear output projection")
    return tuple(tap.projections[n] for n in range(len(adapter.layers)))


def _check_found(adapter, found, what: str) -> None:
    for layer, name in enumerate(adapter.layer_names):
        if layer not in found:
            raise AttnProbeError(
                f"expected {what} in {name}, found none in {type(adapter.model).__name__}; "
                "its heads can be silenced, their outputs cannot be read or replaced"
            )


def reference_of(adapter, batch: Batch) -> Reference:
    """The head outputs of a sample of texts, moved together so that padding on either side is behind them."""
    outputs, mask = head_outputs(adapter, batch)[0], batch.mask
    order = (~mask).sort(dim=1, stable=True).indices[:, None, :, None]
    real = mask.gather(1, order[:, 0, :, 0])[:, None, :, None]
    together = (
        output.gather(2, order.expand(output.shape)) * real for output in outputs
    )
    return Reference(batch.example_ids, mask.sum(1), tuple(together))


@torch.no_grad()
def check_outputs(adapter, batch: Batch, *, n_texts: int = 2) -> None:
    """Raises AttnProbeError unless silencing a head's output is, in every layer, the same as silencing its attention.

    That is what makes a tensor the head's output; a gate or a norm of its own in between would make it another.
    """
    few = slice(n_texts)
    batch = Batch(
        {k: v[few] for k, v in batch.inputs.items()},
        batch.mask[few],
        batch.content_mask[few],
        batch.example_ids[few],
    )
    observation = adapter.observe(batch)
    outputs = head_outputs(adapter, batch)[0]
    for layer, (attention, output) in enumerate(
        zip(observation.attention, outputs, strict=True)
    ):
        silent = attention.clone()
        silent[:, 0] = 0
        expected = adapter.replay(observation, {layer: silent[None]})
        found = adapter.replay_outputs(
            observation, Site(layer, 0), torch.zeros_like(output[None, :, 0])
        )
        if not (found - expected).abs().max() <= 1e-3:
            raise AttnProbeError(
                f"expected a head's output in {adapter.layer_names[layer]} to be attention times values, which it is not "
                f"in {type(adapter.model).__name__}; its heads can be silenced, not replaced"
            )
