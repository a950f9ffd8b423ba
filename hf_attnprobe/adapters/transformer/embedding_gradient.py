"""Gradient × input at the token embeddings of any model.

It does without ``inputs_embeds``, which T5 and BART refuse.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_attnprobe.adapters.transformer.layout import Embeddings
from hf_attnprobe.adapters.transformer.resume import hooked


def gradient_times_input(
    embeddings: Embeddings, explained: Callable[[], Tensor], n_keys: int
) -> Tensor:
    """Gradient × input of ``explained()``, summed over embedding dimensions.

    A decoder's copy of a token, one position further on behind the start token, counts
    with the token.

    Args:
        embeddings: the modules that give the embeddings.
        explained: runs the model and returns a scalar.
        n_keys: number of positions; patches of an image stand at the end.

    Returns:
        [batch, keys], signed.
    """
    leaves: list[Tensor] = []

    def cut(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """The model goes on with a leaf of the graph."""
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    with torch.enable_grad(), hooked(embeddings.modules, cut):
        slopes = torch.autograd.grad(explained(), leaves, materialize_grads=True)
    products = []
    for leaf, slope in zip(leaves, slopes, strict=True):
        product = (slope * leaf.detach()).sum(-1)
        products.append(product.t() if embeddings.sequence_first else product)
    encoder, *decoder = products
    total = F.pad(encoder, (n_keys - encoder.shape[1], 0))
    for product in decoder:
        total = total + F.pad(product[:, 1:], (0, 1))
    return total
