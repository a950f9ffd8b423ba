"""How many threads PyTorch computes with: small models do not wait for them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


LARGE = 512 * 512
"""Entries of the widest matrix of a model from which on further threads help.

Reasoned, not tuned: with 32 texts of 20 tokens such a product takes some ten milliseconds,
about as long as a thread on a busy machine waits for a core, at every operation.
"""
_AT_START = torch.get_num_threads()
_SAID = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def suited_threads(model: nn.Module | None) -> Iterator[int]:
    """One thread for a small model on a CPU, all of PyTorch's for others; then as before.

    A number that the user set is kept: by an environment variable, or by
    ``torch.set_num_threads`` after this package was imported.

    Yields:
        The number of threads.
    """
    before = torch.get_num_threads()
    is_said = before != _AT_START or any(name in os.environ for name in _SAID)
    if is_said or before == 1 or model is None or not is_small(model):
        yield before
        return
    torch.set_num_threads(1)
    try:
        yield 1
    finally:
        torch.set_num_threads(before)


def is_small(model: nn.Module) -> bool:
    """Whether a model's operations are too short to be shared by threads.

    By its widest matrix that a batch is multiplied by; tables of embeddings are only
    looked up. A model on another device than the CPU is not.
    """
    looked_up = {
        id(weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for weight in module.parameters()
    }
    weights = [w for w in model.parameters() if w.dim() > 1 and id(w) not in looked_up]
    if any(weight.device.type != "cpu" for weight in weights):
        return False
    return all(weight.numel() < LARGE for weight in weights)
