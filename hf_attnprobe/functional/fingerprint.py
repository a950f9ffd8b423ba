"""A fingerprint of a model: the hash of its weights."""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch


def model_fingerprint(model: torch.nn.Module) -> str:
    """16 hexadecimal digits of the weights' SHA-256.

    They are the same wherever and under whatever name the model was saved.
    """
    return hash_of_tensors(model.state_dict())


def hash_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """16 hexadecimal digits of the SHA-256 of tensors and their names, in any order."""
    named = sorted(tensors.items())
    # copies from a device and hashing wait for no other thread of Python
    with ThreadPoolExecutor() as threads:
        hashes = threads.map(_hash_of, [tensor for _, tensor in named])
    whole = hashlib.sha256()
    for (name, _), one in zip(named, hashes, strict=True):
        whole.update(name.encode() + one)
    return whole.hexdigest()[:16]


def _hash_of(tensor: torch.Tensor) -> bytes:
    """SHA-256 of a tensor's bytes, which are not copied where they lie in memory."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).digest()
