"""Many edits of one observation at once.

What does not depend on an edit is computed once for all copies.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_attnprobe.adapters.transformer.attention_tap import Edit, masking, replacing
from hf_attnprobe.adapters.transformer.output_tap import OutputTap, replacing_output
from hf_attnprobe.adapters.transformer.resume import (
    first_tensor,
    hooked,
    relative_tolerance,
    repeated,
)
from hf_attnprobe.adapters.transformer.self_check import least_attended
from hf_attnprobe.adapters.transformer.short_replay import ShortReplay
from hf_attnprobe.adapters.transformer.tapped_model import TappedTransformer
from hf_attnprobe.attention_model import Observation, Site


Inputs = Mapping[str, Tensor]
Edits = Mapping[int, Tensor]
Run = Callable[[Inputs, tuple[Any, ...], Edits], Tensor]
"""(model inputs, outputs of the block calls to skip, edits by layer) -> [batch, ...]."""


def resume(
    transformer: TappedTransformer, observation: Observation, edits: Edits, run: Run
) -> Tensor:
    """What ``run`` returns for every copy of the edits, from the lowest edited layer up.

    Args:
        edits: by layer, each [copies, batch, ...].

    Returns:
        [copies, batch, ...].
    """
    n_at_once = max(1, transformer.tokens_per_pass // observation.batch.mask.numel())
    parts = []
    for start in range(0, len(edits[min(edits)]), n_at_once):
        copies = slice(start, start + n_at_once)
        part = {layer: edited[copies] for layer, edited in edits.items()}
        parts.append(_resume(transformer, observation, part, run))
    return torch.cat(parts)


def _resume(
    transformer: TappedTransformer,
    observation: Observation,
    edits: dict[int, Tensor],
    run: Run,
) -> Tensor:
    outputs = observation.state.outputs[: transformer.layers[min(edits)].n_skipped]
    inputs = observation.batch.inputs
    if transformer.vectorises:
        return torch.func.vmap(lambda edits: run(inputs, outputs, edits))(edits)
    n_copies, n_batch = edits[min(edits)].shape[:2]
    flat = {layer: edited.flatten(0, 1) for layer, edited in edits.items()}
    inputs, outputs = repeated((dict(inputs), outputs), n_copies, n_batch)
    return run(inputs, outputs, flat).unflatten(0, (n_copies, n_batch))


def short_replay(transformer: TappedTransformer, observation: Observation) -> ShortReplay | None:
    """The observation, ready for short replays; None where they do not hold."""
    sublayers = transformer.sublayers
    if sublayers is None:
        return None

    def prepare() -> ShortReplay | None:
        state, batch = observation.state, observation.batch
        head = partial(transformer.from_last, batch.inputs, state.outputs)
        attention, mask = observation.attention, batch.mask
        short = ShortReplay(state.calls, sublayers, attention, mask, head)
        holds = short.holds(relative_tolerance(transformer.model.dtype))
        return short if holds else None

    return observation.remember("short_replay", prepare)


@torch.no_grad()
def check_short_replays(transformer: TappedTransformer, observation: Observation) -> None:
    """Short replays of other attention must give what whole passes give, in every layer.

    Where they do not, the transformer makes no short ones any more.
    """
    short, inputs = short_replay(transformer, observation), observation.batch.inputs
    if short is None:
        return
    tolerance = relative_tolerance(transformer.model.dtype)
    for layer, attention in enumerate(observation.attention):
        visible = observation.model.visible(observation, layer)
        edited = least_attended(attention, visible)
        expected = transformer.logits(inputs, replacing({layer: edited}))
        found = short.replay(layer, edited[None])[0]
        largest = expected.nan_to_num(neginf=0).abs().max()
        if not torch.allclose(
            found, expected, rtol=0, atol=tolerance * float(largest), equal_nan=True
        ):
            transformer.sublayers = None
            return


def _in_parts(run: Callable[[slice], Tensor], n_copies: int, n_at_once: int) -> Tensor:
    """What ``run`` returns for some copies at once, [copies, …]."""
    n_at_once = max(1, n_at_once)
    starts = range(0, n_copies, n_at_once)
    return torch.cat([run(slice(start, start + n_at_once)) for start in starts])


def replay_logits(
    transformer: TappedTransformer,
    observation: Observation,
    edits: Edits,
    as_edit: Callable[[Edits], Edit],
) -> Tensor:
    """Logits [copies, batch, outputs]; ``as_edit`` makes an edit of one copy's ``edits``."""
    short = short_replay(transformer, observation)
    if short is not None:
        return _replay_shortly(transformer, short, edits, as_edit)

    def run(inputs: Inputs, lower: tuple[Any, ...], edits: Edits) -> Tensor:
        return transformer.logits(inputs, as_edit(edits), lower)

    return resume(transformer, observation, edits, run)


