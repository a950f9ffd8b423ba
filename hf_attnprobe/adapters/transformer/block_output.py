"""The output of one block of a Transformer under an edit of its attention, without running what comes after."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hf_attnprobe.adapters.transformer.replay import masking, resume
from hf_attnprobe.adapters.transformer.tapped_model import TappedTransformer
from hf_attnprobe.attention_model import Observation


class _Reached(Exception):
    """The block call that was waited for is over; no error."""


def block_output(
    transformer: TappedTransformer,
    observation: Observation,
    layer: int,
    kept: Tensor,
) -> Tensor:
    """See :class:`~hf_attnprobe.attention_model.BlockOutputs`.

    It goes on from the recorded inputs of the block.
    """
    place = transformer.layers[layer].n_skipped

    def run(inputs, lower, edits) -> Tensor:
        reached: list[Any] = []
        with _until(transformer.layout.blocks, place, reached):
            transformer.logits(inputs, masking(edits, transformer.layers), lower)
        return hidden_of(transformer, reached[0])

    return resume(transformer, observation, {layer: kept}, run)


def hidden_of(transformer: TappedTransformer, output: Any) -> Tensor:
    """Hidden states [batch, queries, hidden] from what a block returns."""
    hidden = next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
    return (
        hidden.transpose(0, 1)
        if transformer.layout.embeddings.sequence_first
        else hidden
    )


@contextmanager
def _until(
    blocks: Sequence[nn.Module], place: int, reached: list[Any]
) -> Iterator[None]:
    """Ends the forward pass after block call number ``place``; ``reached`` gets its output."""
    n_calls = 0

    def count(module, args, output) -> None:
        nonlocal n_calls
        if n_calls == place:
            reached.append(output)
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
