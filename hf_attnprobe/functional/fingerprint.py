"""A fingerprint of a model: the hash of its weights."""

import hashlib
from collections.abc import Mapping

import torch


def model_fingerprint(model: torch.nn.Module) -> str:
    """16 hexadecimal digits of the weights' SHA-256.

    They are the same wherever and under whatever name the model was saved.
    """
    return hash_of_tensors(model.state_dict())


def hash_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """16 hexadecimal digits of the SHA-256 of tensors and their names, in any order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