def _replay_shortly(
    transformer: TappedTransformer,
    short: ShortReplay,
    edits: Edits,
    as_edit: Callable[[Edits], Edit],
) -> Tensor:
    lowest, n_texts = min(edits), len(short.mask)

    def run(copies: slice) -> Tensor:
        part = {layer: edited[copies] for layer, edited in edits.items()}
        attention = short.attention[lowest]
        edited = torch.func.vmap(
            lambda edit: as_edit({lowest: edit})(lowest, attention, attention)
        )(part.pop(lowest))
        flat = {}
        for layer, edit in part.items():
            flat[layer] = edit.expand(-1, n_texts, -1, -1, -1).flatten(0, 1)
        return short.replay(lowest, edited, as_edit(flat) if flat else None)

    n_at_once = transformer.tokens_per_pass // (n_texts * short.n_rows(lowest))
    return _in_parts(run, len(edits[lowest]), n_at_once)


def replay_outputs(
    transformer: TappedTransformer,
    observation: Observation,
    site: Site,
    outputs: Tensor,
) -> Tensor:
    """See :class:`~hf_attnprobe.attention_model.HeadOutputs`."""
    n_heads = transformer.n_heads[site.layer]
    short = short_replay(transformer, observation)
    if short is not None:
        n_at_once = transformer.tokens_per_pass // observation.batch.mask.numel()
        replayed = [short.replay_output(*site, part) for part in outputs.split(max(1, n_at_once))]
        logits = torch.cat(replayed)
        return transformer.head.probabilities(logits, observation.batch.inputs)

    def run(inputs: Inputs, lower: tuple[Any, ...], edits: Edits) -> Tensor:
        edit = replacing_output(*site, n_heads, edits[site.layer])
        return transformer.logits(inputs, None, lower, OutputTap(edit))

    logits = resume(transformer, observation, {site.layer: outputs}, run)
    return transformer.head.probabilities(logits, observation.batch.inputs)


class _Reached(Exception):
    """The block call that was waited for is over; no error."""


def block_output(
    transformer: TappedTransformer, observation: Observation, layer: int, kept: Tensor
) -> Tensor:
    """See :class:`~hf_attnprobe.attention_model.BlockOutputs`.

    It goes on from the recorded inputs of the block and ends behind it.
    """
    n_before = transformer.layers[layer].n_skipped

    def run(inputs: Inputs, lower: tuple[Any, ...], edits: Edits) -> Tensor:
        outputs: list[Any] = []

        def stop(module: nn.Module, args: Any, output: Any) -> None:
            outputs.append(output)
            if len(outputs) > n_before:
                raise _Reached

        try:
            with hooked(transformer.layout.blocks, stop):
                transformer.logits(inputs, masking(edits, transformer.n_heads), lower)
        except _Reached:
            pass
        return hidden_of(transformer, outputs[n_before])

    return resume(transformer, observation, {layer: kept}, run)


def hidden_of(transformer: TappedTransformer, output: Any) -> Tensor:
    """Hidden states [batch, queries, hidden] from what a block returns."""
    hidden = first_tensor(output)
    if transformer.layout.embeddings.sequence_first:
        return hidden.transpose(0, 1)
    return hidden
