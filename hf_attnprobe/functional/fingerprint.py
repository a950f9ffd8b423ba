"""What tells two models apart: a hash of their weights."""

import hashlib

import torch


def model_fingerprint(model: torch.nn.Module) -> str:
    """16 hexadecimal digits of the weights' SHA-256.

    They are the same wherever and under whatever name the model was saved.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
