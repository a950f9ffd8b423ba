"""A tiny BERT whose attention is edited by a hook."""

import torch

from hf_attnprobe.protocol import Site
from tests.helpers import tiny_models


SITES = [Site(0, 1), Site(1, 0), Site(2, 3), Site(1, 2, 0)]


def make_model():
    return tiny_models.bert(layers=3, heads=4, width=32, attn_implementation="eager").double()


def inputs():
    return tiny_models.encoded(tiny_models.five_texts(), special=(1, 2))


def predict_with_hook(site, edited):
    """Probabilities of a full forward pass whose softmax output at one layer is replaced, by patching one module."""
    model = make_model()
    attention = model.bert.encoder.layer[site.layer].attention.self
    original = torch.nn.functional.softmax

    def forward(*args, _forward=attention.forward, **kwargs):
        torch.nn.functional.softmax = lambda *a, **k: edited
        try:
            return _forward(*args, **kwargs)
        finally:
            torch.nn.functional.softmax = original

    attention.forward = forward
    given = inputs()
    given.pop("special_tokens_mask")
    with torch.no_grad():
        return model(**given).logits.softmax(-1)
