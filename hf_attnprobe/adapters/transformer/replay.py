"""Many edits of one observation at once.

What does not depend on an edit is computed once for all copies.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hf_attnprobe.adapters.transformer.attention_tap import Edit
from hf_attnprobe.adapters.transformer.output_tap import EditOutput, OutputTap
from hf_attnprobe.adapters.transformer.readout import Layer, probabilities
from hf_attnprobe.adapters.transformer.resume import repeated
from hf_attnprobe.adapters.transformer.tapped_model import TappedTransformer
from hf_attnprobe.attention_model import Observation, Site


Run = Callable[[Mapping[str, Tensor], tuple, Mapping[int, Tensor]], Tensor]
"""(model inputs, outputs of the block calls to skip, edits by layer) -> [batch, ...]."""


def resume(
    transformer: TappedTransformer,
    observation: Observation,
    edits: Mapping[int, Tensor],
    run: Run,
) -> Tensor:
    """What ``run`` returns for every copy of the edits, from the lowest edited layer up.

    Args:
        edits: by layer, each [copies, batch, ...].

    Returns:
        [copies, batch, ...].
    """
    step = max(1, transformer.tokens_per_pass // observation.batch.mask.numel())
    starts = range(0, len(edits[min(edits)]), step)
    parts = [
        {layer: edited[i : i + step] for layer, edited in edits.items()} for i in starts
    ]
    return torch.cat([_resume(transformer, observation, part, run) for part in parts])


def _resume(
    transformer: TappedTransformer,
    observation: Observation,
    edits: Mapping[int, Tensor],
    run: Run,
) -> Tensor:
    outputs = observation.state.outputs[: transformer.layers[min(edits)].n_skipped]
    inputs = observation.batch.inputs
    if transformer.vectorises:
        each = torch.func.vmap(lambda edits: run(inputs, outputs, edits))
        return each(dict(edits))
    n_copies, n_batch = edits[min(edits)].shape[:2]
    flat = {layer: edited.flatten(0, 1) for layer, edited in edits.items()}
    repeated_inputs = repeated(dict(inputs), n_copies, n_batch)
    repeated_outputs = repeated(outputs, n_copies, n_batch)
    result = run(repeated_inputs, repeated_outputs, flat)
    return result.unflatten(0, (n_copies, n_batch))


def replay_logits(
    transformer: TappedTransformer,
    observation: Observation,
    edits: Mapping[int, Tensor],
    as_edit: Callable[[Mapping[int, Tensor]], Edit],
) -> Tensor:
    """Logits [copies, batch, outputs]; ``as_edit`` makes an edit of one copy's ``edits``."""

    def run(inputs: Mapping, lower: tuple, edits: Mapping[int, Tensor]) -> Tensor:
        return transformer.logits(inputs, as_edit(edits), lower)

    return resume(transformer, observation, edits, run)


def masking(kept: Mapping[int, Tensor], layers: Sequence[Layer]) -> Edit:
    """The edit that multiplies the attention of a layer by ``kept[layer]``.

    It broadcasts to [batch, heads, queries, keys].
    """

    def edit(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
        if layer not in kept:
            return weights
        heads = unpacked(weights, layers[layer].n_heads)
        return (heads * kept[layer]).reshape(weights.shape)

    return edit


def replay_outputs(
    transformer: TappedTransformer,
    observation: Observation,
    site: Site,
    outputs: Tensor,
) -> Tensor:
    """See :class:`~hf_attnprobe.attention_model.HeadOutputs`."""

    n_heads = transformer.layers[site.layer].n_heads

    def run(inputs: Mapping, lower: tuple, edits: Mapping[int, Tensor]) -> Tensor:
        edit = replacing_output(site, n_heads, edits[site.layer])
        return transformer.logits(inputs, None, lower, OutputTap(edit))

    logits = resume(transformer, observation, {site.layer: outputs}, run)
    return probabilities(logits)


def replacing_output(site: Site, n_heads: int, new: Tensor) -> EditOutput:
    """The edit that replaces one head's output, or that of one query.

    Shape: new [batch, queries, width].
    """

    def edit(layer: int, output: Tensor, values: Tensor) -> Tensor:
        if layer != site.layer:
            return output
        heads = unpacked(output, n_heads)
        chosen = torch.arange(n_heads, device=output.device)[:, None, None] == site.head
        if site.query is not None:
            queries = torch.arange(heads.shape[2], device=output.device)
            chosen = chosen & (queries[:, None] == site.query)
        edited = torch.where(chosen, new[:, None].to(output.dtype), heads)
        return edited.reshape(output.shape)

    return edit


def unpacked(values: Tensor, n_heads: int) -> Tensor:
    """[batch, heads, queries, ...] also where a text has one token.

    Grouped queries of a single token come packed as [batch, key heads, group, ...].
    """
    return values.reshape(len(values), n_heads, -1, values.shape[-1])
