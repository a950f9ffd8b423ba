"""Many edits of one observation at once: what does not depend on an edit is computed once for all copies.

Functions of a :class:`~hf_attnprobe.adapters.transformer.adapter.TransformerAdapter`.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hf_attnprobe.adapters.transformer.attention_tap import Edit
from hf_attnprobe.adapters.transformer.output_tap import EditOutput, OutputTap
from hf_attnprobe.adapters.transformer.readout import Layer, probabilities
from hf_attnprobe.adapters.transformer.resume import repeated
from hf_attnprobe.attention_model import Observation, Site


Run = Callable[[Mapping[str, Tensor], tuple, Mapping[int, Tensor]], Tensor]
"""(model inputs, outputs that the first block calls give instead of running, edits by layer) -> [batch, ...]."""


def resume(
    adapter, observation: Observation, edits: Mapping[int, Tensor], run: Run
) -> Tensor:
    """What ``run`` returns for every copy of the edits, from the lowest edited layer up: [copies, batch, ...].

    Args:
        edits: by layer, each [copies, batch, ...].
    """
    step = max(1, adapter.tokens_per_pass // observation.batch.mask.numel())
    starts = range(0, len(edits[min(edits)]), step)
    parts = [
        {layer: edited[i : i + step] for layer, edited in edits.items()} for i in starts
    ]
    return torch.cat([_resume(adapter, observation, part, run) for part in parts])


def _resume(
    adapter, observation: Observation, edits: Mapping[int, Tensor], run: Run
) -> Tensor:
    outputs = observation.state.outputs[: adapter.layers[min(edits)].n_skipped]
    inputs = observation.batch.inputs
    if adapter.vectorises:
        try:
            return torch.func.vmap(lambda edits: run(inputs, outputs, edits))(
                dict(edits)
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # Bloom's own autograd function, routers and overflow guards that look at values
            adapter.vectorises = False
    n_copies, n_batch = edits[min(edits)].shape[:2]
    flat = {layer: edited.flatten(0, 1) for layer, edited in edits.items()}
    found = run(
        repeated(dict(inputs), n_copies, n_batch),
        repeated(outputs, n_copies, n_batch),
        flat,
    )
    return found.unflatten(0, (n_copies, n_batch))


def replay_logits(
    adapter,
    observation: Observation,
    edits: Mapping[int, Tensor],
    as_edit: Callable[[Mapping[int, Tensor]], Edit],
) -> Tensor:
    """Logits [copies, batch, outputs] under ``as_edit(edits)``, the edits one copy's."""
    return resume(
        adapter,
        observation,
        edits,
        lambda inputs, outputs, edits: adapter.logits(inputs, as_edit(edits), outputs),
    )


def masking(kept: Mapping[int, Tensor], layers: Sequence[Layer]) -> Edit:
    """The edit that multiplies the attention of a layer by ``kept[layer]``, which broadcasts to [batch, heads, queries,
    keys]."""

    def edit(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
        if layer not in kept:
            return weights
        heads = weights.reshape(
            len(weights), layers[layer].n_heads, -1, weights.shape[-1]
        )  # see `observe`
        return (heads * kept[layer]).reshape(weights.shape)

    return edit


def replay_outputs(
    adapter, observation: Observation, site: Site, outputs: Tensor
) -> Tensor:
    """See :meth:`AttentionModel.replay_outputs`."""

    def run(inputs, lower, edits) -> Tensor:
        edit = replacing_output(
            site, adapter.layers[site.layer].n_heads, edits[site.layer]
        )
        return adapter.logits(inputs, None, lower, OutputTap(edit))

    return probabilities(resume(adapter, observation, {site.layer: outputs}, run))


def replacing_output(site: Site, n_heads: int, new: Tensor) -> EditOutput:
    """The edit that puts ``new`` [batch, queries, width] in place of one head's output, or of one query's."""

    def edit(layer: int, output: Tensor, values: Tensor) -> Tensor:
        if layer != site.layer:
            return output
        heads = output.reshape(
            len(output), n_heads, -1, output.shape[-1]
        )  # see `observe` on packed queries
        chosen = torch.arange(n_heads, device=output.device)[:, None, None] == site.head
        if site.query is not None:
            chosen = chosen & (
                torch.arange(heads.shape[2], device=output.device)[:, None]
                == site.query
            )
        return torch.where(chosen, new[:, None].to(output.dtype), heads).reshape(
            output.shape
        )

    return edit
