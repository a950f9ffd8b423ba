"""Gradient × input at the token embeddings of any model, without passing ``inputs_embeds``, which T5 and BART refuse."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embeddings(NamedTuple):
    """The modules whose outputs are the token embeddings: several where encoder and decoder each look tokens up.

    sequence_first: whether they give [keys, batch, width], as XLNet's do.
    """

    modules: list[nn.Module]
    sequence_first: bool


def find_embeddings(
    model: nn.Module, blocks: Sequence[nn.Module], run: Callable[[], object]
) -> Embeddings:
    """Where gradient × input is taken.

    Where nothing but a normalisation reads the embeddings (DeBERTa-v3, ModernBERT, Bloom), the model does not depend on
    their lengths, so that gradient × input is 0 by Euler's theorem: there the embeddings are the normalised ones.

    Args:
        model, blocks: see :mod:`~hf_attnprobe.adapters.transformer.resume`.
        run: one forward pass of a single text.
    """
    base = model.get_input_embeddings()
    tied = [
        m
        for m in model.modules()
        if isinstance(m, nn.Embedding) and m.weight is getattr(base, "weight", None)
    ]
    looked_up, readers = [], []

    def note_norm(module, args) -> None:
        if any(args[0] is embeddings for embeddings in looked_up):
            readers.append(module)

    inside = {id(module) for block in blocks for module in block.modules()}
    norms = [
        m for m in model.modules() if "Norm" in type(m).__name__ and id(m) not in inside
    ]
    handles = [
        m.register_forward_hook(lambda module, args, output: looked_up.append(output))
        for m in tied or [base]
    ]
    handles += [norm.register_forward_pre_hook(note_norm) for norm in norms]
    try:
        run()
    finally:
        _remove(handles)
    return Embeddings(readers or tied or [base], sequence_first=len(looked_up[0]) != 1)


def gradient_times_input(
    embeddings: Embeddings, explained: Callable[[], Tensor], n_keys: int
) -> Tensor:
    """Gradient × input of ``explained()``, summed over embedding dimensions, signed, [batch, keys].

    A decoder's copy of a token, one position further on behind the start token, counts with the token.

    Args:
        embeddings: see :func:`find_embeddings`.
        explained: runs the model and returns a scalar.
        n_keys: number of positions; patches of an image stand at the end.
    """
    with torch.enable_grad(), _leaves(embeddings.modules) as leaves:
        slopes = torch.autograd.grad(explained(), leaves, materialize_grads=True)
    products = [
        (slope * leaf.detach()).sum(-1)
        for leaf, slope in zip(leaves, slopes, strict=True)
    ]
    encoder, *decoder = (
        [x.t() for x in products] if embeddings.sequence_first else products
    )
    total = F.pad(encoder, (n_keys - encoder.shape[1], 0))
    return total + sum(F.pad(part[:, 1:], (0, 1)) for part in decoder)


@contextmanager
def _leaves(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """A list that receives every output of ``modules``; the model goes on with them, from there leaves of the graph."""
    leaves = []

    def cut(module, args, output):
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    handles = [module.register_forward_hook(cut) for module in modules]
    try:
        yield leaves
    finally:
        _remove(handles)


def _remove(handles) -> None:
    for handle in handles:
        handle.remove()
