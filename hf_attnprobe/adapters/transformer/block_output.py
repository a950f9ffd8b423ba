"""The output of one block of a Transformer under an edit of its attention, without running what comes after."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hf_attnprobe.adapters.transformer.replay import masking, resume
from hf_attnprobe.attention_model import Observation
from hf_attnprobe.errors import AttnProbeError


class _Reached(Exception):
    """The block call that was waited for is over; no error."""


def block_output(adapter, observation: Observation, layer: int, kept: Tensor) -> Tensor:
    """See :meth:`AttentionModel.block_output`; it goes from the recorded inputs of the block."""
    if not adapter.layout.blocks:
        raise AttnProbeError(
            f"expected layers in a list, found none in {type(adapter.model).__name__}; it has no block outputs to read"
        )
    place = adapter.layers[layer].n_skipped

    def run(inputs, lower, edits) -> Tensor:
        found: list[Any] = []
        with _until(adapter.layout.blocks, place, found):
            adapter.logits(inputs, masking(edits, adapter.layers), lower)
        return hidden_of(adapter, found[0])

    return resume(adapter, observation, {layer: kept}, run)


def hidden_of(adapter, output: Any) -> Tensor:
    """Hidden states [batch, queries, hidden] from what a block returns."""
    hidden = next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
    return (
        hidden.transpose(0, 1) if adapter.layout.embeddings.sequence_first else hidden
    )


@contextmanager
def _until(blocks: Sequence[nn.Module], place: int, found: list[Any]) -> Iterator[None]:
    """Leaves the forward pass behind block call number ``place``, whose output goes to ``found``."""
    n_calls = 0

    def count(module, args, output) -> None:
        nonlocal n_calls
        if n_calls == place:
            found.append(output)
            raise _Reached
        n_calls += 1

    handles = [block.register_forward_hook(count) for block in blocks]
    try:
        yield
    except _Reached:
        pass
    finally:
        for handle in handles:
            handle.remove()
