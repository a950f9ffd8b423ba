"""A hash of weights is SHA-256 of their bytes, in whatever parts they are read."""

import hashlib

import torch

from hf_attnprobe.functional import fingerprint
from hf_attnprobe.functional.fingerprint import hash_tensors


def test_tensors_are_hashed_by_their_bytes_and_names(monkeypatch):
    weights = {"b": torch.randn(5, 3).T, "a": torch.arange(4).bfloat16(), "none": torch.empty(0)}
    whole = hashlib.sha256()
    for name in ("a", "b", "none"):
        content = weights[name].contiguous().view(-1).view(torch.uint8).tolist()
        whole.update(name.encode() + hashlib.sha256(bytes(content)).digest())
    for at_once in (fingerprint.BYTES_PER_COPY, 7):
        monkeypatch.setattr(fingerprint, "BYTES_PER_COPY", at_once)
        assert hash_tensors(weights) == whole.hexdigest()[:16]
