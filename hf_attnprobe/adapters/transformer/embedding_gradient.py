"""Gradient × input at the token embeddings of any model.

It does without ``inputs_embeds``, which T5 and BART refuse.
"""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_attnprobe.adapters.transformer.layout import Embeddings
from hf_attnprobe.adapters.transformer.resume import (
    first_tensor,
    hooked,
    with_first_tensor,
)
from hf_attnprobe.functional.explanations import gauss_legendre


def gradient_times_input(
    embeddings: Embeddings,
    explained: Callable[[], Tensor],
    n_keys: int,
    *,
    scale: float = 1.0,
) -> Tensor:
    """Gradient × input of ``explained()``, summed over embedding dimensions.

    A decoder's copy of a token, one position further on behind the start token, counts
    with the token.

    Args:
        embeddings: the modules that give the embeddings.
        explained: runs the model and returns a scalar.
        n_keys: number of positions; patches of an image stand at the end.
        scale: what the embeddings are multiplied by where the gradient is taken; the
            input is as it is.

    Returns:
        [batch, keys], signed.
    """
    inputs: list[Tensor] = []
    leaves: list[Tensor] = []

    def cut(given: Tensor, scaled: Tensor) -> Tensor:
        """The model goes on with a leaf of the graph."""
        inputs.append(given.detach())
        leaves.append(scaled.detach().requires_grad_())
        return leaves[-1].clone()  # a model may go on in place

    with torch.enable_grad(), _scaled(embeddings, scale, cut):
        slopes = torch.autograd.grad(
            explained(), leaves, materialize_grads=True
        )
    products = []
    for given, slope in zip(inputs, slopes, strict=True):
        product = (slope * given).sum(-1)
        products.append(product.t() if embeddings.sequence_first else product)
    encoder, *decoder = products
    total = F.pad(encoder, (n_keys - encoder.shape[1], 0))
    for product in decoder:
        total = total + F.pad(product[:, 1:], (0, 1))
    return total


def _scaled(
    embeddings: Embeddings,
    scale: float,
    change: Callable[[Tensor, Tensor], Tensor],
) -> AbstractContextManager[None]:
    """Replaces embeddings by ``change(embeddings, scaled embeddings)`` while the model runs.

    A decoder's start token is not scaled: it is none of the text.
    """
    n_calls = itertools.count()

    def replace(module: nn.Module, args: Any, output: Any) -> Any:
        given = first_tensor(
            output
        )  # what makes patches may also return their number
        scaled = given * scale
        if next(n_calls):  # of a decoder
            scaled[:, 0] = given[:, 0]
        return with_first_tensor(output, change(given, scaled))

    return hooked(embeddings.modules, replace)


def without_embeddings(
    embeddings: Embeddings, run: Callable[[], Tensor]
) -> Tensor:
    """Calls ``run()`` with all embeddings 0, the baseline of the integral."""
    with _scaled(embeddings, 0.0, lambda given, scaled: scaled):
        return run()


def integrated_gradient(
    embeddings: Embeddings,
    explained: Callable[[], Tensor],
    n_keys: int,
    n_steps: int,
) -> Tensor:
    """Mean of :func:`gradient_times_input` on the path from embeddings of 0.

    See :class:`~hf_attnprobe.attention_model.IntegratedGradients`. Positions and segments
    are added behind the embeddings and stay.
    """
    total: Tensor | float = 0.0
    for place, weight in gauss_legendre(n_steps):
        part = gradient_times_input(embeddings, explained, n_keys, scale=place)
        total = total + weight * part
    return torch.as_tensor(total)
